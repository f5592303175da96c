"""The replay: a table back into a queue in order of time, each row once, also after a kill."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import Queue, _core, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from archives import MINUTE_NS, PAGE_BYTES, START, make_table, numbered

from pagequeue.cli import main
from pagequeue.spark.pipeline import replay, replaying, table_layout
from pagequeue.spark.pipeline import replay_plan as plans
from pagequeue.spark.pipeline.replaying import Bound, _Replay

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class KilledError(BaseException):
    """Represents the death of the driver."""


def messages(directory: Path) -> list[tuple[int, bytes]]:
    """Return times and payloads of a queue that is as it should be."""
    with Queue(directory) as queue:
        assert queue.verify().problems == []
        return [(message.timestamp, message.payload) for message in queue.replay()]


def wanted(first: int, end: int) -> list[tuple[int, bytes]]:
    """Return times and payloads of messages that are numbered."""
    return [(START + n * MINUTE_NS, numbered(n)) for n in range(first, end)]


# --- plans ----------------------------------------------------------------------------------------


def plan_of(table: Path, since: int, until: int, slice_count: int) -> plans.Plan:
    """Return the plan for a table whose hours are not cut."""
    found = table_layout.snapshot(str(table))
    hours = plans.hours_of(found, since, until)
    return plans.make("w", plans.ends_of(found), hours, since, until, slice_count, 1 << 30)


def test_a_plan_cuts_at_hours(tmp_path: Path) -> None:
    """Slices meet, begin and end where they are told, and have about the messages asked for."""
    make_table(tmp_path / "table", a=(0, 300), b=(100, 200))
    plan = plan_of(tmp_path / "table", 0, plans.NEVER, 130)
    hours = [(cut.time - START) // table_layout.HOUR_NS for cut in plan.slices]
    assert hours == [0, 2, 4, 5]
    assert plan.ends == {"a": 300, "b": 200}
    since, until = START + 70 * MINUTE_NS, START + 250 * MINUTE_NS
    plan = plan_of(tmp_path / "table", since, until, 1)
    assert plan.slices[0] == (since, "", 0)
    assert plan.slices[-1] == (until, "", 0)
    assert [number for number, _, _ in plan.parts()] == list(range(4))
    assert list(plan_of(tmp_path / "table", 0, 5, 1).parts()) == []
    plans.save(str(tmp_path / "plan"), plan)
    assert plans.load(str(tmp_path / "plan")) == plan
    assert plans.load(str(tmp_path / "none")) is None


def test_bytes_end_a_slice_too() -> None:
    """An hour of few large messages gets a separate slice."""
    units = [plans.Unit(plans.Cut(START + n * table_layout.HOUR_NS), 1, 600) for n in range(5)]
    plan = plans.make("w", {}, units, 0, plans.NEVER, 100, 1000)
    assert [(cut.time - START) // table_layout.HOUR_NS for cut in plan.slices] == [0, 2, 4, 5]


RECORD = {"version": 2, "writer": "w", "since": 0, "until": 9, "ends": {"a": 1}, "slices": []}


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"version": 3}, errors.NewerFormat),
        (RECORD | {"version": 1}, errors.CorruptMeta),
        (RECORD | {"version": "3"}, errors.CorruptMeta),
        ([], errors.CorruptMeta),
        ({"version": 2}, errors.CorruptMeta),
        (RECORD | {"more": 1}, errors.CorruptMeta),
        (RECORD | {"since": None}, errors.CorruptMeta),
        (RECORD | {"ends": [1]}, errors.CorruptMeta),
        (RECORD | {"slices": [[1, "", 0, 0]]}, errors.CorruptMeta),
        (RECORD | {"slices": [[1, "", "0"]]}, errors.CorruptMeta),
        (RECORD | {"slices": [[2, "", 0], [1, "", 0]]}, errors.CorruptMeta),
        (RECORD | {"ids": {"a": 7}}, errors.CorruptMeta),
        (RECORD | {"ids": ["a"]}, errors.CorruptMeta),
    ],
)
def test_a_damaged_plan_is_an_error(
    tmp_path: Path, record: object, error: type[errors.PageQueueError]
) -> None:
    """It is never taken for another one."""
    text = json.dumps(record).encode()
    (tmp_path / "plan").write_bytes(f"{_core.crc32c(text):08x}".encode() + text)
    with pytest.raises(error) as caught:
        plans.load(str(tmp_path / "plan"))
    assert caught.value.path == str(tmp_path / "plan")


def test_a_plan_with_a_changed_byte_is_an_error(tmp_path: Path) -> None:
    """A changed digit of a cut would lose or duplicate messages."""
    path = tmp_path / "plan"
    cuts = [plans.Cut(0), plans.Cut(5, "a", 7)]
    plans.save(str(path), plans.Plan("w", 0, 9, {"a": 1}, cuts, {"a": "07"}))
    data = path.read_bytes()
    for damaged in [b"", b"{", data[:-1], data + b" "] + [
        data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))
    ]:
        path.write_bytes(damaged)
        with pytest.raises(errors.CorruptMeta):
            plans.load(str(path))


def test_a_plan_is_of_the_queues_that_the_table_had(tmp_path: Path) -> None:
    """A table that was recreated from other queues is not taken for the one that was replayed.

    One that was recreated from the same queues has the same messages. What is not known passes.
    """
    table, place = tmp_path / "table", tmp_path / "plan"
    make_table(table, a=(0, 30), b=(0, 20))
    ids = table / "_archive" / "queues.json"
    plan = replace(plan_of(table, 0, plans.NEVER, 100), ids={"a": "0a", "b": "0b"})
    plans.save(str(place), plan)
    assert plans.load(str(place)) == plan
    plan.check(str(table), str(place))
    for same in ({"a": "0a"}, {"b": "0b", "c": "0c"}):
        ids.write_text(json.dumps(same))
        plan.check(str(table), str(place))
    ids.write_text(json.dumps({"a": "0a", "b": "0c"}))
    with pytest.raises(errors.QueueReplaced, match="remove that plan") as caught:
        plan.check(str(table), str(place))
    assert (caught.value.queue_id, caught.value.found_id) == ("0b", "0c")


def test_relative_bounds_are_distinguished_from_times() -> None:
    """The same text means the same replay; a time in any notation is the same one."""
    assert Bound.of(None, "since") == (None, "", False)
    assert Bound.of("10m", "since")[1:] == ("10m", True)
    assert Bound.of(timedelta(minutes=10), "since")[1:] == ("0:10:00", True)
    assert Bound.of("1970-01-01T00:00:01Z", "since") == (10**9, str(10**9), False)
    assert Bound.of("1970-01-01T01:00:01+01:00", "since") == (10**9, str(10**9), False)
    assert Bound.of(10**9, "since") == (10**9, str(10**9), False)
    with pytest.raises(errors.InvalidOption, match="since: 'x' is not a time"):
        Bound.of("x", "since")


# --- with Spark -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_table_is_replayed_in_order_of_time(spark: SparkSession, tmp_path: Path) -> None:
    """Queues are merged by time, then name; times are kept; a second call sends no message."""
    table, target = tmp_path / "table", tmp_path / "to"
    make_table(table, b=(0, 150), a=(60, 90))
    told: list[tuple[int, int]] = []
    options: dict[str, Any] = {"slice_count": 100, "page_bytes": PAGE_BYTES}
    done = replay(spark, table, target, progress=lambda *counts: told.append(counts), **options)
    assert done == (180, 2, 0)
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert messages(target) == sorted(wanted(0, 150) + wanted(60, 90))
    make_table(table, b=(150, 170))
    ids = table / "_archive" / "queues.json"
    ids.write_text(json.dumps({"c": "0c"}))  # the first call knew none
    assert replay(spark, table, target, **options) == (0, 0, 2)
    since = START + 150 * MINUTE_NS
    assert replay(spark, table, target, since=since, **options) == (20, 1, 0)
    assert messages(target) == sorted(wanted(0, 170) + wanted(60, 90))
    with pytest.raises(errors.TimestampOrder, match="replay into a new queue"):
        replay(spark, table, target, until=since, **options)


@pytest.mark.slow
@pytest.mark.spark
def test_trust_applies_to_the_sink_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The circumstances that the caller accepted hold for the plan, and for the write."""
    table, target = tmp_path / "table", tmp_path / "to"
    make_table(table, a=(0, 10))
    Queue(target, page_bytes=PAGE_BYTES).close()
    target.chmod(0o777)
    monkeypatch.setattr(_core, "file_system_type", lambda _fd: 0x6969)
    for too_little in ((), ("world_writable",), ("network_file_system",)):
        with pytest.raises(errors.UnsafePath):
            replay(spark, table, target, trust=too_little)
    trust = ("network_file_system", "world_writable")
    assert replay(spark, table, target, trust=trust).messages == 10
    monkeypatch.undo()
    target.chmod(0o755)
    assert messages(target) == wanted(0, 10)


