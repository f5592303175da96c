"""Processes in namespaces of their own, made as `unshare` makes them, from a warm process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import warm

NEW_TIME, NEW_MOUNTS, NEW_IDS = 0x80, 0x20000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
IDS, MOUNTS, CLOCK_AHEAD = "ids", "mounts", "clock"
"""Thread ids with a /proc of theirs; other mounts; a monotonic clock that is a day ahead."""
FLAGS = {IDS: NEW_IDS | NEW_MOUNTS, MOUNTS: NEW_MOUNTS, CLOCK_AHEAD: NEW_TIME}


def _call(name: str, *args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def enter(kind: str) -> None:
    """Have all that follows run in a new namespace: in a child, where the kind takes one."""
    _call("unshare", FLAGS[kind])
    if kind == CLOCK_AHEAD:
        Path("/proc/self/timens_offsets").write_text("monotonic 100000 0")
    if kind != MOUNTS:
        child = os.fork()
        if child:
            os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if kind != CLOCK_AHEAD:
        _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    if kind == IDS:
        _call("mount", b"proc", b"/proc", b"proc", 0, None)


def start(kind: str, code: str, *args: object) -> warm.Popen:
    """Run code in a new namespace."""
    begin = f"import sys; sys.path.insert(0, {warm.HERE!r}); import containers\n"
    return warm.Popen(
        [sys.executable, "-c", f"{begin}containers.enter({kind!r})\n{code}", *map(str, args)],
        stdin=warm.PIPE,
        stdout=warm.PIPE,
        stderr=warm.PIPE,
        text=True,
    )


def why_not(kind: str) -> str:
    """Return why no such namespace can be made here; nothing if one can."""
    with start(kind, "pass") as process:
        _, err = process.communicate(timeout=warm.WAIT_SECONDS)
    return err.strip().rpartition("\n")[2] if process.returncode else ""
