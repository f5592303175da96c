"""A ring in shared memory, in plain Python: what a user writes without a library.

One sender, one receiver, slots of one size, two counters. It checks nothing, persists nothing, and
waits by yielding; stores are ordered because x86 orders them, so it is no model to follow.
"""

from __future__ import annotations

import os
import time
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

from stress.bench.peers.base import Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext

RING_BYTES = 16 << 20
COUNTERS_BYTES = 256
SENT, RECEIVED = 0, 16  # places of the counters, in words: not in one cache line


class SharedRing(Peer):
    """One end of the ring."""

    @staticmethod
    def share(context: SpawnContext) -> str:
        """Return the name of the memory, all of it touched."""
        del context
        memory = SharedMemory(create=True, size=COUNTERS_BYTES + RING_BYTES)
        assert memory.buf is not None
        memory.buf[:] = bytes(len(memory.buf))
        memory.close()
        return memory.name

    @staticmethod
    def unshare(shared: str) -> None:
        """Remove the memory."""
        memory = SharedMemory(shared)
        memory.close()
        memory.unlink()

    def _open(self) -> tuple[memoryview, memoryview, int]:
        memory: Any = SharedMemory(self.shared)
        view = memory.buf
        words = view[:COUNTERS_BYTES].cast("Q")
        slots = view[COUNTERS_BYTES : COUNTERS_BYTES + RING_BYTES]
        for held in (memory.close, words.release, slots.release):
            self.stack.callback(held)
        return words, slots, RING_BYTES // self.plan.size_bytes

    def _wait(self, words: memoryview, at: int, value: int) -> None:
        """Wait until a counter is another one."""
        deadline = time.monotonic() + self.plan.stall_seconds
        while words[at] == value:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise CheckFailed("no more messages came")

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what copies into the next slot."""
        del channel
        words, slots, slot_count = self._open()
        size_bytes, wait, sent = self.plan.size_bytes, self._wait, 0

        def send(payload: bytes) -> None:
            nonlocal sent
            if sent - words[RECEIVED] == slot_count:
                wait(words, RECEIVED, sent - slot_count)
            at = sent % slot_count * size_bytes
            slots[at : at + size_bytes] = payload
            sent += 1
            words[SENT] = sent

        return send

    def open_receive(self) -> Callable[..., Any]:
        """Return what copies out of the next slot."""
        words, slots, slot_count = self._open()
        size_bytes, wait, received = self.plan.size_bytes, self._wait, 0

        def receive() -> bytes:
            nonlocal received
            if words[SENT] == received:
                wait(words, SENT, received)
            at = received % slot_count * size_bytes
            payload = bytes(slots[at : at + size_bytes])
            received += 1
            words[RECEIVED] = received
            return payload

        return receive
