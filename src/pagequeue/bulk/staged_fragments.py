"""Writes the payload of a large message as fragments, in staged pages of their own.

The pages are written once, from the first byte on, and 1 MiB or less is held in memory. What
depends on the message's place in the queue is known at the commit, and written then: the page's
header, the head's frame, and the end-of-page mark with the checksums of the blocks.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.fragments import Head, fragment_rooms, mark_position
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from typing_extensions import Buffer

    from pagequeue._core import Descriptor
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.system.directory import Directory

STAGED_PREFIX: Final = "fragment"
"""Prefix of the names of staged pages with fragments."""
WRITE_BYTES: Final = 1 << 20
"""A write ends at a multiple of this in its file, so that the system takes it as one folio."""
SHARED_BYTES_MIN: Final = 1 << 14
"""Bytes objects from this size on are referred to until they are written, not copied."""
RESERVE_BYTES: Final = 8 << 20
"""Blocks are reserved so far ahead: writing then takes a quarter less of the processor."""
OS_PAGE_BYTES: Final = 4096
TMPFS: Final = 0x01021994
"""The type of a file system where reserving costs as much as writing."""


class StagedFragment(NamedTuple):
    """A page with one fragment, whose bytes are in its file.

    Attributes:
        number: of its file in the directory of staged pages.
        offset: of the fragment in the message.
        size: of the fragment in bytes.
        ordinal: of the fragment in the message.
        checksums: of its blocks.
        head: of the message, if its frame is in this page.
    """

    number: int
    offset: int
    size: int
    ordinal: int
    checksums: tuple[int, ...]
    head: Head | None

    @property
    def messages(self) -> int:
        """How many messages begin in the page."""
        return 0 if self.head is None else 1

    def frames(
        self, meta: AllMeta, sequence: int, timestamp: int, last: int
    ) -> tuple[bytes, bytes]:
        """Return the bytes that follow the page's header, and the first index record.

        Args:
            meta: of the queue.
            sequence: of the first message of the page, or of the next one if it has none.
            timestamp: of the message.
            last: timestamp of the last message before the end-of-page mark.
        """
        data, record = b"", b""
        if self.head is not None:
            data = frame(meta, self.head.encode(), sequence, timestamp, fmt.LARGE_MESSAGE)
            entry = np.array((timestamp, fmt.PAGE_HEADER_BYTES), fmt.INDEX_RECORD)
            record = entry.tobytes()
            sequence, last = sequence + 1, timestamp
        described = np.array((self.offset, self.size, self.ordinal), fmt.FRAGMENT).tobytes()
        described += np.array(self.checksums, "<u4").tobytes()
        room = _mark_room(meta.page_bytes, is_head=self.head is not None)
        described = described.ljust(room - fmt.FRAME_HEADER_BYTES, b"\0")
        return data + frame(meta, described, sequence, last, fmt.END_OF_PAGE), record


def frame(meta: AllMeta, payload: bytes, sequence: int, timestamp: int, flags: int) -> bytes:
    """Return the bytes of a frame."""
    word = flags | fmt.FRAME_HEADER_BYTES + len(payload)
    checksum = _core.frame_checksum(meta.queue_id, payload, timestamp, sequence, word)
    header = np.array((word, checksum, timestamp), fmt.FRAME).tobytes()
    return (header + payload).ljust(fmt.frame_bytes(len(payload)), b"\0")


def _mark_room(page_bytes: int, *, is_head: bool) -> int:
    """Return the bytes between the end-of-page mark's position and the fragment."""
    room = fragment_rooms(page_bytes)[not is_head]
    return page_bytes - mark_position(is_head=is_head) - room


