"""Opening, making, renaming and removing files in one directory, safely.

Every name is looked up below one directory descriptor, never through a symbolic link, and only
regular files are taken. Every system error becomes a typed error that names the path. Making a file
means: a temporary name, blocks reserved, content, then a rename; whoever dies in between leaves a
temporary file, which the next one to hold the preparation lock removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from typing import TYPE_CHECKING, NoReturn

from pagequeue import _core, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_RESOURCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
NOT_REGULAR = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def raise_typed(error: OSError, path: str, doing: str) -> NoReturn:
    """Raise the typed error for a system error."""
    number = error.errno or errno.EIO
    words = errors.describe(error)
    if number in NO_ROOM:
        made: errors.PageQueueError = errors.DiskFull(
            f"no room while {doing} ({words}): make room, then call again", path=path
        )
    elif number in NO_RESOURCE:
        made = errors.SystemLimit(
            f"the system refused while {doing} ({words}): raise the limit or close something, "
            "then call again",
            path=path,
        )
    elif number in DENIED:
        made = errors.AccessDenied(
            f"not allowed while {doing} ({words}): change owner or permissions; "
            "to read only, permission to read and read_only=True are enough",
            path=path,
        )
    elif number in NOT_REGULAR:
        made = errors.UnsafePath(
            f"not a regular file ({words}) while {doing}: symbolic links and special files are "
            "refused; put the real file there",
            path=path,
        )
    elif number == errno.ENOENT:
        made = errors.QueueNotFound(f"not there while {doing}: check the path", path=path)
    else:
        made = errors.SystemLimit(f"{words} while {doing}: see the system's log", path=path)
    if isinstance(made, OSError):
        made.errno = number
        made.strerror = words
        made.filename = path
    try:
        raise made from error
    finally:
        # Else error, traceback and this frame would hold each other, and by that every caller's
        # variables, pages among them, until the garbage collector comes.
        del made, error


class Folder:
    """One directory, opened once; all files of a queue are reached through it."""

    def __init__(self, path: str, *, create: bool) -> None:
        self.path = path
        if create:
            self._create()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags)
        except FileNotFoundError as error:
            raise errors.QueueNotFound(
                "no queue here: check the path; it is made when opened for writing", path=path
            ) from error
        except OSError as error:
            self._refuse(error)

    def _create(self) -> None:
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            os.mkdir(self.path, DIRECTORY_MODE)
        except FileExistsError:
            return
        except NotADirectoryError as error:
            raise errors.NotADirectory(
                "a part of this path is not a directory: choose another path", path=self.path
            ) from error
        except OSError as error:
            raise_typed(error, self.path, "making the directory")

    def _refuse(self, error: OSError) -> NoReturn:
        if os.path.islink(self.path):
            raise errors.UnsafePath(
                "a symbolic link: give the directory itself", path=self.path
            ) from error
        if error.errno == errno.ENOTDIR:
            raise errors.NotADirectory(
                "a file, not a directory: choose another path", path=self.path
            ) from error
        raise_typed(error, self.path, "opening the directory")

    def close(self) -> None:
        """Let the directory go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def full(self, name: str) -> str:
        """Return the path of a file, for people."""
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def opened(self, name: str, *, writable: bool, make: bool = False) -> Iterator[int]:
        """Open a regular file, without following links or blocking, for as long as the block runs.

        Raises:
            QueueNotFound: it is not there; UnsafePath: it is not a regular file;
            AccessDenied, SystemLimit, DiskFull: as they say.
        """
        fd = self.open(name, writable=writable, make=make)
        try:
            yield fd
        finally:
            os.close(fd)

    def open(self, name: str, *, writable: bool, make: bool = False) -> int:
        """Open a regular file, without following links or blocking; return its descriptor."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_RDWR if writable else os.O_RDONLY
        if make:
            flags |= os.O_CREAT
        try:
            fd = os.open(name, flags, FILE_MODE, dir_fd=self.fd)
        except OSError as error:
            raise_typed(error, self.full(name), "opening the file")
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise errors.UnsafePath(
                "not a regular file: put the real file there", path=self.full(name)
            )
        return fd

    def exists(self, name: str) -> bool:
        """Return whether something of that name stands there."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise_typed(error, self.full(name), "looking at the file")
        return True

    def names(self) -> list[str]:
        """Return the names of all that stands there."""
        try:
            return os.listdir(self.fd)
        except OSError as error:
            raise_typed(error, self.path, "listing the directory")

    def remove(self, name: str) -> None:
        """Remove a file; it is no error that it is not there."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise_typed(error, self.full(name), "removing the file")

    def make(
        self,
        name: str,
        data: bytes,
        *,
        size_bytes: int,
        filled_bytes: int = 0,
        maker: str = "",
        synced: bool = False,
    ) -> _core.Region:
        """Make a file of reserved blocks, zero behind `data`; return its map.

        It is made under a temporary name and renamed when it is whole. Dies in between: a
        temporary file is left, which nobody opens; the next maker of the same kind removes it.

        Args:
            name: the file's final name; what stands there is replaced.
            data: its first bytes.
            size_bytes: its size.
            filled_bytes: of these not only blocks are reserved: their memory is there as well.
            maker: names the maker, when there can be only one at a time; else any number can.
            synced: whether the file must be on stable storage before it gets its name.

        Raises:
            DiskFull, SystemLimit, AccessDenied: as they say; nothing is left behind.
        """
        temporary = f"{name}.tmp-{maker or uuid.uuid4().hex}"
        self.remove(temporary)
        try:
            return _core.Region.make(
                self.fd, temporary, name, data, size_bytes, filled_bytes, FILE_MODE, synced
            )
        except OSError as error:
            raise_typed(error, self.full(name), f"making a file of {size_bytes} bytes")

    def sync(self) -> None:
        """Put the directory's entries on stable storage; the error is the system's own."""
        os.fsync(self.fd)
