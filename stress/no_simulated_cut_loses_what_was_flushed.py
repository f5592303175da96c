"""Forbids that any state a power cut could leave loses what was flushed, or tears or invents.

Real runs of the library are recorded: every version of every OS page, every sync, size and name
(`cut/`, `harness/recorder.c`). A simulated cut picks a time, and then each OS page (or sector, or
cache line), size and name independently as it was at any time since the sync that covers it. The
fast engine recovers such states in memory, by the core's own scan; the full engine opens them as
files with the library, which must find all that was guaranteed, byte for byte, whole batches only,
and keep working. Recoveries are recorded and cut too (I1, I2, I5, I8). A case is a state.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import driver, variant
from stress.campaign import Budget, Outcome
from stress.cut import native
from stress.cut.worker import LABEL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT_SECONDS = 4.0

WORKERS_MAX: Final = 2
WORKER: Final = "stress.cut.worker"


def environment(defines: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: recorder preloaded, core with points, same patch."""
    preloaded = [str(native.recorder()), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(preloaded),
        variant.CORE_VARIABLE: str(native.core(defines)),
    }


def work(worker: str, budget: Budget, told: Mapping[str, str], label: Path) -> Outcome:
    """Run one worker; one that dies reports at least its last state."""
    outcome = driver.run_in(worker, budget, {**told, LABEL_VARIABLE: str(label)})
    if outcome.cases == 0 and outcome.violations and label.exists():
        where = label.read_text(encoding="utf-8").strip()
        outcome.violations = [
            f"{text} (worker seed {budget.seed}, at: {where})" for text in outcome.violations
        ]
    return outcome


def campaign(budget: Budget, worker: str = WORKER) -> Outcome:
    """Run the workers and add up what they found."""
    if shutil.which(variant.compiler()[0]) is None:
        return Outcome(0, [f"{variant.compiler()[0]} is not there: a C compiler is needed"])
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    told = environment(driver.defines())
    native.engine(tuple(sorted(driver.defines().items())))
    share = None if budget.cases is None else -(-budget.cases // workers)
    budgets = [
        dataclasses.replace(budget, cases=share, seed=budget.seed * WORKERS_MAX + number)
        for number in range(workers)
    ]
    outcome = Outcome(0, notes={"workers": workers})
    with (
        tempfile.TemporaryDirectory(prefix="pagequeue-cut-") as directory,
        ThreadPoolExecutor(workers) as pool,
    ):
        labels = [Path(directory) / str(number) for number in range(workers)]
        for one in pool.map(functools.partial(work, worker), budgets, [told] * workers, labels):
            outcome.cases += one.cases
            outcome.violations += one.violations
            for name, value in one.notes.items():
                outcome.notes[name] = outcome.notes.get(name, 0) + value
    return outcome


def run_with(budget: Budget, defines: Mapping[str, str]) -> Outcome:
    """Run the campaign on a core that was built with these defines."""
    return driver.run_apart(__name__, budget, defines)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it is."""
    return campaign(budget)
