"""Compressing sealed pages: the same name, the same messages, fewer bytes.

The frames of a sealed page never change, so readers may have either file open. The order of steps
(FORMAT.md, "Compressing"), under a lock on the temporary file:

Z1. Check every frame; write the blocks to a temporary file and sync it.
Z2. Read the file again, inflate it, and compare it with the page, byte by byte.
Z3. Under the preparation lock: if the page is still that file and still retained, rename the new
    one over it.
Z4. Sync the directory; a failure latches the queue, as everywhere.
Z5. Under the preparation lock: if the page is still compressed, remove its index.

Dies in Z1 or Z2: a temporary file, which the next process that compresses that page truncates, and
which recovery or a later run removes. Dies or power is cut after Z3: the name refers to one of the
files; both are whole, because the new one was on stable storage before the rename (I16), and the
index is there for the old one. Dies in Z4 or Z5: the index is left, which is not read, until the
next run or retention removes it. Power is cut after Z5: the new file, with the index or without.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.page import zstd
from pagequeue.page.compressed_format import (
    BLOCKS_AT,
    bad_head,
    encode_end,
    encode_front,
    front_bytes,
    is_compressed,
    parse_front,
    read_at,
)
from pagequeue.page.fragments import content_end, fragment_damage
from pagequeue.page.header import REMEDY, first_bytes
from pagequeue.page.page import REASONS, map_with_header, private_region, scan_region
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.page_lock import hold
from pagequeue.util.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.page.page import Scan
    from pagequeue.store.store import Store
    from pagequeue.system.replaced_file import Identity

log: logging.Logger = logging.getLogger("pagequeue")
MAKER: Final = ".tmp-zip"
WORTH: Final = 0.9
"""A page is left uncompressed if it would take more than this fraction of its bytes."""
SAMPLES: Final = 8
"""Blocks that are compressed first, to estimate whether a page is worth compressing."""
NICE: Final = 10
"""Priority of the background thread: below that of senders."""


@dataclass(frozen=True)
class CompressReport:
    """The result of compressing.

    Attributes:
        pages: that were compressed.
        bytes_before: of their files.
        bytes_after: of their files.
        pages_left: sealed pages left uncompressed, because they would hardly shrink.

    Example:
        >>> sealed = queue.rotate()  # the active page is not compressed
        >>> report = queue.compress()
        >>> report.pages, report.bytes_after < report.bytes_before
        (1, True)
    """

    pages: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    pages_left: int = 0


class Compressor:
    """Compresses the sealed pages of an open queue, which comes with each call.

    Args:
        after: sealed pages that follow a page before it is compressed in the background; None: only
            on request.
        level: of Zstandard.

    Attributes:
        follows_rolls: whether pages are compressed in the background.
    """

    def __init__(self, after: int | None, level: int) -> None:
        self.follows_rolls: bool = after is not None
        self._after = after
        self._level = level
        self._refused: set[int] = set()
        self._next = 0
        self._asked = False

    # --- in the background ------------------------------------------------------------------------

    def rolled(self, store: Store) -> None:
        """Compress the pages that are due, if any are compressed in the background."""
        if self.follows_rolls and not self._asked:
            self._asked = True
            if not store.compressing.submit(weakly(store, self._quietly)):
                self._asked = False  # there is no thread now: the next roll tries again

    def _quietly(self, store: Store) -> None:
        """Compress the pages that are due; in a thread of its own: preparing pages never waits."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        self._asked = False
        assert self._after is not None
        end = store.tail.page_number - self._after
        self._next = max(self._next, store.read_meta.head_page)
        try:
            self._run(store, range(self._next, end), None)
        except errors.ClosedError:
            return
        except (errors.RetryError, errors.SyncFailed) as error:
            log.warning("%s: compressing: %s", store.folder.path, error)
        except errors.PageQueueError as error:
            log.warning("%s: compressing: %s", store.folder.path, error)
            self._next += 1  # the next page may be valid
            self.rolled(store)

    # --- on request -------------------------------------------------------------------------------

    def run(self, store: Store, progress: Callable[[int, int], None] | None) -> CompressReport:
        """Compress all sealed pages that are not compressed yet."""
        zstd.check(store.folder.path)
        numbers = range(store.read_meta.head_page, store.tail.page_number)
        return self._run(store, numbers, progress)

    def _run(
        self, store: Store, numbers: range, progress: Callable[[int, int], None] | None
    ) -> CompressReport:
        pages = before = after = left = 0
        self._sweep(store)
        for number in numbers:
            if progress is not None:
                progress(number - numbers.start, len(numbers))
            sizes = self._unless_retired(store, number)
            if sizes is not None and sizes[0] == sizes[1]:
                left += 1
            elif sizes is not None:
                pages, before, after = pages + 1, before + sizes[0], after + sizes[1]
            if number == self._next:
                self._next = number + 1
        if progress is not None:
            progress(len(numbers), len(numbers))
        return CompressReport(pages, before, after, left)

    def _sweep(self, store: Store) -> None:
        """Remove temporary files of retired pages; those of other pages are overwritten later."""
        folder = store.folder
        pattern = fmt.page_name_pattern(store.prefix)
        for name in folder.names():
            match = pattern.fullmatch(name.removesuffix(MAKER)) if name.endswith(MAKER) else None
            if match is not None and int(match[1]) < store.read_meta.head_page:
                folder.remove(name)

    # --- one page ---------------------------------------------------------------------------------

    def _unless_retired(self, store: Store, number: int) -> tuple[int, int] | None:
        try:
            with store.folder.descriptor:  # one page is one operation
                return self._one(store, number)
        except (errors.Expired, errors.QueueNotFound, errors.MissingPage):
            if number >= store.read_meta.head_page:
                raise
            return None  # retention was faster

    def _one(self, store: Store, number: int) -> tuple[int, int] | None:
        """Compress one page; return its bytes before and after, equal if it is left uncompressed.

        None: it is compressed already, or another process is compressing it.
        """
        folder, page_bytes = store.folder, store.meta.page_bytes
        name = fmt.page_name(store.prefix, number)
        if number in self._refused:
            return page_bytes, page_bytes
        if store.write_meta.is_failed:
            raise store.flusher.failed(store.write_meta.failed_errno)
        if is_compressed(first_bytes(folder, name)):
            _drop_index(store, number)  # a process died before it did
            return None
        with _temporary(store, name) as fd:
            if fd is None:
                return None
            before = folder.identity(name)
            if is_compressed(first_bytes(folder, name)):  # before the lock was acquired
                return None
            page = _Sealed(store, number)
            if page.is_worth(self._level):
                size = page.write(fd, self._level)  # Z1.
                if size <= WORTH * page_bytes:  # one that is larger than the page has no valid head
                    page.compare(fd, size)  # Z2.
                    swapped = _swap(store, number, before, fd)  # Z3.
                    if swapped:
                        _drop_index(store, number)  # Z4 and Z5.
                    return (page_bytes, size) if swapped else None
        self._refused.add(number)
        return page_bytes, page_bytes


