"""What opening refuses, verify reports, and salvage never calls a success: lost last pages.

And a page of another queue in the place of the only one: none of its messages is copied or repaired
into this queue, because the small files agree on whose it is.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue, errors, repair_queue, salvage_queue, verify_queue

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096


def copied(directory: Path, *, flushed: int, sent: int) -> Path:
    """Return a copy of a queue, which awaits recovery, with so many messages of 1000 bytes."""
    with Queue(directory, page_bytes=PAGE) as queue, queue.producer() as producer:
        for number in range(sent):
            producer.send(b"%04d" % number * 250)
            if number + 1 == flushed:
                producer.flush()
    copy = directory.with_name(f"{directory.name}-copy")
    shutil.copytree(directory, copy)
    return copy


def pages(directory: Path) -> list[Path]:
    """Return the page files that have messages, in order."""
    found = sorted(directory.glob("*.page"))
    return [path for path in found if any(path.read_bytes()[64:80])]


def refused_by_all(directory: Path, target: Path) -> None:
    """Every interface reports that a page is missing, and none changes a file."""
    report = verify_queue(directory)
    assert not report.ok
    for read_only in (True, False):
        with pytest.raises(errors.DamageError):
            Queue(directory, create=False, read_only=read_only)
    assert not salvage_queue(directory, target).ok
    assert not repair_queue(directory).ok


@pytest.mark.parametrize("flushed", [8, 7])
def test_lost_last_page_below_the_durable_mark(tmp_path: Path, flushed: int) -> None:
    """I5: messages of the last page were on stable storage, and its file is gone."""
    copy = copied(tmp_path / "q", flushed=flushed, sent=8)
    pages(copy)[-1].unlink()
    refused_by_all(copy, tmp_path / "saved")


def test_lost_only_page(tmp_path: Path) -> None:
    """No message was flushed, but the first page's name is durable before any message."""
    copy = copied(tmp_path / "q", flushed=0, sent=2)
    for path in copy.glob("*.page"):
        path.unlink()
    refused_by_all(copy, tmp_path / "saved")


def test_lost_durable_page_without_durable_messages(tmp_path: Path) -> None:
    """The mark was set when the page was empty; what was sent to it later went with it."""
    with Queue(tmp_path / "q", page_bytes=PAGE) as queue, queue.producer() as producer:
        producer.send_many([b"x"] * 3)
        queue.rotate()
        producer.flush()
        producer.send(b"not flushed")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "q", copy)
    pages(copy)[-1].unlink()
    refused_by_all(copy, tmp_path / "saved")


@pytest.mark.parametrize("read_only", [True, False])
def test_durable_page_of_another_size_is_not_removed(tmp_path: Path, *, read_only: bool) -> None:
    """Bytes appended to it must not cost what was sent after the mark; repair cuts them off."""
    with Queue(tmp_path / "q", page_bytes=PAGE) as queue, queue.producer() as producer:
        producer.send_many([b"x"] * 3)
        queue.rotate()
        producer.flush()
        producer.send(b"not flushed")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "q", copy)
    with pages(copy)[-1].open("ab") as file:
        file.write(b"1234567")
    with pytest.raises(errors.CorruptPage, match="bytes"):
        Queue(copy, create=False, read_only=read_only)
    assert repair_queue(copy).ok
    with Queue(copy) as queue:
        assert [message.payload for message in queue.replay()][-1] == b"not flushed"


def test_only_page_is_another_queues(tmp_path: Path) -> None:
    """Its messages were never sent here: not copied, and the queue does not become the other."""
    copy = copied(tmp_path / "q", flushed=2, sent=2)
    with Queue(tmp_path / "other", page_bytes=PAGE) as queue, queue.producer() as producer:
        producer.send_many([b"other"] * 3)
    shutil.copy(pages(tmp_path / "other")[0], pages(copy)[0])
    before = (copy / "queue-allMeta").read_bytes()
    assert not verify_queue(copy).ok
    report = salvage_queue(copy, tmp_path / "saved")
    assert report.messages_copied == 0
    assert not report.ok
    assert not repair_queue(copy).ok
    assert (copy / "queue-allMeta").read_bytes() == before


def test_allmeta_of_another_queue_is_still_found(tmp_path: Path) -> None:
    """The other files and the pages agree against it: then the pages determine the queue."""
    copy = copied(tmp_path / "q", flushed=8, sent=8)
    copied(tmp_path / "other", flushed=1, sent=1)
    os.replace(tmp_path / "other" / "queue-allMeta", copy / "queue-allMeta")
    assert salvage_queue(copy, tmp_path / "saved").messages_copied == 8
    assert repair_queue(copy).ok


def test_salvage_without_a_read_meta_names_the_missing_messages(tmp_path: Path) -> None:
    """Retention and loss are indistinguishable here, so it is not a success."""
    copy = copied(tmp_path / "q", flushed=8, sent=8)
    (copy / "queue-readMeta").unlink()
    first = pages(copy)[0]
    first.unlink()
    first.with_suffix(".idx").unlink()
    report = salvage_queue(copy, tmp_path / "saved")
    (loss,) = report.lost
    assert (loss.first_sequence, loss.last_sequence) == (0, report.runs[0].first - 1)
