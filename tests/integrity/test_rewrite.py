"""After a failed sync: stop, or seal the page and write what is at risk again, into new files."""

from __future__ import annotations

import errno
import gc
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support import SMALL, flip, until

from pagequeue import (
    CorruptFrame,
    DiskFull,
    InvalidOption,
    NotDurable,
    Queue,
    SyncFailed,
    SystemLimit,
    repair_queue,
)
from pagequeue import format as fmt
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.send.queue_end import QueueEnd
from pagequeue.system.directory import Directory
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue.producer.producer import Producer


class BrokenDisk:
    """Makes fdatasync fail as often as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.calls = 0
        real, one_at_a_time = os.fdatasync, threading.Lock()

        def fdatasync(fd: int) -> None:
            with one_at_a_time:
                self.calls += 1
                fails = self.failures > 0
                self.failures -= fails
            if fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BrokenDisk:
    """Return a disk that can fail."""
    return BrokenDisk(monkeypatch)


def inodes(queue: Queue) -> dict[str, int]:
    """Return the inode number of each page file."""
    names = [name for name in os.listdir(queue.directory) if name.endswith(".page")]
    return {name: os.stat(os.path.join(queue.directory, name)).st_ino for name in names}


def test_unknown_policy_is_an_error(tmp_path: Path) -> None:
    """A remedy is named, and no directory appears."""
    with pytest.raises(InvalidOption, match='"stop" or "seal"'):
        Queue(tmp_path / "q", on_sync_failure="hope")
    assert not (tmp_path / "q").exists()


def test_stop_latches_every_process_and_survives_reopening(
    tmp_path: Path, disk: BrokenDisk
) -> None:
    """I5: within the boot no process may treat data as durable that the failed sync dropped."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"a")
        producer.flush()
        producer.send_many([b"b", b"c"])
        disk.failures = 1
        with pytest.raises(SyncFailed) as caught:
            producer.flush()
        assert (caught.value.first_sequence, caught.value.end_sequence) == (1, 3)
        assert caught.value.errno == errno.EIO
        calls = disk.calls
        for act in (producer.flush, lambda: producer.send(b"d"), queue.rotate):
            with pytest.raises(SyncFailed):
                act()
        assert disk.calls == calls, "a failed sync is never tried again"
    with Queue(tmp_path / "q") as queue:
        with pytest.raises(SyncFailed):
            queue.producer().send(b"d")
        assert queue.durable_sequence == 1
        assert [m.payload for m in queue.replay()] == [b"a", b"b", b"c"]
        assert "sync failed" in queue.verify().problems[0].reason


def test_seal_writes_messages_at_risk_to_new_files_and_continues(
    tmp_path: Path, disk: BrokenDisk
) -> None:
    """I5: the flush that failed succeeds through other files, over several pages."""
    with Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue:
        producer, consumer = queue.producer(), queue.consumer()
        producer.send(b"first")
        producer.flush()
        sent = [b"%d" % i * 300 for i in range(1, 40)]
        for payload in sent:
            producer.send(payload)
        before = inodes(queue)
        disk.failures = 1
        assert producer.flush() == 40
        after = inodes(queue)
        assert {name for name in before if before[name] != after[name]} == set(
            sorted(before)[: queue.info().page_count - 1]
        )
        assert producer.send(b"next") == 40
        assert consumer.receive_many(100, 0)[0].payload == b"first"
        assert [m.payload for m in queue.replay(sequence=1)] == [*sent, b"next"]
        assert queue.verify().ok
        producer.flush()
    assert not [name for name in os.listdir(tmp_path / "q") if ".tmp-" in name]


def test_seal_stays_latched_while_the_disk_fails_and_continues_when_it_works(
    tmp_path: Path, disk: BrokenDisk
) -> None:
    """Each flush and each send is a new attempt with new files, until one succeeds."""
    with Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue:
        producer = queue.producer()
        producer.send(b"a")
        disk.failures = 4
        for _ in range(2):
            with pytest.raises(SyncFailed):
                producer.flush()
        with pytest.raises(SyncFailed):
            producer.send(b"b")
        assert queue.durable_sequence == 0
        assert queue.tail_sequence == 1
        disk.failures = 0
        assert producer.send(b"b") == 1
        assert queue.durable_sequence == 1
        assert queue.verify().ok


