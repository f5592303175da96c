"""A temporary directory that the last process to release it removes.

A pipe counts the processes: each one has its write end, by fork or passed to a child at its start,
and never writes to it. The kernel closes it when a process ends, in whatever way. The process that
closes the last write end sees the read end hang up, and removes the directory. If the last process
is killed, the directory remains.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
from multiprocessing import reduction, util
from typing import Any, Final

from pagequeue.system.descriptors import above_standard
from pagequeue.system.replaced_file import Identity, identity_of

MEMORY: Final = "/dev/shm"  # noqa: S108 - mkdtemp creates a directory in it
MEMORY_FREE_BYTES: Final = 1 << 30
"""Least free space for using /dev/shm, which in containers often has only 64 MiB."""
PREFIX: Final = "pagequeue-"
LAST_OF_ALL: Final = -1000
"""Exit priority: those below 0 run after `multiprocessing` joined its children."""

_released: list[SharedTempDirectory] = []
"""Directories released here that other processes still had, to be checked again."""


def _parent() -> str | None:
    """Return the parent of temporary directories; None: the default of `tempfile`."""
    if "TMPDIR" in os.environ:
        return None
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return None
    has_room = room.f_bavail * room.f_frsize >= MEMORY_FREE_BYTES
    return MEMORY if has_room and os.access(MEMORY, os.W_OK) else None


class SharedTempDirectory:
    """A temporary directory shared by processes, as one of them has it.

    Attributes:
        path: of the directory.
        identity: of the directory that was made: the one of that path can be another one later.
    """

    def __init__(self) -> None:
        remove_released()
        self.path: str = tempfile.mkdtemp(prefix=PREFIX, dir=_parent())
        self.identity: Identity = identity_of(os.stat(self.path, follow_symlinks=False))
        self._reader, writer = map(above_standard, os.pipe())
        self._writers = [writer]

    def __getstate__(self) -> tuple[str, Identity, object, object]:
        reader, writer = reduction.DupFd(self._reader), reduction.DupFd(self._writers[0])
        return self.path, self.identity, reader, writer

    def __setstate__(self, state: tuple[str, Identity, Any, Any]) -> None:
        self.path, self.identity = state[:2]
        self._reader, writer = (end.detach() for end in state[2:])
        self._writers = [writer]
        for end in (self._reader, writer):
            os.set_inheritable(end, False)

    def release(self) -> None:
        """Release the directory, and remove it if no other process has it. Can be repeated."""
        try:
            writer = self._writers.pop()  # by one thread: a second close could hit another file
        except IndexError:
            return
        os.close(writer)
        if not self._remove():
            _released.append(self)

    def _remove(self) -> bool:
        """Remove the directory if no process has it; two processes may do so at once."""
        poll = select.poll()
        poll.register(self._reader, 0)  # POLLHUP is always reported
        if not poll.poll(0):
            return False
        os.close(self._reader)
        with contextlib.suppress(FileNotFoundError):
            if identity_of(os.stat(self.path, follow_symlinks=False)) == self.identity:
                shutil.rmtree(self.path, ignore_errors=True)
        return True


def remove_released() -> None:
    """Remove directories that other processes have released since."""
    kept = []
    while _released:
        try:
            directory = _released.pop()  # taken from other threads and finalizers
        except IndexError:
            break
        if not directory._remove():  # noqa: SLF001 - this module
            kept.append(directory)
    _released.extend(kept)


_at_exit: util.Finalize | None = None


def remove_at_exit() -> None:
    """Check again when this process exits; a forked child must register this again."""
    global _at_exit  # noqa: PLW0603 - one for each process
    if _at_exit is None or not _at_exit.still_active():
        _at_exit = util.Finalize(None, remove_released, exitpriority=LAST_OF_ALL)
