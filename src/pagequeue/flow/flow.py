"""Flow: an iterator goes into a queue in the background, and comes out of it, at least once.

    upstream -> pump (a thread or a task) -> the queue -> named consumer -> for message in flow

The upstream is drawn from at its own pace, and stands still while the queue has no room. What was
stored and not acknowledged before comes first, in the order of the queue. An element is
acknowledged when the next one is asked for, so whoever dies in between gets it again.

A kill, at any moment: what is stored stays, and the element that the upstream had given and that
was not stored yet is lost to the queue. An upstream that can begin behind a given element loses
nothing: `persist` takes a function that gets the last stored message and returns the upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core, errors
from pagequeue._core import Message
from pagequeue.flow.feeders import Feeder, TaskFeeder, ThreadFeeder
from pagequeue.util.closing import Closing
from pagequeue.wait.coroutine import first
from pagequeue.wait.notifier import SLICE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Buffer

    from pagequeue.receive.named_consumer import NamedConsumer
    from pagequeue.store.store import Store

    Upstream: TypeAlias = Iterable[Buffer] | AsyncIterable[Buffer]
    Source: TypeAlias = Upstream | Callable[[Message | None], Upstream]

CLOSE_SECONDS: Final = 1.0
"""So long closing waits for the upstream to give what it was asked for."""
SLICE_NS: Final = int(SLICE_SECONDS * 1e9)


class Flow(Closing):
    """What `Queue.persist` returns: iterate it, with `for` or `async for`, and close it.

    It belongs to one thread at a time. An error of the upstream is raised when all that was stored
    before it has come out.
    """

    def __init__(self, store: Store, pump: Feeder, consumer: NamedConsumer, *, acks: bool) -> None:
        self._store = store
        self._feeder = pump
        self._consumer = consumer
        self._acks = acks
        self._needs_loop = isinstance(pump, TaskFeeder)
        self._has_raised = False

    # --- what stands where ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the consumer downstream."""
        return self._consumer.name

    @property
    def lag(self) -> int:
        """Messages stored and not yet given downstream."""
        return self._consumer.lag

    @property
    def stored(self) -> int:
        """Elements of the upstream that this flow has stored."""
        return self._feeder.stored

    @property
    def unstored(self) -> list[Buffer]:
        """The element that was drawn and could not be stored, if there is one."""
        return list(self._feeder.unstored)

    @property
    def acknowledged(self) -> int:
        """Every message below this sequence is acknowledged."""
        return self._consumer.acknowledged

    @property
    def missed(self) -> int:
        """Messages that retention took before they came out, with `on_expired="skip"`."""
        return self._consumer.missed

    def commit(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge a message and all before it; all that came out so far by default.

        Args:
            message_or_sequence: the last message that is done, or its sequence.
            durable: return when the place is on stable storage.
        """
        self._consumer.ack(message_or_sequence, durable=durable)

    async def commit_async(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge as `commit` does; with `durable` the event loop runs during the sync."""
        await self._consumer.ack_async(message_or_sequence, durable=durable)

    # --- downstream -------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._done_with_last()
        if self._needs_loop:
            raise errors.UsageError(
                "its upstream is asynchronous and needs the event loop: use `async for`",
                path=self._store.folder.path,
            )
        message = self._consumer.poll()
        return message if message is not None else self._wait()

    def _wait(self) -> Message:
        """Return the next message when it comes; raise at the end."""
        region = self._store.write_meta.region
        while True:
            doorbell = _core.doorbell(region, True)
            is_end = self._is_at_end()  # before the last look, because it comes behind all else
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
        consumer = self._consumer
        await consumer._take_turns()  # noqa: SLF001 - its own package
        found = await first(self._store.notifier, self._attempt, maybe_ready=self._is_near)
        consumer._rest()  # noqa: SLF001 - the same
        if isinstance(found, Message):
            return found
        self._raise_error()
        raise StopAsyncIteration

    def _attempt(self) -> Message | Feeder | None:
        """Return the next message; the pump at the end of all; None when there is nothing yet."""
        is_end = self._is_at_end()
        message = self._consumer.poll()
        return message if message is not None or not is_end else self._feeder

    def _is_near(self) -> bool:
        return self._feeder.end_sequence is not None or self._consumer._is_near()  # noqa: SLF001

    def _done_with_last(self) -> None:
        """Acknowledge what came out, because the next is asked for."""
        if self._acks:
            self._consumer.ack()
        else:
            self._consumer._check()  # noqa: SLF001 - its own package

    def _is_at_end(self) -> bool:
        """Whether the upstream has ended and all that was stored by then has come out."""
        end_sequence = self._feeder.end_sequence
        return end_sequence is not None and self._consumer.sequence >= end_sequence

    def _raise_error(self) -> None:
        """Raise what ended the upstream, once."""
        if self._feeder.error is not None and not self._has_raised:
            self._has_raised = True
            raise self._feeder.error

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop drawing, and let go of the consumer; closing again does nothing.

        The upstream has a second to give what it was asked for, which is stored. What came out last
        is not acknowledged by this: it comes again.
        """
        if self._store.is_forked:
            return  # the parent's
        if isinstance(self._feeder, ThreadFeeder):
            self._feeder.close(CLOSE_SECONDS)
        elif isinstance(self._feeder, TaskFeeder):
            self._feeder.stop()
        self._consumer.close()

    async def aclose(self) -> None:
        """Close, and let the event loop run meanwhile; the upstream's task has ended behind it."""
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

    def __del__(self) -> None:
        if hasattr(self, "_feeder") and not self._store.is_forked:
            self._feeder.stop()
