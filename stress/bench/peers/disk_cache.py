"""diskcache: its deque, a table of SQLite in WAL mode, each operation a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import diskcache  # type: ignore[import-untyped,unused-ignore]

from stress.bench.peers.base import Peer, poll_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class DiskCache(Peer):
    """A deque for each channel; what a receiver takes is removed."""

    lacks: ClassVar[Mapping[str, str]] = {
        "batches": "no call for several messages",
        "fan-out": "a message goes to one receiver",
        "block": "a receiver that waits polls",
        "replay batches": "no call for several messages",
        "seek": "no index",
        "seek far": "no index",
    }

    def _deque(self, channel: str) -> Any:  # noqa: ANN401 - untyped
        deque = diskcache.Deque(directory=str(self.plan.directory / f"deque-{channel}"))
        self.stack.callback(deque.cache.close)
        return deque

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `append`."""
        append: Callable[[bytes], object] = self._deque(channel).append
        return append

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return `popleft`, which raises when there is none."""
        take = self._deque(channel).popleft

        def poll() -> bytes | None:
            try:
                payload: bytes = take()
            except IndexError:
                return None
            return payload

        return poll

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what polls until there is one."""
        return poll_until(self.open_poll(channel), self.plan.stall_seconds)

    def open_stream(self) -> Iterable[bytes]:
        """Return all, which stay."""
        stream: Iterable[bytes] = self._deque("main")
        return stream
