"""A daemon thread whose `start` ends, also where the new thread finds no memory."""

from __future__ import annotations

import threading
import types
import weakref
from typing import TYPE_CHECKING, Final

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS: Final = 0.02
START_SECONDS: Final = 10.0


class DaemonThread(threading.Thread):
    """A daemon thread that is started or refused.

    `threading.Thread.start` waits until the new thread says that it runs. One whose first frame
    finds no memory, under RLIMIT_AS for example, ends before that, and `start` waits for ever.

    Args:
        target: the thread's work.
        name: of the thread.
        path: of the queue that it works for, for the error.
    """

    def __init__(self, target: Callable[[], object], name: str, *, path: str | None = None) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._path = path
        # What `start` waits for, and what the new thread calls: attributes of CPython's own class.
        self._started: threading.Event = _Started(self)
        self.boot: Callable[[], object] = bool

    @property
    def _bootstrap(self) -> types.MethodType:
        """What the system's thread calls; only that thread refers to it, as long as it lives."""
        method = types.MethodType(vars(threading.Thread)["_bootstrap"], self)
        self.boot = weakref.ref(method)
        return method

    def start(self) -> None:
        """Start the thread.

        Raises:
            SystemLimit: the system gives no thread or no memory for one, or the interpreter is
                shutting down.
        """
        try:
            super().start()
        except (RuntimeError, MemoryError) as error:
            # Threads that begin stand there until they run; CPython would list it for ever.
            vars(threading).get("_limbo", {}).pop(self, None)
            raise errors.SystemLimit(
                f"cannot start the thread {self.name} ({str(error) or 'no memory'})",
                path=self._path,
                remedy="raise the limit of threads or of memory (`ulimit -u`, `ulimit -v`)",
            ) from error
        except KeyError as error:
            # A signal handler raised when the thread ran already: CPython takes it off a list which
            # it has left.
            if error.__context__ is None:
                raise
            raise error.__context__ from None


class _Started(threading.Event):
    def __init__(self, thread: DaemonThread) -> None:
        super().__init__()
        self._thread = weakref.ref(thread)

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(int(START_SECONDS / LOOK_SECONDS)):
            if super().wait(LOOK_SECONDS):
                return True
            thread = self._thread()
            if thread is not None and thread.boot() is None and not self.is_set():
                break
        raise RuntimeError("the new thread does not run: memory is short")
