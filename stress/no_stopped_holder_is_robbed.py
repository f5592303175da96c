"""Forbids that a process takes a lock from a stopped holder, or waits for it without end.

A process is stopped by a real SIGSTOP while it holds one of the queue's locks: the writers' lock at
every point of publish, roll and bulk commit, the preparation lock, the flush lock, `queue.lock` in
recovery. Meanwhile another one must be able to do what needs no lock, must get the typed timeout
for all that needs it, and must never get through; a copy of the directory made now must open and
work, because no live process holds its lock. When the lock file is removed meanwhile, no other
process gets in, and the holder notices. Then the holder is continued, or killed, and all processes
continue and are proved, message by message (I1 to I4, I8, I10, I19). A case is a stop.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver, variant
from stress.campaign import Budget, Outcome
from stress.children import HANG_SECONDS, STALL_SECONDS
from stress.steps import KINDS, PAGE_BYTES, Scene, uid_of
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Producer, Queue

SHORT_SECONDS = 4.0

LOCK_TIMEOUT = 0.04
CONTINUED = "continued"
"""A file that tells the holder that its stop is over."""
LARGE = bytes(2 * PAGE_BYTES)
BEFORE_OPS, BEHIND_OPS, OPS_MAX = 3, 6, 600
WRITERS, PREPARATION, FLUSH, RECOVERY = (
    "writers' lock",
    "preparation lock",
    "flush lock",
    "recovery",
)
REPLACED = "lock file"
"""Not a held lock: the file that every process locks is removed meanwhile."""
PUBLISH_POINTS, ROLL_POINTS, LEAP_POINTS = range(1, 8), range(11, 16), range(31, 36)
POINT_REPLACED = 4
STOPS_AT_POINTS = {
    "os/writers_lock.c": [
        ("number == kill_number && --kill_pass <= 0", "number == kill_number && --kill_pass == 0"),
        ("kill(getpid(), SIGKILL)", "kill(getpid(), SIGSTOP)"),
    ]
}
"""Turns kill points into points where a process stops, once."""


class Holder:
    """A process that is stopped while it holds a lock."""

    def __init__(self, scene: Scene, uid: int, lock: str, point: int, at_pass: int) -> None:
        self.scene = scene
        self.uid = uid
        self.lock = lock
        self.point = point
        self.at_pass = at_pass
        self.held = False

    def body(self) -> None:
        """Stop, and continue when continued."""
        if self.lock != FLUSH:
            self.set_stop()
        with (
            self.scene_queue() as queue,
            queue.producer() as producer,
        ):
            for number in range(BEFORE_OPS):
                self.scene.send(producer, self.uid, number)
            if self.lock == FLUSH:  # opening syncs, too, under another lock
                self.set_stop()
            if self.lock in {WRITERS, REPLACED}:
                from pagequeue import _core  # noqa: PLC0415  the core is chosen by now

                _core.set_kill_point(self.point, self.at_pass)  # type: ignore[attr-defined]
            if self.lock == REPLACED:
                self.notice(producer)
            else:
                self.work(queue, producer)

    def scene_queue(self) -> Queue:
        """Open the queue."""
        from pagequeue import Queue  # noqa: PLC0415

        return Queue(self.scene.path, page_bytes=PAGE_BYTES)

    def work(self, queue: Queue, producer: Producer) -> None:
        """Send, flush and roll; a bit more after the stop."""
        left = BEHIND_OPS
        for number in range(BEFORE_OPS, OPS_MAX):
            self.scene.send(producer, self.uid, number)
            if self.lock == FLUSH:
                queue.producer().flush()
            if (self.scene.directory / CONTINUED).exists():
                left -= 1
            if left == 0:
                return

    def notice(self, producer: Producer) -> None:
        """Send until it is noticed that others lock another file by now."""
        from pagequeue import LockReplaced  # noqa: PLC0415

        try:
            for number in range(BEFORE_OPS, OPS_MAX):
                self.scene.send(producer, self.uid, number)
        except LockReplaced:
            return
        self.scene.errors.say("a producer still sends though its lock file was removed")

    def set_stop(self) -> None:
        """Have this process stop when it has a lock on a slow path."""
        from pagequeue.store import power_loss_recovery, roll  # noqa: PLC0415

        places: dict[str, tuple[Any, str]] = {
            PREPARATION: (roll, "make_page"),
            FLUSH: (os, "fdatasync"),
            RECOVERY: (power_loss_recovery.Recovery, "run"),
        }
        if self.lock in places:
            owner, name = places[self.lock]
            setattr(owner, name, self.stopping(getattr(owner, name)))

    def stopping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that stops this process at its n-th call, then continues."""
        left = self.at_pass

        def stopped(*args: Any, **options: Any) -> Any:  # noqa: ANN401  passed through unchanged
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return function(*args, **options)

        return stopped