class FragmentWriter:
    """Writes one payload to staged pages; `finish` returns them.

    Args:
        folder: the directory of the staged pages.
        meta: of the queue.
        first_number: of the first of the pages' files.
        report_progress: called after each page.
        synced: whether each page must be on stable storage before the next one is begun.
    """

    def __init__(
        self,
        folder: Directory,
        meta: AllMeta,
        first_number: int,
        report_progress: Callable[[], object] | None = None,
        *,
        synced: bool = True,
    ) -> None:
        self._folder = folder
        self._meta = meta
        self._report_progress = report_progress
        self._synced = synced
        self._start = _core.crc32c(meta.queue_id)
        self._number = first_number
        self._file: Descriptor | None = None
        self._path, self._name, self._identity = folder.path, "", (0, 0)
        self._held: list[bytes | bytearray | memoryview] = []
        self._held_bytes = 0
        self._copy = bytearray()
        self._done: list[StagedFragment] = []
        self._error: BaseException | None = None
        self._reserves = True
        self._reserved = 0
        self.payload_bytes: int = 0
        self._plan_page()

    def write(self, data: Buffer) -> int:
        """Append bytes to the payload; return how many.

        Raises:
            DiskFull: they do not fit on the disk; it is raised again by every later call.
            MessageTooLarge: the payload exceeds 2**40 bytes.
        """
        if self._error is not None:
            raise self._error
        if type(data) is bytes:
            count = len(data)
            fits = self.written + count <= fmt.LARGE_BYTES_MAX
            if fits and SHARED_BYTES_MIN <= count < self._until - self._held_bytes:
                self._held.append(data)
                self._held_bytes += count
                return count
        with memoryview(data) as view, view.cast("B") as given:
            is_fixed = isinstance(view.obj, bytes)
            count = len(given)
            if self.written + count > fmt.LARGE_BYTES_MAX:
                raise self._too_large()
            done = 0
            while self._held_bytes + count - done >= self._until:
                step = self._until - self._held_bytes
                with given[done : done + step] as part:
                    stays = part if is_fixed else self._copied(part)
                    self._write_held(stays, rest=count - done - step)
                done += step
            if done < count:
                self._hold(data, given, done)
        return count

    def _hold(self, data: Buffer, given: memoryview, begin: int) -> None:
        """Keep the bytes after a position until more of them come; no others are changed later."""
        count = len(given) - begin
        if type(data) is bytes and count >= SHARED_BYTES_MIN:
            self._held.append(memoryview(data)[begin:])
        else:
            last = self._held[-1] if self._held else None
            if not isinstance(last, bytearray):
                last = bytearray()
                self._held.append(last)
            with given[begin:] as part:
                last += part
        self._held_bytes += count

    def _copied(self, part: memoryview) -> memoryview:
        """Return a copy until the next one: what is summed must be what is written."""
        self._copy = self._copy or bytearray(WRITE_BYTES)
        copy = memoryview(self._copy)[: len(part)]
        copy[:] = part
        return copy

    def _too_large(self) -> errors.MessageTooLarge:
        size = self.written
        return errors.MessageTooLarge(
            f"a payload has at most {fmt.LARGE_BYTES_MAX} bytes",
            path=self._folder.path,
            size_bytes=size,
            limit_bytes=fmt.LARGE_BYTES_MAX,
            remedy="split it",
        )

    def _write_held(self, part: memoryview | None = None, rest: int = 0) -> None:
        """Write to the page what is held and then more bytes, by one call.

        Args:
            part: the bytes after those that are held.
            rest: how many are known to follow.
        """
        parts: list[Buffer] = [*self._held] if part is None else [*self._held, part]
        self._held.clear()
        self._held_bytes = 0
        try:
            if self._file is None:
                self._begin_page()
            assert self._file is not None
            begin = self._size
            for one in parts:
                self._add_checksums(one)
            position = self._begin + begin
            with self._file as fd:
                self._reserve(position, self._size - begin, rest)
                write_parts(fd, parts, position)
            self.payload_bytes += self._size - begin
            self._until = self._to_boundary()
            if not self._until:
                self._end_page()
        except BaseException as error:
            self._error = error  # the file has less than was summed
            if isinstance(error, errors.PageQueueError) or not isinstance(error, OSError):
                raise
            try:
                raise_typed(error, self._path, "writing a fragment")
            except BaseException as typed:
                self._error = typed
                raise

    def _add_checksums(self, part: Buffer) -> None:
        """Continue the checksum of the block that was begun, and add those of the others."""
        block_bytes, done = fmt.FRAGMENT_BLOCK_BYTES, 0
        with memoryview(part) as view:
            while done < len(view):
                filled = self._size % block_bytes
                with view[done : done + block_bytes - filled] as block:
                    if filled:
                        self._checksums[-1] = _core.crc32c(block, self._checksums[-1])
                    else:
                        self._checksums.append(_core.crc32c(block, self._start))
                    done += len(block)
                    self._size += len(block)

    def _reserve(self, position: int, size: int, rest: int) -> None:
        """Reserve blocks for a write, and for some after it; the write tells whether it fails."""
        end = position + size
        if end <= self._reserved or not self._reserves:
            return
        begin = max(self._reserved, self._begin)
        ahead = max(rest, min(self.payload_bytes, RESERVE_BYTES))
        until = min(end + ahead, self._meta.page_bytes)
        try:
            with self._folder.descriptor as folder:
                _core.reserve(folder, self._name, *self._identity, begin, until - begin)
        except OSError:
            self._reserves = False
        else:
            self._reserved = until

    def _unreserve(self) -> None:
        """Give back the blocks after the content, but for that of the last byte."""
        begin = -(-(self._begin + self._size) // OS_PAGE_BYTES) * OS_PAGE_BYTES
        end = min(self._reserved, (self._meta.page_bytes - 1) // OS_PAGE_BYTES * OS_PAGE_BYTES)
        if begin < end:
            # If it cannot, they are only lost.
            with contextlib.suppress(OSError), self._folder.descriptor as folder:
                _core.release(folder, self._name, *self._identity, begin, end - begin)

    def _to_boundary(self) -> int:
        """Return how many bytes the next write takes; 0: the page is full."""
        step = WRITE_BYTES - (self._begin + self._size) % WRITE_BYTES
        return min(step, self._room - self._size)

    def _plan_page(self) -> None:
        """Set where the fragment of the next page begins."""
        page_bytes = self._meta.page_bytes
        self._room = fragment_rooms(page_bytes)[len(self._done) > 0]
        self._begin = page_bytes - self._room
        self._size, self._reserved = 0, 0
        self._checksums: list[int] = []
        self._until = self._to_boundary()

    def _begin_page(self) -> None:
        meta, number = self._meta, self._number + len(self._done)
        # Sparse, because nobody writes to the rest: a short fragment takes no more than its bytes.
        make_sparse(self._folder, fmt.index_name(STAGED_PREFIX, number), meta.index_bytes).close()
        self._name = name = fmt.page_name(STAGED_PREFIX, number)
        self._path = self._folder.full(name)
        self._file = make_sparse(self._folder, name, meta.page_bytes)
        with self._file as fd:
            status = os.fstat(fd)
            self._identity = status.st_dev, status.st_ino
            if not self._done:
                self._reserves = _core.file_system_type(fd) != TMPFS

    def _end_page(self) -> None:
        """Close the page; put it on stable storage before other producers have to wait for it."""
        if self._file is None:
            return
        offset = self.payload_bytes - self._size
        ordinal = len(self._done)
        number = self._number + ordinal
        self._unreserve()
        if self._synced:
            self._sync(self._file, number)
        self._file.close()
        self._file = None
        self._done.append(
            StagedFragment(number, offset, self._size, ordinal, tuple(self._checksums), None)
        )
        self._plan_page()
        if self._report_progress is not None:
            self._report_progress()

    def _sync(self, page: Descriptor, number: int) -> None:
        try:
            with page as fd:
                os.fsync(fd)
            with self._folder.opened(fmt.index_name(STAGED_PREFIX, number), writable=True) as fd:
                os.fsync(fd)
        except OSError as error:
            if isinstance(error, errors.PageQueueError):
                raise
            raise_typed(error, self._path, "syncing a fragment")

    @property
    def written(self) -> int:
        """How many bytes were given."""
        return self.payload_bytes + self._held_bytes

    def finish(self) -> list[StagedFragment]:
        """Return the pages of the whole payload, the first one with its head.

        Raises:
            DiskFull: the last bytes do not fit on the disk, or some before them did not.
        """
        if self._error is not None:
            raise self._error
        if self._held or not self._done:
            self._write_held()
        self._end_page()
        first, *others = self._done
        head = Head(self.payload_bytes, len(self._done), fmt.FRAGMENT_BLOCK_BYTES)
        return [first._replace(head=head), *others]

    def close(self) -> None:
        """Close the file that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None


def write_parts(fd: int, parts: list[Buffer], position: int) -> None:
    """Write buffers one after the other at a position of a file."""
    done = os.pwritev(fd, parts, position)
    if done < sum(memoryview(part).nbytes for part in parts):
        rest = b"".join(parts)
        while done < len(rest):
            done += os.pwrite(fd, memoryview(rest)[done:], position + done)


def make_sparse(folder: Directory, name: str, size_bytes: int, data: bytes = b"") -> Descriptor:
    """Make a file of `data` and zeros, without room between it and its last byte; open it.

    Every process that maps the file may read that byte, to see whether it is whole. In a hole, a
    full tmpfs would raise SIGBUS.
    """
    file = folder.open(name, writable=True, make=True)
    try:
        with file as fd:
            os.pwrite(fd, b"\0", size_bytes - 1)
            if data:
                os.pwrite(fd, data, 0)
    except OSError as error:
        file.close()
        if isinstance(error, errors.PageQueueError):
            raise
        raise_typed(error, folder.full(name), "making a staged page")
    return file


def place_fragment(
    folder: Directory,
    meta: AllMeta,
    staged: StagedFragment,
    header: PageHeader,
    timestamp: int,
    *,
    synced: bool,
) -> int:
    """Turn a staged page with a fragment into a page of the queue; return its last timestamp.

    Args:
        folder: the directory of the staged pages.
        meta: of the queue.
        staged: the page.
        header: of the page in the queue.
        timestamp: of the message.
        synced: whether it must be on stable storage then.
    """
    first, last = header.first_sequence, header.floor_timestamp
    assert first is not None
    frames, record = staged.frames(meta, first, timestamp, last)
    names = (
        (fmt.index_name(STAGED_PREFIX, staged.number), record),
        (fmt.page_name(STAGED_PREFIX, staged.number), header.encode() + frames),
    )
    for name, data in names:
        if data:  # else it was synced as it is
            write_start(folder, name, data, synced=synced)
    return timestamp if staged.head is not None else last


def write_start(folder: Directory, name: str, data: bytes, *, synced: bool) -> None:
    """Write the beginning of a staged file; if asked, put it on stable storage.

    Raises:
        DiskFull, SystemLimit: that failed.
    """
    try:
        with folder.opened(name, writable=True) as fd:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], done)
            if synced:
                os.fdatasync(fd)
    except OSError as error:
        if isinstance(error, errors.PageQueueError):
            raise
        raise_typed(error, folder.full(name), "writing a staged page")
