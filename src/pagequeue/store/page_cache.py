"""The pages that a store keeps mapped, and what a seek needs to know of them.

Mapping a page takes a hundred times as long as finding a message in it, so the pages that seeks
went to stay mapped, up to a bound. A map keeps the blocks of a file that retention removed, or that
a compressed one replaced: a worker looks at the files every few seconds, and drops those, and
of pages that no seek used meanwhile. Pages that are only read through are few, and stay as few.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.read_meta import ReadMeta
    from pagequeue.page.page import Page
    from pagequeue.system.directory import Directory
    from pagequeue.util.worker import Background

RECENT_PAGES: Final = 4
SOUGHT_PAGES: Final = 256
SOUGHT_BYTES: Final = 16 << 30
"""Of address space; memory is only what was read, and the system can take it back."""
KEEP_SECONDS: Final = 3.0
NO_COUNT: Final = 2**64 - 1
"""The page is the active one: its messages are counted by the tail."""
NUMBERS_SPARE: Final = 64


class KnownPage(NamedTuple):
    """What the core needs to find a time in a page; it takes the fields in this order.

    Attributes:
        before: the time of its first message, which is before all times that lead to this page.
        number: of the page.
        first_sequence: of its first message.
        messages: how many it has, or `NO_COUNT`.
        region: the map of the page.
        index_region: the map of its index.
        head: the map of the read meta.
    """

    before: int
    number: int
    first_sequence: int
    messages: int
    region: _core.Region
    index_region: _core.Region
    head: _core.Region


class PageCache:
    """The mapped pages of one store.

    Args:
        folder: of the queue.
        meta: of the queue.
        read_meta: the head.
        background: unmaps pages.

    Attributes:
        table: the last times that lead to known pages, in order, and these pages: replaced as a
            whole, so that a seek reads it without a lock.
        first_sequences: of pages of the queue, by number; they never change.
        first_timestamps: the same of their first messages.
    """

    def __init__(
        self, folder: Directory, meta: AllMeta, read_meta: ReadMeta, background: Background
    ) -> None:
        self._folder = folder
        self._read_meta = read_meta
        self._background = background
        self._is_ring = meta.is_ring
        self._recent_max = 1 if meta.is_ring else RECENT_PAGES
        self._sought_max = max(RECENT_PAGES, min(SOUGHT_PAGES, SOUGHT_BYTES // meta.page_bytes))
        self._guard = threading.RLock()  # a finalizer may come back in
        self._reset()
        _caches.add(self)

    def _reset(self) -> None:
        self._recent: OrderedDict[int, Page] = OrderedDict()
        self._sought: OrderedDict[int, Page] = OrderedDict()
        self._known: dict[int, tuple[int, KnownPage]] = {}
        self.table: tuple[list[int], list[KnownPage]] = ([], [])
        self.first_sequences: dict[int, int] = {}
        self.first_timestamps: dict[int, int] = {}
        self._head_page = 0

    def __contains__(self, number: int) -> bool:
        return number in self._recent or number in self._sought

    def __iter__(self) -> Iterator[int]:
        return iter({*self._recent, *self._sought})

    def get(self, number: int) -> Page | None:
        """Return a page that is mapped; None: it is not."""
        page = self._recent.get(number)
        if page is None:
            return self._sought.get(number)
        try:  # noqa: SIM105 - a hot path
            self._recent.move_to_end(number)
        except KeyError:
            pass  # another thread, or a finalizer, came in between
        return page

    def add(self, page: Page) -> None:
        """Keep a page that was just mapped, instead of the one that was used least recently."""
        old: list[object] = []
        with self._guard:
            self._recent[page.number] = page
            while len(self._recent) > self._recent_max:
                old.append(self._recent.popitem(last=False))
        self._drop(old)

    def keep(self, page: Page) -> None:
        """Keep a page to which a seek went until no seek has used it for some seconds."""
        if self._is_ring:
            return  # the sender waits to use its pages again
        old: list[object] = []
        with self._guard:
            # Once is not enough: a reader that was made there mostly reads on from there.
            page.kept.is_used = self._sought.get(page.number) is page
            if page.kept.is_used:
                try:  # noqa: SIM105 - a hot path
                    self._sought.move_to_end(page.number)
                except KeyError:
                    pass  # a signal handler, or a finalizer, came in between
                return
            self._sought[page.number] = page
            while len(self._sought) > self._sought_max:
                number, oldest = self._sought.popitem(last=False)
                old += [oldest, self._known.pop(number, None)]
            if old:
                self._make_table()
            are_many = len(self._sought) == RECENT_PAGES + 1
        self._drop(old)
        if self._folder.descriptor.is_closed:  # perhaps it was emptied before this page came
            self.clear()
            return
        if are_many:
            self._background.repeat(self.trim, KEEP_SECONDS)

    def learn(self, page: Page, before: int, last: int | None, count: int | None) -> None:
        """Note what leads to a page that is kept: its times, and those before the next page's.

        Args:
            page: to which a seek just went.
            before: the time of its first message.
            last: the time of the first message after it; None: it is the active page.
            count: of its messages; None: the tail counts them.
        """
        index = page.known_index
        if self._is_ring or page.is_compressed or index is None:
            return
        known = KnownPage(
            before,
            page.number,
            page.first_sequence,
            NO_COUNT if count is None else count,
            page.region,
            index,
            self._read_meta.region,
        )
        with self._guard:
            if self._sought.get(page.number) is not page:
                return  # another thread dropped it
            if count is None:  # a signal handler may come back in, and change them
                for number in list(self._known):
                    other = self._known.get(number)
                    if other is not None and other[1].messages == NO_COUNT:
                        self._known.pop(number, None)
            self._known[page.number] = (fmt.TIMESTAMP_MAX if last is None else last, known)
            self._make_table()

    def _make_table(self) -> None:
        pages = sorted(self._known.values(), key=lambda known: (known[0], known[1].number))
        self.table = [last for last, _ in pages], [known for _, known in pages]

    def _pop(self, number: int) -> list[object]:
        """Forget a page; return what must be dropped. With the guard held, and then the table."""
        return [
            self._recent.pop(number, None),
            self._sought.pop(number, None),
            self._known.pop(number, None),
        ]

    def forget(self, numbers: list[int]) -> None:
        """Drop pages; readers of the files keep their maps."""
        old: list[object] = []
        with self._guard:
            for number in numbers:
                old += self._pop(number)
            self._make_table()
        self._drop(old)

    def passed(self, number: int, held: list[object]) -> None:
        """Drop a page that a reader has left, and what else is in the list, unless seeks use it."""
        with self._guard:
            page = self._sought.get(number)
            if page is None or page.kept.is_used:
                held.append(self._recent.pop(number, None))
            else:
                del page
                held += self._pop(number)
                self._make_table()
        self._drop(held)

    def drop_retired(self) -> None:
        """Drop pages below the head: the file of a mapped page is not reused."""
        head_page = self._read_meta.head_page
        retired = [number for number in list(self) if number < head_page]
        if retired:
            self.forget(retired)
        if head_page > self._head_page + NUMBERS_SPARE:
            self._head_page = head_page
            for known in (self.first_sequences, self.first_timestamps):
                for number in [n for n in list(known) if n < head_page]:
                    known.pop(number, None)

    def is_replaced(self, page: Page) -> bool:
        """Whether another file has the name of a page by now, or none has."""
        return self._folder.identity(os.path.basename(page.path)) != page.identity

    def trim(self) -> bool:
        """Drop pages that seeks used no more, and those whose files went; False: few are left.

        A worker calls this every few seconds.
        """
        unused: list[int] = []
        try:
            self.drop_retired()
            for number, page in list(self._sought.items()):
                if not page.kept.is_used or self.is_replaced(page):
                    unused.append(number)
                page.kept.is_used = False
        except errors.PageQueueError:  # closed meanwhile
            return False
        if unused:
            self.forget(unused)
        return len(self._sought) > RECENT_PAGES

    def shrink(self) -> bool:
        """Drop all pages at once, because the system gives no more maps; False: there were none."""
        with self._guard:
            old = [self._recent, self._sought, self._known, self.table]
            had = bool(self._recent or self._sought)
            self._recent, self._sought, self._known = OrderedDict(), OrderedDict(), {}
            self.table = [], []
        old.clear()
        return had

    def clear(self) -> None:
        """Drop everything; readers that hold a page keep it."""
        self.shrink()
        self.first_sequences, self.first_timestamps = {}, {}

    def _drop(self, old: list[object]) -> None:
        if not old:
            return
        if self._is_ring:
            old.clear()  # at once: the sender waits to use it again
        else:
            self._background.drop(old)

    def leave_to_parent(self) -> None:
        """Drop the maps that a fork copied: they would keep the blocks of removed files."""
        self._reset()
        self._background.leave_to_parent()


_caches: weakref.WeakSet[PageCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
