"""What the tests of asyncio share: every kind of loop there is, and looking at who waits."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pagequeue import Queue

PATIENCE = 60.0


def run_asyncio(main: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
    """Run a coroutine on asyncio's own loop."""
    return asyncio.run(main)


def run_uvloop(main: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401
    """Run a coroutine on uvloop's."""
    import uvloop  # noqa: PLC0415

    return uvloop.run(main)


LOOPS: list[Callable[..., Any]] = [run_asyncio]
if importlib.util.find_spec("uvloop") is not None:
    LOOPS.append(run_uvloop)


def notifier_threads() -> list[threading.Thread]:
    """Return the threads that wait for coroutines."""
    return [thread for thread in threading.enumerate() if thread.name == "pagequeue-notifier"]


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def waiting(queue: Queue) -> int:
    """Return how many coroutines wait."""
    return len(queue._store.notifier._waiters)


def waiting_senders(queue: Queue) -> int:
    """Return how many coroutines wait for room."""
    lines = queue._store.jobs._lines.values()
    return sum(len(places) for by_name in lines for places in by_name.values())
