"""Forbids that a full disk or a limit harms what was sent, or ends anything but one call.

On a tmpfs of limited size, on ext4 and on xfs, room is taken away at random times, by another file,
by the queue itself, or by the limits of the process (RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_AS), and
given back. While there is none: sending ends in DiskFull or SystemLimit, which name path and
remedy, never in a signal; sent messages can be read, flushed and verified; no half-written file is
left. When there is room again, the same handle sends. The same for making a queue, opening it,
recovering it, and making its metas and indexes again.

A case is one time without room.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.disks import MIB, Disk, Unavailable, private_mounts
from stress.history import MemoryLog, Sent, all_of
from stress.rounds import tries
from stress.squeeze import fill, halves, relieve
from stress.tenant import WANTED, Case, Tenant, problems_of, shape_of
from stress.traffic import VIOLATIONS_MAX, Proof

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT_SECONDS = 3.0

SIZES = {"tmpfs": 64 * MIB, "ext4": 64 * MIB, "xfs": None}
PAGE_BYTES = (16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB)
CROWD = 3
CROWD_PART = 0.25
ALONE_SECONDS = 60.0
GOES_ON_SECONDS = 60.0


class Episode:
    """One queue on one disk: made, squeezed, opened again, and proved."""

    def __init__(self, disk: Disk, directory: Path, rng: random.Random) -> None:
        self.disk = disk
        self.rng = rng
        self.queue_path = disk.path / "queue"
        self.page_bytes = rng.choice(PAGE_BYTES)
        self.errors = children.ErrorFile(directory / "errors")
        self.cases = MemoryLog(Case)
        self.logs: list[MemoryLog[Sent]] = []
        self.directory = directory
        self.uids: list[int] = []
        self.violations: list[str] = []
        self.killed = False
        self.boot()

    def boot(self) -> None:
        """Change the boot id that the next opener sees: it recovers the queue."""
        from pagequeue.meta import write_meta  # noqa: PLC0415

        assert hasattr(write_meta, "BOOT_ID_PATH")
        path = self.directory / "boot_id"
        path.write_text(str(uuid.UUID(int=self.rng.getrandbits(128))), encoding="ascii")
        setattr(write_meta, "BOOT_ID_PATH", str(path))  # noqa: B010  a Final of a module

    def tenant(self) -> Tenant:
        """Return a new user of the queue."""
        uid = self.rng.getrandbits(63)
        self.uids.append(uid)
        log = MemoryLog(Sent)
        self.logs.append(log)
        return Tenant(self.queue_path, self.disk.path, self.page_bytes, uid, log, self.cases)

    def start(self, body: Callable[[], None]) -> int:
        """Start a process that tells what it dies of."""
        return children.fork(body, self.errors, "tenant")

    def wait(self, pid: int, seconds: float) -> None:
        """Wait for a process; death by a signal is a violation."""
        status = children.ended(pid, seconds)
        if status is None:
            children.kill(pid)
            self.violations.append(f"hangs for {seconds:g} s")
        elif os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            self.violations.append(f"ended by {name}")

    def alone(self) -> None:
        """One process after the other uses the queue; in between its files are taken away."""
        for turn in range(self.rng.randint(1, 3)):
            if turn:
                self.spoil()
            self.wait(self.start(self.tenant().live), ALONE_SECONDS)
            if self.violations or self.errors.said():
                break

    def spoil(self) -> None:
        """Change or remove state that opening recreates: the boot id, an index, a meta."""
        if self.rng.random() < 0.7:
            self.boot()
        names = [name for name in os.listdir(self.queue_path) if name.endswith(".idx")]
        if names and self.rng.random() < 0.5:
            os.unlink(self.queue_path / self.rng.choice(names))
        for meta in ("queue-readMeta", "queue-writeMeta"):
            if self.rng.random() < 0.15 and (self.queue_path / meta).exists():
                os.unlink(self.queue_path / meta)

    def crowd(self) -> None:
        """Several processes send, while the disk is filled and relieved at random moments."""
        (self.disk.path / WANTED).touch()
        pids = [self.start(self.tenant().insist) for _ in range(CROWD)]
        try:
            for _ in range(self.rng.randint(1, 4)):
                time.sleep(self.rng.expovariate(50))
                fill(self.disk.path, self.rng.choice((0, 0, self.page_bytes)))
                time.sleep(self.rng.expovariate(50))
                relieve(self.disk.path)
                self.cases.put(Case(0))
            time.sleep(self.rng.expovariate(100))
            self.killed = self.rng.random() < 0.3
        finally:
            if self.killed:
                for pid in pids:
                    children.kill(pid)
            else:
                (self.disk.path / WANTED).unlink()  # to make a file there may be no room
                for pid in pids:
                    self.wait(pid, GOES_ON_SECONDS)

    def prove(self) -> None:
        """Open the queue where there is room, and compare all of it."""
        from pagequeue import Queue, errors  # noqa: PLC0415
        from pagequeue.bulk.publisher import BulkPublisher  # noqa: PLC0415

        try:
            with Queue(self.queue_path, page_bytes=self.page_bytes) as queue:
                records = all_of(self.logs)
                proof = Proof(shape_of(self.page_bytes).op, self.uids, records)
                proof.run(message for batch in queue.batches() for message in batch)
                self.violations += proof.violations
                if proof.unacknowledged and not self.killed:
                    self.violations.append("what was refused is there all the same")
                self.violations += [f"verify: {problem}" for problem in problems_of(queue)]
                if self.killed:  # what they staged, the next publisher removes
                    with BulkPublisher(queue._store) as publisher:
                        publisher._recover()
        except errors.PageQueueError as error:
            self.violations.append(f"{type(error).__name__}: {error}")
        found = halves(self.queue_path, self.page_bytes)
        self.violations += [f"left over: {name}" for name in found]

    def run(self) -> int:
        """Run it; return how often there was no room."""
        try:
            if self.rng.random() < CROWD_PART:
                self.crowd()
            else:
                self.alone()
            self.prove()
            self.violations += self.errors.said()
            return len(self.cases.events())
        finally:
            relieve(self.disk.path)
            self.cases.close()
            for log in self.logs:
                log.close()
            self.errors.close()
            for entry in (self.queue_path, self.directory):
                shutil.rmtree(entry, ignore_errors=True)
            (self.disk.path / WANTED).unlink(missing_ok=True)


def campaign(budget: Budget) -> Outcome:
    """Run episodes on all disks in turn, in a process that has no queue open."""
    import pagequeue  # noqa: F401, PLC0415  so that no child has to

    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-full-", dir=driver.scratch_directory(), ignore_cleanup_errors=True
    ) as name:
        base = Path(name)
        disks = _disks(base, outcome)
        try:
            for number, _ in enumerate(tries(budget, outcome, VIOLATIONS_MAX) if disks else ()):
                disk = disks[number % len(disks)]
                directory = base / f"episode-{number}"
                directory.mkdir()
                episode = Episode(disk, directory, rng)
                cases = episode.run()
                outcome.cases += cases
                outcome.notes[disk.kind] = outcome.notes.get(disk.kind, 0) + cases
                outcome.violations += [
                    f"episode {number} on {disk.kind}, pages of {episode.page_bytes}: {violation}"
                    for violation in episode.violations
                ]
        finally:
            for disk in disks:
                disk.close()
    return outcome


def _disks(base: Path, outcome: Outcome) -> list[Disk]:
    """Return the disks that are available here; report which are not."""
    disks = []
    try:
        private_mounts()
        for kind, size in SIZES.items():
            try:
                disks.append(Disk(kind, base / kind, size))
            except Unavailable as error:
                outcome.notes[f"{kind} left out"] = str(error)
    except Unavailable as error:
        outcome.notes["left out"] = str(error)
    return disks


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
