"""The producer of bulk commits: it sends on a condition, and commits staged pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import _core
from pagequeue.send.producer import Producer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pagequeue.meta.write_meta import Tail


class _OvertakenError(Exception):
    """Another producer has the sequence, or a later timestamp."""


class BulkProducer(Producer):
    """A producer with the steps of a bulk commit, for `bulk` alone."""

    __slots__ = ()

    def require_record_bytes(self, record_bytes: int) -> None:
        """Accept payloads of this size only; 0: of any size."""
        self._record_bytes = record_bytes

    def check_open(self) -> None:
        """Raise unless this process may use the producer."""
        self._check_open()

    def send_at(self, sequence: int, payloads: list[bytes], times: NDArray[np.int64]) -> bool:
        """Send a batch as the messages from a sequence on.

        Returns:
            Whether it was sent; False: that sequence is taken, or a later timestamp.
        """
        self._only_at = sequence + 1
        try:
            self.send_many(payloads, timestamps=times)
        except _OvertakenError:
            return False
        finally:
            self._only_at = 0
        return True

    def _on_event(self, event: int, value: int) -> bool:
        if event in {_core.EVENT_CROWDED, _core.EVENT_OLD_TIMESTAMP} and self._only_at:
            raise _OvertakenError
        return super()._on_event(event, value)

    def roll_from(self, number: int) -> None:
        """Seal page `number`, unless that was done already, and continue in the next one."""
        self._roll_from(number)

    def commit_pages(self, page: _core.Region, header: bytes, beyond: Tail) -> None:
        """Publish all pages from the next one on, up to a tail (M6 to M8).

        Raises:
            CorruptPage: other messages were appended before them. SyncFailed: the queue is latched.
        """
        self._commit_pages(page, header, beyond)

    def flush_sent(self, end_sequence: int) -> None:
        """Flush all messages below a sequence, which were sent.

        Raises:
            NotDurable: the flush failed; the messages are visible.
        """
        self._flush_sent(end_sequence)
