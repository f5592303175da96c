"""Forbids that a task is finished twice or lost, or differs between processes, after any kill.

Six workers share a task store: they insert jobs of three steps, claim, finish with the next step as
successor, give back, extend, save, sleep over their leases, and change tasks under conditions; they
compact, so that others restore from snapshots; and they are killed at random and started again.
What fails waits, ever longer, and is dead after four claims, until a worker tries it again. All the
while the clock is set, ahead and back by hours and days, and is believed soon. A recorder keeps
every entry, some of several pages, each before compaction may remove it. In the end the workers
finish the remaining tasks, and `task_audit.py` judges the entries: one commit for each version of a
task, every dependency current, each step of a job once, no claim too early and none too many, the
results of all calls, and at hundreds of places the state of a process against one replayed from
scratch. A case is a transaction.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import random
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver, task_audit
from stress.history import Log, MessageLog, messages_in
from stress.rounds import in_rounds
from stress.task_audit import STATE, TOLD_DONE, TOLD_REFUSED, Note

if TYPE_CHECKING:
    from pagequeue.tasks import TaskClaim, TaskStore
    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 3.0
WORKERS = 6
ROUND_SECONDS = 20.0
MEAN_PAUSE = 0.12
DRAIN_SECONDS = 120.0
PAGE_BYTES = 1 << 16
WAITING_MAX = 60
LARGE_SHARE = 0.03
"""Of the jobs, those whose value does not fit into a page of the store."""
LEASES = (0.01, 0.05, 0.3, 2.0)
QUEUES = ("a", "b", "c")
RECORDER = "recorder"
HOUR_NS = 3600 * 10**9
SHIFTS = (0, 0, 2 * HOUR_NS, -2 * HOUR_NS, 720 * HOUR_NS)
"""How far the clock can be off, in ns."""
SET_SHARE = 0.2
"""Of the kills, those with which it is set."""
HOLD_NS = 100_000_000
"""So soon a clock that was set is believed here."""


class Ground:
    """Where a round takes place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store_path = directory / "store"
        self.log_path = directory / "log"
        self.end_path = directory / "end"
        self.errors = children.ErrorFile(directory / "errors")
        self.notes = Log(directory / "notes", Note)
        with (directory / "clock").open("a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self.shift = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def clock(self) -> int:
        """Return what a clock shows that somebody sets."""
        return time.time_ns() + SHIFTS[self.shift[0]]

    def store(self, **options: Any) -> TaskStore:  # noqa: ANN401 - of TaskStore
        """Open the store."""
        from pagequeue.store import clock  # noqa: PLC0415  the core is chosen by now
        from pagequeue.tasks import TaskStore  # noqa: PLC0415  the same

        clock.HOLD_NS = HOLD_NS  # type: ignore[misc]
        options["max_deliveries"] = task_audit.DELIVERIES_MAX
        options["backoff"] = task_audit.BACKOFF
        return TaskStore(self.store_path, page_bytes=PAGE_BYTES, clock=self.clock, **options)


# --- the processes that are killed ----------------------------------------------------------------


class Worker:
    """One worker."""

    def __init__(self, ground: Ground, store: TaskStore, rng: random.Random) -> None:
        self.ground = ground
        self.store = store
        self.rng = rng
        self.kept: list[TaskClaim] = []

    def step(self) -> None:
        """Do one random operation."""
        from pagequeue import Stale  # noqa: PLC0415  the core is chosen by now

        chance = self.rng.random()
        try:
            if chance < 0.25:
                self.insert()
            elif chance < 0.8:
                self.work()
            elif chance < 0.93:
                self.change()
            elif chance < 0.985:
                self.compare()
            elif chance < 0.99:
                self.store.compact()
            else:
                time.sleep(self.rng.choice(LEASES) * 0.5)
        except Stale:
            pass  # what was read before it was changed meanwhile

    def insert(self) -> None:
        """Insert some jobs, unless enough wait."""
        from pagequeue.tasks import NewTask  # noqa: PLC0415  the core is chosen by now

        if self.store.stats().tasks >= WAITING_MAX:
            return
        new = [
            NewTask(
                self.rng.choice(QUEUES),
                self.job(),
                self.rng.choice((None, None, timedelta(milliseconds=20))),
                self.rng.choice((0, 0, 1)),
            )
            for _ in range(self.rng.randrange(1, 4))
        ]
        self.store.modify(insert=new)

    def job(self) -> dict[str, Any]:
        """Return the value of a new job's first step."""
        value: dict[str, Any] = {"job": f"{self.rng.getrandbits(60):x}", "step": 0}
        if self.rng.random() < LARGE_SHARE:
            value["data"] = self.rng.choice("xyz") * (2 * PAGE_BYTES)
        return value

    def work(self) -> None:
        """Claim a task, and use a claim, perhaps one that was kept for too long."""
        with contextlib.suppress(TimeoutError):
            self.kept += self.store.claim_many(
                self.rng.sample(QUEUES, 2),
                self.rng.choice((1, 1, 3)),
                self.rng.choice(LEASES),
                timeout=0.01,
            )
        while self.kept and (len(self.kept) > 4 or self.rng.random() < 0.8):
            self.use(self.kept.pop(self.rng.randrange(len(self.kept))))

    def use(self, claim: TaskClaim) -> None:
        """Finish, give back, extend or save."""
        from pagequeue import Stale  # noqa: PLC0415  the core is chosen by now

        chance = self.rng.random()
        if chance < 0.1:
            time.sleep(self.rng.choice(LEASES) * self.rng.random())
        try:
            if chance < 0.75:
                self.finish(claim)
            elif chance < 0.85:
                claim.nack(self.rng.choice((0.0, 0.01, None)), reason="given back")
            elif chance < 0.93:
                claim.extend(self.rng.choice(LEASES))
                self.kept.append(claim)
            else:
                claim.save(claim.value | {"saved": self.rng.randrange(99)})
                self.kept.append(claim)
        except Stale:
            self.ground.notes.put(Note(TOLD_REFUSED, *claim.task.ref))

    def finish(self, claim: TaskClaim) -> None:
        """Finish a step, and insert the next one."""
        from pagequeue.tasks import NewTask  # noqa: PLC0415  the core is chosen by now

        value = claim.value
        ref = claim.task.ref
        if value["step"] + 1 < task_audit.STEPS:
            following = {"job": value["job"], "step": value["step"] + 1}
            claim.ack(insert=[NewTask(self.rng.choice(QUEUES), following)])
        else:
            claim.ack()
        self.ground.notes.put(Note(TOLD_DONE, *ref))

    def change(self) -> None:
        """Change or move one task if others are as they were read; try dead ones again."""
        if self.rng.random() < 0.1:
            retry_dead(self.store)
        tasks = self.store.tasks()
        if len(tasks) < 3:
            return
        one, two, three = self.rng.sample(tasks, 3)
        if self.rng.random() < 0.5:
            time.sleep(0.01)  # others change what was read
        change: dict[str, Any] = {"priority": self.rng.randrange(3)}
        if self.rng.random() < 0.3:
            change["queue"] = self.rng.choice(QUEUES)
        self.store.modify(change={one.ref: change}, depend=[two.ref, three.ref])

    def compare(self) -> None:
        """Write down the digest of the state that this process has."""
        journal = self.store.journal
        place = journal.read(lambda state: (journal.sequence, task_audit.digest(state)))
        self.ground.notes.put(Note(STATE, *place))


def retry_dead(store: TaskStore) -> None:
    """Let tasks that were claimed too often be claimed again."""
    store.modify(change={task.ref: {"at": timedelta(0)} for task in store.tasks(status="dead")})


def work(ground: Ground, seed: int) -> None:
    """Work until killed, and open the store again now and then."""
    rng = random.Random(seed)
    while True:
        with ground.store(worker=f"{seed:x}", compact_on_open=rng.random() < 0.5) as store:
            worker = Worker(ground, store, rng)
            for _ in range(rng.randrange(50, 2000)):
                worker.step()


def record(ground: Ground) -> None:
    """Keep every entry; acknowledge it, so that compaction may remove it, when it is written."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    with Queue(ground.store_path) as queue, contextlib.closing(MessageLog(ground.log_path)) as log:
        consumer = queue.consumer(RECORDER)
        while True:
            try:
                batch = consumer.receive_many(256, timeout=0.05)
            except TimeoutError:
                if ground.end_path.exists() and consumer.sequence >= int(
                    ground.end_path.read_text() or "0"
                ):
                    return
                continue
            log.put_all(batch)
            consumer.ack()


def prepare(ground: Ground) -> None:
    """Make the store and the place of the recorder."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    ground.store().close()
    with Queue(ground.store_path) as queue:
        queue.consumer(RECORDER, sequence=0).close()


def drain(ground: Ground) -> list[str]:
    """Work off all that is left; return what is wrong with the store then."""
    with ground.store() as store:
        worker = Worker(ground, store, random.Random(0))
        while store.stats().tasks:
            retry_dead(store)
            with contextlib.suppress(TimeoutError):
                worker.finish(store.claim(QUEUES, 60.0, timeout=1.0))
        worker.compare()
        problems = list(store.journal.verify().problems)
        store.compact()
    with ground.store() as store:  # from the snapshot alone
        Worker(ground, store, random.Random(0)).compare()
        problems += store.journal.verify().problems
        end = store.journal.sequence
    temporary = ground.end_path.with_suffix(".new")
    temporary.write_text(str(end))
    temporary.rename(ground.end_path)
    return problems


# --- the round ------------------------------------------------------------------------------------


class Round:
    """One store, its workers and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.ground = Ground(directory)
        self.rng = rng
        self.pids: dict[int, int] = {}
        self.counts = {"kills": 0, "entries": 0, "jobs done": 0}
        self.violations: list[str] = []

    @property
    def cases(self) -> int:
        """Transactions that were judged; none where no job was done, unless that is wrong."""
        return self.counts["entries"] if self.counts["jobs done"] or self.violations else 0

    def start(self, slot: int) -> None:
        """Start a worker."""
        seed = self.rng.getrandbits(48)
        self.pids[slot] = children.fork(
            lambda: work(self.ground, seed), self.ground.errors, f"worker {seed:x}"
        )

    def kill(self, slot: int) -> None:
        """Kill a worker; one that ended before has failed."""
        self.counts["kills"] += 1
        if not children.was_killed(children.kill(self.pids.pop(slot))):
            self.violations.append(f"worker {slot} had exited unasked")

    def run(self, deadline: float) -> None:
        """Kill and start again until the round has had enough."""
        if not self.in_child("prepare", lambda: prepare(self.ground)):
            return
        recorder = children.fork(lambda: record(self.ground), self.ground.errors, RECORDER)
        try:
            for slot in range(WORKERS):
                self.start(slot)
            while time.monotonic() < deadline and not self.violations:
                time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
                slot = self.rng.randrange(WORKERS)
                self.kill(slot)
                if self.rng.random() < SET_SHARE:
                    self.ground.shift[0] = self.rng.randrange(len(SHIFTS))
                self.start(slot)
        finally:
            self.ground.shift[0] = 0
            for slot in list(self.pids):
                self.kill(slot)
            whole = self.prove()
            if children.ended(recorder, DRAIN_SECONDS if whole else 0) is None:
                children.kill(recorder)
                self.violations.append("the recorder did not get all entries")
        if whole and not self.violations:
            self.in_child("judge", self.judge)
            self.read_answer("judgement")
        self.violations += self.ground.errors.said()[: task_audit.VIOLATIONS_MAX]
        self.counts["entries"] = sum(1 for _ in messages_in(self.ground.log_path))

    def in_child(self, name: str, body: Any) -> bool:  # noqa: ANN401 - a function
        """Run a function in a child: this process opens no queue, because it forks."""
        pid = children.fork(body, self.ground.errors, name)
        status = children.ended(pid, DRAIN_SECONDS)
        if status is None:
            children.kill(pid)
        if status != 0:
            self.violations.append(f"{name}: {'hangs' if status is None else 'failed'}")
        return status == 0

    def prove(self) -> bool:
        """Finish the remaining tasks."""

        def body() -> None:
            self.answer("drained", drain(self.ground), {})

        done = self.in_child("drain", body)
        if done:
            self.read_answer("drained")
        return done

    def judge(self) -> None:
        """Judge the round, in a child."""
        self.answer(
            "judgement", *task_audit.judge(self.ground.log_path, self.ground.notes.events())
        )

    def answer(self, name: str, violations: list[str], counts: dict[str, int]) -> None:
        """Leave an answer to the parent."""
        (self.ground.directory / name).write_text(json.dumps([violations, counts]))

    def read_answer(self, name: str) -> None:
        """Take the answer of a child."""
        path = self.ground.directory / name
        if path.exists():
            violations, counts = json.loads(path.read_text())
            self.violations += violations
            self.counts |= counts


def one_round(base: str, rng: random.Random, deadline: float, _cases_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-tasks-", dir=base, ignore_cleanup_errors=True
    ) as directory:
        current = Round(Path(directory), random.Random(rng.getrandbits(62)))
        current.run(min(deadline, time.monotonic() + ROUND_SECONDS))
    return current


def campaign(budget: Budget) -> Outcome:
    """Try it."""
    # Once, and not in each child: that takes longer than a worker lives.
    import msgspec.msgpack  # noqa: F401, PLC0415  the core is chosen by now

    import pagequeue.tasks  # noqa: F401, PLC0415

    return in_rounds(budget, one_round, cases_max=1 << 30, violations_max=1)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
