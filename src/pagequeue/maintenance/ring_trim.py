"""RingTrimmer: moves the head of a ring by one page, and uses that page again as the next one.

It does what a trim (`trimmer.py`) and the making of a page (`store/roll.py`) do, for the case of
nearly every roll: the oldest page is mapped here to be used again, and so is the one after it,
which becomes the head. Then no file is listed, read or removed, and both happen under one lock. A
trim plans without the lock, for any number of pages; to look at one page under the lock takes as
long as to compare a plan with the state.
"""

from __future__ import annotations

import contextlib
import math
from enum import Enum, auto
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance import trim_plan
from pagequeue.meta.cursor import CursorMeta
from pagequeue.meta.read_meta import ReadMeta

if TYPE_CHECKING:
    from pagequeue.maintenance.size_limit import SizeLimit
    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store
    from pagequeue.system.replaced_file import Identity


class Found(Enum):
    """What an attempt found."""

    MOVED = auto()
    """The head moved, and the page was made, unless its file is in use; then a new one must be."""
    HELD = auto()
    """A consumer needs the page."""
    OTHER = auto()
    """It is not that case: a trim must look."""


class RingTrimmer:
    """Keeps the cursors of one ring mapped.

    Args:
        limit: of the page files.
        names: of the consumers.
    """

    def __init__(self, limit: SizeLimit, names: trim_plan.ConsumerNames) -> None:
        self._limit = limit
        self._names = names
        self._cursors: dict[str, tuple[Identity | None, CursorMeta]] = {}

    def advance(
        self, store: Store, number: int, *, is_held: bool = False
    ) -> tuple[Found, WritablePage | None]:
        """Move the head, so that a page of this number fits, and make that page, if it can be.

        Args:
            store: of the ring.
            number: of the page.
            is_held: whether the caller has the preparation lock.

        Raises:
            LockTimeout: another process holds the preparation lock.
        """
        roller, read_meta = store.roller, store.read_meta
        head_page = read_meta.head_page
        if number - head_page != self._limit.page_limit:
            return Found.OTHER, None
        first = roller.first_to_renew(head_page)
        if first is None:
            return Found.OTHER, None
        made, names = self._names.of(store)
        lock = roller.lock.exclusive(store.lock_timeout, "trimming the queue")
        # Closing waits until the page below the new head is used again.
        with store.folder.descriptor, contextlib.nullcontext() if is_held else lock:
            store.folder.check()
            if (
                read_meta.head_page != head_page
                or store.write_meta.is_failed
                or not read_meta.made_none_since(ReadMeta.CONSUMERS_MADE, made)
                or store.tail.page_number + 1 != number
                or roller.is_there(number)
            ):
                return Found.OTHER, None
            needed = self._needed(store, names)
            if needed is None or needed < first:
                return Found.OTHER if needed is None else Found.HELD, None
            read_meta.advance(first, head_page + 1)
            store.pages.drop_retired()
            return Found.MOVED, roller.renew(number, head_page + 1, first)

    def _needed(self, store: Store, names: list[str]) -> float | None:
        """Return the first sequence that a consumer needs; None: a trim must look."""
        needed = math.inf
        for removed in self._cursors.keys() - names:
            del self._cursors[removed]
        for name in names:
            identity = store.folder.identity(fmt.cursor_name(store.prefix, name))
            known, cursor = self._cursors.get(name, (None, None))
            try:
                if cursor is None or known != identity:
                    self._cursors.pop(name, None)
                    cursor = CursorMeta(
                        store.folder, store.prefix, store.meta.queue_id, name, writable=False
                    )
                    self._cursors[name] = identity, cursor
                place = trim_plan.place_of(cursor, protects=True, idle=False)
            except errors.ClosedError:
                raise  # this is not about the cursor
            except errors.NOT_RETRYABLE:
                return None
            if place.has_flow or place.sequence is None:
                return None
            needed = min(needed, place.sequence)
        return needed
