"""readMeta: the head, the first page and message that may be read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import (
    REPAIR,
    MappedMeta,
    check_shared,
    field_of,
    lost_meta,
    make_shared,
    map_shared,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.system.directory import Directory

HALF: Final = 2**32 - 1


class ReadMeta(MappedMeta):
    """The first readable page and its first sequence, mapped."""

    HEAD_PAGE: Final = field_of(fmt.READ_META, "head_page")
    HEAD_ODD: Final = field_of(fmt.READ_META, "head_odd")
    HEAD_EVEN: Final = field_of(fmt.READ_META, "head_even")
    CONSUMERS_MADE: Final = field_of(fmt.READ_META, "consumers_made")
    PAGES_COMPRESSED: Final = field_of(fmt.READ_META, "pages_compressed")

    def __init__(self, folder: Directory, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.read_meta_name(prefix)
        self.path: str = folder.full(name)
        region, _ = map_shared(
            folder,
            name,
            size_bytes=fmt.READ_META_BYTES,
            writable=writable,
            doing="mapping the read meta",
        )
        self.region: _core.Region = region
        check_shared(self.region, fmt.READ_META, fmt.READ_MAGIC, queue_id, self.path)
        if self.region.load(self.HEAD_PAGE) == 0:
            raise errors.CorruptMeta(
                "its head is page 0, so reading begins nowhere",
                path=self.path,
                position=self.HEAD_PAGE,
                reason="head page",
                remedy=REPAIR,
            )

    @staticmethod
    def make(
        folder: Directory, prefix: str, queue_id: bytes, *, head_page: int, head_sequence: int
    ) -> None:
        """Create or replace the file; only with the queue locked exclusively."""
        make_shared(
            folder,
            fmt.read_meta_name(prefix),
            fmt.READ_META,
            fmt.READ_MAGIC,
            queue_id,
            head_page=head_page,
            head_odd=head_sequence,
            head_even=head_sequence,
        )

    @property
    def head_page(self) -> int:
        """The first readable page."""
        number = self.region.load(self.HEAD_PAGE)
        if number == 0:
            raise lost_meta(self.path, self.HEAD_PAGE)
        return number

    @classmethod
    def sequence_at(cls, number: int) -> int:
        """Return the offset of the head sequence that a page of this number uses."""
        return cls.HEAD_ODD if number & 1 else cls.HEAD_EVEN

    @property
    def head(self) -> tuple[int, int]:
        """The first readable page and its first sequence, read consistently."""
        while True:
            number = self.head_page
            sequence = self.region.load(self.sequence_at(number))
            if self.head_page == number:  # else retention advanced and reused the word
                return number, sequence

    @property
    def head_sequence(self) -> int:
        """The first readable sequence."""
        return self.head[1]

    def advance(self, first_sequence: int, page_number: int | None = None) -> None:
        """Move the head to a page that begins with this; under the preparation lock.

        Only by an odd number of pages, so that the store never hits the word in use (I12). Dies
        between the stores: the head has not moved.

        Args:
            first_sequence: of the page.
            page_number: of the page; None: the page after the head.
        """
        before = self.head_page
        number = before + 1 if page_number is None else page_number
        assert (number - before) % 2 == 1
        self.region.store(self.sequence_at(number), first_sequence)
        self.region.store(self.HEAD_PAGE, number)

    def made(self, at: int) -> int:
        """Return the word of `CONSUMERS_MADE` or `PAGES_COMPRESSED`.

        While it is unchanged and even, no consumer was made, or no page compressed.
        """
        return self.region.load_half(at)

    @contextlib.contextmanager
    def making(self, at: int) -> Iterator[None]:
        """Wrap the making of a consumer, or compressing a page; under the preparation lock.

        Dies inside: the word stays odd until the next one is made, or `made_none_since` finds it.
        """
        odd = self.made(at) | 1
        self.region.store_half(at, odd)
        try:
            yield
        finally:
            self.region.store_half(at, (odd + 1) & HALF)

    def made_none_since(self, at: int, before: int) -> bool:
        """Whether none was made since the word was loaded; under the preparation lock."""
        now = self.made(at)
        if now & 1:  # its maker died
            self.region.store_half(at, (now + 1) & HALF)
            return False
        return now == before
