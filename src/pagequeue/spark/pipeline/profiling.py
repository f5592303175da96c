"""`profile`: rates, sizes, gaps, lags, and what is missing, late or there twice, of any queues.

Tasks count, and only counts reach the driver: one pass without sort or shuffle. Where
runs of a queue overlap, or times go back between two of them, the rows of that queue alone are
looked at again, in order. In one queue neither happens; in a table it does when somebody has put
files there.
"""

from __future__ import annotations

import contextlib
import json
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from pagequeue import errors
from pagequeue.profile.counts import Run, bin_width
from pagequeue.profile.figures import Profile, QueueProfile, joined, summed
from pagequeue.spark.columns import own_names
from pagequeue.spark.error_text import raise_own
from pagequeue.spark.options import place_options, read_options
from pagequeue.spark.path_glob import open_each
from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.profile_counts import (
    LISTS,
    RUN_NUMBERS,
    SCHEMA,
    bins_of,
    counting,
)
from pagequeue.spark.pipeline.progress import watched
from pagequeue.spark.pipeline.reading import reading
from pagequeue.spark.pipeline.replaying import COLUMNS, Bound
from pagequeue.spark.session import read
from pagequeue.spark.source import dtypes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from pagequeue.util.timestamps import TimeLike

NEEDED: Final = ("queue", "sequence", "timestamp_ns", "payload")
ARCHIVE: Final = "archive"


def profile(
    spark: SparkSession,
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    since: TimeLike | str | None = None,
    until: TimeLike | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: object,
) -> Profile:
    """Return figures of queues, or of the table that `archive` made of them.

    Args:
        spark: a session; the source is registered.
        source: directories of queues, or globs of them; or one table.
        since: only messages that are not older: int ns, aware datetime, timedelta ago, or a text.
        until: only messages before the first that is not older.
        progress: told how many tasks are done, of how many.
        options: of the read, for queues: `prefix`, `trust`, `onDamage`, `onExpired`,
            `partitionBytes`, `reader`: "auto" by default.

    Raises:
        QueueNotFound: no queue matches. DamageError: a page is damaged.
    """
    given = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths = [os.path.abspath(os.fspath(path)) for path in given]
    is_table = len(paths) == 1 and _is_table(paths[0])
    with reading(paths[0]) if is_table else contextlib.nullcontext():
        if is_table:
            if options:
                raise errors.InvalidOption(f"a table has no option {min(options)!r}: leave it out")
            rows = _within(spark.read.schema(COLUMNS).parquet(paths[0]), since, until)
            lags = _table_lags(paths[0])
        else:
            named = {name: str(value) for name, value in options.items()}
            dtypes = dtypes_of(place_options({**named, "paths": json.dumps(paths)}))
            columns = own_names(NEEDED, dtypes)
            rows = read(spark, paths, columns=columns, since=since, until=until, **options)
            rows = rows.toDF(*NEEDED)
            lags = _queue_lags(paths, options)
        try:
            with watched(spark, progress):
                counted = _count(rows)
        except Exception as error:
            raise_own(error)
            raise
    for queue, found in lags.items():
        counted.setdefault(queue, QueueProfile(queue)).lags = found
    return summed(counted)


def _is_table(path: str) -> bool:
    if table_layout.is_table(path):
        return True
    return os.path.isdir(path) and any(n.startswith("queue=") for n in os.listdir(path))


def _within(
    rows: DataFrame, since: TimeLike | str | None, until: TimeLike | str | None
) -> DataFrame:
    """Return the rows of a table that are between two times."""
    first, last = Bound.of(since, "since").ns, Bound.of(until, "until").ns
    if first is not None:
        rows = rows.where(f.col("timestamp_ns") >= first)
    return rows if last is None else rows.where(f.col("timestamp_ns") < last)


def _table_lags(table: str) -> dict[str, dict[str, int]]:
    """Return how many messages queues on this host have after those of the table."""
    lags: dict[str, dict[str, int]] = {}
    for name, queue_directory in table_layout.queues(table).items():
        directory, _, prefix = name.partition("#")
        options = {"path": directory, **({"prefix": prefix} if prefix else {})}
        try:
            end = table_layout.last_end(table, queue_directory)
            for _, queue in open_each(read_options(options, streaming=False)):
                lags[name] = {ARCHIVE: max(0, queue.tail_sequence - end)}
        except errors.PageQueueError:
            continue  # it is another host's, or gone, or others have put files there
    return lags


