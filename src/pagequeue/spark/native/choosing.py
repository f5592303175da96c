"""Which reader reads a table or a stream, decided by the driver when it is first used.

`DefaultSource.java` and `SourceTable.java` ask. A request and its answer are text.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote

from pyspark.sql.types import StructType

from pagequeue import errors
from pagequeue.spark.columns import Table
from pagequeue.spark.native.column_specs import column_specs, same_columns
from pagequeue.spark.options import choosing_options
from pagequeue.spark.source import dtypes_of, inferred

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from pagequeue.spark.options import ReadOptions

log: logging.Logger = logging.getLogger("pagequeue")
OF_SCHEMA: Final = "schema\n"
OF_TABLE: Final = "table\n"
"""How requests begin."""


def cannot(
    options: ReadOptions, schema: StructType, dtypes: Sequence[np.dtype[np.void] | None]
) -> str:
    """Return why the native reader cannot read this; empty: it can."""
    for name, skips in (("onDamage", options.skips_damage), ("onExpired", options.skips_expired)):
        if skips:
            return f"it does not know {name}=skip"
    specs = column_specs(dtypes[0])
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in specs]
    if unknown:
        return f"it does not know the type of the column {unknown[0]!r}"
    if not same_columns({name: specs[name] for name in names}, dtypes):
        return "the queues have these columns in different places"
    return ""


def refused(why: str) -> errors.InvalidOption:
    """Return the error for what only the native reader was to read."""
    return errors.InvalidOption(
        f"the native reader cannot read this: {why}", remedy='give reader="python", or "auto"'
    )


def schema_answer(words: str) -> str:
    """Return the schema of the queues that options mean, as JSON."""
    return inferred(choosing_options(parsed_words(words))).json()


def table_answer(request: str, why: str) -> str:
    """Return what `QueueTable.java` has to know; empty: the Python source is to read.

    Args:
        request: schema and options.
        why: the native reader cannot read at all here; empty: it can.

    Raises:
        InvalidOption: a column is unknown or of another type, or the native reader is asked for
            what it does not know. DtypeMismatch: one is a field in some of the queues only.
    """
    text, _, words = request.partition("\n")
    given, schema = parsed_words(words), StructType.fromJson(json.loads(text))
    options = choosing_options(given)
    paths = ", ".join(options.paths)
    dtypes = dtypes_of(options)
    table = Table(schema)
    for dtype in dtypes:
        table.layout(dtype)  # raises for what no reader can read
    if options.reader == "python":
        why = "the option reader says so"
    why = why or cannot(options, schema, dtypes)
    if not why:
        log.info("%s: read by the native reader", paths)
        return _told(given, options, schema, dtypes[0])
    if options.reader == "native":
        raise refused(why)
    log.info("%s: read by the Python source: %s", paths, why)
    return ""


def parsed_words(words: str) -> dict[str, str]:
    """Return options from text, `name=value&...`, percent-encoded."""
    return dict(parse_qsl(words, keep_blank_values=True))


def _told(
    given: Mapping[str, str],
    options: ReadOptions,
    schema: StructType,
    dtype: np.dtype[np.void] | None,
) -> str:
    specs = column_specs(dtype)
    columns = {field.name: specs[field.name] for field in schema.fields}
    lines = [
        " ".join(f"{quote(name, safe='')}:{spec}" for name, spec in specs.items()),
        str(0 if dtype is None else dtype.itemsize),
        options.check,
        given_text(given, dtype, columns),
    ]
    return "\n".join(lines)


def given_text(given: Mapping[str, str], dtype: object, columns: Mapping[str, str]) -> str:
    """Return what comes back with each request of a table or a stream.

    Args:
        given: the options of the read.
        dtype: of the queues that are there.
        columns: those that are wanted, as the Java side calls them.
    """
    told = {"options": given, "dtype": repr(dtype), "columns": columns}
    return quote(json.dumps(told), safe="")
