"""Snapshots and compaction: a loaded state is the one that the entries lead to, or is refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import resource
import shutil
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from journals import Accounts, Log
from support import Clock, flip, within

from pagequeue import (
    ClosedError,
    ConsumerInUse,
    CorruptSnapshot,
    DiskFull,
    Expired,
    NewerFormat,
    PoisonEntry,
    Queue,
    SyncFailed,
    SystemLimit,
)
from pagequeue import format as fmt
from pagequeue.cli import main
from pagequeue.journal import Journal
from pagequeue.journal.compaction import PIN, Compactor
from pagequeue.journal.snapshots import Snapshots
from pagequeue.system.directory import Directory
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SMALL = 4096


def filled(directory: Path, count: int, begin: int = 0, **options: Any) -> list[Any]:  # noqa: ANN401 - of Journal
    """Append entries to a journal; return its state."""
    with Journal(directory, Log(), page_bytes=SMALL, **options) as journal:
        for i in range(begin, begin + count):
            journal.update(lambda _, i=i: i)
        return list(journal.state)


def compacted(directory: Path, **options: Any) -> int:  # noqa: ANN401 - of Journal
    """Compact a journal; return the snapshot's sequence."""
    with Journal(directory, Log(), compact_on_open=False, **options) as journal:
        sequence = journal.compact().sequence
        assert sequence is not None
        return sequence


def loaded(directory: Path, **options: Any) -> tuple[int | None, list[Any]]:  # noqa: ANN401 - of Journal
    """Open a journal; return which snapshot it began with, and its state."""
    with Journal(directory, Log(), compact_on_open=False, **options) as journal:
        return journal._replica.snapshot, journal.state


def snapshot(directory: Path, sequence: int) -> Path:
    """Return the path of a snapshot."""
    return directory / "queue-journal" / f"snapshot-{sequence:020}"


# --- compaction -----------------------------------------------------------------------------------


def test_snapshot_is_loaded_instead_of_the_entries_before_it(tmp_path: Path) -> None:
    """I22: by writers and by followers, and the entries after it are applied."""
    filled(tmp_path, 10)
    assert compacted(tmp_path) == 10
    state = filled(tmp_path, 5, 10)
    assert loaded(tmp_path) == loaded(tmp_path, read_only=True) == (10, state)
    assert [entry for entry, _ in state] == list(range(15))


def test_compaction_removes_pages_up_to_the_oldest_kept_snapshot(tmp_path: Path) -> None:
    """I22: with two kept, the log from the first of them on stays."""
    filled(tmp_path, 300)
    with Journal(tmp_path, Log(), compact_on_open=False) as journal:
        report = journal.compact()
        assert (report.sequence, report.pages) == (300, 0)
        for i in range(300):
            journal.update(lambda _, i=i: i)
        report = journal.compact()
        assert report.sequence == 600
        assert 0 < report.entries == journal.queue.head_sequence <= 300
        assert report.pages > 0
        for i in range(300):
            journal.update(lambda _, i=i: i)
        journal.compact()
        assert [one.sequence for one in journal.snapshots()] == [900, 600]
        assert 300 < journal.queue.head_sequence <= 600
        assert journal.verify().ok
        assert journal.queue.consumers()[0].name == "journal"
    assert sorted(os.listdir(tmp_path / "queue-journal")) == [
        "snapshot-00000000000000000600",
        "snapshot-00000000000000000900",
        "turn",
    ]


