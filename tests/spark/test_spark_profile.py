"""The profile: every figure the same as by plain Python, however rows are cut into tasks."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pagequeue import Queue, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq
from archives import MINUTE_NS, PAGE_BYTES, START, send, stage

from pagequeue.cli import main
from pagequeue.profile import report
from pagequeue.spark.pipeline import QueueProfile, profile, profiling, table_layout
from pagequeue.spark.pipeline.profile_counts import ARROW, counting
from pagequeue.spark.pipeline.publish import Publisher
from pagequeue.util.optional import install_command

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Row = tuple[str, int, int, int]


def brute(rows: list[Row]) -> dict[str, int]:
    """Return the figures of one queue's rows: queue, sequence, time, size."""
    ordered = sorted(rows, key=lambda row: row[1:3])
    sequences = [row[1] for row in ordered]
    latest = itertools.accumulate((row[2] for row in ordered), max)
    before = [-1, *latest][: len(rows)]
    return {
        "messages": len(rows),
        "payload_bytes": sum(row[3] for row in rows),
        "first_sequence": sequences[0],
        "last_sequence": sequences[-1],
        "first_timestamp": min(row[2] for row in rows),
        "last_timestamp": max(row[2] for row in rows),
        "missing": sequences[-1] - sequences[0] + 1 - len(set(sequences)),
        "duplicates": len(sequences) - len(set(sequences)),
        "late": sum(row[2] < time for row, time in zip(ordered, before, strict=True)),
    }


def batch(rows: list[Row]) -> pa.RecordBatch:
    """Return rows as Spark hands them to a task."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
    kinds = [pa.string(), pa.int64(), pa.int64(), pa.int32()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["queue", "sequence", "timestamp_ns", "size"])


def put_together(tasks: list[list[list[Row]]], bin_ns: int) -> dict[str, QueueProfile]:
    """Return the merged profile of several tasks; None for a queue that needs a second pass."""
    batches = [
        made for task in tasks for made in counting(0, bin_ns)(iter([batch(rows) for rows in task]))
    ]
    table = pa.Table.from_batches(batches, ARROW)
    return profiling.together(table, 0, bin_ns)[0]


@pytest.mark.parametrize("seed", range(30))
def test_however_rows_are_cut_the_figures_are_the_same(seed: int) -> None:
    """Runs of queues over batches and tasks in any order, with gaps and equal times."""
    rng = random.Random(seed)
    rows: dict[str, list[Row]] = {}
    for queue in ("a", "b", "c")[: rng.randint(1, 3)]:
        sequence, time = rng.randrange(100), rng.randrange(50)
        for _ in range(rng.randrange(1, 80)):
            rows.setdefault(queue, []).append((queue, sequence, time, rng.randrange(300)))
            sequence += rng.choice((1, 1, 1, 1, 5))
            time += rng.choice((0, 1, 100, 3000))
    pieces = []
    for own in rows.values():
        cuts = sorted({0, len(own), *(rng.randrange(len(own)) for _ in range(rng.randrange(6)))})
        pieces += [own[first:end] for first, end in itertools.pairwise(cuts)]
    rng.shuffle(pieces)
    tasks: list[list[list[Row]]] = [[] for _ in range(rng.randint(1, 3))]
    for piece in pieces:
        middle = rng.randrange(len(piece) + 1)
        rng.choice(tasks).extend([piece[:middle], piece[middle:]])
    found = put_together(tasks, 1000)
    assert set(found) == set(rows)
    for queue, own in rows.items():
        one = found[queue]
        assert {name: getattr(one, name) for name in brute(own)} == brute(own)
        times = np.array([row[2] for row in own])
        assert one.gaps.total == len(own) - 1
        assert one.gaps.below == int((np.diff(times) == 0).sum())
        assert one.gaps.most == (int(np.diff(times).max()) if len(own) > 1 else None)
        assert one.times.messages.sum() == one.sizes.total == len(own)
        assert (
            one.times.messages[:10].tolist()
            == np.bincount(times // 1000, minlength=600)[:10].tolist()
        )


def test_rates_are_by_time() -> None:
    """Mean from the first to the last message, peak of a bin, none if there is no duration."""
    assert QueueProfile("q").rate == 0
    rows = [("q", n, n * 10**9, 1) for n in range(11)]
    one = put_together([[rows]], 10**9)["q"]
    assert one.rate == 1.0
    assert one.peak_rate == 1.0
    assert one.lag is None


# --- with Spark -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_queues_have_the_figures_of_their_messages(spark: SparkSession, tmp_path: Path) -> None:
    """With the lags of their consumers; several tasks to a queue."""
    send(tmp_path / "q1", 0, 200)
    send(tmp_path / "q2", 50, 80)
    with Queue(tmp_path / "q1") as queue, queue.consumer("worker") as consumer:
        consumer.seek(sequence=150)
    found = profile(spark, tmp_path / "q*", partitionBytes=2000)
    one, two = found.queues
    assert (one.queue, one.messages, one.lags) == (str(tmp_path / "q1"), 200, {"worker": 50})
    assert (two.messages, two.lag, two.first_timestamp) == (30, None, START + 50 * MINUTE_NS)
    assert (found.total.messages, found.total.payload_bytes, found.total.lag) == (230, 1380, 50)
    assert one.gaps.least == one.gaps.most == MINUTE_NS
    assert (one.missing, one.late, one.duplicates) == (0, 0, 0)
    assert one.rate == pytest.approx(1 / 60)


@pytest.mark.slow
@pytest.mark.spark
def test_queues_and_their_archive_have_the_same_figures(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of a table what it lacks; ranges by time."""
    send(tmp_path / "q1", 0, 200)
    since, until = START + 10 * MINUTE_NS, START + 60 * MINUTE_NS
    part = profile(spark, [tmp_path / "q1"], since=since, until=until, reader="python")
    assert part.total.messages == 50
    (one,) = profile(spark, tmp_path / "q1").queues
    with Publisher(str(tmp_path / "table")) as publisher:
        staged = publisher.staging()
        stage(staged, table_layout.quote(str(tmp_path / "q1")), 0, 180)
        publisher.publish(staged)
    (there,) = profile(spark, tmp_path / "table").queues
    assert (there.messages, there.lags) == (180, {"archive": 20})
    assert there.gaps.counts.tolist() != one.gaps.counts.tolist()
    part = profile(spark, tmp_path / "table", since=since, until=until)
    assert part.total.messages == 50
    with pytest.raises(errors.InvalidOption, match="a table has no option 'prefix'"):
        profile(spark, tmp_path / "table", prefix="x")


