"""Shipped pages: whole, checked and in order, or absent, whichever process dies meanwhile."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import SMALL, flip
from tiers import slow_but

from pagequeue import Queue, Retention, ShipReport, cli, errors
from pagequeue import format as fmt
from pagequeue.maintenance import ship as shipping
from pagequeue.maintenance import ship_target
from pagequeue.maintenance.ship_target import TEMPORARY, Target
from pagequeue.meta.manifest import Manifest, manifest_name, read_manifest
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 500


def send(queue: Queue, first: int, end: int) -> None:
    """Send numbers as messages, then seal the page."""
    with queue.producer() as producer:
        for number in range(first, end):
            producer.send(b"message %06d" % number)
    queue.rotate()


def read(directory: Path) -> list[tuple[int, bytes]]:
    """Return what a ship has, read as a queue, which verifies."""
    with Queue(directory, read_only=True) as queue:
        report = queue.verify()
        assert (report.problems, report.messages_checked) == ([], len(queue))
        return [(message.sequence, message.payload) for message in queue.replay()]


def numbers(first: int, end: int) -> list[tuple[int, bytes]]:
    """Return what `read` gives for messages that have their sequence's number."""
    return [(number, b"message %06d" % number) for number in range(first, end)]


def manifest_of(directory: Path) -> Manifest:
    """Return the manifest of a ship."""
    folder = Directory(str(directory), create=False, read_only=True)
    try:
        found = read_manifest(folder, "queue")
    finally:
        folder.close()
    assert found is not None
    return found


def test_sealed_pages_are_a_queue_to_read(queue: Queue, tmp_path: Path) -> None:
    """All sealed pages, with sequences and times; the active page is not shipped."""
    send(queue, 0, COUNT)
    with queue.producer() as producer:
        producer.send(b"active")
    report = queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, COUNT)
    assert (report.messages, report.pages_before, report.pages_left) == (COUNT, 0, 0)
    assert (report.first_sequence, report.end_sequence, report.messages_missed) == (0, COUNT, 0)
    with Queue(tmp_path / "ship", read_only=True) as shipped:
        assert shipped.last(1)[0].timestamp == queue.replay(sequence=COUNT - 1).__next__().timestamp
        assert [m.sequence for m in shipped.replay(sequence=COUNT - 2)] == [COUNT - 2, COUNT - 1]
        with shipped.consumer(sequence=COUNT - 1) as consumer:
            assert consumer.receive(0).sequence == COUNT - 1
            assert consumer.poll() is None
            with pytest.raises(TimeoutError):
                consumer.receive(0.05)


def test_a_second_call_ships_only_new_pages(queue: Queue, tmp_path: Path) -> None:
    """Shipped files are not touched; an earlier reader continues with its view."""
    send(queue, 0, 100)
    first = queue.ship(tmp_path / "ship")
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ship").glob("*.page")}
    with Queue(tmp_path / "ship", read_only=True) as before:
        send(queue, 100, 300)
        second = queue.ship(tmp_path / "ship")
        assert len(before) == 100
        assert len(list(before.replay())) == 100
    assert (second.pages_before, second.messages) == (first.pages, 200)
    assert read(tmp_path / "ship") == numbers(0, 300)
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ship").glob("*.page")}
    assert now.items() >= stamps.items()
    third = queue.ship(tmp_path / "ship")
    assert (third.pages, third.bytes_shipped, third.end_sequence) == (0, 0, 300)


