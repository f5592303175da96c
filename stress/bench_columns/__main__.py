"""`python -m stress.bench_columns [--quick] [--directory DIR] [CASE ...]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stress.bench_columns.merging import merged_batches
from stress.bench_columns.reading import fixed_records, memory, whole_queue
from stress.bench_columns.writing import sent_at_once

if TYPE_CHECKING:
    from stress.bench_consumers.case import Case

CASES: dict[str, Case] = {
    "whole_queue": whole_queue,
    "fixed_records": fixed_records,
    "memory": memory,
    "merged_batches": merged_batches,
    "sent_at_once": sent_at_once,
}


def main() -> int:
    """Run cases and print their figures; the exit code is 1 if a case failed to measure."""
    parser = argparse.ArgumentParser(prog="python -m stress.bench_columns", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--quick", action="store_true", help="only whether it works")
    parser.add_argument("--directory", type=Path, help="where queues are made")
    options = parser.parse_args()
    unknown = sorted(set(options.cases) - set(CASES))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} processors, load {load}")
    failed = 0
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as base:
            try:
                figures = CASES[name](Path(base), quick=options.quick)
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


if __name__ == "__main__":
    sys.exit(main())
