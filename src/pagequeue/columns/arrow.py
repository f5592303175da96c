"""Batches as Arrow record batches, and as the capsules that any library takes. The extra `arrow`.

pyarrow is imported on first use. Arrays keep their buffers alive: a viewed page stays mapped, so
its file is not recycled (I13), also after the queue is closed or removed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue.columns.arrow_records import arrow_arrays, arrow_type_of
from pagequeue.util.optional import pyarrow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pagequeue.columns.batch import Batch, PageSlice
    from pagequeue.schema.schema import Schema

TEXT_CODECS: Final = frozenset({"utf-8", "json"})
COPY_BYTES_MAX: Final = 2**31 - 1
"""An array of type binary has offsets of 32 bits."""


def is_text(kind: Schema | None) -> bool:
    """Whether copies of payloads are strings: those of the codecs whose payloads are text."""
    return kind is not None and kind.dtype is None and kind.codec in TEXT_CODECS


def schema(kind: Schema | None = None, *, copy: bool = False, text: bool = False) -> Any:  # noqa: ANN401 - pyarrow's
    """Return the schema of batches, as views or as copies; records have a column for each field.

    With `text` copies are strings where `is_text`. `own_names` gives the names of the columns
    `sequence` and `timestamp`.

    Raises:
        MissingExtra: pyarrow is not installed.
        NotEncodable: Arrow has no type for a field.
    """
    pa = pyarrow()
    dtype = None if kind is None else kind.dtype
    if dtype is None:
        copied = pa.string() if text and is_text(kind) else pa.binary()
        fields = [("payload", copied if copy else pa.binary_view())]
    else:
        assert dtype.names is not None
        fields = [(name, arrow_type_of(dtype[name], name)) for name in dtype.names]
    names = own_names([name for name, _ in fields])
    own = [(names["sequence"], pa.int64()), (names["timestamp"], pa.timestamp("ns", "UTC"))]
    return pa.schema(own + fields)


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


def record_batch(batch: Batch, *, copy: bool, text: bool = False) -> Any:  # noqa: ANN401 - the same
    """Return a batch as a `pyarrow.RecordBatch`; see `Batch.to_arrow`."""
    kind = batch._kind  # noqa: SLF001 - its own package
    columns = schema(kind, copy=copy, text=text)
    pa = pyarrow()
    count = len(batch)
    if kind is not None and kind.dtype is not None:
        arrays = arrow_arrays(batch.to_numpy())
        batch._check_intact()  # noqa: SLF001 - its own package
    else:
        arrays = [_payload(pa, batch, pa.binary() if copy else pa.binary_view(), copy=copy)]
        if columns.field("payload").type == pa.string():
            arrays = [_text(pa, batch, arrays[0])]
    sequence = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(batch.sequences)])
    timestamp = pa.Array.from_buffers(
        columns.field(1).type, count, [None, pa.py_buffer(batch.timestamps)]
    )
    return pa.RecordBatch.from_arrays([sequence, timestamp, *arrays], schema=columns)


def payload_array(batch: Batch) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as a copy of type binary, also those of records."""
    pa = pyarrow()
    return _payload(pa, batch, pa.binary(), copy=True)


def _payload(pa: Any, batch: Batch, column: Any, *, copy: bool) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as one array."""
    parts = batch._parts()  # noqa: SLF001 - its own package
    if len(batch) and not parts:
        size_bytes = int((batch.lengths.sum if copy else batch.lengths.max)())
        _check_copy(size_bytes)
        return pa.array(batch.payloads, column)
    return (_copied if copy else _viewed)(pa, parts, len(batch))


def _text(pa: Any, batch: Batch, payloads: Any) -> Any:  # noqa: ANN401 - the same
    """Return copied payloads as strings, without another copy; each is checked to be UTF-8."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        raise errors.NotDecodable(
            f"a payload of {batch!r} is not UTF-8, as those of its codec are",
            remedy="take bytes, with copy=False",
        ) from None


def _viewed(pa: Any, parts: list[PageSlice], count: int) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as views: each mapped page is a buffer."""
    pages: dict[_core.Region, int] = {}
    views = [
        _core.views(
            part.region, part.spans, part.first_sequence, pages.setdefault(part.region, len(pages))
        )
        for part in parts
    ]
    whole = views[0] if len(views) == 1 else b"".join(views)
    buffers = [None, pa.py_buffer(whole), *map(pa.py_buffer, pages)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers)


def _copied(pa: Any, parts: list[PageSlice], count: int) -> Any:  # noqa: ANN401 - the same
    """Return a contiguous copy of the payloads."""
    ends = np.zeros(count + 1, np.int64)
    if parts:
        np.cumsum(np.concatenate([part.lengths for part in parts]), out=ends[1:])
    size_bytes = int(ends[-1])
    _check_copy(size_bytes)
    data, at = np.empty(size_bytes, np.uint8), 0
    for part in parts:
        at = _core.pack(part.region, part.spans, part.first_sequence, data.data, at)
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


def _check_copy(size_bytes: int) -> None:
    """Raise MessageTooLarge if one array, or one value of it, cannot hold so many bytes."""
    if size_bytes > COPY_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"{size_bytes} bytes of payloads exceed the {COPY_BYTES_MAX} bytes of a copy",
            size_bytes=size_bytes, limit_bytes=COPY_BYTES_MAX,
            remedy="take smaller batches, or views",
        )  # fmt: skip


# --- capsules -------------------------------------------------------------------------------------


def _wanted(requested_schema: object, *, copy: bool) -> tuple[Any, bool]:
    """Return the schema that a reader requests, and whether it needs copies of payloads."""
    pa = pyarrow()
    if requested_schema is None:
        return None, copy
    wanted = pa.Schema._import_from_c_capsule(requested_schema)  # noqa: SLF001 - the only way
    fields = [field for field in wanted if field.name == "payload"]
    return wanted, not (fields and fields[0].type.equals(pa.binary_view()))


def array_capsules(batch: Batch, requested_schema: object) -> tuple[object, object]:
    """Return a batch as the capsules of a schema and of an array.

    Raises:
        As for `record_batch`; and what pyarrow raises if it cannot cast to the schema.
    """
    wanted, copy = _wanted(requested_schema, copy=True)
    capsules: tuple[object, object] = record_batch(batch, copy=copy, text=True).__arrow_c_array__(
        None if wanted is None else wanted.__arrow_c_schema__()
    )
    return capsules


def batch_reader(batches: Iterator[Batch], kind: Schema, *, copy: bool = True) -> Any:  # noqa: ANN401 - the same
    """Return a `pyarrow.RecordBatchReader` that reads batches one by one.

    It raises what reading a batch raises; a stream capsule of it has only the text of an error.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    # No generator: that would be at its end after an error, and the rest seem to be read.
    made = map(partial(record_batch, copy=copy, text=True), batches)
    return pyarrow().RecordBatchReader.from_batches(schema(kind, copy=copy, text=True), made)


def stream_capsule(
    batches: Iterator[Batch], kind: Schema, requested_schema: object, *, copy: bool = True
) -> object:
    """Return batches as the capsule of a stream, which reads them one by one.

    Raises:
        MissingExtra: pyarrow is not installed; and what it raises if it cannot cast to the schema.
    """
    wanted, copy = _wanted(requested_schema, copy=copy)
    capsule: object = batch_reader(batches, kind, copy=copy).__arrow_c_stream__(
        None if wanted is None else wanted.__arrow_c_schema__()
    )
    return capsule
