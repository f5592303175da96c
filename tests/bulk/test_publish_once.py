"""Queue.publish: plain Python's messages, once for each writer and piece, of any number."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import SMALL, SOON, finish, payloads, publish_pieces, start
from tiers import examples

from pagequeue import (
    ClosedError,
    CorruptMeta,
    DtypeMismatch,
    InvalidOption,
    NotEncodable,
    Queue,
    QueueFull,
    ReadOnlyQueue,
    Retention,
    TimestampOrder,
)
from pagequeue.meta import ledger
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from plugin import Disk

RECORD = np.dtype([("number", "<i4"), ("name", "S4")])
MANY = 900
"""More messages than three pages of 4096 bytes hold."""
KEPT = ledger.KEPT


def numbered(count: int) -> list[bytes]:
    """Return messages that tell their places."""
    return [b"%06d" % number for number in range(count)]


INPUTS: dict[str, Any] = {
    "list": numbered,
    "generator": lambda count: (item for item in numbered(count)),
    "bytearrays": lambda count: [bytearray(item) for item in numbered(count)],
    "bytes array": lambda count: np.array(numbered(count), "S9"),
    "void array": lambda count: np.array(numbered(count), "V6"),
    "strided": lambda count: np.array(numbered(2 * count), "V6")[:count][::-1][::-1],
    "arrow": lambda count: pa.array(numbered(count), pa.binary()),
    "arrow strings": lambda count: pa.array([item.decode() for item in numbered(count)]),
    "chunks": lambda count: pa.chunked_array([numbered(1), numbered(count)[1:]], pa.large_binary()),
    "slice": lambda count: pa.array([b"xx", *numbered(count), b"y"]).slice(1, count),
    "fixed size": lambda count: pa.array(numbered(count), pa.binary(6)),
    "dictionary": lambda count: pa.array(numbered(count)).dictionary_encode(),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("count", [1, 20, MANY])
def test_everything_that_can_be_sent_can_be_published(queue: Queue, form: str, count: int) -> None:
    """I19: in order, durable, between messages of others; the second call sends no message."""
    with queue.producer() as producer:
        producer.send(b"before")
        assert queue.publish("w", 0, INPUTS[form](count)) == range(1, count + 1)
        assert queue.durable_sequence >= count + 1
        producer.send(b"after")
        assert queue.publish("w", 0, [b"something else"]) == range(1, count + 1)
    assert payloads(queue.replay()) == [b"before", *numbered(count), b"after"]
    assert queue.verify().ok


@pytest.mark.parametrize("count", [3, MANY])
def test_codecs_and_records_are_published(tmp_path: Path, count: int) -> None:
    """Objects are encoded; records come as arrays, as tables and one by one."""
    values = [{"number": number} for number in range(count)]
    with Queue(tmp_path / "json", page_bytes=SMALL, codec="json") as queue:
        assert queue.publish("w", 0, values) == range(count)
        assert [message.value for message in queue.replay()] == values
        with pytest.raises(NotEncodable):
            queue.publish("w", 1, [object()])
        with pytest.raises(NotEncodable, match="only its keys"):
            queue.publish("w", 1, {"number": 1})
    text = pa.array([str(number) for number in range(count)])
    with Queue(tmp_path / "text", page_bytes=SMALL, codec="utf-8") as queue:
        queue.publish("w", 0, text)
        assert [message.value for message in queue.replay()] == text.to_pylist()
    records = np.zeros(count, RECORD)
    records["number"] = np.arange(count)
    records["name"] = b"ab"
    table = pa.table({"name": pa.array([b"ab"] * count), "number": np.arange(count, dtype="<i4")})
    with Queue(tmp_path / "records", page_bytes=SMALL, dtype=RECORD) as queue:
        for piece, form in enumerate((records, table, list(records), records[::-1][::-1])):
            assert len(queue.publish("w", piece, form)) == count
        found = [batch.to_numpy() for batch in queue.batches()]
        assert np.concatenate(found).tolist() == records.tolist() * 4
        with pytest.raises(DtypeMismatch):
            queue.publish("w", 9, np.zeros(2, [("other", "<i4")]))
        assert queue.verify().ok


@pytest.mark.parametrize("count", [2, MANY])
def test_messages_have_the_times_that_are_given(queue: Queue, count: int) -> None:
    """I1: one for each, in order, none before the last one of the queue."""
    first = 1_700_000_000 * 10**9
    times = np.arange(first, first + count)
    queue.publish("w", 0, numbered(count), timestamps=times)
    assert [message.timestamp for message in queue.replay()] == times.tolist()
    with pytest.raises(TimestampOrder):
        queue.publish("w", 1, numbered(count), timestamps=times)
    with pytest.raises(TimestampOrder):
        queue.publish("w", 1, numbered(count), timestamps=times[::-1])
    with pytest.raises(InvalidOption, match="no message was sent"):
        queue.publish("w", 1, numbered(count), timestamps=times[1:])
    assert len(queue) == count
    assert queue.publish("w", 1, [b"later"]) == range(count, count + 1)


def test_large_messages_are_published_once(queue: Queue) -> None:
    """I19, I23: one larger than a page, alone and with many others, is a message like them."""
    for piece, fitting in enumerate(([], numbered(MANY))):
        batch = [*fitting, bytes(5 * SMALL)]
        found = queue.publish("w", piece, batch)
        assert len(found) == len(batch)
        assert queue.publish("w", piece, batch) == found
    assert [len(message.payload) for message in queue.last(1)] == [5 * SMALL]
    assert len(queue) == MANY + 2
    assert queue.verify().ok


def test_bad_calls_send_no_row_and_have_a_remedy(queue: Queue, tmp_path: Path) -> None:
    """The ledger gets no entry either, so that the corrected call publishes."""
    for writer in ("", "x" * 256, "\ud800"):
        with pytest.raises(InvalidOption, match=r"writer is .*: give (a name|text)"):
            queue.publish(writer, 0, [b"one"])
    for piece in (-1, 2**63):
        with pytest.raises(InvalidOption, match="higher for each piece"):
            queue.publish("w", piece, [b"one"])
    wrong: Any
    for writer, piece, wrong in (
        (b"w", 0, [b"one"]),
        ("w", "0", [b"one"]),
        ("w", 0, ["text"]),
        ("w", 0, [np.array([object()])]),
        ("w", 0, None),
    ):
        with pytest.raises(TypeError):
            queue.publish(writer, piece, wrong)
    for wrong in (np.array(["text"]), pa.table({"a": [1]}), pa.array([b"a", None])):
        with pytest.raises(NotEncodable):
            queue.publish("w", 0, wrong)
    with pytest.raises((TypeError, ValueError)):
        queue.publish("w", 0, [b"one"], timeout=-1)
    assert len(queue) == 0
    with Queue(queue.directory, read_only=True) as reader, pytest.raises(ReadOnlyQueue):
        reader.publish("w", 0, [b"one"])
    closed = Queue(tmp_path / "closed")
    closed.close()
    with pytest.raises(ClosedError):
        closed.publish("w", 0, [b"one"])
    assert queue.publish("w", 0, [b"one"]) == range(1)
    assert queue.verify().ok


@pytest.mark.parametrize("fitting", [0, 3, MANY])
def test_messages_larger_than_a_page_are_published_once_too(queue: Queue, fitting: int) -> None:
    """I19, I23: in their place among the others; the second call sends nothing."""
    items = [*numbered(fitting), bytes(range(256)) * 50, b"last", b"x" * (3 * SMALL)]
    assert queue.publish("w", 0, items) == range(len(items))
    assert queue.publish("w", 0, items) == range(len(items))
    assert payloads(queue.replay()) == items
    assert queue.verify().ok


def test_broken_arrow_array_is_refused(queue: Queue) -> None:
    """I9: offsets that lead out of the data are an error, and no message is sent."""
    offsets = pa.py_buffer(np.array([0, 10**6, 5], np.int32))
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abcde")])
    with pytest.raises(NotEncodable, match="valid arrays"):
        queue.publish("w", 0, broken)
    assert len(queue) == 0


def test_no_messages_are_a_piece_as_well(queue: Queue) -> None:
    """An empty piece is noted as published."""
    assert queue.publish("w", 0, []) == range(0)
    queue.producer().send(b"one")
    assert queue.publish("w", 1, np.array([], "S3")) == range(1, 1)
    assert queue.publish("w", 0, [b"two"]) == range(0)
    assert queue.publish("w", 1, [b"two"]) == range(1, 1)
    assert len(queue) == 1


def test_old_pieces_count_as_published(queue: Queue) -> None:
    """A writer that begins again from its first piece sends no message twice."""
    for piece in range(0, 2 * (KEPT + 4), 2):
        queue.publish("w", piece, [b"%d" % piece])
    count = len(queue)
    assert count == KEPT + 4
    for piece in range(7):
        assert queue.publish("w", piece, [b"again"]) == range(0)
    for place in range(4, count):
        assert queue.publish("w", 2 * place, [b"again"]) == range(place, place + 1)
    assert len(queue) == count
    # Within what is remembered, a piece that was left out is told apart.
    assert queue.publish("w", 9, [b"left out"]) == range(count, count + 1)
    assert queue.publish("other", 5, [b"5"]) == range(count + 1, count + 2)
    assert queue.publish("other", 3, [b"3"]) == range(count + 2, count + 3)


def test_entry_of_an_earlier_version_is_understood(queue: Queue) -> None:
    """Without `dropped` a piece below all that are listed counts as published."""
    queue.publish("w", 5, [b"five"])
    folder = queue._store.folder
    name = ledger.published_name(queue.prefix, ledger.entry_of("writer w"))
    entry = ledger.read_record(folder, name)
    assert entry is not None
    assert entry.pop(ledger.DROPPED) == 0
    ledger.write_record(folder, name, entry)
    assert queue.publish("w", 4, [b"four"]) == range(0)
    assert queue.publish("w", 6, [b"six"]) == range(1, 2)
    assert queue.publish("w", 4, [b"four"]) == range(0)
    ledger.write_record(folder, name, {**entry, ledger.DROPPED: -1})
    with pytest.raises(CorruptMeta, match="repair"):
        queue.publish("w", 7, [b"seven"])


def test_damaged_entry_is_an_error_of_its_writer_only(queue: Queue) -> None:
    """It names the file, and others publish as before."""
    queue.publish("w", 0, [b"one"])
    name = ledger.published_name(queue.prefix, ledger.entry_of("writer w"))
    overwrite(f"{queue.directory}/{name}", 3, b"!")
    with pytest.raises(CorruptMeta, match=name):
        queue.publish("w", 0, [b"one"])
    assert queue.publish("other", 0, [b"two"]) == range(1, 2)


@pytest.mark.parametrize("count", [2, 300])
@pytest.mark.parametrize("timeout", [0, 0.3])
def test_timeout_bounds_the_wait_for_space(disk: Disk, count: int, timeout: float) -> None:
    """QueueFull: no message was sent and no entry noted, so the same call can succeed later."""
    policy = Retention(max_bytes=6 * SMALL)
    with disk.open(retention=policy, on_full="block") as queue, queue.producer() as producer:
        consumer = queue.consumer("slow")
        for _ in range(3 * 6):
            producer.send(b"x" * 1300)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(QueueFull):
                queue.publish("w", 0, [b"y" * 16] * count, timeout=timeout)
            assert timeout <= time.monotonic() - began < SOON
        assert len(queue) == 18
        for _ in range(18):
            consumer.receive(timeout=0)
        consumer.ack()
        assert queue.publish("w", 0, [b"y" * 16] * count, timeout=timeout).start == 18


# --- with others ----------------------------------------------------------------------------------


def test_processes_that_publish_the_same_pieces_publish_each_once(tmp_path: Path) -> None:
    """I19: the first process sends it, and all get the same range."""
    with Queue(tmp_path, page_bytes=SMALL) as queue:
        others = [start(publish_pieces.__name__, tmp_path, 12) for _ in range(3)]
        stop = threading.Event()

        def send() -> None:
            with queue.producer() as producer:
                while not stop.wait(0.001):
                    producer.send(b"live")

        thread = threading.Thread(target=send)
        thread.start()
        told = [finish(other) for other in others]
        stop.set()
        thread.join()
        assert told[0] == told[1] == told[2]
        found = [item for item in payloads(queue.replay()) if item != b"live"]
        assert found == [
            b"%d %d" % (piece, i) for piece in range(12) for i in range(piece % 3 * 200 + 1)
        ]
        assert queue.verify().ok


def test_tasks_publish_and_a_cancelled_one_can_ask_again(
    tmp_path: Path, run: Callable[..., object]
) -> None:
    """All or none; a second call with the same piece tells which, or publishes it."""

    async def main(queue: Queue) -> None:
        rows = numbered(MANY)
        found = await asyncio.gather(
            *(
                queue.publish_async("w", 0, iter(rows), timestamps=iter([10**9] * MANY))
                for _ in range(3)
            ),  # the time of the clock: "other" may come first
            queue.publish_async("other", 0, rows[:2]),
        )
        assert found[0] == found[1] == found[2]
        assert (len(found[0]), len(found[3])) == (MANY, 2)
        for delay in (0.0, 0.002, 0.005, 0.02):
            piece = int(delay * 1000) + 1
            task = asyncio.ensure_future(queue.publish_async("w", piece, rows))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])
            assert len(await queue.publish_async("w", piece, rows)) == MANY

    with Queue(tmp_path, page_bytes=SMALL, clock=lambda: 10**9) as queue:
        run(main(queue))
        everything = payloads(queue.replay())
        assert len(everything) == 5 * MANY + 2
        assert everything.count(b"000500") == 5
        assert queue.verify().ok


def test_a_cancelled_task_ends_the_wait_of_its_thread(disk: Disk) -> None:
    """No thread waits for space for ever, and no message is sent."""
    policy = Retention(max_bytes=6 * SMALL)

    async def main(queue: Queue) -> None:
        for count in (2, 200):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.publish_async("w", 0, [b"y" * 16] * count), 0.2)

    with disk.open(retention=policy, on_full="block") as queue, queue.producer() as producer:
        queue.consumer("slow")
        for _ in range(18):
            producer.send(b"x" * 1300)
        began = time.monotonic()
        asyncio.run(main(queue))  # waits for its threads
        assert time.monotonic() - began < SOON
        assert len(queue) == 18


# --- a model --------------------------------------------------------------------------------------


class PublishMachine(RuleBasedStateMachine):
    """Pieces of two writers, in any order and number, against lists."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="pagequeue-model-")
        self.sent: list[bytes] = []
        self.done: dict[str, dict[int, range]] = {"a": {}, "b": {}}
        self.begins = {"a": 0, "b": 0}

    @initialize()
    def create(self) -> None:
        self.queue = Queue(self.directory, page_bytes=SMALL)

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.directory)

    @rule(
        writer=st.sampled_from("ab"),
        piece=st.integers(0, 40),
        count=st.one_of(st.integers(0, 4), st.sampled_from([130, 300])),
    )
    def publish(self, writer: str, piece: int, count: int) -> None:
        items = [b"%s %d %d" % (writer.encode(), piece, i) for i in range(count)]
        done = self.done[writer]
        if piece in done:
            expected = done[piece]
        elif piece < self.begins[writer]:
            expected = range(0)
        else:
            expected = range(len(self.sent), len(self.sent) + count)
            self.sent += items
            done[piece] = expected
            if len(done) > KEPT:
                oldest = next(iter(done))
                del done[oldest]
                self.begins[writer] = max(self.begins[writer], oldest + 1)
        assert self.queue.publish(writer, piece, items) == expected

    @rule(item=st.binary(max_size=40))
    def send(self, item: bytes) -> None:
        with self.queue.producer() as producer:
            assert producer.send(item) == len(self.sent)
        self.sent.append(item)

    @rule(power_cut=st.booleans())
    def reopen(self, *, power_cut: bool) -> None:
        self.queue.close()
        if power_cut:
            pretend_power_cut(self.directory)
        self.queue = Queue(self.directory)

    @invariant()
    def every_piece_is_there_once(self) -> None:
        if hasattr(self, "queue"):
            assert payloads(self.queue.replay()) == self.sent


TestPublishOnce = PublishMachine.TestCase
TestPublishOnce.settings = settings(
    max_examples=examples(12),
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
)
