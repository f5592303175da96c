"""Columnar input of `send_many`: arrays of NumPy and Arrow, described to the core as columns.

The core copies rows from the arrays' own memory into the page, without an object per row. For input
that is not columnar these functions return None, and `send_many` iterates over it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from pagequeue import _core, errors
from pagequeue.util.arguments import TIMESTAMP_REMEDY, timestamp, type_error, value_error
from pagequeue.util.optional import pyarrow
from pagequeue.util.timestamps import array_to_ns, check_ns, is_masked

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARROW: Final = ("__arrow_c_array__", "__arrow_c_stream__")
TIME_BYTES: Final = 8
VIEW_BYTES: Final = 16
PLAIN: Final = frozenset({list, tuple})
"""The most frequent types, which are never columnar."""


@dataclass(frozen=True)
class FixedRows:
    """Messages of one size, each assembled from columns.

    Attributes:
        columns: buffers of one dimension, and the offset of their values in a message.
        row_bytes: of each message.
        count: of messages.
    """

    columns: tuple[tuple[Any, int], ...]
    row_bytes: int
    count: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The sizes of the messages in bytes; shape (n,)."""
        return np.full(self.count, self.row_bytes, np.int64)

    def fixed(self) -> FixedRows:
        """Return the same messages, whose lengths do not change: these."""
        return self

    def part(self, begin: int, end: int) -> FixedRows:
        """Return some consecutive messages."""
        columns = tuple((values[begin:end], at) for values, at in self.columns)
        return FixedRows(columns, self.row_bytes, end - begin)

    def payload(self, i: int) -> bytes:
        """Return one message of a queue without a dtype."""
        ((values, _),) = self.columns
        payload: bytes = values[i].tobytes()
        return payload


@dataclass(frozen=True)
class VarRows:
    """Messages of any sizes.

    Attributes:
        parts: for each array its layout, its first value, their count, and its buffers: "S" values
            padded with zeros to one size; "o", "O" offsets of 4, 8 bytes, and data; "v" Arrow's
            views, and their data.
        count: of messages.
    """

    parts: tuple[tuple[str, int, int, tuple[Any, ...]], ...]
    count: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The sizes of the messages in bytes; shape (n,)."""
        sizes = [_part_lengths(*part) for part in self.parts]
        return np.concatenate([np.empty(0, np.int64), *sizes])

    def fixed(self) -> VarRows:
        """Return the same messages with copies of what their lengths follow from."""
        parts = [
            (layout, first, count, (held[0].copy() if layout == "S" else bytes(held[0]), *held[1:]))
            for layout, first, count, held in self.parts
        ]
        return VarRows(tuple(parts), self.count)

    def part(self, begin: int, end: int) -> VarRows:
        """Return some consecutive messages."""
        parts, at = [], 0
        for layout, first, count, held in self.parts:
            low, high = max(begin - at, 0), min(end - at, count)
            if low < high and layout == "S":
                parts.append((layout, 0, high - low, (held[0][first + low : first + high],)))
            elif low < high:
                parts.append((layout, first + low, high - low, held))
            at += count
        return VarRows(tuple(parts), end - begin)

    def payload(self, i: int) -> memoryview:
        """Return one message."""
        ((layout, first, _, held),) = self.part(i, i + 1).parts
        if layout == "S":
            items = held[0]
            size = int(_part_lengths(layout, first, 1, held)[0])
            return memoryview(items[first].tobytes())[:size]
        if layout == "v":
            size, _, buffer, place = np.frombuffer(held[0], "<i4", 4, first * VIEW_BYTES).tolist()
            if size <= VIEW_BYTES - 4:
                return memoryview(held[0]).cast("B")[first * VIEW_BYTES + 4 :][:size]
            return memoryview(held[1 + buffer]).cast("B")[place : place + size]
        kind = "<i4" if layout == "o" else "<i8"
        begin, end = np.frombuffer(held[0], kind, 2, first * np.dtype(kind).itemsize).tolist()
        return memoryview(held[1]).cast("B")[begin:end]


def _part_lengths(layout: str, first: int, count: int, held: tuple[Any, ...]) -> NDArray[np.int64]:
    """Return the sizes of the values of one array."""
    if layout == "S":
        items = np.asarray(held[0])[first : first + count]
        return np.strings.str_len(items.view(f"S{items.itemsize}")).astype(np.int64)
    if layout == "v":
        sizes = np.frombuffer(held[0], "<i4", 4 * count, first * VIEW_BYTES)[::4]
        return sizes.astype(np.int64)
    kind = "<i4" if layout == "o" else "<i8"
    ends = np.frombuffer(held[0], kind, count + 1, first * np.dtype(kind).itemsize)
    places = ends.astype(np.int64)
    return places[1:] - places[:-1]


ColumnInput: TypeAlias = FixedRows | VarRows
COLUMNS: Final = (FixedRows, VarRows)


def is_columnar(payloads: object) -> bool:
    """Whether this is an array or a table, not an iterable that can be consumed only once."""
    return isinstance(payloads, np.ndarray) or any(hasattr(payloads, name) for name in ARROW)


def columns_of(payloads: object) -> ColumnInput | None:
    """Return columnar input for a queue of bytes; None for any other iterable.

    As in NumPy itself, zeros at the end of an item of type S are not part of it.

    Raises:
        NotEncodable: the columns are not payloads, or have a null.
        MissingExtra: pyarrow is not installed.
    """
    if isinstance(payloads, np.ndarray):
        kind = payloads.dtype.kind
        if kind == "U" or (kind in "SV" and payloads.ndim != 1):
            raise errors.NotEncodable(
                f"cannot send an array of {payloads.dtype} in {payloads.ndim} dimensions",
                remedy="give one dimension, and text as np.strings.encode(array, 'utf-8')",
            )
        return _array(payloads)
    if not is_columnar(payloads):
        return None
    values = arrow_values(payloads)
    if hasattr(values, "column_names"):
        raise errors.NotEncodable(
            "cannot send a table to a queue of bytes",
            remedy="send one column, e.g. table['payload'], or create the queue with a matching "
            "dtype",
        )
    return _arrow(values)


def _array(array: NDArray[Any]) -> ColumnInput | None:
    if array.ndim != 1 or array.dtype.kind not in "SV":
        return None
    data = whole_items(array)
    if array.dtype.kind == "S":
        return VarRows((("S", 0, len(array), (data,)),), len(array))
    return FixedRows(((data, 0),), array.itemsize, len(array))


def whole_items(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of the array as one dimension of bytes items.

    Raises:
        NotEncodable: items are Python objects, empty or masked.
    """
    if array.dtype.hasobject or not array.itemsize:
        raise errors.NotEncodable(
            f"items of dtype {array.dtype} have no bytes to send", remedy="give another dtype"
        )
    if is_masked(array):
        raise errors.NotEncodable(
            "some items are masked, which payloads cannot express", remedy="fill them"
        )
    # The buffer protocol has no datetime64; a view as void accepts every dtype.
    return np.asarray(array).view(np.dtype((np.void, array.itemsize)))


