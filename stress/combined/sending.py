"""Senders: each has an id of its own, and writes down what returned and what was refused.

An operation that was refused must not be in the queue, one that returned must be there once; where
the sender was killed, it may be there, and nothing of it behind that.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import NotDurable, QueueFull
from stress.combined.ground import operation
from stress.combined.operations import SIGNAL_ALLOWED, Opening, Over

if TYPE_CHECKING:
    import random

    from pagequeue import Producer

BURST_MAX: Final = 60
REFUSED_SEQUENCE: Final = 0


def send(opening: Opening, rng: random.Random, limit: int = BURST_MAX) -> None:
    """Send until the burst is over or the queue is closed."""
    with opening.doing("send"):
        producer = opening.got.producer()
    with contextlib.closing(producer):
        burst(opening, producer, rng, rng.randint(1, limit))


def burst(
    opening: Opening,
    producer: Producer,
    rng: random.Random,
    count: int,
    allowed: tuple[type[Exception], ...] = (),
    kind: str | None = None,
) -> None:
    """Send so many operations by one new sender."""
    ground, spec = opening.ground, opening.spec
    uid = spec.uid(rng)
    ground.births[spec.number].put(uid, 0)
    log = ground.sent[spec.number]
    for number in range(count):
        op = operation(uid, number)
        sent = None
        with opening.doing(
            kind or ("send" if len(op.payloads) == 1 else "send_many"), QueueFull, *allowed
        ):
            try:
                sent = op.run(producer)
            except NotDurable:
                return  # sent and visible, and nobody said where
            except BaseException:
                log.put(uid, number, 0, REFUSED_SEQUENCE, 0)
                raise
        if sent is None:
            return  # full: each further one would wait as long
        first, messages = sent
        log.put(uid, number, messages, first, 0)


def send_by_handler(opening: Opening, rng: random.Random) -> None:
    """Send one operation from inside a signal handler."""
    with contextlib.suppress(Over):
        producer = None
        with opening.doing("signal handler", *SIGNAL_ALLOWED):
            producer = opening.got.producer()
        if producer is not None:
            with contextlib.closing(producer):
                burst(opening, producer, rng, 1, SIGNAL_ALLOWED, "signal handler")
