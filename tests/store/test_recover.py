"""Recovery: after a kill, a power cut, a copy; each step can be cut and done again."""

from __future__ import annotations

import os
import shutil
import struct
from typing import TYPE_CHECKING

import pytest
from plugin import (
    DURABLE_SEQUENCE_AT,
    MESSAGES,
    PAGE_NUMBER_AT,
    START,
    Disk,
    Frame,
    check_recovered,
)

from pagequeue import Retention, errors, repair_queue, salvage_queue, verify_queue
from pagequeue.judge.evidence import Evidence
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue.judge.evidence import PageFile

# --- a clean end, a kill --------------------------------------------------------------------------


def test_new_queue_and_clean_end_need_no_scan(disk: Disk) -> None:
    """I5: what is certain is not checked again."""
    for _ in range(2):
        with disk.open() as queue, queue.producer() as producer:
            assert not queue.recovery.scanned
            assert queue.recovery.actions == []
            producer.send(b"x")


@pytest.mark.parametrize("lost_words", ["tail", "both"])
def test_message_published_by_a_killed_producer_is_recovered(disk: Disk, lost_words: str) -> None:
    """I3: the frame is complete, only the tail was not advanced yet."""
    disk.send(b"one")
    before = disk.path("writeMeta").read_bytes()[192:240]
    with disk.open() as queue, queue.producer() as producer:
        producer.send_many([b"two", b"three"])
    kept = 40 if lost_words == "tail" else 48  # the last timestamp is stored before the tail word
    disk.poke(disk.path("writeMeta"), 192, before[:kept])
    disk.index(1).write_bytes(bytes(128 * 12))
    with disk.open() as queue:
        assert queue.recovery.messages_recovered == 2
        assert queue.recovery.actions == [
            "recovered 2 messages that a killed producer had published"
        ]
        assert not queue.recovery.scanned
        assert [m.payload for m in queue.replay(sequence=1)] == [b"two", b"three"]
        assert queue._store.tail.last_timestamp == list(queue.replay())[-1].timestamp
    assert disk.payloads() == [b"one", b"two", b"three"]


def test_partial_batch_of_a_killed_producer_is_never_visible(disk: Disk) -> None:
    """I4, I8: the page is abandoned, and the next message is written to another one."""
    disk.send(b"one")
    with disk.open() as queue, queue.producer() as producer:
        words = disk.path("writeMeta").read_bytes()[192:240]
        producer.send_many([b"a", b"b"])
    disk.poke(disk.path("writeMeta"), 192, words)  # batch_open, the next field, stays
    disk.poke(disk.page(1), 88, bytes(4))
    with disk.open() as queue, queue.producer() as producer:
        assert queue.recovery.messages_recovered == 0
        assert [m.payload for m in queue.replay()] == [b"one"]
        assert producer.send(b"two") == 1
        assert [m.payload for m in queue.replay()] == [b"one", b"two"]
        assert queue.info().tail_page == 2


# --- a power cut ----------------------------------------------------------------------------------


