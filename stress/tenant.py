"""A process that uses a queue while room is taken away from it, and reports violations.

A violation is an exception here: the campaign reads it from the error file.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from stress.history import MemoryLog, Sent
from stress.squeeze import Squeeze, complaint, halves
from stress.traffic import Op, Shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Problem, Producer, Queue
    from pagequeue.types import Sync

SENDS_MAX = 3000
SENDS_MIN = 3
PAGES_SPARED = 24
LARGE_PAGE_BYTES_MAX = 64 << 10
LARGE_PARTS = 24
LARGE_TENTHS = 18
"""Of a page: large messages have 0.6 to 3 pages, and take five at most."""
CROWD_BYTES_MAX = 16 << 20
WANTED = "wanted"
"""A file beside the queue: as long as it is there, more messages are wanted."""
BACKGROUND_SECONDS = 20.0
PAUSE_SECONDS = 0.002


class Forbidden(Exception):
    """A violation."""


def shape_of(page_bytes: int) -> Shape:
    """Return what tenants of a queue with such pages send: large messages, if these are small."""
    parts = LARGE_PARTS if page_bytes <= LARGE_PAGE_BYTES_MAX else 0
    return Shape(
        batch_bytes_max=12 << 10, large_parts=parts, large_bytes=page_bytes * LARGE_TENTHS // 10
    )


class Case(NamedTuple):
    """One time without room: when a queue was opened, while one sent, or when one was read."""

    when: int


@dataclass
class Tenant:
    """One producer and reader of a queue.

    Attributes:
        path: of the queue.
        room: a directory on the disk to be filled.
        page_bytes: of the queue.
        uid: what it sends follows from it.
        acked: what was sent.
        cases: one record for each time without room.
    """

    path: Path
    room: Path
    page_bytes: int
    uid: int
    acked: MemoryLog[Sent]
    cases: MemoryLog[Case]
    number: int = 0
    sent: list[bytes] = field(default_factory=list)
    before: int = 0

    # --- alone ------------------------------------------------------------------------------------

    def live(self) -> None:
        """Open, send, be squeezed, continue; several times."""
        rng = random.Random(self.uid)
        if rng.random() < 0.4:
            self.refused_to_open(rng)
        kinds: tuple[Sync, ...] = ("none", "none", 7, timedelta(milliseconds=5))
        sync = rng.choice(kinds)
        with self.opened(sync) as queue, queue.producer() as producer:
            self.before = queue.tail_sequence
            for _ in range(rng.randint(1, 4)):
                self.send_some(producer, rng.choice((0, 1, 5, 40, 200)))
                self.squeezed(queue, producer, rng)
                self.send_some(producer, 3)
                self.nothing_lost(queue)
            if isinstance(sync, timedelta):
                self.flushed_by_itself(queue)
            producer.flush()
            if queue.durable_sequence != queue.tail_sequence:
                raise Forbidden("flush returned, and not all is durable")

    def opened(self, sync: Sync = "none") -> Queue:
        """Open the queue."""
        from pagequeue import Queue  # noqa: PLC0415

        return Queue(self.path, page_bytes=self.page_bytes, sync=sync)

    def refused_to_open(self, rng: random.Random) -> None:
        """Open, or make, the queue where there may be no room for what it needs."""
        squeeze = Squeeze.drawn(rng, self.room, self.page_bytes)
        with squeeze.applied():
            self.cases.put(Case(1))
            allowed(lambda: self.opened().close(), f"opening, {squeeze}")
        if self.path.exists():
            self.no_halves()

    def send_some(self, producer: Producer, count: int) -> None:
        """Send so many operations, where there is room; leave some for what comes."""
        for number in range(count):
            if number >= SENDS_MIN and not self.roomy():
                break
            self.send(producer)
            if len(self.sent) * 2000 > 2 << 20:
                self.forget()

    def send(self, producer: Producer) -> None:
        """Send the next operation, and record it; retry it until it was sent."""
        from pagequeue import NotDurable  # noqa: PLC0415  the core is chosen by now

        op = shape_of(self.page_bytes).op(self.uid, self.number)
        try:
            first, count = op.run(producer)
        except NotDurable:  # what the flush needs to open was refused, after the sending
            count = len(op.payloads)
            self._record(op, producer._store.tail.sequence - count, count)
            raise
        self._record(op, first, count)

    def _record(self, op: Op, first: int, count: int) -> None:
        self.acked.put(Sent(self.uid, self.number, count, first))
        self.number += 1
        self.sent += op.payloads if count else []

    def roomy(self) -> bool:
        """Whether the disk has room for some more pages."""
        disk = os.statvfs(self.room)
        return disk.f_bavail * disk.f_frsize > PAGES_SPARED * 3 * self.page_bytes // 2

    def forget(self) -> None:
        """Compare no longer what was sent so far: the proof at the end does it once more."""
        self.before += len(self.sent)
        self.sent.clear()

    def squeezed(self, queue: Queue, producer: Producer, rng: random.Random) -> None:
        """Continue without room until a call is refused; check all that must still work."""
        from pagequeue.bulk.publisher import BulkPublisher  # noqa: PLC0415  the core is chosen

        squeeze = Squeeze.drawn(rng, self.room, self.page_bytes)
        if rng.random() < 0.3:
            self.lose_an_index(rng)
        with squeeze.applied():
            self.cases.put(Case(2))
            refused = self.send_until_refused(producer, squeeze)
            for _ in range(rng.randint(0, 2)):
                refused += self.send_until_refused(producer, squeeze)
            if refused and squeeze.name == "disk":
                time.sleep(PAUSE_SECONDS)  # the next page may be tried in the background
            self.look(queue, producer, squeeze, rng)
        if squeeze.reading_needs_it:  # nor could staged pages be removed: the next publisher does
            with BulkPublisher(queue._store) as publisher:
                publisher._recover()
        self.no_halves()

    def send_until_refused(self, producer: Producer, squeeze: Squeeze) -> int:
        """Send until there is an error, which must be the right one."""
        for _ in range(SENDS_MAX if squeeze.name == "disk" else 60):
            if allowed(lambda: self.send(producer), f"sending, {squeeze}"):
                return 1
            if len(self.sent) * 2000 > 2 << 20:
                self.forget()
        return 0

    def look(self, queue: Queue, producer: Producer, squeeze: Squeeze, rng: random.Random) -> None:
        """Read, flush and verify, in any order."""
        acts: list[tuple[str, Callable[[], None]]] = [
            ("reading", lambda: self.nothing_lost(queue)),
            ("flushing", lambda: durable(producer)),
            ("verifying", lambda: whole(queue)),
            ("reading by time", lambda: self.read_by_time(queue)),
            ("reading in a new reader", self.read_anew),
        ]
        rng.shuffle(acts)
        for doing, act in acts:
            if squeeze.reading_needs_it:
                allowed(act, f"{doing}, {squeeze}")
                continue
            try:
                act()
            except Exception as error:
                raise Forbidden(f"{doing} does not continue, {squeeze}") from error

    def lose_an_index(self, rng: random.Random) -> None:
        """Remove the index of some page, which reading then rebuilds, or does without."""
        names = [name for name in os.listdir(self.path) if name.endswith(".idx")]
        if names:  # the one of the only page can be lost already
            os.unlink(self.path / rng.choice(names))

    # --- what must hold ---------------------------------------------------------------------------

    def nothing_lost(self, queue: Queue) -> None:
        """Compare what was sent with what is there."""
        found = [m.payload for batch in queue.batches(sequence=self.before) for m in batch]
        if found != self.sent:
            raise Forbidden(f"{len(self.sent)} messages were sent, {len(found)} others are there")

    def read_by_time(self, queue: Queue) -> None:
        """Find the last message by its time."""
        last = list(queue.last(1))
        if not last:
            return
        found = [message.sequence for message in queue.replay(since=last[0].timestamp)]
        if last[0].sequence not in found:
            raise Forbidden(f"message {last[0].sequence} is not found by its time")

    def read_anew(self) -> None:
        """Open the queue to read, and read all."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.path, read_only=True) as queue:
            self.nothing_lost(queue)

    def flushed_by_itself(self, queue: Queue) -> None:
        """The timedelta's guarantee holds again when there is room again."""
        tail, deadline = queue.tail_sequence, time.monotonic() + BACKGROUND_SECONDS
        while queue.durable_sequence < tail:
            if time.monotonic() > deadline:
                raise Forbidden("sync=timedelta flushes no more since there was no room")
            time.sleep(PAUSE_SECONDS)

    def no_halves(self) -> None:
        """No file may be there in part; the background may be making one right now."""
        deadline = time.monotonic() + BACKGROUND_SECONDS
        while found := halves(self.path, self.page_bytes):
            if time.monotonic() > deadline:
                raise Forbidden(f"left over: {found}")
            time.sleep(PAUSE_SECONDS)

    # --- in a crowd -------------------------------------------------------------------------------

    def insist(self) -> None:
        """Send enough messages; refused ones are retried. At least one is sent at the end."""
        rng = random.Random(self.uid)
        handles: list[tuple[Queue, Producer]] = []

        def opening() -> None:
            queue = self.opened()
            try:  # the active page can be one of zeros without blocks, after a large message
                handles.append((queue, queue.producer()))
            except BaseException:
                queue.close()
                raise

        while not handles:
            if allowed(opening, "opening in a crowd"):
                time.sleep(PAUSE_SECONDS)
        queue, producer = handles.pop()
        with queue, producer:
            while (self.room / WANTED).exists():
                if self.number % 16 == 0 and self.enough_pages():
                    time.sleep(PAUSE_SECONDS)
                    continue
                if allowed(lambda: self.send(producer), "sending in a crowd"):
                    time.sleep(PAUSE_SECONDS)
                self.sent.clear()
                if rng.random() < 0.05:
                    time.sleep(PAUSE_SECONDS)
            producer.rotate()
            self.send(producer)

    def enough_pages(self) -> bool:
        """Whether the queue has become as large as it may, for there to be room at the end."""
        pages = sum(name.endswith(".page") for name in os.listdir(self.path))
        return pages * self.page_bytes > CROWD_BYTES_MAX


def allowed(act: Callable[[], None], doing: str) -> bool:
    """Make a call that may be refused for want of room; return whether it was refused."""
    try:
        act()
    except Forbidden:
        raise
    except Exception as error:
        wrong = complaint(error)
        if wrong is not None:
            raise Forbidden(f"{doing}: {wrong}") from error
        return True
    return False


def durable(producer: Producer) -> None:
    """Flush."""
    producer.flush()


def whole(queue: Queue) -> None:
    """Verify."""
    problems = problems_of(queue)
    if problems:
        raise Forbidden(f"verify: {problems}")


def problems_of(queue: Queue) -> list[Problem]:
    """Return what verify finds, but for indexes that were taken away and not yet needed.

    Checks that failed for want of descriptors or memory are reported without counting as damage.
    """
    found = [p for p in queue.verify().problems if not p.file.endswith(".idx")]
    return [p for p in found if not p.reason.startswith("the system refused")]
