"""queuelib: its FIFO queue of files; for one process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from queuelib import FifoDiskQueue

from stress.bench.peers.base import Peer
from stress.bench.peers.persist_queue import PersistQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class QueueLib(Peer):
    """A directory of files; what is read is removed."""

    lacks: ClassVar[Mapping[str, str]] = PersistQueue.lacks

    def _queue(self) -> Any:  # noqa: ANN401 - generic only in the stubs
        queue = FifoDiskQueue(str(self.plan.directory / "fifo"))
        self.stack.callback(queue.close)
        return queue

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `push`."""
        del channel
        push: Callable[[bytes], object] = self._queue().push
        return push

    def open_stream(self) -> Iterator[bytes]:
        """Return all items, taken out."""
        pop: Callable[[], bytes | None] = self._queue().pop
        while (payload := pop()) is not None:
            yield payload