def test_snapshot_beyond_the_tail_is_never_loaded(tmp_path: Path) -> None:
    """I22: its entries are not in the log: others get their sequences."""
    filled(tmp_path / "a", 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    filled(tmp_path / "b", 5, 10)
    compacted(tmp_path / "b")
    shutil.copytree(snapshot(tmp_path / "b", 15), snapshot(tmp_path / "a", 15))
    known, state = loaded(tmp_path / "a")
    assert (known, len(state)) == (None, 10)
    # Nor later, when the log has got there with other entries.
    state = filled(tmp_path / "a", 10, 100)
    assert loaded(tmp_path / "a") == (None, state)
    with Journal(tmp_path / "a", Log(), compact_on_open=False) as journal:
        assert not journal.verify().ok
        journal.compact()
        assert [one.sequence for one in journal.snapshots()] == [20]
        assert journal.verify().ok


def test_log_may_begin_exactly_at_the_snapshot(tmp_path: Path) -> None:
    """Then the entry before it is gone, which the snapshot names: it is loaded all the same."""
    with Journal(tmp_path, Accounts(), page_bytes=SMALL, snapshots=1) as journal:
        found = 0
        for _ in range(300):
            journal.update(lambda _: ["a", 1])
            journal.queue.rotate()
            journal.compact()
            found += journal.queue.head_sequence == journal.sequence
            if found == 3:
                break
            with Journal(tmp_path, Accounts(), read_only=True) as follower:
                assert follower.state == journal.state
        assert journal.at(timedelta(0)) == journal.at(2**62) == journal.state
        with pytest.raises(Expired):
            journal.at(1)
    assert found == 3


def test_second_compactor_has_no_effect(tmp_path: Path) -> None:
    """One process at a time compacts: who has the consumer open."""
    filled(tmp_path, 10)
    with Journal(tmp_path, Log()) as journal, Queue(tmp_path) as queue:
        with queue.consumer(PIN):
            assert journal.compact().sequence is None
            with pytest.raises(ConsumerInUse):
                queue.remove_consumer(PIN)
        assert journal.compact().sequence == 10
        assert journal.compact().snapshot_bytes == 0


def test_other_consumers_keep_their_unacknowledged_entries(tmp_path: Path) -> None:
    """Compaction waits for them, and names them."""
    filled(tmp_path, 300)
    with Journal(tmp_path, Log(), snapshots=1) as journal:
        with journal.queue.consumer("audit") as audit:
            report = journal.compact()
            assert (report.pages, report.held_by) == (0, ("audit",))
            audit.seek(latest=True)
            report = journal.compact()
        assert report.pages > 0
        assert report.held_by == ()


def test_opening_compacts_a_log_that_outgrew_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a short one, nor a second time, nor if it is told not to."""
    monkeypatch.setattr("pagequeue.journal.journal.COMPACT_BYTES", 100)
    filled(tmp_path, 100, compact_on_open=False)
    for options, known in (
        ({"compact_on_open": False}, []),
        ({"read_only": True}, []),
        ({}, [100]),
        ({}, [100]),
    ):
        with Journal(tmp_path, Log(), **options) as journal:
            assert [one.sequence for one in journal.snapshots()] == known
    filled(tmp_path, 3, 100)
    with Journal(tmp_path, Log()) as journal:
        assert [one.sequence for one in journal.snapshots()] == [100]


def test_journal_opens_if_compaction_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a warning then: the state is there."""
    monkeypatch.setattr("pagequeue.journal.journal.COMPACT_BYTES", 10)
    filled(tmp_path, 20, compact_on_open=False)

    def full(*_: object) -> None:
        raise DiskFull("no room", path=str(tmp_path))

    monkeypatch.setattr(Snapshots, "write", full)
    with Journal(tmp_path, Log()) as journal:
        assert len(journal.state) == 20
        with pytest.raises(DiskFull):
            journal.compact()


def test_large_states_take_several_pages_and_long_chunks(tmp_path: Path) -> None:
    """Chunks come to `load` as `dump` gave them, whatever their sizes."""

    class Chunks(Log):
        loaded: list[int] | None = None

        def dump(self, state: list[Any]) -> Iterable[bytes]:  # noqa: ARG002 - any state
            sizes = [0, 1, 3 << 20, (1 << 20) + 1, 1 << 20, *([100] * 70_000)]
            yield from (bytes([i % 256]) * size for i, size in enumerate(sizes))

        def load(self, chunks: Iterable[bytes], version: int) -> list[Any]:  # noqa: ARG002 - 1
            chunks = list(chunks)
            assert list(map(len, chunks)) == list(map(len, self.dump([])))
            assert all(chunk == bytes([i % 256]) * len(chunk) for i, chunk in enumerate(chunks))
            return []

    with Journal(tmp_path, Chunks(), page_bytes=1 << 16) as journal:
        journal.update(lambda _: 1)
        journal.compact()
        assert journal.snapshots()[0].bytes > 12 << 20
    with Journal(tmp_path, Chunks()) as journal:
        assert (journal.state, journal.sequence) == ([], 1)


# --- damage ---------------------------------------------------------------------------------------


def damage_page(path: Path) -> None:
    """Change one byte of a frame."""
    page = path / "queue-0000000001.page"
    flip(page, page.read_bytes().index(b"C[") + 3)


def lose_page(path: Path) -> None:
    """Remove a page."""
    (path / "queue-0000000001.page").unlink()


def lose_meta(path: Path) -> None:
    """Remove the meta files."""
    for name in ("queue-allMeta", "queue-readMeta"):
        (path / name).unlink()


def empty(path: Path) -> None:
    """Remove all files."""
    for name in os.listdir(path):
        (path / name).unlink()


def swap_directory_for_a_file(path: Path) -> None:
    """Put a file in its place."""
    shutil.rmtree(path)
    path.write_bytes(b"")


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "damage", [damage_page, lose_page, lose_meta, empty, swap_directory_for_a_file]
)
def test_damaged_snapshot_is_replaced_by_the_one_before(
    tmp_path: Path,
    damage: Any,  # noqa: ANN401 - a function of a path
    caplog: pytest.LogCaptureFixture,
    *,
    read_only: bool,
) -> None:
    """The pages from that one on are kept for it; the next compaction heals."""
    filled(tmp_path, 300)
    compacted(tmp_path)
    state = filled(tmp_path, 300, 300)
    compacted(tmp_path)
    damage(snapshot(tmp_path, 600))
    assert loaded(tmp_path, read_only=read_only) == (300, state)
    if damage is not empty:
        assert str(snapshot(tmp_path, 600)) in caplog.text
    with Journal(tmp_path, Log(), compact_on_open=False) as journal:
        report = journal.verify()
        assert not report.ok
        assert report.snapshots == (300,)
        journal.compact()
        assert journal.verify().ok
    assert loaded(tmp_path) == (600, state)


