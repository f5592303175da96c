"""The archive: each message once, with a kill at each step, and what readers see meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast
from urllib.parse import quote

import numpy as np
import pytest

from pagequeue import Queue, Retention, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from archives import MINUTE_NS, PAGE_BYTES, START, numbered, rows, send, stage, wanted
from support import LONG

from pagequeue.cli import main
from pagequeue.spark.path_glob import id_of
from pagequeue.spark.pipeline import (
    archive,
    archiving,
    compaction,
    profile,
    profiling,
    reading,
    table_layout,
)
from pagequeue.spark.pipeline.archiving import check_follows
from pagequeue.spark.pipeline.compaction import Compactor, groups_of, merge
from pagequeue.spark.pipeline.directories import exchange
from pagequeue.spark.pipeline.publish import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


LISTING_SECONDS = compaction.LISTING_SECONDS


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove old directories at once, because no process reads them meanwhile."""
    monkeypatch.setattr(compaction, "LISTING_SECONDS", 0.0)


class KilledError(BaseException):
    """Represents the death of the process."""


def dies(*_: object, **__: object) -> NoReturn:
    """Die."""
    raise KilledError


def publish(table: Path, first: int, end: int, queue: str = "q") -> None:
    """Publish a batch."""
    with Publisher(str(table)) as publisher:
        staged = publisher.staging()
        stage(staged, queue, first, end)
        publisher.publish(staged)


def numbers(table: Path) -> list[int]:
    """Return the sequences that a reader finds, in order."""
    return sorted(sequence for _, sequence, _, _ in rows(table))


# --- publishing, step by step ---------------------------------------------------------------------


@pytest.mark.parametrize("calls_before", range(12))
@pytest.mark.parametrize("call", ["rename", "fsync", "mkdir", "unlink"])
def test_killed_at_any_step_a_batch_is_archived_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, calls_before: int
) -> None:
    """Whatever step the driver dies in (A1 to A6): the batch comes again and is there once."""
    table = tmp_path / "table"
    publish(table, 0, 100)
    calls = iter(range(10**6))
    system = getattr(os, call)

    def killing(*arguments: object, **options: object) -> object:
        if next(calls) == calls_before:
            raise KilledError
        return system(*arguments, **options)

    with Publisher(str(table)) as publisher:
        staged = publisher.staging()
        stage(staged, "q", 100, 250)
        monkeypatch.setattr(os, call, killing)
        try:
            publisher.publish(staged)
        except KilledError:
            seen = set(numbers(table))
            assert seen >= set(range(100))
            assert seen <= set(range(250))
            assert len(numbers(table)) == len(seen)
        finally:
            monkeypatch.undo()
    publish(table, 100, 250)
    assert numbers(table) == list(range(250))
    assert sorted(os.listdir(table_layout.work_path(str(table)))) == ["lock", "readers"]


def test_a_batch_of_other_bounds_adds_only_what_is_missing(tmp_path: Path) -> None:
    """With a new checkpoint batches have other bounds: rows that are there are left out."""
    table = tmp_path / "table"
    publish(table, 0, 100)
    publish(table, 30, 170)
    publish(table, 0, 60)
    assert numbers(table) == list(range(170))
    with Publisher(str(table)) as publisher:
        assert publisher.end("queue=q") == 170
        assert publisher.end("queue=other") == 0


def test_messages_that_would_be_missing_are_an_error(tmp_path: Path) -> None:
    """A checkpoint ahead of the table is not a silent gap; the table is unchanged."""
    table = tmp_path / "table"
    publish(table, 50, 100)
    with Publisher(str(table)) as publisher:
        for first, match in (
            (100, None),
            (171, "up to message 170, and the next that came is 171"),
        ):
            staged = publisher.staging()
            stage(staged, "q", first, 170 if match is None else 180)
            if match is None:
                publisher.publish(staged, is_gapless=True)
                continue
            with pytest.raises(errors.SequenceOutOfRange, match=match):
                publisher.publish(staged, is_gapless=True)
    assert numbers(table) == list(range(50, 170))


