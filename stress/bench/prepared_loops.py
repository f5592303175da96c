"""The roles for large messages, made before the clock starts, and for what memory they take.

To make such a message takes as long as to move it. So a few are made, of all different bytes in
their numbers, and sent in turn. One by one, length, number and end byte are checked, and every byte
of one in so many: of the largest ones, of each. A loss is seen by the order, one of a whole turn by
the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stress.bench.large_loops import peak_bytes
from stress.bench.loops import clock, payloads_of
from stress.bench.plan import Gate, Outcome
from stress.bench.wire import END, complain, number_of, pack, tail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stress.bench.peers.base import Peer

TURN_BYTES = 1 << 20
FULL_CHECK_BYTES = 16 << 20


def turn_of(size_bytes: int) -> list[bytes]:
    """Return the messages that are sent in turn: two of the largest, 16 of 64 KiB."""
    tail = tail_of(size_bytes)
    return [pack(value) + tail for value in range(max(2, TURN_BYTES // size_bytes))]


def produce_prepared(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send ready-made messages one by one."""
    del index
    send, turn, count = peer.open_send(), turn_of(peer.plan.size_bytes), peer.plan.count
    gate()
    started_ns = clock()
    for _ in range(count // len(turn)):
        for payload in turn:
            send(payload)
    for payload in turn[: count % len(turn)]:
        send(payload)
    return Outcome(started_ns, clock(), counts=peer.counts())


def consume_prepared(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive them one by one and check them."""
    del index
    plan = peer.plan
    receive, turn = payloads_of(peer, peer.open_receive()), turn_of(plan.size_bytes)
    every = max(1, FULL_CHECK_BYTES // plan.size_bytes)
    gate()
    started_ns = clock()
    for first in range(0, plan.count, every):
        last = min(first + every, plan.count)
        payload = b""
        for value in range(first, last):
            payload = b""  # the last one is given back before the next one is there
            payload = receive()
            _check(payload, value, turn)
        if payload != turn[(last - 1) % len(turn)]:
            complain(payload, (last - 1) % len(turn))
    return Outcome(started_ns, clock())


def _check(payload: bytes, value: int, turn: Sequence[bytes]) -> None:
    if (
        len(payload) != len(turn[0])
        or payload[-1] != END
        or number_of(payload)[0] != value % len(turn)
    ):
        complain(payload, value % len(turn))


def produce_weighed(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send them, and note the most memory that this process had beyond what it had before."""
    idle = peak_bytes()
    outcome = produce_prepared(peer, index, gate)
    grown = peak_bytes(reset=False) - idle
    return outcome._replace(counts={**outcome.counts, "grown_bytes": grown})


def consume_weighed(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive them, and note the same."""
    idle = peak_bytes()
    outcome = consume_prepared(peer, index, gate)
    return outcome._replace(counts={"grown_bytes": peak_bytes(reset=False) - idle})
