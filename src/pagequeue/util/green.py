"""Threads that are greenlets, as gevent and eventlet make them in place of the system's.

All of them run in one thread of the system, and another one runs only when this one waits by what
they replaced. So what waits in C for another thread of this process would wait for ever. Where
threads are greenlets, waits are sleeps that let others run, and what a background thread would do
is done at once.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import BuiltinFunctionType
from typing import Final

from pagequeue import _core

THREAD: Final = "/proc/thread-self"
"""A link that tells which thread of the system reads it."""
_found: list[bool] = []


def are_threads_green() -> bool:
    """Return whether threads were greenlets when a queue was opened last in this process."""
    return _found[-1:] == [True]


def look_at_threads() -> None:
    """Find out what threads are: programs replace them at any time before they open a queue."""
    is_green = _is_replaced() and _is_same_thread()
    _found[:] = [is_green]
    _core.sleep_by(_sleep if is_green else None)


def _is_replaced() -> bool:
    return not all(
        isinstance(call, BuiltinFunctionType) for call in (time.sleep, threading.get_ident)
    )


def _is_same_thread() -> bool:
    """Whether a new thread runs in this thread of the system."""
    found: list[str] = []
    with contextlib.suppress(OSError, RuntimeError, MemoryError):
        thread = threading.Thread(target=lambda: found.append(os.readlink(THREAD)), daemon=True)
        thread.start()
        thread.join()
        return found == [os.readlink(THREAD)]
    return False


def _sleep(seconds: float) -> None:
    if isinstance(time.sleep, BuiltinFunctionType):  # not replaced, as waits for a thread are
        threading.Event().wait(seconds)
    else:
        time.sleep(seconds)
