"""A lock file that is removed or replaced is noticed before two processes write concurrently."""

from __future__ import annotations

import fcntl
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import support
import warm
from safely import INDEX, LOCK, WIDE, as_user, replace

from pagequeue import Queue, errors, repair_queue
from pagequeue.system.directory import Directory
from pagequeue.system.file_lock import FileLock

if TYPE_CHECKING:
    from pathlib import Path

    from plugin import Disk


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_lock_file_that_changes_before_it_is_locked_is_opened_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A lock on an unlinked file excludes no other process."""
    disk.send(b"x")
    real = FileLock.try_exclusive
    changed = []

    def late(lock: FileLock) -> bool:
        if lock.path.endswith(LOCK) and not changed:
            changed.append(lock)
            replace(disk.directory / LOCK, how)
        return real(lock)

    monkeypatch.setattr(FileLock, "try_exclusive", late)
    with disk.open():
        with (disk.directory / LOCK).open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert changed[0]._descriptor.is_closed


def test_lock_file_that_never_stays_is_a_timeout(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for it has a limit, like every wait."""
    disk.send(b"x")
    real = FileLock.try_exclusive

    def late(lock: FileLock) -> bool:
        if lock.path.endswith(LOCK):
            replace(disk.directory / LOCK, "removed")
        return real(lock)

    monkeypatch.setattr(FileLock, "try_exclusive", late)
    with pytest.raises(errors.LockTimeout):
        disk.open(lock_timeout=0.1)


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("name", [LOCK, "queue-writeMeta"])
def test_no_write_follows_once_the_lock_was_replaced(disk: Disk, name: str, how: str) -> None:
    """I3: another process could have opened the queue by now, each assuming exclusive access."""
    with disk.open() as queue, queue.producer() as first, queue.producer() as second:
        consumer = queue.consumer()
        first.send_many([WIDE, WIDE])
        replace(disk.directory / name, how)
        with pytest.raises(errors.LockReplaced, match="close the queue everywhere") as caught:
            first.send_many([WIDE, WIDE])
        assert caught.value.path == str(disk.directory / name)
        before = disk.contents()
        small = b"it would still fit"
        for call in (
            lambda: first.send(small),
            lambda: second.send(small),
            lambda: second.send_many([small]),
            second.rotate,
            queue.rotate,
            queue.producer,
        ):
            with pytest.raises(errors.LockReplaced):
                call()
        assert [m.payload for m in consumer.receive_many(9)] == [WIDE, WIDE]
        disk.index(1).unlink()
        assert [m.sequence for m in queue.replay(sequence=1)] == [1]
        del before[INDEX]
        assert disk.contents() == before  # the index was made again, but not there
    if name == LOCK:
        assert disk.payloads() == [WIDE, WIDE]


def test_replaced_lock_is_noticed_when_a_page_is_prepared(disk: Disk) -> None:
    """The worker stops the producers as well: the next send raises."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        replace(disk.directory / LOCK, "removed")
        queue._store.roller.prepare(2, reach=4096, filled_bytes=0, frame_bytes=64)
        support.until(lambda: queue._store.folder.is_replaced)
        with pytest.raises(errors.LockReplaced):
            producer.send(b"y")
        assert not disk.page(2).exists()


def test_replaced_lock_is_noticed_when_the_next_page_is_there_already(disk: Disk) -> None:
    """Rolling checks the lock as well, not only creating a page."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        queue._store.roller.prepare(2, reach=4096, filled_bytes=0, frame_bytes=64)
        support.until(lambda: 2 in queue._store.roller._pages)
        replace(disk.directory / LOCK, "removed")
        before = disk.contents()
        with pytest.raises(errors.LockReplaced):
            producer.rotate()
        assert disk.contents() == before


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_opener_of_an_unlocked_queue_notices_processes_that_have_it_open(
    disk: Disk, how: str
) -> None:
    """I3: the writers' lock is not recreated while other processes use it."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        replace(disk.directory / LOCK, how)
        if os.geteuid() == 0:
            assert as_user(0, disk.directory) == "LockReplaced"
        with pytest.raises(errors.LockReplaced, match="another process has the queue open"):
            disk.open()
        assert [message.payload for message in queue.replay()] == [b"x"]
    assert disk.payloads() == [b"x"]


def test_write_meta_that_is_replaced_while_it_is_opened_is_noticed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mapped and what is locked are the same file."""
    disk.send(b"x")
    real = FileLock.share

    def late(lock: FileLock, timeout: float) -> None:
        real(lock, timeout)
        if lock.path.endswith("writeMeta"):
            replace(disk.path("writeMeta"), "replaced")

    monkeypatch.setattr(FileLock, "share", late)
    with pytest.raises(errors.LockReplaced):
        disk.open()
    monkeypatch.undo()
    assert disk.payloads() == [b"x"]


