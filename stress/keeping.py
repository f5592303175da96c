"""What the processes of a retention campaign do: send into a bounded queue, acknowledge, trim.

A named consumer writes down each message that it received, then what it is about to acknowledge,
acknowledges, and writes that down too, outside of the queue. So its successor after its death knows
the two places where it may resume, and at the end what it received is compared with what was sent,
though the pages are gone by then.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stress import roles
from stress.history import Log, Sent
from stress.roles import NO_MORE, RUNNING, Ground
from stress.traffic import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pagequeue import Consumer, Message, NamedConsumer, Producer, Queue
    from pagequeue.types import OnExpired, OnFull
    from stress.traffic import Op

PAGE_BYTES: Final = 8192
SHAPE: Final = Shape(
    payload_bytes_max=1800,
    batch_bytes_max=5000,
    batch_count_max=6,
    large_parts=10,
    large_bytes=9000,
)
CONSUMERS: Final = 2
READERS: Final = 2
PRODUCERS: Final = 2
RECEIVED, ABOUT, ACKED = range(1, 4)
FULL_SECONDS: Final = 0.03
REUSES_SHARE: Final = 0.7
ACKNOWLEDGED_SHARE: Final = 0.4
RINGS_SHARE: Final = 0.25
RING_PAGES: Final = 8
"""Of which a ring consists, whatever its size."""
REUSED_AT: Final = 64
"""In the shared memory of a round."""
NEVER: Final = 1 << 60
MOST_PAGES: Final = 6
"""So many pages can be too few for a large operation: five besides the active one."""


@dataclass(frozen=True)
class Terms:
    """What a round keeps.

    Attributes:
        pages: that `max_bytes` allows; None: no such bound.
        age: in seconds; None: no such bound.
        on_full: as `Queue` takes it.
        keeps: whether what is not acknowledged must stay.
        reuses: whether files of retired pages become the next ones, as those of large pages do.
        acknowledged: whether what all consumers have acknowledged goes at once.
        ring: whether the queue is a ring of `pages` pages.
    """

    pages: int | None
    age: float | None
    on_full: OnFull
    keeps: bool
    reuses: bool = True
    acknowledged: bool = False
    ring: bool = False

    @staticmethod
    def drawn(rng: random.Random) -> Terms:
        """Return one of all kinds; most of them protect what is not acknowledged."""
        pages = rng.choice((3, 4, 6, 10))
        age = rng.choice((0.002, 0.02, 0.1))
        reuses = rng.random() < REUSES_SHARE
        kinds = (
            Terms(pages, None, "raise", True, reuses),
            Terms(pages, None, "block", True, reuses),
            Terms(pages, age, "block", True, reuses),
            Terms(None, age, "raise", True, reuses),
            Terms(pages, None, "drop_oldest", False, reuses),
            Terms(pages, age, "raise", False, reuses),
        )
        if rng.random() < RINGS_SHARE:
            return Terms(RING_PAGES, None, "block", keeps=True, reuses=False, ring=True)
        terms = rng.choice(kinds)
        return replace(terms, acknowledged=terms.keeps and rng.random() < ACKNOWLEDGED_SHARE)

    def open(self, path: str, uid: int) -> Queue:
        """Open the queue as this round's processes do."""
        from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now
        from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

        if self.reuses:
            use_small_pages_again()
        if self.ring:
            ring = RING_PAGES * fmt.files_bytes(PAGE_BYTES)
            return Queue(path, ring=ring, page_bytes=PAGE_BYTES, full_timeout=FULL_SECONDS)
        policy = Retention(
            max_age=None if self.age is None else timedelta(seconds=self.age),
            max_bytes=None if self.pages is None else self.pages * PAGE_BYTES,
            keep_unacked=self.keeps or self.on_full == "drop_oldest",
            drop_acknowledged=self.acknowledged,
        )
        return Queue(
            path,
            page_bytes=PAGE_BYTES,
            sync=roles.SYNCS[uid % len(roles.SYNCS)],
            retention=policy,
            on_full=self.on_full,
            full_timeout=FULL_SECONDS,
        )


def use_small_pages_again(*, really: bool = True) -> None:
    """Have files of small pages reused, too, at any pace, in this process from now on."""
    from pagequeue.page import spare  # noqa: PLC0415  the core is chosen by now
    from pagequeue.store import roll  # noqa: PLC0415  the core is chosen by now

    always = property(lambda _: True, lambda _, __: None)
    setattr(spare, "PAGE_BYTES_MIN", 0 if really else NEVER)  # noqa: B010  mypy forbids it
    if really:
        setattr(roll.Roller, "_is_fast", always)  # noqa: B010  the same
    elif "_is_fast" in vars(roll.Roller):
        delattr(roll.Roller, "_is_fast")