@pytest.mark.parametrize("first", [0, 50, 100])
def test_a_queue_that_was_made_anew_is_no_part_of_the_table(tmp_path: Path, first: int) -> None:
    """By name and sequences its messages are archived already, or follow; they are others."""
    table = tmp_path / "table"
    with Publisher(str(table)) as publisher:
        stage(staged := publisher.staging(), "q", 0, 100)
        publisher.publish(staged, {"q": "one", "other": "two"}, is_gapless=True)
    ids = json.loads(Path(table_layout.work_path(str(table), "queues.json")).read_text())
    assert ids == {"q": "one"}
    with Publisher(str(table)) as publisher:
        for name in ("q", "more"):
            stage(staged := publisher.staging(), name, first, 150)
            if name == "more":
                publisher.publish(staged, {name: "three"})
                continue
            with pytest.raises(errors.QueueReplaced, match="to another table") as caught:
                publisher.publish(staged, {name: "another"}, is_gapless=True)
            assert (caught.value.queue_id, caught.value.found_id) == ("one", "another")
        publisher.publish(staged, {"q": "one"})
    assert [n for name, n, _, _ in rows(table) if name == "q"] == list(range(100))


def test_a_table_without_ids_gets_them(tmp_path: Path) -> None:
    """It was made before tables had them; an id without messages does not count."""
    table = tmp_path / "table"
    publish(table, 0, 100)
    path = Path(table_layout.work_path(str(table), "queues.json"))
    assert not path.exists()
    with Publisher(str(table)) as publisher:
        stage(staged := publisher.staging(), "q", 100, 120)
        publisher.publish(staged, {"q": "one"}, is_gapless=True)
        stage(staged := publisher.staging(), "new", 0, 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pagequeue.spark.pipeline.publish.sync_all", dies)
            with pytest.raises(KilledError):
                publisher.publish(staged, {"new": "before"})
    with Publisher(str(table)) as publisher:
        stage(staged := publisher.staging(), "new", 0, 1)
        publisher.publish(staged, {"new": "after"})
    assert json.loads(path.read_text()) == {"q": "one", "new": "after"}
    path.write_text("[")
    with pytest.raises(errors.CorruptMeta, match="or remove it"):
        Publisher(str(table))
    assert numbers(table) == sorted([*range(120), 0])


class Late:
    """A query that begins a batch while it is stopped, and waits for it as Spark does."""

    isActive = True  # noqa: N815 - Spark's name

    def __init__(self, run: archiving._Run) -> None:
        self.status = {"isTriggerActive": False, "message": "Waiting for next trigger"}
        self.run = run
        self.raised: list[BaseException] = []

    def _batch(self) -> None:
        try:
            self.run.write(cast("DataFrame", None), 0)
        except archiving._OverError as error:
            self.raised.append(error)

    def stop(self) -> None:
        """End when the batch has."""
        batch = threading.Thread(target=self._batch, daemon=True)
        batch.start()
        batch.join(LONG)


def test_a_batch_that_begins_while_the_query_is_stopped_is_refused(tmp_path: Path) -> None:
    """Spark waits for its end: were it held until the query has stopped, both would for ever."""
    with Publisher(os.fspath(tmp_path / "table")) as publisher:
        run = archiving._Run(publisher, None, os.fspath(tmp_path), is_gapless=True)
        query = Late(run)
        run.end(cast("StreamingQuery", query))
    assert len(query.raised) == 1


def test_one_archiver_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused, with an error naming the first."""
    monkeypatch.setattr("pagequeue.spark.pipeline.publish.LOCK_TIMEOUT", 0.05)
    with (
        Publisher(str(tmp_path / "table")),
        pytest.raises(errors.LockTimeout, match="archiving"),
    ):
        Publisher(str(tmp_path / "table"))


def test_directory_that_is_not_a_table_is_refused(tmp_path: Path) -> None:
    """A directory with other files is left as it is; foreign files in a table are named."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(errors.InvalidOption, match="give a new directory"):
        Publisher(str(tmp_path / "other"))
    assert os.listdir(tmp_path / "other") == ["file"]
    publish(tmp_path / "table", 0, 10)
    (hour,) = table_layout.hours(str(tmp_path / "table"))
    (tmp_path / "table" / hour.directory / "mine.parquet").touch()
    with pytest.raises(errors.InvalidOption, match=r"mine\.parquet"):
        table_layout.snapshot(str(tmp_path / "table"))
    with pytest.raises(errors.QueueNotFound, match="no table"):
        table_layout.check_table(str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["queue=q/date=x/hour=01", "queue=q/date=2026-01-31/hour=24", "x"])
def test_directories_of_others_are_named(name: str) -> None:
    """No other directory is taken for an hour."""
    with pytest.raises(errors.InvalidOption, match="take it out"):
        table_layout.hour_of(name)


def test_a_snapshot_during_publishing_waits(tmp_path: Path) -> None:
    """A snapshot never has a part of a batch."""
    table = str(tmp_path / "table")
    publish(tmp_path / "table", 0, 100)
    Path(table_layout.work_path(table, table_layout.PUBLISHING)).mkdir()
    with pytest.raises(errors.LockTimeout, match="changed during every listing"):
        table_layout.snapshot(table)
    with Publisher(table):
        pass
    assert table_layout.rows_in(table_layout.snapshot(table)) == 100


# --- compaction -----------------------------------------------------------------------------------


class LocalSpark:
    """Does the tasks itself, one after the other."""

    def __init__(self) -> None:
        self.sparkContext = self  # Spark's name
        self.jobs: list[compaction.Job] = []

    def parallelize(self, jobs: list[compaction.Job], count: int) -> LocalSpark:
        """Take the tasks."""
        assert count == len(jobs)
        self.jobs = jobs
        return self

    def foreach(self, function: Callable[[compaction.Job], None]) -> None:
        """Do them, each twice, as a task that was tried again."""
        for job in self.jobs:
            function(job)
            function(job)


def compact(table: Path, file_bytes: int = 1 << 20) -> int:
    """Compact a table; return how many files less there are."""
    with Publisher(str(table)):
        return Compactor(str(table), file_bytes).compact(LocalSpark())  # type: ignore[arg-type]


def file_count(table: Path) -> int:
    """Return how many files a table has."""
    return len(table_layout.snapshot(str(table)))


def test_small_files_become_few_and_rows_stay(tmp_path: Path) -> None:
    """Closed hours are compacted at once, the newest when it is worth it."""
    table = tmp_path / "table"
    for first in range(0, 150, 10):
        publish(table, first, first + 10)
    before = rows(table)
    assert file_count(table) == 15
    assert compact(table) == 10
    assert file_count(table) == 5
    assert rows(table) == before
    assert compact(table) == 0
    for first in range(150, 180, 3):
        publish(table, first, first + 3)
    assert compact(table) == 12
    assert numbers(table) == list(range(180))
    assert file_count(table) == 3


def test_large_files_are_left() -> None:
    """A file of half the size or more is never written again; order is kept."""
    hour = table_layout.hour_of("queue=q/date=2026-01-31/hour=08")
    sizes = [10, 10, 60, 10, 40, 45, 10]
    found = [table_layout.Stored(hour, n, n + 1, size) for n, size in enumerate(sizes)]
    groups = [[file.first for file in group] for group in groups_of(found, 100)]
    assert groups == [[0, 1], [2], [3, 4, 5], [6]]


def test_a_table_is_a_directory(tmp_path: Path) -> None:
    """A file in its place, or in the place of one above it, is told with what to do."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "table"):
        with pytest.raises(errors.NotADirectory, match="give a directory"):
            Publisher(str(path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note").touch()
    with pytest.raises(errors.InvalidOption, match="give a new directory"):
        Publisher(str(tmp_path / "other"))


@pytest.mark.parametrize("step", ["merge", "exchange", "rmtree"])
def test_compaction_killed_at_any_step_keeps_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed before or after the exchange (C1 to C3): the same rows, and no temporary files."""
    table = tmp_path / "table"
    for first in range(0, 120, 10):
        publish(table, first, first + 10)
    before = rows(table)
    if step == "rmtree":
        monkeypatch.setattr(compaction, "merge", merge)
        monkeypatch.setattr(compaction, "sync_path", dies)
    else:
        monkeypatch.setattr(compaction, step, dies)
    with pytest.raises(KilledError):
        compact(table)
    monkeypatch.undo()
    assert rows(table) == before
    compact(table)
    assert rows(table) == before
    assert sorted(os.listdir(table_layout.work_path(str(table)))) == ["lock", "readers"]


@pytest.mark.slow
def test_readers_at_any_instant_see_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lists before or after the exchange: all rows, none twice, or a file is missing.

    No reader sees another set of rows, but one that lists the old directory and looks for its files
    in the new one: it finds none of the hour, which is what `reading` is for.
    """
    monkeypatch.setattr(compaction, "LISTING_SECONDS", LISTING_SECONDS)
    table = tmp_path / "table"
    for first in range(0, 120, 5):
        publish(table, first, first + 5)
    paths = [table / hour.directory for hour in table_layout.hours(str(table))]
    full = list(range(125))
    hours = [full[:60], full[60:120], full[120:]]
    looks: list[list[int]] = []
    during: list[list[int]] = []
    begun, over = threading.Event(), threading.Event()

    def poll() -> None:
        while not over.is_set():
            before = [path.stat().st_ino for path in paths]
            try:
                seen = numbers(table)
            except FileNotFoundError:
                continue
            is_same = before == [path.stat().st_ino for path in paths]
            (looks if is_same else during).append(seen)
            begun.set()

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        assert begun.wait(60)
        compact(table)
        publish(table, 120, 125)
    finally:
        over.set()
        reader.join()
    assert looks
    assert all(seen in (full[:120], full) for seen in looks)
    assert all([n for n in seen if n in hour] in ([], hour) for seen in during for hour in hours)


def test_a_reader_that_opened_a_directory_lists_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there for a moment after the exchange; without them an hour would be missed."""
    table = tmp_path / "table"
    for first in range(0, 120, 10):
        publish(table, first, first + 10)
    opened = [
        os.open(table / hour.directory, os.O_RDONLY) for hour in table_layout.hours(str(table))
    ]
    before = [sorted(path.name for path in Path(f"/proc/self/fd/{fd}").iterdir()) for fd in opened]
    waited: list[float] = []
    monkeypatch.setattr(compaction, "LISTING_SECONDS", LISTING_SECONDS)

    def listed(seconds: float) -> None:
        waited.append(seconds)
        assert [sorted(os.listdir(fd)) for fd in opened] == before
        assert file_count(table) < sum(map(len, before))

    try:
        monkeypatch.setattr(compaction.time, "sleep", listed)
        assert compact(table) > 0
    finally:
        for fd in opened:
            os.close(fd)
    assert waited == [LISTING_SECONDS]
    assert sorted(os.listdir(table_layout.work_path(str(table)))) == ["lock", "readers"]


def test_compaction_waits_for_readers_of_this_package(tmp_path: Path) -> None:
    """While they read, no file is removed; the next poll compacts. A copy needs no lock."""
    table = tmp_path / "table"
    for first in range(0, 120, 10):
        publish(table, first, first + 10)
    with reading(table):
        assert compact(table) == 0
    with pytest.raises(ZeroDivisionError), reading(table):
        raise ZeroDivisionError
    assert compact(table) > 0
    with reading(tmp_path):
        pass


def test_profile_of_a_table_postpones_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark lists the files when the frame is made, and reads them later."""
    table = tmp_path / "table"
    for first in range(0, 120, 10):
        publish(table, first, first + 10)
    saved: list[int] = []

    class Session:
        """In place of Spark's, as far as a profile uses it before it counts."""

        read = property(lambda self: self)
        schema = lambda self, _schema: self  # noqa: E731 - one line each
        parquet = lambda _self, _path: saved.append(compact(table))  # noqa: E731

    def count(_rows: object) -> dict[str, object]:
        saved.append(compact(table))
        return {}

    monkeypatch.setattr(profiling, "watched", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(profiling, "_count", count)
    profiling.profile(Session(), table)  # type: ignore[arg-type]
    assert saved == [0, 0]
    assert compact(table) > 0


def test_without_exchange_no_hour_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system without it is logged once; rows stay as they are."""
    table = tmp_path / "table"
    for first in range(0, 120, 10):
        publish(table, first, first + 10)
    monkeypatch.setattr(compaction, "exchange", lambda _one, _other: False)
    assert compact(table) == 0
    assert caplog.text.count("does not exchange directories") == 1
    assert numbers(table) == list(range(120))


def test_exchange_is_of_two_directories(tmp_path: Path) -> None:
    """What is missing is an error, and not taken for a file system that cannot."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").touch()
    assert exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert os.listdir(tmp_path / "b") == ["file"]
    with pytest.raises(errors.QueueNotFound):
        exchange(str(tmp_path / "a"), str(tmp_path / "c"))


def test_a_queue_whose_times_were_corrected_is_continued(tmp_path: Path) -> None:
    """Its messages are those that were archived, though with earlier times."""
    path, table, ahead = tmp_path / "q", tmp_path / "table", time.time_ns() + 3600 * 10**9
    with Queue(path) as queue, Publisher(str(table)) as publisher:
        queue.producer().send(numbered(0), timestamp=ahead)
        staged = publisher.staging()
        stage(staged, "q", 0, 1)
        (file,) = Path(staged).glob("queue=q/*/*/*.parquet")
        row = pq.read_table(file, partitioning=None)
        times = pa.array([ahead], pa.int64())
        place = row.schema.names.index("timestamp_ns")
        pq.write_table(row.set_column(place, "timestamp_ns", times), file)
        publisher.publish(staged, {"q": id_of(queue)})
        queue.repair(times=True)
        assert next(queue.replay()).timestamp < ahead
        check_follows(publisher, "q", queue)


@pytest.mark.parametrize(("kept", "since"), [(0, 0), (20, 0), (20, 60), (50, 60)])
def test_a_queue_that_was_restored_to_an_earlier_state_is_not_continued(
    tmp_path: Path, kept: int, since: int
) -> None:
    """It has the id of the one that was archived, and other messages after the restored ones."""
    path, table = tmp_path / "q", tmp_path / "table"
    send(path, 0, kept)
    shutil.copytree(path, tmp_path / "backup")
    send(path, kept, 50)
    with Publisher(str(table)) as publisher:
        with Queue(path) as queue:
            queue_id = id_of(queue)
            check_follows(publisher, "q", queue)  # a table without rows
            staged = publisher.staging()
            stage(staged, "q", 0, 50)
            publisher.publish(staged, {"q": queue_id})
            check_follows(publisher, "q", queue)
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "backup", path)
        send(path, since, since and since + 40)
        with Queue(path) as queue:
            if kept == 50:
                check_follows(publisher, "q", queue)
                return
            with pytest.raises(errors.SequenceOutOfRange, match="an earlier state") as caught:
                check_follows(publisher, "q", queue)
            assert caught.value.tail_sequence == queue.tail_sequence


