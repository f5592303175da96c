"""Forbids that a container's death frees a lock that another one holds, or that a dead one's stays.

Every process but the host's is process 1 of its PID namespace, so their thread ids are equal. One
is stopped by a real SIGSTOP while it holds the writers' lock, or that of a group; others try the
lock and are killed while they try. None may get through, none may wait without end. Then the holder
is continued or killed, and host and container continue, with large messages too; every message is
proved (I1 to I4, I8, I23), and every claim is acknowledged once (I14, I15). Either the host or the
holder opens the queue first, and so has the mutex. A container with another clock does not end the
host's leases, one that cannot tell the boot does not write, and one that opens a closed queue
through another mount gets no message that was acknowledged. A case is a stop, or one of these
three.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import tempfile
import time
from typing import TYPE_CHECKING

from stress import apart, children, driver, variant
from stress.campaign import Budget, Outcome
from stress.children import HANG_SECONDS
from stress.steps import KINDS, PAGE_BYTES, Scene, uid_of
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Queue

SHORT_SECONDS = 3.0

BEFORE_OPS, BEHIND_OPS, OPS_MAX = 3, 6, 600
MESSAGES = 40
TRYING_COUNT = 8
TRYING_SECONDS = 0.004
PUBLISH_POINTS, CLAIM_POINTS = range(1, 8), range(21, 23)
BYTE_LOCKED, MARKED, MARK_CLEARED = 41, 42, 43
"""Points of a holder that has no mutex; at the first and the last a mutex user may get through."""
GROUP = "workers"
TOLD_FD = 900
LARGE = bytes(2 * PAGE_BYTES)
SHORT_WAIT_SECONDS = 0.2
WAIT_SECONDS = 20.0
"""Until when a successor is given what is left."""
STOPS_AT_POINTS = {
    "os/writers_lock.c": [
        ("number == kill_number && --kill_pass <= 0", "number == kill_number && --kill_pass == 0"),
        (
            "kill(getpid(), SIGKILL)",
            f'if (write({TOLD_FD}, "", 1) == 1) nanosleep(&(struct timespec){{1, 0}}, NULL)',
        ),
        ("#include <pthread.h>", "#include <pthread.h>\n#include <time.h>"),
    ],
    "python/writer_attempt.c": [("#define HELD_TRIES 100 ", "#define HELD_TRIES 5000 ")],
}
"""Turns kill points into points where a process asks to be stopped, once: process 1 of a namespace
cannot stop itself. And makes the contenders do little else, so that they die while they try."""


class Case:
    """One holder, and the processes that try meanwhile."""

    def __init__(
        self, scene: Scene, rng: random.Random, uids: list[int], point: int, *, host_first: bool
    ) -> None:
        self.scene = scene
        self.rng = rng
        self.uids = uids
        self.point = point
        self.host_first = host_first
        self.at_pass = rng.randint(1, 3)
        self.is_group = point in CLAIM_POINTS
        self.done = os.open(scene.directory / "done", os.O_CREAT | os.O_APPEND | os.O_RDWR)
        self.keeper = 0

    def open(self, lock_timeout: float = HANG_SECONDS) -> Queue:
        """Open the queue."""
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        return Queue(self.scene.path, page_bytes=PAGE_BYTES, lock_timeout=lock_timeout)

    # --- what children do -------------------------------------------------------------------------

    def keep(self) -> None:
        """Have the queue open, as the first one."""
        with self.open():
            (self.scene.directory / "kept").touch()
            signal.pause()

    def hold(self) -> None:
        """Stop while holding a lock; continue when continued."""
        from pagequeue import _core  # noqa: PLC0415

        def arm() -> None:
            _core.set_kill_point(self.point, self.at_pass)  # type: ignore[attr-defined]

        with self.open() as queue, queue.producer() as producer:
            for number in range(BEFORE_OPS):
                self.scene.send(producer, self.uids[0], number)
            if self.is_group:
                producer.send_many([b"%d" % number for number in range(MESSAGES)])
                with queue.group(GROUP, lease=600.0) as group:
                    arm()
                    for _ in range(BEHIND_OPS):
                        self.acknowledge(group.claim(timeout=HANG_SECONDS))
            else:
                arm()
                for number in range(BEFORE_OPS, BEFORE_OPS + BEHIND_OPS):
                    self.scene.send(producer, self.uids[0], number)

    def acknowledge(self, claim: object) -> None:
        """Acknowledge a claim and note it."""
        claim.ack()  # type: ignore[attr-defined]
        os.write(self.done, b"%d\n" % claim.message.sequence)  # type: ignore[attr-defined]

    def trying(self, ready: int, attempts: int) -> None:
        """Try to get the lock; none of it may succeed."""
        from pagequeue import LockTimeout  # noqa: PLC0415

        with self.open(1e-6) as queue, queue.producer() as producer:
            group = queue.group(GROUP, lease=600.0) if self.is_group else None
            os.write(ready, b"r")
            for number in range(attempts):
                try:
                    if group is not None:
                        group.claim(timeout=0)
                    else:
                        producer.send(LARGE if number % 3 == 1 else b"robbed")
                except LockTimeout:
                    continue
                self.scene.errors.say("got through while another container held the lock")
                return

    def go_on(self, uid: int) -> None:
        """Send as ever, or claim the rest."""
        from pagequeue import NothingReceived  # noqa: PLC0415

        with self.open() as queue, queue.producer() as producer:
            for number in range(BEHIND_OPS):
                self.scene.send(producer, uid, number)
            if self.is_group:
                deadline = time.monotonic() + WAIT_SECONDS
                with queue.group(GROUP, lease=600.0) as group:
                    while group.lag and time.monotonic() < deadline:
                        with contextlib.suppress(NothingReceived):
                            self.acknowledge(group.claim(timeout=0.5))

    # --- the case ---------------------------------------------------------------------------------

    def play(self) -> None:
        """Stop the holder, try, release it, prove."""
        if self.host_first:
            self.keeper = children.fork(self.keep, self.scene.errors, "the first one")
            deadline = time.monotonic() + HANG_SECONDS
            while not (self.scene.directory / "kept").exists() and time.monotonic() < deadline:
                time.sleep(0.001)
        try:
            holder = self.stopped_holder()
            if holder is None:
                self.scene.violations.append("the holder did not reach that place")
                return
            passes = self.point in {BYTE_LOCKED, MARK_CLEARED}
            if not passes:
                self.try_meanwhile()
            self.release(holder, kill=passes or self.rng.random() < 0.5)
            for fork, uid in zip((children.fork, apart.fork), self.uids[1:], strict=True):
                body = self.bound(self.go_on, uid)
                self.await_end(fork(body, self.scene.errors, "a successor"), "continuing")
        finally:
            if self.keeper:
                children.kill(self.keeper)
            os.close(self.done)
        if self.is_group:
            self.check_claims()
        else:
            self.scene.prove()

    def stopped_holder(self) -> int | None:
        """Start the holder and stop it where it asks for that; None: it never did."""
        told, tell = os.pipe()
        os.dup2(tell, TOLD_FD)
        try:
            holder = apart.fork(self.hold, self.scene.errors, "the holder")
            if select.select([told], [], [], HANG_SECONDS)[0]:
                os.kill(holder, signal.SIGSTOP)
                if os.WIFSTOPPED(os.waitpid(holder, os.WUNTRACED)[1]):
                    return holder
            children.kill(holder)
        finally:
            for fd in (told, tell, TOLD_FD):
                os.close(fd)
        return None

    @staticmethod
    def bound(body: Callable[..., None], *args: int) -> Callable[[], None]:
        """Return a body that needs no arguments."""
        return lambda: body(*args)

    def try_meanwhile(self) -> None:
        """Kill containers that try, and have the host try as well."""
        ready, write = os.pipe()
        try:
            for _ in range(TRYING_COUNT):
                body = self.bound(self.trying, write, 1 << 40)
                pid = apart.fork(body, self.scene.errors, "a contender")
                os.read(ready, 1)
                time.sleep(self.rng.uniform(0, TRYING_SECONDS))
                children.kill(pid)
            body = self.bound(self.trying, write, 50)
            self.await_end(children.fork(body, self.scene.errors, "the host"), "trying")
        finally:
            os.close(ready)
            os.close(write)

    def release(self, holder: int, *, kill: bool) -> None:
        """Kill the holder, or continue it until it ends."""
        if kill:
            children.kill(holder)
        else:
            os.kill(holder, signal.SIGCONT)
            self.await_end(holder, "the holder, continued,")

    def await_end(self, pid: int, doing: str) -> None:
        """Report a child that does not exit without a kill."""
        if children.ended(pid, HANG_SECONDS) is None:
            self.scene.violations.append(f"{doing} takes more than {HANG_SECONDS:g} s")
            children.kill(pid)

    def check_claims(self) -> None:
        """Every message was acknowledged, and once."""
        done = sorted(map(int, (self.scene.directory / "done").read_bytes().split()))
        with self.open() as queue:
            wanted = list(range(queue.tail_sequence))
            problems = queue.verify().problems
        begun = wanted.index(done[0]) if done and done[0] in wanted else 0
        if done != wanted[begun:]:
            self.scene.violations.append(f"acknowledged {done}, and not each of {wanted} once")
        self.scene.violations += [str(problem) for problem in problems]
        self.scene.violations += self.scene.errors.said()


def _other_clock(scene: Scene) -> None:
    """Claim; a container whose clock is a day ahead must not take the lease for over."""
    from pagequeue import NothingReceived, Queue  # noqa: PLC0415  the core is chosen by now

    def other() -> None:
        with Queue(scene.path) as queue, queue.group(GROUP, lease=600.0) as group:
            try:
                group.claim(timeout=SHORT_WAIT_SECONDS)
            except NothingReceived:
                return
            scene.errors.say("a container with another clock got a message that is claimed")

    with (
        Queue(scene.path, page_bytes=PAGE_BYTES) as queue,
        queue.producer() as producer,
        queue.group(GROUP, lease=600.0) as group,
    ):
        producer.send(b"claimed")
        claim = group.claim(timeout=HANG_SECONDS)
        if os.path.exists("/proc/self/ns/time"):  # else the kernel has one clock for all
            apart.ahead(other)
        claim.ack()


def _without_boot_id(scene: Scene) -> None:
    """Open where no source of a boot id exists: writing must be refused."""
    from pagequeue import Queue, SystemLimit  # noqa: PLC0415  the core is chosen by now
    from pagequeue.meta.write_meta import BOOT_ID_PATH  # noqa: PLC0415

    apart.hide(os.path.dirname(BOOT_ID_PATH))
    try:
        Queue(scene.path, page_bytes=PAGE_BYTES).close()
    except SystemLimit:
        return
    scene.errors.say("a container that cannot tell the boot opened the queue for writing")


def _other_mount(scene: Scene) -> None:
    """Close the queue, and open it through another mount: what was acknowledged stays so."""
    from pagequeue import NothingReceived, Queue  # noqa: PLC0415  the core is chosen by now

    rng = random.Random(scene.path)
    sent, done = MESSAGES, set[int]()
    with (
        Queue(scene.path, page_bytes=PAGE_BYTES) as queue,
        queue.producer() as producer,
        queue.group(GROUP, backoff=None) as group,
    ):
        producer.send_many([b"%d" % i for i in range(sent)])
        flushed_at = rng.randrange(2 * sent)
        for number, claim in enumerate(group.claim_many(rng.randint(1, sent))):
            if rng.randrange(4):
                claim.ack()
                done.add(claim.message.sequence)
            if number == flushed_at:
                group.flush()
    apart.mounts()
    found: list[int] = []
    with Queue(scene.path) as queue, queue.group(GROUP) as group:
        try:
            while True:
                found.append(group.claim(timeout=0).message.sequence)
        except NothingReceived:
            pass
    if sorted(found) != sorted(set(range(sent)) - done):
        scene.errors.say(f"{sorted(done)} were acknowledged, and {sorted(found)} are delivered")


def _play_others(base: str, outcome: Outcome) -> None:
    """Be a container with another clock, one with another mount, and one without a boot id."""
    for body in (_other_clock, _other_mount, _without_boot_id):
        with (
            tempfile.TemporaryDirectory(prefix="pagequeue-apart-", dir=base) as directory,
            Scene(directory) as scene,
        ):
            name = body.__name__.strip("_").replace("_", " ")
            pid = children.fork(lambda: body(scene), scene.errors, name)  # noqa: B023 - ends here
            if children.ended(pid, HANG_SECONDS) is None:
                children.kill(pid)
                outcome.violations.append(f"{name} takes more than {HANG_SECONDS:g} s")
            outcome.violations += [f"{name}: {text}" for text in scene.errors.said()]
        outcome.cases += 1


def campaign(budget: Budget) -> Outcome:
    """Run the stops; in a process that has no queue open and a core with such points."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    stops_at: dict[int, int] = {}
    outcome = Outcome(0, notes={"stops": stops_at})
    why = apart.obstacle()
    if why is not None:
        outcome.notes["skipped"] = why
        return outcome
    rng = random.Random(budget.seed)
    base = driver.scratch_directory()
    deadline = time.monotonic() + budget.seconds
    number = 1
    places = [(point, first) for point in (*PUBLISH_POINTS, *CLAIM_POINTS) for first in (0, 1)]
    places += [(point, 1) for point in (BYTE_LOCKED, MARKED, MARK_CLEARED)]
    _play_others(base, outcome)
    while True:
        rng.shuffle(places)
        for point, host_first in places:
            enough = budget.cases is not None and outcome.cases >= budget.cases
            failed = len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
            if enough or failed or (stops_at and time.monotonic() >= deadline):
                return outcome
            # Not the holder: it would stop while it stages pages, with a lock of its own.
            kinds = [KINDS[kind] for kind in ("single", "large", "large")]
            uids = [uid_of(kind, number + i) for i, kind in enumerate(kinds)]
            number += 3
            with (
                tempfile.TemporaryDirectory(prefix="pagequeue-apart-", dir=base) as directory,
                Scene(directory) as scene,
            ):
                scene.uids += uids
                try:
                    Case(scene, rng, uids, point, host_first=bool(host_first)).play()
                except Exception as error:  # noqa: BLE001  a failed open is a violation
                    scene.violations.append(f"{type(error).__name__}: {error}")
                found = dict.fromkeys([*scene.violations, *scene.errors.said()])
            first = "the host" if host_first else "the holder"
            name = f"point {point}, {first} opened it first"
            outcome.cases += 1
            outcome.violations += [f"{name}: {text}" for text in found]
            stops_at[point] = stops_at.get(point, 0) + 1


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it is, with points where a process stops."""
    return driver.run_apart(__name__, budget, variant.KILL_POINTS, STOPS_AT_POINTS)
