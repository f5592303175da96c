"""Memory that changes while it is sent: what is stored has the checksum and the size it was given.

The changes are made at calls of the system between measuring, summing and writing, where another
thread or process would have to be very quick.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Overtaken, Queue
from pagequeue.bulk.staged_fragments import SHARED_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Changed = Callable[[str, Callable[[], object]], None]

PAGE = 1 << 16
LARGE = 3 * PAGE + 5
COUNT = 90
"""Messages of 1000 bytes: they take two pages."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of small pages."""
    with Queue(tmp_path / "q", page_bytes=PAGE) as made:
        yield made


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Return what has something done before each call of a function of `os`."""

    def at(name: str, change: Callable[[], object]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            change()
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    return at


def memories() -> dict[str, Callable[[], Any]]:
    """Return what others can write to, by its kind."""
    return {
        "bytearray": lambda: bytearray(LARGE),
        "mmap": lambda: mmap.mmap(-1, LARGE),
        "array of NumPy": lambda: np.zeros(LARGE, "u1"),
        "numbers": lambda: np.zeros(LARGE // 8 + 1, ">f8"),
        "times": lambda: np.zeros(LARGE // 8 + 1, "M8[s]"),
        "records": lambda: np.zeros(LARGE // 5 + 1, [("a", "<i4"), ("b", "i1")]),
        "one record": lambda: np.zeros((), f"V{LARGE}"),
        "array": lambda: array.array("i", bytes(4 * (LARGE // 4 + 1))),
        "ctypes": ctypes.c_int32 * (LARGE // 4 + 1),
        "a view that cannot write": lambda: memoryview(bytearray(LARGE)).toreadonly(),
    }


def writable(memory: Any) -> memoryview:  # noqa: ANN401 - any buffer
    """Return a view that writes to a memory."""
    if isinstance(memory, np.ndarray):
        return memoryview(memory.reshape(-1).view("u1"))
    view = memoryview(memory)
    return memoryview(view.obj).cast("B") if view.readonly else view.cast("B")


@pytest.mark.parametrize("memory", memories().values(), ids=memories())
@pytest.mark.parametrize("way", ["send", "send_many", "open"])
def test_large_message_from_memory_that_changes_is_received(
    queue: Queue, changed: Changed, memory: Callable[[], Any], way: str
) -> None:
    """Its checksums are those of what was stored: nothing was when they were computed."""
    source = memory()
    with queue.producer() as producer, writable(source) as view:
        value = 0

        def change() -> None:
            nonlocal value
            value = (value + 1) % 256
            view[:] = bytes([value]) * len(view)

        changed("pwritev", change)
        if way == "send":
            producer.send(source)
        elif way == "send_many":
            producer.send_many([b"small", source])
        else:
            with producer.open() as file:
                file.write(source)
        assert value > 0
        received = queue.last(1)[0].payload
        assert len(received) == len(view)
        assert received[0] == 0


def test_large_bytes_are_written_without_a_copy(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody changes a bytes object, and a view of one; a small rest is copied."""
    payload = bytes(range(256)) * (LARGE // 256)
    seen = []
    real = os.pwritev

    def pwritev(fd: int, parts: list[Any], position: int) -> int:
        views = map(memoryview, parts)
        seen.extend(view.obj for view in views if view.nbytes > SHARED_BYTES_MIN)
        return real(fd, parts, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with queue.producer() as producer:
        producer.send(payload)
        producer.send(memoryview(payload)[:-1])
    assert len(seen) > 4
    assert all(one is payload for one in seen)
    assert [message.payload for message in queue.last(2)] == [payload, payload[:-1]]


@pytest.mark.parametrize("step", [1000, -900])
def test_bytearrays_that_others_resize_are_sent_as_they_were(
    queue: Queue, changed: Changed, step: int
) -> None:
    """Small ones are copied; large ones cannot be resized while they are read, as in a file."""
    small = [bytearray([i]) * 1000 for i in range(COUNT)]
    large = bytearray(b"x") * LARGE
    refused = 0

    def resize() -> None:
        nonlocal refused
        for one in [*small, large]:
            try:
                one[len(one) + min(step, 0) :] = bytes(max(step, 0))
            except BufferError:
                assert one is large
                refused += 1

    changed("mkdir", resize)
    with queue.producer() as producer:
        sent = producer.send_many([*small[:50], large, *small[50:]])
        assert len(sent) == COUNT + 1
        found = [message.payload for message in queue.last(COUNT + 1)]
        assert found[50] == b"x" * LARGE
        assert found[:50] + found[51:] == [bytes([i]) * 1000 for i in range(COUNT)]
        assert refused > 0
        large.append(1)  # free again


def test_array_of_bytes_whose_items_get_longer_is_sent_as_it_was(
    queue: Queue, changed: Changed
) -> None:
    """The length of an item of NumPy follows from its bytes."""
    items = np.array([b"x" * 700] * COUNT, "S1000")

    def lengthen() -> None:
        items[:] = b"y" * 1000

    changed("mkdir", lengthen)
    with queue.producer() as producer:
        producer.send_many(items)
        assert queue.last(COUNT).payloads == [b"x" * 700] * COUNT


def test_error_leaves_no_memory_locked(queue: Queue) -> None:
    """A bytearray can be resized in the handler of the error that its message met."""
    payload = bytearray(LARGE)
    with queue.producer() as producer:
        producer.send(b"first")
        with pytest.raises(Overtaken) as raised:
            producer.send(payload, at=0)
        payload.append(1)  # the traceback has the frames in which it was locked
        assert raised.value.tail_sequence == 1
