"""Directories that move, and directories that vanish, while threads and other processes use them.

One queue is shared by all processes of the round, and judged like the others in the end. Its
directory is renamed away and comes back; meanwhile nothing is at its path, or another queue. Others
are of this process alone: they are removed for good. Every thread that uses one of them must be
told in time, and what has its place gets no message and no file from it, and gives it none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import (
    DamageError,
    Expired,
    NotDurable,
    NothingReceived,
    Queue,
    QueueFull,
    QueueNotFound,
    QueueReplaced,
    Retention,
)
from stress.children import HANG_SECONDS
from stress.combined.ground import PAGE_BYTES, Ground, Spec
from stress.combined.operations import Opening, Over, traced
from stress.combined.scene import WRITING
from stress.combined.worker import HangGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPAN_SECONDS: Final = 0.1
AWAY_SECONDS: Final = 0.3
PAUSE_SECONDS: Final = 0.2
USERS: Final = 3
OTHERS: Final = 20
OWN: Final = b"of the queue that was removed"


def move(ground: Ground, slot: int, uid: int) -> None:
    """Move and remove directories until the round ends."""
    rng = random.Random(uid)
    guard = HangGuard(ground)
    (spec,) = (spec for spec in ground.specs if spec.is_moved)
    for turn in itertools.count():
        if not ground.is_running:
            break
        guard.again()
        if turn % 2:
            move_one(ground, spec, rng, turn)
        else:
            vanish(ground, rng, os.path.join(ground.base, f"vanishing-{slot}-{turn}"))
        time.sleep(rng.random() * PAUSE_SECONDS)
    guard.close()


# --- what takes the place -------------------------------------------------------------------------


def take_place(path: str) -> list[str]:
    """Make another queue there; return its files."""
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for number in range(OTHERS):
            producer.send(number.to_bytes(8, "little"))
    return sorted(os.listdir(path))


def strange(path: str) -> str:
    """Return what the other queue has that it was not given; empty if it is as it was made."""
    with Queue(path, read_only=True) as queue:
        if queue.consumers():
            return f"consumers {queue.consumers()}"
        found = [message.payload for message in queue.replay()]
        if found != [number.to_bytes(8, "little") for number in range(OTHERS)]:
            return f"the messages {[each[:40] for each in found]}"
    return ""


# --- the directory that all processes share -------------------------------------------------------


def move_one(ground: Ground, spec: Spec, rng: random.Random, turn: int) -> None:
    """Use the queue by some threads, move its directory away, and back when they were told."""
    openings = []
    for _ in range(USERS):
        queue = ground.open(spec, rng)
        openings.append(Opening(ground, spec, queue, read_only=False))
    threads = started(ground, [partial(use, each, rng.getrandbits(60)) for each in openings])
    time.sleep(rng.random() * SPAN_SECONDS)
    away, other = f"{spec.directory}.away", f"{spec.directory}.other-{turn}"
    os.rename(spec.directory, away)
    is_taken = rng.random() < 0.6
    if is_taken:
        take_place(spec.directory)
    time.sleep(rng.random() * AWAY_SECONDS)
    told(ground, "move", spec.number, threads)
    if is_taken:
        wrong = strange(spec.directory)
        if wrong:
            ground.wrong("move", spec.number, f"the queue that took its place has {wrong}")
        os.rename(spec.directory, other)
    os.rename(away, spec.directory)
    for opening in openings:
        opening.closing = True
        with contextlib.suppress(QueueReplaced):  # one that flushes as it closes
            opening.got.close()
    ground.note("move", spec.number)


def use(opening: Opening, seed: int) -> None:
    """Do one operation after the other, until the queue says that it was moved."""
    rng = random.Random(seed)
    with contextlib.suppress(Over):
        while True:
            rng.choice(WRITING)(opening, rng)


def started(ground: Ground, bodies: list[Callable[[], None]]) -> list[threading.Thread]:
    """Start a thread for each body, whose errors are reported."""

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001  any exception is reported
            ground.errors.say(traced(error))

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    return threads


def told(ground: Ground, kind: str, number: int, threads: list[threading.Thread]) -> None:
    """Wait until the threads were told that the directory is another place."""
    deadline = time.monotonic() + HANG_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            ground.wrong(kind, number, f"a thread uses what moved for {HANG_SECONDS:g} s")
            os._exit(0)


# --- directories that are removed -----------------------------------------------------------------


def vanish(ground: Ground, rng: random.Random, path: str) -> None:
    """Use a queue by some threads, remove its directory, and make another one there."""
    retention = Retention(max_bytes=8 * PAGE_BYTES) if rng.random() < 0.5 else None
    with Queue(path, page_bytes=PAGE_BYTES, retention=retention) as queue:
        queue.group("crew").close()
        acts = rng.sample(ACTS, USERS)
        threads = started(ground, [partial(until_told, ground, act, queue) for act in acts])
        time.sleep(rng.random() * SPAN_SECONDS)
        if rng.random() < 0.5:
            os.rename(path, f"{path}.gone")
            removed(f"{path}.gone")
        else:
            removed(path)
        files = take_place(path)
        told(ground, "vanish", len(ground.specs), threads)
    wrong = strange(path)
    more = sorted({*os.listdir(path)} - {*files})
    if wrong or more:
        text = f"the queue that took its place has {wrong} {more}"
        ground.wrong("vanish", len(ground.specs), text)
    shutil.rmtree(path)
    ground.note("vanish")


def removed(path: str) -> None:
    """Remove a directory in which files are made meanwhile."""
    while os.path.exists(path):
        shutil.rmtree(path, ignore_errors=True)


def until_told(ground: Ground, act: Callable[[Queue], Iterator[None]], queue: Queue) -> None:
    """Act until the queue says that its directory is gone; while files go it is a damaged one."""
    is_told = False
    while not is_told:
        is_told = True
        try:
            for _ in act(queue):
                pass
        except QueueReplaced:
            pass
        except (DamageError, NotDurable, QueueFull, QueueNotFound):
            is_told = False
        except Exception as error:  # noqa: BLE001  any other exception is a violation
            ground.wrong("vanish", len(ground.specs), traced(error))


def send(queue: Queue) -> Iterator[None]:
    """Send small messages, and now and then one of several pages."""
    with queue.producer() as producer:
        for number in itertools.count():
            producer.send(OWN * (300 if number % 100 == 99 else 10))
            yield


def wait(queue: Queue) -> Iterator[None]:
    """Wait for messages that may never come."""
    with queue.consumer("waits") as consumer:
        while True:
            own(consumer.receive().payload)
            yield


def bury(queue: Queue) -> Iterator[None]:
    """Reject what comes, so that it is a dead letter."""
    with queue.group("crew") as group:
        while True:
            with contextlib.suppress(NothingReceived):
                claim = group.claim(timeout=0.1)
                own(claim.message.payload)
                claim.reject("always fails")
            yield


def publish(queue: Queue) -> Iterator[None]:
    """Publish batches, and seal pages."""
    for number in itertools.count():
        queue.publish("sender", number, [OWN] * 50)
        queue.rotate()
        yield


def keep(queue: Queue) -> Iterator[None]:
    """Apply retention, verify, and read what is there."""
    while True:
        queue.trim()
        queue.verify()
        with contextlib.suppress(Expired):  # a roll of the publisher trims, too
            for message in queue.replay():
                own(message.payload)
        yield


ACTS: Final = (send, wait, bury, publish, keep)


def own(payload: bytes) -> None:
    """Check that a message is of the queue that was opened."""
    assert payload.startswith(OWN), f"another queue's message: {payload[:40]!r}"
