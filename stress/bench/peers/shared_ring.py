"""A ring in shared memory, in plain Python: what a user writes without a library.

One sender, one receiver, slots of one size, two counters. It checks nothing, persists nothing, and
waits by yielding; stores are ordered because x86 orders them, so it is no model to follow.
"""

from __future__ import annotations

import os
import time
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import NOT_STORED, Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

RING_BYTES = 16 << 20
COUNTERS_BYTES = 256
SENT, RECEIVED = 0, 16  # places of the counters, in words: not in one cache line


class SharedRing(Peer):
    """One end of the ring."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "no call for several messages",
        "producers": "one sender only",
        "fan-out": "one receiver only",
        "large": "a message is larger than the ring",
        "block": "a receiver that waits spins",
        **NOT_STORED,
    }

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> dict[str, str]:
        """Return the name of each channel's memory, all of it touched."""
        del context
        names = {}
        for channel in plan.channels:
            memory = SharedMemory(create=True, size=COUNTERS_BYTES + RING_BYTES)
            assert memory.buf is not None
            memory.buf[:] = bytes(len(memory.buf))
            memory.close()
            names[channel] = memory.name
        return names

    @staticmethod
    def unshare(shared: dict[str, str]) -> None:
        """Remove the memory."""
        for name in shared.values():
            memory = SharedMemory(name)
            memory.close()
            memory.unlink()

    def _open(self, channel: str) -> tuple[memoryview, memoryview, int]:
        memory: Any = SharedMemory(self.shared[channel])
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
        words, slots, slot_count = self._open(channel)
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

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what copies out of the next slot."""
        words, slots, slot_count = self._open(channel)
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

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return what copies out of the next slot, if it is filled."""
        words, slots, slot_count = self._open(channel)
        size_bytes, received = self.plan.size_bytes, 0

        def poll() -> bytes | None:
            nonlocal received
            if words[SENT] == received:
                return None
            at = received % slot_count * size_bytes
            payload = bytes(slots[at : at + size_bytes])
            received += 1
            words[RECEIVED] = received
            return payload

        return poll
