"""Retired pages that become the next ones: readers inside finish, and no old byte is visible."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plugin import Disk
from support import end, hold_a_page, hold_file_lock, ready, start, until

from pagequeue import LockTimeout, Queue, Retention, salvage_queue, verify_queue
from pagequeue import format as fmt
from pagequeue.maintenance.trimmer import Trimmer
from pagequeue.page import spare as recycle
from pagequeue.store.roll import Roller
from pagequeue.system import page_lock
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = 4 * 4096
OLD, NEW = b"old-and-secret.", b"new-and-public."
EACH = 7
"""Messages of these sizes in one page."""
PAGES = 5
KEEP = Retention(max_bytes=3 * PAGE)
OS_PAGE = 4096


def message(word: bytes, number: int) -> bytes:
    """Return a payload whose every part identifies it; never the same twice."""
    return (b"%06d" % number + word) * 100


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a directory whose queue uses small pages again, and trims only by hand."""
    monkeypatch.setattr(recycle, "PAGE_BYTES_MIN", 0)
    monkeypatch.setattr(Trimmer, "trim_quietly", lambda _: None)
    monkeypatch.setattr(Trimmer, "make_room", lambda *_: None)
    monkeypatch.setattr(Roller, "prepare", lambda *_, **__: None)
    return Disk(tmp_path / "q", page_bytes=PAGE)


def fill(disk: Disk) -> Queue:
    """Open a queue and fill five pages; the next one is not made."""
    queue = disk.open(retention=KEEP)
    with queue.producer() as producer:
        for number in range(PAGES * EACH):
            producer.send(message(OLD, number))
    assert queue._store.tail.page_number == PAGES
    queue._store.roller._is_fast = True
    fd = os.open(disk.page(3), os.O_RDONLY)
    until(lambda: can_be_alone(fd))  # the worker drops the producer's map when it has its turn
    os.close(fd)
    return queue


def inode(path: Path) -> int:
    """Return which file has a name."""
    return path.stat().st_ino


def spare(disk: Disk) -> Path:
    """Return the path of the spare."""
    return disk.directory / fmt.spare_name("queue")


def reuse(disk: Disk, queue: Queue) -> int:
    """Trim, and have the next page made; return the inode of the page that was parked."""
    newest = queue._store.tail.page_number - 2
    with disk.page(newest).open("rb"):  # or its number could be given to another file
        file = inode(disk.page(newest))
        queue.trim()
        queue._store.roller.next_page(queue._store.tail.page_number + 1)
    return file


def bytes_of(disk: Disk) -> bytes:
    """Return all bytes below the directory."""
    return b"".join(path.read_bytes() for path in sorted(disk.directory.iterdir()))


# --- what becomes of a page ----------------------------------------------------------------------


def test_retired_page_becomes_the_next_one(disk: Disk) -> None:
    """The newest of the retired pages waits under a temporary name, and is used again."""
    with fill(disk) as queue:
        newest = inode(disk.page(3))
        queue.trim()
        assert inode(spare(disk)) == newest
        assert queue._store.read_meta.head_page == 4
        queue._store.roller.next_page(6)
        assert inode(disk.page(6)) == newest
        assert not spare(disk).exists()
        with queue.producer() as producer:
            for number in range(2 * EACH):
                producer.send(message(NEW, number))
        assert [m.payload for m in queue.replay(sequence=PAGES * EACH)] == [
            message(NEW, number) for number in range(2 * EACH)
        ]
        assert queue.verify().problems == []


def test_no_byte_of_the_old_page_can_be_read(disk: Disk) -> None:
    """I13: neither in the page before it is used, nor after its tail, nor in its index."""
    with fill(disk) as queue:
        queue.consumer(latest=True)
        old = [m.payload for m in queue.replay()][: 3 * EACH]
        reuse(disk, queue)
        page, index = disk.page(6).read_bytes(), disk.index(6).read_bytes()
        assert not page[fmt.PAGE_HEADER_BYTES :].strip(b"\0")
        assert not index.strip(b"\0")
        with queue.producer() as producer:
            producer.send(message(NEW, 1))
        everything = bytes_of(disk)
        assert all(payload[:20] not in everything for payload in old)
        assert everything.count(message(OLD, 3 * EACH)[:20]) == 100  # the next ones are there


def test_slow_producer_gets_a_new_file(disk: Disk) -> None:
    """Zeros that are not needed soon would only be written to the disk."""
    with fill(disk) as queue:
        queue._store.roller._is_fast = False
        assert reuse(disk, queue) != inode(disk.page(6))
    assert not spare(disk).exists()


