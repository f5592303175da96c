"""faster-fifo: a ring in shared memory with a lock of the operating system, without pickling."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any, ClassVar

import faster_fifo  # type: ignore[import-not-found,import-untyped,unused-ignore]
import faster_fifo_reduction  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401 - lets a queue be passed to processes

from stress.bench.peers.base import NOT_STORED, Peer
from stress.bench.peers.shared_ring import RING_BYTES
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

PREFIX_BYTES = 4096
"""More than what it stores with a message."""


def as_it_is(payload: bytes) -> bytes:
    """Return the payload: the queue is given bytes."""
    return payload


class FasterFifo(Peer):
    """A queue for each channel, of 16 MiB or of two messages."""

    lacks: ClassVar[Mapping[str, str]] = {
        "fan-out": "a message goes to one receiver",
        **NOT_STORED,
    }

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> Any:  # noqa: ANN401 - untyped
        """Return a queue for each channel."""
        del context
        size_bytes = max(RING_BYTES, 2 * (plan.size_bytes + PREFIX_BYTES))
        return {
            channel: faster_fifo.Queue(max_size_bytes=size_bytes, loads=bytes, dumps=as_it_is)
            for channel in plan.channels
        }

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `put`."""
        put, stall_seconds = self.shared[channel].put, self.plan.stall_seconds
        return lambda payload: put(payload, True, stall_seconds)

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return `put_many`."""
        put_many, stall_seconds = self.shared["main"].put_many, self.plan.stall_seconds
        return lambda payloads: put_many(payloads, True, stall_seconds)

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return `get`."""
        get, stall_seconds = self.shared[channel].get, self.plan.stall_seconds
        return lambda: get(True, stall_seconds)

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return `get_many`."""
        get_many, stall_seconds = self.shared["main"].get_many, self.plan.stall_seconds
        return lambda: get_many(True, stall_seconds, BATCH_COUNT)

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a `get` that does not wait."""
        get, nothing = self.shared[channel].get_nowait, queue.Empty

        def poll() -> bytes | None:
            try:
                payload: bytes = get()
            except nothing:
                return None
            return payload

        return poll
