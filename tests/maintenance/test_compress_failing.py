"""Compressing that fails, dies or comes too late leaves the page or its compressed file."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from plugin import Disk
from squeezing import PAGE, compressed_pages, fill, text
from support import compress_for_ever, die_while_compressing, end, payloads, printed, ready, start

from pagequeue import (
    CompressReport,
    CorruptFrame,
    CorruptPage,
    DiskFull,
    PageQueueError,
    Queue,
    SyncFailed,
    SystemLimit,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue.maintenance import compress as rooms
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue.page.page import WritablePage
    from pagequeue.system.directory import Directory

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def disk(disk: Disk) -> Disk:
    """A directory for a queue whose pages have several blocks."""
    disk.page_bytes = PAGE
    return disk


# --- what fails -----------------------------------------------------------------------------------

CALLS = ["open", "pwrite", "fsync", "pread", "rename"]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_error_at_any_step_leaves_the_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """I16: a typed error; the page reads as before, no file remains, sending continues."""
    with disk.open() as queue:
        sent = fill(queue)
        real = getattr(os, call)

        def fail(*args: object, **options: object) -> object:
            on_temporary = call in {"pwrite", "fsync", "rename"} or "tmp-zip" in str(args[0])
            if call == "fsync":
                on_temporary = "tmp-zip" in os.readlink(f"/proc/self/fd/{args[0]}")
            if call == "pread":
                on_temporary = "tmp-zip" in os.readlink(f"/proc/self/fd/{args[0]}")
            if on_temporary:
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises((DiskFull, SystemLimit)) as caught:
                queue.compress()
            assert isinstance(caught.value, DiskFull) == (number == errno.ENOSPC)
            assert caught.value.errno == number
        assert compressed_pages(disk) == []
        assert not list(disk.directory.glob("*.tmp*"))
        assert payloads(queue.replay()) == sent
        sent += fill(queue, 10, 500)
        assert queue.compress().pages > 0
        assert payloads(queue.replay()) == sent


def test_bytes_changed_by_the_disk_are_noticed(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Z2: what was written is compared before it takes the page's place."""
    with disk.open() as queue:
        sent = fill(queue)
        real = rooms._write_all

        def write(fd: int, data: bytes, at: int) -> None:
            real(fd, data if at < 2000 else bytes([data[0] ^ 1]) + data[1:], at)

        monkeypatch.setattr(rooms, "_write_all", write)
        with pytest.raises(PageQueueError):
            queue.compress()
        assert compressed_pages(disk) == []
        assert payloads(queue.replay()) == sent


def test_damaged_page_is_not_compressed(disk: Disk) -> None:
    """Damage is reported, not compressed."""
    with disk.open() as queue:
        fill(queue)
    data = disk.page(1).read_bytes()
    disk.page(1).write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with disk.open() as queue:
        with pytest.raises(CorruptFrame):
            queue.compress()
        assert not list(disk.directory.glob("*.tmp*"))
    assert disk.page(1).stat().st_size == PAGE


def test_latched_queue_is_not_compressed(disk: Disk) -> None:
    """After a failed sync only repair writes to the queue."""
    with disk.open() as queue:
        fill(queue)
        queue._store.write_meta.latch(errno.EIO, 1)
        with pytest.raises(SyncFailed):
            queue.compress()
    assert repair_queue(disk.directory).ok


def test_failed_sync_with_compressed_pages_is_written_again(disk: Disk) -> None:
    """S2: a compressed page above the mark becomes a plain one, with the same messages."""
    with disk.open(on_sync_failure="seal") as queue:
        sent = fill(queue)
        queue.compress()
        assert queue.durable_sequence == 0
        queue._store.write_meta.latch(errno.EIO, 1)
        with queue.producer() as producer:
            producer.flush()
        assert queue.durable_sequence == len(sent)
        assert payloads(queue.replay()) == sent
        assert queue.verify().ok


