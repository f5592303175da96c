"""Batches as Arrow: record batches, and the capsules that any library takes. The extra `arrow`.

pyarrow is imported where it is used. It keeps the buffers alive for as long as anybody has the
arrays made of them: a page that is viewed is mapped until then, and so nobody uses its file again
(I13), whatever becomes of the queue.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import _core, errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.batch import Batch, Part

COPY_BYTES_MAX: Final = 2**31 - 1
"""An array of type binary has offsets of 32 bits."""


def package() -> Any:  # noqa: ANN401 - it need not be installed
    """Return pyarrow.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise errors.MissingExtra(
            "Arrow needs pyarrow, which is not installed: pip install 'pagequeue[arrow]'",
            extra="arrow",
        ) from error


def schema(*, copy: bool = False) -> Any:  # noqa: ANN401 - the same
    """Return the schema of batches, as views or as copies.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    pa = package()
    return pa.schema([
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("ns", "UTC")),
        ("payload", pa.binary() if copy else pa.binary_view()),
    ])  # fmt: skip


def record_batch(batch: Batch, *, copy: bool) -> Any:  # noqa: ANN401 - the same
    """Return a batch as a `pyarrow.RecordBatch`; see `Batch.to_arrow`."""
    kind = schema(copy=copy)
    pa = package()
    count = len(batch)
    parts = batch._parts()  # noqa: SLF001 - its own package
    if count and not parts:
        payload = pa.array(batch.payloads, kind.field("payload").type)
    elif copy:
        payload = _copied(pa, parts, count)
    else:
        payload = _viewed(pa, parts, count)
    sequence = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(batch.sequences)])
    timestamp = pa.Array.from_buffers(
        kind.field("timestamp").type, count, [None, pa.py_buffer(batch.timestamps)]
    )
    return pa.RecordBatch.from_arrays([sequence, timestamp, payload], schema=kind)


def _viewed(pa: Any, parts: list[Part], count: int) -> Any:  # noqa: ANN401 - the same
    """Return the payloads as views of their pages: a page is a buffer as it is mapped."""
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


def _copied(pa: Any, parts: list[Part], count: int) -> Any:  # noqa: ANN401 - the same
    """Return the payloads one behind the other, in memory of their own."""
    ends = np.zeros(count + 1, np.int64)
    if parts:
        np.cumsum(np.concatenate([part.lengths for part in parts]), out=ends[1:])
    size_bytes = int(ends[-1])
    if size_bytes > COPY_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"{size_bytes} bytes of payloads, a copy can have {COPY_BYTES_MAX}: take smaller "
            "batches, or views",
            size_bytes=size_bytes, limit_bytes=COPY_BYTES_MAX,
        )  # fmt: skip
    data, at = np.empty(size_bytes, np.uint8), 0
    for part in parts:
        at = _core.pack(part.region, part.spans, part.first_sequence, data.data, at)
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


# --- capsules -------------------------------------------------------------------------------------


def _wanted(requested_schema: object) -> tuple[Any, bool]:
    """Return the schema that a reader asks for, and whether payloads must be copies for it."""
    pa = package()
    if requested_schema is None:
        # Views: pyarrow, polars, DuckDB and pandas take them (tests/test_arrow.py), each page is
        # touched once less, and who only counts or filters never pays for a copy.
        return None, False
    wanted = pa.Schema._import_from_c_capsule(requested_schema)  # noqa: SLF001 - the only way
    fields = [field for field in wanted if field.name == "payload"]
    return wanted, not (fields and fields[0].type.equals(pa.binary_view()))


def array_capsules(batch: Batch, requested_schema: object) -> tuple[object, object]:
    """Return a batch as the capsules of a schema and of an array.

    Raises:
        As for `record_batch`; and what pyarrow raises for a schema that it cannot be cast to.
    """
    wanted, copy = _wanted(requested_schema)
    capsules: tuple[object, object] = record_batch(batch, copy=copy).__arrow_c_array__(
        None if wanted is None else wanted.__arrow_c_schema__()
    )
    return capsules


def stream_capsule(batches: Iterable[Batch], requested_schema: object) -> object:
    """Return batches as the capsule of a stream; they are taken as the reader asks for them.

    Raises:
        MissingExtra: pyarrow is not installed; and what it raises for a schema that they cannot be
            cast to.
    """
    wanted, copy = _wanted(requested_schema)
    made = (record_batch(batch, copy=copy) for batch in batches)
    reader = package().RecordBatchReader.from_batches(schema(copy=copy), made)
    capsule: object = reader.__arrow_c_stream__(
        None if wanted is None else wanted.__arrow_c_schema__()
    )
    return capsule
