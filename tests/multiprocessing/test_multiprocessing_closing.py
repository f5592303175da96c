"""The drop-in: closing concurrently with every other call of this process's threads."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from functools import partial
from multiprocessing import context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drop_in_support import SECONDS
from support import until_asleep

from pagequeue import errors
from pagequeue.multiprocessing import SLICE_SECONDS, Empty, JoinableQueue, Queue, SimpleQueue, base
from pagequeue.multiprocessing.large_objects import LargeObjects
from pagequeue.multiprocessing.object_queue import ObjectQueue
from pagequeue.multiprocessing.temp_directory import SharedTempDirectory
from pagequeue.system.directory import Directory

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
        except Exception as error:  # noqa: BLE001 - checked by the test
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


@pytest.mark.parametrize("kind", [SimpleQueue, Queue, JoinableQueue])
def test_get_that_waits_ends_when_the_queue_is_closed(kind: type[SimpleQueue[int]]) -> None:
    """Otherwise its thread would wait for ever: no put or get can follow."""
    queue = kind()
    queue.put(1)
    queue.get()
    thread, came = in_thread(queue.get)
    time.sleep(2 * SLICE_SECONDS)
    assert thread.is_alive()
    queue.close()
    thread.join(SECONDS)
    assert isinstance(came[0], base.QueueClosed)


def test_joinable_get_waits_for_its_timeout() -> None:
    """Waiting in slices does not change the total."""
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
    """Closing found it not open, and its directory is removed: no file is opened in it."""
    queue: Queue[bytes] = Queue()
    made: list[ObjectQueue] = []

    def late(settings: Any) -> ObjectQueue:  # noqa: ANN401 - the library's own
        made.append(ObjectQueue(settings))
        in_thread(queue.close)[0].join(SECONDS)
        return made[0]

    monkeypatch.setattr(base, "ObjectQueue", late)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(b"1"),
        "get": queue.get,
        "empty": queue.empty,
    }
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
    taker = JoinableQueue._take_function

    def late(self: JoinableQueue[int], items: ObjectQueue) -> Any:  # noqa: ANN401 - the core's own
        queue.close()
        return taker(self, items)

    monkeypatch.setattr(JoinableQueue, "_take_function", late)
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
    for thread in threads:
        until_asleep(thread)
    assert Path(queue.directory).exists()
    goes_on.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not Path(queue.directory).exists()


USES: dict[str, Callable[[Any], object]] = {
    "empty": lambda queue: queue.empty(),
    "qsize": lambda queue: queue.qsize(),
    "full": lambda queue: queue.full(),
    "flush": lambda queue: queue.flush(),
    "put": lambda queue: queue.put(1),
    "large": lambda queue: queue.put(LARGE),
    "get": lambda queue: queue.get(),
}
SIMPLE = ("empty", "put", "large", "get")


def call_until_closed(queue: Any, use: str) -> BaseException:  # noqa: ANN401 - one of the three
    """Call again and again; return what ends it."""
    while True:
        try:
            USES[use](queue)
        except Exception as error:  # noqa: BLE001 - checked by the test
            return error


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(
    ("kind", "uses"), [(SimpleQueue, SIMPLE), (Queue, tuple(USES)), (JoinableQueue, tuple(USES))]
)
def test_every_call_during_closing_ends_as_in_the_standard_library(
    kind: type[Any], uses: tuple[str, ...]
) -> None:
    """OSError and ValueError at once, never an error of the engine, at any point of the call."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(6):
            queue = kind(page_bytes=4096)
            queue.put(1)
            threads = [in_thread(partial(call_until_closed, queue, use)) for use in uses]
            time.sleep(0.001 * turn)
            queue.close()
            for use, (thread, came) in zip(uses, threads, strict=True):
                thread.join(SECONDS)
                assert not thread.is_alive(), use
                assert type(came[0]) is base.QueueClosed, (use, came[0])
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("kind", "use"),
    [(Queue, use) for use in ("empty", "qsize", "full", "flush", "large")]
    + [(SimpleQueue, use) for use in ("empty", "large")],
)
def test_queue_that_is_closed_in_the_middle_of_a_call_raises_as_closed(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], use: str
) -> None:
    """The call already has the open queue; its next operation is refused."""
    queue = kind(maxsize=3, page_bytes=4096) if kind is Queue else kind(page_bytes=4096)
    queue.put(1)
    real = base.Base._open

    def late(self: Any) -> ObjectQueue:  # noqa: ANN401 - one of the three
        objects = real(self)
        in_thread(queue.close)[0].join(SECONDS)
        return objects

    monkeypatch.setattr(base.Base, "_open", late)
    with pytest.raises(base.QueueClosed) as caught:
        USES[use](queue)
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("kind", [SimpleQueue, Queue])
def test_large_object_that_was_taken_when_the_queue_is_closed_is_not_lost(
    tmp_path: Path, kind: type[SimpleQueue[bytes]]
) -> None:
    """I18: it cannot be redelivered, so this getter must return it."""
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


def test_large_object_whose_directory_is_removed_while_it_is_opened_is_not_reported_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closing does not wait for it, and removes the private directory with its file."""
    queue: Queue[bytes] = Queue(page_bytes=4096)
    queue.put(LARGE)
    real = LargeObjects._open

    def late(self: LargeObjects, name: str, flags: int) -> Any:  # noqa: ANN401 - the core's
        with self._descriptor:
            in_thread(queue.close)[0].join(SECONDS)
            return real(self, name, flags)

    monkeypatch.setattr(LargeObjects, "_open", late)
    with pytest.raises(base.QueueClosed):
        queue.get()


def test_large_object_of_a_removed_directory_is_a_clear_error() -> None:
    """A private directory is removed with its queue, and all files in it."""
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

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as in Python's docs
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


def test_dropped_queue_is_closed_during_a_get(tmp_path: Path) -> None:
    """The thread holds the handle, so it is not collected; afterwards no file is open."""
    queue: Queue[int] = Queue(directory=tmp_path)
    thread, _ = in_thread(lambda queue=queue: queue.get(timeout=0.2))  # type: ignore[misc]
    del queue
    gc.collect()
    thread.join(SECONDS)
    del thread, _
    gc.collect()
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    assert [n for n in names if os.path.exists(n) and str(tmp_path) in os.readlink(n)] == []


def test_large_object_into_a_directory_that_closing_removed_raises_as_closed(
    tmp_path: Path,
) -> None:
    """A put that had begun may find the directory gone, and not only its queue closed."""
    folder = Directory(str(tmp_path), create=False)
    large = LargeObjects(folder, "large", synced=False, named=tuple)
    folder.close()
    with large._descriptor:
        large.close()
        (tmp_path / "large").rmdir()
        with pytest.raises(errors.ClosedError):
            large.write(b"object")
