"""Sides of a comparison, measured in turns: what disturbs the machine disturbs all of them."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Measured = TypeVar("Measured")


def in_turns(
    sides: Mapping[str, Callable[[int], Measured]], rounds: int
) -> dict[str, list[Measured]]:
    """Call each side with the number of the round, in each round; return what each gave."""
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, measure in sides.items():
            found[name].append(measure(number))
    return found


def seconds_of(way: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    way()
    return time.perf_counter() - begun


def seconds_in_turns(
    ways: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each way in each round; a round before them warms up."""

    def timed(way: Callable[[], object]) -> Callable[[int], float]:
        return lambda _: seconds_of(way)

    found = in_turns({name: timed(way) for name, way in ways.items()}, rounds + 1)
    return {name: taken[1:] for name, taken in found.items()}


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each side's figures."""
    return {name: statistics.median(figures) for name, figures in found.items()}


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of second to first: each pair was measured at one time."""
    return statistics.median(second / first for first, second in pairs)
