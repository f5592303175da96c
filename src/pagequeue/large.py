"""Objects that do not fit into a page: each in a file of its own, and a message that names it.

The file is there, whole, before the message is sent, and goes when the message is done. A kill in
between leaves a file that no message names. Whoever opens the directory while nobody else has it
open removes those (a lock on the directory says so); nobody who reads one can be alive then (I18).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
from typing import TYPE_CHECKING, Final, NoReturn

from pagequeue import _core, errors
from pagequeue.system_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME: Final = struct.Struct("<B16sIQ")
"""What the message says: 0, token, CRC-32C and length of the file. No pickle begins with 0."""
KIND: Final = 0
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


class LargeItems:
    """The directory of large objects, as one process has it open.

    Args:
        path: of it; made if it is not there.
        synced: whether a file is on stable storage before its message is sent.
        named: called when nobody else has it open, and there are files: gives what messages say.

    Raises:
        AccessDenied, UnsafePath, DiskFull: it cannot be used.
    """

    def __init__(self, path: str, *, synced: bool, named: Callable[[], Iterable[bytes]]) -> None:
        self.path = path
        self._synced = synced
        with contextlib.suppress(FileExistsError), self._typed("making the directory"):
            os.mkdir(path, DIRECTORY_MODE)
        with self._typed("opening the directory"):
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if self._is_alone():
                self._sweep(named)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except BaseException:
            self.close()
            raise

    def _is_alone(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _sweep(self, named: Callable[[], Iterable[bytes]]) -> None:
        """Remove the files that no message names."""
        there = set(os.listdir(self._fd))
        if there:
            for file_name in there - {_file_name(message) for message in named()}:
                os.unlink(file_name, dir_fd=self._fd)

    @contextlib.contextmanager
    def _typed(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise_typed(error, self.path, doing)

    def write(self, data: bytes) -> bytes:
        """Keep bytes in a file; return the message that names it."""
        message = NAME.pack(KIND, secrets.token_bytes(16), _core.crc32c(data), len(data))
        file_name = _file_name(message)
        try:
            with self._typed("writing a large object"):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                fd = os.open(file_name, flags, FILE_MODE, dir_fd=self._fd)
                with open(fd, "wb", buffering=0) as file:
                    rest = memoryview(data)
                    while rest:
                        rest = rest[file.write(rest) :]
                    if self._synced:
                        os.fsync(fd)
                if self._synced:
                    os.fsync(self._fd)
        except BaseException:
            self.forget(message)
            raise
        return message

    def read(self, message: bytes, sequence: int) -> bytes:
        """Return the bytes of the file that a message names.

        Raises:
            CorruptFrame: it is missing or not what was written.
        """
        if len(message) != NAME.size or message[0] != KIND:
            self._refuse(sequence, "neither a pickle nor the name of a file")
        _, _, checksum, size_bytes = NAME.unpack(message)
        with self._typed("reading a large object"):
            try:
                fd = os.open(_file_name(message), os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._fd)
            except FileNotFoundError:
                self._refuse(sequence, "its file is missing")
            with open(fd, "rb", buffering=0) as file:
                data = file.readall()
        if len(data) != size_bytes or _core.crc32c(data) != checksum:
            self._refuse(sequence, "its file has other bytes than were written")
        return data

    def _refuse(self, sequence: int, reason: str) -> NoReturn:
        raise errors.CorruptFrame(
            f"object {sequence}: {reason}: restore the directory from a copy, or go on without it",
            path=self.path, position=0, sequence=sequence, reason=reason,
        )  # fmt: skip

    def forget(self, message: bytes) -> None:
        """Remove the file that a message names, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_file_name(message), dir_fd=self._fd)

    def close(self) -> None:
        """Let go; closing again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _file_name(message: bytes) -> str:
    return message[1:17].hex()
