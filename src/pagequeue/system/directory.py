"""Opening, making, renaming and removing files in one directory, safely.

Every name is resolved relative to one directory descriptor, which an operation keeps open until it
ends, never through a symbolic link; only regular files of trusted owners are accepted. Every system
error becomes a typed error that names the path. Making a file means: a temporary name, blocks
reserved, content, then a rename. A process that dies in between leaves a temporary file, which the
next holder of the preparation lock removes.
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
from pagequeue.system.ownership import AS_MADE, Ownership, ownership, possible
from pagequeue.system.page_lock import HOLD_SECONDS, HOLD_STEP_SECONDS, hold, is_page
from pagequeue.system.replaced_file import (
    CHECK_SECONDS,
    Identity,
    IdentityGuard,
    Stoppable,
    identity_of,
)
from pagequeue.system.trust import (
    NOTHING,
    ROOT,
    check_directory,
    check_file,
    check_removable,
    is_overlay,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Descriptor

FILE_MODE = 0o600
FILE_MODE_MAX = 0o666
OPEN_TRIES = 100


def status_of(fd: int, path: str) -> os.stat_result:
    """Return the status of an open file or directory."""
    try:
        return os.fstat(fd)
    except OSError as error:
        raise_typed(error, path, "reading the file's status")


def directory_mode(file_mode: int) -> int:
    """Return the permission bits of a directory for files with these: x where the file has r.

    A world-writable directory is sticky, so that users cannot remove each other's files.
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
        # A directory that may be entered and not listed, as homes of other users often are, cannot
        # be opened for a sync; refusing would forbid a queue there altogether.
        return
    with used(directory) as fd:
        os.fsync(fd)


