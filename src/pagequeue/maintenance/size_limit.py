"""SizeLimit: how many pages fit into `max_bytes`; a compressed page counts as its file does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.read_meta import ReadMeta

if TYPE_CHECKING:
    from pagequeue.store.store import Store


class SizeLimit:
    """The limit of a queue's page files.

    Args:
        page_bytes: of the queue.
        path: of its directory.
        max_bytes: the limit; None: unlimited.

    Attributes:
        max_bytes: the limit in bytes.
        page_limit: the limit in whole uncompressed pages; infinite without one.

    Raises:
        InvalidOption: the limit is less than two pages.
    """

    def __init__(self, page_bytes: int, path: str, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.page_limit: float = math.inf
        self._compressed: dict[int, int] = {}  # sizes of compressed pages, by number
        self._compressed_as_of = -1  # the read meta's counter before they were listed
        if max_bytes is not None:
            self.page_limit = max_bytes // page_bytes
            if self.page_limit < 2:
                raise errors.InvalidOption(
                    f"max_bytes is {max_bytes}",
                    path=path,
                    remedy=f"give two pages of {page_bytes} bytes or more, or create the queue "
                    "with smaller page_bytes",
                )

    def allows(self, store: Store, number: int) -> bool:
        """Whether the pages from the head up to this number fit."""
        head_page = store.read_meta.head_page
        count = number - head_page + 1
        if count <= self.page_limit:
            return True
        self._update(store, head_page)
        return count <= self.page_limit + self._spare(store, head_page) // store.meta.page_bytes

    def first_kept(self, store: Store, head_page: int, page_limit: float) -> int:
        """Return the first page to keep, so that at most `page_limit` pages and a spare remain."""
        low, tail_page = head_page, store.tail.page_number
        if tail_page + 1 - head_page <= page_limit:
            return low
        self._update(store, head_page)
        page_bytes, spare_bytes = store.meta.page_bytes, self._spare(store, head_page)
        while low < tail_page and tail_page - low + 1 > page_limit + spare_bytes // page_bytes:
            spare_bytes -= page_bytes - self._compressed.get(low, page_bytes)
            low += 1
        return low

    def _update(self, store: Store, first: int) -> None:
        """Find out which of the pages from `first` on are compressed."""
        known = self._compressed
        for number in [number for number in list(known) if number < first]:
            known.pop(number, None)
        if self.max_bytes is None:
            return
        as_of = store.read_meta.made(ReadMeta.PAGES_COMPRESSED)
        if as_of == self._compressed_as_of and not as_of & 1:
            return  # unchanged; else each roll would check all pages
        for number in range(first, store.tail.page_number):
            if number not in known:
                status = store.folder.status(fmt.page_name(store.prefix, number))
                if status is not None and status.st_size < store.meta.page_bytes:
                    known[number] = status.st_size
        self._compressed_as_of = as_of

    def _spare(self, store: Store, first: int) -> int:
        """Return the bytes of `max_bytes` that are less than a page, or saved by compressing."""
        if self.max_bytes is None:
            return 0
        page_bytes, known = store.meta.page_bytes, self._compressed
        saved = sum(page_bytes - size for number, size in list(known.items()) if number >= first)
        return self.max_bytes % page_bytes + saved
