"""Consumer and Replay: every message in order, each once, from any start."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import LONG, SMALL, SOON, WAITERS, Clock, flip, payloads, until

from pagequeue import (
    ClosedError,
    ConcurrentUse,
    CorruptFrame,
    InvalidOption,
    NothingReceived,
    Queue,
    Retention,
    SequenceOutOfRange,
    _core,
)
from pagequeue import format as fmt
from pagequeue.store.store import Store
from stress.tampering import overwrite

if TYPE_CHECKING:
    from pagequeue import Producer
    from pagequeue.store.store import Place

TIMESTAMP_AT = 8
"""Of a frame's timestamp in its header."""


@pytest.fixture
def producer(queue: Queue) -> Producer:
    """Return a producer of that queue."""
    return queue.producer()


def test_consumer_starts_at_the_earliest_message(queue: Queue, producer: Producer) -> None:
    """Without a start position, no retained message is missed."""
    producer.send_many([b"a", b"b"])
    consumer = queue.consumer()
    assert consumer.sequence == 0
    assert consumer.poll().payload == b"a"  # type: ignore[union-attr]
    assert consumer.receive(0).payload == b"b"
    assert consumer.poll() is None


def test_latest_begins_with_the_next_message_sent(queue: Queue, producer: Producer) -> None:
    """`latest` passes over all that is there."""
    producer.send(b"old")
    consumer = queue.consumer(latest=True)
    assert consumer.poll() is None
    producer.send(b"new")
    assert payloads(consumer.receive_many()) == [b"new"]


def test_sequence_begins_with_that_message(queue: Queue, producer: Producer) -> None:
    """Every message can be sought by its number, over pages; so can the one that comes next."""
    for i in range(60):
        producer.send(b"%d" % i + b"." * 300)
    for sequence in range(60):
        message = queue.consumer(sequence=sequence).receive(0)
        assert (message.sequence, int(message.payload.strip(b"."))) == (sequence, sequence)
    assert queue.consumer(sequence=60).poll() is None


def test_sequence_that_no_message_has_is_an_error_with_the_bounds(queue: Queue) -> None:
    """A consumer cannot wait for a message that is not the next one."""
    queue.producer().send(b"a")
    with pytest.raises(SequenceOutOfRange, match=f"{queue.directory}.*seek to 0 up to 1") as caught:
        queue.consumer(sequence=2)
    assert (caught.value.head_sequence, caught.value.tail_sequence) == (0, 1)


