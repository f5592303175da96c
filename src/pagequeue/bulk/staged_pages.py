"""Staged pages: written to a private directory, renumbered and renamed into the queue at commit.

They are pages of a temporary queue in that directory, so that staging is ordinary sending. Only
their publisher knows of them until they are renamed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.producer import BulkProducer
from pagequeue.meta.write_meta import Tail
from pagequeue.page.header import CHECKSUM_AT, PageHeader, parse_header
from pagequeue.page.page import map_file
from pagequeue.store.store import Store
from pagequeue.system.directory import Directory
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

BATCH_BYTES: Final = 1 << 20
SHARE: Final = 8
"""A batch takes at most a page divided by this, so that little of each page remains empty."""


class Chunk(NamedTuple):
    """Some payloads.

    Attributes:
        payloads: list of bytes, or an Arrow array of type binary.
        lengths: of each, in bytes; int64, shape (n,).
        times: of each, ns since 1970, int64, shape (n,); None: the time of the commit.
    """

    payloads: Any
    lengths: NDArray[np.int64]
    times: NDArray[np.int64] | None


def chunk_of(payloads: list[bytes], times: NDArray[np.int64] | None) -> Chunk:
    """Return payloads as a chunk."""
    return Chunk(payloads, np.fromiter(map(len, payloads), np.int64, len(payloads)), times)


class StagedPage(NamedTuple):
    """A page: its number, its first sequence (counted from 0), and its number of messages."""

    number: int
    first: int
    size: int


class StagedPages:
    """Pages that await their commit; an odd number: even and odd pages have separate tail fields.

    Attributes:
        pages: in order.
        position: end of the messages in the last one.
        first_time: of the first message, ns since 1970; None: the commit assigns their times.
    """

    def __init__(
        self, path: str, prefix: str, pages: list[StagedPage], position: int, first_time: int | None
    ) -> None:
        self._path = path
        self._prefix = prefix
        self.pages = pages
        self.position = position
        self.first_time = first_time

    def folder(self, store: Store) -> Directory:
        """Open the directory that contains them."""
        return Directory(self._path, create=False, trust=store.folder.trust)

    def check_times(self, store: Store) -> None:
        """Raise TimestampOrder if they begin before the queue's last timestamp."""
        last = store.tail.last_timestamp
        if self.first_time is not None and self.first_time < last:
            raise too_early(store.folder.path, self.first_time, last)

    def first_checksum(self, store: Store) -> int:
        """Return the current checksum in the frame of the first message."""
        folder = self.folder(store)
        try:
            name = fmt.page_name(self._prefix, self.pages[0].number)
            page = map_file(folder, name, store.meta.page_bytes, writable=False)
            return page.load_half(fmt.PAGE_HEADER_BYTES + CHECKSUM_AT)
        finally:
            folder.close()

    def give_names(self, store: Store, first_page: int) -> None:
        """Rename all files to pages of the queue from `first_page` on, the last one first."""
        to, prefix = store.folder, self._prefix
        folder = self.folder(store)
        try:
            with folder.descriptor as staged, to.descriptor as queue:
                for page in reversed(self.pages):
                    number = first_page + page.number - fmt.FIRST_PAGE
                    for name in (fmt.index_name, fmt.page_name):
                        os.rename(
                            name(prefix, page.number), name(prefix, number),
                            src_dir_fd=staged, dst_dir_fd=queue,
                        )  # fmt: skip
        except OSError as error:
            raise_typed(error, to.path, "naming pages")
        finally:
            folder.close()


def too_early(path: str, first: int, last: int) -> errors.TimestampOrder:
    """Return the error for messages that are older than those before them."""
    return errors.TimestampOrder(
        f"a message of timestamp {first} would follow one of {last}",
        path=path, last_timestamp=last,
        remedy="give them in order of time and not before the queue's last one, omit their times, "
        "or write history into a queue of its own",
    )  # fmt: skip


def stage(store: Store, path: str, chunks: Iterator[Chunk]) -> StagedPages:
    """Write messages to as many staged pages as they need.

    Args:
        store: of the queue that they will belong to.
        path: of the directory to create.
        chunks: the messages.

    Raises:
        DiskFull: the pages do not fit. MessageTooLarge: a message is larger than a page.
        TimestampOrder: times decrease.
    """
    staging = Store(
        path, store.prefix, create=True, read_only=False, page_bytes=store.meta.page_bytes,
        lock_timeout=store.lock_timeout, clock=_no_time, file_mode=store.folder.file_mode,
        trust=store.folder.trust,
    )  # fmt: skip
    try:
        first_time: int | None = None
        with BulkProducer(staging, _no_time) as producer:
            producer.require_record_bytes(store.schema.record_bytes)
            for chunk in chunks:
                if chunk.times is not None and len(chunk.times) and first_time is None:
                    first_time = int(chunk.times[0])
                _send(producer, staging, chunk)
            if staging.tail.page_number % 2 == 0:
                producer.seal()
        tail = staging.tail
        numbers = range(fmt.FIRST_PAGE, tail.page_number + 1)
        pages = [StagedPage(n, staging.first_sequence(n), staging.count(n, tail)) for n in numbers]
        return StagedPages(path, store.prefix, pages, tail.position, first_time)
    finally:
        staging.close()


