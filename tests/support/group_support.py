"""What tests of groups share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagequeue import Queue

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


def send(queue: Queue, count: int, text: str = "") -> None:
    """Send messages: a text and their numbers."""
    with queue.producer() as producer:
        for number in range(count):
            producer.send(f"{text}{number}".encode())
