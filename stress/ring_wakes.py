"""Senders that wait for room in a ring, and what must ring their bell (FORMAT.md, "Retention")."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from pagequeue import NamedConsumer, Queue
    from pagequeue.group.group import Group

PAGE_BYTES: Final = 4096
RING_PAGES: Final = 4
MESSAGE_BYTES: Final = 500
WAIT_SECONDS: Final = 45.0
ROUNDS: Final = 12
CAPACITY: Final = 256


class Bell:
    """The fields of waiting senders, read as FORMAT.md describes."""

    def __init__(self, queue: Queue) -> None:
        from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now
        from pagequeue.meta.meta_file import field_of  # noqa: PLC0415

        self._meta = queue._store.write_meta.region
        self._bell = field_of(fmt.WRITE_META, "room_bell")
        self._wanted = field_of(fmt.WRITE_META, "room_wanted")

    def rung(self) -> int:
        """Return the bell's value."""
        return self._meta.load_half(self._bell)

    def await_sender(self) -> bool:
        """Wait until a sender has announced itself."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._meta.load(self._wanted) == 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True


def fill(queue: Queue) -> int:
    """Send until there is no room; return the first sequence after the head's page."""
    from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

    try:
        with queue.producer() as producer:
            while True:
                producer.send(bytes(MESSAGE_BYTES), timeout=0)
    except QueueFull:
        return queue._store.first_sequence(queue._store.read_meta.head_page + 1)


def ways(consumer: NamedConsumer, group: Group, end: int, rng: Random) -> Callable[[], None]:
    """Have all done but for one who holds the page; return what lets the page go."""
    claims = [group.claim(0)]
    while claims[-1].message.sequence < end - 1:
        claims.append(group.claim(0))
    first, *others = claims
    while consumer.sequence < end:
        consumer.receive(0)
    way = rng.choice(("ack", "ack some", "seek", "group", "reject"))
    if way in {"group", "reject"}:
        consumer.ack()
        for claim in others:
            claim.ack()
        return first.ack if way != "reject" else lambda: first.reject("no")
    for claim in claims:
        claim.ack()
    return {
        "ack": consumer.ack,
        "ack some": lambda: consumer.ack(end - 1),
        "seek": lambda: consumer.seek(sequence=end),
    }[way]


def wake(directory: Path, rng: Random, is_over: Callable[[], bool]) -> tuple[int, list[str]]:
    """Let senders wait again and again; return how many, and what was wrong."""
    from pagequeue import NamedConsumer, Queue  # noqa: PLC0415  the core is chosen by now
    from pagequeue import format as fmt  # noqa: PLC0415  the core is chosen by now

    cases = 0
    ring = RING_PAGES * fmt.files_bytes(PAGE_BYTES)
    with Queue(
        directory / "q", ring=ring, page_bytes=PAGE_BYTES, full_timeout=WAIT_SECONDS
    ) as queue:
        consumer, group = queue.consumer("c"), queue.group("g", capacity=CAPACITY, backoff=None)
        assert isinstance(consumer, NamedConsumer)
        bell = Bell(queue)
        while cases < ROUNDS and (cases == 0 or not is_over()):
            let_go = ways(consumer, group, fill(queue), rng)
            failed: list[BaseException] = []
            sender = threading.Thread(target=_send, args=(queue, failed))
            sender.start()
            announced = bell.await_sender()
            before = bell.rung()
            let_go()
            rung = bell.rung() != before
            sender.join(WAIT_SECONDS)
            cases += 1
            if not announced or sender.is_alive() or failed:
                return cases, [f"a sender did not get its room: {failed}"]
            if not rung:
                return cases, [f"nobody rang for the sender that waits: {let_go}"]
    return cases, []


def _send(queue: Queue, failed: list[BaseException]) -> None:
    try:
        with queue.producer() as producer:
            producer.send(bytes(MESSAGE_BYTES))
    except BaseException as error:  # noqa: BLE001  whatever it is, it is reported
        failed.append(error)
