"""The table of durable sending: what is compared, and what is to be reached.

All contenders of a case send the same messages of 100 B to the same file system, and each run is
read back and checked. Where several producers share syncs, they are compared with one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stress.bench.cases import LEAST_COUNT, _peer
from stress.bench.durable_loops import check_all, produce_durable, produce_in_threads
from stress.bench.figures import first_to_last_written
from stress.bench.plan import Case, Plan, Suite, Target

if TYPE_CHECKING:
    from stress.bench.peers.base import Peer
    from stress.bench.plan import Stages

SIZE_BYTES = 100
BLOCK_COUNT = 100
PRODUCERS = 8
INTERVAL_MS = 10
RATE = "messages_per_s"
WRITTEN = "written_kib_per_flush"
LATER_MB = 2

OURS = "pagequeue"
FILE = "plain file"
JOINED = "plain file, one write"
RESERVED = "plain file, preallocated"
SQLITE = "SQLite"
LMDB = "LMDB"

PEERS: dict[str, type[Peer] | None] = {
    OURS: _peer("durable", "DurableQueue"),
    FILE: _peer("durable", "SyncedFile"),
    JOINED: _peer("durable", "JoinedFile"),
    RESERVED: _peer("durable", "ReservedFile"),
    SQLITE: _peer("durable", "SqliteFull"),
    LMDB: _peer("durable_lmdb", "LmdbSync"),
}

ONE: Stages = ((produce_durable,), (check_all,))
PROCESSES: Stages = ((produce_durable,) * PRODUCERS, (check_all,))
THREADS: Stages = ((produce_in_threads,), (check_all,))


@dataclass(frozen=True)
class _Load:
    """What contenders of a case have in common."""

    count: int
    every: int

    def plan(self, peer: str, stages: Stages = ONE, label: str = "", **options: Any) -> Plan:  # noqa: ANN401 - ints
        """Return a plan for a peer."""
        lanes = 1 if stages is ONE else PRODUCERS
        return Plan(
            label=label or peer,
            peer=PEERS[peer],
            stages=stages,
            summary=first_to_last_written,
            count=self.count,
            size_bytes=SIZE_BYTES,
            options={"every": self.every, "lanes": lanes, **options},
        )


def _always(scale: float) -> Case:
    load = _Load(_scaled(4_000, scale), 1)
    return Case(
        "always",
        'each message durable, one producer: sync="always"',
        tuple(load.plan(peer) for peer in (OURS, FILE, RESERVED, SQLITE, LMDB)),
        (
            Target("no slower than a plain file with fdatasync", RATE, 1.0, FILE),
            Target("no slower than SQLite WAL, synchronous=FULL", RATE, 1.0, SQLITE),
        ),
    )


def _group(name: str, kind: str, stages: Stages, scale: float) -> Case:
    one, many = _Load(_scaled(4_000, scale), 1), _Load(_scaled(16_000, scale), 1)
    eight = f"{OURS}, {PRODUCERS} {kind}"
    return Case(
        name,
        f"each message durable, {PRODUCERS} producers in {kind} that share syncs",
        (many.plan(OURS, stages, eight), one.plan(OURS)),
        (Target("at least 3 x one producer", RATE, 3.0, OURS, ours=eight),),
    )


def _blocks(scale: float) -> Case:
    load = _Load(_scaled(100_000, scale), BLOCK_COUNT)
    return Case(
        "blocks",
        f"durable after every {BLOCK_COUNT} messages: flush()",
        tuple(load.plan(peer) for peer in (OURS, FILE, JOINED, RESERVED, SQLITE, LMDB)),
        (
            Target("at least a plain file with fdatasync", RATE, 1.0, FILE),
            Target("at least SQLite WAL, synchronous=FULL", RATE, 1.0, SQLITE),
            Target("at least LMDB", RATE, 1.0, LMDB),
        ),
    )


def _later(scale: float) -> Case:
    load = _Load(_scaled(100_000, scale), BLOCK_COUNT)
    return Case(
        "later",
        f"the same in pages of {LATER_MB} MiB: most of it after the first page",
        tuple(load.plan(peer, page_mb=LATER_MB) for peer in (OURS, FILE)),
        (
            Target("at least a plain file with fdatasync", RATE, 1.0, FILE),
            Target("at most 40 KiB written for a flush", WRITTEN, 40.0, at_most=True),
        ),
    )


def _interval(scale: float) -> Case:
    load = _Load(_scaled(400_000, scale), 1)
    return Case(
        "interval",
        f"durable within {INTERVAL_MS} ms: sync=timedelta; the file is synced in a thread",
        tuple(load.plan(peer, interval_ms=INTERVAL_MS) for peer in (OURS, FILE)),
        (Target("at least a plain file", RATE, 1.0, FILE),),
    )


def _scaled(count: int, scale: float) -> int:
    return max(LEAST_COUNT, int(count * scale))


CASES = {
    "always": _always,
    "threads": lambda scale: _group("threads", "threads", THREADS, scale),
    "processes": lambda scale: _group("processes", "processes", PROCESSES, scale),
    "blocks": _blocks,
    "later": _later,
    "interval": _interval,
}


def build_case(name: str, scale: float = 1.0) -> Case:
    """Return the case of that name, with counts scaled."""
    return CASES[name](scale)


def durable() -> Suite:
    """Return the cases of `python -m stress.bench_durable`."""
    return Suite(
        "python -m stress.bench_durable",
        "Measure durable sending against peers, in one run.",
        tuple(CASES),
        build_case,
    )
