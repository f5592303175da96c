"""The cases: what is measured, of whom, and by which figures they are compared.

The clock starts after the page cache has been warmed by as many bytes as the case will write, and,
for pagequeue, in the second page: the first one is made differently. A contender that cannot do a
case is left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stress.bench import figures
from stress.bench.durable_loops import check_all, produce_durable
from stress.bench.large_loops import warm
from stress.bench.loops import (
    consume,
    consume_batches,
    consume_mixed,
    ping,
    ping_sleeping,
    pong,
    pong_sleeping,
    produce,
    produce_batches,
    produce_history,
    replay,
    replay_batches,
    seek,
)
from stress.bench.plan import Case, Plan
from stress.bench.prepared_loops import (
    consume_prepared,
    consume_weighed,
    produce_prepared,
    produce_weighed,
)
from stress.bench.setting import append_and_weigh, first_read, first_send, make_ready
from stress.bench_field.contenders import (
    CONTENDERS,
    ICEORYX,
    OUR_RING,
    RING,
    ZEROMQ,
    Contender,
    find,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stress.bench.plan import Stages, Summary

KIB = 1024
MIB = 1024 * KIB
LEAST_COUNT = 200
LEAST_LARGE_COUNT = 4
DURABLE = "durable"
LONGEST_SECONDS = 240.0  # of a stage; other work can make it ten times as long
HUGE_STALL_SECONDS = 1800.0
SEEKS = 20_000
MOST = 1_000_000
"""Messages that are stored, at most, where a case says nothing else."""


@dataclass(frozen=True)
class Spec:
    """A case, before it is known who takes part.

    Attributes:
        need: what a peer must not lack: a key of `peers.base.NEEDS`, or `DURABLE`.
        compared: the figures that tell who is faster, or takes less.
        most: messages at most.
        fixed: so many messages for all, whatever their pace.
        only: the labels of the contenders, the first of which the others are compared with.
        is_huge: it takes minutes and many GB, so it is run only when it is asked for.
        readies: its first stage warms the memory and leaves the first page.
    """

    title: str
    need: str
    stages: Stages
    summary: Summary
    compared: tuple[str, ...]
    size_bytes: int = 100
    most: int = 8_000_000
    fixed: int = 0
    only: tuple[str, ...] = tuple(CONTENDERS)
    channels: tuple[str, ...] = ("main",)
    options: Mapping[str, int] = field(default_factory=dict)
    is_huge: bool = False
    readies: bool = True

    def count(self, contender: Contender, scale: float) -> int:
        """Return how many messages a contender gets."""
        if self.fixed:
            return max(LEAST_COUNT, int(self.fixed * scale))
        pace = contender.pace
        if "trips" in self.title:
            count = pace.trips
        elif self.need in {"batches", "replay batches"} and pace.listed:
            count = pace.listed
        else:
            count = pace.calls
        least = LEAST_COUNT if self.size_bytes < MIB else LEAST_LARGE_COUNT
        return max(least, int(min(count, self.most, pace.bytes / self.size_bytes) * scale))


RATE = ("messages_per_s",)
BYTES = ("megabytes_per_s",)
LAST = figures.last_first_to_last
TRIP = ("round_trip_p50_us", "round_trip_p99_us", "round_trip_p99.9_us", "round_trip_p99.99_us")
BOTH = ("there", "back")
LATER = {"page_mb": 2}


def _large(title: str, size_bytes: int, most: int, need: str = "pass") -> Spec:
    roles = (produce_prepared, consume_prepared)
    return Spec(title, need, (roles,), LAST, BYTES, size_bytes, most)


def _producers(count: int) -> Spec:
    roles = (*[produce] * count, consume_mixed)
    return Spec(f"{count} producers, 1 consumer, 100 B", "producers", (roles,), LAST, RATE)


def _durable(every: int, title: str, *, later: bool = False) -> Spec:
    return Spec(
        f"{title}, 100 B" + (", in pages of 2 MiB after the first" if later else ""),
        DURABLE,
        ((produce_durable,), (check_all,)),
        figures.last_written,
        RATE,
        fixed=3_000 if every == 1 else 60_000,
        options={"every": every, "lanes": 1, **(LATER if later else {})},
        readies=later,
    )


def _seek(count: int, title: str, *, need: str = "seek far", is_huge: bool = False) -> Spec:
    return Spec(
        f"seek to a time in {title} messages, then read one, 100 B",
        need,
        ((warm,), (produce_history,), (seek,)),
        figures.latency,
        ("seek_p50_us", "seek_p99_us"),
        fixed=count,
        options={"seeks": SEEKS},
        is_huge=is_huge,
        readies=False,
    )


def _ring(size_bytes: int, most: int, *others: str) -> Spec:
    roles = (produce_prepared, consume_prepared) if size_bytes > KIB else (produce, consume)
    return Spec(
        f"a ring of 16 MiB between sender and receiver, {size_bytes // KIB} KiB, one call each",
        "pass",
        (roles,),
        LAST,
        BYTES,
        size_bytes,
        most,
        only=(OUR_RING, RING, ICEORYX, *others),
        readies=False,
    )


CASES: dict[str, Spec] = {
    "one-call": Spec("one call each, 100 B", "pass", ((produce, consume),), LAST, RATE),
    "batches": Spec(
        "lists of 1024, 100 B", "batches", ((produce_batches, consume_batches),), LAST, RATE
    ),
    "1-kib": Spec("one call each, 1 KiB", "pass", ((produce, consume),), LAST, RATE, KIB),
    "64-kib": _large("one call each, 64 KiB", 64 * KIB, 24_000),
    "1-mib": _large("one call each, 1 MiB", MIB, 1_500),
    "64-mib": _large("one call each, 64 MiB", 64 * MIB, 16, "large"),
    "two-producers": _producers(2),
    "four-producers": _producers(4),
    "fan-out": Spec(
        "1 producer, 2 consumers that get all, 100 B",
        "fan-out",
        ((produce, consume, consume),),
        LAST,
        RATE,
    ),
    "round-trip-spin": Spec(
        "round trips, 64 B, both spin",
        "poll",
        ((ping, pong),),
        figures.latency,
        TRIP,
        64,
        channels=BOTH,
    ),
    "round-trip-block": Spec(
        "round trips, 64 B, both sleep",
        "block",
        ((ping_sleeping, pong_sleeping),),
        figures.latency,
        TRIP,
        64,
        most=20_000,
        channels=BOTH,
    ),
    "replay": Spec(
        "append, then replay in a new process, one call each, 100 B",
        "replay",
        ((produce,), (replay,)),
        figures.last_append_then_replay,
        ("append_per_s", "replay_per_s"),
        most=MOST,
    ),
    "replay-batches": Spec(
        "append, then replay in a new process, lists of 1024, 100 B",
        "replay batches",
        ((produce_batches,), (replay_batches,)),
        figures.last_append_then_replay,
        ("append_per_s", "replay_per_s"),
        most=4 * MOST,
    ),
    "seek-1m": _seek(MOST, "1 M", need="seek"),
    "seek-10m": _seek(10 * MOST, "10 M"),
    "seek-100m": _seek(100 * MOST, "100 M", is_huge=True),
    "durable-1": _durable(1, "each message durable"),
    "durable-1-later": _durable(1, "each message durable", later=True),
    "durable-100": _durable(100, "durable after every 100 messages"),
    "durable-100-later": _durable(100, "durable after every 100 messages", later=True),
    "cold-start": Spec(
        "a new process opens what is there, and sends one, or reads the first",
        "replay",
        ((produce,), (first_send,), (first_read,)),
        figures.cold,
        ("first_send_us", "first_read_us"),
        most=200_000,
        readies=False,
    ),
    "memory": Spec(
        "memory beyond an idle process, 1 KiB, one call each",
        "pass",
        ((produce_weighed, consume_weighed),),
        figures.memory_of_both,
        ("all_mib",),
        KIB,
        most=200_000,
        readies=False,
    ),
    "disk": Spec(
        "bytes on the disk for a message of 100 B",
        "replay",
        ((append_and_weigh,),),
        figures.disk,
        ("disk_bytes_per_message",),
        most=2 * MOST,
        readies=False,
    ),
    "ring-64-kib": _ring(64 * KIB, 60_000),
    "ring-1-kib": _ring(KIB, 2 * MOST, ZEROMQ),
}
"""By name, in the order of the table."""


def _class_of(label: str, need: str) -> tuple[type | None, str]:
    """Return the adapter of a contender for a case, or None and why it is left out."""
    contender = CONTENDERS[label]
    adapter = contender.durable if need == DURABLE else contender.adapter
    if adapter is None:
        return None, contender.why_not
    peer, why_not = find(adapter)
    if peer is not None and need in peer.lacks:
        return None, peer.lacks[need]
    return peer, why_not


def build_case(name: str, scale: float = 1.0, peers: Collection[str] = tuple(CONTENDERS)) -> Case:
    """Return a case for these contenders; those that cannot take part are in `left_out`."""
    spec = CASES[name]
    plans, left_out = [], {}
    for label in spec.only:
        if label not in peers:
            continue
        peer, why_not = _class_of(label, spec.need)
        if peer is None:
            left_out[label] = why_not
            continue
        options = {**spec.options, **({"left": 1} if spec.readies else {})}
        ready: Stages = ((make_ready,),) if spec.readies else ()
        plans.append(
            Plan(
                label=label,
                peer=peer,
                stages=(*ready, *spec.stages),
                summary=spec.summary,
                count=spec.count(CONTENDERS[label], scale),
                size_bytes=spec.size_bytes,
                options=options,
                channels=spec.channels,
                stall_seconds=HUGE_STALL_SECONDS if spec.is_huge else LONGEST_SECONDS,
            )
        )
    return Case(name, spec.title, tuple(plans), left_out=left_out)


def quick_cases(names: Sequence[str], peers: Collection[str]) -> list[Case]:
    """Return the cases at a tiny scale, with ours, and each other peer once for each kind of role.

    So every role runs, every adapter does each of its kinds of work, and it takes half a minute.
    """
    seen: set[tuple[str, str]] = set()
    cases = []
    for name in names:
        case, need = build_case(name, QUICK_SCALE, peers), CASES[name].need
        plans = [
            plan if number == 0 else replace(plan, stages=CASES[name].stages)  # nothing to warm
            for number, plan in enumerate(case.plans)
            if number == 0 or (plan.label, KINDS[need]) not in seen
        ]
        seen |= {(plan.label, KINDS[need]) for plan in plans}
        cases.append(Case(name, case.title, tuple(plans), left_out=case.left_out))
    return cases


QUICK_SCALE = 0.001
KINDS = {
    "pass": "pass",
    "batches": "batches",
    "producers": "pass",
    "fan-out": "fan-out",
    "large": "pass",
    "poll": "poll",
    "block": "block",
    "replay": "replay",
    "replay batches": "batches",
    "seek": "seek",
    "seek far": "seek",
    DURABLE: DURABLE,
}
"""By what a case needs, what it has in common with others."""
