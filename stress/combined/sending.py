"""Senders: each has a unique id, and records which operations returned and which were refused.

A refused operation must not be in the queue, one that returned must be there once; where the sender
was killed, it may be there, and no later one of that sender.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import MessageTooLarge, NotDurable, Overtaken, QueueFull
from stress.combined.ground import FILE, REFUSED, Given, operation
from stress.combined.operations import SIGNAL_ALLOWED, Opening, Over
from stress.history import Sent

if TYPE_CHECKING:
    import random

    from pagequeue import Producer
    from stress.traffic import Op

BURST_MAX: Final = 60
REFUSED_SEQUENCE: Final = 0
COMPARED_SHARE: Final = 0.3
COMPARED_TRIES: Final = 5


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
    ground.births[spec.number].put(Given(uid, 0))
    log = ground.sent[spec.number]
    for number in range(count):
        op = operation(uid, number)
        sent = None
        if op.publishes and kind is not None:
            return  # a handler may have interrupted what publishes
        does = kind_of(op)
        too_large = (MessageTooLarge,) if spec.drops else ()
        with opening.doing(kind or does, QueueFull, *too_large, *allowed):
            try:
                compares = kind is None and op.payloads and rng.random() < COMPARED_SHARE
                if op.publishes:
                    sent = publish(opening, uid, number, op)
                elif compares:
                    sent = compared(opening, producer, op)
                else:
                    sent = op.run(producer)
            except NotDurable:
                return  # sent and visible, at an unreported sequence
            except BaseException:
                log.put(Sent(uid, number, 0, REFUSED_SEQUENCE))
                raise
        if sent is None:
            return  # full: each further one would wait as long
        first, messages = sent
        log.put(Sent(uid, number, messages, first))
        if op.publishes:
            with opening.doing(does):
                publish_again(opening, uid, number, op, sent)


def send_file(opening: Opening, rng: random.Random) -> None:
    """Write a payload as a file; a signal handler may close it, or what it was made from."""
    ground, number = opening.ground, opening.spec.number
    uid = opening.spec.uid(rng) | FILE
    ground.births[number].put(Given(uid, 0))
    too_large = (MessageTooLarge,) if opening.spec.drops else ()
    with opening.doing("file under a signal", QueueFull, *too_large):
        try:
            with contextlib.closing(opening.got.producer()) as producer:
                first, messages = operation(uid, 0).run(producer)
        except NotDurable:
            return
        except BaseException:
            ground.sent[number].put(Sent(uid, 0, 0, REFUSED_SEQUENCE))
            raise
        ground.sent[number].put(Sent(uid, 0, messages, first))


def kind_of(op: Op) -> str:
    """Return what an operation is called in the history."""
    if op.publishes:
        return "publish"
    if op.discards:
        return "discard a file"
    if op.streams:
        return "send a file"
    return "send" if len(op.payloads) == 1 else "send_many"


def compared(opening: Opening, producer: Producer, op: Op) -> tuple[int, int]:
    """Send at the queue's end, which other senders may move between two attempts."""
    queue, number = opening.got, opening.spec.number
    for _ in range(COMPARED_TRIES):
        at = queue.tail_sequence
        try:
            if len(op.payloads) == 1:
                first = producer.send(op.payloads[0], at=at)
            else:
                first = producer.send_many(op.payloads, at=at).start
        except Overtaken as error:
            opening.ground.note("send at", number, REFUSED)
            if error.tail_sequence <= at:  # sequences only grow
                opening.ground.wrong("send at", number, f"{error.tail_sequence} is before {at}")
            continue
        if first != at:
            opening.ground.wrong("send at", number, f"asked for {at}, sent as {first}")
        opening.ground.note("send at", number)
        return first, len(op.payloads)
    return op.run(producer)


def publish(opening: Opening, uid: int, number: int, op: Op) -> tuple[int, int]:
    """Publish a piece of this sender's work."""
    sent = opening.got.publish(str(uid), number, op.payloads)
    return sent.start, len(sent)


def publish_again(opening: Opening, uid: int, number: int, op: Op, sent: tuple[int, int]) -> None:
    """Publish it again; the call returns the same place and sends no message."""
    again = opening.got.publish(str(uid), number, op.payloads)
    if (again.start, len(again)) != sent:
        opening.ground.wrong("publish", opening.spec.number, f"published as {sent}, then {again}")


def send_by_handler(opening: Opening, rng: random.Random) -> None:
    """Send one operation from inside a signal handler."""
    with contextlib.suppress(Over):
        producer = None
        with opening.doing("signal handler", *SIGNAL_ALLOWED):
            producer = opening.got.producer()
        if producer is not None:
            with contextlib.closing(producer):
                burst(opening, producer, rng, 1, SIGNAL_ALLOWED, "signal handler")
