"""merge: one stream over any number of queues, ordered by timestamp, then queue, then sequence.

A finite merge reads what stands in the queues when it is made, and its order is exact.

A following one goes on with what comes. A message is given out when nothing older can come:

1. Every other queue has a newer message. Times never go back in a queue, so this is exact.
2. Or the others are silent, and the message is older than `patience`. A sender takes the time, then
   publishes; whoever looks later than `patience` behind that sees it. So this is right as long as
   senders are not held up longer than that in between.
3. Or it was read so long ago. That matters where its time lies in the future, because its sender
   gave it or the clock was set back: nothing waits for that time to come.

A message that comes too late for its place, by 2 or 3, is given out at once and counted in `late`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue.merge.merge import Merge
from pagequeue.merge.source import MergeSource
from pagequeue.queue.queue import Queue, internals
from pagequeue.receive.pace import NS_PER_S, pace_of
from pagequeue.util.numbers import number
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.receive.pace import Speed
    from pagequeue.util.timestamps import Moment

PATIENCE_SECONDS: Final = 0.05
PATIENCE_SECONDS_MAX: Final = 1e9


def merge(
    queues: Iterable[Queue],
    *,
    since: Moment | None = None,
    until: Moment | None = None,
    follow: bool = False,
    patience: float = PATIENCE_SECONDS,
    speed: Speed | None = None,
    on_expired: str = "raise",
    names: Iterable[str] | None = None,
) -> Merge:
    """Return one stream of several queues, by timestamp, then place in the list, then sequence.

    Memory stays bounded: about 1 MiB of each queue is held, however much they have.

    Args:
        queues: open ones; they stay open, and closing one ends the merge.
        since: begin with the first messages that are not older (inclusive).
        until: end before the first messages that are not older (exclusive).
        follow: go on with what comes; False: up to the tail of each queue as of now.
        patience: seconds, 0 or more; while it follows, a message that is older than that is given
            out though another queue is silent. A smaller one is faster, and what senders publish
            so late comes out of order, counted in `late`.
        speed: how fast messages come out: 1.0 as they were sent, 10.0 ten times as fast, a `Pace`
            on another clock; None as fast as possible. Not for one that follows.
        on_expired: what happens when retention was faster. `"raise"`: `Expired`. `"skip"`: the
            merge goes on at that queue's head and counts what it missed in `.missed`.
        names: of the queues, for Arrow; None: their directories.

    Raises:
        InvalidOption, NaiveDatetime, TypeError: what was given cannot be.
        ClosedError, ForkedError: a queue cannot be used.
        DamageError: damage is reached where a queue begins.
    """
    given = tuple(queues)
    for queue in given:
        if not isinstance(queue, Queue):
            raise TypeError(f"queues are open ones of class Queue, not {type(queue).__name__}")
    called = tuple(map(_name_of, given)) if names is None else tuple(names)
    if len(called) != len(given):
        raise errors.InvalidOption(f"{len(called)} names for {len(given)} queues: give one each")
    patience = number("patience", patience)
    if not 0 <= patience < PATIENCE_SECONDS_MAX:
        raise errors.InvalidOption(f"patience is {patience}: give seconds, 0 or more")
    if follow and speed is not None:
        raise errors.InvalidOption("follow and speed exclude each other: what comes sets the pace")
    pace = pace_of(speed)
    stores = [internals(queue).readable() for queue in given]
    if not stores:
        return Merge((), (), 0, pace)
    clock = stores[0].clock
    oldest = None if since is None else to_ns(since, clock)
    newest = None if until is None else to_ns(until, clock, name="until")
    ends = [None if follow else store.tail.sequence for store in stores]
    sources: list[MergeSource] = []
    try:
        for at, (queue, store) in enumerate(zip(given, stores, strict=True)):
            source = MergeSource(store, at, on_expired=on_expired)
            sources.append(source)
            internals(queue).keep(source, store)
            source.begin(oldest, newest, ends[at])
    except BaseException:
        for source in sources:
            source.close()
        raise
    return Merge(sources, called, round(patience * NS_PER_S), pace)


def _name_of(queue: Queue) -> str:
    """Return what a queue is called: its directory, and its prefix if that is not the usual one."""
    usual = queue.prefix == "queue"
    return queue.directory if usual else f"{queue.directory}/{queue.prefix}"
