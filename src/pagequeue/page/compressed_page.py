"""Pages as readers map them, whether their files are compressed or not.

A compressed page becomes private memory of the page's full size, in which a block is filled when a
reader reaches it. The first frame of an unfilled block reads as zeros, which a sealed page never
has, so the reader that finds zeros fills the block. A block is inflated into a buffer, and its
first length is stored last, so that concurrent readers see none of it or all.
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
from typing import TYPE_CHECKING, Final, NamedTuple

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
from pagequeue.page.page import Page, Scan, lost_page, map_opened, private_page
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced import Identity

    Wrong = Callable[[errors.DamageError], object]

KEPT_REGIONS: Final = 2
"""How many inflated pages a store keeps for the next reader; active readers keep their own."""
UNUSED: Final = 2
"""What `sys.getrefcount` returns for a region that only a list refers to."""


class BlockInflater:
    """Fills the memory of one page from its compressed file, block by block.

    Attributes:
        head: of the file, decoded.
    """

    def __init__(self, head: Head, stored: _core.Region) -> None:
        self.head = head
        self._stored = stored
        self._filled = bytearray(len(head.blocks))
        self._guard = threading.RLock()  # a signal handler may come back in

    def fresh(self, region: _core.Region) -> None:
        """Reset memory that may hold another page."""
        region.write(0, self.head.plain_header())
        for position in self.head.positions:
            region.store_half(position, 0)
        region.filler = self

    def fill(self, region: _core.Region, position: int) -> bool:
        """Fill the block that holds a position; False: it was filled already.

        Raises:
            CorruptFrame: it is damaged. CorruptPage: the file was truncated.
        """
        return self.fill_block(region, self.head.block_at(position))

    def fill_block(self, region: _core.Region, number: int) -> bool:
        """Fill one block; False: it was filled already."""
        if self._filled[number]:
            return False
        block = self.head.blocks[number]
        if block.offset + block.stored_bytes > len(self._stored):
            raise self.head.damage(block, "the file ends before it does")
        # A copy, so that a concurrent change of the file does not affect what was checked.
        stored = self._stored.read(block.offset, block.stored_bytes)
        data = self.head.inflate(block, stored)
        with contextlib.suppress(OSError):  # an old system: pages are faulted in on access
            region.populate(block.position, len(data))
        with self._guard:
            if not self._filled[number]:
                # Under the GIL, which excludes readers that hold it; and its first word last, for
                # the walk that runs without.
                region.write(block.position + 4, memoryview(data)[4:])
                region.store_half(block.position, int.from_bytes(data[:4], "little"))
                self._filled[number] = 1
        return True

    def fill_all(self, region: _core.Region, wrong: Wrong | None = None) -> None:
        """Fill all blocks; with `wrong`, a damaged one is passed to it and stays zeros."""
        for number in range(len(self._filled)):
            try:
                self.fill_block(region, number)
            except errors.CorruptFrame as error:
                if wrong is None:
                    raise
                wrong(error)


class Pool:
    """Reuses the memory of inflated pages: fresh memory costs more than inflating."""

    def __init__(self, meta: AllMeta) -> None:
        self._meta = meta
        self._regions: list[_core.Region] = []
        self._users: list[weakref.ref[CompressedPage]] = []
        self._guard = threading.RLock()

    def take(self, user: CompressedPage) -> _core.Region:
        """Return memory for a page, taken from its least recent user if the pool is full."""
        with self._guard:
            region = self._unused()
            while self._users and (region is None or len(self._users) >= KEPT_REGIONS):
                oldest = self._users.pop(0)()
                if oldest is not None:
                    oldest.release_memory()
                region = region or self._unused()
            if region is None:
                region = private_page(b"", self._meta)
                self._regions.append(region)
                del self._regions[: -KEPT_REGIONS - 1]  # freed with their last reader
            self._users.append(weakref.ref(user))
            return region

    def _unused(self) -> _core.Region | None:
        """Return memory to which no page, reader or view refers."""
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
        identity: Identity = (0, 0),
    ) -> None:
        self._head = head
        self._stored = stored
        self._pool = pool
        self._filler: BlockInflater | None = None
        super().__init__(folder, prefix, meta, number, identity=identity)

    def _open(self, name: str) -> bytes:
        del name
        return self._head.plain_header()

    @property
    def kept(self) -> _core.Region:
        """The map of the compressed file."""
        return self._stored

    @property
    def region(self) -> _core.Region:
        """The memory of the page, inflated as far as readers reached."""
        return self._memory_and_filler()[0]

    def _memory_and_filler(self) -> tuple[_core.Region, BlockInflater]:
        memory, filler = self._memory, self._filler
        if memory is None or filler is None:
            memory, filler = self._pool.take(self), BlockInflater(self._head, self._stored)
            filler.fresh(memory)
            self._memory, self._filler = memory, filler
        return memory, filler

    def release_memory(self) -> None:
        """Drop the reference to the memory; active readers keep theirs."""
        self._memory = self._filler = None

    def ready(self, position: int) -> _core.Region:
        """Return the memory, with the block of a position inflated."""
        memory, filler = self._memory_and_filler()
        filler.fill(memory, position)
        return memory

    def _pinned(self, *ordinals: int) -> CompressedPage:
        """Return a copy that keeps its memory, with the blocks of these frames inflated."""
        memory, filler = self._memory_and_filler()  # this object's, so the copy has them as well
        pinned = copy.copy(self)
        pinned._memory, pinned._filler = memory, filler  # noqa: SLF001 - its own class
        for ordinal in ordinals:
            filler.fill_block(memory, self._head.block_of(ordinal))
        return pinned

    def _whole(self) -> CompressedPage:
        """Return a copy that keeps its memory, with all blocks inflated."""
        pinned = self._pinned()
        memory, filler = pinned._memory_and_filler()  # noqa: SLF001 - its own class
        filler.fill_all(memory)
        return pinned

    def first_timestamp(self) -> int | None:
        """Return the timestamp of the first message in ns; None: the page has no message."""
        return self._head.first_timestamp

    def scan(self, count: int | None = None) -> Scan:
        """Walk the page's frames from the first on."""
        return Page.scan(self._whole(), count)

    def check(self, count: int | None, index: _core.Region | None) -> Scan:
        """Walk the frames and compare the index with them."""
        return Page.check(self._whole(), count, index)

    def rebuild_index(self, count: int, *, repair: bool) -> _core.Region:
        """Rebuild the index, which inflates all blocks."""
        self._index = Page.rebuild_index(self._whole(), count, repair=repair)
        return self._index

    def find(self, since: int, count: int, *, repair: bool) -> tuple[int, int]:
        """Return ordinal and position of the first frame that is not older.

        Only the blocks of the frames that the index leads to are inflated.
        """
        ordinals: tuple[int, ...] = ()
        if 0 < count <= len(self.index(count, repair=repair)) // fmt.INDEX_RECORD_BYTES:
            ordinal = bisect_left(self._index_times(count, repair=repair), since)
            ordinals = (max(ordinal - 1, 0), min(ordinal, count - 1))
        with self._proving(*ordinals) as pinned:
            return Page.find(pinned, since, count, repair=repair)

    def find_many(
        self, wanted: NDArray[np.int64], count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return for each timestamp how many frames are not later; inflates as `find` does."""
        ordinals: set[int] = set()
        if 0 < count <= len(self.index(count, repair=repair)) // fmt.INDEX_RECORD_BYTES:
            times = self._index_times(count, repair=repair)
            found = set(np.searchsorted(times, wanted, side="right").tolist())
            ordinals = {place for i in found for place in (max(i - 1, 0), min(i, count - 1))}
        with self._proving(*ordinals) as pinned:
            return Page.find_many(pinned, wanted, count, repair=repair)

    def times(
        self, ordinal: int, end_ordinal: int, count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return the timestamps of frames; inflates the blocks of the first and the last one."""
        ends = (ordinal, end_ordinal - 1) if ordinal < end_ordinal else ()
        with self._proving(*ends) as pinned:
            return Page.times(pinned, ordinal, end_ordinal, count, repair=repair)

    def locate(self, sequence: int, count: int, *, repair: bool) -> int:
        """Return the position of a message; inflates its block only."""
        is_end = sequence == self._head.end_sequence and count == self._head.count
        if is_end and count == 0:
            return fmt.PAGE_HEADER_BYTES
        if is_end and count > 1:  # the page of one message can end with a fragment
            return self._head.used_bytes - fmt.FRAME_HEADER_BYTES
        with self._proving(max(0, min(sequence - self.first_sequence, count - 1))) as pinned:
            return Page.locate(pinned, sequence, count, repair=repair)

    def _index_times(self, count: int, *, repair: bool) -> NDArray[np.int64]:
        index = memoryview(self.index(count, repair=repair))
        times: NDArray[np.int64] = np.frombuffer(index, fmt.INDEX_RECORD, count)["timestamp"]
        return times

    @contextlib.contextmanager
    def _proving(self, *ordinals: int) -> Iterator[CompressedPage]:
        """Yield a copy with the blocks of these frames inflated; keep the index it rebuilds."""
        pinned = self._pinned(*ordinals)
        try:
            yield pinned
        finally:
            self._index = pinned._index  # noqa: SLF001 - its own class


def open_page(folder: Directory, prefix: str, meta: AllMeta, number: int, pool: Pool) -> Page:
    """Open a page for reading, whether it is compressed or not.

    Raises:
        As for `map_page`; and CorruptPage when it is not this page of this queue.
    """
    found = _mapped(folder, fmt.page_name(prefix, number), meta)
    if found.head is None:
        return Page(folder, prefix, meta, number, found.region, found.identity)
    return CompressedPage(
        folder, prefix, meta, number, found.head, found.region, pool, found.identity
    )


def map_page(
    folder: Directory,
    name: str,
    meta: AllMeta,
    *,
    filled: bool = True,
    wrong: Wrong | None = None,
) -> _core.Region:
    """Map a page of exactly this size; a compressed one becomes memory, inflated as a whole.

    Args:
        folder: of the queue.
        name: of the file.
        meta: what was fixed at creation.
        filled: False: only its header, if it is compressed.
        wrong: called with each damage of a compressed page, whose other blocks are inflated; None:
            the damage is raised.

    Raises:
        QueueNotFound: the file is missing.
        CorruptPage: it has another size, or its compressed head is damaged.
        CorruptFrame: a compressed block is damaged.
        MissingExtra: the extra `zstd` is not installed.
    """
    found = _mapped(folder, name, meta, wrong)
    if found.head is None:
        return found.region
    filler = BlockInflater(found.head, found.region)
    region = private_page(b"", meta)
    filler.fresh(region)
    if filled:
        filler.fill_all(region, wrong)
    return region


class _MappedFile(NamedTuple):
    """A page's file: mapped, with the head of a compressed one."""

    region: _core.Region
    head: Head | None
    identity: Identity


def _mapped(folder: Directory, name: str, meta: AllMeta, wrong: Wrong | None = None) -> _MappedFile:
    """Map the file of a page; a plain one must be of the size of the queue's pages."""
    path, page_bytes = folder.full(name), meta.page_bytes
    with folder.opened(name, writable=False) as fd:
        try:
            start = read_at(fd, BLOCKS_AT, 0)
            status = os.fstat(fd)
            size, identity = status.st_size, (status.st_dev, status.st_ino)
            if not is_compressed(start):
                # Damaged or plain? Only plain pages have full size, only compressed ones that end.
                end_at = max(size - fmt.COMPRESSED_END_BYTES, 0)
                if size >= page_bytes or not parse_end(read_at(fd, 64, end_at)):
                    return _MappedFile(map_opened(fd, path, size, meta), None, identity)
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
        return _MappedFile(stored, _usable_head(stored, page_bytes, path, error), identity)
    if wrong is not None:
        front = stored.read(0, head.head_bytes)
        copy_at = head.file_bytes - fmt.COMPRESSED_END_BYTES - len(front)
        if stored.read(copy_at, size - copy_at) != front + encode_end(len(front)):
            wrong(bad_head(path, "its copy at the end differs", copy_at))
    return _MappedFile(stored, head, identity)


def _head(stored: _core.Region, start: bytes, size: int, page_bytes: int, path: str) -> Head:
    front = stored.read(0, min(front_bytes(start, path), len(stored)))
    try:
        head = parse_front(front, size, path)
    except errors.CorruptPage as error:
        if error.position != 0:
            raise
        raise bad_head(path, error.reason, 0) from error  # damaged, not torn: it was synced
    if head.page_bytes != page_bytes:
        raise bad_head(path, f"of a page of {head.page_bytes} bytes, not {page_bytes}")
    return head


def _usable_head(
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
