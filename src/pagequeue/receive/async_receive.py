"""How coroutines wait for messages, without a thread for each, and without losing any.

The coroutine that returns a message takes it, without a suspension in between; a wakeup is only a
hint. So a coroutine that is cancelled, at any time, has not moved the consumer, and one that is
woken and finds no message waits again.

asyncio itself is imported only when a coroutine waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pagequeue import errors
from pagequeue.wait.coroutine import Found, TakesTurns, check_timeout, first

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue._core import Message, Region
    from pagequeue.columns.batch import Batch
    from pagequeue.store.store import Store


class AsyncReads(TakesTurns):
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

        Any number of consumers wait on any number of loops with one thread for the queue. A
        cancelled wait has not moved the consumer.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            TimeoutError: no message was published in time; the consumer has not moved.
            Expired, CorruptFrame, CorruptPage, CorruptMeta, ClosedError: as for `receive`.

        Example:
            >>> message = await consumer.receive_async(timeout=1.0)

        Source: FORMAT.md, "Reading".
        """
        # Keeps I1, I2 and I7.
        timeout = check_timeout(timeout)
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

        Returns:
            1 to `limit_count` messages with consecutive sequences.

        Raises:
            TimeoutError: no message was published in time; the consumer has not moved.
            Expired, CorruptFrame, CorruptPage, CorruptMeta, ClosedError: as for `receive_many`.

        Example:
            >>> batch = await consumer.receive_many_async(100, timeout=1.0)

        Source: FORMAT.md, "Reading".
        """

        # Keeps I1, I2 and I7.
        def attempt() -> Batch | None:
            try:
                return self._batch(limit_count, 0)
            except errors.NothingReceived:
                return None

        timeout = check_timeout(timeout)
        await self._take_turns()
        batch = attempt()
        return batch if batch is not None else await self._wait_for(attempt, timeout)

    async def ack_async(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge as `ack` does; with `durable` the event loop runs during the sync.

        The cursor moves at once. If the task is cancelled during the sync, the cursor has moved,
        but may not be on stable storage.

        Args:
            message_or_sequence: as for `ack`.
            durable: return when the cursor is on stable storage.

        Raises:
            InvalidOption, SyncFailed, TypeError, UsageError: as for `ack`.

        Example:
            >>> await consumer.ack_async(message, durable=True)
        """
        self.ack(message_or_sequence)
        if durable:
            what = object()  # a sync that is running may have begun before the cursor moved
            await self._store.jobs.run(what, lambda _: self._sync_place()).wait()

    async def _wait_for(self, attempt: Callable[[], Found | None], timeout: float | None) -> Found:
        found = await first(
            self._store.notifier, attempt, maybe_ready=self._is_near, timeout=timeout
        )
        self._rest()
        if found is None:
            raise errors.NothingReceived(
                f"no message within {timeout:g} s",
                path=self._store.folder.path,
                remedy="call again",
            )
        return found

    def _is_near(self) -> bool:
        """Whether the next message may have been published; the notifier's thread calls this."""
        region = self._region
        if self._closed or region is None or self._store.awaits_recovery:
            return True
        return region.broken or region.load_half(self._position) != 0
