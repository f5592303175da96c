"""A Spark driver that `no_row_is_lost_or_doubled_by_spark` starts, and kills at random times.

It copies one queue to another by a streaming query, which it starts again when a killed worker ends
it, and writes jobs of labelled rows to the same queue, noting before and after each what it does.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE_BYTES = 16384
LARGE_EVERY = 61
LARGE_BYTES = 20_000
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
}


def row_of(label: str, number: int) -> bytes:
    """Return a row of a job, or of the producer's messages; now and then one of two pages."""
    padding = b"." * LARGE_BYTES if number % LARGE_EVERY == 1 else b""
    return f"{label} {number}".encode() + padding


def reader_of(wanted: str, rng: random.Random) -> str:
    """Return the reader, or the sink, of one query."""
    return rng.choice(("native", "python")) if wanted == "mixed" else wanted


class Driver:
    """What one driver does, until it is killed or told to finish."""

    def __init__(self, spark: SparkSession, directory: Path, life: int, reader: str) -> None:
        self.spark = spark
        self.reader = reader
        self.directory = directory
        self.rng = random.Random(life)
        self.life = life
        self.number = 0

    def told_to_stop(self) -> bool:
        """Whether the round is over, or the parent process is gone."""
        return (self.directory / "stop").exists() or os.getppid() == 1

    def note(self, text: str) -> None:
        """Append a line that survives a kill."""
        with (self.directory / "jobs").open("a") as file:
            file.write(f"{text}\n")

    def write_job(self) -> None:
        """Write a table of rows, few or many pages of them, as `row_of` says.

        By the main thread: in others Spark 4.3 finds no source that was registered.
        """
        self.number += 1
        count = self.rng.choice((3, 200, 2500))
        label = f"j{self.life}.{self.number}"
        rows = self.spark.range(0, count, 1, self.rng.choice((1, 2))).selectExpr(
            f"concat('{label} ', id, if(id % {LARGE_EVERY} = 1, repeat('.', {LARGE_BYTES}), '')) "
            "as payload"
        )
        self.note(f"begin {label} {count}")
        try:
            writer = rows.write.format("pagequeue").mode("append")
            writer.option("sink", reader_of(self.reader, self.rng))
            writer.option("pageBytes", PAGE_BYTES).save(str(self.directory / "to"))
            self.note(f"done {label} {count}")
        except Exception as error:  # noqa: BLE001 - a worker was killed too often
            self.note(f"failed job {' '.join(str(error).split())[:3000]}")

    def copy(self, *, ends: bool) -> None:
        """Run the streaming query, until it ends or fails, or there is no more to do."""
        from pagequeue.spark import read_stream  # noqa: PLC0415 - as in main

        stream = read_stream(
            self.spark,
            self.directory / "from",
            reader=reader_of(self.reader, self.rng),
            consumer="spark",
            partitionBytes=20_000,
            maxRecordsPerTrigger=5000 if ends else self.rng.choice((20, 150, 1200)),
        )
        writer = (
            stream.select("payload")
            .writeStream.format("pagequeue")
            .option("path", str(self.directory / "to"))
            .option("pageBytes", PAGE_BYTES)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .option("sink", reader_of(self.reader, self.rng))
        )
        trigger = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        query = writer.trigger(**trigger).start()
        while query.isActive:
            time.sleep(self.rng.random())
            if not ends and self.told_to_stop():
                query.stop()
                return
            if not ends:
                self.write_job()
        query.awaitTermination()  # raises what it failed with

    def run(self) -> None:
        """Run until told to stop, then finish the rest."""
        ended = False
        while not ended:
            ends = self.told_to_stop()
            try:
                self.copy(ends=ends)
                ended = ends
            except Exception as error:  # noqa: BLE001 - any error of a killed worker
                text = str(error)
                self.note(f"failed {' '.join(text.split())[:3000]}")
                time.sleep(0.1)
        self.note("finished")


def main(directory: str, life: int, reader: str) -> None:
    """Be a driver."""
    from pagequeue.spark import session  # noqa: PLC0415 - the campaign reports a missing extra

    spark = session("campaign", master="local[2,6]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    (Path(directory) / f"life{life}").touch()
    Driver(spark, Path(directory), life, reader).run()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
