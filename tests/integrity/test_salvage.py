"""Salvage: every valid message is copied, and exactly the lost ones are reported."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import struct
from typing import TYPE_CHECKING, Any

import pytest
from plugin import MESSAGES, Disk
from support import until

from pagequeue import (
    CorruptMeta,
    DiskFull,
    InvalidOption,
    Message,
    Queue,
    QueueNotFound,
    Run,
    SalvageReport,
    SystemLimit,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue.integrity import salvage_source
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.store.roll import Roller
from pagequeue.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue.system.directory import Directory


@pytest.fixture
def filled(disk: Disk) -> Disk:
    """Eight messages on three pages, closed in peace."""
    disk.send(*MESSAGES, flush=True)
    return disk


def read(directory: Path) -> list[Message]:
    """Return all messages of a queue."""
    with Queue(directory, read_only=True) as queue:
        return list(queue.replay())


def salvaged(disk: Disk, kept: list[int], sent: list[Message]) -> SalvageReport:
    """Salvage; these messages must be copied, with their times, and the report must list them."""
    before = disk.contents()
    target = disk.directory.with_name("target")
    shutil.rmtree(target, ignore_errors=True)
    report = salvage_queue(disk.directory, target)
    assert disk.contents() == before, "the damaged queue is only read"
    found = read(target)
    assert [(m.payload, m.timestamp) for m in found] == [
        (sent[n].payload, sent[n].timestamp) for n in kept
    ]
    old = [n for run in report.runs for n in range(run.first, run.last + 1)]
    assert old == kept
    new = [
        run.target_first + n - run.first
        for run in report.runs
        for n in range(run.first, run.last + 1)
    ]
    assert new == list(range(len(kept)))
    gone = [
        n for loss in report.lost for n in range(loss.first_sequence, (loss.last_sequence or 0) + 1)
    ]
    assert gone == [n for n in range(len(sent)) if n not in kept]
    assert report.ok == (not gone and not report.conflicts)
    assert verify_queue(target).ok
    return report


def test_whole_queue_is_copied(filled: Disk) -> None:
    """No message is lost; the copy is on stable storage."""
    report = salvaged(filled, list(range(8)), read(filled.directory))
    assert report.ok
    assert report.runs == [Run(0, 7, 0)]
    with Queue(filled.directory.with_name("target")) as queue:
        assert queue.durable_sequence == 8


@pytest.mark.parametrize("ordinal", [0, 1, 2])
@pytest.mark.parametrize("number", [1, 2])
def test_damaged_message_is_lost_and_the_rest_is_copied(
    filled: Disk, number: int, ordinal: int
) -> None:
    """With the file, the place, the sequence, and the times around it."""
    sent = read(filled.directory)
    position = filled.tear(number, ordinal)
    sequence = 3 * (number - 1) + ordinal
    report = salvaged(filled, [n for n in range(8) if n != sequence], sent)
    (loss,) = report.lost
    assert (loss.file, loss.position) == (str(filled.page(number)), position)
    assert loss.reason == "its checksum is wrong"
    assert loss.after_ns == (sent[sequence - 1].timestamp if sequence else None)
    assert loss.before_ns == sent[sequence + 1].timestamp


@pytest.mark.parametrize("cut", [True, False])
def test_damaged_last_message_is_lost(filled: Disk, *, cut: bool) -> None:
    """The durable mark proves that it existed, although no page follows it."""
    sent = read(filled.directory)
    filled.tear(3, 1)
    if cut:
        filled.cut_power()
    report = salvaged(filled, list(range(7)), sent)
    assert report.lost[0].before_ns is None


def test_missing_page_is_counted_as_lost(filled: Disk) -> None:
    """The next page's first sequence gives the count; the missing page is named."""
    sent = read(filled.directory)
    filled.page(2).unlink()
    report = salvaged(filled, [0, 1, 2, 6, 7], sent)
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [(3, 5)]
    assert report.lost[0].file == str(filled.page(2))


def test_pages_alone_are_enough(filled: Disk) -> None:
    """Without any meta file or index, and with unreadable headers."""
    sent = read(filled.directory)
    for path in list(filled.directory.iterdir()):
        if not path.name.endswith(".page"):
            path.unlink()
    salvaged(filled, list(range(8)), sent)
    for number in (2, 3):
        filled.poke(filled.page(number), 0, bytes(64))
    salvaged(filled, list(range(8)), sent)


