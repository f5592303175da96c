"""What tests of groups share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pagequeue.group.open import open_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Queue
    from pagequeue.group.group import Group

SECOND = 1_000_000_000


class Leases:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 5 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now += int(seconds * SECOND)


OPTIONS: Final[dict[str, Any]] = {
    "lease": 30.0,
    "max_deliveries": None,
    "backoff": None,
    "since": None,
    "sequence": None,
    "latest": False,
    "on_expired": "raise",
    "capacity": 64,
}
"""Of a group whose messages come again at once, as often as it takes."""


def group_on(
    queue: Queue, clock: Callable[[], int], name: str = "work", **options: object
) -> Group:
    """Open a group on a clock of ours, with `OPTIONS` where none are given."""
    return open_group(queue._store, name, clock=clock, **OPTIONS | options)


@contextlib.contextmanager
def groups_on(
    queue: Queue, clock: Callable[[], int], **defaults: object
) -> Iterator[Callable[..., Group]]:
    """Give what opens groups on a clock of ours, which are closed at the end."""
    with contextlib.ExitStack() as opened:

        def make(name: str = "work", **options: object) -> Group:
            return opened.enter_context(
                contextlib.closing(group_on(queue, clock, name, **defaults | options))
            )

        yield make


def send(queue: Queue, count: int, text: str = "") -> None:
    """Send messages: a text and their numbers."""
    with queue.producer() as producer:
        for number in range(count):
            producer.send(f"{text}{number}".encode())