@pytest.mark.slow
def test_killed_at_every_step_the_page_is_there(tmp_path: Path) -> None:
    """I16: dying at each system call of Z1 to Z5; the next run continues and leaves no file."""
    step = deaths = 0
    while True:
        disk = Disk(tmp_path / str(step), PAGE)
        with disk.open() as queue:
            sent = fill(queue, 200)
        said = printed(die_while_compressing.__name__, disk.directory, step)
        assert verify_queue(disk.directory).ok
        with disk.open() as queue:
            assert payloads(queue.replay()) == sent
            queue.compress()
            assert compressed_pages(disk) == [1]
            assert payloads(queue.replay()) == sent
        assert not list(disk.directory.glob("*.tmp*"))
        assert not disk.index(1).exists()
        if "done" in said:
            break
        deaths += 1
        step += 1
    assert deaths > 20


def test_power_cut_leaves_the_one_file_or_the_other(disk: Disk) -> None:
    """I16: recovery from a mark before, in and after compressed pages finds every message."""
    with disk.open() as queue:
        sent = fill(queue, 300)
        with queue.producer() as producer:
            producer.flush()
        sent += fill(queue, 700, 300)
        queue.compress()
    pretend_power_cut(disk.directory)
    with disk.open(read_only=True) as queue:
        assert payloads(queue.replay()) == sent
    with disk.open() as queue:
        assert queue.recovery.scanned
        assert payloads(queue.replay()) == sent
        assert queue.durable_sequence == len(sent)
        assert queue.verify().ok
        sent += fill(queue, 10, 1000)
        assert payloads(queue.replay()) == sent


@pytest.mark.parametrize("meta", ["allMeta", "readMeta", "writeMeta"])
def test_lost_meta_is_recreated_from_compressed_pages(disk: Disk, meta: str) -> None:
    """A compressed page has the same header fields as a plain one."""
    with disk.open() as queue:
        sent = fill(queue)
        queue.compress()
    if meta == "allMeta":
        disk.page(queue_tail := max(_numbers(disk))).unlink()  # no page of full size is left
        assert queue_tail > 1
    disk.path(meta).unlink()
    if meta == "allMeta":
        report = salvage_queue(disk.directory, disk.directory.parent / "saved")
        with Queue(disk.directory.parent / "saved") as queue:
            assert payloads(queue.replay()) == sent[: report.messages_copied]
            assert queue.page_bytes == PAGE
        return
    assert repair_queue(disk.directory).ok
    with disk.open() as queue:
        assert payloads(queue.replay()) == sent


def _numbers(disk: Disk) -> Iterator[int]:
    return (int(path.name[6:16]) for path in disk.directory.glob("*.page"))


def test_processes_compress_read_and_send_at_once(disk: Disk) -> None:
    """Two compressors, one producer with retention: each page once, no message lost."""
    with disk.open() as queue:
        fill(queue, 100)
        others = [start(compress_for_ever.__name__, disk.directory) for _ in range(2)]
        for other in others:
            ready(other)
        sent = text(100)
        for turn in range(10):
            sent += fill(queue, 200, 100 + turn * 200)
            assert payloads(queue.replay()) == sent
        for other in others:
            end(other)
        assert queue.verify().ok
        queue.compress()
        assert len(compressed_pages(disk)) > 3
        assert not list(disk.directory.glob("*.tmp*"))


