"""Repair: whatever is repairable without losing a message is repaired, the rest is named."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
from plugin import MESSAGES, Disk, Frame
from support import end, ready, start

from pagequeue import (
    AccessDenied,
    CorruptMeta,
    LockTimeout,
    Queue,
    QueueNotFound,
    SyncFailed,
    SystemLimit,
    VerifyReport,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.integrity import repair
from pagequeue.integrity.verify import verify
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
HEADER = 64


@pytest.fixture
def filled(disk: Disk) -> Disk:
    """Eight messages on three pages, the first seven flushed, closed in peace."""
    disk.send(*MESSAGES[:7], flush=True)
    disk.send(MESSAGES[7])
    return disk


def remove(path: Path) -> None:
    """Make a file missing."""
    path.unlink()


def fifo(path: Path) -> None:
    """Put a FIFO in a file's place."""
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    """Put a symbolic link in a file's place."""
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def empty(path: Path) -> None:
    """Truncate a file to zero bytes."""
    path.write_bytes(b"")


def ones(path: Path) -> None:
    """Overwrite a file with ones."""
    path.write_bytes(b"\xff" * path.stat().st_size)


def zeros(path: Path) -> None:
    """Overwrite a file with zeros."""
    path.write_bytes(bytes(path.stat().st_size))


def longer(path: Path) -> None:
    """Append to a file."""
    path.write_bytes(path.read_bytes() + b"more" * 100)


def no_header(path: Path) -> None:
    """Overwrite a page's header."""
    path.write_bytes(b"\xaa" * HEADER + path.read_bytes()[HEADER:])


def no_end_of_page_marker(path: Path) -> None:
    """Overwrite a page's end-of-page marker."""
    data = path.read_bytes()
    at = data.rindex(b"\x10\0\0\x80")
    path.write_bytes(data[:at] + b"\0garbage" + data[at + 8 :])


def short_after_frames(path: Path) -> None:
    """Cut a page after its last frame."""
    os.truncate(path, PAGE - 4)


def repaired(disk: Disk, expected: list[bytes], *, once: bool = True) -> list[str]:
    """Repair; the queue must be whole then, and a second repair must take no action."""
    report = repair_queue(disk.directory)
    assert report.remaining == []
    assert report.ok
    assert report.actions or not once
    assert repair_queue(disk.directory).actions == []
    assert verify_queue(disk.directory).problems == []
    assert disk.payloads() == expected
    disk.send(b"next")
    assert disk.payloads() == [*expected, b"next"]
    return report.actions


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("damage", [remove, fifo, link, empty, ones, zeros, longer])
@pytest.mark.parametrize("name", ["0000000001.idx", "0000000002.idx", "0000000003.idx"])
def test_index_is_recreated(filled: Disk, name: str, damage: Callable[[Path], None]) -> None:
    """I6: whatever file has its name."""
    damage(filled.path(name))
    assert not verify_queue(filled.directory).ok
    assert any(name in action for action in repaired(filled, MESSAGES))


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("damage", [remove, fifo, link, empty, ones, zeros])
@pytest.mark.parametrize("name", ["allMeta", "readMeta", "writeMeta"])
def test_meta_file_is_recreated(filled: Disk, name: str, damage: Callable[[Path], None]) -> None:
    """From the pages, the only other source."""
    damage(filled.path(name))
    assert not verify_queue(filled.directory).ok
    assert any(name in action for action in repaired(filled, MESSAGES))


def test_all_metas_at_once(filled: Disk) -> None:
    """The pages alone are enough."""
    for name in ("allMeta", "readMeta", "writeMeta"):
        remove(filled.path(name))
    assert len(repaired(filled, MESSAGES)) >= 3


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("damage", [no_header, longer])
def test_page_whose_frames_are_whole_is_repaired(
    filled: Disk, number: int, damage: Callable[[Path], None]
) -> None:
    """Its frames prove their sequences, and the format determines its size."""
    damage(filled.page(number))
    assert not verify_queue(filled.directory).ok
    assert any(f"{number:010d}.page" in action for action in repaired(filled, MESSAGES))


def test_headers_of_all_pages_are_repaired(filled: Disk) -> None:
    """Each from the end of the one before it."""
    for number in (1, 2, 3):
        no_header(filled.page(number))
    repaired(filled, MESSAGES)


def test_header_after_a_damaged_page_is_repaired(filled: Disk) -> None:
    """Then the checksum of its first frame alone proves its sequence."""
    filled.tear(1, 1)
    no_header(filled.page(2))
    report = repair_queue(filled.directory)
    assert [problem.sequence for problem in report.remaining] == [1]
    with Queue(filled.directory, read_only=True) as queue:
        assert [m.payload for m in queue.replay(sequence=3)] == MESSAGES[3:]


@pytest.mark.parametrize("number", [1, 2])
def test_end_of_page_marker_is_written_again(filled: Disk, number: int) -> None:
    """All messages before the next page are present, only the marker is missing."""
    no_end_of_page_marker(filled.page(number))
    assert not verify_queue(filled.directory).ok
    assert any("end-of-page marker" in action for action in repaired(filled, MESSAGES))


