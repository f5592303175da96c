"""Forbids that descriptors, threads, maps, memory or files grow endlessly, or a message is lost.

One queue after the other: two processes that live through all of them send, receive, flush, roll,
open, close, and make opens fail; others send and receive and are killed; then all is closed, a
power cut is pretended, the queue is recovered, verified, proved message by message, and removed. A
case is one queue.

What counts as flat: with everything closed, descriptors, threads and mapped files of queues are
exactly what they were after the first queues; while a queue is open and pages are rolled by the
dozen they stay below a fixed number. Memory that is no file's is noisy, because an allocator keeps
what was freed: so the lowest in the last quarter of all queues must not be above the highest in the
second quarter by more than 1 MiB; the first quarter is warm-up, and in the third a leak adds up.
Files: those of the pages up to the tail, one prepared page, the meta files, the lock, and none
else; no file takes more blocks than its size. A flush of 12 KiB writes at most 40 KiB to a
disk, also on later pages, where the kernel counts that.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from pathlib import Path

from stress import children, driver, tampering
from stress.campaign import Budget, Outcome
from stress.flush_cost import judge_flushes
from stress.history import all_of
from stress.lodgers import CONSUMERS, PRODUCERS, Lodger, Report, come_and_go, sit
from stress.roles import (
    NO_MORE,
    NO_MORE_SENDING,
    PAGE_BYTES,
    SHAPE,
    Ground,
    consume,
    produce,
)
from stress.rounds import tries
from stress.traffic import VIOLATIONS_MAX, Proof

SHORT_SECONDS = 3.0

GENERATION_SECONDS = 0.5
GENERATION_SECONDS_MAX = 45.0
"""A queue lives so long where a busy machine gives it fewer rolls than are conclusive."""
MEAN_PAUSE = 0.03
WARM_UP = 3
MEMORY_JUDGED = 8
"""With fewer queues, memory figures are not conclusive."""
SLACK_BYTES = 1 << 20
OPEN_MAPS_MAX = 40
OPEN_DESCRIPTORS_MAX = 30
ROLLS_MIN = 20
PAGES_BESIDE = 4
"""Pages that no roll led to: the first one, and those that were made ahead."""
DRAIN_SECONDS = 60.0
STAGED = "queue-staged"
FILES = re.compile(r"queue(-[0-9]{10}\.(page|idx)|-allMeta|-writeMeta|-readMeta|\.lock)")
BLOCK_BYTES = 4096


def remove_staged(path: str) -> None:
    """Let a publisher remove what killed writers staged, as the next one does."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now
    from pagequeue.bulk.publisher import BulkPublisher  # noqa: PLC0415
    from pagequeue.queue.queue import internals  # noqa: PLC0415

    with Queue(path) as queue, BulkPublisher(internals(queue).store) as publisher:
        publisher._recover()


