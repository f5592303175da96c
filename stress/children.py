"""Children of a campaign: forked from a process that has no queue open, killed without ceremony.

A child that fails writes its traceback into the campaign's error file, which the parent reads; a
child whose parent dies is killed by the kernel, so that no campaign leaves anything running.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STALL_SECONDS: Final = 8.0
"""The longest that a live process may wait for what a dead or stopped one has.

What is wrong lasts 10 s, the default of `lock_timeout`, or for ever. A busy machine, and one that
stands still for some seconds, harms no promise; how fast a call is, benchmarks measure.
"""
HANG_SECONDS: Final = 30.0
"""What takes milliseconds on an idle machine and has not ended by then, hangs."""
PR_SET_PDEATHSIG = 1
RECORD_LIMIT_BYTES = 4000
_libc = ctypes.CDLL(None, use_errno=True)


class ErrorFile:
    """What children report, appended in one write each, so that kills cannot interleave it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def say(self, text: str) -> None:
        """Append a record."""
        os.write(self._fd, text.encode()[-RECORD_LIMIT_BYTES:] + b"\0")

    def said(self) -> list[str]:
        """Return all records."""
        return [part.decode() for part in self.path.read_bytes().split(b"\0") if part]

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fork(body: Callable[[], None], errors: ErrorFile, name: str) -> int:
    """Run `body` in a child; return its process id. It ends with 0, or 1 if `body` raised."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()
        if os.getppid() == parent:
            body()
            code = 0
    except BaseException:  # noqa: BLE001  every exception must reach the parent
        errors.say(f"{name}: {traceback.format_exc()}")
    finally:
        os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """Wait for a child to exit without a signal; return its wait status, None at the timeout."""
    death = os.pidfd_open(pid)  # no pauses to oversleep: campaigns have many short children
    try:
        ready, _, _ = select.select([death], [], [], seconds)
    finally:
        os.close(death)
    return os.waitpid(pid, 0)[1] if ready else None


def kill(pid: int) -> int:
    """Kill a child now; return its wait status."""
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def was_killed(status: int | None) -> bool:
    """Whether a wait status reports SIGKILL."""
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
