"""What the classes of the drop-in share: a handle that opens its queue in whatever process it is.

It is opened when it is first used, by whoever has it: its maker, the child of a fork, or one that
gets it pickled. Then the core's own calls stand in the handle's attributes, so that putting and
getting go through one Python function each.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from multiprocessing import context, queues, util
from queue import Empty, Full
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from pagequeue import errors
from pagequeue.multiprocessing.large_objects import KIND
from pagequeue.multiprocessing.object_queue import ObjectQueue, Settings
from pagequeue.multiprocessing.pickling import UnpicklingError, loads
from pagequeue.multiprocessing.temp_directory import SharedTempDirectory, look_at_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue._core import Message
    from pagequeue.multiprocessing.large_objects import LargeItems
    from pagequeue.store.flush import Sync

T = TypeVar("T")
AT_EXIT: Final = -10
"""Exit priority: below 0 comes after `multiprocessing` joined this process's children."""
NAP_SECONDS_MIN: Final = 50e-6
NAP_SECONDS_MAX: Final = 2e-3


class QueueClosed(OSError, ValueError):
    """The queue was closed in this process; the standard library raises one or the other."""


class Handle:
    """What one process has of a queue; apart from it, so that it can be ended after it is gone."""

    def __init__(self, settings: Settings, lodging: SharedTempDirectory | None) -> None:
        self.settings = settings
        self.lodging = lodging
        self.items: ObjectQueue | None = None
        self.was_used = False
        self.is_closed = False
        self.opening = 0
        self.guard = threading.RLock()  # a signal handler may come back in

    def open(self) -> ObjectQueue:
        """Return what is open; open it if nothing is.

        Raises:
            QueueClosed: it was closed, perhaps while this opened it.
        """
        items = self.items
        if items is None:
            with self.guard:
                self.opening += 1
                try:
                    self._check()  # closing has seen that this opens, or this sees that it closed
                    items = self._opened()
                finally:
                    self.opening -= 1
                    if self.is_closed and not self.opening:
                        self.end()  # closing left it to this
        self._check()
        return items

    def _opened(self) -> ObjectQueue:
        if self.items is None:
            items = ObjectQueue(self.settings)
            if self.items is None:
                self.items = items
                self.was_used = True
            else:  # by a handler, meanwhile
                items.close()
        return self.items

    def _check(self) -> None:
        if self.is_closed:
            raise QueueClosed(f"the queue in {self.settings.directory!r} is closed")

    def let_go(self) -> None:
        """Close what is open; each thread that closes waits until nobody is inside any more."""
        items = self.items
        if items is not None:
            items.close()
            self.items = None

    def end(self) -> None:
        """Close what is open, and leave a private directory."""
        self.let_go()
        if self.lodging is not None:
            self.lodging.leave()

    def close(self) -> None:
        """End it, and open nothing more; who is opening it just now ends it then."""
        self.is_closed = True
        if not self.opening:
            self.end()


