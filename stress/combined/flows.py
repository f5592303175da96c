"""Flows with retention: each element is stored once, and is delivered at least once, after kills.

The upstream continues after the last message that the queue ever had, so the number of an element
is the sequence of its message. A flow that asks its upstream to begin again shows at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from pagequeue import ConsumerInUse
from stress.combined.ground import DOWN, RECEIVED, Handled, element
from stress.combined.operations import Opening, Over, checksum

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator

    from pagequeue import Flow, Message

DOWN_MARK: Final = 1
ELEMENTS_MAX: Final = 60


def source(count: int) -> Callable[[Message | None], Iterator[bytes]]:
    """Return an upstream that continues after the last message."""

    def upstream(last: Message | None) -> Iterator[bytes]:
        begin = 0 if last is None else int.from_bytes(last.payload[:8], "little") + 1
        return map(element, range(begin, begin + count))

    return upstream


def source_async(count: int) -> Callable[[Message | None], AsyncIterator[bytes]]:
    """Return the same, with suspensions."""

    async def upstream(last: Message | None) -> AsyncIterator[bytes]:
        for each in source(count)(last):
            await asyncio.sleep(0)
            yield each

    return upstream


def take(opening: Opening, flow: Flow, message: Message, kind: str) -> None:
    """Check and write down what came out."""
    ground, number = opening.ground, opening.spec.number
    if message.payload != element(message.sequence):
        found = int.from_bytes(message.payload[:8], "little")
        ground.wrong(kind, number, f"message {message.sequence} is element {found}")
        raise Over
    ground.read[number].put(Handled(message.sequence, checksum(message.payload), RECEIVED))
    ground.mark(number, DOWN_MARK, flow.acknowledged)


def begins(opening: Opening, flow: Flow, marked: int, kind: str) -> None:
    """Check that a flow does not begin before what was acknowledged."""
    if flow.acknowledged < marked:
        text = f"{marked} were acknowledged, and the flow begins with {flow.acknowledged}"
        opening.ground.wrong(kind, opening.spec.number, text)
        raise Over


def flow(opening: Opening, rng: random.Random) -> None:
    """Have the flow for a while; then end pages and trim, so that all may be gone."""
    marked = opening.ground.marked(opening.spec.number, DOWN_MARK)
    count = rng.randint(0, ELEMENTS_MAX)
    with (
        opening.doing("flow", ConsumerInUse),
        opening.got.persist(source(count), DOWN) as flow_,
    ):
        begins(opening, flow_, marked, "flow")
        limit = rng.choice((count, count + ELEMENTS_MAX, 3))
        for at, message in enumerate(flow_):
            take(opening, flow_, message, "flow")
            if at >= limit:
                break
    gone(opening, rng)


def drain(opening: Opening) -> None:
    """Consume the remaining elements, and add none."""
    marked = opening.ground.marked(opening.spec.number, DOWN_MARK)
    with opening.doing("flow"), opening.got.persist(source(0), DOWN) as flow_:
        begins(opening, flow_, marked, "flow")
        for message in flow_:
            take(opening, flow_, message, "flow")


def flow_of_coroutine(opening: Opening, rng: random.Random) -> None:
    """Have the flow on an event loop, and perhaps cancel it."""
    asyncio.run(_flow_async(opening, rng))
    gone(opening, rng)


async def _flow_async(opening: Opening, rng: random.Random) -> None:
    marked = opening.ground.marked(opening.spec.number, DOWN_MARK)
    count = rng.randint(0, ELEMENTS_MAX)
    task = asyncio.current_task()
    assert task is not None
    timer = None
    if rng.random() < 0.4:
        timer = asyncio.get_running_loop().call_later(rng.random() * 0.006, task.cancel)
    kind = "flow of a coroutine"
    try:
        with opening.doing(kind, ConsumerInUse):
            upstream = source(count) if rng.random() < 0.5 else source_async(count)
            async with opening.got.persist(upstream, DOWN) as flow_:
                begins(opening, flow_, marked, kind)
                async for message in flow_:
                    take(opening, flow_, message, kind)
    except asyncio.CancelledError:
        task.uncancel()
        opening.ground.note("cancel", opening.spec.number)
    finally:
        if timer is not None:
            timer.cancel()


def gone(opening: Opening, rng: random.Random) -> None:
    """End the page and trim, in this or the other order, or not."""
    with contextlib.suppress(Over):
        for kind in rng.sample(("rotate", "trim"), rng.randint(0, 2)):
            with opening.doing(kind):
                (opening.got.rotate if kind == "rotate" else opening.got.trim)()
