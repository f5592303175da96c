"""The loop of a campaign: until its budget is used up or enough is wrong, and once at least."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol

from stress import driver
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEAST_SECONDS = 0.5
"""For a try that begins when the budget is used up, because no case was run; then twice as much."""


def tries(budget: Budget, outcome: Outcome, violations_max: int) -> Iterator[float]:
    """Yield the seconds left for each try, as long as the next one is wanted.

    However busy the machine is and however small the budget, tries go on until one had a case.

    Args:
        budget: of all tries.
        outcome: which the caller completes after each.
        violations_max: so many end the campaign.
    """
    deadline = time.monotonic() + budget.seconds
    enough, least = driver.violations_enough(violations_max), LEAST_SECONDS
    while len(outcome.violations) < enough and (
        budget.cases is None or outcome.cases < budget.cases
    ):
        left = deadline - time.monotonic()
        if left <= 0 and outcome.cases > 0:
            break
        yield max(left, least)
        least *= 2


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
    base = driver.scratch_directory()
    outcome = Outcome(0, notes={"rounds": 0, "directory": base})
    for seconds in tries(budget, outcome, violations_max):
        left = cases_max if budget.cases is None else min(cases_max, budget.cases - outcome.cases)
        done = one_round(base, rng, time.monotonic() + seconds, left)
        outcome.cases += done.cases
        outcome.violations += [f"round {outcome.notes['rounds']}: {one}" for one in done.violations]
        outcome.notes["rounds"] += 1
        for what, count in done.counts.items():
            outcome.notes[what] = outcome.notes.get(what, 0) + count
    return outcome
