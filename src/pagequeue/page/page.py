"""One mapped page with its index: its frames are walked and searched, its index is rebuilt.

The index is derived from the page. When it is missing, has the wrong size, or leads to a frame that
does not validate, it is rebuilt from the frames: in place with write access, in a private map
without.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import mmap
import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of, size_now
from pagequeue.page import search
from pagequeue.page.compressed_format import is_compressed
from pagequeue.page.header import REMEDY, bad_header, decode_header, first_bytes
from pagequeue.page.spare import page_from_spare
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced_file import Identity

log: logging.Logger = logging.getLogger("pagequeue")
FIRST_SEQUENCE_AT: Final = field_of(fmt.PAGE_HEADER, "first_sequence")
INDEX_POSITION: Final = field_of(fmt.INDEX_RECORD, "position")
ZEROS: Final = bytes(1 << 20)
"""It takes no memory of its own: nobody writes to it."""
NO_FILE = -1
RESERVE_MIN = 256 << 10
"""Blocks are reserved so many bytes at once at least."""
GROWS_FROM = 4 * RESERVE_MIN
"""Larger pages are reserved in steps and give back what they do not need, others are whole."""
RESERVE_STEP_MAX = 8 << 20
"""Or so many at most, because on tmpfs that takes as long as writing them."""
RELEASE_SHARE = 16
RESERVE_UNIT = 64 << 10
"""A multiple of any OS page."""
CANNOT = {errno.EOPNOTSUPP, errno.ENOSYS}
"""The file system reserves nothing."""
INDEX_SPARE = 1.5
"""Safety factor for the expected frequency of index records."""
REASONS = {
    _core.READ_NOTHING: "no frame there",
    _core.READ_END: "the page ends there",
    _core.READ_BAD_LENGTH: "its length is invalid",
    _core.READ_BAD_CHECKSUM: "its checksum is wrong",
    _core.READ_BAD_TIME: "it is older than the frame before it",
}
WRONG_SIZE: Final = "wrong size"
BAD = {_core.READ_BAD_LENGTH, _core.READ_BAD_CHECKSUM, _core.READ_BAD_TIME}
"""The bytes there are not zero, and not a valid frame."""
PROOF = {_core.READ_FRAME, _core.READ_END}
"""The frame or end-of-page marker there proves its sequence."""


class Scan(NamedTuple):
    """The result of a walk over a page's frames.

    `position` and `sequence` are one past the last valid frame, `timestamp` is its own; the
    `whole_` ones are those of the last complete batch. `stopped` is one of the core's READ_ codes.
    """

    position: int
    sequence: int
    timestamp: int
    whole_position: int
    whole_sequence: int
    whole_timestamp: int
    index_wrong: int
    stopped: int


def lost_page(path: str, position: int, sequence: int | None = None) -> errors.CorruptPage:
    """Return the error for a page or an index that was truncated under its map."""
    size, reason = size_now(path, position)
    where = "" if sequence is None else f", on reading message {sequence}"
    return errors.CorruptPage(
        f"{reason}, at {size} bytes{where}",
        path=path,
        position=size,
        reason=reason,
        sequence=sequence,
        remedy=REMEDY,
    )


def missing_page(path: str, number: int) -> errors.MissingPage:
    """Return the error for a page whose file is missing."""
    return errors.MissingPage(
        f"page {number} is not there", path=path, position=0, reason="missing page", remedy=REMEDY
    )


def map_file(
    folder: Directory,
    name: str,
    size_bytes: int,
    *,
    writable: bool,
    reserved: bool = True,
    kept: bool = False,
) -> _core.Region:
    """Map a page or an index of exactly this size.

    Args:
        folder: of the queue.
        name: of the file.
        size_bytes: its size.
        writable: whether it is mapped for writing.
        reserved: whether all of a file that is written to must have blocks; False: the caller
            writes only where it has some, or reserves them first.
        kept: whether the file stays open with the map, so that it can be lent.

    Raises:
        CorruptPage: it has another size.
    """
    path = folder.full(name)
    with folder.opened(name, writable=writable) as fd:
        try:
            status = os.fstat(fd)
            found = status.st_size
            if found == size_bytes:
                if writable and reserved and not _has_all_blocks(status):
                    # Without blocks, a full disk would raise SIGBUS (I10).
                    os.posix_fallocate(fd, 0, size_bytes)
                region = _core.Region(fd, size_bytes, writable, kept)
                region.on_lost = partial(lost_page, path)
                return region
        except OSError as error:
            raise_typed(error, path, "mapping the file")
    raise wrong_size(path, found, size_bytes)


def wrong_size(path: str, found: int, size_bytes: int) -> errors.CorruptPage:
    """Return the error for a page or an index of another size."""
    return errors.CorruptPage(
        f"{found} bytes, must be {size_bytes}",
        path=path,
        position=min(found, size_bytes),
        reason=WRONG_SIZE,
        remedy=REMEDY,
    )


def map_opened(fd: int, path: str, size: int, meta: AllMeta) -> _core.Region:
    """Map a page that is not compressed, whose file is open, only to read it.

    Raises:
        CorruptPage: its size is not that of the queue's pages.
        OSError: the system gives no map.
    """
    if size != meta.page_bytes:
        raise wrong_size(path, size, meta.page_bytes)
    region = _core.Region(fd, size, False)
    region.on_lost = partial(lost_page, path)
    region.queue_id = meta.queue_id
    return region


def _has_all_blocks(status: os.stat_result) -> bool:
    """Whether blocks are reserved for all of a file.

    A file system's own blocks count too; but a file that a queue left with fewer lacks RESERVE_MIN
    at least, which is more than these can be.
    """
    return status.st_blocks * 512 >= status.st_size


def map_plain(
    folder: Directory,
    name: str,
    meta: AllMeta,
    *,
    writable: bool,
    reserved: bool = True,
    kept: bool = False,
) -> _core.Region:
    """Map a page that is not compressed; arguments as of `map_file`.

    Raises:
        CorruptPage: its size is not that of the queue's pages.
    """
    region = map_file(
        folder, name, meta.page_bytes, writable=writable, reserved=reserved, kept=kept
    )
    region.queue_id = meta.queue_id
    return region


def map_with_header(
    folder: Directory, prefix: str, meta: AllMeta, number: int
) -> tuple[_core.Region, PageHeader]:
    """Map a page that is not compressed, only to read it, and decode its header.

    Raises:
        PageQueueError: it or its file is damaged, missing or inaccessible.
    """
    name = fmt.page_name(prefix, number)
    page = map_plain(folder, name, meta, writable=False)
    data = page.read(0, fmt.PAGE_HEADER_BYTES)
    return page, decode_header(data, meta.queue_id, number, folder.full(name))


def continues(page: _core.Region, header: PageHeader, sequence: int) -> bool:
    """Whether a page follows the end-of-page marker at `sequence`, and something is in it.

    That is a message, or the marker of a page that only has a fragment, or nothing: in a bulk
    commit pages with messages can follow it.
    """
    return (
        header.first_sequence == sequence
        and _core.peek(page, fmt.PAGE_HEADER_BYTES, sequence)[0] in PROOF
    )


def private_page(data: bytes, meta: AllMeta) -> _core.Region:
    """Map private memory as a page of a queue, padded with zeros."""
    region = private_region(data, meta.page_bytes)
    region.queue_id = meta.queue_id
    return region


def private_region(data: bytes, size_bytes: int) -> _core.Region:
    """Map private memory that holds `data`, truncated or padded with zeros.

    Raises:
        SystemLimit: memory is short.
    """
    try:
        region = _core.Region(NO_FILE, size_bytes, True)
    except OSError as error:
        raise_typed(error, "memory", "reading a file into memory")
    region.write(0, data[:size_bytes])
    return region


class WritablePage:
    """A page and its index, mapped for writing; the producers of a process share it.

    Their blocks are reserved in steps as messages come, the same share of both: a queue with little
    in it takes little room. Any number of processes may reserve the same.

    Args:
        folder: of the queue.
        prefix: of its file names.
        number: of the page.
        region: the map of the page.
        index: the map of its index.
        reserved: the position up to which the page surely has blocks, and the index its share;
            None: what the files say.
        header: as it was made, without the fields that the roll sets; None: the page tells.

    Attributes:
        number: of the page.
        region: the map of the page.
        index: the map of its index.
        populated: the position up to which page faults were taken, or soon will be.
        reserved, header: as above.
    """

    __slots__ = (
        "_files",
        "_folder",
        "_prefix",
        "header",
        "index",
        "number",
        "populated",
        "region",
        "reserved",
    )

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        number: int,
        region: _core.Region,
        index: _core.Region,
        reserved: int | None = None,
        header: bytes | None = None,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._files: list[tuple[str, Identity]] = []
        self.number: int = number
        self.region: _core.Region = region
        self.index: _core.Region = index
        self.populated: int = 0
        self.header: bytes | None = header
        self.reserved: int = len(region) if reserved is None else reserved
        # System calls that a roll does not need: a ring's page is reserved whole, and stays so.
        if not self.is_large or region.is_renewable:
            return
        names = fmt.page_name(prefix, number), fmt.index_name(prefix, number)
        self._files = [(name, folder.identity(name) or (-1, -1)) for name in names]
        if reserved is None:
            found = [folder.status(name) for name in names]
            is_whole = all(status is not None and _has_all_blocks(status) for status in found)
            self.reserved = len(region) if is_whole else 0

    @property
    def is_large(self) -> bool:
        """Whether its blocks are reserved in steps."""
        return len(self.region) > GROWS_FROM

    @property
    def reserved_bytes(self) -> tuple[int, int]:
        """How much of the page and of the index has blocks; (0, 0): all."""
        size = len(self.region)
        if self.reserved >= size:
            return 0, 0
        return max(self.reserved, 1), self.reserved * len(self.index) // size

    def reserve(self, end: int) -> None:
        """Reserve blocks of the page up to a position at least, and of the index as many.

        Raises:
            DiskFull, SystemLimit: the disk has none; what was there stays as it is.
            QueueNotFound: the page was removed or replaced; then it is not the active one.
        """
        size = len(self.region)
        end = min(end, size)
        while (begin := self.reserved) < end:
            step = min(max(begin, RESERVE_MIN), RESERVE_STEP_MAX)
            try:
                self._reserve(begin, max(end, begin + step))
            except errors.DiskFull:
                self._reserve(begin, end)  # the message may fit where a step does not

    def _reserve(self, begin: int, end: int) -> None:
        size = len(self.region)
        end = -(-end // RESERVE_UNIT) * RESERVE_UNIT
        if end + RESERVE_MIN > size:
            end = size
        page, index = self._files
        _reserve(self._folder, *page, begin, end)
        share = len(self.index) / size
        # An index is only a hint: one that was removed is written on, and rebuilt by a reader.
        with contextlib.suppress(errors.QueueNotFound):
            _reserve(self._folder, *index, int(begin * share), math.ceil(end * share))
        self.reserved = max(self.reserved, end)

    def release(self, count: int) -> None:
        """Give back the blocks that a sealed page of `count` messages and its index do not need.

        They read as zeros, as before: nobody writes to a sealed page any more.
        """
        size, first = len(self.region), self.region.load(FIRST_SEQUENCE_AT)
        used, index_used = fmt.PAGE_HEADER_BYTES, count * fmt.INDEX_RECORD_BYTES
        if count:
            last = index_used - fmt.INDEX_RECORD_BYTES + INDEX_POSITION
            position = int.from_bytes(self.index.read(last, 4), "little")
            found, _, _, used = _core.peek(self.region, position, first + count - 1)
            if found != _core.READ_FRAME:
                return
        # Of the page not a little, because its file can be used again only if it has all blocks.
        if size - used < size // RELEASE_SHARE:
            used = size
        for (name, identity), use, whole in zip(
            self._files, (used, index_used), (size, len(self.index)), strict=True
        ):
            begin = -(-(use + fmt.PAGE_HEADER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            # The last OS page stays: it tells whether the file was truncated.
            end = whole - mmap.PAGESIZE
            if end - begin < RESERVE_MIN:
                continue
            with contextlib.suppress(OSError), self._folder.descriptor as folder:
                _core.release(folder, name, *identity, begin, end - begin)

    def plan_faults(self, position: int, end: int) -> int:
        """Note that all page faults up to `end` will be taken; return where to begin."""
        begin = max(self.populated, position)
        self.populated = max(self.populated, end)
        return begin

    def populate(self, start: int, end: int, frame_bytes: float) -> None:
        """Reserve a range of the page and the index records it will need; take its page faults.

        Raises:
            DiskFull, SystemLimit, QueueNotFound: as `reserve`.
        """
        self.reserve(end)
        index_bytes = self.reserved_bytes[1] or len(self.index)
        index_start = _index_bytes(start / INDEX_SPARE, frame_bytes, index_bytes)
        index_end = _index_bytes(end, frame_bytes, index_bytes)
        with contextlib.suppress(OSError):  # an old system, or memory is short: no prefaulting
            self.region.populate(start, end - start)
            self.index.populate(index_start, index_end - index_start)

    def fill(self, position: int, frame_bytes: int, ordinal: int, count: int) -> None:
        """Write zeros where frames and their index records come: page faults cost three times that.

        A fault on what has no memory yet reads as many zeros as the disk reads ahead. For the only
        thread that writes to the page.

        Args:
            position: where the frames begin.
            frame_bytes: of all of them.
            ordinal: in the page, of the first message.
            count: of the messages.

        Raises:
            DiskFull, SystemLimit, QueueNotFound: as `reserve`.
        """
        end = position + frame_bytes + fmt.FRAME_HEADER_BYTES
        self.reserve(end)
        index_begin = ordinal * fmt.INDEX_RECORD_BYTES
        index_end = index_begin + (count + 1) * fmt.INDEX_RECORD_BYTES
        names = fmt.page_name(self._prefix, self.number), fmt.index_name(self._prefix, self.number)
        self._fill(names[0], len(self.region), position, end)
        self._fill(names[1], len(self.index), index_begin, index_end)

    def _fill(self, name: str, size: int, begin: int, end: int) -> None:
        begin, end = (-(-place // mmap.PAGESIZE) * mmap.PAGESIZE for place in (begin, end))
        end = min(end, size)
        if begin >= end:
            return
        with contextlib.suppress(OSError), self._folder.opened(name, writable=True) as fd:
            for at in range(begin, end, len(ZEROS)):
                os.pwrite(fd, ZEROS[: end - at], at)


def make_page(
    folder: Directory,
    prefix: str,
    meta: AllMeta,
    header: PageHeader,
    *,
    filled_bytes: int = 0,
    frame_bytes: float = 1.0,
    synced: bool = False,
    may_reuse: bool = False,
    may_grow: bool = False,
    kept: bool = False,
) -> WritablePage:
    """Make a page's two files, blocks reserved; the page itself appears last.

    The caller is the only one that makes this page.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: of the queue.
        header: of the new page.
        filled_bytes: of the page, needed soon; their page faults are taken now.
        frame_bytes: expected size of a frame; the same share of the index is faulted in.
        synced: whether the page must be on stable storage before it gets its name.
        may_reuse: whether a file that retention retired may be reused, with all of its memory.
        may_grow: whether blocks are reserved for its beginning only; more follow as messages come.
        kept: whether the page can be renewed.

    Raises:
        DiskFull: there is no room; no file is left.
    """
    reserved = meta.page_bytes
    if may_grow and not filled_bytes and reserved > GROWS_FROM:
        reserved = RESERVE_MIN
    # 1. The index. Dies here: an index without a page, which the next one replaces.
    index_name = fmt.index_name(prefix, header.page_number)
    index = folder.make(
        index_name,
        bytes(fmt.INDEX_RECORD_BYTES),  # a store into a hole reads zeros as far as the disk does
        size_bytes=meta.index_bytes,
        reserved_bytes=reserved * meta.index_bytes // meta.page_bytes,
        filled_bytes=_index_bytes(filled_bytes, frame_bytes, meta.index_bytes),
        maker="next",
    )
    # 2. The page. Dies before its rename: the same. After it: producers can roll into the page.
    page_name = fmt.page_name(prefix, header.page_number)
    region = None
    if may_reuse:
        region = page_from_spare(folder, prefix, page_name, header.encode(), meta.page_bytes)
    try:
        region = region or folder.make(
            page_name,
            header.encode(),
            size_bytes=meta.page_bytes,
            reserved_bytes=reserved,
            filled_bytes=filled_bytes,
            maker="next",
            synced=synced,
            kept=kept,
        )
    except errors.DiskFull:
        folder.remove(index_name)
        raise
    index.on_lost = partial(lost_page, folder.full(index_name))
    region.on_lost = partial(lost_page, folder.full(page_name))
    region.queue_id = meta.queue_id
    return WritablePage(
        folder, prefix, header.page_number, region, index, reserved, header.encode()
    )


def renamed_page(
    folder: Directory, prefix: str, page: WritablePage, number: int, header: bytes
) -> WritablePage:
    """Return a page whose files got the names of another number, still mapped, all of it."""
    page_name, index_name = fmt.page_name(prefix, number), fmt.index_name(prefix, number)
    page.region.on_lost = partial(lost_page, folder.full(page_name))
    page.index.on_lost = partial(lost_page, folder.full(index_name))
    renamed = WritablePage(folder, prefix, number, page.region, page.index, header=header)
    renamed.plan_faults(0, len(page.region))
    return renamed


def _index_bytes(used_bytes: float, frame_bytes: float, limit_bytes: int) -> int:
    """Return how many bytes of an index so many bytes of frames need, with a safety factor."""
    return min(int(used_bytes / frame_bytes * INDEX_SPARE) * fmt.INDEX_RECORD_BYTES, limit_bytes)


class Page:
    """A page as a reader sees it: mapped without write access.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: of the queue.
        number: of the page.
        region: its map; None: it is mapped now.
        identity: of its file.
        header: in place of the page's own, if that is lost.

    Attributes:
        is_compressed: whether its file is compressed.
        number: of the page.
        header: as it was when the page was opened.
        identity: of its file.
    """

    is_compressed = False

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        number: int,
        region: _core.Region | None = None,
        identity: Identity = (0, 0),
        header: PageHeader | None = None,
    ) -> None:
        self.number = number
        self.identity = identity
        self._folder = folder
        self._prefix = prefix
        self._meta = meta
        name = fmt.page_name(prefix, number)
        self.path: str = folder.full(name)
        self._memory = region
        data = self._open(name)
        self.header: PageHeader = header or decode_header(data, meta.queue_id, number, self.path)
        self._index: _core.Region | None = None

    def _open(self, name: str) -> bytes:
        """Map the file; return the page's header."""
        if self._memory is None:
            self._memory = map_plain(self._folder, name, self._meta, writable=False)
        return self._memory.read(0, fmt.PAGE_HEADER_BYTES)

    @property
    def kept(self) -> _core.Region:
        """The map of the file."""
        return self.region

    @property
    def known_index(self) -> _core.Region | None:
        """The map of its index, if it was mapped or rebuilt already."""
        return self._index

    @property
    def region(self) -> _core.Region:
        """The map of the page."""
        assert self._memory is not None
        return self._memory

    def ready(self, position: int) -> _core.Region:
        """Return the map, with the frame at a position ready to be read."""
        del position  # all of a mapped file is ready
        return self.region

    @property
    def first_sequence(self) -> int:
        """The sequence of the page's first frame."""
        first = self.header.first_sequence
        if first is None:
            raise bad_header(self.path, "no first sequence")
        return first

    def first_timestamp(self) -> int | None:
        """Return the timestamp of the first frame in ns; None: the page has no valid frame."""
        found, timestamp, _, _ = _core.peek(self.region, fmt.PAGE_HEADER_BYTES, self.first_sequence)
        return timestamp if found == _core.READ_FRAME else None

    def scan(self, count: int | None = None) -> Scan:
        """Walk the page's frames from the first on, at most `count` of them, index untouched."""
        return scan_region(self.region, None, self.header, self.first_sequence, count)

    def check(self, count: int | None, index: _core.Region | None) -> Scan:
        """Walk the frames and compare the index with them."""
        first = self.first_sequence
        return scan_region(self.region, index, self.header, first, count, use=_core.INDEX_CHECK)

    def damage(self, count: int | None) -> errors.CorruptFrame:
        """Return the error for the first invalid frame among `count` frames."""
        scan = self.scan(count)
        reason = REASONS.get(scan.stopped, "rebuilding its index failed")
        return errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {reason}",
            path=self.path,
            position=scan.position,
            sequence=scan.sequence,
            reason=reason,
            remedy=REMEDY,
        )

    # --- searching (search.py) --------------------------------------------------------------------

    def find(self, since: int, count: int, *, repair: bool) -> tuple[int, int]:
        """Return ordinal and position of the first of `count` frames that is not older."""
        return search.find(self, since, count, repair=repair)

    def find_many(
        self, wanted: NDArray[np.int64], count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return for each timestamp how many of `count` frames are not later."""
        return search.find_many(self, wanted, count, repair=repair)

    def times(
        self, ordinal: int, end_ordinal: int, count: int, *, repair: bool
    ) -> NDArray[np.int64]:
        """Return the timestamps of the frames from one ordinal up to another; shape (n,)."""
        return search.times(self, ordinal, end_ordinal, count, repair=repair)

    def locate(self, sequence: int, count: int, *, repair: bool) -> int:
        """Return the position of a message of this page, or the end of the last of `count`."""
        return search.locate(self, sequence, count, repair=repair)

    # --- the index --------------------------------------------------------------------------------

    def index(self, count: int, *, repair: bool) -> _core.Region:
        """Return the page's index, rebuilt if it is missing or of the wrong size."""
        if self._index is None or self._index.broken:
            name = fmt.index_name(self._prefix, self.number)
            try:
                self._index = map_file(self._folder, name, self._meta.index_bytes, writable=False)
            except (errors.QueueNotFound, errors.CorruptPage, errors.UnsafePath):
                return self.rebuild_index(count, repair=repair)
        return self._index

    def rebuild_index(self, count: int, *, repair: bool) -> _core.Region:
        """Rebuild the index of the first `count` frames; with `repair`, in its file."""
        region = None
        if repair:
            try:
                region = self._index_file()
            except (errors.RetryError, errors.AccessDenied) as error:
                log.warning("%s", error)  # reading continues without: it is only a hint (I6)
        if region is None:
            region = private_region(b"", self._meta.index_bytes)
        first = self.first_sequence
        scan_region(self.region, region, self.header, first, count, use=_core.INDEX_WRITE)
        self._index = region
        return region

    def _index_file(self) -> _core.Region | None:
        """Map the file of the index to write it; None: the page has none any more."""
        if not self._may_have_index():
            return None
        log.warning("%s: its index is missing or wrong and is rebuilt", self.path)
        index = index_to_rebuild(self._folder, self._prefix, self._meta, self.number)
        # Retention removes a page and then its index, compressing exchanges it and then removes
        # that, and they look for neither again: this one can have been made after that.
        if self._may_have_index():
            return index
        self._folder.remove(fmt.index_name(self._prefix, self.number))
        return None

    def _may_have_index(self) -> bool:
        """Whether the page has its name, and is not compressed meanwhile."""
        try:
            return not is_compressed(first_bytes(self._folder, os.path.basename(self.path)))
        except errors.QueueNotFound:
            return False


def writable_index(
    folder: Directory, prefix: str, meta: AllMeta, number: int, *, reserved: bool = True
) -> _core.Region:
    """Map an index for writing; replace it by an empty one if it is missing or of wrong size."""
    name = fmt.index_name(prefix, number)
    try:
        return map_file(folder, name, meta.index_bytes, writable=True, reserved=reserved)
    except (errors.QueueNotFound, errors.CorruptPage):
        index = folder.make(name, b"", size_bytes=meta.index_bytes)
        index.on_lost = partial(lost_page, folder.full(name))
        return index


def index_to_rebuild(folder: Directory, prefix: str, meta: AllMeta, number: int) -> _core.Region:
    """Map an index for writing, with blocks for the records of all frames that its page can have.

    The frames lie in the blocks of the page.

    Raises:
        DiskFull, SystemLimit: reserving blocks failed.
    """
    status = folder.status(fmt.page_name(prefix, number))
    if status is None or status.st_size != meta.page_bytes or _has_all_blocks(status):
        return writable_index(folder, prefix, meta, number)
    index = writable_index(folder, prefix, meta, number, reserved=False)
    share = status.st_blocks * 512 * meta.index_bytes // meta.page_bytes
    name = fmt.index_name(prefix, number)
    identity = folder.identity(name) or (-1, -1)
    _reserve(folder, name, identity, 0, min(share + RESERVE_UNIT, meta.index_bytes))
    return index


def zero_after(folder: Directory, name: str, region: _core.Region, position: int) -> int:
    """Zero what is not zero after a position of a mapped file; return how many bytes were changed.

    Holes are not read: on tmpfs that takes memory, and where there is none it fails.
    """
    changed, size = 0, len(region)
    with folder.opened(name, writable=False) as fd:
        while position < size:
            try:
                begin = os.lseek(fd, position, os.SEEK_DATA)
                end = os.lseek(fd, begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # no data follows
                    break
                begin, end = position, size  # the system tells no holes
            end = min(end, size)
            changed += region.zero(begin, end)
            position = end
    return changed


def _reserve(folder: Directory, name: str, identity: Identity, first: int, end: int) -> None:
    """Reserve blocks of a file for a range, or for all of it where the system cannot do that.

    Raises:
        DiskFull, SystemLimit: the disk has none.
        QueueNotFound: another file has this name now, or none.
    """
    path = folder.full(name)
    try:
        with folder.descriptor as at:
            _core.reserve(at, name, *identity, first, end - first)
    except FileNotFoundError as error:
        raise _replaced(path) from error
    except OSError as error:
        if error.errno not in CANNOT:
            raise_typed(error, path, "reserving blocks")
        with folder.opened(name, writable=True) as fd:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != identity:
                raise _replaced(path) from error
            os.posix_fallocate(fd, 0, status.st_size)


def _replaced(path: str) -> errors.QueueNotFound:
    return errors.QueueNotFound(
        "another file has this name now", path=path, remedy="open the queue again"
    )


def scan_region(
    region: _core.Region,
    index: _core.Region | None,
    header: PageHeader,
    first_sequence: int,
    count: int | None,
    *,
    use: int = _core.INDEX_NONE,
) -> Scan:
    """Walk a page's frames from the first on, at most `count` of them."""
    first, at, floor = first_sequence, fmt.PAGE_HEADER_BYTES, header.floor_timestamp
    end = fmt.SEQUENCE_MAX if count is None else first + count
    return Scan(*_core.scan(region, index, first, at, first, end, floor, use))


def scan_from(
    region: _core.Region,
    first_sequence: int,
    position: int,
    sequence: int,
    floor: int,
    *,
    end: int = fmt.SEQUENCE_MAX,
) -> Scan:
    """Walk a page's frames from a position on.

    Args:
        region: the map of the page.
        first_sequence: of the page.
        position: of a frame, or where the frames end.
        sequence: of the frame there.
        floor: no frame is older, in ns.
        end: the sequence to stop at.
    """
    none = _core.INDEX_NONE
    return Scan(*_core.scan(region, None, first_sequence, position, sequence, end, floor, none))
