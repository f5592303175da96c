"""Processes that outlive many queues, and what they hold while one is open and when all are closed.

A long-lived process is told over a pipe which queue comes next, uses it until told to stop, closes
all and answers with what it still has: descriptors, threads, files of queues that are mapped,
memory.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stress import children
from stress.history import Seen, Sent
from stress.roles import (
    NO_MORE,
    PAGE_BYTES,
    RUNNING,
    SHAPE,
    Ground,
    received,
)
from stress.traffic import chained

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Producer, Queue

PRODUCERS, CONSUMERS = 4, 3
"""Logs of a ground; the last producers' and consumers' are those of the long-lived processes."""
SETTLE_SECONDS = 0.02
REST_SECONDS = 60.0
"""And not so many seconds: this process can have had no processor."""
SETTLED_MAPS_MAX = 20
"""With more of them, the worker has not had its turn."""
OPS_A_TURN = 25
PAUSE_SECONDS = 0.001


@dataclass(frozen=True)
class Resources:
    """What a process has.

    Attributes:
        descriptors: open ones.
        threads: of the process.
        maps: maps of files of queues, those that were removed too.
        anonymous_bytes: memory that is no file's.
        stores: objects of open queues, and of closed ones that are still referenced.
    """

    descriptors: int
    threads: int
    maps: int
    anonymous_bytes: int
    stores: int


def resources(base: str) -> Resources:
    """Return what this process holds; all queues are below `base`."""
    from pagequeue.store.store import Store  # noqa: PLC0415  the core is chosen by now

    gc.collect()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        maps = sum(base in line for line in file)
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        anonymous = next(line for line in file if line.startswith("Anonymous:"))
    return Resources(
        descriptors=len(os.listdir("/proc/self/fd")) - 1,
        threads=len(os.listdir("/proc/self/task")),
        maps=maps,
        anonymous_bytes=int(anonymous.split()[1]) << 10,
        stores=sum(isinstance(found, Store) for found in gc.get_objects()),
    )


@dataclass(frozen=True)
class Report:
    """A long-lived process's report after a queue: what it holds now, and held with it open."""

    rest: Resources
    busy: Resources
    rolls: int


class Lodger:
    """A child that lives through all queues of a campaign."""

    def __init__(
        self, role: Callable[[Ground, int, str], tuple[Resources, int]], base: str
    ) -> None:
        self.role = role
        self.base = base
        self.errors = children.ErrorFile(Path(base) / f"errors-{role.__name__}")
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()

        def body() -> None:
            os.close(self._orders)
            os.close(self._answers)
            with os.fdopen(orders) as file:
                for line in file:
                    os.write(answers, self._serve(*json.loads(line)))

        self.pid = children.fork(body, self.errors, role.__name__)
        os.close(orders)
        os.close(answers)
        self._file = os.fdopen(self._answers)

    def _serve(self, directory: str, uid: int) -> bytes:
        ground = Ground(Path(directory), producers=PRODUCERS, consumers=CONSUMERS)
        busy, rolls = self.role(ground, uid, self.base)
        ground.close()
        report = {"rest": asdict(at_rest(self.base)), "busy": asdict(busy), "rolls": rolls}
        return json.dumps(report).encode() + b"\n"

    def begin(self, directory: Path, uid: int) -> None:
        """Tell it about the next queue."""
        os.write(self._orders, json.dumps([str(directory), uid]).encode() + b"\n")

    def report(self) -> Report:
        """Wait for it to be at rest.

        Raises:
            RuntimeError: it died.
        """
        line = self._file.readline()
        if not line:
            raise RuntimeError(f"{self.role.__name__} died: {self.errors.said()}")
        said = json.loads(line)
        return Report(Resources(**said["rest"]), Resources(**said["busy"]), said["rolls"])

    def dismiss(self) -> None:
        """Tell it that no queue comes any more; all must be told before the end of any."""
        os.close(self._orders)

    def end(self) -> None:
        """Wait for its end."""
        if children.ended(self.pid, 10.0) is None:
            children.kill(self.pid)
        self._file.close()
        self.errors.close()


