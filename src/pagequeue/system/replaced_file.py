"""Detects that names lead elsewhere: a directory's own path, or that of a file that is open in it.

A queue is the directory and the files that were opened, whatever their names lead to later. What is
made, renamed or removed goes by the open directory, so it never reaches what took its place; and
this guard finds out that something did: whenever files are made, and twice a second for handles in
use (the core's event `PLACE`). A directory that was only moved counts too: other processes go by
the path, and would no longer work on the same queue.
"""

from __future__ import annotations

import copy
import os
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue._core import Descriptor

Identity = tuple[int, int]
"""Device and inode: identifies a file whatever its name."""
CHECK_SECONDS: Final = 0.5
"""How often those that wait check: the core's `PQ_PLACE_NS`."""
OPEN_DIRECTORY: Final = "/proc/self/fd/{}"
DELETED: Final = " (deleted)"
AGAIN: Final = "close the queue everywhere, then open it again"
NOWHERE: Final = (FileNotFoundError, NotADirectoryError)


class Stoppable(Protocol):
    """A writer that any thread can stop at any time."""

    def _detach(self) -> None: ...


class Files(Protocol):
    """An open directory, as `Directory` is."""

    path: str
    descriptor: Descriptor

    def full(self, name: str) -> str:
        """Return the path of a file."""

    def identity(self, name: str) -> Identity | None:
        """Return which file has this name now; None: no file has it."""


def identity_of(status: os.stat_result) -> Identity:
    """Return which file a status is of."""
    return status.st_dev, status.st_ino


class IdentityGuard:
    """What a directory's path and names in it must keep leading to, and the writers to stop.

    Attributes:
        queue_id: of the queue that is in the directory, in hexadecimal; None: it is not known.
    """

    def __init__(self) -> None:
        self._writers: weakref.WeakValueDictionary[int, Stoppable] = weakref.WeakValueDictionary()
        self._directory: tuple[str, Identity] | None = None
        self._root: Identity | None = None
        self._watched: dict[str, Identity] = {}
        self._stale_name: Callable[[], str | None] | None = None
        self.queue_id: str | None = None
        self._id_at: Callable[[str], str | None] | None = None
        self._found: errors.QueueReplaced | None = None

    def watch_directory(self, path: str, identity: Identity) -> None:
        """Require from now on that the path leads to this directory."""
        self._directory = path, identity
        self._root = _root()

    def watch(self, name: str, identity: Identity | None) -> None:
        """Require from now on that this name refers to this file."""
        self._watched[name] = identity or (0, 0)

    def watch_bytes(self, stale_name: Callable[[], str | None]) -> None:
        """Require from now on that this returns None, and not the name of a file.

        Where a file system can give a file other bytes, and not the maps of it.
        """
        self._stale_name = stale_name

    def name_queue(self, queue_id: str, id_at: Callable[[str], str | None]) -> None:
        """Name the queue that the directory has, for errors, and a way to find that of a path."""
        self.queue_id, self._id_at = queue_id, id_at

    def add(self, writer: Stoppable) -> None:
        """Register a writer; `check` stops it when it finds that a name leads elsewhere."""
        self._writers[id(writer)] = writer

    @property
    def watched(self) -> tuple[tuple[bytes, int, int], ...]:
        """What the core compares at a roll: the path and the names, each with device and inode."""
        named = [] if self._directory is None else [self._directory]
        named.extend(self._watched.items())
        return tuple((os.fsencode(name), *identity) for name, identity in named)

    @property
    def is_replaced(self) -> bool:
        """Whether a name was found to lead elsewhere: writing is refused from then on."""
        return self._found is not None

    def check(self, files: Files) -> None:
        """Raise if a name leads elsewhere, and stop all writers.

        A process that opens the queue meanwhile locks other files and believes that it is alone.

        Raises:
            QueueReplaced: the directory's path does, now or at an earlier check.
            LockReplaced: a file's name does.
        """
        if self._found is None:
            self._found = self._search(files)
            if self._found is not None:
                for reference in self._writers.valuerefs():  # a later writer checks after `add`
                    if (writer := reference()) is not None:
                        writer._detach()  # noqa: SLF001 - the core's, safe from any thread
        if self._found is not None:
            raise copy.copy(self._found)

    def _search(self, files: Files) -> errors.QueueReplaced | None:
        """Return the error for the first name that leads elsewhere; None: all are right."""
        if self._directory is not None:
            with files.descriptor as fd:
                error = self._elsewhere(fd, self._directory[0])
            if error is not None:
                return error
        for name, identity in self._watched.items():
            if files.identity(name) != identity:
                return self._replaced(
                    files,
                    name,
                    "it was replaced or removed while the queue was open, so another process could "
                    "believe that it has the queue alone",
                )
        stale = self._stale_name() if self._stale_name is not None else None
        if stale is not None:
            return self._replaced(
                files,
                stale,
                "its file has other bytes by now than this process sees: overlayfs copied it when "
                "a process opened it for writing",
                "open the queue again, and keep one that is written to on a volume",
            )
        return None

    def _elsewhere(self, fd: int, path: str) -> errors.QueueReplaced | None:
        """Return the error if the path leads elsewhere; None: it does not, or cannot tell."""
        found_id = None
        opened = os.fstat(fd)
        try:
            there = os.stat(path)
        except NOWHERE:
            now = "leads to nothing now"
        except OSError:  # a parent that this user may not enter any more, for example
            if opened.st_nlink:
                return None
            now = "cannot be followed any more"
        else:
            if identity_of(there) == identity_of(opened):
                return None
            found_id = self._id_at(path) if self._id_at is not None else None
            now = f"leads to another one now ({_named(identity_of(there), found_id)})"
        if opened.st_nlink and _root() != self._root:
            return None  # chroot: the same path means another place here
        this = _named(identity_of(opened), self.queue_id)
        return errors.QueueReplaced(
            f"the directory that is open ({this}) {_became(fd, path, opened)}; this path {now}",
            path=path,
            queue_id=self.queue_id,
            found_id=found_id,
            remedy="close the queue, and open it again where it is meant to be",
        )

    def _replaced(
        self, files: Files, name: str, text: str, remedy: str = AGAIN
    ) -> errors.LockReplaced:
        return errors.LockReplaced(
            text,
            path=files.full(name),
            queue_id=self.queue_id,
            remedy=remedy,
        )


def _root() -> Identity | None:
    try:
        return identity_of(os.stat("/"))
    except OSError:
        return None


def _named(identity: Identity, queue_id: str | None) -> str:
    device, inode = identity
    queue = "" if queue_id is None else f"queue {queue_id}, "
    return f"{queue}device {device}, inode {inode}"


def _became(fd: int, path: str, status: os.stat_result) -> str:
    """Return where an open directory is now."""
    if not status.st_nlink:
        return "was removed"
    try:
        real = os.readlink(OPEN_DIRECTORY.format(fd))
    except OSError:
        return "was moved or removed"
    if real.endswith(DELETED):
        return "was removed"
    return "has another one over it" if real == path else f"is {real} now"
