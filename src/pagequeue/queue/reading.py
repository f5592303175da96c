"""What `Queue` offers for reading in columns: batches, and what the index alone can tell."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, overload

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.columns.batch import Batch, joined
from pagequeue.queue.maintenance import QueueMaintenance
from pagequeue.receive.batches import Batches
from pagequeue.receive.pace import pace_of
from pagequeue.receive.paced_replay import PacedReplay
from pagequeue.receive.replay import Replay
from pagequeue.util.numbers import whole
from pagequeue.util.timestamps import array_to_ns, is_masked, to_ns

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pagequeue.meta.write_meta import Tail
    from pagequeue.receive.pace import Pace, Speed
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Moment

BATCH_COUNT = 65536
NO_TIME = fmt.TIMESTAMP_MAX + 1
"""Later than every message."""


class QueueReading(QueueMaintenance):
    """The part of `Queue` that reads in columns."""

    def batches(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        sequence: int | None = None,
        limit_count: int = BATCH_COUNT,
        speed: Speed | None = None,
    ) -> Batches:
        """Return a finite iterator of batches: the same messages as `replay`, as columns.

        It is also a stream for every library that takes Arrow's: see `Batches`.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.
            limit_count: most messages in a batch, 1 to 1_048_576; it also ends with its page, and
                after about 2 MiB.
            speed: as for `replay`; a batch holds what is due when it comes. Arrow's streams come at
                once.

        Raises:
            As for `consumer`; and CorruptFrame, when damage is reached.
        """
        store = self._open()
        oldest = None if since is None else to_ns(since, store.clock)
        newest = None if until is None else to_ns(until, store.clock, name="until")
        end_sequence = store.tail.sequence
        pace = pace_of(speed)
        first = self._part(oldest, newest, sequence, end_sequence, pace)
        again = partial(self._part, oldest, newest, first.sequence, end_sequence)
        return Batches(first, again, limit_count)

    def _part(
        self,
        oldest: int | None,
        newest: int | None,
        sequence: int | None,
        end_sequence: int,
        pace: Pace | None = None,
    ) -> Replay:
        place = (self._open(), oldest, newest, sequence, end_sequence)
        replay = Replay(*place) if pace is None else PacedReplay(*place, pace)
        return self._keep(replay, place[0])

    def last(self, count: int) -> Batch:
        """Return the last messages, oldest first: `count` of them, or all if there are fewer.

        Args:
            count: 0 or more.
        """
        count = whole("count", count)
        if count < 0:
            raise errors.InvalidOption(f"count is {count}: give 0 or more")
        return self._open().while_retained(partial(self._last, count))

    def _last(self, count: int) -> Batch:
        store = self._open()
        tail = store.tail.sequence
        first = min(max(store.read_meta.head_sequence, tail - count), tail)
        batches = list(self.batches(sequence=first)) if first < tail else []
        return joined(batches, tail, store.schema)[: tail - first]  # more can have come meanwhile

    def between(self, since: Moment | None = None, until: Moment | None = None) -> Batch:
        """Return all messages of a range of time as one batch.

        It takes 16 bytes of memory for each message; payloads stay in their pages, mapped, until
        they are asked for. Compressed pages are inflated, and take their full size.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).

        Raises:
            As for `batches`.
        """
        return self._open().while_retained(partial(self._between, since, until))

    def _between(self, since: Moment | None, until: Moment | None) -> Batch:
        batches = self.batches(since=since, until=until, limit_count=fmt.READ_COUNT_MAX)
        return joined(list(batches), batches.sequence, self._open().schema)

    # --- by the index -----------------------------------------------------------------------------

    @overload
    def as_of(self, moments: Moment) -> int: ...
    @overload
    def as_of(self, moments: ArrayLike) -> NDArray[np.int64]: ...
    def as_of(self, moments: Moment | ArrayLike) -> int | NDArray[np.int64]:
        """Return the sequence of the last message that is not later than a moment; -1 for none.

        Many moments are looked up together: of each page only the index is searched, and the frames
        that it leads to are checked.

        Args:
            moments: int ns, aware datetime or timedelta ago; or many, as an array of integers (ns
                since 1970, UTC) or of `datetime64`, of any shape.

        Returns:
            an int for one moment; for an array int64 of the same shape.

        Raises:
            CorruptFrame: a message that would have to prove the answer is damaged.
            NaiveDatetime, InvalidOption, TypeError: what was given cannot be.

        Source: FORMAT.md, "Since"; keeps I6.
        """
        store = self._open()
        if not isinstance(moments, np.ndarray) and not hasattr(moments, "__len__"):
            moment = to_ns(moments, store.clock, name="moments")  # type: ignore[arg-type]
            return int(self._as_of(np.array([moment], np.int64))[0])
        wanted = _ns_of(np.asanyarray(moments))
        return self._as_of(wanted.ravel()).reshape(wanted.shape)

    def _as_of(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(moments, kind="stable")
        store = self._open()
        found = np.empty(len(moments), np.int64)
        if not len(moments):
            return found
        found[order] = store.while_retained(partial(_as_of, store, moments[order]))
        return found

    def times(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        sequence: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when messages were sent, by the index alone.

        Of each page the first and the last message of the range are read, and prove the index; the
        payloads between are not touched, so damage in them is not noticed. It takes 16 bytes of
        memory for each message.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.

        Returns:
            sequences, and timestamps in ns since 1970, UTC; int64, shape (n,).

        Raises:
            As for `batches`.
        """
        store = self._open()
        oldest = None if since is None else to_ns(since, store.clock)
        newest = None if until is None else to_ns(until, store.clock, name="until")
        return store.while_retained(partial(_times, store, oldest, newest, sequence))


