"""The table: every case, its contenders and what is to be reached.

Counts are such that a measurement takes about a second on the machine the field was measured on;
`scale` multiplies them. Rates are compared, so contenders of one case may have different counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stress.bench.figures import (
    append_then_replay,
    first_to_last,
    latency,
    latency_of_first,
    processor_time,
    slower_loop,
)
from stress.bench.large_loops import (
    check_calls,
    consume_stream,
    consume_whole,
    last_stage,
    memory,
    press,
    produce_calls,
    produce_stream,
    produce_whole,
    sending,
    warm,
)
from stress.bench.loops import (
    consume,
    consume_batches,
    consume_mixed,
    consume_ready,
    ping,
    pong,
    produce,
    produce_batches,
    produce_history,
    produce_paced,
    receive_same,
    replay,
    seek,
    send_same,
)
from stress.bench.plan import Case, Plan, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stress.bench.peers.base import Peer
    from stress.bench.plan import Stages, Summary

    _Maker = Callable[["_Scale"], Case]

LEAST_COUNT = 200
KIB = 1024
MIB = 1024 * KIB
LARGE_BYTES_LEAST = 65 * MIB  # larger than a page
LARGE_STALL_SECONDS = 600.0
BATCH_COUNT = 1_000_000
PAGE_COUNT = 500_000  # messages of 100 B that fit into one page
OURS = "pagequeue"
ZEROMQ = "ZeroMQ"
FILE = "plain file"
FILES = "plain files"
LMDB = "LMDB"
MP_QUEUE = "multiprocessing.Queue"
NO_OPS = "C no-ops"
RING = "shared-memory ring"
OUR_RING = "pagequeue, ring"


def _peer(module: str, name: str) -> type[Peer] | None:
    """Return a peer's class, or None where what it needs is not installed."""
    try:
        found: Any = getattr(import_module(f"stress.bench.peers.{module}"), name)
    except ImportError:
        return None
    peer: type[Peer] = found
    return peer


PEERS = {
    OURS: _peer("ours", "PageQueue"),
    ZEROMQ: _peer("zeromq", "ZeroMQ"),
    FILE: _peer("plain_file", "PlainFile"),
    FILES: _peer("whole_files", "WholeFiles"),
    LMDB: _peer("lmdb_store", "LmdbStore"),
    MP_QUEUE: _peer("mp_queue", "MultiprocessingQueue"),
    NO_OPS: _peer("no_op", "NoOp"),
    RING: _peer("shared_ring", "SharedRing"),
    OUR_RING: _peer("our_ring", "OurRing"),
}


@dataclass(frozen=True)
class _Load:
    """What contenders of a case have in common."""

    stages: Stages
    summary: Summary
    options: Mapping[str, int] = field(default_factory=dict)
    label: str = ""  # set when a case has the same peer more than once


