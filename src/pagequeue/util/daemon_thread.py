"""A daemon thread whose `start` ends, also where the new thread finds no memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS: Final = 10.0


class DaemonThread(threading.Thread):
    """A daemon thread that is started or refused.

    `threading.Thread.start` waits until the new thread says that it runs. One whose first frame
    finds no memory, under RLIMIT_AS for example, ends before that, and `start` waits for ever.

    Args:
        target: the thread's work.
        name: of the thread.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._started: threading.Event = _Started()  # `start` waits for this attribute

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system gives no thread or no memory for one, or the interpreter is
                shutting down.
        """
        super().start()


class _Started(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None and not super().wait(START_SECONDS):
            raise RuntimeError("the new thread does not run: memory is short")
        return super().wait(timeout)
