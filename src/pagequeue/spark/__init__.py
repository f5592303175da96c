"""Queues as Spark's tables and streams: `format("pagequeue")`. The extra `spark`.

    spark = pagequeue.spark.session()
    spark.read.format("pagequeue").load("events").count()

Importing this needs pyspark and pyarrow, and starts nothing.
"""

from __future__ import annotations

import importlib.util

from pagequeue.errors import MissingExtra

for _name in ("pyspark", "pyarrow"):
    if importlib.util.find_spec(_name) is None:
        raise MissingExtra(
            f"pagequeue.spark needs {_name}, which is not installed: pip install "
            "'pagequeue[spark]'",
            extra="spark",
        )

from pagequeue.spark.gaps import gaps
from pagequeue.spark.java import find_java
from pagequeue.spark.session import read, register, session
from pagequeue.spark.source import PageQueueSource

__all__ = ["PageQueueSource", "find_java", "gaps", "read", "register", "session"]
