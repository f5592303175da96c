"""Forbids that bytes in a directory crash, hang or mislead a process that uses the queue.

A small queue is copied and damaged at random (`mutations.py`). Then, in a child with a time limit,
it is opened for writing and for reading, replayed from the head and by time, verified, salvaged,
repaired, and sent to. Allowed is success with messages that validate, or a `PageQueueError`; no
other exception, no signal, no file outside of the directory changed, and no message that was not
sent, unless the damage itself wrote a frame with a valid checksum. A case is one directory.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import driver
from stress.campaign import Budget, Outcome
from stress.rounds import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stress.corpus.shapes import Original
    from stress.corpus.victim import Victim

SHORT_SECONDS = 3.0
CASE_SECONDS_MAX = 60.0
LOCK_TIMEOUT = 0.2
SENT = [b"after" * 100] * 12
VIOLATIONS_MAX = 10
FORGES = "set_frame"
"""The change that can make a frame validate that was never sent."""


class Case:
    """What is done with one damaged directory, in a child; collects how each step ended."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        places = victim.original.places
        self.sent = {(place.sequence, place.timestamp, place.payload) for place in places}
        self.copied = {(place.timestamp, place.payload) for place in places}
        self.invented: list[str] = []
        self.ended: dict[str, str] = {}

    def step(self, name: str, call: Callable[[], Any]) -> None:
        """Do one step; a typed error is as good as success."""
        from pagequeue import PageQueueError  # noqa: PLC0415 - the core is chosen by now

        try:
            call()
            self.ended[name] = "ok"
        except PageQueueError as error:
            str(error)
            self.ended[name] = type(error).__name__

    def read(self, messages: Any, where: str) -> None:  # noqa: ANN401 - any iterable of messages
        """Take messages, and note those that were never sent; salvage gives them new sequences."""
        for message in messages:
            if message.payload in SENT:
                continue
            if where == "salvage":
                known = (message.timestamp, message.payload) in self.copied
            else:
                known = (message.sequence, message.timestamp, message.payload) in self.sent
            if not known:
                self.invented.append(
                    f"{where}: message {message.sequence} was never sent like that"
                )

    def open(self, **options: Any) -> Any:  # noqa: ANN401 - a Queue; the core is chosen by now
        """Open the queue."""
        from pagequeue import Queue  # noqa: PLC0415

        return Queue(self.victim.directory, lock_timeout=LOCK_TIMEOUT, **options)

    def look(self, *, read_only: bool) -> None:
        """Open and read in every way."""
        middle = self.victim.original.places[len(self.victim.original.places) // 2]
        with self.open(read_only=read_only) as queue:
            where = "read only" if read_only else "writing"
            ways: dict[str, Callable[[], Any]] = {
                "replay": queue.replay,
                "since": lambda: queue.replay(since=middle.timestamp),
                "until": lambda: queue.replay(since=timedelta(days=9999), until=middle.timestamp),
                "sequence": lambda: queue.replay(sequence=middle.sequence),
                "last": lambda: queue.last(5),
                "batches": lambda: [m for batch in queue.batches(limit_count=7) for m in batch],
            }
            for name, way in ways.items():
                self.step(f"{where} {name}", lambda way=way: self.read(way(), where))  # type: ignore[misc]
            self.step(f"{where} info", queue.info)
            self.step(f"{where} verify", queue.verify)
            self.step(f"{where} consumer", lambda: queue.consumer(latest=True).poll())

    def send(self) -> None:
        """Open and send over a page's end, flush, roll, read."""
        with self.open() as queue, queue.producer() as producer:
            for payload in SENT:
                producer.send(payload)
            producer.send_many(SENT[:3])
            producer.flush(2.0)
            queue.rotate()
            self.read(queue.replay(), "sent on")

    def salvage(self, name: str) -> None:
        """Copy out what validates."""
        import pagequeue  # noqa: PLC0415

        target = self.victim.directory.parent / name
        pagequeue.salvage_queue(self.victim.directory, target)
        with pagequeue.Queue(target) as queue:
            self.read(queue.replay(), "salvage")
            assert queue.verify().ok, "the target of a salvage is damaged"

    def run(self, order: str) -> dict[str, Any]:
        """Run all steps, in one of several orders: writing after reading, or before it."""
        import pagequeue  # noqa: PLC0415

        directory = self.victim.directory
        self.step("inspect", lambda: self.look(read_only=True))
        self.step("verify", lambda: pagequeue.verify_queue(directory))
        self.step("salvage", lambda: self.salvage("salvaged"))
        if order == "repair first":
            self.step(
                "repair", lambda: pagequeue.repair_queue(directory, lock_timeout=LOCK_TIMEOUT)
            )
        self.step("open", lambda: self.look(read_only=False))
        self.step("send", self.send)
        if order == "repair last":
            self.step(
                "repair", lambda: pagequeue.repair_queue(directory, lock_timeout=LOCK_TIMEOUT)
            )
            self.step("send again", self.send)
        self.step("salvage again", lambda: self.salvage("salvaged-again"))
        return {"invented": self.invented[:3], "ended": self.ended}


def run_case(original: Original, other: Original, base: Path, seed: int) -> tuple[list[str], str]:
    """Damage a copy by this seed; return what was forbidden, and how opening ended."""
    from stress.corpus import sandbox  # noqa: PLC0415 - the core is chosen by now
    from stress.corpus.judge import snapshot  # noqa: PLC0415
    from stress.corpus.victim import Victim  # noqa: PLC0415
    from stress.mutations import mutate  # noqa: PLC0415

    rng = random.Random(seed)
    base.mkdir(mode=0o700)
    try:
        victim = Victim(original, other, base, rng)
        done = mutate(victim.directory, rng)
        if rng.random() < 0.4:
            done.append(f"power cut: {victim.cut_power()}")
        order = rng.choice(("repair first", "repair last"))
        outside = snapshot(victim.outside)
        try:
            seen = sandbox.call(lambda: Case(victim).run(order), CASE_SECONDS_MAX)
        except sandbox.Crashed as error:
            return [f"{done}, {order}: {error}"], "crashed"
        wrong = []
        if seen["invented"] and not any(text.startswith(FORGES) for text in done):
            wrong.append(f"{done}, {order}: {seen['invented']}")
        if snapshot(victim.outside) != outside:
            wrong.append(f"{done}, {order}: a file outside of the directory was changed")
        return wrong, seen["ended"].get("send", "none")
    finally:
        shutil.rmtree(base, ignore_errors=True)


def campaign(budget: Budget) -> Outcome:
    """Run cases; in a process that has no queue open."""
    from stress.corpus.shapes import OTHER_START_NS, SHAPES, make  # noqa: PLC0415

    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    endings: dict[str, int] = {}
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-opening-", dir=driver.scratch_directory()
    ) as directory:
        base = Path(directory)
        queues = [
            (
                make(shape, budget.seed, base / f"good-{number}"),
                make(shape, budget.seed + 1, base / f"other-{number}", OTHER_START_NS),
            )
            for number, shape in enumerate(SHAPES)
        ]
        for _ in tries(budget, outcome, VIOLATIONS_MAX):
            number, seed = rng.randrange(len(queues)), rng.getrandbits(48)
            wrong, ending = run_case(*queues[number], base / "case", seed)
            outcome.cases += 1
            endings[ending] = endings.get(ending, 0) + 1
            where = f"queue {number} of seed {budget.seed}, case {outcome.cases} ({seed})"
            outcome.violations += [f"{where}: {text}" for text in wrong]
    outcome.notes["sending on ended with"] = dict(sorted(endings.items()))
    return outcome


def run_with(budget: Budget, defines: Mapping[str, str]) -> Outcome:
    """Run the campaign on a core that was built with these defines."""
    return driver.run_apart(__name__, budget, defines)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it was installed."""
    return driver.run_apart(__name__, budget)
