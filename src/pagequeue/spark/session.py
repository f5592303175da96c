"""A session with the settings for this source, its registration, reads, and gaps of a table.

The settings must be made before the session starts: then data goes through Unix sockets, which
takes a third less time than TCP, and in larger batches.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from pagequeue.spark.columns import schema_of
from pagequeue.spark.java import find_java
from pagequeue.spark.native import reader as native
from pagequeue.spark.native.choosing import cannot, refused
from pagequeue.spark.options import read_options
from pagequeue.spark.source import PageQueueSource, dtype_of
from pagequeue.util.timestamps import system_clock as now
from pagequeue.util.timestamps import to_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pagequeue.spark.options import ReadOptions
    from pagequeue.util.timestamps import TimeLike

SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
}
"""Defaults of a new session; settings of the caller take precedence."""


def session(
    name: str = "pagequeue", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a Spark session that knows `format("pagequeue")`; the one that runs, if one does.

    One that runs keeps its settings, but for those that are given.

    Args:
        name: of the application.
        master: of the cluster; None: that of spark-submit or the environment, else `local[*]`.
        settings: more of Spark's own.

    Raises:
        WrongJava: Java is missing, too old or trimmed; the remedy names what to install.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    running = SparkSession._instantiatedSession  # noqa: SLF001 - `getActiveSession` is a thread's
    is_new = running is None or running.sparkContext._jsc is None  # noqa: SLF001 - it was stopped
    is_submitted = bool(os.environ.get("PYSPARK_GATEWAY_PORT"))
    if is_new and not is_submitted:
        os.environ["JAVA_HOME"] = find_java().home
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    defaults: dict[str, str] = SETTINGS if is_new else {}
    if is_new and is_submitted:
        defaults = {**defaults, **_submitted()}
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _submitted() -> dict[str, str]:
    """Return what spark-submit, which started the JVM, was told of our settings."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - as making a session does
    return {key: value for key, value in SparkConf().getAll() if key in SETTINGS}


def register(spark: SparkSession) -> None:
    """Make `format("pagequeue")` known to a session, and the session to the calling thread.

    Spark 4 resolves the format of a write in the session that is active in the calling thread, and
    a thread that did not create the session has none.
    """
    _register(spark)


def _register(spark: SparkSession) -> str:
    """Register the source; return why the native reader cannot read, empty: it can."""
    spark.dataSource.register(PageQueueSource)
    machine = getattr(spark, "_jvm", None)  # a session of Spark Connect has none
    if machine is not None:
        machine.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - the only access
    return native.prepare(spark)


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
        options: as for `format("pagequeue")`. `reader="auto"`, the default, reads pages in the JVM
            where the native reader can read this, and with "python", the Python source, where it
            cannot: the log says which, and why, and `explain()` shows which, and what is pushed
            down. `check="columns"`, the default, reads and checks what the columns need, in
            `count()` too: with `payload` among them each frame. `check="used"` does so for what the
            query uses: then `count`, `min` and `max` of sequence and times read no payload, and
            notice no damage.

    Raises:
        InvalidOption: a column or an option is unknown, or the native reader is asked for what it
            does not know. DtypeMismatch: the queues have different dtypes.

    Example:
        >>> read(spark, "events").where("sequence < 3").count()
    """
    why = _register(spark)
    several = not isinstance(path, str | os.PathLike)
    paths = [os.fspath(one) for one in path] if several else [os.fspath(path)]  # type: ignore[union-attr,arg-type]
    given = {name: str(value) for name, value in options.items()}
    for name, bound in (("since", since), ("until", until)):
        if bound is not None:
            if not isinstance(bound, str):
                bound = str(max(to_ns(bound, now, name=name), 0))  # noqa: PLW2901 - as text
            given[name] = bound
    wanted = read_options({**given, "paths": json.dumps(paths)}, streaming=False)
    dtype = dtype_of(wanted)
    schema = schema_of(columns, dtype)
    _check_reader(wanted, schema, dtype, why)
    reader = spark.read.format(native.FORMAT).options(**given).schema(schema)
    return reader.load(paths if several else paths[0])


def read_stream(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    **options: object,
) -> DataFrame:
    """Return queues as a stream.

    Args:
        spark: a session; the source is registered.
        path: of a queue's directory, a glob of them, or several of either; queues that match later
            join.
        columns: those that are wanted: what the others need is not read. None: all.
        options: of a stream, as for `readStream.format("pagequeue")`. `reader="auto"`, the default,
            reads pages in the JVM where the native reader can read this, and with "python", the
            Python source, where it cannot: the log says which, and why, and the query's progress
            names it as the source. Offsets are the same, so a query continues from a
            checkpoint of the other reader.

    Raises:
        InvalidOption: a column or an option is unknown, or the native reader is asked for what it
            does not know. DtypeMismatch: the queues have different dtypes.

    Example:
        >>> stream = read_stream(spark, "events", consumer="copier")
        >>> query = stream.writeStream.format("parquet").start("table")
    """
    paths = [path] if isinstance(path, str | os.PathLike) else path
    given = {name: str(value) for name, value in options.items()}
    given["paths"] = json.dumps([_absolute(os.fspath(one)) for one in paths])
    dtype = dtype_of(read_options(given, streaming=True))
    return stream_of(spark, given, schema_of(columns, dtype), dtype)


def stream_of(
    spark: SparkSession,
    given: dict[str, str],
    schema: StructType,
    dtype: np.dtype[np.void] | None = None,
) -> DataFrame:
    """Return queues as a stream of these columns.

    Args:
        spark: a session; the source is registered.
        given: the options, as text; `paths` among them.
        schema: the columns.
        dtype: that has the fields among them.

    Raises:
        InvalidOption: an option is unknown, or the native reader is asked for what it does not
            know.
    """
    why = _register(spark)
    _check_reader(read_options(given, streaming=True), schema, dtype, why)
    return spark.readStream.format(native.FORMAT).schema(schema).options(**given).load()


def _check_reader(
    wanted: ReadOptions, schema: StructType, dtype: np.dtype[np.void] | None, why: str
) -> None:
    """Raise InvalidOption if only the native reader is to read, and cannot."""
    why = why or cannot(wanted, schema, [dtype])
    if wanted.reader == "native" and why:
        raise refused(why)


def _absolute(path: str) -> str:
    """Return a path that means the same when the process changes its directory."""
    return path if path.startswith("file:") else os.path.abspath(path)


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
