"""Fixed records as Arrow columns, and back: one column per field, without an object per row.

| field | column |
| --- | --- |
| integers, floats, bool | the same; wider integers where no value is lost |
| `M8[s]` to `M8[ns]`, `M8[D]`, `m8[s]` to `m8[ns]` | timestamp, date32, duration |
| `S` | binary, without the zeros at the end; `V`: fixed_size_binary |
| `U` | string |
| a record, an array | struct, fixed_size_list |

Other types are an error that names the field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import errors
from pagequeue.columns.inputs import (
    ARROW,
    FixedRows,
    arrow_values,
    check_no_nulls,
    columns_of,
    fixed_items,
    whole_items,
)
from pagequeue.util.optional import load, pyarrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pagequeue.columns.inputs import ColumnInput

NUL: Final = "\0"
DAYS_MAX: Final = 2**31 - 1
_Arrays = list[tuple["NDArray[Any]", int]]


def records_of(payloads: object, dtype: np.dtype[np.void]) -> ColumnInput | None:
    """Return columnar input for a queue of records; None for any other iterable.

    Raises:
        NotEncodable: columns that are not the fields of the records, or a null among them.
        MissingExtra: pyarrow is not installed.
    """
    if not any(hasattr(payloads, way) for way in ARROW):
        return columns_of(payloads)
    values = arrow_values(payloads)
    if not hasattr(values, "column_names"):
        if "string" in str(values.type):
            raise errors.NotEncodable(
                f"Arrow's type {values.type} is text, not the bytes of records; no message was "
                "sent",
                remedy="send a table with a column for each field, or cast it to binary",
            )
        return columns_of(values)
    arrays = _fields(values, dtype, 0, "")
    columns = tuple((whole_items(array), at) for array, at in arrays)
    return FixedRows(columns, dtype.itemsize, len(values))


def _fields(table: Any, dtype: np.dtype[Any], at: int, within: str) -> _Arrays:  # noqa: ANN401
    assert dtype.names is not None
    assert dtype.fields is not None
    names = list(table.column_names)
    if sorted(names) != sorted(dtype.names):
        raise errors.NotEncodable(
            f"the columns{within and f' of {within}'} are {names}, the fields {list(dtype.names)}; "
            "no message was sent",
            remedy="give those, with table.select and table.rename_columns",
        )
    arrays: _Arrays = []
    for name in dtype.names:
        field, offset = dtype.fields[name][:2]
        arrays += _column(table.column(name), field, at + offset, f"{within}{name}")
    return arrays


def _column(values: Any, dtype: np.dtype[Any], at: int, name: str) -> _Arrays:  # noqa: ANN401
    """Return the arrays of one field, with their offsets in a record."""
    if dtype.kind not in "mM":  # a null among times is NaT
        check_no_nulls(values, f"column {name!r}")
    arrow = pyarrow()
    if dtype.names is not None:
        if not arrow.types.is_struct(values.type):
            raise _other_type(name, values.type, "a struct")
        return _fields(arrow_values(values), dtype, at, f"{name}.")
    if dtype.subdtype is None:
        return [(_scalars(values, dtype, name), at)]
    base, shape = dtype.subdtype
    for size in shape:
        sized = arrow.types.is_fixed_size_list(values.type) and values.type.list_size == size
        if not sized:
            raise _other_type(name, values.type, f"a fixed_size_list of {size}")
        values = arrow.chunked_array(
            [chunk.flatten() for chunk in values.chunks], values.type.value_type
        )
        if base.kind not in "mM":
            check_no_nulls(values, f"column {name!r}")
    if base.names is not None:
        raise errors.NotEncodable(
            f"field {name!r} is an array of records, which Arrow columns cannot hold",
            remedy="send a structured array",
        )
    items = np.ascontiguousarray(_scalars(values, base, name))
    return [(items.view(np.dtype((np.void, dtype.itemsize))), at)]


def _scalars(values: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:  # noqa: ANN401
    arrow = pyarrow()
    try:
        if dtype.kind == "U":
            return _text(values, dtype, name)
        if dtype.kind in "SV":
            return _bytes(values, dtype, name)
        wanted = _arrow_type(dtype, name)
        if arrow.types.is_timestamp(wanted) and arrow.types.is_timestamp(values.type):
            wanted = arrow.timestamp(wanted.unit, values.type.tz)  # the same timestamps
        integers = arrow.types.is_integer(wanted) and arrow.types.is_integer(values.type)
        times = arrow.types.is_temporal(wanted) and arrow.types.is_temporal(values.type)
        if values.type != wanted:
            if not (integers or times):
                raise _other_type(name, values.type, str(wanted))
            given, values = values, values.cast(wanted)
            if arrow.types.is_date(wanted) and not values.cast(given.type).equals(given):
                raise _other_type(name, given.type, f"{wanted}, without times of day")
    except arrow.ArrowException as error:
        raise errors.NotEncodable(f"column {name!r} does not fit {dtype}: {error}") from error
    array = _joined([chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks], dtype)
    return array.astype(dtype, copy=False)


def _joined(arrays: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])


def _bytes(values: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:  # noqa: ANN401
    arrow = pyarrow()
    size = dtype.itemsize
    if arrow.types.is_fixed_size_binary(values.type) and values.type.byte_width == size:
        return fixed_items(values)
    if dtype.kind == "V":
        raise _other_type(name, values.type, f"fixed_size_binary[{size}]")
    values = values.cast(arrow.large_binary())
    lengths = _lengths(values)
    if lengths.max(initial=0) > size:
        raise errors.NotEncodable(
            f"column {name!r} has values of {lengths.max()} bytes, its field only {size}",
            remedy="cut them",
        )
    items = np.zeros((len(lengths), size), np.uint8)
    held = [chunk for chunk in values.chunks if len(chunk)]
    data = [_data(chunk) for chunk in held]
    items[np.arange(size) < lengths[:, np.newaxis]] = (
        np.concatenate(data) if data else np.empty(0, np.uint8)
    )
    if (items[np.arange(len(items)), lengths - 1][lengths > 0] == 0).any():
        raise _cut(name)
    return items.reshape(-1).view(dtype)


def _offsets(chunk: Any) -> NDArray[np.int64]:  # noqa: ANN401 - an array of large binaries
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk) + 1, chunk.offset * 8)


def _lengths(values: Any) -> NDArray[np.int64]:  # noqa: ANN401 - the same
    parts = [np.diff(_offsets(chunk)) for chunk in values.chunks if len(chunk)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _data(chunk: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - the same
    offsets = _offsets(chunk)
    held = chunk.buffers()[2]
    return np.frombuffer(b"" if held is None else held, np.uint8)[offsets[0] : offsets[-1]]


def _text(values: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:  # noqa: ANN401
    """Return text columnwise: pad each value to the field's size, then encode all at once."""
    arrow = pyarrow()
    compute = load("pyarrow.compute")
    size = dtype.itemsize // 4
    values = values.cast(arrow.large_string())
    longest = compute.max(compute.utf8_length(values)).as_py() or 0
    if longest > size:
        raise errors.NotEncodable(
            f"column {name!r} has values of {longest} characters, its field only {size}",
            remedy="cut them",
        )
    if compute.any(compute.ends_with(values, NUL)).as_py():
        raise _cut(name)
    full = compute.utf8_rpad(values, size, NUL)
    held = [_data(chunk.cast(arrow.large_binary())) for chunk in full.chunks if len(chunk)]
    text = b"".join(part.tobytes() for part in held).decode()
    return np.frombuffer(text.encode("utf-32-le"), f"<U{size}").astype(dtype, copy=False)


