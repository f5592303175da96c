"""multiprocessing.Queue, unbounded, with its default settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stress.bench.peers.base import Peer

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext


class MultiprocessingQueue(Peer):
    """The standard library's queue between processes."""

    @staticmethod
    def share(context: SpawnContext) -> Any:  # noqa: ANN401 - generic only in the stubs
        """Return the queue."""
        return context.Queue()

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `put`."""
        del channel
        put: Callable[[bytes], object] = self.shared.put
        return put

    def open_receive(self) -> Callable[..., Any]:
        """Return `get`; without a timeout, because that is its fast way."""
        get: Callable[..., Any] = self.shared.get
        return get
