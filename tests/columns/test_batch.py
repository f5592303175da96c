"""Batch: consecutive messages as a sequence and as columns."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import warm
from plugin import MESSAGES, Disk
from support import SMALL, Clock

from pagequeue import (
    Batch,
    CorruptFrame,
    CorruptPage,
    Expired,
    InvalidOption,
    Message,
    Queue,
    RecordSize,
    Retention,
)
from pagequeue import format as fmt
from pagequeue.page import spare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SENT = [b"", b"a", b"bc" * 40, b"d", b"e" * 7]
TIMES = [10, 20, 20, 30, 40]


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    """Return five messages of a queue, with sequences from 3 on."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(5)) as queue:
        with queue.producer() as producer:
            producer.send_many([b"before"] * 3)
            for payload, timestamp in zip(SENT, TIMES, strict=True):
                producer.send(payload, timestamp=timestamp)
        yield queue.consumer(sequence=3).receive_many()


def test_columns_hold_the_messages_sent(batch: Batch) -> None:
    """Payloads are bytes; sequences, timestamps and lengths are int64 of the same length."""
    assert batch.payloads == SENT
    assert all(type(payload) is bytes for payload in batch.payloads)
    assert batch.sequences.tolist() == [3, 4, 5, 6, 7]
    assert batch.timestamps.tolist() == TIMES
    assert batch.lengths.tolist() == [len(payload) for payload in SENT]
    columns = (batch.sequences, batch.timestamps, batch.lengths)
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}
    assert {column.shape for column in columns} == {(5,)}


def test_columns_of_a_batch_are_read_only(batch: Batch) -> None:
    """Timestamps and lengths are read-only views."""
    for column in (batch.timestamps, batch.lengths):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_batch_is_a_sequence_of_messages(batch: Batch) -> None:
    """Indexing, iterating, reversing and searching give the messages that the columns describe."""
    expected = [
        Message(payload, timestamp, sequence)
        for payload, timestamp, sequence in zip(SENT, TIMES, range(3, 8), strict=True)
    ]
    assert isinstance(batch, Sequence)
    assert list(batch) == expected
    assert [batch[i] for i in range(len(batch))] == expected
    assert [batch[i] for i in range(-5, 0)] == expected
    assert list(reversed(batch)) == expected[::-1]
    assert batch.index(expected[2]) == 2
    assert expected[4] in batch
    assert batch[np.int64(1)] == expected[1]


@pytest.mark.parametrize("index", [5, -6, 2**70])
def test_index_outside_is_an_index_error(batch: Batch, index: int) -> None:
    """A batch has no messages but its own."""
    with pytest.raises(IndexError):
        batch[index]


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 3), (-2, None), (4, 2), (9, 20), (0, 0)])
def test_slice_is_a_batch_with_its_own_columns(batch: Batch, start: int, stop: int | None) -> None:
    """Slicing cuts all columns alike."""
    part = batch[start:stop]
    assert list(part) == list(batch)[start:stop]
    assert part.payloads == SENT[start:stop]
    assert part.timestamps.tolist() == TIMES[start:stop]
    assert part.lengths.tolist() == [len(payload) for payload in SENT[start:stop]]


def test_slice_with_gaps_is_refused(batch: Batch) -> None:
    """A batch holds consecutive messages, so a step other than 1 is an error and not a surprise."""
    for step in (2, -1):
        with pytest.raises(ValueError, match="step 1"):
            batch[::step]


def test_batches_are_equal_when_their_messages_are(batch: Batch) -> None:
    """Payloads, timestamps and sequences decide; a batch is not hashable."""
    assert batch == batch[:]
    assert batch[1:3] != batch[2:4]
    assert batch[:2] != batch[:3]
    assert batch != list(batch)
    with pytest.raises(TypeError):
        hash(batch)


def test_batch_survives_pickling(batch: Batch) -> None:
    """A batch can be handed to another process."""
    again = pickle.loads(pickle.dumps(batch))
    assert again == batch
    assert list(again) == list(batch)


def test_repr_names_count_and_sequences(batch: Batch) -> None:
    """A batch in a log is described, not printed in full."""
    assert repr(batch) == "<Batch of 5 messages, sequences 3 to 7>"


