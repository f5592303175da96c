"""A queue of objects, open in one process: the queue, its only group, and a producer.

Each object is a message, its pickle; all processes claim from one group. Retention removes a page
once the group has acknowledged all its messages.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from queue import Full
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.maintenance.retention import Retention
from pagequeue.meta.group_table import GroupTable
from pagequeue.meta.meta_file import field_of, lost_meta
from pagequeue.multiprocessing.large_objects import KIND, NAME, LargeObjects
from pagequeue.queue.queue import Queue, internals
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.group.group import Group
    from pagequeue.store.flush import Sync

GROUP: Final = "items"
FOR_EVER: Final = 9e8
"""Lease in seconds: an object is redelivered when its process ends, never because of time."""
KEEP_UNDONE: Final = Retention(max_age=timedelta(microseconds=1))
USED: Final = field_of(fmt.GROUP_META, "used")


class Settings(NamedTuple):
    """What a process needs to open the queue."""

    directory: str
    prefix: str
    page_bytes: int
    sync: Sync
    maxsize: int  # 0 = none
    unfinished_max: int


class ObjectProducer(Producer):
    """A producer that raises `queue.Full` at the limit of the group."""

    __slots__ = ()

    def _on_event(self, event: int, value: int) -> bool:
        if event == _core.EVENT_OVER_LIMIT:
            raise Full
        return super()._on_event(event, value)


class ObjectQueue:
    """An open queue of objects.

    Attributes:
        queue: the directory.
        group: all processes claim from it.
        producer: sends to the queue.
        large: objects that do not fit into a page.
        maxsize: most waiting objects; 0 = any number.
    """

    def __init__(self, settings: Settings) -> None:
        queue = _open(settings)
        self.queue: Queue = queue
        try:
            # Before anything is sent: retention keeps what a group has not acknowledged.
            self.group: Group = _group(queue, settings.unfinished_max)
            self._words = self.group._group_file.region  # noqa: SLF001 - one package
            self.large: LargeObjects = LargeObjects(
                os.path.join(queue.directory, f"{settings.prefix}-large"),
                synced=settings.sync != "none",
                named=self._names,
            )
            opened = internals(queue)
            store = opened.readable()
            store.check_appendable()
            store.bulk = None  # a large object has a file of its own, which `maxsize` counts
            producer = ObjectProducer(store, None, opened.options.sync_every)
            self.producer: ObjectProducer = opened.keep(producer, store)
            self.maxsize: int = settings.maxsize
            if settings.maxsize:
                self.producer._bind(self._words, settings.maxsize)  # noqa: SLF001 - one package
        except BaseException:
            self.close()
            raise

    def _names(self) -> Iterator[bytes]:
        """Yield the unfinished messages that name files."""
        for batch in self.queue.batches(sequence=self.done):
            for payload in batch.payloads:
                if len(payload) == NAME.size and payload[0] == KIND:
                    yield payload

    @property
    def done(self) -> int:
        """The sequence below which every object is done."""
        return self._words.load(GroupTable.NEXT)

    @property
    def tail(self) -> int:
        """How many objects were ever put."""
        return self.queue.tail_sequence

    @property
    def waiting(self) -> int:
        """How many objects were not taken yet."""
        tail = self.tail  # first, so that objects taken meanwhile do not count
        return max(0, tail - self.group._next()[0])  # noqa: SLF001 - one package

    @property
    def returned(self) -> int:
        """How many objects wait for redelivery, because the process that took them ended."""
        words = self._words
        if not words.load_half(GroupTable.OUTSTANDING):
            return 0
        count = min(words.load_half(USED), self.group._group_file.capacity)  # noqa: SLF001 - one package
        records = words.read(fmt.GROUP_TABLE_AT, count * fmt.GROUP_RECORD.itemsize)
        states = np.frombuffer(records, fmt.GROUP_RECORD)["word"] & 3
        return int(np.count_nonzero(states == fmt.RECORD_WAITS))

    def redeliver_abandoned(self) -> None:
        """Make objects that dead processes had claimed available again."""
        self.group._release_dead_owners()  # noqa: SLF001 - one package

    def check(self) -> None:
        """Raise if the group's file was truncated, which makes its fields meaningless."""
        if self._words.broken:
            raise lost_meta(self.queue.directory, self._words.lost_at)

    def forget(self) -> None:
        """In a forked child, close the descriptor that would keep the parent's lock."""
        self.large.close()

    def close(self) -> None:
        """Release claimed objects and close."""
        if hasattr(self, "large"):
            self.large.close()
        self.queue.close()


def _open(settings: Settings) -> Queue:
    """Open the queue; a new one gets the page size of `settings`."""
    opened = partial(
        Queue, settings.directory, prefix=settings.prefix, retention=KEEP_UNDONE, sync=settings.sync
    )
    try:
        return opened(create=False)
    except errors.QueueNotFound:
        return opened(page_bytes=settings.page_bytes)


def _group(queue: Queue, unfinished_max: int) -> Group:
    """Open the group; an existing one keeps its capacity."""
    try:
        return queue.group(GROUP, lease=FOR_EVER, capacity=unfinished_max)
    except errors.UsageError:
        return queue.group(GROUP, lease=FOR_EVER)
