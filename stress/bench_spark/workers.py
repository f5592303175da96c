"""What a second worker of a standalone cluster gains, each with one core, on the same data."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

import pagequeue.spark
from pagequeue.spark.java import find_java
from stress.bench_consumers.case import Figure
from stress.bench_spark import shared
from stress.bench_spark.reading import fill, grouped, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from pyspark.sql import DataFrame, SparkSession

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark takes them for two hosts."""
GOAL = 1.8
PAYLOAD_BYTES = 100
SECONDS = 120
SETTINGS = {
    "spark.executor.memory": "1g",
    # A query begins when all executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS}s",
}
QUERIES: dict[str, Callable[[DataFrame], object]] = {
    "sum of lengths": summed,
    "group by a prefix": grouped,
}


class _Cluster:
    """A master, and workers with one core each; its processes end with the block."""

    def __init__(self, there: Path) -> None:
        self._there = there
        self._running = contextlib.ExitStack()
        self._workers = 0
        self.address = ""

    def __enter__(self) -> Self:
        log = self._start(
            "master", "master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0"
        )
        self.address = _line(log, r"spark://[\d.]+:\d+")
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def add_worker(self) -> None:
        host = HOSTS[self._workers]
        self._workers += 1
        log = self._start(
            f"worker-{self._workers}",
            "worker.Worker",
            "--host",
            host,
            "--port",
            "0",
            "--webui-port",
            "0",
            "--cores",
            "1",
            "--memory",
            "1200m",
            "--work-dir",
            str(self._there / f"worker-{self._workers}"),
            self.address,
        )
        _line(log, "Successfully registered with master")

    def _start(self, name: str, program: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "JAVA_HOME": find_java().home,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        (self._there / name).mkdir(parents=True)
        path = self._there / name / "log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{program}",
                    *arguments,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._running.callback(_kill, process)
        return path


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _line(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + SECONDS
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, f"no {pattern!r} in {log.read_text(errors='replace')}"
        time.sleep(0.1)
    return found[0]


@contextlib.contextmanager
def _session(address: str, cores: int) -> Iterator[SparkSession]:
    settings = {**shared.SETTINGS, **SETTINGS, "spark.cores.max": str(cores)}
    spark = pagequeue.spark.session("bench", master=address, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def workers(base: Path, *, quick: bool) -> list[Figure]:
    """Each query by each reader, with one worker, and then with two; the driver is this process."""
    shared.stop()
    fill(base, shared.messages(PAYLOAD_BYTES, quick=quick), PAYLOAD_BYTES)
    taken: list[dict[str, float]] = []
    with _Cluster(base / "cluster") as cluster:
        for count in range(1, len(HOSTS) + 1):
            cluster.add_worker()
            with _session(cluster.address, count) as spark:
                ways = {
                    f"{name}, {reader}": _way(spark, base, reader, query)
                    for name, query in QUERIES.items()
                    for reader in ("native", "python")
                }
                taken.append(shared.seconds(ways, quick=quick))
    one, two = taken
    return [
        Figure(
            f"{name}: one worker to two",
            one[name] / two[name],
            "times the time",
            GOAL,
            details={"seconds": f"{one[name]:.2f} by one, {two[name]:.2f} by two"},
        )
        for name in one
    ]


def _way(
    spark: SparkSession, base: Path, reader: str, query: Callable[[DataFrame], object]
) -> Callable[[], object]:
    # As many tasks in both sessions, and enough that both workers are busy to the end.
    part_bytes = max(1 << 20, (base / "rows.parquet").stat().st_size // 16)

    def way() -> object:
        table = pagequeue.spark.read(
            spark, base / "queue", reader=reader, partitionBytes=part_bytes
        )
        return query(table)

    return way
