"""The roles for messages of many pages, batches of many pages, and what they take in memory.

A message is the same chunk again and again, with its number at the beginning of each; the receiver
checks the number of each chunk, and where the message ends.
"""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress.bench.figures import append_then_replay, first_to_last
from stress.bench.loops import clock
from stress.bench.plan import CheckFailed, Gate, Metrics, Outcome
from stress.bench.wire import RING_COUNT, complain, number_of, pack, ring_of, tail_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.bench.figures import Outcomes
    from stress.bench.peers.base import Peer
    from stress.bench.plan import Plan

CHUNK_BYTES = 1 << 20
MIB = 1 << 20
WARM_BYTES_MAX = 4 << 30
put_number = struct.Struct("<Q").pack_into


def warm(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Use as much memory of the page cache as the next stage will, and return it.

    The first use of memory is slow on a virtual machine; else the contender that runs first pays.
    """
    del index
    plan = peer.plan
    left = min(plan.count * plan.size_bytes, WARM_BYTES_MAX)
    path = plan.directory / "warm"
    gate()
    started_ns = clock()
    with path.open("wb", buffering=0) as file:
        while left > 0:
            left -= file.write(bytes(min(left, CHUNK_BYTES)))
    path.unlink()
    return Outcome(started_ns, clock())


def produce_whole(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send messages that are in memory as a whole."""
    del index
    plan = peer.plan
    send: Callable[[Any], object] = peer.open_send()
    payload = bytearray(tail_of(plan.size_bytes) + bytes(8))[: plan.size_bytes]
    gate()
    started_ns = clock()
    for value in range(plan.count):
        for at in range(0, plan.size_bytes - 7, CHUNK_BYTES):
            put_number(payload, at, value)
        send(payload)
    return Outcome(started_ns, clock())


def consume_whole(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive each message as one object."""
    del index
    plan = peer.plan
    receive, argument = peer.open_receive(), peer.receive_argument
    gate()
    started_ns = clock()
    for value in range(plan.count):
        payload = receive(argument).payload if peer.gives_messages else receive()
        _check(payload, plan.size_bytes, value)
        del payload  # before the next one is there
    return Outcome(started_ns, clock())


def _check(payload: bytes, size_bytes: int, value: int) -> None:
    if len(payload) != size_bytes:
        raise CheckFailed(f"message {value}: {len(payload)} bytes instead of {size_bytes}")
    for at in range(0, size_bytes - 7, CHUNK_BYTES):
        if number_of(payload, at)[0] != value:
            complain(payload[at : at + CHUNK_BYTES], value)


class _Source:
    """A readable file of numbered chunks."""

    def __init__(self, size_bytes: int, value: int) -> None:
        chunk = bytearray(tail_of(CHUNK_BYTES) + bytes(8))[:CHUNK_BYTES]
        put_number(chunk, 0, value)
        self._chunk = bytes(chunk)
        self._left = size_bytes

    def read(self, size: int = CHUNK_BYTES, /) -> bytes:
        """Return the next bytes, at most one chunk; none at the end."""
        chunk = self._chunk[: min(size, self._left)]
        self._left -= len(chunk)
        return chunk


def produce_stream(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Write messages as files, from a file that makes them up."""
    del index
    plan = peer.plan
    write = peer.open_send_stream()
    idle = peak_bytes()
    gate()
    started_ns = clock()
    for value in range(plan.count):
        with write() as file:
            shutil.copyfileobj(_Source(plan.size_bytes, value), file, CHUNK_BYTES)
    return Outcome(started_ns, clock(), counts={"grown_bytes": peak_bytes(reset=False) - idle})


def consume_stream(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Read each message as a file, into memory that is used again."""
    del index
    plan = peer.plan
    read = peer.open_receive_stream()
    memory = bytearray(CHUNK_BYTES)
    idle = peak_bytes()
    gate()
    started_ns = clock()
    for value in range(plan.count):
        at = 0
        with read() as file:
            while count := file.readinto(memory):
                begin = -at % CHUNK_BYTES  # of a chunk, in these bytes
                if begin + 8 <= count and number_of(memory, begin)[0] != value:
                    complain(bytes(memory[begin:]), value)
                at += count
        if at != plan.size_bytes:
            raise CheckFailed(f"message {value}: {at} bytes instead of {plan.size_bytes}")
    return Outcome(started_ns, clock(), counts={"grown_bytes": peak_bytes(reset=False) - idle})


def peak_bytes(*, reset: bool = True) -> int:
    """Return the most memory that this process had; with `reset`, what it has now, from now on."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident_bytes("self")


def resident_bytes(process: int | str) -> int:
    """Return the most memory that a process had, by its number."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise CheckFailed("the system does not tell the memory of a process")
    return int(found[1]) * 1024


def produce_calls(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send ready-made lists, each of `batch` messages."""
    del index
    plan = peer.plan
    send_many = peer.open_send_many()
    batch = min(plan.options["batch"], plan.count)
    ring = ring_of(plan.size_bytes)
    messages = (ring * (plan.count // RING_COUNT + 1))[: plan.count]
    gate()
    elapsed_ns = 0
    for begin in range(0, plan.count, batch):
        part = messages[begin : begin + batch]
        started_ns = clock()
        send_many(part)
        elapsed_ns += clock() - started_ns
    return Outcome(0, elapsed_ns)


def press(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Send large messages, or batches of as many bytes, while another producer is measured.

    `press_bytes` is the size of a message; 0: batches of 1 MiB, of messages of 100 bytes.
    """
    del index
    plan = peer.plan
    size_bytes, count = plan.options["press_bytes"], plan.options["press_count"]
    if size_bytes:
        send: Callable[[Any], object] = peer.open_send()
        payload: Any = bytes(size_bytes)
    else:
        send = peer.open_send_many()
        payload = [bytes(100)] * (MIB // 100)
    gate()
    started_ns = clock()
    for _ in range(count):
        send(payload)
    return Outcome(started_ns, clock())


def check_calls(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Receive all of them, and compare every byte."""
    del index
    plan = peer.plan
    ring = [pack(value) + tail_of(plan.size_bytes) for value in range(RING_COUNT)]
    gate()
    started_ns = clock()
    count = 0
    for message in peer.open_stream():
        if message.payload != ring[count % RING_COUNT]:
            complain(message.payload, count % RING_COUNT)
        count += 1
    if count != plan.count:
        raise CheckFailed(f"{count} messages came, {plan.count} were sent")
    return Outcome(started_ns, clock())


def last_stage(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rate of what was not warming up."""
    return first_to_last(plan, outcomes[-1:])


def sending(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return the rates of sending, and of reading it in another process."""
    return append_then_replay(plan, outcomes[1:])


def memory(plan: Plan, outcomes: Outcomes) -> Metrics:
    """Return how much more memory than an idle process each of the two took, in MiB."""
    figures = last_stage(plan, outcomes)
    writer, reader = (role.counts["grown_bytes"] / MIB for role in outcomes[-1])
    return figures | {"writer_mib": writer, "reader_mib": reader, "most_mib": max(writer, reader)}
