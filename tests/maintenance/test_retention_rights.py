"""Retention by a user who may not remove pages: no message is hidden that still takes space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from safely import NOBODY, STRANGER, user
from support import SMALL, payloads

from pagequeue import AccessDenied, Queue, Retention

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming other users needs root")
FULL = b"x" * 1300
"""Three fit into a page of 4096 bytes."""


@pytest.fixture
def shared(reachable: Path) -> Path:
    """A sticky directory for all, with a queue whose three pages belong to one user."""
    directory = reachable / "events"
    directory.mkdir()
    directory.chmod(0o1777)
    with user(STRANGER), Queue(directory, page_bytes=SMALL, file_mode=0o666) as queue:
        fill(queue, 9)
    return directory


def fill(queue: Queue, count: int) -> None:
    """Send so many messages, three for each page."""
    with queue.producer() as producer:
        for _ in range(count):
            producer.send(FULL)


def opened(directory: Path, *, max_bytes: int = 4 * SMALL, on_full: str = "raise") -> Queue:
    """Open the queue as a user who may write to files of others and not remove them."""
    retention, trust = Retention(max_bytes=max_bytes), ("other_owner",)
    return Queue(directory, file_mode=0o666, retention=retention, on_full=on_full, trust=trust)


@pytest.mark.parametrize("on_full", ["raise", "block", "drop_oldest"])
def test_head_stays_if_the_oldest_page_cannot_be_removed(shared: Path, on_full: str) -> None:
    """Its messages would be lost without freeing its space: sending is refused instead."""
    with user(NOBODY), opened(shared, on_full=on_full) as queue:
        fill(queue, 3)
        with pytest.raises(AccessDenied, match=r"queue-0000000001\.page: not allowed"):
            fill(queue, 1)
        with pytest.raises(AccessDenied):
            queue.trim()
        assert queue.head_sequence == 0
        assert payloads(queue.replay()) == [FULL] * 12
    with user(STRANGER), opened(shared) as queue:
        assert queue.trim().pages == 1
        assert not (shared / "queue-0000000001.page").exists()
    with user(NOBODY), opened(shared) as queue:
        fill(queue, 1)
        assert queue.verify().ok


def test_pages_of_this_user_go_before_those_of_others_are_met(shared: Path) -> None:
    """As far as it may, retention goes; the rest is left readable."""
    os.chown(shared / "queue-0000000001.page", NOBODY, NOBODY)
    os.chown(shared / "queue-0000000001.idx", NOBODY, NOBODY)
    with user(NOBODY), opened(shared) as queue:
        fill(queue, 3)
        fill(queue, 3)
        with pytest.raises(AccessDenied, match="0000000002"):
            fill(queue, 1)
        assert queue.head_sequence == 3
        assert payloads(queue.replay()) == [FULL] * 12


def test_directory_without_write_permission_keeps_its_head(shared: Path) -> None:
    """Without the sticky bit it is the directory that decides."""
    with user(NOBODY), opened(shared, max_bytes=2 * SMALL) as queue:
        os.seteuid(0)
        shared.chmod(0o755)
        os.seteuid(NOBODY)
        with pytest.raises(AccessDenied, match=r"removing the file"):
            queue.trim()
        assert queue.head_sequence == 0
        assert payloads(queue.replay()) == [FULL] * 9
