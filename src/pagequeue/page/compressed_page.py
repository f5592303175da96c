"""Pages as readers map them, whether their files are compressed or not.

A compressed page becomes memory of this process alone, of the page's full size, in which only those
blocks are filled that somebody came to. A block that was not filled reads as zeros at its first
frame, and whoever finds that has it filled: in a sealed page nothing else can be meant. A block is
inflated beside, and its first length is stored last, so that others see none of it or all.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import weakref
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.compressed_format import (
    BLOCKS_AT,
    Head,
    bad_head,
    encode_end,
    front_bytes,
    is_compressed,
    parse_end,
    parse_front,
    read_at,
    second_front,
)
from pagequeue.page.page import Page, Scan, lost_page, map_plain, private_page
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.system.directory import Directory

    Wrong = Callable[[errors.DamageError], object]

KEPT_REGIONS: Final = 2
"""So many inflated pages a store keeps for the next reader; readers inside keep their own."""
UNUSED: Final = 2
"""References to a region that only a list has, as `sys.getrefcount` counts them."""


class BlockInflater:
    """Fills the memory of one page from its compressed file, block by block.

    Attributes:
        head: what the file says.
    """

    def __init__(self, head: Head, stored: _core.Region) -> None:
        self.head = head
        self._stored = stored
        self._filled = bytearray(len(head.blocks))
        self._guard = threading.RLock()  # a signal handler may come back in

    def fresh(self, region: _core.Region) -> None:
        """Begin with memory in which another page may have been."""
        region.write(0, self.head.plain_header())
        for position in self.head.positions:
            region.store_half(position, 0)
        region.filler = self

    def fill(self, region: _core.Region, position: int) -> bool:
        """Fill the block that has a position; False: it was there already.

        Raises:
            CorruptFrame: it is damaged. CorruptPage: the file was truncated.
        """
        return self.fill_block(region, self.head.block_at(position))

    def fill_block(self, region: _core.Region, number: int) -> bool:
        """Fill one block; False: it was there already."""
        if self._filled[number]:
            return False
        block = self.head.blocks[number]
        if block.offset + block.stored_bytes > len(self._stored):
            raise self.head.damage(block, "the file ends before it does")
        # A copy: whoever changes the file meanwhile cannot change what was checked.
        stored = self._stored.read(block.offset, block.stored_bytes)
        data = self.head.inflate(block, stored)
        with contextlib.suppress(OSError):  # an old system: faults come by themselves
            region.populate(block.position, len(data))
        with self._guard:
            if not self._filled[number]:
                # All of it with the GIL, so no reader is in between; and its first word last, for
                # the walk that runs without.
                region.write(block.position + 4, memoryview(data)[4:])
                region.store_half(block.position, int.from_bytes(data[:4], "little"))
                self._filled[number] = 1
        return True

    def fill_all(self, region: _core.Region, wrong: Wrong | None = None) -> None:
        """Fill all blocks; a damaged one is told to `wrong` and stays zeros, if that is given."""
        for number in range(len(self._filled)):
            try:
                self.fill_block(region, number)
            except errors.CorruptFrame as error:
                if wrong is None:
                    raise
                wrong(error)


class Pool:
    """The memory of inflated pages, used again: fresh memory costs more than inflating."""

    def __init__(self, meta: AllMeta) -> None:
        self._meta = meta
        self._regions: list[_core.Region] = []
        self._users: list[weakref.ref[CompressedPage]] = []
        self._guard = threading.RLock()

    def take(self, user: CompressedPage) -> _core.Region:
        """Return memory for a page; the page that took some longest ago gives its back."""
        with self._guard:
            region = self._unused()
            while self._users and (region is None or len(self._users) >= KEPT_REGIONS):
                oldest = self._users.pop(0)()
                if oldest is not None:
                    oldest.give_back()
                region = region or self._unused()
            if region is None:
                region = private_page(b"", self._meta)
                self._regions.append(region)
                del self._regions[: -KEPT_REGIONS - 1]  # they go with whoever reads in them
            self._users.append(weakref.ref(user))
            return region

    def _unused(self) -> _core.Region | None:
        """Return memory that no page, no reader and no view has."""
        regions = self._regions
        for i in range(len(regions)):
            if sys.getrefcount(regions[i]) == UNUSED:
                return regions[i]
        return None


class CompressedPage(Page):
    """A compressed page as a reader sees it; opened by `open_page`."""

    is_compressed = True

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        number: int,
        head: Head,
        stored: _core.Region,
        pool: Pool,
    ) -> None:
        self._head = head
        self._stored = stored
        self._pool = pool
        self._filler: BlockInflater | None = None
        super().__init__(folder, prefix, meta, number)

    def _open(self, name: str) -> bytes:
        del name
        return self._head.plain_header()

    @property
    def region(self) -> _core.Region:
        """The memory that the page is inflated to, as far as somebody came."""
        return self._memory_and_filler()[0]

    def _memory_and_filler(self) -> tuple[_core.Region, BlockInflater]:
        memory, filler = self._memory, self._filler
        if memory is None or filler is None:
            memory, filler = self._pool.take(self), BlockInflater(self._head, self._stored)
            filler.fresh(memory)
            self._memory, self._filler = memory, filler
        return memory, filler

    def give_back(self) -> None:
        """Let go of the memory; who reads in it keeps it."""
        self._memory = self._filler = None

    def ready(self, position: int) -> _core.Region:
        """Return the memory, in which what stands at a position is inflated."""
        memory, filler = self._memory_and_filler()
        filler.fill(memory, position)
        return memory

    def _pinned(self, *ordinals: int) -> CompressedPage:
        """Return a twin that keeps its memory, with the blocks of these frames inflated."""
        twin = copy.copy(self)
        memory, filler = self._memory_and_filler()
        twin._memory, twin._filler = memory, filler  # noqa: SLF001 - its own kind
        for ordinal in ordinals:
            filler.fill_block(memory, self._head.block_of(ordinal))
        return twin

    def _whole(self) -> CompressedPage:
        """Return a twin that keeps its memory, with all blocks inflated."""
        twin = self._pinned()
        assert twin._filler is not None  # noqa: SLF001 - its own kind
        twin._filler.fill_all(twin.region)  # noqa: SLF001
        return twin

    def first_timestamp(self) -> int | None:
        """Return the timestamp of the first message in ns, None when there is none."""
        return self._head.first_timestamp

    def scan(self, count: int | None = None) -> Scan:
        """Walk the page's frames from the first on."""
        return Page.scan(self._whole(), count)

    def check(self, count: int | None, index: _core.Region | None) -> Scan:
        """Walk the frames and compare the index with them."""
        return Page.check(self._whole(), count, index)

    def rebuild_index(self, count: int, *, mend: bool) -> _core.Region:
        """Write the index again; for that, all is inflated."""
        self._index = Page.rebuild_index(self._whole(), count, mend=mend)
        return self._index

    def find(self, since: int, count: int, *, mend: bool) -> tuple[int, int]:
        """Return ordinal and position of the first frame that is not older.

        The index says which frames prove it, and only their blocks are inflated.
        """
        ordinals: tuple[int, ...] = ()
        if 0 < count <= len(self.index(count, mend=mend)) // fmt.INDEX_RECORD_BYTES:
            ordinal = bisect_left(self._index_times(count, mend=mend), since)
            ordinals = (max(ordinal - 1, 0), min(ordinal, count - 1))
        with self._proving(*ordinals) as twin:
            return Page.find(twin, since, count, mend=mend)

    def find_many(self, moments: NDArray[np.int64], count: int, *, mend: bool) -> NDArray[np.int64]:
        """Return for each moment how many frames are not later; inflates as `find` does."""
        ordinals: set[int] = set()
        if 0 < count <= len(self.index(count, mend=mend)) // fmt.INDEX_RECORD_BYTES:
            times = self._index_times(count, mend=mend)
            found = set(np.searchsorted(times, moments, side="right").tolist())
            ordinals = {place for i in found for place in (max(i - 1, 0), min(i, count - 1))}
        with self._proving(*ordinals) as twin:
            return Page.find_many(twin, moments, count, mend=mend)

    def times(self, ordinal: int, end_ordinal: int, count: int, *, mend: bool) -> NDArray[np.int64]:
        """Return the timestamps of frames, proved by the blocks of the first and the last one."""
        with self._proving(*((ordinal, end_ordinal - 1) if ordinal < end_ordinal else ())) as twin:
            return Page.times(twin, ordinal, end_ordinal, count, mend=mend)

    def locate(self, sequence: int, count: int, *, mend: bool) -> int:
        """Return the position of a message, proved by its own block alone."""
        if sequence == self._head.end_sequence and count == self._head.count:
            return self._head.used_bytes - fmt.FRAME_HEADER_BYTES
        with self._proving(max(0, min(sequence - self.first_sequence, count - 1))) as twin:
            return Page.locate(twin, sequence, count, mend=mend)

    def _index_times(self, count: int, *, mend: bool) -> NDArray[np.int64]:
        index = memoryview(self.index(count, mend=mend))
        times: NDArray[np.int64] = np.frombuffer(index, fmt.INDEX_RECORD, count)["timestamp"]
        return times

    @contextlib.contextmanager
    def _proving(self, *ordinals: int) -> Iterator[CompressedPage]:
        """Lend a twin with the blocks of these frames inflated; keep the index it ends with."""
        twin = self._pinned(*ordinals)
        try:
            yield twin
        finally:
            self._index = twin._index  # noqa: SLF001 - its own kind; it can be a new one


