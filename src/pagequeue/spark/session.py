"""A session with the settings for this source, its registration, reads, and gaps of a table.

The settings must be made before the session starts: then data goes through Unix sockets, which
takes a third less time than TCP, and in larger batches.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from pagequeue import errors
from pagequeue.spark.columns import schema_of
from pagequeue.spark.java import find_java
from pagequeue.spark.native import reader as native
from pagequeue.spark.native.building import NotCompiled
from pagequeue.spark.options import place_options, read_options
from pagequeue.spark.source import NAME, PageQueueSource, dtype_of, inferred
from pagequeue.util.timestamps import system_clock as now
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from pagequeue.util.timestamps import TimeLike

log: logging.Logger = logging.getLogger("pagequeue")
SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
}
"""Defaults; settings of the caller take precedence."""


def session(
    name: str = "pagequeue", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that knows `format("pagequeue")`; the one that runs, if one does.

    Args:
        name: of the application.
        master: of the cluster; None: that of spark-submit or the environment, else `local[*]`.
        settings: more of Spark's own.

    Raises:
        WrongJava: Java is missing, too old or trimmed; the remedy names what to install.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkSession.getActiveSession() is None and not os.environ.get("PYSPARK_GATEWAY_PORT"):
        os.environ["JAVA_HOME"] = find_java().home
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("pagequeue")` known to a session, and the session to the calling thread.

    Spark 4 resolves the format of a write in the session that is active in the calling thread, and
    a thread that did not create the session has none.
    """
    spark.dataSource.register(PageQueueSource)
    machine = getattr(spark, "_jvm", None)  # a session of Spark Connect has none
    if machine is not None:
        machine.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - the only access


def read(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    since: TimeLike | str | None = None,
    until: TimeLike | str | None = None,
    **options: object,
) -> DataFrame:
    """Return queues as a table.

    Args:
        spark: a session; the source is registered.
        path: of a queue's directory, a glob of them, or several of either.
        columns: those that are wanted: what the others need is not read. None: all.
        since: only messages that are not older: int ns, aware datetime, timedelta ago, or a text:
            `10m`, ISO 8601 with its zone.
        until: only messages before the first that is not older.
        options: as for `format("pagequeue")`; and `reader="native"`: pages are read in the JVM,
            filters on `queue`, `sequence` and the times become ranges, and `count`, `min` and `max`
            of them read no payload. `reader="auto"` is the native reader where it can read this,
            and "python", the default, where it cannot: the log says which, and why, and
            `explain()` shows which, and what is pushed down. What a query does not read is not
            checked: `count` sees no damage, with `check="all"` it reads and checks every frame.

    Raises:
        InvalidOption: a column or an option is unknown, or the native reader is asked for what it
            does not know. QueueNotFound: no queue matches.
        DtypeMismatch: the queues have different dtypes.

    Example:
        >>> read(spark, "events", reader="native").where("sequence < 3").count()
    """
    register(spark)
    several = not isinstance(path, str | os.PathLike)
    paths = [os.fspath(one) for one in path] if several else [os.fspath(path)]  # type: ignore[union-attr,arg-type]
    given = {name: str(value) for name, value in options.items()}
    for name, bound in (("since", since), ("until", until)):
        if bound is not None:
            if not isinstance(bound, str):
                bound = str(max(to_ns(bound, now, name=name), 0))  # noqa: PLW2901 - as text
            given[name] = bound
    place = {**given, "paths": json.dumps(paths)}
    if any(name.lower() == "reader" for name in given):
        wanted = read_options(place, streaming=False).reader  # what is wrong anywhere is told now
    else:
        wanted = "python"
    if wanted != "python":
        chosen = _native(spark, place, columns)
        if not isinstance(chosen, str):
            log.info("%s: read by the native reader", ", ".join(paths))
            return chosen
        if wanted == "native":
            raise errors.InvalidOption(
                f"the native reader cannot read this: {chosen}",
                remedy='give reader="python", or "auto"',
            )
        log.info("%s: read by the Python source: %s", ", ".join(paths), chosen)
    reader = spark.read.format(NAME).options(**given)
    if columns is not None:
        reader = reader.schema(inferred(place_options(place), columns))
    return reader.load(paths if several else paths[0])


def _native(
    spark: SparkSession, given: dict[str, str], columns: Sequence[str] | None
) -> DataFrame | str:
    """Return what the native reader reads, or why it cannot."""
    dtype = dtype_of(place_options(given))
    schema = schema_of(columns, dtype)
    why = native.cannot(spark, given, native.column_specs(dtype), schema)
    if why is not None:
        return f"it {why}"
    try:
        return native.frame(spark, given, dtype, schema)
    except NotCompiled as error:
        return str(error)


def gaps(frame: DataFrame) -> DataFrame:
    """Return the runs of sequences that are missing between those of a table.

    Args:
        frame: with the columns `queue` and `sequence`, each message once.

    Returns:
        columns `queue`, `first` (the first missing sequence), `end` (exclusive) and `count`.

    Example:
        >>> gaps(spark.read.parquet("table")).show()
    """
    before = f.lag("sequence").over(Window.partitionBy("queue").orderBy("sequence")) + 1
    found = frame.select("queue", before.alias("first"), f.col("sequence").alias("end"))
    return found.where("first < end").withColumn("count", f.col("end") - f.col("first"))
