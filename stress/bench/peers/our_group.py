"""pagequeue with a group: each message goes to one worker, which acknowledges it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stress.bench.peers.ours import PageQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAPACITY = 1024


class GroupQueue(PageQueue):
    """One worker of the group, or its sender."""

    gives_messages = False

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what claims a message, acknowledges it, and gives its payload."""
        del channel
        claim = self.stack.enter_context(self._queue().group("work", capacity=CAPACITY)).claim
        stall_seconds = self.plan.stall_seconds

        def receive() -> bytes:
            claimed = claim(stall_seconds)
            payload: bytes = claimed.message.payload
            claimed.ack()
            return payload

        return receive


class ColumnQueue(PageQueue):
    """One reader of whole columns."""

    def open_columns(self) -> Iterator[np.ndarray[Any, Any]]:
        """Return the numbers of the messages stored so far, an array for each batch."""
        size_bytes = self.plan.size_bytes
        record = np.dtype([("number", "<u8"), ("rest", f"V{size_bytes - 8}")])
        for batch in self._queue().batches():
            yield batch.to_numpy(record)["number"]
