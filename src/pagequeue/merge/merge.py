"""Merge: yields messages of several queues in one order, waits for them, and keeps a pace.

Generators find the next messages and yield whenever they must wait; their caller waits as a thread
or as a coroutine.
"""

from __future__ import annotations

import contextlib
import math
import time
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pagequeue import errors
from pagequeue.columns import arrow
from pagequeue.columns.inputs import StreamSource
from pagequeue.format import READ_COUNT_MAX
from pagequeue.merge.batch import MergedBatch, arrow_schema
from pagequeue.merge.order import MergeOrder
from pagequeue.merge.source import await_wakeup, sleep_until_wakeup
from pagequeue.receive.pace import NS_PER_S
from pagequeue.receive.paced_replay import due_count
from pagequeue.util.arguments import whole
from pagequeue.util.closing import Closing
from pagequeue.util.optional import pyarrow
from pagequeue.util.wakeup import Wakeup
from pagequeue.wait.coroutine import Turns, check_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Sequence

    from pagequeue.merge.batch import Merged
    from pagequeue.merge.source import MergeSource
    from pagequeue.receive.pace import Pace

INSIDE: Final = "inside"
ITEMS_COUNT: Final = 1024
"""Messages made at a time."""
Result = TypeVar("Result")


class _Wait(NamedTuple):
    """A wait: for a message in one of the silent queues, or, without such, for the pace."""

    silent: list[tuple[MergeSource, int]]
    seconds: float


