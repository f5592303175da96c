"""Notifier (an eventcount): one thread waits on a queue's doorbell for all coroutines.

A coroutine calls `prepare_wait`, polls once more, and registers a `Waiter` with the doorbell's
earlier value. The thread wakes every waiter whose value differs from the doorbell's, so no message
published after `prepare_wait` is missed (I7). If a publisher died before it rang, the thread finds
its message after a slice, by polling for the waiter. Spurious wake-ups occur; the coroutine polls
and waits again.

The thread starts with the first waiter and ends after it had none for a while. Meanwhile it sleeps
on the doorbell; publishers ring only after a `prepare_wait`.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue.system.replaced_file import CHECK_SECONDS
from pagequeue.util.green import are_threads_green
from pagequeue.util.single_thread import SingleThread
from pagequeue.util.wakeup import Wakeup

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pagequeue.meta.write_meta import WriteMeta

log: logging.Logger = logging.getLogger("pagequeue")
SLICE_SECONDS: Final = 0.1
"""The longest sleep: covers a publisher that died before it rang."""
LINGER_SECONDS: Final = 1.0
"""How long the thread stays without waiters: starting one costs as much as ten waits."""
BACKOFF_SECONDS_MIN: Final = 50e-6
BACKOFF_SECONDS_MAX: Final = 0.01
"""The sleep between two polls of a reader that may not write to the doorbell."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A coroutine, or thread, that waits.

    Attributes:
        doorbell: its value before the waiter's last poll.
        loop: the event loop that it waits on.
        wake: wakes it, called by that loop; once is enough.
        maybe_ready: whether a poll may succeed; called from any thread, without side effects.
    """

    doorbell: int
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], object]
    maybe_ready: Callable[[], bool]


class Notifier:
    """The waiters of one open queue, and the thread that sleeps for them.

    Args:
        meta: the queue's write meta.
        read_only: it may not be written to.
        check_place: raises when the queue is not where its path leads: then every waiter polls, and
            calls it.
    """

    def __init__(
        self, meta: WriteMeta, *, read_only: bool, check_place: Callable[[], object]
    ) -> None:
        self._region = meta.region
        self.check_place: Callable[[], object] = check_place
        self._announces = not read_only
        self._waiters: dict[Waiter, None] = {}
        self._guard = threading.RLock()  # a finalizer may come back in
        self._thread = SingleThread("pagequeue-notifier", self._watch)
        self._closed = False
        self._wanted = Wakeup()  # ends the wait of a read-only queue's thread

    def prepare_wait(self) -> int:
        """Mark the doorbell as waited for; return its value for a `Waiter`."""
        return _core.doorbell(self._region, self._announces)

    def add(self, waiter: Waiter) -> None:
        """Wake a waiter when the doorbell moves; it has polled after its `prepare_wait`.

        Raises:
            SystemLimit: the waiter thread cannot be started.
        """
        with self._guard:
            self._waiters[waiter] = None
            self._wanted.set()
            if self._closed:
                self._notify([waiter])
            elif are_threads_green():
                waiter.loop.call_later(BACKOFF_SECONDS_MAX, waiter.wake)
            elif not self._thread.is_there:
                try:
                    self._thread.start()
                except errors.SystemLimit:
                    self.remove(waiter)
                    raise

    def remove(self, waiter: Waiter) -> None:
        """Unregister a waiter, woken or not."""
        self._waiters.pop(waiter, None)

    def end(self) -> None:
        """Wake all waiters, so that they find the queue closed, and end the thread."""
        with self._guard:
            self._closed = True
            self._notify(list(self._waiters))
            self._wanted.set()
        if self._announces and self._thread.is_there and not self._region.broken:
            _core.doorbell(self._region, True)
            _core.wake(self._region)

    def await_end(self, seconds: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        self._thread.await_end(seconds)

    # --- the thread -------------------------------------------------------------------------------

    def _watch(self) -> None:
        wanted_at = polled_at = placed_at = time.monotonic()
        is_elsewhere = False
        backoff = BACKOFF_SECONDS_MIN
        while True:
            self._wanted.clear()
            try:
                # The value first, then the waiters: one that is added after this has the same
                # value, or a newer one, and then the sleep below ends at once.
                doorbell = _core.doorbell(self._region, self._announces and bool(self._waiters))
            except errors.PageQueueError:  # the file was truncated: every waiter gets the error
                doorbell = -1
            now = time.monotonic()
            is_due = not self._announces or now - polled_at >= SLICE_SECONDS
            if is_due:
                polled_at = now
            if now - placed_at >= CHECK_SECONDS and self._waiters:
                placed_at = now
                is_elsewhere = self._is_elsewhere()
            woken = [
                waiter
                for waiter in list(self._waiters)
                if waiter.doorbell != doorbell
                or (is_due and (is_elsewhere or _maybe_ready(waiter)))
            ]
            self._notify(woken)
            if woken or self._waiters:
                wanted_at = now
            elif self._may_end(now - wanted_at):
                return
            backoff = BACKOFF_SECONDS_MIN if woken else min(2 * backoff, BACKOFF_SECONDS_MAX)
            self._sleep(doorbell, backoff)

    def _is_elsewhere(self) -> bool:
        """Whether every waiter has to poll, because its poll raises what this check does."""
        try:
            self.check_place()
        except errors.PageQueueError:
            return True
        return False

    def _sleep(self, doorbell: int, backoff: float) -> None:
        """Sleep until the doorbell rings, a slice at most; back off where it never rings."""
        if self._announces and doorbell >= 0:
            _core.await_doorbell(self._region, doorbell, int(SLICE_SECONDS * 1e9))
        elif self._waiters:
            time.sleep(backoff)
        else:
            self._wanted.wait(SLICE_SECONDS)

    def _may_end(self, idle_seconds: float) -> bool:
        """Whether the thread ends; a later waiter starts another one."""
        if idle_seconds < LINGER_SECONDS and not self._closed:
            return False
        with self._guard:
            if self._waiters and not self._closed:
                return False
            self._thread.leave()
            return True

    def _notify(self, waiters: list[Waiter]) -> None:
        """Wake waiters, all of one loop by one call, because each is a system call."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = {}
        for waiter in waiters:
            if self._waiters.pop(waiter, waiter) is None:
                by_loop.setdefault(waiter.loop, []).append(waiter)
        for loop, woken in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake, woken)
            except RuntimeError as error:  # it was closed, with its coroutines
                log.debug("a loop with waiters was closed: %s", error)


def _wake(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()


def _maybe_ready(waiter: Waiter) -> bool:
    try:
        return waiter.maybe_ready()
    except Exception:  # noqa: BLE001 - the waiter polls, meets the same error and raises it
        return True
