"""multiprocessing.Queue, unbounded, with its default settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import NOT_STORED, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan


class MultiprocessingQueue(Peer):
    """The standard library's queue between processes."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "no call for several messages",
        "fan-out": "a message goes to one receiver",
        "poll": "its poll raises and takes a lock: it is made for waiting",
        **NOT_STORED,
    }

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> Any:  # noqa: ANN401 - generic only in the stubs
        """Return a queue for each channel."""
        return {channel: context.Queue() for channel in plan.channels}

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `put`."""
        put: Callable[[bytes], object] = self.shared[channel].put
        return put

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return `get`; without a timeout, because that is its fast way."""
        get: Callable[..., Any] = self.shared[channel].get
        return get
