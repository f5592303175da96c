"""The roles: what each process does between the start barrier and its last checked message.

Every role opens its end, waits at the gate, and returns when it started and ended. All of them are
shared by all peers; a role that differs by what a peer gives (bytes, or an object with a payload)
differs in that alone.
"""

from __future__ import annotations

import random
import time
from array import array
from itertools import repeat
from typing import TYPE_CHECKING, Any

from stress.bench.plan import NS_PER_S, CheckFailed, Gate, Outcome
from stress.bench.wire import (
    BATCH_COUNT,
    BLOCK_COUNT,
    END,
    RING_COUNT,
    check_batch,
    check_block,
    check_block_messages,
    check_stream,
    check_stream_messages,
    complain,
    number_of,
    pack,
    ring_of,
    tail_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.bench.peers.base import Peer

clock = time.perf_counter_ns  # CLOCK_MONOTONIC: one clock for all processes of a host

SEEK_BASE_NS = 1_700_000_000 * NS_PER_S
SEEK_STEP_NS = 1_000
SEEK_SEED = 20_240_229


def produce(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Build and send messages one by one; with several producers, every so-manieth number."""
    plan = peer.plan
    send = peer.open_send()
    tail = tail_of(plan.size_bytes)
    values = range(index, plan.count, max(1, plan.role_count(produce)))  # 0: in another role
    gate()
    started_ns = clock()
    for value in values:
        send(pack(value) + tail)
    return Outcome(started_ns, clock(), counts=peer.counts())


def consume(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive every message one by one and check it."""
    del index
    plan = peer.plan
    receive = peer.open_receive()
    tail = tail_of(plan.size_bytes)
    size_bytes, argument = plan.size_bytes, peer.receive_argument
    gate()
    started_ns = clock()
    for first in range(0, plan.count, BLOCK_COUNT):
        last = min(first + BLOCK_COUNT, plan.count)
        if peer.gives_messages:
            check_block_messages(receive, first, last, size_bytes, tail, argument=argument)
        else:
            check_block(receive, first, last, size_bytes, tail)
    return Outcome(started_ns, clock())


def consume_ready(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Do the same where a block is prepared first, and count only the time of the blocks."""
    del index
    plan = peer.plan
    receive = peer.open_receive()
    tail = tail_of(plan.size_bytes)
    size_bytes, argument = plan.size_bytes, peer.receive_argument
    gate()
    elapsed_ns = 0
    for first in range(0, plan.count, BLOCK_COUNT):
        last = min(first + BLOCK_COUNT, plan.count)
        peer.refill(first, last, tail)
        started_ns = clock()
        check_block_messages(receive, first, last, size_bytes, tail, argument=argument)
        elapsed_ns += clock() - started_ns
    return Outcome(0, elapsed_ns)


def payloads_of(peer: Peer, receive: Callable[..., Any]) -> Callable[[], bytes]:
    """Return what receives a payload, whatever the peer gives; a Python call more for messages."""
    if not peer.gives_messages:
        return receive
    argument = peer.receive_argument

    def receive_payload() -> bytes:
        payload: bytes = receive(argument).payload
        return payload

    return receive_payload


def consume_mixed(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive what several producers send: each one's messages in its own order."""
    del index
    plan = peer.plan
    receive = payloads_of(peer, peer.open_receive())
    size_bytes, lanes = plan.size_bytes, plan.role_count(produce)
    expected = list(range(lanes))
    gate()
    started_ns = clock()
    for _ in range(plan.count):
        payload = receive()
        value = number_of(payload)[0]
        lane = value % lanes
        if len(payload) != size_bytes or payload[-1] != END or value != expected[lane]:
            complain(payload, expected[lane])
        expected[lane] = value + lanes
    return Outcome(started_ns, clock())


def produce_batches(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send ready-made lists of messages."""
    del index
    plan = peer.plan
    send_many = peer.open_send_many()
    ring = ring_of(plan.size_bytes)
    batches = [ring[at : at + BATCH_COUNT] for at in range(0, RING_COUNT, BATCH_COUNT)]
    whole, rest = divmod(plan.count, BATCH_COUNT)
    gate()
    started_ns = clock()
    for number in range(whole):
        send_many(batches[number % len(batches)])
    if rest:
        send_many(batches[whole % len(batches)][:rest])
    return Outcome(started_ns, clock())


def consume_batches(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive lists of messages, cut anywhere, and compare every byte."""
    del index
    plan = peer.plan
    receive_many = peer.open_receive_many()
    ring = ring_of(plan.size_bytes)
    ring += ring
    received_count = 0
    gate()
    started_ns = clock()
    while received_count < plan.count:
        payloads = receive_many()
        check_batch(payloads, received_count, ring)
        received_count += len(payloads)
    if received_count != plan.count:
        raise CheckFailed(f"{received_count} messages came, {plan.count} were sent")
    return Outcome(started_ns, clock())


def ping(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send a message, spin until it is back, and check that it is the same."""
    del index
    plan = peer.plan
    send, poll = peer.open_send("there"), peer.open_poll("back")
    tail = tail_of(plan.size_bytes)
    samples_ns = array("q")
    gate()
    started_ns = clock()
    for value in range(plan.count):
        payload = pack(value) + tail
        sent_ns = clock()
        send(payload)
        while (message := poll()) is None:
            pass
        samples_ns.append(clock() - sent_ns)
        got = message.payload if peer.gives_messages else message
        if got != payload:
            complain(got, value)
    return Outcome(started_ns, clock(), {"round_trip": samples_ns})


def pong(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Spin until a message comes and send it back."""
    del index
    poll, send = peer.open_poll("there"), peer.open_send("back")
    count = peer.plan.count
    gate()
    started_ns = clock()
    if peer.gives_messages:
        for _ in range(count):
            while (message := poll()) is None:
                pass
            send(message.payload)
    else:
        for _ in range(count):
            while (payload := poll()) is None:
                pass
            send(payload)
    return Outcome(started_ns, clock())


def ping_sleeping(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send a message, sleep until it is back, and check that it is the same."""
    del index
    plan = peer.plan
    send, receive = peer.open_send_waking("there"), peer.open_receive_sleeping("back")
    receive = payloads_of(peer, receive)
    tail = tail_of(plan.size_bytes)
    samples_ns = array("q")
    gate()
    started_ns = clock()
    for value in range(plan.count):
        payload = pack(value) + tail
        sent_ns = clock()
        send(payload)
        got = receive()
        samples_ns.append(clock() - sent_ns)
        if got != payload:
            complain(got, value)
    return Outcome(started_ns, clock(), {"round_trip": samples_ns})


def pong_sleeping(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Sleep until a message comes and send it back."""
    del index
    receive, send = peer.open_receive_sleeping("there"), peer.open_send_waking("back")
    receive = payloads_of(peer, receive)
    gate()
    started_ns = clock()
    for _ in range(peer.plan.count):
        send(receive())
    return Outcome(started_ns, clock())


def replay_batches(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Read in lists what an earlier process left, and compare every byte."""
    del index
    plan = peer.plan
    ring = ring_of(plan.size_bytes)
    ring += ring
    count = 0
    gate()
    started_ns = clock()
    for payloads in peer.open_batches():
        check_batch(payloads, count, ring)
        count += len(payloads)
    ended_ns = clock()
    if count != plan.count:
        raise CheckFailed(f"{count} messages were replayed, {plan.count} were sent")
    return Outcome(started_ns, ended_ns)


def replay(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Open what an earlier process left, and read and check all of it."""
    del index
    plan = peer.plan
    check = check_stream_messages if peer.gives_messages else check_stream
    tail = tail_of(plan.size_bytes)
    gate()
    started_ns = clock()
    count = check(peer.open_stream(), plan.size_bytes, tail)
    ended_ns = clock()
    if count != plan.count:
        raise CheckFailed(f"{count} messages were replayed, {plan.count} were sent")
    return Outcome(started_ns, ended_ns)


def _spent() -> dict[str, int]:
    """Return the processor time of this thread, and of the process with its other threads."""
    return {"thread_ns": time.thread_time_ns(), "process_ns": time.process_time_ns()}


def _since(before: dict[str, int]) -> dict[str, int]:
    return {name: spent - before[name] for name, spent in _spent().items()}


def send_same(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send one payload again and again, and count the processor time."""
    del index
    plan = peer.plan
    send = peer.open_send()
    payload = pack(0) + tail_of(plan.size_bytes)
    gate()
    started_ns, before = clock(), _spent()
    for _ in repeat(None, plan.count):
        send(payload)
    spent = _since(before)
    return Outcome(started_ns, clock(), counts=spent)


def receive_same(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive what `send_same` sent, count the same, and compare the last payload."""
    del index
    plan = peer.plan
    receive, argument = peer.open_receive(), peer.receive_argument
    message: Any = None
    gate()
    started_ns, before = clock(), _spent()
    for _ in repeat(None, plan.count):
        message = receive(argument)
    spent = _since(before)
    if message.payload != pack(0) + tail_of(plan.size_bytes):
        complain(message.payload, 0)
    return Outcome(started_ns, clock(), counts=spent)


def produce_history(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send messages with timestamps of our own, one for every SEEK_STEP_NS."""
    del index
    plan = peer.plan
    send_at = peer.open_send_at()
    tail = tail_of(plan.size_bytes)
    gate()
    started_ns = clock()
    for value in range(plan.count):
        send_at(pack(value) + tail, SEEK_BASE_NS + value * SEEK_STEP_NS)
    return Outcome(started_ns, clock())


def seek(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Seek to random times, exact ones and ones between, and read the message that is due."""
    del index
    plan = peer.plan
    seek_and_read = peer.open_seek()
    tail = tail_of(plan.size_bytes)
    chance = random.Random(SEEK_SEED)
    samples_ns = array("q")
    gate()
    started_ns = clock()
    for _ in range(plan.options["seeks"]):
        value = chance.randrange(plan.count)
        since_ns = SEEK_BASE_NS + value * SEEK_STEP_NS - chance.randrange(SEEK_STEP_NS)
        sought_ns = clock()
        message: Any = seek_and_read(since_ns)
        samples_ns.append(clock() - sought_ns)
        payload = message.payload if peer.gives_messages else message
        if payload != pack(value) + tail:
            complain(payload, value)
    return Outcome(started_ns, clock(), {"seek": samples_ns})


def produce_paced(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send at a steady pace; take the time of each `send`, and its lateness against the pace.

    A `send` that is late delays the next ones, and the time of `send` alone would not show it:
    `due` counts from when each message was to be sent.
    """
    del index
    plan = peer.plan
    send = peer.open_send()
    tail = tail_of(plan.size_bytes)
    pace_ns = plan.options["pace_ns"]
    send_ns, due_ns = array("q"), array("q")
    gate()
    started_ns = due = clock()
    for value in range(plan.count):
        payload = pack(value) + tail
        while (before := clock()) < due:
            pass
        send(payload)
        after = clock()
        send_ns.append(after - before)
        due_ns.append(after - due)
        due += pace_ns
    return Outcome(started_ns, clock(), {"send": send_ns, "due": due_ns}, peer.counts())
