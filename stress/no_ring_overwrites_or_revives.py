"""Forbids that a ring overwrites what is needed, revives an older use of a page, or lets one sleep.

Holders: one process sends into a small ring, so that it uses its pages again and again, while named
consumers, workers of a group, readers with views of pages, and processes with views stay in them.
No view changes, nothing that a consumer or a claim needs is gone, and the group gets every message.

Cuts: a ring is used under a recorder that knows what each sync covers (`cut/tree.py`), and the
power is cut at any event. The queue must open with one run of the messages that were sent: all that
was flushed from the head of that time on, none of an earlier use of a page (I13); and so again
after it was used, and cut, once more.

Wakes: a sender waits for room, and a named consumer or a group acknowledges, seeks or rejects what
held its page: that rings the bell of senders before the call returns.

A case is a page that was used again, a state, or a sender that waited.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from stress import driver
from stress.campaign import Budget, Outcome
from stress.ring_cuts import State, record
from stress.ring_holders import hold
from stress.ring_wakes import wake

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_SECONDS = 3.0
VIOLATIONS_MAX: Final = 3
STATES: Final = 40
"""Of each recording."""


def cuts(directory: Path, rng: Random, is_over: Callable[[], bool]) -> tuple[int, list[str]]:
    """Record a ring, and cut it at many events."""
    seed, cases, wrong = rng.getrandbits(40), 0, list[str]()
    recorded = record(directory / "live", seed)
    while cases < STATES and not wrong and (cases == 0 or not is_over()):
        state_seed = rng.getrandbits(40)
        state = State(recorded, directory / "cut", Random(state_seed))
        wrong = [
            f"ring {seed}, state {state_seed}, cut before event {state.moment} of "
            f"{recorded.tree.now}: {text}"
            for text in state.wrong()
        ]
        cases += 1
        shutil.rmtree(directory / "cut")
    return cases, wrong


def campaign(budget: Budget) -> Outcome:
    """Take turns until the budget is used up."""
    rng = Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    parts = {"holders": hold, "cuts": cuts, "wakes": wake}
    outcome = Outcome(0, notes=dict.fromkeys(parts, 0))

    def is_over() -> bool:
        done = budget.cases is not None and outcome.cases >= budget.cases
        return (
            done
            or len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
            or time.monotonic() > deadline
        )

    while not is_over():
        for name, part in parts.items():
            base = Path(tempfile.mkdtemp(prefix="pagequeue-ring-", dir=driver.scratch_directory()))
            try:
                cases, wrong = part(base, rng, is_over)
            except Exception as error:  # noqa: BLE001  nothing of it may fail
                cases, wrong = 1, [f"{type(error).__name__}: {error}"]
            finally:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(base)
            outcome.cases += cases
            outcome.notes[name] += cases
            outcome.violations += [f"{name}: {text}" for text in wrong]
    outcome.require(budget, {name: outcome.notes[name] for name in parts})
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
