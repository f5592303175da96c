"""Records that Python parses: appended bytes and invalid fields in them are reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support import SMALL, flip

from pagequeue import Queue, _core, errors, repair_queue, salvage_queue, verify_queue
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.meta.manifest import VERSION, Manifest
from stress import no_record_is_misread as campaign
from stress.campaign import Budget
from stress.publications import Rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """A ledger's entry of a closed queue, which has one piece of work."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, BulkPublisher(queue._store) as ledger:
        ledger.publish("writer", 0, Rows([b"a", b"b"]))
        queue.rotate()
        queue.ship(tmp_path / "ship")
    (path,) = (tmp_path / "q").glob("queue-published.*")
    return path


def append(path: Path, data: bytes = bytes(7)) -> None:
    """Append bytes to a file."""
    with path.open("ab") as file:
        file.write(data)


def done(directory: Path) -> range | None:
    """Return the ledger's entry of the piece of work."""
    with Queue(directory) as queue, BulkPublisher(queue._store) as ledger:
        return ledger.done("writer", 0)


@pytest.mark.parametrize("data", [bytes(7), b"}", b" \xff", b"{}"])
def test_bytes_appended_to_an_entry_are_ignored(entry: Path, data: bytes) -> None:
    """The ledger knows what was published, as for groups and cursors."""
    append(entry, data)
    assert verify_queue(entry.parent).ok
    assert done(entry.parent) == range(2)


def test_a_damaged_entry_is_found_and_removed(entry: Path) -> None:
    """An operation refuses it, verify finds it, and repair does what the error advises."""
    flip(entry, 20)
    with pytest.raises(errors.CorruptMeta, match="repair the queue, which removes it"):
        done(entry.parent)
    assert [problem.file for problem in verify_queue(entry.parent).problems] == [str(entry)]
    report = repair_queue(entry.parent)
    assert report.ok
    assert any(entry.name in action for action in report.actions)
    assert done(entry.parent) is None


def test_an_entry_of_another_queue_is_refused(entry: Path, tmp_path: Path) -> None:
    """It tells which pieces are published, of a queue that has other messages."""
    with Queue(tmp_path / "other", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"c", b"d"])
    strange = tmp_path / "other" / entry.name
    strange.write_bytes(entry.read_bytes())
    strange.chmod(0o600)
    with pytest.raises(errors.CorruptMeta, match="repair the queue, which removes it") as caught:
        done(tmp_path / "other")
    assert caught.value.reason == "another queue's"
    assert [problem.file for problem in verify_queue(strange.parent).problems] == [str(strange)]
    assert repair_queue(strange.parent).ok
    assert done(strange.parent) is None


def test_an_entry_without_the_queue_is_read_as_before(entry: Path) -> None:
    """Entries that were written earlier do not name it."""
    record = json.loads(entry.read_bytes()[8:])
    assert record.pop("queue") == entry_queue_id(entry)
    text = json.dumps(record, sort_keys=True).encode()
    entry.write_bytes(f"{_core.crc32c(text):08x}".encode() + text)
    assert verify_queue(entry.parent).ok
    assert done(entry.parent) == range(2)


def entry_queue_id(entry: Path) -> str:
    """Return the id of the queue that an entry is next to, in hexadecimal."""
    with Queue(entry.parent, read_only=True) as queue:
        return queue._store.meta.queue_id.hex()


def test_a_manifest_with_appended_bytes_is_named_and_its_messages_are_saved(
    entry: Path, tmp_path: Path
) -> None:
    """A replica is made again from its queue; where that is gone, salvage copies it."""
    del entry
    path = tmp_path / "ship" / "queue-manifest.json"
    append(path)
    with pytest.raises(errors.CorruptMeta, match="ship the queue again") as caught:
        Queue(tmp_path / "ship", read_only=True)
    assert caught.value.path == str(path)
    assert str(path) in [problem.file for problem in verify_queue(tmp_path / "ship").problems]
    assert salvage_queue(tmp_path / "ship", tmp_path / "saved").messages_copied == 2


@pytest.mark.parametrize("version", [0, "1", None, True])
def test_a_manifest_of_an_unknown_format_is_refused(version: object) -> None:
    """Only a format that was written is read."""
    data = Manifest("00" * 16, "host", "/there", "queue", 4096).encode()
    assert Manifest.decode(data, "path").host == "host"
    other = data.replace(f'"format": {VERSION}'.encode(), f'"format": "{version}"'.encode())
    with pytest.raises(errors.CorruptMeta):
        Manifest.decode(other, "path")


@pytest.mark.nightly
def test_no_record_is_misread() -> None:
    """Manifests, entries, records, kept messages and plans, changed in every way."""
    outcome = campaign.run(Budget(20.0, 1500, 3))
    assert outcome.violations == []
    assert outcome.cases == 1500
