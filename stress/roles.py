"""What the processes of a kill campaign do until they are killed or told to stop.

Each role is a loop over the library's public API that checks its guarantees while it runs: no wait
for what a dead process had, no message durable before its sync, no lock released by a forked child.
All processes of a round share one `Ground`. What a producer was told is recorded for `traffic.py`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stress import children
from stress.history import Log, Seen, Sent
from stress.traffic import Shape, chained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Consumer, Message, Queue
    from pagequeue.types import Sync

PAGE_BYTES = 32 << 10
SHAPE = Shape(row_parts=64, large_parts=6, large_bytes=100 << 10)
STOPPED_SECONDS = 0.05
RUNNING, NO_MORE_SENDING, NO_MORE = range(3)

PRODUCER, CONSUMER, HELPER = "producer", "consumer", "helper"
SYNCS: tuple[Sync, ...] = ("none", "none", "none", "always", 7, timedelta(milliseconds=8))
BURST_OPS_MAX = 48
PAUSE_SECONDS_MAX = 0.006


class Ground:
    """State shared by all processes of a round: the queue's path, the phase, and the logs."""

    def __init__(self, directory: Path, *, producers: int, consumers: int) -> None:
        self.path = str(directory / "queue")
        self.errors = children.ErrorFile(directory / "errors")
        with (directory / "phase").open("a+b") as file:  # any process may create it; data is kept
            file.truncate(mmap.PAGESIZE)
            self.phase = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.acked = [Log(directory / f"acked-{i}", Sent) for i in range(producers)]
        self.seen = [Log(directory / f"seen-{i}", Seen) for i in range(consumers)]

    def close(self) -> None:
        """Close all descriptors."""
        closing: list[Log[Any]] = [*self.acked, *self.seen]
        for log in closing:
            log.close()
        self.errors.close()
        self.phase.close()

    def open(self, uid: int) -> Queue:
        """Open the queue, with options that follow from the uid."""
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        sync = SYNCS[uid % len(SYNCS)]
        clock = stepping_clock(uid) if uid % 5 == 0 else None
        return Queue(self.path, page_bytes=PAGE_BYTES, sync=sync, clock=clock)

    def stalled(self, seconds: float, doing: str) -> None:
        """Report a wait that took too long."""
        if seconds > children.STALL_SECONDS + STOPPED_SECONDS:
            self.errors.say(f"{doing} took {seconds:.3f} s")


def stepping_clock(uid: int) -> Callable[[], int]:
    """Return a clock that is now and then set back, by up to 10 ms."""
    rng = random.Random(uid)
    return lambda: time.time_ns() - rng.randrange(10**7) * (rng.random() < 0.2)


# --- sending and receiving ------------------------------------------------------------------------


def produce(ground: Ground, slot: int, uid: int) -> None:
    """Send in bursts until told to stop; open the queue again after a while."""
    rng = random.Random(uid)
    number = 0
    acked = ground.acked[slot]
    while ground.phase[0] == RUNNING:
        with ground.open(uid) as queue, queue.producer() as producer:
            for _ in range(rng.choice((2, 30, 60))):
                for _ in range(rng.randint(1, BURST_OPS_MAX)):
                    op = SHAPE.op(uid, number)
                    started = time.monotonic()
                    first, count = op.run(producer)
                    ground.stalled(time.monotonic() - started, "send")
                    acked.put(Sent(uid, number, count, first))
                    number += 1
                    if SYNCS[uid % len(SYNCS)] == "always":
                        covered(ground, queue, first + count, "a send under sync='always'")
                if ground.phase[0] != RUNNING:
                    break
                time.sleep(rng.random() * PAUSE_SECONDS_MAX)


def covered(ground: Ground, queue: Queue, end: int, what: str) -> None:
    """Report a guaranteed durable message that is not below the durable mark."""
    durable = queue.durable_sequence
    if durable < end:
        ground.errors.say(f"{what} came back with {end} messages sent and {durable} durable")


