"""The command of a benchmark made of cases: run them and print their figures."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stress.bench_consumers.case import Case


def main(module: str, cases: Mapping[str, Case]) -> int:
    """Run cases and print their figures; the exit code is 1 if a case failed to measure."""
    parser = argparse.ArgumentParser(prog=f"python -m stress.{module}")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--quick", action="store_true", help="only whether it works")
    parser.add_argument("--directory", type=Path, help="where queues are made")
    options = parser.parse_args()
    unknown = sorted(set(options.cases) - set(cases))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} processors, load {load}")
    failed = 0
    for name in options.cases or cases:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as base:
            try:
                figures = cases[name](Path(base), quick=options.quick)
            except AssertionError as error:
                failed += 1
                print(f"{name}: FAILED: {error}")
                continue
        for figure in figures:
            sign = "<=" if figure.is_bound else ">="
            says = "met" if figure.met else "MISSED"
            print(
                f"{name}: {figure.name}: {figure.value:.2f} {figure.unit} "
                f"(goal {sign} {figure.goal:g}: {says})"
            )
            for label, text in figure.details.items():
                print(f"    {label}: {text}")
    return 1 if failed else 0
