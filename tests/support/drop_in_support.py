"""Processes that use the drop-in, for its tests."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from pagequeue.multiprocessing import Queue, SimpleQueue

SECONDS = 60
METHODS = ("fork", "spawn", "forkserver")


def started(target: Callable[..., object], *args: object, method: str = "fork") -> BaseProcess:
    """Start a process; it is ended with the test if it hangs."""
    context = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=args, daemon=True)  # type: ignore[attr-defined]
    process.start()
    return process


def joined(process: BaseProcess) -> int:
    """Wait for a process; return its exit code."""
    process.join(SECONDS)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def put_each(queue: Queue[Any], objects: Sequence[object]) -> None:
    """Put objects; the target of a process."""
    for obj in objects:
        queue.put(obj)


def get_each(queue: Queue[Any], objects: Sequence[object]) -> None:
    """Get these objects, one after the other; the target of a process."""
    assert [queue.get(timeout=SECONDS) for _ in objects] == objects


def get_and_hang(queue: Queue[Any], ready: SimpleQueue[int], count: int) -> None:
    """Get objects, print that, and sleep until killed."""
    for _ in range(count):
        queue.get()
    ready.put(os.getpid())
    time.sleep(SECONDS)
