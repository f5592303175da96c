"""Forbids that any combination of public operations breaks a promise, or touches others' files.

In rounds, several processes play scenes at once (`combined/scene.py`): queues are opened, used by
threads, event loops and signal handlers, and closed, dropped, collected or forked meanwhile; others
are opened right then. Processes are killed, and others take their places; command lines send,
inspect, and read into pipes that close; one process trims many pages at once while it sends. A
clock jumps; directories move and vanish; jobs fail for ever, or kill their workers. Every operation
must end in its result or in an error that its documentation names; no call may hang. When all have
ended, each queue is judged separately (`combined/judge.py`): every acknowledged send is
there once and in order, no other message is; consumers, groups and flows skipped none. A queue to
which no process writes is opened all the while, and its files must not change
(`combined/files.py`). A case is a scene. A run in which a kind of operation never happened fails.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.crew import Crew
from stress.lodgers import Resources, resources
from stress.roles import NO_MORE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stress.combined.files import Watch
    from stress.combined.ground import Ground

SHORT_SECONDS = 4.0
SHORT_PARTS: Final = ("scene", "spawn", "kill", "record", "trim many pages")
"""What a short run must have, and a command line: each is another process's."""
ROUND_SECONDS: Final = 9.0
WRONG_SHARE, RIGHT_SHARE = 0.1, 0.25
"""Of the turns in which the clock is right or wrong, after which it is set."""
MEAN_LIFE_SECONDS: Final = 0.5
TURN_SECONDS: Final = 0.05
LIVE_TURNS: Final = 6
END_SECONDS: Final = 60.0
JUDGE_SECONDS: Final = 240.0
"""A process of it that does not go on ends itself sooner."""
BUSY_SECONDS: Final = 60.0
"""On busy cores a run takes so much longer, until each kind of operation has happened."""
PLAYER, KILLED, RECORDER, SHELL, MANY = "player", "killed player", "recorder", "shell", "trimmer"
MOVER, FAILING = "mover", "failing jobs"
SLOTS: Final = {PLAYER: 1, KILLED: 2, RECORDER: 1, SHELL: 1, MANY: 1, MOVER: 1, FAILING: 1}
GRACE_SECONDS: Final = 300.0
"""The last round and its judging."""
SLACK_BYTES: Final = 4 << 20
WARM_UP_ROUNDS: Final = 3


