"""The drop-in: its handles and what comes back. CPython's own: `test_multiprocessing_stdlib.py`."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from drop_in_support import METHODS, SECONDS, get_and_hang, joined, put_each, started
from support import until
from tiers import slow_but

from pagequeue import Queue as PageQueue
from pagequeue import errors
from pagequeue.multiprocessing import Empty, JoinableQueue, Queue, SimpleQueue

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event
    from pathlib import Path

FORK = multiprocessing.get_context("fork")


def nest(queue: Queue[str], method: str, depth: int) -> None:
    """Hand the queue on to a child's child."""
    if depth:
        joined(started(nest, queue, method, depth - 1, method=method))
    else:
        queue.put("from below")


@pytest.mark.parametrize("method", slow_but(["fork"], METHODS))
def test_handle_is_passed_through_generations(method: str) -> None:
    """A child passes it to its own child, with every start method."""
    queue: Queue[str] = Queue()
    process = multiprocessing.get_context(method).Process(target=nest, args=(queue, method, 1))
    process.start()
    assert joined(process) == 0
    assert queue.get(timeout=60) == "from below"


def test_objects_stay_when_all_processes_end(tmp_path: Path) -> None:
    """With a directory the next process that opens it gets them, in order."""
    assert joined(started(put_each, Queue(directory=tmp_path / "q"), [1, "two", [3.0]])) == 0
    queue: Queue[Any] = Queue(directory=tmp_path / "q")
    assert [queue.get(timeout=60) for _ in range(3)] == [1, "two", [3.0]]
    queue.close()
    again: Queue[Any] = Queue(directory=tmp_path / "q")
    assert again.empty()
    again.close()


def test_handle_with_a_directory_can_be_pickled_anywhere(tmp_path: Path) -> None:
    """It is a path; one that is private goes to children only, as in the standard library."""
    queue: Queue[int] = Queue(3, directory=tmp_path / "q")
    other: Queue[int] = pickle.loads(pickle.dumps(queue))
    other.put(1)
    assert queue.get(timeout=60) == 1
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(Queue())


@pytest.mark.parametrize("kind", [Queue, JoinableQueue, SimpleQueue])
def test_private_directory_is_removed_with_its_last_user(
    kind: type[Queue[int] | SimpleQueue[int]],
) -> None:
    """No memory and no file is left."""
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
    for _ in range(2):  # creating another one checks again
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
    assert queue.get(timeout=60) == 1
    queue.task_done()
    queue.task_done()
    queue.join()


# --- what came back -------------------------------------------------------------------------------


def test_objects_of_a_killed_process_are_redelivered() -> None:
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


def test_unfinished_objects_of_an_exited_process_are_redelivered() -> None:
    """A worker that raises, or just ends, has not done what it got."""
    queue: JoinableQueue[str] = JoinableQueue()
    queue.put("job")
    assert joined(started(JoinableQueue.get, queue)) == 0
    assert queue.qsize() == 1
    assert queue.get(timeout=SECONDS) == "job"
    queue.task_done()
    queue.join()


@pytest.mark.parametrize("size_bytes", [1, 1 << 18], ids=["small", "large"])
def test_object_that_ends_each_process_is_a_dead_letter_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size_bytes: int
) -> None:
    """Then `join` returns; the log says it, and it can be requeued, with its file."""
    options: dict[str, Any] = {"directory": tmp_path / "q", "page_bytes": 1 << 16}
    options |= {"max_deliveries": 3, "backoff": (0.001, 0.001)}
    queue: JoinableQueue[bytes] = JoinableQueue(**options)
    poison = bytes(size_bytes)
    put_each(queue, [poison, b"one", b"two"])
    for _ in range(3):
        assert joined(started(get_until, queue, poison)) == 0
    until(partial(is_only_dead_left, queue, poison, caplog))
    queue.join()
    assert queue.qsize() == 0
    (record,) = caplog.records
    assert (
        "became dead letters of the group 'items' (prefix 'items'): 1, 1 in all" in record.message
    )
    queue.close()
    del queue
    gc.collect()
    again: JoinableQueue[bytes] = JoinableQueue(**options)  # sweeps files that no message names
    assert again.empty()
    assert len(list((tmp_path / "q" / "items-large").iterdir())) == (size_bytes > 1)
    again.close()
    with PageQueue(tmp_path / "q", prefix="items") as plain, plain.group("items") as group:
        (letter,) = group.dead_letters()
        assert letter.deliveries == 3
        assert group.requeue_dead_letters() == 1
    last: JoinableQueue[bytes] = JoinableQueue(**options)
    assert last.get(timeout=SECONDS) == poison
    last.task_done()
    last.close()


