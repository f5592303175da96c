"""The benchmark of durable sending: every contender is read back, and one that cheats is caught."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from stress.bench import command
from stress.bench.durable_cases import CASES, PEERS, build_case, durable
from stress.bench.durable_loops import check_all, produce_durable, produce_in_threads
from stress.bench.figures import first_to_last
from stress.bench.harness import measure
from stress.bench.peers.durable import SyncedFile
from stress.bench.plan import CheckFailed, Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stress.bench.plan import Stages

COUNT = 60


class Dropping(SyncedFile):
    """A peer that loses the message before the last."""

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return what sends all messages but one."""
        send, flush = super().open_durable()
        number = 0

        def send_most(payload: bytes) -> None:
            nonlocal number
            number += 1
            if number != COUNT - 1:
                send(payload)

        return send_most, flush


class DroppingLast(SyncedFile):
    """A peer that loses the last message."""

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return what sends all messages but the last."""
        send, flush = super().open_durable()
        number = 0

        def send_most(payload: bytes) -> None:
            nonlocal number
            number += 1
            if number != COUNT:
                send(payload)

        return send_most, flush


class FailingSync(SyncedFile):
    """A peer whose sync fails."""

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return what sends, and what cannot sync."""
        send, _ = super().open_durable()
        return send, lambda: os.fdatasync(-1)


def plan_of(peer: type[SyncedFile], stages: Stages, lanes: int = 1) -> Plan:
    """Return a small plan for a peer."""
    options = {"every": 10, "lanes": lanes}
    return Plan("peer", peer, stages, first_to_last, COUNT, 100, options=options)


@pytest.mark.parametrize("role", [produce_durable, produce_in_threads])
def test_peer_that_keeps_all_is_measured(role: Callable[..., object], tmp_path: Path) -> None:
    """One process, and three lanes in threads; no file is left."""
    lanes = 1 if role is produce_durable else 3
    figures = measure(plan_of(SyncedFile, ((role,), (check_all,)), lanes), tmp_path)
    assert figures["messages_per_s"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("peer", "role", "expected"),
    [
        (Dropping, produce_durable, "message 58 expected, got 59"),
        (DroppingLast, produce_durable, "59 messages are there, 60 were sent"),
        (FailingSync, produce_durable, "file descriptor cannot be"),
        (FailingSync, produce_in_threads, "file descriptor cannot be"),
    ],
)
def test_wrong_peer_is_caught(
    peer: type[SyncedFile], role: Callable[..., object], expected: str, tmp_path: Path
) -> None:
    """A message lost in the middle or at the end, and a sync that fails, also in a thread."""
    with pytest.raises(CheckFailed, match=expected):
        measure(plan_of(peer, ((role,), (check_all,))), tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["always"], id="one"),
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
    assert command.main([*options, "--directory", str(tmp_path / "here")], durable()) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [case["name"] for case in report["cases"]] == names
    for case in report["cases"]:
        assert case["failures"] == []
        for contender in case["contenders"]:
            assert len(contender["runs"]) == contender["installed"]
        for target in case["targets"]:
            assert target["verdict"] in {"reached", "NOT reached", "not measured"}
    assert "no slower than SQLite" in capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_targets_name_contenders_of_their_case(name: str) -> None:
    """A target without a peer to compare with would never be reached nor missed."""
    case = build_case(name)
    labels = [plan.label for plan in case.plans]
    assert len(set(labels)) == len(labels)
    for target in case.targets:
        assert target.ours in labels
        assert target.peer in {None, *labels}


def test_our_own_peer_is_there() -> None:
    """A peer that fails to import is left out; ours must be present."""
    assert PEERS["pagequeue"] is not None
