"""Forbids that damage crashes, hangs, lies, loses more than it must, or is mended silently.

Every damage of `corpus/` is done to copies of good queues of several shapes, and each copy is
looked at from one face: opening, opening after a power cut, read-only opening, reading through,
verify, repair with salvage behind it, salvage. What each must do stands beside the damage and is
printed in `CORPUS.md`. A case is one damage and one face. The whole corpus runs on one shape at
least, whatever the budget; more shapes, and other seeds, for as long as it lasts.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress import driver
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stress.corpus.shapes import Original

SHORT_SECONDS = 30.0
VIOLATIONS_MAX = 20
Queues = tuple[str, "Original", "Original", int]


def shaped(base: Path, seed: int) -> Iterator[Queues]:
    """Yield queues of all shapes, for ever: name, the queue, another one, the seed of both.

    The first has many pages, so that every damage makes sense in it.
    """
    from stress.corpus.shapes import OTHER_START_NS, SHAPES, make  # noqa: PLC0415 - the core first

    rng = random.Random(seed)
    shapes = list(SHAPES)
    many = [shape for shape in shapes if shape.pages >= 3]
    first = rng.choice(many)
    shapes.remove(first)
    rng.shuffle(shapes)
    turn = 0
    while True:
        for shape in [first, *shapes]:
            turn += 1
            own = rng.getrandbits(32)
            good = make(shape, own, base / f"good-{turn}")
            other = make(shape, own + 1, base / f"other-{turn}", OTHER_START_NS)
            yield shape.name, good, other, own


def campaign(budget: Budget) -> Outcome:
    """Run the corpus; in a process that has no queue open."""
    from stress.corpus import DAMAGES  # noqa: PLC0415 - the core is chosen by now
    from stress.corpus.case import look_at, makes_sense  # noqa: PLC0415
    from stress.corpus.open_points import OPEN_POINTS  # noqa: PLC0415

    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0)
    open_points: set[tuple[str, str]] = set()
    whole_runs = 0
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-corpus-", dir=driver.scratch_directory()
    ) as base:
        for name, original, other, seed in shaped(Path(base), budget.seed):
            sensible = [damage for damage in DAMAGES.values() if makes_sense(damage, original)]
            for damage in sensible:
                enough = budget.cases is not None and outcome.cases >= budget.cases
                late = whole_runs > 0 and time.monotonic() > deadline
                if enough or late or len(outcome.violations) >= VIOLATIONS_MAX:
                    break
                found = look_at(damage, original, other, Path(base, "case"), seed)
                outcome.cases += len(found)
                for face, wrong in found.items():
                    if wrong and (damage.name, face) in OPEN_POINTS:
                        open_points.add((damage.name, face))
                        continue
                    where = f"{name}, seed {seed}: {damage.name}: {face}"
                    outcome.violations += [f"{where}: {text}" for text in wrong]
            else:
                whole_runs += 1
                continue
            break
    outcome.notes["damages"] = len(DAMAGES)
    outcome.notes["whole runs of the corpus"] = whole_runs
    outcome.notes["open points met"] = sorted(": ".join(point) for point in open_points)
    if not whole_runs and budget.cases is None:
        outcome.violations.append("the corpus was not run through even once")
    return outcome


def run_with(budget: Budget, defines: Mapping[str, str]) -> Outcome:
    """Run the campaign on a core that was built with these defines."""
    return driver.run_apart(__name__, budget, defines)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it was installed."""
    return driver.run_apart(__name__, budget)
