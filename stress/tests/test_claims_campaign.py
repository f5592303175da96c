"""The campaign of claims, in short; and that it sees what it is there to see."""

from __future__ import annotations

import numpy as np
import pytest

from stress import no_claim_is_held_twice_or_lost as campaign
from stress import variant
from stress.campaign import Budget
from stress.claim_log import ACKED, CLAIMED, CUT, ENDING, FLUSHED, RECORD, REFUSED, Judge


@pytest.mark.campaign
def test_killed_workers_lose_nothing_and_never_hold_a_message_twice() -> None:
    """I14, I15: four workers killed at random and at every step, and the power cut."""
    outcome = campaign.run(Budget(12.0, None, 21))
    assert outcome.violations == []
    assert outcome.cases > 0
    assert outcome.notes["claims"] > 0
    assert outcome.notes["cuts of copies"] > 0


@pytest.mark.parametrize(
    "bug", ["late_ack", pytest.param("no_rebuild", marks=pytest.mark.campaign)]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    """I14, I15: what is wrong in the core shows in what the workers wrote down."""
    outcome = campaign.run_with(Budget(30.0, None, 1), variant.planted(bug))
    assert outcome.violations
    assert outcome.cases > 0


def judged(tmp_path_factory: pytest.TempPathFactory, *rows: tuple[int, ...]) -> Judge:
    """Return the judge's violations for a log."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(np.array(list(rows), RECORD).tobytes())
    judge = Judge({1: 10**9}, set(), set())
    judge.judge(path)
    return judge


def claimed(worker: int, number: int, at: int, deliveries: int) -> tuple[int, ...]:
    """Return the record of a claim of message 5, with a lease of 100."""
    return (CLAIMED, worker, number, 5, at, at + 1, 100, deliveries)


def test_judge_sees_each_kind_of_wrong(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two claims at an instant, a late acknowledgement, a refusal, a second delivery."""
    first = claimed(1, 1, 1000, 1)
    for text, rows in {
        "two claims at one instant": (first, claimed(2, 1, 1050, 2)),
        "after its lease": (
            first, (ENDING, 1, 1, 5, 1200, 0, 1, 0), (ACKED, 1, 1, 5, 1200, 1201, 0, 0),
        ),
        "before its lease ends": (first, (REFUSED, 1, 1, 5, 1010, 1011, 0, 0)),
        "delivered again": (
            first, (ENDING, 1, 1, 5, 1010, 0, 1, 0), (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            claimed(2, 1, 1020, 2),
        ),
        "which was flushed": (
            first, (ENDING, 1, 1, 5, 1010, 0, 1, 0), (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            (FLUSHED, 0, 0, 0, 1012, 1014, 0, 0), (CUT, 0, 0, 0, 1015, 0, 0, 0),
            claimed(2, 1, 1020, 2),
        ),
    }.items():  # fmt: skip
        (violation,) = judged(tmp_path_factory, *rows).violations
        assert text in violation


def test_judge_accepts_what_is_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A claim after a lease, one that was delivered late, one that a cut brought back."""
    first = claimed(1, 1, 1000, 1)
    for rows in (
        (first, claimed(2, 1, 1101, 2)),
        ((CLAIMED, 2, 1, 5, 900, 1020, 100, 1), first),
        (
            first, (ENDING, 1, 1, 5, 1010, 0, 1, 0), (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            (CUT, 0, 0, 0, 1015, 0, 0, 0), claimed(2, 1, 1020, 2),
        ),
    ):  # fmt: skip
        assert judged(tmp_path_factory, *rows).violations == []
