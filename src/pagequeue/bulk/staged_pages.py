"""Staged pages: written to a private directory, renumbered and renamed into the queue at commit.

They are pages with messages, filled one by one or several at the same time, and between them pages
with the fragments of messages that are larger than a page. Only their publisher knows of them until
they are renamed.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.chunk import Chunk, part_of, payload_at
from pagequeue.bulk.filled_pages import FILLED_PREFIX, PageFiller, at_once
from pagequeue.bulk.staged_fragments import (
    STAGED_PREFIX,
    FragmentWriter,
    StagedFragment,
    frame,
    make_sparse,
    place_fragment,
    write_start,
)
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import Tail
from pagequeue.page.header import PageHeader, parse_header
from pagequeue.page.page import map_file
from pagequeue.send.refusals import record_size
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from pagequeue.bulk.filled_pages import FilledPage
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store
    from pagequeue.system.directory import Directory
    from pagequeue.util.worker import Background

EMPTY_PREFIX: Final = "empty"
"""Prefix of the names of staged pages without messages."""
INDEX_POSITION: Final = field_of(fmt.INDEX_RECORD, "position")


class StagedPage(NamedTuple):
    """A page that awaits its commit.

    Attributes:
        prefix: of the names of its files.
        number: of its files.
        first: sequence of its first message, counted from the first of all staged messages.
        size: how many messages begin in it.
        fragment: what its file has instead of frames; None: frames.
        counted_from: the sequence that its first frame has: 0, or after a commit that was taken
            back, that in the queue.
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
        folder: Directory,
        pages: list[StagedPage],
        position: int,
        first_time: int | None,
        *,
        is_synced: bool,
    ) -> None:
        self.folder: Directory = folder
        self.is_synced: bool = is_synced
        self.pages: list[StagedPage] = pages
        self.position = position
        self.first_time = first_time
        used = [place for place, page in enumerate(pages, 1) if page.size or page.fragment]
        several = sum(page.size for page in pages) > 1
        self.chained: int = used[-1] if several and not is_synced else 0

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

    def first_region(self, store: Store) -> _core.Region:
        """Return the map of the first page, whatever its name is by now."""
        first = self.pages[0]
        if first.mapped is not None:
            return first.mapped.region
        name = fmt.page_name(first.prefix, first.number)
        return map_file(self.folder, name, store.meta.page_bytes, writable=False)

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
        to, prefix, folder = store.folder, store.prefix, self.folder
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


def too_early(path: str, first: int, last: int) -> errors.TimestampOrder:
    """Return the error for messages that are older than those before them."""
    return errors.TimestampOrder(
        f"a message of timestamp {first} would follow one of {last}",
        path=path,
        last_timestamp=last,
        remedy="give them in order of time and not before the queue's last one, omit their times, "
        "or write history into a queue of its own",
    )


def stage(
    store: Store,
    folder: Directory,
    chunks: Iterable[Chunk],
    report_progress: Callable[[], object] | None = None,
    *,
    synced: bool = True,
) -> StagedPages:
    """Write messages to as many staged pages as they need.

    Args:
        store: of the queue that they will belong to.
        folder: the directory for them, which the caller closes after their commit.
        chunks: the messages.
        report_progress: called after each page with a fragment.
        synced: as for `Staging`.

    Raises:
        DiskFull, SystemLimit: writing or syncing a page failed; no message was sent.
        RecordSize: a record has another size. TimestampOrder: times decrease.
    """
    staging = Staging(store, folder, report_progress, synced=synced)
    for chunk in chunks:
        staging.add(chunk)
    return staging.finish()