def test_small_pages_are_not_reused(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of the header costs as much as making a small page."""
    monkeypatch.setattr(recycle, "PAGE_BYTES_MIN", PAGE + 1)
    with fill(disk) as queue:
        assert reuse(disk, queue) != inode(disk.page(6))


def test_spare_takes_no_additional_space(disk: Disk) -> None:
    """Where the next page is there already, the retired one goes."""
    with fill(disk) as queue:
        queue._store.roller.next_page(6)
        queue.trim()
        assert not spare(disk).exists()


def test_spare_is_removed_with_its_queue_or_at_the_next_opening(disk: Disk) -> None:
    """Closing removes temporary files; those of a killed process remain for a while only."""
    with fill(disk) as queue:
        queue.trim()
        assert spare(disk).exists()
    assert not spare(disk).exists()
    spare(disk).write_bytes(bytes(PAGE))
    disk.open().close()
    assert not spare(disk).exists()


# --- who is inside -------------------------------------------------------------------------------


def old_of_page(number: int) -> list[bytes]:
    """Return what a page of the old ones holds."""
    return [message(OLD, i) for i in range((number - 1) * EACH, number * EACH)]


def test_reader_inside_a_page_finishes_it(disk: Disk) -> None:
    """I13: a page that is mapped is not used again."""
    with fill(disk) as queue, disk.open(read_only=True) as other:
        readers = [q.consumer(sequence=2 * EACH) for q in (queue, other)]
        assert reuse(disk, queue) != inode(disk.page(6))
        for reader in readers:
            assert [reader.receive(0).payload for _ in range(EACH)] == old_of_page(3)


def test_view_of_a_batch_keeps_its_page(disk: Disk) -> None:
    """I13: whatever refers to a map keeps it, not only a reader."""
    with fill(disk) as queue:
        region = queue._store.page(3).region
        view = memoryview(region)
        before = bytes(view)
        del region
        queue._store.forget(3)
        assert reuse(disk, queue) != inode(disk.page(6))
        assert bytes(view) == before


@pytest.mark.parametrize("child", [False, True], ids=["process", "child of a fork"])
def test_other_process_that_has_a_page_keeps_it_until_it_dies(disk: Disk, *, child: bool) -> None:
    """I13: the kernel releases the lock at death, and not before the last map is gone."""
    with fill(disk) as queue:
        fd = os.open(disk.page(3), os.O_RDONLY)
        queue._store.pages.clear()
        process = start(hold_a_page.__name__, disk.directory, 2 * EACH, child=child)
        holder = int(ready(process))
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert reuse(disk, queue) != inode(disk.page(6))
        os.kill(holder, signal.SIGKILL)
        end(process)
        until(lambda: can_be_alone(fd))
        os.close(fd)


def can_be_alone(fd: int) -> bool:
    """Whether no other process has a file locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_page_that_is_open_only_is_kept_too(disk: Disk) -> None:
    """I13: who reads by descriptor, as verify does with headers, is covered."""
    with (
        fill(disk) as queue,
        queue._store.folder.opened("queue-0000000003.page", writable=False) as fd,
    ):
        before = os.pread(fd, PAGE, 0)
        assert reuse(disk, queue) != inode(disk.page(6))
        assert os.pread(fd, PAGE, 0) == before


@pytest.mark.parametrize("how", ["linked", "readable", "short", "sparse"])
def test_file_that_is_more_or_less_than_a_page_is_not_used(disk: Disk, how: str) -> None:
    """A backup by hard link keeps its bytes, permissions stay, and blocks are there (I10)."""
    with fill(disk) as queue:
        queue.trim()
        backup = disk.directory.parent / "backup"
        if how == "linked":
            backup.hardlink_to(spare(disk))
            before = backup.read_bytes()
        elif how == "readable":
            spare(disk).chmod(0o644)
        elif how == "short":
            os.truncate(spare(disk), PAGE - OS_PAGE)
        else:
            spare(disk).write_bytes(b"")
            os.truncate(spare(disk), PAGE)
        file = inode(spare(disk))
        held = os.open(spare(disk), os.O_PATH)  # no other file gets its number; it is not open
        queue._store.roller.next_page(6)
        assert inode(disk.page(6)) != file or how in {"short", "sparse"}
        os.close(held)
        assert disk.page(6).stat().st_blocks * 512 >= PAGE
        assert disk.page(6).stat().st_mode & 0o777 == 0o600
        assert not spare(disk).exists()
        if how == "linked":
            assert backup.read_bytes() == before


def stays_in_memory(directory: Path) -> bool:
    """Whether this file system is in memory only."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    mounts = {fields[1]: fields[2] for fields in map(str.split, lines)}
    return next(mounts[str(d)] for d in directory.parents if str(d) in mounts) == "tmpfs"


def test_page_that_is_not_in_memory_is_not_used(disk: Disk, on_disk: Path) -> None:
    """Reading it first would cost more than a new one."""
    disk.directory = on_disk
    with fill(disk) as queue:
        queue.trim()
        fd = os.open(spare(disk), os.O_RDWR)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        file = inode(spare(disk))
        queue._store.roller.next_page(6)
        if not stays_in_memory(disk.directory):
            assert inode(disk.page(6)) != file
        os.close(fd)  # before, its number could have been given to the new one
        assert disk.page(6).read_bytes()[fmt.PAGE_HEADER_BYTES :].strip(b"\0") == b""


# --- locks ---------------------------------------------------------------------------------------


def test_page_with_an_exclusive_lock_is_refused_in_time(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader waits for ever, and none reads a page that is not held for it."""
    monkeypatch.setattr("pagequeue.system.directory.HOLD_SECONDS", 0.05)
    with fill(disk) as queue:
        process = start(hold_file_lock.__name__, disk.page(2))
        assert ready(process) == "held"
        queue._store.pages.clear()
        with pytest.raises(LockTimeout, match="0000000002"):
            queue.consumer(sequence=EACH)
        end(process)
        assert queue.consumer(sequence=EACH).receive(0).payload == message(OLD, EACH)


def test_system_without_locks_reads_and_reuses_no_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a shared lock is unsupported, so is an exclusive one; other errors are raised."""

    def refuse(number: int) -> Callable[[int, int], None]:
        def flock(_fd: int, _kind: int) -> None:
            raise OSError(number, os.strerror(number))

        return flock

    with fill(disk) as queue:
        queue._store.pages.clear()
        monkeypatch.setattr(page_lock.fcntl, "flock", refuse(errno.EOPNOTSUPP))
        assert queue.consumer().receive(0).payload == message(OLD, 0)
        queue._store.pages.clear()
        monkeypatch.setattr(page_lock.fcntl, "flock", refuse(errno.ENOLCK))
        with pytest.raises(OSError, match="locking the page"):
            queue.consumer()


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("queue-0000000001.page", True),
        ("a-b.c-0000000012.page", True),
        ("queue-0000000001.idx", False),
        ("queue-readMeta.x-0000000001.page", False),
        ("queue-0000000000.page.tmp-spare", False),
        ("queue-1.page", False),
    ],
)
def test_only_pages_are_held(name: str, *, page: bool) -> None:
    """A cursor's file has a separate lock, for every name of a consumer."""
    assert page_lock.is_page(name) is page


def test_page_removed_while_it_was_opened_is_reported_as_removed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: between opening and locking, the file can become another page."""
    with fill(disk) as queue:
        real, turns = page_lock.hold, []

        def slow(fd: int) -> bool:
            if not turns:
                turns.append(fd)
                monkeypatch.setattr("pagequeue.system.directory.hold", real)
                reuse(disk, queue)
            return real(fd)

        queue._store.pages.clear()
        monkeypatch.setattr("pagequeue.system.directory.hold", slow)
        consumer = queue.consumer(on_expired="skip")
        assert consumer.receive(0).payload == message(OLD, 3 * EACH)
        assert turns


# --- power cuts ----------------------------------------------------------------------------------


def cut_with_old_bytes(disk: Disk, sent: int, *, from_os_page: int) -> bytes:
    """Leave what a power cut can: a page used again, its first OS pages new, all others old."""
    with fill(disk) as queue:
        old = disk.page(3).read_bytes()
        file = reuse(disk, queue)
        assert inode(disk.page(6)) == file
        with queue.producer() as producer:
            producer.flush()
            for number in range(sent):
                producer.send(message(NEW, number))
        assert queue._store.tail.page_number == 6
    data = disk.page(6).read_bytes()
    disk.page(6).write_bytes(data[: from_os_page * OS_PAGE] + old[from_os_page * OS_PAGE :])
    pretend_power_cut(disk.directory)
    return old


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("from_os_page", [1, 2, 3])
@pytest.mark.parametrize("sent", [1, 2, 5])
def test_old_bytes_that_a_power_cut_brings_back_are_never_read(
    disk: Disk, sent: int, from_os_page: int
) -> None:
    """I13: not by a reader, verify, salvage or recovery; and recovery zeroes them."""
    cut_with_old_bytes(disk, sent, from_os_page=from_os_page)
    least = 3 * EACH
    allowed = [message(OLD, i) for i in range(least, PAGES * EACH)]
    allowed += [message(NEW, i) for i in range(sent)]
    with disk.open(read_only=True) as queue:
        seen = [m.payload for m in queue.replay()]
    assert seen == allowed[: len(seen)]
    assert len(seen) >= PAGES * EACH - least
    assert verify_queue(disk.directory).problems == []
    copy = disk.directory.parent / "copy"
    salvage_queue(disk.directory, copy)
    with Queue(copy, read_only=True) as queue:
        assert [m.payload for m in queue.replay()] == seen
    with disk.open() as queue:
        assert [m.payload for m in queue.replay()] == seen
        assert queue.verify().problems == []
        with queue.producer() as producer:
            producer.send(b"on")
    everything = bytes_of(disk)
    assert all(message(OLD, i)[:20] not in everything for i in range(least))


def test_exclusive_lock_is_never_left_on_a_page(disk: Disk) -> None:
    """A process that maps a recycled page shares its lock as for any other page."""
    with fill(disk) as queue:
        reuse(disk, queue)
        fd = os.open(disk.page(6), os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
