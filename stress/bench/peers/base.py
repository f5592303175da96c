"""What a peer must offer: callables that the shared loops can call without a wrapper between.

Each process builds a new peer. `open_*` is called before the start barrier and returns the callable
to be measured; what it opens is closed by `close`, after the clock has stopped.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from multiprocessing.context import SpawnContext
    from pathlib import Path

    from stress.bench.plan import Plan

NEEDS: Mapping[str, tuple[str, ...]] = {
    "pass": ("open_send", "open_receive"),
    "batches": ("open_send_many", "open_receive_many"),
    "producers": ("open_send", "open_receive"),
    "fan-out": ("open_send", "open_receive"),
    "large": ("open_send", "open_receive"),
    "poll": ("open_send", "open_poll"),
    "block": ("open_send", "open_receive"),
    "replay": ("open_send", "open_stream"),
    "replay batches": ("open_send_many", "open_batches"),
    "seek": ("open_send_at", "open_seek"),
    "seek far": ("open_send_at", "open_seek"),
}
"""By what a case asks of a peer, what the peer must offer."""

NOT_STORED: Mapping[str, str] = dict.fromkeys(
    ("replay", "replay batches", "seek", "seek far"), "stores nothing"
)


def no_flush() -> None:
    """Return at once: each message is already durable, or a background thread syncs it."""


def poll_until(poll: Callable[[], Any], stall_seconds: float) -> Callable[[], Any]:
    """Return what polls until a message is there, and yields the processor between."""
    yield_processor, clock = os.sched_yield, time.monotonic

    def receive() -> Any:  # noqa: ANN401 - what the peer gives
        message = poll()
        if message is None:
            deadline = clock() + stall_seconds
            while (message := poll()) is None:
                yield_processor()
                if clock() > deadline:
                    raise CheckFailed("no more messages came")
        return message

    return receive


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Let no other process of the run make what is shared at the same moment.

    SQLite does not wait when two processes change its journal mode at once, and NATS refuses a
    stream that another connection is making.
    """
    with open(directory / "making", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Peer:
    """A way to get messages from one process to another, seen from one process."""

    # By the key of NEEDS, why this peer cannot do it; a case leaves it out and says why.
    lacks: ClassVar[Mapping[str, str]] = {}
    # What `receive`, `poll` and `open_stream` give: objects with `.payload`, or the bytes.
    gives_messages = False
    # The one argument `receive` is called with where it gives messages (a timeout, for us).
    receive_argument: float = 0.0

    def __init__(self, plan: Plan, shared: Any) -> None:  # noqa: ANN401 - the peer's own
        self.plan = plan
        self.shared = shared
        self.stack = ExitStack()

    @staticmethod
    def share(plan: Plan, context: SpawnContext) -> Any:  # noqa: ANN401 - the peer's own
        """Return the object that the parent must create and pass to every process of a stage."""
        del plan, context

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

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for one message."""
        raise NotImplementedError

    def open_send_waking(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what sends one message and wakes a receiver that sleeps."""
        return self.open_send(channel)

    def open_receive_sleeping(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for one message without using the processor."""
        return self.open_receive(channel)

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

    def open_batches(self) -> Iterable[list[bytes]]:
        """Return the payloads of all messages stored so far, in lists."""
        raise NotImplementedError

    def open_seek(self) -> Callable[[int], Any]:
        """Return a callable that seeks a time in ns and reads the first message at or after it."""
        raise NotImplementedError

    def leave_first_page(self) -> None:
        """Send what is not counted, so that the clock starts in a later page; most have none."""

    def refill(self, first: int, last: int, tail: bytes) -> None:
        """Make messages `first` to `last` ready to be received; only the no-op peer has to."""
        del first, last, tail

    def counts(self) -> dict[str, int]:
        """Return what else is worth reporting, such as how many pages were written."""
        return {}

    def close(self) -> None:
        """Close all that was opened."""
        self.stack.close()
