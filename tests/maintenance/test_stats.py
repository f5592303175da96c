"""Stats: depth, lag, ages and rates, read from what is there, without writing or counting."""

from __future__ import annotations

import dataclasses
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SMALL, Clock
from tiers import examples

from pagequeue import ClosedError, Queue, Retention, Stats, rates
from pagequeue.queue.queue import internals

SECOND = 10**9


def of(found: Stats, name: str) -> tuple[int | None, float | None, float | None]:
    """Return lag and ages of a consumer."""
    (consumer,) = [one for one in found.consumers if one.name == name]
    return consumer.lag, consumer.oldest_age, consumer.last_ack_age


def test_empty_queue_has_depth_and_no_ages(tmp_path: Path) -> None:
    """Absent values are None, not 0."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(7 * SECOND)) as queue:
        found = queue.stats()
    assert found.time == datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert (found.depth, found.tail_sequence, found.page_count) == (0, 0, 1)
    assert (found.oldest_age, found.newest_age, found.consumers) == (None, None, [])
    assert not found.sync_failed


def test_ages_are_those_of_messages_and_acknowledgements(tmp_path: Path) -> None:
    """By the queue's clock: of the first retained, the last sent, the first not acknowledged."""
    clock = Clock(0)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        queue.consumer("audit").close()
        with queue.producer() as producer:
            for number in range(10):
                clock.now = number * SECOND
                producer.send(b"." * 900)
        clock.now = 12 * SECOND
        with queue.consumer("billing") as consumer:
            consumer.receive_many(3)
            consumer.ack()
            clock.now = 20 * SECOND
            found = queue.stats()
            assert [one.is_open for one in found.consumers] == [False, True]
        assert (found.oldest_age, found.newest_age) == (20.0, 11.0)
        assert of(found, "audit") == (10, 20.0, None)
        assert of(found, "billing") == (7, 17.0, 8.0)
        clock.now = 5 * SECOND  # the clock was set back
        assert queue.stats().newest_age == 0.0
        assert of(queue.stats(), "billing") == (7, 2.0, 0.0)


def test_last_flush_is_when_any_process_last_flushed(tmp_path: Path) -> None:
    """By the clock of the queue that flushed; a flush with nothing to do is none."""
    clock = Clock(5 * SECOND)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        assert queue.stats().last_flush is None
        with queue.producer() as producer:
            producer.send(b"one")
            assert queue.stats().last_flush is None
            clock.now = 7 * SECOND
            producer.flush()
            clock.now = 9 * SECOND
            producer.flush()
        with Queue(tmp_path / "q", read_only=True, clock=clock) as reader:
            assert reader.stats().last_flush == datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
        with Queue(tmp_path / "q", sync="always", clock=lambda: 8 * SECOND) as other:
            other.producer().send(b"two")
        assert queue.stats().last_flush == datetime(1970, 1, 1, 0, 0, 8, tzinfo=UTC)
    with Queue(tmp_path / "q", clock=clock) as queue:  # it is in the file
        assert queue.stats().last_flush == datetime(1970, 1, 1, 0, 0, 8, tzinfo=UTC)
        meta = internals(queue).store.write_meta
        for nonsense in (2**64 - 1, 2**63, 0):
            meta.region.store(meta.FLUSHED_AT, nonsense)
            assert queue.stats().last_flush is None


def test_age_of_a_consumer_that_was_passed_is_that_of_the_head(tmp_path: Path) -> None:
    """Its oldest message is one that is still there."""
    clock = Clock(0)
    retention = Retention(max_bytes=3 * SMALL, keep_unacked=False)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock, retention=retention) as queue:
        queue.consumer("passed").close()
        with queue.producer() as producer:
            for number in range(40):
                clock.now = number * SECOND
                producer.send(b"." * 900)
        queue.trim()
        head = queue.head_sequence
        assert head > 0
        found = queue.stats()
        assert of(found, "passed") == (40, 39.0 - head, None)
        assert found.depth == 40 - head


