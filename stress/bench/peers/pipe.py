"""multiprocessing.Pipe: a socket pair, with `send_bytes` and `recv_bytes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import NOT_STORED, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan


class Pipe(Peer):
    """One end of a pipe of one direction for each channel."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "no call for several messages",
        "producers": "a connection is for one sender",
        "fan-out": "a message goes to one receiver",
        **NOT_STORED,
    }

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> dict[str, tuple[Connection, Connection]]:
        """Return both ends of each channel."""
        return {channel: context.Pipe(duplex=False) for channel in plan.channels}

    @staticmethod
    def unshare(shared: dict[str, tuple[Connection, Connection]]) -> None:
        """Close the parent's ends."""
        for ends in shared.values():
            for end in ends:
                end.close()

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `send_bytes`."""
        send: Callable[[bytes], object] = self.shared[channel][1].send_bytes
        return send

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return `recv_bytes`."""
        receive: Callable[..., Any] = self.shared[channel][0].recv_bytes
        return receive

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return a receive that does not wait."""
        end: Connection = self.shared[channel][0]
        has_message, receive = end.poll, end.recv_bytes
        return lambda: receive() if has_message() else None
