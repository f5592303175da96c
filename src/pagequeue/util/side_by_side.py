"""Tasks that run at the same time, in threads that have ended when the call ends."""

from __future__ import annotations

import contextlib
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.util.daemon_thread import daemon_thread, start
from pagequeue.util.green import are_threads_green

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence


def side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Run tasks at the same time, and wait for all of them.

    The first one runs in this thread, and each that no other thread has taken by then: the system
    gives none, for example.

    Raises:
        What the first of them that failed raised; or what a signal handler raised meanwhile.
    """
    run = _Run(tasks)
    raised: BaseException | None = None
    is_begun = False
    while True:
        try:
            if not is_begun:
                is_begun = True
                run.begin()
            run.wait()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            raised = error
    if raised is not None:
        raise raised
    for thread in run.threads:
        thread.join()
    for number in sorted(run.failed):
        raise run.failed[number]


class _Run:
    """Tasks that are run, once.

    A signal handler can raise between any two steps of the caller's: what threads say is kept, and
    counted anew after each interruption.
    """

    def __init__(self, tasks: Sequence[Callable[[], object]]) -> None:
        self._tasks = tasks
        self._takers: dict[int, int] = {}
        """By task: the number of the thread that has it, which came first; 0: the caller's."""
        self._done: list[int] = []
        # Not `join`: CPython's believes that a thread has ended when a handler raises.
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.failed: dict[int, BaseException] = {}
        self.threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Start threads, and run in this one what they have not taken."""
        for number in range(1, 1 if are_threads_green() else len(self._tasks)):
            thread = daemon_thread(partial(self._run_in_thread, number), "pagequeue-task")
            with contextlib.suppress(errors.SystemLimit):
                start(thread)
                self.threads.append(thread)
        for number in range(len(self._tasks)):
            if self._takers.setdefault(number, 0) == 0:
                self._run(number)

    def wait(self) -> None:
        """Wait for the threads that have a task; the others get none any more."""
        for number in range(len(self._tasks)):
            self._takers.setdefault(number, 0)
        while sum(map(bool, self._takers.values())) > len(self._done):
            self._ended.get()

    def _run(self, number: int) -> None:
        try:
            self._tasks[number]()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            self.failed[number] = error

    def _run_in_thread(self, number: int) -> None:
        if self._takers.setdefault(number, number) == number:
            self._run(number)
            self._done.append(number)
            self._ended.put(None)
