"""ZeroMQ over ipc: PUSH to PULL for a queue, publish/subscribe for fan-out.

High-water marks are 0, so no message is dropped and no sender waits for room (also its fastest
setting here). The measurement starts once the connection is up: the sender waits until it could
send. The publisher is an XPUB socket, the same as PUB except that it is told of subscriptions: it
waits for all of them before the start, so that no subscriber misses a message.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import zmq

from stress.bench.loops import consume
from stress.bench.peers.base import Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext

NO_LIMIT = 0
RETRY_MS = 1  # a receiver that comes before the sender tries again so soon


class ZeroMQ(Peer):
    """One socket, its end of one ipc address."""

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        # The path of a socket is at most 107 bytes, so it is not put into the benchmark's
        # directory, which can be deep. No message passes through the file system.
        context = self.stack.enter_context(zmq.Context())
        socket = self.stack.enter_context(context.socket(kind))
        socket.setsockopt(zmq.SNDHWM, NO_LIMIT)
        socket.setsockopt(zmq.RCVHWM, NO_LIMIT)
        socket.setsockopt(zmq.RECONNECT_IVL, RETRY_MS)
        socket.setsockopt(zmq.RCVTIMEO, int(self.plan.stall_seconds * 1000))
        return socket

    @property
    def _fans_out(self) -> bool:
        return self.plan.role_count(consume) > 1

    @staticmethod
    def share(context: SpawnContext) -> str:
        """Return the directory of the socket."""
        del context
        return tempfile.mkdtemp(prefix="bench-")

    @staticmethod
    def unshare(shared: str) -> None:
        """Remove the directory of the socket."""
        shutil.rmtree(shared, ignore_errors=True)

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return the socket's send, once every subscriber is known."""
        del channel
        address = f"ipc://{self.shared}/socket"
        if not self._fans_out:
            socket = self._socket(zmq.PUSH)
            socket.bind(address)
            if not socket.poll(int(self.plan.stall_seconds * 1000), zmq.POLLOUT):
                raise CheckFailed("no receiver connected")
            return socket.send
        socket = self._socket(zmq.XPUB)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # tell of every subscriber, not of the first
        socket.bind(address)
        for _ in range(self.plan.role_count(consume)):
            assert socket.recv() == b"\x01"
        return socket.send

    def open_receive(self) -> Callable[..., Any]:
        """Return the socket's receive."""
        socket = self._socket(zmq.SUB if self._fans_out else zmq.PULL)
        socket.connect(f"ipc://{self.shared}/socket")
        if self._fans_out:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket.recv
