"""Consumers and groups that keep pages while no process has them open, reported by the log."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from pagequeue.maintenance.consumers import consumers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pagequeue.store.store import Store

log: logging.Logger = logging.getLogger("pagequeue")
NAMED_COUNT: Final = 5
"""Consumers that a message names; an error's `held_by` has all of them."""
CLOSED_SECONDS: Final = 60.0
"""So long no process must have a consumer open before it is reported: services are restarted."""
CHECK_SECONDS: Final = 10.0
WARN_AGAIN_SECONDS: Final = 3600.0
REMEDY: Final = (
    "open it again, remove it with remove_consumer, or let retention=Retention(max_idle=...) drop "
    "it"
)


def unopened(store: Store, names: Sequence[str]) -> list[str]:
    """Return those of some consumers and groups that no process has open."""
    return [info.name for info in consumers(store) if info.name in names and not info.is_open]


def named(names: Sequence[str]) -> str:
    """Return the names of consumers for a message, some of them if they are many."""
    text = ", ".join(map(repr, names[:NAMED_COUNT])) or "any consumer"
    more = len(names) - NAMED_COUNT
    return f"{text} and {more} more" if more > 0 else text


class AbandonedWatch:
    """Logs which consumers keep pages that retention would remove, while no process has them open.

    Args:
        clock: in seconds, of any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed_since: dict[str, float] = {}
        self._check_from = self._warn_from = -CHECK_SECONDS

    def note(self, store: Store, held_by: Sequence[str]) -> None:
        """Note which consumers kept pages at a trim."""
        now = self._clock()
        if not held_by:
            self._closed_since.clear()
            return
        if now < self._check_from:
            return
        self._check_from = now + CHECK_SECONDS
        found = unopened(store, held_by)
        self._closed_since = {name: self._closed_since.get(name, now) for name in found}
        closed = [
            name for name, begun in self._closed_since.items() if now >= begun + CLOSED_SECONDS
        ]
        if closed and now >= self._warn_from:
            self._warn_from = now + WARN_AGAIN_SECONDS
            log.warning(
                "%s: retention keeps pages for %s, which no process has open: %s",
                store.folder.path,
                named(closed),
                REMEDY,
            )
