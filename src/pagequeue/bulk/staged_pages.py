"""Staged pages: written to a private directory, renumbered and renamed into the queue at commit.

They are pages of a temporary queue in that directory, so that staging is ordinary sending; and
between them pages with the fragments of messages that are larger than a page. Only their publisher
knows of them until they are renamed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.producer import BulkProducer
from pagequeue.bulk.staged_fragments import (
    STAGED_PREFIX,
    FragmentWriter,
    StagedFragment,
    frame,
    make_sparse,
    place_fragment,
    write_start,
)
from pagequeue.columns.inputs import COLUMNS
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import Tail
from pagequeue.page.header import CHECKSUM_AT, PageHeader, parse_header
from pagequeue.page.page import map_file
from pagequeue.send.producer import record_size
from pagequeue.store.store import Store
from pagequeue.system.directory import Directory
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.page import WritablePage
    from pagequeue.util.worker import Background

BATCH_BYTES: Final = 1 << 20
EMPTY_PREFIX: Final = "empty"
"""Prefix of the names of staged pages without messages."""
ALIGN_SHIFT: Final = fmt.FRAME_ALIGN_BYTES.bit_length() - 1
ALIGN_PAD: Final = fmt.FRAME_HEADER_BYTES + fmt.FRAME_ALIGN_BYTES - 1
INDEX_POSITION: Final = field_of(fmt.INDEX_RECORD, "position")
SHARE: Final = 8
"""A batch takes at most a page divided by this, so that little of each page remains empty."""


class Chunk(NamedTuple):
    """Some payloads.

    Attributes:
        payloads: tuple or list of bytes, an Arrow array of type binary, a NumPy array of kind S or
            V, or columns.
        lengths: of each, in bytes; int64, shape (n,).
        times: of each, ns since 1970, int64, shape (n,); None: the time of the commit.
    """

    payloads: Any
    lengths: NDArray[np.int64]
    times: NDArray[np.int64] | None


def chunk_of(payloads: Iterable[Buffer], times: NDArray[np.int64] | None) -> Chunk:
    """Return payloads as a chunk.

    Raises:
        TypeError: a payload is not bytes-like.
    """
    items = tuple(payloads)
    return Chunk(items, np.frombuffer(_core.lengths(items), np.int64), times)


class StagedPage(NamedTuple):
    """A page that awaits its commit.

    Attributes:
        prefix: of the names of its files.
        number: of its files.
        first: sequence of its first message, counted from the first of all staged messages.
        size: how many messages begin in it.
        fragment: what its file has instead of frames; None: frames.
        counted_from: the sequence that its first frame has: in the temporary queue, or after a
            commit that was taken back, in the queue.
        time: of the large message that it belongs to, in ns; 0: that of the commit.
        is_sealed: whether it gets an end-of-page mark, if it is empty.
        mapped: the page as it was written to, so that its memory is not mapped again; None: it has
            to be.
    """

    prefix: str
    number: int
    first: int
    size: int
    fragment: StagedFragment | None = None
    counted_from: int = 0
    time: int = 0
    is_sealed: bool = False
    mapped: WritablePage | None = None


class StagedPages:
    """Pages that await their commit; an odd number: even and odd pages have separate tail fields.

    Attributes:
        pages: in order.
        position: end of the messages in the last one.
        first_time: of the first message, ns since 1970; None: the commit assigns their times.
        is_synced: whether the commit puts them on stable storage before it publishes them.
        chained: up to which of them, counted from 1, a power cut must have all or none; 0: nothing
            has to say that, because they are synced, or one message says it.
    """

    def __init__(
        self,
        path: str,
        pages: list[StagedPage],
        position: int,
        first_time: int | None,
        *,
        is_synced: bool,
    ) -> None:
        self._path = path
        self.is_synced: bool = is_synced
        self.pages: list[StagedPage] = pages
        self.position = position
        self.first_time = first_time
        used = [place for place, page in enumerate(pages, 1) if page.size or page.fragment]
        several = sum(page.size for page in pages) > 1
        self.chained: int = used[-1] if several and not is_synced else 0

    def folder(self, store: Store) -> Directory:
        """Open the directory that contains them."""
        return Directory(self._path, create=False, trust=store.folder.trust)

    def unmap(self, background: Background) -> None:
        """Drop the maps of all pages, which other threads need not wait for."""
        held: list[object] = [page.mapped for page in self.pages]
        self.pages = [page._replace(mapped=None) for page in self.pages]
        background.drop(held)

    def check_times(self, store: Store) -> None:
        """Raise TimestampOrder if they begin before the queue's last timestamp."""
        last = store.tail.last_timestamp
        if self.first_time is not None and self.first_time < last:
            raise too_early(store.folder.path, self.first_time, last)

    def first_checksum(self, store: Store) -> int:
        """Return the current checksum in the frame of the first message."""
        folder = self.folder(store)
        try:
            first = self.pages[0]
            name = fmt.page_name(first.prefix, first.number)
            page = map_file(folder, name, store.meta.page_bytes, writable=False)
            return page.load_half(fmt.PAGE_HEADER_BYTES + CHECKSUM_AT)
        finally:
            folder.close()

    def give_names(self, store: Store, first_page: int) -> None:
        """Rename all files to pages of the queue from `first_page` on, the last one first."""
        self._rename(store, first_page, is_back=False)

    def take_names_back(self, store: Store, first_page: int) -> None:
        """Undo `give_names`, also one that did not end, so that the pages can be committed again.

        The caller holds the preparation lock since before it gave the names. The next commit gives
        them other places, and syncs them: after a power cut the disk could have the headers of the
        places that they had, which are those of other pages.
        """
        self._rename(store, first_page, is_back=True)
        self.is_synced, self.chained = True, 0

    def _rename(self, store: Store, first_page: int, *, is_back: bool) -> None:
        to, prefix = store.folder, store.prefix
        folder = self.folder(store)
        try:
            with folder.descriptor as staged, to.descriptor as queue:
                for number, page in reversed(list(enumerate(self.pages, first_page))):
                    for name in (fmt.index_name, fmt.page_name):
                        here, there = name(page.prefix, page.number), name(prefix, number)
                        if not is_back:
                            os.rename(here, there, src_dir_fd=staged, dst_dir_fd=queue)
                        elif not folder.exists(here):  # else the other one is a dead producer's
                            os.rename(there, here, src_dir_fd=queue, dst_dir_fd=staged)
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


