"""One worker thread for work that must stay off the path of writers and readers.

It prepares and unmaps pages. The thread starts with the first job. Jobs are dropped when the
interpreter is shutting down or the process is a fork, so correctness must not depend on them.
Submitting a job is safe inside signal handlers and finalizers, unlike an executor's: one thread
would take its locks twice.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from pagequeue import _core, errors
from pagequeue.util.green import are_threads_green
from pagequeue.util.single_thread import SingleThread

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs: TypeAlias = SimpleQueue[Callable[[], object] | None]

log: logging.Logger = logging.getLogger("pagequeue")
LATER_MAX: Final = 2
"""Jobs that may wait for the thread to have nothing else to do: each can hold a page."""


class Repeated:
    """Jobs that are run again and again by a thread that has nothing else to do."""

    def __init__(self) -> None:
        self._jobs: dict[Callable[[], bool], tuple[float, float]] = {}  # seconds, when it is due

    def begin(self, job: Callable[[], bool], seconds: float) -> None:
        """Run a job from now on every so many seconds."""
        self._jobs[job] = seconds, time.monotonic() + seconds

    def seconds_left(self) -> float | None:
        """Return how long it is until the next job is due; None: there is none."""
        due = min([due for _, due in list(self._jobs.values())], default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def run(self) -> None:
        """Run a job that is due; one that another thread begins meanwhile stays."""
        now = time.monotonic()
        for job, (seconds, due) in list(self._jobs.items()):
            if due > now or self._jobs.pop(job, None) is None:
                continue
            is_wanted = True
            try:
                is_wanted = job()
            finally:
                if is_wanted:
                    self._jobs.setdefault(job, (seconds, time.monotonic() + seconds))
            return


class Background:
    """Runs jobs one after the other in its own thread."""

    def __init__(self) -> None:
        self._jobs: Jobs = SimpleQueue()
        self._later: Jobs = SimpleQueue()
        self._held: list[object] = []
        self._repeated = Repeated()
        self._worker = SingleThread(
            "pagequeue",
            partial(_work, self._jobs, self._later, self._repeated),
            partial(_finish, self._jobs, self._later),
        )
        self._fork_count = _core.fork_count()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether jobs are no longer accepted."""
        return self._closed

    def submit(self, job: Callable[[], object]) -> bool:
        """Run a job soon, or never, which False tells; its errors are logged.

        Where threads are greenlets it runs now: a sender that never waits lets no other one run.
        """
        if self._closed or _core.fork_count() != self._fork_count:
            return False
        if are_threads_green():
            _do(job)
            _do(self._repeated.run)
            return True
        self._jobs.put(job)
        if not self._worker.is_there:
            try:
                self._worker.start()
            except errors.SystemLimit:
                # The system gives no thread, or the interpreter is shutting down. Drop the jobs
                # and what they hold; the next submit tries again.
                _drop(self._jobs)
                return False
        if self._closed:  # meanwhile, by another thread or a signal handler
            self.end()
        return True

    def submit_later(self, job: Callable[[], object]) -> bool:
        """Run a job when there is nothing else to do, or when some of these wait."""
        if are_threads_green():
            return self.submit(job)
        self._later.put(job)
        if not self.submit(bool):  # a thread that waits for jobs looks again
            _drop(self._later)
            return False
        return True

    def repeat(self, job: Callable[[], bool], seconds: float) -> None:
        """Run a job every so many seconds, until it returns False.

        The job must not refer to the owner of this object, which it would keep alive.
        """
        self._repeated.begin(job, seconds)
        self.submit(bool)  # a thread that waits for jobs looks at the clock again

    def drop(self, held: list[object]) -> None:
        """Drop the elements of a list in the worker, so that unmapping them delays no caller.

        The caller must keep no other reference to an element: it could be the last one, and then
        the caller would unmap it.
        """
        if any(one is not None for one in held):  # else no thread is started for it
            self._held += held
            held.clear()
            if not self.submit(partial(_empty, self._held)):
                _empty(self._held)

    def leave_to_parent(self) -> None:
        """Drop in a fork's child what waits for the worker, which only the parent has."""
        _drop(self._jobs)
        _drop(self._later)
        _empty(self._held)

    def end(self) -> None:
        """Ask the thread to end after its current job; return at once."""
        self._closed = True
        if _core.fork_count() != self._fork_count:
            return
        if are_threads_green():
            _empty(self._held)
        elif self._worker.is_there:
            self._jobs.put(None)
        else:
            _finish(self._jobs, self._later)
            _empty(self._held)

    def await_end(self, seconds: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        if _core.fork_count() == self._fork_count:
            self._worker.await_end(seconds)


def _drop(jobs: Jobs) -> None:
    """Drop all jobs."""
    with contextlib.suppress(Empty):
        while True:
            jobs.get_nowait()


def _empty(held: list[object]) -> None:
    """Drop one element after the other: a fork copies a thread's frames and never releases them."""
    with contextlib.suppress(IndexError):
        while True:
            held.pop()


def _finish(jobs: Jobs, later: Jobs) -> None:
    """Drop all jobs; the end marker stays for every thread."""
    _drop(jobs)
    _drop(later)
    jobs.put(None)


def _work(jobs: Jobs, later: Jobs, repeated: Repeated) -> None:
    is_ending = False
    while not is_ending or not later.empty():
        job: Callable[[], object] | None
        try:
            if is_ending or later.qsize() > LATER_MAX:
                job = later.get_nowait()
            elif later.empty():
                job = jobs.get(timeout=repeated.seconds_left())
            else:
                job = jobs.get_nowait()
        except Empty:
            job = _taken(later) or repeated.run
        if job is None:
            is_ending = True
            continue
        _do(job)
        del job


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as error:  # noqa: BLE001 - no job may end the thread
        log.debug("a background job failed: %s", error)


def _taken(jobs: Jobs) -> Callable[[], object] | None:
    with contextlib.suppress(Empty):
        return jobs.get_nowait()
    return None
