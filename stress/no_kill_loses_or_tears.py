"""Forbids that SIGKILL, at any moment, loses, doubles, tears or reorders what was sent.

Three producers send single messages, batches and page ends; three consumers poll, receive and
receive many. Random ones are killed and started again, or stopped for a while and continued; one
producer and one consumer of each round are never killed, and must go on. A round ends with all told
to stop, or with all killed at once; then the queue is opened again and proved, message by message,
against what every producer had been told, and every consumer's stream against the replay (I1, I2,
I3, I4, I8). A case is a kill.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.traffic import RECORD, SEEN, VIOLATIONS_MAX, Log, Proof, Shape, chained

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Consumer, Message

SHORT_SECONDS = 30.0

PRODUCERS = 3
CONSUMERS = 3
PAGE_BYTES = 32 << 10
SHAPE = Shape()
ROUND_BYTES_MAX = 96 << 20
ROUND_KILLS_MAX = 80
MEAN_PAUSE = 0.02
STOPPED_SECONDS = 0.05
STALL_SECONDS = 1.0
"""Nobody alive may wait longer than this for what the dead held."""
DRAIN_SECONDS = 30.0
RUNNING, NO_MORE_SENDING, NO_MORE = range(3)


class Round:
    """One queue, six processes, and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.path = str(directory / "queue")
        self.rng = rng
        self.errors = children.ErrorFile(directory / "errors")
        self.phase = mmap.mmap(-1, 4096)
        self.acked = [Log(directory / f"acked-{i}", RECORD) for i in range(PRODUCERS)]
        self.seen = [Log(directory / f"seen-{i}", SEEN) for i in range(CONSUMERS)]
        self.uids: list[int] = []
        self.pids: dict[tuple[str, int], int] = {}
        self.kills = 0
        self.stops = 0
        self.messages = 0
        self.violations: list[str] = []

    # --- what the children do ---------------------------------------------------------------------

    def produce(self, slot: int, uid: int) -> None:
        """Send until told to stop."""
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        number = 0
        while self.phase[0] == RUNNING:
            with Queue(self.path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
                for _ in range(3000):
                    if self.phase[0] != RUNNING:
                        break
                    op = SHAPE.op(uid, number)
                    started = time.monotonic()
                    first, count = op.run(producer)
                    self.acked[slot].put(uid, number, count, first, 0)
                    self.stalled(time.monotonic() - started, "send")
                    number += 1
                    if number % 64 == 0:
                        time.sleep((uid + number) % 7 / 4000)

    def consume(self, slot: int, uid: int) -> None:
        """Receive from where the one before was killed, until told to stop."""
        from pagequeue import Queue  # noqa: PLC0415

        log = self.seen[slot]
        before = log.records()
        sequence, digest = before[-1][1:3] if before else (0, 0)
        with Queue(self.path, page_bytes=PAGE_BYTES) as queue:
            consumer = queue.consumer(sequence=sequence)
            turn = uid
            while True:
                last = self.phase[0] == NO_MORE
                turn += 1
                for message in received(consumer, turn):
                    digest = chained(digest, message)
                if consumer.sequence != sequence:
                    sequence = consumer.sequence
                    log.put(uid, sequence, digest, 0, 0)
                elif last:
                    return

    def stalled(self, seconds: float, doing: str) -> None:
        """Say so if somebody waited too long."""
        if seconds > STALL_SECONDS + STOPPED_SECONDS:
            self.errors.say(f"{doing} took {seconds:.3f} s")

    # --- what the killer does ---------------------------------------------------------------------

    def start(self, kind: str, slot: int) -> None:
        """Start a process in a slot."""
        uid = self.rng.getrandbits(63)
        body: Callable[[int, int], None] = self.consume
        if kind == "producer":
            self.uids.append(uid)
            body = self.produce
        name = f"{kind} {slot} ({uid})"
        self.pids[kind, slot] = children.fork(lambda: body(slot, uid), self.errors, name)

    def kill(self, kind: str, slot: int) -> None:
        """Kill the process of a slot; it must have been alive."""
        if not children.was_killed(children.kill(self.pids.pop((kind, slot)))):
            self.violations.append(f"{kind} {slot} had ended by itself")
        self.kills += 1

    def run(self, deadline: float, kills_max: int) -> None:
        """Kill and start again until the round has had enough."""
        slots = [("producer", i) for i in range(PRODUCERS)]
        slots += [("consumer", i) for i in range(CONSUMERS)]
        for kind, slot in slots:
            self.start(kind, slot)
        while self.kills < kills_max and time.monotonic() < deadline and not self.violations:
            time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
            kind, slot = self.rng.choice(slots + slots[:PRODUCERS])
            if self.rng.random() < 0.1:
                os.kill(self.pids[kind, slot], signal.SIGSTOP)
                time.sleep(STOPPED_SECONDS)
                os.kill(self.pids[kind, slot], signal.SIGCONT)
                self.stops += 1
            elif slot > 0:
                self.kill(kind, slot)
                self.start(kind, slot)
            if self.kills % 8 == 0 and (self.full() or self.errors.said()):
                break

    def full(self) -> bool:
        """Whether the queue has become large enough."""
        pages = sum(name.endswith(".page") for name in os.listdir(self.path))
        return pages * PAGE_BYTES > ROUND_BYTES_MAX

    def end(self) -> bool:
        """Stop all; return whether all was received, rather than all killed."""
        if self.rng.random() < 0.4:
            for kind, slot in self.rng.sample(list(self.pids), len(self.pids)):
                self.kill(kind, slot)
            return False
        self.phase[0] = NO_MORE_SENDING
        self.leave("producer")
        self.phase[0] = NO_MORE
        self.leave("consumer")
        return True

    def leave(self, wanted: str) -> None:
        """Wait for processes to end by themselves."""
        for kind, slot in [key for key in self.pids if key[0] == wanted]:
            pid = self.pids[kind, slot]
            if children.ended(pid, DRAIN_SECONDS) is None:
                self.violations.append(f"{kind} {slot} hangs for {DRAIN_SECONDS:g} s")
                children.kill(pid)
            del self.pids[kind, slot]

    def prove(self, *, drained: bool) -> None:
        """Open the queue again and compare all of it."""
        from pagequeue import Queue  # noqa: PLC0415

        started = time.monotonic()
        with Queue(self.path, page_bytes=PAGE_BYTES) as queue:
            with queue.producer() as producer:  # the last one dead may have left a roll half done
                producer.rotate()
            self.took(time.monotonic() - started)
            records = [record for log in self.acked for record in log.records()]
            proof = Proof(SHAPE.op, self.uids, records)
            proof.run(message for batch in queue.batches() for message in batch)
            report = queue.verify()
            strays = [name for name in os.listdir(self.path) if ".tmp-" in name]
        self.violations += proof.violations
        self.violations += [f"verify: {problem}" for problem in report.problems]
        self.violations += [f"left behind: {name}" for name in strays]
        self.messages = len(proof.digests) - 1
        for slot, log in enumerate(self.seen):
            self.prove_stream(slot, log.records(), proof.digests, drained=drained)
        self.violations += self.errors.said()

    def took(self, seconds: float) -> None:
        """Opening and going on after a kill of all has the same limit."""
        if seconds > STALL_SECONDS:
            self.violations.append(f"opening again took {seconds:.3f} s")

    def prove_stream(
        self, slot: int, records: list[tuple[int, ...]], digests: list[int], *, drained: bool
    ) -> None:
        """Compare what a consumer saw with the replay, at every place where it said so."""
        for _, sequence, digest, *_ in records:
            if sequence >= len(digests) or digests[sequence] != digest:
                self.violations.append(f"consumer {slot} saw another stream up to {sequence}")
                return
        if drained and (not records or records[-1][1] != len(digests) - 1):
            self.violations.append(f"consumer {slot} did not see all")


def received(consumer: Consumer, turn: int) -> list[Message]:
    """Receive in one of three ways; nothing when nothing comes in a moment."""
    try:
        if turn % 3 == 0:
            message = consumer.poll()
            return [] if message is None else [message]
        if turn % 3 == 1:
            return [consumer.receive(timeout=0.02)]
        return list(consumer.receive_many(200, timeout=0.02))
    except TimeoutError:
        return []


def one_round(base: str, rng: random.Random, deadline: float, kills_max: int) -> Round:
    """Run one round in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-kill-", dir=base) as directory:
        current = Round(Path(directory), rng)
        os.mkdir(current.path, 0o700)
        try:
            current.run(deadline, kills_max)
            drained = current.end()
        finally:
            for pid in current.pids.values():
                children.kill(pid)
        current.prove(drained=drained)
        for log in [*current.acked, *current.seen]:
            log.close()
        current.errors.close()
        shutil.rmtree(current.path)
    return current


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    base = driver.scratch_directory()
    outcome = Outcome(0, notes={"rounds": 0, "stops": 0, "messages": 0, "directory": base})
    while time.monotonic() < deadline and len(outcome.violations) < VIOLATIONS_MAX:
        left = ROUND_KILLS_MAX
        if budget.cases is not None:
            left = min(left, budget.cases - outcome.cases)
        if left <= 0:
            break
        done = one_round(base, rng, deadline, left)
        outcome.cases += done.kills
        outcome.violations += [f"round {outcome.notes['rounds']}: {v}" for v in done.violations]
        outcome.notes["rounds"] += 1
        outcome.notes["stops"] += done.stops
        outcome.notes["messages"] += done.messages
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