def consume(ground: Ground, slot: int, uid: int) -> None:
    """Receive from where the one before was killed, until told to stop."""
    log = ground.seen[slot]
    before = log.events()
    sequence, digest = before[-1][1:3] if before else (0, 0)
    durable_only = slot == len(ground.seen) - 1
    with ground.open(uid) as queue:
        consumer = queue.consumer(sequence=sequence, durable_only=durable_only)
        turn = uid
        while True:
            last = ground.phase[0] == NO_MORE
            if last and durable_only:
                queue.producer().flush()
            turn += 1
            for message in received(consumer, turn):
                digest = chained(digest, message)
            if consumer.sequence != sequence:
                sequence = consumer.sequence
                log.put(Seen(uid, sequence, digest))
                if durable_only:
                    covered(ground, queue, sequence, "a consumer of what is durable")
            elif last:
                return


def received(consumer: Consumer, turn: int) -> list[Message]:
    """Receive in one of three ways; return an empty list when no message arrives in time."""
    try:
        if turn % 3 == 0:
            message = consumer.poll()
            return [] if message is None else [message]
        if turn % 3 == 1:
            return [consumer.receive(timeout=0.02)]
        return list(consumer.receive_many(200, timeout=0.02))
    except TimeoutError:
        return []


# --- helpers --------------------------------------------------------------------------------------


def flush(ground: Ground, uid: int) -> None:
    """Flush, with a timeout and without; what comes back covers what was there before."""
    from pagequeue import FlushTimeout  # noqa: PLC0415

    rng = random.Random(uid)
    with ground.open(uid) as queue, queue.producer() as producer:
        while ground.phase[0] == RUNNING:
            timeout = rng.choice((None, 0.0, 0.05))
            tail = queue.tail_sequence
            started = time.monotonic()
            try:
                durable = producer.flush(timeout)
            except FlushTimeout:
                if timeout is None:
                    raise
            else:
                if durable < tail:
                    ground.errors.say(f"flush returned {durable}, though {tail} were sent before")
                covered(ground, queue, tail, "a flush")
            ground.stalled(time.monotonic() - started, "flush")
            time.sleep(rng.random() * 0.004)


def roll(ground: Ground, uid: int) -> None:
    """End pages early."""
    rng = random.Random(uid)
    with ground.open(uid) as queue:
        while ground.phase[0] == RUNNING:
            started = time.monotonic()
            queue.rotate()
            ground.stalled(time.monotonic() - started, "rotate")
            time.sleep(0.002 + rng.random() * 0.02)


def verify(ground: Ground, uid: int) -> None:
    """Check all of the queue while others write; with and without permission to write."""
    from pagequeue import Queue, QueueNotFound  # noqa: PLC0415

    rng = random.Random(uid)
    is_made = False
    while ground.phase[0] == RUNNING:
        is_made = is_made or any(log.events() for log in ground.acked)  # read before the open
        try:
            opened = ground.open(uid) if rng.random() < 0.5 else Queue(ground.path, read_only=True)
        except QueueNotFound as missing:
            if is_made:
                ground.errors.say(f"verify: {missing}")
            time.sleep(0.001)  # another process creates it
            continue
        with opened as queue:
            report = queue.verify()
            if not report.ok and not queue._store.awaits_recovery:
                ground.errors.say(f"verify: {report.problems[:3]}")
        time.sleep(0.005 + rng.random() * 0.03)


def fork(ground: Ground, uid: int) -> None:
    """Fork with queues open; what the child does to its handles is not felt here."""
    from pagequeue import Queue  # noqa: PLC0415

    rng = random.Random(uid)
    with (
        ground.open(uid) as queue,
        queue.producer() as producer,
        Queue(f"{ground.path}-{uid}", page_bytes=4096) as own,  # no other process has this one open
    ):
        while ground.phase[0] == RUNNING:
            pid = os.fork()
            if pid == 0:
                rng.choice((queue.close, own.close, producer.close))()
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            if status != 0:
                ground.errors.say(f"a forked child ended with status {status}")
            if lock_is_free(own.directory):
                ground.errors.say("queue.lock can be had alone, and the queue is open")
            time.sleep(0.002 + rng.random() * 0.01)


def lock_is_free(path: str) -> bool:
    """Whether no process holds `queue.lock`."""
    fd = os.open(os.path.join(path, "queue.lock"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return False
    finally:
        os.close(fd)
    return True


HELPERS = (flush, flush, roll, verify, fork)


def help_out(ground: Ground, _slot: int, uid: int) -> None:
    """Be one of the helpers."""
    HELPERS[uid % len(HELPERS)](ground, uid)


ROLES: dict[str, Callable[[Ground, int, int], None]] = {
    PRODUCER: produce,
    CONSUMER: consume,
    HELPER: help_out,
}
