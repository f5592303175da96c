"""What tests of the Spark pipeline share: queues with known times, and tables that are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pagequeue import Queue
from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.publish import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE_BYTES = 4096
START = 1_700_000_000_000_000_000 // table_layout.HOUR_NS * table_layout.HOUR_NS
MINUTE_NS = 60 * 10**9


def numbered(number: int) -> bytes:
    """Return a payload that is numbered."""
    return b"%06d" % number


def send(directory: Path, first: int, end: int, step_ns: int = MINUTE_NS) -> None:
    """Send numbered messages, a minute apart."""
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for number in range(first, end):
            producer.send(numbered(number), timestamp=START + number * step_ns)


def rows(table: Path) -> list[tuple[str, int, int, bytes]]:
    """Return queue, sequence, time and payload of all rows, as any reader of Parquet sees them."""
    found = pq.read_table(table, columns=["queue", "sequence", "timestamp_ns", "payload"])
    columns = [column.to_pylist() for column in found.itercolumns()]
    return sorted(zip(*columns, strict=True))


def wanted(directory: Path, numbers: Iterable[int]) -> list[tuple[str, int, int, bytes]]:
    """Return the rows of a queue that `send` made."""
    return [(str(directory), n, START + n * MINUTE_NS, numbered(n)) for n in numbers]


def stage(staged: str, queue: str, first: int, end: int, step_ns: int = MINUTE_NS) -> None:
    """Write a batch as Spark's tasks do: a file for each hour, with names of their own."""
    by_hour: dict[int, list[int]] = {}
    for number in range(first, end):
        by_hour.setdefault((START + number * step_ns) // table_layout.HOUR_NS, []).append(number)
    for hour, numbers in by_hour.items():
        date = table_layout.EPOCH.fromtimestamp(hour * 3600, table_layout.EPOCH.tzinfo)
        there = Path(staged, f"queue={queue}", f"date={date:%Y-%m-%d}", f"hour={date:%H}")
        there.mkdir(parents=True)
        times = [START + n * step_ns for n in numbers]
        columns: dict[str, Any] = {
            "sequence": pa.array(numbers, pa.int64()),
            "timestamp": pa.array([t // 1000 for t in times]).cast(pa.timestamp("us", "UTC")),
            "timestamp_ns": pa.array(times, pa.int64()),
            "payload": [numbered(n) for n in numbers],
        }
        pq.write_table(pa.table(columns), there / f"part-00000-{first}.snappy.parquet")
    Path(staged, "_SUCCESS").touch()


def make_table(table: Path, step_ns: int = MINUTE_NS, **queues: tuple[int, int]) -> None:
    """Add messages of queues to a table."""
    with Publisher(str(table)) as publisher:
        for name, (first, end) in queues.items():
            staged = publisher.staging()
            stage(staged, name, first, end, step_ns)
            publisher.publish(staged)