def open_page(folder: Directory, prefix: str, meta: AllMeta, number: int, pool: Pool) -> Page:
    """Open a page for reading, whether it is compressed or not.

    Raises:
        As for `map_page`; and CorruptPage when it is not this page of this queue.
    """
    name = fmt.page_name(prefix, number)
    found = _stored(folder, name, meta.page_bytes)
    if found is None:
        try:
            return Page(folder, prefix, meta, number)
        except errors.CorruptPage:
            found = _stored(folder, name, meta.page_bytes)  # compressed just now
            if found is None:
                raise
    return CompressedPage(folder, prefix, meta, number, *found, pool)


def map_page(
    folder: Directory,
    name: str,
    meta: AllMeta,
    *,
    filled: bool = True,
    wrong: Wrong | None = None,
) -> _core.Region:
    """Map a page of exactly this size, all of it inflated; memory, if its file is compressed.

    Args:
        folder: of the queue.
        name: of the file.
        meta: what was fixed at creation.
        filled: False: only its header, if it is compressed.
        wrong: told of what is damaged in a compressed page, and the rest of it is taken; None: it
            is raised.

    Raises:
        QueueNotFound: there is none.
        CorruptPage: its size is another, or its compressed head is damaged.
        CorruptFrame: a compressed block is.
        MissingExtra: the extra `zstd` is not installed.
    """
    found = _stored(folder, name, meta.page_bytes, wrong)
    if found is None:
        try:
            return map_plain(folder, name, meta, writable=False)
        except errors.CorruptPage:
            found = _stored(folder, name, meta.page_bytes, wrong)  # compressed just now
            if found is None:
                raise
    head, stored = found
    filler = BlockInflater(head, stored)
    region = private_page(b"", meta)
    filler.fresh(region)
    if filled:
        filler.fill_all(region, wrong)
    return region


