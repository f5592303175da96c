"""Producer: sends in order and atomically, rolls, and makes messages durable."""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import resource
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import SMALL, Clock, end, files, hold_file_lock, payloads, ready, start

from pagequeue import (
    DiskFull,
    InvalidOption,
    LockTimeout,
    Queue,
    ReadOnlyQueue,
    TimestampOrder,
    merge,
)
from pagequeue import format as fmt
from pagequeue.util.arguments import UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


UNITS_OF_NUMPY = {"microseconds": "us", "milliseconds": "ms", "seconds": "s"}


def test_sequences_are_consecutive_from_zero_over_all_producers(queue: Queue) -> None:
    """I1: every message, by whichever producer and call, takes the next sequence."""
    with queue.producer() as one, queue.producer() as two:
        assert one.send(b"a") == 0
        assert two.send(b"b") == 1
        assert one.send_many([b"c", b"d", b"e"]) == range(2, 5)
        assert two.send(b"f") == 5
    assert [(m.sequence, m.payload) for m in queue.replay()] == list(
        enumerate([b"a", b"b", b"c", b"d", b"e", b"f"])
    )


def test_sequences_stay_consecutive_when_pages_roll(queue: Queue) -> None:
    """I1: a roll leaves no gap, and every producer follows to the page that another rolled to."""
    with queue.producer() as one, queue.producer() as two:
        for i in range(0, 120, 3):
            assert one.send(b"%d" % i + b"." * 200) == i
            assert two.send_many([b"%d" % j + b"." * 150 for j in (i + 1, i + 2)]) == range(
                i + 1, i + 3
            )
    assert queue.info().page_count > 4
    assert [int(m.payload.strip(b".")) for m in queue.replay()] == list(range(120))
    assert queue.verify().ok


