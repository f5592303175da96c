"""Whose the files are that are made in a queue's directory: its owner must be able to use them.

| this process | what it makes |
| --- | --- |
| the queue's owner | is its own, with the mode that it was asked for |
| root, in the queue of another user | belongs to that user and the queue's group, with its mode |
| another user | is its own, with the queue's group and mode, by which the owner shares it |

A queue belongs to the owner of its directory; where that is root, as in a directory of several
users, to the owner of its allMeta. Its mode is that of its allMeta.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final, NamedTuple

from pagequeue import errors
from pagequeue.system.trust import ROOT

AS_MADE: Final = -1
"""The user or group of a process."""
BITS: Final = 0o666
SHARED_BY_GROUP: Final = stat.S_IRGRP | stat.S_IWGRP
SHARED_BY_ALL: Final = stat.S_IROTH | stat.S_IWOTH
NO_NAMELESS: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


class Ownership(NamedTuple):
    """What files get that are made.

    Attributes:
        user: their owner; `AS_MADE`: this process's.
        group: their group; `AS_MADE`: as the system gives it.
        file_mode: permission bits of files.
    """

    user: int
    group: int
    file_mode: int

    @property
    def is_as_made(self) -> bool:
        """Whether nothing but the mode is changed."""
        return self.user == self.group == AS_MADE

    def give(self, fd: int, mode: int | None = None) -> None:
        """Give a file that was made to the queue's owner, and set its mode, whatever the umask.

        Args:
            fd: of the file.
            mode: of a directory; None: that of files.
        """
        if not self.is_as_made:
            os.fchown(fd, self.user, self.group)
        os.fchmod(fd, self.file_mode if mode is None else mode)

    def give_tree(self, path: str) -> None:
        """Give a directory that was copied to the queue's owner, with all that is in it."""
        if self.is_as_made:
            return
        for parent, directories, names in os.walk(path):
            for name in (".", *directories, *names):
                full = os.path.join(parent, name)
                os.chown(full, self.user, self.group, follow_symlinks=False)


def ownership(directory: os.stat_result, queue: os.stat_result | None, file_mode: int) -> Ownership:
    """Return what files get that this process makes.

    Args:
        directory: status of the queue's directory.
        queue: of its allMeta; None: there is no queue yet.
        file_mode: that this process was asked for.
    """
    user = os.geteuid()
    if user == ROOT:
        owner = directory if directory.st_uid != ROOT or queue is None else queue
        if owner.st_uid == ROOT:
            return Ownership(AS_MADE, AS_MADE, file_mode)
        mode = file_mode if queue is None else queue.st_mode & BITS
        return Ownership(owner.st_uid, owner.st_gid, mode)
    if queue is None or user in {directory.st_uid, queue.st_uid}:
        return Ownership(AS_MADE, AS_MADE, file_mode)
    mode = queue.st_mode & BITS
    needs_group = mode & SHARED_BY_GROUP and mode & SHARED_BY_ALL != SHARED_BY_ALL
    return Ownership(AS_MADE, queue.st_gid if needs_group else AS_MADE, mode)


def ownership_inside(directory: str) -> Ownership:
    """Return what files get that are made in a directory that was made in a queue's directory."""
    status = os.stat(directory, follow_symlinks=False)
    mode = status.st_mode & BITS
    if os.geteuid() != ROOT or status.st_uid == ROOT:
        return Ownership(AS_MADE, AS_MADE, mode)
    return Ownership(status.st_uid, status.st_gid, mode)


def possible(wanted: Ownership, folder: int, path: str) -> Ownership:
    """Return what files in an open directory can get: before anything is written.

    What cannot be given away stays this process's, if all users may read and write it: so it is in
    a container in whose user namespace the owner has no id.

    Raises:
        AccessDenied: they cannot get what is wanted, and the owner could not use them.
    """
    if wanted.is_as_made:
        return wanted
    try:
        fd = _nameless(folder)
    except OSError:  # what will be made there is refused with its own error
        return wanted
    try:
        os.fchown(fd, wanted.user, wanted.group)
    except OSError as error:
        if wanted.file_mode & SHARED_BY_ALL == SHARED_BY_ALL:
            return wanted._replace(user=AS_MADE, group=AS_MADE)
        whose = "user and group" if wanted.user != AS_MADE else "group"
        words = errors.describe(error)
        denied = errors.AccessDenied(
            f"files that this process makes here could not be used by the queue's owner: they "
            f"cannot get its {whose} ({words})",
            path=path,
            remedy="open it as the user to whom the queue belongs",
        )
        denied.errno, denied.strerror, denied.filename = error.errno, words, path
        raise denied from error
    finally:
        os.close(fd)
    return wanted


def _nameless(folder: int) -> int:
    """Open a new file in a directory, which has no name, or not for long."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in NO_NAMELESS:
            raise
    name = f"pagequeue.tmp-{os.urandom(16).hex()}"
    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
    return fd
