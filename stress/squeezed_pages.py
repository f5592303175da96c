"""What the processes of `no_compression_loses_or_shows_old_bytes` do, and how each of them judges.

One process sends; the payload of each message follows from the queue's seed and its sequence, so
any reader knows what each message must be, no matter which file it comes from.
"""

from __future__ import annotations

import os
import random
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Message, Queue

HEAD = struct.Struct("<QQ")
SIZE_MAX = 1500
LARGE_MAX = 100 << 10
LARGE_PART = 500
"""One message in so many can be larger than the smaller ones of the pages."""
RANDOM_PART = 8
"""One message in so many does not shrink."""


class Forbidden(Exception):
    """A forbidden observation."""


def payload_of(seed: int, sequence: int) -> bytes:
    """Return what a message must be."""
    rng = random.Random(seed * 1_000_003 + sequence)
    size = rng.randrange(SIZE_MAX if rng.randrange(LARGE_PART) else LARGE_MAX)
    head = HEAD.pack(seed, sequence)
    if rng.randrange(RANDOM_PART) == 0:
        return head + rng.randbytes(size)
    word = b"%d " % rng.randrange(100)
    return head + (word * (size // len(word) + 1))[:size]


def check(seed: int, message: Message, sequence: int) -> None:
    """Raise if a message is not the one of this sequence."""
    if message.sequence != sequence or message.payload != payload_of(seed, sequence):
        raise Forbidden(
            f"message {message.sequence} instead of {sequence}: it begins with "
            f"{message.payload[:24]!r}"
        )


@dataclass(frozen=True)
class Scene:
    """One queue and what is done to it.

    Attributes:
        path: of the queue.
        seed: of its payloads.
        page_bytes: of its pages.
        block_bytes: of the blocks of compressed pages.
        kept_pages: retention keeps so many pages' bytes, and room for the largest message, whose
            send it would refuse else; None keeps all.
        after: `compress_after` of the sender.
        level: of Zstandard.
        acked: a file with the sequence after the last message whose `send` returned.
    """

    path: Path
    seed: int
    page_bytes: int
    block_bytes: int
    kept_pages: int | None
    after: int | None
    level: int
    acked: Path

    def open(self, *, sends: bool = False) -> Queue:
        """Open the queue; the sender retires and compresses, too."""
        from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now
        from pagequeue import format as fmt  # noqa: PLC0415

        setattr(fmt, "COMPRESSED_BLOCK_TARGET_BYTES", self.block_bytes)  # noqa: B010  a Final
        retention = None
        if self.kept_pages is not None:
            room_bytes = 2 * (LARGE_MAX + self.page_bytes)
            retention = Retention(max_bytes=self.kept_pages * self.page_bytes + room_bytes)
        return Queue(
            self.path,
            page_bytes=self.page_bytes,
            retention=retention if sends else None,
            compress_after=self.after if sends else None,
            compress_level=self.level,
        )

    def acked_sequence(self) -> int:
        """Return the sequence after the last message whose `send` returned."""
        data = self.acked.read_bytes() if self.acked.exists() else b""
        return int.from_bytes(data[:8], "little")

    # --- roles ------------------------------------------------------------------------------------

    def send(self, rng: random.Random) -> NoReturn:
        """Send without end, one by one and in batches; now and then seal, flush or trim."""
        fd = os.open(self.acked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self.open(sends=True) as queue, queue.producer() as producer:
            while True:
                first = queue.tail_sequence
                count = rng.choice((1, 1, 1, 2, 7))
                items = [payload_of(self.seed, first + i) for i in range(count)]
                if sum(map(len, items)) > LARGE_MAX:  # several large ones may never fit together
                    items, count = items[:1], 1
                if count == 1:
                    producer.send(items[0])
                else:
                    producer.send_many(items)
                os.pwrite(fd, (first + count).to_bytes(8, "little"), 0)
                turn = rng.random()
                if turn < 0.003:
                    queue.rotate()
                elif turn < 0.006:
                    producer.flush()
                elif turn < 0.012:
                    queue.trim()
                elif turn < 0.1:
                    time.sleep(0.0005)

    def compress(self, rng: random.Random) -> NoReturn:
        """Compress without end; two processes do that at once."""
        with self.open() as queue:
            while True:
                queue.compress()
                time.sleep(rng.random() * 0.004)

    def read_anew(self, rng: random.Random) -> NoReturn:
        """Open, read at some places, close; without end."""
        while True:
            with self.open() as queue:
                for _ in range(rng.randint(1, 6)):
                    rng.choice((self._replay, self._since, self._last, self._verify))(queue, rng)

    def read_on(self, rng: random.Random) -> NoReturn:
        """Stay open, and read all with consumers that stay where they are for a while."""
        with self.open() as queue:
            walks = [_Walk(queue) for _ in range(4)]
            while True:
                rng.choice(walks).go(self.seed, rng)
                time.sleep(rng.random() * 0.001)

    # --- checks -----------------------------------------------------------------------------------

    def _replay(self, queue: Queue, rng: random.Random) -> None:
        from pagequeue import Expired  # noqa: PLC0415

        head, tail = queue.head_sequence, queue.tail_sequence
        sequence = rng.randint(head, tail)
        try:
            for expected, message in enumerate(queue.replay(sequence=sequence), sequence):
                check(self.seed, message, expected)
                if rng.random() < 0.005:
                    break
        except Expired:
            self._passed(queue, sequence)

    def _passed(self, queue: Queue, sequence: int) -> None:
        if self.kept_pages is None or queue.head_sequence <= sequence:
            raise Forbidden(f"Expired at {sequence}, the head is {queue.head_sequence}")

    def _since(self, queue: Queue, rng: random.Random) -> None:
        """The first message that is not older is found, by its time."""
        from pagequeue import Expired  # noqa: PLC0415

        head, tail = queue.head_sequence, queue.tail_sequence
        if head == tail:
            return
        sequence = rng.randrange(head, tail)
        try:
            known = next(iter(queue.replay(sequence=sequence)))
            found = next(iter(queue.replay(since=known.timestamp)), None)
            if found is None:  # the tail as it was is below the head by now
                self._passed(queue, sequence)
                return
            check(self.seed, known, sequence)
            check(self.seed, found, found.sequence)
            if found.sequence > sequence or found.timestamp != known.timestamp:
                if queue.head_sequence > sequence:
                    return  # retention was faster
                raise Forbidden(f"since the time of {sequence} begins with {found.sequence}")
            if found.sequence > queue.head_sequence:
                sequence = found.sequence - 1
                before = next(iter(queue.replay(sequence=sequence)))
                if before.timestamp >= known.timestamp:
                    raise Forbidden(f"since the time of {known.sequence} skips {sequence}")
        except Expired:
            self._passed(queue, sequence)

    def _last(self, queue: Queue, rng: random.Random) -> None:
        from pagequeue import Expired  # noqa: PLC0415

        try:
            batch = queue.last(rng.randint(1, 400))
        except Expired:
            self._passed(queue, queue.head_sequence - 1)
            return
        for message in batch:
            check(self.seed, message, message.sequence)

    def _verify(self, queue: Queue, rng: random.Random) -> None:
        if rng.random() < 0.3:
            report = queue.verify()
            if not report.ok:
                raise Forbidden(f"verify finds {report.problems[:3]}")
            queue.info()


@dataclass
class _Walk:
    """One consumer that reads the whole queue, by and by."""

    queue: Queue
    next: int = -1
    held: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.consumer = self.queue.consumer(on_expired="skip")

    def go(self, seed: int, rng: random.Random) -> None:
        """Receive some; begin again at the end."""
        for _ in range(rng.choice((1, 3, 40))):
            missed, expected = self.consumer.missed, self.consumer.sequence
            if rng.random() < 0.1:
                batch = list(self.consumer.receive_many(300, timeout=0) if self._more() else ())
            else:
                message = self.consumer.poll()
                batch = [] if message is None else [message]
            expected += self.consumer.missed - missed
            for number, message in enumerate(batch, expected):
                check(seed, message, number)
            if not batch:
                self.consumer.seek()
                return

    def _more(self) -> bool:
        return self.consumer.lag > 0
