"""Queues as Spark's tables and streams: `format("pagequeue")`. The extra `spark`.

    spark = pagequeue.spark.session()
    spark.read.format("pagequeue").load("events").count()

Importing this needs pyspark and pyarrow, and starts no JVM.
"""

from __future__ import annotations

from pagequeue.errors import MissingExtra
from pagequeue.util.optional import install_command

try:
    from pagequeue.spark.error_text import typed_errors
    from pagequeue.spark.java import find_java
    from pagequeue.spark.session import gaps, read, read_stream, register, session
    from pagequeue.spark.source import PageQueueSource
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] not in {"pyspark", "pyarrow"}:
        raise
    raise MissingExtra(
        f"pagequeue.spark needs {_error.name}, which is not installed",
        extra="spark",
        remedy=install_command("spark"),
    ) from _error

__all__ = [
    "PageQueueSource",
    "find_java",
    "gaps",
    "read",
    "read_stream",
    "register",
    "session",
    "typed_errors",
]
