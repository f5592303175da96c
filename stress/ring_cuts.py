"""Rings under a recorder, and the states that a power cut leaves of them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from stress import tampering
from stress.cut.tree import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Queue

PAGE_BYTES: Final = 4096
RING_PAGES: Final = 5
NAME: Final = "reader"
STEPS_MIN, STEPS_MAX = 10, 60
MESSAGES_MAX: Final = 12
FLUSH_SHARE: Final = 0.12
REOPEN_SHARE: Final = 0.02


def body(life: int, sequence: int) -> bytes:
    """Return the payload of a message; each life of the queue has others."""
    return (life << 56 | sequence).to_bytes(8, "little") * (4 + (sequence * 7 + life) % 90)


class Recorded:
    """One ring's life.

    Attributes:
        tree: what happened to its directory.
        path: of the queue, in the tree.
        tail: the end of what was sent.
        marks: events, each with what had been flushed by then, the head and the consumer's place.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.path = directory / "q"
        with opened(self.path) as queue, queue.consumer(NAME):
            queue.producer().flush()
        self.tree = Tree(directory)
        self.tail = 0
        self.marks: list[tuple[int, int, int, int]] = []

    def mark(self, queue: Queue, flushed: int, place: int) -> None:
        """Note what holds from now on."""
        self.tree.observe()
        self.tail = queue.tail_sequence
        self.marks.append((self.tree.now, flushed, queue.head_sequence, place))

    def at(self, moment: int) -> tuple[int, int, int]:
        """Return what was flushed by then, and at most the head and the consumer's place."""
        flushed = max((mark[1] for mark in self.marks if mark[0] <= moment), default=0)
        later = next((mark for mark in self.marks if mark[0] >= moment), self.marks[-1])
        return flushed, later[2], later[3]


def opened(path: Path) -> Queue:
    """Open the ring of a recording or of a state."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

    ring = RING_PAGES * fmt.files_bytes(PAGE_BYTES)
    return Queue(path, ring=ring, page_bytes=PAGE_BYTES, full_timeout=0)


def use(queue: Queue, life: int, rng: Random, known: dict[int, bytes]) -> tuple[int, list[str]]:
    """Send some messages, receive and acknowledge some; return the consumer's place."""
    from pagequeue import NamedConsumer, QueueFull  # noqa: PLC0415  the core is chosen by now

    wrong = []
    with queue.producer() as producer, queue.consumer(NAME) as consumer:
        assert isinstance(consumer, NamedConsumer)
        for _ in range(rng.randrange(MESSAGES_MAX)):
            sequence = queue.tail_sequence
            try:
                producer.send(body(life, sequence))
            except QueueFull:
                break
            known[sequence] = body(life, sequence)
        for _ in range(rng.randrange(2 * MESSAGES_MAX)):
            if (message := consumer.poll()) is None:
                break
            if message.payload != known[message.sequence]:
                wrong.append(f"message {message.sequence} is not what was sent")
        consumer.ack()
        return consumer.acknowledged, wrong


def record(directory: Path, seed: int) -> Recorded:
    """Use a ring under the recorder."""
    rng = Random(seed)
    recorded = Recorded(directory)
    known: dict[int, bytes] = {}
    flushed = place = 0
    with recorded.tree.recording():
        for _ in range(rng.randint(1, 3)):
            with opened(recorded.path) as queue:
                recorded.mark(queue, flushed, place)
                for _ in range(rng.randint(STEPS_MIN, STEPS_MAX)):
                    place, wrong = use(queue, 0, rng, known)
                    assert not wrong, wrong
                    recorded.mark(queue, flushed, place)
                    if rng.random() < FLUSH_SHARE:
                        flushed = queue.producer().flush()
                        recorded.mark(queue, flushed, place)
    return recorded


class State:
    """One state that a cut left.

    Attributes:
        moment: the event before which the power was cut.
    """

    def __init__(self, recorded: Recorded, target: Path, rng: Random) -> None:
        self.recorded = recorded
        self.path = target / "q"
        self.rng = rng
        self.moment = rng.randint(recorded.marks[0][0], recorded.tree.now)
        recorded.tree.cut(target, lambda _: self.moment, rng)

    def wrong(self) -> list[str]:
        """Return what is wrong with it."""
        flushed, head, place = self.recorded.at(self.moment)
        known = {n: body(0, n) for n in range(self.recorded.tail)}
        if head >= flushed:
            flushed = 0  # retention passed it
        try:
            tampering.pretend_power_cut(self.path)
            with opened(self.path) as queue:
                wrong = self._wrong(queue, known, flushed, max(head, queue.tail_sequence), place)
                known = {n: known[n] for n in range(queue.tail_sequence) if n in known}
                for _ in range(self.rng.randrange(3 * RING_PAGES)):
                    wrong += use(queue, 1, self.rng, known)[1]
                least = queue.producer().flush()
                head = queue.head_sequence
            tampering.pretend_power_cut(self.path)
            with opened(self.path) as queue:
                wrong += self._wrong(queue, known, least, head, least)
        except Exception as error:  # noqa: BLE001  no power cut may cause any exception
            return [f"{type(error).__name__}: {error}"]
        return wrong

    @staticmethod
    def _wrong(
        queue: Queue, known: dict[int, bytes], flushed: int, head: int, place: int
    ) -> list[str]:
        """Return what is wrong with what was recovered."""
        begin, end = queue.head_sequence, queue.tail_sequence
        wrong = [f"verify: {problem}" for problem in queue.verify().problems]
        if end < flushed:
            wrong.append(f"{flushed} messages were flushed, {end} are there")
        if begin > head:
            wrong.append(f"it begins at {begin}, and {head} was its head")
        found = [(message.sequence, message.payload) for message in queue.replay()]
        if found != [(n, known.get(n)) for n in range(begin, end)]:
            wrong.append(f"a replay from {begin} to {end} gives other messages than were sent")
        (info,) = queue.consumers()
        if info.next_sequence is None or not begin <= info.next_sequence <= max(begin, place):
            wrong.append(
                f"the consumer is at {info.next_sequence}, it was at {place}, the head is {begin}"
            )
        return wrong