def test_a_manifest_whose_name_was_not_synced_is_before_it_is_reported(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20: a shipper can die between naming its manifest and syncing that name."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    send(queue, 100, 200)
    real, synced = Directory.sync_entries, [0, 0]

    def interrupted(folder: Directory) -> None:
        synced[0] += folder.path == str(tmp_path / "ship")
        if synced[0] == 3:  # at the beginning, before the manifest, after it
            raise KeyboardInterrupt
        real(folder)

    def counted(folder: Directory) -> None:
        synced[1] += folder.path == str(tmp_path / "ship")
        real(folder)

    monkeypatch.setattr(Directory, "sync_entries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.ship(tmp_path / "ship")
    assert manifest_of(tmp_path / "ship").pages[-1].end_sequence == 200
    monkeypatch.setattr(Directory, "sync_entries", counted)
    assert queue.ship(tmp_path / "ship").end_sequence == 200
    assert synced[1] > 0


def test_pages_whose_names_a_failed_sync_lost_are_not_in_the_manifest(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20: the next sync succeeds without the names; the next shipper makes them again."""
    send(queue, 0, 100)
    monkeypatch.setattr(shipping, "NOTED_BYTES", 1)  # the manifest follows each page
    real, failed = Directory.sync_entries, []

    def failing(folder: Directory) -> None:
        if not failed and list((tmp_path / "ship").glob("*.page")):
            failed.append(folder.path)
            raise errors.SystemLimit("the sync failed", path=folder.path)
        real(folder)

    monkeypatch.setattr(Directory, "sync_entries", failing)
    with pytest.raises(errors.SystemLimit, match="the sync failed"):
        queue.ship(tmp_path / "ship")
    assert failed == [str(tmp_path / "ship")]
    assert manifest_of(tmp_path / "ship").pages == ()
    renamed: list[str] = []
    rename = Directory.rename
    monkeypatch.setattr(
        Directory, "rename", lambda of, name, to: (renamed.append(to), rename(of, name, to))
    )
    assert queue.ship(tmp_path / "ship").end_sequence == 100
    assert {page.file for page in manifest_of(tmp_path / "ship").pages} <= {*renamed}


def test_files_that_the_manifest_does_not_name_are_not_damage(queue: Queue, tmp_path: Path) -> None:
    """I20: a page outside the manifest is invisible, also to verify and after a reboot."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    last = manifest_of(tmp_path / "ship").pages[-1].number
    send(queue, 100, 200)
    name = fmt.page_name("queue", last + 1)
    shutil.copy(Path(queue._store.folder.full(name)), tmp_path / "ship" / name)
    with (tmp_path / "ship" / "queue-writeMeta").open("r+b") as file:
        file.seek(WriteMeta.LOCK_KEY)
        file.write(b"\x55" * WriteMeta.LOCK_KEY_BYTES)
    assert read(tmp_path / "ship") == numbers(0, 100)


def test_a_write_meta_ahead_of_the_manifest_is_not_damage(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I20: a shipper that ends between the two leaves what readers saw before."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    send(queue, 100, 900)

    def refused(folder: Directory, prefix: str, _manifest: Manifest) -> None:
        raise errors.SystemLimit("no manifest today", path=folder.full(prefix))

    monkeypatch.setattr(ship_target, "write_manifest", refused)
    with pytest.raises(errors.SystemLimit):
        queue.ship(tmp_path / "ship")
    monkeypatch.undo()
    assert read(tmp_path / "ship") == numbers(0, 100)

    def dying(_shipping: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(shipping._Shipping, "_begin", dying)
    with pytest.raises(KeyboardInterrupt):
        queue.ship(tmp_path / "ship")  # the pages are removed by now, and none is copied
    monkeypatch.undo()
    assert read(tmp_path / "ship") == numbers(0, 100)
    shutil.copytree(tmp_path / "ship", tmp_path / "own")
    (tmp_path / "own" / manifest_name("queue")).unlink()
    with Queue(tmp_path / "own") as own:  # a queue of its own
        assert len(own) == 100
        assert own.verify().ok
    queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, 900)


def test_a_manifest_without_its_files_after_a_power_cut_is_completed(
    queue: Queue, tmp_path: Path
) -> None:
    """Names reach the disk in any order: the manifest's can be there without the meta files'."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    for name in ("allMeta", "readMeta", "writeMeta"):
        (tmp_path / "ship" / f"queue-{name}").unlink()
    assert queue.ship(tmp_path / "ship").end_sequence == 100
    assert read(tmp_path / "ship") == numbers(0, 100)


def test_a_shipper_that_died_writing_the_first_manifest_blocks_no_other(
    queue: Queue, tmp_path: Path
) -> None:
    """Its temporary file is not part of a queue, and the next shipper removes it."""
    send(queue, 0, 10)
    (tmp_path / "ship").mkdir(0o700)
    left = tmp_path / "ship" / "queue-manifest.json.tmp-0123456789abcdef0123456789abcdef"
    left.write_bytes(b"{")
    queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, 10)
    assert not left.exists()


def test_a_lock_whose_unlock_fails_is_closed(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was shipped is reported, and the next one can ship: closing unlocks as well."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "other")  # what the queue itself opens is open
    real = fcntl.flock

    def refused(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN and os.readlink(f"/proc/self/fd/{fd}").endswith("ship.lock"):
            raise OSError(errno.ENOLCK, "No locks available")
        real(fd, operation)

    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", refused)
    assert queue.ship(tmp_path / "ship").messages == 100
    monkeypatch.undo()
    assert queue.ship(tmp_path / "ship").end_sequence == 100
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN])
def test_an_unreadable_manifest_is_not_damage(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A refusal of the system is reported as such, and not as damage."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")

    def refused(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", refused)
    with pytest.raises(errors.SystemLimit, match=r"manifest\.json"):
        queue.ship(tmp_path / "ship")


def test_queue_without_sealed_pages_ships_none(queue: Queue, tmp_path: Path) -> None:
    """The directory is not a queue before it has a page; the next call ships it."""
    assert queue.ship(tmp_path / "ship").pages == 0
    with pytest.raises(errors.QueueNotFound):
        Queue(tmp_path / "ship", read_only=True)
    send(queue, 0, 10)
    queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, 10)


def test_compressed_pages_and_records_are_shipped(tmp_path: Path) -> None:
    """Compressed pages remain compressed, with the dtype; a replica can mix both kinds."""
    pytest.importorskip("zstandard")
    dtype = np.dtype([("number", "<i8"), ("text", "S40")])
    records = np.zeros(COUNT, dtype)
    records["number"] = np.arange(COUNT)
    with Queue(tmp_path / "q", page_bytes=SMALL * 4, dtype=dtype) as queue:
        for half in np.array_split(records, 2):
            with queue.producer() as producer:
                for part in np.array_split(half, 10):
                    producer.send_many(part)
            queue.rotate()
            if half[0]["number"] == 0:
                assert queue.compress().pages
        queue.ship(tmp_path / "ship")
    with Queue(tmp_path / "ship", read_only=True) as shipped, shipped.batches() as batches:
        assert np.array_equal(np.concatenate([batch.to_numpy() for batch in batches]), records)
        assert shipped.verify().ok
    shipped_pages = manifest_of(tmp_path / "ship").pages
    sizes = {page.size_bytes for page in shipped_pages}
    assert SMALL * 4 in sizes
    assert min(sizes) < SMALL * 4
    for page in shipped_pages:  # a compressed one has no index
        index = tmp_path / "ship" / fmt.index_name("queue", page.number)
        assert index.exists() == (page.size_bytes == SMALL * 4) == (page.index_bytes > 0)


def test_the_manifest_lists_the_files(queue: Queue, tmp_path: Path) -> None:
    """JSON for any tool: files with their sizes and checksums, sequences and times."""
    send(queue, 0, COUNT)
    queue.ship(tmp_path / "ship", file_mode=0o640)
    path = tmp_path / "ship" / "queue-manifest.json"
    told = json.loads(path.read_text())
    assert told["queue"]["directory"] == str(tmp_path / "q")
    ends = [0]
    for page in told["pages"]:
        data = (tmp_path / "ship" / page["file"]).read_bytes()
        assert len(data) == page["size_bytes"]
        assert f"{shipping._core.crc32c(data):08x}" == page["crc32c"]
        assert page["first_sequence"] == ends[-1]
        ends.append(page["end_sequence"])
    assert ends[-1] == COUNT
    assert {oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == {"0o640"}


# --- who may not ----------------------------------------------------------------------------------


def test_a_ship_is_not_written_to(queue: Queue, tmp_path: Path) -> None:
    """It would continue from there, and be another queue of the same id."""
    send(queue, 0, 10)
    queue.ship(tmp_path / "ship")
    before = sorted(os.listdir(tmp_path / "ship"))
    with pytest.raises(errors.ReadOnlyQueue, match="read_only=True"):
        Queue(tmp_path / "ship")
    assert sorted(os.listdir(tmp_path / "ship")) == before
    (tmp_path / "ship" / "queue-manifest.json").unlink()
    with Queue(tmp_path / "ship") as own, own.producer() as producer:
        assert producer.send(b"own") == 10


def test_other_directories_are_refused(queue: Queue, tmp_path: Path) -> None:
    """The queue's own, another queue, a replica of another queue; no file is changed there."""
    send(queue, 0, 10)
    with Queue(tmp_path / "other", page_bytes=SMALL) as other:
        send(other, 0, 10)
        other.ship(tmp_path / "ship")
    for target, text in (
        ("q", "own"),
        ("q/x", "own"),
        ("other", "not a replica"),
        ("ship", "of another"),
    ):
        with pytest.raises(errors.InvalidOption, match=text):
            queue.ship(tmp_path / target)
    assert read(tmp_path / "ship") == numbers(0, 10)


def test_an_older_copy_of_the_queue_is_refused(tmp_path: Path) -> None:
    """Put back and gone on, it has other messages of the same sequences."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        send(queue, 0, 10)
    shutil.copytree(tmp_path / "q", tmp_path / "old")
    with Queue(tmp_path / "q") as queue:
        send(queue, 10, 20)
        queue.ship(tmp_path / "ship")
    with Queue(tmp_path / "old") as queue:
        with pytest.raises(errors.InvalidOption, match="older copy"):
            queue.ship(tmp_path / "ship")
        send(queue, 110, 130)
        with pytest.raises(errors.InvalidOption, match="differs from the one"):
            queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, 20)


def test_one_ships_at_a_time(queue: Queue, tmp_path: Path) -> None:
    """The second one gets an error, and the replica is intact."""
    send(queue, 0, 10)
    target = Target(str(tmp_path / "ship"), queue._store, 0o600)
    with Queue(queue.directory, lock_timeout=0.3) as hasty, target:  # noqa: SIM117
        with pytest.raises(errors.LockTimeout):
            hasty.ship(tmp_path / "ship")
    queue.ship(tmp_path / "ship")
    assert read(tmp_path / "ship") == numbers(0, 10)


def test_two_ship_for_the_first_time_at_once(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has checked for a manifest and found none; then the other one begins and ends."""
    looked = []

    def read_then_race(folder: Directory, prefix: str) -> Manifest | None:
        found = read_manifest(folder, prefix)
        looked.append(found)
        if len(looked) == 1:
            assert queue.ship(tmp_path / "ship").pages == sealed
        return found

    send(queue, 0, COUNT)
    sealed = queue.info().tail_page - 1
    monkeypatch.setattr(ship_target, "read_manifest", read_then_race)
    assert queue.ship(tmp_path / "ship").pages == 0
    assert looked[0] is None
    assert read(tmp_path / "ship") == numbers(0, COUNT)


def test_others_send_compress_and_trim_meanwhile(tmp_path: Path) -> None:
    """What is shipped while they do is every message, once, in order."""
    pytest.importorskip("zstandard")
    keep = Retention(max_age=timedelta(microseconds=1))
    stop = threading.Event()
    sent = 0

    def work() -> None:
        nonlocal sent
        with (
            Queue(tmp_path / "q", page_bytes=SMALL, retention=keep, compress_after=1) as queue,
            queue.producer() as producer,
        ):
            while sent < 4000 and not stop.wait(0.002):
                producer.send_many([b"message %06d" % n for n in range(sent, sent + 40)])
                sent += 40
                queue.trim()
            queue.rotate()

    Queue(tmp_path / "q", page_bytes=SMALL).close()
    with Queue(tmp_path / "q") as queue:
        queue.ship(tmp_path / "ship", consumer="shipper")
        thread = threading.Thread(target=work)
        thread.start()
        try:
            while sent < 400 and thread.is_alive():
                queue.ship(tmp_path / "ship", consumer="shipper")
        finally:
            stop.set()
            thread.join()
        report = queue.ship(tmp_path / "ship", consumer="shipper")
    assert report.end_sequence == sent
    assert read(tmp_path / "ship") == numbers(0, sent)


# --- large messages -------------------------------------------------------------------------------


def large(number: int) -> bytes:
    """Return a payload of several pages."""
    return b"%06d" % number * (SMALL // 2)


def shipped(directory: Path) -> list[bytes]:
    """Return the payloads of a replica, which verifies; none if no process can open it yet."""
    try:
        with Queue(directory, read_only=True) as queue:
            report = queue.verify()
            assert (report.problems, report.messages_checked) == ([], len(queue))
            return [message.payload for message in queue.replay()]
    except errors.QueueNotFound:
        return []


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("noted_bytes", slow_but([2 * SMALL], [1, 2 * SMALL, 5 * SMALL]))
@pytest.mark.parametrize("at_once", [False, True])
def test_a_replica_never_ends_inside_a_large_message_or_a_commit(
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noted_bytes: int,
    *,
    at_once: bool,
) -> None:
    """I19, I20, I23: after each page that is copied, and if copying ends there by an error."""
    monkeypatch.setattr(shipping, "NOTED_BYTES", noted_bytes)
    sent = [large(0), b"small", large(1)]
    with queue.producer() as producer:
        if at_once:
            producer.send_many(sent)
        for payload in [] if at_once else sent:
            producer.send(payload)
    queue.rotate()
    pages = queue._store.tail.page_number - 1
    copy = shipping._Shipping._copy
    found = []
    for last in range(1, pages + 1):
        target = tmp_path / f"ship-{last}"

        def interrupted(self: shipping._Shipping, number: int, last: int = last) -> object:
            found.append(shipped(Path(self._target.folder.path)))
            if number > last:
                raise KeyboardInterrupt
            return copy(self, number)

        monkeypatch.setattr(shipping._Shipping, "_copy", interrupted)
        if last < pages:
            with pytest.raises(KeyboardInterrupt):
                queue.ship(target)
        else:
            assert queue.ship(target).pages == pages
        found.append(shipped(target))
        monkeypatch.setattr(shipping._Shipping, "_copy", copy)
        assert queue.ship(target).end_sequence == len(sent)
        assert shipped(target) == sent
    counts = {0, len(sent)} if at_once else set(range(len(sent) + 1))
    assert {len(payloads) for payloads in found} == counts
    assert all(payloads == sent[: len(payloads)] for payloads in found)


def test_a_reader_ships_no_part_of_a_large_message(tmp_path: Path) -> None:
    """The durable mark can be at any of its pages: the others are not copied before it is past."""
    sent = [b"before", large(0), b"after"]
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            for payload in sent:
                producer.send(payload)
        queue.rotate()
        meta = queue._store.write_meta
        ends = set()
        for page in range(1, meta.tail.page_number + 1):
            meta.set_durable(0, page)
            with Queue(tmp_path / "q", read_only=True) as reader:
                report = reader.ship(tmp_path / "ship")
            found = shipped(tmp_path / "ship")
            assert report.end_sequence == len(found)
            pages = report.pages_before + report.pages + report.pages_left
            assert pages == meta.tail.page_number - 1
            ends.add(len(found))
        assert found == sent
        assert ends == {0, 1, 2, 3}


def test_a_damaged_block_is_not_shipped(queue: Queue, tmp_path: Path) -> None:
    """I23: retention would take the original for a replica that has the message no more."""
    with queue.producer() as producer:
        producer.send(b"before")
        producer.send(large(0))
        producer.flush()
    queue.rotate()
    flip(tmp_path / "q" / fmt.page_name("queue", 4), SMALL - 1000)
    with pytest.raises(errors.CorruptFrame, match="a large one") as caught:
        queue.ship(tmp_path / "ship", consumer="shipper")
    assert caught.value.sequence == 1
    assert shipped(tmp_path / "ship") == [b"before"]
    assert queue.consumers()[0].next_sequence == 1


# --- what is not durable, retention, damage -------------------------------------------------------


def test_a_reader_ships_only_durable_pages(tmp_path: Path) -> None:
    """A power cut could take back the rest here, and other messages come in its place."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        send(queue, 0, 100)
        with queue.producer() as producer:
            producer.flush()
        send(queue, 100, 200)
        with Queue(tmp_path / "q", read_only=True) as reader:
            report = reader.ship(tmp_path / "ship")
            assert report.pages_left > 0
            assert report.end_sequence < 200
            assert read(tmp_path / "ship") == numbers(0, report.end_sequence)
            with pytest.raises(errors.ReadOnlyQueue):
                reader.ship(tmp_path / "ship", consumer="shipper")


def test_the_end_of_page_marker_is_flushed_before_its_page_is_shipped(
    queue: Queue, tmp_path: Path
) -> None:
    """Durable messages do not make a durable page: without its marker it could still grow."""
    with queue.producer() as producer:
        producer.send(b"message %06d" % 0)
        producer.flush()
    queue.rotate()
    assert queue._store.write_meta.durable_page == 1
    assert queue.ship(tmp_path / "ship").messages == 1
    assert queue._store.write_meta.durable_page == 2


def test_messages_removed_by_retention_before_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first page is copied: counted. After shipped pages: an error, never a gap."""
    keep = Retention(max_bytes=6 * SMALL)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=keep) as queue:
        send(queue, 0, 600)
        copy = shipping._Shipping._copy

        def passed(self: shipping._Shipping, number: int) -> object:
            monkeypatch.undo()
            send(queue, 600, 700)
            queue.trim()
            return copy(self, number)

        queue.trim()
        head = queue.head_sequence
        monkeypatch.setattr(shipping._Shipping, "_copy", passed)
        report = queue.ship(tmp_path / "ship")
        assert report.messages_missed == report.first_sequence - head > 0
        assert read(tmp_path / "ship") == numbers(report.first_sequence, 600)
        send(queue, 700, 2000)
        queue.trim()
        with pytest.raises(errors.Expired, match="into another directory"):
            queue.ship(tmp_path / "ship")
        assert read(tmp_path / "ship") == numbers(report.first_sequence, 600)
        assert queue.ship(tmp_path / "ship-2").end_sequence == 2000


def test_with_a_consumer_retention_waits(tmp_path: Path) -> None:
    """Unshipped pages are kept; shipped ones may be removed, and shipping continues."""
    keep = Retention(max_age=timedelta(microseconds=1))
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=keep) as queue:
        queue.ship(tmp_path / "ship", consumer="shipper")
        send(queue, 0, 600)
        queue.trim()
        assert queue.head_sequence == 0
        queue.ship(tmp_path / "ship", consumer="shipper")
        queue.trim()
        assert 300 < queue.head_sequence <= 600
        send(queue, 600, 1200)
        queue.trim()
        assert queue.head_sequence <= 600
        queue.ship(tmp_path / "ship", consumer="shipper")
        queue.trim()
        assert queue.head_sequence > 900
    assert read(tmp_path / "ship") == numbers(0, 1200)


def test_a_consumer_that_was_left_where_it_was_is_moved(queue: Queue, tmp_path: Path) -> None:
    """A shipper that died after its manifest, or had no consumer, does not hold retention up."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    report = queue.ship(tmp_path / "ship", consumer="shipper")
    assert (report.pages, report.end_sequence) == (0, 100)
    assert [info.next_sequence for info in queue.consumers()] == [100]


def test_a_damaged_page_is_not_shipped(queue: Queue, tmp_path: Path) -> None:
    """The pages before it are shipped; the error names the original, which needs the repair."""
    send(queue, 0, COUNT)
    flip(tmp_path / "q" / fmt.page_name("queue", 3), 500)
    with pytest.raises(errors.CorruptFrame, match=r"0000000003\.page") as caught:
        queue.ship(tmp_path / "ship")
    assert caught.value.sequence > 0
    with pytest.raises(errors.CorruptFrame):
        queue.ship(tmp_path / "ship")
    shipped = read(tmp_path / "ship")
    assert shipped == numbers(0, len(shipped))


def test_a_copy_that_differs_is_an_error(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again after the sync; a file that vanished later is reported as well."""
    send(queue, 0, 100)
    put = Target.put

    def spoilt(self: Target, name: str, *rest: object) -> object:
        done = put(self, name, *rest)  # type: ignore[arg-type]
        if name.endswith(".page"):
            flip(Path(self.folder.full(name + TEMPORARY)), 100)
        return done

    monkeypatch.setattr(Target, "put", spoilt)
    with pytest.raises(errors.CorruptPage, match="other bytes"):
        queue.ship(tmp_path / "ship")
    monkeypatch.undo()
    queue.ship(tmp_path / "ship")
    (tmp_path / "ship" / fmt.page_name("queue", 1)).unlink()
    with pytest.raises(errors.CorruptPage, match=r"missing, but [0-9]+ bytes in the manifest"):
        queue.ship(tmp_path / "ship")


def test_an_invalid_manifest_is_refused(queue: Queue, tmp_path: Path) -> None:
    """Whatever the files contain: a typed error, and no message is invented."""
    send(queue, 0, 100)
    queue.ship(tmp_path / "ship")
    path = tmp_path / "ship" / "queue-manifest.json"
    data = path.read_bytes()
    tried = [data[:at] + b"7" + data[at + 1 :] for at in range(0, len(data), 7)]
    tried += [b"", b"[]", b"{}", b"null", data[:-100], data * 2, b"[" * 100_000]
    for changed in tried:
        if changed != data:
            path.write_bytes(changed)
            with pytest.raises((errors.CorruptMeta, errors.NewerFormat)):
                Queue(tmp_path / "ship", read_only=True)
    path.write_bytes(data)
    assert read(tmp_path / "ship") == numbers(0, 100)


def test_a_manifest_that_lies_is_refused(queue: Queue, tmp_path: Path) -> None:
    """With a right checksum too: it must fit the other files, each number within its bounds."""
    send(queue, 0, COUNT)
    queue.ship(tmp_path / "ship")
    path = tmp_path / "ship" / "queue-manifest.json"
    data, right = path.read_bytes(), manifest_of(tmp_path / "ship")
    last, head = right.pages[-1], right.pages[:-1]
    pages = [
        replace(last, end_position=SMALL),
        replace(last, end_position=8),
        replace(last, end_sequence=last.end_sequence + 1000),
        replace(last, number=10**9),
        replace(last, first_sequence=last.first_sequence - 1),
        replace(last, file="../x.page"),
        replace(last, size_bytes=-1),
        replace(last, last_timestamp=2**63),
        replace(last, number=True),
        replace(last, crc32c="x"),
        replace(last, end_sequence="9"),
    ]
    lies = [replace(right, pages=(*head, page)) for page in pages]
    lies += [
        replace(right, queue_id="0" * 32),
        replace(right, page_bytes=2 * SMALL),
        replace(right, prefix="other"),
        replace(right, host=7),
        replace(right, pages=(last, last)),
        replace(right, page_bytes="1"),
    ]
    for lie in lies:
        path.write_bytes(lie.encode())
        with pytest.raises(errors.CorruptMeta):
            Queue(tmp_path / "ship", read_only=True)
    path.write_bytes(data)
    assert read(tmp_path / "ship") == numbers(0, COUNT)


# --- who dies -------------------------------------------------------------------------------------


def in_child(work: Callable[[], object]) -> int:
    """Do something in a child, which dies with it; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(7)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
def test_a_shipper_that_is_killed_anywhere_harms_no_replica(tmp_path: Path) -> None:
    """I20: readers see the earlier replica or all of the new one; the next call ships the rest.

    Killed before each of its system calls that change a file; no other file remains.
    """
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        send(queue, 0, 60)
        send(queue, 60, 100)
    calls = ("rename", "fsync", "pwrite", "unlink", "ftruncate")

    def ship_until(target: Path, limit: int) -> None:
        left = limit

        def killing(call: Callable[..., object]) -> Callable[..., object]:
            def counted(*args: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **named)

            return counted

        with Queue(tmp_path / "q") as queue:
            for name in calls:
                setattr(os, name, killing(getattr(os, name)))
            make = Directory.make
            Directory.make = killing(make)  # type: ignore[method-assign]
            queue.ship(target)

    seen = set()
    for limit in range(200):
        target = tmp_path / f"ship-{limit}"
        status = in_child(lambda target=target, limit=limit: ship_until(target, limit))  # type: ignore[misc]
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        try:
            found = read(target)
        except errors.QueueNotFound:
            found = []
        assert found in ([], numbers(0, 100))
        seen.add(len(found))
        with Queue(tmp_path / "q") as queue:
            report: ShipReport = queue.ship(target)
        assert report.end_sequence == 100
        assert read(target) == numbers(0, 100)
        assert not [name for name in os.listdir(target) if ".tmp" in name]
    else:
        pytest.fail("it never ended")
    assert seen == {0, 100}
    assert limit > 20


# --- the command ----------------------------------------------------------------------------------


def test_the_command_ships_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a sentence or as JSON; wrong usage is told as such."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        for number in range(10):
            producer.send(b"message %06d" % number)
    arguments = ["ship", str(tmp_path / "q"), "--to", str(tmp_path / "ship")]
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pages"] == 0
    assert cli.main([*arguments, "--rotate", "--consumer", "shipper", "--mode", "640"]) == 0
    assert "1 page, 10 messages" in capsys.readouterr().out
    assert read(tmp_path / "ship") == numbers(0, 10)
    assert cli.main([*arguments, "--read-only"]) == 0
    assert cli.main([*arguments, "--read-only", "--rotate"]) == 2
    assert cli.main([*arguments, "--mode", "x"]) == 2
    assert cli.main(["ship", str(tmp_path / "none"), "--to", str(tmp_path / "ship")]) == 1
    assert "no queue here" in capsys.readouterr().err
