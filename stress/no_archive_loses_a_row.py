"""Forbids that archive or replay lose, double or hide a row, whichever process is killed.

First without Spark: an archiver (`archive_steps`) is killed at a random call to the system, again
and again, while a reader of Parquet checks the table; a case is a kill. Then with it: a driver
(`archive_driver`) archives a queue that keeps few pages and waits for it, and is killed, Java and
all, at random moments, every other time only when a batch was done; in the end a last one archives
the rest, and replays the table to a queue in slices, killed in that too. Each message must be in
the table once at each check after its batch was done, and come back once and in order; no slice
may be too large, although all of it is one hour. Needs the extra `spark` and a Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagequeue import Queue
from pagequeue.meta.ledger import published_name, read_record
from stress import no_row_is_lost_or_doubled_by_spark as spark_campaign
from stress.campaign import Budget, Outcome
from stress.spark_driver import row_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORT_SECONDS = 12.0
STEPS_SHARE = 0.4
"""So much of the time is for archivers without Spark."""
VIOLATIONS_MAX = 5
HOLDS_SHARE = 0.3
"""Of the readings, those that keep compaction away, as `pipeline.reading` does."""
LIFE_SECONDS = 30.0
TABLE_ROWS_MAX = 20_000
KILL_SECONDS = 4.0
"""So long a driver works on the average until it is killed."""
REPLAY_SECONDS = 8.0
"""So long a driver has been working at the most when it is killed while it replays."""
REPLAY_KILL_SECONDS = 60.0
"""A run of so many seconds kills a driver once more while it replays."""


def rows_of(table: Path) -> Counter[tuple[str, int]]:
    """Return queue and sequence of each row that a reader sees, by how often.

    Raises:
        FileNotFoundError: it was compacted during the call.
        ValueError: a row has another payload than its message.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - the extra

    from stress.archive_steps import payload_of  # noqa: PLC0415 - the same

    found: Counter[tuple[str, int]] = Counter()
    if not any(table.glob("queue=*/*/*/*.parquet")):
        return found
    read = pq.read_table(table, columns=["queue", "sequence", "payload"]).to_pydict()
    for queue, sequence, payload in zip(*read.values(), strict=True):
        is_sparks = queue.startswith("/")
        name = "s" if is_sparks else queue
        wanted = row_of(name, sequence) if is_sparks else payload_of(name, sequence)
        if payload != wanted:
            raise ValueError(f"{queue} {sequence} has payload {payload[:40]!r}")
        found[name, sequence] += 1
    return found


def judged(found: Counter[tuple[str, int]], ends: dict[str, int]) -> list[str]:
    """Return what is wrong with what a reader saw, if all below these ends was done before."""
    doubled = [row for row, count in found.items() if count > 1]
    wrong = [f"{len(doubled)} rows are doubled, {doubled[0]} is one"] if doubled else []
    for queue, end in ends.items():
        missing = [n for n in range(end) if (queue, n) not in found]
        if missing:
            wrong.append(f"{queue}: {len(missing)} of {end} rows are missing, {missing[0]} is one")
    return wrong


def seen(table: Path, ends: dict[str, int], *, holds: bool) -> list[str]:
    """Return what is wrong with what a reader sees.

    One that does not hold compaction off can list an hour's directory, and look for its files in
    the one that has taken its place: it reads again.

    Raises:
        FileNotFoundError: it was compacted during the call.
    """
    from pagequeue.spark.pipeline import reading  # noqa: PLC0415 - the extra

    if holds:
        with reading(table):
            return judged(rows_of(table), ends)
    before = {path: path.stat().st_ino for path in table.glob("queue=*/*/*")}
    wrong = judged(rows_of(table), ends)
    if any(path.stat().st_ino != number for path, number in before.items()):
        raise FileNotFoundError
    return wrong


# --- without Spark --------------------------------------------------------------------------------


