"""Upkeep: the policy of a queue's options: its retention, compression, and failed syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue.util.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.maintenance.compress import Compressor
    from pagequeue.maintenance.trimmer import Trimmer
    from pagequeue.page.page import WritablePage
    from pagequeue.store.policy import Limits
    from pagequeue.store.store import Store


class Upkeep:
    """Keeps one opened queue as its options say; see `Policy`.

    Args:
        trimmer: applies the retention.
        compressor: compresses sealed pages.
        rewrite: continues after a failed sync; None: the queue stops.
    """

    def __init__(
        self,
        trimmer: Trimmer,
        compressor: Compressor,
        rewrite: Callable[[Store], object] | None = None,
    ) -> None:
        self.trimmer = trimmer
        self.compressor = compressor
        self.limits: Limits = trimmer.limits
        self._rewrite = rewrite
        self.resumes: bool = rewrite is not None

    def begin(self, store: Store) -> None:
        """Begin what is repeated for an open queue, without keeping it open."""
        seconds = self.trimmer.check_seconds
        if seconds is not None:
            store.background.repeat(weakly(store, self.trimmer.check_quietly), seconds)

    def make_room(
        self, store: Store, number: int, check: Callable[[], None] | None, deadline: float
    ) -> None:
        """Make room for a page; see `RoomMaker.make_room`."""
        self.trimmer.make_room(store, number, check, deadline)

    def has_room(self, store: Store, number: int) -> bool:
        """Whether a page fits without removing one."""
        return self.trimmer.has_room(store, number)

    def renew(self, store: Store, number: int, *, is_held: bool = False) -> WritablePage | None:
        """Make the next page of a ring of its oldest one; see `RingTrimmer.advance`."""
        return self.trimmer.renew(store, number, is_held=is_held)

    def rolled(self, store: Store) -> None:
        """Trim and compress in the background, as far as a roll makes that due."""
        if self.trimmer.follows_rolls or self.compressor.follows_rolls:
            store.background.submit(weakly(store, self._follow))

    def _follow(self, store: Store) -> None:
        if self.trimmer.follows_rolls:
            self.trimmer.trim_quietly(store)
        self.compressor.rolled(store)

    def rewrite(self, store: Store) -> object:
        """Continue after a failed sync."""
        assert self._rewrite is not None
        return self._rewrite(store)
