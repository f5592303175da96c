"""Journals written by released versions still open, with the state that they had."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from journals import Log
from test_golden import FLUSHED_AT, GOLDEN, ID, LOCK_WORDS, START, STEP, TURN_WORDS, VERSIONS

from pagequeue import Queue
from pagequeue.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [{"number": number, "text": "é" * (number % 5)} for number in range(150)]
SNAPSHOT = 140
STATE = [[entry, START + (number + 1) * STEP] for number, entry in enumerate(ENTRIES)]


def write_journal(directory: Path) -> None:
    """Write the journal of this version: pages that were removed, one snapshot, entries after it.

    To be run once for each released version, with that version:
    `python -c "from test_golden_journal import *; write_journal(GOLDEN / 'VERSION-journal')"`.
    """
    now = [START]
    with (
        mock.patch("uuid.uuid4", return_value=uuid.UUID(bytes=ID)),
        Journal(directory, Log(), page_bytes=4096, snapshots=1, clock=lambda: now[0]) as journal,
    ):
        for number, entry in enumerate(ENTRIES):
            now[0] += STEP
            journal.update(lambda _, entry=entry: entry)
            if number + 1 == SNAPSHOT:
                journal.compact()
        assert journal.queue.head_sequence > 0
        journal.update(lambda _: None, durable=True)
        journal._producer.flush()
    for path in directory.rglob("queue-writeMeta"):
        data = bytearray(path.read_bytes())
        for words in (LOCK_WORDS, FLUSHED_AT, TURN_WORDS):
            data[words] = bytes(words.stop - words.start)
        path.write_bytes(data)
    for path in directory.rglob("queue.lock"):
        path.unlink()


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all files."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a checked-in journal."""
    shutil.copytree(GOLDEN / f"{request.param}-journal", tmp_path / "golden")
    return tmp_path / "golden"


def test_golden_journal_opens(golden: Path) -> None:
    """I22: from its snapshot, by followers, which write no byte, and by writers."""
    before = contents(golden)
    with Journal(golden, Log(), read_only=True) as journal:
        assert journal._replica.snapshot == SNAPSHOT
        assert journal.state == STATE
    assert contents(golden) == before
    with Journal(golden, Log()) as journal:
        assert journal.state == STATE
        assert journal.verify().ok
        assert journal.at(START + (SNAPSHOT + 1) * STEP) == STATE[: SNAPSHOT + 1]
        assert journal.update(lambda _: "new") == len(ENTRIES)
        assert journal.compact().sequence == len(ENTRIES) + 1


def test_this_version_writes_the_golden_journal(golden: Path, tmp_path: Path) -> None:
    """The mark, the entries and the snapshot, byte for byte."""
    write_journal(tmp_path / "again")
    assert (tmp_path / "again" / "queue-allMeta").read_bytes() == (
        golden / "queue-allMeta"
    ).read_bytes()
    for path in ("", f"queue-journal/snapshot-{SNAPSHOT:020}"):
        found = []
        for directory in (golden, tmp_path / "again"):
            with Queue(directory / path, read_only=True) as queue:
                found.append([(message.timestamp, message.payload) for message in queue.replay()])
        assert found[0] == found[1]
        assert found[0]
