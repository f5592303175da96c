"""Spark's batch write: all rows or none, whatever becomes of tasks, and what is refused."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from spark_support import attempt_fails

from pagequeue import Queue, _core, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.errors import PySparkException

from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.spark import register
from pagequeue.spark.columns import schema_of
from pagequeue.spark.options import write_options
from pagequeue.spark.staging import StagedRows
from pagequeue.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PAGE_BYTES = 4096


def write(frame: DataFrame, directory: Path, mode: str = "append") -> None:
    """Write a frame to a queue of small pages."""
    writer = frame.write.format("pagequeue").mode(mode).option("pageBytes", PAGE_BYTES)
    writer.save(str(directory))


def messages(directory: Path) -> list[tuple[int, bytes]]:
    """Return times and payloads of a valid queue, without leftover files."""
    with Queue(directory) as queue:
        assert queue.verify().problems == []
        assert {*os.listdir(directory / "queue-staged")} <= {"lock"}
        return [(m.timestamp, m.payload) for m in queue.replay()]


def payloads(directory: Path) -> list[bytes]:
    """Return its payloads."""
    return [payload for _, payload in messages(directory)]


@pytest.mark.slow
def test_a_few_rows_and_none_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """After what is there; partitions can be empty."""
    for count in (0, 1, 50):
        frame = spark.range(0, count, 1, 3).selectExpr("cast(id as string) as payload")
        write(frame, tmp_path / "q")
    assert payloads(tmp_path / "q") == [b"0", *(b"%d" % number for number in range(50))]


@pytest.mark.slow
def test_times_are_kept_where_order_allows(spark: SparkSession, tmp_path: Path) -> None:
    """With `timestamp_ns` rows have their own times; out of order, no row is written."""
    frame = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) payload", "id timestamp_ns")
    write(frame, tmp_path / "q")
    assert messages(tmp_path / "q") == [(number, b"%d" % number) for number in range(500)]
    with pytest.raises(PySparkException, match="in order of time"):
        write(frame, tmp_path / "q")
    assert len(payloads(tmp_path / "q")) == 500


@pytest.mark.slow
def test_binary_is_written_byte_by_byte(spark: SparkSession, tmp_path: Path) -> None:
    """Payloads come back as they were, the empty one too."""
    rows = [(bytes([n, 0, 255]) * n,) for n in range(50)]
    write(spark.createDataFrame(rows, "payload binary").coalesce(1), tmp_path / "q")
    assert payloads(tmp_path / "q") == [payload for (payload,) in rows]
    read = spark.read.format("pagequeue").load(str(tmp_path / "q")).select("payload")
    write(read, tmp_path / "copy")
    assert payloads(tmp_path / "copy") == [payload for (payload,) in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("id", "need a column payload"),
        ("id as payload", "of type binary or string"),
        ("cast(id as string) as payload, id as other", "'other' would be lost"),
        ("cast(id as string) as payload, 'x' as timestamp_ns", "must be of type bigint"),
    ],
)
def test_unsupported_write_is_an_error(
    spark: SparkSession, tmp_path: Path, sql: str, text: str
) -> None:
    """Refused with a remedy, before any task runs."""
    with pytest.raises(PySparkException, match=text):
        write(spark.sql(f"select {sql} from range(10)"), tmp_path / "q")
    assert not (tmp_path / "q").exists()


@pytest.mark.slow
def test_ordinary_producers_continue(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a job are consecutive, between the messages of others."""
    stop = threading.Event()
    sent = []
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES).close()

    def send() -> None:
        with Queue(tmp_path / "q") as queue, queue.producer() as producer:
            while not stop.wait(0.002):
                sent.append(producer.send(b"live"))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for count in (20, 2000):
            write(spark.range(count).selectExpr("cast(id as string) payload"), tmp_path / "q")
    finally:
        stop.set()
        thread.join()
    there = payloads(tmp_path / "q")
    assert len(there) == len(sent) + 2020
    at = [number for number, payload in enumerate(there) if payload != b"live"]
    assert at[19] - at[0] == 19
    assert at[-1] - at[20] == 1999