def _cut(name: str) -> errors.NotEncodable:
    return errors.NotEncodable(
        f"column {name!r} has values that end with a zero, which NumPy takes for padding; no "
        "message was sent",
        remedy="remove those zeros, or create the queue with a field of type V",
    )


def _other_type(name: str, found: object, wanted: str) -> errors.NotEncodable:
    return errors.NotEncodable(
        f"column {name!r} is of Arrow's type {found}, its field needs {wanted}; no message was "
        "sent",
        remedy="cast it",
    )


def _arrow_type(dtype: np.dtype[Any], name: str) -> Any:  # noqa: ANN401 - a type of pyarrow
    """Return the type of a column for values of this dtype.

    Raises:
        NotEncodable: Arrow has no such type.
    """
    arrow = pyarrow()
    if dtype.kind == "M" and np.datetime_data(dtype) == ("D", 1):
        return arrow.date32()
    try:
        return arrow.from_numpy_dtype(dtype.newbyteorder("="))
    except (arrow.ArrowException, ValueError) as error:
        raise errors.NotEncodable(
            f"field {name!r}: Arrow has no type for {dtype}", remedy="use NumPy's arrays"
        ) from error


# --- to Arrow -------------------------------------------------------------------------------------


def arrow_arrays(records: NDArray[np.void], within: str = "") -> list[Any]:
    """Return a `pyarrow.Array` for each field of records.

    Raises:
        NotEncodable: Arrow has no type for a field.
        MissingExtra: pyarrow is not installed.
    """
    assert records.dtype.names is not None
    return [_array(records[name], f"{within}{name}") for name in records.dtype.names]