def test_closed_queue_checks_its_lock_no_more(disk: Disk) -> None:
    """A producer that outlives its queue is closed, not replaced."""
    queue = disk.open()
    producer = queue.producer()
    queue.close()
    replace(disk.directory / LOCK, "removed")
    with pytest.raises(errors.ClosedError):
        producer.send(b"x")


def test_lock_file_that_another_process_creates_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that make a queue at the same time both open the same lock file."""
    folder = Directory(str(tmp_path), create=False)
    real = os.open

    def late(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_EXCL:
            (tmp_path / LOCK).touch()
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", late)
    with folder.opened(LOCK, writable=True, make=True) as fd:
        assert os.fstat(fd).st_ino == (tmp_path / LOCK).stat().st_ino
    folder.close()


def test_lock_file_that_keeps_changing_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening or making it is tried again only so often."""
    folder = Directory(str(tmp_path), create=False)
    real = os.open

    def gone(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == LOCK:
            raise FileExistsError if flags & os.O_EXCL else FileNotFoundError
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", gone)
    with pytest.raises(errors.SystemLimit):
        folder.open(LOCK, writable=True, make=True)
    monkeypatch.undo()
    folder.close()


@pytest.mark.parametrize("sync", ["none", "always", timedelta(milliseconds=2)])
def test_replaced_lock_is_noticed_by_a_flush_that_adds_a_page(
    disk: Disk, sync: str | timedelta
) -> None:
    """I5: the mark is not raised in a file that may be another's; a timer ends quietly.

    A message that is sent already is not called refused.
    """
    with disk.open(sync=sync) as queue:
        producer = queue.producer()
        producer.send_many([WIDE, WIDE])
        producer.flush()
        replace(disk.directory / LOCK, "removed")
        queue._store.write_meta.set_durable(0, 0)  # as if no message were durable yet
        if isinstance(sync, timedelta):
            support.until(lambda: not queue._store.flusher._timer.is_alive())
        else:
            if sync == "always":
                with pytest.raises(errors.NotDurable) as caught:
                    producer.send(b"x")
                assert isinstance(caught.value.__cause__, errors.LockReplaced)
            with pytest.raises(errors.LockReplaced):
                producer.flush()
        with pytest.raises(errors.LockReplaced):
            producer.send(b"y")
        queue._opened.flushes_on_close = False


def test_repair_notices_open_queues_without_a_lock_file(disk: Disk) -> None:
    """I3: repair needs exclusive access, and does not run without it."""
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"x")
        replace(disk.directory / LOCK, "removed")
        before = disk.contents()
        with pytest.raises(errors.LockReplaced):
            repair_queue(disk.directory, lock_timeout=0.1)
        after = disk.contents()
        del after[LOCK]
        assert after == before
    assert disk.payloads() == [b"x"]


@pytest.mark.slow
def test_opening_while_others_close_reports_no_replaced_lock(tmp_path: Path) -> None:
    """Closing releases the write meta first, so that the queue does not appear to be open."""
    Queue(tmp_path / "q", page_bytes=4096).close()
    code = (
        "import sys; from pagequeue import Queue\nfor _ in range(150): Queue(sys.argv[1]).close()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "q")]
    processes = [warm.Popen(command, stderr=warm.PIPE, text=True) for _ in range(3)]
    ended = [(process.communicate()[1], process.returncode) for process in processes]
    assert ended == [("", 0)] * 3
