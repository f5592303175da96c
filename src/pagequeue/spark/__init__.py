"""Queues as Spark's tables and streams: `format("pagequeue")`. The extra `spark`.

    spark = pagequeue.spark.session()
    spark.read.format("pagequeue").load("events").count()

Importing this needs pyspark and pyarrow, and starts nothing.
"""

from __future__ import annotations

from pagequeue.errors import MissingExtra

try:
    from pagequeue.spark.gaps import gaps
    from pagequeue.spark.java import find_java
    from pagequeue.spark.session import read, register, session
    from pagequeue.spark.source import PageQueueSource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"pyspark", "pyarrow"}:
        raise
    raise MissingExtra(
        f"pagequeue.spark needs {error.name}, which is not installed: pip install "
        "'pagequeue[spark]'",
        extra="spark",
    ) from error

__all__ = ["PageQueueSource", "find_java", "gaps", "read", "register", "session"]
