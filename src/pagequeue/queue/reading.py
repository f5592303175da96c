"""Making what reads a queue: consumers, replays, batches, and lookups by the index alone."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.columns.batch import Batch, joined
from pagequeue.receive.batches import Batches
from pagequeue.receive.consumer import Consumer
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.receive.pace import pace_of
from pagequeue.receive.paced_replay import PacedReplay
from pagequeue.receive.replay import Replay
from pagequeue.util.arguments import whole
from pagequeue.util.timestamps import array_to_ns, check_ns, is_masked, to_ns

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pagequeue.meta.write_meta import Tail
    from pagequeue.queue.lifecycle import OpenQueue
    from pagequeue.receive.pace import Pace, Speed
    from pagequeue.store.store import Store
    from pagequeue.util.literals import OnExpired
    from pagequeue.util.timestamps import TimeLike

BATCH_COUNT = 65536
NO_TIME = fmt.TIMESTAMP_MAX + 1
"""Later than every message."""


# --- handles --------------------------------------------------------------------------------------


def consumer(
    queue: OpenQueue,
    name: str | None,
    *,
    since: TimeLike | None,
    sequence: int | None,
    latest: bool,
    durable_only: bool,
    on_expired: OnExpired,
) -> Consumer:
    """Return a new consumer; as `Queue.consumer`."""
    made: Consumer
    if name is None:
        store = queue.usable()
        made = Consumer(store, durable_only=durable_only, on_expired=on_expired)
        made.seek(since=since, sequence=sequence, latest=latest)
    else:
        store = queue.writable("keep a named consumer's place")
        made = open_consumer(
            store,
            name,
            since=since,
            sequence=sequence,
            latest=latest,
            durable_only=durable_only,
            on_expired=on_expired,
        )
    return queue.keep(made, store)


def replay(
    queue: OpenQueue,
    since: TimeLike | None,
    until: TimeLike | None,
    sequence: int | None,
    end_sequence: int | None,
    pace: Pace | None,
) -> Replay:
    """Return a new replay, up to a sequence, or the tail as of now."""
    store = queue.readable()
    part = (store, since, until, sequence, end_sequence)
    return queue.keep(Replay(*part) if pace is None else PacedReplay(*part, pace), store)


# --- columns --------------------------------------------------------------------------------------


def batches(
    queue: OpenQueue,
    *,
    since: TimeLike | None = None,
    until: TimeLike | None = None,
    sequence: int | None = None,
    limit_count: int = BATCH_COUNT,
    speed: Speed | None = None,
    copy: bool = True,
) -> Batches:
    """Return a finite iterator of batches; as `Queue.batches`."""
    limit_count = whole("limit_count", limit_count, 1, fmt.READ_COUNT_MAX)
    store = queue.readable()
    oldest = None if since is None else to_ns(since, store.clock)
    newest = None if until is None else to_ns(until, store.clock, name="until")
    end_sequence = store.tail.sequence
    first = replay(queue, oldest, newest, sequence, end_sequence, pace_of(speed))
    again = partial(replay, queue, oldest, newest, first.sequence, end_sequence, None)
    return Batches(first, again, limit_count, store.schema, copy=copy)


def last(queue: OpenQueue, count: int) -> Batch:
    """Return the last messages; as `Queue.last`."""
    count = whole("count", count, 0)
    return queue.readable().while_retained(partial(_last, queue, count))


def _last(queue: OpenQueue, count: int) -> Batch:
    store = queue.readable()
    tail = store.tail.sequence
    first = min(max(store.read_meta.head_sequence, tail - count), tail)
    found = list(batches(queue, sequence=first)) if first < tail else []
    # Cut at the tail of before: more messages may have been sent meanwhile.
    return joined(found, tail, store.schema)[: tail - first]


def between(queue: OpenQueue, since: TimeLike | None, until: TimeLike | None) -> Batch:
    """Return the messages of a range of time as one batch; as `Queue.between`."""
    return queue.readable().while_retained(partial(_between, queue, since, until))


def _between(queue: OpenQueue, since: TimeLike | None, until: TimeLike | None) -> Batch:
    found = batches(queue, since=since, until=until, limit_count=fmt.READ_COUNT_MAX)
    return joined(list(found), found.sequence, queue.readable().schema)


# --- by the index ---------------------------------------------------------------------------------


def as_of(store: Store, timestamps: TimeLike | ArrayLike) -> int | NDArray[np.int64]:
    """Return the last sequence that is not later than each of some times; as `Queue.as_of`."""
    if not isinstance(timestamps, np.ndarray) and not hasattr(timestamps, "__len__"):
        timestamp = to_ns(timestamps, store.clock, name="timestamps")  # type: ignore[arg-type]
        return int(_as_of_many(store, np.array([timestamp], np.int64))[0])
    wanted = _ns_of(np.asanyarray(timestamps))
    return _as_of_many(store, wanted.ravel()).reshape(wanted.shape)


def _as_of_many(store: Store, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(timestamps, kind="stable")
    found = np.empty(len(timestamps), np.int64)
    if len(timestamps):
        found[order] = store.while_retained(partial(_as_of_sorted, store, timestamps[order]))
    return found


def times(
    store: Store, since: TimeLike | None, until: TimeLike | None, sequence: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sequences and times of sending; as `Queue.times`."""
    oldest = None if since is None else to_ns(since, store.clock)
    newest = None if until is None else to_ns(until, store.clock, name="until")
    return store.while_retained(partial(_times, store, oldest, newest, sequence))


