"""Payloads of objects in the schema of a queue: encoded by its codec, or records of its dtype."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import errors
from pagequeue.columns import inputs as in_rows
from pagequeue.columns.arrow_records import records_of
from pagequeue.columns.record_values import is_record, records_of_values
from pagequeue.util.timestamps import is_masked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from pagequeue.store.store import Store

TEXT = "utf-8"
NO_RECORDS: Final = frozenset({str, list, int, float, complex, bool, NoneType})
"""What is sent instead of a record by mistake; other objects without bytes the core refuses."""
BYTE_FORMATS: Final = frozenset({"B", "b", "c", "<B", "<b", "<c"})
"""Formats of buffers that hold bytes: those of other numbers are not the bytes of a record."""


def payload_for(store: Store, value: Any) -> Buffer:  # noqa: ANN401 - any object
    """Return the payload of an object in a queue's schema.

    Raises:
        NotEncodable, DtypeMismatch, MissingExtra: as for `CodecProducer.send`.
    """
    kind = store.schema
    if kind.dtype is None:
        return kind.encode(value)
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, np.generic | np.ndarray):
        _check_dtype(store, value)
        return np.asarray(value).tobytes()
    if is_record(value):
        return records_of_values([value], kind.dtype).tobytes()
    if type(value) in NO_RECORDS:
        raise errors.NotEncodable(
            f"a {type(value).__name__} is not a record of {kind.dtype}; no message was sent",
            path=kind.path,
            remedy=f"send a tuple or a dict of the fields {list(kind.dtype.names or ())}",
        )
    _check_buffer(store, value)
    payload: Buffer = value
    return payload


def columns_for(store: Store, payloads: object) -> in_rows.ColumnInput | None:
    """Return columnar input for a queue with a codec or dtype; None for any other iterable.

    Raises:
        NotEncodable, DtypeMismatch, MissingExtra: as for `Producer.send_many`.
    """
    kind = store.schema
    if kind.dtype is None:
        is_text = kind.codec == TEXT and any(hasattr(payloads, way) for way in in_rows.ARROW)
        return _texts(payloads) if is_text else None
    if isinstance(payloads, np.ndarray) and payloads.dtype.kind not in "SO":  # bytes, or objects
        _check_dtype(store, payloads)
    return records_of(payloads, kind.dtype)


def payloads_for(store: Store, payloads: Iterable[Any]) -> list[Buffer]:
    """Return the payload of each object in a queue's schema.

    Raises:
        NotEncodable, DtypeMismatch, MissingExtra: as for `Producer.send_many`.
    """
    if isinstance(payloads, Mapping) or hasattr(payloads, "columns"):
        raise errors.NotEncodable(
            f"a {type(payloads).__name__} gives only its keys",
            remedy="send a list of values, or [it] as one message",
        )
    values = payloads if isinstance(payloads, list) else list(payloads)
    dtype = store.schema.dtype
    if dtype is None or not values or not all(map(is_record, values)):
        return [payload_for(store, value) for value in values]
    data, size = records_of_values(values, dtype).tobytes(), dtype.itemsize
    return [data[at : at + size] for at in range(0, len(data), size)]


def _check_dtype(store: Store, given: Any) -> None:  # noqa: ANN401 - an array or a scalar
    """Raise unless an array or scalar of NumPy has records of a queue, or their bytes.

    Raises:
        DtypeMismatch: it has another dtype. NotEncodable: some of its fields are masked.
    """
    found, dtype = given.dtype, store.schema.dtype
    if found == np.dtype((np.void, store.schema.record_bytes)):
        return  # bytes
    if found != dtype:
        raise _other_dtype(store, f"dtype {found}")
    if is_masked(given):
        raise errors.NotEncodable(
            "some fields are masked, which a record cannot express; no message was sent",
            path=store.folder.path,
            remedy="fill them, with array.filled()",
        )


def _check_buffer(store: Store, value: object) -> None:
    """Raise DtypeMismatch if an object's buffer holds values of another type than bytes."""
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return  # the core says what it lacks
    with view:
        if view.format in BYTE_FORMATS:
            return
        try:
            if np.asarray(view).dtype == store.schema.dtype:
                return
        except (TypeError, ValueError, RuntimeError):  # NumPy does not know this format
            pass
        raise _other_dtype(store, f"format {view.format!r}")


def _other_dtype(store: Store, found: str) -> errors.DtypeMismatch:
    dtype = store.schema.dtype
    return errors.DtypeMismatch(
        f"the queue has records of dtype {dtype}, not values of {found}; no message was sent",
        path=store.folder.path,
        dtype=dtype,
        remedy="send array.astype(dtype), or the bytes of a record",
    )


def _texts(payloads: object) -> in_rows.ColumnInput:
    values = in_rows.arrow_values(payloads)
    kind = str(getattr(values, "type", "a table"))
    if "string" not in kind:
        raise errors.NotEncodable(f"text is not {kind}", remedy="cast it to string")
    columns = in_rows.columns_of(values)
    assert columns is not None
    return columns
