"""Bugs of closing during other calls; each function plants one, as in `patches.py`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from pagequeue import multiprocessing
from pagequeue.multiprocessing import large_objects
from pagequeue.store import flush
from pagequeue.system import descriptors, directory
from pagequeue.util import single_thread, worker
from pagequeue.wait import notifier
from stress.plants.plant import CLOSE, COMBINED, in_python
from stress.plants.rewrite import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSINGS = (
    in_python(
        "directory_held_as_a_number",
        "closing takes the directory from operations under way",
        "I10, another queue's pages are replaced",
        {CLOSE: 30.0, COMBINED: 30.0},
    ),
    in_python(
        "two_workers_started",
        "two simultaneous first jobs start two threads",
        "a wait without end",
        {CLOSE: 90.0, COMBINED: 180.0},
    ),
    in_python(
        "events_locked_by_ctrl_c",
        "an interrupted close() leaves the lock of an event taken",
        "a wait without end",
        {CLOSE: 120.0},
    ),
    in_python(
        "opened_before_it_is_owned",
        "Ctrl-C between opening and owning leaves a file open",
        "no descriptor outlives its owner",
        {CLOSE: 60.0},
    ),
    in_python(
        "get_waits_in_a_closed_queue",
        "closing wakes no waiter of the drop-in",
        "a wait without end",
        {CLOSE: 40.0},
    ),
)


class _Number:
    """An unprotected descriptor: the class in `descriptors.py` without counting operations."""

    is_inside = False
    others = 0

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_closed = False

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        """Check no state."""

    def forget(self) -> None:
        """Keep the descriptor."""

    def close(self, release: Callable[[], object] | None = None) -> bool:
        """Close at once, even during operations."""
        if not self.is_closed:
            self.is_closed = True
            if release is not None:
                release()
            os.close(self._fd)
        return True


def directory_held_as_a_number() -> None:
    """An operation keeps the number of its directory, and closing closes it."""
    real = descriptors.opened

    def opened(path: str, flags: int, *mode: int, **place: Any) -> object:  # noqa: ANN401
        return real(path, flags, *mode, **place) if place else _Number(os.open(path, flags, *mode))

    vars(directory)["opened"] = opened


def opened_before_it_is_owned() -> None:
    """A file is open for some instructions before anything would close it."""
    call = "os.open(path if name is None else name, flags, mode, dir_fd=dir_fd)"
    rewrite(
        descriptors,
        "opened",
        ("descriptor = owned(-1, path, what)", f"number = {call}"),
        (f"descriptor.open({call.replace('(', ', ', 1)}", "descriptor = owned(number, path, what)"),
    )
    vars(directory)["opened"] = vars(large_objects)["opened"] = descriptors.opened


def two_workers_started() -> None:
    """A caller that finds no thread starts one; one mark ends one of them, and closing waits."""
    rewrite(
        single_thread.SingleThread,
        "start",
        (
            "self._there.setdefault(THREAD, thread) is thread",
            "self._there.update(thread=thread) is None",
        ),
    )
    rewrite(single_thread.SingleThread, "await_end", ("thread.join(seconds)", "thread.join()"))
    rewrite(worker, "_finish", ("    jobs.put(None)\n", ""))


def events_locked_by_ctrl_c() -> None:
    """What wakes the threads of a queue is an event with a lock."""
    for room in (notifier, flush):
        setattr(room, "Wakeup", threading.Event)  # noqa: B010  mypy forbids it in plain words


def get_waits_in_a_closed_queue() -> None:
    """A get without a timeout asks the core once, which closing leaves as it is."""
    rewrite(multiprocessing.JoinableQueue, "_claim", ("left = SLICE_SECONDS\n", "left = 1e6\n"))
