"""Flows: iterators whose elements are stored in a queue on their way."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.flow.feeders import Feeder, TaskFeeder, ThreadFeeder
from pagequeue.flow.flow import Flow
from pagequeue.meta.last_stored import bad_record, read_stored
from pagequeue.producer.codec_producer import make_producer
from pagequeue.queue.reading import last
from pagequeue.receive.consumer import Consumer
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.util.arguments import choice, type_error
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from pagequeue._core import Message
    from pagequeue.flow.flow import Source, Upstream
    from pagequeue.queue.lifecycle import OpenOptions, OpenQueue
    from pagequeue.receive.named_consumer import NamedConsumer
    from pagequeue.store.store import Store
    from pagequeue.util.literals import CommitMode, OnExpired
    from pagequeue.util.timestamps import TimeLike


ONE_ELEMENT = (str, bytes, bytearray, memoryview)
"""Iterable, and meant as one element."""


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
    _check_source(source)
    choice("commit", commit, ("auto", "manual"), path=store.folder.path)
    oldest = None if since is None else to_ns(since, store.clock)
    consumer = open_consumer(
        store,
        name,
        since=None,
        sequence=None,
        latest=False,
        durable_only=False,
        on_expired=on_expired,
    )
    try:
        if oldest is not None:
            _skip_to(store, consumer, oldest)
        upstream = _upstream(source, queue, consumer)
        feeder = _feeder(store, upstream, consumer, queue.options)
    except BaseException:
        consumer.close()
        raise
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
    flow_from = consumer._begin_flow()  # noqa: SLF001 - no user's
    while True:
        tail = store.tail.sequence
        if store.published_end > tail:  # its producer died before it advanced the tail (I3)
            try:
                return _last_published(store, tail)
            except errors.Expired:
                continue  # another one did, and retention came
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


def _last_published(store: Store, sequence: int) -> Message:
    """Return the last message that readers find, from one on that is there."""
    consumer = Consumer(store)
    try:
        consumer.seek(sequence=sequence)
        message = consumer.poll()
        while (following := consumer.poll()) is not None:
            message = following
        assert message is not None
        return message
    finally:
        consumer.close()


def _upstream(source: Source, queue: OpenQueue, consumer: NamedConsumer) -> Upstream:
    """Return the iterable to read from; if the source is a function, call it.

    Raises:
        InvalidType: the function returns no iterable of elements.
    """
    if isinstance(source, Iterable | AsyncIterable):
        return source
    upstream = source(_last_stored(queue, consumer))
    if isinstance(upstream, ONE_ELEMENT) or not isinstance(upstream, Iterable | AsyncIterable):
        raise type_error("what source returned", upstream, "an iterable of elements")
    return upstream


def _check_source(source: Source) -> None:
    """Raise InvalidType before there is a consumer: it is neither an iterable nor a function."""
    if isinstance(source, ONE_ELEMENT):
        raise type_error("source", source, "an iterable of elements")
    if not isinstance(source, Iterable | AsyncIterable) and not callable(source):
        wanted = "iterable, asynchronously iterable, or a function that returns it"
        raise type_error("source", source, wanted)


def _feeder(
    store: Store, upstream: Upstream, consumer: NamedConsumer, options: OpenOptions
) -> Feeder:
    """Start to read from the upstream, in the background."""
    producer = make_producer(store, store.clock, options.sync_every)
    try:
        if isinstance(upstream, AsyncIterable):
            return TaskFeeder(store, producer, consumer, upstream)
        return ThreadFeeder(store, producer, consumer, upstream)
    except BaseException:
        producer.close()
        raise
