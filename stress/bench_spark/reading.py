"""Reading a queue as a table, against a naive source, batches from memory, and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import functions as f

from pagequeue import Queue
from pagequeue.spark.columns import Table, schema_of
from pagequeue.spark.options import read_options
from pagequeue.spark.planning import plan
from pagequeue.spark.reading import read_part
from stress.bench.turns import seconds_of
from stress.bench_consumers.case import Figure
from stress.bench_spark import shared

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

SENT_AT_ONCE = 1000
NAIVE_SHARE = 16
"""The naive source reads one message of so many, and its rate counts."""
START = 1_700_000_000_000_000_000
WITHOUT_PAYLOAD = ["queue", "sequence", "timestamp", "timestamp_ns"]
COUNT_GOAL, NARROW_GOAL, SUM_GOAL, MEMORY_GOAL, SINCE_GOAL = 15.0, 30.0, 5.0, 0.7, 30.0


def fill(base: Path, count: int, payload_bytes: int) -> None:
    """Send messages a microsecond apart, and write the same rows to a Parquet file."""
    path = base / "queue"
    with Queue(path) as queue, queue.producer() as producer:
        for first in range(0, count, SENT_AT_ONCE):
            payloads = [
                (b"%04d" % (number % 1009)).ljust(payload_bytes, b"x")
                for number in range(first, first + SENT_AT_ONCE)
            ]
            times = range(START + first * 1000, START + (first + SENT_AT_ONCE) * 1000, 1000)
            producer.send_many(payloads, timestamps=list(times))
        producer.flush()
    options = read_options({"path": str(path)}, streaming=False)
    table = Table(schema_of())
    writer: Any = None
    for part in plan(options, table):
        for batch in read_part(part, table, options):  # type: ignore[arg-type]
            if writer is None:
                writer = pq.ParquetWriter(
                    base / "rows.parquet",
                    batch.schema,
                    compression="none",
                    use_dictionary=["queue"],
                )
            writer.write_batch(batch)
    writer.close()


def in_python(base: Path, names: list[str] | None = None) -> int:
    """Do the tasks' work in this process, discard the batches and return the number of rows."""
    options = read_options({"path": str(base / "queue")}, streaming=False)
    table = Table(schema_of(names))
    parts = plan(options, table)
    return sum(
        batch.num_rows
        for part in parts
        for batch in read_part(part, table, options)  # type: ignore[arg-type]
    )


def summed(frame: DataFrame) -> int:
    """Return the sum of the payloads' lengths."""
    return int(frame.agg(f.sum(f.length("payload"))).collect()[0][0])


def grouped(frame: DataFrame) -> int:
    """Return how many prefixes the payloads have."""
    return frame.groupBy(f.substring("payload", 1, 4)).count().count()