@pytest.mark.parametrize("name", ["snapshot-00000000000000009999", "tmp-of-a-stranger"])
@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_compaction_removes_what_a_stranger_put_there_and_follows_it_nowhere(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A FIFO is not opened, which would wait for its writer; a link's target stays."""
    filled(tmp_path / "j", 300)
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("kept")
    place = tmp_path / "j" / "queue-journal" / name
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(target)
    else:
        place.mkdir()
        os.mkfifo(place / "queue-0000000001.page")
        (place / "link").symlink_to(target)
    with within(60):
        compact = ["journal", "compact", str(tmp_path / "j")]
        assert main([*compact, "--machine", "journals:Log"]) == 0
    assert not os.path.lexists(place)
    assert (target / "file").read_text() == "kept"
    assert loaded(tmp_path / "j")[0] == 300


def test_without_any_snapshot_a_compacted_journal_does_not_open(tmp_path: Path) -> None:
    """It does not begin with the initial state as if there had been no entries."""
    filled(tmp_path, 300)
    compacted(tmp_path, snapshots=1)
    with Queue(tmp_path) as queue:
        head = queue.head_sequence
        assert head > 0
    damage_page(snapshot(tmp_path, 300))
    with pytest.raises(CorruptSnapshot, match="restore a snapshot") as caught:
        Journal(tmp_path, Log())
    assert caught.value.sequence == head
    shutil.rmtree(tmp_path / "queue-journal")
    with pytest.raises(CorruptSnapshot, match="there is no snapshot"):
        Journal(tmp_path, Log(), read_only=True)


def rewritten(path: Path, change: Any) -> None:  # noqa: ANN401 - a function of payloads
    """Write a snapshot again with other messages, each of which validates."""
    with Queue(path, read_only=True) as queue:
        messages = [message.payload for message in queue.replay()]
    shutil.rmtree(path)
    with Queue(path, page_bytes=1 << 16) as queue, queue.producer() as producer:
        producer.send_many(change(messages))


def with_head(messages: list[bytes], **changes: object) -> list[bytes]:
    """Return the messages of a snapshot with another head and a digest of them."""
    head = json.loads(messages[0][1:]) | changes
    return with_digest([b"H" + json.dumps(head).encode(), *messages[1:]])


def with_digest(messages: list[bytes]) -> list[bytes]:
    """Return messages with the digest that they should have."""
    digest = hashlib.blake2b(digest_size=32)
    for one in messages[:-1]:
        digest.update(len(one).to_bytes(4, "little") + one)
    return [*messages[:-1], b"E" + digest.digest()]


def changed(messages: list[bytes]) -> list[bytes]:
    """Change an entry of the state."""
    return [one.replace(b"C[7,", b"C[8,") for one in messages]


REFUSED = {
    "digest": (lambda m: [one.replace(b"C[7,", b"C[8,") for one in m], "digest is wrong"),
    "left out": (lambda m: [m[0], *m[2:]], "digest is wrong"),
    "cut off": (lambda m: m[:-1], "ends early"),
    "cut in a chunk": (lambda m: with_digest([*m[:-1], b"Px", m[-1]]), "ends early"),
    "appended": (lambda m: [*m, b"C1"], "continues after its end"),
    "two ends": (lambda m: [*m, m[-1]], "continues after its end"),
    "no head": (lambda m: m[1:], "no head"),
    "no pages": (lambda _: [], "no head"),
    "two heads": (lambda m: with_digest([*m[:2], m[0], *m[2:]]), "unknown message"),
    "unknown": (lambda m: with_digest([*m[:2], b"?", *m[2:]]), "unknown message"),
    "empty message": (lambda m: with_digest([*m[:2], b"", *m[2:]]), "unknown message"),
    "head": (lambda m: with_digest([b"H{", *m[1:]]), "head is not readable"),
    "head of a list": (lambda m: with_digest([b"H[]", *m[1:]]), "head is not readable"),
    "deep head": (lambda m: with_digest([b"H" + b"[" * 60_000, *m[1:]]), "head is not readable"),
    "other queue": (lambda m: with_head(m, queue="00" * 16), "of another queue"),
    "other sequence": (lambda m: with_head(m, sequence=11), "of sequence 11"),
    "text": (lambda m: with_head(m, sequence="10"), "head is not readable"),
    "machine": (lambda m: with_head(m, machine=None), "head is not readable"),
    "other last": (lambda m: with_head(m, last=[1, 2]), "another entry 9"),
    "no last": (lambda m: with_head(m, last="x"), "head is not readable"),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("what", REFUSED)
def test_forged_snapshot_is_refused(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I22: frames that validate are not enough."""
    change, reason = REFUSED[what]
    state = filled(tmp_path, 10)
    compacted(tmp_path)
    rewritten(snapshot(tmp_path, 10), change)
    assert loaded(tmp_path) == (None, state)
    assert reason in caplog.text
    assert "compact the journal" in caplog.text


def test_rewritten_snapshot_itself_is_accepted(tmp_path: Path) -> None:
    """So the refusals above are for what was changed."""
    state = filled(tmp_path, 10)
    compacted(tmp_path)
    rewritten(snapshot(tmp_path, 10), with_head)
    assert loaded(tmp_path) == (10, state)


def test_snapshot_of_a_later_version_is_an_error_not_damage(tmp_path: Path) -> None:
    """Of the machine, or of the format: upgrading helps, and no state is made up."""

    class Later(Log):
        version = 2

    filled(tmp_path, 10)
    with Journal(tmp_path, Later()) as journal:
        journal.compact()
    with pytest.raises(NewerFormat, match="upgrade the program") as caught:
        Journal(tmp_path, Log())
    assert caught.value.version == 2
    rewritten(snapshot(tmp_path, 10), lambda messages: with_head(messages, format=2))
    with pytest.raises(NewerFormat, match="upgrade pagequeue"):
        Journal(tmp_path, Later())


def test_error_of_load_is_the_machines_unless_the_snapshot_is_damaged(tmp_path: Path) -> None:
    """A bug of the machine is shown as it is, with the path."""

    class Broken(Log):
        def load(self, chunks: Iterable[bytes], version: int) -> list[Any]:  # noqa: ARG002 - 1
            next(iter(chunks))
            raise ValueError("a bug")

    state = filled(tmp_path, 10)
    compacted(tmp_path)
    with pytest.raises(ValueError, match="a bug") as caught:
        Journal(tmp_path, Broken())
    assert str(snapshot(tmp_path, 10)) in caught.value.__notes__[0]
    rewritten(snapshot(tmp_path, 10), changed)
    with Journal(tmp_path, Broken()) as journal:
        assert journal.state == state


def test_verify_finds_a_state_that_the_entries_do_not_lead_to(tmp_path: Path) -> None:
    """In memory, and in a snapshot whose digest is right."""
    filled(tmp_path, 10)
    compacted(tmp_path)
    with Journal(tmp_path, Log()) as journal:
        report = journal.verify()
        assert (report.ok, report.sequence, report.replayed_from) == (True, 10, 0)
        assert report.snapshots == (10,)
    rewritten(snapshot(tmp_path, 10), lambda messages: with_digest(changed(messages)))
    with Journal(tmp_path, Log(), compact_on_open=False) as journal:
        report = journal.verify()
        assert len(report.problems) == 2
        assert "not the state that the entries lead to" in report.problems[0]
        assert "in memory" in report.problems[1]


# --- killed, cut off, full ------------------------------------------------------------------------

STEPS = {
    "sweep": (Snapshots, "sweep"),
    "flush": (Compactor, "_flush"),
    "write": (Snapshots, "_write"),
    "rename": (Directory, "rename"),
    "sync": (Snapshots, "_commit"),
    "kept": (Compactor, "_kept"),
    "trim": (Compactor, "_trim"),
    "remove": (Snapshots, "remove"),
}


class Killed(BaseException):
    """No except clause for errors catches this."""


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_compaction_may_die_at_every_step(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """I22: before it and after it; and then the power is cut: the state is the same."""
    filled(tmp_path, 200)
    compacted(tmp_path)
    compacted_state = filled(tmp_path, 200, 200)
    owner, name = STEPS[step]
    genuine = getattr(owner, name)
    journal = Journal(tmp_path, Log(), compact_on_open=False)

    def dies(*args: object, **options: object) -> None:
        if after:
            genuine(*args, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        patch.setattr(Snapshots, "_remove", lambda *_: None)  # what a dead process does not do
        with contextlib.suppress(Killed):
            journal.compact()
    for handle in list(journal._opened.handles.values()):
        handle.close()
    journal.close()
    with Queue(tmp_path, read_only=True) as queue:
        (consumer,) = queue.consumers()
        assert consumer.next_sequence in {0, 200}  # never at a snapshot that may not be there
    for cut in (False, True):
        if cut:
            assert pretend_power_cut(tmp_path)
            for path in (tmp_path / "queue-journal").glob("snapshot-*"):
                pretend_power_cut(path)
        with Journal(tmp_path, Log(), compact_on_open=False) as journal:
            assert journal.state == compacted_state
            assert journal.verify().ok
    with Journal(tmp_path, Log()) as journal:
        journal.compact()
        assert [one.sequence for one in journal.snapshots()] == [400, 200]
        assert journal.queue.head_sequence > 0
        assert journal.verify().ok
    assert len(os.listdir(tmp_path / "queue-journal")) == 3


def test_sync_that_fails_after_the_rename_takes_the_snapshot_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sync could succeed without its name: the log must not be trimmed for it."""
    filled(tmp_path, 300)
    with Journal(tmp_path, Log(), snapshots=1) as journal:
        folder = journal._snapshots.folder

        def fails() -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(folder, "sync", fails)
            with pytest.raises(SystemLimit):
                journal.compact()
        assert journal.snapshots() == []
        assert journal.queue.head_sequence == 0
        assert os.listdir(tmp_path / "queue-journal") == ["turn"]
        assert journal.compact().sequence == 300


def test_snapshot_waits_for_the_log_to_be_on_stable_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I22: a sync of the log that fails leaves no snapshot."""
    filled(tmp_path, 10)
    with Journal(tmp_path, Log()) as journal:
        assert journal.queue.durable_sequence < 10
        flusher = journal._opened.store.flusher

        def fails(*_: object) -> None:
            raise SyncFailed("no", path=str(tmp_path))

        with monkeypatch.context() as patch:
            patch.setattr(flusher, "flush", fails)
            with pytest.raises(SyncFailed):
                journal.compact()
        assert journal.snapshots() == []
        journal.compact()
        assert journal.queue.durable_sequence == 10


def test_power_cut_that_took_entries_leaves_a_state_that_the_log_has(tmp_path: Path) -> None:
    """I22: unflushed entries are lost, and every process has the same state."""
    filled(tmp_path, 10)
    compacted(tmp_path)
    with Journal(tmp_path, Log()) as journal:
        journal.update(lambda _: 10)
        (page,) = tmp_path.glob("*.page")
        position = page.read_bytes().rindex(b"[1,10]")
    flip(page, position)
    pretend_power_cut(tmp_path)
    known, state = loaded(tmp_path)
    assert (known, len(state)) == (10, 10)
    filled(tmp_path, 1, 77)
    assert loaded(tmp_path)[1][-1][0] == loaded(tmp_path, read_only=True)[1][-1][0] == 77


# --- followers ------------------------------------------------------------------------------------


def test_follower_that_was_compacted_past_restores_and_continues(tmp_path: Path) -> None:
    """Its entries are gone; a snapshot has them."""
    filled(tmp_path, 10)
    with (
        Journal(tmp_path, Log(), read_only=True) as follower,
        Journal(tmp_path, Log(), snapshots=1, compact_on_open=False) as journal,
    ):
        for round_ in range(3):
            for i in range(300):
                journal.update(lambda _, i=i: i)
            journal.compact()
            assert journal.queue.head_sequence > follower.sequence
            assert follower.catch_up() == journal.sequence == 10 + 300 * (round_ + 1)
            assert follower.state == journal.state
        for i in range(300):
            journal.update(lambda _, i=i: i)
        journal.compact()
        assert follower.wait(60.0, after=follower.sequence)
        assert follower.state == journal.state


def test_at_needs_the_entries_of_that_time(tmp_path: Path) -> None:
    """Or a snapshot before it; the error has the earliest possible time."""
    clock = Clock(1000)
    with Journal(tmp_path, Log(), page_bytes=SMALL, clock=clock, snapshots=1) as journal:
        for i in range(400):
            clock.now = 1000 + i
            journal.update(lambda _, i=i: i)
            if i == 299:
                journal.compact()
        assert journal.queue.head_sequence > 0
        for moment in (1299, 1300, 1399, 5000):
            assert len(journal.at(moment)) == min(moment - 999, 400)
        assert journal.queue.head_sequence < 298  # that entry is there, and no state to apply it to
        with pytest.raises(Expired, match=r"a later time: the oldest snapshot has .* below 300"):
            journal.at(1298)
        with pytest.raises(Expired, match="ask for a later time"):
            journal.at(1)
        assert len(journal.state) == 400


def test_poison_entry_before_a_snapshot_is_skipped_by_loading_it(tmp_path: Path) -> None:
    """A machine that accepts the entry compacts it away; others can then open."""

    class Careless(Accounts):
        def apply(self, state: dict[str, int], entry: Any, timestamp_ns: int) -> None:  # noqa: ANN401 - JSON
            if entry != "poison":
                super().apply(state, entry, timestamp_ns)

    with Journal(tmp_path, Careless(), page_bytes=SMALL) as journal:
        journal.update(lambda _: "poison")
        journal.update(lambda _: ["ann", 1])
        with pytest.raises(PoisonEntry):
            Journal(tmp_path, Accounts())
        with Journal(tmp_path, Accounts(), prefix="other", page_bytes=SMALL) as stopped:
            careless = Journal(tmp_path, Careless(), prefix="other", snapshots=1)
            careless.update(lambda _: "poison")
            with pytest.raises(PoisonEntry):
                stopped.catch_up()
            for _ in range(300):
                careless.update(lambda _: ["ann", 1])
            careless.compact()
            careless.close()
            assert stopped.catch_up() == 301
            assert stopped.state == {"ann": 300}
        journal.compact()
    with Journal(tmp_path, Accounts()) as journal:
        assert journal.state == {"ann": 1}


@pytest.mark.slow
def test_threads_append_while_one_compacts(tmp_path: Path) -> None:
    """They wait, lose no entry, and the journal stays valid."""
    with Journal(tmp_path, Log(), page_bytes=SMALL, snapshots=1) as journal:
        done = threading.Event()

        def compact() -> None:
            while not done.is_set():
                journal.compact()

        thread = threading.Thread(target=compact)
        thread.start()
        for i in range(300):
            journal.update(lambda _, i=i: i)
        done.set()
        thread.join()
        assert [entry for entry, _ in journal.state] == list(range(300))
        assert journal.verify().ok


def test_snapshots_are_queues(tmp_path: Path) -> None:
    """Everything that reads queues reads them."""
    filled(tmp_path, 10)
    compacted(tmp_path)
    with Queue(snapshot(tmp_path, 10), read_only=True) as queue:
        assert queue.verify().ok
        kinds = [message.payload[:1] for message in queue.replay()]
        assert kinds == [b"H", *[b"C"] * 10, b"E"]
    assert fmt.JOURNAL_SNAPSHOT.fullmatch(snapshot(tmp_path, 10).name)


def test_closing_while_compacting_is_a_typed_error(tmp_path: Path) -> None:
    """Also for the threads that wait for it."""
    filled(tmp_path, 10)
    journal = Journal(tmp_path, Log())
    journal.close()
    with pytest.raises(ClosedError):
        journal.compact()
    with pytest.raises(ClosedError):
        journal.snapshots()
    with pytest.raises(ClosedError):
        journal.at(timedelta(hours=1))


@pytest.mark.slow
def test_opening_while_another_process_compacts_finds_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and reading the head, and between building and reading on."""
    filled(tmp_path, 100)
    with Journal(tmp_path, Log(), snapshots=1, compact_on_open=False) as journal:
        genuine = {name: getattr(Snapshots, name) for name in ("sequences", "load")}
        left = [0]

        def compacts(name: str) -> Any:  # noqa: ANN401 - a method
            def method(self: Snapshots, *args: Any) -> Any:  # noqa: ANN401 - of either
                found = genuine[name](self, *args)
                if self is not journal._snapshots and left[0]:
                    left[0] -= 1
                    for i in range(100):
                        journal.update(lambda _, i=i: i)
                    journal.compact()
                return found

            return method

        for name in genuine:
            with monkeypatch.context() as patch:
                patch.setattr(Snapshots, name, compacts(name))
                for read_only in (True, False):
                    journal.compact()
                    left[0] = 3
                    with Journal(tmp_path, Log(), read_only=read_only) as other:
                        assert other.state == journal.state
                        assert left[0] < 3
                    left[0] = 3
                    with Journal(tmp_path, Log(), read_only=read_only) as other:
                        left[0] = 3
                        assert other.verify().ok


def test_entries_larger_than_a_page_are_entries_like_all(tmp_path: Path) -> None:
    """They are followed, replayed, compacted, and checked against a snapshot that ends with one."""
    with (
        Journal(tmp_path, Log(), page_bytes=SMALL, snapshots=1) as journal,
        Journal(tmp_path, Log(), read_only=True) as follower,
    ):
        for i in range(60):
            journal.update(lambda _, i=i: "x" * (5 * SMALL if i % 7 == 3 else i))
        assert follower.catch_up() == 60
        assert follower.state == journal.state
        while len(journal.state[-1][0]) < SMALL:
            journal.update(lambda state: "y" * (3 * SMALL if len(state) % 7 == 3 else 1))
        assert journal.compact().pages > 0
        assert journal.verify().ok
        for i in range(40):
            journal.update(lambda _, i=i: "z" * (i % 9 * SMALL))
        assert follower.catch_up() == journal.sequence
        assert follower.state == journal.state
    state = journal.state
    known, found = loaded(tmp_path)
    assert (known, found) == (len(state) - 40, state)


def test_snapshot_that_does_not_fit_on_the_disk_leaves_the_journal_as_it_was(
    tmp_path: Path,
) -> None:
    """A typed error, no file, no entry removed; entries are appended, and later it fits."""
    with Journal(tmp_path, Log(), page_bytes=SMALL, snapshots=1) as journal:
        for i in range(300):
            journal.update(lambda _, i=i: f"{i:0200}")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, before[1]))
        try:
            with pytest.raises(DiskFull):
                journal.compact()
            assert journal.snapshots() == []
            assert os.listdir(tmp_path / "queue-journal") == ["turn"]
            assert journal.queue.head_sequence == 0
            assert journal.update(lambda _: "more") == 300
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert journal.compact().pages > 0
        assert journal.verify().ok
