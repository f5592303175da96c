"""System errors as typed errors that name the path and carry a remedy."""

from __future__ import annotations

import errno
import resource
from typing import NoReturn

from pagequeue import errors

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_RESOURCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
NOT_REGULAR = {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def _room_remedy(number: int) -> str:
    """Return how to make room: on the disk, in a quota or in a file size limit."""
    if number == errno.EDQUOT:
        return "make room, or have the quota of this user raised"
    if number == errno.EFBIG:
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit_bytes != resource.RLIM_INFINITY:
            return (
                f"raise the limit of {limit_bytes} bytes that this process has for files "
                "(ulimit -f, RLIMIT_FSIZE), or, for a new queue, choose smaller pages"
            )
        return "the file system takes no file of that size: use another"
    return "make room"


def refuse_without_resource(error: OSError, path: str, doing: str) -> None:
    """Raise the typed error if descriptors or memory were short; return for other errors."""
    if error.errno in NO_RESOURCE:
        raise_typed(error, path, doing)


def raise_typed(error: OSError, path: str, doing: str) -> NoReturn:
    """Raise the typed error for a system error."""
    number = error.errno or errno.EIO
    words = errors.describe(error)
    if number in NO_ROOM:
        made: errors.PageQueueError = errors.DiskFull(
            f"no room while {doing} ({words})",
            path=path,
            remedy=f"{_room_remedy(number)}, then call again",
        )
    elif number in NO_RESOURCE:
        made = errors.SystemLimit(
            f"the system refused while {doing} ({words})",
            path=path,
            remedy="raise the limit or close something, then call again",
        )
    elif number in DENIED:
        made = errors.AccessDenied(
            f"not allowed while {doing} ({words})",
            path=path,
            remedy="change owner or permissions; to open the queue read-only, permission to read "
            "is enough",
        )
    elif number in NOT_REGULAR:
        made = errors.UnsafePath(
            f"not a regular file ({words}) while {doing}: symbolic links and special files are "
            "refused",
            path=path,
            remedy="put the real file there",
        )
    elif number == errno.ENOENT:
        made = errors.QueueNotFound(f"not there while {doing}", path=path, remedy="check the path")
    else:
        made = errors.SystemLimit(
            f"{words} while {doing}", path=path, remedy="see the system's log"
        )
    if isinstance(made, OSError):
        made.errno = number
        made.strerror = words
        made.filename = path
    try:
        raise made from error
    finally:
        # Otherwise error, traceback and this frame form a cycle, which keeps every caller's
        # variables, pages among them, until the garbage collector runs.
        del made, error
