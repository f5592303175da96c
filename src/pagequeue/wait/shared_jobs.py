"""Jobs that threads do for coroutines; several that request the same share one (single-flight).

The threads are pagequeue's own, a few for each event loop: the loop's default executor is the
program's, whose calls would wait for ours. No job waits for room, which a call in another thread of
these may have to make: see `send/with_room.py`.

asyncio is imported where a coroutine waits, so that programs without coroutines do not import it.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from pagequeue import _core, errors

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

Found = TypeVar("Found")
PAUSE_SECONDS: Final = 0.001
"""How long the first of a line lets others have the threads between two attempts."""


class JobCancelled(Exception):
    """All coroutines that waited for the job were cancelled."""


class _Threads:
    """The threads of one event loop."""

    def __init__(self) -> None:
        self._started: list[None] = []
        self.fork_count = _core.fork_count()
        self._pool = ThreadPoolExecutor(
            thread_name_prefix="pagequeue-async", initializer=self._started.append, initargs=(None,)
        )

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> _Threads:
        """Return the threads of a loop; a forked child has none of its parent's."""
        known = _threads.get(loop)
        if known is None or known.fork_count != _core.fork_count():
            known = _threads[loop] = _Threads()
        return known

    def begin(self, do: Callable[[], object], done: Future[Any]) -> None:
        """Have a thread do something, unless it is cancelled before.

        Raises:
            SystemLimit: there is no thread; it is never done.
        """

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(do())
                except BaseException as error:  # noqa: BLE001 - raised by who waits
                    done.set_exception(error)

        try:
            self._pool.submit(run)
        except (RuntimeError, MemoryError) as error:
            # The executor has it in its list all the same, and the threads that are there do it.
            if not self._started and done.cancel():
                raise errors.SystemLimit(
                    f"cannot start a thread for a coroutine ({str(error) or 'no memory'}), so "
                    "nothing was done",
                    remedy="raise the limit of threads or of memory (`ulimit -u`, `ulimit -v`), or "
                    "call what is not asynchronous",
                ) from error


_threads: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Threads]] = WeakKeyDictionary()


class SharedJob(Generic[Found]):
    """A job that a thread does for all coroutines of one loop that wait for it.

    Attributes:
        done: completes when the thread has finished, with what it raised.
        is_abandoned: whether all waiting coroutines were cancelled, so that `check` raises.

    Raises:
        SystemLimit: there is no thread; the job is never done.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, do: Callable[[SharedJob[Found]], Found]
    ) -> None:
        import asyncio  # noqa: PLC0415 - see the head of this file

        self.is_abandoned: bool = False
        self._waiting_count = 0
        found: Future[Found] = Future()
        self.done: asyncio.Future[Found] = asyncio.wrap_future(found, loop=loop)
        self.done.add_done_callback(_retrieve)
        _Threads.of(loop).begin(lambda: self._do(do), found)

    def _do(self, do: Callable[[SharedJob[Found]], Found]) -> Found:
        self.check()
        return do(self)

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

    async def result(self) -> Found:
        """Wait until the job is done, and return or raise what it did."""
        await self.wait()
        return self.done.result()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve the job's error, so that asyncio does not log it if every coroutine is gone."""
    if not done.cancelled():
        done.exception()


class Place:
    """The place of a coroutine in a line."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waiting: list[Place]) -> None:
        self._waiting = waiting
        self._woken: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """End the wait: this is the first one by now."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Wait to be the first one, which lets others run; return whether it is."""
        import asyncio  # noqa: PLC0415 - see the head of this file

        if self._waiting[0] is self:
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            await asyncio.wait({self._woken}, timeout=seconds)
        return self._waiting[0] is self


class SharedJobs:
    """The jobs in progress for one open queue, by loop and key."""

    def __init__(self) -> None:
        self._by_loop: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[object, SharedJob[Any]]
        ] = WeakKeyDictionary()
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[Place]]] = (
            WeakKeyDictionary()
        )

    @contextlib.contextmanager
    def line(self, name: str) -> Iterator[Place]:
        """Join the running loop's coroutines that wait in a line, and leave it at the end."""
        import asyncio  # noqa: PLC0415 - see the head of this file

        loop = asyncio.get_running_loop()
        waiting = self._lines.setdefault(loop, {}).setdefault(name, [])
        place = Place(loop, waiting)
        waiting.append(place)
        try:
            yield place
        finally:
            waiting.remove(place)
            if waiting:
                waiting[0].wake()

    def run(self, key: object, do: Callable[[SharedJob[Found]], Found]) -> SharedJob[Found]:
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