@pytest.mark.slow
def test_a_thread_of_the_driver_writes_once_it_registered(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark uses the thread's active session; if it stops doing so, this test fails."""
    frame = spark.range(5).selectExpr("cast(id as string) as payload")
    found: list[object] = []

    def work(*, registers: bool) -> None:
        try:
            if registers:
                register(spark)
            write(frame, tmp_path / "q")
        except Exception as error:  # noqa: BLE001 - checked below
            found.append(error)
        else:
            found.append(payloads(tmp_path / "q"))

    for registers in (False, True):
        thread = threading.Thread(target=work, kwargs={"registers": registers})
        thread.start()
        thread.join()
    assert "DATA_SOURCE_NOT_FOUND" in str(found[0])
    assert found[1] == [b"%d" % number for number in range(5)]


# --- tasks that fail ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raised", "killed"])
def test_a_task_that_is_tried_again_writes_its_rows_once(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """An exception, or a Python worker that is killed, on the first attempt."""
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) payload")
    write(frame.mapInArrow(attempt_fails(how), frame.schema), tmp_path / "q")  # type: ignore[arg-type]
    assert payloads(tmp_path / "q") == [b"%d" % number for number in range(1000)]


@pytest.mark.slow
def test_a_failed_job_leaves_no_files(spark: SparkSession, tmp_path: Path) -> None:
    """Every attempt of one task fails while another is writing: no row, and no file, is left.

    Once Spark reports the failure of the job, no task of it can write any more.
    """
    staging, over = tmp_path / "q" / "queue-staged", tmp_path / "over"

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        deadline = time.monotonic() + 600
        for batch in batches:
            yield batch
            is_first = batch.column(0)[0].as_py() == "0"
            while len([*staging.glob("rows-*/*")]) < 2 if is_first else not over.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            if is_first:
                raise RuntimeError("it always fails")

    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) payload")
    try:
        with pytest.raises(PySparkException, match="it always fails"):
            write(frame.mapInArrow(fails, frame.schema), tmp_path / "q")
        assert os.listdir(staging) == []
    finally:
        over.touch()
    with Queue(tmp_path / "q") as queue:
        assert len(queue) == 0


# --- the writers by themselves --------------------------------------------------------------------


def staged(writer: BatchWriter, first: int, end: int) -> object:
    """Have a writer stage rows, as a task would."""
    import pyarrow as pa  # noqa: PLC0415 - it need not be there

    payload = pa.array([f"{number}" for number in range(first, end)])
    return writer.write(iter([pa.RecordBatch.from_arrays([payload], names=["payload"])]))


def batch_writer(directory: Path) -> BatchWriter:
    """Return a writer as the driver makes it."""
    options = write_options({"path": str(directory), "pageBytes": str(PAGE_BYTES)})
    return BatchWriter(options, schema_of(["payload"]), overwrite=False)


def test_of_speculated_tasks_only_the_winner_counts(tmp_path: Path) -> None:
    """Two attempts stage the same rows; the message of one comes."""
    writer = batch_writer(tmp_path / "q")
    won = staged(writer, 0, 10)
    staged(writer, 0, 10)
    writer.commit([won, None])  # type: ignore[list-item]
    assert payloads(tmp_path / "q") == [b"%d" % number for number in range(10)]


def test_abort_after_a_commit_keeps_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit published and then raised: Spark aborts, and the rows stay, once."""
    writer = batch_writer(tmp_path / "q")
    message = staged(writer, 0, 10)

    def fails(self: BulkPublisher, name: str) -> None:
        del self, name
        raise OSError("after the commit")

    monkeypatch.setattr(BulkPublisher, "forget", fails)
    with pytest.raises(OSError, match="after the commit"):
        writer.commit([message])  # type: ignore[list-item]
    writer.abort([message])  # type: ignore[list-item]
    assert len(payloads(tmp_path / "q")) == 10
    monkeypatch.undo()
    writer.commit([])  # a driver that tries once more
    assert len(payloads(tmp_path / "q")) == 10


def test_a_changed_staged_file_publishes_no_row(tmp_path: Path) -> None:
    """Staged files have checksums: other bytes are an error, and no row is written."""
    writer = batch_writer(tmp_path / "q")
    message = staged(writer, 0, 10)
    (path,) = (tmp_path / "q" / "queue-staged").glob("rows-*/*")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="run the job again"):
        writer.commit([message])  # type: ignore[list-item]
    writer.abort([message])  # type: ignore[list-item]
    assert payloads(tmp_path / "q") == []


def test_a_stream_without_its_ids_is_refused(tmp_path: Path) -> None:
    """Without query and batch a micro-batch could not be known again."""
    options = write_options({"path": str(tmp_path / "q")})
    writer = StreamWriter(options, schema_of(["payload"]), overwrite=False)
    with pytest.raises(Exception, match="a version that the extra"):
        writer.write(iter([]))


def test_job_without_rows_publishes_none(tmp_path: Path) -> None:
    """A job whose partitions are all empty publishes no row, and is not an error."""
    Queue(tmp_path / "q").close()
    rows = StagedRows(write_options({"path": str(tmp_path / "q")}), [])
    assert (rows.count, rows.frame_bytes, list(rows.chunks())) == (0, 0, [])


def test_trust_applies_to_the_staging_directory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are staged on the queue's file system: trust in one covers the other."""
    monkeypatch.setattr(_core, "file_system_type", lambda _fd: 0x6969)
    given = {"path": str(tmp_path / "q")}
    with pytest.raises(errors.UnsafePath, match="NFS"):
        BatchWriter(write_options(given), schema_of(["payload"]), overwrite=False)
    options = write_options({**given, "trust": "network_file_system"})
    writer = BatchWriter(options, schema_of(["payload"]), overwrite=False)
    batch = pa.record_batch({"payload": pa.array([b"a", b"b"], pa.binary())})
    writer.commit([writer.write(iter([batch]))])
    monkeypatch.undo()
    assert payloads(tmp_path / "q") == [b"a", b"b"]