def test_batch_outlives_its_queue(tmp_path: Path) -> None:
    """A received batch is a copy: closing the queue does not affect it."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"a", b"b"])
        batch = queue.consumer().receive_many()
        view = batch.timestamps
    assert batch.payloads == [b"a", b"b"]
    assert view.tolist() == batch.timestamps.tolist()


def test_last_joins_pages_into_one_batch(tmp_path: Path) -> None:
    """I1: what comes from several pages is one run of consecutive sequences."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            for i in range(60):
                producer.send(b"%d" % i + b"." * 400)
        assert queue.info().page_count > 3
        last = queue.last(50)
        assert last.sequences.tolist() == list(range(10, 60))
        assert [int(payload.strip(b".")) for payload in last.payloads] == list(range(10, 60))
        assert list(last) == list(queue.replay(sequence=10))


def test_empty_batch_has_empty_columns(tmp_path: Path) -> None:
    """No messages is a batch too."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        empty = queue.last(10)
    assert len(empty) == 0
    assert list(empty) == []
    assert empty.payloads == []
    assert [column.shape for column in (empty.sequences, empty.timestamps, empty.lengths)] == [
        (0,),
        (0,),
        (0,),
    ]


# --- what a batch keeps --------------------------------------------------------------------------


def test_payloads_are_created_once_and_the_page_is_released_then(tmp_path: Path) -> None:
    """Payload objects are created on first access; afterwards the batch needs no page."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"a" * 20, b"b" * 20])
        batch = queue.last(2)
        part = batch[1:]
        assert [p.region for p in batch._parts()] == [p.region for p in part._parts()]
        assert batch[1].payload == b"b" * 20
        assert len(batch._parts()) == 1
        assert batch.payloads is batch.payloads
        assert batch._parts() == []
        assert part.payloads == batch.payloads[1:]
        assert batch.lengths.tolist() == [20, 20]


def test_batch_stays_valid_after_close_compression_and_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: closed, compressed or retired while a batch views it, a page keeps its bytes."""
    monkeypatch.setattr(spare, "PAGE_BYTES_MIN", 0)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=Retention(max_bytes=1 << 17)) as queue:
        with queue.producer() as producer:
            producer.send_many([b"%03d" % i + b"." * 97 for i in range(30)])
            queue.rotate()
        batches = [queue.last(30), queue.between(), *queue.batches()]
        queue.compress()
        batches += [queue.last(30), queue.between(), *queue.batches()]
        views = [batch.to_numpy("S100") for batch in batches]
        expected = [m.payload for m in queue.replay()]
        queue._store.roller._is_fast = True
        with queue.producer() as producer:
            for _ in range(200):
                producer.send(b"new" * 400)
                queue.trim()
        assert queue.head_sequence >= 30
        with pytest.raises(Expired):
            queue.replay(sequence=0)
    assert all(batch.payloads == expected for batch in batches)
    assert all(view.tolist() == expected for view in views)


OTHER = """
import sys
from pagequeue import Queue, Retention
from pagequeue.page import spare
spare.PAGE_BYTES_MIN = 0
with Queue(sys.argv[1], retention=Retention(max_bytes=4 * 4096)) as queue:
    queue._store.roller._is_fast = True
    with queue.producer() as producer:
        for i in range(200):
            producer.send(b"new" * 400)
            queue.trim()
    print(queue.head_sequence)
"""
"""Fills page after page of the files of retired ones."""


@pytest.mark.parametrize("read_only", [False, True])
def test_no_other_process_uses_a_page_again_that_a_batch_views(
    tmp_path: Path, read_only: bool
) -> None:
    """I13: the shared lock on the file goes with the last view, and not with queue or batch."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"%03d" % i + b"." * 97 for i in range(30)])
        queue.rotate()
    with Queue(tmp_path / "q", read_only=read_only) as queue:
        view = queue.between().to_numpy("S100")
        batch = queue.last(30)
    del queue
    command = [sys.executable, "-W", "error", "-c", OTHER, str(tmp_path / "q")]
    done = warm.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
    assert view.tolist() == batch.payloads == [b"%03d" % i + b"." * 97 for i in range(30)]


