"""Locks between processes on slow paths: files locked through portalocker.

`queue.lock` is held by every process that has the queue open for writing: shared while open,
exclusive for recovery and repair; `queue-writeMeta` is locked in the same way, in case the lock
file is removed. The preparation lock (on a separate descriptor of `queue-allMeta`, which is never
written again) lets one process at a time make the next page, an index or a flush.

The kernel releases a lock when its holder dies. A *stopped* holder keeps it, so every wait has a
limit and ends in a typed error; a lock is never broken. A child of a fork would keep the lock alive
after the parent's death, so it closes its copy of the descriptor (`descriptors.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import stat
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final, NoReturn

from portalocker import AlreadyLocked, LockException, LockFlags
from portalocker.portalocker import FlockLocker

from pagequeue import errors
from pagequeue.system.descriptors import owned
from pagequeue.system.directory import status_of
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.trust import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Descriptor
    from pagequeue.system.directory import Directory

LOCKER: Final = FlockLocker()
"""Not `portalocker.lock`: a program can choose other locks for that, which processes that use these
would not see."""
FIRST_PAUSE = 0.0002
LONGEST_PAUSE = 0.02
HOLDER: Final = "holder"
OWN_PAUSE: Final = 0.001
"""The longest pause while another thread of this process has the lock."""


class _Holders(dict[str, tuple[int, object]]):
    """Which thread of this process holds the lock of a file, through any of its descriptors."""

    __slots__ = ("__weakref__",)


_known: weakref.WeakValueDictionary[tuple[int, int], _Holders] = weakref.WeakValueDictionary()


def _holders_of(identity: tuple[int, int]) -> _Holders:
    """Return the holders that all locks of one file share.

    A queue can be open several times in a process. Without this, a signal handler that sends
    through one of them would wait for the very thread that it interrupted in another one.
    """
    return _known.setdefault(identity, _Holders())


def _forget_holders() -> None:
    """Start without holders in a child of a fork: the threads that hold the locks do not exist."""
    global _known  # noqa: PLW0603 - the parent's can be in the middle of a change
    _known = weakref.WeakValueDictionary()


os.register_at_fork(after_in_child=_forget_holders)


def _unknown() -> None:
    """Tell no progress of a holder."""


class FileLock:
    """A lock on one open file, whose descriptor it owns.

    Args:
        file: open; it is owned from here on.
        path: of the file.
        within: the directory of the queue, kept open while the lock is held.
        progress: returns the holder's progress: a wait is extended while that changes.
    """

    def __init__(
        self,
        file: Descriptor | int,
        path: str,
        within: Descriptor | None = None,
        progress: Callable[[], object] | None = None,
    ) -> None:
        self.path = path
        self._descriptor = owned(file, path) if isinstance(file, int) else file
        self._within = within or self._descriptor
        # Which thread holds it: set by one call into C, and removed only by its setter. So threads,
        # signal handlers and exceptions raised by them may interrupt at any instruction.
        self._holders = _holders_of(self.identity())
        self._progress = progress or _unknown

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the locked file, whichever file has its name by now."""
        with self._descriptor as fd:
            status = status_of(fd, self.path)
        return status.st_dev, status.st_ino

    def try_exclusive(self) -> bool:
        """Take the lock exclusively, if it is free."""
        return self._try(LockFlags.EXCLUSIVE)

    def try_shared(self) -> bool:
        """Take the lock shared, unless it is held exclusively."""
        return self._try(LockFlags.SHARED)

    def touch(self) -> None:
        """Update the locked file's time, by which waiting processes see its holder's progress."""
        # An error only makes them time out earlier.
        with contextlib.suppress(OSError), self._descriptor as fd:
            os.utime(fd)

    def touch_access(self) -> None:
        """Update the time of access only, to show progress to the processes that look at that."""
        with contextlib.suppress(OSError), self._descriptor as fd:
            os.utime(fd, ns=(time.time_ns(), os.fstat(fd).st_mtime_ns))

    def sync(self) -> None:
        """Put the locked file on stable storage; the error is the system's own."""
        with self._descriptor as fd:
            os.fdatasync(fd)

    def _try(self, kind: LockFlags) -> bool:
        try:
            with self._descriptor as fd:
                LOCKER.lock(fd, kind | LockFlags.NON_BLOCKING)
        except AlreadyLocked:
            return False
        except LockException as error:
            self._refuse(error, "locking the file")
        return True

    def _unlock(self) -> None:
        try:
            with self._descriptor as fd:
                LOCKER.unlock(fd)
        except (LockException, OSError) as error:
            self._refuse(error, "unlocking the file")

    def _refuse(self, error: BaseException, doing: str) -> NoReturn:
        """Raise the typed error for the system error that portalocker wrapped."""
        cause = error.__cause__ or error
        raise_typed(cause if isinstance(cause, OSError) else OSError(), self.path, doing)

    def _refuse_own(self, doing: str) -> None:
        holder = self._holders.get(HOLDER)
        if holder is not None and holder[0] == threading.get_ident():
            raise errors.LockTimeout(
                f"called again while {doing}, from a signal handler or finalizer",
                path=self.path,
                remedy="do that outside of it",
            )

    def _wait(
        self, take: Callable[[], bool], timeout: float, doing: str, until: float = math.inf
    ) -> None:
        if take():
            return
        deadline = min(time.monotonic() + timeout, until)
        pause = FIRST_PAUSE
        before = self._progress()
        while not take():
            self._within.check()
            if time.monotonic() >= deadline:
                now = self._progress()
                if now != before and time.monotonic() < until:  # its holder is busy, not stopped
                    before, deadline = now, min(time.monotonic() + timeout, until)
                    continue
                raise errors.LockTimeout(
                    f"locked by another process or thread for {timeout:g} s while {doing}",
                    path=self.path,
                    remedy="find the stopped or hanging process that has it open, then call again",
                )
            time.sleep(min(pause, OWN_PAUSE) if self._holders else pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def share(self, timeout: float) -> None:
        """Take or keep the lock shared; waits while it is held exclusively."""
        self._wait(self.try_shared, timeout, "opening the queue")

    # Taken for every roll of a ring, and for every message that is sent and synced. So they call
    # flock themselves: portalocker does the same, and needs 10 us more for its flags.

    @contextlib.contextmanager
    def exclusive(self, timeout: float, doing: str, until: float = math.inf) -> Iterator[None]:
        """Hold the lock exclusively, among threads and processes, while the block runs.

        It stays held until then, even if another thread closes it. An exception that a signal
        handler raises at any point releases it as well.

        Args:
            timeout: seconds without any progress of another holder.
            doing: what for.
            until: when to stop waiting also for a holder that makes progress, in seconds of the
                monotonic clock.

        Raises:
            LockTimeout: another process or thread held it for `timeout` seconds without any
                progress, or for too long, or this very thread holds it.
            ClosedError: it was closed before it could be taken.
        """
        self._refuse_own(doing)
        me = threading.get_ident(), object()

        def take() -> bool:
            return self._holders.setdefault(HOLDER, me) is me and self._flock(
                fcntl.LOCK_EX | fcntl.LOCK_NB
            )

        with self._within, self._descriptor:
            try:
                self._wait(take, timeout, doing, until)
                yield
            finally:
                try:
                    self._leave(me, self._flock_off)
                except BaseException:  # a signal handler's, perhaps before anything was done
                    self._leave(me, self._flock_off)
                    raise

    @contextlib.contextmanager
    def attempt(self, doing: str) -> Iterator[bool]:
        """Hold the lock exclusively while the block runs, if it is free; yield whether it was.

        Raises:
            LockTimeout: this very thread holds it.
            ClosedError: it was closed before.
        """
        self._refuse_own(doing)
        me = threading.get_ident(), object()
        with self._within, self._descriptor:
            try:
                yield self._holders.setdefault(HOLDER, me) is me and self._flock(
                    fcntl.LOCK_EX | fcntl.LOCK_NB
                )
            finally:
                try:
                    self._leave(me, self._flock_off)
                except BaseException:  # a signal handler's, perhaps before anything was done
                    self._leave(me, self._flock_off)
                    raise

    def _flock(self, how: int, doing: str = "locking the file") -> bool:
        try:
            with self._descriptor as fd:
                fcntl.flock(fd, how)
        except BlockingIOError:
            return False
        except OSError as error:
            self._refuse(error, doing)
        return True

    def _flock_off(self) -> None:
        self._flock(fcntl.LOCK_UN, "unlocking the file")

    def _leave(self, me: tuple[int, object], unlock: Callable[[], None]) -> None:
        """Unlock, if this is the holder."""
        if self._holders.get(HOLDER) is me:
            try:
                unlock()
            finally:
                self._holders.pop(HOLDER, None)

    def release(self) -> None:
        """Release the lock, keep the descriptor."""
        self._unlock()

    def close(self) -> None:
        """Release the lock and the descriptor, when the last operation has ended.

        Unlocking is effective for every copy of the descriptor, also that of a child that was
        forked and has not yet called exec.
        """
        self._descriptor.close(self._unlock_quietly)

    def _unlock_quietly(self) -> None:
        with contextlib.suppress(errors.PageQueueError):  # closing unlocks as well
            self._unlock()


class LivenessLock:
    """One byte of a file, locked while a handle lives, so that others can test whether it does.

    The lock belongs to the open file description, so the kernel releases it however the process
    ends, and process ids are not used. Where the system has no such locks, liveness is unknown and
    `KNOWN` is False.

    Args:
        file: open for reading and writing; it is owned from here on.
        path: of the file.
    """

    KNOWN = hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("l") == 8

    def __init__(self, file: Descriptor, path: str) -> None:
        self.path = path
        self.descriptor = file

    def take(self, number: int) -> bool:
        """Lock one byte; False: another handle holds it."""
        if not self.KNOWN:
            return True
        try:
            with self.descriptor as fd:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _byte_lock(number, 1))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise_typed(error, self.path, "locking a byte of the file")
        return True

    def is_held(self, number: int | None = None) -> bool:
        """Whether another handle holds this byte; None: any byte."""
        if not self.KNOWN or (number or 0) > NUMBER_MAX:
            return False
        span = _byte_lock(0, 0) if number is None else _byte_lock(number, 1)
        try:
            with self.descriptor as fd:
                found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, span)
        except OSError as error:
            raise_typed(error, self.path, "testing locks of the file")
        return int(struct.unpack_from("h", found)[0]) != fcntl.F_UNLCK

    def identity(self) -> tuple[int, int]:
        """Return device and inode of the file."""
        with self.descriptor as fd:
            status = status_of(fd, self.path)
        return status.st_dev, status.st_ino

    def sync(self) -> None:
        """Put the file on stable storage; the error is the system's own."""
        with self.descriptor as fd:
            os.fdatasync(fd)

    def close(self) -> None:
        """Release the byte; closing again has no effect."""
        self.descriptor.close()


NUMBER_MAX = 1 << 60
"""Above the number of every handle."""
OWNERS_AT = 1 << 40
"""Position of the locked bytes: so far past every file's end that no other lock is there."""


def _byte_lock(number: int, count: int) -> bytes:
    """Return the system's record of a write lock; a count of 0 means all that follow."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, OWNERS_AT + number, count, 0)


def wrong_lock(folder: Directory, name: str) -> str | None:
    """Return why a lock file keeps every process from opening the queue for writing, or None."""
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
        # A user who may only read the queue cannot open it for writing, and need not.
        if os.geteuid() in {folder.owner, ROOT} and error.errno != errno.EROFS:
            reason = f"the directory's owner cannot open it ({error.strerror})"
    except errors.QueueNotFound:
        pass  # removed meanwhile
    return reason