# --- Arrow ----------------------------------------------------------------------------------------


class StreamSource(ABC):
    """A finite stream of ours: its `to_arrow()` returns a reader that raises our own errors."""

    @abstractmethod
    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow need not be there
        """Return a `pyarrow.RecordBatchReader`."""


def arrow_values(told: Any) -> Any:  # noqa: ANN401 - whatever has Arrow's protocol
    """Return a `pyarrow.ChunkedArray`, or a `pyarrow.Table` for input with named columns.

    Raises:
        NotEncodable: pyarrow does not accept it.
        MissingExtra: it is not installed.
        ClosedError, CorruptFrame, ...: it is a stream of messages, and reading it raised that.
    """
    arrow = pyarrow()
    if isinstance(told, arrow.RecordBatch):
        return arrow.Table.from_batches([told])
    if isinstance(told, arrow.Table):
        return told
    try:
        if isinstance(told, StreamSource):
            told = told.to_arrow()
        if isinstance(told, arrow.RecordBatchReader):
            return told.read_all()
        if isinstance(told, arrow.Array) or not hasattr(told, ARROW[1]):
            told = arrow.chunked_array([arrow.array(told)])
        values = told if isinstance(told, arrow.ChunkedArray) else arrow.chunked_array(told)
        if arrow.types.is_struct(values.type):
            batches = [arrow.RecordBatch.from_struct_array(chunk) for chunk in values.chunks]
            return arrow.Table.from_batches(batches, arrow.schema(list(values.type)))
    except errors.PageQueueError:  # of one of our own streams, whose queue was closed, say
        raise
    except (arrow.ArrowException, TypeError, ValueError) as error:
        raise errors.NotEncodable(
            f"Arrow does not accept this {type(told).__name__} ({error})",
            remedy="give its arrays or tables",
        ) from error
    return values


def check_no_nulls(values: Any, what: str) -> None:  # noqa: ANN401 - an array of Arrow
    """Raise NotEncodable if one of the values is null."""
    if values.null_count:
        raise errors.NotEncodable(
            f"{what} has {values.null_count} nulls, which payloads cannot express",
            remedy="fill or drop them",
        )


