"""Tasks that run at the same time."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest
from support import LONG

from pagequeue.util import side_by_side as module
from pagequeue.util.side_by_side import side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import TraceFunction


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """Return a task that fails."""

    def task() -> NoReturn:
        raise error

    return task


def test_tasks_run_at_the_same_time() -> None:
    """Each waits for the other two; the first one runs in the caller's thread."""
    met = threading.Barrier(3)
    threads: list[threading.Thread] = []

    def task() -> None:
        met.wait(30)
        threads.append(threading.current_thread())

    side_by_side([task] * 3)
    assert len(set(threads)) == 3
    assert threading.current_thread() in threads
    assert not [
        thread for thread in threads if thread.name == "pagequeue-task" and thread.is_alive()
    ]


def test_nothing_to_do_is_done() -> None:
    """No task, and one."""
    done: list[int] = []
    side_by_side([])
    side_by_side([lambda: done.append(1)])
    assert done == [1]


def test_all_tasks_end_and_the_first_error_is_raised() -> None:
    """In the order of the tasks, not in that of time."""
    third = threading.Event()
    done: list[int] = []

    def late() -> None:
        assert third.wait(LONG)
        done.append(1)
        raise ValueError("second")

    def early() -> None:
        third.set()
        raise KeyError("third")

    with pytest.raises(ValueError, match="second"):
        side_by_side([late, early, lambda: done.append(2)])
    assert sorted(done) == [1, 2]


def test_without_threads_tasks_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives none, or the interpreter is shutting down."""

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads: list[threading.Thread] = []
    side_by_side([lambda: threads.append(threading.current_thread())] * 3)
    assert threads == [threading.current_thread()] * 3


def test_an_interrupted_call_waits_for_its_threads() -> None:
    """What they write to is closed and removed after it."""
    begun, done = threading.Event(), []

    def other() -> None:
        assert begun.wait(LONG)
        time.sleep(0.1)  # in which a call that does not wait is over
        done.append(1)

    def interrupted() -> None:
        begun.set()
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupted, other])
    assert done == [1]

    begun.clear()

    def handler(*_: object) -> NoReturn:
        begun.set()
        raise TimeoutError("handler")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError, match="handler"):
            side_by_side([bool, other])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert done == [1, 1]


class Stop(Exception):
    """What a signal handler raises."""


@pytest.mark.slow
def test_what_a_handler_raises_at_any_step_ends_the_wait_and_loses_no_thread() -> None:
    """Also between taking what a thread said and counting it: the wait would never end."""
    for step in itertools.count(1):
        running: list[int] = []

        def task(running: list[int] = running) -> None:
            running.append(1)
            time.sleep(0.005)
            running.pop()

        where = interrupted_at(step, [bool, task, task])
        assert not running, where
        if where is None:
            break
    assert step > 100


def interrupted_at(step: int, tasks: list[Callable[[], object]]) -> str | None:
    """Run tasks, and raise at a step of the caller's; return which one, None: after the end."""
    where: list[str] = []
    ended: list[bool] = []
    steps = itertools.count(1)

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        code = frame.f_code
        if code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            where.append(f"{code.co_name}:{frame.f_lineno}")
            raise Stop
        return trace

    def call() -> None:
        sys.settrace(trace)
        try:
            side_by_side(tasks)
        except Stop:
            pass
        finally:
            sys.settrace(None)
        ended.append(True)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(30)
    assert ended, where
    return where[0] if where else None
