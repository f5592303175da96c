"""Fields of records as Spark's columns, and columns as the payloads of records.

| field | column |
| --- | --- |
| signed integers, `f4`, `f8`, bool | the same |
| `u1`, `u2`, `u4` | the next wider integer; `u8`: decimal(20, 0) |
| `f2` | float |
| `M8`, `M8[D]`, `m8` | timestamp_ntz, date, interval day to second; in microseconds |
| `S`, `V`; `U` | binary; string |
| a record, an array | struct, array |

As `Batch.to_arrow` has them, in the types that Spark knows. Anything else is an error that names
the field.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyspark.sql.types as sql

from pagequeue import errors
from pagequeue.columns.arrow_records import arrow_arrays, arrow_type_of, records_of
from pagequeue.columns.inputs import FixedRows

MICROSECONDS: Final = ("us", 1)
NARROW: Final = (sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)
FLOATS: Final = (sql.FloatType, sql.DoubleType)
TIMES: Final = (sql.TimestampType, sql.TimestampNTZType)


class Typed(NamedTuple):
    """The type of a column, in Spark and in Arrow."""

    spark: sql.DataType
    arrow: Any


SCALARS: Final = {
    "b1": Typed(sql.BooleanType(), pa.bool_()),
    "i1": Typed(sql.ByteType(), pa.int8()),
    "i2": Typed(sql.ShortType(), pa.int16()),
    "i4": Typed(sql.IntegerType(), pa.int32()),
    "i8": Typed(sql.LongType(), pa.int64()),
    "u1": Typed(sql.ShortType(), pa.int16()),
    "u2": Typed(sql.IntegerType(), pa.int32()),
    "u4": Typed(sql.LongType(), pa.int64()),
    "u8": Typed(sql.DecimalType(20, 0), pa.decimal128(20, 0)),
    "f2": Typed(sql.FloatType(), pa.float32()),
    "f4": Typed(sql.FloatType(), pa.float32()),
    "f8": Typed(sql.DoubleType(), pa.float64()),
    "S": Typed(sql.BinaryType(), pa.binary()),
    "V": Typed(sql.BinaryType(), pa.binary()),
    "U": Typed(sql.StringType(), pa.string()),
    "M": Typed(sql.TimestampNTZType(), pa.timestamp("us")),
    "D": Typed(sql.DateType(), pa.date32()),
    "m": Typed(sql.DayTimeIntervalType(), pa.duration("us")),
}
"""By kind and size, or by kind alone; "D" is a date."""


def typed(dtype: np.dtype[Any], name: str) -> Typed:
    """Return the type of the column that a field becomes.

    Raises:
        NotEncodable: Spark has no type for it.
    """
    arrow_type_of(dtype, name)  # what Arrow cannot hold is told in its words
    if dtype.names is not None:
        assert dtype.fields is not None
        parts = [(part, typed(dtype.fields[part][0], f"{name}.{part}")) for part in dtype.names]
        return Typed(
            sql.StructType([sql.StructField(part, kind.spark) for part, kind in parts]),
            pa.struct([(part, kind.arrow) for part, kind in parts]),
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        kind = typed(base, name)
        for _ in shape:
            kind = Typed(sql.ArrayType(kind.spark), pa.list_(pa.field("element", kind.arrow)))
        return kind
    if dtype.kind == "M" and np.datetime_data(dtype) == ("D", 1):
        return SCALARS["D"]
    return SCALARS.get(dtype.kind) or SCALARS[f"{dtype.kind}{dtype.itemsize}"]


def column(records: np.ndarray[Any, np.dtype[np.void]], name: str, kind: Any) -> Any:  # noqa: ANN401
    """Return one field of records as an array of this Arrow type.

    Raises:
        NotEncodable: a value is not text, or a time beyond microseconds.
    """
    wanted = _in_microseconds(records.dtype[name])
    field = records[name]
    if wanted != records.dtype[name]:
        field = field.astype(wanted.subdtype[0] if wanted.subdtype else wanted)
    alone = np.empty(len(field), [(name, wanted)])
    alone[name] = field
    try:
        return arrow_arrays(alone)[0].cast(kind)
    except pa.ArrowException as error:
        raise errors.NotEncodable(
            f"field {name!r} has a value that {kind} does not hold ({error}): take the column "
            "payload"
        ) from error


def _in_microseconds(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype with its finer times as microseconds, rounded down when it is cast to."""
    if dtype.names is not None:
        return np.dtype([(part, _in_microseconds(dtype[part])) for part in dtype.names])
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_in_microseconds(base), shape))
    if dtype.kind in "Mm" and np.datetime_data(dtype) == ("ns", 1):
        return np.dtype(f"{dtype.kind}8[us]")
    return dtype


# --- back -----------------------------------------------------------------------------------------


def fits(found: sql.DataType, wanted: sql.DataType) -> bool:
    """Whether values of a column's type can be those of a field; their range is seen later."""
    if isinstance(wanted, sql.StructType):
        return (
            isinstance(found, sql.StructType)
            and found.names == wanted.names
            and all(map(fits, [f.dataType for f in found], [f.dataType for f in wanted]))
        )
    if isinstance(wanted, sql.ArrayType):
        return isinstance(found, sql.ArrayType) and fits(found.elementType, wanted.elementType)
    if isinstance(wanted, sql.DecimalType):
        return isinstance(found, NARROW) or (
            isinstance(found, sql.DecimalType) and found.scale == 0
        )
    alike = (NARROW, FLOATS, TIMES)
    return type(found) is type(wanted) or any(
        isinstance(wanted, kinds) and isinstance(found, kinds) for kinds in alike
    )


def payloads_of(batch: Any, dtype: np.dtype[np.void]) -> Any:  # noqa: ANN401 - pyarrow is not typed
    """Return the rows of a record batch as payloads, an array of type binary.

    Args:
        batch: a column for each field; others are left out.
        dtype: of the records.

    Raises:
        NotEncodable: a value is null, or does not fit.
    """
    assert dtype.names is not None
    columns = [_for_field(batch.column(name), dtype[name], name) for name in dtype.names]
    told = pa.RecordBatch.from_arrays(columns, names=list(dtype.names))
    rows = records_of(told, dtype)
    assert isinstance(rows, FixedRows)
    items = np.zeros((rows.count, rows.row_bytes), np.uint8)
    for values, at in rows.columns:
        wide = np.ascontiguousarray(values).view(np.uint8).reshape(rows.count, -1)
        items[:, at : at + wide.shape[1]] = wide
    ends = np.arange(0, rows.count * rows.row_bytes + 1, rows.row_bytes, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows.count, [None, pa.py_buffer(ends), pa.py_buffer(items)]
    )


def _for_field(values: Any, dtype: np.dtype[Any], name: str) -> Any:  # noqa: ANN401 - the same
    wanted = arrow_type_of(dtype, name)
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        values = values.cast(pa.timestamp(values.type.unit))  # the same moments, in UTC
    try:
        return values if dtype.kind in "SU" else values.cast(wanted)
    except (pa.ArrowException, NotImplementedError) as error:
        raise errors.NotEncodable(
            f"column {name!r} has a value that its field, {dtype}, does not hold ({error}); no row "
            "was written",
            remedy="cast or filter it",
        ) from error
