"""Forbids that SIGKILL, at any time, loses, doubles, tears or reorders what was sent.

Three producers, with every kind of `sync` and clocks that step back, send single messages, batches
and page ends; three consumers receive; helpers flush, roll, verify and fork (`roles.py`). Several
of them at once are killed and started again, or one is stopped for a while; one producer and one
consumer are only killed when all are. That happens now and then, also with the shared state made
to look like another boot's, so that the next opener has to recover, and is killed in it. A round
ends with all told to stop, or with all killed; then the queue is opened again and proved, message
by message, against what every producer had been told, and every consumer's stream against the
replay (I1 to I5, I8, I10). A case is a kill.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress import children, driver, tampering
from stress.crew import Crew
from stress.history import Seen, all_of
from stress.roles import (
    CONSUMER,
    HELPER,
    NO_MORE,
    NO_MORE_SENDING,
    PAGE_BYTES,
    PRODUCER,
    ROLES,
    SHAPE,
    Ground,
)
from stress.rounds import in_rounds
from stress.traffic import VIOLATIONS_MAX, Proof

if TYPE_CHECKING:
    import random

    from stress.campaign import Budget, Outcome
    from stress.crew import Slot

SHORT_SECONDS = 4.0

SLOTS = {PRODUCER: 3, CONSUMER: 3, HELPER: 2}
ROUND_BYTES_MAX = 64 << 20
ROUND_KILLS_MAX = 400
MEAN_PAUSE = 0.018
AT_ONCE = (1, 1, 2, 2, 3, 4)
STOP_SHARE = 0.1
KILL_ALL_SHARE = 0.03
CUT_SHARE = 0.5
RECOVERY_SECONDS = 0.006
"""Openers are killed within this time after all were."""


class Round(Crew[Ground]):
    """One queue, eight processes, and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        ground = Ground(directory, producers=SLOTS[PRODUCER], consumers=SLOTS[CONSUMER])
        super().__init__(ground, rng, SLOTS, ROLES)
        self.path = self.ground.path
        self.mortal = [slot for slot in self.slots if slot[1] > 0 or slot[0] == HELPER]
        self.counts |= {"stops": 0, "power cuts pretended": 0, "messages": 0}

    def stop(self, slot: Slot) -> None:
        """Stop a process for a while, and count it."""
        super().stop(slot)
        self.counts["stops"] += 1

    # --- all of them ------------------------------------------------------------------------------

    def run(self, deadline: float, kills_max: int) -> None:
        """Kill and start again until the round has had enough."""
        for slot in self.slots:
            self.start(slot)
        turn = 0
        while self.counts["kills"] < kills_max and not self.violations:
            time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
            now = time.monotonic()
            if now >= deadline:
                break
            self.go_on(now)
            self.act()
            turn += 1
            if turn % 8 == 0 and (self.full() or self.ground.errors.said()):
                break
        self.go_on(float("inf"))

    def act(self) -> None:
        """Do one of the operations that must not harm any process."""
        chance = self.rng.random()
        if chance < KILL_ALL_SHARE:
            self.kill_all_and_go_on()
        elif chance < KILL_ALL_SHARE + STOP_SHARE and self.stopped is None:
            self.stop(self.rng.choice(self.slots))
        else:
            self.start_again(self.rng.sample(self.mortal, self.rng.choice(AT_ONCE)))

    def kill_all_and_go_on(self) -> None:
        """Kill all; then some more of those that open it again, because one of them recovers."""
        self.kill_all()
        if self.rng.random() < CUT_SHARE:
            self.counts["power cuts pretended"] += tampering.pretend_power_cut(self.path)
        for slot in self.slots:
            self.start(slot)
        for _ in range(self.rng.randrange(4)):
            time.sleep(self.rng.random() * RECOVERY_SECONDS)
            self.start_again(self.rng.sample(self.slots, len(self.slots) // 2))

    def full(self) -> bool:
        """Whether the queue has become large enough."""
        pages = sum(name.endswith(".page") for name in os.listdir(self.path))
        return pages * PAGE_BYTES > ROUND_BYTES_MAX

    def end(self) -> bool:
        """Stop all; return whether all was received, rather than all killed."""
        if self.rng.random() < 0.4:
            self.kill(self.rng.sample(list(self.pids), len(self.pids)))
            return False
        self.ground.phase[0] = NO_MORE_SENDING
        self.leave_all(PRODUCER)
        self.leave_all(HELPER)
        self.ground.phase[0] = NO_MORE
        self.leave_all(CONSUMER)
        return not self.violations and not self.ground.errors.said()  # else some were killed

    def leave_all(self, wanted: str) -> None:
        """Wait for processes of a kind to end by themselves."""
        for slot in [slot for slot in self.pids if slot[0] == wanted]:
            self.leave(slot)

    # --- the proof --------------------------------------------------------------------------------

    def prove(self, *, drained: bool) -> None:
        """Open the queue again and compare all of it."""
        from pagequeue import Queue  # noqa: PLC0415

        self.violations += self.ground.errors.said()
        started = time.monotonic()
        with Queue(self.path, page_bytes=PAGE_BYTES) as queue:
            with queue.producer() as producer:  # the last one dead may have left a roll half done
                producer.rotate()
            self.took(time.monotonic() - started)
            records = all_of(self.ground.acked)
            proof = Proof(SHAPE.op, self.uids, records)
            proof.run(message for batch in queue.batches() for message in batch)
            report = queue.verify()
            strays = [name for name in os.listdir(self.path) if ".tmp-" in name]
        self.violations += proof.violations
        self.violations += [f"verify: {problem}" for problem in report.problems]
        self.violations += [f"left over: {name}" for name in strays]
        self.counts["messages"] = len(proof.digests) - 1
        for slot, log in enumerate(self.ground.seen):
            self.prove_stream(slot, log.events(), proof.digests, drained=drained)

    def took(self, seconds: float) -> None:
        """Opening and continuing after a kill of all has the same limit."""
        if seconds > children.STALL_SECONDS:
            self.violations.append(f"opening again took {seconds:.3f} s")

    def prove_stream(
        self, slot: int, records: list[Seen], digests: list[int], *, drained: bool
    ) -> None:
        """Compare what a consumer saw with the replay, at every place that it recorded."""
        for _, sequence, digest, *_ in records:
            if sequence >= len(digests) or digests[sequence] != digest:
                self.violations.append(f"consumer {slot} saw another stream up to {sequence}")
                return
        if drained and (not records or records[-1][1] != len(digests) - 1):
            self.violations.append(f"consumer {slot} did not see all")


def one_round(base: str, rng: random.Random, deadline: float, kills_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-kill-", dir=base) as directory:
        current = Round(Path(directory), rng)
        os.mkdir(current.path, 0o700)
        try:
            current.run(deadline, kills_max)
            drained = current.end()
        finally:
            for pid in current.pids.values():
                children.kill(pid)
        try:
            current.prove(drained=drained)
        except Exception as error:  # noqa: BLE001  a failed open or read is a violation
            current.violations.append(f"{type(error).__name__}: {error}")
        current.ground.close()
        shutil.rmtree(current.path)
    return current


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    return in_rounds(budget, one_round, cases_max=ROUND_KILLS_MAX, violations_max=VIOLATIONS_MAX)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
