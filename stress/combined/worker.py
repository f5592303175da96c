"""The processes of a round: some play scenes until they are killed, one records what was sent.

A process that hangs dumps the stacks of its threads and ends. One that lives through a whole round
holds no more descriptors and threads after its scenes than before.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Final

from pagequeue import ConsumerInUse, NothingReceived, Queue, QueueReplaced, Retention
from stress.combined import operations
from stress.combined.ground import LOCK_SECONDS, PAGE_BYTES, RECORDER, Elsewhere, Ground, Spec
from stress.combined.operations import Opening, Over
from stress.combined.scene import Scene, handle
from stress.history import MessageLog

HANG_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 40.0
"""A dropped queue is freed once its worker has compressed the pages due, at low priority."""
CHECKED_SCENES: Final = 25
FORKED_FIRST_SHARE: Final = 0.5
PAUSE_SECONDS: Final = 0.002
MANY_PAGES: Final = 2000
MANY_LOCK_SECONDS: Final = 2.0
HANGS: Final = "hangs"


class HangGuard:
    """Ends this process when it does not respond in time, and prints the stacks of its threads."""

    def __init__(self, ground: Ground) -> None:
        self._file = Path(ground.base, f"{HANGS}-{os.getpid()}").open("w", encoding="utf-8")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=self._file)  # for children that hang

    def again(self) -> None:
        """Restart the count."""
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=self._file)

    def close(self) -> None:
        """Stop counting."""
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR1)
        self._file.close()


def held() -> tuple[int, int]:
    """Return how many descriptors and threads this process has."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def play(ground: Ground, _slot: int, uid: int) -> None:
    """Play scenes until the round ends."""
    rng = random.Random(uid)
    ground.handler_rng = random.Random(uid + 1)
    signal.signal(signal.SIGALRM, handle)
    guard = HangGuard(ground)
    before = held()
    scenes = 0
    if rng.random() < FORKED_FIRST_SHARE:
        Scene(ground, rng, guard.again).first_fork()
    while ground.is_running:
        guard.again()
        Scene(ground, rng, guard.again).play()
        ground.note("scene")
        scenes += 1
        if scenes % CHECKED_SCENES == 0:
            guard.again()
            check_held(ground, before)
    guard.again()
    check_held(ground, before)
    guard.close()


def check_held(ground: Ground, before: tuple[int, int]) -> None:
    """Report descriptors or threads that closed or dropped queues left."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        gc.collect()
        now = held()
        if now[0] <= before[0] and now[1] <= before[1]:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(PAUSE_SECONDS)
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    names = [thread.name for thread in threading.enumerate()]
    ground.errors.say(
        f"with all queues closed there are {now} descriptors and threads, {before} before: "
        f"{sorted(links)} {names}"
    )
    os._exit(0)  # atexit handlers would report it again


# --- recording ------------------------------------------------------------------------------------


def record(ground: Ground, _slot: int, uid: int) -> None:
    """Receive all messages by a separate consumer, and keep a queue's other readers going."""
    rng = random.Random(uid)
    guard = HangGuard(ground)
    specs = [spec for spec in ground.specs if not spec.is_flow]
    while ground.is_running:
        for spec in rng.sample(specs, len(specs)):
            guard.again()
            moved = (Elsewhere, QueueReplaced) if spec.is_moved else ()
            with contextlib.suppress(Over, *moved), ground.open(spec, rng) as queue:
                opening = Opening(ground, spec, queue, read_only=False)
                record_one(opening)
                if spec.drops:
                    operations.read(opening, rng, 4)
                    operations.work(opening, rng, 4)
        time.sleep(PAUSE_SECONDS)
    guard.close()


def record_one(opening: Opening) -> None:
    """Record what is new in one queue."""
    ground, number = opening.ground, opening.spec.number
    with opening.doing("record", ConsumerInUse), opening.got.consumer(RECORDER) as consumer:
        ledger = MessageLog(ground.ledgers[number])
        with contextlib.closing(ledger), contextlib.suppress(NothingReceived):
            while True:
                batch = consumer.receive_many(500, timeout=0)
                if batch[0].sequence > ledger.count:
                    wrong = f"the recorder gets {batch[0].sequence}, and has {ledger.count} before"
                    ground.wrong("record", number, wrong)
                    raise Over
                ledger.put_all(list(batch)[ledger.count - batch[0].sequence :])  # some came again
                consumer.ack()


# --- many pages at once ---------------------------------------------------------------------------


def trim_many(ground: Ground, slot: int, uid: int) -> None:
    """Trim many pages at once, while another thread needs the next page again and again."""
    del uid
    guard = HangGuard(ground)
    guard.again()
    path = os.path.join(ground.base, f"many-{slot}")
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for _ in range(MANY_PAGES):
            producer.send(bytes(3900))
    guard.again()
    spec = Spec(len(ground.specs), path, "queue", PAGE_BYTES, Retention(max_bytes=8 * PAGE_BYTES))
    trimmed = threading.Event()

    def send() -> None:
        with Queue(path, lock_timeout=MANY_LOCK_SECONDS) as queue:
            opening = Opening(ground, spec, queue, read_only=False)
            with contextlib.suppress(Over), opening.doing("send"), queue.producer() as producer:
                while not trimmed.is_set():
                    producer.send(bytes(3900))
                    time.sleep(PAUSE_SECONDS)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        with Queue(path, retention=spec.retention, lock_timeout=LOCK_SECONDS) as queue:
            opening = Opening(ground, spec, queue, read_only=False)
            with contextlib.suppress(Over), opening.doing("trim many pages"):
                queue.trim()
    finally:
        trimmed.set()
        sender.join()
    guard.close()
    shutil.rmtree(path)
