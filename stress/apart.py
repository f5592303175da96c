"""Children in PID namespaces of their own, as containers have them: each is process 1 there.

A process of another namespace has thread ids that others have as well, and the kernel compares a
dying thread's id with a lock's word within the dying thread's own namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from typing import TYPE_CHECKING

from stress.children import PR_SET_PDEATHSIG

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.children import ErrorFile

CLONE_NEWPID, CLONE_NEWTIME, CLONE_NEWNS = 0x20000000, 0x80, 0x20000
PRIVATE = 0x44000
"""MS_REC | MS_PRIVATE: mounts of a namespace are seen in no other one."""
AHEAD_SECONDS = 100_000
_libc = ctypes.CDLL(None, use_errno=True)


def obstacle() -> str | None:
    """Return why a child cannot get a PID namespace here; None if it can."""
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.get_errno() if _libc.unshare(CLONE_NEWPID) else 0)
    _, status = os.waitpid(pid, 0)
    number = os.waitstatus_to_exitcode(status)
    return f"no PID namespaces ({os.strerror(number)}): needs root" if number else None


def fork(body: Callable[[], None], errors: ErrorFile, name: str) -> int:
    """Run `body` in a child with a new PID namespace; return its id in this namespace."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "unshare")
        pid = os.fork()
        if pid and _libc.setns(own, CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(own)
    if pid:
        return pid
    code = 1
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        assert os.getpid() == 1
        body()
        code = 0
    except BaseException:  # noqa: BLE001  every exception must reach the parent
        errors.say(f"{name}: {traceback.format_exc()}")
    finally:
        os._exit(code)


def ahead(body: Callable[[], None]) -> None:
    """Run `body` in a child whose monotonic clock is a day ahead; in a child that ends then.

    Raises:
        OSError: there can be no such clock here. AssertionError: the child failed.
    """
    if _libc.unshare(CLONE_NEWTIME):
        raise OSError(ctypes.get_errno(), "unshare")
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as file:
        file.write(f"monotonic {AHEAD_SECONDS} 0\n")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:  # noqa: BLE001  the parent reports the name
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "a child with another clock failed"


def mounts() -> None:
    """Give this process mounts of its own, of the same file systems.

    Raises:
        OSError: it is not possible here.
    """
    if _libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def hide(directory: str) -> None:
    """Have this process see an empty directory in place of one; it ends after that.

    Raises:
        OSError: the mount is not possible here.
    """
    failed = _libc.unshare(CLONE_NEWNS) or _libc.mount(b"none", b"/", None, PRIVATE, None)
    if failed or _libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), directory)