def digest_of(payload: bytes) -> int:
    """Return the digest that represents a payload in a record."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little", signed=True)


class Note(NamedTuple):
    """What a consumer or reader received, or where a consumer is."""

    sequence: int
    kind: int
    timestamp: int = 0
    digest: int = 0


class Keeping(Ground):
    """What all processes of a round share."""

    def __init__(self, directory: Path, terms: Terms) -> None:
        super().__init__(directory, producers=PRODUCERS, consumers=0)
        self.terms = terms
        self.notes = [Log(directory / f"notes-{i}", Note) for i in range(CONSUMERS)]
        self.read = [Log(directory / f"read-{i}", Note) for i in range(READERS)]

    def open(self, uid: int) -> Queue:
        """Open the queue with this round's retention."""
        from pagequeue.system.directory import Directory  # noqa: PLC0415  the core is chosen by now

        def counting(how: Callable[..., Any]) -> Callable[..., Any]:
            def counted(folder: Directory, *args: Any, **options: Any) -> Any:  # noqa: ANN401
                found = how(folder, *args, **options)
                self.reused += found not in {None, False}
                return found

            return counted

        for name in ("make_of", "renew"):
            how = getattr(Directory, name)
            if how.__name__ != "counted":
                setattr(Directory, name, counting(how))
        return self.terms.open(self.path, uid)

    @property
    def reused(self) -> int:
        """How many pages were made of retired ones, all processes together; about."""
        return int.from_bytes(self.phase[REUSED_AT : REUSED_AT + 8], "little")

    @reused.setter
    def reused(self, count: int) -> None:
        self.phase[REUSED_AT : REUSED_AT + 8] = count.to_bytes(8, "little")

    def close(self) -> None:
        """Close all descriptors."""
        for log in [*self.notes, *self.read]:
            log.close()
        super().close()


def name_of(slot: int) -> str:
    """Return the name of the consumer in a slot."""
    return f"keeper-{slot}"


def received(log: Log[Note], messages: Iterable[Message]) -> None:
    """Write down what was received, before anything is acknowledged."""
    log.put_all(
        Note(one.sequence, RECEIVED, one.timestamp, digest_of(one.payload)) for one in messages
    )


# --- sending --------------------------------------------------------------------------------------


def produce(ground: Keeping, slot: int, uid: int) -> None:
    """Send in bursts; a send refused because the queue is full has sent no message."""
    rng = random.Random(uid)
    number = 0
    while ground.phase[0] == RUNNING:
        with ground.open(uid) as queue, queue.producer() as producer:
            for _ in range(rng.choice((3, 40, 400))):
                if ground.phase[0] != RUNNING:
                    break
                sent = send(ground, producer, SHAPE.op(uid, number))
                if sent is None:
                    time.sleep(0.001)
                    continue
                ground.acked[slot].put(Sent(uid, number, sent[1], sent[0]))
                number += 1
                if rng.random() < 0.02:
                    time.sleep(rng.random() * 0.004)


def send(ground: Keeping, producer: Producer, op: Op) -> tuple[int, int] | None:
    """Do one operation; None: there was no room. What can never fit is refused and left out."""
    from pagequeue import MessageTooLarge, QueueFull  # noqa: PLC0415  the core is chosen by now

    started = time.monotonic()
    try:
        return op.run(producer)
    except MessageTooLarge as error:
        fits = ground.terms.pages is None or ground.terms.pages > MOST_PAGES
        if fits and not ground.terms.ring:  # which takes what fits into one page
            ground.errors.say(f"refused, though it can fit: {error}")
        return 0, 0
    except QueueFull as full:
        if ground.terms.pages is not None and ground.terms.pages <= MOST_PAGES and op.takes_pages:
            return 0, 0  # with the page that is prepared it does not fit
        took = time.monotonic() - started
        if not ground.terms.keeps:
            ground.errors.say(f"refused, though no page is protected: {full}")
        if ground.terms.on_full == "block" and op.payloads and took < FULL_SECONDS * 0.9:
            ground.errors.say(f"a sender that was to wait {FULL_SECONDS} s waited {took:.4f}")
        return None
    finally:
        ground.stalled(time.monotonic() - started, "a send into a bounded queue")


# --- named consumers ------------------------------------------------------------------------------


def keep(ground: Keeping, slot: int, uid: int) -> None:
    """Resume, receive, acknowledge and go back, until told to stop."""
    rng = random.Random(uid)
    log = ground.notes[slot]
    with ground.open(uid) as queue, opened(ground, queue, slot) as consumer:
        while True:
            last = ground.phase[0] == NO_MORE
            moved = take(ground, consumer, log, rng)
            if rng.random() < 0.3 or (last and not moved):
                acknowledge(consumer, log, rng)
            elif rng.random() < 0.01 and ground.terms.keeps:
                go_back(queue, consumer, log, rng)
            elif rng.random() < 0.02:
                time.sleep(rng.random() * 0.01)
            if last and not moved and not consumer.lag:
                return


