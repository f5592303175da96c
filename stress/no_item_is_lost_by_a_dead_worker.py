"""Forbids that the drop-in for multiprocessing.Queue loses or doubles an object when one dies.

Two producers put objects, small ones and some that have a file of their own; four workers get them,
and with a JoinableQueue call `task_done` when they are done, often holding several. A watcher reads
`qsize`, `full` and `empty`, with some `maxsize` or none. All of them are killed at random, now and
then all at once, and started again; some workers exit in the middle of their work. In the end all
remaining objects are got, often while a watcher still has the queue open, `join` returns, and what
each process wrote down (`item_log.py`) is proved: with a JoinableQueue a worker finished every
object that was put, no worker got one that a living one had, or one that was done; with a Queue no
worker got one twice, and no more are gone than processes that were killed. No more than `maxsize`
ever waited (I17), and no large object's file is missing or stays (I18). A case is a kill.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver
from stress.history import Log
from stress.item_log import (
    DONE,
    DYING,
    ENDING,
    GOT,
    PUT,
    PUTTING,
    VIOLATIONS_MAX,
    Did,
    Judge,
)
from stress.rounds import in_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 3.0
PAGE_BYTES = 16384
UNFINISHED_MAX = 256
ROUND_SECONDS = 2.5
MEAN_PAUSE = 0.015
SLOTS = ("producer", "producer", "worker", "worker", "worker", "worker", "watcher")
KILL_ALL_SHARE = 0.05
LARGE_SHARES = (0.02, 0.3)
"""Of a producer's objects; the second is of every other producer, so that many die with a file."""
HELD_MAX = 4
MAXSIZES = (0, 0, 1, 5, 100)
DRAIN_SECONDS = 60.0
EMPTY_SECONDS = 0.3


class Ground:
    """Where a round takes place."""

    def __init__(self, directory: Path, *, joinable: bool, maxsize: int) -> None:
        self.directory = directory
        self.path = str(directory / "queue")
        self.log_path = directory / "log"
        self.errors = children.ErrorFile(directory / "errors")
        self.joinable = joinable
        self.maxsize = maxsize

    def queue(self) -> Any:  # noqa: ANN401
        """Return a new handle."""
        from pagequeue import multiprocessing as drop_in  # noqa: PLC0415  the core is chosen by now

        make: Callable[..., Any]
        if self.joinable:
            make = partial(
                drop_in.JoinableQueue,
                unfinished_max=UNFINISHED_MAX,
                max_deliveries=None,
                backoff=None,
            )
        else:
            make = drop_in.Queue
        return make(self.maxsize, directory=self.path, page_bytes=PAGE_BYTES)


# --- the processes that are killed ----------------------------------------------------------------


def produce(ground: Ground, uid: int) -> None:
    """Put objects until killed."""
    rng = random.Random(uid)
    log, queue = Log(ground.log_path, Did), ground.queue()
    large_share = LARGE_SHARES[uid % 2]
    for number in range(1 << 20):
        item = uid << 20 | number
        size_bytes = PAGE_BYTES * 2 if rng.random() < large_share else rng.randrange(200)
        log.put(Did(PUTTING, uid, item))
        queue.put((item, bytes(size_bytes)))
        log.put(Did(PUT, uid, item))
        if rng.random() < 0.2:
            time.sleep(rng.random() * 0.004)


def work(ground: Ground, uid: int) -> None:
    """Get objects and be done with them, until killed or there is no more of it."""
    from queue import Empty  # noqa: PLC0415

    rng = random.Random(uid)
    log, queue = Log(ground.log_path, Did), ground.queue()
    held: list[int] = []
    ends_at = rng.randrange(50, 3000)
    for number in range(1 << 20):
        try:
            item, _ = queue.get(timeout=EMPTY_SECONDS)
        except Empty:
            item = None
        if item is not None:
            log.put(Did(GOT, uid, item))
            held.append(item)
        if rng.random() < 0.1:
            time.sleep(rng.random() * 0.005)
        while ground.joinable and held and (len(held) >= HELD_MAX or rng.random() < 0.7):
            log.put(Did(ENDING, uid, held[0]))
            queue.task_done()
            log.put(Did(DONE, uid, held.pop(0)))
        if number == ends_at:  # it ends with what it holds
            log.put(Did(DYING, uid))
            del queue
            gc.collect()
            return


def watch(ground: Ground, uid: int) -> None:
    """Read sizes until killed."""
    rng, queue = random.Random(uid), ground.queue()
    while True:
        waiting = queue._open().waiting
        if ground.maxsize and waiting > ground.maxsize:
            ground.errors.say(f"{waiting} objects waited, maxsize is {ground.maxsize}")
        if queue.qsize() < 0:
            ground.errors.say("a size below 0")
        queue.full()
        queue.empty()
        time.sleep(rng.random() * 0.003)


ROLES: dict[str, Callable[[Ground, int], None]] = {
    "producer": produce,
    "worker": work,
    "watcher": watch,
}


# --- a round --------------------------------------------------------------------------------------


