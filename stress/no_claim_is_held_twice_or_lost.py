"""Forbids that a message of a group is claimed by two at one instant, or lost, after any kill.

Four workers of one group claim, acknowledge, reject, give back, extend, sleep over their leases and
take, one at a time and many at once, while a producer sends and a helper flushes the group's state.
Some messages are poison: they fail each time, and some of these times kill their worker.
They are killed at random, from outside and at each step of the group's table (kill points of the
core), and started again. In some rounds all are killed now and then and the power is cut
(`claim_cuts.py`); in the others retention takes each page as soon as all in it is done. In the end
the rest is claimed, and everything is proved from what each process wrote down (`claim_log.py`): no
two live claims of a message at an instant (I15), no message done without an acknowledgement or a
place among the dead letters (I14), no late acknowledgement, no message delivered again after its
acknowledgement or rejection, except those that a cut took, exactly one dead letter for each
rejected claim and for poison, no message claimed again before its back-off is over, and none whose
worker was lost together with others. A case is a kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver, tampering, variant
from stress.claim_cuts import many_cuts, mixed
from stress.claim_log import (
    ACKED,
    BY_RULE,
    CLAIMED,
    CLOSING,
    CUT,
    ENDING,
    EXTENDED,
    FLUSHED,
    NOTHING,
    REFUSED,
    REJECTED,
    REJECTING,
    TAKEN,
    TAKING,
    VIOLATIONS_MAX,
    Did,
    Judge,
    Letter,
    reason_for,
)
from stress.history import Log
from stress.rounds import in_rounds

if TYPE_CHECKING:
    from pagequeue import Queue
    from pagequeue.group.group import Group
    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 4.0
WORKERS = 4
PAGE_BYTES = 16384
CAPACITY_AT_FIRST, CAPACITY = 8, 256
"""The table grows while the workers have it open: the helper raises the limit now and then."""
TURNS_TO_GROW = 4
MAX_DELIVERIES = 4
BACKOFF = (0.005, 0.03)
POISON = b"poison"
POISON_SHARE = 0.03
DEADLY_SHARE = 0.3
"""Deliveries of poison that kill their worker."""
MESSAGES_AT_ONCE = 40
ROUND_SECONDS = 4.0
MEAN_PAUSE = 0.02
CUT_SHARE = 0.08
RETAINING_SHARE = 0.4
"""Rounds in which done pages are removed. No cuts there: the image is not made by their syncs."""
POINT_SHARE = 0.6
POINTS = range(20, 28)
"""The kill points of `protocol/group_claims.c` and `protocol/group_table.c`."""
LEASE_POINT = 27
"""Where a lease ended, which is rarer than the others."""
TAKE_SHARE = 0.05
DRAIN_SECONDS = 60.0
LEASES = (0.004, 0.02, 0.08, 0.5)
DELAYS = (None, 0.0, 0.0, 0.001, 0.01, 0.3, 0.3)
"""Long ones too, so that a snapshot has more than one sector; None: the back-off of the group."""
NAME = "work"
CUTS_LOOKED_AT = 15
HELPER_UID = 0


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Ground:
    """Where a round takes place."""

    def __init__(self, directory: Path, *, keeps_all: bool) -> None:
        self.directory = directory
        self.keeps_all = keeps_all
        self.path = str(directory / "queue")
        self.group_file = Path(self.path) / f"queue-readMeta.{NAME}"
        self.log_path = directory / "log"
        self.errors = children.ErrorFile(directory / "errors")
        self.image_path = directory / "image"

    def queue(self) -> Queue:
        """Open the queue."""
        from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now

        retention = None if self.keeps_all else Retention(max_age=timedelta(microseconds=1))
        return Queue(self.path, page_bytes=PAGE_BYTES, retention=retention)

    def group(self, queue: Queue, lease: float = 30.0, capacity: int | None = None) -> Group:
        """Open the group."""
        return queue.group(
            NAME, lease=lease, max_deliveries=MAX_DELIVERIES, backoff=BACKOFF, capacity=capacity
        )


LARGE_SHARE = 0.1
DIGEST_BYTES = 16


def digested(data: bytes) -> bytes:
    """Return a large payload that shows whether it is whole."""
    data = data.ljust(PAGE_BYTES, b"-")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest() + data


def is_whole(payload: bytes) -> bool:
    """Whether a payload is an ordinary one, or a whole large one."""
    return len(payload) < PAGE_BYTES or payload == digested(payload[DIGEST_BYTES:])


# --- the processes that are killed ----------------------------------------------------------------


class Worker:
    """One worker: claims, and does all that can be done with a claim."""

    def __init__(self, ground: Ground, uid: int) -> None:
        self.log = Log(ground.log_path, Did)
        self.ground = ground
        self.uid = uid
        self.rng = random.Random(uid)
        self.number = 0
        self.lease = self.rng.choice(LEASES)
        self.kept: list[tuple[int, Any]] = []

    def run(self) -> None:
        """Work until killed, or until the handle is closed for a change."""
        with self.ground.queue() as queue:
            while True:
                group = self.ground.group(queue, self.lease)
                for _ in range(self.rng.randrange(20, 400)):
                    self.step(group)
                self.log.put(Did(CLOSING, self.uid, before=_now()))
                self.kept.clear()
                group.close()

    def step(self, group: Any) -> None:  # noqa: ANN401
        """Claim a message, and handle it in one of the ways there are."""
        if self.rng.random() < TAKE_SHARE:
            self.take(group)
            return
        before = _now()
        try:
            if self.rng.random() < 0.2:
                claims = group.claim_many(self.rng.randrange(1, 9), timeout=0.01)
            else:
                claims = [group.claim(timeout=0.01)]
        except TimeoutError:
            claims = []
        after = _now()
        for claim in claims:
            self.number += 1
            assert is_whole(claim.message.payload), f"{claim.message} is not what was sent"
            self.log.put(
                Did(
                    CLAIMED,
                    self.uid,
                    self.number,
                    claim.message.sequence,
                    before,
                    after,
                    int(self.lease * 1e9),
                    claim.deliveries,
                )
            )
            self.kept.append((self.number, claim))
        while self.kept and (len(self.kept) > 6 or self.rng.random() < 0.7):
            self.use(*self.kept.pop(self.rng.randrange(len(self.kept))))

    def take(self, group: Any) -> None:  # noqa: ANN401
        """Take one for good; which one is only known afterwards."""
        self.log.put(Did(TAKING, self.uid, before=_now()))
        sequence = NOTHING
        with contextlib.suppress(TimeoutError):
            sequence = group.take(timeout=0).sequence
        self.log.put(Did(TAKEN, self.uid, sequence=sequence, before=_now()))

    def use(self, number: int, claim: Any) -> None:  # noqa: ANN401
        """Acknowledge, reject, give back, extend, or sleep over it."""
        from pagequeue import errors  # noqa: PLC0415

        sequence, chance = claim.message.sequence, self.rng.random()
        is_poison = claim.message.payload.startswith(POISON)
        if is_poison and self.rng.random() < DEADLY_SHARE:
            os.kill(os.getpid(), signal.SIGKILL)
        before = _now()
        try:
            if chance < 0.1:
                time.sleep(self.lease * self.rng.random() * 1.5)
                before = _now()
            if is_poison:
                self.give_back(number, claim, None)
            elif chance < 0.75:
                self.log.put(Did(ENDING, self.uid, number, sequence, before, span=1))
                before = _now()
                claim.ack()
                self.log.put(Did(ACKED, self.uid, number, sequence, before, _now()))
            elif chance < 0.8:
                lease = int(self.lease * 1e9)
                self.log.put(Did(REJECTING, self.uid, number, sequence, before, span=lease))
                before = _now()
                claim.reject(reason_for(self.uid, number))
                self.log.put(Did(REJECTED, self.uid, number, sequence, before, _now()))
            elif chance < 0.9:
                self.give_back(number, claim, self.rng.choice(DELAYS))
            else:
                span = self.rng.choice(LEASES)
                claim.extend(span)
                self.log.put(
                    Did(EXTENDED, self.uid, number, sequence, before, _now(), int(span * 1e9))
                )
                self.kept.append((number, claim))
        except errors.LeaseLost:
            self.log.put(Did(REFUSED, self.uid, number, sequence, before, _now()))

    def give_back(self, number: int, claim: Any, delay: float | None) -> None:  # noqa: ANN401
        """Give a message back, to come again after a delay; None: that of the group."""
        told = BY_RULE if delay is None else int(delay * 1e9)
        self.log.put(Did(ENDING, self.uid, number, claim.message.sequence, _now(), told))
        claim.nack(delay)


def produce(ground: Ground, seed: int) -> None:
    """Send numbered messages, as long as not too many wait."""
    rng = random.Random(seed)
    with ground.queue() as queue, queue.producer() as producer:
        while True:
            waiting = queue.tail_sequence - min(
                (one.next_sequence or 0 for one in queue.consumers()), default=0
            )
            if waiting < CAPACITY:
                producer.send_many(
                    [
                        POISON if rng.random() < POISON_SHARE else rng.randbytes(rng.randrange(200))
                        for _ in range(MESSAGES_AT_ONCE)
                    ]
                )
                if rng.random() < LARGE_SHARE:
                    producer.send(digested(rng.randbytes(rng.randrange(4 * PAGE_BYTES))))
            time.sleep(0.003)


def help_out(ground: Ground, seed: int) -> None:
    """Flush the group's state, and keep its file as it was then, for the next power cut."""
    log, rng = Log(ground.log_path, Did), random.Random(seed)
    with ground.queue() as queue:
        group = ground.group(queue)
        synced = group._owner_lock.sync
        began = _now()

        def sync() -> None:
            time.sleep(rng.random() * 0.02)  # as a disk would: killed here, it is not on it
            synced()
            # The disk's version is no older than this from here on.
            temporary = ground.image_path.with_suffix(".new")
            temporary.write_bytes(ground.group_file.read_bytes())
            temporary.rename(ground.image_path)
            log.put(Did(FLUSHED, HELPER_UID, before=began, after=_now()))

        group._owner_lock.sync = sync  # type: ignore[method-assign]
        for turn in itertools.count(1):
            if turn % TURNS_TO_GROW == 0:
                limit = group._group_file.limit * 2
                ground.group(queue, capacity=min(limit, CAPACITY)).close()
            began = _now()
            group.flush()
            time.sleep(rng.random() * 0.05)