class Other:
    """Another process, while the holder is stopped and afterwards."""

    def __init__(self, scene: Scene, uid: int, lock: str) -> None:
        self.scene = scene
        self.uid = uid
        self.lock = lock
        self.number = 0

    def open(self, *, read_only: bool = False) -> Queue:
        """Open the queue, with little patience."""
        from pagequeue import Queue  # noqa: PLC0415

        size = None if read_only else PAGE_BYTES
        return Queue(
            self.scene.path, page_bytes=size, read_only=read_only, lock_timeout=LOCK_TIMEOUT
        )

    def meanwhile(self) -> None:
        """Run every operation while a stopped process holds a lock."""
        from pagequeue import FlushTimeout, LockReplaced, LockTimeout  # noqa: PLC0415
        from pagequeue.store.opening import DYING_SECONDS  # noqa: PLC0415

        if self.lock == REPLACED:
            self.refused("opening", self.open, LockReplaced, DYING_SECONDS)
        elif self.lock == RECOVERY:
            self.refused("opening", self.open, LockTimeout)
        else:
            with self.open() as queue, queue.producer() as producer:
                if self.lock == WRITERS:
                    self.refused("send", lambda: producer.send(b"stolen"), LockTimeout)
                    self.refused("a batch", lambda: producer.send_many([b"a", b"b"]), LockTimeout)
                    self.refused("a large message", lambda: producer.send(LARGE), LockTimeout)
                    self.refused("rotate", producer._seal, LockTimeout)
                    self.allowed("flush", producer.flush)
                elif self.lock == PREPARATION:
                    self.refused("a large message", lambda: producer.send(LARGE), LockTimeout)
                    self.refused("rolling", lambda: self.send_for_ever(producer), LockTimeout)
                    self.allowed("flush", producer.flush)
                else:
                    self.refused("flush", lambda: producer.flush(LOCK_TIMEOUT), FlushTimeout)
                    self.refused("flush", lambda: producer.flush(0), FlushTimeout)
                    self.allowed("send", lambda: self.send(producer))
                    self.allowed("rotate", queue.rotate)
        self.allowed("reading", self.read)

    def read(self) -> None:
        """Read all there is, without a lock."""
        sent = sum(record[2] for record in self.scene.acked.events())
        with self.open(read_only=True) as queue:
            count = sum(1 for _ in queue.replay())
        if count < sent:
            self.scene.errors.say(f"{count} messages can be read of {sent}")

    def send(self, producer: Producer) -> None:
        """Send one more operation."""
        self.scene.send(producer, self.uid, self.number)
        self.number += 1

    def send_for_ever(self, producer: Producer) -> None:
        """Send until an obstacle stops it."""
        for _ in range(OPS_MAX):
            self.send(producer)

    def refused(
        self,
        doing: str,
        call: Callable[[], object],
        error: type[Exception],
        waits: float = LOCK_TIMEOUT,
    ) -> None:
        """Report a call that needs the lock and is not refused soon after the wait it is given."""
        started = time.monotonic()
        try:
            call()
        except error:
            self.took(doing, time.monotonic() - started, waits)
        else:
            self.scene.errors.say(f"{doing} got through while the {self.lock} was held")

    def allowed(self, doing: str, call: Callable[[], object]) -> None:
        """Report a call that needs no lock and takes long."""
        started = time.monotonic()
        call()
        self.took(doing, time.monotonic() - started)

    def took(self, doing: str, seconds: float, waits: float = LOCK_TIMEOUT) -> None:
        """Report a wait that took too long."""
        if seconds > STALL_SECONDS + waits:
            self.scene.errors.say(f"{doing} took {seconds:.3f} s while the {self.lock} was held")


