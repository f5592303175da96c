"""A payload's file and its other users: signal handlers, threads, and what closes its queue."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import LONG, SMALL, within

from pagequeue import ClosedError, LockTimeout, Queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue.types import PayloadWriter

LARGE = bytes(3 * SMALL)
INSIDE: dict[str, Callable[[PayloadWriter], object]] = {
    "close": lambda file: file.close(),
    "write": lambda file: file.write(b""),
}


@pytest.mark.parametrize("call", INSIDE)
def test_handler_that_interrupts_a_write_of_its_thread_is_refused(
    tmp_path: Path, call: str
) -> None:
    """It would wait for the very call that it interrupts; the call goes on."""
    refused: list[LockTimeout] = []

    def handler(*_: object) -> None:
        if file.tell() == 0:  # the file may be closed by a handler that came between two writes
            return
        try:
            INSIDE[call](file)
        except LockTimeout as error:
            refused.append(error)

    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue, queue.producer() as producer:
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            deadline = time.monotonic() + LONG
            while not refused and time.monotonic() < deadline:
                file = producer.open()
                ticker = threading.Thread(target=interrupt)
                ticker.start()
                with contextlib.suppress(ValueError, ClosedError):
                    while ticker.is_alive():
                        file.write(bytes(100_000))
                ticker.join()
                file.close()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert "signal handler" in str(refused[0])
        *_, last = queue.replay()
        assert last.sequence == file.sequence
        assert len(last.payload) % 100_000 == 0


def interrupt() -> None:
    """Send the main thread some signals."""
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0005)


@pytest.mark.parametrize("what", ["producer", "queue"])
@pytest.mark.parametrize("payload", [b"small", LARGE], ids=["small", "large"])
def test_closing_the_queue_discards_what_is_not_finished(
    tmp_path: Path, what: str, payload: bytes
) -> None:
    """At once, with its staged pages; closing the file afterwards says that nothing was sent."""
    directory = tmp_path / "q"
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    queue = Queue(directory, page_bytes=SMALL, lock_timeout=LONG)
    producer = queue.producer()
    file = producer.open()
    file.write(payload)
    with within(20):  # less than lock_timeout
        (queue if what == "queue" else producer).close()
    with pytest.raises(ClosedError):
        file.write(b"more")
    with pytest.raises(ClosedError):
        file.close()
    file.close()
    assert file.closed
    assert file.sequence is None
    queue.close()
    del producer, queue
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not any(path.is_dir() for path in directory.glob("queue-staged/*"))
    with Queue(directory) as queue:
        assert len(queue) == 0


def test_file_in_which_a_thread_writes_is_released_by_that_thread(tmp_path: Path) -> None:
    """Closing its queue waits for that call, no longer."""
    ended: list[int] = []
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    file = queue.producer().open()
    file.write(LARGE)

    def write() -> None:
        try:
            while True:
                file.write(b"more")
        except ClosedError:
            ended.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    queue.close()
    thread.join(LONG)
    assert ended == [1]
    with pytest.raises(ClosedError):
        file.close()
    assert file.closed


def test_block_whose_queue_was_closed_meanwhile_raises(tmp_path: Path) -> None:
    """Its payload was not sent, which nothing else would say."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    with pytest.raises(ClosedError), queue.producer().open() as file:  # noqa: PT012
        file.write(LARGE)
        queue.close()
