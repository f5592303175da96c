"""The drop-in: what it has beyond CPython's own tests (`test_multiprocessing_stdlib.py`)."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import pytest

from pagequeue import errors
from pagequeue.multiprocessing import Empty, Full, JoinableQueue, Queue, SimpleQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Event
    from pathlib import Path

SECONDS = 60
FORK = multiprocessing.get_context("fork")
METHODS = ("fork", "spawn", "forkserver")


def started(target: Callable[..., object], *args: object, method: str = "fork") -> BaseProcess:
    """Start a process; it is ended with the test if it hangs."""
    context = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=args, daemon=True)  # type: ignore[attr-defined]
    process.start()
    return process


def joined(process: BaseProcess) -> int:
    """Wait for a process; return its exit code."""
    process.join(SECONDS)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def put_each(queue: Queue[Any], objects: Sequence[object]) -> None:
    """Put objects; the target of a process."""
    for obj in objects:
        queue.put(obj)


def get_and_hang(queue: Queue[Any], ready: SimpleQueue[int], count: int) -> None:
    """Get objects, say so, and be there until killed."""
    for _ in range(count):
        queue.get()
    ready.put(os.getpid())
    time.sleep(SECONDS)


def nest(queue: Queue[str], method: str, depth: int) -> None:
    """Hand the queue on to a child's child."""
    if depth:
        joined(started(nest, queue, method, depth - 1, method=method))
    else:
        queue.put("from below")


@pytest.mark.parametrize("method", METHODS)
def test_handle_goes_through_generations(method: str) -> None:
    """A child hands it to a child of its own, whatever starts them."""
    queue: Queue[str] = Queue()
    process = multiprocessing.get_context(method).Process(target=nest, args=(queue, method, 1))
    process.start()
    assert joined(process) == 0
    assert queue.get(timeout=1) == "from below"


def test_objects_stay_when_all_processes_end(tmp_path: Path) -> None:
    """With a directory they are there for whoever opens it next, in order."""
    assert joined(started(put_each, Queue(directory=tmp_path / "q"), [1, "two", [3.0]])) == 0
    queue: Queue[Any] = Queue(directory=tmp_path / "q")
    assert [queue.get(timeout=1) for _ in range(3)] == [1, "two", [3.0]]
    queue.close()
    again: Queue[Any] = Queue(directory=tmp_path / "q")
    assert again.empty()
    again.close()


def test_handle_with_a_directory_can_be_pickled_anywhere(tmp_path: Path) -> None:
    """It is a path; one that is private goes to children only, as in the standard library."""
    queue: Queue[int] = Queue(3, directory=tmp_path / "q")
    other: Queue[int] = pickle.loads(pickle.dumps(queue))
    other.put(1)
    assert queue.get(timeout=1) == 1
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(Queue())


@pytest.mark.parametrize("kind", [Queue, JoinableQueue, SimpleQueue])
def test_private_directory_goes_with_its_last_user(
    kind: type[Queue[int] | SimpleQueue[int]],
) -> None:
    """Nothing is left behind in memory or on the disk."""
    queue = kind()
    queue.put(1)
    directory = queue.directory
    assert os.path.exists(directory)
    del queue
    gc.collect()
    assert not os.path.exists(directory)


def test_private_directory_outlives_the_process_that_made_it_if_a_child_has_it() -> None:
    """A queue that only lives on in children works on, and goes when they are gone."""
    queue: Queue[str] = Queue()
    directory = queue.directory
    go = FORK.Event()
    back: SimpleQueue[str] = SimpleQueue()
    process = started(wait_put_get, queue, go, back)
    del queue
    gc.collect()
    assert os.path.exists(directory)
    go.set()
    assert back.get() == "still there"
    joined(process)
    for _ in range(2):  # whoever makes another one looks again
        Queue[int]().close()
    assert not os.path.exists(directory)


def wait_put_get(queue: Queue[str], go: Event, back: SimpleQueue[str]) -> None:
    """Use a queue that its maker has dropped."""
    go.wait()
    queue.put("still there")
    back.put(queue.get())


def test_child_that_forks_itself_uses_the_queue_too() -> None:
    """Not only children of `multiprocessing`: os.fork is seen as well, in the middle of use."""
    queue: JoinableQueue[int] = JoinableQueue()
    queue.put(0)
    assert queue.get() == 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(ValueError, match="too many"):
                queue.task_done()  # what the parent got is the parent's
            queue.put(1)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert queue.get(timeout=1) == 1
    queue.task_done()
    queue.task_done()
    queue.join()


# --- what came back -------------------------------------------------------------------------------


def test_what_a_killed_process_had_comes_back() -> None:
    """Got and not done: another process gets it, before what was put later."""
    queue: JoinableQueue[int] = JoinableQueue()
    ready: SimpleQueue[int] = SimpleQueue()
    for number in range(4):
        queue.put(number)
    process = started(get_and_hang, queue, ready, 2)
    os.kill(ready.get(), signal.SIGKILL)
    joined(process)
    got = []
    for _ in range(4):
        got.append(queue.get(timeout=SECONDS))
        queue.task_done()
    assert sorted(got) == [0, 1, 2, 3]
    queue.join()
    assert queue.empty()
    assert queue.qsize() == 0


def test_what_a_process_had_when_it_ended_comes_back() -> None:
    """A worker that raises, or just ends, has not done what it got."""
    queue: JoinableQueue[str] = JoinableQueue()
    queue.put("job")
    assert joined(started(JoinableQueue.get, queue)) == 0
    assert queue.qsize() == 1
    assert queue.get(timeout=SECONDS) == "job"
    queue.task_done()
    queue.join()