def test_seal_of_one_process_frees_the_others(tmp_path: Path, disk: BrokenDisk) -> None:
    """The latch is the queue's: the process that may resume does so for all."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL) as stopping,
        Queue(tmp_path / "q", on_sync_failure="seal") as sealing,
    ):
        sender = stopping.producer()
        sender.send(b"a")
        disk.failures = 1
        with pytest.raises(SyncFailed):
            sender.flush()
        sealing.producer().send(b"b")
        assert sender.send(b"c") == 2
        assert sender.flush() == 3


def test_reader_of_a_replaced_page_continues(tmp_path: Path, disk: BrokenDisk) -> None:
    """The old file has the same bytes and a marker, so readers inside find the next page."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue,
        Queue(tmp_path / "q", read_only=True) as reading,
    ):
        producer, consumer = queue.producer(), reading.consumer()
        producer.send_many([b"a", b"b"])
        assert consumer.receive(60).payload == b"a"
        disk.failures = 1
        producer.flush()
        producer.send(b"c")
        assert [consumer.receive(60).payload for _ in range(2)] == [b"b", b"c"]


def test_full_disk_while_rewriting_leaves_the_queue_latched(
    tmp_path: Path, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is no worse than before, and it works once there is space."""
    with Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue:
        producer = queue.producer()
        producer.send(b"a")
        disk.failures = 1

        def full(*_: object, **__: object) -> None:
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(Directory, "make", full)
            with pytest.raises(SyncFailed) as caught:
                producer.flush()
            assert isinstance(caught.value.__cause__, DiskFull)
        assert producer.flush() == 1


def test_damaged_page_is_never_reported_as_durable(tmp_path: Path, disk: BrokenDisk) -> None:
    """What the system dropped is found by the checksums, and named."""
    with Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue:
        producer = queue.producer()
        producer.send_many([b"a" * 50, b"b" * 50])
        flip(tmp_path / "q" / fmt.page_name("queue", 1), fmt.PAGE_HEADER_BYTES + 20)
        disk.failures = 1
        with pytest.raises(SyncFailed) as caught:
            producer.flush()
        assert isinstance(caught.value.__cause__, CorruptFrame)
        assert caught.value.__cause__.sequence == 0
        assert queue.durable_sequence == 0


def test_reader_of_a_dropped_file_continues_in_the_new_one(
    tmp_path: Path, disk: BrokenDisk
) -> None:
    """The old file can show what the disk has, later; the new one has all of it."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue,
        Queue(tmp_path / "q", read_only=True) as reading,
    ):
        producer, consumer = queue.producer(), reading.consumer()
        producer.send_many([b"a" * 50, b"b" * 50])
        assert consumer.receive(60).payload == b"a" * 50
        path = tmp_path / "q" / fmt.page_name("queue", 1)
        with path.open("r+b") as old:
            disk.failures = 1
            producer.flush()
            old.seek(fmt.PAGE_HEADER_BYTES + 72)
            old.write(bytes(200))
        producer.send(b"c")
        assert [consumer.receive(60).payload for _ in range(2)] == [b"b" * 50, b"c"]


def test_sync_that_fails_during_recovery_is_never_tried_again_on_those_files(
    tmp_path: Path, disk: BrokenDisk
) -> None:
    """I5: memory would show zeros where the disk still has the torn rest."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"a" * 50)
        producer.flush()
        producer.send(b"b" * 50)
    flip(path / fmt.page_name("queue", 1), fmt.PAGE_HEADER_BYTES + 72 + 20)
    pretend_power_cut(path)
    disk.failures = 1
    for _ in range(2):
        with pytest.raises(SyncFailed, match="repair"):
            Queue(path)
    with Queue(path, read_only=True) as queue:
        assert [m.payload for m in queue.replay()] == [b"a" * 50]
    before = (path / fmt.page_name("queue", 1)).stat().st_ino
    report = repair_queue(path)
    assert report.ok
    assert (path / fmt.page_name("queue", 1)).stat().st_ino != before
    with Queue(path) as queue:
        assert [m.payload for m in queue.replay()] == [b"a" * 50]
        assert queue.producer().send(b"c") == 1


def test_latch_of_another_boot_is_cleared_by_recovery(tmp_path: Path, disk: BrokenDisk) -> None:
    """Then reads come from the disk, and a sync of it reports the truth."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"a")
        disk.failures = 1
        with pytest.raises(SyncFailed):
            producer.flush()
    pretend_power_cut(path)
    with pytest.raises(SyncFailed):  # the same boot, through another mount
        Queue(path)
    overwrite(path / fmt.write_meta_name("queue"), WriteMeta.FAILED_BOOT, b"\x55" * 16)
    with Queue(path) as queue:
        assert any("latch" in action for action in queue.recovery.actions)
        queue.producer().send(b"b")
        assert queue.producer().flush() == 2


