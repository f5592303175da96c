"""`replay`: a table back into a queue, in order of time, with its times; resumes after a kill.

Spark sorts slice by slice, and each is published as one piece of work, in full or not at all; the
queue's ledger has the finished ones. So no slice is published twice, whichever process dies:

    # R1. The plan is written down, durably, with every place where a slice begins, also inside an
    #     hour. Dies before: no message was sent; the next replay plans.
    # R2. A slice is published under the replay's name and the slice's number (steps M1 to M9 of
    #     FORMAT.md). Dies in it: it is there in full, and known, or it is not there.
    # R3. The next slice. Dies here: the same command continues with the first unpublished one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pagequeue import errors
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.queue.queue import Queue, internals
from pagequeue.spark.error_text import raise_own
from pagequeue.spark.pipeline import replay_plan as plans
from pagequeue.spark.pipeline import replay_slices, table_layout
from pagequeue.spark.pipeline.reading import reading
from pagequeue.spark.session import register
from pagequeue.spark.source import NAME
from pagequeue.util.time_text import parse_time
from pagequeue.util.timestamps import iso_time, to_ns
from pagequeue.util.timestamps import system_clock as now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from pagequeue.util.literals import Trust
    from pagequeue.util.timestamps import TimeLike

SLICE_COUNT: Final = 1_000_000
SLICE_BYTES: Final = 1 << 30
"""A slice is on the disk twice while it is published: as rows, then as pages."""
COLUMNS: Final = StructType(
    [
        StructField("queue", StringType()),
        StructField("sequence", LongType()),
        StructField("timestamp_ns", LongType()),
        StructField("payload", BinaryType()),
    ]
)


class Replayed(NamedTuple):
    """What a replay did.

    Attributes:
        messages: that it sent.
        slices: in which it sent them.
        slices_before: that were there from an earlier run of the same command.
    """

    messages: int
    slices: int
    slices_before: int


def replay(
    spark: SparkSession,
    table: str | os.PathLike[str],
    queue: str | os.PathLike[str],
    *,
    since: TimeLike | str | None = None,
    until: TimeLike | str | None = None,
    page_bytes: int | None = None,
    prefix: str = "queue",
    trust: tuple[Trust, ...] = (),
    slice_count: int = SLICE_COUNT,
    progress: Callable[[int, int], None] | None = None,
) -> Replayed:
    """Send the messages of a table to a queue, by time, then queue, then sequence.

    The same call resumes one that was killed, with the messages that the table had at its first
    start; after a complete replay it returns at once. Times must not precede the last message of
    the queue, so other producers must not send to it meanwhile.

    Args:
        spark: a session, made by this thread; the source is registered.
        table: that `archive` made.
        queue: its directory, made if it is not there.
        since: only messages that are not older; int ns, aware datetime, timedelta ago, or a text:
            `10m`, ISO 8601 with its zone. What is given as "ago" is kept from the first call until
            the replay is done.
        until: only messages before the first that is not older.
        page_bytes: of a new queue.
        prefix: of its file names.
        trust: as for `Queue`.
        slice_count: about so many messages appear at a time, fewer than twice as many, and fewer
            where they are large.
        progress: told after each slice how many slices are done, of how many.

    Raises:
        QueueNotFound: the table does not exist.
        TimestampOrder: the queue has later messages than the table's.
        CorruptMeta: the plan next to the queue, or its ledger, is damaged.
        QueueReplaced: the table was recreated, from recreated queues, since the first call.
    """
    register(spark)
    path = table_layout.check_table(os.fspath(table))
    directory = os.path.abspath(os.fspath(queue))
    begin, end = Bound.of(since, "since"), Bound.of(until, "until")
    with Queue(directory, prefix=prefix, page_bytes=page_bytes, trust=trust) as target:
        same = (path, begin.same, end.same, slice_count)
        place, name = plans.path_of(directory, prefix, trust, same)
        with reading(path):
            found = table_layout.snapshot(path)
            plan = plans.load(place)
            if plan is None:
                first = 0 if begin.ns is None else begin.ns
                last = plans.NEVER if end.ns is None else end.ns
                limit = replay_slices.Limit(slice_count, SLICE_BYTES)
                plan = _plan(spark, path, f"{name} {first} {last}", found, (first, last), limit)
                plan = replace(plan, ids=table_layout.queue_ids(path))
                plans.save(place, plan)
            plan.check(path, place)
            done = _Replay(spark, path, target, plan, found).run(progress)
        if begin.is_ago or end.is_ago:
            os.unlink(place)  # next time that is another time
        return done


class Bound(NamedTuple):
    """Where a replay begins or ends: in ns since 1970, and what tells it from others."""

    ns: int | None
    same: str
    is_ago: bool

    @classmethod
    def of(cls, bound: TimeLike | str | None, name: str) -> Bound:
        """Return what a bound means."""
        if bound is None:
            return cls(None, "", is_ago=False)
        if not isinstance(bound, str):
            ns, is_ago = to_ns(bound, now, name=name), isinstance(bound, timedelta)
            return cls(max(ns, 0), str(bound) if is_ago else str(ns), is_ago)
        try:
            ns = parse_time(bound, now())
        except ValueError as error:
            raise errors.InvalidOption(f"{name}: {error}") from None
        is_ago = bound[-1:].isalpha() and not bound.endswith("Z")
        return cls(ns, bound if is_ago else str(ns), is_ago)


def _plan(
    spark: SparkSession,
    table: str,
    writer: str,
    found: list[table_layout.Stored],
    between: tuple[int, int],
    limit: replay_slices.Limit,
) -> plans.Plan:
    """Cut what is in a table into slices."""
    hours, ends = plans.hours_of(found, *between), plans.ends_of(found)
    over = [hour for hour in hours if limit.is_over(hour)]
    units = [hour for hour in hours if not limit.is_over(hour)]
    if over:
        starts = {hour.begin.time for hour in over}
        rows = rows_of(spark, table, [file for file in found if file.hour.start in starts], ends)
        begin = plans.Cut(between[0])
        end = plans.Cut(min(max(starts) + table_layout.HOUR_NS, between[1]))
        units += replay_slices.divided(rows.where(_is_from(begin) & ~_is_from(end)), over, limit)
    return plans.make(writer, ends, units, *between, *limit)


def _is_from(cut: plans.Cut) -> Column:
    """Return whether a row is at a cut, or after it."""
    time, queue, sequence = map(f.col, ("timestamp_ns", "queue", "sequence"))
    if not cut.queue:
        return time >= cut.time
    later = (queue > cut.queue) | ((queue == cut.queue) & (sequence >= cut.sequence))
    return (time > cut.time) | ((time == cut.time) & later)


class _Replay:
    """One run of a replay."""

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        queue: Queue,
        plan: plans.Plan,
        found: list[table_layout.Stored],
    ) -> None:
        self._spark = spark
        self._table = table
        self._plan = plan
        self._found = found
        self._store = internals(queue).store

    def run(self, progress: Callable[[int, int], None] | None) -> Replayed:
        """Do the slices that are not done."""
        parts = list(self._plan.parts())
        before = messages = 0
        for number, begin, end in parts:
            if progress is not None:
                progress(number, len(parts))
            if self._done(number) is not None:
                before += 1
                continue
            self._write(number, begin, end)
            messages += len(self._done(number) or ())
        if progress is not None:
            progress(len(parts), len(parts))
        return Replayed(messages, len(parts) - before, before)

    def _done(self, number: int) -> range | None:
        with BulkPublisher(self._store) as ledger:
            return ledger.done(f"writer {self._plan.writer}", number)

    def _write(self, number: int, begin: plans.Cut, end: plans.Cut) -> None:
        """Publish a slice (R2)."""
        rows = self._rows(begin, end).orderBy("timestamp_ns", "queue", "sequence")
        writer = rows.select("payload", "timestamp_ns").write.format(NAME).mode("append")
        writer = writer.option("writer", self._plan.writer).option("piece", str(number))
        writer = writer.option("prefix", self._store.prefix)
        writer = writer.option("trust", ",".join(sorted(self._store.folder.trust)))
        try:
            writer.save(self._store.folder.path)
        except Exception as error:
            try:
                raise_own(error)
            except errors.TimestampOrder:
                raise self._too_late() from error
            raise

    def _too_late(self) -> errors.TimestampOrder:
        path, last = self._store.folder.path, self._store.tail.last_timestamp
        return errors.TimestampOrder(
            f"has messages up to {iso_time(last)}, and the replay begins earlier; "
            "repeating a finished replay since a time ago starts another one",
            path=path,
            last_timestamp=last,
            remedy="replay into a new queue, or since after that time",
        )

    def _rows(self, begin: plans.Cut, end: plans.Cut) -> DataFrame:
        """Return what the plan means of a slice; files of other hours are not opened."""
        found = [
            file
            for file in self._found
            if begin.time - table_layout.HOUR_NS < file.hour.start
            and plans.Cut(file.hour.start) < end
            and file.first < self._plan.ends.get(file.hour.queue, 0)
        ]
        rows = rows_of(self._spark, self._table, found, self._plan.ends)
        time = f.col("timestamp_ns")  # as bounds, for Parquet to leave out what is not read
        rows = rows.where((time >= begin.time) & (time <= end.time))
        return rows.where(_is_from(begin) & ~_is_from(end))


def rows_of(
    spark: SparkSession, table: str, found: list[table_layout.Stored], ends: dict[str, int]
) -> DataFrame:
    """Return the rows of files that lie below an end of their queue."""
    if not found:
        return spark.createDataFrame([], COLUMNS)
    paths = [os.path.join(table, file.path) for file in found]
    rows = spark.read.option("basePath", table).schema(COLUMNS).parquet(*paths)
    for file in found:
        end = ends[file.hour.queue]
        if file.end > end:
            later = (f.col("queue") == file.hour.queue) & (f.col("sequence") >= end)
            rows = rows.where(~later)
    return rows
