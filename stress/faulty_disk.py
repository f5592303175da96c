"""The contents of a directory on disk if the power failed now: a model that follows the syncs.

It follows what Linux does with a sync that fails: the OS pages that it could not write are clean
afterwards, so the next sync leaves them out and succeeds. Only an OS page that changes again is
written by a later one. The same for the directory's entries. What was never synced is not there.

The state is kept in files, so that any number of processes can tell the same disk. Inode numbers
must not be used again soon; in a file system in memory they are not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import portalocker

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

OS_PAGE_BYTES = 4096


def _blocks(data: bytes, count: int) -> npt.NDArray[np.uint8]:
    whole = data[: count * OS_PAGE_BYTES].ljust(count * OS_PAGE_BYTES, b"\0")
    return np.frombuffer(whole, np.uint8).reshape(count, OS_PAGE_BYTES).copy()


def _boot_again(directory: str) -> None:
    """Give write metas another boot id: the power was off, so the system's memory is lost."""
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

    fields: Mapping[str, Any] = fmt.WRITE_META.fields or {}
    for path in Path(directory).glob("*-writeMeta"):
        data = bytearray(path.read_bytes())
        for name in ("lock_boot", "failed_boot"):
            dtype, at = fields[name][:2]
            if any(data[at : at + dtype.itemsize]):
                data[at : at + dtype.itemsize] = b"\xff" * dtype.itemsize
        path.write_bytes(data)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


class Disk:
    """One directory's files and entries, as they are on the disk below it.

    Args:
        directory: that is synced.
        state: the directory of the model's state; created if missing.
    """

    def __init__(self, directory: str, state: Path) -> None:
        self.directory = directory
        self.state = state
        state.mkdir(exist_ok=True)

    def start(self) -> None:
        """Take all existing files for written."""
        with os.scandir(self.directory) as entries:
            for entry in filter(os.DirEntry.is_file, entries):
                self._content(entry.path, written=True)
        self._names(written=True)

    def told(self, path: str, error: int) -> None:
        """Take note of a sync that is about to end in an error, or in 0.

        What is written while it runs may or may not be on the disk: it is taken not to be.
        """
        if error == errno.EINTR:
            return  # it was not even tried
        with self._alone(), contextlib.suppress(FileNotFoundError):
            # A name that is gone: it is not needed any more.
            if path == self.directory:
                self._names(written=error == 0)
            elif path.startswith(self.directory + os.sep) and os.path.isfile(path):
                # In a directory below as well: it can get a name here later.
                self._content(path, written=error == 0)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes out."""
        with (self.state / "lock").open("wb") as file:
            portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE)
            yield

    def _content(self, path: str, *, written: bool) -> None:
        data = Path(path).read_bytes()
        inode = os.stat(path).st_ino
        count = -(-len(data) // OS_PAGE_BYTES)
        seen_path, disk_path = self.state / f"{inode}.seen", self.state / f"{inode}.disk"
        now, seen = _blocks(data, count), _blocks(_read(seen_path), count)
        disk = _blocks(_read(disk_path), count)
        dirty = (now != seen).any(axis=1)
        if written:
            disk[dirty] = now[dirty]
        seen_path.write_bytes(data)
        disk_path.write_bytes(disk.tobytes()[: len(data)])

    def _names(self, *, written: bool) -> None:
        with os.scandir(self.directory) as entries:
            now = {entry.name: entry.inode() for entry in entries if entry.is_file()}
        seen, disk = self._entries()
        for name in {*now, *seen, *disk}:
            if now.get(name) != seen.get(name) and written:
                if name in now:
                    disk[name] = now[name]
                else:
                    disk.pop(name, None)
        (self.state / "names").write_text(json.dumps([now, disk]), encoding="utf-8")

    def _entries(self) -> tuple[dict[str, int], dict[str, int]]:
        path = self.state / "names"
        if not path.exists():
            return {}, {}
        seen, disk = json.loads(path.read_text(encoding="utf-8"))
        return seen, disk

    def copy(self, state: Path) -> None:
        """Save the model's present state, as the state of another one."""
        with self._alone():
            shutil.copytree(self.state, state, dirs_exist_ok=True)

    def cut(self, target: str, rng: random.Random, *, newer: float) -> None:
        """Make a directory of what a power cut leaves.

        Args:
            target: the new directory.
            rng: chooses which OS pages had been written without a sync.
            newer: how many of them, from 0 to 1; above 0 only while no process writes.
        """
        os.mkdir(target, 0o700)
        with self._alone():
            for name, inode in self._entries()[1].items():
                Path(target, name).write_bytes(self._left(name, inode, rng, newer))
        _boot_again(target)

    def _left(self, name: str, inode: int, rng: random.Random, newer: float) -> bytes:
        """Return the remaining contents of one file."""
        known = self.state / f"{inode}.disk"
        current = Path(self.directory, name)
        try:
            same = current.stat().st_ino == inode
            now = current.read_bytes() if same else b""
        except FileNotFoundError:
            now = b""
        length = known.stat().st_size if known.exists() else len(now)
        kept = _blocks(_read(known), -(-length // OS_PAGE_BYTES))
        if newer > 0 and now:
            for number, block in enumerate(_blocks(now, len(kept))):
                if rng.random() < newer:
                    kept[number] = block
        return kept.tobytes()[:length]
