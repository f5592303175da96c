"""Pace: when replayed messages are due, at the speed at which they were sent, or another.

The first message is due at once, each other one after the difference of their timestamps, divided
by the speed. All times count from the start, so the errors of single waits do not add up; a reader
that is late gets messages without waiting until it has caught up.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import TYPE_CHECKING, Final

from pagequeue.errors import InvalidType
from pagequeue.util.arguments import number, type_error, value_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.util.wakeup import Wakeup

NS_PER_S: Final = 1_000_000_000
SPEED_MIN: Final = 1e-280
SPEED_MAX: Final = 1e280
"""Between these, times of 63 bits multiplied or divided by a speed are finite."""
SLICE_SECONDS: Final = 3600.0
"""The longest single wait, because system calls do not accept every number of seconds."""
CHECK_CLOSED_SECONDS: Final = 0.1
"""How often a waiting coroutine checks whether another thread closed its handle."""


class Pace:
    """The times at which messages are due, from their timestamps. For one replay at a time.

    Args:
        speed: seconds between timestamps that pass in one second: 1.0 is real time, 10.0 ten times
            as fast.
        clock: a monotonic clock that returns ns; None: the system's.
        sleep: waits so many seconds, or fewer, by that clock; it can be a coroutine function if a
            coroutine replays. None: a wait that Ctrl-C and closing end at once.

    Raises:
        InvalidOption: the speed is not between 1e-280 and 1e280.
        TypeError: the speed is not a number.

    Example:
        >>> pace = Pace(10.0)
        >>> [message.payload for message in queue.replay(sequence=3, speed=pace)]
        [b'four', b'five']
    """

    __slots__ = ("_clock", "_first", "_sleep", "_started_at", "speed")

    def __init__(
        self,
        speed: float,
        *,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        remedy = f"give {SPEED_MIN:g} to {SPEED_MAX:g}, or None for as fast as possible"
        try:
            speed = number("speed", speed, remedy)
        except InvalidType:
            raise type_error("speed", speed, "a number or a Pace") from None
        if not SPEED_MIN <= speed <= SPEED_MAX:
            raise value_error("speed", speed, remedy)
        self.speed: float = speed
        self._clock = clock or time.monotonic_ns
        self._sleep = sleep
        self._started_at: int | None = None
        self._first = 0

    def left_ns(self, timestamp: int) -> int:
        """Return the ns until a message is due, 0 or less if it is due; the first call starts.

        Args:
            timestamp: of the message, ns.

        Example:
            >>> pace.left_ns(message.timestamp) <= 0  # the first one is due at once
            True
        """
        now = self._clock()
        if self._started_at is None:
            self._started_at, self._first = now, timestamp
        return math.ceil((timestamp - self._first) / self.speed) - (now - self._started_at)

    def now(self) -> int:
        """Return the time by the clock, ns.

        Example:
            >>> pace.now() <= pace.now()
            True
        """
        return self._clock()

    def due(self) -> int:
        """Return the timestamp up to which messages are due; call it after `left_ns`.

        Example:
            >>> pace.left_ns(message.timestamp) <= 0 and pace.due() >= message.timestamp
            True
        """
        assert self._started_at is not None
        return self._first + math.floor((self._clock() - self._started_at) * self.speed)

    def sleep(self, seconds: float, ended: Wakeup) -> None:
        """Sleep so many seconds, or until another thread sets the event.

        Args:
            seconds: at most; it may return earlier.
            ended: the event.

        Example:
            >>> from pagequeue.util.wakeup import Wakeup
            >>> pace.sleep(0.001, Wakeup())
        """
        if self._sleep is None:
            ended.wait(min(seconds, SLICE_SECONDS))
        else:
            self._sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Let the event loop run for so many seconds or fewer.

        Args:
            seconds: at most.

        Example:
            >>> await pace.sleep_async(0.001)
        """
        if self._sleep is None:
            import asyncio  # noqa: PLC0415 - only if it is used

            await asyncio.sleep(min(seconds, CHECK_CLOSED_SECONDS))
            return
        slept = self._sleep(seconds)
        if inspect.isawaitable(slept):
            await slept


Speed = float | Pace


def pace_of(speed: Speed | None) -> Pace | None:
    """Return the pace for a speed; None: as fast as possible."""
    return speed if speed is None or isinstance(speed, Pace) else Pace(speed)
