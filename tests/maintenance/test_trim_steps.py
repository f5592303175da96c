"""Trimming that is killed, cut or fails at any step: no message lost, no page half removed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from plugin import Disk
from retaining import FULL, KEEP_TWO, fill, numbers, only_by_hand
from support import (
    LONG,
    SMALL,
    die_while_trimming,
    end,
    printed,
    ready,
    send_and_trim_for_ever,
    start,
)

from pagequeue import (
    CorruptMeta,
    Queue,
    Retention,
    SyncFailed,
    TrimReport,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue.maintenance import trimmer
from pagequeue.maintenance.trimmer import Trimmer, sync_header
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue.store.store import Store
    from pagequeue.system.directory import Directory

# --- killed and cut in between -----------------------------------------------------------------


def check_trimmed(disk: Disk, total: int = 18) -> None:
    """Check that the queue is whole from some page's first message on, and that sending works."""
    assert verify_queue(disk.directory).problems == []
    with disk.open(retention=KEEP_TWO) as queue:
        head = queue.head_sequence
        assert head % 3 == 0
        assert [m.sequence for m in queue.replay()] == list(range(head, total))
        # No file below the head remains after recovery.
        assert numbers(disk)[0] == head // 3 + 1
        with queue.consumer("acked") as consumer:
            assert consumer.sequence >= head
        queue.trim()
        assert queue.head_sequence == 12
        assert queue.producer().send(b"next") == total
        assert queue.verify().problems == []
    assert numbers(disk) == [5, 6, 7] or numbers(disk) == [5, 6]


@pytest.mark.slow
def test_killed_at_every_step_of_trimming_no_message_is_lost(tmp_path: Path) -> None:
    """I12: dying at each system call and each store of T1 to T4, uncaught."""
    step = deaths = 0
    while True:
        disk = Disk(tmp_path / str(step))
        with disk.open() as queue:
            fill(queue, 6)
            with queue.consumer("acked") as consumer:
                while consumer.sequence < 12:
                    consumer.receive()
                consumer.ack()
        said = printed(die_while_trimming.__name__, disk.directory, step)
        check_trimmed(disk)
        if "done" in said:
            break
        deaths += 1
        step += 1
    assert deaths > 14  # 4 moves of two stores, the syncs, and 8 files


@pytest.mark.parametrize("moved", [False, True])
def test_power_cut_after_trimming_finds_the_head_or_an_older_one(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, *, moved: bool
) -> None:
    """I12: with the words on the disk as they were before T3, the files are still there."""
    with disk.open() as queue:
        fill(queue, 6)
        with queue.consumer("acked", latest=True):
            pass
    before = disk.path("readMeta").read_bytes()
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        if not moved:
            monkeypatch.setattr(Trimmer, "remove_retired", lambda *_: 0)  # cut before T3
        queue.trim()
        assert queue.head_sequence == 12
    if not moved:
        disk.path("readMeta").write_bytes(before)
    monkeypatch.undo()
    pretend_power_cut(disk.directory)
    check_trimmed(disk)


