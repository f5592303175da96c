"""Base of the drop-in's classes: a handle that opens its queue on first use in each process.

That process may be the one that created the handle, a forked child, or one that unpickled it.
Opening stores the core's own calls in attributes of the handle, so that `put` and `get` go through
one Python function each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from multiprocessing import context, queues, util
from queue import Empty, Full
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from pagequeue import errors
from pagequeue.multiprocessing.large_objects import KIND
from pagequeue.multiprocessing.object_queue import AS_OFTEN, ObjectQueue, Settings
from pagequeue.multiprocessing.pickling import UnpicklingError, loads
from pagequeue.multiprocessing.temp_directory import SharedTempDirectory, remove_at_exit
from pagequeue.store.flush import sync_policy
from pagequeue.store.options import check_options
from pagequeue.util.arguments import absolute_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from typing_extensions import TypeVar as TypeVarWithDefault

    from pagequeue._core import Message
    from pagequeue.multiprocessing.large_objects import LargeObjects
    from pagequeue.store.flush import Sync
    from pagequeue.util.retry import Retry

if TYPE_CHECKING:  # a queue whose objects are not named holds any
    T = TypeVarWithDefault("T", default=Any)
else:
    T = TypeVar("T")
AT_EXIT: Final = -10
"""Exit priority: below 0 runs after `multiprocessing` joined this process's children."""
PARKED_SECONDS: Final = 3600.0
SLEEP_SECONDS_MIN: Final = 50e-6
SLEEP_SECONDS_MAX: Final = 2e-3


class QueueClosed(OSError, ValueError):
    """The queue was closed in this process. The standard library raises OSError or ValueError.

    Example:
        >>> queue.close()
        >>> try:
        ...     queue.put("late")
        ... except QueueClosed:
        ...     print("closed")
        closed
    """


class Handle:
    """The open queue of one process, separate from `Base` so that its finalizer can close it."""

    def __init__(self, settings: Settings, temp_directory: SharedTempDirectory | None) -> None:
        self.settings: Settings = settings
        self.temp_directory = temp_directory
        self.objects: ObjectQueue | None = None
        self.was_used: bool = False
        self.is_closed: bool = False
        self.is_at_exit: bool = False
        self.opening: int = 0
        # A signal handler may re-enter.
        self.guard: AbstractContextManager[bool] = threading.RLock()

    def open(self) -> ObjectQueue:
        """Return the open queue; open it if necessary.

        Raises:
            QueueClosed: it was closed, perhaps during this call.
        """
        objects = self.objects
        if objects is None:
            with self.guard:
                self.opening += 1
                try:
                    self._check()  # either `close` sees `opening`, or this sees `is_closed`
                    objects = self._opened()
                finally:
                    self.opening -= 1
                    if self.is_closed and not self.opening:
                        self.end()  # `close` left it to this thread
        self._check()
        return objects

    def _opened(self) -> ObjectQueue:
        if self.objects is None:
            objects = ObjectQueue(self.settings)
            if self.objects is None:
                self.objects = objects
                self.settings = self.settings._replace(queue_id=objects.queue_id)
                self.was_used = True
            else:  # a signal handler opened it meanwhile
                objects.close()
        return self.objects

    def _check(self) -> None:
        if self.is_closed:
            raise QueueClosed(f"the queue in {self.settings.directory!r} is closed")

    def end(self) -> None:
        """Close the queue after the last call in it returned, and release a private directory."""
        objects = self.objects
        if objects is not None:
            objects.close()
            self.objects = None
        if self.temp_directory is not None:
            self.temp_directory.release()

    def end_at_exit(self) -> None:
        """End it because the process exits, unless threads go on that the process waits for."""
        me = threading.current_thread()
        if all(thread is me or thread.daemon for thread in threading.enumerate()):
            self.is_at_exit = True
            self.end()

    def close(self) -> None:
        """End it for good; a thread that is opening it ends it afterwards."""
        self.is_closed = True
        if not self.opening:
            self.end()


def _end(handle: Handle, known: weakref.ref[Base[Any]]) -> None:
    """End a handle whose queue was collected, or is there when the process exits."""
    if known() is None:
        handle.end()
    else:
        handle.end_at_exit()


