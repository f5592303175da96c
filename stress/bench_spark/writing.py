"""Writing a table to a queue, compared with a naive sink and Parquet."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import Queue
from stress.bench.turns import seconds_of
from stress.bench_consumers.case import Figure
from stress.bench_spark import shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

SHARE = 8
"""One message is written of so many that are read."""
NAIVE_SHARE = 8
NAIVE_GOAL, PARQUET_GOAL = 5.0, 3.0


def rows(count: int, payload_bytes: int) -> DataFrame:
    """Return payloads that cost little to make."""
    text = f"rpad(cast(id as string), {payload_bytes}, 'x')"
    return shared.session().range(0, count, 1, 4).selectExpr(f"cast({text} as binary) payload")


def writes(base: Path, *, quick: bool, payload_bytes: int) -> list[Figure]:
    """The same rows to a queue at once, to a queue row by row, and to Parquet."""
    count = shared.messages(payload_bytes, quick=quick) // SHARE
    frame = rows(count, payload_bytes)
    few = rows(max(1000, count // NAIVE_SHARE), payload_bytes)

    def ours(sink: str) -> None:
        shutil.rmtree(base / "queue", ignore_errors=True)
        writer = frame.write.format("pagequeue").mode("append").option("sink", sink)
        writer.save(str(base / "queue"))

    def parquet() -> None:
        frame.write.mode("overwrite").option("compression", "none").parquet(str(base / "parquet"))

    def naive() -> None:
        few.write.format("naive").mode("append").save(str(base / "naive"))

    def nowhere() -> None:
        frame.write.format("noop").mode("overwrite").save()

    ways: dict[str, Callable[[], None]] = {
        "ours": partial(ours, "native"),
        "ours, by Python's tasks": partial(ours, "python"),
        "Parquet": parquet,
        "making the rows": nowhere,
    }
    took = shared.seconds(ways, quick=quick)
    Queue(base / "naive").close()
    slow = seconds_of(naive) * count / few.count()
    with Queue(base / "queue", read_only=True) as queue:
        assert len(queue) == count, f"{len(queue)} rows of {count}"
    details = {
        name: f"{count / seconds / 1e3:,.0f} thousand rows/s" for name, seconds in took.items()
    }
    details["naive"] = f"{count / slow / 1e3:,.0f} thousand rows/s"
    return [
        Figure(
            "to a row at a time", slow / took["ours"], "times as fast", NAIVE_GOAL, details=details
        ),
        Figure(
            "to Parquet",
            took["ours"] / took["Parquet"],
            "times its time",
            PARQUET_GOAL,
            is_bound=True,
        ),
    ]
