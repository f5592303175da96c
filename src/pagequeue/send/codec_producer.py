"""CodecProducer: the producer of a queue that has a codec or fixed records."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from pagequeue import errors
from pagequeue.columns import inputs as in_rows
from pagequeue.columns.arrow_records import records_of
from pagequeue.columns.record_values import is_record, records_of_values
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock

TEXT = "utf-8"
NO_RECORDS: Final = frozenset({str, list, int, float, complex, bool, NoneType})
"""What is sent instead of a record by mistake; other objects without bytes the core refuses."""


def make_producer(store: Store, clock: Clock | None = None, sync_every: int = 0) -> Producer:
    """Return a producer for the messages that a queue holds.

    Raises:
        JournalOnly: only a journal may append to it.
    """
    store.check_appendable()
    made = Producer if store.schema.is_plain else CodecProducer
    return made(store, clock, sync_every)


class CodecProducer(Producer):
    """Sends objects, encoded by the queue's codec, or records of its dtype.

    Made by `Queue.producer()`, as any producer.

    Example:
        >>> with Queue("readings", codec="json") as queue, queue.producer() as producer:
        ...     producer.send({"celsius": 21.5})
        0
    """

    __slots__ = ()

    def __new__(cls, store: Store, clock: Clock | None = None, sync_every: int = 0) -> Self:
        """Attach as `Producer` does; the core checks the size of fixed records."""
        self = super().__new__(cls, store, clock, sync_every)
        self._record_bytes = store.schema.record_bytes
        return self

    def send(
        self,
        payload: Any,  # noqa: ANN401 - any object
        /,
        *,
        timestamp: int | None = None,
        at: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Make a message visible to every process, as `Producer.send` does.

        Args:
            payload: an object for the codec; or a record: a tuple of its fields, a dict with their
                names, a scalar of the dtype, or its bytes.
            timestamp: ns since 1970, UTC, for replaying history.
            at: the sequence that it must get, as for `Producer.send`.
            timeout: seconds to wait for room, as for `Producer.send`.

        Returns:
            the sequence of the message.

        Raises:
            NotEncodable: the codec cannot encode the object; or a field, which it names, cannot
                hold its value without loss (floats may be rounded).
            DtypeMismatch, RecordSize: not a record of this queue.
            MissingExtra: the codec's library is not installed.
            Overtaken, QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for
                `Producer.send`.

        Example:
            >>> producer.send({"celsius": 21.5})
            0

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I1, I2 and I4.
        encoded = self._payload(payload)
        return super().send(encoded, timestamp=timestamp, at=at, timeout=timeout)

    def _payload(self, value: Any) -> Buffer:  # noqa: ANN401 - any object
        return payload_for(self._store, value)

    def _in_columns(self, payloads: object) -> in_rows.ColumnInput | None:
        return columns_for(self._store, payloads)

    def _one_by_one(self, payloads: Iterable[Any]) -> Iterable[Buffer]:
        return payloads_for(self._store, payloads)


def payload_for(store: Store, value: Any) -> Buffer:  # noqa: ANN401 - any object
    """Return the payload of an object in a queue's schema.

    Raises:
        NotEncodable, DtypeMismatch, MissingExtra: as for `CodecProducer.send`.
    """
    kind = store.schema
    if kind.dtype is None:
        return kind.encode(value)
    if isinstance(value, np.void | np.ndarray) and value.dtype.names is not None:
        _check_dtype(store, value.dtype)
        return value.tobytes()
    if is_record(value):
        return records_of_values([value], kind.dtype).tobytes()
    if type(value) in NO_RECORDS:
        raise errors.NotEncodable(
            f"a {type(value).__name__} is not a record of {kind.dtype}; no message was sent",
            path=kind.path,
            remedy=f"send a tuple or a dict of the fields {list(kind.dtype.names or ())}",
        )
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
    if isinstance(payloads, np.ndarray) and payloads.dtype.names is not None:
        _check_dtype(store, payloads.dtype)
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


def _check_dtype(store: Store, found: np.dtype[Any]) -> None:
    dtype = store.schema.dtype
    if found != dtype:
        raise errors.DtypeMismatch(
            f"the queue has records of dtype {dtype}, not {found}",
            path=store.folder.path,
            dtype=dtype,
            remedy="send array.astype(dtype)",
        )


def _texts(payloads: object) -> in_rows.ColumnInput:
    values = in_rows.arrow_values(payloads)
    kind = str(getattr(values, "type", "a table"))
    if "string" not in kind:
        raise errors.NotEncodable(f"text is not {kind}", remedy="cast it to string")
    columns = in_rows.columns_of(values)
    assert columns is not None
    return columns
