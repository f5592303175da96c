"""ZeroMQ over ipc: PUSH to PULL for a queue, publish/subscribe for fan-out.

High-water marks are 0, so no message is dropped and no sender waits for room (also its fastest
setting here). The measurement starts once the connection is up: the sender waits until it could
send. The publisher is an XPUB socket, the same as PUB except that it is told of subscriptions: it
waits for all of them before the start, so that no subscriber misses a message. Where several send,
the receiver binds and they connect; where several work, each binds and the sender connects to all.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar

import zmq

from stress.bench.loops import consume, produce
from stress.bench.peers.base import NOT_STORED, Peer
from stress.bench.plan import CheckFailed
from stress.bench.worker_loops import channel_of, work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan

NO_LIMIT = 0
RETRY_MS = 1  # a receiver that comes before the sender tries again so soon


class ZeroMQ(Peer):
    """One socket, its end of one ipc address."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "a call sends one message",
        **NOT_STORED,
    }

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

    def _address(self, channel: str) -> str:
        return f"ipc://{self.shared}/{channel}"

    @property
    def _has_many_producers(self) -> bool:
        return self.plan.role_count(produce) > 1

    @property
    def _fans_out(self) -> bool:
        return self.plan.role_count(consume) > 1

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> str:
        """Return the directory of the sockets."""
        del plan, context
        return tempfile.mkdtemp(prefix="bench-")

    @staticmethod
    def unshare(shared: str) -> None:
        """Remove the directory of the sockets."""
        shutil.rmtree(shared, ignore_errors=True)

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return the socket's send, once every subscriber is known."""
        address = self._address(channel)
        if workers := self.plan.role_count(work):
            socket = self._socket(zmq.PUSH)
            for worker in range(workers):
                socket.connect(self._address(channel_of(worker)))
            return socket.send
        if self._has_many_producers:
            socket = self._socket(zmq.PUSH)
            socket.connect(address)
            return socket.send
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

    def _open_receiver(self, channel: str) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.SUB if self._fans_out else zmq.PULL)
        if self._has_many_producers or self.plan.role_count(work):
            socket.bind(self._address(channel))
        else:
            socket.connect(self._address(channel))
        if self._fans_out:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return the socket's receive."""
        return self._open_receiver(channel).recv

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a receive that does not wait."""
        receive, nothing = self._open_receiver(channel).recv, zmq.Again

        def poll() -> bytes | None:
            try:
                return receive(zmq.NOBLOCK)
            except nothing:
                return None

        return poll
