"""LMDB with all its syncs: a write transaction for each block, integer keys, big-endian."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import lmdb

from stress.bench.peers.base import Peer
from stress.bench.peers.lmdb_store import OVERHEAD_BYTES, SPARE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

key_of = struct.Struct(">Q").pack


class LmdbSync(Peer):
    """One environment."""

    def _environment(self) -> lmdb.Environment:
        plan = self.plan
        size = 2 * plan.count * (plan.size_bytes + OVERHEAD_BYTES) + SPARE_BYTES
        environment = lmdb.open(str(plan.directory / "lmdb"), map_size=size)
        self.stack.callback(environment.close)
        return environment

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return a put into the open transaction, and its commit."""
        begin = self._environment().begin
        transaction = None
        number = 0

        def send(payload: bytes) -> None:
            nonlocal transaction, number
            if transaction is None:
                transaction = begin(None, None, True)  # write; keywords are slower
            transaction.put(key_of(number), payload, True, True, True)  # append
            number += 1

        def flush() -> None:
            nonlocal transaction
            assert transaction is not None
            transaction.commit()
            transaction = None

        return send, flush

    def open_stream(self) -> Iterator[bytes]:
        """Return all values."""
        transaction = self.stack.enter_context(self._environment().begin())
        return transaction.cursor().iternext(keys=False)
