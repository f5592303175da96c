"""Shared jobs (single-flight): a thread does a job once for all coroutines that request it.

asyncio is imported where a coroutine waits, so that programs without coroutines do not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class JobCancelled(Exception):
    """All coroutines that waited for the job were cancelled."""


class SharedJob:
    """A job that a thread does for all coroutines of one loop that wait for it.

    Attributes:
        done: completes when the thread has finished, with what it raised.
        is_abandoned: whether all waiting coroutines were cancelled, so that `check` raises.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, do: Callable[[SharedJob], object]) -> None:
        self.is_abandoned: bool = False
        self._waiting_count = 0
        self.done: asyncio.Future[object] = loop.run_in_executor(None, do, self)
        self.done.add_done_callback(_retrieve)

    def check(self) -> None:
        """Raise if no coroutine waits any more; called by the thread.

        Raises:
            JobCancelled: none waits.
        """
        if self.is_abandoned:
            raise JobCancelled

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the job is done and raise what it raised; False: it takes longer."""
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


def _retrieve(done: asyncio.Future[object]) -> None:
    """Retrieve the job's error, so that asyncio does not log it if every coroutine is gone."""
    if not done.cancelled():
        done.exception()


class SharedJobs:
    """The jobs in progress for one open queue, by loop and key."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, SharedJob]]
        self._by_loop = WeakKeyDictionary()

    def run(self, key: object, do: Callable[[SharedJob], object]) -> SharedJob:
        """Return the job in progress for this key, or start it; called by the loop's thread."""
        import asyncio  # noqa: PLC0415 - see the head of this file

        loop = asyncio.get_running_loop()
        in_progress = self._by_loop.setdefault(loop, {})
        job = in_progress.get(key)
        if job is None or job.is_abandoned or job.done.done():
            for known, other in list(in_progress.items()):
                if other.done.done():
                    del in_progress[known]
            job = in_progress[key] = SharedJob(loop, do)
        return job
