"""What PySpark finds by itself: it imports every `pyspark_*` module and takes its `DefaultSource`.

An error here would disable all sources of that session, so without what the source needs there is
no `DefaultSource`, and `pagequeue.spark.register` says what is missing.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from pagequeue.spark.source import PageQueueSource as DefaultSource

    __all__ = ["DefaultSource"]
