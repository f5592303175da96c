"""What a table lacks: the sequences between those that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def gaps(frame: DataFrame) -> DataFrame:
    """Return the runs of messages that are missing between those of a table.

    Args:
        frame: with the columns `queue` and `sequence`, each message once.

    Returns:
        columns `queue`, `first` and `end`, sequences from the first that is missing to behind the
        last, and `count`.
    """
    before = f.lag("sequence").over(Window.partitionBy("queue").orderBy("sequence")) + 1
    found = frame.select("queue", before.alias("first"), f.col("sequence").alias("end"))
    return found.where("first < end").withColumn("count", f.col("end") - f.col("first"))
