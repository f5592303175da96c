"""The roles that prepare a measurement, and that measure what it leaves: disk, a first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stress.bench.large_loops import warm
from stress.bench.loops import clock, produce
from stress.bench.plan import CheckFailed, Gate, Outcome
from stress.bench.wire import check_stream, check_stream_messages, pack, tail_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stress.bench.peers.base import Peer

BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


def make_ready(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Warm the memory that the next stages will use, then leave the first page behind."""
    outcome = warm(peer, index, gate)
    peer.leave_first_page()
    return outcome


def allocated_bytes(directory: Path) -> int:
    """Return what the files below a directory occupy on the disk."""
    return sum(path.lstat().st_blocks for path in directory.rglob("*")) * BLOCK_BYTES


def append_and_weigh(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Append messages, and note what their files occupy then, before they are closed."""
    before = allocated_bytes(peer.plan.directory)
    outcome = produce(peer, index, gate)
    grown = allocated_bytes(peer.plan.directory) - before
    return outcome._replace(counts={"disk_bytes": grown})


def first_send(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Open what an earlier process left and send one message more."""
    del index
    plan = peer.plan
    payload = pack(plan.count) + tail_of(plan.size_bytes)
    gate()
    started_ns = clock()
    peer.open_send()(payload)
    return Outcome(started_ns, clock())


def first_read(peer: Peer, index: int, gate: Gate) -> Outcome:
    """Open what is there and read its first message: the time of both. Then check all of it.

    One message more than the count is there: that of `first_send`.
    """
    del index
    plan = peer.plan
    check = check_stream_messages if peer.gives_messages else check_stream
    read_ns: list[int] = []

    def noted() -> Iterator[Any]:
        for message in peer.open_stream():
            if not read_ns:
                read_ns.append(clock())
            yield message

    gate()
    started_ns = clock()
    count = check(noted(), plan.size_bytes, tail_of(plan.size_bytes))
    if count != plan.count + 1:
        raise CheckFailed(f"{count} messages are there, {plan.count + 1} were sent")
    return Outcome(started_ns, read_ns[0])
