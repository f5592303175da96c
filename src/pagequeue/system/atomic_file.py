"""A file that gets its name only when it is whole and on stable storage."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import IO, TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue.system.directory import sync_path
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.ownership import ownership_inside

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE: Final = 0o600
NO_LINK: Final = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


@contextlib.contextmanager
def whole_file(path: str, *, force: bool, is_of_queue: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing; it gets its name after the block, whole and on stable storage.

    Args:
        path: of the file.
        force: replace an existing file.
        is_of_queue: it is in a directory of a queue, whose owner must be able to use it.

    Raises:
        OutputExists: the file exists, and `force` is False.
        DiskFull, AccessDenied, SystemLimit: writing it failed.

    Example:
        >>> with whole_file("/tmp/rows.csv", force=True) as file:
        ...     file.write(b"a,b")
    """
    path = os.path.abspath(path)
    if not force and os.path.lexists(path):
        raise _exists(path)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, FILE_MODE), "wb") as file:
            if is_of_queue:
                ownership_inside(os.path.dirname(path)).give(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path, force=force)
    except OSError as error:
        if isinstance(error, errors.PageQueueError):
            raise
        raise_typed(error, path, "writing the file")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _name(temporary: str, path: str, *, force: bool) -> None:
    """Give a complete file its name, durably; replace another file only with `force`."""
    if force:
        os.replace(temporary, path)
    else:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise _exists(path) from None
        except OSError as error:  # a file system without hard links: the check before must do
            if error.errno not in NO_LINK:
                raise
            os.rename(temporary, path)
    sync_path(os.path.dirname(path))


def _exists(path: str) -> errors.OutputExists:
    return errors.OutputExists(
        "exists already", path=path, remedy="choose another name, or force it"
    )
