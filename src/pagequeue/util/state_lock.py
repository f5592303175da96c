"""StateLock: one thread at a time, in the order in which they came, whatever interrupts them.

A signal handler can raise after any call, also after the one that takes a `threading.Lock`, before
the block that releases it has begun. So the holder is an element of a dictionary: set by one call
into C, inside that block, and removed by its setter in one instruction, before which no call is:

    me = [threading.get_ident()]
    try:
        if lock.waiting or lock.holder.setdefault(HOLDER, me) is not me:
            lock.wait(me, timeout)
        ...
    finally:
        if HOLDER in lock.holder and lock.holder[HOLDER] is me:
            del lock.holder[HOLDER]
        if lock.waiting:
            lock.wake()

Interrupted anywhere: a waiter that stays in the line costs the others some slices, and one that is
not woken costs one. After a single slice it can be a waiter that was just handed the lock, and is
not running yet.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, Final

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER: Final = "holder"
SLICE_SECONDS: Final = 0.05
IDLE_SLICES: Final = 4
"""So often the lock is seen free, with the same one first in the line, until that one must go."""


class StateLock:
    """The lock; see the module for how to take it.

    Attributes:
        holder: under `HOLDER` a list with the number of the thread that has the lock; and with a
            second element, if it may have it for long.
        waiting: a place for each thread that waits, in the order of their turns.
    """

    __slots__ = ("holder", "waiting")

    def __init__(self) -> None:
        self.holder: dict[str, list[int]] = {}
        self.waiting: deque[queue.SimpleQueue[None]] = deque()

    @contextlib.contextmanager
    def held(self, timeout: float, doing: str, path: str) -> Iterator[None]:
        """Hold the lock while a block runs; other threads wait for that however long it takes.

        Args:
            timeout: seconds for which a thread may have the lock that has not entered the block.
            doing: what it is held for.
            path: of the file or directory.

        Raises:
            LockTimeout: this very thread holds it, or another one for too long.
        """
        me = [threading.get_ident()]
        try:
            if self.waiting or self.holder.setdefault(HOLDER, me) is not me:
                if self.is_mine():
                    raise errors.LockTimeout(
                        f"called again while {doing}, from a signal handler or finalizer",
                        path=path,
                        remedy="do that outside of it",
                    )
                if not self.wait(me, timeout):
                    raise errors.LockTimeout(
                        f"another thread was {doing} for {timeout:g} s",
                        path=path,
                        remedy="find the thread that hangs, then call again",
                    )
            self.allow_long()
            yield
        finally:
            if HOLDER in self.holder and self.holder[HOLDER] is me:
                del self.holder[HOLDER]
            if self.waiting:
                self.wake()

    def is_mine(self) -> bool:
        """Whether this very thread has the lock."""
        found = self.holder.get(HOLDER)
        return found is not None and found[0] == threading.get_ident()

    def allow_long(self) -> None:
        """Let the other threads wait for this one, which has the lock, for however long."""
        self.holder[HOLDER].append(True)

    def wait(self, me: list[int], timeout: float) -> bool:
        """Take the lock when it is this thread's turn.

        Args:
            me: what the lock is taken as.
            timeout: seconds for which another thread may have it.

        Returns:
            whether it was taken.
        """
        holder, waiting = self.holder, self.waiting
        place: queue.SimpleQueue[None] = queue.SimpleQueue()
        idle: queue.SimpleQueue[None] | None = None  # the first one, while the lock is seen free
        slices = 0  # for which it was so
        seen, deadline = holder.get(HOLDER), time.monotonic() + timeout
        try:
            waiting.append(place)
            while self._first() is not place or holder.setdefault(HOLDER, me) is not me:
                try:
                    place.get(timeout=min(SLICE_SECONDS, timeout))
                except Empty:
                    found, first = holder.get(HOLDER), self._first()
                    slices = slices + 1 if found is None and first is idle else 1
                    idle = first if found is None else None
                    if found is None:
                        if slices >= IDLE_SLICES:  # it was interrupted
                            self._leave(first)
                    elif found is not seen or len(found) > 1:
                        seen, deadline = found, time.monotonic() + timeout
                    elif time.monotonic() >= deadline:
                        return False
                if place not in waiting:  # it took its turn too late
                    waiting.append(place)
            return True
        finally:
            self._leave(place)

    def wake(self) -> None:
        """Wake the first of those that wait."""
        first = self._first()
        if first is not None:
            first.put(None)

    def _first(self) -> queue.SimpleQueue[None] | None:
        try:
            return self.waiting[0]
        except IndexError:
            return None

    def _leave(self, place: queue.SimpleQueue[None] | None) -> None:
        with contextlib.suppress(ValueError):
            self.waiting.remove(place)  # type: ignore[arg-type]
