"""Errands: what threads do for the coroutines of an event loop, once for all who want the same.

asyncio is imported where somebody waits, so that who does without need not have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class JobCancelled(Exception):
    """Nobody waits for an errand any more."""


class SharedJob:
    """Something that a thread does for all coroutines of one loop that wait for it.

    Attributes:
        done: the thread's end, with what it raised.
        is_abandoned: whether all who waited have gone, so that `check` raises.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, do: Callable[[SharedJob], object]) -> None:
        self.is_abandoned = False
        self._waiting_count = 0
        self.done = loop.run_in_executor(None, do, self)
        self.done.add_done_callback(_look_at)

    def check(self) -> None:
        """Raise when nobody waits any more; called by the thread.

        Raises:
            Abandoned: so it is.
        """
        if self.is_abandoned:
            raise JobCancelled

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is done and raise what it raised; False: it takes longer."""
        import asyncio  # noqa: PLC0415 - see the head of this file

        self._waiting_count += 1
        try:
            await asyncio.wait({self.done}, timeout=seconds)
        finally:
            self._waiting_count -= 1
            self.is_abandoned = self._waiting_count == 0 and not self.done.done()
        if not self.done.done():
            return False
        self.done.result()
        return True


def _look_at(done: asyncio.Future[object]) -> None:
    """Look at an error that nobody may be left to look at."""
    if not done.cancelled():
        done.exception()


class SharedJobs:
    """The errands under way for one open queue, by loop and by what they are for."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, SharedJob]]
        self._by_loop = WeakKeyDictionary()

    def run(self, what: object, do: Callable[[SharedJob], object]) -> SharedJob:
        """Return the errand that is under way for this, or begin it; the loop's thread calls."""
        import asyncio  # noqa: PLC0415 - see the head of this file

        loop = asyncio.get_running_loop()
        under_way = self._by_loop.setdefault(loop, {})
        errand = under_way.get(what)
        if errand is None or errand.is_abandoned or errand.done.done():
            for known, other in list(under_way.items()):
                if other.done.done():
                    del under_way[known]
            errand = under_way[what] = SharedJob(loop, do)
        return errand
