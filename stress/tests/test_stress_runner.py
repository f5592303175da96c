"""The stress runner: listing, budgets, exit codes, and what counts as a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stress
from stress import campaign, driver, rounds
from stress.__main__ import main
from stress.campaign import Budget, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = '''"""Forbids {name}.

More of it.
"""
from stress.campaign import Outcome
SHORT_SECONDS = 2.5
def run(budget):
    '''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401  a generator, see `add`
    """Return a function that adds a campaign, in a separate directory, and returns its name."""
    monkeypatch.setattr(campaign, "PACKAGE_DIRECTORY", tmp_path)
    monkeypatch.setattr(stress, "__path__", [str(tmp_path)])
    before = set(sys.modules)

    def add(name: str, body: str) -> str:
        (tmp_path / f"{name}.py").write_text(HEAD.format(name=name) + body, encoding="utf-8")
        return name

    yield add
    for name in set(sys.modules) - before:
        if name.startswith("stress.no_"):
            del sys.modules[name]
            delattr(stress, name.removeprefix("stress."))


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what was printed, one object a line."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_list_shows_what_each_campaign_forbids(
    write: Callable[[str, str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only modules named after what they forbid are campaigns; listing imports none."""
    write("no_b", "raise SystemExit\nraise SystemExit\n")
    write("no_a", "return Outcome(1)\n")
    (tmp_path / "helper.py").write_text("raise RuntimeError\n", encoding="utf-8")
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == ["no_a  Forbids no_a.", "no_b  Forbids no_b."]
    assert main(["--json"]) == 0
    assert [record["campaign"] for record in records(capsys)] == ["no_a", "no_b"]


def test_clean_campaign_leaves_with_zero_and_prints_its_seed(
    write: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The seed of a run without `--seed` is printed, so that it can be repeated."""
    write("no_a", "return Outcome(7, notes={'kills': 3})\n")
    assert main(["no_a"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed ")
    assert "ok     no_a: 7 cases in " in printed
    assert "kills: 3" in printed


def test_budget_reaches_the_campaign(
    write: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Options are handed on unchanged; `--short` takes the campaign's own seconds, and says so."""
    body = "return Outcome(1, notes={'budget': [budget.seconds, budget.cases, budget.short]})\n"
    write("no_a", body)
    assert main(["no_a", "--json", "--seed", "5", "--seconds", "9", "--cases", "4"]) == 0
    assert main(["no_a", "--json", "--seed", "5", "--short"]) == 0
    assert main(["no_a", "--json", "--seed", "5"]) == 0
    found = records(capsys)
    assert [record["notes"]["budget"] for record in found] == [
        [9.0, 4, False],
        [2.5, None, True],
        [60.0, None, False],
    ]
    assert {record["seed"] for record in found} == {5}


def test_short_budget_grows_until_a_case_was_run(
    write: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On a slow machine it can be too small for one case; a violation ends the run at once."""
    write("no_a", "return Outcome(int(budget.seconds >= 10), notes={'s': budget.seconds})\n")
    write("no_b", "return Outcome(0, [f'{budget.seconds} s'])\n")
    write("no_c", "return Outcome(0)\n")
    write("no_d", "return Outcome(2, untried=['lines'] * (budget.seconds < 5))\n")
    assert main(["all", "--json", "--short"]) == 1
    late, wrong, never, whole = records(capsys)
    assert (whole["untried"], whole["failed"]) == ([], False)
    assert (late["cases"], late["notes"]["s"], late["failed"]) == (1, 10.0, False)
    assert wrong["violations"] == ["2.5 s"]
    assert never["failed"]


def test_tries_go_on_until_one_had_a_case_and_then_as_long_as_the_budget_lasts() -> None:
    """However small the budget is; a violation, or the bound of cases, ends them too."""
    late = Outcome(0)
    left = []
    for seconds in rounds.tries(Budget(1e-9, None, 0), late, 2):
        left.append(seconds)
        late.cases = len(left) // 3
    assert left == [rounds.LEAST_SECONDS * times for times in (1, 2, 4)]
    for outcome, budget in (
        (Outcome(0, ["lost", "lost"]), Budget(60.0, None, 0)),
        (Outcome(4), Budget(60.0, 4, 0)),
    ):
        assert list(rounds.tries(budget, outcome, 2)) == []
    assert 59 < next(rounds.tries(Budget(60.0, None, 0), Outcome(4), 2)) <= 60


def test_part_without_a_case_is_noted_where_nothing_forbade_one() -> None:
    """A bound of cases, or a violation, can end a run before a part has its turn."""
    parts = {"lines": 0, "points": 3}
    for budget, violations, untried in (
        (Budget(1.0, None, 0), [], ["lines"]),
        (Budget(1.0, 3, 0), [], []),
        (Budget(1.0, None, 0), ["lost"], []),
    ):
        outcome = Outcome(3, violations)
        outcome.require(budget, parts)
        assert outcome.untried == untried
        assert outcome.failed is bool(untried or violations)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return Outcome(3, ['lost message 4'])\n", "VIOLATION (seed 5): lost message 4"),
        ("return Outcome(0)\n", "no case was run"),
        ("raise ValueError('broken')\n", "raised ValueError: broken"),
        ("return Outcome(9, untried=['lines'])\n", "no case of lines was run"),
    ],
)
def test_violation_and_nothing_tried_and_an_error_all_fail(
    write: Callable[[str, str], str], capsys: pytest.CaptureFixture[str], body: str, expected: str
) -> None:
    """Exit code 1, and the other campaigns of the run still get their turn."""
    write("no_a", body)
    write("no_b", "return Outcome(1)\n")
    assert main(["all", "--seed", "5"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED no_a" in printed
    assert expected in printed
    assert "ok     no_b" in printed


def test_campaign_without_its_contract_fails(
    write: Callable[[str, str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that lacks `SHORT_SECONDS` or `run` is refused with that reason."""
    write("no_a", "return Outcome(1)\n")
    (tmp_path / "no_a.py").write_text('"""Forbids no outcome."""\n', encoding="utf-8")
    assert main(["no_a"]) == 1
    assert "needs SHORT_SECONDS" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["no_such"],
        ["all", "--seconds", "0"],
        ["all", "--seconds", "inf"],
        ["all", "--cases", "0"],
        ["all", "--short", "--seconds", "3"],
        ["all", "--bogus"],
    ],
)
def test_wrong_usage_leaves_with_two(
    write: Callable[[str, str], str], arguments: list[str]
) -> None:
    """No campaign is run."""
    write("no_a", "raise AssertionError\n")
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2


def test_every_campaign_of_the_package_says_what_it_forbids() -> None:
    """A campaign's first line names the outcome that it forbids."""
    assert campaign.campaign_names()
    for name in campaign.campaign_names():
        assert campaign.summary(name), name


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """A directory stays while a process of its run lives, and what is not a run's stays."""
    other = tmp_path / "other"
    other.mkdir()
    with driver.scratch(str(tmp_path)) as (mine, _):
        left = tmp_path / f"{driver.SCRATCH}left"
        left.mkdir()
        (left / "file").touch()
        with driver.scratch(str(tmp_path)) as (theirs, _):
            assert {*tmp_path.iterdir()} == {other, Path(mine), Path(theirs)}
    assert [*tmp_path.iterdir()] == [other]