def _swap(store: Store, number: int, before: Identity | None, fd: int) -> bool:
    """Rename the new file to the page, if that name still refers to the file that was read.

    As a page, its lock is shared by all processes that have it open (`page_lock.py`); until the
    rename no other process compresses this page, because that needs the lock exclusively.
    """
    folder, name = store.folder, fmt.page_name(store.prefix, number)
    with store.roller.lock.exclusive(store.lock_timeout, "compressing a page"):
        folder.check()
        if number < store.read_meta.head_page or folder.identity(name) != before:
            return False
        hold(fd)
        with store.read_meta.making(ReadMeta.PAGES_COMPRESSED):
            folder.rename(name + MAKER, name)
    store.forget(number)
    return True


def _drop_index(store: Store, number: int) -> None:
    """Remove the index of a compressed page, which has no use for it (Z4, Z5).

    Not before the page's new file surely has its name: after a power cut the old one, which needs
    the index, would be there without it.
    """
    folder = store.folder
    name, index_name = fmt.page_name(store.prefix, number), fmt.index_name(store.prefix, number)
    if not folder.exists(index_name):
        return
    store.flusher.sync_names()
    with store.roller.lock.exclusive(store.lock_timeout, "compressing a page"):
        folder.check()
        # Else it was retired, or it is or will be a plain page again, after a failed sync.
        if (
            number >= store.read_meta.head_page
            and not store.write_meta.is_failed
            and is_compressed(first_bytes(folder, name))
        ):
            folder.remove(index_name)


@contextlib.contextmanager
def _temporary(store: Store, name: str) -> Iterator[int | None]:
    """Yield the temporary file of a page, empty and locked; None: another process has it.

    It is removed after the block unless it was renamed. The kernel releases the lock when its
    holder dies; the next process then reuses the file.
    """
    folder, temporary = store.folder, name + MAKER
    file = folder.open(temporary, writable=True, make=True)
    has_it = False
    try:
        with file as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(fd)
                # Else another process renamed or removed it before it was locked.
                has_it = folder.identity(temporary) == (status.st_dev, status.st_ino)
            except BlockingIOError:
                has_it = False
            if has_it:
                os.ftruncate(fd, 0)
            yield fd if has_it else None
    except OSError as error:
        if isinstance(error, errors.PageQueueError):
            raise
        raise_typed(error, folder.full(name), "writing the compressed page")
    finally:
        try:
            if has_it:
                folder.remove(temporary)
        finally:
            file.close()