class Steps:
    """Archivers that are killed at a call to the system."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.rng = rng
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["stress.archive_steps"])
        self.kills = self.looks = 0
        self.wrong: list[str] = []

    def run(self, deadline: float, limit: int) -> None:
        """Kill and check until the time is over, or there is a violation."""
        from stress import archive_steps  # noqa: PLC0415 - needs the extra

        while time.monotonic() < deadline and self.kills < limit and not self.wrong:
            target = archive_steps.archive
            arguments = (str(self.directory), self.rng.getrandbits(32))
            process = self.context.Process(target=target, args=arguments, daemon=True)
            process.start()
            until = time.monotonic() + LIFE_SECONDS
            while process.is_alive() and time.monotonic() < until and not self.wrong:
                self.look()
            process.kill()
            process.join()
            if process.exitcode != -9:
                self.wrong.append(f"an archiver exited unasked: {process.exitcode}")
            self.kills += 1
            self.look()
            ends = archive_steps.offsets_of(self.directory / "done")
            if sum(ends.values()) > TABLE_ROWS_MAX:
                shutil.rmtree(self.directory)
                self.directory.mkdir()

    def look(self) -> None:
        """See what a reader sees."""
        from stress import archive_steps  # noqa: PLC0415 - the same

        ends = archive_steps.offsets_of(self.directory / "done")
        holds = self.rng.random() < HOLDS_SHARE
        try:
            self.wrong += seen(self.directory / "table", ends, holds=holds)
            self.looks += 1
        except FileNotFoundError:
            pass  # compacted in between: a reader reads again
        except ValueError as error:
            self.wrong.append(str(error))


# --- with Spark -----------------------------------------------------------------------------------


class Round(spark_campaign.Round):
    """Drivers that archive, then replay."""

    module = "stress.archive_driver"

    def kill_driver_at(self, path: Path, seconds: float) -> None:
        """Kill it so long after a file is there; then start the next one."""
        deadline = time.monotonic() + spark_campaign.END_SECONDS
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        self.kill_driver()
        self.kills["drivers"] += 1
        self.start()


def replayed(directory: Path, sent: int) -> list[str]:
    """Return what is wrong with what came back."""
    with Queue(directory / "to") as queue:
        there = [message.payload for message in queue.replay()]
        wrong = [f"verify: {problem}" for problem in queue.verify().problems]
        wrong += too_large(queue, sent)
    wanted = [row_of("s", number) for number in range(sent)]
    if there != wanted:
        lost = len(set(wanted) - set(there))
        doubled = len(there) - len(set(there))
        wrong.append(f"replay: of {sent} {lost} are lost, {doubled} doubled, or out of order")
    return wrong


def too_large(queue: Queue, sent: int) -> list[str]:
    """Return which slices that the ledger remembers have more messages than they may."""
    from stress.archive_driver import SLICES  # noqa: PLC0415 - the extra

    folder = queue._store.folder
    start, wrong, most = published_name("queue", ""), [], 2 * -(-sent // SLICES)
    for name in folder.names():
        entry = read_record(folder, name) if name.startswith(start) else None
        for piece, first, end in entry["done"] if entry else ():
            if end - first >= most:
                wrong.append(f"slice {piece} has {end - first} messages, of {sent}")
    return wrong


def await_source(source: Path, feeder: spark_campaign.Feeder) -> None:
    """Wait until the feeder has made its queue.

    Raises:
        TimeoutError: it never does.
    """
    ends = time.monotonic() + spark_campaign.END_SECONDS
    while not (source / "queue-readMeta.spark").exists():
        if not feeder.is_alive() or time.monotonic() > ends:
            raise TimeoutError(f"the feeder made no queue: {feeder.failure}")
        time.sleep(0.01)


def with_spark(directory: Path, rng: random.Random, deadline: float, outcome: Outcome) -> None:
    """Kill drivers until the time is over, then have one finish."""
    seconds = deadline - time.monotonic()
    this = Round(directory, rng)
    feeder = spark_campaign.Feeder(directory / "from")
    try:
        feeder.start()
        await_source(directory / "from", feeder)
        this.start()
        while True:
            this.pause(KILL_SECONDS, deadline)
            looked(directory, outcome)
            if time.monotonic() > deadline or outcome.violations:
                break
            this.kill_driver()
            this.kills["drivers"] += 1
            this.start()
        feeder.stopping.set()
        feeder.join(spark_campaign.END_SECONDS)
        (directory / "stop").touch()
        this.kill_driver_at(directory / "archived", rng.uniform(0, 2))
        for _ in range(int(seconds // REPLAY_KILL_SECONDS)):
            this.kill_driver_at(directory / "archived", rng.uniform(0, REPLAY_SECONDS))
        this.finish()
        outcome.violations += judged(rows_of(directory / "table"), {"s": feeder.sent})
        outcome.violations += replayed(directory, feeder.sent)
        if feeder.failure:
            outcome.violations.append(feeder.failure)
        with Queue(directory / "from", read_only=True) as queue:
            outcome.notes["retention took"] = queue.head_sequence
    except TimeoutError as error:
        outcome.violations.append(str(error))
    finally:
        feeder.stopping.set()
        this.kill_driver()
    outcome.cases += this.kills["drivers"]
    outcome.notes |= {
        "reader": this.reader,
        "messages": feeder.sent,
        "killed drivers": this.kills["drivers"],
        "kills after a batch": this.batches,
    }


def looked(directory: Path, outcome: Outcome) -> None:
    """See what a reader sees of the table of a driver that is at work."""
    with contextlib.suppress(FileNotFoundError):
        done = spark_campaign.acknowledged(directory / "from")
        outcome.violations += seen(directory / "table", {"s": done}, holds=False)


def run(budget: Budget) -> Outcome:
    """Kill archivers, then drivers."""
    missing: Iterable[Any] = [
        name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None
    ]
    for name in missing:
        left_out = {"left out": f"all: {name} is not installed"}
        return Outcome(0, ["it needs an extra: pip install 'pagequeue[spark]'"], left_out)
    begun = time.monotonic()
    rng = random.Random(budget.seed)
    directory = Path(tempfile.mkdtemp(prefix="pagequeue-archive-"))
    (directory / "steps").mkdir()
    limit = budget.cases or sys.maxsize
    steps = Steps(directory / "steps", rng)
    steps.run(begun + budget.seconds * STEPS_SHARE, limit)
    outcome = Outcome(steps.kills, steps.wrong[:VIOLATIONS_MAX])
    outcome.notes |= {"killed archivers": steps.kills, "checks": steps.looks}
    if not outcome.violations and steps.kills < limit:
        with_spark(directory, rng, begun + budget.seconds, outcome)
    outcome.require(budget, {"Spark": outcome.notes.get("killed drivers", 0)})
    if outcome.violations:
        outcome.notes["directory"] = str(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome
