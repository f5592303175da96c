"""Pace: when messages are due that are replayed at the speed at which they were sent, or another.

The first one is due at once, and each other one as long behind it as its timestamp says, divided
by the speed. All is counted from the start, so that what one wait is too long or too short does not
add up; whoever falls behind gets what is due without waiting until the pace is reached again.
"""

from __future__ import annotations

import inspect
import math
import time
from typing import TYPE_CHECKING, Final

from pagequeue.errors import InvalidOption
from pagequeue.util.numbers import number

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.util.wakeup import Wakeup

NS_PER_S: Final = 1_000_000_000
SLICE_SECONDS: Final = 3600.0
"""The longest single wait, because the system's waits take not every number of seconds."""
ENDED_LOOK_SECONDS: Final = 0.1
"""How often a coroutine that waits looks whether another thread closed what it waits with."""


class Pace:
    """The times at which messages are due, from their timestamps. For one replay at a time.

    Args:
        speed: seconds of the messages in one second: 1.0 is real time, 10.0 ten times as fast.
        clock: returns ns from any beginning, never goes back; None: the system's.
        sleep: waits so many seconds, or fewer, by that clock; a coroutine function will do where a
            coroutine replays. None: a wait that Ctrl-C and closing end at once.

    Raises:
        InvalidOption: the speed is not a number above 0.
    """

    __slots__ = ("_clock", "_first", "_sleep", "_started_at", "speed")

    def __init__(
        self,
        speed: float,
        *,
        clock: Callable[[], int] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        try:
            speed = number("speed", speed)
        except TypeError:
            raise TypeError(f"speed is a number or a Pace, not {type(speed).__name__}") from None
        if not (speed > 0 and math.isfinite(speed)):
            raise InvalidOption(
                f"speed is {speed}: give a number above 0, or None for as fast as possible"
            )
        self.speed = speed
        self._clock = clock or time.monotonic_ns
        self._sleep = sleep
        self._started_at: int | None = None
        self._first = 0

    def left_ns(self, timestamp: int) -> int:
        """Return the ns until a message is due, 0 or less if it is; the first call starts."""
        now = self._clock()
        if self._started_at is None:
            self._started_at, self._first = now, timestamp
        return math.ceil((timestamp - self._first) / self.speed) - (now - self._started_at)

    def now(self) -> int:
        """Return what the clock says, ns."""
        return self._clock()

    def due(self) -> int:
        """Return the timestamp up to which messages are due; only behind the first `left_ns`."""
        assert self._started_at is not None
        return self._first + math.floor((self._clock() - self._started_at) * self.speed)

    def sleep(self, seconds: float, ended: Wakeup) -> None:
        """Sleep so many seconds or fewer; another thread ends that by the event."""
        if self._sleep is None:
            ended.wait(min(seconds, SLICE_SECONDS))
        else:
            self._sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Let the event loop run for so many seconds or fewer."""
        if self._sleep is None:
            import asyncio  # noqa: PLC0415 - only where somebody waits with it

            await asyncio.sleep(min(seconds, ENDED_LOOK_SECONDS))
            return
        slept = self._sleep(seconds)
        if inspect.isawaitable(slept):
            await slept


Speed = float | Pace


def pace_of(speed: Speed | None) -> Pace | None:
    """Return the pace that an option means; None for as fast as possible."""
    return speed if speed is None or isinstance(speed, Pace) else Pace(speed)
