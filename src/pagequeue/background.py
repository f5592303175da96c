"""One worker thread for what must not happen on a writer's or reader's path.

Pages are made ready and unmapped there. The thread starts when the first job comes, and a job that
cannot be taken any more, because the interpreter is ending or the process is a fork, is dropped:
nothing may depend on a job being done.
"""

from __future__ import annotations

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("pagequeue")


class Background:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False

    def submit(self, job: Callable[[], object]) -> None:
        """Have a job done soon, or never; its errors are logged."""
        if self._closed or os.getpid() != self._pid:
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="pagequeue")

        def run() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - no job may end the thread
                log.debug("a background job failed: %s", error)

        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            self._executor.submit(run)

    def drop(self, held: list[object]) -> None:
        """Empty a list in the worker, where unmapping what it held hurts nobody.

        The caller keeps the list only: were one of the things still in a variable of its, and the
        worker quick, the last reference would go on the caller's path.
        """
        self.submit(held.clear)

    def close(self, *, wait: bool = True) -> None:
        """Finish what was begun and end the thread; wait for it, unless a collector calls."""
        self._closed = True
        if self._executor is not None and os.getpid() == self._pid:
            self._executor.shutdown(wait=wait)
        self._executor = None
