"""Runs all of a group's part of the core, for a build under sanitizers; `smoke.py` calls it."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING

from pagequeue import PageQueueError, Queue

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Group

PAGE_BYTES = 16 << 10
CAPACITY = 32
MESSAGES = 600
THREADS = 3
HOSTILE_ROUNDS = 40
TABLE_AT = 192
"""The first word of the table; the words before it describe the file."""


def work(group: Group, seed: int) -> None:
    """Do all that can be done with claims, until no message is left."""
    rng = random.Random(seed)
    while group.lag:
        with contextlib.suppress(TimeoutError, PageQueueError):
            if rng.random() < 0.1:
                group.take(timeout=0)
            for claim in group.claim_many(rng.randrange(1, 9), timeout=0.001):
                repr(claim)
                if rng.random() < 0.2:
                    claim.nack(delay=rng.choice((0, 0.001)))
                    continue
                claim.extend(rng.choice((0.001, 5)))
                claim.ack(durable=rng.random() < 0.02)


def misuse(group: Group) -> None:
    """Call every method with wrong arguments."""
    claim = group.claim(timeout=0)
    for call in (
        lambda: group.claim("soon"),  # type: ignore[arg-type]
        lambda: group.claim(60, 2),  # type: ignore[call-arg]
        lambda: group.take(when=1),  # type: ignore[call-arg]
        lambda: group.claim_many(0),
        lambda: group._claim_many("x", None),  # type: ignore[arg-type]
        lambda: group._enter(None, 1),  # type: ignore[arg-type]
        lambda: group._read(0, 10**9, 10**12),
        lambda: claim.nack(-1),
        lambda: claim.extend("long"),  # type: ignore[arg-type]
        lambda: claim.ack(1, 2),  # type: ignore[call-arg, arg-type]
        type(claim),
    ):
        with contextlib.suppress(TypeError, ValueError, PageQueueError):
            call()
    claim.ack()
    with contextlib.suppress(PageQueueError):
        claim.ack()


def endure(queue: Queue, group: Group) -> None:
    """Run every operation on a table with arbitrary contents."""
    for call in (
        lambda: group.claim(timeout=0).ack(),
        lambda: group.claim_many(9, timeout=0),
        lambda: group.take(timeout=0),
        group.flush,
        group._release_dead_owners,
        queue.consumers,
    ):
        with contextlib.suppress(PageQueueError):
            call()


def exercise_groups(path: Path) -> None:
    """Threads share a handle, and handles share a group; then its table holds arbitrary bytes."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for number in range(MESSAGES):
            producer.send(b"%d" % number * 10)
        handles = [queue.group("work", capacity=CAPACITY, max_deliveries=4) for _ in range(2)]
        misuse(handles[0])
        threads = [threading.Thread(target=work, args=(handles[i % 2], i)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        list(handles[0].dead_letters())
    rng = random.Random(3)
    file = path / "queue-readMeta.work"
    for _ in range(HOSTILE_ROUNDS):
        with Queue(path) as queue, queue.producer() as producer:
            producer.send_many([b"more"] * 40)
            group = queue.group("work", lease=0.001)
            good = file.read_bytes()
            with contextlib.suppress(PageQueueError):
                group.claim_many(5, timeout=0)
            with file.open("r+b") as opened:
                for _ in range(rng.randrange(1, 9)):
                    end = 320 if rng.random() < 0.5 else len(good)
                    place = rng.randrange(TABLE_AT, end) & ~3
                    opened.seek(place)
                    opened.write(rng.choice((rng.randbytes(4), b"\xff" * 4, bytes(4))))
            endure(queue, group)
        file.write_bytes(good)
