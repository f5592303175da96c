"""Publishing: all rows or none, once, concurrently with producers, through deaths and cuts."""

from __future__ import annotations

import errno
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import warm
from publishing_steps import LARGE_COUNT, PAGE_BYTES, SMALL_COUNT, Rows, publish, whole
from tiers import slow_but

import pagequeue.system.directory
from pagequeue import Queue, errors
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.meta.ledger import published_name, publishing_name, read_record, write_record
from stress.driver import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = pytest.mark.parametrize("count", [1, SMALL_COUNT, LARGE_COUNT, 5 * LARGE_COUNT])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of small pages, open for writing."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        yield queue


def payloads(queue: Queue) -> list[bytes]:
    """Return all payloads."""
    return [message.payload for message in queue.replay()]


@COUNTS
def test_published_rows_are_in_order_between_others(queue: Queue, count: int) -> None:
    """I1: sequences are consecutive; what is sent before and after stays around it."""
    rows = Rows("x", count)
    with queue.producer() as producer, BulkPublisher(queue._store) as ledger:
        producer.send(b"before")
        assert ledger.publish("w", 0, rows) == range(1, count + 1)
        assert producer.send(b"after") == count + 1
    assert payloads(queue) == [b"before", *rows.payloads, b"after"]
    assert queue.verify().problems == []
    assert queue.durable_sequence >= count + 1


@COUNTS
def test_a_piece_is_published_once(queue: Queue, count: int) -> None:
    """A piece that is in the ledger is not published again, also by another process's ledger."""
    with BulkPublisher(queue._store) as ledger:
        first = ledger.publish("w", 7, Rows("x", count))
        assert ledger.publish("w", 7, Rows("x", count)) == first
        second = ledger.publish("other", 7, Rows("y", count))
    assert publish(queue.directory, "x", 0, 1) == range(2 * count, 2 * count + 1)
    with BulkPublisher(queue._store) as ledger:
        assert ledger.done("w", 7) == first
        assert ledger.done("other", 7) == second
        assert ledger.done("w", 8) is None


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_times_are_kept(queue: Queue, count: int) -> None:
    """Rows with times of their own have them in frames and index."""
    first = 1_700_000_000_000_000_000
    with Queue(Path(queue.directory) / "old", page_bytes=PAGE_BYTES, clock=lambda: 5) as old:
        with BulkPublisher(old._store) as ledger:
            ledger.publish("w", 0, Rows("x", count, first))
        assert [m.timestamp for m in old.replay()] == list(range(first, first + count))
        assert old.times()[1].tolist() == list(range(first, first + count))
        assert old.verify().problems == []
        assert next(iter(old.replay(since=first + 3))).payload == b"x 000003"


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_times_before_the_last_one_are_refused(queue: Queue, count: int) -> None:
    """I1: timestamps never decrease; no such row is in the queue, and sending continues."""
    with queue.producer() as producer, BulkPublisher(queue._store) as ledger:
        producer.send(b"now")
        with pytest.raises(errors.TimestampOrder):
            ledger.publish("w", 0, Rows("x", count, 1000))
        assert ledger.done("w", 0) is None
        producer.send(b"on")
    assert payloads(queue) == [b"now", b"on"]
    assert queue.verify().problems == []


def test_a_message_larger_than_a_page_is_published_with_the_others(queue: Queue) -> None:
    """I23: it takes separate pages between those of the others."""
    rows = Rows("x", LARGE_COUNT)
    rows.payloads[3] = rows.payloads[-1] = bytes(3 * PAGE_BYTES)
    rows.frame_bytes += 6 * PAGE_BYTES
    with BulkPublisher(queue._store) as ledger:
        assert ledger.publish("w", 0, rows) == range(LARGE_COUNT)
    assert payloads(queue) == rows.payloads
    assert queue.verify().problems == []


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_producers_continue_during_publishing(queue: Queue, count: int) -> None:
    """I19: each publication is one run of sequences, whichever producers send meanwhile."""
    stop = threading.Event()
    sent: list[int] = []

    def send() -> None:
        with Queue(queue.directory) as other, other.producer() as producer:
            while not stop.is_set():
                sent.append(producer.send(b"live"))
                stop.wait(0.001)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for piece in range(10):
            with BulkPublisher(queue._store) as ledger:
                ledger.publish("w", piece, Rows(f"p{piece}", count))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    there = payloads(queue)
    assert len(there) == len(sent) + 10 * count
    assert all(whole(there, f"p{piece}", count) for piece in range(10))
    assert queue.verify().problems == []


