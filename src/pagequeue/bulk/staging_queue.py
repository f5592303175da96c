"""Temporary queues in a staging directory: messages that fit into pages are staged by sending them.

A page is filled by one thread. Of messages for several pages, as many pages as there are cores are
filled at the same time, each in a temporary queue of its own; which messages a page takes is known
before, from their sizes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pagequeue import format as fmt
from pagequeue.bulk.chunk import UNIT_BYTES, frame_units
from pagequeue.bulk.producer import BulkProducer
from pagequeue.store.opening import Opening
from pagequeue.store.store import Store
from pagequeue.util.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.bulk.chunk import Chunk
    from pagequeue.page.page import WritablePage
    from pagequeue.system.directory import Directory

BATCH_BYTES: Final = 1 << 20
"""So much is sent at once: what is copied is in the processor's cache when it is checked."""
FILL_BYTES: Final = 4 << 20
"""Memory is taken for so much at once."""
FILLED_PREFIX: Final = "filled"
"""Prefix of the names of staged pages with frames; the number of the temporary queue follows."""
MAPPED_MAX: Final = 16
"""So many staged pages stay mapped until they are committed; each has descriptors open."""
AT_ONCE_MAX: Final = 4
"""More threads than this wait for memory."""


class FilledPage(NamedTuple):
    """A page of a temporary queue.

    Attributes:
        prefix: of the names of its files.
        number: of its files.
        size: how many messages it has.
        first: sequence of its first message.
        mapped: the page as it was written to; None: it has to be mapped again.
    """

    prefix: str
    number: int
    size: int
    first: int
    mapped: WritablePage | None


class _Part(NamedTuple):
    """Messages of a chunk, from `begin` to `end`, that one page takes."""

    chunk: Chunk
    ends: NDArray[np.int64]
    begin: int
    end: int


class _StagingQueue:
    """A temporary queue; only one thread at a time uses it."""

    def __init__(self, store: Store, folder: Directory, prefix: str) -> None:
        self._store = Store(
            Opening(
                folder.path,
                prefix,
                create=True,
                read_only=False,
                page_bytes=store.meta.page_bytes,
                lock_timeout=store.lock_timeout,
                clock=_no_time,
                file_mode=store.folder.file_mode,
                trust=store.folder.trust,
                staged_for=store.meta.queue_id,
                within=folder,
            )
        )
        self._taken = fmt.FIRST_PAGE - 1
        try:
            self._producer = BulkProducer(self._store, _no_time)
        except BaseException:
            self._store.close()
            raise
        self._producer.stage_only(MAPPED_MAX // at_once())
        self._producer.require_record_bytes(store.schema.record_bytes)

    def close(self) -> None:
        """Close it; its files stay."""
        try:
            self._producer.close()
        finally:
            self._store.close()

    @property
    def position(self) -> int:
        """Where the messages in the open page end."""
        return self._store.tail.position

    @property
    def count(self) -> int:
        """How many messages are in the open page."""
        return self._store.tail.count

    def fill(self, part: _Part, *, seal: bool) -> None:
        """Write messages to the open page, and seal it if it gets no more."""
        for first, last, frame_bytes in _steps(part.ends, part.begin, part.end, FILL_BYTES):
            self._producer.fill_ahead(frame_bytes, last - first)
            for begin, end, _ in _steps(part.ends, first, last, BATCH_BYTES):
                self._producer.send_part(part.chunk, begin, end)
        if seal:
            self.seal()

    def seal(self) -> None:
        """Seal the open page, if it has messages."""
        if self.count:
            self._producer.seal()

    def sealed(self) -> Iterator[FilledPage]:
        """Yield the pages that were sealed since the last call."""
        tail = self._store.tail
        for number in range(self._taken + 1, tail.page_number):
            yield self._filled(number, self._store.count(number, tail))
        self._taken = tail.page_number - 1

    def unsealed(self) -> FilledPage:
        """Return the open page."""
        tail = self._store.tail
        return self._filled(tail.page_number, tail.count)

    def _filled(self, number: int, size: int) -> FilledPage:
        return FilledPage(
            self._store.prefix,
            number,
            size,
            self._store.first_sequence(number),
            self._producer.mapped.get(number),
        )


class StagingQueues:
    """Temporary queues, of which one at most has an open page.

    Args:
        store: of the queue that the messages will belong to.
        folder: the directory for their files.
    """

    def __init__(self, store: Store, folder: Directory) -> None:
        self._owner = store
        self._folder = folder
        self._queues: list[_StagingQueue] = []
        self._open: _StagingQueue | None = None

    def close(self) -> None:
        """Close all of them."""
        with contextlib.ExitStack() as held:
            for queue in self._queues:
                held.callback(queue.close)

    def send(self, chunk: Chunk) -> Iterator[FilledPage]:
        """Write messages; yield pages that are filled and sealed, in order."""
        ends = np.cumsum(frame_units(chunk.lengths))
        parts = list(self._parts(chunk, ends))
        if not parts[0].end:  # the open page is full
            yield from self.seal()
            del parts[0]
        while parts:
            count = at_once()  # asked once: another process can change it at any time
            these, parts = parts[:count], parts[count:]
            queues = self._some(len(these))
            self._open = None if parts else queues[-1]
            side_by_side(
                [
                    partial(queue.fill, part, seal=queue is not self._open)
                    for queue, part in zip(queues, these, strict=True)
                ]
            )
            for queue in queues:
                yield from queue.sealed()

    def seal(self) -> Iterator[FilledPage]:
        """Seal the open page, if there is one, and yield it."""
        if self._open is not None:
            self._open.seal()
            yield from self._open.sealed()
            self._open = None

    def unsealed(self) -> tuple[FilledPage, int] | None:
        """Return the open page and where its messages end; None: there is none."""
        if self._open is None:
            return None
        return self._open.unsealed(), self._open.position

    def _some(self, count: int) -> list[_StagingQueue]:
        """Return queues, the one with an open page first."""
        while len(self._queues) < count:
            number = len(self._queues)
            self._queues.append(
                _StagingQueue(self._owner, self._folder, f"{FILLED_PREFIX}{number}")
            )
        if self._open is None:
            return self._queues[:count]
        others = [queue for queue in self._queues if queue is not self._open]
        return [self._open, *others[: count - 1]]

    def _parts(self, chunk: Chunk, ends: NDArray[np.int64]) -> Iterator[_Part]:
        """Yield what each page takes; for the open page first, perhaps nothing."""
        meta = self._owner.meta
        position, count = fmt.PAGE_HEADER_BYTES, 0
        if self._open is not None:
            position, count = self._open.position, self._open.count
        begin = before = 0
        while begin < len(ends):
            room = (meta.page_bytes - fmt.FRAME_HEADER_BYTES - position) // UNIT_BYTES
            end = int(np.searchsorted(ends, before + room, side="right"))
            end = min(end, begin + meta.index_capacity - count)
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


def _no_time() -> int:
    return 0
