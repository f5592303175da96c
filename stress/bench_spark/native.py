"""The native reader against the Python source and Parquet: processor seconds, and wall time."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

import pagequeue.spark
from stress.bench_consumers.case import Figure
from stress.bench_spark import shared
from stress.bench_spark.reading import START, fill

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

READERS = ("python", "native", "Parquet")
COUNT = "count, by default"
TICKS = os.sysconf("SC_CLK_TCK")
PARENT, USED = 1, slice(11, 15)
"""Of /proc/PID/stat, after the name: the parent, and the ticks of it and its dead children."""


class Taken(NamedTuple):
    """What a query took, in seconds: of processors, and of the clock."""

    cpu: float
    wall: float


def cpu_seconds() -> float:
    """Return what this process and all that came of it used: the JVM and Python workers."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            parents[int(entry.name)] = int(fields[PARENT])
            used[int(entry.name)] = sum(map(int, fields[USED]))
    wanted = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return sum(used.get(pid, 0) for pid in wanted) / TICKS


def _checked(frame: DataFrame) -> object:
    return frame.where("length(payload) >= 0").count()


def _summed(frame: DataFrame) -> object:
    return frame.agg(f.sum(f.length("payload"))).collect()[0][0]


def _grouped(frame: DataFrame) -> object:
    return frame.groupBy(f.substring("payload", 1, 4)).count().count()


def _newest(frame: DataFrame) -> object:
    return frame.agg(f.max("timestamp_ns")).collect()[0][0]


def _discarded(frame: DataFrame) -> object:
    frame.select("payload").write.format("noop").mode("overwrite").save()
    return None


QUERIES: dict[str, tuple[Callable[[DataFrame], object], float, float]] = {
    "count, every frame checked": (_checked, 5.0, 0.0),
    "count, pushed down": (lambda frame: frame.count(), 0.0, 5.0),
    "newest time": (_newest, 0.0, 5.0),
    "sum of lengths": (_summed, 5.0, 1.5),
    "group by a prefix": (_grouped, 2.5, 1.3),
    "payload to noop": (_discarded, 3.0, 1.3),
}
"""Each with what is to be reached against the Python source and against Parquet; 0: no goal."""


def readers(base: Path, *, quick: bool, payload_bytes: int) -> list[Figure]:
    """Time each query by each reader in turns, and compare processor seconds."""
    count = shared.messages(payload_bytes, quick=quick)
    fill(base, count, payload_bytes)
    spark = shared.session()
    path = str(base / "queue")
    last = START + int(count * 0.99) * 1000

    def table(reader: str, check: str = "used") -> DataFrame:
        if reader == "Parquet":
            return spark.read.parquet(str(base / "rows.parquet"))
        return pagequeue.spark.read(spark, path, reader=reader, check=check)

    def recent(reader: str) -> object:
        if reader == "python":
            return _summed(pagequeue.spark.read(spark, path, reader=reader, since=str(last)))
        return _summed(table(reader).where(f"timestamp_ns >= {last}L"))

    ways: dict[tuple[str, str], Callable[[], object]] = {}
    for reader in READERS:
        for query, (way, _, _) in QUERIES.items():
            ways[query, reader] = lambda way=way, reader=reader: way(table(reader))  # type: ignore[misc]
        ways["last 1 %", reader] = lambda reader=reader: recent(reader)  # type: ignore[misc]
        ways[COUNT, reader] = lambda reader=reader: table(reader, "columns").count()  # type: ignore[misc]
    taken = _in_turns(ways, quick=quick)
    goals = {query: goal for query, (_, *goal) in QUERIES.items()}
    goals |= {"last 1 %": [0.0, 3.0], COUNT: [5.0, 0.0]}
    return [figure for query in goals for figure in _figures(query, goals[query], taken)]


def _in_turns(
    ways: dict[tuple[str, str], Callable[[], object]], *, quick: bool
) -> dict[tuple[str, str], Taken]:
    """Return the medians; the first turn warms up, and shows that all give the same.

    It is the only one of a quick run.
    """
    taken: dict[tuple[str, str], list[Taken]] = {name: [] for name in ways}
    found: dict[str, object] = {}
    for turn in range(1 if quick else shared.ROUNDS + 1):
        for (query, reader), way in sorted(ways.items()):
            cpu, begun = cpu_seconds(), time.perf_counter()
            result = way()
            used = Taken(cpu_seconds() - cpu, time.perf_counter() - begun)
            assert found.setdefault(query, result) == result, f"{query}: {reader} gives another"
            if turn or quick:
                taken[query, reader].append(used)
    return {
        name: Taken(
            statistics.median(one.cpu for one in times),
            statistics.median(one.wall for one in times),
        )
        for name, times in taken.items()
    }


def _figures(query: str, goals: list[float], taken: dict[tuple[str, str], Taken]) -> list[Figure]:
    details = {
        reader: f"{taken[query, reader].cpu:.2f} s of processors, {taken[query, reader].wall:.2f} s"
        for reader in READERS
    }
    ours = max(taken[query, "native"].cpu, 1 / TICKS)
    return [
        Figure(
            f"{query}: {peer} to native",
            taken[query, peer].cpu / ours,
            "times the processors'",
            goal,
            details=details if peer == "python" else {},
        )
        for peer, goal in zip(("python", "Parquet"), goals, strict=True)
    ]
