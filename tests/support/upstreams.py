"""What the tests of flows share: an upstream that can be observed, stopped and broken."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from loops import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from pagequeue import Message


class Upstream:
    """An iterator of numbered elements that counts its reads, and can be made to wait.

    Attributes:
        is_asked: whether it was ever asked for an element.
    """

    def __init__(self, end: int, begin: int = 0, size_bytes: int = 0) -> None:
        self.end = end
        self.drawn = begin
        self.fill = b"." * size_bytes
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.is_asked = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.is_asked = True
        self.gate.wait(PATIENCE)
        if self.drawn == self.end:
            raise self.error or StopIteration
        self.drawn += 1
        return b"%d" % (self.drawn - 1) + self.fill


async def asynchronous(upstream: Upstream) -> AsyncIterator[bytes]:
    """Give what an upstream gives, with suspensions in between."""
    for element in upstream:
        if int(element.rstrip(b".")) % 3 == 0:
            await asyncio.sleep(0)
        yield element


def numbers(messages: Iterable[Message]) -> list[int]:
    """Return the numbers of elements."""
    return [int(message.payload.rstrip(b".")) for message in messages]


def pump_threads() -> list[threading.Thread]:
    """Return the threads that draw."""
    return [thread for thread in threading.enumerate() if thread.name == "pagequeue-persist"]
