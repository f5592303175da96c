"""Batch: consecutive messages as a sequence and as columns."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import SMALL, Clock

from pagequeue import Batch, Message, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_columns_say_what_was_sent(batch: Batch) -> None:
    """Payloads are bytes; sequences, timestamps and lengths are int64 of the same length."""
    assert batch.payloads == SENT
    assert all(type(payload) is bytes for payload in batch.payloads)
    assert batch.sequences.tolist() == [3, 4, 5, 6, 7]
    assert batch.timestamps.tolist() == TIMES
    assert batch.lengths.tolist() == [len(payload) for payload in SENT]
    columns = (batch.sequences, batch.timestamps, batch.lengths)
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}
    assert {column.shape for column in columns} == {(5,)}


def test_columns_of_what_was_read_cannot_be_changed(batch: Batch) -> None:
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
    """Equality goes by payloads, timestamps and place; a batch cannot be hashed."""
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
    """A batch in a log says what it is, not all that is in it."""
    assert repr(batch) == "<Batch of 5 messages, sequences 3 to 7>"


def test_batch_outlives_its_queue(tmp_path: Path) -> None:
    """What was received was copied: closing the queue takes nothing away."""
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
        (0,), (0,), (0,)
    ]  # fmt: skip
