"""What victims do that die while they trim, make room, or move a cursor (`keep_lines.py`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stress.keeping import use_small_pages_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import NamedConsumer, Queue
    from pagequeue.types import OnFull

PAGE_BYTES: Final = 4096
EACH: Final = 3
TOTAL: Final = 8 * EACH
DONE, BEHIND, NEW = "done", "behind", "new"
BEHIND_AT, ON = 13, 5
"""The consumer `behind` is in page 5, and receives so many more."""
MUCH: Final = 4 * EACH
LARGE_AT: Final = 15
LARGE_BYTES: Final = 2 * PAGE_BYTES
"""It takes three pages, and the next messages an empty one after them or the next but one."""


@dataclass(frozen=True)
class Layout:
    """The messages that all cases of a campaign begin with; both consumers are in front of the end.

    Attributes:
        total: how many there are.
        large_at: the sequence of one that takes pages of its own; None: there is none.
    """

    total: int = TOTAL
    large_at: int | None = None

    def payload(self, sequence: int) -> bytes:
        """Return the payload of a message; three fill a page."""
        size = LARGE_BYTES if sequence == self.large_at else 1290
        return b"%d:" % sequence + b"." * size

    def begins_page(self, sequence: int) -> bool:
        """Whether a message is the first of its page."""
        if self.large_at is None or sequence < self.large_at:
            return sequence % EACH == 0
        return sequence == self.large_at or (sequence - self.large_at - 1) % EACH == 0


SMALL: Final = Layout()
WITH_LARGE: Final = Layout(TOTAL + 1, LARGE_AT)
"""`behind` passes the large one, and pages of three messages follow it."""


@dataclass(frozen=True)
class Scenario:
    """What the victim does.

    Attributes:
        name: for people.
        act: what it does with the queue.
        pages: that `max_bytes` allows; 0: no bound.
        aged: whether every page is too old.
        acknowledged: whether what all consumers have acknowledged goes.
        protects: whether what is not acknowledged must stay.
        on_full: as `Queue` takes it.
        places: where `behind` may be afterwards; None: it may be gone.
        cut: whether the queue's last page is torn, so that opening it recovers it; then the victim
            dies in opening, and `done` is ahead of the tail.
        layout: of the queue that it begins with.
    """

    name: str
    act: Callable[[Queue], None]
    pages: int = 0
    aged: bool = False
    acknowledged: bool = False
    protects: bool = True
    on_full: OnFull = "raise"
    places: tuple[int | None, ...] = (BEHIND_AT,)
    cut: bool = False
    layout: Layout = SMALL

    def open(self, path: str) -> Queue:
        """Open the queue with this scenario's retention."""
        from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now

        use_small_pages_again()
        policy = Retention(
            max_age=timedelta(microseconds=1) if self.aged else None,
            max_bytes=self.pages * PAGE_BYTES or None,
            keep_unacked=self.protects or self.on_full == "drop_oldest",
            drop_acknowledged=self.acknowledged,
        )
        return Queue(
            path, page_bytes=PAGE_BYTES, retention=policy, on_full=self.on_full, full_timeout=0.02
        )

    @property
    def tail(self) -> int:
        """The next sequence before the victim comes."""
        return self.layout.total - EACH if self.cut else self.layout.total


# --- what victims do ------------------------------------------------------------------------------


def _trim(queue: Queue) -> None:
    queue.trim()


def _send(queue: Queue) -> None:
    """Fill the page and continue in the next one, for which there must be room first."""
    from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

    with queue.producer() as producer, suppress(QueueFull):
        for _ in range(EACH):
            producer.send(SMALL.payload(queue.tail_sequence))  # the victim before may have sent all


def _send_much(queue: Queue) -> None:
    """Fill several pages; what retention takes becomes the next ones."""
    from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

    _remove(queue)
    with queue.producer() as producer, suppress(QueueFull):  # the one before sent a part of it
        for i in range(MUCH):
            producer.send(SMALL.payload(queue.tail_sequence))
            if i % EACH == 0:
                queue.trim()


