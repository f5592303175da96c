"""Flow: an iterator is stored in a queue in the background and read from it, at least once.

    upstream -> feeder (a thread or a task) -> the queue -> named consumer -> for message in flow

The feeder draws from the upstream at the upstream's pace, and pauses while the queue is full.
Messages that an earlier flow stored and did not acknowledge come first, in the order of the queue.
An element is acknowledged when the next one is requested, so a process that dies in between gets it
again.

A kill at any moment loses at most the element that the upstream had given and that was not stored
yet. An upstream that can start after a given element loses none: `persist` takes a function that
gets the last stored message and returns the upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, TypeAlias

from pagequeue import _core, errors
from pagequeue._core import Message
from pagequeue.flow.feeders import Feeder, TaskFeeder, ThreadFeeder
from pagequeue.util.closing import Closing, finalizer
from pagequeue.wait.coroutine import Turns, first
from pagequeue.wait.notifier import SLICE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable
    from types import TracebackType

    from typing_extensions import Buffer

    from pagequeue.receive.named_consumer import NamedConsumer
    from pagequeue.store.store import Store

Upstream: TypeAlias = "Iterable[Buffer] | AsyncIterable[Buffer]"
"""What a flow draws from."""
Source: TypeAlias = "Upstream | Callable[[Message | None], Upstream]"
"""The same, or a function of the last stored message that returns it."""
CLOSE_SECONDS: Final = 1.0
"""Longest time that closing waits for the upstream's pending element."""
SLICE_NS: Final = int(SLICE_SECONDS * 1e9)


class Flow(Closing):
    """The stream that `Queue.persist` returns: iterate it with `for` or `async for`, and close it.

    It belongs to one thread at a time. An error of the upstream is raised after all messages that
    were stored before it.

    Example:
        >>> with queue.persist(lines, name="reader") as flow:
        ...     for message in flow:
        ...         print(message.payload)
        b'one'
        b'two'
    """

    def __init__(
        self, store: Store, feeder: Feeder, consumer: NamedConsumer, *, acks: bool
    ) -> None:
        self._store = store
        self._feeder = feeder
        self._consumer = consumer
        self._acks = acks
        self._needs_loop = isinstance(feeder, TaskFeeder)
        self._has_raised = False
        self._turns = Turns()

    # --- state ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the consumer downstream.

        Example:
            >>> flow.name
            'elements'
        """
        return self._consumer.name

    @property
    def lag(self) -> int:
        """Messages stored and not yet given downstream.

        Example:
            >>> [element.payload for element in flow], flow.lag
            ([b'one', b'two'], 0)
        """
        return self._consumer.lag

    @property
    def stored(self) -> int:
        """Elements of the upstream that this flow has stored.

        Example:
            >>> len(list(flow)), flow.stored
            (2, 2)
        """
        return self._feeder.stored

    @property
    def unstored(self) -> list[Buffer]:
        """The element that was drawn and not stored because of an error; else empty.

        Example:
            >>> flow.unstored
            []
        """
        return list(self._feeder.unstored)

    @property
    def acknowledged(self) -> int:
        """Every message below this sequence is acknowledged.

        Example:
            >>> len(list(flow)), flow.acknowledged
            (2, 2)
        """
        return self._consumer.acknowledged

    @property
    def missed(self) -> int:
        """Messages that retention removed before they came out, with `on_expired="skip"`.

        Example:
            >>> flow.missed
            0
        """
        return self._consumer.missed

    def commit(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge a message and all before it; by default all that came out so far.

        Args:
            message_or_sequence: the last message that is done, or its sequence.
            durable: return once the acknowledgement is on stable storage.

        Example:
            >>> flow.commit(message, durable=True)
        """
        self._consumer.ack(message_or_sequence, durable=durable)

    async def commit_async(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge as `commit` does; with `durable` the event loop runs during the sync.

        Args:
            message_or_sequence: the last message that is done, or its sequence; None: all that
                came out.
            durable: return once the acknowledgement is on stable storage.

        Example:
            >>> await flow.commit_async(message, durable=True)
        """
        await self._consumer.ack_async(message_or_sequence, durable=durable)

    # --- downstream -------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._done_with_last()
        if self._needs_loop:
            raise errors.UsageError(
                "its upstream is asynchronous and needs the event loop",
                path=self._store.folder.path,
                remedy="use `async for`",
            )
        message = self._consumer.poll()
        return message if message is not None else self._wait()

    def _wait(self) -> Message:
        """Wait for the next message and return it; raise at the end."""
        region = self._store.write_meta.region
        while True:
            doorbell = _core.doorbell(region, True)
            is_end = self._is_at_end()  # before the last poll, because the end is set last
            message = self._consumer.poll()
            if message is not None:
                return message
            if is_end:
                self._raise_error()
                raise StopIteration
            _core.await_doorbell(region, doorbell, SLICE_NS)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._done_with_last()
        await self._turns.take()
        found = await first(self._store.notifier, self._attempt, maybe_ready=self._is_near)
        self._turns.rest()
        if isinstance(found, Message):
            return found
        self._raise_error()
        raise StopAsyncIteration

    def _attempt(self) -> Message | Feeder | None:
        """Return the next message; at the end the feeder; None if no message is available yet."""
        is_end = self._is_at_end()
        message = self._consumer.poll()
        return message if message is not None or not is_end else self._feeder

    def _is_near(self) -> bool:
        return self._feeder.end_sequence is not None or self._consumer._is_near()  # noqa: SLF001

    def _done_with_last(self) -> None:
        """Acknowledge the messages that came out, because the next one is requested."""
        if self._acks:
            self._consumer.ack()
        else:
            self._consumer._check()  # noqa: SLF001 - its own package

    def _is_at_end(self) -> bool:
        """Whether the upstream has ended and all messages stored until then have come out."""
        end_sequence = self._feeder.end_sequence
        return end_sequence is not None and self._consumer.sequence >= end_sequence

    def _raise_error(self) -> None:
        """Raise the error that ended the upstream, once."""
        if self._feeder.error is not None and not self._has_raised:
            self._has_raised = True
            raise self._feeder.error

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop drawing and close the consumer; closing again has no effect.

        The upstream has a second to give its pending element, which is stored. Closing does not
        acknowledge the message that came out last: it is redelivered.

        Example:
            >>> flow.close()
        """
        if self._store.is_forked:
            return  # the parent's
        if isinstance(self._feeder, ThreadFeeder):
            self._feeder.close(CLOSE_SECONDS)
        elif isinstance(self._feeder, TaskFeeder):
            self._feeder.stop()
        self._consumer.close()

    async def aclose(self) -> None:
        """Close, and let the event loop run meanwhile; afterwards the upstream's task has ended.

        Example:
            >>> await flow.aclose()
        """
        try:
            if isinstance(self._feeder, TaskFeeder):
                await self._feeder.aclose()
            elif isinstance(self._feeder, ThreadFeeder):
                await self._feeder.aclose(CLOSE_SECONDS)
        finally:
            self._consumer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_feeder") and not self._store.is_forked:
            self._feeder.stop()