class Merge(Closing):
    """Messages of several queues in one order. Made by `merge`; belongs to one thread at a time.

    Iterating gives `Merged` pairs, `batches` the same as columns; each continues where the other
    stopped. With `follow` it waits for ever; `async for` does too, and lets the event loop run.

    Attributes:
        names: of the queues, for Arrow.

    Example:
        >>> with merge([first, second]) as merged:
        ...     [message.payload for _, message in merged]
        [b'a', b'b']
    """

    __slots__ = (
        "_at",
        "_busy",
        "_closed",
        "_items",
        "_left",
        "_ordered",
        "_ordering",
        "_pace",
        "_sources",
        "_turns",
        "_wakeup",
        "names",
    )

    def __init__(
        self,
        sources: Sequence[MergeSource],
        names: tuple[str, ...],
        patience_ns: int,
        pace: Pace | None,
    ) -> None:
        self._sources = tuple(sources)
        self._ordering = MergeOrder(sources, names, patience_ns)
        self._pace = pace
        self._ordered: MergedBatch | None = None  # returned, or made, up to `_at`
        self._at = 0
        self._items: Iterator[Merged] = iter(())  # being made, of messages before `_at`
        self._left: Iterator[int] = iter(())  # knows how many of them remain
        self._wakeup = Wakeup()
        # The thread inside. Entered by a single call into C, so that Ctrl-C cannot leave it held.
        self._busy: dict[str, object] = {}
        self._closed = False
        self._turns = Turns()
        self.names: tuple[str, ...] = names

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Merge of {', '.join(map(repr, self.names))}, {state}>"

    @property
    def late(self) -> int:
        """Messages that came too late for their place, and were returned after newer ones.

        Example:
            >>> merged.late
            0
        """
        return self._ordering.late

    @property
    def missed(self) -> int:
        """Messages that retention removed first, skipped with `on_expired="skip"`.

        Example:
            >>> merged.missed
            0
        """
        return sum(source.missed for source in self._sources)

    # --- public -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Merged]:
        while self._run(self._make(None)):
            yield from self._items

    def __aiter__(self) -> AsyncIterator[Merged]:
        return self._iterate_async()

    def poll(self) -> Merged | None:
        """Return the next message, or None if none is ready. Never waits.

        Example:
            >>> merged.poll()
            Merged(queue=0, message=Message(payload=b'a', timestamp=1, sequence=0))
        """
        try:
            return self._run(self._next(0))
        except errors.NothingReceived:
            return None

    def receive(self, timeout: float | None = None) -> Merged:
        """Return the next message, waiting for it.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            TimeoutError: none was ready in time, or the merge has ended; it has not moved.
            Expired: retention was faster. CorruptFrame, CorruptPage: damage is reached.
            ConcurrentUse: another thread is inside this merge.
            ClosedError, ForkedError: the merge, or one of its queues, is closed or the parent's.

        Example:
            >>> queue, message = merged.receive(timeout=1.0)
        """
        return self._there(self._run(self._next(timeout)))

    def receive_many(self, limit_count: int = 1024, timeout: float | None = None) -> MergedBatch:
        """Return the next messages, at least one.

        Args:
            limit_count: most messages to return, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Raises:
            As for `receive`.

        Example:
            >>> merged.receive_many(2).payloads
            [b'a', b'b']
        """
        return self._there(self._run(self._next_batch(limit_count, timeout)))

    def batches(self, limit_count: int = 65536) -> Iterator[MergedBatch]:
        """Return an iterator of batches: the same messages, as columns.

        Args:
            limit_count: most messages in a batch, 1 to 1_048_576. A batch also ends where more of
                one of the queues must be read, which is done about 1 MiB at a time.

        Example:
            >>> sum(len(batch) for batch in merged.batches())
            2
        """
        limit_count = _check_limit(limit_count)
        return iter(lambda: self._run(self._next_batch(limit_count, None)), None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the remaining messages as the capsule of Arrow's stream.

        The columns are those of `MergedBatch.to_arrow`. Libraries that know Arrow accept a merge
        directly: `polars.DataFrame(merge(...))`.

        Raises:
            MissingExtra: pyarrow is not installed. The reader gets later errors from its own
                library; `to_arrow` raises them as they are.
        """
        capsule: object = self.to_arrow().__arrow_c_stream__(requested_schema)
        return capsule

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow may be missing
        """Return the remaining messages as a `pyarrow.RecordBatchReader`; needs the extra `arrow`.

        The columns are those of `MergedBatch.to_arrow`, payloads large_binary in all batches where
        a message exceeds 2 GiB. The reader raises what `receive` raises.

        Raises:
            MissingExtra: pyarrow is not installed.
            MessageTooLarge: from the reader of a merge that follows: such a message came later.

        Example:
            >>> merged.to_arrow().read_all().num_rows
            2
        """
        # No generator: that would be at its end after an error, and the rest seem to be read.
        wide = any(source.holds_over(arrow.COPY_BYTES_MAX) for source in self._sources)
        made = map(partial(MergedBatch._to_arrow, wide=wide), self.batches())  # noqa: SLF001 - its own package
        schema = arrow_schema(self._ordering.schema, wide=wide)
        return pyarrow().RecordBatchReader.from_batches(schema, made)

    async def receive_async(self, timeout: float | None = None) -> Merged:
        """Return the next message, as `receive` does, and let the event loop run meanwhile.

        A wait that is cancelled consumes no message.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Example:
            >>> queue, message = await merged.receive_async(timeout=1.0)
        """
        return self._there(await self._run_async(self._next(timeout)))

    async def receive_many_async(
        self, limit_count: int = 1024, timeout: float | None = None
    ) -> MergedBatch:
        """Return the next messages, as `receive_many` does, and let the event loop run meanwhile.

        A wait that is cancelled consumes no message.

        Args:
            limit_count: most messages to return, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Example:
            >>> batch = await merged.receive_many_async(2)
        """
        return self._there(await self._run_async(self._next_batch(limit_count, timeout)))

    def close(self) -> None:
        """Release the queues' pages; the queues stay open. Closing again has no effect.

        Another thread may close it: a thread that waits then gets `ClosedError`.

        Example:
            >>> merged.close()
        """
        self._closed = True
        self._wakeup.set()
        for source in self._sources:
            source.close()

    # --- the next messages; each wait is yielded to the caller, which performs it -----------------

    def _next(self, timeout: float | None) -> Generator[_Wait, None, Merged | None]:
        """Find the next message; None at the end."""
        found = yield from self._make(timeout)
        return next(self._items) if found else None

    def _make(self, timeout: float | None) -> Generator[_Wait, None, bool]:
        """Make messages that are due; False at the end."""
        self._check()
        if length_hint(self._left):
            return True
        batch = yield from self._reach_batch(ITEMS_COUNT, timeout)
        if batch is not None:
            self._items, self._left = batch.items()
        return batch is not None

    def _next_batch(
        self, limit_count: int, timeout: float | None
    ) -> Generator[_Wait, None, MergedBatch | None]:
        """Find the next messages; None at the end."""
        limit_count = _check_limit(limit_count)
        self._at -= length_hint(self._left)
        self._items, self._left = iter(()), iter(())
        return (yield from self._reach_batch(limit_count, timeout))

    def _reach_batch(
        self, limit_count: int, timeout: float | None
    ) -> Generator[_Wait, None, MergedBatch | None]:
        """Return the next messages that are due; None at the end."""
        deadline = _deadline(timeout)
        if not (yield from self._reach(deadline, timeout)):
            return None
        assert self._ordered is not None
        batch = self._ordered[self._at : self._at + limit_count]
        if self._pace is not None:
            timestamps = batch.timestamps
            yield from self._reach_due(int(timestamps[0]), deadline, timeout)
            batch = batch[: due_count(self._pace, timestamps)]
        self._at += len(batch)
        return batch

    def _reach(self, deadline: float, timeout: float | None) -> Generator[_Wait, None, bool]:
        """Order messages unless ordered ones remain; False at the end."""
        self._check()
        if self._ordered is not None and self._at < len(self._ordered):
            return True
        ordering = self._ordering
        found = ordering.attempt()
        while found is None and not ordering.ended:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._timed_out(timeout)
            self._wakeup.clear()
            silent = ordering.prepare_wait()
            found = ordering.attempt()
            if found is None and not ordering.ended:
                self._check()  # closed before the event was cleared
                yield _Wait(silent, min(remaining, ordering.pause_seconds()))
                self._check()
                found = ordering.attempt()
        self._ordered, self._at = found, 0
        return found is not None

    def _reach_due(
        self, timestamp: int, deadline: float, timeout: float | None
    ) -> Generator[_Wait, None, None]:
        """Wait until a message is due."""
        pace = self._pace
        while pace is not None and (left := pace.left_ns(timestamp)) > 0:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise self._timed_out(timeout)
            yield _Wait([], min(left / NS_PER_S, remaining))
            self._check()

    # --- waiting ----------------------------------------------------------------------------------

    def _run(self, steps: Generator[_Wait, None, Result]) -> Result:
        with self._exclusive():
            while True:
                try:
                    wait = next(steps)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if wait.silent:
                    sleep_until_wakeup(wait.silent, self._wakeup, wait.seconds)
                elif self._pace is not None:
                    self._pace.sleep(wait.seconds, self._wakeup)

    async def _run_async(self, steps: Generator[_Wait, None, Result]) -> Result:
        await self._turns.take()
        with self._exclusive():
            while True:
                try:
                    wait = next(steps)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if wait.silent:
                    await await_wakeup(wait.silent, wait.seconds)
                elif self._pace is not None:
                    await self._pace.sleep_async(wait.seconds)
                self._turns.rest()

    async def _iterate_async(self) -> AsyncIterator[Merged]:
        while (item := await self._run_async(self._next(None))) is not None:
            yield item

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        me = object()
        try:
            if self._busy.setdefault(INSIDE, me) is not me:
                raise errors.ConcurrentUse(
                    "another thread or task is inside this merge", remedy="give each its own"
                )
            yield
        finally:
            try:
                self._leave(me)
            except BaseException:  # of a signal handler, perhaps before the call has left
                self._leave(me)
                raise

    def _leave(self, me: object) -> None:
        if self._busy.get(INSIDE) is me:
            self._busy.pop(INSIDE, None)

    def _check(self) -> None:
        if self._closed:
            raise errors.ClosedError("this merge is closed", remedy="make another one")
        for source in self._sources:
            source.check()

    def _there(self, found: Result | None) -> Result:
        if found is None:
            raise errors.NothingReceived("this merge has ended", remedy="make another one")
        return found

    def _timed_out(self, timeout: float | None) -> errors.NothingReceived:
        return errors.NothingReceived(
            f"no message of {len(self._sources)} queues within {timeout:g} s", remedy="call again"
        )


StreamSource.register(Merge)


def _check_limit(limit_count: int) -> int:
    return whole("limit_count", limit_count, 1, READ_COUNT_MAX)


def _deadline(timeout: float | None) -> float:
    timeout = check_timeout(timeout)
    return math.inf if timeout is None else time.monotonic() + timeout