class Directory:
    """One directory, opened once; all files of a queue are reached through it.

    Args:
        path: of the directory.
        create: make it if it is missing.
        durable: whether syncs are done, also that of the directory that a new one is in. Only a
            directory of temporary files, which nobody reads after a power cut, does without.
        read_only: the caller will not write to it.
        file_mode: permission bits of new files, whatever the umask; see `ownership.py` for those
            in the queue of another user.
        trust: names of accepted circumstances; see `trust.py`.
        within: the open directory that it is in, or that it is itself: it is made and opened there,
            wherever the path leads by now, and its files get the same owner and mode.
        failed: called with the system's error number when a sync of the directory fails. That sync
            can have dropped the names of any file, so the next one may succeed without them.

    Attributes:
        descriptor: of the directory; an operation on it (`with folder.descriptor:`) keeps all
            files that are closed with the directory open until it ends.
        owner: uid of the directory's owner.
        own_identity: of the directory.
        is_durable: whether syncs are done.
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
        within: Directory | None = None,
        failed: Callable[[int], object] | None = None,
    ) -> None:
        self._guard = IdentityGuard()
        self._within = within
        self._checked_at = 0.0
        path = os.path.abspath(path)  # the working directory can change
        self.path = path
        self._prefix = os.path.join(path, "")
        self._failed = failed
        self.is_durable: bool = durable
        self._makes = Ownership(AS_MADE, AS_MADE, file_mode) if within is None else within.ownership
        self._trust = trust
        if within is not None:
            within.check()
        if create:
            self._create()
        try:
            self.descriptor: Descriptor = self._open_directory(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise errors.QueueNotFound(
                "no queue here",
                path=path,
                remedy="check the path, or create the queue by opening it for writing",
            ) from error
        except OSError as error:
            self._refuse(error)
        try:
            with self.descriptor as fd:
                status = status_of(fd, path)
                check_directory(fd, status, path, trust=trust, read_only=read_only)
                if within is None and not read_only:
                    self._makes = ownership(status, None, file_mode)
            self.owner: int = status.st_uid
            self.own_identity: Identity = identity_of(status)
            self._guard.watch_directory(path, self.own_identity)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _named(self, path: str) -> Iterator[tuple[str, int | None]]:
        """Yield a name of a directory, and the descriptor that it is relative to."""
        if self._within is None:
            yield path, None
        else:
            with self._within.descriptor as within:
                yield path.removeprefix(self._within.path).lstrip("/") or ".", within

    def _open_directory(self, path: str, access: int) -> Descriptor:
        flags = access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._named(path) as (name, within):
            return opened(path, flags, name=name, dir_fd=within)

    def _create(self) -> None:
        """Make the directory and its missing parents, each durable before the next one."""
        missing = [self.path]
        while self._within is None and not os.path.lexists(parent := os.path.dirname(missing[-1])):
            missing.append(parent)
        try:
            for path in reversed(missing):
                self._make_directory(path)
        except NotADirectoryError as error:
            raise errors.NotADirectory(
                "a part of this path is not a directory",
                path=self.path,
                remedy="choose another path",
            ) from error
        except OSError as error:
            raise_typed(error, self.path, "making the directory")

    def _make_directory(self, path: str) -> None:
        mode = directory_mode(self.file_mode)
        with self._named(path) as (name, within):
            try:
                os.mkdir(name, mode, dir_fd=within)
            except FileExistsError:
                return
        # O_PATH needs no read permission, which the umask may have removed even for the owner; by
        # descriptor, because the name could refer to another directory by now.
        with used(self._open_directory(path, os.O_PATH)) as fd:
            if not self._makes.is_as_made:
                os.chown(f"/proc/self/fd/{fd}", self._makes.user, self._makes.group)
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                os.chmod(f"/proc/self/fd/{fd}", mode)
        if not self.is_durable:
            return
        try:
            self._sync_parent(path)
        except OSError:
            # The next sync of the parent can succeed without this name: the next call makes it.
            with contextlib.suppress(OSError), self._named(path) as (name, within):
                os.rmdir(name, dir_fd=within)
            raise

    def _sync_parent(self, path: str) -> None:
        if self._within is None or path == self._within.path:
            sync_directory(os.path.dirname(path))
        else:
            with self._within.descriptor as within:
                os.fsync(within)

    def sync_name(self) -> None:
        """Put the directory's own entry on stable storage: its maker may have died before that.

        Raises:
            SystemLimit: the sync failed.
        """
        if not self.is_durable:
            return
        try:
            self._sync_parent(self.path)
        except OSError as error:
            raise_typed(error, self.path, "syncing its parent directory")

    def _refuse(self, error: OSError) -> NoReturn:
        if os.path.islink(self.path):
            raise errors.UnsafePath(
                "a symbolic link", path=self.path, remedy="give the directory itself"
            ) from error
        if error.errno == errno.ENOTDIR:
            raise errors.NotADirectory(
                "a file, not a directory", path=self.path, remedy="choose another path"
            ) from error
        raise_typed(error, self.path, "opening the directory")

    @property
    def file_mode(self) -> int:
        """Permission bits of new files."""
        return self._makes.file_mode

    @property
    def ownership(self) -> Ownership:
        """What files get that are made here."""
        return self._makes

    def adopt(self, name: str) -> None:
        """Let the owner of the queue whose allMeta has this name use all files that are made here.

        Called before the first one is made, also where there is no queue yet.

        Raises:
            UnsafePath: it is not a regular file, or a stranger's.
            AccessDenied: they could not be given to the owner.
        """
        status = self.status(name)
        if status is not None:
            path = self.full(name)
            check_file(status, path, directory_owner=self.owner, trust=self._trust, writable=False)
        with self.descriptor as folder:
            wanted = ownership(status_of(folder, self.path), status, self.file_mode)
            self._makes = possible(wanted, folder, self.path)

    @property
    def trust(self) -> frozenset[str]:
        """Names of accepted circumstances."""
        return self._trust

    # --- files that must not be replaced ----------------------------------------------------------

    def watch(self, name: str, identity: Identity | None) -> None:
        """Require from now on that this name refers to this file."""
        self._guard.watch(name, identity)

    def watch_bytes(self, stale_name: Callable[[], str | None]) -> None:
        """Require from now on that this returns None, not the name of a file with other bytes."""
        self._guard.watch_bytes(stale_name)

    def name_queue(self, queue_id: bytes, id_at: Callable[[str], str | None]) -> None:
        """Name the queue that is here, for the errors of `check`; `id_at` finds that of a path."""
        self._guard.name_queue(queue_id.hex(), id_at)

    @property
    def queue_id(self) -> str | None:
        """The id of the queue that is here, in hexadecimal; None: it is not known."""
        return self._guard.queue_id

    def admit(self, writer: Stoppable) -> None:
        """Register a writer, which `check` stops when it finds that a name leads elsewhere.

        Raises:
            QueueReplaced: one does.
        """
        self._guard.add(writer)
        self.check()

    @property
    def is_replaced(self) -> bool:
        """Whether a name was found to lead elsewhere: writing is refused from then on."""
        return self._guard.is_replaced

    def check(self) -> None:
        """Raise if the path or a watched name leads elsewhere, and stop all writers.

        Raises:
            QueueReplaced: the path does, now or at an earlier check.
            LockReplaced: the name of a watched file does.
        """
        self._guard.check(self)

    def check_soon(self) -> None:
        """Do the same, if it was not done for a moment; raise again at once what it found."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS or self.is_replaced:
            self._checked_at = now
            self.check()

    @property
    def watched(self) -> tuple[tuple[bytes, int, int], ...]:
        """The path and the names that `check` looks for: name, device and inode."""
        return self._guard.watched

    def _fail(self, error: OSError, name: str, doing: str) -> NoReturn:
        """Raise what a failed change of a name means: nothing can be made where all was removed.

        Raises:
            QueueReplaced: the path leads elsewhere. Else the typed error.
        """
        if error.errno == errno.ENOENT:
            (self._within or self).check()
        raise_typed(error, self.full(name), doing)

    # --- files ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the directory, when the last operation on it has ended."""
        self.descriptor.close()

    def full(self, name: str) -> str:
        """Return the path of a file, for people."""
        return self._prefix + name

    def opened(self, name: str, *, writable: bool, make: bool = False) -> used:
        """Open a regular file, without following links or blocking, for as long as the block runs.

        Raises:
            QueueNotFound: it is missing. UnsafePath: it is not a regular file.
            AccessDenied, SystemLimit, DiskFull: opening it failed.
        """
        return used(self.open(name, writable=writable, make=make))

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
                if make:
                    self._fail(error, name, "opening the file")
                raise_typed(error, path, "opening the file")
            try:
                with file as fd:
                    status = status_of(fd, path)
                    check_file(
                        status,
                        path,
                        directory_owner=self.owner,
                        trust=self._trust,
                        writable=writable,
                    )
                    if not is_page(name) or self._holds(fd, name, status):
                        return file
            except BaseException:
                file.close()
                raise
            file.close()
            deadline = deadline or time.monotonic() + HOLD_SECONDS
            if time.monotonic() > deadline:
                raise errors.LockTimeout(
                    f"another program has held an exclusive lock on this page file for more than "
                    f"{HOLD_SECONDS:g} s; pagequeue never does",
                    path=path,
                    remedy="find it with `lslocks`, then call again",
                )
            time.sleep(HOLD_STEP_SECONDS)

    def _holds(self, fd: int, name: str, status: os.stat_result) -> bool:
        """Share the lock of an open page; return whether it still is the file of its name (I13).

        If not, retention retired it and its file may have been reused before the lock was taken, or
        a failed sync replaced it.
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
        """Open a file, or make it with O_EXCL, so that its mode is set by its maker only.

        Other processes can make and remove it between two tries, hence the limit.
        """
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return self._open(name, flags)
            try:
                with self.descriptor as folder:
                    made = flags | os.O_CREAT | os.O_EXCL
                    file = opened(self.full(name), made, self.file_mode, name=name, dir_fd=folder)
            except FileExistsError:
                continue
            try:
                with file as fd:
                    self._makes.give(fd)
            except BaseException:
                file.close()
                with contextlib.suppress(errors.PageQueueError):
                    self.remove(name)
                raise
            return file
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of the file of this name, links not followed; None: no file has it."""
        try:
            with self.descriptor as folder:
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise_typed(error, self.full(name), "reading the file's status")

    def identity(self, name: str) -> Identity | None:
        """Return which file has this name now; None: no file has it."""
        try:
            with self.descriptor as folder:
                return _core.identity(folder, name)
        except OSError as error:
            raise_typed(error, self.full(name), "reading the file's status")

    def exists(self, name: str) -> bool:
        """Return whether a file of any type has this name."""
        return self.identity(name) is not None

    def names(self) -> list[str]:
        """Return the names of all files, each once.

        Uses its own descriptor: threads, and the child of a fork, share the read position of
        `descriptor`, and would get names twice or never.
        """
        try:
            with used(self._open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                return os.listdir(fd)
        except OSError as error:
            raise_typed(error, self.path, "listing the directory")

    def remove_again(self, name: str) -> None:
        """Make and remove a name, so that the next sync writes its absence to the disk."""
        self.open(name, writable=True, make=True).close()
        self.remove(name)

    @property
    def is_overlay(self) -> bool:
        """Whether files of a lower layer are copied when they are first opened for writing."""
        with self.descriptor as folder:
            return is_overlay(folder)

    @property
    def space_bytes(self) -> int:
        """The size of the file system."""
        with self.descriptor as folder:
            try:
                status = os.fstatvfs(folder)
            except OSError as error:
                raise_typed(error, self.path, "reading the file system's status")
        return status.f_blocks * status.f_frsize

    def check_removable(self, name: str) -> None:
        """Raise AccessDenied if this user may not remove a file."""
        if (status := self.status(name)) is not None:
            with self.descriptor as folder:
                directory = status_of(folder, self.path)
                check_removable(folder, directory, status, self.full(name))

    @property
    def may_keep_files(self) -> bool:
        """Whether this user may be unable to remove some files here, because it is sticky."""
        with self.descriptor as folder:
            directory = status_of(folder, self.path)
        return bool(directory.st_mode & stat.S_ISVTX) and os.geteuid() not in {
            directory.st_uid,
            ROOT,
        }

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is ignored."""
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
        reserved_bytes: int | None = None,
        filled_bytes: int = 0,
        maker: str = "",
        synced: bool = False,
        kept: bool = False,
    ) -> _core.Region:
        """Make a file of reserved blocks, `data` and then zeros; return its map.

        It is made under a temporary name and renamed when it is complete. Dies in between: a
        temporary file is left and never opened; the next call with this name and maker removes it.

        Args:
            name: the file's final name; an existing file is replaced.
            data: its first bytes.
            size_bytes: its size.
            reserved_bytes: of these, blocks are reserved for so many at the beginning, and for the
                last OS page; for all of them where the file system cannot; None: for all.
            filled_bytes: of these, page faults are taken as well.
            maker: names the maker where only one can exist at a time; "": any number can.
            synced: whether the file must be on stable storage before it gets its name.
            kept: whether the map keeps the file open, so that `renew` can use it again.

        Raises:
            DiskFull, SystemLimit, AccessDenied: making it failed; no file is left.
        """
        temporary = f"{name}.tmp-{maker or uuid.uuid4().hex}"
        if self.exists(temporary):  # hardly ever
            self.remove(temporary)
        try:
            with self.descriptor as folder:
                return _core.Region.make(
                    folder,
                    temporary,
                    name,
                    data,
                    size_bytes,
                    size_bytes if reserved_bytes is None else reserved_bytes,
                    filled_bytes,
                    *self._makes,
                    synced and self.is_durable,
                    is_page(name),
                    False,
                    kept,
                )
        except OSError as error:
            self._fail(error, name, f"making a file of {size_bytes} bytes")

    def make_of(
        self, spare: str, name: str, data: bytes, *, size_bytes: int
    ) -> _core.Region | None:
        """Make a page from a retired file, `data` and then zeros; return its map.

        Returns:
            None if the file is unusable: another process has it open, or it belongs to another
            user, is too small, lacks blocks or is not in memory. The file is removed then.
        """
        temporary = f"{name}.tmp-next"
        self.remove(temporary)
        try:
            self._rename(spare, temporary)
            with self.descriptor as folder:
                return _core.Region.make(
                    folder,
                    temporary,
                    name,
                    data,
                    size_bytes,
                    size_bytes,
                    0,
                    *self._makes,
                    False,
                    True,
                    True,
                    False,
                )
        except OSError:  # whatever the reason: the caller makes a new file
            self.remove(temporary)
            return None

    def renew(
        self,
        region: _core.Region,
        index: _core.Region,
        old: tuple[str, str],
        new: tuple[str, str],
        header: bytes,
        index_used: int,
    ) -> bool:
        """Use the files of a retired page, which stay mapped, for another one.

        Args:
            region: the map of the page, which was made with `kept`.
            index: that of its index.
            old: the names of page and index.
            new: those that they get.
            header: of the new page.
            index_used: bytes of the index that have records.

        Returns:
            False if they are unusable, mostly because a reader has the page open; both are removed.
        """
        temporary = f"{new[0]}.tmp-next"  # one that is there is replaced
        try:
            with self.descriptor as folder:
                region.renew(
                    folder, index, old[0], temporary, new[0], old[1], new[1], header, index_used
                )
        except OSError:  # whatever the reason: the caller makes a new file
            for name in (temporary, *old):
                self.remove(name)
            return False
        return True

    def rename(self, name: str, to: str) -> None:
        """Rename a file; an existing one of the new name is replaced.

        Raises:
            QueueNotFound: it is missing.
        """
        try:
            self._rename(name, to)
        except OSError as error:
            self._fail(error, name, "renaming the file")

    def _rename(self, name: str, to: str) -> None:
        with self.descriptor as folder:
            os.rename(name, to, src_dir_fd=folder, dst_dir_fd=folder)

    def sync(self) -> None:
        """Put the directory's entries on stable storage; the error is the system's own.

        A failure latches an open queue, by `failed`, whichever operation called for the sync.
        """
        if not self.is_durable:
            return
        with self.descriptor as folder:
            try:
                os.fsync(folder)
            except OSError as error:
                if self._failed is not None:
                    self._failed(error.errno or errno.EIO)
                raise

    def sync_entries(self) -> None:
        """Do the same, for callers that need no rollback when it fails.

        Raises:
            SystemLimit, AccessDenied: the sync failed; an open queue is latched.
        """
        try:
            self.sync()
        except OSError as error:
            raise_typed(error, self.path, "syncing the directory")

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return the contents of a file, at most `limit_bytes` of it.

        Raises:
            QueueNotFound, UnsafePath, AccessDenied, SystemLimit: reading it failed.
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
    """Return a file's bytes, read without a map, so that a read error is not a SIGBUS."""
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