def opened(ground: Keeping, queue: Queue, slot: int) -> NamedConsumer:
    """Open a named consumer; it resumes where it acknowledged last, or was about to."""
    from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

    on_expired: OnExpired = "raise" if ground.terms.keeps else "skip"
    consumer = queue.consumer(name_of(slot), on_expired=on_expired)
    assert isinstance(consumer, NamedConsumer)
    found = consumer.acknowledged
    allowed = places(ground.notes[slot].events())
    if found not in allowed:
        ground.errors.say(f"{consumer.name} resumes at {found}, and was at one of {allowed}")
    return consumer


def places(notes: list[Note]) -> list[int]:
    """Return where a consumer with these records may be: acknowledged last, or about to."""
    allowed = [0]
    for sequence, kind, *_ in notes:
        if kind == ACKED:
            allowed = [sequence]
        elif kind == ABOUT:
            allowed = [*allowed[:1], sequence]
    return allowed


def take(ground: Keeping, consumer: Consumer, log: Log[Note], rng: random.Random) -> bool:
    """Receive some messages and write them down; whether there were any."""
    expected, missed = consumer.sequence, consumer.missed
    try:
        batch = consumer.receive_many(rng.choice((1, 4, 32)), timeout=0.01)
    except TimeoutError:
        return False
    if batch[0].sequence != expected + consumer.missed - missed:
        ground.errors.say(
            f"received {batch[0].sequence} at {expected}, missed {consumer.missed - missed}"
        )
    received(log, batch)
    return True


def acknowledge(consumer: NamedConsumer, log: Log[Note], rng: random.Random) -> None:
    """Acknowledge all that was received, or a part of it."""
    before, end = consumer.acknowledged, consumer.sequence
    wanted = end if rng.random() < 0.6 or end <= before else rng.randint(before, end)
    log.put(Note(wanted, ABOUT))
    durable = rng.random() < 0.1
    if wanted == end:
        consumer.ack(durable=durable)
    elif wanted > before:
        consumer.ack(wanted - 1, durable=durable)
    log.put(Note(consumer.acknowledged, ACKED))


def go_back(queue: Queue, consumer: NamedConsumer, log: Log[Note], rng: random.Random) -> None:
    """Rewind; from then on what follows is kept again."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    before = consumer.acknowledged
    wanted = rng.randint(queue.head_sequence, before)
    log.put(Note(wanted, ABOUT))
    try:
        consumer.seek(sequence=wanted)
    except Expired:
        wanted = before
    log.put(Note(wanted, ACKED))


# --- helpers --------------------------------------------------------------------------------------


def trim(ground: Keeping, uid: int) -> None:
    """Trim again and again; what comes back is consistent."""
    rng = random.Random(uid)
    with ground.open(uid) as queue:
        while ground.phase[0] == RUNNING:
            started = time.monotonic()
            report = queue.trim()
            ground.stalled(time.monotonic() - started, "trim")
            if (report.pages == 0) > (report.messages == 0):
                ground.errors.say(f"no page was removed, and messages were: {report}")
            time.sleep(rng.random() * 0.006)


def roll(ground: Keeping, uid: int) -> None:
    """End pages early, where there is room for another one."""
    from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

    rng = random.Random(uid)
    with ground.open(uid) as queue:
        while ground.phase[0] == RUNNING:
            try:
                queue.rotate()
            except QueueFull:
                time.sleep(0.002)
            time.sleep(0.001 + rng.random() * 0.01)


def look(ground: Keeping, uid: int) -> None:
    """List consumers, ask for info and verify, while all of it changes."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    rng = random.Random(uid)
    while ground.phase[0] == RUNNING:
        read_only = rng.random() < 0.5
        with Queue(ground.path, read_only=True) if read_only else ground.open(uid) as queue:
            for consumer in queue.consumers():
                if consumer.problem is not None or consumer.lag is None:
                    ground.errors.say(f"listed as damaged: {consumer}")
            queue.info()
            report = queue.verify()
            if not report.ok and not queue._store.awaits_recovery:
                ground.errors.say(f"verify: {report.problems[:3]}")
        time.sleep(0.002 + rng.random() * 0.02)


HELPERS: Final = (trim, trim, trim, roll, look)


def help_out(ground: Keeping, _slot: int, uid: int) -> None:
    """Be one of the helpers."""
    HELPERS[uid % len(HELPERS)](ground, uid)


def make_queue(ground: Keeping) -> None:
    """Make the queue and its consumers, before anything is sent."""
    os.mkdir(ground.path, 0o700)
    with ground.open(0) as queue:
        for slot in range(CONSUMERS):
            queue.consumer(name_of(slot)).close()
