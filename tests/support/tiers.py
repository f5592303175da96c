"""How much of a test is in the quick tier: which of its cases, and how many random examples.

`@pytest.mark.quick_each(5)` leaves each fifth case there, and marks the others `slow`.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

EXAMPLES: Final = float(os.environ.get("PAGEQUEUE_EXAMPLES", "0.25"))
"""How many of their random examples the tests try; all of them are for the nightly tier."""


def examples(count: int) -> int:
    """Return how many of so many random examples are tried."""
    return max(1, round(count * EXAMPLES))


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of tests with `quick_each` that are not in the quick tier."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("quick_each") if item.nodeid.endswith("]") else None
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters, all but the quick ones marked `slow`.

    Raises:
        AssertionError: a quick one is not among the values.
    """
    return slow_but_rows([(value,) for value in quick], [(value,) for value in values])


def slow_but_rows(quick: Iterable[tuple[Any, ...]], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the same for parameters of several names, each of which is a tuple."""
    wanted, found = list(quick), list(rows)
    assert all(row in found for row in wanted), (wanted, found)
    return [pytest.param(*row, marks=() if row in wanted else pytest.mark.slow) for row in found]
