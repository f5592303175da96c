"""Forbids that a power cut takes what was flushed, or leaves more than a prefix of what was sent.

Real cuts: ext4 and xfs on loop images are shut down by their own ioctl while producers with every
kind of `sync`, consumers of all and of durable messages, and a writer of parts of files to the disk
out of order are at work. What was acknowledged, and what was reported as durable, lies outside of
the disk and is read before the cut. Then the disk is mounted again and the queue opened, which
recovers it; now and then the power fails again during that, or right after it. Proved each time:
all that was durable is there, byte for byte, in order, once; whole batches; a prefix; messages that
a consumer received are unchanged; verify finds no problem; sending works (I5, I8). In some queues
two named consumers acknowledge, durably or not, and pages done by both are removed: each of them is
where it was or was going, never ahead of the tail or below the head (I11, I12).

A case is a cut. Both disks are cut at once, each by a separate process; the image lies in memory
and is used again, a queue for up to `QUEUE_CUTS_MAX` cuts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import threading
import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.cut_named import Named
from stress.cut_round import (
    CONSUMERS_MAX,
    PRODUCERS_MAX,
    SHAPE,
    Actor,
    Claims,
    Logs,
    Policy,
    opened,
)
from stress.disks import LOG_DROPPED, LOG_FLUSHED, Disk, Unavailable, private_mounts
from stress.history import all_of
from stress.publications import wrong_entries
from stress.pulse import Pulse
from stress.rounds import tries
from stress.traffic import VIOLATIONS_MAX, Proof, chained

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Queue

SHORT_SECONDS = 3.0

KINDS = ("ext4", "xfs")
QUEUE_CUTS_MAX = 12
KEEPS_SHARE = 0.4
"""Of the queues, those with named consumers and retention."""
QUEUE_BYTES_MAX = 6 << 20
MEAN_SECONDS = 0.02
LONG_SECONDS = 1.0
START_SECONDS = 0.5
SLACK_SECONDS = 0.6
"""A flush that a timedelta asked for may be so late, with the processors shared by many."""
LOST_TIMES = 5
"""And so many times later than the beats of a process that does nothing else were in that round."""
GRACE_SECONDS = 60.0


class Cutter:
    """One disk, one queue after the other on it, and the process that cuts its power."""

    def __init__(self, disk: Disk, directory: Path, rng: random.Random) -> None:
        self.disk = disk
        self.rng = rng
        self.logs = Logs(directory)
        self.errors = children.ErrorFile(directory / "errors")
        self.pulse = Pulse(self.errors)
        self.outcome = Outcome(0, notes={"queues": 0, "messages": 0, "lost": 0, "cut again": 0})
        self.seconds = dict.fromkeys(("traffic", "cut", "prove"), 0.0)
        self.pids: list[int] = []
        self.policies: dict[int, Policy] = {}
        self.boot_id = directory / "boot_id"
        self.same_boot = False
        self.boot()
        self.path = ""
        self.named = Named(keeps=False)
        self.digests = [0]
        self.cuts_left = 0
        self.new_queue()

    def boot(self) -> None:
        """Make the library see another boot than before, as after a real power cut."""
        from pagequeue.meta import write_meta  # noqa: PLC0415

        assert hasattr(write_meta, "BOOT_ID_PATH")
        self.boot_id.write_text(str(uuid.UUID(int=self.rng.getrandbits(128))), encoding="ascii")
        setattr(write_meta, "BOOT_ID_PATH", str(self.boot_id))  # noqa: B010  a Final of a module

    # --- the queue --------------------------------------------------------------------------------

    def new_queue(self) -> None:
        """Start with a new directory, whose own name is on the disk."""
        for name in os.listdir(self.disk.path):  # cuts bring back what was removed before them
            if name.startswith("queue-"):
                shutil.rmtree(self.disk.path / name)
        self.path = str(self.disk.path / f"queue-{self.outcome.notes['queues']}")
        os.mkdir(self.path, 0o700)
        fd = os.open(self.disk.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        self.outcome.notes["queues"] += 1
        self.named = Named(keeps=self.rng.random() < KEEPS_SHARE)
        self.digests = [0]
        self.cuts_left = self.rng.randint(1, QUEUE_CUTS_MAX)

    def wrong(self, sentence: str) -> None:
        """Record a violation; later ones on the same queue would be mere consequences."""
        cut = self.outcome.cases
        self.outcome.violations.append(f"{self.disk.kind}, after cut {cut}: {sentence}")
        self.cuts_left = 0

    def is_new(self) -> bool:
        """Whether no queue has survived a cut yet: creation is to be cut more often."""
        return len(self.digests) == 1

    def large(self) -> bool:
        """Whether the queue has become large enough."""
        with os.scandir(self.path) as entries:
            return sum(entry.stat().st_size for entry in entries) > QUEUE_BYTES_MAX

    # --- one round --------------------------------------------------------------------------------

    def round(self) -> None:
        """Let them work, cut, prove; now and then cut again before or after the proof."""
        started, lost = time.monotonic(), self.pulse.lost_seconds()
        self.start_all()
        self.wait_for_the_moment()
        claims = Claims.read(self.logs)
        lost = self.pulse.lost_seconds() - lost
        said = self.errors.said()
        began = time.monotonic()
        self.seconds["traffic"] += began - started
        self.cut()
        for sentence in said:
            self.wrong(sentence)
        slack = SLACK_SECONDS + LOST_TIMES * lost
        end = max(claims.end(self.policies, slack), len(self.digests) - 1)
        while self.rng.random() < 0.12:
            end = max(end, self.cut_recovery())
        self.prove(end, claims)
        if self.rng.random() < 0.1 and self.cuts_left > 0:
            self.cut()
            self.outcome.notes["cut again"] += 1
            self.logs.empty()
            self.policies = {}
            self.prove(len(self.digests) - 1, Claims.read(self.logs))
        self.cuts_left -= 1
        if self.cuts_left <= 0 or self.large():
            self.new_queue()

    def actor(self, slot: int, uid: int) -> Actor:
        """Return a process of a round."""
        return Actor(self.path, self.logs, slot, uid, self.named.is_keeping)

    def start_all(self) -> None:
        """Start the processes of a round."""
        rng = self.rng
        self.logs.empty()
        os.truncate(self.errors.path, 0)
        self.policies = {}
        bodies: list[Callable[[], None]] = []
        for slot in range(rng.randint(1, PRODUCERS_MAX)):
            uid = rng.getrandbits(63)
            policy = self.policies[uid] = Policy.drawn(rng)
            actor = self.actor(slot, uid)
            bodies.append(lambda actor=actor, policy=policy: actor.produce(policy))  # type: ignore[misc]
        known = (len(self.digests) - 1, self.digests[-1])
        for slot in range(rng.randint(0, CONSUMERS_MAX)):
            actor = self.actor(slot, slot)
            start = rng.choice([known, known if self.named.is_keeping else (0, 0)])
            bodies.append(
                lambda actor=actor, start=start, slot=slot: actor.consume(  # type: ignore[misc]
                    start, durable_only=slot == 0
                )
            )
        if rng.random() < (
            0.4 if len(self.digests) > 1 else 0.8
        ):  # a new queue is the most fragile
            bodies.append(self.actor(0, rng.getrandbits(63)).stir)
        if self.named.is_keeping:
            bodies.append(self.actor(0, rng.getrandbits(63)).take)
        rng.shuffle(bodies)
        for body in bodies:
            self.start(body, "child")

    def start(self, body: Callable[[], None], name: str) -> None:
        """Start a process; also what one of its threads dies of is an error, until the cut."""

        def alive() -> None:
            threading.excepthook = lambda told: self.errors.say(f"a thread of {name}: {told}")
            body()

        self.pids.append(children.fork(alive, self.errors, name))

    def wait_for_the_moment(self) -> None:
        """Wait for a random time; mostly counted from when there are messages to lose."""
        if self.rng.random() < (0.3 if self.is_new() else 0.85):
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline:
                if any(os.stat(log.path).st_size for log in self.logs.acked):
                    break
                time.sleep(0.001)
        time.sleep(
            LONG_SECONDS
            if self.rng.random() < 0.01
            else min(self.rng.expovariate(1 / MEAN_SECONDS), LONG_SECONDS)
        )

    def cut(self) -> None:
        """Cut the power, end all processes on the disk, and give it power again."""
        started = time.monotonic()
        self.disk.cut(LOG_FLUSHED if self.rng.random() < 0.2 else LOG_DROPPED)
        self.kill_all()
        self.disk.restart()
        self.same_boot = self.rng.random() < 0.3
        if not self.same_boot:
            self.boot()
        self.outcome.cases += 1
        self.seconds["cut"] += time.monotonic() - started

    def kill_all(self) -> None:
        """End all processes of the round."""
        while self.pids:
            children.kill(self.pids.pop())

    def cut_recovery(self) -> int:
        """Cut the power while a process opens the queue; return what it found, if reported."""
        actor = self.actor(0, 0)
        self.start(actor.open_only, "opener")
        time.sleep(self.rng.uniform(0, 0.015))
        told = self.logs.told[-1].events()
        self.cut()
        self.outcome.notes["cut again"] += 1
        return max((one.durable for one in told), default=0)

    # --- the proof --------------------------------------------------------------------------------

    def prove(self, end: int, claims: Claims) -> None:
        """Open the queue and compare all of it with the records."""
        from pagequeue import errors  # noqa: PLC0415

        started = time.monotonic()
        try:
            read = None
            # Within one boot a reader cannot tell another mount from a container's: it takes the
            # write meta's fields, which can be outdated.
            if not self.same_boot and self.rng.random() < 0.2:
                read = self.read_before_recovery(end)
            with opened(self.path, keeps=self.named.is_keeping) as queue:
                tail = queue.tail_sequence
                if tail < end:
                    self.wrong(f"{end} messages were durable, {tail} are there")
                if read is not None and read != tail:
                    self.wrong(f"a reader found {read} messages, the recovery {tail}")
                self.walk(queue, claims)
                if not self.named.is_keeping:
                    self.wrongs(wrong_entries(queue, self.policies, SHAPE.op, claims.acked))
                self.wrongs(f"verify: {problem}" for problem in queue.verify().problems)
                self.wrongs(self.named.wrong(queue, claims, self.logs))
                self.go_on(queue)
                self.named.acknowledge(queue)
        except errors.PageQueueError as error:
            self.wrong(f"{type(error).__name__}: {error}")
        self.wrongs(f"left over: {name}" for name in os.listdir(self.path) if ".tmp-" in name)
        self.seconds["prove"] += time.monotonic() - started

    def wrongs(self, sentences: Any) -> None:  # noqa: ANN401 - any iterable of str
        """Record all violations."""
        for sentence in sentences:
            self.wrong(sentence)

    def read_before_recovery(self, end: int) -> int | None:
        """Return how many messages a reader finds before a writer has recovered the queue."""
        from pagequeue import errors  # noqa: PLC0415

        try:
            with opened(self.path, read_only=True) as queue:
                return queue.head_sequence + sum(len(batch) for batch in queue.batches())
        except errors.QueueNotFound:
            if end > 0:
                raise
            return None

    def walk(self, queue: Queue, claims: Claims) -> None:
        """Compare every message: with the digest if it survived a cut before, else in full."""
        known = len(self.digests) - 1
        head = queue.head_sequence
        if head > self.named.proved_to:
            self.wrong(f"the head is {head}, and {self.named.proved_to} was acknowledged")
            return
        digest = self.digests[head]
        messages = (message for batch in queue.batches() for message in batch)
        for message in messages if known > head else ():
            digest = chained(digest, message)
            if message.sequence == known - 1:
                break
        if digest != self.digests[-1]:
            self.wrong(f"the first {known} messages, which survived a cut, have changed")
            return
        sent = all_of(self.logs.acked)
        tail = queue.tail_sequence
        proof = Proof(SHAPE.op, list(self.policies), sent, digests=self.digests, end=tail)
        proof.run(messages)
        self.wrongs(proof.violations)
        count = len(self.digests) - 1
        if count != tail and not proof.violations:
            self.wrong(f"the tail is {tail}, {count} messages are there")
        for _, sequence, seen, *_ in claims.seen:
            if sequence <= count and self.digests[sequence] != seen:
                self.wrong(f"a consumer saw another stream up to {sequence}")
        self.outcome.notes["messages"] += count - known
        self.outcome.notes["lost"] += sum(record[2] for record in sent if record[3] >= tail)

    def go_on(self, queue: Queue) -> None:
        """Send a few more messages, and flush them."""
        op = SHAPE.op(self.rng.getrandbits(63), 0)
        if op.publishes:
            op = op._replace(payloads=op.payloads[:1], publishes=None)
        with queue.producer() as producer:
            first, count = op.run(producer)
            durable = producer.flush()
        found = list(queue.replay(sequence=first)) if count else []
        if [message.payload for message in found] != op.payloads:
            self.wrong("what was sent after the recovery is not what is there")
        for message in found:
            self.digests.append(chained(self.digests[-1], message))
        if durable != len(self.digests) - 1:
            self.wrong(f"flushed up to {durable}, sent {len(self.digests) - 1}")

    def close(self) -> None:
        """End what still runs."""
        self.kill_all()
        self.pulse.end()
        self.logs.close()
        self.errors.close()


def cut_disk(kind: str, directory: Path, budget: Budget) -> Outcome:
    """Cut one disk's power until the budget is used up; in a separate process."""
    private_mounts()
    rng = random.Random(f"{budget.seed} {kind}")
    with Disk(kind, directory / "disk") as disk:
        cutter = Cutter(disk, directory, rng)
        outcome = cutter.outcome
        try:
            for _ in tries(budget, outcome, VIOLATIONS_MAX):
                cutter.round()
        finally:
            cutter.close()
    per_cut = {name: seconds / max(outcome.cases, 1) for name, seconds in cutter.seconds.items()}
    write_meta = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in per_cut.items())
    outcome.notes["for each cut"] = write_meta
    return outcome