@pytest.mark.slow
@pytest.mark.spark
def test_foreign_rows_of_a_table_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Duplicate, missing and late rows; only with them the rows are read in order."""
    with Publisher(str(tmp_path / "table")) as publisher:
        for queue, end in (("q", 50), ("other", 10)):
            staged = publisher.staging()
            stage(staged, queue, 0, end)
            publisher.publish(staged)
    (hour,) = [one for one in table_layout.hours(str(tmp_path / "table")) if one.queue == "q"]
    (path,) = (tmp_path / "table" / hour.directory).glob("*.parquet")
    rows = pq.read_table(path).slice(20, 5)
    times = pa.array([START + n for n in range(5)], pa.int64())
    late = rows.set_column(rows.schema.get_field_index("timestamp_ns"), "timestamp_ns", times)
    pq.write_table(late, path.with_name("late.parquet"))
    pq.write_table(pq.read_table(path).slice(0, 40), path)
    two, one = profile(spark, tmp_path / "table").queues
    assert (two.queue, two.messages, two.duplicates) == ("other", 10, 0)
    assert (one.messages, one.missing, one.duplicates, one.late) == (45, 0, 5, 5)


@pytest.mark.slow
@pytest.mark.spark
def test_the_command_prints_and_draws(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table, JSON, a picture, a self-contained HTML page; an empty queue too."""
    del spark
    send(tmp_path / "q1", 0, 100)
    Queue(tmp_path / "q2", page_bytes=PAGE_BYTES).close()
    source, page, picture = (str(tmp_path / name) for name in ("q*", "r.html", "r.png"))
    assert main(["spark", "profile", source, "--to", page]) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "q1") in out
    assert "drawn in" in out
    text = (tmp_path / "r.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "Plotly.newPlot(" in text
    assert re.findall(r"<(?:script|img|link)[^>]* (?:src|href)=", text) == []
    assert str(tmp_path / "q2") in text
    assert main(["spark", "profile", source, "--to", picture, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["total"]["messages"] == 100
    assert figures["queues"][0]["gaps"]["p50"] == MINUTE_NS
    assert sum(figures["total"]["times"]["messages"]) == 100
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert main(["spark", "profile", str(tmp_path / "q2"), "--to", picture, "--force"]) == 0
    assert main(["spark", "profile", source, "--to", picture]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["spark", "profile", source, "--to", "report.pdf"]) == 2
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert main(["spark", "profile", source, "--to", page, "--force"]) == 1
    assert install_command("plot") in capsys.readouterr().err
    assert (tmp_path / "r.html").read_text() == text


def test_a_report_is_a_picture_or_a_page() -> None:
    """Other suffixes are refused."""
    assert report.suffix_of("x/report.PNG") == ".png"
    with pytest.raises(errors.InvalidOption, match="ends with neither"):
        report.suffix_of("report")
