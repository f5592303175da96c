"""What the core is given: payloads as objects."""

from __future__ import annotations

import gc
import sys
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Queue, _core
from pagequeue.queue.queue import internals
from pagequeue.send.queue_end import QueueEnd

if TYPE_CHECKING:
    from pathlib import Path


def test_measured_holds_payloads_and_takes_their_sizes() -> None:
    """Of bytes and of all other buffers, in bytes; each object is referred to once more."""
    items = [
        b"",
        b"abc",
        bytearray(5),
        memoryview(b"12345678")[2:],
        array("q", [1, 2]),
        b"\0" * 999,
    ]
    before = [sys.getrefcount(item) for item in items]
    held, lengths = _core.measured(items, 0)
    assert held == tuple(items)
    assert np.frombuffer(lengths, np.int64).tolist() == [0, 3, 5, 6, 16, 999]
    del held
    copied, lengths = _core.measured(items, 6)
    assert [type(one) for one in copied] == [bytes] * 4 + [array, bytes]
    assert list(map(bytes, copied)) == list(map(bytes, items))
    assert np.frombuffer(lengths, np.int64).tolist() == [0, 3, 5, 6, 16, 999]
    del copied
    assert [sys.getrefcount(item) for item in items] == before
    assert _core.measured([], 0) == ((), b"")


@pytest.mark.parametrize("change", [-40, -100, 7])
def test_measured_holds_what_a_garbage_collection_left(change: int) -> None:
    """Making a tuple can collect garbage before Python 3.12, and finalizers can change the list."""
    given = [b"abc"] * 100

    def collected(*_: object) -> None:
        if len(given) == 100:
            given[:] = given[:change] if change < 0 else given * change

    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        held, lengths = _core.measured(given, 0)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    assert held == (b"abc",) * len(held)
    assert np.frombuffer(lengths, np.int64).tolist() == [3] * len(held)
    assert len(held) in {100, 100 + change if change < 0 else 100 * change}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((b"a",), "must be list"),
        ([b"a", "text"], "text.encode"),
        ([b"a", None, b"b"], "NoneType"),
        ([bytearray(3), np.zeros((4, 4))[:, 1]], "contiguous"),
        ([np.array([object()])], "addresses"),
    ],
)
def test_measured_refuses_what_has_no_bytes(given: Any, match: str) -> None:  # noqa: ANN401
    """With the words of `send`, and without keeping anything."""
    before = [sys.getrefcount(item) for item in given]
    with pytest.raises(TypeError, match=match):
        _core.measured(given, 100)
    assert [sys.getrefcount(item) for item in given] == before


def test_some_payloads_of_a_tuple_are_sent(tmp_path: Path) -> None:
    """From one to another, or as many as there are; the objects are as they were."""
    items = (b"0", bytearray(b"1"), b"2", memoryview(b"3"), b"4")
    with Queue(tmp_path / "q") as queue, QueueEnd(internals(queue).store) as producer:
        assert producer._send_many(items, None, None, None, 1, 4) == (0, 3)
        assert producer._send_many(items, None, None, None, 3) == (3, 2)
        for begin, end in [(5, 9), (2, 2), (3, 1), (-1, 1), (-5, -2)]:
            assert producer._send_many(items, None, None, None, begin, end) is None
        with pytest.raises(ValueError, match="one for each"):
            producer._send_many(items, bytes(40), None, None, 1, 3)
        with queue.replay() as replay:
            assert [message.payload for message in replay] == [b"1", b"2", b"3", b"3", b"4"]
    items[1].extend(b"not held")  # type: ignore[union-attr]
