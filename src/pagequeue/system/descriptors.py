"""Descriptors with an owner: an operation that has begun keeps them open until it ends.

`with descriptor as number:` is an operation (`core/python/descriptor.c`). All other code uses a
number only in the call that opened it: after another thread closed it, the number can be the next
queue's, and writes would go there. Opening is one call into C, so that a signal handler that raises
(Ctrl-C) leaves no descriptor without an owner. After `close` no operation begins; those in progress
finish, and the last one closes. A child of a fork closes its copies at once: closing does not
unlock for the parent, and a copy would keep the parent's locks after its death.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from functools import partial
from typing import Final

from pagequeue import errors
from pagequeue._core import Descriptor

STANDARD_MAX: Final = 2
PAUSE_SECONDS: Final = 0.0005

_all: weakref.WeakSet[Descriptor] = weakref.WeakSet()


def above_standard(fd: int) -> int:
    """Return a descriptor of the same file that is not the number of a standard stream.

    In a process whose standard streams are closed, a later print would write into the file.
    """
    if fd > STANDARD_MAX:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD_MAX + 1)
    finally:
        os.close(fd)


def owned(fd: int, path: str, what: str = "queue") -> Descriptor:
    """Return the owner of an open descriptor.

    Args:
        fd: the descriptor; -1: none yet.
        path: of the open file, for errors.
        what: is closed when this is, for errors.
    """
    descriptor = Descriptor(fd, partial(_refused, path, what))
    _all.add(descriptor)
    return descriptor


def opened(
    path: str,
    flags: int,
    mode: int = 0o777,
    *,
    name: str | None = None,
    dir_fd: int | None = None,
    what: str = "queue",
) -> Descriptor:
    """Open a file or directory; return its owner. The error is the system's own.

    Args:
        path: of the file; opened by `name` in a directory if that is given.
        flags: as for `os.open`.
        mode: the same.
        name: in the directory.
        dir_fd: the directory.
        what: is closed when this is, for errors.
    """
    descriptor = owned(-1, path, what)  # known before it is open, for the child of a fork
    descriptor.open(os.open, path if name is None else name, flags, mode, dir_fd=dir_fd)
    return descriptor


class used:  # noqa: N801 - a context manager
    """Yields the number of a new descriptor, and closes it after the block."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor.__enter__()

    def __exit__(self, *error: object) -> None:
        try:
            self._descriptor.__exit__(*error)
        finally:
            self._descriptor.close()


def _refused(path: str, what: str, is_forked: bool) -> errors.UsageError:
    if is_forked:
        return errors.ForkedError(
            f"this {what} belongs to the parent process",
            path=path,
            remedy="open the queue in the child",
        )
    return errors.ClosedError(f"this {what} is closed", path=path, remedy="open it again")


def await_others(descriptor: Descriptor, seconds: float) -> None:
    """Wait until no other thread is inside an operation, but no longer than this."""
    deadline = time.monotonic() + seconds
    while descriptor.others and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)


def _forget_all() -> None:
    for descriptor in list(_all):
        descriptor.forget()


os.register_at_fork(after_in_child=lambda: _forget_all())  # noqa: PLW0108 - tests replace it
