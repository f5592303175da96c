"""What survives a power cut, by what was asked for: sync modes, group commit, durable consumers."""

from __future__ import annotations

import errno
import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support import LONG, end, hold_file_lock, payloads, ready, start, until, until_asleep

from pagequeue import FlushTimeout, InvalidOption, NothingReceived, Queue, SyncFailed
from stress.flush_cost import LIMIT_BYTES, bytes_per_flush, is_counted

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue.store.flush import Flusher

SMALL = 65536


def count_syncs(flusher: Flusher, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the tail's sequence at each sync."""
    syncs: list[int] = []
    sync = flusher._sync_to_tail

    def counted() -> None:
        syncs.append(flusher._write_meta.tail.sequence)
        sync()

    monkeypatch.setattr(flusher, "_sync_to_tail", counted)
    return syncs


def test_without_sync_no_flush_is_implicit(tmp_path: Path) -> None:
    """I5: "none" guarantees survival of a kill only, and closing does not flush either."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"x")
        assert queue.durable_sequence == 0
    with Queue(tmp_path / "q") as queue:
        assert queue.durable_sequence == 0


def test_always_means_durable_when_send_returns(tmp_path: Path) -> None:
    """I5: each send, and each batch as one."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL, sync="always")
    with queue, queue.producer() as producer:
        for number in range(3):
            producer.send(b"x")
            assert queue.durable_sequence == number + 1
        producer.send_many([b"y"] * 10)
        assert queue.durable_sequence == 13


def test_every_so_many_messages_of_a_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: at most N - 1 messages of a producer are not yet durable; a batch counts in full."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync=5) as queue, queue.producer() as producer:
        syncs = count_syncs(queue._store.flusher, monkeypatch)
        for _ in range(12):
            producer.send(b"x")
        assert syncs == [5, 10]
        producer.send_many([b"y"] * 7)
        assert syncs == [5, 10, 19]


def test_flush_on_a_later_page_writes_little_more_than_was_sent(on_disk: Path) -> None:
    """A fast producer that flushes often gets pages without large folios, which go out whole."""
    if not is_counted(on_disk):
        pytest.skip("the kernel does not count what is written to this file system")
    found = list(bytes_per_flush(on_disk / "q"))
    assert len(found) == 2
    assert min(found) <= LIMIT_BYTES  # the kernel adds to some, on a busy machine


def test_within_a_time(tmp_path: Path) -> None:
    """I5: all messages older than the timedelta are durable, without a call to flush."""
    sync = timedelta(milliseconds=40)
    with Queue(tmp_path / "q", page_bytes=SMALL, sync=sync) as queue:
        with queue.producer() as producer:
            producer.send(b"x")
            until(lambda: queue.durable_sequence == 1)
        thread = queue._store.flusher._timer
        assert thread is not None
    assert not thread.is_alive()


def test_closing_flushes_unless_sync_is_none(tmp_path: Path) -> None:
    """I5: after a clean close the next opener has no frames to check."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync=1000) as queue:
        with queue.producer() as producer:
            producer.send(b"x")
        assert queue.durable_sequence == 0
    with Queue(tmp_path / "q") as queue:
        assert queue.durable_sequence == 1


@pytest.mark.parametrize("sync", ["sometimes", 0, -1, timedelta(0), timedelta(-1)])
def test_invalid_sync_is_an_error_before_any_file_is_created(tmp_path: Path, sync: object) -> None:
    """The error has the remedy, and no directory is created."""
    with pytest.raises(InvalidOption, match="give"):
        Queue(tmp_path / "q", sync=sync)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("sync", [None, 1.5, True, [1]])
def test_sync_of_another_type_is_a_type_error(tmp_path: Path, sync: object) -> None:
    """The same, by its kind."""
    with pytest.raises(TypeError):
        Queue(tmp_path / "q", sync=sync)


def test_flushers_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: all callers that wait during a sync are covered by the next one, together."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        flusher = queue._store.flusher
        syncs: list[int] = []
        first_is_in, go_on = threading.Event(), threading.Event()
        sync = flusher._sync_to_tail

        def slow() -> None:
            syncs.append(flusher._write_meta.tail.sequence)
            sync()
            if len(syncs) == 1:
                first_is_in.set()
                assert go_on.wait(LONG)

        monkeypatch.setattr(flusher, "_sync_to_tail", slow)
        producer.send(b"x")
        threads = [threading.Thread(target=producer.flush)]
        threads[0].start()
        assert first_is_in.wait(LONG)
        for _ in range(8):
            producer.send(b"x")
            threads.append(threading.Thread(target=producer.flush))
            threads[-1].start()
        for thread in threads:
            until_asleep(thread)
        go_on.set()
        for thread in threads:
            thread.join()
        assert syncs == [1, 9]


def test_durable_consumer_waits_for_the_flush(tmp_path: Path) -> None:
    """I5, I7: it receives no message that a power cut could undo, and the flush wakes it."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        consumer = queue.consumer(durable_only=True)
        producer.send_many([b"a", b"b"])
        assert consumer.poll() is None
        with pytest.raises(NothingReceived):
            consumer.receive_many(timeout=0.02)
        timer = threading.Timer(0.05, producer.flush)
        timer.start()
        assert consumer.receive(timeout=LONG).payload == b"a"
        timer.join()
        producer.send(b"c")
        assert consumer.receive_many(10, timeout=0).payloads == [b"b"]
        queue.rotate()
        producer.send(b"d")
        assert consumer.poll() is None
        producer.flush()
        assert [consumer.receive(0).payload for _ in range(2)] == [b"c", b"d"]


def test_send_whose_sync_fails_raises_and_the_queue_is_latched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: "always" never returns from a send that is not durable."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL, sync="always")
    producer = queue.producer()
    producer.send(b"x")

    def failing(_: int) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(SyncFailed):
        producer.send(b"y")
    monkeypatch.undo()
    with pytest.raises(SyncFailed):
        producer.send(b"z")
    with pytest.raises(SyncFailed):
        queue.close()
    with Queue(tmp_path / "q", read_only=True) as reading:
        assert [m.payload for m in reading.replay()] == [b"x", b"y"]
        assert reading.durable_sequence == 1


def test_index_that_is_missing_does_not_keep_a_flush_from_its_work(tmp_path: Path) -> None:
    """I6: it is only a hint, and made again when it is needed."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"a" * 3000)
        producer.send(b"b" * 3000)
        (tmp_path / "q" / "queue-0000000001.idx").unlink()
        assert producer.flush() == 2
        assert queue.consumer(sequence=1).receive(0).payload == b"b" * 3000


def test_flush_waits_for_the_one_that_is_under_way(tmp_path: Path) -> None:
    """I5: without a timeout, however long that takes, and asleep."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as one, Queue(tmp_path / "q") as two:
        one.producer().send(b"a")
        with one._store.flusher.lock.attempt("testing") as taken:
            assert taken
            thread = threading.Thread(target=two.producer().flush)
            thread.start()
            until_asleep(thread)
        thread.join(LONG)
        assert not thread.is_alive()
        assert one.durable_sequence == 1


# --- by hand --------------------------------------------------------------------------------------


def test_flush_returns_the_durable_sequence(queue: Queue) -> None:
    """I5: the mark is where the tail was, over pages and producers, and never moves back."""
    with queue.producer() as one, queue.producer() as two:
        assert one.flush() == 0
        one.send(b"a")
        assert queue.durable_sequence == 0
        assert two.flush() == 1 == queue.durable_sequence
        two.send_many([b"." * 900] * 4)
        two.send_many([b"." * 900] * 4)
        assert queue.durable_sequence == 1
        assert one.flush(timeout=60) == 9
        assert one.flush() == 9
    assert queue.durable_sequence == 9


def test_flush_waiting_for_a_hanging_flush_times_out(queue: Queue) -> None:
    """A stopped flusher delays others only up to their timeout, and sending works."""
    with queue.producer() as producer:
        producer.send(b"a")
        holder = start(hold_file_lock.__name__, f"{queue.directory}/queue-readMeta")
        try:
            ready(holder)
            with pytest.raises(FlushTimeout, match=r"0\.1 s: call again"):
                producer.flush(timeout=0.1)
            producer.send(b"b")
            assert queue.durable_sequence == 0
        finally:
            end(holder)
        assert producer.flush(timeout=5) == 2


def test_failed_sync_latches_the_queue_for_all_writers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: after a failed sync no write or sync follows; reading works."""
    tries = []

    def fail(_folder: object) -> None:
        tries.append(1)
        raise OSError(errno.EIO, "Input/output error")

    with queue.producer() as producer, Queue(queue.directory) as other:
        producer.send(b"a")
        producer.rotate()
        producer.send(b"b")
        monkeypatch.setattr("pagequeue.system.directory.Directory.sync", fail)
        with pytest.raises(SyncFailed, match="repair the disk") as caught:
            producer.flush()
        assert caught.value.errno == errno.EIO
        second = other.producer()
        for call in (
            producer.flush,
            second.flush,
            lambda: producer.send(b"c"),
            lambda: second.send_many([b"c", b"d"]),
            lambda: producer.send(b"x" * 4000),
            other.rotate,
        ):
            with pytest.raises(SyncFailed):
                call()
        assert len(tries) == 1
        assert other.durable_sequence == 0
        assert other.info().sync_failed
        assert payloads(other.replay()) == [b"a", b"b"]


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_sync_beside_another_process_whose_sync_fails_proves_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """I5: the failed one can have dropped what this one then left out."""
    real = getattr(os, call)
    with queue.producer() as producer, Queue(queue.directory) as other:
        producer.send(b"a")
        producer.rotate()
        producer.send(b"b")

        def failing_elsewhere(number: int) -> None:
            real(number)
            other._store.write_meta.latch(errno.EIO, 1)

        monkeypatch.setattr(os, call, failing_elsewhere)
        with pytest.raises(SyncFailed):
            producer.flush()
        assert queue.durable_sequence == 0
