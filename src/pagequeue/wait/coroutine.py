"""Waiting in a coroutine: it polls, and sleeps between polls until the notifier wakes it."""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Final, TypeVar

from pagequeue.util.arguments import seconds
from pagequeue.wait.notifier import Waiter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from pagequeue.wait.notifier import Notifier

Found = TypeVar("Found")
TURN_SECONDS: Final = 0.001
"""A coroutine that never has to wait yields to the loop after this long."""


@types.coroutine
def let_others_run() -> Generator[None, None, None]:
    """Yield to the loop once, as `asyncio.sleep(0)` does."""
    yield


def check_timeout(timeout: float | None) -> float | None:
    """Return the seconds as a float; raise InvalidType or InvalidOption for invalid ones."""
    return None if timeout is None else seconds("timeout", timeout)


async def first(
    notifier: Notifier,
    attempt: Callable[[], Found | None],
    *,
    maybe_ready: Callable[[], bool],
    next_due: Callable[[], float | None] | None = None,
    timeout: float | None = None,
) -> Found | None:
    """Repeat an attempt until it returns something; sleep between attempts.

    Args:
        notifier: of the queue; wakes waiters after each publication.
        attempt: takes one and returns it, or None; never waits. What it raises ends the waiting.
        maybe_ready: whether an attempt may succeed, called from the notifier's thread.
        next_due: seconds until an attempt may succeed without a publication; None = never.
        timeout: seconds to wait; None waits for ever, 0 never waits.

    Returns:
        What the attempt returned; None after the timeout.

    Raises:
        QueueReplaced: the queue is not where its path leads.
    """
    found = attempt()
    if found is not None or timeout == 0:
        return found
    import asyncio  # noqa: PLC0415 - see the head of this file

    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        doorbell = notifier.prepare_wait()
        found = attempt()
        if found is not None or (deadline is not None and loop.time() >= deadline):
            return found
        wake_at = deadline
        seconds = next_due() if next_due is not None else None
        if seconds is not None:
            due = loop.time() + max(0.0, seconds)
            wake_at = due if deadline is None else min(due, deadline)
        await _asleep(loop, notifier, doorbell, maybe_ready, wake_at)
        found = attempt()
        if found is not None:
            return found
        notifier.check_place()


async def _asleep(
    loop: asyncio.AbstractEventLoop,
    notifier: Notifier,
    doorbell: int,
    maybe_ready: Callable[[], bool],
    wake_at: float | None,
) -> None:
    """Sleep until the notifier wakes this coroutine or the loop's clock reaches `wake_at`."""
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    waiter = Waiter(doorbell, loop, wake, maybe_ready)
    timer = None if wake_at is None else loop.call_at(wake_at, wake)
    try:
        notifier.add(waiter)
        await woken
    finally:
        notifier.remove(waiter)
        if timer is not None:
            timer.cancel()


class Turns:
    """When a handle's coroutines last yielded: they do so even when they never have to wait."""

    __slots__ = ("_rested_at",)

    def __init__(self) -> None:
        self._rested_at = 0.0

    async def take(self) -> None:
        """Yield to the loop if this coroutine has run for `TURN_SECONDS` without waiting.

        Called before anything is taken, because the coroutine can be cancelled here.
        """
        if time.monotonic() - self._rested_at > TURN_SECONDS:
            await let_others_run()
            self.rest()

    def rest(self) -> None:
        """Note that the loop ran just now."""
        self._rested_at = time.monotonic()