# --- with Spark -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_an_archive_knows_which_queue_it_has(spark: SparkSession, tmp_path: Path) -> None:
    """A queue that was recreated: by the checkpoint, and with a new one by the table."""
    path, table = tmp_path / "q", tmp_path / "table"
    send(path, 0, 30)
    archive(spark, path, table, compact=False)
    for count in (10, 50):
        shutil.rmtree(path)
        send(path, 0, count)
        for options in ({}, {"checkpoint": tmp_path / f"checkpoint-{count}"}):
            with pytest.raises(errors.QueueReplaced, match="is of queue"):
                archive(spark, path, table, compact=False, **options)
    assert numbers(table) == list(range(30))


@pytest.mark.spark
def test_queues_are_archived_each_message_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two queues, several batches, a second run, a lost checkpoint: each message is there once.

    By queue, date and hour in UTC, for every reader of Parquet.
    """
    one, two, table = tmp_path / "q1", tmp_path / "q 2=%", tmp_path / "table"
    send(one, 0, 150)
    send(two, 0, 70)
    told: list[tuple[int, int]] = []
    with caplog.at_level("INFO", "pagequeue"):
        done = archive(
            spark,
            tmp_path / "q*",
            table,
            maxRecordsPerTrigger=120,
            progress=lambda *counts: told.append(counts),
        )
    assert "read by the native reader" in caplog.text
    assert (done.messages, done.batches) == (220, 2)
    assert told == [(0, 220), (120, 220), (220, 220)]
    assert rows(table) == sorted(wanted(one, range(150)) + wanted(two, range(70)))
    send(one, 150, 200)
    os.rename(table_layout.work_path(str(table), "checkpoint"), tmp_path / "lost")
    assert archive(spark, tmp_path / "q*", table).messages == 50
    everything = sorted(wanted(one, range(200)) + wanted(two, range(70)))
    assert rows(table) == everything
    frame = spark.read.parquet(str(table))
    assert {(r.queue, r.sequence, r.timestamp_ns, bytes(r.payload)) for r in frame.collect()} == {
        *everything
    }
    assert dict(frame.dtypes)["timestamp"] == "timestamp"
    ((distinct, count),) = duckdb.sql(
        "select count(distinct (queue, sequence)), count(*) "
        f"from read_parquet('{table}/queue=*/*/*/*.parquet', hive_partitioning=true)"
    ).fetchall()
    assert (distinct, count) == (270, 270)
    hours = {hour.directory for hour in table_layout.hours(str(table))}
    assert f"queue={quote(str(one), safe='')}/date=2023-11-14/hour=22" in hours
    assert len(hours) == 6


OWN = np.dtype([("sequence", "<i8"), ("timestamp_ns", "<i8")])
"""Fields that are called and typed like columns of ours."""


@pytest.mark.slow
@pytest.mark.spark
def test_fields_that_are_called_like_our_columns_are_not_taken_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Neither in the archive nor in figures; queues of which only some have them are refused."""
    records = np.array([(7 * n, n) for n in range(5)], OWN)
    with Queue(tmp_path / "q1", dtype=OWN) as queue, queue.producer() as producer:
        for number, record in enumerate(records):
            producer.send(record, timestamp=START + number * MINUTE_NS)
    assert archive(spark, tmp_path / "q1", tmp_path / "table").messages == 5
    assert rows(tmp_path / "table") == [
        (str(tmp_path / "q1"), n, START + n * MINUTE_NS, records[n].tobytes()) for n in range(5)
    ]
    (one,) = profile(spark, tmp_path / "q1").queues
    assert (one.first_sequence, one.last_sequence, one.missing) == (0, 4, 0)
    assert (one.first_timestamp, one.last_timestamp) == (START, START + 4 * MINUTE_NS)
    send(tmp_path / "q2", 0, 5)
    with pytest.raises(errors.DtypeMismatch, match=r"queue_sequence.*in others: read the queues"):
        archive(spark, tmp_path / "q*", tmp_path / "other")


