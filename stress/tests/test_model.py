"""The publish protocol and the doorbell, model-checked; without Spin skipped, in CI a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stress import no_weak_publish_is_ever_read as campaign
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from pathlib import Path

HOLDS = campaign.Case("publish")
CAUGHT = campaign.Case("publish", ("NO_ZERO",), campaign.UNPUBLISHED)
CLEAN = "State-vector 232 byte, depth reached 205, errors: 0\n"
FAILED = f"pan:1: assertion violated ({campaign.UNPUBLISHED}) (at depth 9)\nerrors: 1\n"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Run all searches once, in parallel."""
    return campaign.run(Budget(campaign.SHORT_SECONDS, None, 0))


@pytest.mark.nightly
@pytest.mark.tool("spin")
@pytest.mark.parametrize("case", campaign.CASES, ids=lambda case: case.name)
def test_protocol_holds_and_every_mutation_of_it_is_caught(
    outcome: Outcome, case: campaign.Case
) -> None:
    """I2, I3, I4, I5, I7: on weak memory, with holders dying anywhere."""
    assert outcome.cases == len(campaign.CASES), outcome.violations
    wrong = [text for text in outcome.violations if text.startswith(f"{case.name}: ")]
    assert wrong == []
    assert case.name in outcome.notes


def test_missing_checker_fails_loudly_and_names_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A campaign without its tools proves no property, and reports what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = campaign.run(Budget(1.0, None, 0))
    assert result.failed
    assert "apt-get install spin" in result.violations[0]


def test_short_run_searches_each_model_once_and_no_mutation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fewer messages or deaths; the nightly one searches all, each as far as it goes."""
    monkeypatch.setattr(campaign, "missing_tools", list)
    monkeypatch.setattr(campaign, "judge", lambda case: (None, {"case": case}))
    searched = [one["case"] for one in campaign.run(Budget(1.0, None, 0, True)).notes.values()]
    models = {path.stem for path in campaign.MODEL_DIRECTORY.glob("*.pml")} - {"memory"}
    assert {case.model for case in searched} == models
    assert {case.caught for case in searched} == {None}
    whole = campaign.run(Budget(1.0, None, 0))
    assert whole.cases == len(campaign.CASES) > 3 * len(searched)


def test_budget_of_cases_bounds_the_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--cases N` searches the first N."""
    monkeypatch.setattr(campaign, "missing_tools", list)
    monkeypatch.setattr(campaign, "judge", lambda case: (None, {"case": case}))
    result = campaign.run(Budget(1.0, 3, 0))
    assert result.cases == 3
    assert list(result.notes) == [case.name for case in campaign.CASES[:3]]


@pytest.mark.parametrize(
    ("case", "printed", "expected"),
    [
        (HOLDS, CLEAN, None),
        (HOLDS, FAILED, "assertion violated"),
        (HOLDS, CLEAN + "error: max search depth too small\n", "depth too small"),
        (HOLDS, CLEAN + "Warning: Search not completed\n", "not completed"),
        (HOLDS, CLEAN + '\t/m/publish.pml:9, state 3, "goto dead"\n', "never reached"),
        (HOLDS, CLEAN + '\t/m/publish.pml:9, state 3, "-end-"\n', None),
        (HOLDS, "Killed\n", "did not end"),
        (CAUGHT, FAILED, None),
        (CAUGHT, CLEAN, "no error"),
        (CAUGHT, "pan:1: invalid end state (at depth 9)\nerrors: 1\n", "invalid end state"),
    ],
)
def test_verdict_accepts_only_what_must_be(
    case: campaign.Case, printed: str, expected: str | None
) -> None:
    """Neither a search that was cut short nor a mutation caught by accident counts."""
    wrong = campaign.verdict(case, printed)
    if expected is None:
        assert wrong is None
    else:
        assert wrong is not None
        assert expected in wrong