def is_only_dead_left(
    queue: JoinableQueue[bytes], poison: bytes, caplog: pytest.LogCaptureFixture
) -> bool:
    """Get what is left of the others, and let the poison become a dead letter."""
    with contextlib.suppress(Empty):
        assert queue.get(timeout=0.1) != poison
        queue.task_done()
    return bool(caplog.records) and queue.qsize() == 0


def get_until(queue: JoinableQueue[bytes], last: bytes) -> None:
    """Finish objects until one comes that ends this process."""
    while queue.get(timeout=SECONDS) != last:
        queue.task_done()


def test_object_that_ended_its_process_keeps_no_other_waiting(tmp_path: Path) -> None:
    """It comes back later, and what was put after it meanwhile."""
    queue: JoinableQueue[int] = JoinableQueue(directory=tmp_path / "q", backoff=(600.0, 600.0))
    put_each(queue, [1, 2, 3])
    assert joined(started(JoinableQueue.get, queue)) == 0
    assert [queue.get(timeout=SECONDS), queue.get(timeout=SECONDS)] == [2, 3]
    assert queue.qsize() == 1
    with pytest.raises(Empty):
        queue.get_nowait()
    queue.close()


def test_objects_come_back_first_where_they_do_not_wait(tmp_path: Path) -> None:
    """As often as need be: with the options that say so."""
    queue: JoinableQueue[int] = JoinableQueue(
        directory=tmp_path / "q", max_deliveries=None, backoff=None
    )
    put_each(queue, [1, 2])
    for _ in range(22):
        assert joined(started(JoinableQueue.get, queue)) == 0
    assert [queue.get(timeout=SECONDS), queue.get(timeout=SECONDS)] == [1, 2]
    queue.close()
    for options in ({"max_deliveries": 0}, {"backoff": (1.0, 0.5)}):
        with pytest.raises(errors.InvalidOption):
            JoinableQueue(**options)  # type: ignore[arg-type]


def test_finished_objects_are_not_redelivered(tmp_path: Path) -> None:
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
    assert {again.get(timeout=60), again.get(timeout=60)} == {2, 3}
    again.close()


def test_object_of_a_killed_getter_is_not_redelivered() -> None:
    """An object that a process got from a Queue is lost with it, and is never got twice."""
    queue: Queue[int] = Queue()
    ready: SimpleQueue[int] = SimpleQueue()
    put_each(queue, [1, 2, 3])
    process = started(get_and_hang, queue, ready, 2)
    os.kill(ready.get(), signal.SIGKILL)
    joined(process)
    assert queue.get(timeout=1) == 3
    with pytest.raises(Empty):
        queue.get(timeout=0.3)


def test_task_done_acknowledges_this_threads_object() -> None:
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


def test_join_waits_for_objects_put_meanwhile() -> None:
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


def test_existing_queue_keeps_its_maxsize(tmp_path: Path) -> None:
    """Objects that were put by one kind are got by the other, whatever each would have chosen."""
    first: Queue[int] = Queue(directory=tmp_path)
    first.put(1)
    first.close()
    second: JoinableQueue[int] = JoinableQueue(directory=tmp_path, unfinished_max=7)
    assert second.get(timeout=10) == 1
    second.task_done()
    second.close()
