"""The benchmark of the field: adapters lose nothing, a wrong message is noticed, names exist."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from stress.bench.figures import last_first_to_last
from stress.bench.harness import measure
from stress.bench.loops import ping_sleeping, pong_sleeping, replay_batches
from stress.bench.peers.base import NEEDS, Peer
from stress.bench.peers.pipe import Pipe
from stress.bench.peers.plain_file import PlainFile
from stress.bench.plan import CheckFailed, Plan
from stress.bench.prepared_loops import consume_prepared, produce_prepared, turn_of
from stress.bench.report import Measured
from stress.bench.setting import allocated_bytes
from stress.bench_field import command
from stress.bench_field.cases import CASES, DURABLE, KINDS, LEAST_COUNT, build_case, quick_cases
from stress.bench_field.contenders import CONTENDERS, OURS, find
from stress.bench_field.page import NAMES, slower, table, write_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stress.bench.plan import Stages

KIB = 1024
PREPARED: Stages = ((produce_prepared, consume_prepared),)
ADAPTERS = {
    label: adapter
    for label, contender in CONTENDERS.items()
    if contender.adapter and (adapter := find(contender.adapter)[0])
}
HEAD = {
    "date": "2026-01-01",
    "load_average_1min": 0.0,
    "cpus": 2,
    "processor": "P",
    "machine": "m",
    "kernel": "6",
    "file_system": "ext4",
    "python": "CPython",
    "libraries": {"lmdb": "1"},
    "command": "c",
    "repeats": 3,
    "scale": 1.0,
    "quick": False,
}


class Swapping(PlainFile):
    """A peer that sends the second message in place of the third."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends other payloads."""
        send = super().open_send(channel)
        sent: list[bytes] = []

        def send_swapped(payload: bytes) -> None:
            sent.append(payload)
            send(sent[1] if len(sent) == 3 else payload)

        return send_swapped


class Tearing(PlainFile):
    """A peer that changes one byte in the middle of every message, and of every list's first."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends other payloads."""
        send = super().open_send(channel)
        return lambda payload: send(payload[:500] + b"\0" + payload[501:])

    def open_batches(self) -> object:
        """Return lists with one other payload in each."""
        for payloads in super().open_batches():
            yield [payloads[0][:-1] + b"\0", *payloads[1:]]


class Echoing(Pipe):
    """A peer that answers with another message."""

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends other payloads back."""
        send = super().open_send(channel)
        return send if channel == "there" else lambda payload: send(payload[::-1])


def plan_of(
    peer: type[Peer], stages: Stages, size_bytes: int = 64 * KIB, count: int = 300, **more: object
) -> Plan:
    """Return a small plan for a peer."""
    return Plan("peer", peer, stages, last_first_to_last, count, size_bytes, **more)


def test_messages_made_before_are_all_different() -> None:
    """Else one that came twice would not be seen."""
    for size_bytes in (64 * KIB, 1024 * KIB, 64 * 1024 * KIB):
        turn = turn_of(size_bytes)
        assert len(set(turn)) == len(turn) >= 2
        assert {len(payload) for payload in turn} == {size_bytes}


def test_peer_that_keeps_all_is_measured(tmp_path: Path) -> None:
    """An honest peer passes, and no file is left."""
    assert measure(plan_of(PlainFile, PREPARED), tmp_path)["megabytes_per_s"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (plan_of(Swapping, PREPARED), "message 2 expected, got 1"),
        (plan_of(Tearing, PREPARED), "message 15 expected, got 15 in 65536 bytes"),
        (
            plan_of(Echoing, ((ping_sleeping, pong_sleeping),), 64, channels=("there", "back")),
            "message 0 expected",
        ),
    ],
    ids=["swapped", "torn", "another answer"],
)
def test_wrong_message_is_noticed(plan: Plan, expected: str, tmp_path: Path) -> None:
    """Out of order, torn, and an answer that is not what was sent."""
    with pytest.raises(CheckFailed, match=expected):
        measure(plan, tmp_path)


@pytest.mark.nightly
def test_wrong_replay_is_noticed(tmp_path: Path) -> None:
    """A list that differs in its first message."""
    plan = build_case("replay-batches", 1e-9, [OURS, "plain file"]).plans[1]
    wrong = plan_of(Tearing, plan.stages, 100, LEAST_COUNT)
    assert replay_batches in plan.stages[-1]
    with pytest.raises(CheckFailed, match="the messages after number 0 differ"):
        measure(wrong, tmp_path)


@pytest.mark.parametrize("label", ADAPTERS)
def test_adapter_offers_what_it_does_not_lack(label: str) -> None:
    """A case that needs what an adapter neither has nor lacks would end in an error."""
    adapter = ADAPTERS[label]
    assert set(adapter.lacks) <= {*NEEDS, DURABLE}
    for need, methods in NEEDS.items():
        if need not in adapter.lacks:
            for method in methods:
                assert getattr(adapter, method) is not getattr(Peer, method), (need, method)


@pytest.mark.nightly
@pytest.mark.parametrize("label", [label for label in ADAPTERS if label != OURS])
def test_each_adapter_that_is_installed_passes_one_case_of_each_kind(
    label: str, tmp_path: Path
) -> None:
    """All messages come, whatever the peer: by one call, lists, replay."""
    done: set[str] = set()
    for name, spec in CASES.items():
        kind = KINDS[spec.need]
        if kind in done or kind not in {"pass", "batches", "replay"}:
            continue
        for plan in build_case(name, 1e-9, [label]).plans:
            assert measure(plan, tmp_path)["seconds"] > 0
            done.add(kind)
    assert done


def test_a_contender_without_an_adapter_is_left_out_with_its_reason() -> None:
    """The output says who is missing, and why."""
    case = build_case("one-call", 1e-9)
    assert case.plans[0].label == OURS
    assert "package index" in case.left_out["Chronicle Queue"]
    assert "one process" in case.left_out["persist-queue"]
    assert {plan.label for plan in case.plans} | set(case.left_out) == set(CONTENDERS)
    assert find(("no_such_peer", "Peer"))[0] is None


def test_the_quick_run_has_every_case_and_every_adapter() -> None:
    """Each case with ours, each installed peer for each kind of work."""
    cases = quick_cases(list(CASES), CONTENDERS)
    assert [case.name for case in cases] == list(CASES)
    assert all(case.plans for case in cases)
    assert {plan.label for case in cases for plan in case.plans} == set(ADAPTERS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cases", "one-call,nothing"], "no such case: nothing; there are one-call"),
        (["--peers", "ZeroMQ,Nobody"], "no such peer: Nobody; there are pagequeue"),
        (["--repeats", "0"], "--repeats must be at least 1"),
    ],
)
def test_unknown_names_are_refused(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured, with the names that there are."""
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert expected in capsys.readouterr().err