def _apart(kind: str, base: Path, budget: Budget) -> None:
    """Leave what one disk's process found in a file."""
    directory = base / kind
    directory.mkdir()
    try:
        outcome = cut_disk(kind, directory, budget)
    except Unavailable as error:
        outcome = Outcome(0, notes={"left out": str(error)})
    (base / f"{kind}.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def campaign(budget: Budget) -> Outcome:
    """Cut all disks at once; in a process that has no queue open."""
    import pagequeue  # noqa: F401, PLC0415  so that no child has to

    together = Outcome(0)
    share = budget.cases and -(-budget.cases // len(KINDS))
    each = replace(budget, cases=share)
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-cut-", dir=driver.scratch_directory(), ignore_cleanup_errors=True
    ) as name:
        base = Path(name)
        errors = children.ErrorFile(base / "errors")
        pids = {}
        for kind in KINDS:
            body = lambda kind=kind: _apart(kind, base, each)  # noqa: E731  # type: ignore[misc]
            pids[kind] = children.fork(body, errors, kind)
        for kind, pid in pids.items():
            if children.ended(pid, budget.seconds + GRACE_SECONDS) is None:
                children.kill(pid)
                together.violations.append(f"{kind}: hangs")
            elif (base / f"{kind}.json").exists():
                one = Outcome(**json.loads((base / f"{kind}.json").read_text(encoding="utf-8")))
                together.cases += one.cases
                together.violations += one.violations
                together.notes[kind] = {"cuts": one.cases, **one.notes}
        together.violations += errors.said()
        errors.close()
    return together


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
