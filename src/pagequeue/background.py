"""One worker thread for what must not happen on a writer's or reader's path.

Pages are made ready and unmapped there. The thread starts when the first job comes, and a job that
cannot be taken any more, because the interpreter is ending or the process is a fork, is dropped:
nothing may depend on a job being done. Handing over a job is safe inside signal handlers and
finalizers, which an executor's is not: its locks would be taken twice by one thread.
"""

from __future__ import annotations

import logging
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("pagequeue")


class Background:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether no more jobs are wanted."""
        return self._closed

    def submit(self, job: Callable[[], object]) -> None:
        """Have a job done soon, or never; its errors are logged."""
        if self._closed or os.getpid() != self._pid:
            return
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name="pagequeue", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:
                # No thread can be had, or the interpreter is ending. The jobs are given up, and
                # with them what they hold; the next one tries again.
                self._thread = None
                self._jobs = SimpleQueue()

    def drop(self, held: list[object]) -> None:
        """Empty a list in the worker, where unmapping what it held hurts nobody.

        The caller keeps the list only: were one of the things still in a variable of its, and the
        worker quick, the last reference would go on the caller's path.
        """
        self.submit(held.clear)

    def close(self, *, wait: bool = True) -> None:
        """Finish what was begun and end the thread; wait for it, unless a collector calls."""
        self._closed = True
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return
        self._jobs.put(None)
        if wait and thread.is_alive() and thread is not threading.current_thread():
            thread.join()


def _work(jobs: SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - no job may end the thread
            log.debug("a background job failed: %s", error)
        del job
