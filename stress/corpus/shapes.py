"""Good queues of several shapes, made for each run from its seed, and what was sent into them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import Queue
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue import Producer

PAGE_BYTES = 4096
PREFIX = "queue"
START_NS = 1_700_000_000_000_000_000
OTHER_START_NS = START_NS + 5 * 10**8
"""Of the other queue: no frame of it is by chance the same."""
STEP_NS = 1_000_000
SIZES = (160, 160, 333, 41, 600, 7, 0, 96)
"""Of payloads; two equal ones follow each other, so that frames can change places."""
LARGE_SIZES = (13_000, 13_000, 9_001)
"""Of large payloads: of four fragments, and of three, which an empty page follows."""
AFTER_LARGE = 3
"""So many small messages follow each large one."""


@dataclass(frozen=True)
class Shape:
    """How a queue was filled.

    Attributes:
        name: of the shape.
        pages: at least so many.
        batch_count: messages in every second batch; 1 = no batches.
        durable: how much was flushed: none, half, all.
        prepared: whether the next page is prepared.
        large: whether messages larger than a page follow, each with some small ones after it.
    """

    name: str
    pages: int
    batch_count: int
    durable: str
    prepared: bool
    large: bool = False


SHAPES = (
    Shape("pages", 4, 1, "all", prepared=False),
    Shape("batches", 3, 4, "half", prepared=True),
    Shape("unflushed", 5, 3, "none", prepared=False),
    Shape("one page", 1, 2, "half", prepared=False),
    Shape("one page, unflushed", 1, 1, "none", prepared=True),
    Shape("large messages", 2, 1, "all", prepared=False, large=True),
)


class Place(NamedTuple):
    """A message and its position."""

    sequence: int
    timestamp: int
    payload: bytes
    page: int
    position: int
    end: int
    """Position after the frame, padding included."""
    more: bool
    """Whether the next message belongs to the same batch."""
    pages: int = 1
    """How many it is in, from `page` on; more than one: `end` is that of its head."""


@dataclass(frozen=True)
class Original:
    """A good queue, closed, as bytes.

    Attributes:
        shape: how it was made.
        contents: every file.
        places: every message.
        durable: the durable mark on disk.
        ends: by page, the position of the end-of-page marker, or where the next frame would come.
    """

    shape: Shape
    contents: dict[str, bytes]
    places: list[Place]
    durable: int
    ends: dict[int, int]

    @property
    def queue_id(self) -> bytes:
        """What tells its files from those of another queue."""
        name = fmt.all_meta_name(PREFIX)
        identity: bytes = np.frombuffer(self.contents[name], fmt.ALL_META, 1)["queue_id"][
            0
        ].tobytes()
        return identity

    @property
    def head(self) -> int:
        """The first page."""
        return min(self.ends)

    @property
    def active(self) -> int:
        """The page that is written to."""
        return max(self.ends)

    @property
    def inner(self) -> int:
        """A sealed page between others; the active one if there is no such page."""
        return min(self.active, self.head + 1)

    def of_page(self, number: int) -> list[Place]:
        """Return the messages of a page."""
        return [place for place in self.places if place.page == number]

    def whole_before(self, sequence: int) -> int:
        """Return the last sequence at or before this one at which a batch begins."""
        while sequence > 0 and self.places[sequence - 1].more:
            sequence -= 1
        return sequence


class _Clock:
    """A clock that advances at every reading."""

    def __init__(self, start_ns: int) -> None:
        self.now = start_ns

    def __call__(self) -> int:
        self.now += STEP_NS
        return self.now


def _groups(shape: Shape, rng: random.Random) -> Iterator[list[bytes]]:
    """Yield the payloads of one send at a time, without end."""
    number = 0
    while True:
        sent_at_once = shape.batch_count if number % 2 else 1
        group = []
        for _ in range(sent_at_once):
            size = SIZES[number % len(SIZES)]
            half = rng.randbytes((size + 1) // 2)  # twice, so that a page can be compressed
            group.append((half + half)[:size])
            number += 1
        yield group


def _send_large(producer: Producer, rng: random.Random) -> list[bytes]:
    """Send the large messages, each with small ones after it; return them."""
    large = [rng.randbytes(size) for size in LARGE_SIZES]
    for payload in large:
        producer.send(payload)
        for size in SIZES[:AFTER_LARGE]:
            producer.send(rng.randbytes(size))
    return large


def make(shape: Shape, seed: int, directory: Path, start_ns: int = START_NS) -> Original:
    """Fill a queue in a new directory, close it, and return it as bytes."""
    rng = random.Random(f"{seed} {shape.name}")
    large: list[bytes] = []
    with Queue(directory, page_bytes=PAGE_BYTES, clock=_Clock(start_ns)) as queue:
        producer = queue.producer()
        half = shape.pages / 2
        flushed = shape.durable != "half"
        for group in _groups(shape, rng):
            tail = queue._store.tail
            done = tail.page_number - 1 + tail.position / PAGE_BYTES
            if not flushed and done >= half:
                producer.flush()
                flushed = True
            if done >= shape.pages - 0.3:
                break
            producer.send_many(group) if len(group) > 1 else producer.send(group[0])
        if shape.large:
            large = _send_large(producer, rng)
        if shape.durable == "all":
            producer.flush()
        durable, active = queue.durable_sequence, queue._store.tail.page_number
        if shape.prepared:
            queue._store.roller.next_page(active + 1)
    contents = {}
    for path in sorted(filter(Path.is_file, directory.iterdir())):  # staged pages are gone
        match = fmt.page_name_pattern(PREFIX).fullmatch(path.name)
        if shape.prepared or match is None or int(match[1]) <= active:
            contents[path.name] = path.read_bytes()
    pages = {number: contents[fmt.page_name(PREFIX, number)] for number in range(1, active + 1)}
    places: list[Place] = []
    left = iter(large)
    ends = {number: _walk(page, number, places, left) for number, page in pages.items()}
    return Original(shape, contents, places, durable, ends)


def _walk(page: bytes, number: int, places: list[Place], large: Iterator[bytes]) -> int:
    """Add a page's messages, with the payloads of large ones; return where they end."""
    position = fmt.PAGE_HEADER_BYTES
    while True:
        frame = np.frombuffer(page, fmt.FRAME, 1, position)[0]
        word = int(frame["length"])
        if word == 0 or fmt.is_end(word):
            return position
        length = word & fmt.LENGTH_MASK
        payload = page[position + fmt.FRAME_HEADER_BYTES : position + length]
        end = position + fmt.frame_bytes(len(payload))
        pages = 1
        if fmt.is_large(word):
            pages = int(np.frombuffer(payload, fmt.LARGE_HEAD)[0]["fragments"])
            payload = next(large)
        places.append(
            Place(
                len(places),
                int(frame["timestamp"]),
                payload,
                number,
                position,
                end,
                fmt.has_more(word),
                pages,
            )
        )
        position = end