@pytest.mark.slow
@pytest.mark.spark
def test_only_archived_messages_may_be_removed(spark: SparkSession, tmp_path: Path) -> None:
    """A consumer's name holds retention back until a batch is on stable storage."""
    source, table = tmp_path / "q", tmp_path / "table"
    retention = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(source, page_bytes=PAGE_BYTES, retention=retention) as queue:
        queue.consumer("archive").close()
        send(source, 0, 600)
        queue.trim()
        assert queue.head_sequence == 0
        archive(spark, source, table, consumer="archive")
        queue.trim()
        assert queue.head_sequence > 100
        (info,) = queue.consumers()
        assert info.lag == 0
    assert numbers(table) == list(range(600))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("reader", ["python", "auto"])
def test_an_archive_runs_until_it_is_stopped(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """With `every`, new messages of all producers are archived too, and those of new queues."""
    send(tmp_path / "q1", 0, 10)
    stop = threading.Event()
    told: list[int] = []
    steps = {
        10: lambda: send(tmp_path / "q1", 10, 30),
        30: lambda: send(tmp_path / "q2", 0, 5),
        35: stop.set,
    }

    def progress(done: int, _total: int) -> None:
        told.append(done)
        steps.pop(done, lambda: None)()  # what is sent can become more batches than one

    done = archive(
        spark,
        tmp_path / "q*",
        tmp_path / "table",
        every=0.1,
        stop=stop,
        progress=progress,
        reader=reader,
    )
    assert (done.messages, steps) == (35, {})
    assert told[0] == 0
    assert done.batches == len(told) - 1 == len(set(told[1:])) >= 3


@pytest.mark.slow
@pytest.mark.spark
def test_messages_that_are_not_durable_are_archived_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With `durable_only` no message gets the sequence of one that was archived and lost."""
    source, cut, table = tmp_path / "q", tmp_path / "cut", tmp_path / "table"
    send(source, 0, 10)
    with Queue(source) as queue:
        queue.producer().flush()
    shutil.copytree(source, cut)  # what a power cut leaves
    send(source, 10, 20)
    command = ["spark", "archive", str(source), "--to", str(table), "--durable-only"]
    assert main(command) == 0
    assert numbers(table) == [*range(10)]
    assert main(command[:-1]) == 0
    assert numbers(table) == [*range(20)]
    safe = tmp_path / "safe"
    assert archive(spark, source, safe, durableOnly="true").messages == 10
    shutil.rmtree(source)
    cut.rename(source)
    send(source, 100, 105)
    with Queue(source) as queue:
        queue.producer().flush()
    archive(spark, source, safe, durableOnly="true")
    payloads = [payload for _, _, _, payload in rows(safe)]
    assert payloads == [numbered(n) for n in (*range(10), *range(100, 105))]


@pytest.mark.slow
@pytest.mark.spark
def test_errors_of_the_source_keep_their_type(spark: SparkSession, tmp_path: Path) -> None:
    """Messages removed by retention are reported as such, and not as an error of Spark."""
    source, table = tmp_path / "q", tmp_path / "table"
    send(source, 0, 10)
    archive(spark, source, table)
    send(source, 10, 1000)
    with Queue(source, retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    with pytest.raises(errors.Expired, match="give the option consumer"):
        archive(spark, source, table)
    archive(spark, source, table, onExpired="skip")
    assert numbers(table) == [*range(10), *range(head, 1000)]
    with pytest.raises(errors.QueueNotFound, match="no queue"):
        archive(spark, tmp_path / "none", table)
    with pytest.raises(errors.QueueNotFound, match="no queue matches"):
        archive(spark, tmp_path / "none*", table)
