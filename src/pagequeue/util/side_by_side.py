"""Tasks that run at the same time, in threads that have ended when the call ends."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.util.daemon_thread import DaemonThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Run tasks at the same time, and wait for all of them.

    The first one runs in this thread, and each for which the system gives no thread.

    Raises:
        What the first of them that failed raised; or what a signal handler raised meanwhile.
    """
    failed: dict[int, BaseException] = {}
    ended: SimpleQueue[int] = (
        SimpleQueue()
    )  # not `join`: CPython's believes it when a handler raises
    threads: list[DaemonThread] = []

    def run(number: int) -> None:
        try:
            tasks[number]()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            failed[number] = error

    def run_in_thread(number: int) -> None:
        run(number)
        ended.put(number)

    try:
        for number in range(1, len(tasks)):
            threads.append(DaemonThread(partial(run_in_thread, number), "pagequeue-task"))
            try:
                threads[-1].start()
            except errors.SystemLimit:
                threads.pop()
                run(number)
        if tasks:
            run(0)
    finally:
        _await(ended, sum(thread.ident is not None for thread in threads))
    for thread in threads:
        thread.join()
    for number in sorted(failed):
        raise failed[number]


def _await(ended: SimpleQueue[int], count: int) -> None:
    """Wait for threads, whatever signal handlers raise meanwhile, and raise that then."""
    raised: BaseException | None = None
    while count:
        try:
            ended.get()
            count -= 1
        except BaseException as error:  # noqa: BLE001 - raised below
            raised = error
    if raised is not None:
        raise raised
