"""What a peer must offer: callables that the shared loops can call without a wrapper between.

Each process builds a new peer. `open_*` is called before the start barrier and returns the callable
to be measured; what it opens is closed by `close`, after the clock has stopped.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from multiprocessing.context import SpawnContext

    from stress.bench.plan import Plan


class Peer:
    """A way to get messages from one process to another, seen from one process."""

    # What `receive`, `poll` and `open_stream` give: objects with `.payload`, or the bytes.
    gives_messages = False
    # The one argument `receive` is called with where it gives messages (a timeout, for us).
    receive_argument: float = 0.0

    def __init__(self, plan: Plan, shared: Any) -> None:  # noqa: ANN401 - the peer's own
        self.plan = plan
        self.shared = shared
        self.stack = ExitStack()

    @staticmethod
    def share(context: SpawnContext) -> Any:  # noqa: ANN401 - the peer's own
        """Return the object that the parent must create and pass to every process."""
        del context

    @staticmethod
    def unshare(shared: Any) -> None:  # noqa: ANN401 - the peer's own
        """Undo what `share` did, once all processes have ended."""
        del shared

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends one message."""
        raise NotImplementedError

    def open_durable(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        """Return what sends one message, and what makes all of them durable."""
        raise NotImplementedError

    def open_send_at(self) -> Callable[[bytes, int], object]:
        """Return what sends one message with a timestamp of our choosing, in ns."""
        raise NotImplementedError

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return what sends a list of messages."""
        raise NotImplementedError

    def open_receive(self) -> Callable[..., Any]:
        """Return what waits for one message."""
        raise NotImplementedError

    def open_send_stream(self, channel: str = "main") -> Callable[[], AbstractContextManager[Any]]:
        """Return what opens the next message as a writable binary file."""
        raise NotImplementedError

    def open_receive_stream(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what waits for the next message and opens it as a readable binary file."""
        raise NotImplementedError

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what waits for at least one message and gives all that is at hand, bounded."""
        raise NotImplementedError

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return what gives the next message, or None at once."""
        raise NotImplementedError

    def open_stream(self) -> Iterable[Any]:
        """Return all messages stored so far."""
        raise NotImplementedError

    def open_seek(self) -> Callable[[int], Any]:
        """Return a callable that seeks a time in ns and reads the first message at or after it."""
        raise NotImplementedError

    def refill(self, first: int, last: int, tail: bytes) -> None:
        """Make messages `first` to `last` ready to be received; only the no-op peer has to."""
        del first, last, tail

    def counts(self) -> dict[str, int]:
        """Return what else is worth reporting, such as how many pages were written."""
        return {}

    def close(self) -> None:
        """Close all that was opened."""
        self.stack.close()
