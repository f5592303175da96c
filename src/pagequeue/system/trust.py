"""Which owners' files are accepted, and from which file systems.

A user who owns a directory, or may write to it, can replace any file in it. So directory and files
must belong to a user who could do worse anyway: this one or root. Callers who know the
circumstances can accept what is refused, by its name.

| refused | accepted by |
| --- | --- |
| a directory of another user than this one and root | `"other_owner"` |
| a file of another user than these and the directory's owner | `"other_owner"` |
| a world-writable directory without the sticky bit | `"world_writable"` |
| a file system shared between hosts, or of unknown backing | `"network_file_system"` |

Root may *read* the queue of any user; to write there it needs `"other_owner"`, because the user
could replace the files meanwhile.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterable
from typing import Final

from pagequeue import _core, errors
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.arguments import value_error

OTHER_OWNER: Final = "other_owner"
WORLD_WRITABLE: Final = "world_writable"
NETWORK_FILE_SYSTEM: Final = "network_file_system"
ALL: Final = frozenset({OTHER_OWNER, WORLD_WRITABLE, NETWORK_FILE_SYSTEM})
NOTHING: Final[frozenset[str]] = frozenset()
ROOT: Final = 0
OVERLAYFS: Final = 0x794C7630

NETWORK_FILE_SYSTEMS: Final = {
    0x0000517B: "SMB",
    0x0000564C: "NCP",
    0x00006969: "NFS",
    0x00C36400: "CephFS",
    0x01021997: "9P",
    0x01161970: "GFS2",
    0x013111A8: "IBRIX",
    0x0BD00BD0: "Lustre",
    0x18031977: "WekaFS",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
    0x61636673: "ACFS",
    0x65735546: "FUSE",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x7461636F: "OCFS2",
    0x786F4256: "vboxsf",
    0xAAD7AAEA: "PanFS",
    0xBACBACBC: "vmhgfs",
    0xBEEFDEAD: "StorNext",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
}
"""File systems that other hosts write to as well, by the number that statfs(2) gives.

Source: statfs(2) and linux/magic.h; of those that the kernel does not ship, what their clients
report, as `stat -f` of coreutils names it. FUSE is among them because its backing is unknown: sshfs
as well as a local disk.
"""


def trusted(names: object, path: str) -> frozenset[str]:
    """Return the accepted circumstances, checked.

    Raises:
        InvalidOption: a name is not in the table.

    Example:
        >>> trusted(["other_owner"], "/srv/queue")
        frozenset({'other_owner'})
    """
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else None
    if given is None or not all(isinstance(name, str) and name in ALL for name in given):
        remedy = f"give a tuple of some of {', '.join(sorted(ALL))}"
        raise value_error("trust", names, remedy, path=path)
    return frozenset(given)


def check_directory(
    fd: int, status: os.stat_result, path: str, *, trust: frozenset[str], read_only: bool
) -> None:
    """Raise if an open directory may not be used.

    Raises:
        UnsafePath: it may not.
    """
    user = os.geteuid()
    may_read = user == ROOT and read_only
    if status.st_uid not in {user, ROOT} and not may_read and OTHER_OWNER not in trust:
        raise errors.UnsafePath(
            f"the directory belongs to {_named(status.st_uid)}, this is {_named(user)}; its owner "
            "can exchange the files at any time",
            path=path,
            trust=OTHER_OWNER,
            remedy='use a directory of your own, or accept that with trust=("other_owner",)',
        )
    open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if open_to_all and WORLD_WRITABLE not in trust:
        raise errors.UnsafePath(
            f"everybody may write to the directory (mode {stat.S_IMODE(status.st_mode):04o}) and "
            "exchange the files",
            path=path,
            trust=WORLD_WRITABLE,
            remedy="run chmod o-w on it, or set its sticky bit, or accept that with "
            'trust=("world_writable",)',
        )
    if NETWORK_FILE_SYSTEM not in trust:
        _check_file_system(fd, path)


def _check_file_system(fd: int, path: str) -> None:
    name = NETWORK_FILE_SYSTEMS.get(_core.file_system_type(fd))
    if name is not None:
        raise errors.UnsafePath(
            f"the file system is {name}: there memory, locks and wake-ups are not shared between "
            "hosts, so two of them would overwrite each other's messages",
            path=path,
            trust=NETWORK_FILE_SYSTEM,
            remedy="use a local directory, or, if only one host ever uses the queue, accept it "
            'with trust=("network_file_system",)',
        )


def is_overlay(fd: int) -> bool:
    """Return whether an open directory is on overlayfs."""
    return _core.file_system_type(fd) == OVERLAYFS


def check_file(
    status: os.stat_result,
    path: str,
    *,
    directory_owner: int,
    trust: frozenset[str],
    writable: bool,
) -> None:
    """Raise if an open file may not be used.

    Raises:
        UnsafePath: it is not a regular file, or another user owns it, or it would be written to and
            has a second hard link.
    """
    if not stat.S_ISREG(status.st_mode):
        raise errors.UnsafePath("not a regular file", path=path, remedy="put the real file there")
    owner = status.st_uid
    if owner not in {os.geteuid(), ROOT, directory_owner} and OTHER_OWNER not in trust:
        raise errors.UnsafePath(
            f"the file belongs to {_named(owner)}, neither to this user ({_named(os.geteuid())}) "
            "nor to root nor to the directory's owner",
            path=path,
            trust=OTHER_OWNER,
            remedy='put a file of your own there, or accept it with trust=("other_owner",)',
        )
    if writable and status.st_nlink > 1:
        raise errors.UnsafePath(
            f"the file has {status.st_nlink} names (hard links), so writing would change it under "
            "the other names as well, in a backup perhaps",
            path=path,
            remedy="close the queue in all processes, put a copy in its place "
            "(cp FILE FILE.copy && mv FILE.copy FILE), then open it again; for reading, hard links "
            "do not matter",
        )


def check_removable(fd: int, directory: os.stat_result, status: os.stat_result, path: str) -> None:
    """Raise if this user may not remove a file: in a sticky directory only the owners and root may.

    Raises:
        AccessDenied: it may not.
    """
    sticky = directory.st_mode & stat.S_ISVTX
    may = not sticky or os.geteuid() in {status.st_uid, directory.st_uid, ROOT}
    if not may or not os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
        denied = OSError(errno.EPERM, os.strerror(errno.EPERM))
        raise_typed(denied, path, "removing the file")


def _named(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"
