"""A queue of objects, open in one process: the queue, its only group, and a producer.

Each object is a message, its pickle; all processes claim from one group. Retention removes a page
once the group has acknowledged all its messages.
"""

from __future__ import annotations

import contextlib
import logging
import time
from datetime import timedelta
from functools import partial
from itertools import chain
from queue import Full
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance.retention import Retention
from pagequeue.meta.group_table import GroupTable
from pagequeue.meta.meta_file import field_of, lost_meta
from pagequeue.multiprocessing.large_objects import KIND, NAME, LargeObjects
from pagequeue.producer.producer import Producer
from pagequeue.queue.queue import Queue, internals, opened_again
from pagequeue.system.directory import Directory
from pagequeue.system.replaced_file import CHECK_SECONDS, Identity
from pagequeue.util.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.group.group import Group
    from pagequeue.store.flush import Sync

log: logging.Logger = logging.getLogger("pagequeue")
GROUP: Final = "items"
FOR_EVER: Final = 9e8
"""Lease in seconds: an object is redelivered when its process ends, never because of time."""
KEEP_UNDONE: Final = Retention(max_age=timedelta(microseconds=1))
KEPT: Final = "the queue that was handed over"
REMEDY: Final = "make the queue again, and hand it to all processes again"
USED: Final = field_of(fmt.GROUP_META, "used")


AS_OFTEN: Final = Retry(None, 0.0, 0.0)
"""An object that is acknowledged when it is got never comes back."""


class Settings(NamedTuple):
    """What a process needs to open the queue."""

    directory: str
    prefix: str
    page_bytes: int
    sync: Sync
    maxsize: int  # 0 = none
    unfinished_max: int
    private: Identity | None = None  # the directory, which only its maker makes
    queue_id: bytes | None = None  # of the queue, once a process has opened it
    retry: Retry = AS_OFTEN  # of objects whose getter ended


class ObjectProducer(Producer):
    """A producer that raises `queue.Full` at the limit of the group."""

    __slots__ = ()
    _takes_pages = False  # a large object has a file of its own, which `maxsize` counts

    def _on_over_limit(self) -> None:
        raise Full


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
        self._checked_at = 0.0
        try:
            # Before anything is sent: retention keeps what a group has not acknowledged.
            self.group: Group = _group(queue, settings)
            self._words = self.group._group_file.region  # noqa: SLF001 - one package
            self._dead = self._words.load(GroupTable.DEAD_LETTERS)
            self.large: LargeObjects = LargeObjects(
                internals(queue).store.folder,
                f"{settings.prefix}-large",
                synced=settings.sync != "none",
                named=self._names,
            )
            opened = internals(queue)
            store = opened.readable()
            store.check_appendable()
            producer = ObjectProducer(store, None, opened.options.sync_every)
            self.producer: ObjectProducer = opened.keep(producer, store)
            self.maxsize: int = settings.maxsize
            if settings.maxsize:
                self.producer._bind(self._words, settings.maxsize)  # noqa: SLF001 - one package
        except BaseException:
            self.close()
            raise

    def _names(self) -> Iterator[bytes]:
        """Yield the messages that name files: unfinished ones, and dead letters."""
        unfinished = (batch.payloads for batch in self.queue.batches(sequence=self.done))
        dead = (letter.payload or b"" for letter in self.group.dead_letters())
        for payload in chain(chain.from_iterable(unfinished), dead):
            if len(payload) == NAME.size and payload[0] == KIND:
                yield payload

    def note_dead(self) -> None:
        """Log that objects became dead letters since the last call."""
        count = self._words.load(GroupTable.DEAD_LETTERS)
        if count > self._dead:
            log.warning(
                "%s: objects that were got so often, by processes that ended without task_done, "
                "became dead letters of the group %r (prefix %r): %d, %d in all",
                self.queue.directory,
                GROUP,
                self.queue.prefix,
                count - self._dead,
                count,
            )
            self._dead = count

    @property
    def queue_id(self) -> bytes:
        """The id of the queue."""
        return internals(self.queue).store.meta.queue_id

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
        states = self.group._group_file.records()["word"] & 3  # noqa: SLF001 - one package
        return int(np.count_nonzero(states == fmt.RECORD_WAITS))

    def redeliver_abandoned(self) -> None:
        """Make objects that dead processes had claimed available again."""
        self.group._release_dead_owners()  # noqa: SLF001 - one package

    def check(self) -> None:
        """Raise if the fields of the group are meaningless, or those of a queue that is gone.

        Raises:
            CorruptMeta: the group's file was truncated.
            QueueReplaced: the queue, or that file, was moved, removed or replaced.
        """
        if self._words.broken:
            raise lost_meta(self.queue.directory, self._words.lost_at)
        now = time.monotonic()
        if now - self._checked_at > CHECK_SECONDS:
            self._checked_at = now
            self.group._on_place()  # noqa: SLF001 - one package

    def forget(self) -> None:
        """In a forked child, close the descriptor that would keep the parent's lock."""
        self.large.close()

    def close(self) -> None:
        """Release claimed objects and close."""
        if hasattr(self, "large"):
            self.large.close()
        self.queue.close()


class _PrivateQueue(Queue):
    """A queue in an open directory."""

    def __init__(self, folder: Directory, **options: Any) -> None:  # noqa: ANN401 - as they are
        self._within = folder
        super().__init__(folder.path, **options)


def _open(settings: Settings) -> Queue:
    """Open the queue; a new one gets the page size of `settings`.

    Raises:
        QueueReplaced: it was removed, or created again, since another process opened it.
    """
    options: dict[str, Any] = {
        "prefix": settings.prefix,
        "retention": KEEP_UNDONE,
        "sync": settings.sync,
    }
    opened: Callable[..., Queue] = partial(Queue, settings.directory, **options)
    with contextlib.ExitStack() as held:
        if settings.private is not None:
            folder = _private_directory(settings.directory, settings.private)
            held.callback(folder.close)
            opened = partial(_PrivateQueue, folder, **options)
        if settings.queue_id is not None:
            return opened_again(opened, settings.queue_id, KEPT, REMEDY)
        try:
            return opened(create=False)
        except errors.QueueNotFound:
            return opened(page_bytes=settings.page_bytes)


def _private_directory(path: str, made: Identity) -> Directory:
    """Open a private directory, which must be the one that was made."""
    with contextlib.suppress(errors.QueueNotFound):
        folder = Directory(path, create=False)
        if folder.own_identity == made:
            return folder
        folder.close()
    raise errors.QueueReplaced(
        "the private directory of this queue is gone: the last process that had it removed it, or "
        "a program that cleans temporary directories",
        path=path,
        remedy="keep the queue open where it was made for as long as others use it, or give it a "
        "directory",
    )


def _group(queue: Queue, settings: Settings) -> Group:
    """Open the group; an existing one keeps its capacity."""
    exists = any(info.name == GROUP for info in queue.consumers())
    return queue.group(
        GROUP,
        lease=FOR_EVER,
        max_deliveries=settings.retry.deliveries_max,
        backoff=settings.retry[1:],
        capacity=None if exists else settings.unfinished_max,
    )