def test_error_of_a_send_that_is_not_durable_states_that_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that takes the error for a refusal would send it twice."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync="always") as queue:
        producer = queue.producer()

        def refused(*_: object, **__: object) -> None:
            raise SystemLimit("no descriptor is left")

        with monkeypatch.context() as patch:
            patch.setattr(Directory, "open", refused)
            with pytest.raises(NotDurable, match="do not send it again"):
                producer.send(b"a")
        assert [m.payload for m in queue.replay()] == [b"a"]
        assert producer.flush() == 1


@pytest.mark.parametrize("sync", ["always", 2, timedelta(milliseconds=5)])
def test_every_sync_mode_continues(
    tmp_path: Path, disk: BrokenDisk, sync: str | int | timedelta
) -> None:
    """I5: whichever asks for the sync, and in the background too."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync=sync, on_sync_failure="seal") as queue:
        producer = queue.producer()
        disk.failures = 1
        for number in range(6):
            producer.send(b"%d" % number)
        producer.flush()
        assert disk.failures == 0
        assert queue.durable_sequence == 6
        assert [m.payload for m in queue.replay()] == [b"%d" % i for i in range(6)]


def test_producers_continue_while_pages_are_written_again(tmp_path: Path, disk: BrokenDisk) -> None:
    """I1, I3: concurrent senders in other threads lose and duplicate no message."""
    with Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue:
        sent: list[int] = []

        def send() -> None:
            with queue.producer() as producer:
                sent.extend(producer.send(b"x" * (n % 200)) for n in range(300))

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        with queue.producer() as flusher:
            for _ in range(20):
                disk.failures = 1
                flusher.flush()
        for thread in threads:
            thread.join()
        disk.failures = 0
        assert queue.producer().flush() == 900
        assert sorted(sent) == list(range(900))
        assert len(list(queue.replay())) == 900
        assert queue.verify().ok


@pytest.mark.parametrize("policy", ["stop", "seal"])
def test_queue_that_is_dropped_leaves_no_thread(tmp_path: Path, policy: str) -> None:
    """Neither the timer nor the rewriter keeps a forgotten queue alive."""

    def use() -> Callable[[], bool]:
        queue = Queue(
            tmp_path / "q", page_bytes=SMALL, sync=timedelta(hours=1), on_sync_failure=policy
        )
        queue.producer().send(b"a")
        timer = queue._store.flusher._timer
        assert timer is not None
        return timer.is_alive

    alive = use()
    gc.collect()
    until(lambda: not alive())  # it was told to end, and the timer would fire after an hour


@pytest.mark.parametrize("times", [1, 100])
def test_sync_that_fails_elsewhere_while_it_is_written_again(
    tmp_path: Path, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It can have dropped the names of the new files: they are written once more."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue,
        Queue(tmp_path / "q") as other,
        queue.producer() as producer,
    ):
        producer.send(b"a")
        seen: list[dict[str, int]] = []
        real = Directory.sync

        def sync(folder: Directory) -> None:
            real(folder)
            if folder is queue._store.folder:
                seen.append(inodes(queue))
                if len(seen) <= times:
                    other._store.write_meta.latch(errno.ENOSPC, 1)

        monkeypatch.setattr(Directory, "sync", sync)
        disk.failures = 1
        if times == 1:
            assert producer.flush() == 1
            first = fmt.page_name("queue", 1)
            assert seen[0][first] != seen[1][first]
            assert not other.info().sync_failed
            assert queue.durable_sequence == 1
        else:
            with pytest.raises(SyncFailed):
                producer.flush()
            assert queue.durable_sequence == 0
            assert other.info().sync_failed
        monkeypatch.undo()
        assert producer.flush() == 1


def test_trim_that_ends_while_it_is_written_again(
    tmp_path: Path, disk: BrokenDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had found the latch not set, and then moves the head and removes the page."""
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, on_sync_failure="seal") as queue,
        queue.producer() as producer,
    ):
        for _ in range(20):
            producer.send(b"x" * 400)
        store, real = queue._store, QueueEnd._seal
        first = store.first_sequence(2)

        def trimmed(self: Producer[bytes]) -> None:
            monkeypatch.undo()
            store.read_meta.advance(first)
            store.folder.remove(fmt.page_name("queue", 1))
            store.folder.remove(fmt.index_name("queue", 1))
            real(self)

        monkeypatch.setattr(QueueEnd, "_seal", trimmed)
        disk.failures = 1
        assert producer.flush() == 20
        assert queue.head_sequence == first
        assert queue.verify().ok
