"""asyncio: a cancelled wait has not taken a message, at any time of the cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from loops import PATIENCE, until, waiting

from pagequeue import Message, Queue
from pagequeue.receive.consumer import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue whose page does not fill up."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue:
        yield queue


class Cancelled:
    """A consumer whose waits are cancelled repeatedly, and a concurrent sender."""

    def __init__(self, queue: Queue, rng: random.Random, count: int) -> None:
        self.queue = queue
        self.rng = rng
        self.count = count
        self.consumer = queue.consumer(sequence=queue.tail_sequence)
        self.seen: list[int] = []

    async def receive(self) -> None:
        """Receive something in one of two ways."""
        if self.rng.random() < 0.3:
            batch = await self.consumer.receive_many_async(self.rng.randrange(1, 4))
            self.seen.extend(batch.sequences.tolist())
        else:
            self.seen.append((await self.consumer.receive_async()).sequence)

    async def receive_within(self, seconds: float) -> None:
        """Receive something as those do who use `wait_for`."""
        await asyncio.wait_for(self.receive(), seconds)

    async def cancel_after_turns(self, task: asyncio.Task[None]) -> None:
        """Let a task have some turns of the loop, then cancel it."""
        for _ in range(self.rng.randrange(8)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()

    async def send(self) -> None:
        """Send all that is received, in small batches."""
        with self.queue.producer() as producer:
            left = self.count
            while left:
                size = min(left, self.rng.randrange(1, 4))
                producer.send_many([b"x"] * size)
                left -= size
                for _ in range(self.rng.randrange(6)):
                    await asyncio.sleep(0)
                if self.rng.random() < 0.2:
                    await asyncio.sleep(self.rng.random() * 0.001)

    async def run(self) -> list[int]:
        """Return the sequences received until the last one was."""
        sender = asyncio.ensure_future(self.send())
        while not (sender.done() and self.consumer.lag == 0):
            how = self.rng.randrange(3)
            if how == 0:
                await self.cancel_after_turns(asyncio.ensure_future(self.receive()))
            elif how == 1:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.rng.random() * 0.0005):
                        await self.receive()
            else:
                seconds = self.rng.random() * 0.0005
                await self.cancel_after_turns(asyncio.ensure_future(self.receive_within(seconds)))
        self.consumer.close()
        return self.seen


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("seed", range(25))
def test_cancellation_loses_and_duplicates_no_message(
    queue: Queue, run: Callable[..., Any], seed: int
) -> None:
    """A wait that is cancelled at any time, even after its wake-up, has taken no message."""

    async def main() -> list[int]:
        cancelled = Cancelled(queue, random.Random(seed), 60)
        return await asyncio.wait_for(cancelled.run(), 60)

    assert run(main()) == list(range(60))


def test_loss_by_cancellation_would_be_seen(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds it if there is a suspension between taking and returning."""
    careful = Consumer.receive_async

    async def careless(self: Any, timeout: float | None = None) -> Message:  # noqa: ANN401
        message = await careful(self, timeout)
        await asyncio.sleep(0)
        return message

    monkeypatch.setattr(Consumer, "receive_async", careless)

    async def main(seed: int) -> list[int]:
        return await Cancelled(queue, random.Random(seed), 60).run()

    assert any(len(asyncio.run(main(seed))) < 60 for seed in range(10))


def test_wait_cancelled_after_its_wake_up_has_taken_no_message(queue: Queue) -> None:
    """Exactly then: the notifier has woken it, and it has not run yet."""

    async def main() -> None:
        consumer, producer = queue.consumer(), queue.producer()
        for number in range(20):
            task = asyncio.ensure_future(consumer.receive_async())
            await until(lambda: waiting(queue) == 1)
            producer.send(b"%d" % number)
            deadline = time.monotonic() + PATIENCE
            while waiting(queue):  # the bell has rung, and the loop has not run since
                assert time.monotonic() < deadline
                time.sleep(0.0002)  # noqa: ASYNC251 - that is the point
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert consumer.sequence == number
            assert (await consumer.receive_async(0)).payload == b"%d" % number

    asyncio.run(main())
