"""Batches as Arrow record batches, and as the capsules that any library takes. The extra `arrow`.

pyarrow is imported on first use. Arrays keep their buffers alive: a viewed page stays mapped, so
its file is not recycled (I13), also after the queue is closed or removed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue.columns.arrow_records import arrow_arrays, arrow_type_of
from pagequeue.util.optional import pyarrow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.schema.schema import Schema

TEXT_CODECS: Final = frozenset({"utf-8", "json"})
COPY_BYTES_MAX: Final = 2**31 - 1
"""An array of type binary has offsets of 32 bits, and so have views."""


def is_text(kind: Schema | None) -> bool:
    """Whether copies of payloads are strings: those of the codecs whose payloads are text."""
    return kind is not None and kind.dtype is None and kind.codec in TEXT_CODECS


def schema(
    kind: Schema | None = None, *, copy: bool = False, text: bool = False, wide: bool = False
) -> Any:  # noqa: ANN401 - pyarrow's
    """Return the schema of batches, as views or as copies; records have a column for each field.

    With `text` copies are strings where `is_text`; with `wide` they have offsets of 64 bits.
    `own_names` gives the names of the columns `sequence` and `timestamp`.

    Raises:
        MissingExtra: pyarrow is not installed.
        NotEncodable: Arrow has no type for a field.
    """
    pa = pyarrow()
    dtype = None if kind is None else kind.dtype
    if dtype is None:
        copied = _copied_type(pa, is_string=text and is_text(kind), wide=wide)
        fields = [("payload", copied if copy else pa.binary_view())]
    else:
        assert dtype.names is not None
        fields = [(name, arrow_type_of(dtype[name], name)) for name in dtype.names]
    names = own_names([name for name, _ in fields])
    own = [(names["sequence"], pa.int64()), (names["timestamp"], pa.timestamp("ns", "UTC"))]
    return pa.schema(own + fields)


def _copied_type(pa: Any, *, is_string: bool, wide: bool) -> Any:  # noqa: ANN401 - the same
    """Return the type of copied payloads."""
    if wide:
        return pa.large_string() if is_string else pa.large_binary()
    return pa.string() if is_string else pa.binary()


def schema_of(batch: Batch) -> Any:  # noqa: ANN401 - the same
    """Return the schema of `Batch.to_arrow`."""
    wide = needs_wide(batch.lengths)
    return schema(batch._kind, copy=True, text=True, wide=wide)  # noqa: SLF001 - its own package


def own_names(fields: Collection[str]) -> dict[str, str]:
    """Return the names of the columns `sequence` and `timestamp` next to fields of records.

    A field keeps its name; the queue's own column of that name gets `queue_` before it.
    """
    names = {}
    for own in ("sequence", "timestamp"):
        names[own] = own
        while names[own] in fields:
            names[own] = f"queue_{names[own]}"
    return names


def record_batch(batch: Batch, *, copy: bool, text: bool = False, wide: bool | None = False) -> Any:  # noqa: ANN401 - the same
    """Return a batch as a `pyarrow.RecordBatch`; see `Batch.to_arrow`.

    Args:
        batch: the messages.
        copy: whether payloads are copies, or views of the pages.
        text: whether copies are strings where `is_text`.
        wide: whether copies have offsets of 64 bits; None: where they need them.
    """
    kind = batch._kind  # noqa: SLF001 - its own package
    pa = pyarrow()
    count = len(batch)
    if kind is not None and kind.dtype is not None:
        columns = schema(kind)
        arrays = arrow_arrays(batch.to_numpy())
        batch._check_intact()  # noqa: SLF001 - its own package
    else:
        payloads = _copy(pa, batch, wide=wide) if copy else _view(pa, batch)
        wide = pa.types.is_large_binary(payloads.type)
        columns = schema(kind, copy=copy, text=text, wide=wide)
        column = columns.field("payload").type
        arrays = [payloads if payloads.type == column else _text(pa, batch, payloads, column)]
    sequence = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(batch.sequences)])
    timestamp = pa.Array.from_buffers(
        columns.field(1).type, count, [None, pa.py_buffer(batch.timestamps)]
    )
    return pa.RecordBatch.from_arrays([sequence, timestamp, *arrays], schema=columns)


def needs_wide(lengths: NDArray[np.integer[Any]]) -> bool:
    """Whether a copy of payloads of these sizes needs offsets of 64 bits."""
    return int(lengths.sum(dtype=np.int64)) > COPY_BYTES_MAX


def payload_array(batch: Batch) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as a copy of type binary, also those of records."""
    return _copy(pyarrow(), batch, wide=False)


