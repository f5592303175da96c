"""`reading`: a table whose hours are not compacted while it is read."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.directories import lock_on

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT: Final = 60.0
"""Seconds; compaction holds the lock for as long as some renames take."""


@contextlib.contextmanager
def reading(table: str | os.PathLike[str]) -> Iterator[None]:
    """Postpone compaction of an archive's table, so that any reader sees each row once.

    Compaction exchanges an hour's directory. A reader that lists the old one and looks at its files
    by path after that, as pyarrow and Spark do, leaves them out and misses the hour. Messages still
    arrive in the meantime. `replay` and `profile` hold this while they read.

    Args:
        table: its path. One without the file of this lock, such as a copy, is not compacted.

    Raises:
        LockTimeout: no lock in 60 s.

    Example:
        >>> with pipeline.reading("table"):
        ...     rows = pyarrow.parquet.read_table("table")
    """
    path = table_layout.work_path(os.fspath(table), table_layout.READERS)
    try:
        lock = lock_on(path, writable=False)
    except FileNotFoundError:
        yield
        return
    with contextlib.closing(lock):
        lock.share(LOCK_TIMEOUT)
        yield