def test_page_that_another_process_compresses_just_before_is_skipped(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at a file and locking it, the name can lead to the compressed one."""
    with disk.open() as queue, disk.open() as other:
        sent = fill(queue, 200)
        real = rooms.first_bytes
        looks: list[bytes] = []

        def first_bytes(folder: Directory, name: str) -> bytes:
            found = real(folder, name)
            looks.append(found)
            if len(looks) == 1:
                other.compress()
            return found

        monkeypatch.setattr(rooms, "first_bytes", first_bytes)
        assert queue.compress() == CompressReport()
        assert compressed_pages(disk) == [1]
        assert payloads(queue.replay()) == sent


def test_page_that_is_compressed_while_a_producer_reaches_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tail was another page meanwhile, so it polls again; no damage is reported."""
    with disk.open() as queue, disk.open() as other:
        producer = other.producer()
        producer.send(b"first")
        roller = other._store.roller
        real = roller._map
        mapped: list[int] = []

        def map_late(number: int) -> WritablePage:
            mapped.append(number)
            if len(mapped) == 1:
                fill(queue, 300)
                assert queue.compress().pages > 1
            return real(number)

        monkeypatch.setattr(roller, "_map", map_late)
        queue.rotate()
        assert producer.send(b"then") == 301
        assert len(mapped) == 2
        assert payloads(queue.replay()) == [b"first", *text(300), b"then"]


def test_compressed_page_in_the_place_of_the_next_one_is_not_overwritten(disk: Disk) -> None:
    """Another program put it there, and it has messages."""
    with disk.open() as queue:
        fill(queue, 400)
        queue.compress()
        tail = queue.info().tail_page
    data = disk.page(1).read_bytes()
    disk.page(tail + 1).write_bytes(data)
    assert any(
        "only prepared" in p.reason or "not" in p.reason
        for p in verify_queue(disk.directory).problems
    )
    with disk.open() as queue:
        with pytest.raises(CorruptPage):
            queue.rotate()
        assert disk.page(tail + 1).read_bytes() == data
    disk.page(tail + 1).unlink()
    with disk.open() as queue:
        queue.rotate()
        assert queue.verify().ok


def test_failed_sync_of_the_directory_leaves_the_index(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z4: the queue is latched, as by every sync that fails; both names may be on the disk."""
    with disk.open() as queue:
        sent = fill(queue)

        def fail(_: Directory) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(type(queue._store.folder), "sync", fail)
            with pytest.raises(SyncFailed):
                queue.compress()
        assert compressed_pages(disk) == [1]
        assert disk.index(1).exists()
        assert payloads(queue.replay()) == sent
    assert repair_queue(disk.directory).ok
    with disk.open() as queue:
        assert payloads(queue.replay()) == sent
        queue.compress()
        assert not disk.index(1).exists()


def noted(monkeypatch: pytest.MonkeyPatch, name: str, note: Callable[[str, str], object]) -> None:
    """Pass each call of a function of `os` on to `note`, with the path that it is about."""
    real = getattr(os, name)

    def call(*args: Any, **options: Any) -> object:  # noqa: ANN401
        where = args[0]
        note(name, os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else str(where))
        return real(*args, **options)

    monkeypatch.setattr(os, name, call)


def test_index_goes_after_the_name_is_on_stable_storage(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z4, Z5: else a power cut could leave the plain page without its index."""
    done: list[str] = []

    def note(name: str, where: str) -> None:
        if where == str(disk.directory) or where.endswith((".idx", rooms.MAKER)):
            done.append(f"{name} {where.rpartition('.')[2]}")

    with disk.open() as queue:
        fill(queue, 200)
        for name in ("rename", "fsync", "unlink"):
            noted(monkeypatch, name, note)
        assert queue.compress().pages == 1
    made = done.index("rename tmp-zip")
    assert done[made : made + 3] == ["rename tmp-zip", f"fsync {disk.directory}", "unlink idx"]


def test_new_file_is_on_stable_storage_before_it_has_the_name(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I16: written, synced, read again, and only then renamed; no write follows."""
    done: list[str] = []

    def note(name: str, where: str) -> None:
        if where.endswith(rooms.MAKER) and (not done or done[-1] != name):
            done.append(name)

    with disk.open() as queue:
        fill(queue, 200)
        for name in ("ftruncate", "pwrite", "fsync", "pread", "rename"):
            noted(monkeypatch, name, note)
        assert queue.compress().pages == 1
    assert done == ["ftruncate", "pwrite", "fsync", "pread", "rename"]
