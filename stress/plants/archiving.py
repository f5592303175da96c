"""A bug planted in the replay of an archive, where Spark is installed."""

from __future__ import annotations

import contextlib

from stress.plants.plant import ARCHIVE, in_python
from stress.plants.rewrite import rewrite

ARCHIVING = (
    in_python(
        "hour_is_one_slice",
        "an hour of a table is one slice of its replay, however large",
        "limits",
        {ARCHIVE: 30.0},
    ),
)


def hour_is_one_slice() -> None:
    """No row is over the limit."""
    with contextlib.suppress(ImportError):  # pyspark: the campaign reports it
        from pagequeue.spark.pipeline import replay_slices  # noqa: PLC0415 - the extra

        old = "return unit.messages > self.messages or unit.size_bytes > self.size_bytes"
        rewrite(replay_slices.Limit, "is_over", (old, "return False"))
