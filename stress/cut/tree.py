"""A recorder and a cutter for a directory with others below it, of one process, in Python.

It sees the tree before and after each call that syncs or names something, and where its user asks;
so it knows fewer versions of an OS page than the recorder in C, which sees each executed line, but
directories in directories, as a journal has them. What a cut can leave is as in `README.md`: each
OS page, size and name independently as it was at any time since the sync that covers it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

OS_PAGE_BYTES: Final = 4096
SYNCS: Final = ("fsync", "fdatasync")
CHANGES: Final = ("rename", "replace", "unlink", "rmdir", "mkdir")

History = list[tuple[int, Any]]
"""When something changed, in events since the beginning, and what it was from then on."""


class Tree:
    """What happened to a directory and all below it, while `recording`.

    Attributes:
        now: events so far; a cut is at one of these.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.RLock()
        self._held: dict[int, int] = {}
        self._pages: dict[int, dict[int, History]] = {}
        self._sizes: dict[int, History] = {}
        self._names: dict[int, dict[str, History]] = {}
        self._covered: dict[int, list[tuple[int, int]]] = {}
        self.now = 0
        self._top = self._known(str(root))

    # --- recording --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record; the tree as it is then is durable."""
        from pagequeue.meta.write_meta import WriteMeta  # noqa: PLC0415  the core is chosen by now
        from pagequeue.system.directory import Directory  # noqa: PLC0415

        in_core = [(WriteMeta, "sync", WriteMeta.sync), (Directory, "make", Directory.make)]
        genuine = {name: getattr(os, name) for name in (*SYNCS, *CHANGES)}
        self.observe()
        for number in (*self._sizes, *self._names):
            self._covered[number] = [(self.now, self.now)]
        try:
            for name in SYNCS:
                setattr(os, name, functools.partial(self._sync, genuine[name]))
            for name in CHANGES:
                setattr(os, name, functools.partial(self._change, genuine[name]))
            in_place: Any = (WriteMeta, Directory)
            in_place[0].sync = self._meta_sync(WriteMeta.sync)
            in_place[1].make = self._maker(Directory.make)
            yield
            self.observe()
        finally:
            for owner, name, method in in_core:
                setattr(owner, name, method)
            for name, function in genuine.items():
                setattr(os, name, function)
            for fd in self._held.values():
                os.close(fd)

    def _sync(self, genuine: Callable[[int], None], fd: int) -> None:
        with self._lock:
            self.observe()
            begun = self.now
        genuine(fd)
        self._cover(os.fstat(fd).st_ino, begun)

    def _meta_sync(self, genuine: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return what also sees a sync that the core does, of the write meta."""

        def sync(meta: Any) -> None:  # noqa: ANN401 - a WriteMeta
            with self._lock:
                self.observe()
                begun = self.now
            genuine(meta)
            self._cover(os.stat(meta.path).st_ino, begun)

        return sync

    def _maker(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        """Return what also sees a file that the core makes and syncs before it has its name."""

        def make(folder: Any, name: str, *args: Any, synced: bool = False, **options: Any) -> Any:  # noqa: ANN401
            before = self.now
            found = genuine(folder, name, *args, synced=synced, **options)
            with self._lock:
                self.observe()
                if synced:  # before it had its name: wherever that is, all of it is
                    number = os.stat(folder.full(name)).st_ino
                    self._covered.setdefault(number, []).append((before, self.now))
            return found

        return make

    def _cover(self, number: int, begun: int) -> None:
        """Note that a sync covers all changes of a file before an event."""
        with self._lock:
            self.now += 1
            self._covered.setdefault(number, []).append((self.now, begun))

    def _change(self, genuine: Callable[..., Any], *args: Any, **options: Any) -> Any:  # noqa: ANN401
        self.observe()
        try:
            return genuine(*args, **options)
        finally:
            self.observe()

    def observe(self) -> None:
        """See what has changed."""
        with self._lock:
            self._observe(str(self._root), self._top)

    def _known(self, path: str) -> int:
        """Return the number of a file, kept open so that no other one gets it."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        number = os.fstat(fd).st_ino
        if number in self._held:
            os.close(fd)  # of this process's own locks none is of the kind that this releases
        else:
            self._held[number] = fd
        return number

    def _note(self, history: History, value: Any) -> None:  # noqa: ANN401 - whatever changed
        if not history or history[-1][1] != value:
            self.now += 1
            history.append((self.now, value))

    def _observe(self, path: str, number: int) -> None:
        names = self._names.setdefault(number, {})
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another thread removed it
                    below = entry.inode()
                    if below not in self._held:
                        below = self._known(entry.path)
                    found[entry.name] = below
                    if stat.S_ISDIR(os.fstat(self._held[below]).st_mode):
                        self._observe(entry.path, below)
                    else:
                        self._read(below)
        for name in {*names, *found}:
            history = names.setdefault(name, [])
            if history or name in found:
                self._note(history, found.get(name))

    def _read(self, number: int) -> None:
        fd = self._held[number]
        size = os.fstat(fd).st_size
        data = os.pread(fd, size, 0)
        self._note(self._sizes.setdefault(number, []), size)
        pages = self._pages.setdefault(number, {})
        for place in range(0, size, OS_PAGE_BYTES):
            self._note(pages.setdefault(place, []), data[place : place + OS_PAGE_BYTES])

    # --- cutting ----------------------------------------------------------------------------------

    def cut(self, target: Path, moments: Callable[[str], int], rng: random.Random) -> None:
        """Write a state that a cut can leave.

        Args:
            target: of the state; must not exist.
            moments: returns the event before which a directory's power is cut, by its path below
                the root.
            rng: chooses the versions.
        """
        newest = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        self._write(str(target), "", self._top, moments, functools.partial(_chosen, rng, newest))

    def _write(
        self,
        target: str,
        below: str,
        number: int,
        moments: Callable[[str], int],
        choose: Callable[[History, int, int], Any],
    ) -> None:
        os.mkdir(target, 0o700)
        moment = moments(below)
        covered = self._covered_at(number, moment)
        for name, history in sorted(self._names.get(number, {}).items()):
            inner = choose(history, covered, moment)
            if inner is None:
                continue
            path = os.path.join(target, name)
            if inner in self._names:
                self._write(path, os.path.join(below, name), inner, moments, choose)
            else:
                self._write_file(path, inner, moment, choose)

    def _write_file(
        self, path: str, number: int, moment: int, choose: Callable[[History, int, int], Any]
    ) -> None:
        covered = self._covered_at(number, moment)
        size = choose(self._sizes.get(number, []), covered, moment) or 0
        data = bytearray(size)
        for place, history in self._pages.get(number, {}).items():
            page = choose(history, covered, moment)
            if page is not None and place < size:
                data[place : place + len(page)] = page
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data[:size])

    def _covered_at(self, number: int, moment: int) -> int:
        """Return the event before which all changes were on stable storage at a time."""
        done = [begun for ended, begun in self._covered.get(number, []) if ended <= moment]
        return max(done, default=0)


def _chosen(rng: random.Random, newest: float, history: History, covered: int, moment: int) -> Any:  # noqa: ANN401 - a page, a size or a file
    """Return what something can be after a cut; None: it is not there, or zeros."""
    first = bisect_right(history, covered, key=_when) - 1
    last = max(first, bisect_right(history, moment, key=_when) - 1)
    place = last if rng.random() < newest else rng.randint(first, last)
    return None if place < 0 else history[place][1]


def _when(change: tuple[int, Any]) -> int:
    return change[0]
