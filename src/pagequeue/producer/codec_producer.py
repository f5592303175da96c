"""CodecProducer: the producer of a queue that has a codec or fixed records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pagequeue.producer.producer import Producer
from pagequeue.send.payloads import columns_for, payload_for, payloads_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from pagequeue.columns.inputs import ColumnInput
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock


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

    def _in_columns(self, payloads: object) -> ColumnInput | None:
        return columns_for(self._store, payloads)

    def _one_by_one(self, payloads: Iterable[Any]) -> Iterable[Buffer]:
        return payloads_for(self._store, payloads)
