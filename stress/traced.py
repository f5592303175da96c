"""The executed lines of the library, in all threads of a process: where victims die.

Every module of the package counts, in any sub-package: it is recognised by where the file of its
code is, and no list names it. So a module that is split, renamed or moved stays traced. A place is
a module's name below the package and a line number, as `roll:97`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from types import FrameType

S = TypeVar("S")
IMPORTING: Final = "<module>"
"""Code of this name runs once, when a module is imported, and touches no queue."""


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


class At(NamedTuple):
    """A place, and which of a victim's visits to it is meant, from 1."""

    place: str
    at_pass: int

    def __str__(self) -> str:
        return f"{self.place}, pass {self.at_pass}"


class Victim:
    """Traces the lines of this process from now on, and dies at one of them.

    Args:
        at: where to die; None: live, and write down all places.
        notes: the file for them; the place of a death is appended to it.
    """

    def __init__(self, at: At | None, notes: Path) -> None:
        self._notes = notes
        self._passes_left = at.at_pass if at else 0
        module, _, number = at.place.partition(":") if at else ("", "", "0")
        self._module, self._number = module, int(number)
        self._places: list[str] = []
        self._lives = at is None
        self._end = trace(self._note if at is None else self._look)

    def _note(self, module: str, number: int) -> None:
        self._places.append(f"{module}:{number}")

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
        if self._lives:
            self._notes.write_text("".join(f"{place}\n" for place in self._places), "ascii")


def noted(notes: Path) -> list[str]:
    """Return the places that victims wrote down."""
    return notes.read_text(encoding="ascii").split() if notes.exists() else []


class Deaths(Generic[S]):
    """What there is to die at in some scenarios, and where victims have died."""

    def __init__(self) -> None:
        self._steps: dict[S, list[At]] = {}
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
        for place in places:
            passes[place] += 1
            steps.append(At(place, passes[place]))
        self._counts.update(dict.fromkeys(places, 0))

    def ordered(self, rng: random.Random) -> list[tuple[S, At]]:
        """Return all steps in a random order in which each place comes before any comes again.

        Raises:
            AssertionError: no scenario was added.
        """
        steps = [(scenario, at) for scenario, found in self._steps.items() for at in found]
        assert steps, "no line of the library was executed"
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
            "places": len(self._counts),
            "places by module": dict(sorted(modules.items())),
            "places without a death": dict(sorted(untried.items())),
            "deaths at lines": self._counts.total(),
        }
