"""Opening, making, renaming and removing files in one directory, safely.

Every name is looked up below one directory descriptor, which an operation keeps open until it ends,
never through a symbolic link, and only regular files of owners that are trusted are taken. Every
system error becomes a typed error that names the path. Making a file means: a temporary name,
blocks reserved, content, then a rename; whoever dies in between leaves a temporary file, which the
next one to hold the preparation lock removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
from typing import TYPE_CHECKING, NoReturn

from pagequeue import _core, errors
from pagequeue.system.descriptors import opened, used
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.page_lock import HOLD_SECONDS, HOLD_STEP_SECONDS, hold, is_page
from pagequeue.system.replaced import FileIdentityGuard, Identity
from pagequeue.system.trust import NOTHING, ROOT, check_directory, check_file, check_removable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Descriptor

FILE_MODE = 0o600
FILE_MODE_MAX = 0o666
OPEN_TRIES = 100


def status_of(fd: int, path: str) -> os.stat_result:
    """Return what the system says of an open file or directory."""
    try:
        return os.fstat(fd)
    except OSError as error:
        raise_typed(error, path, "looking at the file")


def directory_mode(file_mode: int) -> int:
    """Return the permission bits of a directory for files with these: x where the file has r.

    Where everybody may write it is sticky, so that nobody removes another's files.
    """
    sticky = stat.S_ISVTX if file_mode & stat.S_IWOTH else 0
    return file_mode | (file_mode & 0o444) >> 2 | sticky


def sync_path(path: str) -> None:
    """Put a file, or the names in a directory, on stable storage; the error is the system's own."""
    with used(opened(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def sync_directory(path: str) -> None:
    """Put the entries of a directory on stable storage."""
    try:
        directory = opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # It may be entered and not be listed, as homes of other users often are. It cannot be
        # synced then, and refusing would forbid a queue there altogether.
        return
    with used(directory) as fd:
        os.fsync(fd)


class Directory(FileIdentityGuard):
    """One directory, opened once; all files of a queue are reached through it.

    Args:
        path: of the directory.
        create: make it if it is not there.
        durable: with `create`, sync the directory that the new one is in. Only a directory of
            temporary files does without.
        read_only: nothing will be written to it.
        file_mode: permission bits of what is made, whatever the umask.
        trust: names of circumstances that are accepted; see `trust.py`.

    Attributes:
        descriptor: of the directory; an operation on it (`with folder.descriptor:`) keeps all that
            is closed with the directory open until it ends.
        owner: the user whom it belongs to.
        latch: called with the system's number when a sync of the directory fails. That sync can
            have dropped the names of any file, so the next one may succeed without them.
    """

    def __init__(
        self,
        path: str,
        *,
        create: bool,
        durable: bool = True,
        read_only: bool = False,
        file_mode: int = FILE_MODE,
        trust: frozenset[str] = NOTHING,
    ) -> None:
        super().__init__()
        self.path = path
        self.latch: Callable[[int], None] | None = None
        self._file_mode = file_mode
        self._trust = trust
        if create:
            self._create(durable=durable)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.descriptor = opened(path, flags)
        except FileNotFoundError as error:
            raise errors.QueueNotFound(
                "no queue here: check the path; it is made when opened for writing", path=path
            ) from error
        except OSError as error:
            self._refuse(error)
        try:
            with self.descriptor as fd:
                status = status_of(fd, path)
                check_directory(fd, status, path, trust=trust, read_only=read_only)
            self.owner = status.st_uid
        except BaseException:
            self.close()
            raise

    def _create(self, *, durable: bool) -> None:
        """Make the directory, and those above it, each durable before anything is put into it."""
        missing = [self.path]
        while not os.path.lexists(parent := os.path.dirname(missing[-1])):
            missing.append(parent)
        try:
            for path in reversed(missing):
                self._make_directory(path, durable=durable)
        except NotADirectoryError as error:
            raise errors.NotADirectory(
                "a part of this path is not a directory: choose another path", path=self.path
            ) from error
        except OSError as error:
            raise_typed(error, self.path, "making the directory")

    def _make_directory(self, path: str, *, durable: bool) -> None:
        mode = directory_mode(self._file_mode)
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            return
        # Without permission to read it, which the umask may have taken even from its owner; and
        # by descriptor, because by name it could be another one by now.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with used(opened(path, flags)) as fd:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.chmod(f"/proc/self/fd/{fd}", mode)
        if not durable:
            return
        try:
            sync_directory(os.path.dirname(path))
        except OSError:
            # The next sync of the parent can succeed without this name: make it again then.
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise

    def sync_name(self) -> None:
        """Put the directory's own entry on stable storage: it can have been made by one that died.

        Raises:
            SystemLimit: the sync failed.
        """
        try:
            sync_directory(os.path.dirname(self.path))
        except OSError as error:
            raise_typed(error, self.path, "syncing the directory that it stands in")

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

    @property
    def file_mode(self) -> int:
        """Permission bits of what is made."""
        return self._file_mode

    @property
    def trust(self) -> frozenset[str]:
        """Names of circumstances that are accepted."""
        return self._trust

    def close(self) -> None:
        """Close the directory, when the last operation on it has ended."""
        self.descriptor.close()

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
        with used(self.open(name, writable=writable, make=make)) as fd:
            yield fd

    def open(
        self, name: str, *, writable: bool, make: bool = False, what: str = "queue"
    ) -> Descriptor:
        """Open a regular file, without following links or blocking; return its owner."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_RDWR if writable else os.O_RDONLY
        path = self.full(name)
        deadline = None
        while True:
            try:
                file = self._open_or_make(name, flags) if make else self._open(name, flags, what)
            except OSError as error:
                raise_typed(error, path, "opening the file")
            try:
                with file as fd:
                    status = status_of(fd, path)
                    check_file(
                        status, path, directory_owner=self.owner, trust=self._trust,
                        writable=writable,
                    )  # fmt: skip
                    if not is_page(name) or self._holds(fd, name, status):
                        return file
            except BaseException:
                file.close()
                raise
            file.close()
            deadline = deadline or time.monotonic() + HOLD_SECONDS
            if time.monotonic() > deadline:
                raise errors.LockTimeout(
                    f"locked by somebody alone for {HOLD_SECONDS:g} s, which nobody here does with "
                    "a page: look for the process that holds it, then call again",
                    path=path,
                )
            time.sleep(HOLD_STEP_SECONDS)

    def _holds(self, fd: int, name: str, status: os.stat_result) -> bool:
        """Whether an open page is kept as it is, and still is the one of its name (I13).

        If it is not, it was retired meanwhile, and can have become another page before its lock was
        had; or a failed sync replaced it.
        """
        try:
            held = hold(fd)
        except OSError as error:
            raise_typed(error, self.full(name), "locking the page")
        return held and self.identity(name) == (status.st_dev, status.st_ino)

    def _open(self, name: str, flags: int, what: str = "queue") -> Descriptor:
        with self.descriptor as folder:
            return opened(self.full(name), flags, name=name, dir_fd=folder, what=what)

    def _open_or_make(self, name: str, flags: int) -> Descriptor:
        """Open a file, or make it; what it is made with is known only when it is certain who did.

        Others can make and remove it all the while, but not for ever.
        """
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return self._open(name, flags)
            try:
                with self.descriptor as folder:
                    made = flags | os.O_CREAT | os.O_EXCL
                    file = opened(self.full(name), made, self._file_mode, name=name, dir_fd=folder)
            except FileExistsError:
                continue
            try:
                with file as fd:
                    os.fchmod(fd, self._file_mode)
            except BaseException:
                file.close()
                raise
            return file
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def status(self, name: str) -> os.stat_result | None:
        """Return what is known of whatever has this name, links not followed; None: nothing has."""
        try:
            with self.descriptor as folder:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_typed(error, self.full(name), "looking at the file")

    def identity(self, name: str) -> Identity | None:
        """Return which file has this name now; None when there is none."""
        status = self.status(name)
        return None if status is None else (status.st_dev, status.st_ino)

    def exists(self, name: str) -> bool:
        """Return whether something of that name stands there."""
        return self.identity(name) is not None

    def names(self) -> list[str]:
        """Return the names of all that stands there, each once.

        Through a descriptor of its own: threads, and the child of a fork, share the place in the
        listing of `descriptor`, and would get names twice or never.
        """
        try:
            with used(self._open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                return os.listdir(fd)
        except OSError as error:
            raise_typed(error, self.path, "listing the directory")

    def remove_again(self, name: str) -> None:
        """Make and remove a name, so that the next sync writes that nothing has it."""
        self.open(name, writable=True, make=True).close()
        self.remove(name)

    @property
    def space_bytes(self) -> int:
        """The size of the file system."""
        with self.descriptor as folder:
            try:
                status = os.fstatvfs(folder)
            except OSError as error:
                raise_typed(error, self.path, "looking at the file system")
        return status.f_blocks * status.f_frsize

    def check_removable(self, name: str) -> None:
        """Raise AccessDenied if this user may not remove a file, before anything depends on it."""
        if (status := self.status(name)) is not None:
            with self.descriptor as folder:
                directory = status_of(folder, self.path)
                check_removable(folder, directory, status, self.full(name))

    @property
    def may_keep_files(self) -> bool:
        """Whether this user may perhaps remove some files here and not others: it is sticky."""
        with self.descriptor as folder:
            directory = status_of(folder, self.path)
        return bool(directory.st_mode & stat.S_ISVTX) and os.geteuid() not in {
            directory.st_uid,
            ROOT,
        }

    def remove(self, name: str) -> None:
        """Remove a file; it is no error that it is not there."""
        try:
            with self.descriptor as folder:
                os.unlink(name, dir_fd=folder)
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
            with self.descriptor as folder:
                return _core.Region.make(
                    folder, temporary, name, data, size_bytes, filled_bytes, self._file_mode,
                    synced, is_page(name), False,
                )  # fmt: skip
        except OSError as error:
            raise_typed(error, self.full(name), f"making a file of {size_bytes} bytes")

    def make_of(
        self, spare: str, name: str, data: bytes, *, size_bytes: int
    ) -> _core.Region | None:
        """Make a page of a file that nobody has open, zero behind `data`; return its map.

        Returns:
            None when it is no use: somebody has it open, or it is another's, too small, without
            blocks, or not in memory. Then it is gone.
        """
        temporary = f"{name}.tmp-next"
        self.remove(temporary)
        try:
            self._rename(spare, temporary)
            with self.descriptor as folder:
                return _core.Region.make(
                    folder, temporary, name, data, size_bytes, 0, self._file_mode, False, True,
                    True,
                )  # fmt: skip
        except OSError:  # whatever it is: a new file is made, or says so
            self.remove(temporary)
            return None

    def rename(self, name: str, to: str) -> None:
        """Give a file another name; what has that name is replaced.

        Raises:
            QueueNotFound: it is not there.
        """
        try:
            self._rename(name, to)
        except OSError as error:
            raise_typed(error, self.full(name), "renaming the file")

    def _rename(self, name: str, to: str) -> None:
        with self.descriptor as folder:
            os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)

    def sync(self) -> None:
        """Put the directory's entries on stable storage; the error is the system's own.

        A failure latches an open queue, whoever asked for the sync and whatever for.
        """
        with self.descriptor as folder:
            try:
                os.fsync(folder)
            except OSError as error:
                if self.latch is not None:
                    self.latch(error.errno or errno.EIO)
                raise

    def sync_entries(self) -> None:
        """The same, where the caller has nothing to undo when it fails.

        Raises:
            SystemLimit, AccessDenied: the sync failed; an open queue is latched.
        """
        try:
            self.sync()
        except OSError as error:
            raise_typed(error, self.path, "syncing the directory")

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return what a file holds, at most so many bytes of it.

        Raises:
            QueueNotFound, UnsafePath, AccessDenied, SystemLimit: as they say.
        """
        data = b""
        with self.opened(name, writable=False) as fd:
            try:
                while part := os.pread(fd, limit_bytes - len(data), len(data)):
                    data += part
            except OSError as error:
                raise_typed(error, self.full(name), "reading the file")
        return data


def read_all(folder: Directory, name: str, size_bytes: int) -> bytes:
    """Return a file's bytes, read without a map: a read error is an error then, never a signal."""
    parts = []
    left = size_bytes
    with folder.opened(name, writable=False) as fd:
        try:
            while left > 0 and (part := os.pread(fd, left, size_bytes - left)):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")
    return b"".join(parts)
