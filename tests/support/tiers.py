"""Cases of a test that are left to the step `more-tests`, because a few of them show the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


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
