"""LMDB without sync: one write transaction for each message, integer keys, big-endian.

The fastest of its options that were tried: a writable map, no zeroing, append, a transaction
object without `with`; a reader that spins opens a read transaction for each poll.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import lmdb

from stress.bench.loops import SEEK_BASE_NS
from stress.bench.peers.base import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

key_of = struct.Struct(">Q").pack
SPARE_BYTES = 64 << 20
OVERHEAD_BYTES = 64  # most that a record of these sizes costs on top of its payload


class LmdbStore(Peer):
    """One environment for each direction."""

    def _environment(self, channel: str = "main") -> lmdb.Environment:
        plan = self.plan
        # Appending leaves leaf pages nearly full; twice the payload is ample.
        map_size = 2 * plan.count * (plan.size_bytes + OVERHEAD_BYTES) + SPARE_BYTES
        environment = lmdb.open(
            str(plan.directory / f"lmdb-{channel}"),
            map_size=map_size,
            sync=False,
            metasync=False,
            map_async=True,
            writemap=True,
            meminit=False,
        )
        self.stack.callback(environment.close)
        return environment

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return a callable that puts one message under the next key, in a separate transaction."""
        begin = self._environment(channel).begin
        number = 0

        def send(payload: bytes) -> None:
            nonlocal number
            transaction = begin(None, None, True)  # write; keywords are slower
            transaction.put(key_of(number), payload, True, True, True)  # append
            transaction.commit()
            number += 1

        return send

    def open_send_at(self) -> Callable[[bytes, int], object]:
        """Return what puts a message under its time; one transaction for all, to be done sooner."""
        transaction = self._environment().begin(write=True)
        self.stack.callback(transaction.commit)
        put = transaction.put

        def send_at(payload: bytes, timestamp_ns: int) -> None:
            put(key_of(timestamp_ns), payload, append=True)

        return send_at

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a callable that polls for the next key."""
        begin = self._environment(channel).begin
        number = 0

        def poll() -> bytes | None:
            nonlocal number
            transaction = begin()
            payload = transaction.get(key_of(number))
            transaction.abort()
            if payload is not None:
                number += 1
            return payload

        return poll

    def open_stream(self) -> Iterator[bytes]:
        """Return all values; without the keys, because that is its fast way."""
        transaction = self.stack.enter_context(self._environment().begin())
        return transaction.cursor().iternext(keys=False)

    def open_seek(self) -> Callable[[int], Any]:
        """Return what reads the first value at or after a time, in one long read transaction."""
        cursor = self.stack.enter_context(self._environment().begin()).cursor()
        set_range, value = cursor.set_range, cursor.value
        assert set_range(key_of(SEEK_BASE_NS))

        def seek_and_read(since_ns: int) -> bytes:
            set_range(key_of(since_ns))
            return value()

        return seek_and_read
