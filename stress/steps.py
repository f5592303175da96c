"""One queue in which a process dies at a chosen step, and the proof that no other is affected.

Before the victim starts, a survivor may have the queue open; afterwards it must be able to send at
once, and to receive whole frames only. Then the queue is opened again and proved.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from stress import children
from stress.children import HANG_SECONDS, STALL_SECONDS
from stress.history import Log, Seen, Sent
from stress.publications import wrong_entries
from stress.traffic import LARGE_IN_BATCH, Op, Proof, Shape, chained

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pagequeue import Consumer, Producer, Queue

PAGE_BYTES = 4096
SURVIVOR_OPS = 8
PAGE_NUMBER_AT, TAIL_EVEN_AT, FIRST_EVEN_AT, TAIL_ODD_AT = 192, 200, 208, 216
FIRST_SEQUENCE_AT = 40
LEFT_BY_PUBLISHERS = {"queue-publishing", "queue-sending"}

MIXED, SINGLE, BATCH, ROTATE, ROWS, PUBLISH, PUBLISH_BATCH, LARGE, BATCH_WITH_LARGE = range(9)
KINDS = {
    "mixed": MIXED,
    "single": SINGLE,
    "batch": BATCH,
    "rotate": ROTATE,
    "rows": ROWS,
    "publish": PUBLISH,
    "large": LARGE,
    "batch with large": BATCH_WITH_LARGE,
}
_SIZES: dict[str, Any] = {"payload_bytes_max": 1200, "batch_bytes_max": 2600, "batch_count_max": 8}
_LARGE: dict[str, Any] = {"large_bytes": 4 * PAGE_BYTES}
SHAPES = (
    Shape(**_SIZES, batch_parts=80, rotate_parts=20, row_parts=64),
    Shape(**_SIZES, batch_parts=0, rotate_parts=0),
    Shape(**_SIZES, batch_parts=256, rotate_parts=0),
    Shape(**_SIZES, batch_parts=20, rotate_parts=128),
    Shape(**_SIZES, batch_parts=256, rotate_parts=0, row_parts=256),
    Shape(**_SIZES, batch_parts=20, rotate_parts=10, publish_parts=200),
    Shape(60, batch_parts=0, rotate_parts=0, publish_parts=256, publish_count_max=12),
    Shape(**_SIZES, batch_parts=40, rotate_parts=10, **_LARGE, large_parts=192),
    Shape(**_SIZES, rotate_parts=10, **_LARGE, large_parts=240, large_ways=(LARGE_IN_BATCH,)),
)


def uid_of(kind: int, number: int) -> int:
    """Return a producer's uid; what it sends follows from it."""
    return number * len(SHAPES) + kind


def op_of(uid: int, number: int) -> Op:
    """Return operation `number` of producer `uid`."""
    return SHAPES[uid % len(SHAPES)].op(uid, number)


