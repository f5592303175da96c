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

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core, errors
from pagequeue._core import Message
from pagequeue.awaiting import first
from pagequeue.bell import SLICE_SECONDS
from pagequeue.closing import Closing
from pagequeue.named import open_consumer
from pagequeue.pumps import Pump, TaskPump, ThreadPump
from pagequeue.upkeep import Upkeep
from pagequeue.valued import make_producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import TypeAlias
    from weakref import WeakSet

    from typing_extensions import Buffer

    from pagequeue.moments import Clock
    from pagequeue.named import NamedConsumer
    from pagequeue.store import Store

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

    def __init__(self, store: Store, pump: Pump, consumer: NamedConsumer, *, acks: bool) -> None:
        self._store = store
        self._pump = pump
        self._consumer = consumer
        self._acks = acks
        self._needs_loop = isinstance(pump, TaskPump)
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
        return self._pump.stored

    @property
    def unstored(self) -> list[Buffer]:
        """The element that was drawn and could not be stored, if there is one."""
        return list(self._pump.unstored)

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
        found = await first(self._store.bell, self._attempt, is_near=self._is_near)
        consumer._rest()  # noqa: SLF001 - the same
        if isinstance(found, Message):
            return found
        self._raise_error()
        raise StopAsyncIteration

    def _attempt(self) -> Message | Pump | None:
        """Return the next message; the pump at the end of all; None when there is nothing yet."""
        is_end = self._is_at_end()
        message = self._consumer.poll()
        return message if message is not None or not is_end else self._pump

    def _is_near(self) -> bool:
        return self._pump.end_sequence is not None or self._consumer._is_near()  # noqa: SLF001

    def _done_with_last(self) -> None:
        """Acknowledge what came out, because the next is asked for."""
        if self._acks:
            self._consumer.ack()
        else:
            self._consumer._check()  # noqa: SLF001 - its own package

    def _is_at_end(self) -> bool:
        """Whether the upstream has ended and all that was stored by then has come out."""
        end_sequence = self._pump.end_sequence
        return end_sequence is not None and self._consumer.sequence >= end_sequence

    def _raise_error(self) -> None:
        """Raise what ended the upstream, once."""
        if self._pump.error is not None and not self._has_raised:
            self._has_raised = True
            raise self._pump.error

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop drawing, and let go of the consumer; closing again does nothing.

        The upstream has a second to give what it was asked for, which is stored. What came out last
        is not acknowledged by this: it comes again.
        """
        if self._store.is_forked:
            return  # the parent's
        if isinstance(self._pump, ThreadPump):
            self._pump.close(CLOSE_SECONDS)
        elif isinstance(self._pump, TaskPump):
            self._pump.stop()
        self._consumer.close()

    async def aclose(self) -> None:
        """Close, and let the event loop run meanwhile; the upstream's task has ended behind it."""
        try:
            if isinstance(self._pump, TaskPump):
                await self._pump.aclose()
            elif isinstance(self._pump, ThreadPump):
                await self._pump.aclose(CLOSE_SECONDS)
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
        if hasattr(self, "_pump") and not self._store.is_forked:
            self._pump.stop()


class Flows(Upkeep):
    """The part of `Queue` that persists iterators."""

    _clock: Clock | None
    _sync_every: int
    _handles: WeakSet[Closing]

    def persist(
        self, source: Source, name: str, *, commit: str = "auto", on_expired: str = "raise"
    ) -> Flow:
        """Store what an iterator gives, in the background, and give it out again, at least once.

        What was stored and not acknowledged before, in this or any earlier process, comes first.
        Drawing begins at once, in a thread, or in a task of the running event loop if the source is
        asynchronous. It is drawn from at its own pace and stands still while the queue has no room:
        give the queue a `retention` with `max_bytes`, and `on_full="block"`. A queue is for one
        flow: all that anybody sends to it comes out.

        Args:
            source: an iterable or asynchronous iterable of bytes-like elements; or a function that
                gets the last message of the queue, or None, and returns one that goes on behind it,
                so that nothing is lost or doubled on the way into the queue, whatever is killed.
            name: of the consumer that the elements come out by.
            commit: `"auto"` acknowledges an element when the next one is asked for, and the last
                one when the end is. `"manual"` leaves it to `Flow.commit`.
            on_expired: as for `consumer`.

        Returns:
            a `Flow`: iterate it, with `for` or, for any source, `async for`; close it behind that,
            or use it in a `with` or `async with` block.

        Raises:
            ConsumerInUse: a flow of this name, or the consumer, is open elsewhere.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            InvalidOption, TypeError: what was given cannot be.
            RuntimeError: the source is asynchronous, and no event loop is running.

        Source: FORMAT.md, "Cursors"; keeps I11.
        """
        store = self._open()
        self._check_writable("persist")
        if commit not in {"auto", "manual"}:
            raise errors.InvalidOption(
                f'commit is {commit!r}: give "auto" or "manual"', path=store.folder.path
            )
        consumer = open_consumer(
            store, name, since=None, sequence=None, latest=False,
            durable_only=False, on_expired=on_expired,
        )  # fmt: skip
        try:
            pump = _pump(store, _upstream(source, self), self._clock, self._sync_every)
        except BaseException:
            consumer.close()
            raise
        pump.keeps = consumer
        flow = Flow(store, pump, consumer, acks=commit == "auto")
        self._handles.add(flow)
        return flow

    def last(self, count: int) -> Iterable[Message]:
        """Return the last messages."""
        raise NotImplementedError


def _upstream(source: Source, queue: Flows) -> Upstream:
    """Return what is drawn from; a function is asked for it.

    Raises:
        TypeError: it is nothing that can be drawn from.
    """
    upstream = source
    if not isinstance(source, Iterable | AsyncIterable):
        if not callable(source):
            raise TypeError(
                f"{type(source).__name__} is neither iterable, nor asynchronously iterable, nor "
                "a function that returns what is"
            )
        upstream = source(next(iter(queue.last(1)), None))
    if isinstance(upstream, str | bytes | bytearray | memoryview):
        raise TypeError(f"{type(upstream).__name__} is one element: give an iterable of them")
    if not isinstance(upstream, Iterable | AsyncIterable):
        raise TypeError(f"the function returned {type(upstream).__name__}, which is not iterable")
    return upstream


def _pump(store: Store, upstream: Upstream, clock: Clock | None, sync_every: int) -> Pump:
    """Begin to draw."""
    producer = make_producer(store, clock, sync_every)
    try:
        if isinstance(upstream, AsyncIterable):
            return TaskPump(store, producer, upstream)
        return ThreadPump(store, producer, upstream)
    except BaseException:
        producer.close()
        raise
