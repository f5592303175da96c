"""MergedBatch: messages of several queues as a sequence and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from pagequeue import Batch, Merged, MergedBatch, Message
from pagequeue.merge.batch import MergedChunk, MergedSlice


def batch(first: int, *messages: tuple[int, bytes]) -> Batch:
    """Return a batch of messages, given as time and payload."""
    times = np.array([time for time, _ in messages], np.int64)
    return Batch.of_payloads([payload for _, payload in messages], first, times.tobytes())


def merged() -> MergedBatch:
    """Return seven messages of three queues, of which each part leaves some out."""
    parts = [
        MergedSlice(0, batch(5, (1, b"no"), (2, b"a"), (4, b"dd")), 1, 3),
        MergedSlice(2, batch(0, (2, b"b"), (3, b""), (4, b"e"), (9, b"no")), 0, 3),
        MergedSlice(3, batch(7, (1, b"x"), (4, b"fff")), 0, 2),
    ]
    chunk = MergedChunk(parts, ("p", "q", "r", "s"))
    return MergedBatch(chunk, chunk.order())


EXPECTED = [
    Merged(3, Message(b"x", 1, 7)),
    Merged(0, Message(b"a", 2, 6)),
    Merged(2, Message(b"b", 2, 0)),
    Merged(2, Message(b"", 3, 1)),
    Merged(0, Message(b"dd", 4, 7)),
    Merged(2, Message(b"e", 4, 2)),
    Merged(3, Message(b"fff", 4, 8)),
]


def test_order_is_by_time_then_queue_then_sequence() -> None:
    """Iterating, indexing and searching give the same messages."""
    found = merged()
    assert list(found) == EXPECTED
    assert isinstance(found, Sequence)
    assert [found[i] for i in range(7)] == EXPECTED
    assert found[-1] == EXPECTED[-1]
    assert found.index(EXPECTED[3]) == 3
    with pytest.raises(IndexError):
        found[7]


def test_columns_equal_the_messages() -> None:
    """All columns are int64 and of one length; payloads are bytes."""
    found = merged()
    assert found.queues.tolist() == [item.queue for item in EXPECTED]
    assert found.sequences.tolist() == [item.message.sequence for item in EXPECTED]
    assert found.timestamps.tolist() == [item.message.timestamp for item in EXPECTED]
    assert found.lengths.tolist() == [len(item.message.payload) for item in EXPECTED]
    assert found.payloads == [item.message.payload for item in EXPECTED]
    for column in (found.queues, found.sequences, found.timestamps, found.lengths):
        assert column.dtype == np.int64


@pytest.mark.parametrize("cut", [slice(2, 5), slice(None), slice(None, None, -2), slice(9, 3)])
def test_slices_are_batches(cut: slice) -> None:
    """Any slice will do, because the messages are not consecutive anyway."""
    part = merged()[cut]
    assert isinstance(part, MergedBatch)
    assert list(part) == EXPECTED[cut]
    assert part.payloads == [item.message.payload for item in EXPECTED[cut]]
    assert part == merged()[cut]


def test_items_know_how_many_are_left() -> None:
    """What was not taken of the iterator can be given out in another way."""
    items, left = merged().items()
    assert list(islice(items, 3)) == EXPECTED[:3]
    assert len(list(left)) == 4


def test_item_is_a_pair_with_names() -> None:
    """It can be unpacked, and has a readable repr."""
    first = next(iter(merged()))
    queue, message = first
    assert type(first) is Merged
    assert (first.queue, first.message) == (queue, message) == EXPECTED[0]
    assert repr(merged()) == "<MergedBatch of 7 messages of 3 queues>"


def test_arrow_has_the_names_of_the_queues() -> None:
    """Columns of the types that batches have; any slice gives its own rows."""
    pa = pytest.importorskip("pyarrow")
    found = merged()[1:6]
    table = pa.record_batch(found)
    assert table.schema == found.to_arrow().schema
    assert table.schema.field("timestamp").type == pa.timestamp("ns", "UTC")
    assert table["queue"].to_pylist() == ["pqrs"[item.queue] for item in EXPECTED[1:6]]
    assert table["sequence"].to_pylist() == found.sequences.tolist()
    assert table["timestamp"].cast(pa.int64()).to_pylist() == found.timestamps.tolist()
    assert table["payload"].to_pylist() == found.payloads
