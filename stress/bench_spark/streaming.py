"""What a micro-batch costs, compared with one of Spark's own rate source."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

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
GOAL = 1.3


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
    ours = (
        spark.readStream.format("pagequeue")
        .option("maxRecordsPerTrigger", ROWS)
        .load(str(base / "queue"))
    )
    rate = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=1, startTimestamp=1000)
        .load()
    )
    mine, parts = milliseconds(ours, base / "ours", batches)
    theirs, peer_parts = milliseconds(rate, base / "rate", batches)
    details = {f"ours, {name}": text for name, text in parts.items()}
    details |= {f"rate, {name}": text for name, text in peer_parts.items()}
    details |= {"ours": f"{mine:.0f} ms", "rate": f"{theirs:.0f} ms"}
    return [
        Figure("a micro-batch to the rate source's", mine / theirs, "times its time", GOAL,
               is_bound=True, details=details)
    ]  # fmt: skip
