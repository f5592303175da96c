"""The same operations on an event loop, by tasks that are cancelled while they wait."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import (
    ConsumerInUse,
    LeaseLost,
    MessageTooLarge,
    NotDurable,
    NothingReceived,
    QueueFull,
    TooManyClaims,
)
from stress.combined.ground import (
    ACKED,
    ACKING,
    READER,
    RECEIVED,
    Given,
    Handled,
    crew_of,
    is_poison,
    operation,
)
from stress.combined.operations import READER_MARK, Opening, Over, checksum
from stress.history import Sent

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    Task = Callable[[Opening, random.Random], Awaitable[None]]

WAIT_SECONDS: Final = 0.01
CANCEL_SECONDS: Final = 0.004


async def send(opening: Opening, rng: random.Random) -> None:
    """Send; a send that is cancelled while it waits for room has sent no message."""
    ground, spec = opening.ground, opening.spec
    with opening.doing("coroutine sends"):
        producer = opening.got.producer()
    uid = spec.uid(rng)
    ground.births[spec.number].put(Given(uid, 0))
    log = ground.sent[spec.number]
    with contextlib.closing(producer):
        for number in range(rng.randint(1, 30)):
            op = operation(uid, number)
            payloads = op.payloads
            too_large = (MessageTooLarge,) if spec.drops else ()
            with opening.doing("coroutine sends", QueueFull, *too_large):
                try:
                    if op.publishes:
                        sent = await opening.got.publish_async(str(uid), number, payloads)
                        first, count = sent.start, len(sent)
                    elif len(payloads) == 1:
                        first, count = await producer.send_async(payloads[0]), 1
                    else:
                        sent = await producer.send_many_async(payloads)
                        first, count = sent.start, len(sent)
                except NotDurable:
                    return
                except asyncio.CancelledError:
                    ground.note("cancel", spec.number)
                    if not (opening.syncs or op.publishes or op.takes_pages):
                        log.put(Sent(uid, number, 0, 0))
                    raise
                except BaseException:
                    log.put(Sent(uid, number, 0, 0))
                    raise
                log.put(Sent(uid, number, count, first))
                continue
            return  # full: each further one would wait as long


async def receive(opening: Opening, rng: random.Random) -> None:
    """Continue with the named consumer; messages received and not acknowledged are redelivered."""
    ground, number = opening.ground, opening.spec.number
    marked = ground.marked(number, READER_MARK)
    with (
        opening.doing("coroutine receives", ConsumerInUse, NothingReceived),
        contextlib.closing(opening.got.consumer(READER)) as consumer,
    ):
        begin = consumer.sequence
        if begin < marked:
            ground.wrong(
                "coroutine receives",
                number,
                f"the consumer begins with {begin}, though all below {marked} was acknowledged",
            )
        for _ in range(rng.randint(1, 20)):
            found = [await consumer.receive_async(timeout=rng.random() * WAIT_SECONDS)]
            begin += opening.check("coroutine receives", found, begin)
            for message in found:
                ground.read[number].put(
                    Handled(message.sequence, checksum(message.payload), RECEIVED)
                )
            await consumer.ack_async(durable=rng.random() < 0.1)
            ground.mark(number, READER_MARK, begin)


async def claim(opening: Opening, rng: random.Random) -> None:
    """Claim for the group."""
    ground, number = opening.ground, opening.spec.number
    log = ground.worked[number]
    with (
        opening.doing("coroutine claims", NothingReceived, TooManyClaims, LeaseLost),
        contextlib.closing(crew_of(opening.got)) as group,
    ):
        for _ in range(rng.randint(1, 20)):
            claim = await group.claim_async(timeout=rng.random() * WAIT_SECONDS)
            message = claim.message
            opening.check("coroutine claims", [message])
            log.put(Handled(message.sequence, checksum(message.payload), RECEIVED))
            if is_poison(message.payload):
                with contextlib.suppress(ValueError):
                    async with claim:
                        raise ValueError("poison")
                ground.note("group poison", number)
            elif rng.random() < 0.8:
                log.put(Handled(message.sequence, 0, ACKING))
                claim.ack()
                log.put(Handled(message.sequence, 0, ACKED))


TASKS: Final[tuple[Task, ...]] = (send, send, receive, claim)


async def together(openings: list[Opening], rng: random.Random) -> None:
    """Run some tasks at once, and cancel some of them while they wait."""
    loop = asyncio.get_running_loop()
    running = []
    for _ in range(rng.randint(2, 5)):
        opening = rng.choice(openings)
        task = loop.create_task(_to_its_end(rng.choice(TASKS), opening, rng))
        running.append(task)
        if rng.random() < 0.4:
            loop.call_later(rng.random() * CANCEL_SECONDS, task.cancel)
    await asyncio.wait(running)


async def _to_its_end(task: Task, opening: Opening, rng: random.Random) -> None:
    with contextlib.suppress(Over):
        try:
            await task(opening, rng)
        except asyncio.CancelledError:
            opening.ground.note("cancel", opening.spec.number)


def run_loop(openings: list[Opening], rng: random.Random) -> None:
    """Have an event loop of this thread's own, and end it."""
    asyncio.run(together(openings, rng))
