"""The benchmarks that are made of cases: each case measures something, however little it does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from stress import bench_journal
from stress.bench_columns import __main__ as bench_columns
from stress.bench_consumers import __main__ as bench_consumers

if TYPE_CHECKING:
    from pathlib import Path
CASES = {**bench_journal.CASES, **bench_columns.CASES, **bench_consumers.CASES}
DEAR = {"four_processes", "fairness", "drop_in", "compressed_read", "asyncio_round_trip"}
"""They take seconds; the benchmarks themselves, which are steps of the nightly tier, run them."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - DEAR))
def test_case_measures(name: str, tmp_path: Path) -> None:
    """It prints figures; whether they are good is not asked here."""
    assert CASES.keys() > DEAR
    figures = CASES[name](tmp_path, quick=True)
    assert figures
    assert all(math.isfinite(figure.value) for figure in figures)