def arrow_type_of(dtype: np.dtype[Any], name: str) -> Any:  # noqa: ANN401 - a type of pyarrow
    """Return the type of the column that a field becomes.

    Raises:
        NotEncodable: Arrow has no such type.
        MissingExtra: pyarrow is not installed.
    """
    arrow = pyarrow()
    if dtype.names is not None:
        assert dtype.fields is not None
        return arrow.struct(
            [(part, arrow_type_of(dtype.fields[part][0], f"{name}.{part}")) for part in dtype.names]
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        kind = arrow_type_of(base, name)
        for size in reversed(shape):
            kind = arrow.list_(kind, size)
        return kind
    plain = {"S": arrow.binary(), "U": arrow.string(), "V": arrow.binary(dtype.itemsize)}
    return plain.get(dtype.kind) or _arrow_type(dtype, name)


def _array(values: NDArray[Any], name: str) -> Any:  # noqa: ANN401 - a pyarrow.Array
    arrow = pyarrow()
    dtype = values.dtype
    if values.ndim > 1:
        flat = _array(np.ascontiguousarray(values).reshape(-1), name)
        for size in reversed(values.shape[1:]):
            flat = arrow.FixedSizeListArray.from_arrays(flat, size)
        return flat
    if dtype.names is not None:
        arrays = arrow_arrays(values, f"{name}.")
        return arrow.StructArray.from_arrays(arrays, list(dtype.names))
    if dtype.kind == "S":
        return _trimmed(values)
    if dtype.kind == "U":
        return _strings(values, name)
    if dtype.kind == "V":
        data = arrow.py_buffer(np.ascontiguousarray(values))
        return arrow.Array.from_buffers(arrow.binary(dtype.itemsize), len(values), [None, data])
    native = np.ascontiguousarray(values.astype(dtype.newbyteorder("="), copy=False))
    kind = arrow_type_of(dtype, name)
    if arrow.types.is_date32(kind):
        _check_days(native, name)
    return arrow.array(native, type=kind)


def _check_days(days: NDArray[Any], name: str) -> None:
    """Raise for a day beyond 32 bits, which Arrow would store as another day."""
    beyond = days[(np.abs(days.view(np.int64)) > DAYS_MAX) & ~np.isnat(days)]
    if len(beyond):
        raise errors.NotEncodable(
            f"field {name!r} has the day {beyond[0].view(np.int64)} since 1970, beyond Arrow's "
            "dates of 32 bits",
            remedy="use NumPy's arrays",
        )


def _used(items: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a mask of each row's items before its trailing zeros, and their counts."""
    size = items.shape[1]
    full = (items != 0)[:, ::-1]
    counts = np.where(full.any(axis=1), size - full.argmax(axis=1), 0)
    return np.arange(size) < counts[:, np.newaxis], counts


def _spans(kind: Any, lengths: NDArray[np.int64], data: object) -> Any:  # noqa: ANN401 - pyarrow's
    """Return an array of values of these sizes, contiguous in `data`."""
    arrow = pyarrow()
    offsets = np.zeros(len(lengths) + 1, np.int32)  # a batch stays below 2 GiB
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
    return arrow.Array.from_buffers(kind, len(lengths), buffers)


def _trimmed(values: NDArray[np.bytes_]) -> Any:  # noqa: ANN401 - a pyarrow.Array
    """Return bytes without the zeros at their ends; zeros inside stay."""
    items = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
    used, counts = _used(items)
    return _spans(pyarrow().binary(), counts, items[used])


def _strings(values: NDArray[np.str_], name: str) -> Any:  # noqa: ANN401 - a pyarrow.Array
    """Return text without trailing zeros, encoded all at once."""
    plain = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    items = plain.view("<u4").reshape(len(values), plain.itemsize // 4)
    used, _ = _used(items)
    # How many bytes a character takes in UTF-8.
    sizes = 1 + (items >= 1 << 7) + (items >= 1 << 11).astype(np.int64) + (items >= 1 << 16)
    try:
        data = items[used].tobytes().decode("utf-32-le").encode()
    except UnicodeDecodeError as error:
        raise errors.NotEncodable(
            f"field {name!r} has invalid text ({error.reason})", remedy="use NumPy's arrays"
        ) from error
    return _spans(pyarrow().string(), np.where(used, sizes, 0).sum(axis=1), data)
