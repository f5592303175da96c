"""Threads that are greenlets: calls wait for one another as threads do, page after page."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from types import BuiltinFunctionType
from typing import TYPE_CHECKING

import pytest
from support import LONG, SMALL

from pagequeue import Queue
from pagequeue.util import green

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import sys
from gevent import monkey
if sys.argv[1] == "before":
    monkey.patch_all()
import asyncio, logging, threading, time
from datetime import timedelta
from pagequeue import Queue, Retention
from pagequeue.logging import QueueHandler
from pagequeue.multiprocessing import JoinableQueue
from pagequeue.tasks import TaskStore
if sys.argv[1] == "after":
    monkey.patch_all()

def together(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def directory(name):
    return f"{sys.argv[2]}/{name}"

room = Retention(max_bytes=8 * 4096)
with Queue(directory("room"), page_bytes=4096, retention=room, on_full="block") as queue:
    received = []
    def receive():  # before anything is sent, and then the sender waits for room
        with queue.consumer("reader") as consumer:
            while len(received) < 60:
                received.append(consumer.receive(timeout=60).sequence)
                consumer.ack()
    def send():
        with queue.producer() as producer:
            for _ in range(60):
                producer.send(bytes(1000), timeout=60)
    together(receive, send)
    assert received == list(range(60))

with Queue(directory("all"), page_bytes=4096, sync=timedelta(milliseconds=10)) as queue:
    claimed = []
    def claim():
        with queue.group("workers", max_deliveries=1) as group:
            claimed.append(group.claim(timeout=60).reject("no"))
    def send():
        with queue.producer() as producer:
            producer.send_many([bytes(1000)] * 20)
            producer.send(bytes(30_000))
            with producer.open() as file:
                file.write(bytes(30_000))
    together(claim, send)
    queue.rotate()
    assert len(claimed) == 1
    while queue.durable_sequence < 22:
        time.sleep(0.001)

def numbers():
    for number in range(3):
        time.sleep(0.001)
        yield b"%d" % number

with Queue(directory("flow")) as queue:
    assert [message.payload for message in queue.persist(numbers(), "flow")] == [b"0", b"1", b"2"]

with TaskStore(directory("tasks")) as store:
    together(lambda: store.claim("mail", timeout=60).ack(), lambda: store.insert("mail", 1))
    assert not store.tasks()

jobs = JoinableQueue(1)
def work():
    for _ in range(5):
        jobs.get(timeout=60)
        jobs.task_done()
def put():
    for number in range(5):
        jobs.put(number)
    jobs.join()
together(work, put)

handler = QueueHandler(directory("log"))
together(*[lambda: handler.emit(logging.makeLogRecord({"msg": "text"}))] * 3)
handler.close()
assert handler.dropped == 0

async def main():
    with Queue(directory("async"), page_bytes=4096) as queue, queue.producer() as producer:
        with queue.consumer() as consumer:
            waits = asyncio.create_task(consumer.receive_async(timeout=60))
            await asyncio.sleep(0.001)
            for _ in range(10):
                await producer.send_async(bytes(1000))
            await producer.send_async(bytes(30_000))
            assert (await waits).sequence == 0
asyncio.run(main())
print("done")
"""


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("when", ["before", "after"])
def test_queues_are_used_by_greenlets_as_by_threads(tmp_path: Path, when: str) -> None:
    """gevent's, put in place before the package is imported or after it."""
    if importlib.util.find_spec("gevent") is None:
        pytest.skip("gevent is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, when, tmp_path],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.fixture
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let new threads run where they are started, and waits be calls of Python."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    monkeypatch.setattr(threading.Thread, "join", lambda *_: None)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.001)))
    yield
    monkeypatch.undo()
    green.look_at_threads()


@pytest.mark.usefixtures("_one_thread")
def test_what_a_background_thread_does_is_done_at_once(tmp_path: Path) -> None:
    """Old pages are unmapped, and later ones made: nobody else would run it."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        assert green.are_threads_green()
        for _ in range(100):
            producer.send(bytes(1000))
        assert len(queue) == 100


def test_program_that_replaces_only_sleep_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tests do: what counts is where a new thread runs."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert not isinstance(time.sleep, BuiltinFunctionType)
    with Queue(tmp_path / "q"):
        assert not green.are_threads_green()
