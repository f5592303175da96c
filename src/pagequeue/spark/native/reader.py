"""Whether the native reader can read what is asked for, and its set-up in a session."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pagequeue.spark.columns import own_name
from pagequeue.spark.native.building import jar
from pagequeue.spark.native.planner import Planner, given_text
from pagequeue.spark.options import read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log: logging.Logger = logging.getLogger("pagequeue")
FORMAT: Final = "pagequeue.Source"
OWN: Final = {
    "queue": "q", "sequence": "s", "timestamp": "m", "timestamp_ns": "t", "payload": "p",
}  # fmt: skip
"""Our own columns, as the Java side calls them."""
NUMBERS: Final = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "f4", "f8"}
"""The fields of records that it knows."""
_planner = Planner()
_ready: set[str] = set()
"""The applications whose JVM has the classes."""


def cannot(
    spark: SparkSession, options: Mapping[str, str], specs: Mapping[str, str], schema: StructType
) -> str | None:
    """Return why the native reader cannot read this, after "it"; None: it can."""
    if getattr(spark, "_jvm", None) is None:
        return "needs a session with a JVM of its own (this is Spark Connect)"
    for name in ("onDamage", "onExpired"):
        given = {key.lower(): value for key, value in options.items()}
        if given.get(name.lower()) == "skip":
            return f"does not know {name}=skip"
    unknown = [field.name for field in schema.fields if field.name not in specs]
    return f"does not know the type of the column {unknown[0]!r}" if unknown else None


def column_specs(dtype: np.dtype[np.void] | None) -> dict[str, str]:
    """Return the columns that the Java side can make of queues of a dtype, as it calls them.

    A field is its kind and size, its byte order and its place in the record.

    Example:
        >>> column_specs(numpy.dtype([("id", ">u4"), ("text", "U5")]))["id"]
        'u4>0'
    """
    specs = {own_name(name, dtype): spec for name, spec in OWN.items()}
    if dtype is None or dtype.fields is None:
        return specs
    for name, (field, offset, *_) in dtype.fields.items():
        code = f"{field.kind}{field.itemsize}"
        if field.subdtype is None and field.names is None and code in NUMBERS:
            order = ">" if field.byteorder == ">" else "<"
            specs[name] = f"{code}{order}{offset}"
    return specs


def frame(
    spark: SparkSession,
    options: dict[str, str],
    dtype: np.dtype[np.void] | None,
    schema: StructType,
) -> DataFrame:
    """Return queues as a table that the native reader reads.

    Raises:
        NotCompiled: the session cannot compile its classes.
    """
    prepare(spark)
    specs = column_specs(dtype)
    columns = " ".join(f"{quote(name, safe='')}:{spec}" for name, spec in specs.items())
    reader = spark.read.format(FORMAT).schema(schema)
    reader = reader.option("given", given_text(options, dtype)).option("columns", columns)
    checks_all = read_options(options, streaming=False).checks_all
    reader = reader.option("checksAll", checks_all)
    return reader.option("recordBytes", 0 if dtype is None else dtype.itemsize).load()


def prepare(spark: SparkSession) -> None:
    """Give a session's JVM the classes, and the calling thread the way to them."""
    application = spark.sparkContext.applicationId
    machine: Any = spark._jvm  # noqa: SLF001 - the only access
    session: Any = spark._jsparkSession  # noqa: SLF001 - the same
    is_new = application not in _ready
    if is_new:
        session.sessionState().resourceLoader().addJar(jar(spark))
    # Another thread of Python is another one in the JVM, which looks elsewhere for classes.
    loader = session.sharedState().jarClassLoader()
    machine.java.lang.Thread.currentThread().setContextClassLoader(loader)
    if is_new:
        from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415 - no Connect

        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the same
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        machine.pagequeue.Planner.set(_planner)
        _ready.add(application)
