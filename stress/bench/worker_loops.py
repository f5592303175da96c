"""The roles of work that is handed out, each message to one worker, and of readers of columns.

The sender ends with a message for each worker that tells it to stop. Each worker returns the
numbers that it got; together they must be all, each once.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, cast

import numpy as np

from stress.bench.figures import BYTES_PER_MB, Outcomes
from stress.bench.loops import clock
from stress.bench.plan import CheckFailed, Gate, Metrics, Outcome, Plan
from stress.bench.wire import END, RING_COUNT, complain, number_of, pack, tail_of

if TYPE_CHECKING:
    from stress.bench.peers.base import Peer
    from stress.bench.peers.our_group import ColumnQueue

STOP = 2**64 - 1


def channel_of(worker: int) -> str:
    """Return the name of a worker's channel, for peers that need one for each."""
    return f"worker-{worker}"


def hand_out(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send messages, then for each worker one that stops it."""
    del index
    plan = peer.plan
    send, tail = peer.open_send(), tail_of(plan.size_bytes)
    gate()
    started_ns = clock()
    for value in range(plan.count):
        send(pack(value) + tail)
    for _ in range(plan.role_count(work)):
        send(pack(STOP) + tail)
    return Outcome(started_ns, clock())


def work(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Take messages until the one that says to stop; return their numbers."""
    plan = peer.plan
    receive = peer.open_receive(channel_of(index))
    size_bytes, numbers = plan.size_bytes, array("q")
    gate()
    started_ns = clock()
    while True:
        payload = receive()
        value = number_of(payload)[0]
        if len(payload) != size_bytes or payload[-1] != END:
            complain(payload, value)
        if value == STOP:
            return Outcome(started_ns, clock(), {"numbers": numbers})
        numbers.append(value)


def shared_out(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate of all workers, once it is known that each message went to one of them."""
    sender, *workers = outcomes[-1]
    got = sorted(value for worker in workers for value in worker.samples_ns["numbers"])
    if got != list(range(plan.count)):
        twice = len(got) - len(set(got))
        raise CheckFailed(
            f"of {plan.count} messages {len(set(got))} were taken, {twice} more than once"
        )
    ended_ns = max(worker.ended_ns for worker in workers)
    per_s = plan.count / Outcome(sender.started_ns, ended_ns).seconds
    return {"messages_per_s": per_s, "seconds": plan.count / per_s}


def read_columns(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Read all that is stored as columns, and check each number."""
    del index
    plan, count = peer.plan, 0
    expected = np.arange(RING_COUNT, dtype=np.uint64)
    expected = np.concatenate([expected, expected])
    gate()
    started_ns = clock()
    for numbers in cast("ColumnQueue", peer).open_columns():
        for first in range(0, len(numbers), RING_COUNT):
            part = numbers[first : first + RING_COUNT]
            at = (count + first) % RING_COUNT
            if not np.array_equal(part, expected[at : at + len(part)]):
                raise CheckFailed(f"the messages after number {count + first} differ")
        count += len(numbers)
    if count != plan.count:
        raise CheckFailed(f"{count} messages were read, {plan.count} were sent")
    return Outcome(started_ns, clock())


def all_readers(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate of what all readers of the last stage read, together."""
    readers = outcomes[-1]
    seconds = Outcome(
        min(reader.started_ns for reader in readers), max(reader.ended_ns for reader in readers)
    ).seconds
    per_s = plan.count * len(readers) / seconds
    return {
        "messages_per_s": per_s,
        "megabytes_per_s": per_s * plan.size_bytes / BYTES_PER_MB,
        "seconds": seconds,
    }