class Round:
    """One set of queues, and the processes that use them."""

    def __init__(self, base: str, bystander: str, seed: int, deadline: float) -> None:
        from stress.combined import (  # noqa: PLC0415  the core is chosen by now
            commands,
            failing,
            ground,
            moving,
            worker,
        )

        self.rng = random.Random(seed)
        self.ground: Ground = ground.Ground(base, bystander, self.rng.getrandbits(60))
        self.seed = self.ground.seed
        self.deadline = deadline
        roles: dict[str, Callable[[Ground, int, int], None]] = {
            PLAYER: worker.play,
            KILLED: worker.play,
            RECORDER: worker.record,
            SHELL: commands.shell,
            MANY: worker.trim_many,
            MOVER: moving.move,
            FAILING: failing.fail,
        }
        self.crew = Crew(self.ground, self.rng, SLOTS, roles)
        self.spawned: subprocess.Popen[bytes] | None = None
        self.violations: list[str] = []

    def run(self, watch: Watch) -> None:
        """Run all processes, kill some, and check the files all the time."""
        from stress.combined.files import LiveWatch  # noqa: PLC0415  the core is chosen by now
        from stress.combined.ground import CLOCK_AT  # noqa: PLC0415  the same

        crew, ground = self.crew, self.ground
        self._apart(ground.create, "making the queues")
        if self.violations:
            return
        live = LiveWatch([spec for spec in ground.specs if not spec.is_moved])
        for slot in crew.slots:
            crew.start(slot)
        order = json.dumps([ground.base, ground.bystander, self.seed, self.rng.getrandbits(60)])
        self.spawned = subprocess.Popen([sys.executable, "-m", "stress.combined", order])
        next_kill = time.monotonic()
        turn = 0
        while time.monotonic() < self.deadline and not self.violations and not ground.errors.said():
            time.sleep(TURN_SECONDS)
            turn += 1
            self.violations += watch.changed()
            if turn % LIVE_TURNS == 0:
                self.violations += live.changed()
            self._set_clock()
            self._look_at_ends()
            if time.monotonic() > next_kill:
                next_kill = time.monotonic() + self.rng.expovariate(1 / MEAN_LIFE_SECONDS)
                self._kill()
        ground.phase[CLOCK_AT] = 0
        ground.phase[0] = NO_MORE
        if self.violations or ground.errors.said():
            self._hangs()
            return
        for slot in list(crew.pids):
            crew.leave(slot)
        self._leave_spawned()
        self._hangs()
        self.violations += crew.violations + live.changed() + live.changed_strangers()
        self.violations += watch.changed() + watch.changed_bytes()

    def _apart(self, body: Callable[[], None], name: str) -> None:
        pid = children.fork(body, self.ground.errors, name)
        status = children.ended(pid, JUDGE_SECONDS)
        if status is None:
            children.kill(pid)
            self.violations.append(f"{name} hangs for {JUDGE_SECONDS:g} s")
        elif status != 0:
            self.violations.append(f"{name} ended with status {status}")

    def _kill(self) -> None:
        killed = [slot for slot in self.crew.pids if slot[0] in {KILLED, RECORDER}]
        slot = self.rng.choice(killed)
        try:
            self.crew.start_again([slot])
        except ProcessLookupError:
            return
        self.ground.note("kill")

    def _set_clock(self) -> None:
        """Set the clock ahead or back for a moment, or right again."""
        from stress.combined.ground import CLOCK_AT, SHIFTS  # noqa: PLC0415  the core is chosen

        is_wrong = self.ground.phase[CLOCK_AT] != 0
        if self.rng.random() < (RIGHT_SHARE if is_wrong else WRONG_SHARE):
            self.ground.phase[CLOCK_AT] = 0 if is_wrong else self.rng.randrange(1, len(SHIFTS))
            self.ground.note("set clock")

    def _look_at_ends(self) -> None:
        """Record processes that exited unasked, which only the one that trims many pages may do."""
        for slot, pid in list(self.crew.pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self.crew.pids[slot]
                if status != 0:
                    self.violations.append(f"{slot[0]} ended with status {status}")
        self._hangs()

    def _hangs(self) -> None:
        from stress.combined.worker import HANGS  # noqa: PLC0415  the core is chosen by now

        for path in Path(self.ground.base).glob(f"{HANGS}-*"):
            words = path.read_text("utf-8")
            if words:
                self.violations.append(f"hangs: {words}")
                path.unlink()

    def _leave_spawned(self) -> None:
        if self.spawned is None:
            return
        try:
            code = self.spawned.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.spawned.kill()
            self.spawned.wait()
            self.violations.append(f"the spawned process hangs for {END_SECONDS:g} s")
            return
        if code != 0:
            self.violations.append(f"the spawned process ended with {code}")

    def prove(self) -> None:
        """Judge all queues, in a separate process."""
        from stress.combined.judge import judge  # noqa: PLC0415  the core is chosen by now

        self._apart(lambda: judge(self.ground, 0, 0), "judging")
        self._hangs()

    def end(self) -> None:
        """End what still runs."""
        for pid in self.crew.pids.values():
            children.kill(pid)
        if self.spawned is not None and self.spawned.poll() is None:
            self.spawned.kill()
            self.spawned.wait()
        self.violations += self.ground.errors.said()
        self.ground.close()


def one_round(
    base: str, bystander: str, watch: Watch, seed: int, deadline: float
) -> tuple[list[str], dict[str, int]]:
    """Run one round in a new directory; return what is wrong, and which operations it had."""
    with tempfile.TemporaryDirectory(prefix="round-", dir=base) as directory:
        current = Round(directory, bystander, seed, deadline)
        try:
            current.run(watch)
            if not current.violations and not current.ground.errors.said():
                current.prove()
        finally:
            counts = current.ground.counts()
            current.end()
    return current.violations, counts


def bystander_in(base: str) -> str:
    """Make the queue to which no process writes, in a separate process."""
    from stress.combined import files  # noqa: PLC0415  the core is chosen by now

    path = os.path.join(base, "bystander")
    errors = children.ErrorFile(Path(base, "errors"))
    made = children.fork(lambda: files.make_bystander(path), errors, "the bystander")
    if children.ended(made, JUDGE_SECONDS) != 0:
        raise RuntimeError(f"making the bystander failed: {errors.said()}")
    errors.close()
    return path


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    from stress.combined import files  # noqa: PLC0415  the core is chosen by now

    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0)
    counts: Counter[str] = Counter()
    held: list[Resources] = []
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-combined-", dir=driver.scratch_directory()
    ) as base:
        bystander = bystander_in(base)
        watch = files.Watch(bystander)
        while is_wanted(budget, deadline, counts) and not outcome.violations:
            seed = rng.getrandbits(32)
            until = time.monotonic() + min(ROUND_SECONDS, budget.seconds)
            wrong, did = one_round(base, bystander, watch, seed, until)
            outcome.violations += [f"round {len(held)} (its seed {seed}): {w}" for w in wrong]
            counts.update(did)
            outcome.cases = counts["scene"]
            held.append(resources(base))
    outcome.violations += grown(held)
    outcome.require(budget, parts(budget, counts))
    outcome.notes = {"rounds": len(held), **counts, "held": str(held[-1]) if held else ""}
    return outcome


def is_wanted(budget: Budget, deadline: float, counts: Counter[str]) -> bool:
    """Whether another round follows: also where busy cores left out a kind of operation."""
    left = deadline - time.monotonic()
    if left > 0:
        return budget.cases is None or counts["scene"] < budget.cases
    return left > -BUSY_SECONDS and not all(parts(budget, counts).values())


def parts(budget: Budget, counts: Mapping[str, int]) -> dict[str, int]:
    """Return how often each part of the campaign happened, as its processes noted."""
    from stress.combined.ground import COMMANDS, KINDS  # noqa: PLC0415  the core is chosen by now

    if not budget.short:
        return {kind: counts.get(kind, 0) for kind in KINDS}
    some = {kind: counts.get(kind, 0) for kind in SHORT_PARTS}
    return some | {"commands": sum(counts.get(kind, 0) for kind in COMMANDS)}


def grown(held: list[Resources]) -> list[str]:
    """Return what this process has more of than it had after the first rounds."""
    if len(held) <= WARM_UP_ROUNDS:
        return []
    first, last = held[WARM_UP_ROUNDS], held[-1]
    wrong = [
        f"the campaign has {getattr(last, what)} {what}, {getattr(first, what)} at first"
        for what in ("descriptors", "threads", "maps", "stores")
        if getattr(last, what) > getattr(first, what)
    ]
    if last.anonymous_bytes > first.anonymous_bytes + SLACK_BYTES:
        wrong.append(
            f"the campaign has {last.anonymous_bytes} bytes, {first.anonymous_bytes} first"
        )
    return wrong


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget, grace_seconds=GRACE_SECONDS)
