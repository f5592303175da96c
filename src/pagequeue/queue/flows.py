"""The part of `Queue` that persists iterators."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.flow.feeders import Feeder, TaskFeeder, ThreadFeeder
from pagequeue.flow.flow import Flow
from pagequeue.meta.last_stored import bad_record, read_stored
from pagequeue.queue.maintenance import QueueMaintenance
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.send.codec_producer import make_producer

if TYPE_CHECKING:
    from pagequeue._core import Message
    from pagequeue.flow.flow import Source, Upstream
    from pagequeue.receive.named_consumer import NamedConsumer
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock


class QueueFlows(QueueMaintenance):
    """The part of `Queue` that persists iterators."""

    _clock: Clock | None
    _sync_every: int

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
                gets the last message of the queue, or None, and returns one that continues after
                it, so that nothing is lost or doubled on the way into the queue, whatever is
                killed. It is the last message also when retention took its page since: it is kept
                until the consumer of this name is removed.
            name: of the consumer that the elements come out by.
            commit: `"auto"` acknowledges an element when the next one is asked for, and the last
                one when the end is. `"manual"` leaves it to `Flow.commit`.
            on_expired: as for `consumer`.

        Returns:
            a `Flow`: iterate it, with `for` or, for any source, `async for`; close it behind that,
            or use it in a `with` or `async with` block.

        Raises:
            ConsumerInUse: a flow of this name, or the consumer, is open elsewhere.
            CorruptMeta: the last message that was kept for the source is damaged or missing.
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
            pump = _feeder(store, _upstream(source, self, consumer), self._clock, self._sync_every)
        except BaseException:
            consumer.close()
            raise
        pump.keeps = consumer
        flow = Flow(store, pump, consumer, acks=commit == "auto")
        return self._keep(flow, store)

    def last(self, count: int) -> Iterable[Message]:
        """Return the last messages."""
        raise NotImplementedError


def _last_stored(queue: QueueFlows, consumer: NamedConsumer) -> Message | None:
    """Return the last message of the queue, also when retention took its page; None: there is none.

    From now on retention keeps it, for as long as there is a consumer of this name.

    Raises:
        CorruptMeta: what retention kept is damaged or missing.
        SyncFailed: it cannot be said durably that there is a flow.
    """
    store = queue._open()  # noqa: SLF001 - its own package
    flow_from = consumer.begin_flow()
    while True:
        tail = store.tail.sequence
        if store.read_meta.head_sequence < tail:
            message = next(iter(queue.last(1)), None)
            if message is not None:
                return message
            continue  # retention took it meanwhile
        sequence = tail - 1
        try:
            found = read_stored(store.folder, store.prefix, store.meta.queue_id, sequence)
        except errors.QueueNotFound as error:
            if store.tail.sequence != tail:
                continue
            if tail < flow_from:  # nothing was sent since a flow first asked
                return None
            path = store.folder.full(fmt.stored_name(store.prefix, sequence))
            raise bad_record(path, "missing") from error
        if store.tail.sequence == tail:
            return _core.Message(
                found.payload, found.timestamp, found.sequence, store.schema.decoder
            )


def _upstream(source: Source, queue: QueueFlows, consumer: NamedConsumer) -> Upstream:
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
        upstream = source(_last_stored(queue, consumer))
    if isinstance(upstream, str | bytes | bytearray | memoryview):
        raise TypeError(f"{type(upstream).__name__} is one element: give an iterable of them")
    if not isinstance(upstream, Iterable | AsyncIterable):
        raise TypeError(f"the function returned {type(upstream).__name__}, which is not iterable")
    return upstream


def _feeder(store: Store, upstream: Upstream, clock: Clock | None, sync_every: int) -> Feeder:
    """Begin to draw."""
    producer = make_producer(store, clock, sync_every)
    try:
        if isinstance(upstream, AsyncIterable):
            return TaskFeeder(store, producer, upstream)
        return ThreadFeeder(store, producer, upstream)
    except BaseException:
        producer.close()
        raise