class Base(Generic[T]):
    """A handle on a queue of objects; Queue, JoinableQueue and SimpleQueue go on from here."""

    _large: LargeItems  # of the last opening: what was taken is read when all is closed, too

    def _prepare(
        self,
        directory: str | os.PathLike[str] | None,
        prefix: str,
        page_bytes: int,
        sync: Sync,
        maxsize: int,
        claims_max: int,
    ) -> None:
        lodging = None
        if directory is None:
            lodging = SharedTempDirectory()
            directory = lodging.path
        path = os.path.abspath(os.fsdecode(directory))
        settings = Settings(path, prefix, page_bytes, sync, max(0, maxsize), claims_max)
        self._begin(settings, lodging)

    def _begin(self, settings: Settings, lodging: SharedTempDirectory | None) -> None:
        self._closed = False
        self._handle = Handle(settings, lodging)
        self._watch()
        _alive.add(self)
        # It clears its list of finalizers in a child, after our own look at the fork.
        util.register_after_fork(self, Base._watch)

    def _watch(self) -> None:
        """Have the handle ended when this is collected, or the process ends."""
        look_at_exit()
        util.Finalize(self, self._handle.end, exitpriority=AT_EXIT)

    def _after_fork(self) -> None:
        """Forget, in the child, what the parent has open; the directory is now the child's too."""
        handle = self._handle
        if handle.items is not None:
            handle.items.forget()
            handle.items = None
        self.__dict__.pop("_send", None)
        self.__dict__.pop("_take", None)
        self._handle = Handle(handle.settings, handle.lodging)
        self._watch()

    def __getstate__(self) -> tuple[Settings, SharedTempDirectory | None]:
        handle = self._handle
        if handle.lodging is not None:
            context.assert_spawning(self)
            if handle.is_closed:  # its pipe is closed: the numbers can be another file's
                self._refuse()
        return handle.settings, handle.lodging

    def __setstate__(self, state: tuple[Settings, SharedTempDirectory | None]) -> None:
        self._begin(*state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self.directory!r}>"

    @property
    def directory(self) -> str:
        """The directory that the queue is in; a private one goes with the last that has it."""
        return self._handle.settings.directory

    # --- opening ----------------------------------------------------------------------------------

    def _open(self) -> ObjectQueue:
        """Return what is open in this process, and put its calls into our own attributes."""
        if self._closed:
            self._refuse()
        items = self._handle.open()
        self._large = items.large
        self._send = items.putter.send  # type: ignore[method-assign, assignment]
        self._take = self._taker(items)  # type: ignore[method-assign, assignment]
        if self._closed:  # meanwhile, by another thread, which did not see these
            self._stop()
            self._refuse()
        return items

    def _taker(self, items: ObjectQueue) -> Callable[[float | None], Any]:
        """Return what takes one, as a Message or what has one."""
        return items.group.take

    def _refuse(self) -> NoReturn:
        raise QueueClosed(f"{self!r} is closed")

    def _send(self, data: bytes) -> object:
        """Send the first one: opening puts the core's own call in this place."""
        self._open()
        return self._send(data)

    def _take(self, timeout: float | None) -> Any:  # noqa: ANN401 - what the core gives
        self._open()
        return self._take(timeout)

    # --- putting and getting ----------------------------------------------------------------------

    def _unpicklable(self, error: Exception, obj: object) -> None:
        """Raise what pickling raised, or let the hook have it that the standard library has."""
        hook = getattr(self, "_on_queue_feeder_error", None)
        if hook is None or hook is queues.Queue._on_queue_feeder_error:  # type: ignore[attr-defined]  # noqa: SLF001
            raise error
        hook(error, obj)

    def _put_otherwise(
        self, data: bytes, error: Exception, block: bool, timeout: float | None
    ) -> None:
        """Put what was refused: there was no room, no page holds it, or all was just closed."""
        if isinstance(error, errors.ClosedError):
            self._refuse()
        if isinstance(error, Full):
            if not block:
                raise error
            self._put_later(data, timeout)
            return
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
        """Put it when there is room. Whoever takes wakes nobody: that costs a look for sleepers.

        A nap is an eighth of the time waited so far, from 50 us to 2 ms, so that little is lost.
        """
        began = time.monotonic()
        deadline = None if timeout is None else began + max(0.0, timeout)
        while True:
            items = self._open()
            items.check()
            if items.waiting < items.maxsize:
                try:
                    self._send(data)
                except Full:
                    pass  # another one was first
                else:
                    return
            nap(began, deadline)

    def _named(self, message: Message, error: Exception) -> bytes:
        """Return the pickle of an object whose message names a file.

        Raises:
            What unpickling raised: it does not; a note says where that stands.
        """
        if message.payload[:1] != bytes((KIND,)):
            error.add_note(
                f"message {message.sequence} of {self.directory} is no pickle: "
                "somebody sent other bytes; read them with pagequeue.Queue"
            )
            raise error
        return self._large.read(message.payload, message.sequence)

    def _get(self, timeout: float | None) -> T:
        try:
            message = self._take(timeout)
        except errors.NothingReceived:
            raise Empty from None
        except errors.ClosedError:
            self._refuse()
        try:
            obj: T = loads(message.payload)
        except UnpicklingError as error:
            obj = loads(self._named(message, error))
            self._large.forget(message.payload)
        return obj

    def empty(self) -> bool:
        """Whether there is nothing to get, as of now."""
        items = self._open()
        return items.waiting == 0 and items.returned == 0

    def close(self) -> None:
        """Put and get no more in this process; closing again does nothing.

        What was put is there already. A private directory goes when the last process that has the
        queue closes it, drops it or ends.
        """
        self._stop()
        self._handle.close()

    def _stop(self) -> None:
        self._closed = True
        self.__dict__.pop("_send", None)
        self.__dict__.pop("_take", None)


def nap(began: float, deadline: float | None, longest: float = NAP_SECONDS_MAX) -> None:
    """Sleep an eighth of the time since `began`, within bounds.

    Raises:
        Full: the deadline has passed.
    """
    now = time.monotonic()
    nap = min(max((now - began) / 8, NAP_SECONDS_MIN), longest)
    if deadline is not None:
        if now >= deadline:
            raise Full
        nap = min(nap, deadline - now)
    time.sleep(nap)


_alive: weakref.WeakSet[Base[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for queue in list(_alive):
        queue._after_fork()  # noqa: SLF001 - its own room


os.register_at_fork(after_in_child=_after_fork_in_child)