class Round:
    """One queue, the processes that use it, and their killer."""

    def __init__(self, ground: Ground, rng: random.Random) -> None:
        self.ground = ground
        self.rng = rng
        self.log = Log(ground.log_path, Did)
        self.pids: dict[int, tuple[int, int]] = {}  # slot to process and uid
        self.counts = {"kills": 0, "kills of all": 0, "ended by themselves": 0}
        self.violations: list[str] = []

    @property
    def cases(self) -> int:
        """Processes that were killed."""
        return self.counts["kills"]

    def start(self, slot: int) -> None:
        """Start a process in a slot."""
        uid = self.rng.getrandbits(40)
        role = ROLES[SLOTS[slot]]
        ground = self.ground
        pid = children.fork(lambda: role(ground, uid), ground.errors, f"{SLOTS[slot]} {uid}")
        self.pids[slot] = pid, uid

    def kill(self, slots: list[int]) -> None:
        """Kill processes; from now on others may get the objects they held."""
        for slot in slots:
            self.log.put(Did(DYING, self.pids[slot][1]))
            os.kill(self.pids[slot][0], signal.SIGKILL)
        for slot in slots:
            status = os.waitpid(self.pids.pop(slot)[0], 0)[1]
            if children.was_killed(status):
                self.counts["kills"] += 1
            elif status:
                self.violations.append(f"a {SLOTS[slot]} failed")
            else:
                self.counts["ended by themselves"] += 1

    def run(self, deadline: float, kills_max: int) -> None:
        """Kill and start again until the round has had enough."""
        for slot in range(len(SLOTS)):
            self.start(slot)
        while self.counts["kills"] < kills_max and not self.violations:
            time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
            if time.monotonic() >= deadline or self.ground.errors.said():
                break
            if self.rng.random() < KILL_ALL_SHARE:
                slots = self.rng.sample(range(len(SLOTS)), len(SLOTS))
                self.counts["kills of all"] += 1
            else:
                slots = [self.rng.randrange(len(SLOTS))]
            self.kill(slots)
            for slot in slots:
                self.start(slot)

    def end(self) -> None:
        """Get all remaining objects, after all were killed, or while a watcher lives.

        With a watcher no process opens the queue exclusively, so deaths are noticed in use.
        """
        self.kill([slot for slot in self.pids if SLOTS[slot] != "watcher"])
        if self.rng.random() < 0.3:
            self.kill(list(self.pids))
        uid = self.rng.getrandbits(40)
        self.wait_for("the last one", lambda: drain(self.ground, uid))
        self.kill(list(self.pids))
        self.wait_for("the exclusive opener", lambda: look(self.ground))

    def wait_for(self, name: str, role: Callable[[], None]) -> None:
        """Run a function in a separate process."""
        pid = children.fork(role, self.ground.errors, name)
        if children.ended(pid, DRAIN_SECONDS) is None:
            self.violations.append(f"{name} fails to get the rest, or hangs: {DRAIN_SECONDS} s")
            children.kill(pid)

    def prove(self) -> None:
        """Judge the log, and check which files are left."""
        self.violations += self.ground.errors.said()
        judge = Judge(self.ground.joinable)
        judge.run(self.log.events())
        self.violations += judge.violations[:VIOLATIONS_MAX]
        with contextlib.suppress(FileNotFoundError):
            left = os.listdir(os.path.join(self.ground.path, "items-large"))
            self.violations += [f"left over: {name}" for name in left]


def drain(ground: Ground, uid: int) -> None:
    """Get all that is left, and be done with it."""
    from queue import Empty  # noqa: PLC0415

    log, queue = Log(ground.log_path, Did), ground.queue()
    items = queue._open()
    while items.done < items.tail if ground.joinable else not queue.empty():
        try:  # objects of dead processes return a little later
            item, _ = queue.get(timeout=EMPTY_SECONDS)
        except Empty:
            continue
        log.put(Did(GOT, uid, item))
        if ground.joinable:
            log.put(Did(ENDING, uid, item))
            queue.task_done()
            log.put(Did(DONE, uid, item))
    if ground.joinable:
        queue.join()


def look(ground: Ground) -> None:
    """Open exclusively, which removes unnamed large files; it must be whole, and empty."""
    queue = ground.queue()
    if not queue.empty():
        ground.errors.say(f"{queue.qsize()} objects are there again")
    report = queue._open().queue.verify()
    for problem in report.problems:
        ground.errors.say(f"verify: {problem}")
    queue.close()


def one_round(base: str, rng: random.Random, deadline: float, kills_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-items-", dir=base) as directory:
        joinable, maxsize = rng.random() < 0.7, rng.choice(MAXSIZES)
        current = Round(Ground(Path(directory), joinable=joinable, maxsize=maxsize), rng)
        try:
            current.run(min(deadline, time.monotonic() + ROUND_SECONDS), kills_max)
            current.end()
        finally:
            for pid, _ in current.pids.values():
                children.kill(pid)
        current.prove()
        kind = f"{'JoinableQueue' if joinable else 'Queue'}({maxsize})"
        current.violations = [f"{kind}: {violation}" for violation in current.violations]
        current.log.close()
        current.ground.errors.close()
        shutil.rmtree(current.ground.path, ignore_errors=True)
    return current


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    import pagequeue.multiprocessing  # noqa: F401, PLC0415  children are forked with all of it there

    return in_rounds(budget, one_round, cases_max=1 << 30, violations_max=VIOLATIONS_MAX)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
