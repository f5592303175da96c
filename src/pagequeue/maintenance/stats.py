"""Stats: how full a queue is and how far its consumers are, cheap enough to poll every second.

Sending and receiving maintain no counters for it: all figures come from the shared state, and rates
from two samples. Reading them writes no file, takes no lock, maps a page or two for the times of
messages, and unmaps retired pages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import format as fmt
from pagequeue.maintenance.consumers import ConsumerInfo, consumers
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from datetime import datetime

    from pagequeue.maintenance.consumers import GroupInfo
    from pagequeue.store.store import Store

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True)
class ConsumerStats:
    """A named consumer, or a group, at one time.

    Attributes:
        name: of the consumer.
        kind: `"consumer"` or `"group"`.
        next_sequence: every message below it is acknowledged; None if its file is damaged.
        lag: messages published and not acknowledged; None if its file is damaged.
        oldest_age: seconds since the oldest retained message that it has not acknowledged was sent;
            None if it has acknowledged all.
        last_ack_age: seconds since its last acknowledgement; None before the first one.
        is_open: whether a thread or process has it open.
        is_idle: whether it keeps no pages any more, because it was silent for too long.
        problem: what is wrong with its file; None if it is valid.
        group: claims and dead letters of a group; None for a consumer.

    Example:
        >>> [(consumer.name, consumer.lag) for consumer in queue.stats().consumers]
        [('billing', 4)]
    """

    name: str
    kind: str
    next_sequence: int | None
    lag: int | None
    oldest_age: float | None
    last_ack_age: float | None
    is_open: bool
    is_idle: bool
    problem: str | None
    group: GroupInfo | None


@dataclass(frozen=True)
class Stats:
    """A queue at one time.

    Attributes:
        time: of the sample, by the queue's clock.
        taken_at: the same in seconds of this process's monotonic clock, for rates.
        depth: retained messages.
        head_sequence: of the first retained message.
        tail_sequence: of the next message to be sent; the count of all messages ever sent.
        durable_sequence: of the first message that is not known to be on stable storage.
        page_count: retained pages, including the active one.
        written_bytes: bytes of pages written since the queue was created, including the unused ends
            of sealed pages; it only grows.
        file_bytes: allocated on disk for all files of the queue, spare pages included.
        oldest_age: seconds since the first retained message was sent; None if the queue is empty.
        newest_age: seconds since the last message was sent; None before the first one.
        sync_failed: whether the failure latch is set.
        last_flush: when a flush of any process last put messages on stable storage; None: never, or
            that is not known.
        consumers: named consumers and groups, in order of their names.

    Example:
        >>> stats = queue.stats()
        >>> stats.depth, stats.tail_sequence - stats.durable_sequence
        (5, 5)
    """

    time: datetime
    taken_at: float
    depth: int
    head_sequence: int
    tail_sequence: int
    durable_sequence: int
    page_count: int
    written_bytes: int
    file_bytes: int
    oldest_age: float | None
    newest_age: float | None
    sync_failed: bool
    last_flush: datetime | None
    consumers: list[ConsumerStats]


@dataclass(frozen=True)
class Rates:
    """Rates between two samples, per second.

    Attributes:
        seconds: between them.
        sent: messages sent.
        written_bytes: see `Stats`.
        durable: messages that reached stable storage.
        removed: messages that retention removed.
        acknowledged: messages, by consumer; below 0 for one that sought back.

    Example:
        >>> rates(before, queue.stats()).sent
        0.0
    """

    seconds: float
    sent: float
    written_bytes: float
    durable: float
    removed: float
    acknowledged: dict[str, float]


def stats(store: Store) -> Stats:
    """Return the current statistics of a queue."""
    found = store.while_retained(partial(_stats, store))
    store.pages.drop_retired()
    return found


def _stats(store: Store) -> Stats:
    now, taken_at = store.clock(), time.monotonic()
    head_page, head_sequence = store.head  # before the tail, which only grows
    tail = store.tail
    flushed_at = store.write_meta.flushed_at
    depth = max(0, tail.sequence - head_sequence)
    return Stats(
        time=to_datetime(now),
        taken_at=taken_at,
        depth=depth,
        head_sequence=head_sequence,
        tail_sequence=tail.sequence,
        durable_sequence=store.write_meta.durable_sequence,
        page_count=tail.page_number - head_page + 1,
        written_bytes=(tail.page_number - fmt.FIRST_PAGE) * store.meta.page_bytes + tail.position,
        file_bytes=store.file_bytes(),
        oldest_age=_age(now, store.time_at(head_sequence)) if depth else None,
        newest_age=_age(now, tail.last_timestamp) if tail.sequence else None,
        sync_failed=store.write_meta.failed_errno != 0,
        last_flush=None if flushed_at is None else to_datetime(flushed_at),
        consumers=[_consumer(now, found) for found in consumers(store)],
    )


def _consumer(now: int, found: ConsumerInfo) -> ConsumerStats:
    return ConsumerStats(
        name=found.name,
        kind="consumer" if found.group is None else "group",
        next_sequence=found.next_sequence,
        lag=found.lag,
        oldest_age=_age_of(now, found.oldest_time),
        last_ack_age=_age_of(now, found.last_ack),
        is_open=found.is_open,
        is_idle=found.is_idle,
        problem=found.problem,
        group=found.group,
    )


def _age(now: int, then: int | None) -> float | None:
    """Return seconds, never below 0: clocks step."""
    return None if then is None else max(0, now - then) / NS_PER_SECOND


def _age_of(now: int, then: datetime | None) -> float | None:
    return None if then is None else max(0.0, (to_datetime(now) - then).total_seconds())


def rates(before: Stats, after: Stats) -> Rates:
    """Return the rates between two samples of a queue.

    Args:
        before: the earlier sample.
        after: the later one, of the same queue and in the same process.

    Example:
        >>> before = queue.stats()
        >>> sent = queue.producer().send_many([b"six", b"seven"])
        >>> rates(before, queue.stats()).sent > 0
        True
    """
    seconds = max(after.taken_at - before.taken_at, 1e-9)
    places = {found.name: found.next_sequence for found in before.consumers}
    acknowledged = {}
    for found in after.consumers:
        place = places.get(found.name)
        if place is not None and found.next_sequence is not None:
            acknowledged[found.name] = (found.next_sequence - place) / seconds
    return Rates(
        seconds=seconds,
        sent=(after.tail_sequence - before.tail_sequence) / seconds,
        written_bytes=(after.written_bytes - before.written_bytes) / seconds,
        durable=(after.durable_sequence - before.durable_sequence) / seconds,
        removed=(after.head_sequence - before.head_sequence) / seconds,
        acknowledged=acknowledged,
    )
