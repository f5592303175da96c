"""asyncio and groups: coroutines claim, each message one at a time, and sleep in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from loops import PATIENCE, notifier_threads, until, waiting

from pagequeue import ClosedError, NothingReceived, Queue
from pagequeue.errors import TooManyClaims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue whose page does not fill up."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue:
        yield queue


def test_coroutines_share_the_messages_of_a_group(queue: Queue, run: Callable[..., Any]) -> None:
    """Each message is claimed by one of them; one thread waits for all."""

    async def work(group: Any, done: list[int]) -> None:  # noqa: ANN401
        async for claim in group:
            done.append(claim.message.sequence)
            await asyncio.sleep(0)
            claim.ack()

    async def main() -> None:
        done: list[int] = []
        with queue.group("workers") as group, queue.group("workers") as other:
            tasks = [
                asyncio.ensure_future(work(one, done)) for one in (group, other) for _ in range(10)
            ]
            await until(lambda: waiting(queue) == 20)
            await until(lambda: len(notifier_threads()) == 1)  # that of another test has ended
            with queue.producer() as producer:
                for _ in range(100):
                    await producer.send_async(b"x")
                    if _ % 10 == 0:
                        await asyncio.sleep(0.002)
            await until(lambda: group.lag == 0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert sorted(done) == list(range(100))

    run(main())


def test_wait_for_a_claim_ends_in_time_or_with_closing(queue: Queue) -> None:
    """The errors are those of the blocking call, and no message is claimed."""

    async def main() -> None:
        group = queue.group("workers")
        for timeout in (0, 0.01):
            with pytest.raises(NothingReceived):
                await group.claim_async(timeout)
            with pytest.raises(NothingReceived):
                await group.claim_many_async(8, timeout)
        with pytest.raises(ValueError):
            await group.claim_async(-1)
        task = asyncio.ensure_future(group.claim_async())
        await until(lambda: waiting(queue) == 1)
        group.close()
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_returned_or_delayed_message_is_claimed_by_a_waiting_coroutine(
    queue: Queue, run: Callable[..., Any]
) -> None:
    """A nack wakes it; the end of a delay, of a lease and of an owner is noticed."""

    async def main() -> None:
        queue.producer().send(b"x")
        with queue.group("workers") as group, queue.group("workers", lease=0.1) as brief:
            for delay in (0.0, 0.05):
                claim = await group.claim_async(PATIENCE)
                task = asyncio.ensure_future(group.claim_async(PATIENCE))
                await until(lambda: waiting(queue) == 1)
                claim.nack(delay)
                again = await task
                assert again.message.sequence == 0
                again.nack()
            deliveries = (await brief.claim_async(PATIENCE)).deliveries
            again = await group.claim_async(PATIENCE)
            assert again.deliveries == deliveries + 1  # its lease ended
            again.nack()
            other = queue.group("workers")
            held = await other.claim_async(PATIENCE)
            task = asyncio.ensure_future(group.claim_async(PATIENCE))
            await asyncio.sleep(0)
            other.close()
            assert (await task).deliveries == held.deliveries + 1

    run(main())


def test_full_group_is_waited_for(queue: Queue) -> None:
    """As many claims as there is room for: an acknowledgement lets the next one through."""

    async def main() -> None:
        queue.producer().send_many([b"x"] * 40)
        with queue.group("workers", capacity=16) as group:
            claims = await group.claim_many_async(40, PATIENCE)
            while len(claims) < 16:
                claims += await group.claim_many_async(40, PATIENCE)
            with pytest.raises(TooManyClaims):
                await group.claim_async(0.02)
            task = asyncio.ensure_future(group.claim_async(PATIENCE))
            await until(lambda: waiting(queue) == 1)
            claims[0].ack()
            assert (await task).message.sequence == 16

    asyncio.run(main())


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("seed", range(10))
def test_cancelled_claim_has_claimed_no_message(
    queue: Queue, run: Callable[..., Any], seed: int
) -> None:
    """At any time: otherwise a message would stay claimed by no worker until its lease ends."""
    rng = random.Random(seed)

    async def main() -> None:
        done: list[int] = []
        ended = threading.Event()

        def send() -> None:
            with queue.producer() as producer:
                for _ in range(60):
                    producer.send(b"x")
                    ended.wait(rng.random() * 0.001)

        thread = threading.Thread(target=send)
        thread.start()
        with queue.group("workers", lease=3600) as group:

            async def work() -> None:
                for claim in await group.claim_many_async(rng.randrange(1, 4)):
                    done.append(claim.message.sequence)
                    claim.ack()

            while len(done) < 60:
                if rng.random() < 0.5:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(rng.random() * 0.001):
                            await work()
                    continue
                task = asyncio.ensure_future(work())
                for _ in range(rng.randrange(8)):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
            assert group.outstanding == 0
        thread.join()
        assert done == list(range(60))

    run(asyncio.wait_for(main(), 60))


def test_groups_are_in_the_stats(queue: Queue) -> None:
    """With their kind, their lag, and what is claimed."""
    queue.producer().send_many([b"x"] * 5)
    with queue.group("workers") as group:
        group.claim(0)
        group.claim(0).ack()
        (found,) = queue.stats().consumers
        assert (found.name, found.kind, found.lag, found.is_open) == ("workers", "group", 4, True)
        assert found.group is not None
        assert (found.group.claimed, found.group.waiting) == (1, 0)
