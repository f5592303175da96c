"""merge: one stream over any number of queues, ordered by timestamp, then queue, then sequence.

A finite merge reads the messages published when it is made, and its order is exact.

With `follow` it continues with new messages. A message is returned once no older one can come:

1. Every other queue has a newer message. Times never decrease in a queue, so this is exact.
2. Or the other queues are silent, and the message is older than `patience`. A sender reads the
   clock, then publishes; a poll more than `patience` after that sees the message. So this is right
   unless a sender is delayed for longer in between.
3. Or it was read more than `patience` ago. That matters for timestamps in the future, given by the
   sender or caused by a clock that was set back: the merge does not wait for that time.

A message that comes too late for its place, by 2 or 3, is returned at once and counted in `late`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue.merge.merge import Merge
from pagequeue.merge.source import MergeSource
from pagequeue.queue.queue import Queue, internals
from pagequeue.receive.pace import NS_PER_S, pace_of
from pagequeue.util.arguments import seconds, type_error
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from pagequeue.receive.pace import Speed
    from pagequeue.util.literals import OnExpired
    from pagequeue.util.timestamps import TimeLike

PATIENCE_SECONDS: Final = 0.05
PATIENCE_SECONDS_MAX: Final = 1e9


def merge(
    queues: Iterable[Queue],
    *,
    since: TimeLike | None = None,
    until: TimeLike | None = None,
    follow: bool = False,
    patience: float = PATIENCE_SECONDS,
    speed: Speed | None = None,
    on_expired: OnExpired = "raise",
    names: Iterable[str] | None = None,
) -> Merge:
    """Return one stream of several queues, by timestamp, then place in the list, then sequence.

    Memory is bounded: the merge holds about 1 MiB of each queue.

    Args:
        queues: open queues; they stay open, and closing one ends the merge.
        since: begin with the first messages that are not older (inclusive).
        until: end before the first messages that are not older (exclusive).
        follow: continue with new messages; False: up to the current tail of each queue.
        patience: seconds, 0 or more; with `follow`, a message that is older than that is returned
            although another queue is silent. A smaller value is faster, and messages that senders
            publish later than that come out of order, counted in `late`.
        speed: how fast messages come out: 1.0 as they were sent, 10.0 ten times as fast, a `Pace`
            on another clock; None as fast as possible. Not together with `follow`.
        on_expired: what happens when retention was faster. `"raise"`: `Expired`. `"skip"`: the
            merge continues at that queue's head and counts the skipped messages in `.missed`.
        names: of the queues, for Arrow; None: their directories.

    Raises:
        InvalidOption, InvalidType, NaiveDatetime: an argument is invalid.
        ClosedError, ForkedError: a queue is closed, or belongs to the parent process.
        DamageError: the first message of a queue is damaged.

    Example:
        >>> with Queue("orders") as orders, Queue("trades") as trades:
        ...     for queue, message in merge([orders, trades]):
        ...         print(queue, message.timestamp, message.payload)
    """
    if not isinstance(queues, Iterable):
        raise type_error("queues", queues, "open queues")
    given = tuple(queues)
    for queue in given:
        if not isinstance(queue, Queue):
            raise type_error("each of queues", queue, "an open Queue")
    called = tuple(map(_name_of, given)) if names is None else tuple(names)
    if len(called) != len(given):
        raise errors.InvalidOption(
            f"{len(called)} names for {len(given)} queues", remedy="give one for each"
        )
    patience = seconds("patience", patience, PATIENCE_SECONDS_MAX)
    if follow and speed is not None:
        raise errors.InvalidOption("follow and speed exclude each other", remedy="omit one of them")
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
    """Return a queue's name: its directory, with its prefix unless that is the default."""
    is_default = queue.prefix == "queue"
    return queue.directory if is_default else f"{queue.directory}/{queue.prefix}"