class _Scale:
    """Makes plans with scaled counts."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def count(self, count: int) -> int:
        """Return a scaled count."""
        return max(LEAST_COUNT, int(count * self._scale))

    def calls(self, count: int) -> int:
        """Return a scaled count of messages so large that one is enough."""
        return max(1, int(count * self._scale))

    def size(self, size_bytes: int) -> int:
        """Return the size of a message of several pages; only that of one of 1 GiB is scaled."""
        if size_bytes <= LARGE_BYTES_LEAST:
            return size_bytes
        return max(LARGE_BYTES_LEAST, int(size_bytes * self._scale))

    def plan(self, peer: str, count: int, size_bytes: int, load: _Load) -> Plan:
        """Return a plan with a scaled count."""
        return Plan(
            label=load.label or peer,
            peer=PEERS[peer],
            stages=load.stages,
            summary=load.summary,
            count=self.count(count),
            size_bytes=size_bytes,
            options=load.options,
        )


def _one_call(scale: _Scale) -> Case:
    piped = _Load(((produce, consume),), first_to_last)
    floor = _Load(((produce, consume_ready),), slower_loop)
    return Case(
        "one-call",
        "one producer, one consumer, one call each, 100 B",
        (
            scale.plan(OURS, 4_000_000, 100, piped),
            scale.plan(ZEROMQ, 1_200_000, 100, piped),
            scale.plan(MP_QUEUE, 250_000, 100, piped),
            scale.plan(NO_OPS, 6_000_000, 100, floor),
            scale.plan(FILE, 600_000, 100, piped),
        ),
        (
            Target("at least 4 x ZeroMQ", "messages_per_s", 4.0, ZEROMQ),
            Target("at least 25 x multiprocessing.Queue", "messages_per_s", 25.0, MP_QUEUE),
            Target("at least 60 % of the loop with C no-ops", "messages_per_s", 0.6, NO_OPS),
        ),
    )


def _batches(scale: _Scale) -> Case:
    rest = _Load(((produce_batches, consume_batches),), first_to_last)
    return Case(
        "batches",
        "the same in batches of 1024",
        (scale.plan(OURS, 8_000_000, 100, rest), scale.plan(FILE, 4_000_000, 100, rest)),
        (Target("at least 4 x a plain file in batches", "messages_per_s", 4.0, FILE),),
    )


def _two_producers(scale: _Scale) -> Case:
    one, two = f"{OURS}, 1 producer", f"{OURS}, 2 producers"
    return Case(
        "two-producers",
        "2 producers, 1 consumer, 100 B",
        tuple(
            scale.plan(OURS, 3_000_000, 100, _Load(stages, first_to_last, label=label))
            for label, stages in (
                (one, ((produce, consume_mixed),)),
                (two, ((produce, produce, consume_mixed),)),
            )
        ),
        (Target("at least 70 % of one producer", "messages_per_s", 0.7, one, ours=two),),
    )


def _fan_out(scale: _Scale) -> Case:
    rest = _Load(((produce, consume, consume),), first_to_last)
    return Case(
        "fan-out",
        "1 producer, 2 fan-out consumers, 100 B",
        (scale.plan(OURS, 3_000_000, 100, rest), scale.plan(ZEROMQ, 1_000_000, 100, rest)),
        (Target("at least 3 x ZeroMQ publish/subscribe", "messages_per_s", 3.0, ZEROMQ),),
    )


def _large(scale: _Scale) -> Case:
    rest = _Load(((produce, consume),), first_to_last)
    return Case(
        "large",
        "64 KiB messages, one call each",
        (scale.plan(OURS, 24_000, 64 * KIB, rest), scale.plan(FILE, 24_000, 64 * KIB, rest)),
        (Target("at least 3 x a plain file", "megabytes_per_s", 3.0, FILE),),
    )


def _huge(name: str, title: str, size_bytes: int, count: int, *, streamed: bool) -> _Maker:
    def make(scale: _Scale) -> Case:
        roles = (produce_stream, consume_stream) if streamed else (produce_whole, consume_whole)
        rest = _Load(((warm,), roles), last_stage)
        plans = tuple(
            replace(
                scale.plan(peer, 0, scale.size(size_bytes), rest),
                count=scale.calls(count),
                stall_seconds=LARGE_STALL_SECONDS,
            )
            for peer in (OURS, FILES)
        )
        limit = 0.9 if streamed else 1.0
        text = f"at least {limit:g} x plain files"
        return Case(name, title, plans, (Target(text, "megabytes_per_s", limit, FILES),))

    return make


def _one_batch(scale: _Scale) -> Case:
    whole, pages = f"{OURS}, one call", f"{OURS}, page-sized batches"
    plans = []
    for label, count in ((whole, BATCH_COUNT), (pages, PAGE_COUNT)):
        batch = {"batch": scale.count(count)}
        rest = _Load(((warm,), (produce_calls,), (check_calls,)), sending, batch, label)
        plans.append(scale.plan(OURS, 3 * BATCH_COUNT, 100, rest))
    return Case(
        "one-batch",
        "1 M messages of 100 B in one call, three times",
        tuple(plans),
        (Target("at least 0.9 x page-sized batches", "append_per_s", 0.9, pages, ours=whole),),
    )


def _beside(scale: _Scale) -> Case:
    large, batches = f"{OURS}, beside messages of 64 MiB", f"{OURS}, beside batches of 1 MiB"
    plans = []
    for label, press_bytes, count in ((large, 64 * MIB, 24), (batches, 0, 24 * 64)):
        options = {"pace_ns": 20_000, "press_bytes": press_bytes, "press_count": scale.calls(count)}
        rest = _Load(((produce_paced, press),), latency_of_first, options, label)
        plans.append(scale.plan(OURS, 100_000, 64, rest))
    return Case(
        "beside-large",
        "send 64 B, one every 20 us, beside another producer's 1.5 GiB x scale",
        tuple(plans),
        (
            Target(
                "p99.99 at most that beside batches of 1 MiB",
                "send_p99.99_us",
                1.0,
                batches,
                ours=large,
                at_most=True,
            ),
        ),
    )


def _stream_memory(scale: _Scale) -> Case:
    rest = _Load(((produce_stream, consume_stream),), memory)
    plan = scale.plan(OURS, 0, scale.size(1024 * MIB), rest)
    return Case(
        "stream-memory",
        "memory over an idle process, one message of 1 GiB x scale streamed",
        (replace(plan, count=1, stall_seconds=LARGE_STALL_SECONDS),),
        (Target("at most 16 MiB", "most_mib", 16.0, at_most=True),),
    )


def _round_trip(scale: _Scale) -> Case:
    rest = _Load(((ping, pong),), latency)
    return Case(
        "round-trip",
        "round trip, 64 B, both spinning",
        (scale.plan(OURS, 800_000, 64, rest), scale.plan(LMDB, 200_000, 64, rest)),
        (
            Target("p50 at most 1.5 us", "round_trip_p50_us", 1.5, at_most=True),
            Target("p50 under half of LMDB's", "round_trip_p50_us", 0.5, LMDB, at_most=True),
        ),
    )


def _replay(scale: _Scale) -> Case:
    rest = _Load(((produce,), (replay,)), append_then_replay)
    return Case(
        "replay",
        "append 1 M, then replay in a new process, 100 B",
        (scale.plan(OURS, 1_000_000, 100, rest), scale.plan(LMDB, 1_000_000, 100, rest)),
        (
            Target("append at least 5 x LMDB", "append_per_s", 5.0, LMDB),
            Target("replay at least 1.5 x LMDB", "replay_per_s", 1.5, LMDB),
        ),
    )


def _processor_time(scale: _Scale) -> Case:
    rest = _Load(((send_same,), (receive_same,)), processor_time)
    return Case(
        "processor-time",
        "processor time of sending and of receiving 1 KiB, one call each, one after the other",
        (scale.plan(OURS, 1_000_000, KIB, rest),),
        (
            Target("send at most 120 ns", "send_thread_ns", 120.0, at_most=True),
            Target("receive at most 100 ns", "receive_thread_ns", 100.0, at_most=True),
        ),
    )


def _seek(scale: _Scale) -> Case:
    rest = _Load(((produce_history,), (seek,)), latency, {"seeks": scale.count(100_000)})
    return Case(
        "seek",
        "seek to a time in 1 M messages, then read one, 100 B",
        (scale.plan(OURS, 1_000_000, 100, rest), scale.plan(LMDB, 1_000_000, 100, rest)),
        (Target("p50 at most 5 us", "seek_p50_us", 5.0, at_most=True),),
    )


def _rolls(scale: _Scale) -> Case:
    rest = _Load(((produce_paced,),), latency, {"pace_ns": 10_000})
    pages = {"page_bytes": 4 * MIB, **rest.options}
    small = replace(rest, label=f"{OURS}, 4 MiB pages", options=pages)
    return Case(
        "rolls",
        "send across page rolls, one every 10 us, 1 KiB",
        (
            scale.plan(OURS, 200_000, KIB, rest),
            scale.plan(OURS, 200_000, KIB, small),
            scale.plan(FILE, 200_000, KIB, rest),
        ),
    )


def _ring(size_bytes: int, count: int, least: float) -> _Maker:
    def make(scale: _Scale) -> Case:
        piped = _Load(((produce, consume),), first_to_last)
        plans = [scale.plan(peer, count, size_bytes, piped) for peer in (OUR_RING, RING)]
        if size_bytes < 64 * KIB:
            plans.append(scale.plan(ZEROMQ, count // 2, size_bytes, piped))
        text = f"at least {least:g} x the ring in shared memory"
        return Case(
            f"ring-{size_bytes // KIB}-kib",
            f"16 MiB between sender and receiver, {size_bytes // KIB} KiB, one call each",
            tuple(plans),
            (Target(text, "messages_per_s", least, RING, ours=OUR_RING),),
        )

    return make


def _ring_pace(scale: _Scale) -> Case:
    rest = _Load(((produce_paced, consume),), latency_of_first, {"pace_ns": 100_000})
    return Case(
        "ring-pace",
        "send into 16 MiB that a receiver drains, one every 100 us, 64 KiB",
        tuple(scale.plan(peer, 40_000, 64 * KIB, rest) for peer in (OUR_RING, RING)),
        (Target("p99.99 at most 100 us", "send_p99.99_us", 100.0, ours=OUR_RING, at_most=True),),
    )


CASES = {
    "one-call": _one_call,
    "batches": _batches,
    "two-producers": _two_producers,
    "fan-out": _fan_out,
    "large": _large,
    "64-mib": _huge("64-mib", "64 MiB messages", 64 * MIB, 12, streamed=False),
    "1-gib": _huge("1-gib", "messages of 1 GiB x scale", 1024 * MIB, 2, streamed=False),
    "64-mib-streamed": _huge(
        "64-mib-streamed", "64 MiB messages as files, by 1 MiB", 64 * MIB, 12, streamed=True
    ),
    "1-gib-streamed": _huge(
        "1-gib-streamed",
        "messages of 1 GiB x scale as files, by 1 MiB",
        1024 * MIB,
        2,
        streamed=True,
    ),
    "one-batch": _one_batch,
    "beside-large": _beside,
    "stream-memory": _stream_memory,
    "round-trip": _round_trip,
    "replay": _replay,
    "processor-time": _processor_time,
    "seek": _seek,
    "rolls": _rolls,
    "ring-64-kib": _ring(64 * KIB, 60_000, 0.8),
    "ring-1-kib": _ring(KIB, 1_500_000, 1.0),
    "ring-pace": _ring_pace,
}

LARGE_SCALES = {
    "64-mib": 1.0,
    "64-mib-streamed": 1.0,
    "one-batch": 1.0,
    "beside-large": 1.0,
    "1-gib": 1.0,
    "1-gib-streamed": 1.0,
    "stream-memory": 10.0,
}
"""The cases of `--large`, the shortest first, each with the scale of its figure."""


def build_case(name: str, scale: float = 1.0) -> Case:
    """Return the case of that name, with counts scaled."""
    return CASES[name](_Scale(scale))