def stage(
    store: Store,
    path: str,
    chunks: Iterable[Chunk],
    report_progress: Callable[[], object] | None = None,
    *,
    synced: bool = True,
) -> StagedPages:
    """Write messages to as many staged pages as they need.

    Args:
        store: of the queue that they will belong to.
        path: of the directory to create.
        chunks: the messages.
        report_progress: called after each page with a fragment.
        synced: as for `Staging`.

    Raises:
        DiskFull, SystemLimit: writing or syncing a page failed; no message was sent.
        RecordSize: a record has another size. TimestampOrder: times decrease.
    """
    with contextlib.closing(Staging(store, path, report_progress, synced=synced)) as staging:
        for chunk in chunks:
            staging.add(chunk)
        return staging.finish()


class Staging:
    """Messages that are being staged.

    Args:
        store: of the queue that they will belong to.
        path: of the directory to create.
        report_progress: called after each page with a fragment.
        synced: whether all must be on stable storage before it is published. Otherwise recovery
            after a power cut checks all of it, and keeps it whole or not at all.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        report_progress: Callable[[], object] | None = None,
        *,
        synced: bool = True,
    ) -> None:
        self._store = store
        self._synced = synced
        self._path = path
        self._report_progress = report_progress
        folder = store.folder
        self._folder = Directory(
            path, create=True, durable=False, file_mode=folder.file_mode, trust=folder.trust
        )
        self._pages: list[StagedPage] = []
        self._count = 0  # messages in these pages
        self._taken = fmt.FIRST_PAGE - 1  # the last page of the temporary queue among them
        self._fragments = self._empty = 0
        self._queue: Store | None = None
        self._producer: BulkProducer | None = None
        self._first_time: int | None = None
        self._last_time = 0

    def close(self) -> None:
        """Close the temporary queue and its directory."""
        try:
            if self._producer is not None:
                self._producer.close()
            if self._queue is not None:
                self._queue.close()
        finally:
            self._folder.close()

    def add(self, chunk: Chunk) -> None:
        """Write more messages."""
        times = chunk.times
        if times is not None and len(times):
            if self._first_time is None:
                self._first_time = int(times[0])
            _check_times(self._folder.path, self._last_time, times)
            self._last_time = int(times[-1])
        limit = fmt.payload_bytes_max(self._store.meta.page_bytes)
        begin = 0
        for i in np.flatnonzero(chunk.lengths > limit).tolist():
            self._add_small(part_of(chunk, begin, i))
            time = None if times is None else int(times[i])
            self._add_large(payload_at(chunk.payloads, i), time)
            begin = i + 1
        self._add_small(part_of(chunk, begin, len(chunk.lengths)))

    def _add_small(self, chunk: Chunk) -> None:
        """Write messages that fit into pages."""
        if not len(chunk.lengths):
            return
        if self._producer is None:
            store = self._store
            self._queue = Store(
                self._path, store.prefix, create=True, read_only=False,
                page_bytes=store.meta.page_bytes, lock_timeout=store.lock_timeout, clock=_no_time,
                file_mode=store.folder.file_mode, trust=store.folder.trust,
                staged_for=store.meta.queue_id,
            )  # fmt: skip
            self._producer = BulkProducer(self._queue, _no_time)
            self._producer.stage_only()
            self._producer.require_record_bytes(store.schema.record_bytes)
        assert self._queue is not None
        _send(self._producer, self._queue, chunk)

    def _add_large(self, payload: Buffer, time: int | None) -> None:
        """Write a message of several pages."""
        if self._store.schema.record_bytes:
            raise record_size(self._store, memoryview(payload).nbytes)
        with self.fragments() as writer:
            writer.write(payload)
            self.add_fragments(writer.finish(), time)

    @contextlib.contextmanager
    def fragments(self) -> Iterator[FragmentWriter]:
        """Return a writer of one large message, whose pages `add_fragments` takes."""
        writer = FragmentWriter(
            self._folder, self._store.meta, self._fragments + 1, self._report_progress,
            synced=self._synced,
        )  # fmt: skip
        try:
            yield writer
        finally:
            writer.close()

    def add_fragments(self, fragments: list[StagedFragment], time: int | None) -> None:
        """Take the pages of one large message."""
        if time is not None and self._first_time is None:
            self._first_time = self._last_time = time
        self._take_sealed(all_of_them=True)
        for fragment in fragments:
            self._add_page(
                StagedPage(
                    STAGED_PREFIX, fragment.number, 0, fragment.messages, fragment, time=time or 0
                )
            )
        self._fragments += len(fragments)

    def _add_page(self, page: StagedPage) -> None:
        self._pages.append(page._replace(first=self._count))
        self._count += page.size

    def _take_sealed(self, *, all_of_them: bool) -> None:
        """Take the pages of the temporary queue that were not yet; seal the last one if asked."""
        queue, producer = self._queue, self._producer
        if queue is None or producer is None:
            return
        if all_of_them and queue.tail.count > 0:
            producer.seal()
        tail = queue.tail
        for number in range(self._taken + 1, tail.page_number):
            first = queue.first_sequence(number)
            size = queue.count(number, tail)
            self._add_page(self._of_frames(queue.prefix, number, size, first))
        self._taken = tail.page_number - 1

    def _of_frames(self, prefix: str, number: int, size: int, first: int) -> StagedPage:
        """Return a page of the temporary queue."""
        mapped = None if self._producer is None else self._producer.mapped.pop(number, None)
        return StagedPage(prefix, number, 0, size, None, first, mapped=mapped)

    def finish(self) -> StagedPages:
        """Return all pages; the last one is not sealed, and becomes the active one."""
        self._take_sealed(all_of_them=False)
        queue = self._queue
        tail = None if queue is None else queue.tail
        if queue is not None and tail is not None and tail.count > 0:
            if len(self._pages) % 2 == 0:  # with this one, their number is odd
                self._add_page(
                    self._of_frames(queue.prefix, tail.page_number, tail.count, tail.first_sequence)
                )
                return self._finished(tail.position)
            self._take_sealed(all_of_them=True)
        if len(self._pages) % 2:
            self._add_empty(is_sealed=True)
        self._add_empty(is_sealed=False)
        return self._finished(fmt.PAGE_HEADER_BYTES)

    def _finished(self, position: int) -> StagedPages:
        return StagedPages(
            self._path, self._pages, position, self._first_time, is_synced=self._synced
        )

    def _add_empty(self, *, is_sealed: bool) -> None:
        """Add a page without messages."""
        self._empty += 1
        meta = self._store.meta
        # Sparse, as those of fragments: the next large message can seal it without writing to it.
        # Whoever maps it to write to it reserves its blocks first.
        for name, size in (
            (fmt.index_name(EMPTY_PREFIX, self._empty), meta.index_bytes),
            (fmt.page_name(EMPTY_PREFIX, self._empty), meta.page_bytes),
        ):
            make_sparse(self._folder, name, size).close()
        # The commit of the next large message ends this index: a store into a hole would read
        # zeros as far as the disk reads ahead.
        name = fmt.index_name(EMPTY_PREFIX, self._empty)
        write_start(self._folder, name, bytes(fmt.INDEX_RECORD.itemsize), synced=False)
        self._add_page(StagedPage(EMPTY_PREFIX, self._empty, 0, 0, is_sealed=is_sealed))


def _no_time() -> int:
    return 0


def part_of(chunk: Chunk, begin: int, end: int) -> Chunk:
    """Return some consecutive messages of a chunk."""
    payloads = chunk.payloads
    part = payloads.part(begin, end) if isinstance(payloads, COLUMNS) else payloads[begin:end]
    times = None if chunk.times is None else chunk.times[begin:end]
    return Chunk(part, chunk.lengths[begin:end], times)


def payload_at(payloads: Any, i: int) -> Buffer:  # noqa: ANN401 - as in Chunk
    """Return one payload of a chunk."""
    if isinstance(payloads, COLUMNS):
        payload: Buffer = payloads.payload(i)
    else:
        payload = payloads[i]
        if hasattr(payload, "as_buffer"):  # Arrow's
            payload = payload.as_buffer()
    return payload


def _send(producer: BulkProducer, staging: Store, chunk: Chunk) -> None:
    count = len(chunk.lengths)
    limit_bytes = min(BATCH_BYTES, staging.meta.page_bytes // SHARE)
    limit_count = max(1, staging.meta.index_capacity // SHARE)
    # Shifted, because dividing takes as long as all of the rest.
    ends = np.cumsum((chunk.lengths + ALIGN_PAD) >> ALIGN_SHIFT)
    begin = before = 0
    while begin < count:
        room = before + limit_bytes // fmt.FRAME_ALIGN_BYTES
        end = int(np.searchsorted(ends, room, side="right"))
        end = min(max(end, begin + 1), begin + limit_count, count)
        part = part_of(chunk, begin, end)
        producer.expect(int(ends[-1] - ends[end - 1]) << ALIGN_SHIFT)
        producer.send_part(part.payloads, part.times)
        begin, before = end, int(ends[end - 1])


def _check_times(path: str, last: int, times: NDArray[np.int64]) -> None:
    """Raise if times decrease."""
    if int(times[0]) < last:
        raise too_early(path, int(times[0]), last)
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        i = int(back[0])
        raise too_early(path, int(times[i + 1]), int(times[i]))


def assign_sequences(
    store: Store, staged: StagedPages, tail: Tail, report_progress: Callable[[], None]
) -> Tail:
    """Assign the sequences that follow a tail, times and headers to staged pages.

    It syncs them, unless they do without: see `Staging`. It can be repeated, with another tail.

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
    chained_to = tail.page_number + staged.chained
    folder = staged.folder(store)
    try:
        for number, page in enumerate(staged.pages, tail.page_number + 1):
            header = PageHeader(
                number, store.meta.queue_id, tail.sequence + page.first, last, store.clock(),
                is_continued=number < chained_to,
            )  # fmt: skip
            if page.fragment is not None:
                stamp = time if time >= 0 else page.time
                last = place_fragment(
                    folder, store.meta, page.fragment, header, stamp, synced=staged.is_synced
                )
            elif page.prefix == EMPTY_PREFIX:
                place_empty(folder, store.meta, page, header, synced=staged.is_synced)
            else:
                last = _assign_page(
                    store, folder, page, header, time, synced=staged.is_synced,
                    one_batch=number <= chained_to,
                )  # fmt: skip
                staged.pages[number - tail.page_number - 1] = page._replace(
                    counted_from=tail.sequence + page.first
                )
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


