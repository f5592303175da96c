"""ValueProducer: the producer of a queue that has a codec or fixed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    """Return a producer as a queue's kind needs it."""
    kind = store.schema
    made = Producer if kind.is_plain else CodecProducer
    producer = made(store, clock, sync_every)
    producer._record_bytes = kind.record_bytes  # noqa: SLF001 - its own package
    return producer


class CodecProducer(Producer):
    """Sends objects by the queue's codec, or records of its dtype.

    Made by `Queue.producer()`, as any producer.
    """

    __slots__ = ()

    def send(self, payload: Any, /, *, timestamp: int | None = None) -> int:  # noqa: ANN401 - any object
        """Make a message visible to every process, as `Producer.send` does.

        Args:
            payload: an object for the codec; or a record: a scalar of the dtype, or its bytes.
            timestamp: ns since 1970, UTC, for replaying history.

        Raises:
            NotEncodable: the codec has no payload for the object; nothing was sent.
            DtypeMismatch, RecordSize: no record of this queue; nothing was sent.
            MissingExtra: the codec's library is not installed.
            As for `Producer.send`.

        Source: FORMAT.md, "Publishing"; keeps I1, I2, I4.
        """
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
                f"the queue has records of dtype {dtype}, not {found}: send array.astype(dtype)",
                path=self._store.folder.path, dtype=dtype,
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
                f"a {type(payloads).__name__} gives only its keys: send a list of values, or [it] "
                "as one message"
            )
        return [self._payload(value) for value in payloads]


def _texts(payloads: object) -> in_rows.ColumnInput:
    values = in_rows.arrow_values(payloads)
    kind = str(getattr(values, "type", "a table"))
    if "string" not in kind:
        raise errors.NotEncodable(f"text is not {kind}: cast it to string; nothing was sent")
    columns = in_rows.columns_of(values)
    assert columns is not None
    return columns
