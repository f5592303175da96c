"""Forbids what weak memory shows too early, and missed wake-ups, by model checking.

Spin searches every state of the models in `stress/model`: each must hold in a complete search that
reaches every statement, and each mutation of it must fail with the outcome that `CASES` names. The
search is exhaustive, so it ignores the budget's seconds and seed; the budget's cases, counted from
the start of `CASES`, limit it. A short run searches each model once, with fewer messages or deaths,
and no mutation. Needs `spin` and `gcc` (Debian packages).

To see how one fails: `spin -DNO_ZERO -run -safety -noreduce stress/model/publish.pml`, then
`spin -DNO_ZERO -t -p stress/model/publish.pml`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stress.campaign import Budget, Outcome

SHORT_SECONDS = 1.0

MODEL_DIRECTORY = Path(__file__).resolve().parent / "model"
TOOLS = {"spin": "spin", "gcc": "gcc"}
"""Each program with the Debian package that has it."""
PARALLEL_MAX = 2
MEMORY_MAX_MEBIBYTES = 900
CASE_MAX_SECONDS = 1200.0
DEPTH_MAX = 100_000


@dataclass(frozen=True)
class Case:
    """A model and how it is searched.

    Attributes:
        model: its name.
        switches: that it is built with.
        caught: the outcome by which it must fail, if it must.
        smaller: switches of the smaller search of a short run; None: it has none.
        small: whether this is that search.
    """

    model: str
    switches: tuple[str, ...] = ()
    caught: str | None = None
    smaller: tuple[str, ...] | None = None
    small: bool = False

    @property
    def name(self) -> str:
        """Return the model with its switches, as the notes show it."""
        return " ".join([self.model, *self.switches])

    def shortened(self, smaller: tuple[str, ...]) -> Case:
        """Return the search of a short run."""
        switches = (*self.switches, *smaller)
        return dataclasses.replace(self, switches=switches, small=bool(smaller))


TORN = "first==log_payload[seen]"
UNPUBLISHED = "seen<published"
MISCOUNTED = "count==published"
DEADLOCK = "invalid end state"
NOT_ON_DISK = "disk>=own"
OTHER_SEQUENCE = "memory[(3+page)]==(seen+1)"
NO_PAGE = "file[0]!=0"
NOT_WHOLE = "seen==published"
TAIL_AHEAD = "(first+count)<=published"
TAIL_INSIDE = "(first+count)>=(staged_first+3)"
FOREIGN_PAGE = "file[0]==2"
ENTRY_ALONE = "staged_first!=255"

CASES = (
    Case("publish", smaller=("ATTEMPTS=2",)),
    Case("publish", ("TAIL_READER",), smaller=("ATTEMPTS=2",)),
    Case("publish", ("INDEX", "ATTEMPTS=2")),
    Case("publish", ("INDEX", "ATTEMPTS=2", "TAIL_READER")),
    Case("doorbell", smaller=("MESSAGES=2",)),
    # The length is not a release: seen before its payload.
    Case("publish", ("WEAK_LENGTH",), TORN),
    # The reader's load of the length is not an acquire.
    Case("publish", ("WEAK_ACQUIRE",), TORN),
    # A dead holder's longer frame shows through after a shorter one.
    Case("publish", ("NO_ZERO",), UNPUBLISHED),
    Case("publish", ("ZERO_LATE",), UNPUBLISHED),
    # Half a batch is seen.
    Case("publish", ("BATCH_FIRST",), "!(more)"),
    # Dead between the two: a hole that no reader passes.
    Case("publish", ("TAIL_FIRST",), MISCOUNTED),
    # Position and count in two stores drift apart.
    Case("publish", ("SPLIT_TAIL",), MISCOUNTED),
    # The tail is not a release: counted before it is there.
    Case("publish", ("WEAK_TAIL", "TAIL_READER"), "memory[position]==log_word[j]"),
    # Settling a dead holder's batch shows a tail inside it.
    Case("publish", ("RESOLVE_BY_FRAME", "TAIL_READER"), "(log_word[(j-1)]&8)==0"),
    # What a dead holder published is laid over.
    Case("publish", ("NO_WALK",), MISCOUNTED),
    # The lock is released before its last holder's stores are visible: alive, dead.
    Case("publish", ("WEAK_UNLOCK",), MISCOUNTED),
    Case("publish", ("EARLY_HANDOVER",), MISCOUNTED),
    # The lock of a dead holder is never released.
    Case("publish", ("NOT_ROBUST",), DEADLOCK),
    Case("doorbell", ("NO_PRODUCER_FENCE",), DEADLOCK),
    Case("doorbell", ("NO_CONSUMER_FENCE",), DEADLOCK),
    Case("doorbell", ("NO_SECOND_LOOK",), DEADLOCK),
    # The doorbell is moved before the waiters word is taken back, or not at all.
    Case("doorbell", ("BELL_FIRST",), DEADLOCK),
    Case("doorbell", ("NO_BELL",), DEADLOCK),
    # The consumer polls the doorbell after it announced that it may be asleep.
    Case("doorbell", ("LATE_BELL",), DEADLOCK),
    Case("flush", smaller=()),
    # The mark is raised before the sync, or to a tail that the sync did not see.
    Case("flush", ("EARLY_MARK",), NOT_ON_DISK),
    Case("flush", ("LATE_TAIL",), NOT_ON_DISK),
    # A woken waiter takes that for durable.
    Case("flush", ("TRUST_TURN",), NOT_ON_DISK),
    # The turn ends before the mark is raised, or only for the process that began it, or silently.
    Case("flush", ("TURN_FIRST",), DEADLOCK),
    Case("flush", ("OWN_TURN_ONLY",), DEADLOCK),
    Case("flush", ("NO_WAKE",), DEADLOCK),
    # A leader that died is waited for without end.
    Case("flush", ("NO_TIME_LIMIT",), DEADLOCK),
    Case("bulk_commit", smaller=("ATTEMPTS=2", "DEATHS=1")),
    Case("bulk_commit", ("TAIL_READER", "ATTEMPTS=2"), smaller=("DEATHS=1",)),
    # A producer continues in the page after which the pages are to come.
    Case("bulk_commit", ("NO_FREEZE",), OTHER_SEQUENCE),
    Case("bulk_commit", ("NO_FREEZE", "TAIL_READER"), TAIL_INSIDE),
    # Producers continue in the last page before the marker links it, or its fields are stored.
    Case("bulk_commit", ("PAGE_FIRST",), NOT_WHOLE),
    Case("bulk_commit", ("PAGE_FIRST", "TAIL_READER"), TAIL_AHEAD),
    Case("bulk_commit", ("WEAK_PAGE", "TAIL_READER"), TAIL_AHEAD),
    # The mark leads to pages without names.
    Case("bulk_commit", ("NAMES_LATE",), NO_PAGE),
    # Pages that wait without a record, or with a record that is never checked, are rolled into.
    Case("bulk_commit", ("RECORD_LATE",), FOREIGN_PAGE),
    Case("bulk_commit", ("RECORD_FIRST",), FOREIGN_PAGE),
    Case("bulk_commit", ("NO_CHECK",), FOREIGN_PAGE),
    # A process that finds a record does not check whether the end-of-page marker is present.
    Case("bulk_commit", ("ROLL_BACK_ALWAYS",), NOT_WHOLE),
    # The entry is written before its messages are published.
    Case("bulk_commit", ("ENTRY_EARLY",), ENTRY_ALONE),
)


def missing_tools() -> list[str]:
    """Return a sentence for each program that is not installed."""
    return [
        f"`{program}` is not installed: apt-get install {package}"
        for program, package in TOOLS.items()
        if shutil.which(program) is None
    ]


def search(case: Case) -> str:
    """Build the search for one case, run it, and return what it printed.

    Raises:
        subprocess.CalledProcessError: Spin or the compiler refused the model.
        subprocess.TimeoutExpired: the search took longer than `CASE_MAX_SECONDS`.
    """
    # A mutation fails after few states: there compiling takes longer than searching.
    optimized = "-O1" if case.caught is None and not case.small else "-O0"
    steps = (
        [
            "spin",
            *(f"-D{switch}" for switch in case.switches),
            "-a",
            str(MODEL_DIRECTORY / f"{case.model}.pml"),
        ],
        [
            # States are stored whole: compressed ones take a third longer, and half the memory.
            *("gcc", optimized, "-w", "-DSAFETY", "-DNOREDUCE"),
            *(f"-DMEMLIM={MEMORY_MAX_MEBIBYTES}", "-o", "search", "pan.c"),
        ],
        ["./search", f"-m{DEPTH_MAX}", "-w22"],
    )
    printed = ""
    with tempfile.TemporaryDirectory(prefix="pagequeue-model-") as directory:
        for step in steps:
            done = subprocess.run(
                step,
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=CASE_MAX_SECONDS,
                check=True,
            )
            printed = done.stdout
    return printed


def unreached(printed: str) -> list[str]:
    """Return the statements that no state reaches, without `-end-` of an endless process."""
    found = re.findall(r'^\t\S*?(\w+\.pml:\d+), state \d+, "(.*)"$', printed, re.MULTILINE)
    return [f"{place} {statement}" for place, statement in found if statement != "-end-"]


def verdict(case: Case, printed: str) -> str | None:
    """Return what is wrong with a search's result, None if it is as it must be."""
    errors = re.search(r"errors: (\d+)", printed)
    if errors is None:
        return f"the search did not end as a search does:\n{printed}"
    failure = re.search(r"^pan:\d+: (.*)$", printed, re.MULTILINE)
    how = failure[1] if failure else "no error"
    if case.caught is not None:
        return None if case.caught in how else f"must fail by {case.caught}, but: {how}"
    if errors[1] != "0" or failure:
        return how
    for flaw in ("max search depth too small", "Search not completed", "out of memory"):
        if flaw in printed:
            return f"not searched to the end: {flaw}"
    never = unreached(printed)
    return f"never reached: {'; '.join(never)}" if never else None


