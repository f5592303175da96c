"""Room for a sender: what happens before a page is created in a queue at its `max_bytes`."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from pagequeue import _core, errors
from pagequeue.maintenance.abandoned import REMEDY, named, unopened
from pagequeue.maintenance.ring_trim import Found, RingTrimmer
from pagequeue.maintenance.trim_plan import Headers, first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.maintenance.retention import Retention, TrimReport
    from pagequeue.maintenance.size_limit import SizeLimit
    from pagequeue.store.store import Store
    from pagequeue.util.literals import OnFull

log: logging.Logger = logging.getLogger("pagequeue")
SLICE_SECONDS: Final = 0.05
"""The longest sleep: for a consumer that died before it woke us, was removed, or fell idle."""
WARN_SECONDS: Final = 1.0
"""A sender that waits so long is reported, if no process has open what it waits for."""
WARN_AGAIN_SECONDS: Final = 60.0


class Trimmer(Protocol):
    """The part of `Trimmer` that removes pages."""

    policy: Retention

    def trim_to(self, store: Store, page_limit: float, *, protects: bool) -> TrimReport:
        """Remove pages until at most `page_limit` remain."""
        ...

    def remove_retired(self, store: Store) -> int:
        """Remove the pages below the head."""
        ...


class RoomMaker:
    """Makes room for the next page: it trims, and then drops, waits or raises, by `on_full`.

    Args:
        limit: of the page files.
        on_full: "raise", "block" or "drop_oldest".
        headers: of retained pages.
        ring: the trimmer of a ring; None: it is no ring.
    """

    def __init__(
        self, limit: SizeLimit, on_full: OnFull, headers: Headers, ring: RingTrimmer | None = None
    ) -> None:
        self._limit = limit
        self._on_full = on_full
        self._headers = headers
        self._ring = ring
        # Both in seconds of the monotonic clock.
        self._blocked_since: float | None = None
        self._warn_from = 0.0

    def make_room(
        self,
        trimmer: Trimmer,
        store: Store,
        number: int,
        check: Callable[[], None] | None,
        deadline: float,
    ) -> None:
        """Make room for a page before it is created.

        Args:
            trimmer: removes pages.
            store: of the queue.
            number: of the page; of a bulk commit its last one, once all its pages can fit.
            check: raises when the page is not needed any more; None: no sender waits for it.
            deadline: until when to block, in seconds of the monotonic clock.

        Raises:
            QueueFull: the queue is full, and `on_full` is "raise" or the timeout is over.
            AccessDenied: this user may not remove the oldest page.
            SyncFailed: a sync failed, of a trim or in any process, and the queue stops then.
        """
        while True:
            try:
                self._make_room(trimmer, store, number, check, deadline)
            except errors.SyncFailed:
                if check is None or not store.flusher.can_resume:
                    raise
                store.flusher.resume()  # in a page after the active one
                if store.tail.page_number < number:
                    continue
            self._blocked_since = None
            return

    def _make_room(
        self,
        trimmer: Trimmer,
        store: Store,
        number: int,
        check: Callable[[], None] | None,
        deadline: float,
    ) -> None:
        if self._has_room(trimmer, store, number):
            return
        page_limit = self._limit.page_limit
        limit = page_limit - (number - store.tail.page_number)
        # The page of a ring was held a moment ago.
        bell = None if self._ring is None else self._announce(store, limit)
        while True:
            limit = page_limit - (number - store.tail.page_number)
            may_wait = self._on_full == "block" and check and time.monotonic() < deadline
            found = Found.OTHER if self._ring is None else self._ring.advance(store, number)[0]
            if found is Found.MOVED:
                return
            is_late = self._is_late()
            # A plan notices consumers that fell idle.
            looks = is_late or trimmer.policy.max_idle is not None
            if found is Found.OTHER or not may_wait or looks:
                held_by = self._trim(trimmer, store, number, limit)
                if held_by is None:
                    return
                if is_late:
                    self._warn(store, held_by)
                if not may_wait:
                    raise self._full(store, held_by)
            if bell is None:  # most often there is room at once: announced only now
                bell = self._announce(store, limit)
                continue
            seconds = min(SLICE_SECONDS, max(0.0, deadline - time.monotonic()))
            _core.await_room(store.write_meta.region, bell, int(seconds * 1e9))
            assert check is not None
            check()
            store.folder.descriptor.check()
            store.folder.check()
            if store.tail.page_number >= number:
                return  # another process created it
            bell = self._announce(store, limit)

    def _trim(
        self, trimmer: Trimmer, store: Store, number: int, limit: float
    ) -> tuple[str, ...] | None:
        """Trim; return the consumers that hold pages, None when there is room."""
        report = trimmer.trim_to(store, limit, protects=trimmer.policy.keep_unacked)
        if self._limit.allows(store, number):
            return None
        if store.write_meta.is_failed:  # so nothing was trimmed
            raise store.flusher.failed(store.write_meta.failed_errno)
        if self._on_full == "drop_oldest":
            trimmer.trim_to(store, limit, protects=False)
            log.warning(
                "%s: full: dropped pages that were not acknowledged by %s",
                store.folder.path,
                ", ".join(report.held_by),
            )
            return None
        return report.held_by

    def _announce(self, store: Store, limit: float) -> int:
        """Announce that a sender waits; before it looks, so that it misses no acknowledgement.

        Returns:
            the bell, which moves when all before the page that must become the head is done.
        """
        head_page, head_sequence = store.head
        wanted = self._limit.first_kept(store, head_page, limit)
        sequence = head_sequence  # wakes early where nothing better is known
        mapped = store.roller.first_to_renew(head_page)
        if wanted == head_page + 1 and mapped is not None:
            sequence = mapped
        elif wanted > head_page:
            with contextlib.suppress(errors.PageQueueError):  # planning raises it
                sequence = first_of(self._headers.of(store, wanted))
        return _core.room_bell(store.write_meta.region, sequence)

    def _has_room(self, trimmer: Trimmer, store: Store, number: int) -> bool:
        """Whether pages up to this number fit; if so, remove retired pages, which take space."""
        if not self._limit.allows(store, number):
            return False
        if self._limit.page_limit < math.inf:
            # Another thread or process can have moved the head without removing the pages yet.
            trimmer.remove_retired(store)
        return True

    def _is_late(self) -> bool:
        """Whether senders have waited for long, in one call or several, and it was not said."""
        now = time.monotonic()
        if self._blocked_since is None:
            self._blocked_since = now
        is_long = now >= self._blocked_since + WARN_SECONDS
        return is_long and now >= self._warn_from and self._on_full == "block"

    def _warn(self, store: Store, held_by: tuple[str, ...]) -> None:
        """Report that a sender waits for consumers that no process has open."""
        self._warn_from = time.monotonic() + WARN_SECONDS
        closed = unopened(store, held_by)
        if closed:
            self._warn_from += WARN_AGAIN_SECONDS
            log.warning(
                "%s: full: a sender waits for %s, which no process has open: %s",
                store.folder.path,
                named(closed),
                REMEDY,
            )

    def _full(self, store: Store, held_by: tuple[str, ...]) -> errors.QueueFull:
        closed = unopened(store, held_by)
        unused = f" (no process has {named(closed)} open)" if closed else ""
        if len(closed) == len(held_by) > 0:
            unused = ", which no process has open"
        return errors.QueueFull(
            f"max_bytes of {self._limit.max_bytes} is reached, and the oldest page is not "
            f"acknowledged by {named(held_by)}{unused}, so the message was not sent",
            path=store.folder.path,
            held_by=held_by,
            remedy="acknowledge, remove the consumer or raise max_bytes",
        )