def _copy(pa: Any, batch: Batch, *, wide: bool | None) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as one array of their own; `wide` as for `record_batch`."""
    parts = batch._parts()  # noqa: SLF001 - its own package
    count = len(batch)
    ends = np.zeros(count + 1, np.int64)
    if count:
        lengths = np.concatenate([part.lengths for part in parts]) if parts else batch.lengths
        np.cumsum(lengths, out=ends[1:])
    size_bytes = int(ends[-1])
    if wide is None:
        wide = size_bytes > COPY_BYTES_MAX
    if not wide:
        _check_size(size_bytes, "of a copy", "take smaller batches, or views")
    column = _copied_type(pa, is_string=False, wide=wide)
    if count and not parts:
        return pa.array(batch.payloads, column)
    data, at = np.empty(size_bytes, np.uint8), 0
    for part in parts:
        at = _core.pack(part.region, part.spans, part.first_sequence, data.data, at)
    offsets = pa.py_buffer(ends if wide else ends.astype(np.int32))
    return pa.Array.from_buffers(column, count, [None, offsets, pa.py_buffer(data)])


def _view(pa: Any, batch: Batch) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as views: each mapped page is a buffer; large messages are copies."""
    parts = batch._parts()  # noqa: SLF001 - its own package
    if len(batch) and not parts:
        check_value(int(batch.lengths.max()), "take a copy, by to_arrow()")
        return pa.array(batch.payloads, pa.binary_view())
    pages: dict[_core.Region, int] = {}
    views = [
        _core.views(
            part.region, part.spans, part.first_sequence, pages.setdefault(part.region, len(pages))
        )
        for part in parts
    ]
    whole = views[0] if len(views) == 1 else b"".join(views)
    buffers = [None, pa.py_buffer(whole), *map(pa.py_buffer, pages)]
    return pa.Array.from_buffers(pa.binary_view(), len(batch), buffers)


def _text(pa: Any, batch: Batch, payloads: Any, column: Any) -> Any:  # noqa: ANN401 - the same
    """Return copied payloads as strings, without another copy; each is checked to be UTF-8."""
    try:
        return payloads.cast(column)
    except pa.ArrowInvalid:
        raise errors.NotDecodable(
            f"a payload of {batch!r} is not UTF-8, as those of its codec are",
            remedy="take bytes, with copy=False",
        ) from None


def check_value(size_bytes: int, remedy: str) -> None:
    """Raise MessageTooLarge if a message exceeds what one value, but a wide copy, can have."""
    _check_size(size_bytes, "that one value can have", remedy)


def _check_size(size_bytes: int, what: str, remedy: str) -> None:
    """Raise MessageTooLarge if one array, or one value of it, cannot hold so many bytes."""
    if size_bytes > COPY_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"{size_bytes} bytes of payloads exceed the {COPY_BYTES_MAX} bytes {what}",
            size_bytes=size_bytes,
            limit_bytes=COPY_BYTES_MAX,
            remedy=remedy,
        )


# --- capsules -------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """What a reader requests: a schema, copies of payloads, and `wide` as for `record_batch`."""

    schema: Any
    copy: bool
    wide: bool | None


def _wanted(requested_schema: object, *, copy: bool) -> _Wanted:
    pa = pyarrow()
    if requested_schema is None:
        return _Wanted(None, copy, None)
    wanted = pa.Schema._import_from_c_capsule(requested_schema)  # noqa: SLF001 - the only way
    kinds = [field.type for field in wanted if field.name == "payload"] or [None]
    wide = kinds[0] in {pa.large_binary(), pa.large_string()}
    return _Wanted(wanted, kinds[0] != pa.binary_view(), wide)


def array_capsules(batch: Batch, requested_schema: object) -> tuple[object, object]:
    """Return a batch as the capsules of a schema and of an array.

    Raises:
        As for `record_batch`; and what pyarrow raises if it cannot cast to the schema.
    """
    wanted = _wanted(requested_schema, copy=True)
    rows = record_batch(batch, copy=wanted.copy, text=True, wide=wanted.wide)
    capsules: tuple[object, object] = rows.__arrow_c_array__(
        None if wanted.schema is None else wanted.schema.__arrow_c_schema__()
    )
    return capsules


def batch_reader(
    batches: Iterator[Batch], kind: Schema, *, copy: bool = True, wide: bool = False
) -> Any:  # noqa: ANN401 - the same
    """Return a `pyarrow.RecordBatchReader` that reads batches one by one.

    It raises what reading a batch raises; a stream capsule of it has only the text of an error. All
    of its batches have one schema: without `wide` more than 2 GiB of payloads are refused.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    # No generator: that would be at its end after an error, and the rest seem to be read.
    made = map(partial(record_batch, copy=copy, text=True, wide=wide), batches)
    columns = schema(kind, copy=copy, text=True, wide=wide)
    return pyarrow().RecordBatchReader.from_batches(columns, made)


def stream_capsule(
    batches: Iterator[Batch],
    kind: Schema,
    requested_schema: object,
    *,
    copy: bool = True,
    wide: bool = False,
) -> object:
    """Return batches as the capsule of a stream, which reads them one by one.

    Copies have offsets of 64 bits if their reader requests them, or, with `wide`, no schema.

    Raises:
        MissingExtra: pyarrow is not installed; and what it raises if it cannot cast to the schema.
    """
    wanted = _wanted(requested_schema, copy=copy)
    wide = wide if wanted.wide is None else wanted.wide
    reader = batch_reader(batches, kind, copy=wanted.copy, wide=wide)
    capsule: object = reader.__arrow_c_stream__(
        None if wanted.schema is None else wanted.schema.__arrow_c_schema__()
    )
    return capsule