class Generation:
    """The life of one queue."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        directory.mkdir()
        self.ground = Ground(directory, producers=PRODUCERS, consumers=CONSUMERS)
        self.rng = rng
        self.uids: list[int] = []
        self.kills = 0
        self.messages = 0
        self.violations: list[str] = []

    def live(self, lodgers: list[Lodger]) -> list[Report]:
        """Have all processes work, kill some, and let all end."""
        for place, lodger in enumerate(lodgers):
            uid = self.rng.getrandbits(60) * 2 + place
            self.uids.append(uid)
            lodger.begin(self.directory, uid)
        began = time.monotonic()
        pids = [self.start(slot) for slot in range(2)]
        while (lived := time.monotonic() - began) < GENERATION_SECONDS or (
            lived < GENERATION_SECONDS_MAX and self.pages() < ROLLS_MIN + PAGES_BESIDE
        ):
            time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
            slot = self.rng.randrange(len(pids))
            children.kill(pids[slot])
            self.kills += 1
            pids[slot] = self.start(slot)
        self.ground.phase[0] = NO_MORE_SENDING
        self.leave(pids[0])
        self.ground.phase[0] = NO_MORE
        self.leave(pids[1])
        return [lodger.report() for lodger in lodgers]

    def pages(self) -> int:
        """Return the highest number of a page."""
        found = [re.search(r"[0-9]{10}", name) for name in os.listdir(self.ground.path)]
        return max((int(number[0]) for number in found if number), default=0)

    def start(self, slot: int) -> int:
        """Start one that will be killed: the producer or the consumer."""
        uid = self.rng.getrandbits(62)
        if slot == 0:
            self.uids.append(uid)
        role = (produce, consume)[slot]
        return children.fork(lambda: role(self.ground, 0, uid), self.ground.errors, role.__name__)

    def leave(self, pid: int) -> None:
        """Wait for one to exit."""
        if children.ended(pid, DRAIN_SECONDS) is None:
            self.violations.append(f"a process hangs for {DRAIN_SECONDS:g} s")
            children.kill(pid)

    def prove(self) -> None:
        """Recover the queue, as after a power cut that lost no data, and compare all of it."""
        from pagequeue import Queue  # noqa: PLC0415

        tampering.pretend_power_cut(self.ground.path)
        with Queue(self.ground.path, page_bytes=PAGE_BYTES) as queue:
            if not queue.recovery.scanned:
                self.violations.append("no recovery took place")
            records = all_of(self.ground.acked)
            proof = Proof(SHAPE.op, self.uids, records)
            proof.run(message for batch in queue.batches() for message in batch)
            report = queue.verify()
            self.files(queue._store.tail.page_number)
        self.violations += proof.violations
        self.violations += [f"verify: {problem}" for problem in report.problems]
        self.messages = len(proof.digests) - 1
        for log in self.ground.seen:
            for _, sequence, digest, *_ in log.events():
                if sequence > self.messages or proof.digests[sequence] != digest:
                    self.violations.append(f"{log.path.name} is another stream up to {sequence}")
                    break
        self.violations += self.ground.errors.said()

    def files(self, active: int) -> None:
        """Compare the files on the disk with those that the messages need."""
        remove_staged(str(self.ground.path))
        for entry in sorted(os.scandir(self.ground.path), key=lambda entry: entry.name):
            if entry.name == STAGED:
                staged = set(os.listdir(entry)) - {"lock"}
                self.violations += [f"left over: {STAGED}/{name}" for name in sorted(staged)]
                continue
            if not FILES.fullmatch(entry.name):
                self.violations.append(f"left over: {entry.name}")
            digits = re.search(r"[0-9]{10}", entry.name)
            if digits and int(digits[0]) > active + 1:
                self.violations.append(f"a file of no page: {entry.name}; {active} is active")
            status = entry.stat()
            if status.st_blocks * 512 > -(-status.st_size // BLOCK_BYTES) * BLOCK_BYTES:
                self.violations.append(f"{entry.name}: more blocks than its {status.st_size} bytes")

    def end(self) -> None:
        """Remove the queue."""
        self.ground.close()
        shutil.rmtree(self.directory)


def judge_counts(name: str, reports: list[Report]) -> list[str]:
    """Return what is wrong with the resources that can be counted."""
    last, before = reports[-1], reports[: WARM_UP + 1][-1]
    wrong = [
        f"{name} has {getattr(last.rest, what)} {what} with everything closed, "
        f"{getattr(before.rest, what)} after the first queues"
        for what in ("descriptors", "threads", "maps", "stores")
        if getattr(last.rest, what) != getattr(before.rest, what)
    ]
    for what, limit in (("descriptors", OPEN_DESCRIPTORS_MAX), ("maps", OPEN_MAPS_MAX)):
        if getattr(last.busy, what) > limit:
            found = getattr(last.busy, what)
            wrong.append(f"{name} has {found} {what} in an open queue after {last.rolls} rolls")
    return wrong


def judge_memory(name: str, reports: list[Report]) -> list[str]:
    """Return what is wrong with the memory over all queues."""
    if len(reports) < MEMORY_JUDGED:
        return []
    sizes = [report.rest.anonymous_bytes for report in reports]
    quarter = len(sizes) // 4
    before, behind = max(sizes[quarter : 2 * quarter]), min(sizes[-quarter:])
    if behind <= before + SLACK_BYTES:
        return []
    return [f"{name} has {behind} bytes of memory or more, and had at most {before} before"]


def campaign(budget: Budget) -> Outcome:
    """Use queues one by one until the budget is used up; in a process without open queues."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    rng = random.Random(budget.seed)
    outcome = Outcome(0, notes={"kills": 0, "messages": 0, "rolls": 0})
    if not os.path.exists("/proc/self/smaps_rollup"):
        return Outcome(0, ["needs Linux with /proc/PID/smaps_rollup"])
    with tempfile.TemporaryDirectory(prefix="pagequeue-flushes-") as base:  # on a disk, mostly
        outcome.notes["a flush writes"], wrong = judge_flushes(Path(base))
        outcome.violations += wrong
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-soak-", dir=driver.scratch_directory()
    ) as base:
        lodgers = [Lodger(role, base) for role in (sit, come_and_go)]
        reports: list[list[Report]] = [[], []]
        try:
            for _ in tries(budget, outcome, VIOLATIONS_MAX):
                directory = Path(base) / str(outcome.cases)
                if not one_queue(directory, rng, lodgers, reports, outcome):
                    break
        finally:
            for lodger in lodgers:
                lodger.dismiss()
            for lodger in lodgers:
                lodger.end()
    for lodger, said in zip(lodgers, reports, strict=True):
        outcome.violations += judge_memory(lodger.role.__name__, said)
        outcome.notes[lodger.role.__name__] = str(said[-1].rest) if said else ""
        outcome.notes[f"{lodger.role.__name__}, MiB"] = " ".join(
            f"{report.rest.anonymous_bytes / (1 << 20):.1f}" for report in said[-20:]
        )
    judged = outcome.cases >= MEMORY_JUDGED
    outcome.notes["memory"] = "judged" if judged else f"not judged: under {MEMORY_JUDGED} queues"
    return outcome


def one_queue(
    directory: Path,
    rng: random.Random,
    lodgers: list[Lodger],
    reports: list[list[Report]],
    outcome: Outcome,
) -> bool:
    """Use, prove and remove one queue; add the findings to the outcome.

    Returns:
        whether the next one can follow.
    """
    generation = Generation(directory, rng)
    whole = False
    try:
        for said, report in zip(reports, generation.live(lodgers), strict=True):
            said.append(report)
        generation.prove()
        whole = True
    except Exception as error:  # noqa: BLE001  a failed open or read is a violation
        generation.violations.append(f"{type(error).__name__}: {error}")
        generation.violations += generation.ground.errors.said()
    else:
        for lodger, said in zip(lodgers, reports, strict=True):
            generation.violations += judge_counts(lodger.role.__name__, said)
        if reports[0][-1].rolls < ROLLS_MIN:
            generation.violations.append(
                f"only {reports[0][-1].rolls} rolls: too few to be conclusive"
            )
    generation.end()
    outcome.violations += [f"queue {outcome.cases}: {text}" for text in generation.violations]
    outcome.cases += 1
    outcome.notes["kills"] += generation.kills
    outcome.notes["messages"] += generation.messages
    outcome.notes["rolls"] += reports[0][-1].rolls if reports[0] else 0
    return whole


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
