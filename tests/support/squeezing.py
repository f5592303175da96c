"""What the tests of compressing share: a queue of text, and which of its pages are compressed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pagequeue import format as fmt

if TYPE_CHECKING:
    from plugin import Disk

    from pagequeue import Queue

PAGE = 16384
"""Of the tests: a page has several blocks of `small_blocks`."""


def text(count: int, begin: int = 0) -> list[bytes]:
    """Return payloads that shrink."""
    return [b"message %07d " % n * (n % 13) for n in range(begin, begin + count)]


def fill(queue: Queue, count: int = 500, begin: int = 0) -> list[bytes]:
    """Send so many, some of them in batches; return them."""
    items = text(count, begin)
    with queue.producer() as producer:
        for at in range(0, count, 5):
            if at % 2:
                producer.send_many(items[at : at + 5])
            else:
                for item in items[at : at + 5]:
                    producer.send(item)
    return items


def compressed_pages(disk: Disk) -> list[int]:
    """Return the numbers of the pages that are compressed."""
    numbers = []
    for path in disk.directory.glob("*.page"):
        with contextlib.suppress(FileNotFoundError):  # retired in between
            if path.read_bytes()[:8] == fmt.COMPRESSED_MAGIC:
                numbers.append(int(path.name[6:16]))
    return sorted(numbers)
