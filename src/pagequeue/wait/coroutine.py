"""Waiting in a coroutine: an attempt is repeated until it finds something."""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Final, TypeVar

from pagequeue.util.numbers import number
from pagequeue.wait.notifier import Waiter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from pagequeue.wait.notifier import Notifier


Found = TypeVar("Found")


TURN_SECONDS: Final = 0.001


@types.coroutine
def let_others_run() -> Generator[None, None, None]:
    """Give the loop one turn, as `asyncio.sleep(0)` does."""
    yield


def check_timeout(timeout: float | None) -> float | None:
    """Return the seconds as a float; raise TypeError or ValueError for invalid ones."""
    seconds = None if timeout is None else number("timeout", timeout)
    if seconds is not None and not seconds >= 0:
        raise ValueError("a timeout is seconds, 0 or more, or None for ever")
    return seconds


async def first(
    bell: Notifier,
    attempt: Callable[[], Found | None],
    *,
    maybe_ready: Callable[[], bool],
    next_due: Callable[[], float | None] | None = None,
    timeout: float | None = None,
) -> Found | None:
    """Return the first thing that an attempt finds; sleep while it finds nothing.

    Args:
        bell: of the queue; rung when something was published.
        attempt: takes one and returns it, or None; never waits. What it raises ends the waiting.
        maybe_ready: whether an attempt may find something, asked from the bell's thread.
        next_due: seconds until an attempt may find something that nobody rings for; None = never.
        timeout: seconds to wait; None waits for ever, 0 never waits.

    Returns:
        What was found; None if nothing was in time.
    """
    found = attempt()
    if found is not None or timeout == 0:
        return found
    import asyncio  # noqa: PLC0415 - see the head of this file

    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        doorbell = bell.prepare_wait()
        found = attempt()
        if found is not None or (deadline is not None and loop.time() >= deadline):
            return found
        wake_at = deadline
        seconds = next_due() if next_due is not None else None
        if seconds is not None:
            due = loop.time() + max(0.0, seconds)
            wake_at = due if deadline is None else min(due, deadline)
        await _asleep(loop, bell, doorbell, maybe_ready, wake_at)
        found = attempt()
        if found is not None:
            return found


async def _asleep(
    loop: asyncio.AbstractEventLoop,
    bell: Notifier,
    doorbell: int,
    maybe_ready: Callable[[], bool],
    wake_at: float | None,
) -> None:
    """Sleep until the bell rings or a time of the loop's comes."""
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    sleeper = Waiter(doorbell, loop, wake, maybe_ready)
    timer = None if wake_at is None else loop.call_at(wake_at, wake)
    try:
        bell.add(sleeper)
        await woken
    finally:
        bell.remove(sleeper)
        if timer is not None:
            timer.cancel()


class TakesTurns:
    """A handle whose coroutines let others run, although they never have to wait."""

    __slots__ = ()

    if TYPE_CHECKING:
        _rested_at: float

    async def _take_turns(self) -> None:
        """Let others run, if this one has found something for a while without waiting.

        Before anything is taken: it can be cancelled here.
        """
        now = time.monotonic()
        if now - self._rested_at > TURN_SECONDS:
            await let_others_run()
            self._rest()

    def _rest(self) -> None:
        self._rested_at = time.monotonic()  # type: ignore[misc]  # its slot is the handle's