class Scene:
    """One queue with its survivor, its victims and the results of their calls."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(exist_ok=True)
        self.path = str(self.directory / "queue")
        self.errors = children.ErrorFile(self.directory / "errors")
        self.acked = Log(self.directory / "acked", Sent)
        self.seen = Log(self.directory / "seen", Seen)
        self.uids: list[int] = []
        self.violations: list[str] = []
        self.killed = 0
        self._survivor = 0
        self._command = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._survivor:
            os.close(self._command)
            children.kill(self._survivor)
        for log in (self.acked, self.seen, self.errors):
            log.close()

    # --- what children do -------------------------------------------------------------------------

    def send(self, producer: Producer, uid: int, number: int) -> int:
        """Run one operation and record it; return how many messages it sent."""
        first, count = op_of(uid, number).run(producer)
        self.acked.put(Sent(uid, number, count, first))
        return count

    def _survive(self, uid: int, ready: int, command: int) -> None:
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        with Queue(self.path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
            consumer = queue.consumer()
            number = sum(self.send(producer, uid, i) >= 0 for i in range(2))
            # What is made ahead in the background of larger pages, it holds here already.
            queue._store.roller.next_page(queue._store.tail.page_number + 1)
            os.write(ready, b"r")
            os.read(command, 1)
            digest = self._receive(consumer, uid, 0)  # state before any recovery
            self._resume(queue)
            while True:
                started = time.monotonic()
                sent = self.send(producer, uid, number)
                self.stalled(time.monotonic() - started, "a survivor's send")
                number += 1
                if sent and number >= SURVIVOR_OPS:
                    break
            started, tail = time.monotonic(), queue.tail_sequence
            if producer.flush(HANG_SECONDS) < tail:
                self.errors.say(f"a survivor's flush came back below {tail}")
            self.stalled(time.monotonic() - started, "a survivor's flush")
            self._receive(consumer, uid, digest)
            if consumer.lag:
                self.errors.say(f"poll returns None at {consumer.sequence} and there is more")

    def _receive(self, consumer: Consumer, uid: int, digest: int) -> int:
        while True:
            message = consumer.poll()
            if message is None:
                break
            digest = chained(digest, message)
        self.seen.put(Seen(uid, consumer.sequence, digest))
        return digest

    def _resume(self, queue: Queue[Any]) -> None:
        """Acknowledge by name what the victim published, before a producer advances the tail."""
        from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

        with queue.consumer("resumed") as consumer:
            assert isinstance(consumer, NamedConsumer)
            while consumer.poll() is not None:
                pass
            consumer.ack()
            place = consumer.acknowledged
        for problem in queue.verify().problems:
            self.errors.say(f"verify, before the next producer: {problem}")
        with queue.consumer("resumed") as consumer:
            assert isinstance(consumer, NamedConsumer)
            if (consumer.acknowledged, consumer.sequence) != (place, place):
                found = f"{consumer.acknowledged}, {consumer.sequence}"
                self.errors.say(f"a consumer acknowledged {place} and resumes at {found}")

    def stalled(self, seconds: float, doing: str) -> None:
        """Report a wait that took too long."""
        if seconds > STALL_SECONDS:
            self.errors.say(f"{doing} took {seconds:.3f} s")

    # --- what the parent does ---------------------------------------------------------------------

    def start_survivor(self, number: int) -> None:
        """Have a process open the queue, send and wait."""
        uid = uid_of(MIXED, number)
        self.uids.append(uid)
        ready, say_ready = os.pipe()
        command, self._command = os.pipe()

        def body() -> None:
            os.close(self._command)
            self._survive(uid, say_ready, command)

        self._survivor = children.fork(body, self.errors, "survivor")
        os.close(say_ready)
        os.close(command)
        if os.read(ready, 1) != b"r":
            self.violations.append("the survivor could not even open the queue")
        os.close(ready)

    def let_survivor_go_on(self) -> None:
        """Have it send and receive all, and wait for its end."""
        pid, self._survivor = self._survivor, 0
        os.write(self._command, b"g")
        os.close(self._command)
        if children.ended(pid, HANG_SECONDS) is None:
            self.violations.append(f"a survivor hangs for {HANG_SECONDS:g} s")
            children.kill(pid)

    def sacrifice(self, uid: int, body: Callable[[], None], name: str) -> bool:
        """Run a victim; return whether it died as it should."""
        self.uids.append(uid)
        pid = children.fork(body, self.errors, name)
        status = children.ended(pid, HANG_SECONDS)
        if status is None:
            self.violations.append(f"{name} hangs for {HANG_SECONDS:g} s")
            children.kill(pid)
        died = children.was_killed(status)
        self.killed += died
        return died

    def tear_next_header(self, *, sequence_first: bool) -> None:
        """Do a part of the first step of a roll: a kill point cannot lie inside one `memcpy`.

        Args:
            sequence_first: the first sequence is there and the checksum is not; else half of it.
        """
        meta = (self.directory / "queue" / "queue-writeMeta").read_bytes()
        number = _word(meta, PAGE_NUMBER_AT) + 1
        odd = (number - 1) % 2 * (TAIL_ODD_AT - TAIL_EVEN_AT)  # fields of the active page
        sequence = _word(meta, odd + FIRST_EVEN_AT) + _word(meta, odd + TAIL_EVEN_AT) % (1 << 32)
        page = self.directory / "queue" / f"queue-{number:010}.page"
        with page.open("r+b") as file:
            file.seek(FIRST_SEQUENCE_AT)
            file.write(sequence.to_bytes(8, "little") if sequence_first else b"half")

    def verify(self) -> None:
        """Verify the queue as the dead left it, before any process opens it."""
        from pagequeue import verify_queue  # noqa: PLC0415

        report = verify_queue(self.path)
        self.violations += [f"verify, not opened: {problem}" for problem in report.problems]

    def prove(self, end_sequence: int | None = None) -> None:
        """Open the queue again, continue, and compare all of it.

        Args:
            end_sequence: where a power cut took messages of the first producer; None: no loss.
        """
        from pagequeue import Queue  # noqa: PLC0415

        uid = uid_of(SINGLE, 1 << 40)
        records = self.acked.events()
        if end_sequence is not None:
            records = [r for r in records if r[0] != self.uids[0] or r[3] < end_sequence]
        self.uids.append(uid)
        started = time.monotonic()
        with Queue(self.path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
            took = time.monotonic() - started
            report = queue.verify()  # what was recovered, before a producer continues it
            self.violations += [f"verify, recovered: {problem}" for problem in report.problems]
            started = time.monotonic()
            sequence, count = op_of(uid, 0).run(producer)
            took += time.monotonic() - started
            records.append(Sent(uid, 0, count, sequence))
            if took > STALL_SECONDS:
                self.violations.append(f"opening again and sending took {took:.3f} s")
            if end_sequence is not None and sequence < end_sequence:
                self.violations.append(f"recovered up to {sequence}, not up to {end_sequence}")
            proof = Proof(op_of, self.uids, records)
            proof.run(queue.replay())
            if any(uid % len(SHAPES) == PUBLISH for uid in self.uids):
                self.violations += wrong_entries(queue, self.uids, op_of, records)
            report = queue.verify()
            strays = [name for name in os.listdir(self.path) if ".tmp-" in name]
            strays += [name for name in os.listdir(self.path) if name in LEFT_BY_PUBLISHERS]
            strays += self.staged(producer)
        self.violations += proof.violations
        self.violations += [f"verify: {problem}" for problem in report.problems]
        self.violations += [f"left over: {name}" for name in strays]
        for _, seen, digest, *_ in self.seen.events():
            if seen >= len(proof.digests) or proof.digests[seen] != digest:
                self.violations.append(f"the survivor received another stream up to {seen}")
        self.violations += self.errors.said()

    def staged(self, producer: Producer) -> list[str]:
        """Send one more large message; return the staged files that are left after that."""
        producer.send(bytes(2 * PAGE_BYTES))
        return [name for name in os.listdir(f"{self.path}/queue-staged") if name != "lock"]


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
