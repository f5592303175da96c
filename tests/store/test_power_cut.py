"""Real power cuts: a file system in an image is shut down without writing anything more.

The ioctl that ext4 and xfs have for this drops everything that is not on the disk yet, as a power
cut does. It needs root, loop devices and mkfs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue
from stress.disks import Disk, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.tool("mkfs.ext4")
PAGE_BYTES = 65536


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a mounted disk; it is unmounted however the test ends."""
    try:
        mounted = Disk("ext4", tmp_path / "disk")
    except Unavailable as error:
        pytest.skip(str(error))
    with mounted:
        yield mounted


def cut_power(disk: Disk) -> None:
    """Drop what is not on the disk, and start again."""
    disk.cut()
    disk.restart()


def fill(queue: Queue, count: int) -> None:
    """Send this many messages of 500 bytes, each with its number."""
    with queue.producer() as producer:
        for number in range(len(queue), len(queue) + count):
            producer.send(b"%d " % number + b"x" * 500)


def check(queue: Queue, at_least: int, at_most: int) -> int:
    """Return how many messages are left: a prefix, each whole."""
    found = [int(message.payload.split()[0]) for message in queue.replay()]
    assert found == list(range(len(found)))
    assert at_least <= len(found) <= at_most
    assert not queue.recovery.scanned or queue.verify().ok
    return len(found)


def test_everything_that_was_flushed_is_there_after_a_power_cut(disk: Disk) -> None:
    """I5: over several pages and cuts; what was not flushed may go, from the end only."""
    at_least = sent = 0
    for turn in range(3):
        queue = Queue(disk.path / "q", page_bytes=PAGE_BYTES)
        assert queue.recovery.scanned == (turn > 0)
        kept = check(queue, at_least, sent)
        fill(queue, 300)
        with queue.producer() as producer:
            at_least = producer.flush()
        assert at_least == kept + 300
        fill(queue, 200)
        sent = kept + 500
        assert queue.durable_sequence == at_least
        queue.close()
        cut_power(disk)
    with Queue(disk.path / "q", read_only=True) as queue:
        check(queue, at_least, sent)
    with Queue(disk.path / "q") as queue:
        check(queue, at_least, sent)


def test_sync_always_loses_no_message_at_a_power_cut(disk: Disk) -> None:
    """I5: each message whose send returned."""
    queue = Queue(disk.path / "q", page_bytes=PAGE_BYTES, sync="always")
    fill(queue, 300)
    os.sync()  # the names of the directory above are not ours to sync
    with queue.producer() as producer:
        for number in range(300, 350):
            producer.send(b"%d " % number)
    queue._store.close()  # without the flush that closing the queue does
    cut_power(disk)
    with Queue(disk.path / "q") as queue:
        check(queue, 350, 350)
