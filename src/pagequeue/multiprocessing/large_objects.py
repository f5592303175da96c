"""Objects that do not fit into a page: each in a file of its own, and a message that names it.

The file is complete before the message is sent, and removed after the message is done. A kill in
between leaves a file that no message names. A process that opens the directory and holds its lock
exclusively removes those: then no process that could read one is alive (I18).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from typing import TYPE_CHECKING, Final, NoReturn

from pagequeue import _core, errors
from pagequeue.system.descriptors import opened, used
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pagequeue._core import Descriptor
    from pagequeue.system.directory import Directory

NAME: Final = struct.Struct("<B16sIQ")
"""The message: 0, token, CRC-32C and length of the file. A pickle never begins with 0."""
KIND: Final = 0
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


class LargeObjects:
    """The directory of large objects, open in one process.

    Args:
        folder: the queue's directory, which has this one.
        name: of this one; created if necessary.
        synced: whether a file is on stable storage before its message is sent.
        named: returns the messages that name files; called if there are files and no other process
            has the directory open.

    Raises:
        AccessDenied, UnsafePath, DiskFull: the system refuses the directory.
    """

    def __init__(
        self, folder: Directory, name: str, *, synced: bool, named: Callable[[], Iterable[bytes]]
    ) -> None:
        self.path: str = folder.full(name)
        self._synced = synced
        with folder.descriptor as queue:
            with contextlib.suppress(FileExistsError), self._typed("making the directory"):
                os.mkdir(name, DIRECTORY_MODE, dir_fd=queue)
            with self._typed("opening the directory"):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                self._descriptor = opened(self.path, flags, name=name, dir_fd=queue)
        try:
            with self._descriptor as fd, self._typed("locking the directory"):
                if _try_lock(fd):
                    _sweep(fd, named)
                fcntl.flock(fd, fcntl.LOCK_SH)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _typed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, errors.PageQueueError):
            raise
        except OSError as error:
            raise_typed(error, self.path, doing)

    def write(self, data: bytes) -> bytes:
        """Write bytes to a new file; return the message that names it."""
        message = NAME.pack(KIND, secrets.token_bytes(16), _core.crc32c(data), len(data))
        file_name = _file_name(message)
        try:
            with self._typed("writing a large object"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                try:
                    file = self._open(file_name, flags)
                except FileNotFoundError:
                    self._descriptor.check()  # raises if this was closed and the directory removed
                    raise
                with used(file) as fd:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[os.write(fd, rest) :]
                    if self._synced:
                        os.fsync(fd)
                if self._synced:
                    with self._descriptor as folder:
                        os.fsync(folder)
        except BaseException:
            self.forget(message)
            raise
        return message

    def read(self, message: bytes, sequence: int) -> bytes:
        """Return the bytes of the file that a message names.

        Raises:
            CorruptFrame: it is missing or not what was written.
            ClosedError: it is missing because this was closed and the directory removed.
        """
        if len(message) != NAME.size or message[0] != KIND:
            self._refuse(sequence, "neither a pickle nor the name of a file")
        _, _, checksum, size_bytes = NAME.unpack(message)
        with self._typed("reading a large object"):
            try:
                taken = self._open_taken(_file_name(message))
            except FileNotFoundError:
                self._descriptor.check()  # raises if this was closed and the directory removed
                self._refuse(sequence, "its file is missing")
            with used(taken) as fd, open(fd, "rb", buffering=0, closefd=False) as file:
                data = file.readall()
        if len(data) != size_bytes or _core.crc32c(data) != checksum:
            self._refuse(sequence, "its file has other bytes than were written")
        return data

    def _refuse(self, sequence: int, reason: str) -> NoReturn:
        raise errors.CorruptFrame(
            f"object {sequence}: {reason}",
            path=self.path,
            position=0,
            sequence=sequence,
            reason=reason,
            remedy="restore the directory from a copy, or continue without the object",
        )

    def forget(self, message: bytes) -> None:
        """Remove the file that a message names, if it exists; works also after `close`."""
        with contextlib.suppress(FileNotFoundError), self._typed("removing a large object"):
            try:
                with self._descriptor as folder:
                    os.unlink(_file_name(message), dir_fd=folder)
            except errors.ClosedError:
                os.unlink(os.path.join(self.path, _file_name(message)))

    def _open_taken(self, file_name: str) -> Descriptor:
        """Open the file of a taken message, also if another thread closed this meanwhile.

        Raises:
            ClosedError: the directory was removed with its queue.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return self._open(file_name, flags)
        except errors.ClosedError as error:
            try:
                return opened(os.path.join(self.path, file_name), flags)
            except FileNotFoundError:
                raise error from None

    def _open(self, file_name: str, flags: int) -> Descriptor:
        path = os.path.join(self.path, file_name)
        with self._descriptor as folder:
            return opened(path, flags, FILE_MODE, name=file_name, dir_fd=folder)

    def close(self) -> None:
        """Close and unlock the directory; closing again has no effect."""
        self._descriptor.close()


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(fd: int, named: Callable[[], Iterable[bytes]]) -> None:
    """Remove the files that no message names."""
    there = set(os.listdir(fd))
    if there:
        for file_name in there - {_file_name(message) for message in named()}:
            os.unlink(file_name, dir_fd=fd)


def _file_name(message: bytes) -> str:
    return message[1:17].hex()
