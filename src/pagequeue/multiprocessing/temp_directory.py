"""A private directory that is removed when the last process that has it lets go.

A pipe says who has it: nothing is ever written to it, and every process that has the directory has
its write end, by fork or handed over to a child that is being started. The kernel closes it when a
process ends, however it ends. Whoever closes the last one sees the read end hang up, and removes
the directory. One who is killed as the last leaves it behind.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
from multiprocessing import reduction, util
from typing import Any, Final

from pagequeue.system.descriptors import above_standard

MEMORY: Final = "/dev/shm"  # noqa: S108 - below it a directory of our own is made
MEMORY_FREE_BYTES: Final = 1 << 30
"""Memory is used only where it has so much room: containers often have 64 MiB of it."""
PREFIX: Final = "pagequeue-"
LAST_OF_ALL: Final = -1000
"""Exit priority: `multiprocessing` joins its children before it comes to those below 0."""

_left: list[SharedTempDirectory] = []
"""Those that others had when they were left here: looked at again later."""


def _parent() -> str | None:
    """Return where private directories are made; None: where `tempfile` does."""
    if "TMPDIR" in os.environ:
        return None
    try:
        room = os.statvfs(MEMORY)
    except OSError:
        return None
    has_room = room.f_bavail * room.f_frsize >= MEMORY_FREE_BYTES
    return MEMORY if has_room and os.access(MEMORY, os.W_OK) else None


class SharedTempDirectory:
    """A private directory, in one process.

    Attributes:
        path: of the directory.
    """

    def __init__(self) -> None:
        look_again()
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=_parent())
        self._reader, writer = map(above_standard, os.pipe())
        self._writers = [writer]

    def __getstate__(self) -> tuple[str, object, object]:
        return self.path, reduction.DupFd(self._reader), reduction.DupFd(self._writers[0])

    def __setstate__(self, state: tuple[str, Any, Any]) -> None:
        self.path = state[0]
        self._reader, writer = (end.detach() for end in state[1:])
        self._writers = [writer]
        for end in (self._reader, writer):
            os.set_inheritable(end, False)

    def leave(self) -> None:
        """Let go; the directory goes if nobody else has it. Leaving again does nothing."""
        try:
            writer = self._writers.pop()  # by one thread: closed twice, it can be another file
        except IndexError:
            return
        os.close(writer)
        if not self._remove():
            _left.append(self)

    def _remove(self) -> bool:
        """Remove the directory if nobody has it any more; two who see that do no harm."""
        poll = select.poll()
        poll.register(self._reader, 0)  # hanging up is always reported
        if not poll.poll(0):
            return False
        os.close(self._reader)
        shutil.rmtree(self.path, ignore_errors=True)
        return True


def look_again() -> None:
    """Remove what others have let go of since it was left here."""
    kept = []
    while _left:
        try:
            lodging = _left.pop()  # so that no other thread, or finalizer, has it too
        except IndexError:
            break
        if not lodging._remove():  # noqa: SLF001 - its own room
            kept.append(lodging)
    _left.extend(kept)


_at_exit: util.Finalize | None = None


def look_at_exit() -> None:
    """Have it looked at again when this process ends; a child of a fork must ask for it again."""
    global _at_exit  # noqa: PLW0603 - one for each process
    if _at_exit is None or not _at_exit.still_active():
        _at_exit = util.Finalize(None, look_again, exitpriority=LAST_OF_ALL)