def _arrow(values: Any) -> ColumnInput:  # noqa: ANN401 - a pyarrow.ChunkedArray
    arrow = pyarrow()
    check_no_nulls(values, "the array")
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if arrow.types.is_fixed_size_binary(values.type):
        data = fixed_items(values)
        return FixedRows(((data, 0),), data.itemsize, len(data))
    layout = _layout(arrow, values.type)
    parts = []
    for chunk in values.chunks:
        held = [b"" if buffer is None else buffer for buffer in chunk.buffers()[1:]]
        if len(chunk):
            parts.append((layout, chunk.offset, len(chunk), tuple(held)))
    return VarRows(tuple(parts), len(values))


def _layout(arrow: Any, kind: Any) -> str:  # noqa: ANN401 - pyarrow and its type
    types = arrow.types
    if types.is_binary(kind) or types.is_string(kind):
        return "o"
    if types.is_large_binary(kind) or types.is_large_string(kind):
        return "O"
    if types.is_binary_view(kind) or types.is_string_view(kind):
        return "v"
    raise errors.NotEncodable(
        f"cannot send values of Arrow's type {kind}", remedy="cast them to binary or string"
    )


def fixed_items(values: Any) -> NDArray[Any]:  # noqa: ANN401 - a pyarrow.ChunkedArray
    """Return values of one size as items of a NumPy array; a view if they are in one piece."""
    width = values.type.byte_width
    if not width:
        raise errors.NotEncodable("the array's values have size 0", remedy="send a list of b''")
    items = [
        np.frombuffer(chunk.buffers()[1], f"V{width}", len(chunk), chunk.offset * width)
        for chunk in values.chunks
        if len(chunk)
    ]
    return items[0] if len(items) == 1 else np.concatenate([np.empty(0, f"V{width}"), *items])


# --- times ----------------------------------------------------------------------------------------


def check_count(times: bytes | None, count: int) -> None:
    """Raise InvalidOption unless there is one time for each message."""
    if times is not None and len(times) != count * TIME_BYTES:
        raise errors.InvalidOption(
            f"{len(times) // TIME_BYTES} timestamps for {count} messages; no message was sent",
            remedy="give one for each",
        )


def bytes_of(data: Any) -> memoryview:  # noqa: ANN401 - any buffer
    """Return a view of the bytes that sending an object would send.

    Raises:
        TypeError: it is not bytes-like, or holds addresses of objects.
    """
    with contextlib.suppress(TypeError, ValueError):  # ValueError: the times of NumPy
        view = memoryview(data)
        if view.format == "B" and view.ndim == 1 and view.c_contiguous:
            return view
        view.release()
    return memoryview(_core.payload(data))


def items_of(timestamps: Any) -> list[Any]:  # noqa: ANN401 - any object
    """Return the timestamps of an iterable; raise InvalidType for one alone."""
    if not isinstance(timestamps, Iterable):
        raise type_error("timestamps", timestamps, "one for each message")
    return list(timestamps)


def times_of(timestamps: Any) -> bytes | None:  # noqa: ANN401 - whatever NumPy takes
    """Return times as the core takes them: a private copy of int64 ns.

    Raises:
        TypeError: they are neither integers nor times with a unit.
        InvalidOption: one is before 1970, exceeds 63 bits, or is surely in another unit.
        TimestampOrder: one is earlier than the one before it.
    """
    if timestamps is None:
        return None
    given = np.asarray(timestamps if is_columnar(timestamps) else items_of(timestamps))
    if given.ndim == 1 and given.dtype.kind == "O":  # integers of other classes
        given = np.asarray([timestamp("one of timestamps", one) for one in given], np.int64)
    if given.ndim != 1 or (given.dtype.kind not in "iuM" and given.size):
        raise errors.InvalidType(
            f"timestamps are int64 ns in one dimension, not {given.dtype} in {given.ndim}"
        )
    if is_masked(timestamps):
        raise errors.InvalidType("some timestamps are masked: fill them")
    has_unit = given.dtype.kind == "M"
    if has_unit:
        given = array_to_ns(given)
    if given.dtype.kind == "u" and given.size and int(given.max()) >= 1 << 63:
        raise errors.InvalidOption(
            f"one of timestamps is {int(given.max())}", remedy=TIMESTAMP_REMEDY
        )
    times = given.astype(np.int64)
    if len(times) and times[0] < 0:
        raise value_error("one of timestamps", int(times[0]), TIMESTAMP_REMEDY)
    if not has_unit:
        check_ns("one of timestamps", times)
    back = np.flatnonzero(times[1:] < times[:-1])
    if len(back):
        i = int(back[0]) + 1
        before = int(times[i - 1])
        raise errors.TimestampOrder(
            f"timestamp {i} of those given, {int(times[i])}, is earlier than the one before it, "
            f"{before}",
            last_timestamp=before,
            remedy="sort the messages by time",
        )
    return times.tobytes()
