"""The command: which cases, of whom, how often, where, and what is written."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stress.bench.command import run_case
from stress.bench.report import LIBRARIES, as_json, header, show
from stress.bench_field.cases import CASES, build_case, quick_cases
from stress.bench_field.contenders import CONTENDERS, OURS
from stress.bench_field.page import slower, write_page, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stress.bench.plan import Case

PROGRAM = "python -m stress.bench_field"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Measure pagequeue beside the field, in one run."
    )
    parser.add_argument("--cases", type=_names, default=[], help=", ".join(CASES))
    parser.add_argument("--peers", type=_names, default=[], help="; ".join(CONTENDERS))
    parser.add_argument("--quick", action="store_true", help="only whether it works")
    parser.add_argument("--huge", action="store_true", help="also what takes minutes and 30 GB")
    parser.add_argument("--scale", type=float, default=1.0, help="of message counts")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contender")
    parser.add_argument("--directory", type=Path, help="for queues and files; default: temporary")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables as Markdown")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="the figures as pictures")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="field.md with its pictures")
    options = parser.parse_args(arguments)
    for kind, named, known in (
        ("case", options.cases, CASES),
        ("peer", options.peers, CONTENDERS),
    ):
        unknown = sorted(set(named) - set(known))
        if unknown:
            parser.error(f"no such {kind}: {', '.join(unknown)}; there are {', '.join(known)}")
    if options.repeats < 1 or options.scale <= 0:
        parser.error("--repeats must be at least 1 and --scale above 0")
    return options


def _chosen(options: argparse.Namespace) -> list[Case]:
    """Return the cases that a chosen peer, or ours, takes part in; ours is compared with."""
    names = options.cases or [
        name for name, spec in CASES.items() if options.huge or not spec.is_huge
    ]
    peers = {OURS, *options.peers} if options.peers else set(CONTENDERS)
    if options.quick:
        cases = quick_cases(names, peers)
    else:
        cases = [build_case(name, options.scale, peers) for name in names]
    return [case for case in cases if case.plans]


def _libraries() -> list[str]:
    found = [name for contender in CONTENDERS.values() for name in contender.libraries]
    return list(dict.fromkeys([*LIBRARIES, *found]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a check failed."""
    options = _arguments(arguments)
    repeats = 1 if options.quick else options.repeats
    results = []
    if options.directory is not None:
        options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory) as base:
        head = header(Path(base), scale=options.scale, repeats=repeats, libraries=_libraries()) | {
            "quick": options.quick
        }
        for case in _chosen(options):
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            results.append(run_case(case, Path(base), repeats))
    show(head, results)
    print("where pagequeue is slower:")
    for line in slower(results) or ["nowhere in this run"]:
        print(f"  {line}")
    words = sys.argv[1:] if arguments is None else arguments
    head["command"] = shlex.join([*PROGRAM.split(), *words])
    report = as_json(head, results)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(written(head, results), encoding="utf-8")
    if options.plots is not None:
        from stress.bench_field.plots import draw  # noqa: PLC0415 - only with the extra `plot`

        draw(results, options.plots)
    if options.docs is not None:
        write_page(head, results, options.docs)
    return 1 if report["failed"] else 0
