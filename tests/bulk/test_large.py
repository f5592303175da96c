"""Messages larger than a page, and batches of many pages: one message, whole or not at all."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
from array import array
from collections import deque
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loops
import numpy as np
import pytest
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    AROUND_LARGE,
    SOON,
    die_behind_the_marker,
    die_while_sending_large,
    lettered,
    printed,
    until,
)
from tiers import examples, slow_but

from pagequeue import (
    ClosedError,
    CorruptFrame,
    DamageError,
    Expired,
    MessageTooLarge,
    NothingReceived,
    Overtaken,
    Queue,
    QueueFull,
    RecordSize,
    Retention,
    TimestampOrder,
    _core,
    merge,
)
from pagequeue import format as fmt
from pagequeue.bulk import filled_pages, publisher, staged_pages
from pagequeue.integrity.salvage import salvage_queue
from pagequeue.integrity.verify import verify_queue
from pagequeue.page.large_message import LargeMessage
from pagequeue.page.page import map_file, private_region
from pagequeue.queue.queue import internals
from pagequeue.send.queue_end import QueueEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.producer.payload_file import PayloadWriter
    from pagequeue.types import Sync

PAGE_BYTES = 1 << 14
LIMIT = fmt.payload_bytes_max(PAGE_BYTES)


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that do not repeat."""
    return random.Random(seed).randbytes(size)


BIG = noise(20 * PAGE_BYTES + 77)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of small pages, open for writing."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        yield queue


def payloads(queue: Queue) -> list[bytes]:
    """Return all payloads."""
    return [message.payload for message in queue.replay()]


def staged(queue: Queue) -> list[str]:
    """Return what is in the directory of staged pages."""
    path = os.path.join(queue.directory, "queue-staged")
    return [name for name in os.listdir(path) if name != "lock"] if os.path.isdir(path) else []


# --- one message --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [LIMIT, LIMIT + 1, PAGE_BYTES, 2 * PAGE_BYTES, (256 << 10) - 1, 256 << 10, (512 << 10) + 1],
)
def test_message_of_any_size_comes_back(queue: Queue, size: int) -> None:
    """I23: it has one sequence, and those around it are not touched."""
    payload = noise(size)
    with queue.producer() as producer, queue.consumer() as consumer:
        assert [producer.send(data) for data in (b"a", payload, bytearray(payload), b"b")] == [
            0,
            1,
            2,
            3,
        ]
        got = [consumer.receive(timeout=60) for _ in range(4)]
        assert [message.payload for message in got] == [b"a", payload, payload, b"b"]
        assert [message.sequence for message in got] == [0, 1, 2, 3]
        assert got == sorted(got, key=lambda message: message.timestamp)
    assert staged(queue) == []
    assert queue.verify().problems == []


