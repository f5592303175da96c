"""Readers without a name, with retention running, and all roles of its campaign by name.

They are inside a page when it is removed, replay, fall behind, and skip; some open read-only.
"""

from __future__ import annotations

import functools
import random
import time
from typing import TYPE_CHECKING, Final

from stress import roles
from stress.keeping import Keeping, help_out, keep, produce, received, take
from stress.roles import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Consumer, Queue
    from stress.history import Log
    from stress.keeping import Note

PASS_SECONDS: Final = 0.4
"""So long a reader inside a page waits for retention to pass it."""


def read(ground: Keeping, slot: int, uid: int) -> None:
    """Be inside a page that is removed; replay; fall behind and skip; with and without a lock."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    rng = random.Random(uid)
    log = ground.read[slot]
    uses = (inside_a_page, replay, skip, functools.partial(seek, rng=rng))
    while ground.phase[0] == RUNNING:
        read_only = rng.random() < 0.4
        with Queue(ground.path, read_only=True) if read_only else ground.open(uid) as queue:
            for _ in range(rng.choice((2, 10, 30))):
                if ground.phase[0] != RUNNING:
                    return
                rng.choice(uses)(ground, queue, log)


def inside_a_page(ground: Keeping, queue: Queue, log: Log[Note]) -> None:
    """Receive a page's first message, wait until the page is gone, and finish it."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    store = queue._store
    consumer = queue.consumer()
    number = consumer._page_number
    end = end_of_page(ground, queue, consumer, log)
    if end is None:
        return
    deadline = time.monotonic() + PASS_SECONDS
    while store.read_meta.head_page <= number and time.monotonic() < deadline:
        time.sleep(0.001)
    while consumer.sequence < end:
        try:
            message = consumer.poll()
        except Expired as passed:
            ground.errors.say(f"passed at {consumer.sequence}, inside a page up to {end}: {passed}")
            return
        if message is None:
            ground.errors.say(f"no message at {consumer.sequence}, inside a page up to {end}")
            return
        received(log, [message])
    try:
        consumer.receive_many(64, timeout=0)
    except TimeoutError:
        return
    except Expired as passed:
        check_passed(ground, queue, passed, consumer.sequence)


def end_of_page(ground: Keeping, queue: Queue, consumer: Consumer, log: Log[Note]) -> int | None:
    """Receive a page's first message; return the sequence after its last one, None if unusable."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    store, number = queue._store, consumer._page_number
    try:
        first = consumer.receive(0.02)
        while store.tail.page_number == number:
            if ground.phase[0] != RUNNING:
                return None
            time.sleep(0.001)
        end = store.first_sequence(number + 1)
    except (TimeoutError, Expired):
        return None  # it was empty, or the next page was gone before it could be asked
    if consumer._page_number != number:
        return None  # the head was an empty page, and the consumer in the next one
    received(log, [first])
    return end


def check_passed(ground: Keeping, queue: Queue, passed: object, sequence: int) -> None:
    """A lagging reader is given a head that is past its place and that exists."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    assert isinstance(passed, Expired)
    head = passed.head_sequence
    if not sequence < head <= queue.tail_sequence:
        ground.errors.say(f"passed at {sequence}, and the reported head is {head}")
    try:
        found = queue.consumer(sequence=head).sequence
    except Expired as again:
        if again.head_sequence <= head:
            ground.errors.say(f"the head {head} is unreadable, and is the head")
    else:
        if found != head:
            ground.errors.say(f"a consumer at the head {head} is at {found}")


def seek(ground: Keeping, queue: Queue, log: Log[Note], rng: random.Random) -> None:
    """Go to the same times again and again: what retention removed is not found any more."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    try:
        times = queue.times()[1].tolist()
    except Expired:
        return
    consumer, got = queue.consumer(), []
    deadline = time.monotonic() + PASS_SECONDS
    while times and time.monotonic() < deadline:
        since = rng.choice(times)
        head = queue.head_sequence
        try:
            consumer.seek(since=since)
            message = consumer.poll()
        except Expired:
            continue
        if message is None:
            continue  # retention left nothing from there on
        if message.sequence < head or message.timestamp < since:
            ground.errors.say(
                f"from {since} on there is message {message.sequence} of {message.timestamp}, and "
                f"the head was {head}"
            )
        got.append(message)
    received(log, got)


def replay(ground: Keeping, queue: Queue, log: Log[Note]) -> None:
    """Read all that is there, until it is gone."""
    from pagequeue import Expired  # noqa: PLC0415  the core is chosen by now

    expected = None
    got = []
    try:
        for message in queue.replay():
            if expected is not None and message.sequence != expected:
                ground.errors.say(f"a replay gives {message.sequence} after {expected - 1}")
            expected = message.sequence + 1
            got.append(message)
    except Expired as passed:
        if expected is not None:
            check_passed(ground, queue, passed, expected)
    received(log, got)


def skip(ground: Keeping, queue: Queue, log: Log[Note]) -> None:
    """Follow for a while with pauses, skipping what is gone."""
    rng = random.Random(queue.tail_sequence)
    consumer = queue.consumer(on_expired="skip")
    for _ in range(20):
        take(ground, consumer, log, rng)
        time.sleep(rng.random() * 0.01)


KEEPER, READER = "keeper", "reader"
ROLES: Final[dict[str, Callable[[Keeping, int, int], None]]] = {
    roles.PRODUCER: produce,
    KEEPER: keep,
    READER: read,
    roles.HELPER: help_out,
}
