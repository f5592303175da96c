"""Waiting: asleep without cost, awake at once, and never for ever."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import (
    LONG,
    SOON,
    WAITERS,
    end,
    finish,
    hold_writers_lock,
    ready,
    send_counted,
    send_for_ever,
    send_lines,
    start,
    until,
    until_asleep,
    wait_for_message,
)
from tools import missing

from pagequeue import NothingReceived, Queue, _core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDLE_SECONDS = 0.5
ROUNDS = 20
"""Rounds until one shows what is claimed: what is wrong shows in each of them."""
WOKEN = re.compile(r"FUTEX_WAKE, \d+\)\s+= (\d+)")
ROBUST = not _core.LOCK_NEEDS_FD


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue whose page does not fill up."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue:
        yield queue


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_idle_consumer_sleeps(queue: Queue, *, read_only: bool, many: bool) -> None:
    """Waiting is sleeping, also where the sleeper may not write that it sleeps."""
    with Queue(queue.directory, read_only=read_only) as own:
        consumer = own.consumer()
        receive = consumer.receive_many if many else consumer.receive
        with pytest.raises(NothingReceived):
            receive(timeout=0.05)
        thread, process = time.thread_time(), time.process_time()
        with pytest.raises(NothingReceived):
            receive(timeout=IDLE_SECONDS)
        thread, process = time.thread_time() - thread, time.process_time() - process
        # One that polls has all of it; how little this one has, the benchmarks measure.
        assert thread < IDLE_SECONDS / 10
        assert process < IDLE_SECONDS / 5  # with all other threads


def test_message_published_without_ringing_the_doorbell_is_received(queue: Queue) -> None:
    """I7: a publisher that dies between publishing and waking delays a waiter by a slice only."""
    consumer, producer = queue.consumer(), queue.producer()
    region = queue._store.write_meta.region
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(2 * LONG)))
    thread.start()
    until(lambda: region.load_half(WAITERS) == 1)
    region.store_half(WAITERS, 0)  # the publisher finds no waiter
    producer.send(b"a")
    thread.join(LONG)
    assert len(received) == 1


def test_sleeper_outlives_a_killed_publisher(queue: Queue, tmp_path: Path) -> None:
    """I7: a consumer that waits for a publisher that was killed gets what the next one sends."""
    acked = tmp_path / "acked"
    consumer = queue.consumer()
    for round_ in range(3):
        acked.write_bytes(bytes(8))
        other = start(send_for_ever.__name__, queue.directory, acked, 1)
        ready(other)
        until(lambda: consumer.lag >= 100)
        end(other)
        consumer.seek(latest=True)
        timer = threading.Timer(0.1, queue.producer().send, [b"%d" % round_])
        timer.start()
        assert consumer.receive(SOON).payload == b"%d" % round_
        timer.join()


@pytest.mark.parametrize("how", ["receive", "receive_many", "iterate", "read_only"])
def test_interrupt_ends_a_wait_at_once(queue: Queue, how: str) -> None:
    """Ctrl-C in a blocked receive is a KeyboardInterrupt, promptly."""
    process = start(wait_for_message.__name__, queue.directory, how)
    assert ready(process) == "waiting"
    until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    assert finish(process, SOON) == "interrupted"


@pytest.mark.skipif(not ROBUST, reason="the lock of this system is not a mutex")
def test_interrupt_ends_a_send_that_waits_for_the_lock(queue: Queue) -> None:
    """Ctrl-C also gets through while a stopped process holds the writers' lock."""
    holder = start(hold_writers_lock.__name__, queue.directory)
    try:
        ready(holder)
        process = start(wait_for_message.__name__, queue.directory, "send")
        assert ready(process) == "waiting"
        until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        assert finish(process, SOON) == "interrupted"
    finally:
        end(holder)
    assert len(queue) == 0


@pytest.mark.parametrize("timeout", [0, 0.001, 0.05])
def test_timeout_is_kept(queue: Queue, timeout: float) -> None:
    """A wait ends no earlier than asked, and not much later."""
    consumer = queue.consumer()
    for call in (consumer.receive, lambda timeout: consumer.receive_many(3, timeout)):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            call(timeout=timeout)
        assert timeout <= time.monotonic() - begun < SOON


