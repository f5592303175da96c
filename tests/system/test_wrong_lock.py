"""A lock file that locks all users out: verify reports it, repair removes it if unused."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from plugin import MESSAGES, Disk
from safely import LOCK, STRANGER, as_user, user
from support import end, ready, start

from pagequeue import LockReplaced, UnsafePath, _core, repair_queue, verify_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    bool(_core.LOCK_NEEDS_FD),
    reason="without robust mutexes it is left: whether the queue is open is unknown",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def fifo(path: Path) -> None:
    """Put a FIFO in a file's place."""
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    """Put a symbolic link in a file's place."""
    path.unlink()
    path.symlink_to(path.with_name("elsewhere"))


def hard_link(path: Path) -> None:
    """Give a file another name."""
    os.link(path, path.parent.parent / "another")


def given_away(path: Path) -> None:
    """Give a file to a user who has no part in the queue."""
    os.chown(path, STRANGER, STRANGER)


BEHIND = ": no process can open the queue for writing"
WRONG = [
    (fifo, "not a regular file"),
    (link, "not a regular file"),
    (hard_link, "has another name"),
    pytest.param(given_away, f"another user (uid {STRANGER})", marks=needs_root),
]


@pytest.mark.parametrize(("damage", "reason"), WRONG)
def test_wrong_lock_file_is_found_and_removed(
    disk: Disk, damage: Callable[[Path], None], reason: str
) -> None:
    """Any object in its place locks all writers out, and damages no message."""
    disk.send(*MESSAGES)
    damage(disk.directory / LOCK)
    with pytest.raises(UnsafePath):
        disk.open()
    (problem,) = verify_queue(disk.directory).problems
    assert problem.file == str(disk.directory / LOCK)
    assert reason in problem.reason
    report = repair_queue(disk.directory)
    assert report.ok
    why = problem.reason.removesuffix(BEHIND)
    assert report.actions == [f"removed {LOCK}, which no process could lock ({why})"]
    assert stat.S_ISREG((disk.directory / LOCK).stat().st_mode)
    assert disk.payloads() == MESSAGES
    assert verify_queue(disk.directory).ok


def test_directory_in_place_of_the_lock_file_is_kept(disk: Disk) -> None:
    """It can contain anything, so only its owner may remove it."""
    disk.send(*MESSAGES)
    (disk.directory / LOCK).unlink()
    (disk.directory / LOCK).mkdir()
    assert len(verify_queue(disk.directory).problems) == 1
    with pytest.raises(UnsafePath):
        repair_queue(disk.directory)
    assert (disk.directory / LOCK).is_dir()


def test_wrong_lock_file_is_kept_while_the_queue_is_open(disk: Disk) -> None:
    """Another process had the queue open when its lock file was exchanged."""
    disk.send(*MESSAGES)
    inside = start("send_lines", str(disk.directory))
    try:
        ready(inside)
        fifo(disk.directory / LOCK)
        with pytest.raises(LockReplaced):
            repair_queue(disk.directory, lock_timeout=0.1)
        assert stat.S_ISFIFO((disk.directory / LOCK).stat().st_mode)
    finally:
        end(inside)
    assert repair_queue(disk.directory).ok


@needs_root
def test_owner_gets_an_error_for_a_lock_file_of_another_user(reachable: Path) -> None:
    """Root's file in a user's directory is trusted, but locks its owner out all the same."""
    disk = Disk(reachable / "events")
    disk.directory.mkdir(mode=0o700)
    os.chown(disk.directory, STRANGER, STRANGER)
    assert as_user(STRANGER, disk.directory, page_bytes=disk.page_bytes) == "open"
    os.chown(disk.directory / LOCK, 0, 0)
    assert as_user(STRANGER, disk.directory) == "AccessDenied"
    with user(STRANGER):
        (problem,) = verify_queue(disk.directory).problems
        assert "the directory's owner cannot open it" in problem.reason
        assert repair_queue(disk.directory).ok
        assert verify_queue(disk.directory).ok
    assert as_user(STRANGER, disk.directory) == "open"
