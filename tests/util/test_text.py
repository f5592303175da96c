"""How counts and ranges are worded: correct for none, one and several."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from plugin import MESSAGES, Disk

from pagequeue import Queue, SyncFailed, repair_queue, verify_queue
from pagequeue.util.text import counted, message_range, plural

if TYPE_CHECKING:
    from pathlib import Path


def test_count_has_its_noun_in_the_right_number() -> None:
    """One page, no or several pages."""
    assert [counted(count, "page") for count in (0, 1, 2)] == ["0 pages", "1 page", "2 pages"]
    assert plural(1, "byte") == "byte"


def test_range_of_messages_is_worded_for_none_one_and_several() -> None:
    """The end is excluded, and no range ends before it begins."""
    assert message_range(600, 600) == "no message"
    assert message_range(5, 6) == "message 5"
    assert message_range(5, 8) == "messages 5 to 7"


def test_batch_of_none_or_one_is_worded_as_such(tmp_path: Path) -> None:
    """A batch names no sequence that it does not have."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        assert repr(queue.last(5)) == "<Batch of 0 messages>"
        producer.send(b"a")
        assert repr(queue.last(5)) == "<Batch of 1 message, sequence 0>"


def test_one_missing_page_is_worded_as_one(disk: Disk) -> None:
    """Verify counts missing pages only where there are several."""
    disk.send(*MESSAGES)
    disk.page(2).unlink()
    (problem,) = (p for p in verify_queue(disk.directory).problems if p.file == str(disk.page(2)))
    assert problem.reason == "missing"


def test_latch_without_messages_at_risk_names_no_message(disk: Disk) -> None:
    """A sync can fail when all that was sent is durable."""
    disk.send(*MESSAGES, flush=True)
    with disk.open() as queue:
        store = queue._store
        store.write_meta.latch(errno.EIO, store.tail.page_number)
        with queue.producer() as producer, pytest.raises(SyncFailed, match="may take no message"):
            producer.send(b"more")
    report = repair_queue(disk.directory)
    assert report.actions == ["cleared the failure latch: no message was at risk"]
    assert disk.payloads() == MESSAGES
