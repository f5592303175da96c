"""The benchmark itself: it runs every case, reports all, and catches a peer that cheats."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from stress.bench import command
from stress.bench.cases import CASES, PEERS, build_case
from stress.bench.figures import first_to_last
from stress.bench.harness import measure
from stress.bench.loops import consume, consume_batches, produce, produce_batches
from stress.bench.peers.plain_file import PlainFile
from stress.bench.plan import Case, CheckFailed, Plan, Target, percentile, percentiles_us
from stress.bench.report import file_system_of
from stress.bench.turns import in_turns, median_ratio, medians, seconds_in_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stress.bench.plan import Stages

COUNT = 3_000
ONE_CALL: Stages = ((produce, consume),)
BATCHES: Stages = ((produce_batches, consume_batches),)


class Dropping(PlainFile):
    """A peer that loses one message, or the last of one batch."""

    dropped = COUNT // 2

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends all messages but one."""
        send = super().open_send(channel)
        number = 0

        def send_most(payload: bytes) -> None:
            nonlocal number
            if number != self.dropped:
                send(payload)
            number += 1

        return send_most

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return what sends all messages but the last of the first batch."""
        send_many = super().open_send_many()
        first = True

        def send_most(payloads: list[bytes]) -> None:
            nonlocal first
            send_many(payloads[:-1] if first else payloads)
            first = False

        return send_most


class DroppingLast(Dropping):
    """A peer that loses the very last message, after which no other arrives to reveal the loss."""

    dropped = COUNT - 1


class Doubling(PlainFile):
    """A peer that delivers every message twice."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends twice."""
        send = super().open_send(channel)
        return lambda payload: (send(payload), send(payload))


class Tearing(PlainFile):
    """A peer that changes one byte in the middle of every message."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a callable that sends other payloads."""
        send = super().open_send(channel)
        return lambda payload: send(payload[:50] + b"\0" + payload[51:])


class Dying(PlainFile):
    """A peer whose producer is gone without a word."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what ends the process."""
        del channel
        return lambda _payload: os._exit(7)


def plan_of(peer: type[PlainFile], stages: Stages, stall_seconds: float = 30.0) -> Plan:
    """Return a small plan for a peer."""
    return Plan("peer", peer, stages, first_to_last, COUNT, 100, stall_seconds=stall_seconds)


@pytest.mark.parametrize("stages", [ONE_CALL, BATCHES], ids=["one call", "batches"])
def test_peer_that_keeps_all_is_measured(stages: Stages, tmp_path: Path) -> None:
    """An honest peer passes the checks that the wrong ones below fail, and leaves no file."""
    figures = measure(plan_of(PlainFile, stages), tmp_path)
    assert figures["messages_per_s"] == pytest.approx(COUNT / figures["seconds"])
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("peer", "stages", "expected"),
    [
        (Dropping, ONE_CALL, "message 1500 expected, got 1501"),
        (Dropping, BATCHES, "differ"),
        (Doubling, ONE_CALL, "message 1 expected, got 0"),
        (Tearing, ONE_CALL, "message 255 expected, got 255 in 100 bytes"),
        (Dying, ONE_CALL, "produce 0 died"),
    ],
)
def test_wrong_peer_is_caught(
    peer: type[PlainFile], stages: Stages, expected: str, tmp_path: Path
) -> None:
    """A lost, doubled or torn message, or a death, fails the measurement and is named."""
    with pytest.raises(CheckFailed, match=expected):
        measure(plan_of(peer, stages), tmp_path)
    assert not list(tmp_path.iterdir())


def test_loss_of_the_last_message_is_caught(tmp_path: Path) -> None:
    """No message comes after it, so the stall limit reveals the loss."""
    with pytest.raises(CheckFailed, match=r"no more messages came|a message was lost"):
        measure(plan_of(DroppingLast, ONE_CALL, stall_seconds=2.0), tmp_path)


