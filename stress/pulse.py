"""How long the machine stood still, or let a process wait for a processor: a process that beats."""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING, Final

from stress import children

if TYPE_CHECKING:
    from typing import NoReturn

BEAT_NS: Final = 10_000_000
LATE_NS: Final = 2 * BEAT_NS
"""A beat that comes so long after the one before is late."""


class Pulse:
    """A child that does nothing but beat; it ends with its parent."""

    def __init__(self, errors: children.ErrorFile) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._words[0] = time.monotonic_ns()  # the last beat; then what was lost before it
        self._pid = children.fork(self._beat, errors, "the pulse")

    def _beat(self) -> NoReturn:
        while True:
            time.sleep(BEAT_NS / 1e9)
            now = time.monotonic_ns()
            self._words[1] += _lost_ns(now - self._words[0])
            self._words[0] = now

    def lost_seconds(self) -> float:
        """Return how late its beats were so far, all together."""
        return (self._words[1] + _lost_ns(time.monotonic_ns() - self._words[0])) / 1e9

    def end(self) -> None:
        """End the child."""
        children.kill(self._pid)


def _lost_ns(gap_ns: int) -> int:
    return max(0, gap_ns - BEAT_NS) if gap_ns > LATE_NS else 0
