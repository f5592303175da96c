"""The open directory: since and sequence search, flushing, full disks, two openers."""

from __future__ import annotations

import collections
import errno
import os
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support import LONG, Clock

from pagequeue import Queue, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plugin import Disk

WIDE = b"x" * 1300  # three fit into a page
UNUSED_BY_MUTEX_AT = 128 + 56


def times(queue: Queue, **where: object) -> list[tuple[int, int]]:
    """Return sequence and time of the messages of a replay."""
    return [(m.sequence, m.timestamp) for m in queue.replay(**where)]


@pytest.fixture
def history(disk: Disk) -> Disk:
    """Messages of many equal times over several pages: 100, 100, 200, 200, ... three a page."""
    disk.clock.now, disk.clock.step = 1, 0
    with disk.open() as queue, queue.producer() as producer:
        for number in range(20):
            producer.send(WIDE, timestamp=100 * (number // 2 + 1))
    return disk


EXPECTED = [(number, 100 * (number // 2 + 1)) for number in range(20)]
MOMENTS = [-(2**63) + 1, 0, 1, 99, 100, 101, 150, 300, 301, 899, 900, 901, 1000, 1001, 2**63 - 1]


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("since", MOMENTS)
@pytest.mark.parametrize("read_only", [True, False])
def test_since_gives_all_that_is_not_older(history: Disk, since: int, read_only: bool) -> None:
    """I6: inclusive, the first of equal times, over the pages' borders, and in the future none."""
    wanted = [item for item in EXPECTED if item[1] >= since]
    with history.open(read_only=read_only) as queue:
        assert times(queue, since=since) == wanted
        with queue.consumer(since=since) as consumer:
            assert consumer.sequence == (wanted[0][0] if wanted else 20)


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("until", MOMENTS)
def test_until_is_exclusive(history: Disk, until: int) -> None:
    """I1: what ends before a moment and what begins at it are together everything."""
    with history.open() as queue:
        before, after = times(queue, until=until), times(queue, since=until)
        assert before + after == EXPECTED
        assert times(queue, since=300, until=until) == [
            item for item in EXPECTED if 300 <= item[1] < until
        ]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("kind", ["missing", "short", "garbage", "zeros"])
@pytest.mark.parametrize("read_only", [True, False])
def test_since_is_right_with_any_contents_of_the_indexes(
    history: Disk, kind: str, read_only: bool
) -> None:
    """I6: rebuilt in place by a writer, privately by a reader."""
    paths = sorted(history.directory.glob("*.idx"))
    right = [path.read_bytes() for path in paths]
    for path, data in zip(paths, right, strict=True):
        if kind == "missing":
            path.unlink()
        else:
            spoilt = {"short": data[:20], "garbage": b"\x5a" * len(data), "zeros": bytes(len(data))}
            path.write_bytes(spoilt[kind])
    before = history.contents()
    with history.open(read_only=read_only) as queue:
        for since in MOMENTS:
            assert times(queue, since=since) == [item for item in EXPECTED if item[1] >= since]
        for sequence in range(21):
            assert times(queue, sequence=sequence) == EXPECTED[sequence:]
        assert queue.head_sequence == 0
    if read_only:
        assert history.contents() == before
    else:
        assert [path.read_bytes()[:24] for path in paths] == [data[:24] for data in right]


def test_clock_that_steps_back_changes_neither_order_nor_search(disk: Disk) -> None:
    """I1: the timestamp is never earlier than the last one."""
    clock = disk.clock
    clock.step = 0
    with disk.open() as queue, queue.producer() as producer:
        for now in (500, 600, 100, 0, 599, 601):
            clock.now = now
            producer.send(WIDE)
        assert times(queue) == [(0, 500), (1, 600), (2, 600), (3, 600), (4, 600), (5, 601)]
        assert [m[0] for m in times(queue, since=600)] == [1, 2, 3, 4, 5]
    clock.now = 7
    disk.send(b"after opening again")
    with disk.open() as queue:
        assert times(queue, since=601) == [(5, 601), (6, 601)]


def test_since_takes_datetimes_and_spans_of_the_queues_own_clock(disk: Disk) -> None:
    """I1: "that long ago" is counted from the clock that made the timestamps."""
    disk.clock = Clock(10**18)
    with disk.open() as queue, queue.producer() as producer:
        for minutes in range(4):
            disk.clock.now = 10**18 + minutes * 60 * 10**9
            producer.send(b"x")
        assert [s for s, _ in times(queue, since=timedelta(minutes=1))] == [2, 3]
        moment = datetime.fromtimestamp(10**9 + 60, UTC)
        assert [s for s, _ in times(queue, since=moment)] == [1, 2, 3]
        assert times(queue, since=timedelta(minutes=-1)) == []


def test_since_passes_over_pages_without_messages(disk: Disk) -> None:
    """I6: a page that was left before its first message does not end the search."""
    disk.clock.now, disk.clock.step = 1, 0
    with disk.open() as queue, queue.producer() as producer:
        for time in (100, 200):
            producer.send(b"x", timestamp=time)
            queue.rotate()
            producer._roll_from(queue._store.tail.page_number)  # an empty page is sealed
            producer._roll_from(queue._store.tail.page_number)
        assert queue.info().page_count == 7
        for since, wanted in ((0, [0, 1]), (100, [0, 1]), (101, [1]), (200, [1]), (201, [])):
            assert [s for s, _ in times(queue, since=since)] == wanted
        assert [s for s, _ in times(queue, sequence=1)] == [1]
        assert times(queue, sequence=2) == []
        with queue.consumer(since=201) as consumer:
            producer.send(b"y", timestamp=150 + 100)
            assert consumer.poll().sequence == 2
        assert queue.verify().ok


def test_empty_queue_has_no_message_since_any_time(disk: Disk) -> None:
    """I6: a search in an empty queue finds the place of the first message to come."""
    with disk.open() as queue, queue.producer() as producer:
        for since in (0, 2**63 - 1):
            with queue.consumer(since=since) as consumer:
                assert consumer.sequence == 0
        with queue.consumer(since=0) as consumer:
            producer.send(b"x")
            assert consumer.poll().payload == b"x"


def test_consumer_since_the_future_skips_earlier_messages(disk: Disk) -> None:
    """I1: `since` holds for messages that come later, too."""
    disk.clock.now, disk.clock.step = 1000, 0
    with (
        disk.open() as queue,
        queue.producer() as producer,
        queue.consumer(since=2000) as consumer,
    ):
        producer.send(b"early")
        assert consumer.poll() is None
        disk.clock.now = 2000
        producer.send(b"in time")
        assert consumer.poll().payload == b"in time"


def test_search_is_right_while_messages_are_published(disk: Disk) -> None:
    """I6: messages published during a search are after all earlier ones."""
    disk.clock = Clock(1, 1)
    failed: list[object] = []
    stop = threading.Event()

    def search() -> None:
        with disk.open(read_only=True) as reader:
            while not stop.is_set():
                tail = reader._store.tail
                if tail.sequence == 0:
                    continue
                since = max(tail.last_timestamp - 40, 0)
                first = next(reader.replay(since=since), None)
                if first is None or first.timestamp < since:
                    failed.append((since, first))
                elif first.sequence > 0:
                    before = next(reader.replay(sequence=first.sequence - 1))
                    if before.timestamp >= since:
                        failed.append((since, before, first))

    with disk.open() as queue, queue.producer() as producer:
        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(3000):
            producer.send(b"x" * 50)
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_sequence_outside_of_the_queue_is_an_error_with_its_bounds(history: Disk) -> None:
    """I1: the tail is the next sequence, and no message follows it."""
    with history.open() as queue:
        assert times(queue, sequence=20) == []
        with pytest.raises(errors.SequenceOutOfRange) as caught:
            queue.replay(sequence=21)
        assert (caught.value.head_sequence, caught.value.tail_sequence) == (0, 20)
        with pytest.raises(errors.SequenceOutOfRange):
            queue.consumer(sequence=-1)


def test_missing_page_in_the_middle_is_named(history: Disk) -> None:
    """I1: a hole is an error, never skipped."""
    history.page(3).unlink()
    with history.open() as queue, pytest.raises(errors.MissingPage) as caught:
        times(queue)
    assert caught.value.path == str(history.page(3))
    assert caught.value.position == 0


# --- flushing -------------------------------------------------------------------------------------


def test_flush_raises_the_mark_to_the_tail_of_all_producers(disk: Disk) -> None:
    """I5: a sync covers every producer's messages since the durable mark."""
    with (
        disk.open() as one,
        disk.open() as two,
        one.producer() as first,
        two.producer() as second,
    ):
        for producer in (first, second) * 5:
            producer.send(WIDE)
        assert one.durable_sequence == 0
        assert second.flush() == 10
        assert (one.durable_sequence, two.durable_sequence) == (10, 10)
        assert first.flush() == 10
        assert one._store.write_meta.durable_page == 4


def test_sync_that_fails_latches_the_queue_for_all(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: a failed sync is never retried; reading works."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with disk.open() as one, disk.open() as two:
        with one.producer() as first, two.producer() as second:
            first.send(b"x")
            monkeypatch.setattr(os, "fdatasync", failing)
            with pytest.raises(errors.SyncFailed) as caught:
                first.flush()
            monkeypatch.undo()
            assert caught.value.errno == errno.EIO
            assert one.durable_sequence == 0
            for call in (first.flush, second.flush, two.rotate, lambda: second.send(b"y")):
                with pytest.raises(errors.SyncFailed, match="repair the disk"):
                    call()
        assert [m.payload for m in two.replay()] == [b"x"]
        assert two.info().sync_failed


def test_flush_of_another_process_that_takes_too_long_is_a_timeout(disk: Disk) -> None:
    """I5: the message stays visible; the mark is not raised by guess."""
    with disk.open() as one, disk.open() as two, one.producer() as producer:
        producer.send(b"x")
        taken, ends = threading.Event(), threading.Event()

        def hold() -> None:
            with two._store.flusher.lock.exclusive(1, "testing"):
                taken.set()
                ends.wait(LONG)

        thread = threading.Thread(target=hold)
        thread.start()
        assert taken.wait(LONG)
        with pytest.raises(errors.FlushTimeout, match="call again"):
            producer.flush(timeout=0.02)
        assert one.durable_sequence == 0
        ends.set()
        thread.join()
        assert producer.flush(timeout=LONG) == 1


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(disk: Disk) -> Iterator[Disk]:
    """A queue on a file system of 384 KiB."""
    disk.directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=384k,mode=700", "none", str(disk.directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    disk.page_bytes = 65536
    yield disk
    subprocess.run(["umount", "-l", str(disk.directory)], check=True)


def test_full_disk_is_a_typed_error_and_loses_no_message(small_disk: Disk) -> None:
    """I10: no fault, no stray file, and sending works again when there is room."""
    payload = b"x" * 10000
    filler = small_disk.directory / "filler"
    with small_disk.open() as queue, queue.producer() as producer:
        filler.write_bytes(bytes(200_000))
        with pytest.raises(errors.DiskFull, match="make room") as caught:
            collections.deque(map(producer.send, [payload] * 100), maxlen=0)
        sent = queue.tail_sequence
        assert caught.value.errno == errno.ENOSPC
        assert sent >= 6
        assert not isinstance(caught.value, errors.DamageError)
        for call in (lambda: producer.send(payload), queue.rotate):
            with pytest.raises(errors.DiskFull):
                call()
        assert [m.payload for m in queue.replay()] == [payload] * sent
        assert producer.flush() == sent
        assert not list(small_disk.directory.glob("*.tmp-*"))
        pages = len(list(small_disk.directory.glob("*.page")))
        assert len(list(small_disk.directory.glob("*.idx"))) == pages
        filler.unlink()
        for number in range(sent, sent + 4):
            assert producer.send(payload) == number
        assert queue.verify().ok
    assert len(small_disk.payloads()) == sent + 4


def test_new_queue_on_a_full_disk_is_an_error_and_can_be_created_later(small_disk: Disk) -> None:
    """I10: what is half made is completed by the next opener."""
    filler = small_disk.directory / "filler"
    filler.write_bytes(bytes(370_000))
    for _ in range(2):
        with pytest.raises(errors.DiskFull):
            small_disk.open()
        assert not list(small_disk.directory.glob("*.tmp-*"))
    filler.unlink()
    small_disk.send(b"x")
    assert small_disk.payloads() == [b"x"]


def test_index_on_a_full_disk_does_not_stop_a_read_only_search(small_disk: Disk) -> None:
    """I6: a process without write permission keeps a rebuilt index private."""
    small_disk.clock.step = 1
    small_disk.send(b"a", b"b")
    small_disk.index(1).unlink()
    filler = small_disk.directory / "filler"
    filler.write_bytes(bytes(290_000))
    with small_disk.open(read_only=True) as queue:
        assert [m.payload for m in queue.replay(sequence=1)] == [b"b"]


# --- more than one opener -------------------------------------------------------------------------


def test_only_the_first_opener_recovers(disk: Disk) -> None:
    """I3: while one has it open, the shared words are left alone."""
    disk.send(b"x")
    with disk.open() as one:
        disk.poke(disk.path("writeMeta"), UNUSED_BY_MUTEX_AT, b"mark")
        with disk.open() as two:
            assert not two.recovery.scanned
            assert len(two) == len(one) == 1
        assert disk.path("writeMeta").read_bytes()[UNUSED_BY_MUTEX_AT:][:4] == b"mark"
    with disk.open():
        assert disk.path("writeMeta").read_bytes()[UNUSED_BY_MUTEX_AT:][:4] == bytes(4)


def test_queue_that_must_be_recovered_and_is_open_elsewhere_is_a_typed_error(disk: Disk) -> None:
    """I5: no process writes after a tail that was not checked."""
    disk.send(b"x")
    with disk.open():
        disk.cut_power()
        with pytest.raises(errors.LockTimeout, match="must be recovered"):
            disk.open(lock_timeout=0.1)


def test_opener_waits_only_so_long_for_a_recovery(disk: Disk) -> None:
    """A stopped recovery gives a typed error to the others."""
    disk.send(b"x")
    with disk.open() as queue:
        lock = queue._store._opening._locks[0]
        assert lock.try_exclusive()
        with pytest.raises(errors.LockTimeout, match="opening the queue"):
            disk.open(lock_timeout=0.02)


def test_read_only_needs_all_meta_files_and_creates_none(disk: Disk, tmp_path: Path) -> None:
    """Reading writes no byte."""
    disk.send(b"x")
    for name in ("allMeta", "writeMeta", "readMeta"):
        path = disk.path(name)
        path.rename(tmp_path / "aside")
        with pytest.raises(errors.CorruptMeta, match="missing"):
            disk.open(read_only=True)
        assert not path.exists()
        (tmp_path / "aside").rename(path)
    assert disk.payloads(read_only=True) == [b"x"]


def test_two_queues_in_one_directory_do_not_touch_each_other(disk: Disk) -> None:
    """Every name begins with its queue's prefix."""
    other = disk.directory / "queue-b-0000000002.page.tmp-next"
    disk.send(b"x")
    with disk.open(prefix="queue-b") as queue, queue.producer() as producer:
        producer.send(b"b")
        other.write_bytes(b"another process is creating this page right now")
        assert disk.payloads() == [b"x"]
        assert other.exists()
        assert [m.payload for m in queue.replay()] == [b"b"]
