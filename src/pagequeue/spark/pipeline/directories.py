"""Directories: put on stable storage, exchanged at once, locked."""

from __future__ import annotations

import ctypes
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pagequeue.system.descriptors import opened
from pagequeue.system.directory import sync_path
from pagequeue.system.file_lock import FileLock
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterable

AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2
SYNCS: Final = 8
"""So many at a time: a sync waits for the disk, and each for itself."""
CANNOT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV})


def sync_all(paths: Iterable[str]) -> None:
    """Put files, or the names in directories, on stable storage."""
    with ThreadPoolExecutor(SYNCS) as pool:
        for _ in pool.map(sync_path, paths):
            pass


def make(path: str) -> None:
    """Make a directory with those above it, durably; it may be there."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make(above)
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    sync_path(above)


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two directories atomically.

    Returns:
        Whether it was done; False: the system, or this file system, cannot.
    """
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], ctypes.c_uint(RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number not in CANNOT:
        raise_typed(OSError(number, os.strerror(number)), other, "exchanging two directories")
    return False


def lock_on(path: str, *, writable: bool) -> FileLock:
    """Return the lock on a file, which is made if it is not there and may be written."""
    flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
    try:
        file = opened(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise_typed(error, path, "locking the table")
    return FileLock(file, path)
