"""The proof of the campaign against dead workers: what it must report, and what it must accept."""

from __future__ import annotations

import pytest

from stress.item_log import DONE, DYING, ENDING, GOT, PUT, PUTTING, Judge

WELL = [(PUTTING, 1, 7), (PUT, 1, 7), (GOT, 2, 7), (ENDING, 2, 7), (DONE, 2, 7)]
AGAIN = [*WELL[:3], (DYING, 2, 0), (GOT, 3, 7), (ENDING, 3, 7), (DONE, 3, 7)]


def violations_of(records: list[tuple[int, int, int]], *, joinable: bool) -> list[str]:
    """Return the judge's violations."""
    judge = Judge(joinable)
    judge.run(records)
    return judge.violations


@pytest.mark.parametrize("records", [WELL, AGAIN, WELL[:1], [*WELL[:4], (DYING, 2, 0)]])
def test_what_may_be_is_not_a_violation(records: list[tuple[int, int, int]]) -> None:
    """Done by one, or by another when the first died; begun to be put, or to be done."""
    assert violations_of(records, joinable=True) == []


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (WELL[:3], "no worker ever finished"),
        ([*WELL, (GOT, 3, 7)], "after its task_done"),
        ([*WELL[:3], (GOT, 3, 7), *WELL[3:]], "while 2 had it"),
        (WELL[2:], "never put"),
    ],
)
def test_what_must_not_be_is_said(records: list[tuple[int, int, int]], words: str) -> None:
    """Lost, doubled, held by two, invented."""
    assert words in violations_of(records, joinable=True)[0]


def test_of_a_queue_each_death_takes_one_at_most() -> None:
    """A Queue gives for good: twice is never, and gone are no more than processes."""
    assert violations_of([*WELL[:2], (DYING, 2, 0)], joinable=False) == []
    assert "gone" in violations_of(WELL[:2], joinable=False)[0]
    assert "twice" in violations_of([*WELL[:3], (GOT, 3, 7)], joinable=False)[0]