def _stored(
    folder: Directory, name: str, page_bytes: int, wrong: Wrong | None = None
) -> tuple[Head, _core.Region] | None:
    """Return what a compressed page says and its bytes, mapped; None: it is not compressed."""
    path = folder.full(name)
    with folder.opened(name, writable=False) as fd:
        try:
            start = read_at(fd, BLOCKS_AT, 0)
            size = os.fstat(fd).st_size
            if not is_compressed(start):
                # Damaged or plain? Only a plain page has its size, and no other has that end.
                behind = max(size - fmt.COMPRESSED_END_BYTES, 0)
                if size >= page_bytes or not parse_end(read_at(fd, 64, behind)):
                    return None
            if not BLOCKS_AT < size <= page_bytes and (wrong is None or size <= BLOCKS_AT):
                raise bad_head(path, f"{size} bytes in a queue of pages of {page_bytes}", size)
            stored = _core.Region(fd, min(size, page_bytes), False)
        except OSError as error:
            raise_typed(error, path, "mapping the compressed page")
    stored.on_lost = partial(lost_page, path)
    try:
        head = _head(stored, start, size, page_bytes, path)
    except errors.CorruptPage as error:
        if wrong is None:
            raise
        wrong(error)
        return _what_is_left(stored, page_bytes, path, error), stored
    if wrong is not None:
        front = stored.read(0, head.head_bytes)
        copy_at = head.file_bytes - fmt.COMPRESSED_END_BYTES - len(front)
        if stored.read(copy_at, size - copy_at) != front + encode_end(len(front)):
            wrong(bad_head(path, "its copy at the end is another", copy_at))
    return head, stored


def _head(stored: _core.Region, start: bytes, size: int, page_bytes: int, path: str) -> Head:
    front = stored.read(0, min(front_bytes(start, path), len(stored)))
    try:
        head = parse_front(front, size, path)
    except errors.CorruptPage as error:
        if error.position != 0:
            raise
        raise bad_head(path, error.reason, 0) from error  # it is not torn: it was synced
    if head.page_bytes != page_bytes:
        raise bad_head(path, f"of a page of {head.page_bytes} bytes, not {page_bytes}")
    return head


def _what_is_left(
    stored: _core.Region, page_bytes: int, path: str, error: errors.CorruptPage
) -> Head:
    """Return the head of a damaged file: its second one, or the first if only the size is wrong."""
    data = stored.read(0, len(stored))
    for front in (second_front(data, path), data):
        if front is not None:
            try:
                head = parse_front(front, None, path)
            except errors.CorruptPage:
                continue
            if head.page_bytes == page_bytes:
                return head
    raise error