class Killing:
    """Kills the driver at a slice, before or after it is written."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, number: int, *, is_written: bool = False
    ) -> None:
        write = _Replay._write

        def killing(self: _Replay, at: int, begin: plans.Cut, end: plans.Cut) -> None:
            if at != number or is_written:
                write(self, at, begin, end)
            if at == number:
                raise KilledError

        monkeypatch.setattr(_Replay, "_write", killing)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("killed", ["before a slice", "after a slice"])
def test_a_killed_replay_is_resumed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """The driver dies between slices, and the table grows and is compacted meanwhile."""
    table, target = tmp_path / "table", tmp_path / "to"
    make_table(table, q=(0, 130))
    Killing(monkeypatch, 1, is_written=killed == "after a slice")
    with pytest.raises(KilledError):
        replay(spark, table, target, since="1000000h", slice_count=60)
    monkeypatch.undo()
    make_table(table, q=(130, 200))
    done = replay(spark, table, target, since="1000000h", slice_count=60)
    assert done.slices + done.slices_before == 3
    assert done.slices_before == (1 if killed == "before a slice" else 2)
    assert messages(target) == wanted(0, 130)
    assert "lock" in os.listdir(target / "queue-staged")
    assert not [name for name in os.listdir(target / "queue-staged") if "replay" in name]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "step_ns", [MINUTE_NS // 60, pytest.param(7, marks=pytest.mark.nightly), 0]
)
def test_a_large_hour_is_several_slices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    """However near its messages are in time, and also when the driver dies between two of them."""
    table, target = tmp_path / "table", tmp_path / "to"
    make_table(table, step_ns, b=(0, 100), a=(30, 60))
    options: dict[str, Any] = {"slice_count": 20, "page_bytes": PAGE_BYTES, "since": START}
    numbers = [("b", n) for n in range(100)] + [("a", n) for n in range(30, 60)]
    expected = sorted((START + n * step_ns, name, numbered(n)) for name, n in numbers)
    for number, is_written in ((0, True), (3, False)):
        Killing(monkeypatch, number, is_written=is_written)
        with pytest.raises(KilledError):
            replay(spark, table, target, **options)
        monkeypatch.undo()
        with Queue(target) as queue:
            assert 0 < len(queue) < len(expected)
    done = replay(spark, table, target, **options)
    assert (done.slices_before, done.slices >= 1) == (3, True)
    assert 130 / 40 < done.slices + done.slices_before <= 130 / 20 + 1
    assert messages(target) == [(time, payload) for time, _, payload in expected]


@pytest.mark.slow
@pytest.mark.spark
def test_large_messages_make_more_slices(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of bytes cuts an hour with few messages, and since and until hold in it."""
    table, target = tmp_path / "table", tmp_path / "to"
    make_table(table, MINUTE_NS // 60, q=(0, 50))
    monkeypatch.setattr(replaying, "SLICE_BYTES", 10 * len(numbered(0)))
    since, until = (START + n * MINUTE_NS // 60 for n in (5, 45))
    done = replay(spark, table, target, since=since, until=until)
    assert done == (40, 4, 0)
    stepped = [(START + n * MINUTE_NS // 60, numbered(n)) for n in range(5, 45)]
    assert messages(target) == stepped


@pytest.mark.slow
@pytest.mark.spark
def test_the_commands_archive_and_replay(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As at a shell: figures as JSON, errors in one line, wrong usage."""
    del spark
    source, table, target = (str(tmp_path / name) for name in ("q", "table", "to"))
    with Queue(source, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for time, payload in wanted(0, 100):
            producer.send(payload, timestamp=time)
    assert main(["spark", "archive", source, "--to", table, "--json", "--batch", "80"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["messages"], report["batches"], report["table"]) == (100, 2, table)
    since = str(START + 60 * MINUTE_NS)
    arguments = ["spark", "replay", table, "--to", target, "--since", since]
    assert main([*arguments, "--page-bytes", "4K"]) == 0
    assert "40 messages replayed" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "1 slice published by an earlier run" in capsys.readouterr().out
    assert messages(tmp_path / "to") == wanted(60, 100)
    assert main(["spark", "replay", source, "--to", target]) == 1
    assert "no table that `archive` made" in capsys.readouterr().err
    assert main(["spark", "replay", table, "--to", target, "--since", "soon"]) == 2
    assert main(["spark", "archive", source, "--to", table, "--set", "x=1"]) == 2
