"""The benchmark of many processes: work is shared out once, a wrong number is noticed."""

from __future__ import annotations

import json
import os
from array import array
from typing import TYPE_CHECKING

import pytest

from stress import bench_scale
from stress.bench.harness import _processors, measure
from stress.bench.peers.our_group import ColumnQueue, GroupQueue
from stress.bench.plan import CheckFailed, Outcome, Plan
from stress.bench.wire import pack, tail_of
from stress.bench.worker_loops import shared_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Doubling(GroupQueue):
    """A group that gives its third message to a worker twice."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends the second number once more in place of the third."""
        send, other = super().open_send(channel), pack(1) + tail_of(self.plan.size_bytes)
        third = pack(2)
        return lambda payload: send(other if payload[:8] == third else payload)


class Shifting(ColumnQueue):
    """Columns whose numbers are one too high."""

    def open_columns(self) -> Iterator[object]:
        """Return other numbers."""
        for numbers in super().open_columns():
            yield numbers + 1


def plan_of(name: str, number: int) -> Plan:
    """Return our plan of an axis for so many."""
    plans = bench_scale.build_case(name, number, 1e-9).plans
    return next(plan for plan in plans if plan.label == f"pagequeue, {number}")


def test_numbers_are_powers_of_two_and_the_most() -> None:
    """12 processors are tried too."""
    assert bench_scale.numbers_to(1) == [1]
    assert bench_scale.numbers_to(12) == [1, 2, 4, 8, 12]
    assert bench_scale.numbers_to(16) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("name", bench_scale.axes())
def test_targets_name_contenders_of_their_case(name: str) -> None:
    """Oversubscribed producers and workers are compared with one."""
    case = bench_scale.build_case(name, 16, 1e-9)
    labels = [plan.label for plan in case.plans]
    assert len(set(labels)) == len(labels)
    assert {target.ours for target in case.targets} <= set(labels)
    assert len(case.targets) == (2 if name in {"producers", "workers"} else 0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "peer", "expected"),
    [
        ("workers", Doubling, "of 2000 messages 1999 were taken, 1 more than once"),
        ("columns", Shifting, "the messages after number 0 differ"),
    ],
)
def test_wrong_peer_is_noticed(
    name: str, peer: type[GroupQueue], expected: str, tmp_path: Path
) -> None:
    """A message that two workers got, and numbers that are not those that were sent."""
    plan = plan_of(name, 2)
    wrong = Plan(
        "peer", peer, plan.stages, plan.summary, plan.count, plan.size_bytes, stall_seconds=30.0
    )
    with pytest.raises(CheckFailed, match=expected):
        measure(wrong, tmp_path)


def test_a_message_that_no_worker_got_is_noticed() -> None:
    """Together the workers must have all."""
    plan = plan_of("workers", 2)
    numbers = array("q", range(plan.count - 1))
    outcomes = [[Outcome(0, 1), Outcome(0, 1, {"numbers": numbers})]]
    with pytest.raises(CheckFailed, match="1999 were taken, 0 more than once"):
        shared_out(plan, outcomes)


def test_processes_are_pinned_where_there_are_processors() -> None:
    """One each, or none at all."""
    plan, there = plan_of("producers", 1), sorted(os.sched_getaffinity(0))
    assert _processors(plan, len(there)) == there
    assert _processors(plan, len(there) + 1) == [None] * (len(there) + 1)


def test_counts_of_perf_are_read() -> None:
    """A number, and what it writes where the machine counts nothing."""
    assert bench_scale.counted("\n1234,,cache-misses,99,100.00,,\n") == 1234
    assert bench_scale.counted("<not supported>,,cache-misses,0,100.00,,") is None
    assert bench_scale.counted("") is None


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    for words, expected in ((["--only", "x"], "invalid choice"), (["--most", "0"], "at least 1")):
        with pytest.raises(SystemExit):
            bench_scale.main(words)
        assert expected in capsys.readouterr().err


def test_an_axis_runs_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One and two of a kind, all checked; `.ci/run` runs all axes."""
    path = tmp_path / "r.json"
    words = ["--quick", "--only", "producers", "--json", str(path), "--directory", str(tmp_path)]
    assert bench_scale.main(words) == 0
    (case,) = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert (case["name"], case["failures"]) == ("producers", [])
    for contender in case["contenders"]:
        assert len(contender["runs"]) == contender["installed"]
    printed = capsys.readouterr().out
    assert "counted by perf" in printed or "no hardware counters here" in printed