class Staging:
    """Messages that are being staged.

    Args:
        store: of the queue that they will belong to.
        folder: the directory for them, which the caller closes after their commit.
        report_progress: called after each page with a fragment.
        synced: whether all must be on stable storage before it is published. Otherwise recovery
            after a power cut checks all of it, and keeps it whole or not at all.
    """

    def __init__(
        self,
        store: Store,
        folder: Directory,
        report_progress: Callable[[], object] | None = None,
        *,
        synced: bool = True,
    ) -> None:
        self._store = store
        self._synced = synced
        self._report_progress = report_progress
        self._folder = folder
        self._pages: list[StagedPage] = []
        self._count = 0  # messages in these pages
        self._fragments = self._empty = 0
        self._filler = PageFiller(store.meta, folder)
        self._first_time: int | None = None
        self._last_time = 0

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
        record_bytes = self._store.schema.record_bytes
        if record_bytes and len(wrong := np.flatnonzero(chunk.lengths != record_bytes)):
            raise record_size(self._store, int(chunk.lengths[wrong[0]]))
        for page in self._filler.write(chunk):
            self._add_filled(page)

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
            self._folder,
            self._store.meta,
            self._fragments + 1,
            self._report_progress,
            synced=self._synced,
        )
        try:
            yield writer
        finally:
            writer.close()

    def add_fragments(self, fragments: list[StagedFragment], time: int | None) -> None:
        """Take the pages of one large message."""
        if time is not None and self._first_time is None:
            self._first_time = self._last_time = time
        self._seal()
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

    def _add_filled(self, page: FilledPage) -> None:
        """Take a page with messages."""
        self._add_page(StagedPage(FILLED_PREFIX, page.number, 0, page.size, mapped=page.mapped))

    def _seal(self) -> None:
        """Seal the page that is being filled, and take it."""
        for page in self._filler.seal():
            self._add_filled(page)

    def finish(self) -> StagedPages:
        """Return all pages; the last one is not sealed, and becomes the active one."""
        # With the page that is not sealed, their number is odd.
        if len(self._pages) % 2 == 0 and (page := self._filler.unsealed()) is not None:
            self._add_filled(page)
            return self._finished(page.position)
        self._seal()
        if len(self._pages) % 2:
            self._add_empty(is_sealed=True)
        self._add_empty(is_sealed=False)
        return self._finished(fmt.PAGE_HEADER_BYTES)

    def _finished(self, position: int) -> StagedPages:
        return StagedPages(
            self._folder, self._pages, position, self._first_time, is_synced=self._synced
        )

    def _add_empty(self, *, is_sealed: bool) -> None:
        """Add a page without messages."""
        self._empty += 1
        meta = self._store.meta
        # Sparse, as those of fragments: the next large message can seal it without writing to it.
        # A process that maps it for writing reserves its blocks first. That message's commit ends
        # this index: a store into a hole would read zeros as far as the disk reads ahead.
        start = bytes(fmt.INDEX_RECORD.itemsize)
        for name, size, data in (
            (fmt.index_name(EMPTY_PREFIX, self._empty), meta.index_bytes, start),
            (fmt.page_name(EMPTY_PREFIX, self._empty), meta.page_bytes, b""),
        ):
            make_sparse(self._folder, name, size, data).close()
        self._add_page(StagedPage(EMPTY_PREFIX, self._empty, 0, 0, is_sealed=is_sealed))


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
    folder = staged.folder
    filled: list[_FilledPage] = []

    def assign_filled() -> None:
        side_by_side([partial(page.assign, synced=staged.is_synced) for page in filled])
        for page in filled:
            place = page.header.page_number - tail.page_number - 1
            first = tail.sequence + staged.pages[place].first
            staged.pages[place] = staged.pages[place]._replace(counted_from=first)
        filled.clear()
        report_progress()

    for number, page in enumerate(staged.pages, tail.page_number + 1):
        header = PageHeader(
            number,
            store.meta.queue_id,
            tail.sequence + page.first,
            last,
            store.clock(),
            is_continued=number < chained_to,
        )
        if page.fragment is not None:
            stamp = time if time >= 0 else page.time
            last = place_fragment(
                folder, store.meta, page.fragment, header, stamp, synced=staged.is_synced
            )
            report_progress()
        elif page.prefix == EMPTY_PREFIX:
            place_empty(folder, store.meta, page, header, synced=staged.is_synced)
        else:
            filled.append(_FilledPage(folder, store.meta, page, header, time, number <= chained_to))
            last = filled[-1].last_timestamp
            if len(filled) >= at_once():
                assign_filled()
    assign_filled()
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


class _FilledPage:
    """A staged page with frames, mapped to be turned into a page of the queue.

    Attributes:
        header: that it gets.
        last_timestamp: of its last message, once that is assigned.
    """

    def __init__(
        self,
        folder: Directory,
        meta: AllMeta,
        page: StagedPage,
        header: PageHeader,
        time: int,
        is_one_batch: bool,
    ) -> None:
        self._path = folder.full(fmt.page_name(page.prefix, page.number))
        self._page = page
        self._time = time
        self._is_one_batch = is_one_batch
        self.header = header
        self._last = last = (page.size - 1) * fmt.INDEX_RECORD_BYTES
        if page.mapped is None:
            self._region, self._index = _map_again(folder, meta, page, last)
        else:
            self._region, self._index = page.mapped.region, page.mapped.index
        self.last_timestamp: int = time if time >= 0 else self._last_in_index()

    def _last_in_index(self) -> int:
        return int.from_bytes(self._index.read(self._last, 8), "little")

    def assign(self, *, synced: bool) -> None:
        """Assign sequences, times and the header."""
        page, region, header = self._page, self._region, self.header
        assert header.first_sequence is not None
        done = _core.assign_sequences(
            region,
            self._index,
            page.counted_from,
            page.size,
            header.first_sequence,
            self._time,
            header.queue_id,
            self._is_one_batch,
        )
        if done != page.size or self._last_in_index() != self.last_timestamp:
            raise errors.CorruptPage(
                f"was changed after it was staged ({done} of {page.size} messages are as they "
                "were), and was not published",
                remedy="find out which other process writes there, then publish again",
                path=self._path,
                position=0,
                reason="changed by another process",
            )
        region.write(0, header.encode())
        region.queue_id = header.queue_id
        if synced:
            try:
                # Not the index: recovery writes that of each page after the durable mark, and a
                # flush syncs it before the mark moves.
                region.sync(0, len(region))
            except OSError as error:
                raise_typed(error, self._path, "syncing a page")


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
