"""What the processes of a power-cut round do, and their logs in memory that no cut reaches.

Every log is a file outside of the disk that is cut. Each record in `told` was durable when it was
written: the parent reads it before it cuts.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from stress.history import Log, Seen, Sent, all_of
from stress.keeping import use_small_pages_again
from stress.traffic import Shape, chained

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Queue
    from pagequeue.types import Sync

PAGE_BYTES = 32 << 10
OS_PAGE_BYTES = 4096
SHAPE = Shape(publish_parts=10, publish_count_max=256, large_parts=8, large_bytes=100 << 10)
PRODUCERS_MAX = 3
CONSUMERS_MAX = 2
PAUSE_SECONDS = 0.001
NS_PER_S = 1_000_000_000
PROVER, TAKER = "prover", "taker"
"""Named consumers: the parent's, and one that dies with the power."""
ABOUT, DURABLE = range(1, 3)
DURABLE_SHARE, TRIM_SHARE = 0.3, 0.2
COMPRESS_SHARE = 0.02


class Policy(NamedTuple):
    """What a producer asks for: a sync every so many messages, or at such an age, or by calls."""

    every: int = 0
    seconds: float = 0.0

    @staticmethod
    def drawn(rng: random.Random) -> Policy:
        """Return one of all kinds."""
        kind = rng.randrange(4)
        if kind == 0:
            return Policy(every=1)
        if kind == 1:
            return Policy(every=rng.randint(2, 40))
        if kind == 2:
            return Policy(seconds=rng.choice((0.002, 0.01, 0.03)))
        return Policy()

    @property
    def sync(self) -> Sync:
        """Return it as `Queue` takes it."""
        if self.every == 1:
            return "always"
        return self.every or (timedelta(seconds=self.seconds) if self.seconds else "none")


class Told(NamedTuple):
    """That messages up to a sequence are on stable storage."""

    uid: int
    durable: int


class Place(NamedTuple):
    """Where the taker is about to be, or surely is after a power cut too."""

    uid: int
    sequence: int
    kind: int


@dataclass
class Logs:
    """What the processes of a round record: operations, durable marks, and messages received."""

    directory: Path
    acked: list[Log[Sent]] = field(init=False)
    told: list[Log[Told]] = field(init=False)
    seen: list[Log[Seen]] = field(init=False)
    taken: Log[Place] = field(init=False)

    def __post_init__(self) -> None:
        """Make one log for each writer."""
        self.acked = [Log(self.directory / f"acked-{i}", Sent) for i in range(PRODUCERS_MAX)]
        self.told = [Log(self.directory / f"told-{i}", Told) for i in range(PRODUCERS_MAX + 1)]
        self.seen = [Log(self.directory / f"seen-{i}", Seen) for i in range(CONSUMERS_MAX)]
        self.taken = Log(self.directory / "taken", Place)

    def all(self) -> list[Log[Any]]:
        """Return all logs."""
        return [*self.acked, *self.told, *self.seen, self.taken]

    def empty(self) -> None:
        """Forget all records."""
        for log in self.all():
            os.truncate(log.path, 0)

    def close(self) -> None:
        """Close the descriptors."""
        for log in self.all():
            log.close()


