"""Waking a thread from any other one, from signal handlers and finalizers too.

`threading.Event` is not for that: its lock would be taken twice by one thread, and an exception out
of a signal handler can leave it taken, so that the next one to set the event waits for ever.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Wakeup:
    """What `threading.Event` is; one call into C each."""

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End every wait, those to come as well, until it is cleared."""
        if self._rung.empty():
            self._rung.put(None)

    def clear(self) -> None:
        """Have later waits wait."""
        try:
            while True:
                self._rung.get_nowait()
        except Empty:
            return

    def wait(self, seconds: float) -> bool:
        """Wait so many seconds at most; return whether it is set."""
        try:
            self._rung.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        self.set()
        return True