def _ns_of(timestamps: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return timestamps as int64 ns.

    Raises:
        InvalidType: they are neither integers nor datetime64.
    """
    if is_masked(timestamps):
        raise errors.InvalidOption(
            "timestamps has masked elements", remedy="give timestamps.compressed()"
        )
    timestamps = np.asarray(timestamps)
    if timestamps.dtype.kind == "M":
        if np.isnat(timestamps).any():
            raise errors.InvalidOption("timestamps has a NaT", remedy="leave it out")
        return array_to_ns(timestamps)
    if timestamps.dtype.kind not in "iu" and timestamps.size:
        raise errors.InvalidType(
            f"timestamps must be integers of ns or datetime64, not {timestamps.dtype}"
        )
    if (
        timestamps.dtype.kind == "u"
        and timestamps.size
        and int(timestamps.max()) > fmt.TIMESTAMP_MAX
    ):
        raise errors.InvalidOption("timestamps exceed 64 bits", remedy="give ns since 1970, UTC")
    return check_ns("one of timestamps", timestamps.astype(np.int64))


def _check_begin(store: Store, tail: Tail, number: int) -> None:
    """Check the first message of a page, or of the first page after it that is not empty.

    Raises:
        CorruptFrame: it is damaged, so its time is unknown.
    """
    for page_number in range(number, tail.page_number + 1):
        count = store.count(page_number, tail)
        if count > 0:
            if store.own_first_timestamp(page_number) is None:
                raise store.page(page_number).damage(count)
            return


def _as_of_sorted(store: Store, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the last sequence that is not later than each time; the times are in order."""
    head_page, tail = store.read_meta.head_page, store.tail  # in this order: both only grow
    found = np.full(len(timestamps), -1, np.int64)

    def first_time(number: int) -> int:
        known = store.first_timestamp(number)
        return NO_TIME if known is None else known

    numbers = range(head_page, tail.page_number + 1)
    low = max(bisect_right(numbers, int(timestamps[0]), key=first_time) - 1, 0)
    high = bisect_right(numbers, int(timestamps[-1]), key=first_time)
    if high == 0:
        _check_begin(store, tail, numbers[0])
        return found
    begins = np.searchsorted(timestamps, [first_time(number) for number in numbers[low:high]])
    ends = [*begins[1:], len(timestamps)]
    for number, begin, end in zip(numbers[low:high], begins, ends, strict=True):
        if begin < end:
            page, count = store.page(number), store.count(number, tail)
            repair = store.may_repair_index(number)
            before = page.find_many(timestamps[begin:end], count, repair=repair)
            found[begin:end] = page.first_sequence + before - 1
            if before[-1] == count:
                _check_begin(store, tail, number + 1)
    if found[0] < 0:
        _check_begin(store, tail, numbers[0])
    return found


def _times(
    store: Store, oldest: int | None, newest: int | None, sequence: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tail = store.tail
    start = store.read_meta.head_sequence
    end = tail.sequence
    if sequence is not None:
        start = store.seek_sequence(sequence).sequence
    if oldest is not None:
        start = max(start, store.seek_since(oldest).sequence)
    if newest is not None:
        end = min(end, store.seek_since(newest).sequence)
    parts, at = [np.empty(0, np.int64)], start
    while at < end:
        number = store.page_of_sequence(at)
        page, count = store.page(number), store.count(number, tail)
        first = page.first_sequence
        if at < first:
            raise store.expired()  # retention moved the head meanwhile
        last = min(end - first, count)
        parts.append(page.times(at - first, last, count, repair=store.may_repair_index(number)))
        at = first + last
    return np.arange(start, at, dtype=np.int64), np.concatenate(parts)
