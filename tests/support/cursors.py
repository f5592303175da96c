"""What the tests of named consumers share: numbered messages, and cursors by their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue.meta.cursor import CursorMeta
from stress.tampering import overwrite

if TYPE_CHECKING:
    from pathlib import Path

    from plugin import Disk

    from pagequeue import Queue


def fill(queue: Queue, count: int) -> None:
    """Send messages whose payloads are their sequences."""
    with queue.producer() as producer:
        for number in range(len(queue), len(queue) + count):
            producer.send(b"%d" % number)


def cursor_of(disk: Disk, name: str = "billing") -> Path:
    """Return the path of a cursor file."""
    return disk.path(f"readMeta.{name}")


def set_cursor(disk: Disk, sequence: int, name: str = "billing") -> None:
    """Put a cursor somewhere else, as a power cut would."""
    overwrite(cursor_of(disk, name), CursorMeta.NEXT, sequence.to_bytes(8, "little"))
