"""An archiver without Spark that `no_archive_loses_a_row` lets die at any call to the system.

It does what Spark's driver does: notes what the next batch is, has it staged, publishes it, notes
that it is done, compacts now and then. Staging is done here too, by pyarrow, in place of tasks.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from pagequeue.spark.pipeline import compaction, directories, table_layout
from pagequeue.spark.pipeline.compaction import Compactor
from pagequeue.spark.pipeline.publish import Publisher

START = 1_700_000_000_000_000_000 // table_layout.HOUR_NS * table_layout.HOUR_NS
STEP_NS = table_layout.HOUR_NS // 400
BATCH_MAX = 120
QUEUES = ("a", "b")
CALLS = ("rename", "fsync", "mkdir", "unlink", "rmdir", "link", "open")


def payload_of(queue: str, number: int) -> bytes:
    """Return what a message holds."""
    return f"{queue} {number}".encode()


def stage(staged: str, queue: str, first: int, end: int, tasks: int) -> None:
    """Write a batch as so many tasks do."""
    cuts = [first + (end - first) * task // tasks for task in range(tasks + 1)]
    for task, (begin, stop) in enumerate(itertools.pairwise(cuts)):
        by_hour: dict[int, list[int]] = {}
        for number in range(begin, stop):
            hour = (START + number * STEP_NS) // table_layout.HOUR_NS
            by_hour.setdefault(hour, []).append(number)
        for hour, numbers in by_hour.items():
            date = datetime.fromtimestamp(hour * 3600, UTC)
            there = Path(staged, f"queue={queue}", f"date={date:%Y-%m-%d}", f"hour={date:%H}")
            there.mkdir(parents=True, exist_ok=True)
            rows = {
                "sequence": pa.array(numbers, pa.int64()),
                "timestamp_ns": pa.array([START + n * STEP_NS for n in numbers], pa.int64()),
                "payload": [payload_of(queue, n) for n in numbers],
            }
            pq.write_table(pa.table(rows), there / f"part-{task:05d}.parquet")


class LocalSpark:
    """Runs tasks in this process; now and then twice, as Spark does."""

    def __init__(self, rng: random.Random) -> None:
        self.sparkContext = self  # Spark's name
        self._rng = rng
        self._jobs: list[compaction.Job] = []

    def parallelize(self, jobs: list[compaction.Job], _count: int) -> LocalSpark:
        """Take tasks."""
        self._jobs = jobs
        return self

    def foreach(self, function: Any) -> None:  # noqa: ANN401 - of a job
        """Do them."""
        for job in self._jobs:
            for _ in range(self._rng.choice((1, 1, 1, 2))):
                function(job)


def note(path: Path, offsets: dict[str, int]) -> None:
    """Note offsets, whole or not at all."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(offsets))
    beside.replace(path)


def offsets_of(path: Path) -> dict[str, int]:
    """Return offsets that were noted."""
    return json.loads(path.read_text()) if path.exists() else dict.fromkeys(QUEUES, 0)


def deadly(rng: random.Random) -> None:
    """Have this process killed at one of its next calls."""
    left = rng.choice((rng.randrange(1, 30), rng.randrange(1, 250)))

    def wrapped(system: Any) -> Any:  # noqa: ANN401 - any call
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the same
            nonlocal left
            left -= 1
            if left == 0 and rng.random() < 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
            result = system(*arguments, **options)
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))
    vars(compaction)["exchange"] = wrapped(directories.exchange)


def archive(directory: str, seed: int) -> None:
    """Archive batch after batch until killed."""
    rng = random.Random(seed)
    table = os.path.join(directory, "table")
    planned, done = Path(directory, "planned"), Path(directory, "done")
    deadly(rng)
    with Publisher(table) as publisher:
        compactor = Compactor(table, rng.choice((4_000, 1 << 20)))
        while True:
            start, end = offsets_of(done), offsets_of(planned)
            if rng.random() < 0.02:
                start = dict.fromkeys(QUEUES, 0)  # the checkpoint was lost
            elif start == end:
                end = {queue: at + rng.randrange(BATCH_MAX) for queue, at in start.items()}
                note(planned, end)
            staged = publisher.staging()
            for queue in QUEUES:
                if end[queue] > start[queue]:
                    stage(staged, queue, start[queue], end[queue], rng.randrange(1, 4))
            published = publisher.publish(staged, is_gapless=True)
            note(done, end)
            compactor.grown(published.directories)
            if rng.random() < 0.4:
                compactor.compact(LocalSpark(rng))  # type: ignore[arg-type]
