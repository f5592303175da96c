"""Merge that follows: in order as far as that can be known, awake at once, never for ever."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import loops
import pytest
from support import (
    SMALL,
    Clock,
    end,
    finish,
    ready,
    send_lines,
    start,
    until_asleep,
    wait_for_message,
)

from pagequeue import ClosedError, Merge, NothingReceived, Queue, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONG = 30.0
"""Longer than any test waits for what should come."""


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[list[Queue]]:
    """Three queues with one clock, which does not advance."""
    clock = Clock(10**15)
    made = [Queue(tmp_path / str(n), page_bytes=SMALL, clock=clock) for n in range(3)]
    yield made
    for queue in made:
        queue.close()


def clock_of(queues: list[Queue]) -> Clock:
    """Return the clock of all these queues."""
    clock = queues[0]._store.clock._given
    assert isinstance(clock, Clock)
    return clock


def send(queue: Queue, *payloads: bytes) -> None:
    """Send messages at this moment."""
    with queue.producer() as producer:
        for payload in payloads:
            producer.send(payload)


def taken(merged: Merge) -> list[bytes]:
    """Return what can be given out now."""
    return [item.message.payload for item in iter(merged.poll, None)]


def test_newer_messages_elsewhere_let_a_message_go_at_once(queues: list[Queue]) -> None:
    """With something newer in every other queue no patience is needed."""
    clock = clock_of(queues)
    merged = merge(queues, follow=True, patience=LONG)
    send(queues[0], b"a", b"b")
    clock.now += 1
    send(queues[1], b"c")
    assert taken(merged) == []  # the third may have sent something older
    clock.now += 1
    send(queues[2], b"d")
    assert taken(merged) == [b"a", b"b"]  # not c: the first may send at its time
    clock.now += 1
    send(queues[0], b"e")
    assert taken(merged) == [b"c"]
    assert merged.late == 0


def test_message_older_than_the_patience_is_returned_though_others_are_silent(
    queues: list[Queue],
) -> None:
    """By the queues' clock: no message sent from now on can be as old."""
    clock = clock_of(queues)
    merged = merge(queues, follow=True, patience=5.0)
    send(queues[1], b"a")
    clock.now += 4_000_000_000
    send(queues[1], b"b")
    assert taken(merged) == []
    clock.now += 1_000_000_000
    assert taken(merged) == []  # the first may have sent at the same time, and would come first
    clock.now += 1
    assert taken(merged) == [b"a"]
    clock.now += 4_000_000_000
    assert taken(merged) == [b"b"]


def test_message_of_the_future_is_held_for_the_patience_only(queues: list[Queue]) -> None:
    """By its sender, or after the clock was set back: it does not wait for that time."""
    clock = clock_of(queues)
    merged = merge(queues, follow=True, patience=0.05)
    send(queues[0], b"a")
    with queues[1].producer() as producer:
        producer.send(b"later", timestamp=clock.now + 10**18)
    assert merged.receive(timeout=LONG).message.payload == b"a"
    assert merged.receive(timeout=LONG).message.payload == b"later"
    assert merged.late == 0
    send(queues[0], b"b", b"c")
    assert merged.receive(timeout=LONG).message.payload == b"b"
    assert merged.receive(timeout=LONG).message.payload == b"c"
    assert merged.late == 2


def test_late_message_is_given_out_and_counted(queues: list[Queue]) -> None:
    """No message is lost because it is out of order."""
    clock = clock_of(queues)
    merged = merge(queues, follow=True, patience=0)
    with queues[0].producer() as producer:
        producer.send(b"old", timestamp=clock.now - 5)
    with queues[1].producer() as producer:
        producer.send(b"new", timestamp=clock.now - 1)
    assert taken(merged) == [b"old", b"new"]
    with queues[2].producer() as producer:
        producer.send(b"late", timestamp=clock.now - 3)
    assert taken(merged) == [b"late"]
    assert merged.late == 1


def test_until_ends_it_by_the_clock(queues: list[Queue]) -> None:
    """Also where no message comes that is as new."""
    clock = clock_of(queues)
    until = clock.now + 1000
    merged = merge(queues, follow=True, until=until, patience=0)
    send(queues[0], b"a")
    clock.now = until
    send(queues[1], b"too new")
    assert [item.message.payload for item in merged] == [b"a"]
    with pytest.raises(NothingReceived, match="has ended"):
        merged.receive()