class Campaign:
    """All locks in an order of the seed, until the budget is used up."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.rng = random.Random(budget.seed)
        self.base = driver.scratch_directory()
        self.deadline = time.monotonic() + budget.seconds
        self.uids = iter(range(1, 1 << 40))
        self.outcome = Outcome(0, notes={"stops": {}})

    def run(self) -> Outcome:
        """Visit all places where a lock is held, again and again."""
        places = [(WRITERS, point) for point in (*PUBLISH_POINTS, *ROLL_POINTS, *LEAP_POINTS)]
        places += [(PREPARATION, 0), (FLUSH, 0), (RECOVERY, 0), (REPLACED, POINT_REPLACED)] * 2
        while True:
            self.rng.shuffle(places)
            for lock, point in places:
                if self.finished():
                    return self.outcome
                with (
                    tempfile.TemporaryDirectory(prefix="pagequeue-stop-", dir=self.base) as path,
                    Scene(path) as scene,
                ):
                    self.case(scene, lock, point)

    def finished(self) -> bool:
        """Whether the budget is used up, or there are enough violations to examine."""
        enough = self.budget.cases is not None and self.outcome.cases >= self.budget.cases
        failed = len(self.outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
        late = time.monotonic() >= self.deadline and self.outcome.cases > 0
        return enough or failed or late

    def uid(self, kind: str) -> int:
        """Return an unused producer's uid."""
        return uid_of(KINDS[kind], next(self.uids))

    def case(self, scene: Scene, lock: str, point: int) -> None:
        """Stop a process at one place."""
        kind = self.rng.choice(("single", "batch", "mixed"))
        if point in LEAP_POINTS:
            kind = "large"
        at_pass = 1 if lock == RECOVERY else self.rng.randint(1, 3)
        name = f"{lock}{f' at point {point}' if point else ''}, pass {at_pass}, {kind}"
        if lock == RECOVERY:
            self.prepare(scene)
        uid = self.uid(kind)
        scene.uids.append(uid)
        holder = Holder(scene, uid, lock, point, at_pass + (lock == PREPARATION))
        pid = children.fork(holder.body, scene.errors, "holder")
        if not stops(pid):
            scene.violations.append("the holder did not reach that place")
        else:
            if lock == REPLACED:
                os.unlink(f"{scene.path}/queue.lock")
            try:
                self.beside(scene, lock)
                self.copied(scene)
            finally:
                self.let_go(scene, pid)
            try:
                scene.prove()
            except Exception as error:  # noqa: BLE001  a failed open is a violation
                scene.violations.append(f"{type(error).__name__}: {error}")
        self.outcome.cases += 1
        self.outcome.violations += [f"{name}: {text}" for text in scene.violations]
        stops_at = self.outcome.notes["stops"]
        stops_at[lock] = stops_at.get(lock, 0) + 1

    def prepare(self, scene: Scene) -> None:
        """Make a queue that must be recovered: the copy of one."""
        from pagequeue import Queue  # noqa: PLC0415

        uid = self.uid("mixed")
        scene.uids.append(uid)
        with (
            Queue(f"{scene.path}-before", page_bytes=PAGE_BYTES) as queue,
            queue.producer() as producer,
        ):
            for number in range(self.rng.randint(BEFORE_OPS, 40)):
                scene.send(producer, uid, number)
        shutil.copytree(f"{scene.path}-before", scene.path)

    def beside(self, scene: Scene, lock: str) -> None:
        """Run another process while the holder is stopped."""
        uid = self.uid("single")
        scene.uids.append(uid)
        pid = children.fork(Other(scene, uid, lock).meanwhile, scene.errors, "another")
        if children.ended(pid, HANG_SECONDS) is None:
            scene.violations.append(f"another process hangs for {HANG_SECONDS:g} s")
            children.kill(pid)

    def copied(self, scene: Scene) -> None:
        """Copy the directory, and work in the copy: whose lock it was does not matter there."""
        copy = Scene(str(Path(scene.directory) / "copy"))
        with copy:
            shutil.copytree(scene.path, copy.path)
            copy.uids += scene.uids
            for record in scene.acked.events():
                copy.acked.put(record)
            try:
                copy.prove()
            except Exception as error:  # noqa: BLE001  a failed open is a violation
                copy.violations.append(f"{type(error).__name__}: {error}")
        scene.violations += [f"in a copy: {text}" for text in copy.violations]

    def let_go(self, scene: Scene, pid: int) -> None:
        """Continue the holder until it ends, or kill it."""
        if self.rng.random() < 0.3:
            children.kill(pid)
            return
        (scene.directory / CONTINUED).touch()
        os.kill(pid, signal.SIGCONT)
        if children.ended(pid, HANG_SECONDS) is None:
            scene.violations.append(f"the holder hangs for {HANG_SECONDS:g} s when continued")
            children.kill(pid)


def stops(pid: int) -> bool:
    """Wait until a child has stopped; False if it ends."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if found:
            return os.WIFSTOPPED(status)
        time.sleep(0.0005)
    children.kill(pid)
    return False


def campaign(budget: Budget) -> Outcome:
    """Run the stops; in a process that has no queue open and a core with such points."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    return Campaign(budget).run()


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it is, with points where a process stops."""
    return driver.run_apart(__name__, budget, variant.KILL_POINTS, STOPS_AT_POINTS)
