"""One thread at a time for a task, however many callers start it concurrently.

Several threads, or a signal handler in the middle of `start`, can request the thread together. One
call into C decides which of them starts it, so no lock is needed: a handler or finalizer that
interrupts the lock's holder would wait for itself, and an exception raised by a handler inside
`threading.Event` or `Condition` would leave their lock taken for good.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

from pagequeue.util.daemon_thread import daemon_thread, start

if TYPE_CHECKING:
    from collections.abc import Callable

THREAD: Final = "thread"


class SingleThread:
    """A thread that is started when it is needed.

    Args:
        name: of the thread.
        run: the thread's work.
        after: called when the thread has ended.
    """

    def __init__(
        self, name: str, run: Callable[[], object], after: Callable[[], object] | None = None
    ) -> None:
        self._name = name
        self._run = run
        self._after = after
        self._there: dict[str, threading.Thread] = {}
        self._last: threading.Thread | None = None

    @property
    def is_there(self) -> bool:
        """Whether the thread runs, or another thread is just starting it."""
        return bool(self._there)

    def start(self) -> None:
        """Start the thread, unless it runs.

        Raises:
            SystemLimit: the system gives no thread or no memory for one, or the interpreter is
                shutting down.
        """
        thread = daemon_thread(self._work, self._name)
        try:
            if self._there.setdefault(THREAD, thread) is thread:
                self._last = thread
                start(thread)
        except BaseException:  # a handler's, perhaps when the thread runs: then two can run
            self._forget(thread)
            raise

    def leave(self) -> None:
        """Allow the next caller to start another thread; called by the thread before it ends."""
        self._forget(threading.current_thread())

    def await_end(self, seconds: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        thread = self._last
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # it never started
                thread.join(seconds)

    def _forget(self, thread: threading.Thread) -> None:
        if self._there.get(THREAD) is thread:
            self._there.pop(THREAD, None)

    def _work(self) -> None:
        try:
            self._run()
        finally:
            self.leave()
            if self._after is not None:
                self._after()
