"""The roles of durable sending: blocks of messages, each on stable storage before the next.

A peer offers `open_durable`, which returns `send` and `flush`. When `flush` has returned, all that
this producer sent is durable. Every run is followed by a role that reads all of it back.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from stress.bench.plan import CheckFailed, Gate, Outcome
from stress.bench.wire import END, complain, number_of, pack, tail_of
from stress.flush_cost import written_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.bench.peers.base import Peer

clock = time.perf_counter_ns


def _send_lane(
    send: Callable[[bytes], object],
    flush: Callable[[], object],
    values: range,
    every: int,
    tail: bytes,
) -> None:
    """Send messages in blocks of `every`, each block flushed."""
    for first in range(0, len(values), every):
        for value in values[first : first + every]:
            send(pack(value) + tail)
        flush()


def produce_durable(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send one by one, or in blocks; with several producers, every so-manieth number."""
    plan = peer.plan
    send, flush = peer.open_durable()
    values = range(index, plan.count, plan.options["lanes"])
    every, tail = plan.options["every"], tail_of(plan.size_bytes)
    gate()
    written = written_bytes()
    started_ns = clock()
    _send_lane(send, flush, values, every, tail)
    ended_ns = clock()
    return Outcome(started_ns, ended_ns, counts={"written_bytes": written_bytes() - written})


def produce_in_threads(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Do the same in threads of one process, one for each lane."""
    del index
    plan = peer.plan
    every, lanes, tail = plan.options["every"], plan.options["lanes"], tail_of(plan.size_bytes)
    failed: list[BaseException] = []
    begin = threading.Event()

    def body(lane: int, send: Callable[[bytes], object], flush: Callable[[], object]) -> None:
        begin.wait()
        try:
            _send_lane(send, flush, range(lane, plan.count, lanes), every, tail)
        except BaseException as error:  # noqa: BLE001 - the role fails with it
            failed.append(error)

    threads = [
        threading.Thread(target=body, args=(lane, *peer.open_durable())) for lane in range(lanes)
    ]
    for thread in threads:
        thread.start()
    gate()
    started_ns = clock()
    begin.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return Outcome(started_ns, clock())


def check_all(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Read all that was sent: every message once, each lane in its own order."""
    del index
    plan = peer.plan
    lanes = plan.options["lanes"]
    expected = list(range(lanes))
    tail = tail_of(plan.size_bytes)
    count = 0
    gate()
    started_ns = clock()
    for message in peer.open_stream():
        payload = message.payload if peer.gives_messages else message
        value = number_of(payload)[0]
        lane = value % lanes
        if len(payload) != plan.size_bytes or payload[-1] != END or value != expected[lane]:
            complain(payload, expected[lane])
        if payload[8:] != tail:
            complain(payload, value)
        expected[lane] = value + lanes
        count += 1
    if count != plan.count:
        raise CheckFailed(f"{count} messages are there, {plan.count} were sent")
    return Outcome(started_ns, clock())
