"""LMDB without sync: one write transaction for each message, integer keys, big-endian.

The fastest of its options that were tried: a writable map, no zeroing, append, a transaction
object without `with`; a reader that spins opens a read transaction for each poll.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import lmdb

from stress.bench.loops import SEEK_BASE_NS, produce
from stress.bench.peers.base import Peer, poll_until
from stress.bench.wire import BATCH_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

key_of = struct.Struct(">Q").pack
number_of = struct.Struct(">Q").unpack
SPARE_BYTES = 64 << 20
OVERHEAD_BYTES = 64  # most that a record of these sizes costs on top of its payload


class LmdbStore(Peer):
    """One environment for each direction."""

    lacks: ClassVar[Mapping[str, str]] = {"block": "a reader that waits polls"}

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
        if self.plan.role_count(produce) > 1:
            return _send_of_many(begin)
        with begin() as transaction:  # of an earlier process
            cursor = transaction.cursor()
            number = number_of(cursor.key())[0] + 1 if cursor.last() else 0

        def send(payload: bytes) -> None:
            nonlocal number
            transaction = begin(None, None, True)  # write; keywords are slower
            transaction.put(key_of(number), payload, True, True, True)  # append
            transaction.commit()
            number += 1

        return send

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return what puts a list of messages in one transaction."""
        begin = self._environment().begin
        number = 0

        def send_many(payloads: list[bytes]) -> None:
            nonlocal number
            transaction = begin(None, None, True)
            put = transaction.put
            for payload in payloads:
                put(key_of(number), payload, True, True, True)
                number += 1
            transaction.commit()

        return send_many

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

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what polls until the next key is there."""
        return poll_until(self.open_poll(channel), self.plan.stall_seconds)

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what waits for a key and reads on from it, in one transaction."""
        begin = self._environment().begin
        number = 0

        def poll_many() -> list[bytes] | None:
            nonlocal number
            transaction = begin()
            cursor = transaction.cursor()
            payloads = []
            if cursor.set_key(key_of(number)):
                payloads = list(islice(cursor.iternext(keys=False), BATCH_COUNT))
            transaction.abort()
            number += len(payloads)
            return payloads or None

        return poll_until(poll_many, self.plan.stall_seconds)

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return all values, so many at a time."""
        stream = self.open_stream()
        while payloads := list(islice(stream, BATCH_COUNT)):
            yield payloads

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


def _send_of_many(begin: Callable[..., Any]) -> Callable[[bytes], object]:
    """Return what sends where others do too: the next key is read in the transaction."""

    def send(payload: bytes) -> None:
        transaction = begin(None, None, True)
        cursor = transaction.cursor()
        number = number_of(cursor.key())[0] + 1 if cursor.last() else 0
        transaction.put(key_of(number), payload, True, True, True)
        transaction.commit()

    return send
