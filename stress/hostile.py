"""What a hostile neighbour plants, and checks whether a process fell for it.

Plants are made by root and given away, so that they can be what a neighbour could have made on a
system with other settings: device nodes, and hard links to files of others.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

VICTIM: Final = 54_001
STRANGER: Final = 54_002
PREFIX: Final = "mine"
NULL_DEVICE: Final = os.makedev(1, 3)
GARBAGE: Final = bytes(range(256)) * 32
PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)

NAMES: Final = (
    *(f"{PREFIX}-{meta}" for meta in ("allMeta", "writeMeta", "readMeta")),
    f"{PREFIX}.lock",
    *(f"{PREFIX}-000000000{n}.{kind}" for n in (1, 2, 3) for kind in ("page", "idx")),
    *(f"{PREFIX}-000000000{n}.page.tmp-next" for n in (1, 2)),
    f"{PREFIX}-allMeta.tmp-next",
)
KINDS: Final = (
    "link to a file",
    "dangling link",
    "link to a directory",
    "link to the stranger's",
    "hard link to the victim's",
    "hard link to the stranger's",
    "FIFO",
    "directory",
    "device",
    "socket",
    "empty file",
    "garbage",
    "own queue's file",
)


def become(uid: int) -> None:
    """Continue as this user, for good; the parent's death still ends this process."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return all that a change below a directory would show in."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_ino, status.st_size, data)
    return found


@dataclass
class Neighbourhood:
    """A shared sticky directory, what lies outside of it, and the stranger's own things.

    Attributes:
        shared: every user may make names there, and remove their own.
        outside: the victim's own, never to be touched.
        attic: the stranger's own, with a queue.
    """

    base: Path
    owner: int
    rng: random.Random
    watched: list[tuple[str, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the directories."""
        self.shared, self.outside = self.base / "shared", self.base / "outside"
        self.attic = self.base / "attic"
        for path, mode, owner in (
            (self.base, 0o755, 0),
            (self.shared, 0o1777, 0),
            (self.outside, 0o755, self.owner),
            (self.attic, 0o755, STRANGER),
        ):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
            os.chown(path, owner, owner)
        for name in ("precious", "emptied"):
            (self.outside / name).write_bytes(GARBAGE if name == "precious" else b"")
            os.chown(self.outside / name, self.owner, self.owner)
        (self.outside / "below").mkdir()
        os.chown(self.outside / "below", self.owner, self.owner)
        self.before = snapshot(self.outside)

    def plant(self, kind: str, name: str) -> None:
        """Put a stranger's object under a name, unless the name exists."""
        path = self.shared / name
        if os.path.lexists(path):
            return
        self._make(kind, path)
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        if kind == "hard link to the victim's":
            os.chown(path, self.owner, self.owner)
        elif path.is_file() and not path.is_symlink():
            path.chmod(self.rng.choice((0o600, 0o644, 0o666)))
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.watched.append((f"{kind} at {name}", fd, path.read_bytes()))

    def _make(self, kind: str, path: Path) -> None:
        if kind.startswith("link"):
            target = {
                "link to a file": self.outside / "precious",
                "dangling link": self.outside / "made-by-following",
                "link to a directory": self.outside / "below",
                "link to the stranger's": self.attic / "bait",
            }[kind]
            path.symlink_to(target)
        elif kind == "hard link to the victim's":
            path.hardlink_to(self.outside / self.rng.choice(("precious", "emptied")))
        elif kind == "hard link to the stranger's":
            bait = self.attic / f"bait-{len(self.watched)}"
            bait.write_bytes(GARBAGE)
            path.hardlink_to(bait)
        elif kind == "FIFO":
            os.mkfifo(path, 0o666)
        elif kind == "directory":
            path.mkdir()
        elif kind == "device":
            os.mknod(path, stat.S_IFCHR | 0o666, NULL_DEVICE)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made, suppress(OSError):
                made.bind(str(path))
        elif kind == "own queue's file":
            own = self.attic / "queue" / path.name
            path.write_bytes(own.read_bytes() if own.exists() else b"")
        else:
            path.write_bytes(GARBAGE if kind == "garbage" else b"")
        if not os.path.lexists(path):  # a socket's path can be too long
            os.mkfifo(path, 0o666)

    def clear(self) -> None:
        """Remove what is the stranger's, as an administrator would."""
        for path in self.shared.iterdir():
            status = path.lstat()
            hard_link = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
            if status.st_uid == STRANGER or hard_link:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def harm(self) -> list[str]:
        """Return the forbidden writes that happened."""
        after = snapshot(self.outside)
        names = sorted(self.before.keys() | after.keys())
        changed = [name for name in names if self.before.get(name) != after.get(name)]
        written = [w for w, fd, data in self.watched if os.pread(fd, len(data) + 1, 0) != data]
        return [
            *(f"written outside: {name}" for name in changed),
            *(f"the stranger's file was written to: {words}" for words in written),
        ]

    def close(self) -> None:
        """Close the descriptors of watched files."""
        while self.watched:
            os.close(self.watched.pop()[1])


def write_new(path: Path, data: bytes) -> Path:
    """Write a new file of this user; where another user's file has the name, leave that as it is.

    Some queues are world-writable: then any user may write to their files, and is no stranger.
    """
    with path.open("xb") as file:
        file.write(data)
    return path


def pester(directory: Path, attic: Path, outside: Path, rng: random.Random) -> None:
    """Plant and remove, as fast as possible and without end, as the stranger."""
    own = attic / "pest"
    own.write_bytes(GARBAGE)
    made: list[Path] = []
    acts: list[Callable[[Path], object]] = [
        lambda path: path.symlink_to(outside / "precious"),
        lambda path: path.symlink_to(outside / "made-by-following"),
        lambda path: path.hardlink_to(own),
        lambda path: os.mkfifo(path, 0o666),
        lambda path: path.mkdir(),
        lambda path: write_new(path, GARBAGE),
        lambda path: shutil.copymode(own, write_new(path, own.read_bytes())),
        lambda path: os.rename(made.pop(), path) if made else None,
    ]
    while True:
        path = directory / rng.choice(NAMES)
        if rng.random() < 0.1:
            path = directory / f"{PREFIX}-00000000{rng.randint(1, 20):02d}.page"
        with suppress(OSError):
            if os.path.lexists(path):
                if rng.random() < 0.7:
                    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            else:
                rng.choice(acts)(path)
                made.append(path)
        made = made[-20:]
