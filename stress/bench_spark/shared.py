"""What all cases have in common: the session, how much there is to read, and how it is timed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pagequeue.spark
from stress.bench.turns import medians, seconds_in_turns, seconds_of
from stress.bench_spark.peers import MemorySource, NaiveSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

GIGABYTES = 2.0
"""Payloads in the queue that is read; the command sets it."""
QUICK_GIGABYTES = 0.01
ROUNDS = 3
ROOT = Path(__file__).parents[2]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
}
QUICK_SETTINGS = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Half of what a short session takes is to compile what would be fast in a long one."""
_started: list[SparkSession] = []


def session() -> SparkSession:
    """Return the one session."""
    if not _started:
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), inherited]))
        spark = pagequeue.spark.session("bench", master="local[2]", settings=SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
        for source in (NaiveSource, MemorySource):
            spark.dataSource.register(source)
        _started.append(spark)
    return _started[0]


def stop() -> None:
    """End the session, if there is one."""
    while _started:
        _started.pop().stop()


def messages(payload_bytes: int, *, quick: bool) -> int:
    """Return how many messages there are, a multiple of 1000."""
    size_bytes = (QUICK_GIGABYTES if quick else GIGABYTES) * 1e9
    return max(8000, int(size_bytes / payload_bytes) // 1000 * 1000)


def seconds(ways: Mapping[str, Callable[[], object]], *, quick: bool) -> dict[str, float]:
    """Return the median seconds of each way, taken in turns; the first turn warms up.

    A quick run has one turn: it shows that each way works, and its figures mean nothing.
    """
    if quick:
        return {name: seconds_of(way) for name, way in ways.items()}
    return medians(seconds_in_turns(ways, ROUNDS))