@pytest.mark.parametrize(
    "payload",
    [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"-view-")[1:5],
        array.array("i", [1, 2, 3]),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.float64(1.5),
        b"",
        bytes(range(256)),
        b"\0" * 64,
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_any_contiguous_bytes_like_is_sent_as_its_bytes(queue: Queue, payload: Any) -> None:  # noqa: ANN401
    """What comes out is `bytes(memoryview(payload))`, alone and inside a batch."""
    expected = memoryview(payload).tobytes()
    with queue.producer() as producer:
        producer.send(payload)
        producer.send_many([b"first", payload, payload])
    assert payloads(queue.replay()) == [expected, b"first", expected, expected]


def test_a_map_can_be_sent_and_its_buffer_is_released(queue: Queue) -> None:
    """Sending holds a buffer no longer than the call, whether it succeeds or not."""
    with queue.producer() as producer:
        shared = mmap.mmap(-1, 4096)
        producer.send(memoryview(shared)[:10])
        grown = bytearray(b"abc")
        producer.send(grown)
        producer.send_many([grown, grown])
        with pytest.raises(TypeError):
            producer.send_many([grown, "text"])  # type: ignore[list-item]
        with pytest.raises(TimestampOrder):
            producer.send(grown, timestamp=1)
        grown.append(4)
        shared.close()


def test_payload_may_be_changed_after_it_was_sent(queue: Queue) -> None:
    """A send copies."""
    payload = bytearray(b"before")
    with queue.producer() as producer:
        producer.send(payload)
        payload[:] = b"after!"
    assert payloads(queue.replay()) == [b"before"]


def test_timestamp_is_the_clock_but_never_decreases(queue: Queue, clock: Clock) -> None:
    """I1: a clock that steps back leaves the last timestamp standing."""
    with queue.producer() as producer:
        for now in (100, 200, 150, 0, 201):
            clock.now = now
            producer.send(b"")
    assert [m.timestamp for m in queue.replay()] == [100, 200, 200, 200, 201]


def test_timestamp_of_history_is_taken_as_it_is(queue: Queue, clock: Clock) -> None:
    """An explicit timestamp equal to the last one or later is stored, also ahead of the clock."""
    clock.now = 50
    with queue.producer() as producer:
        for timestamp in (0, 0, 7, 10**18, None):
            producer.send(b"", timestamp=timestamp)
    assert [m.timestamp for m in queue.replay()] == [0, 0, 7, 10**18, 10**18]


def test_timestamp_earlier_than_the_last_is_refused_and_no_message_is_sent(queue: Queue) -> None:
    """I1: timestamps never decrease, and the error carries the last one."""
    with queue.producer() as producer:
        producer.send(b"kept", timestamp=10**9)
        with pytest.raises(TimestampOrder, match=r"999999999 .* 1000000000.*: send") as caught:
            producer.send(b"lost", timestamp=10**9 - 1)
        assert caught.value.last_timestamp == 10**9
        assert producer.send(b"next", timestamp=10**9) == 1
    assert payloads(queue.replay()) == [b"kept", b"next"]


@pytest.mark.parametrize("page_bytes", [SMALL, 3 * SMALL, 1 << 20])
def test_larger_message_takes_several_pages(tmp_path: Path, page_bytes: int) -> None:
    """`payload_bytes_max` bytes fit into a page; a byte more is a large message."""
    limit = fmt.payload_bytes_max(page_bytes)
    largest = bytes(i * 7 & 0xFF for i in range(256)) * (limit // 256 + 1)
    sizes = [5, limit, limit - 1, limit, limit + 1, 1, limit + 1, 5]
    with Queue(tmp_path / "q", page_bytes=page_bytes) as queue, queue.producer() as producer:
        for size in sizes[:5]:
            producer.send(largest[:size])
        producer.send_many([largest[:size] for size in sizes[5:]])
        assert payloads(queue.replay()) == [largest[:size] for size in sizes]
        assert queue.last(2)[0].payload == largest[: limit + 1]
        assert queue.verify().ok


def test_batch_larger_than_a_page_is_whole(queue: Queue) -> None:
    """I8, I19: a batch that fills a page is one batch of frames; a larger one takes pages."""
    room = SMALL - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
    each = room // 2 - fmt.FRAME_HEADER_BYTES
    most = fmt.index_capacity(SMALL)
    with queue.producer() as producer:
        producer.send_many([b"a" * each, b"b" * each])
        producer.send_many([b"a" * each, b"b" * (each + 1)])
        producer.send_many([b""] * most)
        producer.send_many([b""] * (most + 1))
    assert len(queue) == 4 + 2 * most + 1
    assert queue.verify().ok


def test_batch_that_does_not_fit_after_others_is_written_whole_to_the_next_page(
    queue: Queue,
) -> None:
    """I8: a batch never spans two pages."""
    with queue.producer() as producer:
        producer.send(b"." * 3000)
        producer.send_many([b"x" * 1000, b"y" * 1000])
    consumer = queue.consumer(sequence=1)
    assert payloads(consumer.receive_many()) == [b"x" * 1000, b"y" * 1000]
    assert queue.info().page_count == 2


def test_empty_batch_sends_no_message(queue: Queue) -> None:
    """No payloads is an empty range at the tail."""
    with queue.producer() as producer:
        producer.send(b"a")
        assert producer.send_many([]) == range(1, 1)
        assert producer.send_many(iter(())) == range(1, 1)
    assert len(queue) == 1


def test_batch_from_a_generator_that_fails_sends_no_message(queue: Queue) -> None:
    """I8: a batch is atomic, also when creating its payloads fails."""

    def items() -> Iterator[bytes]:
        yield b"a"
        raise KeyError

    with queue.producer() as producer:
        with pytest.raises(KeyError):
            producer.send_many(items())
        assert producer.send(b"only") == 0


def test_messages_of_a_batch_share_one_timestamp(queue: Queue, clock: Clock) -> None:
    """A batch is one moment."""
    with queue.producer() as producer:
        producer.send_many([b"a", b"b"])
        clock.now += 5
        producer.send_many([b"c", b"d"])
    first = clock.now - 5
    assert [m.timestamp for m in queue.replay()] == [first, first, first + 5, first + 5]


def test_clock_that_fails_or_returns_invalid_values_sends_no_message(tmp_path: Path) -> None:
    """An injected clock's error is raised; a time before 1970 or of another type is an error."""
    answers: list[Any] = [5, ZeroDivisionError(), -5, "noon", 6]

    def clock() -> Any:  # noqa: ANN401
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    Queue(tmp_path / "q", page_bytes=SMALL).close()
    with Queue(tmp_path / "q", clock=clock) as queue, queue.producer() as producer:
        producer.send(b"a")
        for kind in (ZeroDivisionError, ValueError, TypeError):
            with pytest.raises(kind):
                producer.send(b"lost")
        producer.send(b"b")
    with Queue(tmp_path / "q") as queue:
        assert [(m.payload, m.timestamp) for m in queue.replay()] == [(b"a", 5), (b"b", 6)]


def test_threads_share_a_producer(queue: Queue) -> None:
    """I1: four threads through one producer: every message once, each thread's own in order."""
    producer = queue.producer()

    def send(name: int) -> None:
        for i in range(300):
            producer.send(b"%d %d" % (name, i))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [tuple(map(int, payload.split())) for payload in payloads(queue.replay())]
    assert sorted(seen) == [(name, i) for name in range(4) for i in range(300)]
    for name in range(4):
        assert [i for who, i in seen if who == name] == list(range(300))


def test_rotate_seals_the_page_and_every_producer_continues_after_it(queue: Queue) -> None:
    """A rotation takes effect at once; an empty page is not rotated."""
    with queue.producer() as one, queue.producer() as two:
        one.rotate()
        assert queue.info().tail_page == 1
        one.send(b"a")
        one.rotate()
        one.rotate()
        assert queue.info().tail_page == 2
        assert two.send(b"b") == 1
    assert payloads(queue.replay()) == [b"a", b"b"]
    assert queue.verify().ok


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Limit the file sizes of this process to 0, so that no file can be created or grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_end_of_page_marker_is_published_only_when_the_next_page_exists_on_disk(
    queue: Queue,
) -> None:
    """I10: without space for the next page no byte changes; with space, sending works again."""
    with queue.producer() as producer:
        producer.send(b"." * 3000)
        before = files(queue.directory)
        large = b"x" * 3000
        for call in (lambda: producer.send(large), producer.rotate, queue.rotate):
            with no_room(), pytest.raises(DiskFull, match="raise the limit of 0 bytes") as caught:
                call()
            assert queue.directory in str(caught.value)
            assert caught.value.errno == errno.EFBIG
        assert files(queue.directory) == before
        consumer = queue.consumer()
        assert len(consumer.receive(0).payload) == 3000
        assert consumer.poll() is None
        assert producer.send(b"small") == 1
        assert producer.send(b"x" * 3000) == 2
        assert payloads(consumer.receive_many()) == [b"small"]
        assert queue.verify().ok


def test_page_that_another_process_creates_for_too_long_is_a_lock_timeout(queue: Queue) -> None:
    """A process stopped while it creates a page blocks others only until their timeout."""
    with Queue(queue.directory, lock_timeout=0.3) as hasty, hasty.producer() as producer:
        producer.send(b"." * 3000)
        holder = start(hold_file_lock.__name__, f"{queue.directory}/queue-allMeta")
        try:
            ready(holder)
            with pytest.raises(LockTimeout, match=r"queue-allMeta.*making the next page.*again"):
                producer.send(b"x" * 3000)
        finally:
            end(holder)
        assert producer.send(b"x" * 3000) == 1
    assert queue.verify().ok


def test_read_only_queue_has_no_producer(queue: Queue) -> None:
    """Who opened to read cannot send or rotate, and is told how to."""
    with Queue(queue.directory, read_only=True) as reading:
        for call in (reading.producer, reading.rotate):
            with pytest.raises(ReadOnlyQueue, match=f"{queue.directory}.*open it for writing"):
                call()


def test_payload_that_changes_while_it_is_sent_is_still_a_whole_frame(tmp_path: Path) -> None:
    """I2: the checksum covers the bytes written, even if another thread changes the buffer."""
    payload = bytearray(1 << 20)  # large enough to be sent without the GIL
    stop = threading.Event()

    def scribble() -> None:
        value = 0
        while not stop.is_set():
            value = (value + 1) % 256
            payload[:] = bytes([value]) * len(payload)

    thread = threading.Thread(target=scribble)
    with Queue(tmp_path / "q", page_bytes=4 << 20) as queue, queue.producer() as producer:
        thread.start()
        for _ in range(60):
            producer.send(memoryview(payload))
            producer.send_many([memoryview(payload)] * 2)
        stop.set()
        thread.join()
        assert len(list(queue.replay())) == 180


@pytest.mark.parametrize("unit", UNITS)
def test_times_in_another_unit_are_refused_and_no_message_is_sent(
    tmp_path: Path, unit: str
) -> None:
    """`int(time.time())` taken for ns would be a message of 1970, which no `since` finds."""
    number = 1_700_000_000_123_456_789 // UNITS[unit]
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        for call in (
            lambda: producer.send(b"x", timestamp=number),
            lambda: producer.send_many([b"x"], timestamps=[number]),
            lambda: producer.send_many([b"x"], timestamps=np.array([number])),
            lambda: producer.open(timestamp=number),
            lambda: queue.publish("w", 0, [b"x"], timestamps=[number]),
            lambda: queue.replay(since=number),
            lambda: queue.consumer(since=number),
            lambda: queue.consumer().seek(since=number),
            lambda: queue.group("g", since=number),
            lambda: queue.between(0, number),
            lambda: queue.times(until=number),
            lambda: queue.as_of(number),
            lambda: queue.as_of([number]),
            lambda: merge([queue], since=number),
        ):
            with pytest.raises(InvalidOption, match=f"as {unit} 2023-11-14: give {number}0+ "):
                call()
        assert queue.tail_sequence == 0
        moment = np.array([number], f"datetime64[{UNITS_OF_NUMPY[unit]}]")
        assert producer.send_many([b"x"], timestamps=moment) == range(1)
        assert queue.last(1)[0].time.year == 2023
