"""One worker of the power-cut campaign: records runs, and tries the states that cuts can leave.

It runs in a separate process, with the recorder preloaded and a core whose kill points the
recorder sees. Of each run it tries many states by the fast engine and some by the full one; some of
the latter are cut a second time, while they recover.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import driver
from stress.campaign import Budget, Outcome
from stress.cut.full import Full
from stress.cut.native import MODES, RESULTS, SEEDS_PER_MOMENT, Found, Seen, States
from stress.cut.plan import COMMIT_POINTS, HEADER_POINTS, LEAP_POINTS, Plan, steps_of
from stress.cut.recording import Recorder, Recording
from stress.cut.run import record
from stress.cut.shipping import Shipping

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stress.cut.plan import Step

LABEL_VARIABLE: Final = "PAGEQUEUE_CUT_LABEL"
"""Names the file that records which state is being tried, in case the process dies of it."""
DIE_PUBLISHING: Final = "die publishing"
GIVEN_UP: Final = "die with pages to remove"
HALF_A_ROLL: Final = "die in a roll from a page with room"
SHIP: Final = "ship"
LARGE: Final = "large"
TURNS: Final = (
    "fail",
    "die",
    SHIP,
    GIVEN_UP,
    HALF_A_ROLL,
    LARGE,
    "flush",
    "send",
    "trim",
    "publish",
    HALF_A_ROLL,
    SHIP,
    GIVEN_UP,
    "die",
    LARGE,
    "take",
    "flush inside",
    DIE_PUBLISHING,
)
"""What each of the runs has; the second worker begins in the middle."""
CHUNK: Final = 32 * SEEDS_PER_MOMENT
FAST_SECONDS: Final = 0.15
FULL_SECONDS: Final = 0.5
FAST_SHARE: Final = 0.1
FULL_SHARE: Final = 0.4
"""At least these seconds, and these shares of the time that recording took: on a busy machine, too,
a run is worth recording only for the states that are tried of it."""
SECOND_CUTS: Final = 4
THIRD_CUTS: Final = 0.25
"""Share of the second cuts whose recovery is cut, too."""
SECOND_FAST_SECONDS: Final = 0.04
SECOND_FULL_SECONDS: Final = 0.04
AGAIN_EVERY: Final = 4
FOLLOWING: Final = 6
"""So many steps follow at least the death of a publisher whose pages others must remove."""
LABEL_BYTES: Final = 200
VIOLATIONS_ENOUGH: Final = 2


def kept_directory() -> Path:
    """Return where recordings of violations are kept."""
    path = Path(tempfile.gettempdir()) / f"pagequeue-cuts-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


class Worker:
    """Tries states until the budget is used up."""

    def __init__(self, budget: Budget, directory: Path, turns: Sequence[str] = TURNS) -> None:
        self.turns = turns
        self.budget = budget
        self.rng = random.Random(budget.seed)
        self.deadline = time.monotonic() + budget.seconds
        self.recorder = Recorder()
        self.base = driver.scratch_directory()
        self.full = Full(directory, self.recorder)
        self.seen = Seen()
        self.defines = driver.defines()
        self.outcome = Outcome(0)
        self.counts = dict.fromkeys(
            (
                "traces",
                "second cuts",
                "third cuts",
                "fast states",
                "fast states of second cuts",
                "full states",
                "full states of second cuts",
                "full states of replicas",
                "recovered twice",
            ),
            0,
        )
        self.modes = dict.fromkeys(MODES, 0)
        self.label = os.environ.get(LABEL_VARIABLE, os.devnull)
        self.enough = driver.violations_enough(VIOLATIONS_ENOUGH)
        # Next to the labels of all workers: one that has found enough ends the others.
        self.found = Path(self.label).with_name("found")
        self.was_stopped = False

    def run(self) -> Outcome:
        """Take one run after the other."""
        # Short as it is, a run of two workers has all turns.
        begin = self.budget.seed % 2 * (len(self.turns) // 2)
        for turn in itertools.cycle([*self.turns[begin:], *self.turns[:begin]]):
            if self.finished():
                break
            if turn == SHIP:
                self.ship_run(self.rng.getrandbits(31))
            else:
                self.one_run(self.seed_for(turn))
        fast = sum(count for name, count in self.counts.items() if name.startswith("fast"))
        full = sum(count for name, count in self.counts.items() if name.startswith("full"))
        self.outcome.cases = fast + full
        self.counts["lines of the library with a snapshot"] = self.recorder.lines
        if self.counts["traces"] and not self.recorder.lines and not self.was_stopped:
            self.outcome.violations.append("no line of the library had a snapshot")
        self.outcome.notes = {
            **self.counts,
            **{f"fast, by {mode}": count for mode, count in self.modes.items()},
            "fast, distinct states (estimated)": min(self.seen.distinct(), fast),
        }
        return self.outcome

    def finished(self) -> bool:
        """Whether the budget is used up, or there are enough violations to examine."""
        done = sum(count for name, count in self.counts.items() if " states" in name)
        enough = self.budget.cases is not None and done >= self.budget.cases
        failed = len(self.outcome.violations) >= self.enough
        if self.enough == 1 and self.label != os.devnull:
            if failed:
                self.found.touch()
            self.was_stopped = self.found.exists()
        late = time.monotonic() >= self.deadline and done > 0
        return enough or failed or self.was_stopped or late

    def seed_for(self, verb: str) -> int:
        """Return the seed of a plan in which this is done; every kind of plan has its turn."""
        while True:
            seed = self.rng.getrandbits(31)
            plan = Plan.of(seed)
            if (verb == "publish" and plan.publishes) or (verb == LARGE and plan.large):
                return seed
            if has(verb, steps_of(plan)):
                return seed

    def one_run(self, seed: int) -> None:
        """Record one run and cut it."""
        self.say(f"recording trace {seed}")
        began = time.monotonic()
        try:
            recording = record(seed, self.recorder, self.base)
        except Exception as error:  # noqa: BLE001  any exception is an error of the run itself
            self.outcome.violations.append(
                f"trace {seed}, {Plan.of(seed).words}: before any cut: "
                f"{type(error).__name__}: {error}"
            )
            return
        self.counts["traces"] += 1
        took = time.monotonic() - began
        states = States(recording, self.defines)
        try:
            seconds = max(FAST_SECONDS, FAST_SHARE * took)
            whole = self.fast(recording, states, seconds, "fast states")
            seconds = max(FULL_SECONDS, FULL_SHARE * took)
            whole = whole and self.fully(recording, states, seconds, "full states")
            for _ in range(SECOND_CUTS):
                if not whole or self.finished():
                    break
                whole = self.second_cut(recording, states)
        finally:
            states.close()

    def ship_run(self, seed: int) -> None:
        """Record how sealed pages are shipped, and cut the power of their replica."""
        self.say(f"shipping by {seed}")
        began = time.monotonic()
        shipping = Shipping(seed, self.recorder, self.base)
        try:
            recording = shipping.record()
            took = time.monotonic() - began
            sent = shipping.payloads()
            states = States(recording, self.defines)
            try:
                seconds = max(FULL_SECONDS, FULL_SHARE * took)
                self.cut_replica(shipping, recording, states, sent, seconds)
            finally:
                states.close()
        except (RuntimeError, ValueError) as error:
            self.outcome.violations.append(f"shipping by {seed}, before any cut: {error}")
        finally:
            shipping.close()

    def cut_replica(
        self,
        shipping: Shipping,
        recording: Recording,
        states: States,
        sent: list[bytes],
        seconds: float,
    ) -> None:
        """Try states of a replica until the time is up or one is wrong."""
        self.counts["traces"] += 1
        for _ in self.in_time(seconds):
            seed, mode = self.seeds()
            self.say(f"{recording.name}, state {seed} by {MODES[mode]}")
            states.choose(seed, mode)
            moment = states.check().moment
            self.counts["full states of replicas"] += 1
            wrong = shipping.wrong_with(states.files(), recording.shipped_at(moment), sent)
            if wrong:
                path = kept_directory() / f"replica-{recording.seed}-{seed}-{mode}.cut"
                recording.save(path)
                self.outcome.violations.append(
                    f"{recording.name}, state {seed} by {MODES[mode]}, cut before event {moment}, "
                    f"recorded in {path}: {'; '.join(wrong)}"
                )
                return

    def say(self, label: str) -> None:
        """Write down what is tried now."""
        with open(self.label, "r+b" if os.path.exists(self.label) else "wb") as file:
            file.write(label.encode().ljust(LABEL_BYTES)[:LABEL_BYTES])

    def seeds(self) -> tuple[int, int]:
        """Return the first seed of some cuts, and a mode."""
        return self.rng.getrandbits(56) * SEEDS_PER_MOMENT, self.rng.choice((0, 0, 1, 1, 2))

    def in_time(self, seconds: float) -> Iterator[int]:
        """Count, as long as there is time, and at least once."""
        ends = min(time.monotonic() + seconds, self.deadline)
        number = 0
        while number == 0 or (time.monotonic() < ends and not self.finished()):
            yield number
            number += 1

    # --- engines ----------------------------------------------------------------------------------

    def fast(self, recording: Recording, states: States, seconds: float, counted: str) -> bool:
        """Try states in memory; return whether all were fine."""
        for _ in self.in_time(seconds):
            seed, mode = self.seeds()
            left = CHUNK if self.budget.cases is None else min(CHUNK, self.budget.cases)
            tried, found = states.run(seed, mode, left, self.seen)
            self.counts[counted] += tried
            self.modes[MODES[mode]] += tried
            if found is not None:
                self.violation(recording, states, found.seed, mode, RESULTS[found.result])
                return False
        return True

    def fully(self, recording: Recording, states: States, seconds: float, counted: str) -> bool:
        """Try states with the library; return whether all were fine."""
        for number in self.in_time(seconds):
            seed, mode = self.seeds()
            again = number % AGAIN_EVERY == 0
            self.counts[counted] += 1
            self.counts["recovered twice"] += again
            wrong, _ = self.tried(recording, states, seed, mode, again=again)
            if wrong:
                self.violation(recording, states, seed, mode, "the library")
                return False
        return True

    def tried(
        self, recording: Recording, states: States, seed: int, mode: int, *, again: bool
    ) -> tuple[list[str], Found]:
        """Try one state by both engines."""
        self.say(f"{recording.name}, state {seed} by {MODES[mode]}")
        states.choose(seed, mode)
        found = states.check()
        wrong = self.full.try_state(
            Plan.of(recording.seed),
            recording.messages(),
            states.files(),
            found,
            recording.places_at(found.moment),
            recording.published_at(found.moment),
            again=again,
        )
        if found.result and not wrong:
            wrong = [f"the library reports no error where the fast engine does: {found.words}"]
        return wrong, found

    def second_cut(self, recording: Recording, states: States, nth: str = "second") -> bool:
        """Recover a state under the recorder, and cut that too; and sometimes once more."""
        seed, mode = self.seeds()
        states.choose(seed, mode)
        found = states.check()
        name = f"recovered from state {seed} by {MODES[mode]}"
        self.say(f"{recording.name}, {name}")
        plan = Plan.of(recording.seed)
        try:
            recovery = self.full.record_recovery(recording, plan, states.files(), found, name)
        except Exception as error:  # noqa: BLE001  recovering or sending on failed: that is the case
            self.outcome.violations.append(
                f"{recording.name}, {name}: {type(error).__name__}: {error}"
            )
            return False
        self.counts[f"{nth} cuts"] += 1
        again = States(recovery, self.defines)
        try:
            whole = self.fast(recovery, again, SECOND_FAST_SECONDS, "fast states of second cuts")
            whole = whole and self.fully(
                recovery, again, SECOND_FULL_SECONDS, "full states of second cuts"
            )
            if whole and nth == "second" and self.rng.random() < THIRD_CUTS:
                whole = self.second_cut(recovery, again, "third")
            return whole
        finally:
            again.close()

    def violation(
        self, recording: Recording, states: States, seed: int, mode: int, said_by: str
    ) -> None:
        """Keep the recording, ask both engines once more, and print how to repeat it."""
        path = kept_directory() / f"{recording.seed}-{seed}-{mode}.cut"
        recording.save(path)
        wrong, found = self.tried(recording, states, seed, mode, again=True)
        self.outcome.violations.append(
            f"{recording.name} ({Plan.of(recording.seed).words}), state {seed} by {MODES[mode]}: "
            f"{said_by}: fast engine: {found.words}; full engine: {'; '.join(wrong) or 'fine'}; "
            f"again: python -m stress.cut {path} {seed} {mode}"
        )


def has(verb: str, steps: Sequence[Step]) -> bool:
    """Whether a plan has this: a verb, or a death that leaves the others the most to do."""
    if verb == DIE_PUBLISHING:
        return any(step.point in LEAP_POINTS for step in steps)
    if verb == GIVEN_UP:
        return any(step.point in COMMIT_POINTS for step in steps[:-FOLLOWING])
    if verb == HALF_A_ROLL:
        return any(
            step.rotates_and_dies and step.point in HEADER_POINTS and _is_flushed(following)
            for step, following in _with_following(steps)
        )
    return any(step.verb == verb for step in steps)


def _is_flushed(following: Sequence[Step]) -> bool:
    """Whether the next steps send a little, and flush it."""
    return [step.verb for step in following[:3]] == ["send", "send", "flush"]


def _with_following(steps: Sequence[Step]) -> Iterator[tuple[Step, Sequence[Step]]]:
    for at, step in enumerate(steps):
        yield step, steps[at + 1 :]


def campaign(budget: Budget) -> Outcome:
    """Be one worker."""
    directory = tempfile.mkdtemp(prefix="pagequeue-cut-", dir=driver.scratch_directory())
    try:
        return Worker(budget, Path(directory)).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