def test_what_was_done_does_not_come_back(tmp_path: Path) -> None:
    """Also after all processes ended."""
    queue: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q")
    put_each(queue, [1, 2, 3])
    assert queue.get() == 1
    assert queue.get() == 2
    queue.task_done()
    queue.close()
    del queue
    gc.collect()
    again: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q")
    assert [again.get(timeout=1), again.get(timeout=1)] == [2, 3]
    again.close()


def test_queue_gives_for_good() -> None:
    """What a process got from a Queue is gone with it, and nobody gets it twice."""
    queue: Queue[int] = Queue()
    ready: SimpleQueue[int] = SimpleQueue()
    put_each(queue, [1, 2, 3])
    process = started(get_and_hang, queue, ready, 2)
    os.kill(ready.get(), signal.SIGKILL)
    joined(process)
    assert queue.get(timeout=1) == 3
    with pytest.raises(Empty):
        queue.get(timeout=0.3)


def test_task_done_is_for_what_this_thread_got() -> None:
    """Two threads of one process do not mix up whose object is done."""
    queue: JoinableQueue[str] = JoinableQueue()
    put_each(queue, ["mine", "other's"])
    assert queue.get() == "mine"
    got = threading.Event()
    go = threading.Event()

    def other() -> None:
        queue.get()
        got.set()
        go.wait(SECONDS)
        queue.task_done()

    thread = threading.Thread(target=other)
    thread.start()
    assert got.wait(SECONDS)
    queue.task_done()
    assert [one.message.sequence for claims in queue._mine.values() for one in claims] == [1]
    go.set()
    thread.join()
    queue.join()
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_task_done_and_join_work_after_close() -> None:
    """As in the standard library: closing ends putting and getting only."""
    queue: JoinableQueue[int] = JoinableQueue()
    queue.put(1)
    queue.get()
    queue.close()
    queue.join_thread()
    queue.task_done()
    queue.join()
    with pytest.raises(ValueError, match="is closed"):
        queue.put(2)


def test_join_waits_for_what_workers_put_meanwhile() -> None:
    """A task that puts more tasks before it is done never lets join go too early."""
    queue: JoinableQueue[int] = JoinableQueue()
    done: Queue[int] = Queue()
    workers = [started(spread, queue, done) for _ in range(2)]
    queue.put(6)
    queue.join()
    assert done.qsize() == 2**7 - 1
    for worker in workers:
        worker.terminate()
        worker.join()


def spread(queue: JoinableQueue[int], done: Queue[int]) -> None:
    """Work: put two smaller tasks for each, then be done with it."""
    while True:
        depth = queue.get()
        if depth:
            queue.put(depth - 1)
            queue.put(depth - 1)
        done.put(depth)
        queue.task_done()


# --- room -----------------------------------------------------------------------------------------


def test_maxsize_is_exact_among_processes() -> None:
    """No two producers fill the same last place."""
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


def test_full_queue_refuses_or_waits() -> None:
    """`put` says Full at once, in time, or goes on when there is room."""
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
    """A sleeping `put` answers a signal, and has put nothing."""
    queue: Queue[int] = Queue(1)
    queue.put(1)

    def interrupt(number: int, _frame: object) -> None:
        raise InterruptedError(number)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError):
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


def test_backlog_goes_while_it_is_got(tmp_path: Path) -> None:
    """Whoever gets makes room behind it, though nobody puts any more."""
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
    """It has a file of its own until it is taken."""
    queue: Queue[bytes] = Queue(directory=tmp_path / "q", page_bytes=1 << 16)
    large = os.urandom(1 << 20)
    queue.put(large)
    queue.put(b"small")
    assert len(list((tmp_path / "q" / "items-large").iterdir())) == 1
    assert queue.get() == large
    assert queue.get() == b"small"
    assert list((tmp_path / "q" / "items-large").iterdir()) == []
    queue.close()


def test_large_object_of_a_killed_process_comes_back(tmp_path: Path) -> None:
    """Its file stays until `task_done`."""
    queue: JoinableQueue[bytes] = JoinableQueue(directory=tmp_path / "q", page_bytes=1 << 16)
    ready: SimpleQueue[int] = SimpleQueue()
    large = os.urandom(1 << 18)
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
    """Left by a kill before its message was sent; whoever opens next, alone, removes it."""
    directory = tmp_path / "q"
    queue: Queue[bytes] = Queue(directory=directory, page_bytes=1 << 16)
    queue.put(bytes(1 << 18))
    kept = os.listdir(directory / "items-large")
    (directory / "items-large" / ("0" * 32)).write_bytes(b"stray")
    other: Queue[bytes] = Queue(directory=directory)
    assert other.qsize() == 1
    assert len(os.listdir(directory / "items-large")) == 2  # somebody else has it open
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
        queue.get(timeout=1)
    queue.put(b"next")
    assert queue.get(timeout=1) == b"next"
    queue.close()


def test_object_that_cannot_be_pickled_is_refused_at_put() -> None:
    """The error comes where the mistake is, and nothing was put."""
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
        with queue.get(timeout=1) as copy:
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
    """Each object is got once, whoever puts and gets."""
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


def test_more_than_can_be_unfinished_is_said(tmp_path: Path) -> None:
    """A process that gets and never is done is told why it gets no more."""
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
    assert other.get(timeout=1) == 1
    other.close()


def test_flush_survives_a_power_cut_in_words(tmp_path: Path) -> None:
    """After `flush` all that was put is below the durable mark."""
    queue: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q")
    put_each(queue, [1, 2])
    queue.flush()
    assert queue._open().queue.durable_sequence == 2
    queue.close()