@pytest.mark.parametrize("cut", [0, SMALL, SMALL + 500])
def test_truncation_after_reading_is_an_error_and_not_zeros(tmp_path: Path, cut: int) -> None:
    """Messages before the cut are returned; all others raise `CorruptPage`, in every method."""
    with Queue(tmp_path / "q", page_bytes=4 * SMALL) as queue:
        queue.producer().send_many([b"x" * 1500 for i in range(8)])
        batch = queue.last(8)
        whole = (cut - 64) // 1520 if cut else 0
        os.truncate(tmp_path / "q" / "queue-0000000001.page", cut)
        uses: list[Callable[[Batch], object]] = [
            lambda part: part.payloads,
            list,
            lambda part: part[len(part) - 1],
            lambda part: part.to_numpy("S1500"),
            lambda part: part.to_arrow(),
            lambda part: part.to_arrow(copy=True),
            pickle.dumps,
            lambda part: part == part[:],
        ]
        for use in uses:
            with pytest.raises(CorruptPage, match="truncated while it was open"):
                use(batch[:])
        assert batch.lengths.tolist() == [1500] * 8
        for use in uses if whole else ():
            use(batch[:whole])
        assert batch[:whole].payloads == [b"x" * 1500] * whole


def test_damage_ends_a_batch_and_the_next_read_raises(disk: Disk) -> None:
    """I2: the valid messages before the damage are returned first."""
    disk.send(*MESSAGES)
    disk.tear(2, 1)
    with disk.open() as queue:
        batches = queue.batches()
        assert [len(next(batches)), len(next(batches))] == [3, 1]
        with pytest.raises(CorruptFrame, match="message 4"):
            next(batches)
        with pytest.raises(CorruptFrame, match="message 4"):
            queue.between()


# --- records -------------------------------------------------------------------------------------

RECORD = np.dtype([("sensor", "<u2"), ("value", ">f8"), ("tag", "S3")])


def test_records_are_one_view_of_the_page(tmp_path: Path) -> None:
    """No copy: the array's memory is the map, the stride is a frame, and it is read-only."""
    sent = np.zeros(50, RECORD)
    sent["sensor"], sent["value"], sent["tag"] = range(50), np.arange(50) / 4, b"abc"
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            producer.send_many([record.tobytes() for record in sent])
        batch = queue.last(50)
        records = batch.to_numpy(RECORD)
        page = np.frombuffer(memoryview(batch._parts()[0].region), np.uint8)
        assert np.shares_memory(records, page)
        assert records.strides == (fmt.frame_bytes(RECORD.itemsize),)
        assert not records.flags.writeable
        assert records.dtype == RECORD
        np.testing.assert_array_equal(records, sent)
        np.testing.assert_array_equal(batch[10:20].to_numpy(RECORD), sent[10:20])
        assert batch.payloads[3] == sent[3].tobytes()
        np.testing.assert_array_equal(batch.to_numpy(RECORD), sent)


def test_records_of_several_pages_are_joined(tmp_path: Path) -> None:
    """The dtype stays as it is given, byte order and subarrays included."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        sent = np.arange(3000, dtype=">i4").reshape(1000, 3)
        with queue.producer() as producer:
            for row in sent:
                producer.send(row.tobytes())
        assert queue.info().page_count > 3
        found = queue.between().to_numpy((">i4", (3,)))
        assert found.dtype == sent.dtype
        assert not found.flags.writeable
        np.testing.assert_array_equal(found, sent)
        assert queue.last(0).to_numpy(">i4").shape == (0,)
        assert queue.last(0).to_numpy(">i4").dtype == sent.dtype


def test_payload_of_another_size_is_named(tmp_path: Path) -> None:
    """The error names the message, its size and the dtype's size."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        queue.producer().send_many([b"12345678", b"12345678", b"1234", b""])
        batch = queue.last(4)
        for _ in range(2):
            with pytest.raises(RecordSize, match="message 2 has 4 bytes, the dtype 8") as raised:
                batch.to_numpy("<i8")
            error = raised.value
            assert (error.sequence, error.size_bytes, error.record_bytes) == (2, 4, 8)
            assert len(batch[:2].to_numpy("<i8")) == 2
            assert batch.payloads  # and once more from copies
        with pytest.raises(InvalidOption, match="has size 0"):
            batch.to_numpy("V0")
        with pytest.raises(TypeError, match="Python objects"):
            batch.to_numpy(object)
