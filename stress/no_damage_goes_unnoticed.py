"""Forbids that damage crashes, hangs, lies, loses more than it must, or is repaired silently.

Every damage of `corpus/` is done to copies of good queues of several shapes, and each copy is used
through one interface: opening, opening after a power cut, read-only opening, reading through,
verify, repair followed by salvage, salvage. The required outcomes are part of each damage, and
printed in `CORPUS.md`. A case is one damage and one interface. The whole corpus runs once at least,
whatever the budget: damages of large messages on one shape, the others on another; and on more
shapes, with other seeds, for as long as it lasts. A short run takes damages in an order of the
seed, each with one interface, or with all that only read, until its time is up.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress import driver
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stress.corpus.damage import Damage
    from stress.corpus.live import LiveDamage
    from stress.corpus.shapes import Original

SHORT_SECONDS = 6.0
GRACE_SECONDS = 600.0
"""It comes to its end also where others use most of the cores."""
VIOLATIONS_MAX = 8
SHORT_SHARES = {"large": 0.2, "others": 0.6, "live": 0.2}
"""Of a short run's time: damages of large messages, others, and of files that are in use."""
Queues = tuple[str, "Original", "Original", int]
Damaged = tuple[str, "Callable[[], dict[str, list[str]]]"]
"""A damage's name, and what does it and returns the disagreements of each interface."""


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
        self.rng = random.Random(budget.seed)
        self.deadline = time.monotonic() + budget.seconds
        self.outcome = Outcome(0)
        self.whole_runs = 0
        self.tried = dict.fromkeys(SHORT_SHARES, 0)

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
        name, _, _, seed = queues
        damages, live = self.damaged(queues, case)
        for damage, found in (*damages, *live):
            if self.is_over():
                return False
            self.note(f"{name}, seed {seed}", damage, found())
        return True

    def part(self, queues: Queues, case: Path) -> None:
        """Run what a short run has time for on one shape, in an order of the seed."""
        name, _, _, seed = queues
        for damaged, is_live in zip(self.damaged(queues, case), (False, True), strict=True):
            kind = "live" if is_live else "large" if queues[1].shape.large else "others"
            ends = time.monotonic() + self.budget.seconds * SHORT_SHARES[kind]
            for damage, found in self.rng.sample(damaged, len(damaged)):
                if self.tried[kind] and (self.is_over() or time.monotonic() > ends):
                    break
                self.tried[kind] += 1
                self.note(f"{name}, seed {seed}", damage, found())

    def damaged(self, queues: Queues, case: Path) -> tuple[list[Damaged], list[Damaged]]:
        """Return the damages that make sense on one shape: to files, and while they are in use."""
        from stress.corpus import DAMAGES, LIVE  # noqa: PLC0415 - the core is chosen by now
        from stress.corpus.case import makes_sense, run_damage  # noqa: PLC0415
        from stress.corpus.interfaces import WRITES_NOTHING  # noqa: PLC0415
        from stress.corpus.live import PAGES_MIN, run_live  # noqa: PLC0415

        _, original, other, seed = queues

        def of(damage: Damage) -> Callable[[], dict[str, list[str]]]:
            one = self.rng.choice(list(damage.outcomes))
            wanted = WRITES_NOTHING if one in WRITES_NOTHING else {one}
            some = wanted if self.budget.short else None
            return lambda: run_damage(damage, original, other, case, seed, some)

        def while_used(live: LiveDamage) -> Callable[[], dict[str, list[str]]]:
            return lambda: run_live(live, original, other, case, seed)

        is_live = len(original.ends) >= PAGES_MIN and not original.shape.large
        damages = [one for one in DAMAGES.values() if makes_sense(one, original)]
        lives = list(LIVE.values()) if is_live else []
        return (
            [(one.name, of(one)) for one in damages],
            [(one.name, while_used(one)) for one in lives],
        )

    def run(self, base: Path) -> Outcome:
        """Run on one shape after the other."""
        from stress.corpus import DAMAGES, LIVE  # noqa: PLC0415 - the core is chosen by now

        shapes, notes = shaped(base, self.budget.seed), self.outcome.notes
        if self.budget.short:
            for queues in itertools.islice(shapes, 2):
                self.part(queues, base / "case")
            notes |= self.tried
            self.outcome.require(self.budget, self.tried)
            return self.outcome
        for queues in shapes:
            if not self.corpus(queues, base / "case"):
                break
            self.whole_runs += not queues[1].shape.large
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
