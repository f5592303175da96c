"""Bell: one thread that sleeps on a queue's doorbell for all who wait without one of their own.

Whoever waits says so (`prepare_wait`), looks once more, and leaves a `Waiter` with the value that
the doorbell had before. The thread rings every sleeper whose value is not the doorbell's any more,
so nothing that is published behind `prepare_wait` is missed (I7). A publisher that died before it
rang is found after each slice, by looking whether something stands where the sleeper waits. A
sleeper may be rung for nothing; it looks, and waits again.

The thread starts with the first sleeper and ends when there was none for a while. Meanwhile it
sleeps on the doorbell, but nobody rings for it, because only `prepare_wait` asks for that.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue.util.single_thread import SingleThread
from pagequeue.util.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pagequeue.meta.write_meta import WriteMeta

log = logging.getLogger("pagequeue")
SLICE_SECONDS: Final = 0.1
"""The longest sleep: covers a publisher that died before it woke anyone."""
LINGER_SECONDS: Final = 1.0
"""The thread stays so long when nobody waits any more: starting one costs as much as ten waits."""
NAP_SECONDS_MIN: Final = 50e-6
NAP_SECONDS_MAX: Final = 0.01
"""How a reader that may not write that it sleeps looks again and again."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One that waits.

    Attributes:
        doorbell: its value before the sleeper looked for the last time.
        loop: the event loop that it waits on.
        wake: wakes it, called by that loop; once is enough.
        is_near: whether there may be something for it; asked from any thread, changes nothing.
    """

    doorbell: int
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], object]
    maybe_ready: Callable[[], bool]


class Notifier:
    """The sleepers of one open queue, and the thread that sleeps for them."""

    def __init__(self, meta: WriteMeta, *, read_only: bool) -> None:
        self._region = meta.region
        self._announces = not read_only
        self._sleepers: dict[Waiter, None] = {}
        self._guard = threading.RLock()  # a finalizer may come back in
        self._thread = SingleThread("pagequeue-bell", self._watch)
        self._closed = False
        self._wanted = Wakeup()  # for one that nobody rings

    def prepare_wait(self) -> int:
        """Say that somebody may be asleep; return the doorbell's value for a `Waiter`."""
        return _core.doorbell(self._region, self._announces)

    def add(self, sleeper: Waiter) -> None:
        """Ring a sleeper when the doorbell moves; it looked behind its `prepare_wait`.

        Raises:
            SystemLimit: no thread can be had.
        """
        with self._guard:
            self._sleepers[sleeper] = None
            self._wanted.set()
            if self._closed:
                self._ring([sleeper])
            elif not self._thread.is_there:
                try:
                    self._thread.start()
                except RuntimeError as error:  # none can be had, or the interpreter is ending
                    self.remove(sleeper)
                    raise errors.SystemLimit(
                        f"no thread can be had to wait with ({error}): raise the limit"
                    ) from error

    def remove(self, sleeper: Waiter) -> None:
        """Forget a sleeper, rung or not."""
        self._sleepers.pop(sleeper, None)

    def end(self) -> None:
        """Ring all, so that they see what became of the queue, and have the thread end."""
        with self._guard:
            self._closed = True
            self._ring(list(self._sleepers))
            self._wanted.set()
        if self._announces and self._thread.is_there and not self._region.broken:
            _core.doorbell(self._region, True)
            _core.wake(self._region)

    def await_end(self, seconds: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        self._thread.await_end(seconds)

    # --- the thread -------------------------------------------------------------------------------

    def _watch(self) -> None:
        wanted_at = looked_at = time.monotonic()
        nap = NAP_SECONDS_MIN
        while True:
            self._wanted.clear()
            try:
                # The value first, then the sleepers: one that is added behind this has the same
                # value, or a newer one, and then the sleep below ends at once.
                doorbell = _core.doorbell(self._region, self._announces and bool(self._sleepers))
            except errors.PageQueueError:  # the file was truncated: each finds out for itself
                doorbell = -1
            now = time.monotonic()
            is_due = not self._announces or now - looked_at >= SLICE_SECONDS
            if is_due:
                looked_at = now
            rung = [
                sleeper
                for sleeper in list(self._sleepers)
                if sleeper.doorbell != doorbell or (is_due and _near(sleeper))
            ]
            self._ring(rung)
            if rung or self._sleepers:
                wanted_at = now
            elif self._may_end(now - wanted_at):
                return
            nap = NAP_SECONDS_MIN if rung else min(2 * nap, NAP_SECONDS_MAX)
            self._sleep(doorbell, nap)

    def _sleep(self, doorbell: int, nap: float) -> None:
        """Sleep until somebody rings, a slice at most; or nap where nobody does."""
        if self._announces and doorbell >= 0:
            _core.await_doorbell(self._region, doorbell, int(SLICE_SECONDS * 1e9))
        elif self._sleepers:
            time.sleep(nap)
        else:
            self._wanted.wait(SLICE_SECONDS)

    def _may_end(self, idle_seconds: float) -> bool:
        """Whether the thread ends; whoever comes behind that starts another one."""
        if idle_seconds < LINGER_SECONDS and not self._closed:
            return False
        with self._guard:
            if self._sleepers and not self._closed:
                return False
            self._thread.leave()
            return True

    def _ring(self, sleepers: list[Waiter]) -> None:
        """Wake sleepers, all of one loop by one call, because each is a system call."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
        for sleeper in sleepers:
            if self._sleepers.pop(sleeper, sleeper) is None:
                by_loop.setdefault(sleeper.loop, []).append(sleeper)
        for loop, rung in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake, rung)
            except RuntimeError as error:  # it was closed: nobody waits there any more
                log.debug("nobody waits any more: %s", error)


def _wake(sleepers: list[Waiter]) -> None:
    for sleeper in sleepers:
        sleeper.wake()


def _near(sleeper: Waiter) -> bool:
    try:
        return sleeper.maybe_ready()
    except Exception:  # noqa: BLE001 - whatever it is, the sleeper finds it again and raises it
        return True
