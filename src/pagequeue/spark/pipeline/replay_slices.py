"""Where a replay's slices begin: at hours, and inside an hour that holds too much for one slice.

The names of files give the number of messages in an hour, no finer. So the hours that are over the
limit are counted by minute, the minutes that still are by second, and so on to the nanosecond; what
has one time is cut by queue and sequence. Each count reads only what is over the limit, and returns
to the driver only a row for each part of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as f

from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.replay_plan import Cut, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

SECOND_NS: Final = 10**9
WIDTHS_NS: Final = (
    table_layout.HOUR_NS,
    60 * SECOND_NS,
    SECOND_NS,
    10**7,
    10**5,
    10**3,
    10,
    1,
)
"""Each divides the one before it."""
TIME: Final = "timestamp_ns"


class Limit(NamedTuple):
    """What one slice should not exceed.

    Attributes:
        messages: how many.
        size_bytes: of their payloads.
    """

    messages: int
    size_bytes: int

    def is_over(self, unit: Unit) -> bool:
        """Whether a unit holds more."""
        return unit.messages > self.messages or unit.size_bytes > self.size_bytes


def divided(rows: DataFrame, hours: Iterable[Unit], limit: Limit) -> list[Unit]:
    """Return units of which none is over the limit, unless it is one message.

    Args:
        rows: of these hours.
        hours: that are over it.
        limit: of a slice.
    """
    found: list[Unit] = []
    over = list(hours)
    for width, finer in pairwise(WIDTHS_NS):
        if not over:
            return found
        counted = _inside(rows, over, width).groupBy(_floor(finer).alias("begin"))
        parts = [
            Unit(Cut(row["begin"]), row["number"], row["size"])
            for row in counted.agg(*_amount()).collect()
        ]
        over = [part for part in parts if limit.is_over(part)]
        found += [part for part in parts if not limit.is_over(part)]
    return found + _by_sequence(rows, over, limit)


def _floor(width: int) -> Column:
    return f.col(TIME) - f.col(TIME) % width


def _inside(rows: DataFrame, units: list[Unit], width: int) -> DataFrame:
    """Return the rows of units of one width; the bounds let Parquet leave out what is not read."""
    begins = [unit.begin.time - unit.begin.time % width for unit in units]
    near = rows.where((f.col(TIME) >= min(begins)) & (f.col(TIME) < max(begins) + width))
    return near.where(_floor(width).isin(begins))


def _amount() -> list[Column]:
    return [f.count("*").alias("number"), f.sum(f.length("payload")).alias("size")]


def _by_sequence(rows: DataFrame, over: list[Unit], limit: Limit) -> list[Unit]:
    """Divide what has one time."""
    if not over:
        return []
    bounds = [f.min("sequence").alias("first"), f.max("sequence").alias("last")]
    counted = _inside(rows, over, 1).groupBy(TIME, "queue").agg(*_amount(), *bounds)
    found = []
    for row in counted.collect():
        parts = max(-(-row["number"] // limit.messages), -(-row["size"] // limit.size_bytes), 1)
        step = -(-(row["last"] + 1 - row["first"]) // parts)
        messages, size_bytes = row["number"] // parts, row["size"] // parts
        found += [
            Unit(Cut(row[TIME], row["queue"], first), messages, size_bytes)
            for first in range(row["first"], row["last"] + 1, step)
        ]
    return found