def _ns_of(moments: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return moments as int64 ns.

    Raises:
        TypeError: they are neither integers nor datetime64.
    """
    if is_masked(moments):
        raise errors.InvalidOption("moments has masked ones: give moments.compressed()")
    moments = np.asarray(moments)
    if moments.dtype.kind == "M":
        if np.isnat(moments).any():
            raise errors.InvalidOption("moments has a NaT: leave out what is no time")
        return array_to_ns(moments)
    if moments.dtype.kind not in "iu" and moments.size:
        raise TypeError(f"moments must be integers of ns or datetime64, not {moments.dtype}")
    if moments.dtype.kind == "u" and moments.size and int(moments.max()) > fmt.TIMESTAMP_MAX:
        raise errors.InvalidOption("moments go beyond 64 bits: give ns since 1970")
    return moments.astype(np.int64)


def _check_begin(store: Store, tail: Tail, number: int) -> None:
    """Raise if the first message of a page, or of the first behind it that has any, is damaged.

    Raises:
        CorruptFrame: it is; so nobody knows when it was sent.
    """
    for page_number in range(number, tail.page_number + 1):
        count = store.count(page_number, tail)
        if count > 0:
            if store.own_first_timestamp(page_number) is None:
                raise store.page(page_number).damage(count)
            return


def _as_of(store: Store, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sequence of the last message that is not later than each; moments are in order."""
    head_page, tail = store.read_meta.head_page, store.tail  # in this order: both only grow
    found = np.full(len(moments), -1, np.int64)

    def first_time(number: int) -> int:
        known = store.first_timestamp(number)
        return NO_TIME if known is None else known

    numbers = range(head_page, tail.page_number + 1)
    low = max(bisect_right(numbers, int(moments[0]), key=first_time) - 1, 0)
    high = bisect_right(numbers, int(moments[-1]), key=first_time)
    if high == 0:
        _check_begin(store, tail, numbers[0])
        return found
    begins = np.searchsorted(moments, [first_time(number) for number in numbers[low:high]])
    ends = [*begins[1:], len(moments)]
    for number, begin, end in zip(numbers[low:high], begins, ends, strict=True):
        if begin < end:
            page, count = store.page(number), store.count(number, tail)
            mend = store.may_mend_index(number)
            before = page.find_many(moments[begin:end], count, mend=mend)
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
            raise store.expired()  # the head went on in between
        last = min(end - first, count)
        parts.append(page.times(at - first, last, count, mend=store.may_mend_index(number)))
        at = first + last
    return np.arange(start, at, dtype=np.int64), np.concatenate(parts)
