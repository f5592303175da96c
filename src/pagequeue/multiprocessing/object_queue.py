"""One process's way into a queue of objects: the queue, its one group, and a producer.

Each object is a message, its pickle; everybody takes from one group. What is taken and acknowledged
by all of it goes with its page: retention keeps what the group has not done, and nothing else.
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
from pagequeue.meta.all_and_read_meta import field_of, lost_meta
from pagequeue.meta.group_table import GroupTable
from pagequeue.multiprocessing.large_objects import KIND, NAME, LargeItems
from pagequeue.queue.queue import Queue, internals
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.group.group import Group
    from pagequeue.store.flush import Sync

GROUP: Final = "items"
FOR_EVER: Final = 9e8
"""Seconds of a lease: an object comes back when its process ends, and never because of time."""
KEEP_UNDONE: Final = Retention(max_age=timedelta(microseconds=1))
USED: Final = field_of(fmt.GROUP_META, "used")


class Settings(NamedTuple):
    """What every process that has the queue needs to know."""

    directory: str
    prefix: str
    page_bytes: int
    sync: Sync
    maxsize: int  # 0 = none
    unfinished_max: int


class Putter(Producer):
    """A producer that says `queue.Full` when it is bound, and there is no room."""

    __slots__ = ()

    def _on_event(self, event: int, value: int) -> bool:
        if event == _core.EVENT_CROWDED:
            raise Full
        return super()._on_event(event, value)


class ObjectQueue:
    """An open queue of objects.

    Attributes:
        queue: the directory.
        group: everybody takes from it.
        putter: sends to it.
        large: what does not fit into a page.
        maxsize: most objects that wait; 0 = any number.
    """

    def __init__(self, settings: Settings) -> None:
        self.queue = queue = _open(settings)
        try:
            # Before anything is sent: retention keeps what a group has not acknowledged.
            self.group: Group = _group(queue, settings.unfinished_max)
            self._words = self.group._group_file.region  # noqa: SLF001 - one package
            self.large = LargeItems(
                os.path.join(queue.directory, f"{settings.prefix}-large"),
                synced=settings.sync != "none",
                named=self._names,
            )
            opened = internals(queue)
            store = opened.readable()
            self.putter = opened.keep(Putter(store, None, opened.options.sync_every), store)
            self.maxsize = settings.maxsize
            if settings.maxsize:
                self.putter._bind(self._words, settings.maxsize)  # noqa: SLF001 - one package
        except BaseException:
            self.close()
            raise

    def _names(self) -> Iterator[bytes]:
        """Give what messages that are not done say of files."""
        for batch in self.queue.batches(sequence=self.done):
            for payload in batch.payloads:
                if len(payload) == NAME.size and payload[0] == KIND:
                    yield payload

    @property
    def done(self) -> int:
        """Every object below it is done."""
        return self._words.load(GroupTable.NEXT)

    @property
    def tail(self) -> int:
        """Objects that were ever put."""
        return self.queue.tail_sequence

    @property
    def waiting(self) -> int:
        """Objects that were not taken yet."""
        tail = self.tail  # first: what is taken meanwhile must not count twice
        return max(0, tail - self.group._next()[0])  # noqa: SLF001 - one package

    @property
    def returned(self) -> int:
        """Objects that were taken, and wait because whoever had them is gone."""
        words = self._words
        if not words.load_half(GroupTable.OUTSTANDING):
            return 0
        count = min(words.load_half(USED), self.group._group_file.capacity)  # noqa: SLF001 - one package
        records = words.read(fmt.GROUP_TABLE_AT, count * fmt.GROUP_RECORD.itemsize)
        states = np.frombuffer(records, fmt.GROUP_RECORD)["word"] & 3
        return int(np.count_nonzero(states == fmt.RECORD_WAITS))

    def look_at_owners(self) -> None:
        """Give back what processes had that are gone."""
        self.group._release_dead_owners()  # noqa: SLF001 - one package

    def check(self) -> None:
        """Raise if the group's file was truncated: then nothing that it says counts."""
        if self._words.broken:
            raise lost_meta(self.queue.directory, self._words.lost_at)

    def forget(self) -> None:
        """Close, in the child of a fork, what would look as if the parent still had it."""
        self.large.close()

    def close(self) -> None:
        """Give back what was taken and is not done, and let go."""
        if hasattr(self, "large"):
            self.large.close()
        self.queue.close()


def _open(settings: Settings) -> Queue:
    """Open the queue; a new one gets the page size that was chosen, another keeps its own."""
    opened = partial(
        Queue, settings.directory, prefix=settings.prefix, retention=KEEP_UNDONE, sync=settings.sync
    )
    try:
        return opened(create=False)
    except errors.QueueNotFound:
        return opened(page_bytes=settings.page_bytes)


def _group(queue: Queue, unfinished_max: int) -> Group:
    """Open the group; the room of one that is there was chosen when it was made."""
    try:
        return queue.group(GROUP, lease=FOR_EVER, capacity=unfinished_max)
    except errors.UsageError:
        return queue.group(GROUP, lease=FOR_EVER)
