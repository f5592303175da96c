"""Filled pages: messages that fit into pages, staged.

A page is filled by one thread. Of messages for several pages, as many pages as there are cores are
filled at the same time; which messages a page takes is known before, from their sizes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pagequeue import format as fmt
from pagequeue.bulk.chunk import UNIT_BYTES, frame_units
from pagequeue.bulk.staged_fragments import frame
from pagequeue.page.header import PageHeader
from pagequeue.page.page import make_page
from pagequeue.send.page_writer import PageWriter
from pagequeue.util.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.bulk.chunk import Chunk
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.page import WritablePage
    from pagequeue.system.directory import Directory

BATCH_BYTES: Final = 1 << 20
"""So much is written at once: what is copied is in the processor's cache when it is checked."""
FILL_BYTES: Final = 4 << 20
"""Memory is taken for so much at once."""
FILLED_PREFIX: Final = "filled"
"""Prefix of the names of staged pages with frames."""
MAPPED_MAX: Final = 16
"""So many staged pages stay mapped until they are committed; each has descriptors open."""
AT_ONCE_MAX: Final = 4
"""More threads than this wait for memory."""


class FilledPage(NamedTuple):
    """A page with messages.

    Attributes:
        number: of its files.
        size: how many messages it has.
        position: where they end.
        mapped: the page as it was written to; None: it has to be mapped again.
    """

    number: int
    size: int
    position: int
    mapped: WritablePage | None


class _Part(NamedTuple):
    """Messages of a chunk, from `begin` to `end`, that one page takes."""

    chunk: Chunk
    ends: NDArray[np.int64]
    begin: int
    end: int


class _OpenPage:
    """A page that is being filled; only one thread at a time uses it."""

    def __init__(self, folder: Directory, meta: AllMeta, number: int) -> None:
        self._folder = folder
        self._meta = meta
        self._number = number
        self._writer: PageWriter | None = None

    @property
    def position(self) -> int:
        """Where its messages end."""
        return fmt.PAGE_HEADER_BYTES if self._writer is None else self._writer.tail.position

    @property
    def count(self) -> int:
        """How many messages it has."""
        return 0 if self._writer is None else self._writer.tail.count

    def fill(self, part: _Part) -> None:
        """Write messages; the first ones make its files."""
        writer = self._writer = self._writer or self._made()
        chunk = part.chunk
        for first, last, frame_bytes in _steps(part.ends, part.begin, part.end, FILL_BYTES):
            writer.fill(frame_bytes, last - first)
            for begin, end, _ in _steps(part.ends, first, last, BATCH_BYTES):
                writer.write(chunk.payloads, chunk.times, begin, end)

    def _made(self) -> PageWriter:
        header = PageHeader(self._number, self._meta.queue_id, None, 0, 0)
        page = make_page(self._folder, FILLED_PREFIX, self._meta, header, may_grow=True)
        path = self._folder.full(fmt.page_name(FILLED_PREFIX, self._number))
        return PageWriter(page, path)

    def filled(self, *, is_sealed: bool) -> FilledPage:
        """Return the page as it is, or sealed."""
        assert self._writer is not None
        tail = self._writer.tail
        if is_sealed:
            mark = frame(self._meta, b"", tail.count, tail.last_timestamp, fmt.END_OF_PAGE)
            self._writer.page.region.write(tail.position, mark)
        mapped = self._writer.page if self._number <= MAPPED_MAX else None
        return FilledPage(self._number, tail.count, tail.position, mapped)


class PageFiller:
    """Fills staged pages, of which one at most is not sealed.

    Args:
        meta: of the queue that the messages will belong to.
        folder: the directory for their files.
    """

    def __init__(self, meta: AllMeta, folder: Directory) -> None:
        self._meta = replace(meta, queue_id=fmt.staged_id(meta.queue_id))
        self._folder = folder
        self._made = 0  # pages
        self._open: _OpenPage | None = None

    def write(self, chunk: Chunk) -> Iterator[FilledPage]:
        """Write messages; yield pages that are filled and sealed, in order."""
        ends = np.cumsum(frame_units(chunk.lengths))
        parts = list(self._parts(chunk, ends))
        if not parts[0].end:  # the open page is full
            yield from self.seal()
            del parts[0]
        while parts:
            count = at_once()  # asked once: another process can change it at any time
            these, parts = parts[:count], parts[count:]
            pages = [self._open or self._next(), *(self._next() for _ in these[1:])]
            self._open = None
            filling = zip(pages, these, strict=True)
            side_by_side([partial(page.fill, part) for page, part in filling])
            if not parts:
                self._open = pages.pop()
            for page in pages:
                yield page.filled(is_sealed=True)

    def _next(self) -> _OpenPage:
        self._made += 1
        return _OpenPage(self._folder, self._meta, self._made)

    def seal(self) -> Iterator[FilledPage]:
        """Seal the open page, if there is one, and yield it."""
        if self._open is not None:
            yield self._open.filled(is_sealed=True)
            self._open = None

    def unsealed(self) -> FilledPage | None:
        """Return the open page; None: there is none."""
        return None if self._open is None else self._open.filled(is_sealed=False)

    def _parts(self, chunk: Chunk, ends: NDArray[np.int64]) -> Iterator[_Part]:
        """Yield what each page takes; for the open page first, perhaps nothing."""
        page_bytes, capacity = self._meta.page_bytes, self._meta.index_capacity
        position, count = fmt.PAGE_HEADER_BYTES, 0
        if self._open is not None:
            position, count = self._open.position, self._open.count
        begin = before = 0
        while begin < len(ends):
            room = (page_bytes - fmt.FRAME_HEADER_BYTES - position) // UNIT_BYTES
            end = int(np.searchsorted(ends, before + room, side="right"))
            end = min(end, begin + capacity - count)
            yield _Part(chunk, ends, begin, end)
            position, count = fmt.PAGE_HEADER_BYTES, 0
            begin, before = end, int(ends[end - 1]) if end else 0


def at_once() -> int:
    """Return how many pages are worked on at the same time."""
    cores = os.cpu_count() or 1
    if sys.platform == "linux":  # others do not tell which of them a process may use
        cores = len(os.sched_getaffinity(0))
    return min(cores, AT_ONCE_MAX)


def _steps(
    ends: NDArray[np.int64], begin: int, end: int, limit_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Split messages `begin` to `end` into some whose frames take so many bytes at most.

    Args:
        ends: where the frame of each ends, in units of `UNIT_BYTES`.
        begin: the first one.
        end: one past the last one.
        limit_bytes: of a step, unless it is a single message.

    Yields:
        the first one of a step, one past its last one, and the bytes of their frames.
    """
    before = int(ends[begin - 1]) if begin else 0
    while begin < end:
        stop = int(np.searchsorted(ends, before + limit_bytes // UNIT_BYTES, side="right"))
        stop = min(max(stop, begin + 1), end)
        after = int(ends[stop - 1])
        yield begin, stop, (after - before) * UNIT_BYTES
        begin, before = stop, after
