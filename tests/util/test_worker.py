"""The thread in the background: what is urgent comes first, and nothing waits for ever."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import support

from pagequeue.util.worker import LATER_MAX, Background, Repeated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def test_later_jobs_wait_for_the_others_but_not_when_they_are_many() -> None:
    """Each can hold a page, so a busy thread must do them as well."""
    background, free = Background(), threading.Event()
    done: list[str] = []
    background.submit(free.wait)
    background.submit_later(lambda: done.append("later"))
    for name in ("first", "second"):
        background.submit(lambda name=name: done.append(name))
    free.set()
    support.until(lambda: len(done) == 3)
    assert done == ["first", "second", "later"]
    free.clear()
    background.submit(free.wait)
    for _ in range(LATER_MAX + 1):
        background.submit_later(lambda: done.append("later"))
    background.submit(lambda: done.append("third"))
    free.set()
    support.until(lambda: "third" in done)
    assert done[3] == "later"
    background.end()
    background.await_end(support.LONG)


def test_later_jobs_are_done_before_the_thread_ends() -> None:
    """Such as giving back the blocks of the last page that was sealed."""
    background, free = Background(), threading.Event()
    done: list[str] = []
    background.submit(free.wait)
    background.submit_later(lambda: done.append("later"))
    background.end()
    free.set()
    background.await_end(support.LONG)
    assert done == ["later"]
    assert not background.submit_later(lambda: done.append("never"))


def run_until(point: int, call: Callable[[], object], then: Callable[[], object]) -> int:
    """Call a function, and another one before its nth instruction; return how many it has."""
    code, seen = call.__code__, [0]  # type: ignore[attr-defined]

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as in Python's docs
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen[0] += 1
            if seen[0] == point:
                then()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return seen[0]


def test_job_that_another_thread_begins_while_it_runs_is_not_lost() -> None:
    """At whatever instruction: it had found nothing to do, and there is something by now."""
    repeated = Repeated()
    told: list[str] = []

    def job() -> bool:
        told.append("ran")
        return False

    def begin() -> None:
        told.append("begun")
        repeated.begin(job, 0.0)

    point, points = 0, 1
    while point < points:
        point += 1
        begin()
        points = run_until(point, repeated.run, begin)
        assert told[-1] == "ran" or repeated.seconds_left() == 0.0, point
    assert points > 10
