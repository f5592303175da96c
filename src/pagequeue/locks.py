"""Locks between processes on slow paths: files locked through portalocker.

`queue.lock` says who has the queue open for writing: shared while open, exclusive for recovery and
repair; `queue-writeMeta` is locked in the same way, for the case that somebody removes the lock
file. The preparation lock (on a descriptor of its own of `queue-allMeta`, which is never written
again) lets one process at a time make the next page, an index or a flush.

A lock is the kernel's: it goes when its holder dies. A *stopped* holder keeps it, so every wait has
a limit and ends in a typed error; nothing is ever taken away. A child of a fork shares the parent's
descriptor and would keep the lock alive after the parent's death, so the child closes it, which
does not unlock it for the parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, NoReturn

import portalocker

from pagequeue import errors
from pagequeue.files import let_go, status_of
from pagequeue.system_errors import raise_typed
from pagequeue.trust import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.files import Folder

FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.02

_open_locks: weakref.WeakSet[FileLock | OwnerLock]


class FileLock:
    """A lock on one open file; it owns the descriptor."""

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        try:
            self._file = os.fdopen(fd, "rb", buffering=0)
        except OSError as error:
            let_go(fd)
            raise_typed(error, path, "locking the file")
        # One that lets its own thread in again: a signal handler that comes before `_owner` is set
        # then does all of its work in between, and later it is refused.
        self._threads = threading.RLock()
        self._owner = 0
        self.progress: Callable[[], object] | None = None
        """Tells how far its holder is: while that changes, it is waited for."""
        _open_locks.add(self)

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file that is locked, whatever has its name by now."""
        status = status_of(self._file.fileno(), self.path)
        return status.st_dev, status.st_ino

    def try_exclusive(self) -> bool:
        """Take the lock for this process alone, if nobody has it."""
        return self._try(portalocker.LockFlags.EXCLUSIVE)

    def try_shared(self) -> bool:
        """Take the lock together with others, if nobody has it alone."""
        return self._try(portalocker.LockFlags.SHARED)

    def touch(self) -> None:
        """Say by the time of the file that is locked that its holder goes on."""
        with contextlib.suppress(OSError):  # who waits gives up earlier then
            os.utime(self._file.fileno())

    def sync(self) -> None:
        """Put the file that is locked on stable storage; the error is the system's own."""
        os.fdatasync(self._file.fileno())

    def _try(self, kind: portalocker.LockFlags) -> bool:
        try:
            portalocker.lock(self._file, kind | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.AlreadyLocked:
            return False
        except portalocker.LockException as error:
            self._refuse(error, "locking the file")
        return True

    def _unlock(self) -> None:
        try:
            portalocker.unlock(self._file)
        except (portalocker.LockException, OSError) as error:
            self._refuse(error, "unlocking the file")

    def _refuse(self, error: BaseException, doing: str) -> NoReturn:
        """Raise the typed error for what the system said to portalocker."""
        cause = error.__cause__ or error
        raise_typed(cause if isinstance(cause, OSError) else OSError(), self.path, doing)

    def _refuse_own(self, doing: str) -> None:
        if self._owner == threading.get_ident():
            raise errors.LockTimeout(
                f"called again while {doing}, from a signal handler or finalizer: "
                "do that outside of it",
                path=self.path,
            )

    def _wait(self, kind: portalocker.LockFlags, timeout: float, doing: str) -> None:
        if self._try(kind):
            return
        deadline = time.monotonic() + timeout
        pause = FIRST_PAUSE
        before = self.progress() if self.progress is not None else None
        while not self._try(kind):
            if time.monotonic() >= deadline:
                now = self.progress() if self.progress is not None else None
                if now != before:  # its holder is not stopped: it has much to do
                    before, deadline = now, time.monotonic() + timeout
                    continue
                raise errors.LockTimeout(
                    f"locked by another process for {timeout:g} s while {doing}: "
                    "look for a stopped or hanging process that has it open, then call again",
                    path=self.path,
                )
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def share(self, timeout: float) -> None:
        """Take or keep the lock together with others; waits while one has it alone."""
        self._wait(portalocker.LockFlags.SHARED, timeout, "opening the queue")

    @contextlib.contextmanager
    def exclusive(self, timeout: float, doing: str) -> Iterator[None]:
        """Hold the lock alone, among threads and processes, for as long as the block runs.

        An exception that a signal handler raises at any point of it lets go of the lock as well.

        Raises:
            LockTimeout: another process held it for `timeout` seconds without any progress, or this
                very thread has it.
        """
        self._refuse_own(doing)
        with self._threads:
            try:
                self._owner = threading.get_ident()
                self._wait(portalocker.LockFlags.EXCLUSIVE, timeout, doing)
                yield
            finally:
                self._owner = 0
                self._unlock()

    # Taken for every message that is sent with a sync behind it. So it calls flock itself:
    # portalocker does the same here, and needs 10 us more for its flags.

    @contextlib.contextmanager
    def attempt(self, doing: str) -> Iterator[bool]:
        """Hold the lock alone for as long as the block runs, if it is free; give whether it was.

        Raises:
            LockTimeout: this very thread has it.
        """
        self._refuse_own(doing)
        if not self._threads.acquire(blocking=False):
            yield False
            return
        try:
            self._owner = threading.get_ident()
            yield self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            self._owner = 0
            try:
                self._flock(fcntl.LOCK_UN)
            finally:
                self._threads.release()

    def _flock(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            self._refuse(error, "locking the file")
        return True

    def release(self) -> None:
        """Let go of the lock, keep the descriptor."""
        self._unlock()

    def close(self) -> None:
        """Let go of the lock and the descriptor.

        Unlocking says so for every copy of the descriptor, also one that a child still has which
        was forked and has not yet begun its own program.
        """
        if not self._file.closed:
            with contextlib.suppress(errors.PageQueueError):  # closing unlocks as well
                self._unlock()
            with contextlib.suppress(OSError):  # it is closed all the same
                self._file.close()

    def forget(self) -> None:
        """Close the descriptor in the child of a fork, without unlocking for the parent."""
        with contextlib.suppress(OSError):  # it is closed all the same
            self._file.close()
        self._threads = threading.RLock()


class OwnerLock:
    """One byte of a file, locked for as long as a handle lives: others see whether it does.

    The lock belongs to the open file, so the kernel lets go of it when the process ends, however it
    ends, and no process id is looked at. Where the system has no such locks, nothing is known of
    anybody, and `KNOWN` is False.

    Args:
        fd: of the file, open for reading and writing; it is owned from here on.
        path: of the file.
    """

    KNOWN = hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("l") == 8

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        self._fd = fd
        _open_locks.add(self)

    def take(self, number: int) -> bool:
        """Lock one byte; False: somebody has it."""
        if not self.KNOWN:
            return True
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _byte_lock(number, 1))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise_typed(error, self.path, "locking a byte of the file")
        return True

    def is_held(self, number: int | None = None) -> bool:
        """Whether another handle has this byte, or any."""
        if not self.KNOWN or (number or 0) > NUMBER_MAX:
            return False
        span = _byte_lock(0, 0) if number is None else _byte_lock(number, 1)
        try:
            found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, span)
        except OSError as error:
            raise_typed(error, self.path, "looking at locks of the file")
        return int(struct.unpack_from("h", found)[0]) != fcntl.F_UNLCK

    @property
    def fd(self) -> int:
        """The descriptor."""
        return self._fd

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file."""
        status = status_of(self._fd, self.path)
        return status.st_dev, status.st_ino

    def sync(self) -> None:
        """Put the file on stable storage; the error is the system's own."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Let go of the byte; closing again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            let_go(fd)

    forget = close  # of a child's copy: the parent's own descriptor keeps the lock


NUMBER_MAX = 1 << 60
"""No handle ever gets so high a number."""
OWNERS_AT = 1 << 40
"""Bytes are locked so far behind every file's end that nothing else is."""


def _byte_lock(number: int, count: int) -> bytes:
    """Return the system's record of a write lock; a count of 0 means all that follow."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, OWNERS_AT + number, count, 0)


_open_locks = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_open_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def wrong_lock(folder: Folder, name: str) -> str | None:
    """Return why a lock file keeps out everybody who wants to write, None when it does not."""
    status = folder.status(name)
    if status is None:
        return None
    reason = None
    try:
        with folder.opened(name, writable=True):
            pass
    except errors.UnsafePath:
        if not stat.S_ISREG(status.st_mode):
            reason = "not a regular file"
        elif status.st_nlink > 1:
            reason = "has another name as well"
        else:
            reason = f"belongs to another user (uid {status.st_uid})"
    except errors.AccessDenied as error:
        # Who may only read a queue cannot open it, and need not.
        if os.geteuid() in {folder.owner, ROOT} and error.errno != errno.EROFS:
            reason = f"cannot be opened by the directory's owner ({error.strerror})"
    except errors.QueueNotFound:
        pass  # removed meanwhile
    return reason
