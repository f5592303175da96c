"""`archive`: queues into a Parquet table, each message once, as a stream of Spark.

Spark reads and writes, in tasks; the driver only gives files their names. These names alone record
what is archived, so neither a repeated batch nor a lost checkpoint doubles a row. With a consumer's
name a batch is acknowledged after it is on stable storage.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from pagequeue import errors
from pagequeue.spark.columns import COLUMNS, own_names, schema_of
from pagequeue.spark.error_text import raise_own
from pagequeue.spark.options import read_options
from pagequeue.spark.path_glob import end_of, find, id_of, open_each
from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.compaction import FILE_BYTES, Compactor
from pagequeue.spark.pipeline.publish import Publisher
from pagequeue.spark.session import register, stream_of
from pagequeue.spark.source import dtypes_of
from pagequeue.spark.streaming import marks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pagequeue.queue.queue import Queue

TRIGGER_BYTES: Final = 1 << 30
COMPACT_BATCHES: Final = 16
"""Batches between two compactions of a continuous archive."""
POLL_SECONDS: Final = 0.2
QUIET_SECONDS: Final = 20.0
"""So long an archive that ends waits for Spark to come to an end of what it does."""
COMPRESSION: Final = "zstd"
TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"


class Archived(NamedTuple):
    """What an archive did.

    Attributes:
        messages: that are in the table now and were not before.
        size_bytes: of their files, as they were written.
        batches: that had messages.
        files_saved: by compaction.
    """

    messages: int
    size_bytes: int
    batches: int
    files_saved: int


def archive(
    spark: SparkSession,
    queues: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    table: str | os.PathLike[str],
    *,
    every: float | None = None,
    consumer: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    compact: bool = True,
    file_bytes: int = FILE_BYTES,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: object,
) -> Archived:
    """Put the messages of queues into a Parquet table, each of them once.

    Args:
        spark: a session; the source is registered.
        queues: directories, or globs of them; those that match later join.
        table: its directory, created if necessary; partitioned by queue, date and hour, UTC.
        every: archive a batch every so many seconds until `stop` is set; None: only what is
            retained now.
        consumer: the name under which what is archived is acknowledged, so that retention waits.
        checkpoint: where Spark notes its progress; None: below the table.
        compact: make few files of many small ones.
        file_bytes: about so large a compacted file becomes.
        stop: ends a continuous archive.
        progress: called after each batch with the archived messages and their total.
        options: of the stream that is read: `prefix`, `trust`, `onDamage`, `onExpired`,
            `durableOnly`, `maxRecordsPerTrigger`, `maxBytesPerTrigger`, `partitionBytes`,
            `startingOffsets`, `reader`: "auto" by default.

    Raises:
        QueueNotFound: no queue matches. LockTimeout: another process archives to the table.
        Expired: retention took what was not archived. DamageError: a page is damaged.
        SequenceOutOfRange: the checkpoint is further than the table, so messages would be missing;
            or the queue was restored to an earlier state than the table has.
        QueueReplaced: the checkpoint, or the table, is of another queue than the one that is there.
    """
    reading = _reading(queues, consumer, options)
    known = read_options(reading, streaming=True)
    if not find(known) and every is None:
        raise errors.QueueNotFound(
            "no queue matches: check path and prefix", path=", ".join(known.paths)
        )
    register(spark)
    with Publisher(os.fspath(table)) as publisher:
        default = table_layout.work_path(publisher.table, table_layout.CHECKPOINT)
        place = default if checkpoint is None else os.path.abspath(os.fspath(checkpoint))
        compactor = Compactor(publisher.table, file_bytes) if compact else None
        skips = known.skips_damage or known.skips_expired
        for there, queue in open_each(known):
            check_follows(publisher, there.name, queue)
        run = _Run(publisher, compactor, place, is_gapless=not skips)
        if progress is not None:
            run.progress, run.total = progress, _waiting(publisher, reading)
            progress(0, run.total)
        # Explicit columns: queues of records have others by default.
        dtypes = dtypes_of(known)
        columns = own_names(list(COLUMNS), dtypes)
        stream = stream_of(spark, reading, schema_of(columns, dtypes[0]), dtypes[0])
        stream = stream.toDF(*COLUMNS)
        writer = stream.writeStream.foreachBatch(run.write).option("checkpointLocation", place)
        once = every is None
        writer = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime=f"{every} seconds")
        )
        _await(writer.start(), run, stop)
        if run.compactor is not None:
            run.files_saved += run.compactor.compact(spark)
        return Archived(run.messages, run.size_bytes, run.batches, run.files_saved)


def _reading(
    queues: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    consumer: str | None,
    options: Mapping[str, object],
) -> dict[str, str]:
    """Return the options of the stream."""
    given = [queues] if isinstance(queues, str | os.PathLike) else queues
    paths = [os.path.abspath(os.fspath(path)) for path in given]
    reading = {name: str(value) for name, value in options.items()}
    if not {"maxrecordspertrigger", "maxbytespertrigger"} & {name.lower() for name in reading}:
        reading["maxBytesPerTrigger"] = str(TRIGGER_BYTES)
    if consumer is not None:
        reading["consumer"] = consumer
    return {**reading, "paths": json.dumps(paths)}


def check_follows(publisher: Publisher, name: str, queue: Queue) -> None:
    """Raise if a queue does not have the last message that the table has of it.

    By its id it is the same: a copy of an earlier state, which perhaps continued since.

    Raises:
        SequenceOutOfRange: it has another one, or ends before it.
    """
    last = publisher.last_row(name, id_of(queue))
    if last is None:
        return
    tail = queue.tail_sequence
    if last.sequence < tail:
        try:
            message = next(queue.replay(sequence=last.sequence))
        except (errors.Expired, errors.DamageError):
            return  # which message it was cannot be told
        # One that is sent again comes later; `repair --times` makes times earlier.
        if message.payload == last.payload and message.timestamp <= last.timestamp_ns:
            return
    raise errors.SequenceOutOfRange(
        f"message {last.sequence}, the last one in the table {publisher.table}, is another one or "
        "missing here: the queue was restored to an earlier state",
        path=queue.directory,
        head_sequence=queue.head_sequence,
        tail_sequence=tail,
        remedy="archive it to another table",
    )


class _OverError(Exception):
    """The query is being stopped."""


class _Run:
    """What one query does with its batches, and has done."""

    def __init__(
        self,
        publisher: Publisher,
        compactor: Compactor | None,
        checkpoint: str,
        *,
        is_gapless: bool,
    ) -> None:
        self.publisher = publisher
        self._checkpoint = checkpoint
        self._is_gapless = is_gapless
        self.compactor = compactor
        self.messages = self.size_bytes = self.batches = self.files_saved = self.total = 0
        self.progress: Callable[[int, int], None] | None = None
        self.failure: BaseException | None = None
        self._working = threading.Lock()
        self._is_over = False

    def end(self, query: StreamingQuery) -> None:
        """Stop a query between two batches: Spark would break one off by interrupting it."""
        deadline = time.monotonic() + QUIET_SECONDS
        while query.isActive and _is_at_work(query) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)
        with self._working:
            self._is_over = True
        query.stop()  # it waits for a batch that begins now, which is refused

    def write(self, batch: DataFrame, number: int) -> None:
        """Archive one batch; Spark only gets the text of an error, so it is kept."""
        with self._working:
            if self._is_over:
                raise _OverError  # to return would mean that the batch is done
            try:
                self._write(batch, queue_ids(self._checkpoint, number))
            except BaseException as error:
                self.failure = error
                raise

    def _write(self, batch: DataFrame, ids: Mapping[str, str]) -> None:
        staged = self.publisher.staging()
        stage(batch, staged)
        done = self.publisher.publish(staged, ids, is_gapless=self._is_gapless)
        self.messages += done.messages
        self.size_bytes += done.size_bytes
        self.batches += bool(done.messages)
        if self.compactor is not None:
            self.compactor.grown(done.directories)
            if done.messages and self.batches % COMPACT_BATCHES == 0:
                self.files_saved += self.compactor.compact(batch.sparkSession)
        if self.progress is not None and done.messages:
            self.total = max(self.total, self.messages)
            self.progress(self.messages, self.total)


def queue_ids(checkpoint: str, number: int) -> dict[str, str]:
    """Return the ids of the queues that a micro-batch reads, by their names.

    Spark writes the batch's offsets down before it runs. Nothing else tells which queue the rows
    are of, because another one can be in its place by now.
    """
    path = os.path.join(checkpoint, "offsets", str(number))
    with open(path, encoding="utf-8") as file:
        offsets = json.loads(file.read().splitlines()[-1])
    return {name: mark.queue_id for name, mark in marks_of(offsets).items() if mark.queue_id}


def _is_at_work(query: StreamingQuery) -> bool:
    """Whether Spark begins, plans or runs a batch, and not waits for the next one."""
    status = query.status
    return bool(status["isTriggerActive"]) or str(status["message"]).startswith("Initializing")


def stage(batch: DataFrame, directory: str) -> None:
    """Write rows to Parquet files below `queue=/date=/hour=`, in order of sequence (A1).

    Days and hours are counted in ns since 1970, independent of the session's time zone.
    """
    batch.sparkSession.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    hour = f.expr(f"timestamp_ns div {table_layout.HOUR_NS}")
    rows = batch.select(
        "*",
        f.date_add(f.lit("1970-01-01").cast("date"), f.floor(hour / 24).cast("int")).alias("date"),
        f.lpad((hour % 24).cast("string"), 2, "0").alias("hour"),
    )
    order = ("queue", "date", "hour")
    (
        rows.sortWithinPartitions(*order, "sequence")
        .write.partitionBy(*order)
        .option("compression", COMPRESSION)
        .mode("error")
        .parquet(directory)
    )


def _await(query: StreamingQuery, run: _Run, stop: threading.Event | None) -> None:
    """Wait for the end of a query, or bring it about.

    Raises:
        PageQueueError: what it ended with.
    """
    try:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            if stop is not None and stop.is_set():
                break
    except Exception as error:
        if isinstance(run.failure, errors.PageQueueError):
            raise run.failure from error
        raise_own(error)
        raise
    finally:
        run.end(query)


def _waiting(publisher: Publisher, reading: dict[str, str]) -> int:
    """Return how many messages are there that the table does not have."""
    there = table_layout.ends(publisher.table)
    count = 0
    options = read_options(reading, streaming=True)
    for found, queue in open_each(options):
        first = max(queue.head_sequence, there.get(found.name, 0))
        count += max(0, end_of(queue, options) - first)
    return count
