"""The campaign of claims, in short; and that it sees what it is there to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pagequeue.util.retry import Retry
from stress import no_claim_is_held_twice_or_lost as campaign
from stress import variant
from stress.campaign import Budget
from stress.claim_log import (
    ACKED,
    BY_RULE,
    CLAIMED,
    CUT,
    ENDING,
    FLUSHED,
    REFUSED,
    REJECTED,
    REJECTING,
    Did,
    Judge,
    Letter,
    reason_for,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.nightly
def test_killed_workers_lose_nothing_and_never_hold_a_message_twice() -> None:
    """I14, I15: four workers killed at random and at every step, and the power cut."""
    outcome = campaign.run(Budget(12.0, None, 21))
    assert outcome.violations == []
    assert outcome.cases > 0
    assert outcome.notes["claims"] > 0
    assert outcome.notes["cuts of copies"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["late_ack", "no_rebuild"])
def test_a_planted_bug_is_found(bug: str) -> None:
    """I14, I15: what is wrong in the core shows in what the workers wrote down."""
    outcome = campaign.run_with(Budget(30.0, None, 1), variant.planted(bug))
    assert outcome.violations
    assert outcome.cases > 0


def judged(
    *rows: tuple[int, ...], letters: Sequence[Letter] = (), retry: Retry | None = None
) -> Judge:
    """Return the judge's violations for a log."""
    judge = Judge({1: 10**9}, list(letters), set(), 4, retry, frozenset({6}))
    judge.judge([Did(*row) for row in rows])
    return judge


def claimed(worker: int, number: int, at: int, deliveries: int) -> tuple[int, ...]:
    """Return the record of a claim of message 5, with a lease of 100."""
    return (CLAIMED, worker, number, 5, at, at + 1, 100, deliveries)


def test_judge_sees_each_kind_of_wrong() -> None:
    """Two claims at an instant, a late acknowledgement, a refusal, a second delivery."""
    first = claimed(1, 1, 1000, 1)
    for text, rows in {
        "too often": (claimed(1, 1, 1000, 5),),
        "two claims at one instant": (first, claimed(2, 1, 1050, 2)),
        "after its lease": (
            first,
            (ENDING, 1, 1, 5, 1200, 0, 1, 0),
            (ACKED, 1, 1, 5, 1200, 1201, 0, 0),
        ),
        "before its lease ends": (first, (REFUSED, 1, 1, 5, 1010, 1011, 0, 0)),
        "delivered again": (
            first,
            (ENDING, 1, 1, 5, 1010, 0, 1, 0),
            (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            claimed(2, 1, 1020, 2),
        ),
        "which was flushed": (
            first,
            (ENDING, 1, 1, 5, 1010, 0, 1, 0),
            (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            (FLUSHED, 0, 0, 0, 1012, 1014, 0, 0),
            (CUT, 0, 0, 0, 1015, 0, 0, 0),
            claimed(2, 1, 1020, 2),
        ),
    }.items():
        (violation,) = judged(*rows).violations
        assert text in violation


def test_judge_accepts_what_is_right() -> None:
    """A claim after a lease, one that was delivered late, one that a cut brought back."""
    first = claimed(1, 1, 1000, 1)
    for rows in (
        (first, claimed(2, 1, 1101, 2)),
        ((CLAIMED, 2, 1, 5, 900, 1020, 100, 1), first),
        (
            first,
            (ENDING, 1, 1, 5, 1010, 0, 1, 0),
            (ACKED, 1, 1, 5, 1010, 1011, 0, 0),
            (CUT, 0, 0, 0, 1015, 0, 0, 0),
            claimed(2, 1, 1020, 2),
        ),
    ):
        assert judged(*rows).violations == []


def test_judge_knows_when_a_message_is_due() -> None:
    """Its lease ends, it is given back or its worker dies; a delay; and it comes alone."""
    rule = Retry(4, 1e-6, 1e-6)  # 750 to 1000 ns, depending on the sequence
    wait = rule.delay_ns(5, 1)
    first = claimed(1, 1, 1000, 1)
    back = (ENDING, 1, 1, 5, 1050, BY_RULE, 0, 0)
    other = (CLAIMED, 2, 2, 7, 1100 + wait, 1101 + wait, 100, 1)
    for rows in (
        (first, claimed(2, 1, 1100 + wait, 2)),
        (first, back, claimed(2, 1, 1050 + wait, 2)),
        (first, back, claimed(2, 1, 1100 + wait, 2), other),
        (first, (ENDING, 1, 1, 5, 1050, 10, 0, 0), claimed(2, 1, 1060, 2)),
        (first, (CUT, 0, 0, 0, 1150, 0, 0, 0), claimed(2, 1, 1200, 2)),
    ):
        assert judged(*rows, retry=rule).violations == []
    for text, rows in {
        "before it is due": (first, claimed(2, 1, 1098 + wait, 2)),
        " before it is due": (first, back, claimed(2, 1, 1048 + wait, 2)),
        "claimed with others": (first, claimed(2, 1, 1100 + wait, 2), other),
    }.items():
        (violation,) = judged(*rows, retry=rule).violations
        assert text in violation


def test_judge_knows_poison() -> None:
    """No worker acknowledges it, so it has no other end than as a dead letter."""
    rows = (
        (CLAIMED, 1, 1, 6, 1000, 1001, 100, 1),
        (ENDING, 1, 1, 6, 1010, 0, 1, 0),
        (ACKED, 1, 1, 6, 1010, 1011, 0, 0),
    )
    assert judged(*rows).violations == ["message 6 fails always, and was acknowledged"]


def test_judge_counts_dead_letters() -> None:
    """One for each rejected claim, and none that nobody rejected before its last delivery."""
    begun = (claimed(1, 1, 1000, 1), (REJECTING, 1, 1, 5, 1010, 0, 100, 0))
    whole = (*begun, (REJECTED, 1, 1, 5, 1011, 1050, 0, 0))
    letter, spent = Letter(5, 1, reason_for(1, 1)), Letter(6, 4, "was given back")
    for rows, letters in (
        (whole, [letter]),
        (whole, [letter, spent]),
        (begun, [letter]),
        (begun, []),
        ((*begun, (REFUSED, 1, 1, 5, 1011, 1111, 0, 0)), [letter]),
    ):
        assert judged(*rows, letters=letters).violations == []
    for text, rows, letters in (
        ("0 times among", whole, []),
        ("2 times among", whole, [letter, letter]),
        ("nobody rejected it", whole, [letter, Letter(6, 3, "was given back")]),
        ("delivery 1 was rejected", whole, [Letter(7, 1, letter.reason)]),
        ("delivered again", (*whole, claimed(2, 1, 1200, 2)), [letter]),
        ("after its lease", (begun[0], begun[1], (REJECTED, 1, 1, 5, 1300, 1301, 0, 0)), [letter]),
    ):
        (violation,) = judged(*rows, letters=letters).violations
        assert text in violation