@pytest.mark.parametrize("spread", [1, 9, 60])
def test_since_is_inclusive_and_takes_the_first_of_equal_times(
    queue: Queue, producer: Producer, spread: int
) -> None:
    """I6: of runs of equal timestamps, also over page ends, `since` gives the first of the run."""
    for i in range(60):
        producer.send(b"." * 300, timestamp=1000 + i // spread * 10)
    for i in range(60):
        moment = 1000 + i // spread * 10
        assert queue.consumer(since=moment).receive(0).sequence == i // spread * spread
        assert queue.consumer(since=moment - 1).receive(0).sequence == i // spread * spread
    assert queue.consumer(since=1000 + 59 // spread * 10 + 1).poll() is None
    assert queue.consumer(since=-5).receive(0).sequence == 0


def test_since_takes_datetimes_and_spans(queue: Queue, producer: Producer, clock: Clock) -> None:
    """An aware datetime, a timedelta ago and ns name the same moment."""
    moment = datetime(2024, 5, 6, 7, 8, 9, 10, UTC)
    clock.now = int(moment.timestamp()) * 10**9 + 10_000
    producer.send(b"before", timestamp=clock.now - 1)
    producer.send(b"at")
    clock.now += 3_000_000_000
    for since in (moment, timedelta(seconds=3), moment.astimezone(None)):
        assert queue.consumer(since=since).receive(0).payload == b"at"
    assert queue.consumer(since=timedelta(0)).poll() is None


def test_since_in_the_future_skips_earlier_messages(queue: Queue, producer: Producer) -> None:
    """`since` holds also for messages that are sent later."""
    consumer = queue.consumer(since=5_000_000)
    producer.send(b"too early", timestamp=4_999_999)
    with pytest.raises(NothingReceived):
        consumer.receive(0)
    producer.send(b"at last", timestamp=5_000_000)
    assert consumer.receive(0).payload == b"at last"


def test_consumers_are_independent_of_each_other(queue: Queue, producer: Producer) -> None:
    """Fan-out: each consumer sees every message, at its own pace."""
    consumers = [queue.consumer() for _ in range(3)]
    seen: list[list[int]] = [[], [], []]
    for i in range(90):
        assert producer.send(b"." * 150) == i
        for pace, consumer in enumerate(consumers, 1):
            if i % pace == 0:
                message = consumer.poll()
                assert message is not None
                seen[pace - 1].append(message.sequence)
    for own, consumer in zip(seen, consumers, strict=True):
        while (message := consumer.poll()) is not None:
            own.append(message.sequence)
    assert seen == [list(range(90))] * 3


def test_poll_and_timeout_do_not_move_a_consumer(queue: Queue, producer: Producer) -> None:
    """A call without a message does not move the consumer."""
    consumer = queue.consumer()
    assert consumer.poll() is None
    for call in (lambda: consumer.receive(0), lambda: consumer.receive_many(5, timeout=0.01)):
        with pytest.raises(TimeoutError, match=f"{queue.directory}.*call again"):
            call()
    assert consumer.sequence == 0
    producer.send(b"a")
    assert consumer.receive(0).payload == b"a"


def test_receive_many_gives_consecutive_messages_up_to_the_limit(
    queue: Queue, producer: Producer
) -> None:
    """I1: batches of any size join without gap or overlap, whatever the pages."""
    for i in range(200):
        producer.send(b"%d" % i + b"." * (i * 37 % 400))
    for limit in (1, 2, 7, 1 << 20):
        consumer, seen = queue.consumer(), []
        while consumer.lag:
            batch = consumer.receive_many(limit, 0)
            assert 1 <= len(batch) <= limit
            seen += batch
        assert seen == list(queue.replay())
        assert [m.sequence for m in seen] == list(range(200))


def test_seek_moves_to_any_message(queue: Queue, producer: Producer) -> None:
    """Head, sequence, time and latest; a seek that fails leaves the consumer where it was."""
    for i in range(50):
        producer.send(b"." * 300, timestamp=i * 10)
    consumer = queue.consumer(latest=True)
    consumer.seek(sequence=33)
    assert consumer.receive(0).sequence == 33
    consumer.seek(since=95)
    assert consumer.receive(0).sequence == 10
    with pytest.raises(SequenceOutOfRange):
        consumer.seek(sequence=51)
    with pytest.raises(InvalidOption, match="one of them"):
        consumer.seek(sequence=1, latest=True)
    assert consumer.receive(0).sequence == 11
    consumer.seek()
    assert consumer.receive(0).sequence == 0
    consumer.seek(latest=True)
    assert consumer.poll() is None


def test_seek_forgets_the_since_of_an_earlier_one(queue: Queue, producer: Producer) -> None:
    """What a seek by time passed over can be sought by sequence."""
    consumer = queue.consumer(since=10**15)
    producer.send(b"a")
    consumer.seek(sequence=0)
    assert consumer.receive(0).payload == b"a"


def test_lag_counts_unreceived_messages(queue: Queue, producer: Producer) -> None:
    """Lag is tail minus place."""
    consumer = queue.consumer()
    assert consumer.lag == 0
    producer.send_many([b""] * 100)
    assert consumer.lag == 100
    consumer.receive_many(30)
    assert consumer.lag == 70


def test_iterating_waits_for_new_messages(queue: Queue, producer: Producer) -> None:
    """A for loop continues as long as messages arrive."""
    seen = []

    def read() -> None:
        for message in queue.consumer():
            seen.append(message.payload)
            if message.payload == b"last":
                break

    thread = threading.Thread(target=read)
    thread.start()
    for payload in (b"a", b"." * 4000, b"." * 4000, b"last"):
        producer.send(payload)
        time.sleep(0.005)
    thread.join(LONG)
    assert [len(payload) for payload in seen] == [1, 4000, 4000, 4]


def test_frame_without_commit_word_is_never_received(queue: Queue, producer: Producer) -> None:
    """I4: a producer that dies before the commit leaves no visible frame, and blocks none."""
    producer.send(b"a")
    tail = queue._store.tail
    page = Path(queue.directory) / fmt.page_name("queue", 1)
    overwrite(page, tail.position + 4, b"\xab" * 300)
    consumer = queue.consumer()
    assert payloads(consumer.receive_many()) == [b"a"]
    assert consumer.poll() is None
    producer.send(b"b")
    assert consumer.receive(0).payload == b"b"
    assert consumer.poll() is None
    assert queue.verify().ok


def test_damaged_frame_is_an_error_that_names_it_and_moves_no_consumer(
    queue: Queue, producer: Producer
) -> None:
    """I2: a frame with a wrong checksum is never returned; all frames before it are."""
    producer.send_many([b"a" * 8, b"b" * 8, b"c" * 8])
    page = Path(queue.directory) / fmt.page_name("queue", 1)
    position = fmt.PAGE_HEADER_BYTES + fmt.frame_bytes(8)
    flip(page, position + fmt.FRAME_HEADER_BYTES)
    consumer = queue.consumer()
    assert payloads(consumer.receive_many()) == [b"a" * 8]
    for call in (consumer.poll, lambda: consumer.receive(60), consumer.receive_many):
        with pytest.raises(CorruptFrame, match=r"its checksum is wrong: .*salvage") as caught:
            call()
        assert caught.value.path == str(page)
        assert (caught.value.position, caught.value.sequence) == (position, 1)
        assert consumer.sequence == 1
    consumer.seek(sequence=2)
    assert consumer.receive(0).payload == b"c" * 8


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("form", range(_core.CRC_BEST + 1))
@pytest.mark.parametrize("size", [0, 1, 8, 100, 143, 512, 513])
def test_batch_ends_before_a_damaged_frame_wherever_it_is(
    queue: Queue, producer: Producer, form: int, size: int
) -> None:
    """I2: frames of one size are checked four at a time, and each by its own checksum."""
    sent = [bytes([i]) * size for i in range(7)]
    producer.send_many(sent)
    page = Path(queue.directory) / fmt.page_name("queue", 1)
    _core.choose_crc(form)
    try:
        assert payloads(queue.consumer().receive_many()) == sent
        for damaged in range(1, 7):
            at = fmt.PAGE_HEADER_BYTES + damaged * fmt.frame_bytes(size)
            at += fmt.FRAME_HEADER_BYTES + size - 1 if size else TIMESTAMP_AT
            flip(page, at)
            assert payloads(queue.consumer().receive_many()) == sent[:damaged]
            flip(page, at)
    finally:
        _core.choose_crc(_core.CRC_BEST)


@pytest.mark.parametrize("limit", range(1, 12))
def test_batch_ends_at_each_bound_among_frames_of_one_size(
    queue: Queue, producer: Producer, limit: int
) -> None:
    """Those that are checked together with the last one come in the next batch."""
    sent = [b"%02d" % i for i in range(12)]
    for i, payload in enumerate(sent):
        producer.send(payload, timestamp=i)
    consumer = queue.consumer()
    assert payloads(consumer.receive_many(limit)) == sent[:limit]
    assert payloads(consumer.receive_many(100)) == sent[limit:]
    assert payloads(queue.between(0, limit)) == sent[:limit]
    assert [payloads(batch) for batch in queue.batches(until=limit)] == [sent[:limit]]


def is_waiting(queue: Queue) -> bool:
    """Whether a consumer has announced that it sleeps."""
    return queue._store.write_meta.region.load_half(WAITERS) == 1


def test_two_threads_in_one_consumer_is_an_error_for_the_second(
    queue: Queue, producer: Producer
) -> None:
    """A consumer belongs to one thread at a time; the first one is not disturbed."""
    consumer = queue.consumer()
    received = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(LONG)))
    thread.start()
    until(lambda: is_waiting(queue))
    for call in (consumer.poll, consumer.receive, consumer.receive_many, lambda: next(consumer)):
        with pytest.raises(ConcurrentUse, match=f"{queue.directory}.*each thread its own"):
            call()
    producer.send(b"a")
    thread.join()
    assert payloads(received) == [b"a"]
    assert consumer.poll() is None  # and now it is free again


