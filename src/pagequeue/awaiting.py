"""Awaiting: how coroutines wait for messages, without a thread for each and without losing any.

A message is taken by the coroutine that returns it, in one go, with no suspension between taking
and returning. What wakes it is only a hint. So a coroutine that is cancelled, at whatever moment,
has taken nothing; and one that was woken together with others and finds nothing waits again.

asyncio itself is imported where somebody waits, so that who does without need not have it.
"""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Final, Self, TypeVar

from pagequeue import errors
from pagequeue.bell import Sleeper

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from pagequeue._core import Message, Region
    from pagequeue.batch import Batch
    from pagequeue.bell import Bell
    from pagequeue.store import Store

Found = TypeVar("Found")
TURN_SECONDS: Final = 0.001
"""A coroutine that always finds something lets others run after so long."""


@types.coroutine
def let_others_run() -> Generator[None, None, None]:
    """Give the loop one turn, as `asyncio.sleep(0)` does."""
    yield


def check_timeout(timeout: float | None) -> None:
    """Raise ValueError for seconds that cannot be."""
    if timeout is not None and not timeout >= 0:
        raise ValueError("a timeout is seconds, 0 or more, or None for ever")


async def first(
    bell: Bell,
    attempt: Callable[[], Found | None],
    *,
    is_near: Callable[[], bool],
    next_due: Callable[[], float | None] | None = None,
    timeout: float | None = None,
) -> Found | None:
    """Return the first thing that an attempt finds; sleep while it finds nothing.

    Args:
        bell: of the queue; rung when something was published.
        attempt: takes one and returns it, or None; never waits. What it raises ends the waiting.
        is_near: whether an attempt may find something, asked from the bell's thread.
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
        doorbell = bell.announce()
        found = attempt()
        if found is not None or (deadline is not None and loop.time() >= deadline):
            return found
        wake_at = deadline
        seconds = next_due() if next_due is not None else None
        if seconds is not None:
            due = loop.time() + max(0.0, seconds)
            wake_at = due if deadline is None else min(due, deadline)
        await _asleep(loop, bell, doorbell, is_near, wake_at)
        found = attempt()
        if found is not None:
            return found


async def _asleep(
    loop: asyncio.AbstractEventLoop,
    bell: Bell,
    doorbell: int,
    is_near: Callable[[], bool],
    wake_at: float | None,
) -> None:
    """Sleep until the bell rings or a time of the loop's comes."""
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    sleeper = Sleeper(doorbell, loop, wake, is_near)
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


class AwaitedReads(TakesTurns):
    """The part of `Consumer` that belongs to asyncio."""

    __slots__ = ()

    if TYPE_CHECKING:
        _store: Store

        @property
        def _closed(self) -> bool: ...
        @property
        def _position(self) -> int: ...
        @property
        def _region(self) -> Region | None: ...
        def poll(self) -> Message | None:
            """Return the next message, or None."""

        def ack(
            self, message_or_sequence: Message | int | None = None, *, durable: bool = False
        ) -> None:
            """Acknowledge."""

        def _sync_place(self) -> None: ...
        def _batch(self, limit_count: int, timeout: float | None) -> Batch | None: ...

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.receive_async()

    async def receive_async(self, timeout: float | None = None) -> Message:
        """Return the next message, as `receive` does, and let the event loop run meanwhile.

        Any number of consumers wait on any number of loops with one thread for the queue. A wait
        that is cancelled, by whatever means, has not moved the consumer.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            TimeoutError: nothing was published in time; the consumer has not moved.
            As for `receive` otherwise.

        Source: FORMAT.md, "Reading"; keeps I1, I2, I7.
        """
        check_timeout(timeout)
        await self._take_turns()
        message = self.poll()
        if message is None:
            message = await self._wait_for(self.poll, timeout)
        return message

    async def receive_many_async(
        self, limit_count: int = 1024, timeout: float | None = None
    ) -> Batch:
        """Return the next messages, as `receive_many` does, and let the event loop run meanwhile.

        Args:
            limit_count: most messages to return, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Raises:
            TimeoutError: nothing was published in time; the consumer has not moved.
            As for `receive_many` otherwise.

        Source: FORMAT.md, "Reading"; keeps I1, I2, I7.
        """

        def attempt() -> Batch | None:
            try:
                return self._batch(limit_count, 0)
            except errors.NothingReceived:
                return None

        check_timeout(timeout)
        await self._take_turns()
        batch = attempt()
        return batch if batch is not None else await self._wait_for(attempt, timeout)

    async def ack_async(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge as `ack` does; with `durable` the event loop runs during the sync.

        The place moves at once. Cancelled: it has moved, and is perhaps not on stable storage.
        """
        self.ack(message_or_sequence)
        if durable:
            what = object()  # one that is under way may have begun before the place moved
            await self._store.errands.run(what, lambda _: self._sync_place()).wait()

    async def _wait_for(self, attempt: Callable[[], Found | None], timeout: float | None) -> Found:
        found = await first(self._store.bell, attempt, is_near=self._is_near, timeout=timeout)
        self._rest()
        if found is None:
            raise errors.NothingReceived(
                f"no message within {timeout:g} s: call again", path=self._store.folder.path
            )
        return found

    def _is_near(self) -> bool:
        """Whether something may stand at this place, seen from the bell's thread."""
        region = self._region
        if self._closed or region is None or self._store.awaits_recovery:
            return True
        return region.broken or region.load_half(self._position) != 0
