"""Plain files: each message is a file of its own, which gets its name when it is written.

That is what is done where messages are too large for a queue. The receiver waits for the next name.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import NOT_STORED, Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

PAUSE_SECONDS = 0.0002
ONLY_LARGE = "a file for each message is for large ones"


class WholeFiles(Peer):
    """Writes and reads files by number, without a buffer of Python's between."""

    lacks: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(NOT_STORED, ONLY_LARGE),
        **dict.fromkeys(("pass", "batches", "producers", "fan-out", "poll", "block"), ONLY_LARGE),
    }

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what writes the next file in one go."""
        write = self.open_send_stream(channel)

        def send(payload: bytes) -> None:
            with write() as file:
                if file.write(payload) != len(payload):
                    raise CheckFailed("a short write")

        return send

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for the next file and reads all of it."""
        del channel
        read = self.open_receive_stream()

        def receive() -> bytes:
            with read() as file:
                payload: bytes = file.read()
                return payload

        return receive

    def open_send_stream(self, channel: str = "main") -> Callable[[], AbstractContextManager[Any]]:
        """Return what opens the next file for writing; it gets its name at the end."""
        directory = self.plan.directory / channel
        directory.mkdir(exist_ok=True)
        number = 0

        @contextmanager
        def write() -> Iterator[Any]:
            nonlocal number
            temporary = directory / f"{number}.tmp"
            with temporary.open("wb", buffering=0) as file:
                yield file
            os.rename(temporary, directory / str(number))
            number += 1

        return write

    def open_receive_stream(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what waits for the next file and opens it."""
        directory = self.plan.directory / "main"
        number = 0

        def read() -> Any:  # noqa: ANN401 - a file
            nonlocal number
            path = directory / str(number)
            deadline = time.monotonic() + self.plan.stall_seconds
            while not path.exists():
                if time.monotonic() > deadline:
                    raise CheckFailed("no more messages came")
                time.sleep(PAUSE_SECONDS)
            number += 1
            return path.open("rb", buffering=0)

        return read
