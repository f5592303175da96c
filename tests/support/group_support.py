"""What tests of groups share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagequeue import Queue


def send(queue: Queue, count: int, text: str = "") -> None:
    """Send messages: a text and their numbers."""
    with queue.producer() as producer:
        for number in range(count):
            producer.send(f"{text}{number}".encode())