def test_seek_while_another_thread_receives_is_an_error(queue: Queue, producer: Producer) -> None:
    """A consumer must not be moved while another thread waits in it."""
    producer.send_many([b"a", b"b"])
    consumer = queue.consumer(latest=True)
    received = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(LONG)))
    thread.start()
    until(lambda: is_waiting(queue))
    try:
        with pytest.raises(ConcurrentUse):
            consumer.seek()
    finally:
        producer.send(b"c")
        thread.join()
    assert payloads(received) == [b"c"]


@pytest.mark.parametrize("what", ["consumer", "queue"])
def test_closing_ends_a_receive_that_waits_in_another_thread(tmp_path: Path, what: str) -> None:
    """I7: no sleeper waits for ever, least of all on a handle that was closed."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    consumer = queue.consumer()
    ended: list[object] = []

    def read() -> None:
        try:
            ended.append(consumer.receive(timeout=SOON))
        except (ClosedError, TimeoutError) as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: is_waiting(queue))
    (consumer if what == "consumer" else queue).close()
    try:
        until(lambda: ended)
        assert isinstance(ended[0], ClosedError)
    finally:
        thread.join()
        queue.close()


def test_closed_consumer_raises(queue: Queue) -> None:
    """Every use after close raises one typed error; closing again raises none."""
    with queue.consumer() as consumer:
        pass
    consumer.close()
    for call in (
        consumer.poll,
        consumer.receive,
        consumer.receive_many,
        consumer.seek,
        lambda: next(consumer),
    ):
        with pytest.raises(ClosedError, match=f"{queue.directory}.*make another one"):
            call()


def test_read_only_consumer_follows_a_writer(queue: Queue, producer: Producer) -> None:
    """A reader without write permission sees each message soon after it was sent, over rolls."""
    with Queue(queue.directory, read_only=True) as reading:
        consumer = reading.consumer()
        for i in range(40):
            producer.send(b"." * 500)
            assert consumer.receive(5).sequence == i
        with pytest.raises(NothingReceived):
            consumer.receive(0.05)


def test_latest_begins_at_the_tail_though_retention_passes_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always a next message to come; a compaction beside it made this Expired."""
    retention = Retention(max_bytes=2 * SMALL)
    with (
        Queue(tmp_path / "q", page_bytes=SMALL, retention=retention) as queue,
        queue.producer() as producer,
    ):
        producer.send(b"a")
        real = Store._seek_sequence
        tails: list[int] = []

        def slow(store: Store, sequence: int) -> Place:
            tails.append(sequence)
            if len(tails) == 1:
                for _ in range(3):
                    producer.send(b"b")
                    queue.rotate()
                queue.trim()
            return real(store, sequence)

        monkeypatch.setattr(Store, "_seek_sequence", slow)
        with queue.consumer(latest=True) as consumer:
            assert consumer.sequence == queue.tail_sequence == 4
        assert tails == [1, 4]