def test_inspection_writes_no_byte(tmp_path: Path) -> None:
    """Neither from a queue opened read-only, nor from one that could write."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=SMALL) as queue:
        queue.consumer("billing").close()
        queue.producer().send_many([b"." * 900] * 4)
        queue.producer().send_many([b"." * 900] * 4)
        for reading in (queue, Queue(path, read_only=True)):
            before = {
                file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()
            }
            reading.stats()
            after = {
                file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()
            }
            assert after == before
        reading.close()


def test_reader_sees_the_same_as_the_writer(tmp_path: Path) -> None:
    """Stats come from the files."""
    clock = Clock(SECOND)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        queue.consumer("billing").close()
        queue.producer().send_many([b"." * 900] * 3)
        with Queue(tmp_path / "q", read_only=True, clock=clock) as reading:
            assert dataclasses.replace(reading.stats(), taken_at=0) == dataclasses.replace(
                queue.stats(), taken_at=0
            )


def test_watching_keeps_no_page_that_retention_took(tmp_path: Path) -> None:
    """A process that only polls keeps no file alive, whose space would not be freed."""
    retention = Retention(max_bytes=3 * SMALL)
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, retention=retention) as queue,
        Queue(tmp_path / "q", read_only=True) as watching,
    ):
        producer = queue.producer()
        for _ in range(20):
            producer.send_many([b"." * 900] * 4)
            watching.stats()
        queue.trim()
        watching.stats()
        watching._store.background.end()
        watching._store.background.await_end(10.0)
        head_page = watching._store.head[0]
        assert all(number >= head_page for number in watching._store.pages)
        maps = Path(f"/proc/{os.getpid()}/maps")
        if maps.exists():
            queue.close()
            assert "(deleted)" not in "".join(
                line for line in maps.read_text().splitlines(keepends=True) if str(tmp_path) in line
            )


def test_closed_queue_raises(tmp_path: Path) -> None:
    """The usual error."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    queue.close()
    with pytest.raises(ClosedError):
        queue.stats()


@settings(max_examples=examples(50))
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0.001, 10)), max_size=8
    )
)
def test_rates_are_differences_by_the_second(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, float]],
) -> None:
    """Against a model: messages sent and acknowledged between two samples, over their time."""
    with Queue(tmp_path_factory.mktemp("q"), page_bytes=SMALL) as queue:
        producer, consumer = queue.producer(), queue.consumer("billing")
        before = dataclasses.replace(queue.stats(), taken_at=0.0)
        for sent, wanted, seconds in steps:
            tail, place = queue.tail_sequence, consumer.sequence
            for _ in range(sent):
                producer.send(b"." * 700)
            for _ in range(min(wanted, consumer.lag)):
                consumer.receive(0)
            consumer.ack()
            after = dataclasses.replace(queue.stats(), taken_at=before.taken_at + seconds)
            found = rates(before, after)
            assert found.seconds == pytest.approx(seconds)
            assert found.sent == pytest.approx((queue.tail_sequence - tail) / seconds)
            acknowledged = (consumer.sequence - place) / seconds
            assert found.acknowledged == pytest.approx({"billing": acknowledged})
            assert (found.written_bytes > 0) == (sent > 0)
            assert found.removed == 0
            before = after


def test_rates_of_consumers_that_come_and_go(tmp_path: Path) -> None:
    """A consumer in both samples has a rate; one that sought back has a negative one."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"x"] * 10)
        consumer = queue.consumer("billing")
        consumer.receive_many(10)
        consumer.ack()
        queue.consumer("gone").close()
        before = queue.stats()
        queue.remove_consumer("gone")
        queue.consumer("new").close()
        consumer.seek(sequence=4)
        after = dataclasses.replace(queue.stats(), taken_at=before.taken_at + 2)
        assert rates(before, after).acknowledged == {"billing": -3.0}


@pytest.mark.slow
def test_inspection_while_others_send_and_trim(tmp_path: Path) -> None:
    """No sample fails or contradicts itself, whatever runs concurrently."""
    retention = Retention(max_bytes=4 * SMALL, max_age=timedelta(hours=1))
    ended = threading.Event()

    def send() -> None:
        with Queue(tmp_path / "q", retention=retention) as own, own.producer() as producer:
            for number in range(3000):
                producer.send(b"." * (number % 900))
        ended.set()

    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        thread = threading.Thread(target=send)
        thread.start()
        before = queue.stats()
        while not ended.is_set():
            found = queue.stats()
            assert found.depth == found.tail_sequence - found.head_sequence >= 0
            assert found.tail_sequence >= before.tail_sequence
            assert found.written_bytes >= before.written_bytes
            assert rates(before, found).sent >= 0
            before = found
        thread.join()
        assert queue.stats().tail_sequence == 3000
