"""The columns of `format("pagequeue")`: their types, what each needs, and how it is built.

A column that nobody asked for is not built, and what it needs is not read: without `payload` no
payload is touched, and without the times no page is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


class Need(IntEnum):
    """What must be read for a column; each includes those before it."""

    NOTHING = 0
    TIMES = 1
    PAYLOADS = 2


class Rows(NamedTuple):
    """Consecutive messages of one queue, as far as they were read.

    Attributes:
        name: of the queue.
        first: their first sequence.
        size: how many there are.
        timestamps: ns since 1970, int64, shape (size,); empty when nobody needs them.
        payloads: an Arrow array of type binary; None when nobody needs them.
    """

    name: str
    first: int
    size: int
    timestamps: NDArray[np.int64]
    payloads: Any


class Column(NamedTuple):
    """One column: its type in Spark and in Arrow, what it needs, and what makes it of rows."""

    kind: DataType
    arrow: Any
    need: Need
    build: Callable[[Rows], Any]


def _name(rows: Rows) -> Any:  # noqa: ANN401 - pyarrow is not typed
    return pa.repeat(pa.scalar(rows.name, pa.string()), rows.size)


def _sequence(rows: Rows) -> Any:  # noqa: ANN401 - the same
    return pa.array(np.arange(rows.first, rows.first + rows.size, dtype=np.int64))


def _timestamp(rows: Rows) -> Any:  # noqa: ANN401 - the same
    return pa.array(rows.timestamps // 1000).cast(pa.timestamp("us", "UTC"))


def _timestamp_ns(rows: Rows) -> Any:  # noqa: ANN401 - the same
    return pa.array(rows.timestamps)


def _payload(rows: Rows) -> Any:  # noqa: ANN401 - the same
    return rows.payloads


COLUMNS: Final[dict[str, Column]] = {
    "queue": Column(StringType(), pa.string(), Need.NOTHING, _name),
    "sequence": Column(LongType(), pa.int64(), Need.NOTHING, _sequence),
    "timestamp": Column(TimestampType(), pa.timestamp("us", "UTC"), Need.TIMES, _timestamp),
    "timestamp_ns": Column(LongType(), pa.int64(), Need.TIMES, _timestamp_ns),
    "payload": Column(BinaryType(), pa.binary(), Need.PAYLOADS, _payload),
}


def schema_of(names: Sequence[str] = tuple(COLUMNS)) -> StructType:
    """Return the schema of these columns, in this order.

    Raises:
        InvalidOption: one of them is not known.
    """
    return StructType([StructField(name, _known(name).kind) for name in names])


def _known(name: str) -> Column:
    column = COLUMNS.get(name)
    if column is None:
        raise errors.InvalidOption(
            f"there is no column {name!r}: take some of {', '.join(COLUMNS)}"
        )
    return column


class Table:
    """The columns that a read asked for, by the schema that Spark hands on.

    Args:
        schema: the default one, or the user's: some of the columns, in any order.

    Raises:
        InvalidOption: a column is not known, or has another type.
    """

    def __init__(self, schema: StructType) -> None:
        for field in schema.fields:
            wanted = _known(field.name).kind
            if field.dataType != wanted:
                raise errors.InvalidOption(
                    f"column {field.name!r} has type {wanted.simpleString()}, not "
                    f"{field.dataType.simpleString()}: give that, and cast behind the read"
                )
        self._fields = [(field.name, field.nullable) for field in schema.fields]
        columns = [COLUMNS[name] for name, _ in self._fields]
        self.need = max((column.need for column in columns), default=Need.NOTHING)

    def batch(self, rows: Rows) -> Any:  # noqa: ANN401 - pyarrow is not typed
        """Return rows as a record batch of exactly Spark's schema."""
        columns = [(name, nullable, COLUMNS[name]) for name, nullable in self._fields]
        schema = pa.schema([pa.field(name, c.arrow, nullable) for name, nullable, c in columns])
        return pa.RecordBatch.from_arrays([c.build(rows) for _, _, c in columns], schema=schema)
