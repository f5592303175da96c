"""Figures of queues on this host, each read once in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue.profile.counts import Tally, bin_width
from pagequeue.profile.figures import Profile, QueueProfile, joined, summed
from pagequeue.util.timestamps import system_clock, to_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pagequeue.queue.queue import Queue
    from pagequeue.util.timestamps import TimeLike


def profile_queues(
    queues: Mapping[str, Callable[[], Queue]],
    *,
    since: TimeLike | None = None,
    until: TimeLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Return figures of queues, however many: one is open at a time.

    Args:
        queues: what opens each, by the name that it gets.
        since: only messages that are not older, ns since 1970 or an aware datetime.
        until: only messages before the first that is not older.
        progress: called with the messages counted and those in all.

    Raises:
        DamageError: a message is damaged. Expired: retention removed messages meanwhile.
    """
    bounds: list[int] = []
    count = 0
    for opened in queues.values():
        with opened() as queue:
            count += _bounds(queue, since, until, bounds)
    start = min(bounds, default=0)
    bin_ns = bin_width(start, max(bounds, default=0))
    counted, done = {}, 0
    for name, opened in queues.items():
        tally = Tally(start, bin_ns)
        with opened() as queue, queue.batches(since=since, until=until) as batches:
            for batch in batches:
                tally.add(batch.sequences, batch.timestamps, batch.lengths)
                done += len(batch)
                if progress is not None:
                    progress(min(count, done), count)  # some were sent meanwhile
            counted[name] = _figures(name, tally, start, bin_ns)
            lags = {one.name: one.lag for one in queue.consumers()}
            counted[name].lags = {one: lag for one, lag in lags.items() if lag is not None}
    return summed(counted)


def _bounds(queue: Queue, since: TimeLike | None, until: TimeLike | None, bounds: list[int]) -> int:
    """Add the times of the first and last message of a range; return how many messages it has."""
    with queue.batches(since=since, until=until, limit_count=1) as batches:
        first = next(iter(batches), None)
    if first is None:
        return 0
    if until is None:
        last = queue.tail_sequence - 1
    else:  # times are whole ns
        last = int(queue.as_of(to_ns(until, system_clock, name="until") - 1))
    with queue.batches(sequence=last, limit_count=1) as batches:
        bounds += [int(first.timestamps[0]), *next(iter(batches)).timestamps.tolist()]
    return last + 1 - int(first.sequences[0])


def _figures(name: str, tally: Tally, start: int, bin_ns: int) -> QueueProfile:
    """Return what was counted of a queue."""
    one = QueueProfile(name, tally.messages, tally.payload_bytes)
    one.sizes, one.gaps = tally.sizes, tally.gaps
    one.times.start, one.times.bin_ns = start, bin_ns
    one.times.messages, one.times.payload_bytes = tally.times, tally.time_bytes
    if tally.runs:
        in_order = joined(one, tally.runs)
        assert in_order, "the sequences and times of a queue never go back"
    return one
