"""Jobs that always fail, and jobs that kill their worker, among jobs that are done.

Workers of a group are forked, and replaced when a job killed them. All others are done once; those
that fail are delivered as often as the group says and not before their delay is over, and become
dead letters.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import NothingReceived, Queue
from stress import children
from stress.combined.ground import PAGE_BYTES, Ground
from stress.combined.operations import traced
from stress.combined.worker import HangGuard
from stress.history import Log

if TYPE_CHECKING:
    from pagequeue.group.group import Group

JOBS_MAX: Final = 40
DELIVERIES: Final = 3
BACKOFF: Final = (0.04, 0.2)
SPREAD: Final = 0.75
"""Up to a quarter of a delay is left out."""
WORKERS: Final = 2
PAUSE_SECONDS: Final = 0.1
FINE, FAILS, KILLS = b"fine", b"fails", b"kills"


class Met(NamedTuple):
    """A delivery of a job."""

    sequence: int
    deliveries: int
    at: int  # ns of the monotonic clock


def fail(ground: Ground, slot: int, uid: int) -> None:
    """Have workers meet such jobs until the round ends."""
    rng = random.Random(uid)
    guard = HangGuard(ground)
    path = Path(ground.base, f"jobs-{slot}")
    while ground.is_running:
        guard.again()
        Jobs(ground, path, rng).run()
        shutil.rmtree(path)
        time.sleep(rng.random() * PAUSE_SECONDS)
    guard.close()


class Jobs:
    """Some jobs, and the workers that do them."""

    def __init__(self, ground: Ground, path: Path, rng: random.Random) -> None:
        path.mkdir()
        self.ground = ground
        self.queue = str(path / "queue")
        self.met = Log(path / "met", Met)
        kinds = [FAILS] * rng.randint(1, 2) + [KILLS] * rng.randint(0, 1)
        self.jobs = kinds + [FINE] * rng.randint(1, JOBS_MAX)
        rng.shuffle(self.jobs)

    def run(self) -> None:
        """Send the jobs, have them done, and judge."""
        with Queue(self.queue, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
            self.group(queue).close()
            producer.send_many(self.jobs)
        deadline = time.monotonic() + children.HANG_SECONDS
        workers = {self.worker() for _ in range(WORKERS)}
        while workers:
            pid, status = os.wait()
            workers.discard(pid)
            if children.was_killed(status) and time.monotonic() < deadline:
                workers.add(self.worker())
        self.judge()
        self.met.close()
        self.ground.note("job that fails")

    def group(self, queue: Queue) -> Group:
        """Open the group."""
        return queue.group("crew", max_deliveries=DELIVERIES, backoff=BACKOFF)

    def worker(self) -> int:
        """Start a worker."""
        return children.fork(self.work, self.ground.errors, "worker")

    def work(self) -> None:
        """Do jobs until all are done, or one kills this process."""
        deadline = time.monotonic() + children.HANG_SECONDS
        with Queue(self.queue) as queue, self.group(queue) as group:
            while group.lag and time.monotonic() < deadline:
                with contextlib.suppress(NothingReceived):
                    claim = group.claim(timeout=0.05)
                    message = claim.message
                    self.met.put(Met(message.sequence, claim.deliveries, time.monotonic_ns()))
                    if claim.deliveries > DELIVERIES:
                        self.wrong(f"job {message.sequence} fails for ever")
                        return
                    if message.payload == KILLS:
                        os.kill(os.getpid(), signal.SIGKILL)
                    with contextlib.suppress(ValueError), claim:
                        if message.payload == FAILS:
                            raise ValueError("it always fails")

    def judge(self) -> None:
        """Check what was delivered, and what is a dead letter."""
        try:
            with Queue(self.queue) as queue, self.group(queue) as group:
                letters = {each.sequence: each.deliveries for each in group.dead_letters()}
                lag = group.lag
        except Exception as error:  # noqa: BLE001  any exception is a violation
            self.wrong(traced(error))
            return
        met: dict[int, list[Met]] = {}
        for one in self.met.events():
            met.setdefault(one.sequence, []).append(Met(*one))
        for sequence, kind in enumerate(self.jobs):
            times = met.get(sequence, [])
            limit = 1 if kind == FINE else DELIVERIES
            if [each.deliveries for each in times] != list(range(1, limit + 1)):
                self.wrong(f"job {sequence}, which {kind.decode()}, was delivered as {times}")
            if letters.get(sequence) != (None if kind == FINE else DELIVERIES):
                self.wrong(f"job {sequence}, which {kind.decode()}, is a letter: {letters}")
            for first, second in itertools.pairwise(times):
                least = BACKOFF[0] * 2 ** (first.deliveries - 1) * SPREAD
                if (second.at - first.at) / 1e9 < least:
                    self.wrong(f"job {sequence} came again too soon: {first}, {second}")
        if lag:
            self.wrong(f"{lag} jobs wait after {children.HANG_SECONDS:g} s")

    def wrong(self, text: str) -> None:
        """Report a violation."""
        self.ground.wrong("job that fails", len(self.ground.specs), text)