class _Sealed:
    """A sealed page that is read to be compressed.

    Raises:
        CorruptFrame: it is damaged, and is left unchanged.
    """

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        end_sequence = store.first_sequence(number + 1)
        self._path = store.folder.full(fmt.page_name(store.prefix, number))
        self.page_bytes = store.meta.page_bytes
        self._page, self._header = map_with_header(store.folder, store.prefix, store.meta, number)
        first = self._header.first_sequence
        index = private_region(b"", store.meta.index_bytes)
        self._scan = scan = scan_region(
            self._page, index, self._header, first or 0, None, use=_core.INDEX_WRITE
        )
        if first is None or scan.stopped != _core.READ_END or scan.sequence != end_sequence:
            reason = REASONS.get(scan.stopped, "it is unreadable")
            raise errors.CorruptFrame(
                f"message {scan.sequence} at position {scan.position}: {reason}, so the page is "
                "left uncompressed",
                remedy=REMEDY,
                path=self._path,
                position=scan.position,
                sequence=scan.sequence,
                reason=reason,
            )
        self._first = first
        self._used = self._content_end(scan)
        self._cuts = _cuts(index, scan.sequence - first, self._used)
        records = np.frombuffer(memoryview(index), fmt.INDEX_RECORD, max(scan.sequence - first, 1))
        self._times = records["timestamp"]  # 0 of a page without messages

    def _content_end(self, scan: Scan) -> int:
        """Return where the end-of-page mark ends, or the fragment after it.

        Raises:
            CorruptFrame: the fragment is damaged.
        """
        mark = scan.position, scan.sequence, self._path
        damage = fragment_damage(self._page, *mark)
        # Nobody reads the rest of a retired message, which a power cut can have torn.
        if damage is not None and scan.sequence > self._store.head[1]:
            position, reason = damage
            raise errors.CorruptFrame(
                f"a fragment at position {position}: {reason}, so the page is left uncompressed",
                path=self._path,
                position=position,
                sequence=scan.sequence - 1,
                reason=reason,
                remedy=REMEDY,
            )
        end = content_end(self._page, *mark)
        if end is None:
            return _core.peek(self._page, scan.position, scan.sequence)[3]
        return -(-end // fmt.FRAME_ALIGN_BYTES) * fmt.FRAME_ALIGN_BYTES

    def _deflated(self, i: int, level: int) -> bytes:
        if self._store.compressing.is_closed:
            raise errors.ClosedError(
                "this queue is closed, so no more pages are compressed",
                path=self._store.folder.path,
            )
        (begin, _), (end, _) = self._cuts[i], self._cuts[i + 1]
        return zstd.deflate(memoryview(self._page)[begin:end], level, self._path)

    def is_worth(self, level: int) -> bool:
        """Whether some blocks of it shrink, or there are few of them."""
        count = len(self._cuts) - 1
        if count <= SAMPLES or self._used <= WORTH * self.page_bytes / 2:
            return True
        tried = range(0, count, -(-count // SAMPLES))
        before = sum(self._cuts[i + 1][0] - self._cuts[i][0] for i in tried)
        after = sum(len(self._deflated(i, level)) for i in tried)
        return after <= WORTH * before * self.page_bytes / self._used

    def write(self, fd: int, level: int) -> int:
        """Write the compressed file to stable storage; return its size."""
        count = len(self._cuts) - 1
        at = BLOCKS_AT + count * fmt.COMPRESSED_BLOCK_BYTES
        blocks = []
        for i in range(count):
            stored = self._deflated(i, level)
            _write_all(fd, stored, at)
            at += len(stored)
            position, ordinal = self._cuts[i]
            blocks.append(
                (len(stored), position, ordinal, _core.crc32c(stored), self._times[ordinal])
            )
        front = encode_front(
            self._header,
            blocks,
            page_bytes=self.page_bytes,
            used_bytes=self._used,
            end_sequence=self._scan.sequence,
            first_timestamp=self._times[0],
            last_timestamp=self._times[-1],
        )
        _write_all(fd, front + encode_end(len(front)), at)
        _write_all(fd, front, 0)
        os.fsync(fd)
        return at + len(front) + fmt.COMPRESSED_END_BYTES

    def compare(self, fd: int, size: int) -> None:
        """Compare the written file with the page, byte by byte.

        Raises:
            CorruptPage, CorruptFrame: the disk or the memory changed it.
        """
        path = self._path + MAKER
        start = read_at(fd, BLOCKS_AT, 0)
        head = parse_front(read_at(fd, front_bytes(start, path), 0), size, path)
        if head.plain_header() != self._page.read(0, fmt.PAGE_HEADER_BYTES):
            raise bad_head(path, "it is not the page's", 0)
        for block in head.blocks:
            data = head.inflate(block, read_at(fd, block.stored_bytes, block.offset))
            if data != self._page.read(block.position, block.end - block.position):
                raise head.damage(block, "it is not the page's")


def _write_all(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written


def _cuts(index: _core.Region, count: int, used_bytes: int) -> list[tuple[int, int]]:
    """Return position and ordinal of each block's first frame, and of the end of the last one."""
    records = np.frombuffer(memoryview(index), fmt.INDEX_RECORD, count)
    positions = np.ascontiguousarray(records["position"])
    step = fmt.COMPRESSED_BLOCK_TARGET_BYTES
    wanted = np.arange(fmt.PAGE_HEADER_BYTES + step, used_bytes, step)
    ordinals = dict.fromkeys(np.searchsorted(positions, wanted).tolist())  # in order, each once
    inner = [(int(positions[i]), i) for i in ordinals if 0 < i < count]
    return [(fmt.PAGE_HEADER_BYTES, 0), *inner, (used_bytes, count)]