def test_waiting_ends_with_its_timeout_and_has_not_moved(queues: list[Queue]) -> None:
    """As for consumers."""
    merged = merge(queues, follow=True)
    for wait in (merged.receive, merged.receive_many):
        with pytest.raises(TimeoutError, match="no message of 3 queues within"):
            wait(timeout=0.01)
        with pytest.raises(TimeoutError):
            wait(timeout=0)
    for queue in queues:
        send(queue, b"a")
    assert [merged.receive(timeout=LONG).queue for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("read_only", [False, True])
def test_sleeper_is_woken_by_any_queue(tmp_path: Path, *, read_only: bool) -> None:
    """Also where it may not announce that it sleeps."""
    made = [Queue(tmp_path / str(n), page_bytes=SMALL) for n in range(3)]
    opened = [Queue(queue.directory, read_only=True) for queue in made] if read_only else made
    with merge(opened, follow=True, patience=0.001) as merged:
        for number in (2, 0, 1):
            timer = threading.Timer(0.05, send, (made[number], b"x%d" % number))
            timer.start()
            item = merged.receive(timeout=LONG)
            assert (item.queue, item.message.payload) == (number, b"x%d" % number)
            timer.join()
    for queue in (*opened, *made):
        queue.close()


def test_waiting_uses_little_of_a_core(tmp_path: Path) -> None:
    """Waiting is sleeping."""
    made = [Queue(tmp_path / str(n), page_bytes=SMALL) for n in range(3)]
    with merge(made, follow=True) as merged:
        for _ in range(20):  # load can only make the figure worse
            used = time.process_time()
            with pytest.raises(TimeoutError):
                merged.receive(timeout=1.0)
            used = time.process_time() - used
            if used < 0.05:
                break
        assert used < 0.05
    for queue in made:
        queue.close()


@pytest.mark.parametrize("what", ["merge", "queue"])
def test_closing_wakes_a_waiting_thread(queues: list[Queue], what: str) -> None:
    """From another thread; the wait ends in ClosedError."""
    merged = merge(queues, follow=True)
    closing = merged.close if what == "merge" else queues[1].close
    timer = threading.Timer(0.05, closing)
    timer.start()
    with pytest.raises(ClosedError):
        merged.receive(timeout=LONG)
    timer.join()


def test_ctrl_c_ends_a_wait(queues: list[Queue]) -> None:
    """At once, in the main thread."""
    child = start(wait_for_message.__name__, queues[0].directory, "merge")
    assert ready(child) == "waiting"
    until_asleep(child.pid)
    child.send_signal(signal.SIGINT)
    assert finish(child) == "interrupted"


def test_threads_that_send_are_followed_in_order(tmp_path: Path) -> None:
    """Each message once; in order of time except those counted as late."""
    made = [Queue(tmp_path / str(n), page_bytes=1 << 16) for n in range(3)]
    count = 2000

    def work(queue: Queue, number: int) -> None:
        with queue.producer() as producer:
            for i in range(count):
                producer.send(b"%d" % i)
                if i % (50 * (number + 1)) == 0:
                    time.sleep(0.002 * number)

    threads = [threading.Thread(target=work, args=(q, n)) for n, q in enumerate(made)]
    with merge(made, follow=True, patience=2.0) as merged:
        for thread in threads:
            thread.start()
        found = [merged.receive(timeout=LONG) for _ in range(3 * count)]
        for thread in threads:
            thread.join()
        check(found, merged.late, [count] * 3)
    for queue in made:
        queue.close()


def check(found: list[Any], late: int, counts: list[int]) -> None:
    """Check that each message is there once, in its queue's order, and in that of time."""
    for number, count in enumerate(counts):
        own = [item.message.sequence for item in found if item.queue == number]
        assert own == list(range(count))
    assert late == 0
    keys = [(item.message.timestamp, item.queue) for item in found]
    assert keys == sorted(keys)


def test_processes_that_send_are_followed_in_batches(tmp_path: Path) -> None:
    """The same with processes, one of which is silent for long."""
    paths = [str(tmp_path / str(n)) for n in range(2)]
    made = [Queue(path, page_bytes=1 << 16) for path in paths]
    children = [start(send_lines.__name__, path) for path in paths]
    for child in children:
        assert ready(child) == "open"
    with merge(made, follow=True, patience=2.0) as merged:
        found: list[Any] = []
        for turn in range(20):
            for number, child in enumerate(children):
                if turn % 10 and number:
                    continue
                assert child.stdin is not None
                child.stdin.write("line\n")
                child.stdin.flush()
        while len(found) < 22:
            found.extend(merged.receive_many(timeout=LONG))
        check(found, merged.late, [20, 2])
    for child in children:
        end(child)
    for queue in made:
        queue.close()


def test_coroutines_wait_without_a_thread_of_their_own(
    queues: list[Queue], run: Callable[..., Any]
) -> None:
    """`async for` and the two calls; a cancelled wait consumes no message."""

    async def main() -> list[bytes]:
        merged = merge(queues, follow=True, patience=0.001)
        with pytest.raises(TimeoutError):
            await merged.receive_async(timeout=0.01)
        receiving = asyncio.ensure_future(merged.receive_many_async())
        await loops.until(lambda: all(map(loops.waiting, queues)))
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        asyncio.get_running_loop().call_later(0.02, send, queues[2], b"a", b"b", b"c")
        found = []
        async for item in merged:
            found.append(item.message.payload)
            if len(found) == 2:
                break
        found.extend((await merged.receive_many_async(timeout=LONG)).payloads)
        closing = asyncio.ensure_future(merged.receive_async())
        await loops.until(lambda: all(map(loops.waiting, queues)))
        threading.Thread(target=merged.close).start()
        with pytest.raises(ClosedError):
            await closing
        return found

    assert run(main()) == [b"a", b"b", b"c"]


def test_finite_merge_ends_for_coroutines_too(queues: list[Queue], run: Callable[..., Any]) -> None:
    """`async for` is over when all is given out."""
    for queue in queues:
        send(queue, b"a")

    async def main() -> list[int]:
        return [item.queue async for item in merge(queues)]

    assert run(main()) == [0, 1, 2]