def test_command_writes_all_that_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, JSON, Markdown and the page with its pictures."""
    pytest.importorskip("matplotlib")
    docs = tmp_path / "docs"
    docs.mkdir()
    words = ["--quick", "--cases", "64-kib,disk", "--peers", "plain file", "--docs", str(docs)]
    words += ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    assert command.main([*words, "--directory", str(tmp_path / "queues")]) == 0
    assert "where pagequeue is slower" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [case["name"] for case in report["cases"]] == ["64-kib", "disk"]
    assert report["cases"][0]["failures"] == []
    page = (docs / "field.md").read_text(encoding="utf-8")
    assert "## Where pagequeue is slower" in page
    for name in ("rates.png", "costs.png"):
        assert f"(field/{name})" in page
        assert 1000 < (docs / "field" / name).stat().st_size < 100_000
    assert "### disk" in (tmp_path / "r.md").read_text(encoding="utf-8")


def test_page_says_where_a_peer_is_ahead(tmp_path: Path) -> None:
    """More is better for rates, less for times; a tie and another of ours are not called losses."""
    pytest.importorskip("matplotlib")
    rates = Measured(build_case("one-call", 1e-9))
    for label, rate in ((OURS, 1e6), ("pagequeue, ring", 9e6), ("ZeroMQ", 2e6), ("Pipe", 1.01e6)):
        rates.runs[label].append({"messages_per_s": rate, "seconds": 1.0})
    times = Measured(build_case("cold-start", 1e-9))
    for label, first in ((OURS, 400.0), ("LMDB", 100.0), ("SQLite", 900.0)):
        times.runs[label].append({"first_send_us": first, "first_read_us": 1.0, "seconds": 1.0})
    found = slower([rates, times])
    assert found == [
        "cold-start, first send, 400.00 us: LMDB 4.00 x (100.00 us)",
        "one-call, messages/s, 1.000 M/s: ZeroMQ 2.00 x (2.000 M/s)",
    ]
    assert [line.split(" | ")[0] for line in table(rates)[6:10]] == [
        "| **pagequeue, ring**",
        "| ZeroMQ",
        "| Pipe",
        "| **pagequeue**",
    ]
    write_page(HEAD, [rates, times], tmp_path)
    assert found[0] in (tmp_path / "field.md").read_text(encoding="utf-8")


def test_every_compared_figure_has_a_name() -> None:
    """A table's column needs a head."""
    for spec in CASES.values():
        assert set(spec.compared) <= set(NAMES)
        assert spec.need in KINDS


def test_sparse_files_count_what_they_occupy(tmp_path: Path) -> None:
    """A file that was made long and not written is not on the disk."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert allocated_bytes(tmp_path) < 1 << 20
    (tmp_path / "full").write_bytes(bytes(1 << 20))
    assert allocated_bytes(tmp_path) >= 1 << 20