def place_empty(
    folder: Directory, meta: AllMeta, page: StagedPage, header: PageHeader, *, synced: bool
) -> None:
    """Turn a staged page without messages into a page of the queue."""
    data = header.encode()
    if page.is_sealed:
        assert header.first_sequence is not None
        data += frame(meta, b"", header.first_sequence, header.floor_timestamp, fmt.END_OF_PAGE)
    write_start(folder, fmt.page_name(page.prefix, page.number), data, synced=synced)


def _assign_page(
    store: Store,
    folder: Directory,
    page: StagedPage,
    header: PageHeader,
    time: int,
    *,
    synced: bool,
    one_batch: bool,
) -> int:
    """Turn one staged page into a page of the queue; return its last timestamp."""
    meta = store.meta
    name = fmt.page_name(page.prefix, page.number)
    last = max(page.size - 1, 0) * fmt.INDEX_RECORD_BYTES
    if page.mapped is None:
        region, index = _map_again(folder, meta, page, last)
    else:
        region, index = page.mapped.region, page.mapped.index
    first = header.first_sequence
    assert first is not None
    done = _core.assign_sequences(
        region, index, page.counted_from, page.size, first, time, meta.queue_id, one_batch
    )
    if done != page.size:
        raise errors.CorruptPage(
            f"has {done} messages where {page.size} were staged, and was not published",
            remedy="find out which other process writes there, then publish again",
            path=folder.full(name), position=0, reason="changed by another process",
        )  # fmt: skip
    region.write(0, header.encode())
    region.queue_id = meta.queue_id
    if synced:
        try:
            # Not the index: recovery writes that of each page after the durable mark, and a flush
            # syncs it before the mark moves.
            region.sync(0, len(region))
        except OSError as error:
            raise_typed(error, folder.full(name), "syncing a page")
    if not page.size:
        return header.floor_timestamp
    return int.from_bytes(index.read(last, 8), "little")


def _map_again(
    folder: Directory, meta: AllMeta, page: StagedPage, last: int
) -> tuple[_core.Region, _core.Region]:
    """Map a staged page and its index, whose last record is at a position."""
    name = fmt.page_name(page.prefix, page.number)
    region = map_file(folder, name, meta.page_bytes, writable=True, reserved=False)
    region.queue_id = parse_header(
        region.read(0, fmt.PAGE_HEADER_BYTES), folder.full(name)
    ).queue_id
    index_name = fmt.index_name(page.prefix, page.number)
    index = map_file(folder, index_name, meta.index_bytes, writable=True, reserved=False)
    used = int.from_bytes(index.read(last + INDEX_POSITION, 4), "little")  # but the last frame
    with contextlib.suppress(OSError):  # else a page fault for each 4 KiB
        region.populate(0, min(used + fmt.FRAME_HEADER_BYTES, len(region)))
        index.populate(0, last + fmt.INDEX_RECORD_BYTES)
    return region, index
