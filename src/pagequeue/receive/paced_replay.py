"""PacedReplay: a replay that returns messages when they are due, as fast as they were sent.

It holds the messages that it has read and that are not due yet, so an interrupted wait loses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.receive.pace import NS_PER_S, Pace
from pagequeue.receive.replay import Replay
from pagequeue.util.wakeup import Wakeup
from pagequeue.wait.coroutine import check_timeout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pagequeue._core import Message
    from pagequeue.columns.batch import Batch
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import TimeLike

AHEAD_COUNT = 1024
"""Messages to read at a time."""


def due_count(pace: Pace, timestamps: NDArray[np.int64]) -> int:
    """Return how many of some messages are due, 1 or more: the first one is due."""
    return max(1, int(timestamps.searchsorted(pace.due(), "right")))


class PacedReplay(Replay):
    """A finite iterator of messages, which returns each when it is due.

    Made by `Queue.replay(speed=...)`.

    Attributes:
        sequence: of the next message.
    """

    __slots__ = ("_at", "_ended", "_held", "_pace")

    _pace: Pace
    _ended: Wakeup
    _held: Batch | None
    _at: int

    def __new__(
        cls,
        store: Store,
        since: TimeLike | None,
        until: TimeLike | None,
        sequence: int | None,
        end_sequence: int | None,
        pace: Pace,
    ) -> Self:
        """Go to the first message; its pace begins when it is requested."""
        self = super().__new__(cls, store, since, until, sequence, end_sequence)
        self._pace = pace
        self._ended = Wakeup()
        self._held = None
        self._at = 0
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        """Return the next message when it is due."""
        held = self._hold()
        if held is None:
            raise StopIteration
        message = held[self._at]
        self._await_due(message.timestamp)
        self._at += 1
        return message

    def poll(self) -> Message | None:
        """Return the next message; None if it is not due, or at the end. Never waits."""
        held = self._hold()
        if held is None or self._pace.left_ns(held[self._at].timestamp) > 0:
            return None
        message = held[self._at]
        self._at += 1
        return message

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message when it is due.

        Args:
            timeout: seconds to wait; None waits as long as necessary, 0 never waits.

        Raises:
            TimeoutError: it is not due in time, or the replay has ended.
            ClosedError: another thread closed the replay.

        Example:
            >>> queue.replay(speed=10.0).receive(timeout=1.0).payload
            b'one'
        """
        timeout = check_timeout(timeout)
        held = self._hold()
        if held is None:
            self._on_timeout(0)
        elif not self._await_due(held[self._at].timestamp, timeout):
            raise errors.NothingReceived(
                f"the next message is not due within {timeout:g} s",
                path=self._store.folder.path,
                remedy="call again",
            )
        return next(self)

    @property
    def sequence(self) -> int:
        """The sequence of the next message."""
        if self._held is None or self._at >= len(self._held):
            return super().sequence
        return self._held[self._at].sequence

    def _hold(
        self, limit_count: int = AHEAD_COUNT, bytes_max: int = fmt.READ_BYTES_MAX
    ) -> Batch | None:
        """Return the messages that are held; read more if all were returned; None: the end."""
        if self._closed:
            self._on_closed()
        self._store.check_process(self._kind)
        if self._held is None or self._at >= len(self._held):
            try:
                self._held = super()._batch(limit_count, 0, bytes_max)
            except errors.NothingReceived:  # a tail that awaits recovery
                self._held = None
            self._at = 0
        return self._held

    def _await_due(self, timestamp: int, timeout: float | None = None) -> bool:
        """Sleep until a message is due; False if that is after the timeout."""
        pace = self._pace
        deadline = None if timeout is None else pace.now() + int(timeout * NS_PER_S)
        while (left := pace.left_ns(timestamp)) > 0:
            if deadline is not None:
                left = min(left, deadline - pace.now())
                if left <= 0:
                    return False
            pace.sleep(left / NS_PER_S, self._ended)
            if self._closed:
                self._on_closed()
        return True

    def _batch(
        self, limit_count: int, timeout: float | None, bytes_max: int = fmt.READ_BYTES_MAX
    ) -> Batch | None:
        """Return the next messages that are due, waiting for the first; None at the end."""
        del timeout  # a replay never waits for messages to be sent
        held = self._hold(limit_count, bytes_max)
        if held is None:
            return None
        rest = held[self._at : self._at + limit_count]
        self._await_due(int(rest.timestamps[0]))
        due = rest[: due_count(self._pace, rest.timestamps)]
        self._at += len(due)
        return due

    def close(self) -> None:
        """Unmap the page; another thread that waits for a message gets `ClosedError`."""
        self._ended.set()
        super().close()
