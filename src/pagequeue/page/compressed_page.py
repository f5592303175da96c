"""Pages as readers map them, whether their files are compressed or not.

A compressed page becomes private memory of the page's full size, in which a block is filled when a
reader reaches it. The first frame of an unfilled block reads as zeros, which a sealed page never
has, so the reader that finds zeros fills the block. A block is inflated into a buffer, and its
first length is stored last, so that concurrent readers see none of it or all.

It has no index file. A search finds the block by the file's head, which has the number and the time
of each block's first frame, and in the block by an index made from its frames.
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
from pagequeue.meta.meta_file import field_of
from pagequeue.page import search
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
from pagequeue.page.page import (
    REASONS,
    Page,
    Scan,
    lost_page,
    map_opened,
    private_page,
    private_region,
)
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced_file import Identity

    Wrong = Callable[[errors.DamageError], object]

KEPT_REGIONS: Final = 2
"""How many inflated pages a store keeps for the next reader; active readers keep their own."""
TIMESTAMP_AT: Final = field_of(fmt.FRAME, "timestamp")
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
        self._indexes: dict[int, _core.Region] = {}  # 12 bytes a message, as in an index file
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
        for number, block in enumerate(self.head.blocks):
            try:
                self.fill_block(region, number)
            except errors.CorruptFrame as error:
                if wrong is None:
                    raise
                wrong(error)
                continue
            if wrong is not None and self.head.count:
                timestamp = region.read(block.position + TIMESTAMP_AT, 8)
                if int.from_bytes(timestamp, "little", signed=True) != block.timestamp:
                    wrong(self.head.contradiction(block))

    def index_of(self, region: _core.Region, number: int) -> _core.Region:
        """Return the index of one block's frames, which are inflated for it.

        Raises:
            CorruptFrame: they are damaged, or not those of which the head tells.
        """
        self.fill_block(region, number)
        index = self._indexes.get(number)
        if index is None:  # no lock: another thread makes the same index
            self._indexes[number] = index = self._made_index(region, number)
        return index

    def _made_index(self, region: _core.Region, number: int) -> _core.Region:
        head, block = self.head, self.head.blocks[number]
        ordinal, end_ordinal = head.ordinals_of(number)
        first = (head.header.first_sequence or 0) + ordinal
        count = end_ordinal - ordinal
        index = private_region(b"", max(count, 1) * fmt.INDEX_RECORD_BYTES)
        scan = Scan(
            *_core.scan(
                region,
                index,
                first,
                block.position,
                first,
                first + count,
                block.timestamp,
                _core.INDEX_WRITE,
            )
        )
        if scan.sequence != first + count:
            raise head.damage(block, REASONS.get(scan.stopped, "it is unreadable"))
        is_last = number + 1 == len(head.blocks)
        after = head.last_timestamp if is_last else head.timestamps[number + 1]
        begins = int.from_bytes(index.read(0, 8), "little", signed=True) == block.timestamp
        ends = is_last or scan.position == block.end
        if count and not (begins and ends and scan.timestamp <= (after or 0)):
            raise head.contradiction(block)
        return index


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
    def head(self) -> Head:
        """The decoded head of the file."""
        return self._head

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

    def _pinned(self) -> CompressedPage:
        """Return a copy that keeps its memory."""
        memory, filler = self._memory_and_filler()  # this object's, so the copy has them as well
        pinned = copy.copy(self)
        pinned._memory, pinned._filler = memory, filler  # noqa: SLF001 - its own class
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

    def index(self, count: int, *, repair: bool) -> _core.Region:
        """Return an index of the whole page, made in memory: it has no file of it."""
        return self.rebuild_index(count, repair=repair)

    def rebuild_index(self, count: int, *, repair: bool) -> _core.Region:
        """Make an index of the whole page in memory, which inflates all blocks."""
        del repair
        return Page.rebuild_index(self._whole(), count, repair=False)

    # --- searching: the head gives the block, and the block its frames ----------------------------

    def find(self, since: int, count: int, *, repair: bool) -> tuple[int, int]:
        """Return ordinal and position of the first frame that is not older.

        It inflates the block in which that is, and the one after it if that begins with it.
        """
        del repair
        count = min(count, self._head.count)
        if count <= 0:
            return 0, fmt.PAGE_HEADER_BYTES
        pinned = self._pinned()
        number = max(bisect_left(self._head.timestamps, since) - 1, 0)
        number = min(number, self._head.block_of(count - 1))
        part = pinned.part(number, count)
        ordinal, position = search.find(part, since, part.count, repair=False)
        ordinal += part.ordinal
        if ordinal == part.end_ordinal < count:
            pinned.prove_first(number + 1)
        return ordinal, position

    def find_many(
        self, wanted: NDArray[np.int64], count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return for each timestamp how many frames are not later; inflates as `find` does."""
        del repair
        count = min(count, self._head.count)
        found = np.zeros(len(wanted), np.int64)
        if count <= 0:
            return found
        pinned = self._pinned()
        numbers = np.searchsorted(self._head.timestamps, wanted, side="right") - 1
        numbers = np.minimum(numbers, self._head.block_of(count - 1))
        for number in sorted(set(numbers.tolist())):
            begin, end = np.searchsorted(numbers, [number, number + 1]).tolist()
            if number < 0:  # before the first message
                pinned.prove_first(0)
                continue
            part = pinned.part(number, count)
            ordinals = search.find_many(part, wanted[begin:end], part.count, repair=False)
            found[begin:end] = ordinals + part.ordinal
            if found[end - 1] == part.end_ordinal < count:
                pinned.prove_first(number + 1)
        return found

    def times(
        self, ordinal: int, end_ordinal: int, count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return the timestamps of frames; inflates their blocks."""
        del repair
        pinned, parts = self._pinned(), []
        while ordinal < end_ordinal:
            part = pinned.part(self._head.block_of(ordinal), count)
            end = min(end_ordinal, part.end_ordinal)
            if end <= ordinal:
                raise self.damage(count)
            begin = ordinal - part.ordinal
            parts.append(search.times(part, begin, end - part.ordinal, part.count, repair=False))
            ordinal = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def locate(self, sequence: int, count: int, *, repair: bool) -> int:
        """Return the position of a message; inflates its block only."""
        del repair
        head = self._head
        if count == 0:
            return fmt.PAGE_HEADER_BYTES
        # The page of one message can end with a fragment.
        if sequence == head.end_sequence and count == head.count > 1:
            return head.used_bytes - fmt.FRAME_HEADER_BYTES
        ordinal = sequence - self.first_sequence
        pinned = self._pinned()
        number = head.block_of(max(0, min(ordinal, count - 1)))
        if ordinal == head.ordinals_of(number)[0] < count:
            return pinned.prove_first(number)
        part = pinned.part(number, count)
        return search.locate(part, sequence, part.count, repair=False)

    def prove_first(self, number: int) -> int:
        """Return the position of a block's first frame, inflated and as the head has it."""
        memory, filler = self._memory_and_filler()
        filler.fill_block(memory, number)
        block = self._head.blocks[number]
        found, timestamp, _, _ = _core.peek(
            memory, block.position, self.first_sequence + block.ordinal
        )
        if (found, timestamp) != (_core.READ_FRAME, block.timestamp):
            raise self._head.contradiction(block)
        return block.position

    def part(self, number: int, count: int) -> BlockPart:
        """Return a block, inflated and with its index, up to the `count`th frame of the page."""
        memory, filler = self._memory_and_filler()
        return BlockPart(self, memory, filler.index_of(memory, number), number, count)


class BlockPart:
    """A block to be searched (`search.IndexedPage`): as a page that begins with its first frame.

    Attributes:
        region: the memory of the page.
        ordinal: of its first frame in the page.
        end_ordinal: of the frame after its last one.
        count: of its frames.
        first_sequence: of its first frame.
    """

    def __init__(
        self,
        page: CompressedPage,
        region: _core.Region,
        index: _core.Region,
        number: int,
        count: int,
    ) -> None:
        self._page = page
        self._index = index
        self.region: _core.Region = region
        ordinal, end_ordinal = page.head.ordinals_of(number)
        self.ordinal: int = ordinal
        self.end_ordinal: int = min(end_ordinal, count)
        self.count: int = self.end_ordinal - self.ordinal
        self.first_sequence: int = page.first_sequence + self.ordinal

    def index(self, count: int, *, repair: bool) -> _core.Region:
        """Return its index, which was made from its frames."""
        del count, repair
        return self._index

    rebuild_index = index

    def damage(self, count: int | None) -> errors.CorruptFrame:
        """Return the error for frames that an index from themselves does not lead to."""
        return self._page.damage(None if count is None else self.ordinal + count)


def derived_index(region: _core.Region, meta: AllMeta) -> _core.Region | None:
    """Return an index with the first frame of each block of a page; None: it is not compressed.

    The head has their places under its own checksum: as good as index records.
    """
    filler = region.filler
    if not isinstance(filler, BlockInflater):
        return None
    index = private_region(b"", meta.index_bytes)
    for block in filler.head.blocks:
        at = block.ordinal * fmt.INDEX_RECORD_BYTES
        if at + fmt.INDEX_RECORD_BYTES <= len(index):
            record = np.array((block.timestamp, block.position), fmt.INDEX_RECORD)
            index.write(at, record.tobytes())
    return index


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
