"""The drop-in: room in it, and the objects that go through it."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import threading
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import pytest
from drop_in_support import SECONDS, get_and_hang, get_each, joined, put_each, started

from pagequeue import Queue as PageQueue
from pagequeue import errors
from pagequeue.multiprocessing import Empty, Full, JoinableQueue, Queue, SimpleQueue
from pagequeue.multiprocessing.object_queue import ObjectProducer
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from pathlib import Path


# --- room -----------------------------------------------------------------------------------------


def test_maxsize_is_exact_among_processes() -> None:
    """I17: no two producers fill the same last place."""
    queue: Queue[int] = Queue(5)
    workers = [started(put_each, queue, list(range(50))) for _ in range(4)]
    highest, got = 0, 0
    while got < 200:
        highest = max(highest, queue.qsize())
        queue.get(timeout=SECONDS)
        got += 1
    assert highest <= 5
    assert [joined(worker) for worker in workers] == [0] * 4
    with pytest.raises(Empty):
        queue.get_nowait()


def test_producer_is_bound_once_and_by_a_group(tmp_path: Path) -> None:
    """What binds it is checked, and a batch counts with all its messages."""
    with PageQueue(tmp_path / "q", page_bytes=1 << 16) as queue, queue.group("g") as group:
        words = group._group_file.region
        store = internals(queue).readable()
        producer = ObjectProducer(store, None, 0)
        with pytest.raises(ValueError, match="1 or more"):
            producer._bind(words, 0)
        with pytest.raises(ValueError, match="group"):
            producer._bind(store.read_meta.region, 1)
        producer._bind(words, 3)
        with pytest.raises(ValueError, match="once"):
            producer._bind(words, 3)
        with pytest.raises(Full):
            producer.send_many([b"1", b"2", b"3", b"4"])
        assert producer.send_many([b"1", b"2", b"3"]) == range(3)
        with pytest.raises(Full):
            producer.send(b"4")
        group.take()
        assert producer.send(b"4") == 3
        producer.close()


def test_full_queue_refuses_or_waits() -> None:
    """`put` raises Full at once, raises it on timeout, or continues when there is space."""
    queue: Queue[int] = Queue(1)
    queue.put(1)
    assert queue.full()
    with pytest.raises(Full):
        queue.put_nowait(2)
    began = time.monotonic()
    with pytest.raises(Full):
        queue.put(2, timeout=0.2)
    assert time.monotonic() - began >= 0.2
    thread = threading.Timer(0.2, queue.get)
    thread.start()
    queue.put(2, timeout=SECONDS)
    thread.join()
    assert queue.get() == 2


def test_full_queue_can_be_interrupted() -> None:
    """A sleeping `put` handles a signal, and has put no object."""
    queue: Queue[int] = Queue(1)
    queue.put(1)

    def interrupt(number: int, _frame: object) -> None:
        raise InterruptedError(number)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(InterruptedError):  # noqa: PT012 - it may come before the put
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            queue.put(2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert queue.qsize() == 1


def test_pages_that_were_taken_go(tmp_path: Path) -> None:
    """The directory does not grow with what went through."""
    queue: Queue[bytes] = Queue(directory=tmp_path / "q", page_bytes=1 << 16)
    for _ in range(100):
        for _ in range(10):
            queue.put(bytes(4000))
        for _ in range(10):
            queue.get()
    queue._open().queue.trim()
    assert len(list((tmp_path / "q").glob("*.page"))) <= 3
    queue.close()


@pytest.mark.quick_each(2)
@pytest.mark.parametrize("kind", [Queue, JoinableQueue])
def test_next_getter_continues_after_a_removed_page(
    tmp_path: Path, kind: type[Queue[int] | JoinableQueue[int]]
) -> None:
    """A fully consumed page is removed before any getter followed its end-of-page marker."""
    queue = kind(1, directory=tmp_path / "q", page_bytes=1 << 14)
    number = 0
    queue.put(number)
    items = queue._open()
    while items.queue.info().tail_page == 1:  # the last one waits, the first of the next page
        assert queue.get(timeout=0) == number
        if isinstance(queue, JoinableQueue):
            queue.task_done()
        number += 1
        queue.put(number)
    items.queue.trim()
    assert items.queue.head_sequence == number
    process = started(get_each, kind(1, directory=tmp_path / "q"), [number])
    assert joined(process) == 0
    queue.close()


def test_backlog_is_removed_while_it_is_read(tmp_path: Path) -> None:
    """Getting frees the pages before, though no further object is put."""
    queue: Queue[bytes] = Queue(directory=tmp_path / "q", page_bytes=1 << 16)
    put_each(queue, [bytes(4000)] * 300)
    assert len(list((tmp_path / "q").glob("*.page"))) >= 15
    for _ in range(300):
        queue.get()
    deadline = time.monotonic() + SECONDS
    while len(list((tmp_path / "q").glob("*.page"))) > 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    queue.close()


# --- objects --------------------------------------------------------------------------------------


def test_object_larger_than_a_page_gets_through(tmp_path: Path) -> None:
    """It has a separate file until it is taken."""
    queue: Queue[bytes] = Queue(directory=tmp_path / "q", page_bytes=1 << 16)
    large = random.Random(1).randbytes(1 << 20)
    queue.put(large)
    queue.put(b"small")
    assert len(list((tmp_path / "q" / "items-large").iterdir())) == 1
    assert queue.get() == large
    assert queue.get() == b"small"
    assert list((tmp_path / "q" / "items-large").iterdir()) == []
    queue.close()


def test_large_object_of_a_killed_process_is_redelivered(tmp_path: Path) -> None:
    """I18: its file stays until `task_done`."""
    queue: JoinableQueue[bytes] = JoinableQueue(directory=tmp_path / "q", page_bytes=1 << 16)
    ready: SimpleQueue[int] = SimpleQueue()
    large = random.Random(1).randbytes(1 << 18)
    queue.put(large)
    process = started(get_and_hang, queue, ready, 1)
    os.kill(ready.get(), signal.SIGKILL)
    joined(process)
    assert queue.get(timeout=SECONDS) == large
    assert len(list((tmp_path / "q" / "items-large").iterdir())) == 1
    queue.task_done()
    assert list((tmp_path / "q" / "items-large").iterdir()) == []
    queue.close()


def test_file_that_no_message_names_is_removed(tmp_path: Path) -> None:
    """I18: left by a kill before its message was sent; who opens next, alone, removes it."""
    directory = tmp_path / "q"
    queue: Queue[bytes] = Queue(directory=directory, page_bytes=1 << 16)
    queue.put(bytes(1 << 18))
    kept = os.listdir(directory / "items-large")
    (directory / "items-large" / ("0" * 32)).write_bytes(b"stray")
    other: Queue[bytes] = Queue(directory=directory)
    assert other.qsize() == 1
    assert len(os.listdir(directory / "items-large")) == 2  # another process has it open
    other.close()
    queue.close()
    again: Queue[bytes] = Queue(directory=directory)
    assert again.qsize() == 1
    assert os.listdir(directory / "items-large") == kept
    assert again.get() == bytes(1 << 18)
    again.close()


@pytest.mark.parametrize("damage", ["missing", "changed", "shorter"])
def test_large_file_that_is_damaged_is_an_error(tmp_path: Path, damage: str) -> None:
    """Other bytes than were put are never unpickled."""
    queue: Queue[bytes] = Queue(directory=tmp_path / "q", page_bytes=1 << 16)
    queue.put(bytes(1 << 18))
    (file,) = (tmp_path / "q" / "items-large").iterdir()
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"X" + data[1:] if damage == "changed" else data[:-1])
    with pytest.raises(errors.CorruptFrame, match="file"):
        queue.get(timeout=60)
    queue.put(b"next")
    assert queue.get(timeout=60) == b"next"
    queue.close()


def test_unpicklable_object_is_refused_at_put() -> None:
    """The error is raised by the wrong call, and no object is put."""
    queue: Queue[Any] = Queue()
    with pytest.raises((pickle.PicklingError, AttributeError)):
        queue.put(lambda: 0)
    queue.put([1])
    assert queue.qsize() == 1
    assert queue.get() == [1]


def test_objects_that_only_multiprocessing_can_pickle_get_through() -> None:
    """Its reducers count: a connection arrives as one, also when registered later."""
    queue: Queue[Any] = Queue()
    here, there = connection.Pipe()
    process = started(answer, queue)
    queue.put((there, "hello".upper))
    assert here.poll(SECONDS)
    assert here.recv() == "HELLO"
    joined(process)
    left, right = socket.socketpair()
    with left, right:
        queue.put(left)
        with queue.get(timeout=60) as copy:
            copy.sendall(b"x")
            assert right.recv(1) == b"x"


def answer(queue: Queue[Any]) -> None:
    """Get a connection and a bound method; send what the method gives."""
    there, method = queue.get()
    there.send(method())


class PutsItself:
    """Putting it puts something else first, in the middle of pickling."""

    def __init__(self, queue: Queue[Any]) -> None:
        self.queue = queue

    def __reduce__(self) -> tuple[object, ...]:
        self.queue.put("inner")
        return str, ("outer",)


def test_pickling_may_put() -> None:
    """A pickler that is at work is never used for another object."""
    queue: Queue[Any] = Queue()
    queue.put([PutsItself(queue), "tail"])
    assert queue.get() == "inner"
    assert queue.get() == ["outer", "tail"]


def test_threads_share_a_handle() -> None:
    """Each object is got once, with any mix of putting and getting threads."""
    queue: Queue[tuple[int, int]] = Queue(100)
    got: list[tuple[int, int]] = []

    def put(thread: int) -> None:
        for number in range(500):
            queue.put((thread, number))

    def get() -> None:
        got.extend(queue.get(timeout=SECONDS) for _ in range(500))

    threads = [threading.Thread(target=put, args=(i,)) for i in range(3)]
    threads += [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [(i, n) for i in range(3) for n in range(500)]


def test_too_many_unfinished_objects_are_an_error(tmp_path: Path) -> None:
    """A process that never calls task_done gets the reason why it gets no more."""
    queue: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q", unfinished_max=2)
    put_each(queue, [1, 2, 3])
    queue.get()
    queue.get()
    with pytest.raises(errors.TooManyClaims):
        queue.get(timeout=0.1)
    queue.task_done()
    assert queue.get(timeout=SECONDS) == 3
    queue.close()


def test_closed_queue_is_closed_here_only(tmp_path: Path) -> None:
    """Other processes, and other handles, go on."""
    queue: Queue[int] = Queue(directory=tmp_path / "q")
    other: Queue[int] = Queue(directory=tmp_path / "q")
    with pytest.raises(AssertionError):
        queue.join_thread()
    queue.put(1)
    queue.close()
    queue.close()
    queue.join_thread()
    queue.cancel_join_thread()
    for call in (queue.get_nowait, queue.qsize, queue.empty, queue.full, lambda: queue.put(1)):
        with pytest.raises(ValueError, match="is closed"):
            call()
    assert other.get(timeout=60) == 1
    other.close()


def test_flush_survives_a_power_cut_in_words(tmp_path: Path) -> None:
    """After `flush` all that was put is below the durable mark."""
    queue: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q")
    put_each(queue, [1, 2])
    queue.flush()
    assert queue._open().queue.durable_sequence == 2
    queue.close()


@pytest.mark.parametrize("kind", [Queue, JoinableQueue])
def test_invalid_pickle_is_reported_with_its_place(
    tmp_path: Path, kind: type[Queue[object]]
) -> None:
    """The error is pickle's own, with a note on where the bytes are and how to read them."""
    queue = kind(directory=tmp_path)
    queue.put(1)
    with PageQueue(tmp_path, prefix="items") as pages, pages.producer() as producer:
        producer.send(b"{no pickle")
    assert queue.get(timeout=SECONDS) == 1
    with pytest.raises(pickle.UnpicklingError) as caught:
        queue.get(timeout=SECONDS)
    (note,) = caught.value.__notes__
    assert note.startswith(f"message 1 of {tmp_path} is not a pickle")
    queue.close()
