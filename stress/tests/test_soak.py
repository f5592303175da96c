"""The soak and the stopped holders, in short, and the rule by which growth is judged."""

from __future__ import annotations

import dataclasses

import pytest

from stress import no_resource_grows_without_end as soak
from stress import no_stopped_holder_is_robbed as stopped
from stress.campaign import Budget
from stress.lodgers import Report, Resources

MEBIBYTE = 1 << 20
AT_REST = Resources(descriptors=7, threads=1, maps=0, stores=0, anonymous_bytes=20 * MEBIBYTE)
IN_USE = Resources(descriptors=12, threads=2, maps=9, stores=9, anonymous_bytes=22 * MEBIBYTE)


def reports(sizes: list[float]) -> list[Report]:
    """Return a process's reports with these MiB after each queue."""
    return [
        Report(
            dataclasses.replace(AT_REST, anonymous_bytes=int(size * MEBIBYTE)), IN_USE, rolls=100
        )
        for size in sizes
    ]


@pytest.mark.nightly
def test_queues_come_and_go_and_nothing_grows_or_is_lost() -> None:
    """I1 to I4: some queues, each worked with, killed in, recovered, proved and removed."""
    outcome = soak.run(Budget(60.0, 3, 5))
    assert outcome.violations == []
    assert outcome.cases == 3
    assert outcome.notes["messages"] > 0
    assert outcome.notes["memory"].startswith("not judged")


@pytest.mark.nightly
def test_nobody_robs_a_stopped_holder() -> None:
    """I3, I4: stops at some points of publish and roll, and in slow locks."""
    outcome = stopped.run(Budget(60.0, 20, 5))
    assert outcome.violations == []
    assert outcome.cases == 20
    assert len(outcome.notes["stops"]) > 1


@pytest.mark.parametrize("sizes", [[20.0] * 8, [9, 20, 20, 21, 20, 21, 20, 21, 20, 30.0, 20, 21]])
def test_memory_that_comes_to_rest_is_flat(sizes: list[float]) -> None:
    """Warming up, noise and single peaks are no growth."""
    assert soak.judge_memory("it", reports(sizes)) == []


def test_memory_that_grows_slowly_is_found() -> None:
    """A quarter of a MiB for each queue adds up over a quarter of all queues."""
    sizes = [20 + number / 4 for number in range(40)]
    assert len(soak.judge_memory("it", reports(sizes))) == 1


@pytest.mark.parametrize("what", ["descriptors", "threads", "maps"])
def test_one_more_of_what_can_be_counted_is_found(what: str) -> None:
    """After the first queues, counts at rest are exact."""
    said = reports([20.0] * 6)
    assert soak.judge_counts("it", said) == []
    more = dataclasses.replace(AT_REST, **{what: getattr(AT_REST, what) + 1})
    said.append(dataclasses.replace(said[-1], rest=more))
    wrong = soak.judge_counts("it", said)
    assert len(wrong) == 1
    assert what in wrong[0]


@pytest.mark.parametrize("what", ["descriptors", "maps"])
def test_what_follows_the_rolls_of_an_open_queue_is_found(what: str) -> None:
    """It may be released when the queue is closed, and is too much all the same."""
    said = reports([20.0])
    busy = dataclasses.replace(IN_USE, **{what: 100})
    said.append(dataclasses.replace(said[-1], busy=busy))
    wrong = soak.judge_counts("it", said)
    assert wrong == [f"it has 100 {what} in an open queue after 100 rolls"]