@pytest.mark.parametrize("number", [1, 3])
def test_page_that_is_too_short_after_its_frames_is_extended(filled: Disk, number: int) -> None:
    """The page had no message."""
    short_after_frames(filled.page(number))
    repaired(filled, MESSAGES)


def test_page_under_another_number_gets_its_own(filled: Disk) -> None:
    """Its number is in its header."""
    filled.page(2).rename(filled.page(7))
    filled.index(2).rename(filled.index(7))
    repaired(filled, MESSAGES)


def test_leftover_temporary_is_removed(filled: Disk) -> None:
    """An interrupted process's temporary file contains no part of the queue."""
    filled.path("0000000004.page.tmp-next").write_bytes(b"half")
    repaired(filled, MESSAGES)
    assert not list(filled.directory.glob("*.tmp-*"))


def test_torn_tail_after_the_durable_mark_is_cut(filled: Disk) -> None:
    """I5: as opening would; and it is reported."""
    filled.tear(3, 1)
    filled.cut_power()
    assert any("zeroed" in action for action in repaired(filled, MESSAGES[:7]))


def test_partial_batch_after_the_tail_is_zeroed(filled: Disk) -> None:
    """I8: it was never sent, and no producer may write to the page while it exists."""
    last = filled.frames(3)[-1]
    end, word = last.position + last.word, fmt.MORE_OF_BATCH | 16 + 4
    half = Frame(end, word, 0, last.timestamp, b"half", last.queue_id)
    head = struct.pack("<IIq", word, half.checksum_for(8), last.timestamp)
    filled.poke(filled.page(3), (end + 7) // 8 * 8, head + half.payload)
    assert "half of a batch" in verify_queue(filled.directory).problems[0].reason
    assert any("zeroed" in action for action in repaired(filled, MESSAGES))


@pytest.mark.parametrize(
    ("number", "ordinal", "sequence"), [(1, 0, 0), (1, 2, 2), (2, 1, 4), (3, 0, 6)]
)
@pytest.mark.parametrize("cut", [True, False])
def test_damaged_message_is_kept_and_named(
    filled: Disk, number: int, ordinal: int, sequence: int, *, cut: bool
) -> None:
    """Below the durable mark no byte is ever cut off; that would lose the messages after it."""
    position = filled.tear(number, ordinal)
    if cut:
        filled.cut_power()
    before = filled.page(number).read_bytes()
    report = repair_queue(filled.directory)
    assert [(p.file, p.position, p.sequence) for p in report.remaining] == [
        (str(filled.page(number)), position, sequence)
    ]
    assert filled.page(number).read_bytes() == before


def test_frame_of_the_page_before_proves_no_other_beginning(filled: Disk) -> None:
    """A header that is right is not made wrong because of it."""
    frame = filled.frames(1)[0]
    data = filled.page(1).read_bytes()[frame.position :][: frame.word]
    filled.poke(filled.page(2), frame.position, data)
    before = filled.page(2).read_bytes()
    (problem,) = repair_queue(filled.directory).remaining
    assert (problem.file, problem.position) == (str(filled.page(2)), HEADER)
    assert filled.page(2).read_bytes() == before


def test_missing_page_is_not_recreated_and_named(filled: Disk) -> None:
    """Its messages are lost, and the rest is intact."""
    remove(filled.page(2))
    report = repair_queue(filled.directory)
    assert [p.file for p in report.remaining] == [str(filled.page(2))]
    assert filled.page(3).exists()


def test_newer_format_is_not_changed(filled: Disk) -> None:
    """A version that does not know it must not touch it."""
    filled.poke(filled.path("allMeta"), 8, (99).to_bytes(4, "little"))
    before = filled.contents()
    assert not repair_queue(filled.directory).ok
    assert filled.contents() == before


def test_whole_queue_is_not_touched(filled: Disk) -> None:
    """Every byte is unchanged, except for the lock that each first opener recreates."""
    before = filled.contents()
    assert repaired(filled, MESSAGES, once=False) == []
    del before["queue-writeMeta"]
    for name, data in before.items():
        if not name.startswith("queue-0000000003"):
            assert filled.contents()[name] == data


def test_repair_needs_the_queue_for_itself(filled: Disk) -> None:
    """Another process that has it open is not disturbed."""
    process = start("send_lines", str(filled.directory))
    try:
        ready(process)
        with pytest.raises(LockTimeout, match="repairing"):
            repair_queue(filled.directory, lock_timeout=0.1)
    finally:
        end(process)
    assert repair_queue(filled.directory).ok


@pytest.mark.parametrize(("damage", "times"), [(None, 1), ("0000000001.idx", 2)])
def test_messages_are_read_once_unless_an_index_was_made(
    filled: Disk, monkeypatch: pytest.MonkeyPatch, damage: str | None, times: int
) -> None:
    """Verifying is slow; an unchanged queue is not verified again."""
    if damage is not None:
        filled.path(damage).unlink()
    looks = []

    def counted(*args: object) -> VerifyReport:
        looks.append(args)
        return verify(*args)

    monkeypatch.setattr(repair, "verify", counted)
    assert repair_queue(filled.directory).ok
    assert len(looks) == times


def test_repair_of_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    """An empty directory is not a damaged queue."""
    with pytest.raises(QueueNotFound):
        repair_queue(tmp_path)
    with pytest.raises(QueueNotFound):
        repair_queue(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_open_queue_repairs_itself(filled: Disk) -> None:
    """Its handles are closed, the process continues."""
    with filled.open() as queue:
        consumer = queue.consumer()
        ones(filled.index(1))
        report = queue.repair()
        assert report.ok
        assert len(report.actions) == 1
        with pytest.raises(ValueError, match="closed"):
            consumer.poll()
        assert [m.payload for m in queue.replay(sequence=2)] == MESSAGES[2:]


def test_failed_sync_is_repaired_by_new_files(
    filled: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: what is at risk is still in memory, and is written again."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with filled.open() as queue, queue.producer() as producer:
        producer.send(b"at risk")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with pytest.raises(SyncFailed):
                producer.flush()
    inode = filled.page(3).stat().st_ino
    actions = repair_queue(filled.directory).actions
    assert actions == ["wrote messages 7 to 8 again after a failed sync"]
    assert filled.page(3).stat().st_ino != inode
    with filled.open() as queue:
        assert queue.durable_sequence == 9
        assert [m.payload for m in queue.replay()] == [*MESSAGES, b"at risk"]
        queue.producer().send(b"on")
    assert repair_queue(filled.directory).actions == []


def test_copy_of_a_linked_write_meta_keeps_its_fields(filled: Disk) -> None:
    """I3: what they count and the page lacks is damage there too, and not a torn tail."""
    os.link(filled.path("writeMeta"), filled.directory.with_name("elsewhere"))
    filled.tear(3, 1)
    report = repair_queue(filled.directory)
    assert any("another name" in action for action in report.actions)
    assert [problem.sequence for problem in report.remaining] == [7]


@pytest.mark.parametrize("words", [(2, 0), (2, 5), (1, 3)])
def test_head_that_contradicts_its_page_hides_no_message(
    filled: Disk, words: tuple[int, int]
) -> None:
    """Then reading begins with the first page that there is."""
    data = words[0].to_bytes(8, "little") + words[1].to_bytes(8, "little")
    filled.poke(filled.path("readMeta"), 32, data)
    for options in ({}, {"read_only": True}):
        with pytest.raises(CorruptMeta, match="reading begins"):
            Queue(filled.directory, **options)
    assert salvage_queue(filled.directory, filled.directory.with_name("t")).messages_copied == 8
    assert any("readMeta" in action for action in repaired(filled, MESSAGES))


@pytest.mark.parametrize("name", ["queue-allMeta", "queue-writeMeta", "queue-readMeta"])
def test_meta_file_without_read_permission_is_not_recreated(
    filled: Disk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its contents are unknown: a durable mark or a latch would be lost with it (I8)."""
    before = {path.name: path.read_bytes() for path in filled.directory.iterdir()}
    really = Directory.open

    def denied(folder: Directory, wanted: str, **options: Any) -> int:  # noqa: ANN401
        if wanted == name:
            raise AccessDenied("not allowed", path=folder.full(wanted))
        return really(folder, wanted, **options)

    monkeypatch.setattr(Directory, "open", denied)
    with pytest.raises(AccessDenied) as caught:
        repair_queue(filled.directory)
    assert caught.value.path == str(filled.directory / name)
    if name == "queue-allMeta":
        (page, *others) = filled.directory.glob("*.page")
        for path in (page, *others):
            path.write_bytes(bytes(PAGE))
            before[path.name] = bytes(PAGE)
        with pytest.raises(AccessDenied):
            salvage_queue(filled.directory, filled.directory.with_name("target"))
    assert {path.name: path.read_bytes() for path in filled.directory.iterdir()} == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_unreadable_index_is_kept(
    filled: Disk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It may be right: a user who may read it decides, and it is not overwritten."""
    path = filled.path("0000000001.idx")
    before = path.read_bytes()
    real = os.open

    def refusing(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(name).endswith(path.name):
            raise OSError(number, os.strerror(number))
        return real(name, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing)
        if number == errno.EIO:
            for look in (verify_queue, repair_queue):
                with pytest.raises(SystemLimit, match=f"{path}: .*see the system's log"):
                    look(filled.directory)
        else:
            found = verify_queue(filled.directory).problems
            assert [(problem.file, problem.kind) for problem in found] == [(str(path), "access")]
            assert "change owner or permissions" in found[0].reason
            report = repair_queue(filled.directory)
            assert report.actions == []
            assert report.remaining == found
        with (
            Queue(filled.directory, read_only=True) as queue,
            pytest.raises((AccessDenied, SystemLimit), match=str(path)),
        ):
            queue.times()
    assert path.read_bytes() == before
    assert verify_queue(filled.directory).ok
