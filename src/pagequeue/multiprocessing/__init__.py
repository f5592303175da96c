"""`multiprocessing.Queue`, `JoinableQueue` and `SimpleQueue` with the same methods, on pages.

    from pagequeue.multiprocessing import JoinableQueue

**These classes use pickle**: any process that can write to the directory can run code in those that
read it. The rest of `pagequeue` moves bytes and does not unpickle.

Pass handles to child processes as arguments of `Process`, under fork, spawn and forkserver; each
process opens the queue on first use. The classes inherit from those of the standard library for
`isinstance` only, which `logging.config` checks, and override every public method. architecture.md
lists the differences in "The drop-in for multiprocessing.Queue".
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from multiprocessing import queues
from queue import Empty, Full
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.multiprocessing.base import Base, QueueClosed, T, backoff_sleep
from pagequeue.multiprocessing.object_queue import AS_OFTEN
from pagequeue.multiprocessing.pickling import UnpicklingError, dumps, loads
from pagequeue.util.arguments import absolute_path, number, whole
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX, check_retry

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pagequeue._core import Claim
    from pagequeue.multiprocessing.object_queue import ObjectQueue, Settings
    from pagequeue.multiprocessing.temp_directory import SharedTempDirectory
    from pagequeue.store.flush import Sync
    from pagequeue.util.literals import Backoff

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "QueueClosed", "SimpleQueue"]

if TYPE_CHECKING:  # their classes have a parameter in the stubs only
    _StandardSimpleQueue = queues.SimpleQueue[Any]
    _StandardQueue = queues.Queue[Any]
    _StandardJoinableQueue = queues.JoinableQueue[Any]
else:
    _StandardSimpleQueue = queues.SimpleQueue
    _StandardQueue = queues.Queue
    _StandardJoinableQueue = queues.JoinableQueue
PAGE_BYTES: Final = 4 << 20
TAKEN_MAX: Final = 64
"""Capacity of the group for objects that were taken and not yet returned by `get`."""
UNFINISHED_MAX: Final = 1 << 16
JOIN_SLEEP_SECONDS_MAX: Final = 10e-3
OWNERS_SECONDS: Final = 0.05
SLICE_SECONDS: Final = 0.1
"""How long a `get` waits before it checks whether the queue was closed."""


class SimpleQueue(Base[T], _StandardSimpleQueue):  # type: ignore[misc]
    """`multiprocessing.SimpleQueue` on pages: put, get, empty, close.

    Args and errors are those of `Queue`, without `maxsize`.

    Example:
        >>> queue = SimpleQueue()
        >>> queue.put({"id": 1})
        >>> queue.get()
        {'id': 1}
    """

    def __init__(
        self,
        *,
        ctx: object = None,
        directory: str | os.PathLike[str] | None = None,
        prefix: str = "items",
        page_bytes: int = PAGE_BYTES,
        sync: Sync = "none",
    ) -> None:
        del ctx
        self._prepare(directory, prefix, page_bytes, sync, 0, TAKEN_MAX)

    def put(self, obj: T) -> None:
        """Put an object; see `Queue.put`.

        Args:
            obj: any object that pickle accepts.

        Example:
            >>> queue.put({"id": 1})
        """
        try:
            data = dumps(obj)
        except Exception as error:  # noqa: BLE001 - raised again in there
            self._unpicklable(error, obj)
            return
        try:
            self._send(data)
        except (errors.MessageTooLarge, errors.ClosedError) as error:
            self._put_otherwise(data, error, True, None)

    def get(self) -> T:
        """Wait for an object and return it; see `Queue.get`.

        Example:
            >>> queue.put({"id": 1})
            >>> queue.get()
            {'id': 1}
        """
        return self._get(None)


class Queue(Base[T], _StandardQueue):  # type: ignore[misc]
    """`multiprocessing.Queue` on pages: faster, and persistent if a directory is given.

    `put` pickles the object, and every process sees it when `put` returns; there is no feeder
    thread. An object goes to one process: if that is killed before it is finished with the object,
    the object is lost. `JoinableQueue` delivers it to another process instead.

    Args:
        maxsize: most objects that were put and not got; 0 or less: any number.
        ctx: ignored: a handle works in children of every context.
        directory: where the objects are stored, also after all processes ended. None: a private
            directory, in memory if it has room, removed when the last process releases the queue.
        prefix: of all file names, so that one directory can hold several queues.
        page_bytes: size of each page file of a new queue. A larger object gets a file of its own.
        sync: which messages a power cut may lose; as for `pagequeue.Queue`.

    Raises:
        InvalidOption, InvalidType: an argument is invalid.
        What else `pagequeue.Queue` raises, on first use in a process.

    Example:
        >>> queue = Queue(maxsize=100)
        >>> queue.put([1, 2])
        >>> queue.get(timeout=1)
        [1, 2]
    """

    _claims_max = TAKEN_MAX
    _retry = AS_OFTEN

    def __init__(
        self,
        maxsize: int = 0,
        *,
        ctx: object = None,
        directory: str | os.PathLike[str] | None = None,
        prefix: str = "items",
        page_bytes: int = PAGE_BYTES,
        sync: Sync = "none",
    ) -> None:
        del ctx
        remedy = "give a number below 2**63, 0 for no limit"
        maxsize = whole("maxsize", maxsize, most=fmt.SEQUENCE_MAX, remedy=remedy)
        self._prepare(directory, prefix, page_bytes, sync, maxsize, self._claims_max, self._retry)

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Put an object; every process can get it when this returns.

        Args:
            obj: any object that pickle accepts; it is pickled in this call.
            block: wait while the queue is full.
            timeout: seconds to wait for room; None waits for ever.

        Raises:
            queue.Full: the queue stayed full for `timeout` seconds.
            ValueError: the queue was closed in this process.
            DiskFull, SyncFailed, LockTimeout: as for `Producer.send`; the object was not put.
            What pickling raises: the object was not put.

        Example:
            >>> queue.put("job", timeout=1.0)
        """
        if block and timeout is not None:
            timeout = number("timeout", timeout)
        try:
            data = dumps(obj)
        except Exception as error:  # noqa: BLE001 - raised again in there
            self._unpicklable(error, obj)
            return
        try:
            self._send(data)
        except (Full, errors.MessageTooLarge, errors.ClosedError) as error:
            self._put_otherwise(data, error, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Remove and return the oldest object.

        Args:
            block: wait while the queue is empty.
            timeout: seconds to wait; None waits for ever.

        Raises:
            queue.Empty: the queue stayed empty for `timeout` seconds.
            ValueError: the queue was closed in this process.
            CorruptFrame, CorruptPage, CorruptMeta: the object or the queue is damaged.
            What unpickling raises: the object is removed nevertheless.

        Example:
            >>> queue.put("job")
            >>> queue.get(timeout=1.0)
            'job'
        """
        if not block:
            timeout = 0
        elif timeout is not None:
            timeout = max(0.0, number("timeout", timeout))
        return self._get(timeout)

    def put_nowait(self, obj: T) -> None:
        """Put an object, or raise `queue.Full` at once.

        Args:
            obj: any object that pickle accepts.

        Example:
            >>> queue.put_nowait("job")
        """
        self.put(obj, False)

    def get_nowait(self) -> T:
        """Get an object, or raise `queue.Empty` at once.

        Example:
            >>> queue.put("job")
            >>> queue.get_nowait()
            'job'
        """
        return self.get(False)

    def qsize(self) -> int:
        """Return how many objects `get` could return now.

        Raises:
            ValueError: the queue was closed in this process, perhaps during this call.

        Example:
            >>> queue.put("job")
            >>> queue.qsize()
            1
        """
        with self._refusing():
            objects = self._open()
            objects.check()
            return objects.waiting + objects.returned

    def empty(self) -> bool:
        """Whether the queue is empty now.

        Raises:
            OSError: the queue was used and closed in this process.

        Example:
            >>> queue.empty()
            True
        """
        if self._closed and not self._handle.was_used:
            return True  # as in the standard library
        return super().empty()

    def full(self) -> bool:
        """Whether `put` would have to wait now.

        Raises:
            ValueError: the queue was closed in this process, perhaps during this call.

        Example:
            >>> queue.full()
            False
        """
        with self._refusing():
            objects = self._open()
            objects.check()
            return 0 < objects.maxsize <= objects.waiting

    def join_thread(self) -> None:
        """Return at once, as there is no feeder thread. Call it only after `close`.

        Example:
            >>> queue.close()
            >>> queue.join_thread()
        """
        assert self._closed, f"{self!r} is not closed"

    def cancel_join_thread(self) -> None:
        """Return at once: a process that exits has no feeder thread to wait for.

        Example:
            >>> queue.cancel_join_thread()
        """

    def flush(self) -> None:
        """Make all puts and all `task_done` durable.

        Raises:
            SyncFailed: a sync failed.
            ValueError: the queue was closed in this process, perhaps during this call.

        Example:
            >>> queue.flush()
        """
        with self._refusing():
            objects = self._open()
            objects.producer.flush()
            objects.group.flush()


class JoinableQueue(Queue[T], _StandardJoinableQueue):  # type: ignore[misc]
    """`multiprocessing.JoinableQueue` on pages: an object is claimed until `task_done`.

    When a process ends, in whatever way, objects that it got without calling `task_done` are
    redelivered: delivery is at least once. An object that ends each process that gets it keeps no
    other one waiting: it comes back later each time, and is a dead letter in the end, which counts
    as done and is logged. Only the process that got an object can call `task_done` for it.

    Args:
        unfinished_max: of a new queue: most objects claimed at a time; `get` waits while there are
            that many.
        max_deliveries: an object that was got so often becomes a dead letter of the group "items"
            of `pagequeue.Queue(directory, prefix=prefix)`; None: never.
        backoff: how long an object waits whose process ended, in seconds: the first time, and at
            most; twice as long each time, up to a quarter less. None: it comes before all others.
        The others are those of `Queue`.

    Example:
        >>> queue = JoinableQueue()
        >>> queue.put("job")
        >>> queue.get()
        'job'
        >>> queue.task_done()
        >>> queue.join()
    """

    _claims_max = UNFINISHED_MAX

    def __init__(
        self,
        maxsize: int = 0,
        *,
        ctx: object = None,
        directory: str | os.PathLike[str] | None = None,
        prefix: str = "items",
        page_bytes: int = PAGE_BYTES,
        sync: Sync = "none",
        unfinished_max: int = UNFINISHED_MAX,
        max_deliveries: int | None = DELIVERIES_MAX,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._claims_max = whole("unfinished_max", unfinished_max, 1, fmt.GROUP_CAPACITY_MAX)
        path = "" if directory is None else absolute_path("directory", directory)
        self._retry = check_retry(max_deliveries, backoff, path=path)
        super().__init__(
            maxsize, ctx=ctx, directory=directory, prefix=prefix, page_bytes=page_bytes, sync=sync
        )

    def _begin(self, settings: Settings, temp_directory: SharedTempDirectory | None) -> None:
        self._mine: dict[int, deque[Claim]] = {}  # by thread
        self._files: dict[int, bytes] = {}  # by sequence
        super()._begin(settings, temp_directory)

    def _after_fork(self) -> None:
        self._mine, self._files = {}, {}
        super()._after_fork()

    def _take_function(self, objects: ObjectQueue) -> Callable[[float | None], Any]:
        return objects.group.claim

    def _get(self, timeout: float | None) -> T:
        try:
            claim = self._claim(timeout)
        except errors.TooManyClaims as error:
            raise errors.TooManyClaims(
                f"{self._claims_max} objects are claimed",
                path=error.path,
                remedy="call task_done, or create the queue with a larger unfinished_max",
            ) from None
        except errors.NothingReceived:
            self._note_dead()
            raise Empty from None
        except errors.ClosedError:
            self._refuse()
        self._note_dead()
        try:
            self._mine[threading.get_ident()].append(claim)
        except KeyError:
            self._mine[threading.get_ident()] = deque([claim])
        message = claim.message
        try:
            obj: T = loads(message.payload)
        except UnpicklingError as error:
            obj = loads(self._named(message, error))
            self._files[message.sequence] = message.payload
        return obj

    def _note_dead(self) -> None:
        """Log that objects became dead letters, perhaps in the claim before."""
        objects = self._handle.objects
        if objects is not None:
            objects.note_dead()

    def _claim(self, timeout: float | None) -> Claim:
        """Wait in slices: `close` leaves the group open and wakes no waiter."""
        if timeout is not None and timeout <= SLICE_SECONDS:
            claim: Claim = self._take(timeout)
            return claim
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        left = SLICE_SECONDS
        while True:
            try:
                claim = self._take(left)
            except errors.NothingReceived:
                left = min(SLICE_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    raise
            else:
                return claim

    def task_done(self) -> None:
        """Finish the oldest object that this thread has claimed.

        If it has none, finish one that another thread of this process has claimed.

        Raises:
            ValueError: this process has no claimed object.

        Example:
            >>> queue.put("job")
            >>> queue.get()
            'job'
            >>> queue.task_done()
        """
        mine = self._mine.get(threading.get_ident())
        if not mine:
            mine = next((claims for claims in list(self._mine.values()) if claims), deque())
        try:
            claim = mine.popleft()
        except IndexError:
            raise ValueError(
                "task_done() called too many times: this process has no claimed object"
            ) from None
        with self._refusing():
            claim.ack()
        if self._files and (name := self._files.pop(claim.message.sequence, None)) is not None:
            self._handle.open().large.forget(name)

    def join(self) -> None:
        """Wait until every object that was put is done.

        It polls every 50 us to 10 ms: `task_done` wakes no waiter.

        Example:
            >>> queue.join()
        """
        began = checked = time.monotonic()
        with self._refusing():  # closed when the process ends
            objects = self._handle.open()
            # In this order: `done` only grows, and never exceeds `tail`.
            while objects.done < objects.tail:
                backoff_sleep(began, None, JOIN_SLEEP_SECONDS_MAX)
                objects.check()
                if time.monotonic() - checked > OWNERS_SECONDS:
                    objects.redeliver_abandoned()
                    checked = time.monotonic()

    def close(self) -> None:
        """End `put` and `get` in this process; `task_done` and `join` still work.

        A `get` that waits in another thread raises `QueueClosed`. Objects that this process has
        claimed are redelivered when it drops the queue or ends.

        Example:
            >>> queue.close()
        """
        self._stop()
