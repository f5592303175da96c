"""Plant bugs and print who caught them: `python -m stress.score [NAME ...] [--seconds S]`.

Each campaign that must catch a bug is run as a user runs it, in a separate process, with the bug
in the core that it builds, in the library that its child imports, or in the model that it searches.
A bug is caught when every one of these campaigns reports a violation, having tried at least one
case, in its budget or in the longer ones of three more runs with other seeds. First each campaign
is run without a bug, by the same seed: one that then reports a violation is disqualified, and all
its bugs count as missed. Exit code: 0 all were caught, 1 one was missed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import driver, variant
from stress import no_weak_publish_is_ever_read as model_campaign
from stress.campaign import campaign_names
from stress.plants.plant import MODEL, PATCHES_MODULE, Plant
from stress.plants.registry import PLANTS, named

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_SECONDS = 180.0
SHORT_COUNT = 4
SHORT_BUDGET = 15.0
"""A short run takes only such as need no more; successive seeds take all of them in turn."""
TRIES = (1.0, 2.0, 4.0, 8.0)
"""Multiples of its seconds that a campaign has, each time with another seed, until it catches the
bug: what it tries is random, and a busy machine lets it try less."""
CONTROL_SECONDS = 30.0
WORDS_MAX = 110
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Result:
    """How one campaign did with one bug.

    Attributes:
        plant: the bug.
        campaign: its name.
        caught: whether it reported a violation.
        cases: that it tried.
        seconds: that it took.
        words: its first violation, or why it has none.
    """

    plant: Plant
    campaign: str
    caught: bool
    cases: int
    seconds: float
    words: str


def environment(plant: Plant | None) -> dict[str, str]:
    """Return the environment in which a campaign finds the bug; None: no bug."""
    found = dict(os.environ)
    for variable in (variant.CHANGES_VARIABLE, driver.PATCH_VARIABLE, variant.CORE_VARIABLE):
        found.pop(variable, None)
    if plant is not None:
        found[driver.FIRST_VARIABLE] = "1"
    if plant is not None and plant.changes is not None:
        plant.changes.sources()  # raises here if its texts are gone
        found[variant.CHANGES_VARIABLE] = plant.changes.as_text()
    if plant is not None and plant.patch:
        found[driver.PATCH_VARIABLE] = f"{PATCHES_MODULE}:{plant.name}"
    return found


def attempt(campaign: str, plant: Plant | None, seconds: float, seed: int) -> dict[str, Any]:
    """Run a campaign; return the record that it prints."""
    command = [sys.executable, "-m", "stress", campaign, "--json"]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(plant),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds + GRACE_SECONDS)
        record: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"cases": 1, "violations": [f"no end {GRACE_SECONDS:g} s after its budget"]}
    except (IndexError, ValueError):
        return {"cases": 0, "violations": ["it printed no record"]}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return record


def attempts(campaign: str, plant: Plant, seconds: float, seed: int) -> dict[str, Any]:
    """Run a campaign until it catches the bug, a few times at most; return the last record."""
    record: dict[str, Any] = {}
    tried = 0
    for number, times in enumerate(TRIES):
        record = attempt(campaign, plant, seconds * times, seed + number)
        if record["violations"] and record["cases"]:
            record["cases"] += tried
            break
        tried += record["cases"]
    return record


def judged(plant: Plant, campaign: str, seconds: float, seed: int) -> Result:
    """Run one campaign with one bug."""
    started = time.monotonic()
    if campaign not in campaign_names():
        return Result(plant, campaign, False, 0, 0.0, "there is no such campaign")
    if plant.model:
        case = model_campaign.Case(plant.model[0], plant.model[1:])
        missing = model_campaign.missing_tools()
        wrong = None if missing else model_campaign.judge(case)[0]
        violations = missing or ([wrong] if wrong else [])
        record: dict[str, Any] = {"cases": int(not missing), "violations": violations}
    else:
        record = attempts(campaign, plant, seconds, seed)
    words = (record["violations"] or ["no violation was noticed"])[0]
    caught = bool(record["violations"]) and record["cases"] > 0
    took = time.monotonic() - started
    return Result(plant, campaign, caught, record["cases"], took, " ".join(words.split()))


def show(result: Result) -> None:
    """Print one line of the table."""
    print(
        f"{'caught' if result.caught else 'MISSED':6}  {result.plant.name:32} "
        f"{result.plant.where:6}  {result.campaign:40} {result.cases:7} cases "
        f"{result.seconds:6.1f} s  {result.words[:WORDS_MAX]}",
        flush=True,
    )


def show_controls(plants: Sequence[Plant], seconds: float | None, seed: int) -> set[str]:
    """Run the campaigns of these bugs without any; return those that found a violation anyway.

    The models are searched as they are by their own campaign, which takes minutes.
    """
    budgets: dict[str, float] = {}
    for plant in plants:
        for name, need in plant.by.items():
            if name != MODEL and name in campaign_names():
                budgets[name] = max(seconds or min(need, CONTROL_SECONDS), budgets.get(name, 0.0))
    false = set()
    for campaign, budget in sorted(budgets.items()):
        record = attempt(campaign, None, budget, seed)
        words = (record["violations"] or ["no bug, and none was found"])[0]
        clean = not record["violations"] and record["cases"] > 0
        if not clean:
            false.add(campaign)
        print(
            f"{'clean' if clean else 'FALSE':6}  {'(no bug)':32} {'':6}  {campaign:40} "
            f"{record['cases']:7} cases {budget:6.1f} s  {' '.join(words.split())[:WORDS_MAX]}",
            flush=True,
        )
    return false


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; leave with code 2 when they make no sense."""
    parser = argparse.ArgumentParser(prog="python -m stress.score", description="Plant bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs; none: all of them")
    parser.add_argument("--list", action="store_true", help="only print their names")
    parser.add_argument("--seconds", type=float, help="for each campaign, instead of its budget")
    parser.add_argument(
        "--short", action="store_true", help=f"{SHORT_COUNT} quick ones, those of the seed's turn"
    )
    parser.add_argument("--no-controls", action="store_true", help="only with a bug")
    parser.add_argument("--seed", type=int, help="repeat a run; printed by every run")
    options = parser.parse_args(arguments)
    known = [plant.name for plant in PLANTS]
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no bug is called {', '.join(unknown)}; --list names them")
    if options.seconds is not None and not 0 < options.seconds < float("inf"):
        parser.error("--seconds must be a positive number")
    return options


