"""MergeSource: one queue of a merge, the messages read from it, and a bound of those to come.

Later messages of a queue are never older than its `bound`: the last timestamp read, because times
never decrease in a queue; or, after an empty poll, the time of that poll less the patience for
senders that had read the clock and not published yet (see `merge/open.py`).
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
    from pagequeue.util.literals import OnExpired
    from pagequeue.util.wakeup import Wakeup

LOAD_COUNT: Final = 65536
"""Messages read from a queue at a time; a batch also ends after about 1 MiB."""


class MergeSource(Consumer):
    """One queue of a merge.

    Attributes:
        queue: its index in the list of queues.
        bound: no later message is older than this; ns since 1970, UTC.
        ended: no more messages will come.
        read_at: when the held messages were read; seconds, monotonic.
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

    def __new__(cls, store: Store, queue: int, *, on_expired: OnExpired) -> Self:
        """Make a source without a position; `begin` sets it."""
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
        """Leave everything to `__new__`."""

    def begin(self, since: int | None, until: int | None, end: int | None) -> None:
        """Seek to the first requested message.

        Args:
            since: ns since 1970, inclusive; None: the head.
            until: ns since 1970, exclusive; None: unlimited.
            end: the sequence to stop before; None: continue with new messages.
        """
        self._end, self._until = end, until
        self.seek(since=since)
        self._bound(
            NO_LIMIT if since is None else since,
            NO_LIMIT if until is None else until,
            fmt.SEQUENCE_MAX if end is None else end,
        )

    @property
    def schema(self) -> Schema:
        """What the queue's messages hold."""
        return self._store.schema

    @property
    def record_dtype(self) -> np.dtype[np.void] | None:
        """The dtype of its records; None: messages are of any size."""
        return self._store.schema.dtype

    def holds_over(self, size_bytes: int) -> bool:
        """Whether a message that comes, or is held, has more bytes than this."""
        held = self._held
        first = self.sequence if held is None else int(held.sequences[self._at])
        return self._store.holds_over(size_bytes, first)

    def check(self) -> None:
        """Raise unless this process may use it."""
        self._store.check_process(self._kind)

    @property
    def is_held(self) -> bool:
        """Whether messages are held: read and not taken yet."""
        return self._held is not None

    @property
    def first_timestamp(self) -> int:
        """The timestamp of the first held message."""
        assert self._held is not None
        return int(self._held.timestamps[self._at])

    def is_live(self, patience_ns: int) -> bool:
        """Read messages unless some are held; return whether the source has not ended."""
        if not self.ended and self._held is None:
            self._load(patience_ns)
        return not self.ended

    def _load(self, patience_ns: int) -> None:
        polled = self._store.clock() if self._end is None else 0  # before polling
        try:
            batch = self._batch(LOAD_COUNT, 0)
        except errors.NothingReceived:
            self._found_none(polled - patience_ns)
            return
        if batch is None:
            self.ended = True
            return
        self._held, self._at = batch, 0
        is_last = self._end is not None and self.sequence >= self._end
        self.bound = fmt.TIMESTAMP_MAX if is_last else max(self.bound, int(batch.timestamps[-1]))
        self.read_at = time.monotonic()

    def _found_none(self, bound: int) -> None:
        self.bound = max(self.bound, bound)
        waits_for_recovery = self._end is not None
        self.ended = waits_for_recovery or (self._until is not None and self.bound >= self._until)

    def take(self, cut: int, *, inclusive: bool) -> MergedSlice | None:
        """Return the held messages up to a time, and keep the rest."""
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
        """Prepare to wait for a message; return the value of the doorbell."""
        return self._store.notifier.prepare_wait()

    def add(self, waiter: Waiter) -> None:
        """Register a waiter with the queue's notifier."""
        self._store.notifier.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Unregister a waiter."""
        self._store.notifier.remove(waiter)

    def may_have(self) -> bool:
        """Whether a message may be available; called by the notifier's thread."""
        return self._is_near()

    def seconds_to(self, timestamp: int) -> float:
        """Return the seconds until this queue's clock reaches a time, ns since 1970."""
        return (timestamp - self._store.clock()) / 1e9

    def seconds_to_end(self, patience_ns: int) -> float:
        """Return the seconds until the clock ends it; infinite without `until`."""
        return math.inf if self._until is None else self.seconds_to(self._until + patience_ns)


class _Here:
    """Stand-in for an event loop, for a thread that waits without one."""

    @staticmethod
    def call_soon_threadsafe(call: Callable[..., object], *arguments: object) -> None:
        """Call it at once, in the notifier's thread."""
        call(*arguments)


def sleep_until_wakeup(
    silent: Sequence[tuple[MergeSource, int]], wakeup: Wakeup, seconds: float
) -> None:
    """Sleep until one of some queues has a message, the event is set, or the time is over.

    Args:
        silent: queues whose last poll was empty, each with its doorbell's value from before it.
        wakeup: cleared before that poll.
        seconds: to sleep at most.
    """
    here: Any = _Here()
    waiters = [
        (source, Waiter(doorbell, here, wakeup.set, source.may_have)) for source, doorbell in silent
    ]
    try:
        for source, waiter in waiters:
            source.add(waiter)
        wakeup.wait(seconds)
    finally:
        for source, waiter in waiters:
            source.remove(waiter)


async def await_wakeup(silent: Sequence[tuple[MergeSource, int]], seconds: float) -> None:
    """Let the event loop run until one of some queues has a message, or the time is over.

    Args:
        silent: queues whose last poll was empty, each with its doorbell's value from before it.
        seconds: to wait at most.
    """
    import asyncio  # noqa: PLC0415 - only for callers that wait with it

    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    waiters = [
        (source, Waiter(doorbell, loop, wake, source.may_have)) for source, doorbell in silent
    ]
    timer = loop.call_later(seconds, wake)
    try:
        for source, waiter in waiters:
            source.add(waiter)
        await woken
    finally:
        for source, waiter in waiters:
            source.remove(waiter)
        timer.cancel()
