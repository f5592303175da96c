"""The command: which cases, how often, where, and the exit code."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress.bench.cases import CASES, LARGE_SCALES, build_case
from stress.bench.harness import measure
from stress.bench.plan import CheckFailed, Suite
from stress.bench.report import Measured, as_json, header, show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stress.bench.plan import Case, Metrics, Plan


def core() -> Suite:
    """Return the cases of `python -m stress.bench_core`."""
    return Suite(
        "python -m stress.bench_core",
        "Measure pagequeue against its peers, in one run.",
        tuple(CASES),
        build_case,
    )


def run_case(
    case: Case,
    base: Path,
    repeats: int,
    deadline: float = math.inf,
    by: Callable[[Plan, Path], Metrics] = measure,
) -> Measured:
    """Measure every contender `repeats` times, in turn; each repeat starts with another one.

    After the deadline, in seconds of the monotonic clock, no further repeat begins.
    """
    measured = Measured(case)
    failed: set[str] = set()
    for repeat in range(repeats):
        if time.monotonic() > deadline:
            break
        first = repeat % len(case.plans)
        for plan in case.plans[first:] + case.plans[:first]:
            if plan.peer is None or plan.label in failed:
                continue
            try:
                figures = by(plan, base)
            except CheckFailed as failure:
                measured.failures.append(f"{plan.label}: {failure}")
                measured.runs.pop(plan.label, None)
                failed.add(plan.label)
            else:
                measured.runs[plan.label].append(figures)
    return measured


def _arguments(arguments: Sequence[str] | None, suite: Suite) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=suite.program, description=suite.description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--only", action="append", choices=suite.names, help="can be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="of message counts")
    parser.add_argument("--directory", type=Path, help="for queues and files; default: temporary")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="no repeat of any case begins after this"
    )
    if set(LARGE_SCALES) <= set(suite.names):
        parser.add_argument(
            "--large",
            action="store_true",
            help="messages and batches of many pages, at the scale of their figures: up to 1 GiB, "
            "and 10 GiB streamed, 20 GB written in all",
        )
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.scale <= 0:
        parser.error("--repeats must be at least 1 and --scale above 0")
    chosen = options.only or suite.names
    options.scales = dict.fromkeys(chosen, options.scale)
    if vars(options).get("large"):
        options.scales = {
            name: scale * options.scale for name, scale in LARGE_SCALES.items() if name in chosen
        }
    return options


def main(arguments: Sequence[str] | None = None, suite: Suite | None = None) -> int:
    """Run the benchmark; return 1 if a check failed, even when all targets are reached."""
    suite = suite or core()
    options = _arguments(arguments, suite)
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    results = []
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as base:
        head = header(Path(base), scale=options.scale, repeats=options.repeats)
        for name, scale in options.scales.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            case = suite.build(name, scale)
            results.append(run_case(case, Path(base), options.repeats, deadline))
    show(head, results)
    report = as_json(head, results)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if report["failed"] else 0