class Base(Generic[T]):
    """A handle on a queue of objects: what Queue, JoinableQueue and SimpleQueue share."""

    _large: LargeObjects  # of the last opening: a taken object is read also after closing

    def _prepare(
        self,
        directory: str | os.PathLike[str] | None,
        prefix: str,
        page_bytes: int,
        sync: Sync,
        maxsize: int,
        claims_max: int,
        retry: Retry = AS_OFTEN,
    ) -> None:
        # Here, not by the process that opens the queue: that can be another one, and much later.
        path = "" if directory is None else absolute_path("directory", directory)
        page_bytes = check_options(path, prefix, page_bytes, 0)[0] or page_bytes
        sync_policy(sync)
        temp_directory = None
        if directory is None:
            temp_directory = SharedTempDirectory()
            path = temp_directory.path
        private = None if temp_directory is None else temp_directory.identity
        maxsize = max(0, maxsize)
        settings = Settings(
            path, prefix, page_bytes, sync, maxsize, claims_max, private, retry=retry
        )
        self._begin(settings, temp_directory)

    def _begin(self, settings: Settings, temp_directory: SharedTempDirectory | None) -> None:
        self._closed = False
        self._handle = Handle(settings, temp_directory)
        self._watch()
        _alive.add(self)
        # `util` clears its finalizers in a child, after our own fork handler ran.
        util.register_after_fork(self, Base._watch)

    def _watch(self) -> None:
        """End the handle when this is collected or the process exits."""
        remove_at_exit()
        util.Finalize(self, _end, (self._handle, weakref.ref(self)), exitpriority=AT_EXIT)

    def _after_fork(self) -> None:
        """In the child, drop what the parent has open; the child shares the directory."""
        handle = self._handle
        if handle.objects is not None:
            handle.objects.forget()
            handle.objects = None
        self.__dict__.pop("_send", None)
        self.__dict__.pop("_take", None)
        self._handle = Handle(handle.settings, handle.temp_directory)
        self._watch()

    def __getstate__(self) -> tuple[Settings, SharedTempDirectory | None]:
        handle = self._handle
        if handle.temp_directory is not None:
            context.assert_spawning(self)
            if handle.is_closed:  # its pipe is closed, and its descriptors may be reused
                self._refuse()
        return handle.settings, handle.temp_directory

    def __setstate__(self, state: tuple[Settings, SharedTempDirectory | None]) -> None:
        self._begin(*state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.directory!r}>"

    @property
    def directory(self) -> str:
        """The queue's directory; a private one is removed by the last process that has it.

        Example:
            >>> Queue(directory="jobs").directory == os.path.abspath("jobs")
            True
        """
        return self._handle.settings.directory

    # --- opening ----------------------------------------------------------------------------------

    def _open(self) -> ObjectQueue:
        """Return the queue open in this process, and cache its calls in attributes."""
        if self._closed:
            self._refuse()
        self._park()
        objects = self._handle.open()
        self._large = objects.large
        self._send = objects.producer.send  # type: ignore[method-assign, assignment]
        self._take = self._take_function(objects)  # type: ignore[method-assign, assignment]
        if self._closed:  # by another thread, before it could see these attributes
            self._stop()
            self._refuse()
        return objects

    def _take_function(self, objects: ObjectQueue) -> Callable[[float | None], Any]:
        """Return the call that takes an object: it returns a Message or a Claim."""
        return objects.group.take

    def _refuse(self) -> NoReturn:
        self._park()
        raise QueueClosed(f"{self!r} is closed") from None

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raise QueueClosed where another thread closes the queue in the middle of a call."""
        try:
            yield
        except errors.PageQueueError as error:
            self._park()
            if isinstance(error, errors.ClosedError):
                self._refuse()
            raise

    def _park(self) -> None:
        """Keep a daemon thread of a process that exits: what it raises would be printed."""
        while self._handle.is_at_exit and threading.current_thread().daemon:
            time.sleep(PARKED_SECONDS)

    def _send(self, data: bytes) -> object:
        """Send the first object: opening replaces this method by the core's own call."""
        self._open()
        return self._send(data)

    def _take(self, timeout: float | None) -> Any:  # noqa: ANN401 - what the core gives
        self._open()
        return self._take(timeout)

    # --- putting and getting ----------------------------------------------------------------------

    def _unpicklable(self, error: Exception, obj: object) -> None:
        """Raise the error of pickling, or pass it to the hook that the standard library has."""
        hook = getattr(self, "_on_queue_feeder_error", None)
        if hook is None or hook is queues.Queue._on_queue_feeder_error:  # type: ignore[attr-defined]  # noqa: SLF001
            raise error
        hook(error, obj)

    def _put_otherwise(
        self, data: bytes, error: Exception, block: bool, timeout: float | None
    ) -> None:
        """Handle a failed send: the queue is full or closed, or the object exceeds a page."""
        if isinstance(error, errors.ClosedError):
            self._refuse()
        if isinstance(error, Full):
            if not block:
                raise error
            self._put_later(data, timeout)
            return
        with self._refusing():
            large = self._open().large
            name = large.write(data)
            try:
                try:
                    self._send(name)
                except Full:
                    if not block:
                        raise
                    self._put_later(name, timeout)
            except BaseException:
                large.forget(name)
                raise

    def _put_later(self, data: bytes, timeout: float | None) -> None:
        """Poll until there is room, then put; `get` wakes no waiter, as checking for one costs.

        Each sleep is an eighth of the time waited so far, from 50 us to 2 ms.
        """
        began = time.monotonic()
        deadline = None if timeout is None else began + max(0.0, timeout)
        while True:
            with self._refusing():
                objects = self._open()
                objects.check()
                if objects.waiting < objects.maxsize:
                    try:
                        self._send(data)
                    except Full:
                        pass  # another process was first
                    else:
                        return
            backoff_sleep(began, deadline)

    def _named(self, message: Message, error: Exception) -> bytes:
        """Return the pickle of an object whose message names a file.

        Raises:
            What unpickling raised, with a note that names the message: it names no file.
        """
        if message.payload[:1] != bytes((KIND,)):
            error.add_note(
                f"message {message.sequence} of {self.directory} is not a pickle: "
                "another program sent other bytes; read them with pagequeue.Queue"
            )
            raise error
        with self._refusing():
            return self._large.read(message.payload, message.sequence)

    def _get(self, timeout: float | None) -> T:
        try:
            message = self._take(timeout)
        except errors.NothingReceived:
            raise Empty from None
        except errors.PageQueueError as error:
            self._park()
            if isinstance(error, errors.ClosedError):
                self._refuse()
            raise
        try:
            obj: T = loads(message.payload)
        except UnpicklingError as error:
            obj = loads(self._named(message, error))
            self._large.forget(message.payload)
        return obj

    def empty(self) -> bool:
        """Whether the queue is empty now.

        Raises:
            OSError: the queue was closed in this process, perhaps during this call.

        Example:
            >>> queue.empty()
            True
        """
        with self._refusing():
            objects = self._open()
            objects.check()
            return objects.waiting == 0 and objects.returned == 0

    def close(self) -> None:
        """End `put` and `get` in this process; closing again has no effect.

        Objects that were put stay. A private directory is removed when the last process that has
        the queue closes it, drops it or ends.

        Example:
            >>> queue.close()
        """
        self._stop()
        self._handle.close()

    def _stop(self) -> None:
        self._closed = True
        self.__dict__.pop("_send", None)
        self.__dict__.pop("_take", None)


def backoff_sleep(began: float, deadline: float | None, longest: float = SLEEP_SECONDS_MAX) -> None:
    """Sleep an eighth of the time since `began`, within bounds.

    Raises:
        Full: the deadline has passed.
    """
    now = time.monotonic()
    seconds = min(max((now - began) / 8, SLEEP_SECONDS_MIN), longest)
    if deadline is not None:
        if now >= deadline:
            raise Full
        seconds = min(seconds, deadline - now)
    time.sleep(seconds)


_alive: weakref.WeakSet[Base[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for queue in list(_alive):
        queue._after_fork()  # noqa: SLF001 - this module


os.register_at_fork(after_in_child=_after_fork_in_child)
