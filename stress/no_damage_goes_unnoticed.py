"""Forbids that damage crashes, hangs, lies, loses more than it must, or is repaired silently.

Every damage of `corpus/` is done to copies of good queues of several shapes, and each copy is used
through one interface: opening, opening after a power cut, read-only opening, reading through,
verify, repair followed by salvage, salvage. The required outcomes are part of each damage, and
printed in `CORPUS.md`. A case is one damage and one interface. The whole corpus runs once at least,
whatever the budget: damages of large messages on one shape, the others on another; and on more
shapes, with other seeds, for as long as it lasts.
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

SHORT_SECONDS = 75.0
"""One run of all damages, which takes this long on two cores that others use as well."""
GRACE_SECONDS = 600.0
"""It comes to its end also where others use most of the cores."""
VIOLATIONS_MAX = 8
Queues = tuple[str, "Original", "Original", int]


def shaped(base: Path, seed: int) -> Iterator[Queues]:
    """Yield queues of all shapes, without end: name, the queue, another one, the seed of both.

    The first has large messages: few damages are theirs. The second has many pages, so that each of
    the others makes sense in it.
    """
    from stress.corpus.shapes import OTHER_START_NS, SHAPES, make  # noqa: PLC0415 - the core first

    rng = random.Random(seed)
    shapes = list(SHAPES)
    rng.shuffle(shapes)
    large = next(shape for shape in shapes if shape.large)
    many = next(shape for shape in shapes if shape.pages >= 3 and not shape.large)
    order = [large, many, *(shape for shape in shapes if shape not in {large, many})]
    turn = 0
    while True:
        for shape in order:
            turn += 1
            own = rng.getrandbits(32)
            good = make(shape, own, base / f"good-{turn}")
            other = make(shape, own + 1, base / f"other-{turn}", OTHER_START_NS)
            yield shape.name, good, other, own


class Run:
    """One run of the campaign."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.deadline = time.monotonic() + budget.seconds
        self.outcome = Outcome(0)
        self.whole_runs = 0

    def is_over(self) -> bool:
        """Whether enough was run, or a violation was found."""
        outcome, cases = self.outcome, self.budget.cases
        if len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX) or (
            cases and outcome.cases >= cases
        ):
            return True
        return self.whole_runs > 0 and time.monotonic() > self.deadline

    def note(self, where: str, name: str, found: dict[str, list[str]]) -> None:
        """Count the interfaces of one damage."""
        self.outcome.cases += len(found)
        for interface, wrong in found.items():
            self.outcome.violations += [f"{where}: {name}: {interface}: {text}" for text in wrong]

    def corpus(self, queues: Queues, case: Path) -> bool:
        """Run the whole corpus on one shape; return whether it came to its end."""
        from stress.corpus import DAMAGES, LIVE  # noqa: PLC0415 - the core is chosen by now
        from stress.corpus.case import makes_sense, run_damage  # noqa: PLC0415
        from stress.corpus.live import PAGES_MIN, run_live  # noqa: PLC0415

        name, original, other, seed = queues
        where = f"{name}, seed {seed}"
        for damage in DAMAGES.values():
            if self.is_over():
                return False
            if makes_sense(damage, original):
                self.note(where, damage.name, run_damage(damage, original, other, case, seed))
        is_live = len(original.ends) >= PAGES_MIN and not original.shape.large
        for live in LIVE.values() if is_live else ():
            if self.is_over():
                return False
            self.note(where, live.name, run_live(live, original, other, case, seed))
        return True

    def run(self, base: Path) -> Outcome:
        """Run on one shape after the other."""
        from stress.corpus import DAMAGES, LIVE  # noqa: PLC0415 - the core is chosen by now

        for queues in shaped(base, self.budget.seed):
            if not self.corpus(queues, base / "case"):
                break
            self.whole_runs += not queues[1].shape.large
        notes = self.outcome.notes
        notes["damages"] = len(DAMAGES) + len(LIVE)
        notes["whole runs of the corpus"] = self.whole_runs
        return self.outcome


def campaign(budget: Budget) -> Outcome:
    """Run the corpus; in a process that has no queue open."""
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-corpus-", dir=driver.scratch_directory()
    ) as base:
        return Run(budget).run(Path(base))


def run_with(budget: Budget, defines: Mapping[str, str]) -> Outcome:
    """Run the campaign on a core that was built with these defines."""
    return driver.run_apart(__name__, budget, defines, grace_seconds=GRACE_SECONDS)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it was installed."""
    return driver.run_apart(__name__, budget, grace_seconds=GRACE_SECONDS)
