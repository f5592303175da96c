"""Salvage copies what is beside the messages as far as it still holds: ledger and snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from journals import Accounts
from support import flip

from pagequeue import CorruptSnapshot, JournalOnly, Queue, Retention, salvage_queue
from pagequeue.journal import Journal

PAGE = 4096
WRITER = "nightly import"


class Trusting(Accounts):
    """Takes also what `Accounts` refuses."""

    def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
        """Change the balances in place."""
        if entry != "poison":
            super().apply(state, entry, timestamp_ns)


def journal_of(path: Path, count: int, *, compacted: bool = True) -> dict[str, int]:
    """Make a journal whose first entries were compacted away; return its state."""
    with Journal(path, Accounts(), snapshots=1, page_bytes=PAGE) as journal:
        for _ in range(count):
            journal.update(lambda _: ["ann", 1])
        if compacted:
            journal.compact()
        journal.update(lambda _: ["ben", 1])
        journal.flush()
        assert bool(journal.queue.head_sequence) == compacted
        return dict(journal.read(dict))


def test_salvaged_journal_has_its_state(tmp_path: Path) -> None:
    """The entries keep their sequences, and the snapshot of those below them is copied."""
    before = journal_of(tmp_path / "journal", 300)
    report = salvage_queue(tmp_path / "journal", tmp_path / "copy")
    assert (report.lost, report.notes) == ([], [])
    assert [run.first == run.target_first for run in report.runs] == [True]
    with Journal(tmp_path / "copy", Accounts()) as journal:
        assert journal.read(dict) == before
        journal.update(lambda _: ["ben", 1])
        assert journal.verify().ok
    with Journal(tmp_path / "copy", Accounts()) as journal:
        assert journal.read(dict) == before | {"ben": 2}


def test_snapshot_of_lost_entries_is_not_copied(tmp_path: Path) -> None:
    """The entries that it lacks have other sequences: opening says so, and no state is wrong."""
    journal_of(tmp_path / "journal", 300)
    with Queue(tmp_path / "journal", read_only=True) as queue:
        head, page = queue.head_sequence, queue.pages()[0].path
    flip(page, 64 + 24)  # the first entry that compaction kept
    report = salvage_queue(tmp_path / "journal", tmp_path / "copy")
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [(head, head)]
    assert [f"entries from {head} on are lost" in note.reason for note in report.notes] == [True]
    with pytest.raises(CorruptSnapshot, match="there is no snapshot"):
        Journal(tmp_path / "copy", Accounts())


def test_queue_keeps_sequences_after_retention(tmp_path: Path) -> None:
    """The copy begins with the old head, where all that remember a sequence expect it."""
    with Queue(tmp_path / "q", page_bytes=PAGE, retention=Retention(max_bytes=4 * PAGE)) as queue:
        with queue.producer() as producer:
            for number in range(400):
                producer.send(b"%100d" % number)
            producer.flush()
        queue.trim()
        expected = [(message.sequence, message.payload) for message in queue.replay()]
        head = queue.head_sequence
    assert head > 0
    report = salvage_queue(tmp_path / "q", tmp_path / "copy")
    assert report.ok
    with Queue(tmp_path / "copy") as copy:
        assert copy.head_sequence == head
        assert [(message.sequence, message.payload) for message in copy.replay()] == expected
        assert copy.verify().ok
        assert copy.producer().send(b"next") == expected[-1][0] + 1


def publish(queue: Queue, piece: int) -> range:
    """Publish ten messages that name their piece of work."""
    return queue.publish(WRITER, piece, [b"%d of %d" % (n, piece) for n in range(10)])


def test_copy_knows_what_was_published(tmp_path: Path) -> None:
    """A writer that repeats its work after a salvage does not double it."""
    with Queue(tmp_path / "q") as queue:
        done = [publish(queue, piece) for piece in range(3)]
    assert salvage_queue(tmp_path / "q", tmp_path / "copy").ok
    with Queue(tmp_path / "copy") as copy:
        assert [publish(copy, piece) for piece in range(3)] == done
        assert len(copy) == 30
        assert publish(copy, 3) == range(30, 40)


def test_lost_piece_can_be_published_again(tmp_path: Path) -> None:
    """Later pieces count as published, at the sequences that their messages have now."""
    with Queue(tmp_path / "q") as queue:
        for piece in range(3):
            publish(queue, piece)
        path = Path(queue.pages()[0].path)
    flip(path, path.read_bytes().index(b"5 of 1"))
    report = salvage_queue(tmp_path / "q", tmp_path / "copy")
    assert report.lost
    assert ["piece 1" in note.reason for note in report.notes] == [True]
    with Queue(tmp_path / "copy") as copy:
        kept = len(copy)
        assert publish(copy, 0) == range(10)
        assert publish(copy, 2) == range(kept - 10, kept)
        assert publish(copy, 1) == range(kept, kept + 10)


def test_dead_letters_are_not_requeued_into_a_journal(tmp_path: Path) -> None:
    """An entry would be applied twice."""
    state = journal_of(tmp_path / "journal", 3, compacted=False)
    with Journal(tmp_path / "journal", Accounts()) as journal:
        group = journal.queue.group("audit", max_deliveries=1)
        group.claim(timeout=60.0).reject("no")
        with pytest.raises(JournalOnly):
            group.requeue_dead_letters()
        assert journal.read(dict) == state
        assert len(list(group.dead_letters())) == 1, "the letter stays"


def test_verify_reports_an_entry_that_the_machine_refuses(tmp_path: Path) -> None:
    """No process can open the journal, so it is not ok."""
    with Journal(tmp_path / "journal", Accounts()) as strict:
        strict.update(lambda _: ["ann", 1])
        with Journal(tmp_path / "journal", Trusting()) as trusting:
            trusting.update(lambda _: "poison")
        report = strict.verify()
        assert not report.ok
        assert ["refuses entry 1" in problem for problem in report.problems] == [True]