@pytest.mark.parametrize("timeout", [None, 1e300, float("inf"), 10**9])
def test_huge_timeout_waits_for_as_long_as_it_takes(queue: Queue, timeout: float | None) -> None:
    """No number of seconds is too many, and none turns into no wait at all."""
    consumer = queue.consumer()
    timer = threading.Timer(0.15, queue.producer().send, [b"a"])
    timer.start()
    assert consumer.receive(timeout).payload == b"a"
    timer.join()


def test_other_threads_run_while_one_waits(queue: Queue) -> None:
    """The interpreter is free while a consumer sleeps: this thread looks on, and sends."""
    consumer = queue.consumer()
    received = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(2 * LONG)))
    thread.start()
    until_asleep(thread)
    queue.producer().send(b"a")
    thread.join(LONG)
    assert len(received) == 1


@pytest.mark.skipif(not ROBUST, reason="the lock of this system is not a mutex")
def test_other_threads_run_while_one_waits_for_the_lock(queue: Queue) -> None:
    """The GIL is free while a producer waits for the writers' lock, and reading works."""
    with Queue(queue.directory, lock_timeout=2 * LONG) as own, own.producer() as producer:
        producer.send(b"before")
        holder = start(hold_writers_lock.__name__, queue.directory)
        ready(holder)
        thread = threading.Thread(target=producer.send, args=(b"after",))
        thread.start()
        until_asleep(thread)
        assert queue.consumer().receive(0).payload == b"before"
        assert len(queue) == 1
        assert thread.is_alive()
        end(holder)
        thread.join()
    assert len(queue) == 2


def wakes(queue: Queue, out: Path, count: int, *, sleeper: bool) -> int:
    """Return how many futex calls to wake other processes one makes that sends so many messages.

    What threads of one process wake each other by is named `FUTEX_WAKE_PRIVATE`.
    """
    strace = ("strace", "-f", "-qq", "-e", "trace=futex", "-o", str(out))
    process = start(send_counted.__name__, queue.directory, count, before=strace, sleeper=sleeper)
    _, err = process.communicate(timeout=60)
    if process.returncode != 0:
        missing("strace", f"it does not work here: {err.strip()}")
    return out.read_text(encoding="utf-8").count("FUTEX_WAKE, ")


@pytest.mark.slow
@pytest.mark.tool("strace")
def test_producer_makes_no_system_call_to_wake_without_a_waiter(
    queue: Queue, tmp_path: Path
) -> None:
    """I7: waking costs a system call only if a waiter may be asleep, and then it is made."""
    assert wakes(queue, tmp_path / "idle", 2000, sleeper=False) == 0
    assert wakes(queue, tmp_path / "awake", 2000, sleeper=True) == 2000
    assert len(queue) == 4000


@pytest.mark.tool("strace")
def test_one_message_wakes_all_sleepers(queue: Queue, tmp_path: Path) -> None:
    """I7: the publisher's one call wakes every consumer, of another process too, not the first."""
    out = tmp_path / "calls"
    strace = ("strace", "-f", "-qq", "-e", "trace=futex", "-o", str(out))
    other = start(send_lines.__name__, queue.directory, before=strace)
    assert other.stdin is not None
    try:
        line = other.stdout.readline()  # type: ignore[union-attr]
        if not line:
            missing("strace", f"it does not work here: {other.stderr.read()}")  # type: ignore[union-attr]
        for _ in range(ROUNDS):  # a sleeper looks every 100 ms, and could be awake just now
            consumers = [queue.consumer(latest=True) for _ in range(4)]
            threads = [threading.Thread(target=one.receive, args=(LONG,)) for one in consumers]
            for thread in threads:
                thread.start()
            for thread in threads:
                until_asleep(thread)
            other.stdin.write("a\n")
            other.stdin.flush()
            for thread in threads:
                thread.join()
            if WOKEN.findall(out.read_text(encoding="utf-8"))[-1:] == ["4"]:
                break
        else:
            pytest.fail(out.read_text(encoding="utf-8"))
    finally:
        end(other)