def judge(case: Case) -> tuple[str | None, dict[str, Any]]:
    """Run one case; return what is wrong, or None, and figures for the notes."""
    started = time.monotonic()
    try:
        printed = search(case)
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]} ended with {error.returncode}:\n{error.stdout}", {}
    except subprocess.TimeoutExpired as error:
        return f"not searched to the end in {error.timeout:g} s", {}
    wrong = verdict(case, printed)
    states = re.search(r"^\s*(\d\S*) states, stored", printed, re.MULTILINE)
    memory = re.search(r"^\s*(\S+)\s+total actual memory usage", printed, re.MULTILINE)
    figures = {
        "result": "holds" if case.caught is None else f"caught by {case.caught}",
        "states": int(float(states[1])) if states else None,
        "mebibytes": round(float(memory[1])) if memory else None,
        "seconds": round(time.monotonic() - started, 1),
    }
    if wrong is not None:
        figures["result"] = "WRONG"
    return wrong, figures


def run(budget: Budget) -> Outcome:
    """Search every model and every mutation; in short every model, by its smaller search."""
    missing = missing_tools()
    if missing:
        return Outcome(0, missing)
    cases = list(CASES)
    if budget.short:
        cases = [one.shortened(one.smaller) for one in CASES if one.smaller is not None]
    cases = cases[: budget.cases]
    workers = min(PARALLEL_MAX, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(judge, cases))
    outcome = Outcome(len(cases))
    for case, (wrong, figures) in zip(cases, results, strict=True):
        outcome.notes[case.name] = figures
        if wrong is not None:
            outcome.violations.append(f"{case.name}: {wrong}")
    return outcome
