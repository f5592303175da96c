"""The executed lines of the library, in all threads of a process: where victims die.

Every module of the package counts, in any sub-package: it is recognised by where the file of its
code is, and no list names it. So a module that is split, renamed or moved stays traced. A place is
a module's name below the package and a line number, as `roll:97`.

A process that dies leaves the files as they are: to all others, two lines between which no byte of
them changes are one death. Lines that are reached with files that have just changed are few, and
half of the deaths are there until each of them had its turn.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from types import FrameType

S = TypeVar("S")
IMPORTING: Final = "<module>"
"""Code of this name runs once, when a module is imported, and touches no queue."""
CHANGED: Final = "!"
"""Follows a place that was reached with other files than the place before."""
READ_BYTES_MAX: Final = 1 << 20
FREE_SECONDS, LOOKS_SHARE = 0.3, 0.5
"""So much processor time, and that share of all of it, may be used for looking at the files; then
some lines are passed over, and a later one is marked."""


@functools.cache
def root() -> Path:
    """Return the directory of the package."""
    import pagequeue  # noqa: PLC0415  the core is chosen by now

    return Path(pagequeue.__file__).resolve().parent


@functools.cache
def module_of(file: str) -> str | None:
    """Return the module that a file holds, named below the package; None: of another package."""
    path = Path(file).resolve()
    if not path.is_relative_to(root()):
        return None
    return ".".join(path.relative_to(root()).with_suffix("").parts)


def trace(at_line: Callable[[str, int], None]) -> Callable[[], None]:
    """Call a function at each executed line of the library, from now on.

    Args:
        at_line: takes module and line number.

    Returns:
        a function that ends this.
    """

    @functools.cache
    def tracer_of(file: str) -> Any:  # noqa: ANN401
        module = module_of(file)
        if module is None:
            return None

        def line(frame: FrameType, event: str, _value: object) -> Any:  # noqa: ANN401
            if event == "line":
                at_line(module, frame.f_lineno)
            return line

        return line

    def call(frame: FrameType, _event: str, _value: object) -> Any:  # noqa: ANN401
        code = frame.f_code
        return None if code.co_name == IMPORTING else tracer_of(code.co_filename)

    def end() -> None:
        sys.settrace(None)
        threading.settrace(None)

    threading.settrace(call)
    sys.settrace(call)
    return end


class Ways:
    """The ways by which lines of the library are reached: the lines that are executed at once.

    A way is the places of these lines, the innermost first; each way has a number, from 1 on.

    Args:
        at_way: called at each executed line of the library with the number of its way, and with
            that of the calling line when a function returns.
    """

    def __init__(self, at_way: Callable[[int], object]) -> None:
        self._at_way = at_way
        self._numbers: dict[tuple[int, str, int], int] = {}
        self._now = threading.local()
        threading.settrace(self._call)
        sys.settrace(self._call)

    def end(self) -> None:
        """Trace no longer."""
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, _event: str, _value: object) -> Any:  # noqa: ANN401
        code = frame.f_code
        module = None if code.co_name == IMPORTING else module_of(code.co_filename)
        if module is None:
            return None
        above = getattr(self._now, "way", 0)

        def line(frame: FrameType, event: str, _value: object) -> Any:  # noqa: ANN401
            way = above
            if event != "return":
                key = (above, module, frame.f_lineno)
                way = self._numbers.setdefault(key, len(self._numbers) + 1)
            self._now.way = way
            self._at_way(way)
            return line

        return line

    def all(self) -> list[tuple[str, ...]]:
        """Return the way of each number; the one of 0, an unknown one, is empty."""
        found: list[tuple[str, ...]] = [()]
        for above, module, number in self._numbers:
            found.append((f"{module}:{number}", *found[above]))
        return found


class At(NamedTuple):
    """A place, and which of a victim's visits to it is meant, from 1."""

    place: str
    at_pass: int

    def __str__(self) -> str:
        return f"{self.place}, pass {self.at_pass}"


class Files:
    """All bytes and names below a directory, compared with those of the look before.

    They are read by descriptors that stay open: a file's time does not tell that its map changed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        self._spent = 0.0
        self._open: dict[tuple[str, int], int] = {}
        self._known: dict[tuple[str, int], bytes] = {}
        self._lock = threading.Lock()

    def have_changed(self) -> bool:
        """Whether any byte or name is another one now; True at the first look that finds a file.

        False, too, if looking takes too large a share of the time.
        """
        with self._lock:
            began = time.process_time()
            if self._spent > FREE_SECONDS + LOOKS_SHARE * began:
                return False
            now = {key: self._read(key) for key in self._found(self._directory)}
            changed = now != self._known
            for key in self._known.keys() - now.keys():
                os.close(self._open.pop(key))
            self._known = now
            self._spent += time.process_time() - began
            return changed

    def _found(self, directory: str) -> Iterator[tuple[str, int]]:
        try:
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self._found(entry.path)
            elif entry.is_file(follow_symlinks=False) and self._has(entry.path, entry.inode()):
                yield entry.path, entry.inode()

    def _has(self, path: str, inode: int) -> bool:
        if (path, inode) not in self._open:
            try:
                self._open[path, inode] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # another thread removed it
                return False
        return True

    def _read(self, key: tuple[str, int]) -> bytes:
        return os.pread(self._open[key], READ_BYTES_MAX, 0)

    def close(self) -> None:
        """Close all."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        self._known.clear()