def test_no_reader_sees_a_part(queue: Queue) -> None:
    """I19: a replay that begins at any moment has all rows of a publication or none."""
    stop = threading.Event()
    wrong: list[object] = []

    def poll() -> None:
        with Queue(queue.directory, read_only=True) as other:
            while not stop.is_set():
                there = payloads(other)
                if len(there) % LARGE_COUNT:
                    wrong.append(len(there))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for piece in range(15):
            with BulkPublisher(queue._store) as ledger:
                ledger.publish("w", piece, Rows("x", LARGE_COUNT))
    finally:
        stop.set()
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", slow_but(["alone"], ["alone", "live", "cut", "repair"]))
@pytest.mark.parametrize("count", slow_but([SMALL_COUNT], [SMALL_COUNT, LARGE_COUNT]))
def test_a_publisher_that_dies_at_any_step_leaves_all_or_none(kind: str, count: int) -> None:
    """I19: killed before or after each change of a file; the next process resolves it.

    Next is an opener that is alone, a producer that has the queue open, a repair, or a recovery
    after a cut; before these salvage copies all or none, and verify finds no problem.
    """
    script = Path(__file__).parents[1] / "support" / "publishing_steps.py"
    # In memory, where there is such a place: some thousand syncs, and no power is really cut.
    with tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
        done = warm.run(
            [sys.executable, str(script), directory, kind, str(count)],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 12


def test_an_entry_ahead_of_the_tail_is_taken_back(tmp_path: Path) -> None:
    """After a power cut that lost the rows, the ledger must not claim them."""
    from stress.tampering import pretend_power_cut  # noqa: PLC0415 - used here only

    directory = str(tmp_path / "q")
    publish(directory, "x", 0, SMALL_COUNT)
    publish(directory, "x", 1, SMALL_COUNT)
    with Queue(directory) as queue:
        folder = queue._store.folder
        (name,) = (n for n in folder.names() if n.startswith(published_name("queue", "")))
        entry = read_record(folder, name)
        assert entry is not None
        entry["done"][1][2] += 5
        write_record(folder, name, entry)
    pretend_power_cut(directory)
    with Queue(directory) as queue, BulkPublisher(queue._store) as ledger:
        assert ledger.done("steps", 0) == range(SMALL_COUNT)
        assert ledger.done("steps", 1) is None


def test_a_damaged_record_is_reported_and_repaired(queue: Queue) -> None:
    """An unreadable one is an error for its writer, a problem for verify, removed by repair."""
    folder = queue._store.folder
    write_record(folder, publishing_name("queue"), {"first_page": 2})
    path = Path(folder.full(publishing_name("queue")))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(errors.CorruptMeta, match="repair"), BulkPublisher(queue._store) as ledger:
        ledger.publish("w", 0, Rows("x", 1))
    assert [problem.file for problem in queue.verify().problems] == [str(path)]
    queue.repair()
    assert queue.verify().problems == []
    assert publish(queue.directory, "x", 0, 1) == range(1)


def test_publishers_wait_for_each_other(queue: Queue) -> None:
    """One at a time; who waits for too long gets a typed error."""
    with (
        Queue(queue.directory, lock_timeout=0.1) as other,
        BulkPublisher(queue._store),
        pytest.raises(errors.LockTimeout),
    ):
        BulkPublisher(other._store)


def test_files_of_dead_publishers_are_removed(queue: Queue) -> None:
    """After a publication the staging directory contains only the lock."""
    with BulkPublisher(queue._store) as ledger:
        ledger.publish("w", 0, Rows("x", LARGE_COUNT))
        assert [path.name for path in Path(ledger.path).iterdir()] == ["lock"]


@pytest.mark.parametrize("count", [SMALL_COUNT, LARGE_COUNT])
def test_records_of_another_size_are_refused(tmp_path: Path, count: int) -> None:
    """A queue with a dtype contains only its records, however they are published."""
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, dtype=[("n", "<i8")]) as queue,
        BulkPublisher(queue._store) as ledger,
    ):
        with pytest.raises(errors.RecordSize):
            ledger.publish("w", 0, Rows("longer", count))
        assert ledger.publish("w", 0, Rows("x", count)) == range(count)  # 8 bytes each
        assert queue.verify().problems == []


def test_creating_the_staged_directory_syncs_no_file_of_the_queue(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync of the queue's directory would stop the queue without need."""

    def fails(path: str) -> None:
        raise OSError(errno.EIO, "a sync failed", path)

    monkeypatch.setattr(pagequeue.system.directory, "sync_directory", fails)
    with BulkPublisher(queue._store) as publisher:
        monkeypatch.undo()
        assert publisher.publish("w", 0, Rows("x", 1)) == range(1)
