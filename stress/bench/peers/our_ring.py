"""pagequeue as a ring, whose sender waits for the receiver's acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pagequeue import Queue
from stress.bench.peers.base import NOT_STORED, Peer
from stress.bench.peers.shared_ring import RING_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ACKNOWLEDGED_BYTES = 256 << 10
"""Acknowledged so often: a sixty-fourth of the ring."""


class OurRing(Peer):
    """One end of the queue."""

    gives_messages = True
    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "measured one by one",
        "producers": "measured with one sender",
        "fan-out": "measured with one receiver",
        "large": "a message is larger than the ring",
        "poll": "as without a ring",
        "block": "as without a ring",
        **dict.fromkeys(NOT_STORED, "keeps only what fits into the ring"),
    }

    def _queue(self) -> Queue[Any]:
        stall_seconds = self.plan.stall_seconds
        return self.stack.enter_context(
            Queue(self.plan.directory / "main", ring=RING_BYTES, full_timeout=stall_seconds)
        )

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a producer's `send`."""
        del channel
        return self.stack.enter_context(self._queue().producer()).send

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what receives, and acknowledges once for so many bytes."""
        del channel
        self.receive_argument = self.plan.stall_seconds
        consumer = self.stack.enter_context(self._queue().consumer("ring"))
        receive, ack, left = consumer.receive, consumer.ack, self.plan.count
        every = max(1, ACKNOWLEDGED_BYTES // self.plan.size_bytes)

        def receive_and_ack(timeout: float) -> Any:  # noqa: ANN401 - a Message
            nonlocal left
            message = receive(timeout)
            left -= 1
            if left % every == 0:
                ack(message)
            return message

        return receive_and_ack