def test_all_that_is_whole_is_kept(written: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """I5: a prefix survives, and it is the longest one that validates."""
    with written.open() as queue:
        report = queue.recovery
        assert report.scanned
        # From the page of the durable mark on, which is page 2.
        assert report.messages_checked == 5
        assert (report.messages_dropped, report.bytes_zeroed, report.pages_removed) == (0, 0, [])
        assert "the next sequence is 8" in report.actions[-1]
    assert "recovered: checked 5 messages" in caplog.text
    check_recovered(written, MESSAGES)


@pytest.mark.parametrize("damage", ["tear", "zero"])
@pytest.mark.parametrize(("page", "ordinal", "kept"), [(2, 1, 4), (2, 2, 5), (3, 0, 6), (3, 1, 7)])
def test_torn_rest_is_cut_off(
    written: Disk, damage: str, page: int, ordinal: int, kept: int
) -> None:
    """I5: the first incomplete frame ends the queue; the bytes after it are zeroed."""
    position = getattr(written, damage)(page, ordinal)
    with written.open() as queue:
        report = queue.recovery
        assert queue.tail_sequence == queue.durable_sequence == kept
        assert report.pages_removed == ([3] if page == 2 else [])
        if damage == "tear":
            assert report.bytes_zeroed > 0
            assert f"after position {position} of page {page}" in "; ".join(report.actions)
    data = written.page(page).read_bytes()
    assert data[position:] == bytes(len(data) - position)
    assert written.index(page).read_bytes()[12 * ordinal :] == bytes(12 * (128 - ordinal))
    assert written.page(3).exists() is (page == 3)
    assert written.index(3).exists() is (page == 3)
    check_recovered(written, MESSAGES[:kept])


def test_lost_end_of_page_marker_ends_the_queue_there(written: Disk) -> None:
    """I10: without the marker the next page is unreachable."""
    written.cut_power(4)
    written.zero(2, 3)
    with written.open() as queue:
        assert queue.recovery.pages_removed == [3]
    check_recovered(written, MESSAGES[:6])


@pytest.mark.parametrize("lost", [1, 2])
def test_incomplete_batch_is_dropped_as_a_whole(disk: Disk, lost: int) -> None:
    """I8: also at power loss."""
    disk.send(b"one", flush=True)
    with disk.open() as queue, queue.producer() as producer:
        producer.send_many([b"a", b"b", b"c"])
    disk.cut_power()
    disk.zero(1, 1 + lost)
    with disk.open() as queue:
        assert queue.recovery.messages_dropped == lost
        assert f"incomplete batch of {counted(lost, 'message')} among" in queue.recovery.actions[0]
        assert queue.tail_sequence == 1
    check_recovered(disk, [b"one"])


def test_tail_ahead_of_the_data_is_not_trusted(written: Disk) -> None:
    """I5: the shared fields can reach the disk before the frames."""
    written.poke(written.path("writeMeta"), 192, struct.pack("<QQQQQq", 3, 0, 0, 2**63, 0, 2**60))
    written.zero(3, 0)
    with written.open() as queue:
        assert queue.tail_sequence == 6
        assert queue._store.tail.last_timestamp == list(queue.replay())[-1].timestamp
    check_recovered(written, MESSAGES[:6])


def test_timestamps_continue_from_the_last_remaining_message(written: Disk) -> None:
    """I1: no later message is older, even with an earlier clock."""
    written.tear(3, 0)
    written.clock.now = START - 10**9
    with written.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        stamps = [m.timestamp for m in queue.replay()]
    assert stamps == sorted(stamps)


def test_failure_latch_is_cleared_when_all_remaining_data_is_synced(written: Disk) -> None:
    """I5: after the reboot the disk has the true state."""
    written.poke(written.path("writeMeta"), 272, struct.pack("<I", 5))
    with written.open() as queue:
        assert not queue.info().sync_failed
        assert "cleared the failure latch" in "; ".join(queue.recovery.actions)
    check_recovered(written, MESSAGES)


# --- damage below the durable mark ----------------------------------------------------------------


@pytest.mark.parametrize("durable", [5, 6, 7, 8])
def test_damage_below_the_durable_mark_is_an_error_and_changes_no_file(
    written: Disk, durable: int
) -> None:
    """I5: never repaired silently; file, position and sequence are named."""
    written.cut_power(durable)
    page, ordinal = (durable - 1) // 3 + 1, (durable - 1) % 3
    position = written.tear(page, ordinal)
    before = written.contents()
    for _ in range(2):
        with pytest.raises(errors.DamageError, match="was on stable storage") as caught:
            written.open()
        error = caught.value
        assert isinstance(error, errors.CorruptFrame)
        assert (error.path, error.position) == (str(written.page(page)), position)
        assert error.sequence == durable - 1
        assert error.reason == "its checksum is wrong"
    assert written.contents() == before


@pytest.mark.parametrize("ordinal", [0, 1, 2])
@pytest.mark.parametrize("is_torn", [True, False])
def test_incomplete_batch_below_the_durable_mark_is_damage(
    disk: Disk, ordinal: int, is_torn: bool
) -> None:
    """I8: what was acknowledged as durable is not dropped.

    Every opener names the message that is damaged, as verify does, and not the batch's first one.
    """
    with disk.open() as queue, queue.producer() as producer:
        producer.send_many([b"a" * 8, b"b" * 8, b"c" * 8])
        producer.flush()
    disk.cut_power()
    position = disk.tear(1, ordinal) if is_torn else disk.zero(1, ordinal)
    before = disk.contents()
    for read_only in (False, True):
        with pytest.raises(errors.CorruptFrame) as caught:
            disk.open(read_only=read_only)
        assert (caught.value.sequence, caught.value.position) == (ordinal, position)
    (problem,) = verify_queue(disk.directory).problems
    assert (problem.sequence, problem.position) == (ordinal, position)
    assert problem.reason == caught.value.reason
    assert disk.contents() == before


@pytest.mark.parametrize("missing", [2, 3])
def test_missing_page_below_the_durable_mark_is_an_error(written: Disk, missing: int) -> None:
    """I5: a page is never made again in the place of one that held data."""
    written.cut_power(8)
    written.page(missing).unlink()
    if missing == 2:
        written.page(3).unlink()
        written.cut_power(8)
    before = written.contents()
    with pytest.raises(errors.MissingPage) as caught:
        written.open()
    assert caught.value.path == str(written.page(missing))
    assert written.contents() == before


def test_missing_first_page_is_a_missing_page(written: Disk) -> None:
    """I5: what is lost is named as damage, whether later pages are left or not."""
    written.cut_power(1)
    written.page(1).unlink()
    with pytest.raises(errors.MissingPage) as caught:
        written.open()
    assert caught.value.path == str(written.page(1))
    for number in (2, 3):
        written.page(number).unlink()
    with pytest.raises(errors.MissingPage):
        written.open()


def test_missing_active_page_is_a_missing_page_without_a_power_cut(disk: Disk) -> None:
    """I1: the shared fields prove that it existed."""
    disk.send(*MESSAGES[:4])
    disk.page(2).unlink()
    with pytest.raises(errors.MissingPage):
        disk.open()


# --- lost files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "short", "garbage"])
def test_lost_index_is_written_again(written: Disk, kind: str) -> None:
    """I6: it is derived from the page."""
    right = written.index(3).read_bytes()
    if kind == "missing":
        written.index(3).unlink()
    else:
        written.index(3).write_bytes(b"\x77" * (100 if kind == "short" else len(right)))
    written.open().close()
    assert written.index(3).read_bytes() == right
    check_recovered(written, MESSAGES)


def test_lost_write_meta_is_found_again_by_checking_everything(written: Disk) -> None:
    """I5: without a durable mark every frame is checked."""
    written.path("writeMeta").unlink()
    with written.open() as queue:
        assert queue.recovery.messages_checked == 8
    check_recovered(written, MESSAGES)


@pytest.mark.parametrize("page", [1, 2])
def test_damage_in_the_middle_does_not_pass_for_the_tail(written: Disk, page: int) -> None:
    """I5: without a durable mark a later page proves that more messages were sent."""
    written.path("writeMeta").unlink()
    position = written.tear(page, 1)
    pages = {name: data for name, data in written.contents().items() if name.endswith(".page")}
    with pytest.raises(errors.CorruptFrame) as caught:
        written.open()
    assert (caught.value.path, caught.value.position) == (str(written.page(page)), position)
    for name, data in pages.items():
        assert (written.directory / name).read_bytes() == data
    with pytest.raises(errors.CorruptFrame):  # and not only at the first try
        written.open()


def test_lost_read_meta_begins_at_the_first_remaining_page(written: Disk) -> None:
    """I1: the head is the first readable message."""
    written.path("readMeta").unlink()
    written.page(1).unlink()
    written.path("0000000001.idx").unlink()
    with written.open() as queue:
        assert (queue.head_sequence, queue.tail_sequence) == (3, 8)
        assert "recreated the read meta" in queue.recovery.actions[0]
        assert [m.sequence for m in queue.replay()] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("lost", ["page", "header", "short", "unset", "index"])
def test_next_page_lost_after_an_end_of_page_marker_is_created_again(disk: Disk, lost: str) -> None:
    """I10: after a power cut the marker can be on disk without the next page's header or name."""
    disk.send(*MESSAGES[:3], flush=True)
    disk.send(*MESSAGES[3:5])
    disk.cut_power()
    header = disk.page(2).read_bytes()[:64]
    if lost == "page":
        disk.page(2).unlink()
    elif lost == "header":
        disk.poke(disk.page(2), 0, bytes(64))
    elif lost == "short":
        os.truncate(disk.page(2), 100)
    elif lost == "unset":
        with disk.open() as queue, queue.producer() as producer:
            producer.send_many(MESSAGES[5:6])
            queue._store.roller.next_page(3)
        disk.cut_power(3)
        disk.poke(disk.page(2), 0, disk.page(3).read_bytes()[:64])
    else:
        disk.index(2).unlink()
    with disk.open() as queue:
        kept = queue.tail_sequence
        made_again = any("made page 2 again (" in action for action in queue.recovery.actions)
        assert made_again is (lost in {"header", "short", "unset"})
    assert kept == (5 if lost == "index" else 3)
    check_recovered(disk, MESSAGES[:kept])
    assert disk.page(2).read_bytes()[:56][16:] == header[16:56]


def test_prepared_page_is_removed_and_created_again_on_demand(written: Disk) -> None:
    """I10: a page that is only prepared has no messages."""
    with written.open() as queue:
        queue._store.roller.next_page(4)
    written.cut_power()
    with written.open() as queue:
        assert queue.recovery.pages_removed == [4]
    check_recovered(written, MESSAGES)


def test_temporary_files_of_dead_processes_are_removed(written: Disk) -> None:
    """A process that dies while creating a file leaves a temporary one; only these are removed."""
    keep = ["queue-notes.txt", "other-0000000001.page.tmp-5", "queue-0000000009.page.bak"]
    left = ["queue-0000000004.page.tmp-next", "queue-0000000001.idx.tmp-77", "queue-allMeta.tmp-1"]
    for name in keep + left:
        written.directory.joinpath(name).write_bytes(b"half")
    written.open().close()
    names = os.listdir(written.directory)
    assert set(keep) <= set(names)
    assert not set(left) & set(names)


def test_copied_directory_recovers_automatically(disk: Disk, tmp_path: Path) -> None:
    """I5: in a copy the lock and the shared fields belong to another file."""
    with disk.open() as queue, queue.producer() as producer:
        for message in MESSAGES:
            producer.send(message)
        shutil.copytree(disk.directory, tmp_path / "copy")
    copy = Disk(tmp_path / "copy")
    copy.clock.now = disk.clock.now
    with copy.open() as queue:
        assert queue.recovery.scanned
    check_recovered(copy, MESSAGES)
    assert disk.payloads() == MESSAGES


def test_head_page_that_is_only_prepared_is_refused(disk: Disk) -> None:
    """The messages before it would be hidden, and what is sent next could not be read."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"one")
        queue._store.roller.next_page(2)
    disk.cut_power()
    disk.poke(disk.path("readMeta"), ReadMeta.HEAD_PAGE, struct.pack("<Q", 2))
    before = disk.page(1).read_bytes(), disk.page(2).read_bytes()
    with pytest.raises(errors.CorruptMeta, match="page 2, which is only prepared") as caught:
        disk.open()
    assert caught.value.path == str(disk.path("readMeta"))
    assert (disk.page(1).read_bytes(), disk.page(2).read_bytes()) == before
    repair_queue(disk.directory)
    assert disk.payloads() == [b"one"]


@pytest.mark.parametrize("mark_known", [True, False])
def test_header_of_an_unfinished_roll_is_ignored(
    disk: Disk, tmp_path: Path, *, mark_known: bool
) -> None:
    """I5: its sequence belongs to a durable message in the page before, which had space."""
    leave_an_unfinished_roll(disk)
    sent = [b"one", b"two", b"three"]
    with disk.open() as queue, queue.producer() as producer:
        producer.send_many(sent[1:])
        assert queue.verify().problems == []
        assert producer.flush() == 3
        assert salvage_queue(disk.directory, tmp_path / "salvaged").messages_copied == 3
    assert disk.path("writeMeta").read_bytes()[DURABLE_SEQUENCE_AT] == 3
    disk.cut_power()
    if not mark_known:
        disk.path("writeMeta").unlink()
    else:
        assert verify_queue(disk.directory).ok
        assert disk.payloads(read_only=True) == sent
    assert disk.payloads() == sent
    check_recovered(disk, sent)


@pytest.mark.parametrize("durable", [0, 3])
def test_header_that_lost_its_second_roll_is_written_again(
    disk: Disk, tmp_path: Path, durable: int
) -> None:
    """I5: the marker of the page before has the sequence that it begins with."""
    leave_an_unfinished_roll(disk)
    left = disk.page(2).read_bytes()[:64]
    with disk.open() as queue, queue.producer() as producer:
        producer.send_many([b"two", b"three"])
        queue.rotate()
        producer.send(b"four")
    disk.poke(disk.page(2), 0, left)
    disk.cut_power(durable)
    sent = [b"one", b"two", b"three", b"four"]
    assert verify_queue(disk.directory).ok
    assert salvage_queue(disk.directory, tmp_path / "salvaged").messages_copied == 4
    assert disk.payloads() == sent
    check_recovered(disk, sent)


def leave_an_unfinished_roll(disk: Disk) -> None:
    """Send a message and die after R2 of a roll, while the page has space for more."""
    disk.send(b"one")
    with disk.open() as queue:
        queue.rotate()
    disk.poke(disk.page(1), disk.frames(1)[1].position, bytes(16))
    disk.poke(disk.path("writeMeta"), PAGE_NUMBER_AT, struct.pack("<Q", 1))


def test_header_below_the_durable_mark_is_never_overwritten(disk: Disk) -> None:
    """A page that ends too early is damage of that page: the next one keeps its header."""
    disk.send(*MESSAGES, flush=True)
    frames = disk.frames(2)
    timestamp = frames[1].timestamp
    mark = Frame(frames[2].position, 1 << 31 | 16, 0, timestamp, b"", frames[2].queue_id)
    head = struct.pack("<IIq", mark.word, mark.checksum_for(5), timestamp)
    disk.poke(disk.page(2), mark.position, head)
    disk.cut_power()
    # As many are durable as page 2 has, and one of page 3: recovery begins in page 2.
    before = disk.page(3).read_bytes()
    disk.poke(disk.path("writeMeta"), DURABLE_SEQUENCE_AT, struct.pack("<Q", 6))
    with pytest.raises(errors.DamageError):
        disk.open()
    assert disk.page(3).read_bytes() == before


def test_reader_that_opens_during_a_recovery_reports_no_damage(
    written: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own checks can be outdated: a writer recovered the queue, and retention continued."""
    really, calls = Evidence.page, 0

    def overtaken(evidence: Evidence, number: int, *, frames: bool) -> PageFile:
        nonlocal calls
        calls += 1
        if calls == 1:
            with written.open(retention=Retention(max_bytes=8192)) as queue:
                queue.trim()
                assert queue.head_sequence > 0
        return really(evidence, number, frames=frames)

    monkeypatch.setattr(Evidence, "page", overtaken)
    with written.open(read_only=True) as reader:
        assert reader.head_sequence > 0
        assert [m.sequence for m in reader.replay()] == list(
            range(reader.head_sequence, reader.tail_sequence)
        )


def test_reader_of_a_queue_that_lost_its_head_page_gets_an_error(written: Disk) -> None:
    """Without a concurrent recovery, a missing page is an error."""
    written.page(1).unlink()
    with pytest.raises(errors.MissingPage):
        written.open(read_only=True)