def send(ground: Ground, producer: Producer, uid: int, number: int) -> int:
    """Send some operations; return the number of the next one."""
    for at in range(number, number + OPS_A_TURN):
        first, count = SHAPE.op(uid, at).run(producer)
        ground.acked[-1 - uid % 2].put(Sent(uid, at, count, first))
    return number + OPS_A_TURN


def settled(base: str) -> Resources:
    """Return what is held once the worker, which releases pages, had its turn."""
    before, found = 0, resources(base)
    deadline = time.monotonic() + REST_SECONDS
    while not before <= found.maps <= SETTLED_MAPS_MAX and time.monotonic() < deadline:
        time.sleep(SETTLE_SECONDS)
        before, found = found.maps, resources(base)
    return found


def at_rest(base: str) -> Resources:
    """Return what is held with everything closed: threads of closed queues may just be ending."""
    found = resources(base)
    deadline = time.monotonic() + REST_SECONDS
    while (found.threads, found.maps, found.stores) != (1, 0, 0) and time.monotonic() < deadline:
        time.sleep(SETTLE_SECONDS)
        found = resources(base)
    return found


def sit(ground: Ground, uid: int, base: str) -> tuple[Resources, int]:
    """Keep one queue open for all of its life: what is held must not follow the rolls."""
    uid = uid // 2 * 2
    number = sequence = digest = turn = 0
    with ground.open(uid) as queue, queue.producer() as producer:
        consumer = queue.consumer()
        while ground.phase[0] != NO_MORE or consumer.lag:
            turn += 1
            if ground.phase[0] == RUNNING:
                number = send(ground, producer, uid, number)
                if turn % 4 == 0:
                    producer.flush()
                if turn % 6 == 0:
                    queue.rotate()
            for message in received(consumer, turn):
                digest = chained(digest, message)
            if consumer.sequence != sequence:
                sequence = consumer.sequence
                ground.seen[-1].put(Seen(uid, sequence, digest))
            time.sleep(PAUSE_SECONDS)
        return settled(base), queue._store.tail.page_number


def come_and_go(ground: Ground, uid: int, base: str) -> tuple[Resources, int]:
    """Open and close in every way there is, with failing opens too."""
    uid = uid // 2 * 2 + 1
    number = turns = 0
    busy = resources(base)
    while ground.phase[0] == RUNNING:
        with ground.open(uid + 2 * turns) as queue:
            producer = queue.producer()
            number = send(ground, producer, uid, number)
            producer.flush()
            look(queue)
            if turns % 8 == 0:
                busy = settled(base)
        refuse(ground)
        with reader(ground) as queue:
            look(queue)
        if turns == 0:
            rescue(base)
        turns += 1
    return busy, turns


def reader(ground: Ground) -> Queue:
    """Open without permission to write."""
    from pagequeue import Queue  # noqa: PLC0415

    return Queue(ground.path, read_only=True)


def look(queue: Queue) -> None:
    """Read a little in every way, and leave handles to be closed with the queue."""
    queue.last(20)
    replay = queue.replay(since=timedelta(seconds=0.01))
    next(replay, None)
    next(queue.batches(sequence=queue.head_sequence), None)
    consumer = queue.consumer(latest=True)
    consumer.poll()
    consumer.seek(sequence=queue.head_sequence)
    queue.info()


def rescue(base: str) -> None:
    """Salvage a private queue into another one."""
    from pagequeue import Queue, salvage_queue  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=base) as directory:
        with Queue(f"{directory}/from", page_bytes=PAGE_BYTES) as queue:
            queue.producer().send(b"saved")
        salvage_queue(f"{directory}/from", f"{directory}/to")


def refuse(ground: Ground) -> None:
    """Make opens fail: a failed open must not hold any resource either."""
    from pagequeue import PageQueueError, Queue  # noqa: PLC0415

    for options in ({"page_bytes": 2 * PAGE_BYTES}, {"prefix": "other", "create": False}):
        try:
            Queue(ground.path, **options).close()
        except PageQueueError:
            continue
        ground.errors.say(f"opened with {options}")
