"""Four queues in one order, in batches, compared with `heapq.merge` over their replays."""

from __future__ import annotations

import contextlib
import heapq
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import Queue, merge
from stress.bench_columns.reading import PAYLOAD_BYTES, SENT_AT_ONCE, seconds_of
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

QUEUES = 4
MESSAGES = 500_000
QUICK_MESSAGES = 20_000
GAP_NS = 2000
START_NS = 1_700_000_000_000_000_000
GOAL_MILLIONS = 5.0
PEER_GOAL_RATIO = 1.0


def _fill(queue: Queue, number: int, count: int) -> None:
    """Send messages whose times lie at random between those of the other queues."""
    rng = np.random.default_rng(number)
    times = START_NS + np.cumsum(rng.integers(0, GAP_NS, count))
    payloads = [b"%-*d" % (PAYLOAD_BYTES, number)] * SENT_AT_ONCE
    with queue.producer() as producer:
        for first in range(0, count, SENT_AT_ONCE):
            producer.send_many(payloads, timestamps=times[first : first + SENT_AT_ONCE])


def _columns(queues: Sequence[Queue]) -> int:
    count, last = 0, START_NS
    for batch in merge(queues).batches():
        timestamps = batch.timestamps
        assert timestamps[0] >= last
        last = int(timestamps[-1])
        count += len(batch.queues)
        assert len(batch.sequences) == len(batch.lengths) == len(timestamps)
    return count


def _payloads(queues: Sequence[Queue]) -> int:
    return sum(len(batch.payloads) for batch in merge(queues).batches())


def _arrow(queues: Sequence[Queue]) -> int:
    return sum(batch.to_arrow().num_rows for batch in merge(queues).batches())


def _messages(queues: Sequence[Queue]) -> int:
    return sum(1 for _ in merge(queues))


def _heap(queues: Sequence[Queue]) -> int:
    replays = [queue.replay() for queue in queues]
    return sum(1 for _ in heapq.merge(*replays, key=attrgetter("timestamp")))


def merged_batches(base: Path, *, quick: bool) -> list[Figure]:
    """Columns of four queues by time; with payloads, as Arrow and as messages for comparison."""
    own = QUICK_MESSAGES if quick else MESSAGES
    count = own * QUEUES
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(Queue(base / str(n))) for n in range(QUEUES)]
        for number, queue in enumerate(queues):
            _fill(queue, number, own)
        ways = {
            "columns": lambda: _columns(queues),
            "payloads": lambda: _payloads(queues),
            "Arrow": lambda: _arrow(queues),
            "messages": lambda: _messages(queues),
            "heapq.merge": lambda: _heap(queues),
        }
        seconds = seconds_of(ways, count, quick=quick)
    rates = {name: count / taken / 1e6 for name, taken in seconds.items()}
    details = {name: f"{rate:.2f} M messages/s" for name, rate in rates.items()}
    return [
        Figure(
            "four queues, in columns",
            rates["columns"],
            "M messages/s",
            GOAL_MILLIONS,
            details=details,
        ),
        Figure(
            "the same with payloads, to heapq.merge over replays",
            rates["payloads"] / rates["heapq.merge"],
            "times",
            PEER_GOAL_RATIO,
        ),
    ]