def test_failed_check_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, the failure is printed, and the figures of that peer are withheld."""
    target = Target("at least 0", "messages_per_s", 0.0, ours="peer")
    case = Case("one-call", "one call", (plan_of(Dropping, ONE_CALL),), (target,))
    monkeypatch.setattr(command, "build_case", lambda *_: case)
    path = tmp_path / "report.json"
    arguments = ["--only", "one-call", "--json", str(path), "--directory", str(tmp_path / "new")]
    assert command.main(arguments) == 1
    printed = capsys.readouterr().out
    assert "FAILED one-call: peer" in printed
    assert "not measured" in printed
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["failed"] is True
    assert report["cases"][0]["contenders"][0]["median"] == {}
    assert report["cases"][0]["contenders"][0]["runs"] == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(CASES)[:2], id="two"),
        pytest.param(list(CASES), marks=pytest.mark.nightly, id="all"),
    ],
)
def test_every_case_runs_and_reports(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a tiny scale all contenders pass their checks, and each target gets a verdict.

    `.ci/run bench` runs all cases too, and fails where a check of one fails.
    """
    path = tmp_path / "report.json"
    options = ["--scale", "0.001", "--repeats", "1", "--json", str(path)]
    options += [word for name in names for word in ("--only", name)]
    assert command.main([*options, "--directory", str(tmp_path / "queues")]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert set(report) == {"schema", "header", "cases", "failed"}
    assert {"date", "cpus", "kernel", "python", "libraries", "file_system"} <= set(report["header"])
    assert [case["name"] for case in report["cases"]] == names
    for case in report["cases"]:
        assert case["failures"] == []
        for contender in case["contenders"]:
            if contender["installed"]:
                assert len(contender["runs"]) == 1
                assert all(value >= 0 for value in contender["median"].values())
                assert contender["median"]["seconds"] > 0
    printed = capsys.readouterr().out
    for case in report["cases"]:
        for target in case["targets"]:
            assert target["verdict"] in {"reached", "NOT reached", "not measured"}
            assert target["text"] in printed
    assert not list((tmp_path / "queues").iterdir())


def test_large_cases_are_chosen_at_the_scale_of_their_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of many pages, no others, 10 GiB streamed; no repeat begins when time is over."""
    path = tmp_path / "report.json"
    options = ["--large", "--seconds", "0", "--json", str(path), "--directory", str(tmp_path / "q")]
    assert command.main(options) == 0
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert {case["name"] for case in cases} == {
        "64-mib",
        "64-mib-streamed",
        "1-gib",
        "1-gib-streamed",
        "one-batch",
        "beside-large",
        "stream-memory",
    }
    sizes = {case["name"]: case["contenders"][0]["size_bytes"] for case in cases}
    assert (sizes["1-gib"], sizes["stream-memory"]) == (1 << 30, 10 << 30)
    assert {target["verdict"] for case in cases for target in case["targets"]} == {"not measured"}
    assert not any(contender["runs"] for case in cases for contender in case["contenders"])
    assert "not measured" in capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_targets_name_contenders_of_their_case(name: str) -> None:
    """A target without a peer to compare with would never be reached nor missed."""
    case = build_case(name)
    labels = [plan.label for plan in case.plans]
    assert len(set(labels)) == len(labels)
    for target in case.targets:
        assert target.ours in labels
        assert target.peer is None or target.peer in labels


def test_our_own_peer_is_there() -> None:
    """A peer that fails to import is left out; ours must be present."""
    assert PEERS["pagequeue"] is not None


def test_target_compares_medians() -> None:
    """Ratios and fixed figures, at least and at most, and what was not measured."""
    medians = {"pagequeue": {"rate": 9.0, "p50": 1.0}, "other": {"rate": 3.0}}
    assert Target("", "rate", 3.0, "other").reached(medians) is True
    assert Target("", "rate", 3.1, "other").reached(medians) is False
    assert Target("", "p50", 1.0, at_most=True).reached(medians) is True
    assert Target("", "p50", 0.9, at_most=True).reached(medians) is False
    assert Target("", "p50", 0.9, "other").reached(medians) is None
    assert Target("", "rate", 1.0, "absent").reached(medians) is None


def test_percentiles_are_nearest_rank() -> None:
    """Of a hundred samples the 50th is the median and the last one is p99.99."""
    samples = list(range(1_000, 101_000, 1_000))
    assert percentile(samples, 0.5) == 50_000
    assert percentile(samples[:1], 0.5) == 1_000
    figures = percentiles_us(samples[::-1], "send_")
    assert figures["send_p50_us"] == 50.0
    assert figures["send_p99_us"] == 99.0
    assert figures["send_p99.99_us"] == figures["send_max_us"] == 100.0


def test_file_system_is_named(tmp_path: Path) -> None:
    """Figures mean little without the file system they were taken on."""
    assert file_system_of(tmp_path) != "unknown"


def test_sides_are_measured_in_turns_after_a_round_that_warms_up() -> None:
    """Drift of the machine hits all sides: none is measured twice before another's turn."""
    calls: list[tuple[str, int]] = []
    found = in_turns({name: lambda n, name=name: calls.append((name, n)) for name in "ab"}, 2)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert found == {"a": [None, None], "b": [None, None]}
    turns: list[str] = []
    taken = seconds_in_turns({name: lambda name=name: turns.append(name) for name in "ab"}, 3)
    assert turns == ["a", "b"] * 4
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3}
    assert medians({"a": [3.0, 1.0, 2.0]}) == {"a": 2.0}
    assert median_ratio([(1.0, 2.0), (10.0, 50.0), (4.0, 12.0)]) == 3.0
