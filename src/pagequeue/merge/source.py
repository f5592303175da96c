"""Source: one queue of a merge, what was read of it, and what is known of what follows.

What follows in a queue is never older than its `bound`: the last timestamp that was read, because
times never go back in a queue; and where nothing was there, the time at which it was looked, less
the patience for senders who took the time and were still waiting to publish (`Merge` says more).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, Self

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.merge.batch import MergedSlice
from pagequeue.receive.consumer import NO_LIMIT, Consumer
from pagequeue.wait.notifier import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from pagequeue.columns.batch import Batch
    from pagequeue.schema.schema import Schema
    from pagequeue.store.store import Store
    from pagequeue.util.wakeup import Wakeup

LOAD_COUNT: Final = 65536
"""Messages that are read of a queue at a time; it ends after about 1 MiB too."""


class MergeSource(Consumer):
    """One queue of a merge.

    Attributes:
        queue: its place in the list of queues.
        bound: nothing that is read later is older than that; ns since 1970, UTC.
        ended: there is nothing more, and never will be.
        read_at: when what is held was read; seconds, monotonic.
    """

    __slots__ = ("_at", "_end", "_held", "_until", "bound", "ended", "queue", "read_at")

    queue: int
    bound: int
    ended: bool
    read_at: float
    _end: int | None
    _until: int | None
    _held: Batch | None
    _at: int

    def __new__(cls, store: Store, queue: int, *, on_expired: str) -> Self:
        """Be nowhere yet; `begin` goes on."""
        self = super().__new__(cls, store, on_expired=on_expired)
        self._kind = "merge"
        self.queue = queue
        self.bound = NO_LIMIT
        self.ended = False
        self.read_at = 0.0
        self._held = None
        self._at = 0
        return self

    def __init__(self, store: Store, queue: int, **options: object) -> None:
        """Everything is done in `__new__`."""

    def begin(self, since: int | None, until: int | None, end: int | None) -> None:
        """Stand at the first message wanted.

        Args:
            since: ns since 1970, inclusive; None: the head.
            until: ns since 1970, exclusive; None: no such end.
            end: the sequence to stop before; None: goes on with what comes.
        """
        self._end, self._until = end, until
        self.seek(since=since)
        self._bound(
            NO_LIMIT if since is None else since,
            NO_LIMIT if until is None else until,
            fmt.SEQUENCE_MAX if end is None else end,
        )

    @property
    def kind(self) -> Schema:
        """What the queue's messages hold."""
        return self._store.schema

    @property
    def record_dtype(self) -> np.dtype[np.void] | None:
        """The dtype of its records; None: messages are of any size."""
        return self._store.schema.dtype

    def check(self) -> None:
        """Raise unless this process may use it."""
        self._store.check_process(self._kind)

    @property
    def is_held(self) -> bool:
        """Whether messages were read and not taken."""
        return self._held is not None

    @property
    def first_timestamp(self) -> int:
        """The timestamp of the first message that is held."""
        assert self._held is not None
        return int(self._held.timestamps[self._at])

    def is_live(self, patience_ns: int) -> bool:
        """Have messages held, if there are any now; return whether it has not ended."""
        if not self.ended and self._held is None:
            self._load(patience_ns)
        return not self.ended

    def _load(self, patience_ns: int) -> None:
        looked = self._store.clock() if self._end is None else 0  # before looking
        try:
            batch = self._batch(LOAD_COUNT, 0)
        except errors.NothingReceived:
            self._found_nothing(looked - patience_ns)
            return
        if batch is None:
            self.ended = True
            return
        self._held, self._at = batch, 0
        is_last = self._end is not None and self.sequence >= self._end
        self.bound = fmt.TIMESTAMP_MAX if is_last else max(self.bound, int(batch.timestamps[-1]))
        self.read_at = time.monotonic()

    def _found_nothing(self, bound: int) -> None:
        self.bound = max(self.bound, bound)
        waits_for_recovery = self._end is not None
        self.ended = waits_for_recovery or (self._until is not None and self.bound >= self._until)

    def take(self, cut: int, *, inclusive: bool) -> MergedSlice | None:
        """Return the held messages up to a time, and hold the rest."""
        held = self._held
        if held is None:
            return None
        start = self._at
        times = held.timestamps[start:]
        stop = start + int(times.searchsorted(cut, "right" if inclusive else "left"))
        if stop == start:
            return None
        self._at = stop
        if stop == len(held):
            self._held = None
        return MergedSlice(self.queue, held, start, stop, self._decoder)

    def prepare_wait(self) -> int:
        """Say that somebody may be asleep; return the value of the doorbell."""
        return self._store.notifier.prepare_wait()

    def add(self, sleeper: Waiter) -> None:
        """Have a sleeper rung."""
        self._store.notifier.add(sleeper)

    def remove(self, sleeper: Waiter) -> None:
        """Forget a sleeper."""
        self._store.notifier.remove(sleeper)

    def may_have(self) -> bool:
        """Whether there may be something to load, asked from the notifier's thread."""
        return self._is_near()

    def seconds_to(self, moment: int) -> float:
        """Return the seconds until this queue's clock comes to a time, ns since 1970."""
        return (moment - self._store.clock()) / 1e9

    def seconds_to_end(self, patience_ns: int) -> float:
        """Return the seconds until the clock ends it; infinite where it has no such end."""
        return math.inf if self._until is None else self.seconds_to(self._until + patience_ns)


class _Here:
    """Stands where a bell expects an event loop, for a thread that waits without one."""

    @staticmethod
    def call_soon_threadsafe(call: Callable[..., object], *arguments: object) -> None:
        """Call it at once, in the notifier's thread."""
        call(*arguments)


def sleep_until_rung(
    silent: Sequence[tuple[MergeSource, int]], rung: Wakeup, seconds: float
) -> None:
    """Sleep until one of some queues has something, the event is set, or the time is over.

    Args:
        silent: queues that had nothing, each with its doorbell's value from before that look.
        rung: cleared before that look.
        seconds: to sleep at most.
    """
    here: Any = _Here()
    sleepers = [
        (source, Waiter(doorbell, here, rung.set, source.may_have)) for source, doorbell in silent
    ]
    try:
        for source, sleeper in sleepers:
            source.add(sleeper)
        rung.wait(seconds)
    finally:
        for source, sleeper in sleepers:
            source.remove(sleeper)


async def await_rung(silent: Sequence[tuple[MergeSource, int]], seconds: float) -> None:
    """Let the event loop run until one of some queues has something, or the time is over.

    Args:
        silent: queues that had nothing, each with its doorbell's value from before that look.
        seconds: to wait at most.
    """
    import asyncio  # noqa: PLC0415 - only where somebody waits with it

    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    sleepers = [
        (source, Waiter(doorbell, loop, wake, source.may_have)) for source, doorbell in silent
    ]
    timer = loop.call_later(seconds, wake)
    try:
        for source, sleeper in sleepers:
            source.add(sleeper)
        await woken
    finally:
        for source, sleeper in sleepers:
            source.remove(sleeper)
        timer.cancel()
