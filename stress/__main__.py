"""Run campaigns: `python -m stress [NAME ... | all] [--seconds S | --short] [--seed N] ...`.

Exit code: 0 no violation, 1 a violation or no case was run, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from stress.campaign import Budget, Outcome, campaign_names, load, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SECONDS = 60.0
LONGER_MAX = 4
"""On a slow machine a short budget can be too small for one case: then it grows so often."""
ALL = "all"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; leave with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m stress", description="Run stress campaigns.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="campaigns, or all; none: list")
    parser.add_argument("--seconds", type=float, help=f"for each campaign ({DEFAULT_SECONDS:g})")
    parser.add_argument("--cases", type=int, help="at most so many in each campaign")
    parser.add_argument("--seed", type=int, help="repeat a run; printed by every run")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--short", action="store_true", help="each campaign's own short budget")
    options = parser.parse_args(arguments)
    known = campaign_names()
    unknown = [name for name in options.names if name != ALL and name not in known]
    if unknown:
        parser.error(f"no campaign is called {', '.join(unknown)}; `python -m stress` lists them")
    if options.seconds is not None and not 0 < options.seconds < float("inf"):
        parser.error("--seconds must be a positive number")
    if options.cases is not None and options.cases < 1:
        parser.error("--cases must be at least 1")
    if options.short and options.seconds is not None:
        parser.error("--short and --seconds exclude each other")
    wanted = known if ALL in options.names else options.names
    options.names = list(dict.fromkeys(wanted))
    return options


def attempt(name: str, options: argparse.Namespace, seed: int) -> Outcome:
    """Run one campaign; one that raises has failed, and the next ones still get their turn."""
    outcome = Outcome(0)
    try:
        campaign = load(name)
        seconds = campaign.SHORT_SECONDS if options.short else options.seconds or DEFAULT_SECONDS
        for times in range(LONGER_MAX if options.short else 1):
            budget = Budget(float(seconds) * 2**times, options.cases, seed, options.short)
            outcome = campaign.run(budget)
            if outcome.violations or not outcome.failed:
                break
    except Exception as error:  # noqa: BLE001  any exception is reported and fails the run
        traceback.print_exc()
        outcome = Outcome(0, [f"raised {type(error).__name__}: {error}"])
    return outcome


def as_record(name: str, outcome: Outcome, elapsed: float, seed: int) -> dict[str, Any]:
    """Return what is known of one campaign's run."""
    return {
        "campaign": name,
        "seed": seed,
        "failed": outcome.failed,
        "cases": outcome.cases,
        "elapsed_seconds": round(elapsed, 3),
        "cases_per_minute": round(outcome.cases * 60 / max(elapsed, 1e-9), 1),
        "violations": outcome.violations,
        "notes": outcome.notes,
        "untried": outcome.untried,
    }


def show(record: dict[str, Any]) -> None:
    """Print one campaign's line, its notes and its violations."""
    print(
        f"{'FAILED' if record['failed'] else 'ok':6} {record['campaign']}: "
        f"{record['cases']} cases in {record['elapsed_seconds']:.1f} s "
        f"({record['cases_per_minute']:.0f} a minute), {len(record['violations'])} violations"
    )
    for key, value in record["notes"].items():
        print(f"         {key}: {value}")
    for violation in record["violations"]:
        print(f"  VIOLATION (seed {record['seed']}): {violation}")
    for part in record["untried"]:
        print(f"  no case of {part} was run, so the run proves nothing of it")
    if record["cases"] <= 0:
        print("  no case was run, so the run proves no property")
    sys.stdout.flush()


def show_list(*, as_json: bool) -> None:
    """Print every campaign with what it forbids."""
    names = campaign_names()
    width = max(map(len, names), default=0)
    for name in names:
        forbids = summary(name)
        print(
            json.dumps({"campaign": name, "forbids": forbids})
            if as_json
            else f"{name:{width}}  {forbids}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit code."""
    options = parse(arguments)
    if not options.names:
        show_list(as_json=options.json)
        return 0
    seed = secrets.randbits(32) if options.seed is None else options.seed
    if not options.json:
        print(f"seed {seed}", flush=True)
    failed = False
    for name in options.names:
        started = time.monotonic()
        outcome = attempt(name, options, seed)
        record = as_record(name, outcome, time.monotonic() - started, seed)
        failed = failed or record["failed"]
        if options.json:
            print(json.dumps(record, default=str), flush=True)
        else:
            show(record)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
