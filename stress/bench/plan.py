"""What one measurement is: a peer, the roles that run at once, and the numbers they return.

A Plan is picklable, because spawned processes get it by value. A role is a top-level function that
runs in a separate process. Roles of one stage run together, after one barrier; stages run one after
the other, each in new processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from stress.bench.peers.base import Peer

NS_PER_S = 1_000_000_000
NS_PER_US = 1_000
STALL_SECONDS = 60.0  # longest a role may take, and longest a consumer waits for one message

Gate: TypeAlias = Callable[[], object]
Metrics: TypeAlias = dict[str, float]


class CheckFailed(Exception):
    """A message was lost, doubled, torn or out of order, or a process died or stalled."""


class Outcome(NamedTuple):
    """What one role measured, on the clock that all processes share."""

    started_ns: int
    ended_ns: int
    samples_ns: Mapping[str, Sequence[int]] = {}
    counts: Mapping[str, int] = {}

    @property
    def seconds(self) -> float:
        """Time from start to end, in seconds."""
        return (self.ended_ns - self.started_ns) / NS_PER_S


Role: TypeAlias = Callable[["Peer", int, Gate], Outcome]
Stages: TypeAlias = tuple[tuple[Role, ...], ...]
Summary: TypeAlias = Callable[["Plan", list[list[Outcome]]], Metrics]


@dataclass(frozen=True)
class Plan:
    """One contender of a case.

    `index`, which every role is given, is its place among the roles of its stage that are the
    same function: producer 0 and 1, consumer 0 and 1.
    """

    label: str
    peer: type[Peer] | None  # None: its package is not installed
    stages: Stages
    summary: Summary
    count: int
    size_bytes: int
    options: Mapping[str, int] = field(default_factory=dict)
    directory: Path = field(default_factory=Path)
    stall_seconds: float = STALL_SECONDS
    channels: tuple[str, ...] = ("main",)
    pinned: bool = False  # each role to a processor of its own, where there are as many

    def role_count(self, role: Role) -> int:
        """Return how many processes of the busiest stage run this role."""
        return max(stage.count(role) for stage in self.stages)


@dataclass(frozen=True)
class Target:
    """What is to be reached: ours against a peer's median, or against a fixed figure."""

    text: str
    metric: str
    limit: float
    peer: str | None = None
    at_most: bool = False
    ours: str = "pagequeue"

    def value(self, medians: Mapping[str, Metrics]) -> float | None:
        """Return the ratio or the figure that is held against `limit`, None if not measured."""
        ours = medians.get(self.ours, {}).get(self.metric)
        if ours is None or self.peer is None:
            return ours
        peers = medians.get(self.peer, {}).get(self.metric)
        return None if peers is None else ours / peers

    def reached(self, medians: Mapping[str, Metrics]) -> bool | None:
        """Return whether it is reached, None if not measured."""
        value = self.value(medians)
        if value is None:
            return None
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True)
class Case:
    """One line of the table: contenders under the same load, and what is to be reached.

    Attributes:
        left_out: by label, why a contender is not among them.
    """

    name: str
    title: str
    plans: tuple[Plan, ...]
    targets: tuple[Target, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """The cases that one command runs: their names, and what makes one by name and scale."""

    program: str
    description: str
    names: tuple[str, ...]
    build: Callable[[str, float], Case]


def percentile(sorted_samples: Sequence[int], fraction: float) -> int:
    """Return the nearest-rank percentile of samples that are sorted and not empty."""
    return sorted_samples[max(0, math.ceil(fraction * len(sorted_samples)) - 1)]


def percentiles_us(samples_ns: Sequence[int], prefix: str = "") -> Metrics:
    """Return p50 to p99.99 and the maximum, in microseconds."""
    ordered = sorted(samples_ns)
    named = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}
    return {
        f"{prefix}{name}_us": percentile(ordered, fraction) / NS_PER_US
        for name, fraction in named.items()
    }
