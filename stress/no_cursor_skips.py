"""Forbids that a cursor passes a message that its consumer did not acknowledge, or loses its place.

Kills: a process dies at each Python line of acknowledging, receiving, seeking, creating and
removing a named consumer, with retention running, and of the recovery that finds a cursor ahead of
the tail (`keep_lines.py`). Power cuts: runs with named consumers and trimming are recorded and cut
as in `no_simulated_cut_loses_what_was_flushed`, and each state is opened by the library: every
cursor is where its consumer was or was going, none is ahead of the tail or below the head, what was
acknowledged durably stays so, and each consumer receives all from its place on, also what is sent
afterwards. Real cuts have named consumers in `no_real_cut_loses_what_was_flushed`.

A case is a death or a state (I11, I12).
"""

from __future__ import annotations

import dataclasses

from stress import driver, keep_lines
from stress import no_simulated_cut_loses_what_was_flushed as simulated
from stress.campaign import Budget, Outcome
from stress.keep_scenarios import CURSORS

SHORT_SECONDS = 4.0
LINES_SHARE = 0.5
"""Of the budget, for deaths; the rest is for power cuts."""
WORKER = "stress.cut.keeping"


def campaign(budget: Budget) -> Outcome:
    """Have victims die at lines; in a process that has no queue open."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    return keep_lines.run(budget, CURSORS)


def run(budget: Budget) -> Outcome:
    """Run the deaths on the installed core, and the cuts on one with kill points."""
    share = budget.cases and -(-budget.cases // 2)
    deaths = dataclasses.replace(budget, seconds=budget.seconds * LINES_SHARE, cases=share)
    cuts = dataclasses.replace(deaths, seconds=budget.seconds - deaths.seconds)
    outcome = driver.run_apart(__name__, deaths)
    cut = simulated.campaign(cuts, WORKER)
    notes = {"deaths": {"cases": outcome.cases, **outcome.notes}, "cuts": cut.notes}
    violations = outcome.violations + cut.violations
    together = Outcome(outcome.cases + cut.cases, violations, notes, outcome.untried)
    together.require(budget, {"cuts": cut.cases})
    return together
