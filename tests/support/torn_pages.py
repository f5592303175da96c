"""Pages of a queue of the default prefix, as a power cut can leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import format as fmt

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Queue


def page(directory: Path, number: int) -> Path:
    """Return the file of a page."""
    return directory / fmt.page_name("queue", number)


def zero(path: Path, begin: int, count: int) -> None:
    """Put zeros in place of some bytes, as a block that never reached the disk has."""
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(count))


def payloads(queue: Queue) -> list[bytes]:
    """Return all payloads."""
    return [message.payload for message in queue.replay()]
