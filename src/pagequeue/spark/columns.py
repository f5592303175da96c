"""The columns of `format("pagequeue")`: their types, what each needs, and how it is built.

Columns that the query does not use are not built, and what they need is not read: without `payload`
and fields no payload is read, and without the times no page is. Records have a column for each
field in place of `payload`, which can still be selected. A field keeps its name; our own column of
the same name gets the prefix `queue_`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
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
from pagequeue.columns.arrow import payload_array
from pagequeue.spark.record_columns import column, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch

Dtype = np.dtype[np.void] | None


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
        timestamps: ns since 1970, int64, shape (size,); empty if no column needs them.
        batch: the messages; None if no column needs their payloads.
    """

    name: str
    first: int
    size: int
    timestamps: NDArray[np.int64]
    batch: Batch | None


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
    assert rows.batch is not None
    return payload_array(rows.batch)


def _field(rows: Rows, *, name: str, kind: Any) -> Any:  # noqa: ANN401 - the same
    assert rows.batch is not None
    values = column(rows.batch.to_numpy(), name, kind)
    rows.batch._check_intact()  # noqa: SLF001 - its own package; what was copied was there
    return values


PAYLOAD: Final = "payload"
TIME: Final = "timestamp_ns"
COLUMNS: Final[dict[str, Column]] = {
    "queue": Column(StringType(), pa.string(), Need.NOTHING, _name),
    "sequence": Column(LongType(), pa.int64(), Need.NOTHING, _sequence),
    "timestamp": Column(TimestampType(), pa.timestamp("us", "UTC"), Need.TIMES, _timestamp),
    TIME: Column(LongType(), pa.int64(), Need.TIMES, _timestamp_ns),
    PAYLOAD: Column(BinaryType(), pa.binary(), Need.PAYLOADS, _payload),
}
"""Those of every queue."""


def own_name(name: str, dtype: Dtype) -> str:
    """Return the name of one of our own columns next to the fields of records."""
    fields = () if dtype is None else dtype.names or ()
    while name.casefold() in {field.casefold() for field in fields}:  # as Spark compares
        name = f"queue_{name}"
    return name


def own_names(names: Sequence[str], dtypes: Iterable[Dtype]) -> list[str]:
    """Return what some of our own columns are called in queues of all these dtypes.

    Raises:
        DtypeMismatch: in some of them otherwise, because a field has the name.
    """
    each = {dtype: [own_name(name, dtype) for name in names] for dtype in dtypes}
    found = next(iter(each.values()), list(names))
    for dtype, others in each.items():
        if others != found:
            raise errors.DtypeMismatch(
                f"our columns are called {', '.join(others)} in queues of dtype {dtype}, and "
                f"{', '.join(found)} in others",
                dtype=dtype,
                remedy="read the queues apart",
            )
    return found


def column_of(name: str, dtype: Dtype) -> Column:
    """Return the column of this name that there is for queues of this dtype.

    Raises:
        InvalidOption: the column is unknown. NotEncodable: Spark has no type for that field.
    """
    fields = () if dtype is None else dtype.names or ()
    if dtype is not None and name in fields:
        kind = typed(dtype[name], name)
        build = partial(_field, name=name, kind=kind.arrow)
        return Column(kind.spark, kind.arrow, Need.PAYLOADS, build)
    own = {own_name(known, dtype): found for known, found in COLUMNS.items()}
    if name not in own:
        raise errors.InvalidOption(
            f"unknown column {name!r}", remedy=f"select some of {', '.join([*own, *fields])}"
        )
    return own[name]


def schema_of(names: Sequence[str] | None = None, dtype: Dtype = None) -> StructType:
    """Return the schema of these columns, in this order; None: of all but what is there twice.

    Raises:
        InvalidOption: one of them is not known. NotEncodable: Spark has no type for a field.
    """
    if names is None:
        names = [own_name(name, dtype) for name in COLUMNS if dtype is None or name != PAYLOAD]
        names += () if dtype is None else dtype.names or ()
    return StructType([StructField(name, column_of(name, dtype).kind) for name in names])


class Layout:
    """The columns that a read asked for, in queues of one dtype.

    Args:
        schema: some of the columns, in any order.
        dtype: of the queues; None: messages are of any size.
        least: what is read in any case.

    Attributes:
        need: what must be read.
        fields: the columns that are fields of records.

    Raises:
        InvalidOption: a column is not known, or has another type.
    """

    def __init__(self, schema: StructType, dtype: Dtype, least: Need = Need.NOTHING) -> None:
        self._columns: list[Column] = []
        fields = []
        for field in schema.fields:
            found = column_of(field.name, dtype)
            if field.dataType != found.kind:
                raise errors.InvalidOption(
                    f"column {field.name!r} has type {found.kind.simpleString()}, not "
                    f"{field.dataType.simpleString()}",
                    remedy="give that type, and cast after the read",
                )
            self._columns.append(found)
            fields.append(pa.field(field.name, found.arrow, field.nullable))
        self._schema = pa.schema(fields)
        names = () if dtype is None else dtype.names or ()
        self.fields: frozenset[str] = frozenset(names).intersection(schema.names)
        self.need: Need = max([least, *(found.need for found in self._columns)])

    def batch(self, rows: Rows) -> Any:  # noqa: ANN401 - pyarrow is not typed
        """Return rows as a record batch of exactly Spark's schema."""
        arrays = [found.build(rows) for found in self._columns]
        if not arrays:  # a batch that is made of no column has no row
            return pa.RecordBatch.from_arrays([_sequence(rows)], ["sequence"]).select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class Table:
    """The columns that a read asked for, by the schema that Spark hands on.

    Args:
        schema: the one that was inferred, or the user's.
        least: what is read in any case.
    """

    def __init__(self, schema: StructType, least: Need = Need.NOTHING) -> None:
        self._schema = schema
        self._least = least
        self._layouts: dict[Dtype, Layout] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tasks make what they need of it."""
        return {"_schema": self._schema, "_least": self._least, "_layouts": {}}

    def layout(self, dtype: Dtype) -> Layout:
        """Return what was asked for, in queues of one dtype.

        Raises:
            InvalidOption: a column is not known there, or has another type.
            DtypeMismatch: it is a field there, and our own column in other queues, or the reverse.
        """
        if dtype not in self._layouts:
            layout = Layout(self._schema, dtype, self._least)
            for other, known in self._layouts.items():
                if names := sorted(known.fields ^ layout.fields):
                    raise errors.DtypeMismatch(
                        f"column {names[0]!r} is a field only in queues of one of the dtypes "
                        f"{other} and {dtype}",
                        dtype=dtype,
                        remedy="read the queues apart",
                    )
            self._layouts[dtype] = layout
        return self._layouts[dtype]
