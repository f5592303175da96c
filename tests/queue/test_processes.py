"""Many processes and threads on one queue: one order, the same for all; forks are harmless."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import (
    LONG,
    SMALL,
    drive,
    end,
    finish,
    payloads,
    ready,
    send_for_ever,
    send_lines,
    start,
    use_after_fork,
    within,
)
from tiers import slow_but

from pagequeue import Queue

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = 3
COUNT = 700
SEQUENCE, TIMESTAMP, WHO, NUMBER, BATCH, SIZE = range(6)


@pytest.mark.parametrize("method", slow_but(["fork"], ["fork", "spawn"]))
def test_all_consumers_see_one_order_of_all_that_all_producers_sent(
    tmp_path: Path, method: str
) -> None:
    """I1, I2, I8: no gap, no double, no tear, no batch taken apart, no timestamp that goes back.

    Six producing threads, half of them sharing a producer, and nine consumers in three processes,
    which poll, receive, iterate and receive many; a third of them read-only.
    """
    (out := tmp_path / "out").mkdir()
    finish(start(drive.__name__, method, tmp_path / "q", out, PROCESSES, COUNT), 3 * LONG)
    seen = [np.load(path) for path in sorted(out.glob("*.npy"))]
    assert len(seen) == PROCESSES * 3
    first = seen[0]
    for other in seen[1:]:
        np.testing.assert_array_equal(other, first)
    total = PROCESSES * 2 * COUNT
    np.testing.assert_array_equal(first[:, SEQUENCE], np.arange(total))
    assert (np.diff(first[:, TIMESTAMP]) >= 0).all()
    for who in range(PROCESSES * 2):
        own = first[first[:, WHO] == who]
        np.testing.assert_array_equal(own[:, NUMBER], np.arange(COUNT))
    starts = np.flatnonzero(np.diff(first[:, (WHO, BATCH)], axis=0, prepend=-1).any(axis=1))
    sizes = np.diff(starts, append=total)
    np.testing.assert_array_equal(sizes, first[starts, SIZE])
    with Queue(tmp_path / "q", create=False) as queue:
        assert queue.verify().ok
        assert queue.info().page_count > 20
        assert [m.sequence for m in queue.replay()] == list(range(total))


def test_message_is_there_for_other_processes_when_send_returns(tmp_path: Path) -> None:
    """I2: no wait is needed between the return of a send and a poll elsewhere, either way."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        other = start(send_lines.__name__, queue.directory)
        assert other.stdin is not None
        try:
            assert ready(other) == "open"
            consumer = queue.consumer()
            for i in range(0, 300, 2):
                assert producer.send(b"." * (i % 200)) == i
                assert consumer.poll() is not None
                other.stdin.write(f"{i}\n")
                other.stdin.flush()
                assert ready(other) == str(i + 1)
                message = consumer.poll()
                assert message is not None
                assert (message.sequence, message.payload) == (i + 1, b"%d" % i)
        finally:
            end(other)
        assert queue.verify().ok


def test_batch_is_visible_whole_to_a_reader_that_polls_all_the_time(tmp_path: Path) -> None:
    """I8: a reader that gets the first message of a batch gets the others without waiting."""
    size, acked = 120, tmp_path / "acked"
    acked.write_bytes(bytes(8))
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue, contextlib.ExitStack() as stop:
        other = start(send_for_ever.__name__, queue.directory, acked, size)
        try:
            ready(other)
            consumer = queue.consumer(latest=True)
            stop.enter_context(within(int(2 * LONG)))  # if the other one dies
            for _ in range(400):
                while (message := consumer.poll()) is None:
                    pass
                batch = [message, *(consumer.poll() for _ in range(size - 1))]
                assert None not in batch
                assert message.sequence % size == 0
        finally:
            end(other)


@pytest.mark.slow
def test_processes_that_open_a_new_queue_at_once_create_one_queue(tmp_path: Path) -> None:
    """The first process creates it; it is not overwritten, and every open succeeds."""
    for round_ in range(3):
        prefix = f"new{round_}"
        others = [start(send_lines.__name__, tmp_path / "q", prefix) for _ in range(4)]
        for i, other in enumerate(others):
            assert other.stdin is not None
            other.stdin.write(f"{i}\n")
            other.stdin.close()
            other.stdin = None
        for other in others:
            finish(other)
        with Queue(tmp_path / "q", prefix=prefix, create=False) as queue:
            assert sorted(payloads(queue.replay())) == [b"0", b"1", b"2", b"3"]
            assert queue.verify().ok


@pytest.mark.slow
def test_spawned_child_opens_by_path(tmp_path: Path) -> None:
    """A spawned process needs only the path."""
    context = multiprocessing.get_context("spawn")
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with context.Pool(1) as pool:
            pool.apply(_send_one, (queue.directory,))
        assert payloads(queue.replay()) == [b"spawned"]


def _send_one(directory: str) -> None:
    with Queue(directory) as queue:
        queue.producer().send(b"spawned")


@pytest.mark.parametrize("leave", ["exit", "close", "kill", "reopen"])
def test_handles_of_a_forked_child_raise_and_do_not_affect_the_parent(
    tmp_path: Path, leave: str
) -> None:
    """A child's inherited handles raise ForkedError; however it ends, the parent's go on."""
    said = finish(start(use_after_fork.__name__, tmp_path / "q", leave)).splitlines()
    child, (received, good) = json.loads(said[0]), json.loads(said[1])
    extra = ["from the child"] if leave == "reopen" else []
    assert received == ["a", "b", "c", *extra, "parent", "rotated"]
    assert good
    assert {name: result for name, result in child.items() if result != "ForkedError"} == {}
