"""CodecProducer: the producer of a queue that has a codec or fixed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pagequeue import errors
from pagequeue.columns import inputs as in_rows
from pagequeue.columns.arrow_records import records_of
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock

TEXT = "utf-8"


def make_producer(store: Store, clock: Clock | None = None, sync_every: int = 0) -> Producer:
    """Return a producer for the messages that a queue holds."""
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

    def send(self, payload: Any, /, *, timestamp: int | None = None) -> int:  # noqa: ANN401 - any object
        """Make a message visible to every process, as `Producer.send` does.

        Args:
            payload: an object for the codec; or a record: a scalar of the dtype, or its bytes.
            timestamp: ns since 1970, UTC, for replaying history.

        Returns:
            the sequence of the message.

        Raises:
            NotEncodable: the codec cannot encode the object.
            DtypeMismatch, RecordSize: not a record of this queue.
            MissingExtra: the codec's library is not installed.
            QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `Producer.send`.

        Example:
            >>> producer.send({"celsius": 21.5})
            0

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I1, I2 and I4.
        return super().send(self._payload(payload), timestamp=timestamp)

    def _payload(self, value: Any) -> Buffer:  # noqa: ANN401 - any object
        kind = self._store.schema
        if kind.dtype is None:
            return kind.encode(value)
        if isinstance(value, np.void | np.ndarray) and value.dtype.names is not None:
            self._check_dtype(value.dtype)
            return value.tobytes()
        payload: Buffer = value
        return payload

    def _check_dtype(self, found: np.dtype[Any]) -> None:
        dtype = self._store.schema.dtype
        if found != dtype:
            raise errors.DtypeMismatch(
                f"the queue has records of dtype {dtype}, not {found}",
                path=self._store.folder.path, dtype=dtype, remedy="send array.astype(dtype)",
            )  # fmt: skip

    def _in_columns(self, payloads: object) -> in_rows.ColumnInput | None:
        kind = self._store.schema
        if kind.dtype is None:
            is_text = kind.codec == TEXT and any(hasattr(payloads, way) for way in in_rows.ARROW)
            return _texts(payloads) if is_text else None
        if isinstance(payloads, np.ndarray) and payloads.dtype.names is not None:
            self._check_dtype(payloads.dtype)
        return records_of(payloads, kind.dtype)

    def _one_by_one(self, payloads: Iterable[Any]) -> Iterable[Buffer]:
        if isinstance(payloads, Mapping) or hasattr(payloads, "columns"):
            raise errors.NotEncodable(
                f"a {type(payloads).__name__} gives only its keys",
                remedy="send a list of values, or [it] as one message",
            )
        return [self._payload(value) for value in payloads]


def _texts(payloads: object) -> in_rows.ColumnInput:
    values = in_rows.arrow_values(payloads)
    kind = str(getattr(values, "type", "a table"))
    if "string" not in kind:
        raise errors.NotEncodable(f"text is not {kind}", remedy="cast it to string")
    columns = in_rows.columns_of(values)
    assert columns is not None
    return columns
