"""One call in a forked child with a time limit; what it returned, or how it died."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
MEMORY_BYTES = 2 << 30
"""What a child may reserve in addition to what it has; a length taken on trust is a MemoryError."""
PIPE_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Crashed(Exception):
    """The child was killed by a signal, took too long, or raised what it must not."""


def call(function: Callable[[], Any], seconds: float) -> Any:  # noqa: ANN401 - any JSON
    """Return what a function returns in a child, as it comes out of JSON.

    Raises:
        Crashed: it did not return.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(function, reading, writing)
    os.close(writing)
    try:
        data = _received(reading, seconds)
    finally:
        os.close(reading)
    if data is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise Crashed(f"no end after {seconds:g} s")
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        raise Crashed(f"killed by {signal.Signals(os.WTERMSIG(status)).name}")
    answer = json.loads(data) if data else {"raised": "it left without an answer"}
    if "raised" in answer:
        raise Crashed(answer["raised"])
    return answer["value"]


def _child(function: Callable[[], Any], reading: int, writing: int) -> None:
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = _reserved_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            answer = {"value": function()}
        except BaseException:  # noqa: BLE001 - any exception is a finding
            answer = {"raised": traceback.format_exc()[-3000:]}
        left = memoryview(json.dumps(answer).encode())
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)


def _reserved_bytes() -> int:
    """Return the size of this process's address space: libraries can have taken gigabytes of it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _received(reading: int, seconds: float) -> bytes | None:
    """Return all that comes until the other end is closed; None if that takes too long."""
    deadline = time.monotonic() + seconds
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return None
        part = os.read(reading, PIPE_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