# --- the round ------------------------------------------------------------------------------------


class Round:
    """One queue, its workers and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.ground = Ground(directory, keeps_all=rng.random() >= RETAINING_SHARE)
        self.rng = rng
        self.log = Log(self.ground.log_path, Did)
        self.pids: dict[int, int] = {}
        self.uids: dict[int, int] = {}
        self.deaths: dict[int, int] = {}
        self.counts = {
            "kills": 0,
            "deaths at a step": 0,
            "power cuts": 0,
            "cuts of copies": 0,
            "rounds with retention": int(not self.ground.keeps_all),
            "claims": 0,
        }
        self.violations: list[str] = []

    @property
    def cases(self) -> int:
        """Processes that were killed, or died at a step."""
        return self.counts["kills"] + self.counts["deaths at a step"]

    def start_worker(self, slot: int) -> None:
        """Start a worker; some die on their own at a step of the table."""
        uid = self.uids[slot] = self.rng.getrandbits(62)
        point, passes = 0, 0
        if self.rng.random() < POINT_SHARE:
            point = self.rng.choice(POINTS)
            passes = self.rng.randrange(1, 4 if point == LEASE_POINT else 30)

        def body() -> None:
            from pagequeue import _core  # noqa: PLC0415

            if point and hasattr(_core, "set_kill_point"):
                _core.set_kill_point(point, passes)
            Worker(self.ground, uid).run()

        self.pids[slot] = children.fork(body, self.ground.errors, f"worker {uid}")

    def start_others(self) -> None:
        """Start producer and helper."""
        seed = self.rng.getrandbits(62)
        ground = self.ground
        self.pids[-1] = children.fork(lambda: produce(ground, seed), ground.errors, "producer")
        self.pids[-2] = children.fork(lambda: help_out(ground, seed), ground.errors, "helper")

    def bury(self, slot: int, status: int) -> None:
        """Count a death; what was killed is what we killed, or it died at a step."""
        if not children.was_killed(status):
            self.violations.append(f"process {slot} had exited unasked")

    def kill(self, slot: int) -> None:
        """Kill a process from outside; it can have died at a step just before."""
        now, pid = _now(), self.pids.pop(slot)
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
        self.bury(slot, status)
        self.counts["deaths at a step" if found else "kills"] += 1
        if slot in self.uids:
            self.deaths[self.uids[slot]] = 0 if found else now  # 0: of the last thing it wrote

    def revive(self) -> None:
        """Restart the workers that died at a step."""
        for slot, pid in list(self.pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.bury(slot, status)
                self.counts["deaths at a step"] += 1
                del self.pids[slot]
                if slot >= 0:
                    self.deaths[self.uids[slot]] = 0  # known from what it wrote last
                    self.start_worker(slot)

    def run(self, deadline: float) -> None:
        """Kill and start again until the round has had enough."""
        self.prepare()
        try:
            self.start_others()
            for slot in range(WORKERS):
                self.start_worker(slot)
            while time.monotonic() < deadline and not self.violations:
                time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
                self.revive()
                if self.ground.keeps_all and self.rng.random() < CUT_SHARE:
                    self.cut()
                else:
                    slot = self.rng.randrange(WORKERS)
                    self.kill(slot)
                    self.start_worker(slot)
        finally:
            self.stop_all()
        self.look_at_cuts(CUTS_LOOKED_AT)
        self.prove()

    def prepare(self) -> None:
        """Make queue and group in a child: this process opens none before it forks."""

        def body() -> None:
            with self.ground.queue() as queue:
                queue.group(NAME, capacity=CAPACITY_AT_FIRST).flush()

        status = children.ended(children.fork(body, self.ground.errors, "maker"), DRAIN_SECONDS)
        if status != 0:
            self.violations.append("the group could not be made")

    def stop_all(self) -> None:
        """Kill all processes."""
        for slot in list(self.pids):
            self.kill(slot)

    def cut(self) -> None:
        """Kill all processes and cut the power."""
        self.stop_all()
        self.counts["power cuts"] += 1
        self.look_at_cuts(CUTS_LOOKED_AT)
        if self.ground.image_path.exists():
            before, now = self.ground.image_path.read_bytes(), self.ground.group_file.read_bytes()
            with self.ground.group_file.open("r+b") as file:
                file.write(mixed(before, now, self.rng))
            self.ground.image_path.unlink()  # recovery makes another file
        tampering.pretend_power_cut(self.ground.path)
        self.log.put(Did(CUT, HELPER_UID, before=_now()))
        self.start_others()
        for slot in range(WORKERS):
            self.start_worker(slot)

    def look_at_cuts(self, count: int) -> None:
        """Cut the power so often, of copies."""
        ground = self.ground
        if not (ground.keeps_all and ground.image_path.exists()):
            return
        answer, seed = ground.directory / "cuts", self.rng.getrandbits(62)

        def body() -> None:
            letters = {letter.sequence for letter in dead_letters(ground)}
            wrong = many_cuts(
                ground.group_file,
                ground.image_path,
                self.log.events(),
                ground.directory / "room",
                letters,
                random.Random(seed),
                count,
            )
            answer.write_text(json.dumps(wrong))

        status = children.ended(children.fork(body, ground.errors, "cuts"), DRAIN_SECONDS)
        self.counts["cuts of copies"] += count
        if status == 0:
            self.violations += json.loads(answer.read_text())[:VIOLATIONS_MAX]
        else:
            self.violations.append("what a power cut leaves could not be recovered")

    def prove(self) -> None:
        """Claim the rest, and check all records."""
        answer = self.ground.directory / "answer"

        def body() -> None:
            answer.write_text(json.dumps(drain(self.ground)))

        pid = children.fork(body, self.ground.errors, "drain")
        status = children.ended(pid, DRAIN_SECONDS)
        if status is None:
            children.kill(pid)
            self.violations.append("the rest can never be claimed: a wait without end")
        said = self.ground.errors.said()
        self.violations += said[:VIOLATIONS_MAX]
        if status != 0 or said:
            return
        end, letters, problems, poison = json.loads(answer.read_text())
        self.counts["dead letters"] = len(letters)
        letters = [Letter(*letter) for letter in letters]
        from pagequeue.util.retry import Retry  # noqa: PLC0415  the core is chosen by now

        retry = Retry(MAX_DELIVERIES, *BACKOFF)
        done = set(range(end))
        judge = Judge(self.last_signs(), letters, done, MAX_DELIVERIES, retry, frozenset(poison))
        judge.judge(self.log.events())
        self.counts |= {
            "claims": judge.claims,
            "late and refused": judge.refused,
            "rejected": judge.rejected,
            "delivered again": judge.waited,
            "poison": len(poison),
        }
        self.violations += judge.violations + problems

    def last_signs(self) -> dict[int, int]:
        """Return when each worker was killed; of one that died at a step, its last record."""
        deaths = dict(self.deaths)
        for row in self.log.events():
            if self.deaths.get(row.worker) == 0:
                deaths[row.worker] = max(deaths[row.worker], row.before, row.after)
        return deaths


def dead_letters(ground: Ground) -> list[Letter]:
    """Return the dead letters."""
    from pagequeue import DeadLetter, Queue, QueueNotFound  # noqa: PLC0415

    prefix = f"queue.dead.{NAME}"
    try:
        with Queue(ground.path, prefix=prefix, read_only=True) as queue:
            letters = map(DeadLetter.decode, queue.replay())
            return [Letter(one.sequence, one.deliveries, one.reason) for one in letters]
    except QueueNotFound:
        return []


def drain(ground: Ground) -> tuple[int, list[Letter], list[str], list[int]]:
    """Claim and acknowledge all that is left.

    Returns:
        the end, the dead letters, problems, and the sequences of poison that the queue still has.
    """
    worker = Worker(ground, 1)
    worker.lease = 5.0
    with ground.queue() as queue:
        group = ground.group(queue, worker.lease)
        while group.lag:
            before = _now()
            try:
                claims = group.claim_many(100, timeout=1)
            except TimeoutError:
                continue
            after = _now()
            for claim in claims:
                worker.number += 1
                number, sequence = worker.number, claim.message.sequence
                worker.log.put(
                    Did(CLAIMED, 1, number, sequence, before, after, int(5e9), claim.deliveries)
                )
                if claim.message.payload.startswith(POISON):
                    worker.give_back(number, claim, None)
                    continue
                worker.log.put(Did(ENDING, 1, number, sequence, _now(), span=1))
                before_ack = _now()
                claim.ack()
                worker.log.put(Did(ACKED, 1, number, sequence, before_ack, _now()))
        letters = dead_letters(ground)
        problems = [f"{one.file}: {one.reason}" for one in queue.verify().problems]
        (counted,) = [one.group.dead_letters for one in queue.consumers() if one.group is not None]
        if counted > len(letters):
            problems.append(
                f"the group counts {counted} dead letters, and there are {len(letters)}"
            )
        poison = [one.sequence for one in queue.replay() if one.payload == POISON]
        return queue.tail_sequence, letters, problems, poison


def one_round(base: str, rng: random.Random, deadline: float, _cases_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-claims-", dir=base, ignore_cleanup_errors=True
    ) as directory:
        current = Round(Path(directory), random.Random(rng.getrandbits(62)))
        current.run(min(deadline, time.monotonic() + ROUND_SECONDS))
    return current


def campaign(budget: Budget) -> Outcome:
    """Try it, in this process, which has the core with kill points."""
    return in_rounds(budget, one_round, cases_max=1 << 30, violations_max=1)


def run(budget: Budget) -> Outcome:
    """Try to bring the forbidden outcome about."""
    return driver.run_apart(__name__, budget, variant.KILL_POINTS)


def run_with(budget: Budget, defines: dict[str, str]) -> Outcome:
    """The same with a core that has a planted bug."""
    return driver.run_apart(__name__, budget, defines)
