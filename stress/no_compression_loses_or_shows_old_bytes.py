"""Forbids that compressing loses or changes a message, or shows bytes that are another's.

One process sends into a queue of small pages, and retires and compresses older pages; two more
compress whatever is sealed; others open, replay, seek, search and verify; one keeps four consumers
at as many places, inside pages that are exchanged and retired under them. Any of them is killed at
any time and restarted; at times all are killed and the next opener takes it for a power cut. Every
reader knows what each message must be. In the end every message whose `send` returned and that
retention left is there, also when all is compressed, the files have no problem, and no temporary
file is left, nor an index of a compressed page.

A case is a kill.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from stress import children, driver, tampering
from stress.campaign import Budget, Outcome
from stress.rounds import tries
from stress.squeezed_pages import Scene, check

SHORT_SECONDS = 3.0
PAGE_BYTES = (16 << 10, 64 << 10, 256 << 10)
ROLES = ("send", "compress", "compress", "read_anew", "read_anew", "read_on")
KILLS = 24
"""So many kills in the life of one queue."""
VIOLATIONS_MAX = 10


def run(budget: Budget) -> Outcome:
    """Run it in a separate process."""
    if importlib.util.find_spec("zstandard") is None:
        left_out = {"left out": "all: the extra zstd is not installed"}
        return Outcome(0, ["it needs an extra: pip install 'pagequeue[zstd]'"], left_out)
    return driver.run_apart(__name__, budget)


class _Life:
    """One queue, from its making to its proof."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.rng = rng
        self.errors = children.ErrorFile(directory / "errors")
        page_bytes = rng.choice(PAGE_BYTES)
        self.scene = Scene(
            directory / "queue",
            rng.getrandbits(32),
            page_bytes,
            block_bytes=rng.choice((512, 2048, page_bytes // 4, page_bytes)),
            kept_pages=rng.choice((None, 4, 8)),
            after=rng.choice((None, 0, 1, 3)),
            level=rng.choice((-5, 1, 3)),
            acked=directory / "acked",
        )
        self.pids: dict[int, str] = {}
        self.pages = 0
        self.kills = 0
        self.violations: list[str] = []

    def start(self, role: str) -> None:
        """Start one process."""
        rng = random.Random(self.rng.getrandbits(63))

        def body() -> None:
            logging.getLogger("pagequeue").setLevel(logging.ERROR)
            getattr(self.scene, role)(rng)

        self.pids[children.fork(body, self.errors, role)] = role

    def live(self, deadline: float) -> None:
        """Start all, kill and start again."""
        with self.scene.open(sends=True):
            pass
        for role in ROLES:
            self.start(role)
        for _ in range(KILLS):
            time.sleep(self.rng.expovariate(25))
            if self.rng.random() < 0.1:
                for pid in list(self.pids):
                    self.kill(pid)
                if self.rng.random() < 0.5:
                    tampering.pretend_power_cut(str(self.scene.path))
                for role in ROLES:
                    self.start(role)
            else:
                pid = self.rng.choice(list(self.pids))
                role = self.pids[pid]
                self.kill(pid)
                self.start(role)
            if self.errors.said() or time.monotonic() > deadline:
                break

    def kill(self, pid: int) -> None:
        """Kill one of them; one that had ended before is a violation."""
        role = self.pids.pop(pid)
        if not children.was_killed(children.kill(pid)):
            self.violations.append(f"{role} exited unasked")
        self.kills += 1

    def end(self) -> None:
        """Kill all that are left."""
        for pid in list(self.pids):
            self.kill(pid)
        self.violations += self.errors.said()
        self.errors.close()

    def prove(self) -> None:
        """Read all that must be there, as it is and when all is compressed."""
        if self.rng.random() < 0.3:
            tampering.pretend_power_cut(str(self.scene.path))
        with self.scene.open() as queue:
            acked = self.scene.acked_sequence()
            if queue.tail_sequence < acked:
                self.violations.append(f"{acked} were sent, {queue.tail_sequence} are there")
            for turn in range(2):
                self._read_all(queue)
                if turn == 0:
                    queue.rotate()
                    queue.compress()
            problems = queue.verify().problems
            if problems:
                self.violations.append(f"verify finds {problems[:3]}")
            self.pages = queue.info().compressed_page_count
        left = [name for name in os.listdir(self.scene.path) if ".tmp" in name]
        if left:
            self.violations.append(f"temporary files are left: {left}")
        indexes = [
            path.name
            for path in self.scene.path.glob("*.idx")
            if path.with_suffix(".page").stat().st_size < self.scene.page_bytes
        ]
        if indexes:
            self.violations.append(f"indexes of compressed pages are left: {indexes}")

    def _read_all(self, queue: object) -> None:
        from pagequeue import Queue  # noqa: PLC0415

        assert isinstance(queue, Queue)
        expected, last = queue.head_sequence, 0
        if self.scene.kept_pages is None and expected:
            self.violations.append(f"it begins with {expected}")
        for message in queue.replay():
            check(self.scene.seed, message, expected)
            if message.timestamp < last:
                self.violations.append(f"message {expected} is older than the one before it")
            expected, last = expected + 1, message.timestamp
        if expected != queue.tail_sequence:
            self.violations.append(f"reading ends at {expected}, the tail is {queue.tail_sequence}")


def campaign(budget: Budget) -> Outcome:
    """Live through one queue after the other."""
    outcome = Outcome(0, notes={"queues": 0, "pages compressed at the end": 0})
    for turn, seconds in enumerate(tries(budget, outcome, VIOLATIONS_MAX)):
        directory = Path(tempfile.mkdtemp(prefix="compress-", dir=driver.scratch_directory()))
        life = _Life(directory, random.Random(f"{budget.seed} {turn}"))
        try:
            try:
                life.live(time.monotonic() + seconds)
            finally:
                life.end()
            if not life.violations:
                life.prove()
        except Exception as error:  # noqa: BLE001  any exception is a violation
            life.violations.append(f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        outcome.cases += life.kills
        outcome.notes["queues"] += 1
        outcome.notes["pages compressed at the end"] += life.pages
        outcome.violations += [f"queue {turn}: {text}" for text in life.violations]
    return outcome
