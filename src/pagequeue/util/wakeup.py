"""Waking a thread from any other one, from signal handlers and finalizers too.

`threading.Event` cannot do that: one thread would take its lock twice, and an exception raised by a
signal handler can leave it taken, so that the next thread to set the event waits for ever.
"""

from __future__ import annotations

import queue
from queue import Empty


class Wakeup:
    """An event like `threading.Event`; each method is one call into C."""

    def __init__(self) -> None:
        # By its module: gevent and eventlet put their own there.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """End every wait, present and future, until `clear`."""
        if self._tokens.empty():
            self._tokens.put(None)

    def clear(self) -> None:
        """Make later waits block."""
        try:
            while True:
                self._tokens.get_nowait()
        except Empty:
            return

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds; return whether the event is set."""
        try:
            self._tokens.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        self.set()
        return True