def test_reader_before_the_recovery_accepts_fields_older_than_the_head(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: the head was put on stable storage, the write meta of the same boot perhaps not."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        queue.producer().send(FULL)
        before = disk.path("writeMeta").read_bytes()
        fill(queue, 5)
        queue.trim()
        head = queue.head_sequence
    disk.path("writeMeta").write_bytes(before)
    pretend_power_cut(disk.directory)
    with disk.open(read_only=True) as queue:
        assert queue.head_sequence == head > 3
        assert [m.sequence for m in queue.replay()] == list(range(head, 16))
    with disk.open() as queue:
        assert [m.sequence for m in queue.replay()] == list(range(head, 16))


def test_order_of_syncs_and_removals(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: cursors, new head and its name before the head moves; the head before a file goes."""
    only_by_hand(monkeypatch)
    done: list[str] = []
    with disk.open(retention=KEEP_TWO) as queue:
        queue.consumer("a").seek(latest=True)
        fill(queue, 4)
        queue.consumer("a").seek(latest=True)
        real_sync, real_unlink, real_directory = os.fdatasync, os.unlink, os.fsync
        read_meta = queue._store.read_meta

        def name_of(fd: int) -> str:
            return os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).removeprefix("queue-")

        def note(what: str) -> None:
            done.append(f"{what} at {read_meta.head_page}")

        def sync(fd: int) -> None:
            note(name_of(fd))
            real_sync(fd)

        def sync_new_head(store: Store, number: int, *, whole: bool) -> int:
            note(f"header of {number}")
            return sync_header(store, number, whole=whole)

        def sync_directory(fd: int) -> None:
            note("directory")
            real_directory(fd)

        def unlink(name: str, *, dir_fd: int) -> None:
            note(f"remove {name.removeprefix('queue-')}")
            real_unlink(name, dir_fd=dir_fd)

        monkeypatch.setattr(os, "fdatasync", sync)
        monkeypatch.setattr(os, "fsync", sync_directory)
        monkeypatch.setattr(os, "unlink", unlink)
        monkeypatch.setattr(trimmer, "sync_header", sync_new_head)
        queue.trim()
        monkeypatch.undo()
    assert done == [
        "readMeta.a at 1",
        "header of 2 at 1",
        "header of 3 at 1",
        "directory at 1",
        "readMeta at 3",
        "remove 0000000001.page at 3",
        "remove 0000000001.idx at 3",
        "remove 0000000002.page at 3",
        "remove 0000000002.idx at 3",
    ]


def test_flush_before_the_new_head_is_on_the_disk_begins_below_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: after a power cut between T2 and T3 reading begins at the old head."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        synced: list[int] = []
        real_page, real_state = queue._store.flusher._sync_page, trimmer.sync_state

        def sync_page(number: int) -> None:
            synced.append(number)
            real_page(number)

        def sync_state(folder: Directory, name: str) -> None:
            assert queue._store.read_meta.head_page == 4
            queue.producer().flush()
            real_state(folder, name)

        monkeypatch.setattr(queue._store.flusher, "_sync_page", sync_page)
        monkeypatch.setattr(trimmer, "sync_state", sync_state)
        queue.trim()
        assert synced == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", [True, False], ids=["T1", "T3"])
def test_failed_sync_while_trimming_latches_and_removes_no_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """I5: a second sync could succeed for dropped data."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        before = numbers(disk)

        def fail(*_: object, **__: object) -> None:
            raise OSError(5, "no")

        if first:
            monkeypatch.setattr(trimmer, "sync_header", fail)
        else:
            monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(SyncFailed):
            queue.trim()
        monkeypatch.undo()
        assert numbers(disk) == before
        assert queue.info().sync_failed
        assert queue.trim() == TrimReport()
        assert len(list(queue.replay())) == (15 if first else 6)  # in T3 the head has moved
        assert queue.repair().ok
        assert queue.trim().pages >= (3 if first else 0)
        assert numbers(disk)[0] == queue._store.read_meta.head_page


def test_files_below_the_head_stay_where_the_head_is_not_proved(disk: Disk) -> None:
    """I12: a damaged head never makes recovery remove pages that hold messages."""
    with disk.open() as queue:
        fill(queue, 5)
    disk.poke(disk.path("readMeta"), 32, (4).to_bytes(8, "little"))
    with pytest.raises(CorruptMeta, match="reading begins"):
        disk.open()
    assert numbers(disk) == [1, 2, 3, 4, 5]
    assert repair_queue(disk.directory).ok
    disk.open().close()
    assert numbers(disk) == [1, 2, 3, 4, 5]


def test_queue_with_a_head_further_on_is_salvaged_and_recovered(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue need not begin with page 1, also without its read meta."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        queue.trim()
    report = salvage_queue(disk.directory, disk.directory.parent / "copy")
    assert report.ok
    assert report.messages_copied == 6
    disk.path("readMeta").unlink()
    with disk.open() as queue:
        assert queue.head_sequence == 9
        assert queue.verify().ok
    pretend_power_cut(disk.directory)
    with disk.open() as queue:
        assert [m.sequence for m in queue.replay()] == list(range(9, 15))


def test_flush_continues_while_pages_are_removed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: a page removed before it was durable guarantees no durable message."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        flusher = queue._store.flusher
        real = flusher._sync_page
        trimmed: list[int] = []

        def sync(number: int) -> None:
            if not trimmed:
                trimmed.append(queue.trim().pages)
            real(number)

        monkeypatch.setattr(flusher, "_sync_page", sync)
        assert queue.producer().flush() == 15
        assert trimmed == [3]
        assert queue.durable_sequence == 15


def test_consumer_created_while_pages_are_removed_misses_no_message(tmp_path: Path) -> None:
    """I11: finding its place and keeping it are one step for retention; seeking is the same."""
    Queue(tmp_path / "q", page_bytes=SMALL).close()
    process = start(send_and_trim_for_ever.__name__, tmp_path / "q")
    assert ready(process) == "sending"
    with Queue(tmp_path / "q", retention=Retention(max_bytes=6 * SMALL)) as queue:
        for turn in range(60):
            with queue.consumer("new") as consumer:
                first = consumer.sequence
                queue.trim()
                assert consumer.receive(LONG).sequence == first
                consumer.ack()
                consumer.seek(latest=bool(turn % 2))
                first = consumer.sequence
                queue.trim()
                assert consumer.receive(LONG).sequence == first
            queue.remove_consumer("new")
        end(process)
        assert queue.verify().problems == []
