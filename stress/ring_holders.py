"""One process that uses the pages of a ring again and again, and all that can hold a page."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from pagequeue import Claim, Consumer, NamedConsumer, Queue
    from pagequeue.group.group import Group

PAGE_BYTES: Final = 4096
RING_PAGES: Final = 6
STEPS: Final = 1500
RENEWED_MAX: Final = 60
"""Pages used again, after which another ring is made."""
SENT_MAX: Final = 5
HELD_MAX: Final = 6
CLAIMS_MAX: Final = 12
TAKEN_MAX: Final = 30
CAPACITY: Final = 256
HANG_SECONDS: Final = 30.0
VERBS: Final = {
    "send": 30,
    "receive": 20,
    "ack": 12,
    "claim": 14,
    "settle": 14,
    "view": 8,
    "drop": 6,
    "replay": 2,
    "workers die": 1,
    "go back": 1,
    "child": 0.3,
    "verify": 0.5,
    "flush": 1,
}


def body(sequence: int) -> bytes:
    """Return the payload of a message."""
    return sequence.to_bytes(8, "little") * (4 + sequence * 7 % 90)


class View:
    """Messages that a reader holds, without a copy where the library makes none."""

    def __init__(self, batch: Any, rng: Random) -> None:  # noqa: ANN401  a Batch
        self.first = batch[0].sequence
        self.count = len(batch)
        self.payloads = batch.to_arrow().column("payload") if rng.random() < 0.5 else batch.payloads

    def wrong(self) -> list[str]:
        """Return which messages have changed."""
        return [
            f"a view of message {n} has changed"
            for n, found in enumerate(map(_bytes_of, self.payloads), self.first)
            if found != body(n)
        ]


def _bytes_of(payload: Any) -> bytes:  # noqa: ANN401  a buffer, or a scalar of Arrow
    return payload.as_py() if hasattr(payload, "as_py") else bytes(payload)


class Holders:
    """A ring and those who hold its pages."""

    def __init__(self, queue: Queue, rng: Random) -> None:
        from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

        self.queue, self.rng = queue, rng
        self.producer = queue.producer()
        consumer = queue.consumer("c")
        assert isinstance(consumer, NamedConsumer)
        self.consumer: NamedConsumer = consumer
        self.group: Group = queue.group("g", capacity=CAPACITY, max_deliveries=None, backoff=None)
        self.reader: Consumer = queue.consumer()
        self.claims: list[Claim] = []
        self.views: list[View] = []
        self.done: set[int] = set()
        self.pids: dict[int, int] = {}
        self.wrong: list[str] = []

    def do(self, verb: str) -> None:
        """Take a step, then check what everybody holds and needs."""
        getattr(self, "_" + verb.replace(" ", "_"))()
        head, end = self.queue.head_sequence, self.queue.tail_sequence
        needed = {n for n in range(end) if n not in self.done}
        first = min([self.consumer.acknowledged, *needed], default=end)
        if head > first:
            self.wrong.append(f"after {verb}: the head is {head}, message {first} is needed")
        for view in self.views:
            self.wrong += view.wrong()

    def _check(self, message: Any, who: str) -> None:  # noqa: ANN401  a Message
        if bytes(message.payload) != body(message.sequence):
            self.wrong.append(f"{who} received another payload as message {message.sequence}")

    def _send(self) -> None:
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        begin, count = self.queue.tail_sequence, self.rng.randint(1, SENT_MAX)
        with contextlib.suppress(QueueFull):
            self.producer.send_many([body(begin + n) for n in range(count)])

    def _receive(self) -> None:
        for _ in range(self.rng.randint(1, TAKEN_MAX)):
            if (message := self.consumer.poll()) is None:
                break
            self._check(message, "the consumer")

    def _ack(self) -> None:
        self.consumer.ack()

    def _claim(self) -> None:
        from pagequeue import NothingReceived  # noqa: PLC0415  the core is chosen by now

        if len(self.claims) < CLAIMS_MAX:
            with contextlib.suppress(NothingReceived):
                for claim in self.group.claim_many(self.rng.randint(1, CLAIMS_MAX), timeout=0):
                    self._check(claim.message, "a worker")
                    self.claims.append(claim)

    def _settle(self) -> None:
        self.rng.shuffle(self.claims)
        for _ in range(self.rng.randint(0, len(self.claims))):
            claim = self.claims.pop()
            if self.rng.random() < 0.1:
                claim.nack()
                continue
            claim.ack()
            self.done.add(claim.message.sequence)

    def _workers_die(self) -> None:
        """Their claims come again."""
        self.claims.clear()
        self.group.close()
        self.group = self.queue.group("g", max_deliveries=None, backoff=None)

    def _view(self) -> None:
        from pagequeue import Expired, NothingReceived  # noqa: PLC0415  the core is chosen by now

        reader: Consumer = self.rng.choice((self.reader, self.consumer))
        try:
            batch = reader.receive_many(self.rng.randint(1, TAKEN_MAX), timeout=0)
        except NothingReceived:
            return
        except Expired as passed:
            if reader is self.consumer or passed.head_sequence <= reader.sequence:
                self.wrong.append(f"passed at {reader.sequence}: {passed}")
            reader.seek(sequence=passed.head_sequence)
            return
        self.views = [*self.views[-HELD_MAX:], View(batch, self.rng)]

    def _drop(self) -> None:
        self.views = self.views[self.rng.randint(0, len(self.views)) :]

    def _replay(self) -> None:
        for message in self.queue.replay(sequence=self.queue.head_sequence):
            self._check(message, "a replay")

    def _go_back(self) -> None:
        self.consumer.seek(
            sequence=self.rng.randint(self.queue.head_sequence, self.consumer.sequence)
        )

    def _verify(self) -> None:
        self.wrong += [f"verify: {problem}" for problem in self.queue.verify().problems]

    def _flush(self) -> None:
        self.producer.flush()

    def _child(self) -> None:
        """Have a process take a view, and look at it when it is told to; end an earlier one."""
        if self.pids:
            self.end_child()
            return
        told, tell = os.pipe()
        ready, begun = os.pipe()
        if (pid := os.fork()) == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.close(tell)
                status = _look_on(str(self.queue.directory), told, begun, self.rng)
            os._exit(status)
        os.close(told)
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        self.pids[pid] = tell

    def end_child(self) -> None:
        """Have a process look at its view, and end."""
        for pid, tell in self.pids.items():
            os.close(tell)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != 0:
                self.wrong.append(f"a process with a view of a page ended with {status}")
        self.pids.clear()

    def end(self) -> None:
        """Have the group finish; it must have been given all."""
        from pagequeue import NothingReceived  # noqa: PLC0415  the core is chosen by now

        self.end_child()
        self._workers_die()
        deadline = time.monotonic() + HANG_SECONDS
        with contextlib.suppress(NothingReceived):
            while time.monotonic() < deadline:
                self._claim()
                if not self.claims:
                    break
                for claim in self.claims:
                    claim.ack()
                    self.done.add(claim.message.sequence)
                self.claims.clear()
        if missing := self.queue.tail_sequence - len(self.done):
            self.wrong.append(f"the group was never given {missing} messages")
        self.do("verify")


def _look_on(path: str, told: int, begun: int, rng: Random) -> int:
    """Hold a view until the pipe is closed; return 0 if it is what it was."""
    from pagequeue import NothingReceived, Queue  # noqa: PLC0415  the core is chosen by now

    views = []
    with Queue(path, read_only=True) as queue, queue.consumer() as consumer:
        with contextlib.suppress(NothingReceived):
            views = [View(consumer.receive_many(TAKEN_MAX, timeout=0), rng)]
        os.write(begun, b"r")
        os.read(told, 1)
    return 3 if any(view.wrong() for view in views) else 0


def hold(directory: Path, rng: Random, is_over: Callable[[], bool]) -> tuple[int, list[str]]:
    """Use a ring; return how many pages were used again, and what was wrong."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now
    from pagequeue.system.directory import Directory  # noqa: PLC0415

    renewed = 0
    renew = Directory.renew

    def counted(folder: Directory, *args: Any) -> bool:  # noqa: ANN401
        nonlocal renewed
        done = renew(folder, *args)
        renewed += done
        return done

    setattr(Directory, "renew", counted)  # noqa: B010  mypy forbids it in plain words
    ring = RING_PAGES * fmt.files_bytes(PAGE_BYTES)
    try:
        with Queue(directory / "q", ring=ring, page_bytes=PAGE_BYTES, full_timeout=0) as queue:
            holders = Holders(queue, rng)
            for _ in range(STEPS):
                (verb,) = rng.choices(list(VERBS), list(VERBS.values()))
                holders.do(verb)
                if holders.wrong or renewed >= RENEWED_MAX or (renewed and is_over()):
                    break
            if not holders.wrong:
                holders.end()
            holders.end_child()
            return renewed, holders.wrong[:3]
    finally:
        setattr(Directory, "renew", renew)  # noqa: B010  the same
