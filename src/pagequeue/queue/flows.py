"""Flows: iterators whose elements are stored in a queue on their way."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.flow.feeders import Feeder, TaskFeeder, ThreadFeeder
from pagequeue.flow.flow import Flow
from pagequeue.meta.last_stored import bad_record, read_stored
from pagequeue.queue.reading import last
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.send.codec_producer import make_producer
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from pagequeue._core import Message
    from pagequeue.flow.flow import Source, Upstream
    from pagequeue.queue.lifecycle import OpenOptions, OpenQueue
    from pagequeue.receive.named_consumer import NamedConsumer
    from pagequeue.store.store import Store
    from pagequeue.util.literals import CommitMode, OnExpired
    from pagequeue.util.timestamps import TimeLike


def persist(
    queue: OpenQueue,
    source: Source,
    name: str,
    *,
    since: TimeLike | None,
    commit: CommitMode,
    on_expired: OnExpired,
) -> Flow:
    """Store what an iterator yields, and return it again; as `Queue.persist`."""
    store = queue.writable("persist")
    if commit not in {"auto", "manual"}:
        raise errors.InvalidOption(
            f"commit is {commit!r}", path=store.folder.path, remedy='give "auto" or "manual"'
        )
    oldest = None if since is None else to_ns(since, store.clock)
    consumer = open_consumer(
        store, name, since=None, sequence=None, latest=False,
        durable_only=False, on_expired=on_expired,
    )  # fmt: skip
    try:
        if oldest is not None:
            _skip_to(store, consumer, oldest)
        feeder = _feeder(store, _upstream(source, queue, consumer), queue.options)
    except BaseException:
        consumer.close()
        raise
    feeder.keeps = consumer
    return queue.keep(Flow(store, feeder, consumer, acks=commit == "auto"), store)


def _skip_to(store: Store, consumer: NamedConsumer, oldest: int) -> None:
    """Move a consumer to the first message that is not older than a time, but never back.

    By sequence: a time that is yet to come would leave out what is stored from now on.
    """
    while (place := store.seek_since(oldest).sequence) > consumer.acknowledged:
        try:
            consumer.seek(sequence=place)
        except errors.Expired:
            continue  # retention removed it meanwhile
        return


def _last_stored(queue: OpenQueue, consumer: NamedConsumer) -> Message | None:
    """Return the queue's last message, even if retention removed its page; None: it never had one.

    From now on retention keeps a copy of it, as long as a consumer of this name exists.

    Raises:
        CorruptMeta: the copy that retention kept is damaged or missing.
        SyncFailed: the record that a flow exists is not on stable storage.
    """
    store = queue.readable()
    flow_from = consumer.begin_flow()
    while True:
        tail = store.tail.sequence
        if store.read_meta.head_sequence < tail:
            message = next(iter(last(queue, 1)), None)
            if message is not None:
                return message
            continue  # retention removed it meanwhile
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


def _upstream(source: Source, queue: OpenQueue, consumer: NamedConsumer) -> Upstream:
    """Return the iterable to read from; if the source is a function, call it.

    Raises:
        TypeError: the source is neither an iterable nor a function that returns one.
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


def _feeder(store: Store, upstream: Upstream, options: OpenOptions) -> Feeder:
    """Start to read from the upstream, in the background."""
    producer = make_producer(store, options.clock, options.sync_every)
    try:
        if isinstance(upstream, AsyncIterable):
            return TaskFeeder(store, producer, upstream)
        return ThreadFeeder(store, producer, upstream)
    except BaseException:
        producer.close()
        raise