class _Frames:
    """The same rows by all ways."""

    def __init__(self, base: Path, count: int, payload_bytes: int) -> None:
        self._spark = shared.session()
        self._base = base
        self.count = count
        self.naive_count = max(1000, count // NAIVE_SHARE)
        self.payload_bytes = payload_bytes
        options = read_options({"path": str(base / "queue")}, streaming=False)
        self._parts = len(plan(options, Table(schema_of())))  # the peers have as many

    def ours(self, columns: list[str] | None = None, **options: object) -> DataFrame:
        options = {"reader": "python", **options}
        reader = self._spark.read.format("pagequeue").options(**options)  # type: ignore[arg-type]
        if columns:
            reader = reader.schema(schema_of(columns))
        return reader.load(str(self._base / "queue"))

    def naive(self, columns: list[str] | None = None) -> DataFrame:
        reader = self._spark.read.format("naive").options(count=self.naive_count, parts=self._parts)
        if columns:
            reader = reader.schema(schema_of(columns))
        return reader.load(str(self._base / "queue"))

    def memory(self) -> DataFrame:
        options = {"count": self.count, "parts": self._parts, "payloadBytes": self.payload_bytes}
        return self._spark.read.format("memory").options(**options).load()

    def parquet(self) -> DataFrame:
        return self._spark.read.parquet(str(self._base / "rows.parquet"))


def scans(base: Path, *, quick: bool, payload_bytes: int) -> list[Figure]:
    """Count, sum, group by and the last 1 %; and how the time is spent."""
    count = shared.messages(payload_bytes, quick=quick)
    fill(base, count, payload_bytes)
    frames = _Frames(base, count, payload_bytes)
    _check(frames)
    last = START + int(count * 0.99) * 1000
    took = shared.seconds(
        {
            "count, ours": lambda: frames.ours().count(),
            "count without payload, ours": lambda: frames.ours(WITHOUT_PAYLOAD).count(),
            "sum, ours": lambda: summed(frames.ours()),
            "sum of payload alone, ours": lambda: summed(frames.ours(["payload"])),
            "group, ours": lambda: grouped(frames.ours()),
            "count, memory": lambda: frames.memory().count(),
            "sum, memory": lambda: summed(frames.memory()),
            "count, Parquet": lambda: frames.parquet().count(),
            "sum, Parquet": lambda: summed(frames.parquet()),
            "group, Parquet": lambda: grouped(frames.parquet()),
            "python alone": lambda: in_python(base),
            "since": lambda: summed(frames.ours(since=last)),
            "no row": lambda: frames.ours(fromSequence=count).count(),
        },
        quick=quick,
    )
    since, nothing = took.pop("since"), took.pop("no row")
    rate = {name: count / seconds for name, seconds in took.items()}  # rows by the second
    few = frames.naive_count
    for name, way in (
        ("count, naive", lambda: frames.naive().count()),
        ("count without payload, naive", lambda: frames.naive(WITHOUT_PAYLOAD).count()),
        ("sum, naive", lambda: summed(frames.naive())),
        ("group, naive", lambda: grouped(frames.naive())),
    ):
        rate[name] = few / seconds_of(way)
    return _figures(rate, count, since, nothing)


def _check(frames: _Frames) -> None:
    """Raise AssertionError if the ways do not give the same."""
    size = frames.count * frames.payload_bytes
    for frame in (frames.ours(), frames.memory(), frames.parquet()):
        assert summed(frame) == size, "other rows than were sent"
    assert summed(frames.naive()) == frames.naive_count * frames.payload_bytes
    assert grouped(frames.ours()) == grouped(frames.parquet())


def _figures(
    rate: dict[str, float], count: int, since_seconds: float, nothing_seconds: float
) -> list[Figure]:
    def over(ours: str, peer: str) -> float:
        return rate[ours] / rate[peer]

    rows = {name: f"{value / 1e3:,.0f} thousand rows/s" for name, value in rate.items()}
    whole = count / rate["sum, ours"]
    memory, parquet = count / rate["sum, memory"], count / rate["sum, Parquet"]
    alone = count / rate["python alone"]
    where = {
        "how the time of the sum is spent": f"{whole:.2f} s in all, on 2 processors",
        "Python, reading and building": f"{alone:.2f} s of one processor, measured alone",
        "transfer and the JVM's rows": f"{memory:.2f} s: all that the source from memory takes",
        "what a native reader would gain": f"{whole / parquet:.1f} x, if it were as fast as "
        "Parquet's scan",
    }
    return [
        Figure(
            "count, all columns, to the naive source",
            over("count, ours", "count, naive"),
            "times as fast",
            COUNT_GOAL,
            details=rows,
        ),
        Figure(
            "count without payload to the naive source",
            over("count without payload, ours", "count without payload, naive"),
            "times as fast",
            NARROW_GOAL,
        ),
        Figure(
            "sum of lengths to the naive source",
            over("sum, ours", "sum, naive"),
            "times as fast",
            SUM_GOAL,
        ),
        Figure(
            "group by prefix to the naive source",
            over("group, ours", "group, naive"),
            "times as fast",
            SUM_GOAL,
        ),
        Figure(
            "sum of lengths to batches from memory",
            over("sum, ours", "sum, memory"),
            "times as fast",
            MEMORY_GOAL,
            details=where,
        ),
        Figure(
            "since the last 1 % to all",
            whole / since_seconds,
            "times as fast",
            SINCE_GOAL,
            details={
                "the last 1 %": f"{since_seconds:.3f} s",
                "no message at all": f"{nothing_seconds:.3f} s: what any query takes",
            },
        ),
    ]
