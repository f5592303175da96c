"""The drop-in: closing beside everything else that threads of this process do with it."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from multiprocessing import context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drop_in_support import SECONDS

from pagequeue import errors
from pagequeue.multiprocessing import SLICE_SECONDS, Empty, JoinableQueue, Queue, SimpleQueue, base
from pagequeue.multiprocessing.large_objects import LargeObjects
from pagequeue.multiprocessing.object_queue import ObjectQueue
from pagequeue.multiprocessing.temp_directory import SharedTempDirectory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

LARGE = bytes(1 << 16)


def in_thread(do: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Do something in a thread; return it, and what came of it."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(do())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


@pytest.mark.parametrize("kind", [SimpleQueue, Queue, JoinableQueue])
def test_get_that_waits_ends_when_the_queue_is_closed(kind: type[SimpleQueue[int]]) -> None:
    """Or its thread would wait for ever: nobody can put or get any more."""
    queue = kind()
    queue.put(1)
    queue.get()
    thread, came = in_thread(queue.get)
    time.sleep(2 * SLICE_SECONDS)
    assert thread.is_alive()
    queue.close()
    thread.join(SECONDS)
    assert isinstance(came[0], base.QueueClosed)


def test_joinable_get_waits_as_long_as_it_was_told() -> None:
    """Waiting in slices changes nothing about that."""
    queue: JoinableQueue[int] = JoinableQueue()
    for seconds in (0.0, SLICE_SECONDS / 2, 2.5 * SLICE_SECONDS):
        began = time.monotonic()
        with pytest.raises(Empty):
            queue.get(timeout=seconds)
        assert time.monotonic() - began >= seconds
    threading.Timer(2 * SLICE_SECONDS, queue.put, (3,)).start()
    assert queue.get() == 3
    queue.close()
    queue.task_done()


@pytest.mark.parametrize("use", ["put", "get", "empty"])
def test_queue_that_is_closed_while_it_is_opened_stays_closed(
    monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Closing found nothing open, and its directory goes: nothing is opened in it."""
    queue: Queue[bytes] = Queue()
    made: list[ObjectQueue] = []

    def late(settings: Any) -> ObjectQueue:  # noqa: ANN401 - the library's own
        made.append(ObjectQueue(settings))
        in_thread(queue.close)[0].join(SECONDS)
        return made[0]

    monkeypatch.setattr(base, "ObjectQueue", late)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(b"1"), "get": queue.get, "empty": queue.empty,
    }  # fmt: skip
    thread, came = in_thread(calls[use])
    thread.join(SECONDS)
    assert isinstance(came[0], base.QueueClosed)
    assert made[0].queue._store.is_closed
    assert not Path(queue.directory).exists()


def test_queue_that_is_closed_before_its_calls_are_kept_stays_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The core's own calls would go on for ever in the attributes of a closed queue."""
    queue: JoinableQueue[int] = JoinableQueue()
    taker = JoinableQueue._taker

    def late(self: JoinableQueue[int], items: ObjectQueue) -> Any:  # noqa: ANN401 - the core's own
        queue.close()
        return taker(self, items)

    monkeypatch.setattr(JoinableQueue, "_taker", late)
    with pytest.raises(base.QueueClosed):
        queue.put(1)
    with pytest.raises(base.QueueClosed):
        queue.get_nowait()


def test_second_thread_that_closes_leaves_the_directory_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operations may still use it: they would end in QueueNotFound, which is not so."""
    queue: Queue[int] = Queue()
    queue.put(1)
    goes_on, close = threading.Event(), ObjectQueue.close

    def held(self: ObjectQueue) -> None:
        assert goes_on.wait(SECONDS)
        close(self)

    monkeypatch.setattr(ObjectQueue, "close", held)
    threads = [in_thread(queue.close)[0] for _ in range(2)]
    threads[1].join(0.1)
    assert Path(queue.directory).exists()
    goes_on.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not Path(queue.directory).exists()


@pytest.mark.parametrize("kind", [SimpleQueue, Queue])
def test_large_object_that_was_taken_when_the_queue_is_closed_is_not_lost(
    tmp_path: Path, kind: type[SimpleQueue[bytes]]
) -> None:
    """I18: nobody else gets it, so this one must."""
    queue = kind(directory=tmp_path, page_bytes=4096)
    queue.put(LARGE)
    take = queue._take

    def late(timeout: float | None) -> Any:  # noqa: ANN401 - what the core gives
        message = take(timeout)
        queue.close()
        return message

    setattr(queue, "_take", late)  # noqa: B010  mypy forbids it in plain words
    assert queue.get() == LARGE
    assert os.listdir(tmp_path / "items-large") == []


def test_large_object_whose_directory_went_ends_in_an_error_that_says_so() -> None:
    """A private directory goes with its queue, and all that is in it."""
    queue: Queue[bytes] = Queue(page_bytes=4096)
    queue.put(LARGE)
    take = queue._take

    def late(timeout: float | None) -> Any:  # noqa: ANN401 - what the core gives
        message = take(timeout)
        queue.close()
        return message

    setattr(queue, "_take", late)  # noqa: B010  mypy forbids it in plain words
    with pytest.raises(ValueError, match="closed"):
        queue.get()


def left_again_at(shared: SharedTempDirectory, place: int) -> list[int]:
    """Leave it, and once more at one of the instructions of that; return what was opened then."""
    left, numbers = [place], list[int]()

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as Python says
        if frame.f_code is SharedTempDirectory.release.__code__:
            frame.f_trace_opcodes = True
            left[0] -= event == "opcode"
            if left[0] == -1:
                sys.settrace(None)
                shared.release()
                numbers.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        shared.release()
    finally:
        sys.settrace(before)
    return numbers


def test_pipe_of_a_private_directory_is_closed_once() -> None:
    """Closed twice, its number can be another file's."""
    for place in range(1000):
        numbers = left_again_at(SharedTempDirectory(), place)
        for number in numbers:
            os.fstat(number)
            os.close(number)
        if not numbers:
            assert place > 10
            return
    raise AssertionError("leaving has no end")


def test_closed_private_queue_is_not_handed_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of its pipe can be another file's by now."""
    monkeypatch.setattr(context, "assert_spawning", lambda _: None)
    queue: Queue[int] = Queue()
    queue.close()
    with pytest.raises(OSError, match="closed"):
        queue.__getstate__()


def test_dropped_queue_is_closed_beside_a_get(tmp_path: Path) -> None:
    """The thread has the handle, so the collector has not; afterwards nothing is open."""
    queue: Queue[int] = Queue(directory=tmp_path)
    thread, _ = in_thread(lambda queue=queue: queue.get(timeout=0.2))  # type: ignore[misc]
    del queue
    gc.collect()
    thread.join(SECONDS)
    del thread, _
    gc.collect()
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    assert [n for n in names if os.path.exists(n) and str(tmp_path) in os.readlink(n)] == []


def test_large_object_into_a_directory_that_closing_removed_says_that_it_is_closed(
    tmp_path: Path,
) -> None:
    """A put that had begun may find the directory gone, and not only its queue closed."""
    large = LargeObjects(str(tmp_path / "large"), synced=False, named=tuple)
    with large._descriptor:
        large.close()
        (tmp_path / "large").rmdir()
        with pytest.raises(errors.ClosedError):
            large.write(b"object")