class Victim:
    """Traces the lines of this process from now on, and dies at one of them.

    Args:
        at: where to die; None: live, and write down all places.
        notes: the file for them; the place of a death is appended to it.
        directory: of the queue, to mark the places at which its files have changed.
    """

    def __init__(
        self, at: At | None, notes: Path, directory: str | os.PathLike[str] | None = None
    ) -> None:
        self._notes = notes
        self._files = None if at or directory is None else Files(directory)
        self._passes_left = at.at_pass if at else 0
        module, _, number = at.place.partition(":") if at else ("", "", "0")
        self._module, self._number = module, int(number)
        self._places: list[str] = []
        self._lives = at is None
        self._end = trace(self._note if at is None else self._look)

    def _note(self, module: str, number: int) -> None:
        changed = self._files is not None and self._files.have_changed()
        self._places.append(f"{module}:{number}{CHANGED * changed}")

    def _look(self, module: str, number: int) -> None:
        if number == self._number and module == self._module:
            self._passes_left -= 1
            if self._passes_left == 0:
                with self._notes.open("a", encoding="ascii") as file:
                    file.write(f"{module}:{number}\n")
                os.kill(os.getpid(), signal.SIGKILL)

    def end(self) -> None:
        """Live on; write down the places if no death was planned."""
        self._end()
        if self._files is not None:
            self._files.close()
        if self._lives:
            self._notes.write_text("".join(f"{place}\n" for place in self._places), "ascii")


def noted(notes: Path) -> list[str]:
    """Return the places that victims wrote down, with their marks."""
    return notes.read_text(encoding="ascii").split() if notes.exists() else []


class Deaths(Generic[S]):
    """What there is to die at in some scenarios, and where victims have died."""

    def __init__(self) -> None:
        self._steps: dict[S, list[At]] = {}
        self._changed: set[tuple[S, At]] = set()
        self._counts: Counter[str] = Counter()

    def add(self, scenario: S, notes: Path) -> None:
        """Add the places that a scenario reaches if no victim dies.

        Raises:
            AssertionError: no place was recorded: no code of the library is traced.
        """
        places = noted(notes)
        assert places, f"{scenario}: no line of the library was executed"
        passes: Counter[str] = Counter()
        steps = self._steps[scenario] = []
        for noted_place in places:
            place = noted_place.removesuffix(CHANGED)
            passes[place] += 1
            steps.append(At(place, passes[place]))
            if place != noted_place:
                self._changed.add((scenario, steps[-1]))
        self._counts.update(dict.fromkeys(passes, 0))

    def ordered(self, rng: random.Random) -> list[tuple[S, At]]:
        """Return all steps in a random order in which each place comes before any comes again.

        Every other one is a step at which files had changed, while there are any left.

        Raises:
            AssertionError: no scenario was added.
        """
        steps = [(scenario, at) for scenario, found in self._steps.items() for at in found]
        assert steps, "no line of the library was executed"
        changed = self._in_turns([step for step in steps if step in self._changed], rng)
        others = self._in_turns([step for step in steps if step not in self._changed], rng)
        pairs = zip_longest(changed, others)
        return [step for pair in pairs for step in pair if step is not None]

    @staticmethod
    def _in_turns(steps: list[tuple[S, At]], rng: random.Random) -> list[tuple[S, At]]:
        rng.shuffle(steps)
        turns: Counter[str] = Counter()
        ranked = []
        for scenario, at in steps:
            ranked.append((turns[at.place], scenario, at))
            turns[at.place] += 1
        rng.shuffle(ranked)  # else places that are executed often would come first
        ranked.sort(key=lambda step: step[0])
        return [(scenario, at) for _, scenario, at in ranked]

    def another(self, scenario: S, rng: random.Random) -> At:
        """Return some step of a scenario."""
        return rng.choice(self._steps[scenario])

    def died(self, notes: Path) -> None:
        """Count the deaths of one scene."""
        self._counts.update(noted(notes))

    def notes(self) -> dict[str, Any]:
        """Return what is worth printing: how many places there are, and deaths at them."""
        modules = Counter(place.partition(":")[0] for place in self._counts)
        untried = Counter(place.partition(":")[0] for place, n in self._counts.items() if n == 0)
        return {
            "executed lines": sum(map(len, self._steps.values())),
            "of them with files that had just changed": len(self._changed),
            "places": len(self._counts),
            "places by module": dict(sorted(modules.items())),
            "places without a death": dict(sorted(untried.items())),
            "deaths at lines": self._counts.total(),
        }