def _queue_lags(paths: list[str], options: dict[str, object]) -> dict[str, dict[str, int]]:
    """Return the lags of named consumers and groups."""
    lags = {}
    for path in paths:
        given = {name: str(value) for name, value in options.items()}
        for found, queue in open_each(read_options({"path": path, **given}, streaming=False)):
            lags[found.name] = {c.name: c.lag for c in queue.consumers() if c.lag is not None}
    return lags


# --- counting -------------------------------------------------------------------------------------


def _count(rows: DataFrame) -> dict[str, QueueProfile]:
    """Return what tasks counted, put together."""
    (bounds,) = rows.agg(f.min("timestamp_ns"), f.max("timestamp_ns")).collect()
    start, last = bounds
    if start is None:
        return {}
    bin_ns = bin_width(start, last)
    columns = ("queue", "sequence", "timestamp_ns", f.octet_length("payload").alias("size"))
    counted = rows.select(*columns).mapInArrow(counting(start, bin_ns), SCHEMA).toArrow()
    profiles, again = together(counted, start, bin_ns)
    if again:
        _count_in_order(rows.where(f.col("queue").isin(again)), profiles)
    return profiles


def together(
    counted: Any,  # noqa: ANN401 - pyarrow is not typed
    start: int,
    bin_ns: int,
) -> tuple[dict[str, QueueProfile], list[str]]:
    """Put together what tasks counted.

    Args:
        counted: their rows, an Arrow table.
        start: of the first bin of time, ns since 1970.
        bin_ns: the width of a bin.

    Returns:
        Queues by name, and the names of those whose rows have to be looked at in order.
    """
    profiles: dict[str, QueueProfile] = {}
    runs: dict[str, list[Run]] = {}
    numbers = {name: _lists(counted, name) for name in LISTS}
    heads = zip(*(counted.column(n).to_pylist() for n in range(3)), strict=True)
    for row, (queue, messages, payload_bytes) in enumerate(heads):
        one = profiles.setdefault(queue, QueueProfile(queue))
        one.messages += messages
        one.payload_bytes += payload_bytes
        one.times.start, one.times.bin_ns = start, bin_ns
        one.times.messages += numbers["times"][row]
        one.times.payload_bytes += numbers["time_bytes"][row]
        one.sizes.merge(bins_of(numbers["sizes"][row]))
        one.gaps.merge(bins_of(numbers["gaps"][row]))
        found = numbers["runs"][row].reshape(-1, RUN_NUMBERS).tolist()
        runs.setdefault(queue, []).extend(Run(*run) for run in found)
    return profiles, [name for name, found in runs.items() if not joined(profiles[name], found)]


def _lists(table: Any, name: str) -> list[Any]:  # noqa: ANN401 - pyarrow is not typed
    """Return the lists of a column as arrays."""
    column = table.column(name).combine_chunks()
    ends = column.offsets.to_numpy(zero_copy_only=False)
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[a:b] for a, b in pairwise(ends)]


def _count_in_order(rows: DataFrame, profiles: dict[str, QueueProfile]) -> None:
    """Count what needs all rows of a queue in order."""
    order = Window.partitionBy("queue").orderBy("sequence", "timestamp_ns")
    before = f.max("timestamp_ns").over(order.rowsBetween(Window.unboundedPreceding, -1))
    is_late = (f.col("timestamp_ns") < before).cast("int")
    is_again = (f.col("sequence") == f.lag("sequence").over(order)).cast("int")
    marked = rows.select("queue", is_late.alias("late"), is_again.alias("again"))
    for queue, late, again in marked.groupBy("queue").agg(f.sum("late"), f.sum("again")).collect():
        one = profiles[queue]
        assert one.first_sequence is not None
        assert one.last_sequence is not None
        one.late, one.duplicates = late or 0, again or 0
        span = one.last_sequence - one.first_sequence + 1
        one.missing = span - (one.messages - one.duplicates)
