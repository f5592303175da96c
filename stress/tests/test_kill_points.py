"""Dying at each step, in short: every point of the core once, and a sample of the Python lines."""

from __future__ import annotations

import pytest

from stress import no_kill_loses_or_tears, variant
from stress import no_step_is_deadly as campaign
from stress.campaign import Budget
from stress.plants.registry import PLANTS

POINTS = len(campaign.POINTS) * 6 + len(campaign.LEAP_POINTS) * len(campaign.LEAPS)
"""Each with six kinds of traffic, and those of publishing pages with each kind of that."""


@pytest.mark.nightly
def test_dying_at_any_step_harms_nobody_else() -> None:
    """I2, I3, I4, I8, I10: publish, roll, rotate, create, open and recover, killed step by step."""
    cases = 3 * POINTS
    outcome = campaign.run(Budget(120.0, cases, 20))
    assert outcome.violations == []
    assert outcome.cases >= cases, "slow: not even all points were tried"
    assert len(outcome.notes["points"]) == POINTS
    assert {f"rows {point}" for point in campaign.POINTS} <= set(outcome.notes["points"])
    assert outcome.notes["lines"]["tried"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["no_zero_next", "length_first", "batch_first_length_first"])
def test_a_planted_bug_is_found(bug: str) -> None:
    """I2, I4, I8: the campaign sees what it is there to see; `stress.score` plants all."""
    outcome = campaign.run_with(Budget(120.0, 15 * POINTS, 1), variant.planted(bug))
    assert outcome.violations
    assert outcome.cases > 0


@pytest.mark.nightly
def test_half_of_an_array_is_found() -> None:
    """I8: the campaign catches a death in the middle of rows, if their first length came first."""
    plant = next(plant for plant in PLANTS if plant.name == "rows_first_length_first")
    assert plant.changes is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variant.CHANGES_VARIABLE, plant.changes.as_text())
        outcome = campaign.run(Budget(120.0, 15 * POINTS, 1))
    assert outcome.violations
    assert outcome.cases > 0


@pytest.mark.nightly
def test_random_kills_lose_nothing() -> None:
    """I1 to I4, I8: three producers and three consumers, killed at random, and all is there."""
    outcome = no_kill_loses_or_tears.run(Budget(15.0, 40, 4))
    assert outcome.violations == []
    assert outcome.cases > 0