def _no_time() -> int:
    return 0


def _send(producer: BulkProducer, staging: Store, chunk: Chunk) -> None:
    count = len(chunk.lengths)
    if chunk.times is not None and count:
        _check_times(staging, chunk.times)
    limit_bytes = min(BATCH_BYTES, staging.meta.page_bytes // SHARE)
    limit_count = max(1, staging.meta.index_capacity // SHARE)
    ends = np.cumsum(-(-(chunk.lengths + fmt.FRAME_HEADER_BYTES) // fmt.FRAME_ALIGN_BYTES))
    begin = before = 0
    while begin < count:
        room = before + limit_bytes // fmt.FRAME_ALIGN_BYTES
        end = int(np.searchsorted(ends, room, side="right"))
        end = min(max(end, begin + 1), begin + limit_count, count)
        times = None if chunk.times is None else chunk.times[begin:end]
        producer.send_many(chunk.payloads[begin:end], timestamps=times)
        begin, before = end, int(ends[end - 1])


def _check_times(staging: Store, times: NDArray[np.int64]) -> None:
    """Raise if times decrease."""
    last = staging.tail.last_timestamp
    if int(times[0]) < last:
        raise too_early(staging.folder.path, int(times[0]), last)
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        i = int(back[0])
        raise too_early(staging.folder.path, int(times[i + 1]), int(times[i]))


def assign_sequences(
    store: Store, staged: StagedPages, tail: Tail, report_progress: Callable[[], None]
) -> Tail:
    """Assign the sequences that follow a tail, times and headers to staged pages; sync them.

    Args:
        store: of the queue.
        staged: the pages.
        tail: of the queue, before them.
        report_progress: called after each page, because others wait meanwhile.

    Returns:
        The tail after them.

    Raises:
        TimestampOrder: they begin before the last timestamp.
        CorruptPage: they were changed since they were staged. SystemLimit: syncing them failed.
    """
    last = tail.last_timestamp
    staged.check_times(store)
    time = -1 if staged.first_time is not None else max(store.clock(), last)
    folder = staged.folder(store)
    try:
        for page in staged.pages:
            last = _assign_page(store, folder, page, tail, (time, last))
            report_progress()
    finally:
        folder.close()
    end = staged.pages[-1]
    return Tail(
        tail.page_number + len(staged.pages),
        staged.position,
        end.size,
        tail.sequence + end.first,
        last,
    )


def _assign_page(
    store: Store, folder: Directory, page: StagedPage, tail: Tail, times: tuple[int, int]
) -> int:
    """Turn one staged page into a page of the queue; return its last timestamp."""
    time, last = times
    prefix, meta = store.prefix, store.meta
    name = fmt.page_name(prefix, page.number)
    region = map_file(folder, name, meta.page_bytes, writable=True)
    region.queue_id = parse_header(
        region.read(0, fmt.PAGE_HEADER_BYTES), folder.full(name)
    ).queue_id
    index_name = fmt.index_name(prefix, page.number)
    index = map_file(folder, index_name, meta.index_bytes, writable=True)
    first = tail.sequence + page.first
    done = _core.restamp(region, index, page.first, page.size, first, time, meta.queue_id)
    if done != page.size:
        raise errors.CorruptPage(
            f"has {done} messages where {page.size} were staged, and was not published",
            remedy="find out which other process writes there, then publish again",
            path=folder.full(name), position=0, reason="changed by another process",
        )  # fmt: skip
    number = tail.page_number + page.number - fmt.FIRST_PAGE + 1
    header = PageHeader(number, meta.queue_id, first, last, store.clock())
    region.write(0, header.encode())
    try:
        region.sync(0, len(region))
        index.sync(0, len(index))
    except OSError as error:
        raise_typed(error, folder.full(name), "syncing a page")
    if page.size:
        at = (page.size - 1) * fmt.INDEX_RECORD_BYTES
        last = int.from_bytes(index.read(at, 8), "little")
    return last
