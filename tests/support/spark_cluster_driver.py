"""What the driver of `test_spark_cluster.py` does: a separate process, started with one task.

    python spark_cluster_driver.py MASTER DIRECTORY

It prints what it found as the last line, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import functions as f

import pagequeue.spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

SLOW_SECONDS = 240
"""No test waits so long: what is slow is killed before, on a busy machine too."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
    ),
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Tasks begin when both executors are there; Spark knows only by `cores.max` how many will be.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
}


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give, for each batch that comes, which host's task had it and how many rows."""
    import pyarrow as pa  # noqa: PLC0415 - it goes to a task

    for batch in batches:
        folder = os.getcwd()
        yield pa.RecordBatch.from_pydict({"folder": [folder], "rows": [batch.num_rows]})


def read(spark: SparkSession, ships: str) -> dict[str, Any]:
    """Read all ships by a glob, and tell what there was, and where it was read."""
    frame = spark.read.format("pagequeue").option("partitionBytes", 32768).load(ships)
    by_queue = frame.groupBy("queue").agg(
        f.count("*").alias("rows"),
        f.sum(f.length("payload")).alias("size_bytes"),
        f.min("sequence").alias("first"),
        f.max("sequence").alias("last"),
    )
    read_in = frame.select("sequence").mapInArrow(where, "folder string, rows long")
    return {
        "queues": {Path(row.queue).name: row.asDict() for row in by_queue.collect()},
        "folders": sorted({row.folder for row in read_in.collect()}),
        "partitions": frame.rdd.getNumPartitions(),
    }


def slow_once(marks: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what is slow in the first attempt of the first partition, and nowhere else."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mark = Path(marks) / f"{context.partitionId()}-{context.attemptNumber()}"
        mark.with_suffix(".begun").touch()
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                time.sleep(SLOW_SECONDS)
            yield batch.slice(batch.num_rows // 2)
        mark.with_suffix(".done").touch()

    return each


def write(spark: SparkSession, there: Path) -> dict[str, Any]:
    """Write a queue with a first attempt that hangs; tell how long it took."""
    marks = there / "marks"
    marks.mkdir()
    frame = spark.range(0, 5000, 1, 5).selectExpr("cast(id as string) payload")
    frame = frame.mapInArrow(slow_once(str(marks)), frame.schema)
    begun = time.monotonic()
    writer = frame.write.format("pagequeue").mode("append").option("pageBytes", 4096)
    writer.save(str(there / "written"))
    return {"seconds": time.monotonic() - begun, "marks": sorted(os.listdir(marks))}


def kill_once(marks: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what kills its executor, in the middle of the first partition's first attempt."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        mark = Path(marks) / "killed"
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.partitionId() == 0 and not mark.exists():
                mark.touch()
                daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
                time.sleep(SLOW_SECONDS)
            yield batch.slice(batch.num_rows // 2)

    return each


def stream(spark: SparkSession, ships: str, there: Path) -> dict[str, Any]:
    """Copy all ships as a stream, while an executor dies; tell whether it did."""
    frame = spark.readStream.format("pagequeue").option("partitionBytes", 32768).load(ships)
    frame = frame.select("payload")
    query = (
        frame.mapInArrow(kill_once(str(there / "marks")), frame.schema)
        .writeStream.format("pagequeue")
        .option("path", str(there / "streamed"))
        .option("checkpointLocation", str(there / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"killed": (there / "marks" / "killed").exists()}


def main() -> None:
    """Do all of it."""
    master, there = sys.argv[1], Path(sys.argv[2])
    spark = pagequeue.spark.session("cluster", master=master, settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    try:
        ships = str(there / "ships" / "*")
        found = {"read": read(spark, ships), "write": write(spark, there)}
        found["stream"] = stream(spark, ships, there)
    finally:
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
