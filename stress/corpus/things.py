"""File system objects that can replace a regular file."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stress.corpus.victim import Victim

NULL_DEVICE = os.makedev(1, 3)


def fifo(path: Path) -> None:
    """Make a pipe with a name."""
    os.mkfifo(path, 0o600)


def device(path: Path) -> None:
    """Make the null device; where that is not permitted, a socket, which fails to open as well."""
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, NULL_DEVICE)
    except PermissionError:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))


def directory(path: Path) -> None:
    """Make a directory."""
    path.mkdir(mode=0o700)


def dangling(path: Path) -> None:
    """Make a symbolic link to a path that does not exist."""
    path.symlink_to(path.parent.parent / "outside" / "nothing")


THINGS: dict[str, Callable[[Path], None]] = {
    "pipe": fifo,
    "device": device,
    "directory": directory,
    "dangling link": dangling,
}


def replaced(victim: Victim, name: str, thing: str) -> None:
    """Put an object in the place of a file."""
    if victim.path(name).exists():
        victim.remove(name)
    THINGS[thing](victim.path(name))


def linked(victim: Victim, name: str, *, hard: bool) -> None:
    """Move a file out and link to it."""
    if hard:
        os.link(victim.move_out(name), victim.path(name))
        return
    victim.path(name).symlink_to(victim.move_out(name).rename(victim.outside / name))
