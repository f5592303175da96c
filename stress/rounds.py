"""The loop of a campaign that goes in rounds, until its budget is used up or enough is wrong."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol

from stress import driver
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable


class Round(Protocol):
    """A round that has ended.

    Attributes:
        violations: one sentence for each.
        counts: what it did, by name; the campaign's notes have the sums.
    """

    violations: list[str]
    counts: dict[str, int]

    @property
    def cases(self) -> int:
        """How many it tried."""


def in_rounds(
    budget: Budget,
    one_round: Callable[[str, random.Random, float, int], Round],
    *,
    cases_max: int,
    violations_max: int,
) -> Outcome:
    """Run rounds in a process that has no queue open.

    Args:
        budget: of all rounds.
        one_round: runs one, by the directory for its own one, its randomness, the deadline by the
            monotonic clock and the most cases.
        cases_max: of one round.
        violations_max: so many end the campaign.
    """
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    violations_max = driver.violations_enough(violations_max)
    base = driver.scratch_directory()
    outcome = Outcome(0, notes={"rounds": 0, "directory": base})
    while time.monotonic() < deadline and len(outcome.violations) < violations_max:
        left = cases_max if budget.cases is None else min(cases_max, budget.cases - outcome.cases)
        if left <= 0:
            break
        done = one_round(base, rng, deadline, left)
        outcome.cases += done.cases
        outcome.violations += [f"round {outcome.notes['rounds']}: {one}" for one in done.violations]
        outcome.notes["rounds"] += 1
        for what, count in done.counts.items():
            outcome.notes[what] = outcome.notes.get(what, 0) + count
    return outcome
