"""What comes in between: signal handlers and finalizers that send, closing under a send, holes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import LONG, SMALL, SOON

from pagequeue import (
    ClosedError,
    CorruptFrame,
    LockTimeout,
    NothingReceived,
    Producer,
    Queue,
    _core,
)
from pagequeue import format as fmt
from pagequeue.store import store as store_module
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

WIDE = b"x" * 900


@pytest.fixture
def alarms() -> Iterator[None]:
    """Put the handler and the timer back, however the test ends."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("alarms")
def test_handler_that_sends_in_the_middle_of_a_roll_loses_no_message(tmp_path: Path) -> None:
    """I1, I10: the interrupted roll finds that another one completed first."""
    sent = []
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:

        def handler(_: int, __: FrameType | None) -> None:
            try:
                sent.append(producer.send(WIDE))
            except LockTimeout:
                return  # in the middle of creating a page: refused, and no message was sent

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            sent.append(producer.send(WIDE))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert sorted(sent) == list(range(len(queue)))
        assert queue.verify().ok


# Python swallows what is raised in a callback of a weak reference, and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("alarms")
def test_handler_that_raises_leaves_everything_usable(tmp_path: Path) -> None:
    """I3: whatever was interrupted, this process and others send, roll and flush on."""

    class Interrupted(Exception):
        pass

    def handler(_: int, __: FrameType | None) -> None:
        raise Interrupted

    with Queue(tmp_path / "q", page_bytes=SMALL, lock_timeout=SOON) as queue:
        producer = queue.producer()
        signal.signal(signal.SIGALRM, handler)
        for _ in range(150):
            try:
                # Again after a second, where the first one was swallowed.
                signal.setitimer(signal.ITIMER_REAL, 0.003, 1.0)
                while True:
                    producer.send(WIDE)
                    producer.flush(LONG)
            except Interrupted:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        for _ in range(20):
            producer.send(WIDE)
        assert producer.flush(LONG) == len(queue)
        with Queue(queue.directory) as other, other.producer() as another:
            another.send(WIDE)
            other.rotate()
            assert other.verify().ok


def test_roll_into_the_page_itself_is_refused(tmp_path: Path) -> None:
    """I10: a caller that was overtaken hands over a page that is not the next one."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"a")
        page = producer._page
        assert page is not None
        header = queue._store.roller.header(page)
        assert producer._roll(page.region, header) == _core.APPEND_MOVED
        assert [m.payload for m in queue.replay()] == [b"a"]
        assert queue.verify().ok


def test_closing_waits_for_the_send_of_another_thread(tmp_path: Path) -> None:
    """I3: the queue is not released for recovery by others while a thread appends."""
    queue = Queue(tmp_path / "q", page_bytes=64 << 20)
    producer = queue.producer()
    outcome: list[object] = []

    def send() -> None:
        try:
            outcome.append(producer.send(bytes(48 << 20)))
        except ClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    while not producer._inside and thread.is_alive():
        time.sleep(0)
    queue.close()
    assert producer._inside == 0
    thread.join()
    with Queue(tmp_path / "q") as again:
        expected = 0 if isinstance(outcome[0], ClosedError) else 1
        assert len(list(again.replay())) == expected
        assert again.verify().ok


def test_hole_below_the_tail_is_damage_and_not_the_end(tmp_path: Path) -> None:
    """I2: an empty slot below the tail is never taken for the end of the queue."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send_many([b"m" * 48] * 20)
        with (tmp_path / "q" / fmt.page_name("queue", 1)).open("r+b") as file:
            file.seek(fmt.PAGE_HEADER_BYTES + 5 * 64)
            file.write(bytes(64))
        with pytest.raises(CorruptFrame, match="no frame there") as caught:
            list(queue.replay())
        assert caught.value.sequence == 5
        consumer = queue.consumer()
        assert len(consumer.receive_many()) == 5
        with pytest.raises(CorruptFrame):
            consumer.receive(timeout=60)


def test_read_only_consumer_gets_no_half_batch_before_recovery(tmp_path: Path) -> None:
    """I8: it waits at the end of the valid prefix, and continues after a writer's recovery."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"one")
        producer.send_many([b"b" * 48] * 10)
    with (tmp_path / "q" / fmt.page_name("queue", 1)).open("r+b") as file:
        file.seek(fmt.PAGE_HEADER_BYTES + 24 + 5 * 64)
        file.write(bytes(64))  # the batch is torn in the middle
    pretend_power_cut(tmp_path / "q")
    with Queue(tmp_path / "q", read_only=True) as reading:
        consumer = reading.consumer()
        assert consumer.receive_many(100, timeout=0).payloads == [b"one"]
        with pytest.raises(NothingReceived):
            consumer.receive(timeout=0.02)
        with Queue(tmp_path / "q") as queue, queue.producer() as producer:
            producer.send(b"two")
            assert consumer.receive(timeout=LONG).payload == b"two"


def test_closing_a_producer_in_a_forked_child_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another thread of the parent held at the fork would never be released there."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        producer: Producer = queue.producer()
        with monkeypatch.context() as patch:
            patch.setattr("pagequeue.store.store._core.fork_count", lambda: -1)
            producer.close()
        assert producer.send(b"still open") == 0


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("name", ["Pool", "are_pages_kept", "RingMaps", "PageCache"])
def test_opening_that_is_interrupted_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Wherever it is: what the store has by then is closed when it is dropped."""
    Queue(tmp_path / "q", ring=1 << 20).close()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store_module, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            Queue(tmp_path / "q")
    gc.collect()
    there = f"{tmp_path / 'q'}"
    assert not [fd for fd in os.listdir("/proc/self/fd") if links(fd).startswith(there)]
    assert there not in Path("/proc/self/maps").read_text()


def links(fd: str) -> str:
    """Return what a descriptor leads to; empty: it is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
