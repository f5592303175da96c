"""One worker thread for what must not happen on a writer's or reader's path.

Pages are made ready and unmapped there. The thread starts when the first job comes, and a job that
cannot be taken any more, because the interpreter is ending or the process is a fork, is dropped:
nothing may depend on a job being done. Handing over a job is safe inside signal handlers and
finalizers, which an executor's is not: its locks would be taken twice by one thread.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from pagequeue import _core
from pagequeue.util.single_thread import SingleThread

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs: TypeAlias = SimpleQueue[Callable[[], object] | None]

log = logging.getLogger("pagequeue")


class Background:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._jobs: Jobs = SimpleQueue()
        self._worker = SingleThread(
            "pagequeue", partial(_work, self._jobs), partial(_give_up, self._jobs)
        )
        self._fork_count = _core.fork_count()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether no more jobs are wanted."""
        return self._closed

    def submit(self, job: Callable[[], object]) -> None:
        """Have a job done soon, or never; its errors are logged."""
        if self._closed or _core.fork_count() != self._fork_count:
            return
        self._jobs.put(job)
        if not self._worker.is_there:
            try:
                self._worker.start()
            except RuntimeError:
                # No thread can be had, or the interpreter is ending. The jobs are dropped, and
                # with them what they hold; the next one tries again.
                _drop(self._jobs)
        if self._closed:  # meanwhile, by another thread or a signal handler
            self.end()

    def drop(self, held: list[object]) -> None:
        """Empty a list in the worker, where unmapping what it held hurts nobody.

        The caller keeps the list only: were one of the things still in a variable of its, and the
        worker quick, the last reference would go on the caller's path.
        """
        self.submit(held.clear)

    def end(self) -> None:
        """Have the thread end when it has done what it has begun; wait for nothing."""
        self._closed = True
        if _core.fork_count() != self._fork_count:
            return
        if self._worker.is_there:
            self._jobs.put(None)
        else:
            _give_up(self._jobs)

    def await_end(self, seconds: float) -> None:
        """Wait until the thread has ended, but no longer than this."""
        if _core.fork_count() == self._fork_count:
            self._worker.await_end(seconds)


def _drop(jobs: Jobs) -> None:
    """Drop what nobody does."""
    with contextlib.suppress(Empty):
        while True:
            jobs.get_nowait()


def _give_up(jobs: Jobs) -> None:
    """Drop what nobody does any more; the mark at the end stays for every thread."""
    _drop(jobs)
    jobs.put(None)


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - no job may end the thread
            log.debug("a background job failed: %s", error)
        del job
