"""`multiprocessing.Queue`, `JoinableQueue` and `SimpleQueue` with the same methods, on pages.

    from pagequeue.multiprocessing import JoinableQueue

**Choosing these classes is choosing pickle**: whoever can write to the directory can run code in
those who read it. Everything else in this package moves bytes and unpickles nothing.

Handles go to child processes as arguments of `Process`, under fork, spawn and forkserver; every
process opens the queue when it first uses it. The classes inherit from those of the standard
library for `isinstance` only, which `logging.config` checks, and override every public method. What
differs is listed in architecture.md, "The drop-in for multiprocessing.Queue".
"""

from __future__ import annotations

import math
import time
from collections import deque
from multiprocessing import queues
from queue import Empty, Full
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pagequeue import errors
from pagequeue.multiprocessing.base import Base, QueueClosed, nap
from pagequeue.multiprocessing.pickling import UnpicklingError, dumps, loads
from pagequeue.util.numbers import number, whole

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pagequeue._core import Claim
    from pagequeue.multiprocessing.object_queue import ObjectQueue, Settings
    from pagequeue.multiprocessing.temp_directory import SharedTempDirectory
    from pagequeue.store.flush import Sync

__all__ = ["Empty", "Full", "JoinableQueue", "Queue", "QueueClosed", "SimpleQueue"]

T = TypeVar("T")
PAGE_BYTES: Final = 4 << 20
TAKEN_MAX: Final = 64
"""Room for what is taken at once and could not be handed over."""
UNFINISHED_MAX: Final = 1 << 16
JOIN_NAP_SECONDS_MAX: Final = 10e-3
OWNERS_SECONDS: Final = 0.05
SLICE_SECONDS: Final = 0.1
"""So long a `get` waits before it looks whether the queue was closed."""


class SimpleQueue(Base[T], queues.SimpleQueue):  # type: ignore[misc, type-arg]
    """`multiprocessing.SimpleQueue` on pages: put, get, empty, close.

    Args and errors are those of `Queue`, without `maxsize`.
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
        """Put an object; see `Queue.put`."""
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
        """Wait for an object and return it; see `Queue.get`."""
        return self._get(None)


class Queue(Base[T], queues.Queue):  # type: ignore[misc, type-arg]
    """`multiprocessing.Queue` on pages: faster, and persistent if a directory is given.

    Objects are pickled when they are put, and every process sees them when `put` returns; there is
    no feeder thread. Whoever gets one has it for good: no other gets it, and if that process is
    killed before it is through, the object is gone. `JoinableQueue` gives it to another.

    Args:
        maxsize: most objects that were put and not got; 0 or less: any number.
        ctx: taken and ignored: a handle goes to the children of every context.
        directory: where the objects are, and stay when all processes end. None: a private one, in
            memory where there is room, removed when the last process that has the queue lets go.
        prefix: of all file names, so that one directory can hold several queues.
        page_bytes: size of each page file of a new queue. A larger object gets a file of its own.
        sync: what a power cut may take; as for `pagequeue.Queue`.

    Raises:
        What `pagequeue.Queue` raises, when it is first used in a process.
    """

    _claims_max = TAKEN_MAX

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
        self._prepare(
            directory, prefix, page_bytes, sync, whole("maxsize", maxsize), self._claims_max
        )

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Put an object where every process can get it.

        Args:
            obj: anything that can be pickled; it is pickled now.
            block: wait while the queue is full.
            timeout: seconds to wait for room; None waits for ever.

        Raises:
            queue.Full: there was no room in time.
            ValueError: the queue was closed in this process.
            DiskFull, SyncFailed, LockTimeout: as for `Producer.send`; nothing was put.
            What pickling raises: nothing was put.
        """
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
        """Take the object that has been there longest.

        Args:
            block: wait while there is none.
            timeout: seconds to wait; None waits for ever.

        Raises:
            queue.Empty: there was none in time.
            ValueError: the queue was closed in this process.
            CorruptFrame, CorruptPage, CorruptMeta: what stands there is damaged.
            What unpickling raises: the object is taken all the same.
        """
        if not block:
            timeout = 0
        elif timeout is not None:
            timeout = max(0.0, number("timeout", timeout))
        return self._get(timeout)

    def put_nowait(self, obj: T) -> None:
        """Put an object, or raise `queue.Full` at once."""
        self.put(obj, False)

    def get_nowait(self) -> T:
        """Take an object, or raise `queue.Empty` at once."""
        return self.get(False)

    def qsize(self) -> int:
        """How many objects can be got, as of now."""
        items = self._open()
        return items.waiting + items.returned

    def empty(self) -> bool:
        """Whether there is nothing to get, as of now.

        Raises:
            OSError: the queue was closed in this process, in which it had been used.
        """
        if self._closed and not self._handle.was_used:
            return True  # as in the standard library
        return super().empty()

    def full(self) -> bool:
        """Whether `put` would have to wait, as of now."""
        items = self._open()
        return 0 < items.maxsize <= items.waiting

    def join_thread(self) -> None:
        """Do nothing: there is no feeder thread to wait for. Only after `close`."""
        assert self._closed, f"{self!r} is not closed"

    def cancel_join_thread(self) -> None:
        """Do nothing: no process waits for a feeder thread when it ends."""

    def flush(self) -> None:
        """Put all that was put and all that is done on stable storage.

        Raises:
            SyncFailed: a sync failed.
        """
        items = self._open()
        items.putter.flush()
        items.group.flush()