def chosen(options: argparse.Namespace, seed: int) -> list[Plant]:
    """Return the bugs that were asked for."""
    plants = [named(name) for name in options.names] or list(PLANTS)
    if options.short and not options.names:
        there = campaign_names()
        plants = [
            plant
            for plant in plants
            if all(name in there and need <= SHORT_BUDGET for name, need in plant.by.items())
        ]
        begin = seed * SHORT_COUNT % len(plants)
        plants = [*plants[begin:], *plants[:begin]][:SHORT_COUNT]
    return plants


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant what was asked for and return the exit code."""
    options = parse(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    plants = chosen(options, seed)
    if options.list:
        try:
            for plant in plants:
                print(f"{plant.name:32} {plant.where:6}  {plant.wrong} ({plant.breaks})")
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough; nor is there anything to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    print(f"seed {seed}", flush=True)
    controlled = not (options.short or options.no_controls)
    false = show_controls(plants, options.seconds, seed) if controlled else set()
    missed = []
    for plant in plants:
        results = [
            judged(plant, campaign, options.seconds or seconds, seed)
            for campaign, seconds in plant.by.items()
        ]
        for result in results:
            show(result)
        if not all(result.caught and result.campaign not in false for result in results):
            missed.append(plant.name)
    print(f"caught {len(plants) - len(missed)} of {len(plants)}")
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed or false else 0


if __name__ == "__main__":
    sys.exit(main())
