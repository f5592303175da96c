"""Removing a directory inside of one that is open, whatever has its path by now."""

from __future__ import annotations

import contextlib
import os


def remove_tree(name: str, within: int) -> None:
    """Remove a file, or a directory with all that is in it; what cannot be removed stays.

    `shutil.rmtree` has `dir_fd` only where it finds the system's own `os.open`, which eventlet
    replaces; and it opens a FIFO, which waits.

    Args:
        name: of an entry.
        within: descriptor of the directory that has it.
    """
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=within)
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        inside = os.open(name, flags, dir_fd=within)
        try:
            for entry in os.listdir(inside):
                remove_tree(entry, inside)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=within)