@dataclass(frozen=True)
class Actor:
    """A process of a round: which queue it opens, where it speaks, and its own randomness.

    Attributes:
        keeps: whether retention takes what both named consumers have acknowledged.
    """

    path: str
    logs: Logs
    slot: int
    uid: int
    keeps: bool = False

    def open(self, sync: Sync = "none") -> Queue:
        """Open the queue."""
        return opened(self.path, keeps=self.keeps, sync=sync)

    def produce(self, policy: Policy) -> None:
        """Send until the power is cut."""
        rng = random.Random(self.uid)
        acked, told = self.logs.acked[self.slot], self.logs.told[self.slot]
        flushes = 0.15 if policy == Policy() else 0.02
        with self.open(policy.sync) as queue, queue.producer() as producer:
            for number in itertools.count():
                first, count = SHAPE.op(self.uid, number).run(producer)
                acked.put(Sent(self.uid, number, count, first, time.monotonic_ns()))
                if SHAPE.op(self.uid, number).publishes:
                    told.put(Told(self.uid, first + count))
                if rng.random() < flushes:
                    told.put(Told(self.uid, producer.flush()))
                elif policy.every != 1 and number % 8 == 0:
                    told.put(Told(self.uid, queue.durable_sequence))
                if rng.random() < 0.1:
                    time.sleep(PAUSE_SECONDS)

    def consume(self, start: tuple[int, int], *, durable_only: bool) -> None:
        """Receive until the power is cut, from a place with a known digest on."""
        sequence, digest = start
        log = self.logs.seen[self.slot]
        with self.open() as queue:
            consumer = queue.consumer(sequence=sequence, durable_only=durable_only)
            while True:
                try:
                    batch = consumer.receive_many(100, timeout=0.05)
                except TimeoutError:
                    continue
                for message in batch:
                    digest = chained(digest, message)
                log.put(Seen(self.uid, consumer.sequence, digest, int(durable_only)))

    def take(self) -> None:
        """Resume, receive, acknowledge, trim and compress until the power is cut."""
        from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

        rng = random.Random(self.uid)
        log = self.logs.taken
        with self.open() as queue:
            consumer = queue.consumer(TAKER)
            assert isinstance(consumer, NamedConsumer)
            while True:
                try:
                    consumer.receive_many(rng.randint(1, 60), timeout=0.02)
                except TimeoutError:
                    continue
                durable = rng.random() < DURABLE_SHARE
                log.put(Place(self.uid, consumer.sequence, ABOUT))
                consumer.ack(durable=durable)
                if durable:
                    log.put(Place(self.uid, consumer.sequence, DURABLE))
                if rng.random() < TRIM_SHARE:
                    queue.trim()
                if rng.random() < COMPRESS_SHARE:
                    queue.compress()

    def stir(self) -> None:
        """Write parts of files to the disk in any order, as the system may at any time."""
        rng = random.Random(self.uid)
        while True:
            time.sleep(rng.expovariate(1000))
            names = [".", *(n for n in os.listdir(self.path) if not n.endswith(".lock"))]
            name = "." if rng.random() < 0.15 else rng.choice(names)
            try:
                fd = os.open(os.path.join(self.path, name), os.O_RDONLY)
            except FileNotFoundError:
                continue
            if name == ".":
                os.fsync(fd)  # names reach the disk before what the files hold
            elif rng.random() < 0.2:
                os.fdatasync(fd)
            else:
                start = rng.randrange(PAGE_BYTES // OS_PAGE_BYTES) * OS_PAGE_BYTES
                length = rng.randint(1, 3) * OS_PAGE_BYTES
                os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def open_only(self) -> None:
        """Open the queue, which recovers it, and record its state: no later cut may undo that."""
        with self.open() as queue:
            self.logs.told[PRODUCERS_MAX].put(Told(self.uid, queue.durable_sequence))
            time.sleep(60)


@dataclass(frozen=True)
class Claims:
    """The messages that must be there after a cut: read before it."""

    acked: list[Sent]
    told: list[Told]
    seen: list[Seen]
    taken: list[Place]
    at_ns: int

    @staticmethod
    def read(logs: Logs) -> Claims:
        """Return the claims recorded so far."""
        at_ns = time.monotonic_ns()
        return Claims(
            all_of(logs.acked), all_of(logs.told), all_of(logs.seen), logs.taken.events(), at_ns
        )

    def places(self, known: int, logs: Logs) -> tuple[int, int]:
        """Return where the taker may be, from where it was before: at least, and at most."""
        durable = [one.sequence for one in self.taken if one.kind == DURABLE]
        about = [one.sequence for one in logs.taken.events()]  # up to the cut
        return max([known, *durable]), max([known, *about])

    def end(self, policies: dict[int, Policy], slack_seconds: float) -> int:
        """Return the sequence below which every message must be there."""
        ends = [0, *(one.durable for one in self.told)]
        ends += [one.end for one in self.seen if one.is_durable]
        by_uid: dict[int, list[Sent]] = {}
        for record in self.acked:
            if record.messages:
                by_uid.setdefault(record.uid, []).append(record)
        for uid, mine in by_uid.items():
            ends.append(_kept(policies[uid], mine, self.at_ns, slack_seconds))
        return max(ends)


def _kept(policy: Policy, mine: list[Sent], at_ns: int, slack_seconds: float) -> int:
    """Return the sequence after the last message that a producer's policy guarantees."""
    if policy.every:
        sequences = [first + i for _, _, count, first, _ in mine for i in range(count)]
        promised = sequences[: max(0, len(sequences) - (policy.every - 1))]
        return promised[-1] + 1 if promised else 0
    if policy.seconds:
        limit_ns = at_ns - int((policy.seconds + slack_seconds) * NS_PER_S)
        old = [first + count for _, _, count, first, when in mine if when < limit_ns]
        return max(old, default=0)
    return 0


def opened(
    path: str,
    *,
    read_only: bool = False,
    keeps: bool = False,
    sync: Sync = "none",
) -> Queue:
    """Open a queue; with `keeps`, messages that its named consumers acknowledged are removed."""
    from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now

    if read_only:
        return Queue(path, read_only=True)
    retention = Retention(max_age=timedelta(microseconds=1)) if keeps else None
    use_small_pages_again(really=keeps)
    return Queue(path, page_bytes=PAGE_BYTES, sync=sync, retention=retention)