def refusing(monkeypatch: pytest.MonkeyPatch, refused: Path, number: int) -> None:
    """Let opening a file fail."""
    real = os.open

    def failing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == refused.name and os.path.samefile(f"/proc/self/fd/{dir_fd}", refused.parent):
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing)


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (errno.EACCES, "access", "not allowed while opening the file (Permission denied)"),
        (errno.ELOOP, "access", "not a regular file"),
        (errno.EIO, "damage", "unreadable (Input/output error)"),
    ],
)
def test_unreadable_index_is_reported(
    filled: Disk, monkeypatch: pytest.MonkeyPatch, number: int, kind: str, reason: str
) -> None:
    """All messages are copied from the page, and the report names the index that was not used."""
    sent = read(filled.directory)
    path = filled.path("0000000002.idx")
    with monkeypatch.context() as patched:
        refusing(patched, path, number)
        report = salvaged(filled, list(range(8)), sent)
    (note,) = report.notes
    assert (note.file, note.kind) == (str(path), kind)
    assert note.reason.startswith(f"index, left out: {reason}")
    assert note.reason.endswith(note.remedy or ")")


def test_index_that_the_disk_fails_to_read_is_reported(
    filled: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where opening and mapping it succeeded: a read through the map gives zeros."""
    sent = read(filled.directory)
    path = filled.path("0000000002.idx")
    data = path.read_bytes()
    real = salvage_source.map_file

    def failing(folder: Directory, name: str, size_bytes: int, *, writable: bool) -> Any:  # noqa: ANN401 - the core's
        index = real(folder, name, size_bytes, writable=writable)
        if name == path.name:
            os.truncate(path, 0)
        return index

    with monkeypatch.context() as patched:
        patched.setattr(salvage_source, "map_file", failing)
        report = salvage_queue(filled.directory, filled.directory.with_name("target"))
    assert report.messages_copied == len(sent)
    (note,) = report.notes
    assert (note.file, note.reason) == (str(path), "index, left out: truncated while it was open")
    path.write_bytes(data[:-12])
    (note,) = salvaged(filled, list(range(8)), sent).notes
    assert (note.file, note.reason) == (str(path), "index, left out: wrong size")
    path.unlink()
    assert salvaged(filled, list(range(8)), sent).notes == []


def test_salvage_without_descriptors_is_an_error(
    filled: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It concerns the process, not the index: call again."""
    path = filled.path("0000000002.idx")
    refusing(monkeypatch, path, errno.EMFILE)
    with pytest.raises(SystemLimit, match=str(path)):
        salvage_queue(filled.directory, filled.directory.with_name("target"))


def test_page_that_was_cut_short(filled: Disk) -> None:
    """Its remaining messages are copied."""
    sent = read(filled.directory)
    data = filled.page(2).read_bytes()
    filled.page(2).write_bytes(data[: filled.frames(2)[1].position + 700])
    salvaged(filled, [0, 1, 2, 3, 6, 7], sent)


def test_page_of_zeros(filled: Disk) -> None:
    """All of it is gone."""
    sent = read(filled.directory)
    filled.page(2).write_bytes(bytes(4096))
    salvaged(filled, [0, 1, 2, 6, 7], sent)


@pytest.mark.parametrize("ordinals", [(0,), (0, 1)])
def test_frames_of_another_page_do_not_determine_where_a_page_begins(
    filled: Disk, ordinals: tuple[int, ...]
) -> None:
    """The header does, and the page before; or whole messages of that one would be left out."""
    sent = read(filled.directory)
    data = filled.page(1).read_bytes()
    filled.tear(2, 0)
    for ordinal in ordinals:
        frame = filled.frames(1)[ordinal]
        filled.poke(filled.page(2), frame.position, data[frame.position :][: frame.word])
    salvaged(filled, [n for n in range(8) if n - 3 not in ordinals], sent)


@pytest.mark.parametrize("sequence", [2**64 - 1, 2**63 - 1, 4])
def test_invalid_head_is_not_trusted(filled: Disk, sequence: int) -> None:
    """Whatever the read meta contains, while the first page's header is damaged as well."""
    sent = read(filled.directory)
    filled.poke(filled.page(1), 0, bytes(8))
    filled.poke(filled.path("readMeta"), ReadMeta.HEAD_ODD, struct.pack("<Q", sequence))
    salvaged(filled, list(range(8)), sent)


def test_identical_duplicate_is_ignored_and_reported(filled: Disk) -> None:
    """A page that is there twice gives its messages once."""
    sent = read(filled.directory)
    shutil.copy(filled.page(2), filled.page(9))
    report = salvaged(filled, list(range(8)), sent)
    (again,) = report.duplicates
    assert (again.first_sequence, again.last_sequence) == (3, 5)
    assert again.file == str(filled.page(9))
    assert report.ok


def test_conflicting_duplicate_is_an_error(filled: Disk, tmp_path: Path) -> None:
    """Two pages that both prove themselves and contradict each other."""
    sent = read(filled.directory)
    other = Disk(tmp_path / "other", clock=filled.clock)
    shutil.copytree(filled.directory, other.directory)
    other.page(2).unlink()
    other.page(3).unlink()
    other.zero(1, -1)  # an end mark is a promise that the next page is there
    other.path("writeMeta").unlink()
    other.poke(other.path("readMeta"), 32, (1).to_bytes(8, "little"))
    # Without the mark, so that page 2 is not missing but never was.
    other.poke(other.page(1), 4024, bytes(16))
    other.send(b"other" * 100)
    with other.open() as queue:
        queue.rotate()
    shutil.copy(other.page(2), filled.page(9))
    report = salvaged(filled, list(range(8)), sent)
    assert [(c.first_sequence, c.last_sequence) for c in report.conflicts] == [(3, 3)]
    assert not report.ok


@pytest.mark.parametrize("again", [3, 4])
@pytest.mark.parametrize("name", [0, 9])
def test_copy_of_a_page_that_a_power_cut_took_does_not_replace_a_message(
    filled: Disk, again: int, name: int
) -> None:
    """Its messages were dropped, and their sequences are those of others now, of 1 page or 2."""
    old = filled.page(3).read_bytes()
    filled.page(3).unlink()
    filled.page(2).unlink()
    filled.cut_power(durable=3)
    payloads = [b"%03d" % i * 100 for i in range(5)]
    filled.send(*payloads[:again])
    with filled.open() as queue:
        queue.rotate()
    filled.send(*payloads[again:])
    sent = read(filled.directory)
    assert len(sent) == 8
    filled.page(name).write_bytes(old)
    report = salvaged(filled, list(range(8)), sent)
    assert {conflict.file for conflict in report.conflicts} == {str(filled.page(name))}
    assert not report.ok


def test_batches_stay_whole(disk: Disk) -> None:
    """I8: what was sent at once has one time and is one batch in the copy."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"single")
        producer.send_many([b"a", b"b", b"c"])
        producer.send_many([b"d", b"e"])
    sent = read(disk.directory)
    salvaged(disk, list(range(6)), sent)
    disk.poke(disk.page(1), disk.frames(1)[2].position + 16, b"?")
    salvaged(disk, [0, 1, 3, 4, 5], sent)
    copied = Disk(disk.directory.with_name("target"))
    assert [frame.word >> 30 & 1 for frame in copied.frames(1)] == [0, 0, 0, 1, 0]


def test_unsent_batch_of_a_dead_producer_is_not_copied(disk: Disk) -> None:
    """I8: its frames are valid, and were never sent."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"sent")
        producer.send_many([b"never"] * 5)
    frames = disk.frames(1)
    disk.poke(disk.page(1), frames[1].position, bytes(4))
    disk.poke(disk.path("writeMeta"), 216, (frames[1].position << 32 | 1).to_bytes(8, "little"))
    for unlinked in (False, True):
        if unlinked:
            disk.path("writeMeta").unlink()
        target = disk.directory.with_name(f"target-{unlinked}")
        assert salvage_queue(disk.directory, target).ok
        assert [m.payload for m in read(target)] == [b"sent"]


def test_target_must_be_free(filled: Disk) -> None:
    """An existing queue is never appended to."""
    for target in (filled.directory, filled.directory.with_name("other")):
        if target != filled.directory:
            Queue(target).close()
        with pytest.raises(InvalidOption, match="another target"):
            salvage_queue(filled.directory, target)
    assert filled.payloads() == MESSAGES


def test_directory_without_messages_to_salvage_is_an_error(tmp_path: Path) -> None:
    """Neither an empty directory nor a meta file without content."""
    with pytest.raises(QueueNotFound):
        salvage_queue(tmp_path, tmp_path / "target")
    (tmp_path / "queue-allMeta").write_bytes(b"")
    with pytest.raises(CorruptMeta, match="restore"):
        salvage_queue(tmp_path, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_random_damage_never_invents(disk: Disk) -> None:
    """Whatever is overwritten, what is copied was sent, in order, and the report adds up."""
    rng = random.Random(7)
    payloads = [rng.randbytes(rng.randrange(300)) for _ in range(120)]
    disk.send(*payloads, flush=True)
    sent = read(disk.directory)
    good = disk.contents()
    for turn in range(30):
        for name, data in good.items():
            (disk.directory / name).write_bytes(data)
        pages = sorted(disk.directory.glob("*.page"))
        for _ in range(rng.randrange(1, 6)):
            path = rng.choice(pages)
            at = rng.randrange(4096)
            disk.poke(path, at, rng.randbytes(rng.randrange(1, min(600, 4097 - at))))
        target = disk.directory.with_name(f"t{turn}")
        report = salvage_queue(disk.directory, target)
        known = [n for run in report.runs for n in range(run.first, run.last + 1)]
        gone = [n for x in report.lost for n in range(x.first_sequence, x.last_sequence + 1)]
        assert sorted(known + gone) == list(range(120))
        found = read(target)
        assert [(m.payload, m.timestamp) for m in found] == [
            (sent[n].payload, sent[n].timestamp) for n in known
        ]
        bad = {p.sequence for p in verify_queue(disk.directory).problems if ".page" in p.file}
        assert bool(gone) <= bool(bad)


def test_open_queue_salvages_itself(filled: Disk) -> None:
    """Also read-only."""
    with Queue(filled.directory, read_only=True) as queue:
        assert queue.salvage(filled.directory.with_name("t")).messages_copied == 8


def test_salvage_that_is_cut_short_leaves_no_target(
    filled: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a copy would pass for all of it; and the same call works when there is room."""
    target = filled.directory.with_name("target")
    real = Roller.next_page

    def full(self: Roller, number: int, *asked: Any, **options: Any) -> object:  # noqa: ANN401 - the library's own
        if number > 2:
            raise DiskFull("no room")
        return real(self, number, *asked, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Roller, "next_page", full)
        with pytest.raises(DiskFull):
            salvage_queue(filled.directory, target)
    assert list(target.iterdir()) == []
    assert salvage_queue(filled.directory, target).messages_copied == 8


def test_invalid_mark_is_not_trusted(filled: Disk) -> None:
    """No page can have so many messages, so none is lost; repair recreates the mark."""
    sent = read(filled.directory)
    filled.cut_power(2**60)
    (problem,) = verify_queue(filled.directory).problems
    assert str(2**60) in problem.reason
    report = salvaged(filled, list(range(8)), sent)
    assert report.lost == []
    assert repair_queue(filled.directory).ok
    assert read(filled.directory) == sent


def test_mark_past_missing_pages_is_trusted(filled: Disk) -> None:
    """The tail fields prove that the page existed, so its messages are lost."""
    filled.send(b"more", flush=True)
    sent = read(filled.directory)
    filled.page(3).unlink()
    filled.cut_power()
    report = salvaged(filled, list(range(6)), sent)
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [(6, 8)]


def test_target_inside_of_the_damaged_queue_is_refused(filled: Disk, tmp_path: Path) -> None:
    """The damaged queue is never written to, not even by another name."""
    (tmp_path / "link").symlink_to(filled.directory)
    before = filled.contents()
    for target in (filled.directory / "saved", tmp_path / "link" / "deep" / "er"):
        with pytest.raises(InvalidOption, match="damaged queue's directory"):
            salvage_queue(filled.directory, target)
    assert filled.contents() == before


def test_salvage_keeps_no_reference_to_its_target(tmp_path: Path) -> None:
    """The collector sees no cycle through the core's producer: it would stay for good."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue:
        queue.producer().send(b"1")
        gc.collect()
        before = stores()
        queue.salvage(tmp_path / "to")

        def others() -> list[Store]:
            gc.collect()
            return [one for one in stores() if not any(one is known for known in before)]

        until(lambda: not others())  # its thread may be about to end


def stores() -> list[Store]:
    """Return all stores that there are."""
    return [one for one in gc.get_objects() if type(one) is Store]