def _remove(queue: Queue) -> None:
    from pagequeue import ConsumerNotFound  # noqa: PLC0415  the core is chosen by now

    with suppress(ConsumerNotFound):  # the victim before did it
        queue.remove_consumer(BEHIND)


def _remove_and_trim(queue: Queue) -> None:
    _remove(queue)
    queue.trim()


def _behind(queue: Queue) -> NamedConsumer:
    from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

    consumer = queue.consumer(BEHIND)
    assert isinstance(consumer, NamedConsumer)
    return consumer


def _received(queue: Queue) -> NamedConsumer:
    consumer = _behind(queue)
    while consumer.sequence < BEHIND_AT + ON:  # the victim before may have come as far
        consumer.receive(0)
    return consumer


def _receive(queue: Queue) -> None:
    _received(queue).close()


def _ack(queue: Queue) -> None:
    with _received(queue) as consumer:
        consumer.ack()


def _ack_some(queue: Queue) -> None:
    with _received(queue) as consumer:
        consumer.ack(BEHIND_AT)
        consumer.ack(BEHIND_AT + 1, durable=True)


def _seek_back(queue: Queue) -> None:
    with _received(queue) as consumer:
        consumer.seek(sequence=7)


def _seek_latest(queue: Queue) -> None:
    with _behind(queue) as consumer:
        consumer.seek(latest=True)


def _make(queue: Queue) -> None:
    queue.consumer(NEW).close()


def _make_and_trim(queue: Queue) -> None:
    """The trim that follows leaves the messages that the new consumer needs."""
    there = NEW in {consumer.name for consumer in queue.consumers()}
    with queue.consumer(NEW, sequence=None if there else 10):
        queue.trim()


def _remove_and_make(queue: Queue) -> None:
    _remove(queue)
    queue.consumer(BEHIND, latest=True).close()


def _nothing(_queue: Queue) -> None:
    """Opening was all."""


TRIMMING: Final = (
    Scenario("trim by bytes", _trim, pages=3),
    Scenario("trim what is acknowledged", _trim, acknowledged=True),
    Scenario("trim by age", _trim, aged=True),
    Scenario("trim what is not acknowledged", _trim, pages=3, protects=False),
    Scenario("make room", _send, pages=5),
    Scenario("use a page again", _send_much, pages=6, places=(BEHIND_AT, None)),
    Scenario("refuse", _send, pages=3),
    Scenario("block", _send, pages=3, on_full="block"),
    Scenario("drop the oldest", _send, pages=3, on_full="drop_oldest", protects=False),
    Scenario("remove a consumer and trim", _remove_and_trim, pages=3, places=(BEHIND_AT, None)),
)
_CURSORS: Final = (
    Scenario("receive without acknowledging", _receive),
    Scenario("acknowledge", _ack, places=(BEHIND_AT, BEHIND_AT + ON)),
    Scenario("acknowledge some", _ack_some, places=(BEHIND_AT, BEHIND_AT + 1, BEHIND_AT + 2)),
    Scenario("rewind", _seek_back, places=(BEHIND_AT, 7)),
    Scenario("skip", _seek_latest, places=(BEHIND_AT, WITH_LARGE.total)),
    Scenario("make a consumer", _make),
    Scenario("make a consumer and trim", _make_and_trim, pages=3),
    Scenario(
        "remove a consumer and recreate it",
        _remove_and_make,
        places=(BEHIND_AT, None, WITH_LARGE.total),
    ),
    Scenario("acknowledge while retention runs", _ack, pages=3, places=(BEHIND_AT, BEHIND_AT + ON)),
    Scenario("recover with a cursor ahead of the tail", _nothing, cut=True),
)
CURSORS: Final = tuple(replace(scenario, layout=WITH_LARGE) for scenario in _CURSORS)
