"""What a micro-batch costs, compared with one of Spark's own rate source."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pagequeue.spark
from pagequeue import Queue
from stress.bench_consumers.case import Figure
from stress.bench_spark import shared

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 1000
BATCHES, QUICK_BATCHES = 40, 6
WARMING = 4
SECONDS = 300
GOALS = {"python": 1.3, "native": 1.15}
"""A micro-batch of each reader, in times of the rate source's."""


def milliseconds(stream: DataFrame, checkpoint: Path, batches: int) -> tuple[float, dict[str, str]]:
    """Return the median time of a micro-batch, and of what it consists."""
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    deadline = time.monotonic() + SECONDS
    try:
        while _batch_of(query) < batches + WARMING:
            assert time.monotonic() < deadline, "the query makes no progress"
            assert query.exception() is None, str(query.exception())
            time.sleep(0.05)
        done = [one for one in query.recentProgress if one["numInputRows"] and one["batchId"]]
    finally:
        query.stop()
    taken = [one["durationMs"] for one in done[WARMING:]]
    parts = {
        name: f"{statistics.median(one.get(name, 0) for one in taken):.0f} ms"
        for name in ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
    }
    return statistics.median(one["triggerExecution"] for one in taken), parts


def _batch_of(query: StreamingQuery) -> int:
    last = query.lastProgress
    return 0 if last is None else int(last["batchId"])


def micro_batches(base: Path, *, quick: bool) -> list[Figure]:
    """Batches of 1000 rows, as fast as they come, to nowhere."""
    batches = QUICK_BATCHES if quick else BATCHES
    spark = shared.session()
    with Queue(base / "queue") as queue, queue.producer() as producer:
        for _ in range(batches + WARMING + 20):
            producer.send_many([b"x" * 100] * ROWS)
    ways = {
        reader: pagequeue.spark.read_stream(
            spark, base / "queue", reader=reader, maxRecordsPerTrigger=ROWS
        )
        for reader in GOALS
    }
    ways["rate"] = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=1, startTimestamp=1000)
        .load()
    )
    taken = {name: milliseconds(stream, base / name, batches) for name, stream in ways.items()}
    theirs, _ = taken["rate"]
    details = {
        f"{way}, {name}": text for way, (_, parts) in taken.items() for name, text in parts.items()
    }
    details |= {way: f"{mine:.0f} ms" for way, (mine, _) in taken.items()}
    return [
        Figure(
            f"a micro-batch of the {reader} reader to the rate source's",
            taken[reader][0] / theirs,
            "times its time",
            goal,
            is_bound=True,
            details=details if reader == "native" else {},
        )
        for reader, goal in GOALS.items()
    ]