class JoinableQueue(Queue[T], queues.JoinableQueue):  # type: ignore[misc, type-arg]
    """`multiprocessing.JoinableQueue` on pages: an object is claimed until it is done.

    What a process got and has not called `task_done` for comes back when that process ends, however
    it ends, and others get it before all else: at least once. `task_done` is for the process that
    got the object.

    Args:
        unfinished_max: most objects that can be got and not done at a time, of a new queue: `get`
            waits while there are so many.
        The others are those of `Queue`.
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
    ) -> None:
        self._claims_max = whole("unfinished_max", unfinished_max)
        super().__init__(
            maxsize, ctx=ctx, directory=directory, prefix=prefix, page_bytes=page_bytes, sync=sync
        )

    def _begin(self, settings: Settings, lodging: SharedTempDirectory | None) -> None:
        self._mine: dict[int, deque[Claim]] = {}  # by thread
        self._files: dict[int, bytes] = {}  # by sequence
        super()._begin(settings, lodging)

    def _after_fork(self) -> None:
        self._mine, self._files = {}, {}
        super()._after_fork()

    def _taker(self, items: ObjectQueue) -> Callable[[float | None], Any]:
        return items.group.claim

    def _get(self, timeout: float | None) -> T:
        try:
            claim = self._claim(timeout)
        except errors.TooManyClaims as error:
            raise errors.TooManyClaims(
                f"{self._claims_max} objects are got and not done: call task_done, or make the "
                "queue with more unfinished_max",
                path=error.path,
            ) from None
        except errors.NothingReceived:
            raise Empty from None
        except errors.ClosedError:
            self._refuse()
        try:
            self._mine[get_ident()].append(claim)
        except KeyError:
            self._mine[get_ident()] = deque([claim])
        message = claim.message
        try:
            obj: T = loads(message.payload)
        except UnpicklingError as error:
            obj = loads(self._named(message, error))
            self._files[message.sequence] = message.payload
        return obj

    def _claim(self, timeout: float | None) -> Claim:
        """Wait in slices: `close` leaves the group open, and wakes nobody who waits for it."""
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
        """Be done with the object that this thread got first and has not done.

        Where it has none, one that another thread of this process got is meant.

        Raises:
            ValueError: this process has got nothing that is not done.
        """
        mine = self._mine.get(get_ident())
        if not mine:
            mine = next((claims for claims in list(self._mine.values()) if claims), deque())
        try:
            claim = mine.popleft()
        except IndexError:
            raise ValueError(
                "task_done() called too many times: this process has nothing that is not done"
            ) from None
        claim.ack()
        if self._files and (name := self._files.pop(claim.message.sequence, None)) is not None:
            self._handle.open().large.forget(name)

    def join(self) -> None:
        """Wait until every object that was put is done.

        It looks by itself, every 50 us to 10 ms: whoever is done wakes nobody.
        """
        items = self._handle.open()
        began = looked = time.monotonic()
        # In this order: what is done only grows, and is never ahead of what was put.
        while items.done < items.tail:
            nap(began, None, JOIN_NAP_SECONDS_MAX)
            if time.monotonic() - looked > OWNERS_SECONDS:
                items.look_at_owners()
                looked = time.monotonic()

    def close(self) -> None:
        """Put and get no more in this process; `task_done` and `join` still work.

        A `get` that waits in another thread raises `QueueClosed`.
        What this process has not done comes back when it drops the queue or ends.
        """
        self._stop()
