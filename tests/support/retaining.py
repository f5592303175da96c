"""What the tests of retention share: full pages, the list of pages, and trimming by hand only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support import SMALL, at_once

from pagequeue import Queue, Retention
from pagequeue.maintenance.trimmer import Trimmer

if TYPE_CHECKING:
    import pytest
    from plugin import Disk

FULL = b"x" * 1300
"""Three fit into a page of 4096 bytes."""
PAGE_AND_INDEX = SMALL + SMALL // 32 * 12


def fill(queue: Queue, pages: int, each: int = 3) -> None:
    """Send so many full pages; the last one stays active."""
    with queue.producer() as producer:
        for _ in range(pages * each):
            producer.send(FULL)


def numbers(disk: Disk) -> list[int]:
    """Return the numbers of the existing pages."""
    return [int(path.name[6:16]) for path in at_once(disk.directory, "*.page")]


def only_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off trimming in the background."""
    monkeypatch.setattr(Trimmer, "trim_quietly", lambda _: None)
    monkeypatch.setattr(Trimmer, "make_room", lambda *_: None)


KEEP_TWO = Retention(max_bytes=3 * SMALL)
"""The active page, one before it, and the page that comes next."""
