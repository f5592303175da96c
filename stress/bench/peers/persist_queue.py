"""persist-queue: its queue of files, as it comes; for one process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import persistqueue
from persistqueue.exceptions import Empty

from stress.bench.peers.base import Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ONE_PROCESS = "for one process at a time"


class PersistQueue(Peer):
    """A directory of files; what is read is removed."""

    lacks: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("pass", "batches", "producers", "fan-out", "large", "poll", "block"), ONE_PROCESS
        ),
        "replay batches": "no call for several messages",
        "seek": "no index",
        "seek far": "no index",
    }

    def _queue(self) -> persistqueue.Queue:
        return persistqueue.Queue(str(self.plan.directory / "persistent"))

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return `put`."""
        del channel
        return self._queue().put

    def open_stream(self) -> Iterator[bytes]:
        """Return all items, taken out; `task_done` would write the place of each."""
        get = self._queue().get_nowait
        while True:
            try:
                yield get()
            except Empty:
                return