def test_items_of_a_buffer_may_be_larger_than_bytes(queue: Queue) -> None:
    """What counts is how many bytes a payload has, and not how many items."""
    numbers = np.arange(LIMIT // 8 + 1, dtype=np.float64)
    table = numpy_rows(3 * LIMIT)
    sent = [array("d", numbers.tolist()), b"small", memoryview(table), numbers]
    with queue.producer() as producer:
        assert producer.send(sent[0]) == 0
        assert producer.send_many(sent) == range(1, 5)
        with pytest.raises(TypeError, match="bytes-like"):
            producer.send_many([b"a" * PAGE_BYTES, 7])  # type: ignore[list-item]
    assert payloads(queue) == [bytes(memoryview(item)) for item in [sent[0], *sent]]
    assert staged(queue) == []


def numpy_rows(size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return an array of two dimensions and about so many bytes."""
    return np.arange(size // 32 * 8, dtype=np.int32).reshape(-1, 8)


def test_batch_of_pages_needs_no_index(queue: Queue) -> None:
    """I6: the commit does not sync its indexes, so a power cut may take them."""
    sent = [noise(100 + i % 7, i) for i in range(1000)]
    with queue.producer() as producer:
        producer.send_many(sent, timestamps=range(1000))
    queue.close()
    indexes = [name for name in os.listdir(queue.directory) if name.endswith(".idx")]
    assert len(indexes) > 3
    for name in indexes:
        path = os.path.join(queue.directory, name)
        size = os.path.getsize(path)
        os.truncate(path, 0)
        os.truncate(path, size)
    with Queue(queue.directory) as again:
        assert payloads(again) == sent
        assert again.as_of(500) == 500
        assert [again.between(i, i + 1).payloads for i in (0, 400, 999)] == [
            [sent[0]],
            [sent[400]],
            [sent[999]],
        ]


@pytest.mark.parametrize("even", [False, True])
def test_a_staged_page_that_was_changed_is_not_published(tmp_path: Path, *, even: bool) -> None:
    """I19: each frame is checked, although several are at a time; those before it are rewritten."""
    sent = [b"%03d" % i * (1 if even else i % 3) for i in range(11)]
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send_many(sent)
        store = internals(queue).store
        page = map_file(store.folder, fmt.page_name("queue", 1), 4096, writable=True)
        index = map_file(
            store.folder, fmt.index_name("queue", 1), store.meta.index_bytes, writable=True
        )
        at = fmt.PAGE_HEADER_BYTES
        for i, payload in enumerate(sent):
            copy = private_region(page.read(0, 4096), 4096)
            copy.queue_id = store.meta.queue_id
            assert _core.assign_sequences(copy, index, 0, 11, 70, -1, bytes(16), False) == 11
            copy.write(0, page.read(0, 4096))
            copy.write(at + 8, bytes([copy.read(at + 8, 1)[0] ^ 1]))  # of its timestamp
            assert _core.assign_sequences(copy, index, 0, 11, 70, -1, bytes(16), False) == i
            at += fmt.frame_bytes(len(payload))


@pytest.mark.parametrize(("kept", "again", "cores"), [(16, 0, 1), (1, 2, 1), (0, 3, 3), (3, 0, 3)])
def test_staged_pages_are_not_mapped_again_but_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, again: int, cores: int
) -> None:
    """I19: those that stay mapped, and those that do not, get their sequences alike; none stays."""
    mapped = []
    real = staged_pages._map_again

    def map_again(*given: Any) -> Any:  # noqa: ANN401
        mapped.append(given)
        return real(*given)

    monkeypatch.setattr(staged_pages, "_map_again", map_again)
    monkeypatch.setattr(filled_pages, "MAPPED_MAX", kept)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(b"before")
        sent = [noise(100, i) for i in range(80)]
        assert producer.send_many(sent) == range(1, 81)
        producer.send(b"after")
        assert payloads(queue) == [b"before", *sent, b"after"]
        assert len(mapped) == again
        assert queue.verify().ok
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(tmp_path / "q") not in maps


@settings(max_examples=examples(25))
@given(st.data())
def test_queue_is_the_list_of_what_was_sent(data: st.DataObject) -> None:
    """I1, I8, I19, I23: a model; sizes around the ends of pages, single and in batches."""
    import tempfile  # noqa: PLC0415 - a separate function for each example

    page_bytes = data.draw(st.sampled_from([4096, 8192, 1 << 14]))
    limit = fmt.payload_bytes_max(page_bytes)
    sizes = st.one_of(
        st.integers(0, 64),
        st.sampled_from([limit - 1, limit, limit + 1, page_bytes, 2 * page_bytes, 3 * limit]),
    )
    expected: list[bytes] = []
    with (
        tempfile.TemporaryDirectory() as path,
        Queue(path, page_bytes=page_bytes) as queue,
        queue.producer() as producer,
    ):
        for step in range(data.draw(st.integers(1, 6))):
            batch = [
                noise(size, 100 * step + i)
                for i, size in enumerate(data.draw(st.lists(sizes, min_size=1, max_size=6)))
            ]
            way = data.draw(st.sampled_from(["send", "send_many", "open"]))
            if way == "send_many":
                first = len(expected)
                assert producer.send_many(batch) == range(first, first + len(batch))
            for i, payload in enumerate(batch if way != "send_many" else []):
                if way == "send":
                    assert producer.send(payload) == len(expected) + i
                else:
                    with producer.open() as file:
                        file.write(payload[: len(payload) // 3])
                        file.write(payload[len(payload) // 3 :])
                    assert file.sequence == len(expected) + i
            expected += batch
        assert payloads(queue) == expected
        for sequence in range(0, len(expected), 3):
            with queue.consumer(sequence=sequence) as consumer:
                assert consumer.receive(timeout=0).payload == expected[sequence]
        with queue.consumer() as consumer:
            found: list[bytes] = []
            while len(found) < len(expected):
                found += consumer.receive_many(3, timeout=0).payloads
        assert found == expected
        assert queue.verify().problems == []


def test_times_are_kept_and_found(queue: Queue) -> None:
    """I1: a large message is found by its time, by its sequence and as the last one."""
    with queue.producer() as producer:
        for i in range(20):
            producer.send(b"%d" % i, timestamp=1000 * i + 1)
            producer.send(noise(40_000, i), timestamp=1000 * i + 2)
        with pytest.raises(TimestampOrder):
            producer.send(BIG, timestamp=5)
        with pytest.raises(TimestampOrder):
            producer.send_many([BIG, b"x"], timestamps=[90_000, 80_000])
    assert staged(queue) == []
    for i in range(20):
        (message,) = queue.between(1000 * i + 2, 1000 * i + 3)
        assert (message.sequence, message.payload) == (2 * i + 1, noise(40_000, i))
        assert queue.as_of(1000 * i + 1) == 2 * i
        assert queue.as_of(1000 * i + 500) == 2 * i + 1
    assert queue.last(1).payloads == [noise(40_000, 19)]
    assert queue.times()[1].tolist() == [1000 * (i // 2) + 1 + i % 2 for i in range(40)]


def test_sequence_is_compared_for_large_messages_as_well(queue: Queue) -> None:
    """I21: at another sequence no byte is published, also if others send while it is staged."""
    with queue.producer() as producer:
        assert producer.send(BIG, at=0) == 0
        with pytest.raises(Overtaken) as caught:
            producer.send(BIG, at=0)
        assert caught.value.tail_sequence == 1
        assert producer.send_many([b"x", BIG], at=1) == range(1, 3)
    assert payloads(queue) == [BIG, b"x", BIG]
    assert staged(queue) == []


def test_message_is_read_without_being_in_memory(queue: Queue) -> None:
    """Its file is readable and seekable; an ordinary message has one as well."""
    with queue.producer() as producer:
        producer.send_many([BIG, b"small"])
    large, small = queue.replay()
    with large.open() as file, small.open() as other:
        assert other.read() == b"small"
        copy = io.BytesIO()
        shutil.copyfileobj(file, copy)
        assert copy.getvalue() == BIG
        assert file.read(1) == b""
        for offset in (0, 1, PAGE_BYTES, 255 << 10, len(BIG) - 3, 5):
            assert file.seek(offset) == file.tell() == offset
            assert BIG[offset:].startswith(file.read(1000))
            file.seek(offset)
            assert file.readall() == BIG[offset:]
        assert file.seek(-7, os.SEEK_END) == len(BIG) - 7
        assert file.read(100) == BIG[-7:]
        with pytest.raises(ValueError, match="before the beginning"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed file"):
        file.read(1)


def test_message_outlives_its_queue_and_retention(tmp_path: Path) -> None:
    """What was received stays readable: its pages are mapped."""
    retention = Retention(max_bytes=60 * PAGE_BYTES)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=retention) as queue:
        with queue.producer() as producer:
            producer.send(BIG)
            with queue.consumer() as consumer:
                message = consumer.receive(timeout=0)
            for i in range(10):
                producer.send(noise(len(BIG), i))
        assert queue.head_sequence > 0
    assert isinstance(message, LargeMessage)
    assert message.open().read(100) == BIG[:100]
    assert message.payload == BIG
    again = pickle.loads(pickle.dumps(message))
    assert again == message
    assert (again.payload, hash(message)) == (BIG, hash(message))
    assert "bytes" in repr(message)


# --- written as a file ----------------------------------------------------------------------------


def test_payload_is_written_as_a_file(queue: Queue) -> None:
    """It is sent when the file is closed, and is invisible before that."""
    with queue.producer() as producer:
        with producer.open(timestamp=7) as file:
            for i in range(0, len(BIG), 1000):
                file.write(BIG[i : i + 1000])
            assert (file.tell(), len(queue), file.sequence) == (len(BIG), 0, None)
            producer.send(b"meanwhile", timestamp=5)
        assert file.sequence == 1
        file.close()
        with pytest.raises(ValueError, match="closed file"):
            file.write(b"more")
        with producer.open() as file:
            file.write(b"small")
    assert payloads(queue) == [b"meanwhile", BIG, b"small"]
    assert [message.timestamp for message in queue.replay()][:2] == [5, 7]
    assert staged(queue) == []


def fail_inside(opened: PayloadWriter) -> None:
    """Write to a file, and leave its block by an exception."""
    with opened as file:
        file.write(BIG)
        raise KeyError


def test_unfinished_payload_leaves_no_files(queue: Queue) -> None:
    """After an exception, when it is dropped, and when it is discarded."""
    with queue.producer() as producer:
        with pytest.raises(KeyError):
            fail_inside(producer.open())
        dropped = producer.open()
        dropped.write(BIG)
        assert staged(queue) != []
        del dropped
        discarded = producer.open()
        discarded.write(BIG)
        discarded.discard()
        late = producer.open()
        late.write(BIG)
    with pytest.raises(ClosedError):
        late.close()
    assert (staged(queue), len(queue)) == ([], 0)


def test_what_a_dead_writer_staged_is_removed(queue: Queue) -> None:
    """A writer that is killed leaves a directory whose lock is free; a live one's is kept."""
    code = (
        "import sys, time, pagequeue\n"
        "queue = pagequeue.Queue(sys.argv[1])\n"
        "file = queue.producer().open()\n"
        "file.write(bytes(3 << 20))\n"
        "print('staged', flush=True)\n"
        "time.sleep(60)\n"
    )
    with (
        queue.producer() as producer,
        warm.Popen(
            [sys.executable, "-c", code, queue.directory], stdout=warm.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        producer.send(BIG)
        assert len(staged(queue)) == 2  # the directory and its lock
        process.send_signal(signal.SIGKILL)
        process.wait()
        producer.send(BIG)
    assert staged(queue) == []
    assert payloads(queue) == [BIG, BIG]


# --- with what was there --------------------------------------------------------------------------


def test_groups_redeliver_a_large_message(queue: Queue) -> None:
    """It is claimed, returned, claimed again and acknowledged like any other."""
    with queue.producer() as producer, queue.group("workers") as group:
        producer.send_many([b"a", BIG, b"b"])
        first = group.claim(timeout=60)
        claim = group.claim(timeout=60)
        assert claim.message.payload == BIG
        claim.nack(0)
        claim = group.claim(timeout=60)
        assert (claim.message.payload, claim.deliveries) == (BIG, 2)
        for each in (first, claim, group.claim(timeout=60)):
            each.ack()


def test_event_loop_runs_while_a_large_message_is_sent(queue: Queue) -> None:
    """Another thread writes it; other coroutines run meanwhile."""

    async def run() -> int:
        turns = 0
        with queue.producer() as producer:
            sending = asyncio.ensure_future(producer.send_async(BIG * 8))
            while not sending.done():
                turns += 1
                await asyncio.sleep(0)
            assert await sending == 0
            assert await producer.send_many_async([b"x"] * 5000) == range(1, 5001)
            with queue.consumer() as consumer:
                message = await consumer.receive_async(timeout=60)
                assert message.payload == BIG * 8
        return turns

    assert asyncio.run(run()) > 1


def test_codecs_and_records(tmp_path: Path) -> None:
    """An object of any size is encoded; a record has its own size and no other."""
    value = {"text": "x" * 100_000}
    with Queue(tmp_path / "j", codec="json", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            producer.send(value)
            producer.send_many([value, {}])
        assert [message.value for message in queue.replay()] == [value, value, {}]
    with Queue(tmp_path / "d", dtype=[("a", "<i8")], page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            with pytest.raises(RecordSize):
                producer.send(BIG)
            with pytest.raises(RecordSize):
                producer.open()
        assert len(queue) == 0


def test_columns_hold_large_messages(queue: Queue) -> None:
    """Arrow's and NumPy's views of a batch with a large message are right."""
    pa = pytest.importorskip("pyarrow")
    values = [b"v%d" % i for i in range(3000)] + [BIG, b"w"]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        with queue.producer() as producer:
            sent = producer.send_many(pa.array(values, kind))
        found = [
            value
            for batch in queue.batches(sequence=sent.start)
            for value in batch.to_arrow()["payload"].to_pylist()
        ]
        assert found == values


def test_merge_ship_and_a_copy_have_it(tmp_path: Path, queue: Queue) -> None:
    """Queues are merged by time; a replica, and a copy of the directory, have the whole message."""
    with queue.producer() as producer:
        producer.send(b"a", timestamp=1)
        producer.send(BIG, timestamp=3)
        producer.flush()
    with Queue(tmp_path / "other", page_bytes=PAGE_BYTES) as other:
        with other.producer() as producer:
            producer.send(BIG[::-1], timestamp=2)
        with merge([queue, other]) as merged:
            assert [each.message.payload for each in merged] == [b"a", BIG[::-1], BIG]
    queue.rotate()
    queue.ship(tmp_path / "replica")
    shutil.copytree(queue.directory, tmp_path / "copy")
    for name, read_only in (("replica", True), ("copy", False)):
        with Queue(tmp_path / name, read_only=read_only) as found:
            assert payloads(found) == [b"a", BIG]
            assert found.verify().problems == []


def test_replay_passes_fragments_that_retention_removed(tmp_path: Path) -> None:
    """I12, I23: no message is between the page that it is in and the head, so none is missed."""
    retention = Retention(max_bytes=40 * PAGE_BYTES)
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=retention) as queue,
        queue.producer() as producer,
    ):
        producer.send(BIG)
        producer.send(b"next")
        replay = queue.replay()
        assert next(replay).payload == BIG
        while queue.info().head_page < 6:
            producer.send(b"x" * (PAGE_BYTES // 2))
        assert queue.head_sequence == 1
        assert next(replay).payload == b"next"


def test_reader_that_is_passed_while_it_looks_for_the_head_gets_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: retention took its page without a message, and then, before it looked, one more."""
    retention = Retention(max_bytes=40 * PAGE_BYTES)
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=retention) as queue,
        queue.producer() as producer,
    ):
        producer.send(BIG)
        producer.send(b"next")
        replay = queue.replay()
        assert next(replay).payload == BIG
        while queue.info().head_page < 6:
            producer.send(b"x" * (PAGE_BYTES // 2))
        store = internals(queue).store
        real = store.seek_head

        def seek_head() -> Any:  # noqa: ANN401 - a place
            while queue.head_sequence == 1:
                producer.send(b"x" * (PAGE_BYTES // 2))
            return real()

        monkeypatch.setattr(store, "seek_head", seek_head)
        with pytest.raises(Expired) as caught:
            next(replay)
        assert caught.value.head_sequence == queue.head_sequence > 1


def test_info_counts_fragments(queue: Queue) -> None:
    """Their bytes are used ones; the files take about as much, not whole pages."""
    with queue.producer() as producer:
        producer.send(BIG)
        producer.send(b"a")
    info = queue.info()
    assert len(BIG) < info.used_bytes < len(BIG) + 30 * 200
    assert info.message_count == 2


def test_compressed_pages_keep_fragments(queue: Queue) -> None:
    """I16, I23: the fragments inflate to what they were, also for a reader of the file."""
    text = b"the same words again, " * 20_000
    with queue.producer() as producer:
        producer.send_many([b"a", text, b"b"])
    queue.rotate()
    report = queue.compress()
    assert report.pages > 10
    assert report.bytes_after < report.bytes_before / 10
    assert payloads(queue) == [b"a", text, b"b"]
    with queue.consumer(sequence=1) as consumer:
        file = consumer.receive(timeout=0).open()
        file.seek(100_000)
        assert file.read(44) == text[100_000:100_044]
    assert queue.verify().problems == []


def test_retention_takes_it_whole(tmp_path: Path) -> None:
    """I12, I23: a reader gets all of it, or Expired; what can never fit is refused at once."""
    retention = Retention(max_bytes=60 * PAGE_BYTES)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=retention) as queue:
        stop = threading.Event()
        wrong: deque[Any] = deque()

        def read() -> None:
            consumer = queue.consumer(on_expired="skip")
            while not stop.is_set():
                try:
                    message = consumer.receive(0.1)
                    if len(message.payload) > 10:
                        assert message.payload == noise(100_000, message.sequence)
                except (Expired, NothingReceived):
                    continue
                except BaseException as error:
                    wrong.append(error)
                    raise

        reader = threading.Thread(target=read)
        reader.start()
        with queue.producer() as producer:
            for i in range(0, 120, 2):
                producer.send(noise(100_000, i))
                producer.send(b"small")
            stop.set()
            reader.join()
            assert not wrong
            with pytest.raises(MessageTooLarge, match="max_bytes allows 60"):
                producer.send(noise(3_000_000))
            file = producer.open()
            with pytest.raises(MessageTooLarge):
                file.writelines([noise(100_000)] * 100)
            file.discard()
        assert queue.head_sequence > 0
        assert staged(queue) == []
        queue.trim()
        assert queue.verify().problems == []


# --- damage ---------------------------------------------------------------------------------------


def zero_block(pages: list[Path]) -> None:
    """Change some bytes of a fragment."""
    with pages[5].open("r+b") as file:
        file.seek(9000)
        file.write(bytes(64))


def exchange(pages: list[Path]) -> None:
    """Exchange two fragments of a message."""
    one, other = pages[4].read_bytes(), pages[5].read_bytes()
    pages[4].write_bytes(one[:64] + other[64:])
    pages[5].write_bytes(other[:64] + one[64:])


def double(pages: list[Path]) -> None:
    """Put a fragment in the place of the next one as well."""
    pages[5].write_bytes(pages[5].read_bytes()[:64] + pages[4].read_bytes()[64:])


def foreign(pages: list[Path]) -> None:
    """The fragment of another message of the same queue."""
    other = pages[24].read_bytes()
    pages[5].write_bytes(pages[5].read_bytes()[:64] + other[64:])


def remove(pages: list[Path]) -> None:
    """Remove the page of a fragment."""
    pages[5].unlink()


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("harm", [zero_block, exchange, double, foreign, remove])
def test_message_with_a_damaged_fragment_is_lost_whole_and_named_once(
    tmp_path: Path, queue: Queue, harm: Callable[[list[Path]], None]
) -> None:
    """I23: reading it is an error, those around it are read; verify and salvage name it."""
    with queue.producer() as producer:
        producer.send(b"a")
        producer.send(BIG)
        producer.send(BIG[::-1])
        producer.send(b"b")
        producer.flush()
    queue.close()
    folder = tmp_path / "q"
    harm(sorted(folder.glob("queue-0*.page")))
    problems = verify_queue(folder).problems
    assert problems
    assert all(problem.sequence in {1, 2} for problem in problems), problems
    with Queue(folder, read_only=True) as damaged, damaged.consumer() as consumer:
        assert consumer.receive(timeout=0).payload == b"a"
        with pytest.raises(DamageError) as caught:
            _ = consumer.receive(timeout=0).payload
        assert os.fspath(caught.value.path).endswith(".page")
        consumer.seek(sequence=2)
        assert consumer.receive(timeout=0).payload == BIG[::-1]
        assert consumer.receive(timeout=0).payload == b"b"
    report = salvage_queue(folder, tmp_path / "saved")
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [(1, 1)]
    with Queue(tmp_path / "saved") as saved:
        assert payloads(saved) == [b"a", BIG[::-1], b"b"]
        assert saved.verify().problems == []


def test_file_over_a_damaged_block_gives_no_byte_of_it(tmp_path: Path, queue: Queue) -> None:
    """I23: what is before the block is read, and what is after it."""
    with queue.producer() as producer:
        producer.send(BIG)
    zero_block(sorted((tmp_path / "q").glob("queue-0*.page")))
    with queue.consumer() as consumer:
        file = consumer.receive(timeout=0).open()
    got = io.BytesIO()
    with pytest.raises(CorruptFrame) as caught:
        shutil.copyfileobj(file, got, 1000)
    assert BIG.startswith(got.getvalue())
    assert caught.value.sequence == 0
    file.seek(-100, os.SEEK_END)
    assert file.read() == BIG[-100:]


@pytest.mark.parametrize("begin", [0, 1, 1000])
def test_blocks_that_are_read_in_one_piece_are_checked(tmp_path: Path, begin: int) -> None:
    """I23: straight into the reader's memory, what is right comes and a damaged block is zeros."""
    sent = noise(9 * fmt.FRAGMENT_BLOCK_BYTES + 5)
    with Queue(tmp_path / "blocks", page_bytes=1 << 20) as other:
        other.producer().send(sent)
        memory = bytearray(b"?" * (len(sent) + 7))
        file = other.last(1)[0].open()
        got = bytearray()
        file.seek(begin)
        while size := file.readinto(memory):
            got += memory[:size]
        assert got == sent[begin:]
    (page,) = [
        path
        for path in (tmp_path / "blocks").glob("queue-0*.page")
        if sent[:1000] in path.read_bytes()
    ]
    data = page.read_bytes()
    at = data.index(sent[:1000]) + fmt.FRAGMENT_BLOCK_BYTES + 3
    page.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with Queue(tmp_path / "blocks") as other:
        file = other.consumer().receive(timeout=0).open()
        memory = bytearray(b"?" * len(sent))
        assert file.readinto(memory) == fmt.FRAGMENT_BLOCK_BYTES == file.tell()
        assert memory[: file.tell()] == sent[: file.tell()]
        assert memory[file.tell() : 2 * file.tell()] == bytes(file.tell())
        with pytest.raises(CorruptFrame):
            file.readinto(memory)
        assert file.tell() == fmt.FRAGMENT_BLOCK_BYTES
        file.seek(2 * fmt.FRAGMENT_BLOCK_BYTES)
        assert file.readall() == sent[2 * fmt.FRAGMENT_BLOCK_BYTES :]


@pytest.mark.parametrize("step", slow_but(range(3, 80, 9), range(1, 80)))
def test_death_at_each_call_keeps_a_large_message_atomic(tmp_path: Path, step: int) -> None:
    """I19, I23: a sender that dies at any system call has sent the message, or left no files."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"before")
        said = printed(die_while_sending_large.__name__, queue.directory, step - 1)
        producer.send(b"after")
        found = payloads(queue)
        assert found in ([b"before", b"after"], [b"before", *AROUND_LARGE, b"after"])
        assert "done" not in said or len(found) == 5
        producer.send(BIG)
        assert staged(queue) == []
        assert queue.verify().problems == []
    with Queue(tmp_path / "q") as queue:
        assert payloads(queue) == [*found, BIG]


@pytest.mark.parametrize(
    ("sizes", "is_opened_alone"),
    [
        ([3, 5 * PAGE_BYTES], True),
        ([3, 5 * PAGE_BYTES, 3, 4 * PAGE_BYTES, 3], True),
        ([3, 5 * PAGE_BYTES, 3], False),
    ],
)
def test_death_behind_the_marker_keeps_all_pages(
    tmp_path: Path, sizes: list[int], *, is_opened_alone: bool
) -> None:
    """M7: all messages are there from the marker on; pages of fragments have none before theirs."""
    sent = lettered(sizes)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as before, before.producer() as producer:
        producer.send(b"before")
        printed(die_behind_the_marker.__name__, before.directory, sizes)
        if is_opened_alone:
            before.close()
        with Queue(tmp_path / "q") as queue, queue.producer() as another:
            if is_opened_alone:
                assert queue.tail_sequence == 1 + len(sent)
                assert queue.verify().problems == []
            assert another.send(b"after") == 1 + len(sent)
            assert payloads(queue) == [b"before", *sent, b"after"]
            assert another.send(BIG) == 2 + len(sent)
            queue.rotate()
            queue.ship(tmp_path / "replica")
            assert queue.verify().problems == []
            assert not os.path.exists(os.path.join(queue.directory, "queue-publishing"))
    with Queue(tmp_path / "replica", read_only=True) as replica:
        assert payloads(replica) == [b"before", *sent, b"after", BIG]


@pytest.mark.slow
def test_other_producers_send_while_a_large_one_is_written(queue: Queue) -> None:
    """Writing holds no lock: others send meanwhile, and the message is whole."""
    with queue.producer() as producer, producer.open() as file:
        for i in range(100):
            file.write(noise(100_000, i))
            assert producer.send(b"%d" % i) == i
    assert len(queue) == 101
    assert queue.last(1).payloads == [b"".join(noise(100_000, i) for i in range(100))]
    assert queue.between(timedelta(hours=1)) is not None
    assert internals(queue).store.tail.sequence == 101


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("sync", ["none", "always"])
@pytest.mark.parametrize("streamed", [False, True])
def test_other_producers_wait_for_two_os_pages_of_each_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync, *, streamed: bool
) -> None:
    """M3 to M8: while they wait, less is written than for a batch of 1 MiB, whatever the size."""
    page_bytes, payload = 1 << 20, noise(32 << 20)
    written, waiting = [], []

    def freeze(self: QueueEnd) -> Any:  # noqa: ANN401 - a tail
        tail = real_freeze(self)
        waiting.append(True)
        return tail

    def commit(self: QueueEnd, *given: Any) -> None:  # noqa: ANN401 - of `_commit_pages`
        real_commit(self, *given)
        waiting.clear()

    def pwrite(fd: int, data: Any, position: int) -> int:  # noqa: ANN401 - a buffer
        if waiting:
            written.append(len(data))
        return real_pwrite(fd, data, position)

    def pwritev(fd: int, parts: Any, position: int) -> int:  # noqa: ANN401 - buffers
        if waiting:
            written.extend(map(len, parts))
        return real_pwritev(fd, parts, position)

    real_pwritev = os.pwritev
    real_freeze, real_commit, real_pwrite = (
        QueueEnd._freeze_page,
        QueueEnd._commit_pages,
        os.pwrite,
    )
    with Queue(tmp_path / "q", page_bytes=page_bytes, sync=sync) as queue:
        producer = queue.producer()
        monkeypatch.setattr(QueueEnd, "_freeze_page", freeze)
        monkeypatch.setattr(QueueEnd, "_commit_pages", commit)
        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "pwritev", pwritev)
        if streamed:
            with producer.open() as file:
                file.write(payload)
        else:
            producer.send(payload)
        monkeypatch.undo()
        pages = queue.info().page_count
        assert payloads(queue) == [payload]
    assert not waiting
    assert pages > len(payload) // page_bytes
    assert 0 < sum(written) <= pages * 8192 < 1 << 20


# --- with what was there before -----------------------------------------------------------------


def test_large_message_among_small_ones_is_in_the_columns(queue: Queue) -> None:
    """A batch over pages and large messages has the length and the payload of each message."""
    sent = [b"12345678", BIG, b"abcdefgh"]
    with queue.producer() as producer:
        for payload in sent:
            producer.send(payload)
    assert queue.last(3).lengths.tolist() == [8, len(BIG), 8]
    assert queue.last(3)[1:].lengths.tolist() == [len(BIG), 8]
    with pytest.raises(RecordSize):  # not the rows of some memory
        queue.last(3).to_numpy("<u8")
    for copy in (False, True):
        table = queue.last(3).to_arrow(copy=copy)
        table.validate(full=True)
        assert table.column("payload").to_pylist() == sent


def test_large_message_becomes_a_dead_letter(queue: Queue) -> None:
    """A group moves a message larger than its pages, and goes on with the next one."""
    with queue.producer() as producer, queue.group("work", max_deliveries=1) as group:
        producer.send(BIG)
        producer.send(b"next")
        group.claim(timeout=60).nack()
        assert group.claim(timeout=60).message.payload == b"next"
        (letter,) = group.dead_letters()
    assert (letter.sequence, letter.payload) == (0, BIG)


def test_read_by_a_process_that_locks_its_memory(tmp_path: Path) -> None:
    """The system then refuses to take the memory of a page back, which is only a loss of memory."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(BIG)
    code = """
import ctypes, mmap, sys
from pagequeue import Queue
FUTURE, ON_FAULT = 2, 4
with Queue(sys.argv[1]) as queue, queue.consumer() as consumer:
    if ctypes.CDLL(None, use_errno=True).mlockall(FUTURE | ON_FAULT):
        raise OSError(ctypes.get_errno(), "mlockall")
    try:
        mmap.mmap(-1, 4 << 20).close()
    except OSError:
        sys.exit("limited")
    message = consumer.receive(timeout=0)
    with message.open() as file:
        assert file.read() == message.payload
    print(len(message.payload))
"""
    done = warm.run(
        [sys.executable, "-c", code, tmp_path / "q"], capture_output=True, text=True, check=False
    )
    if done.stderr == "limited\n":
        pytest.skip("this process may lock too little memory for a reader (`ulimit -l`)")
    assert (done.stdout.strip(), done.stderr) == (str(len(BIG)), "")


@pytest.mark.parametrize("on_full", ["raise", "block", "drop_oldest"])
def test_fits_though_the_next_page_is_there_already(tmp_path: Path, on_full: Any) -> None:  # noqa: ANN401 - of a test
    """A producer that died before its roll leaves one; with it, the pages were refused for ever."""
    retention = Retention(max_bytes=8 * PAGE_BYTES)
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, on_full=on_full, retention=retention) as queue,
        queue.producer() as producer,
    ):
        producer.send(b"first")
        queue._store.roller.next_page(2)
        payload = noise(int(5.5 * PAGE_BYTES))
        producer.send(payload, timeout=10.0)
        assert payloads(queue)[-1] == payload
        assert len(queue.pages()) <= 8
        assert queue.verify().problems == []


def test_cancelled_while_waiting_for_room_sends_nothing(tmp_path: Path) -> None:
    """As for a small message: room that comes later is not taken by a task that is gone."""

    async def run() -> None:
        with (
            Queue(
                tmp_path / "full",
                page_bytes=PAGE_BYTES,
                on_full="block",
                retention=Retention(max_bytes=50 * PAGE_BYTES),
            ) as queue,
            queue.producer() as producer,
            queue.consumer("reader") as consumer,
        ):
            producer.send(BIG)
            producer.send(BIG)
            sending = asyncio.ensure_future(producer.send_async(BIG))
            await loops.until(lambda: loops.waiting_senders(queue) == 1)
            assert not sending.done()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            for _ in range(2):
                consumer.ack(consumer.receive(timeout=60))
            await asyncio.to_thread(until, lambda: not staged(queue))
            assert queue.tail_sequence == 2

    asyncio.run(run())


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes that must end in QueueFull."""
    began = time.monotonic()
    with pytest.raises(QueueFull):
        call()
    return time.monotonic() - began


def test_timeout_of_a_large_message_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number it is, in a full queue, and while another sender waits there without end."""
    monkeypatch.setattr(publisher, "OTHERS_SECONDS", 0.1)
    big = BIG[: 4 * PAGE_BYTES]
    with (
        Queue(
            tmp_path / "full",
            page_bytes=PAGE_BYTES,
            on_full="block",
            lock_timeout=1.0,
            retention=Retention(max_bytes=18 * PAGE_BYTES),
        ) as queue,
        queue.producer() as producer,
        queue.consumer("reader") as consumer,
    ):
        sent = [producer.send(big), producer.send(big)]
        for timeout in (0, 0.1, Fraction(1, 10), np.float32(0.1)):
            for call in (
                lambda timeout=timeout: producer.send(big, timeout=timeout),
                lambda timeout=timeout: producer.send_many([b"a", big], timeout=timeout),
                lambda timeout=timeout: queue.publish("w", 0, [b"a", big], timeout=timeout),
            ):
                assert float(timeout) - 0.01 <= timed(call) < SOON
        for wrong in (-1, float("nan"), "1", Decimal("0.2")):
            with pytest.raises((ValueError, TypeError)):
                producer.send_many([b"a", big], timeout=wrong)  # type: ignore[arg-type]
        waiting = threading.Thread(target=lambda: sent.append(producer.send(big)), daemon=True)
        waiting.start()
        until(lambda: is_publishing(queue))
        assert timed(lambda: producer.send(big, timeout=0.2)) < SOON
        assert timed(lambda: queue.publish("w", 0, [big], timeout=0.2)) < SOON
        assert timed(lambda: asyncio.run(producer.send_async(big, timeout=0.2))) < SOON
        next_one = threading.Thread(
            target=lambda: sent.append(producer.send(big[: 2 * PAGE_BYTES])), daemon=True
        )
        next_one.start()
        next_one.join(1.5)  # more than `lock_timeout`, and no error: room is what it waits for
        assert next_one.is_alive()
        assert producer.send(b"small", timeout=SOON) == 2
        for _ in range(2):
            consumer.ack(consumer.receive(timeout=60))
        waiting.join(SOON)
        next_one.join(SOON)
        assert sorted(sent) == [0, 1, 3, 4]


def is_publishing(queue: Queue) -> bool:
    """Whether a sender of several pages has the publishers' lock."""
    with open(os.path.join(queue.directory, "queue-staged", "lock"), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_message_as_a_file_holds_no_memory_for_each_page(tmp_path: Path) -> None:
    """What is read of each page before, its header and mark, and of the page that was left."""
    page_bytes, pages = 4 << 20, 12
    with Queue(tmp_path / "q", page_bytes=page_bytes) as queue, queue.producer() as producer:
        producer.send(bytes((pages - 1) * page_bytes))
    with (
        Queue(tmp_path / "q", read_only=True) as queue,
        queue.consumer() as consumer,
        consumer.receive(0).open() as file,
    ):
        assert resident_bytes(str(tmp_path / "q")) < pages * (32 << 10)
        memory = bytearray(256 << 10)
        while file.readinto(memory):
            pass
        assert resident_bytes(str(tmp_path / "q")) < pages * (32 << 10)


def resident_bytes(path: str) -> int:
    """Return how much memory this process's maps of the files below a path take."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name = line.split()[0]
        if not name.endswith(":"):
            counts = path in line
        elif counts and name == "Rss:":
            total += int(line.split()[1]) << 10
    return total
