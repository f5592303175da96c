"""asyncio: coroutines wait without a thread each, and see what blocking calls see."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from loops import PATIENCE, notifier_threads, until, waiting
from support import WAITERS, end, ready, send_lines, start

from pagequeue import (
    ClosedError,
    CorruptPage,
    InvalidOption,
    NothingReceived,
    Queue,
    SyncFailed,
    UsageError,
    _core,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SMALL = 4096
IDLE_SECONDS = 0.5


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue whose page does not fill up."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue:
        yield queue


def test_async_for_gives_all_in_order(queue: Queue, run: Callable[..., Any]) -> None:
    """I2: what is there and what comes meanwhile, from another thread, once and in order."""

    def send() -> None:
        with queue.producer() as producer:
            for number in range(200, 600):
                producer.send(b"%d" % number)
                if number % 50 == 0:
                    time.sleep(0.002)

    async def main() -> list[int]:
        with queue.producer() as producer:
            producer.send_many([b"%d" % number for number in range(200)])
        thread = threading.Thread(target=send)
        thread.start()
        seen = []
        with queue.consumer() as consumer:
            async for message in consumer:
                assert int(message.payload) == message.sequence
                seen.append(message.sequence)
                if len(seen) == 600:
                    break
        thread.join()
        return seen

    assert run(main()) == list(range(600))


def test_timeout_has_not_moved_the_consumer(queue: Queue, run: Callable[..., Any]) -> None:
    """A wait that ends without a message does not move it; 0 never waits."""

    async def main() -> None:
        consumer = queue.consumer()
        for timeout in (0, 0.01):
            with pytest.raises(NothingReceived):
                await consumer.receive_async(timeout)
            with pytest.raises(TimeoutError):
                await consumer.receive_many_async(8, timeout=timeout)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer.receive_async()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive_async(), 0.01)
        assert consumer.sequence == 0
        assert waiting(queue) == 0
        with queue.producer() as producer:
            assert await producer.send_async(b"a") == 0
            assert list(await producer.send_many_async([b"b", b"c"])) == [1, 2]
        assert (await consumer.receive_async(0)).payload == b"a"
        assert (await consumer.receive_many_async(timeout=PATIENCE)).payloads == [b"b", b"c"]

    run(main())


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_invalid_timeout_is_refused(queue: Queue, timeout: float) -> None:
    """The same as for the blocking calls, whether there is a message or not."""

    async def main() -> None:
        consumer, producer = queue.consumer(), queue.producer()
        producer.send(b"a")
        for call in (consumer.receive_async, consumer.receive_many_async, producer.flush_async):
            with pytest.raises(ValueError):
                await call(timeout=timeout)
        assert consumer.sequence == 0

    asyncio.run(main())


def test_message_of_another_process_wakes(queue: Queue, run: Callable[..., Any]) -> None:
    """I7: the doorbell of another process wakes coroutines."""
    other = start(send_lines.__name__, queue.directory)
    ready(other)

    async def main() -> None:
        assert other.stdin is not None
        consumer = queue.consumer()
        for number in range(20):
            task = asyncio.ensure_future(consumer.receive_async())
            await until(lambda: waiting(queue) == 1)
            other.stdin.write(f"{number}\n")
            other.stdin.flush()
            assert int((await asyncio.wait_for(task, PATIENCE)).payload) == number

    try:
        run(main())
    finally:
        end(other)


def test_message_published_without_ringing_the_doorbell_is_received(queue: Queue) -> None:
    """I7: a publisher that dies between publishing and waking delays coroutines by a slice."""

    async def main() -> None:
        consumer, producer = queue.consumer(), queue.producer()
        region = queue._store.write_meta.region
        for number in range(3):
            task = asyncio.ensure_future(consumer.receive_async(PATIENCE))
            await until(lambda: waiting(queue) == 1)
            region.store_half(WAITERS, 0)  # the publisher finds no waiter
            producer.send(b"%d" % number)
            assert (await task).payload == b"%d" % number

    asyncio.run(main())


def test_consumer_of_durable_messages_is_woken_by_a_flush(queue: Queue) -> None:
    """A message that is not on stable storage is not handed out, also not to coroutines."""

    async def main() -> None:
        consumer = queue.consumer(durable_only=True)
        task = asyncio.ensure_future(consumer.receive_async(PATIENCE))
        with queue.producer() as producer:
            await until(lambda: waiting(queue) == 1)
            await producer.send_async(b"a")
            await until(lambda: waiting(queue) == 1)  # it polled, and waits again
            assert not task.done()
            assert await producer.flush_async() == 1
        assert (await task).payload == b"a"

    asyncio.run(main())


def test_read_only_consumer_waits_without_a_doorbell(queue: Queue, run: Callable[..., Any]) -> None:
    """A consumer that cannot announce a waiter polls, in the notifier's thread."""

    async def main() -> None:
        with Queue(queue.directory, read_only=True) as reading, queue.producer() as producer:
            consumer = reading.consumer()
            before = reading._store.write_meta.region.load_half(WAITERS)
            for number in range(5):
                task = asyncio.ensure_future(consumer.receive_async(PATIENCE))
                await until(lambda: waiting(reading) == 1)
                assert reading._store.write_meta.region.load_half(WAITERS) == before
                producer.send(b"%d" % number)
                assert (await task).payload == b"%d" % number

    run(main())


def test_many_consumers_share_one_thread(queue: Queue, run: Callable[..., Any]) -> None:
    """Each of them sees every message; one thread serves all, and ends after the last one."""

    async def main() -> None:
        consumers = [queue.consumer() for _ in range(100)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(consumer.receive_async(PATIENCE)) for consumer in consumers]
            await until(lambda: waiting(queue) == 100)
            await until(lambda: len(notifier_threads()) == 1)  # that of another test has ended
            with queue.producer() as producer:
                producer.send(b"for all")
        assert {task.result().payload for task in tasks} == {b"for all"}
        await until(lambda: not notifier_threads())
        task = asyncio.ensure_future(consumers[0].receive_async(PATIENCE))
        await until(lambda: waiting(queue) == 1)
        with queue.producer() as producer:
            producer.send(b"another thread")
        assert (await task).payload == b"another thread"

    run(main())


def test_loops_of_two_threads_share_a_queue(queue: Queue) -> None:
    """A bell rings for sleepers of any loop."""
    seen: dict[int, list[int]] = {}

    async def main(who: int) -> None:
        with queue.consumer() as consumer:
            seen[who] = [(await consumer.receive_async(PATIENCE)).sequence for _ in range(100)]

    threads = [threading.Thread(target=lambda n=n: asyncio.run(main(n))) for n in range(2)]
    for thread in threads:
        thread.start()
    with queue.producer() as producer:
        for _ in range(100):
            producer.send(b"a")
            time.sleep(0.0005)
    for thread in threads:
        thread.join()
    assert seen == {0: list(range(100)), 1: list(range(100))}


def test_idle_waiting_is_sleeping(queue: Queue) -> None:
    """A hundred coroutines that wait do not poll: that would take all of a core."""

    async def main() -> float:
        tasks = [asyncio.ensure_future(queue.consumer().receive_async()) for _ in range(100)]
        await until(lambda: waiting(queue) == 100)
        before = time.process_time()
        with pytest.raises(NothingReceived):
            await queue.consumer().receive_async(IDLE_SECONDS)
        used = time.process_time() - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return used

    assert asyncio.run(main()) < IDLE_SECONDS / 5


def test_consumer_that_never_has_to_wait_does_not_starve_others(
    queue: Queue, run: Callable[..., Any]
) -> None:
    """A coroutine that never has to wait yields to the others regularly."""

    async def main() -> int:
        with queue.producer() as producer:
            for _ in range(20):
                producer.send_many([b"x"] * 1000)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(count())
        with queue.consumer() as consumer:
            async for message in consumer:
                if message.sequence == 19_999:
                    break
        task.cancel()
        return turns

    assert run(main()) > 1


@pytest.mark.parametrize("what", ["consumer", "queue"])
@pytest.mark.parametrize("read_only", [False, True])
def test_closing_ends_a_wait(queue: Queue, what: str, *, read_only: bool) -> None:
    """No wait for a closed object is endless, and no thread is left running."""

    async def main() -> None:
        with Queue(queue.directory, read_only=read_only) as own:
            consumer = own.consumer()
            task = asyncio.ensure_future(consumer.receive_async())
            await until(lambda: waiting(own) == 1)
            (consumer if what == "consumer" else own).close()
            with pytest.raises(ClosedError):
                await asyncio.wait_for(task, PATIENCE)
            for call in (consumer.receive_async, consumer.receive_many_async):
                with pytest.raises(ClosedError):
                    await call()
        await until(lambda: not notifier_threads())

    asyncio.run(main())


def test_page_truncated_while_waiting_is_an_error(tmp_path: Path) -> None:
    """Damage under a waiting coroutine is a typed error, not a wait for ever."""

    async def main() -> None:
        with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
            consumer = queue.consumer()
            task = asyncio.ensure_future(consumer.receive_async())
            await until(lambda: waiting(queue) == 1)
            os.truncate(tmp_path / "q" / "queue-0000000001.page", SMALL)
            with pytest.raises(CorruptPage):
                await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_named_consumer_resumes_and_acknowledges(queue: Queue, run: Callable[..., Any]) -> None:
    """I11: the place of a named consumer is kept as it is for blocking ones."""

    async def main() -> None:
        with queue.producer() as producer:
            await producer.send_many_async([b"a", b"b", b"c"])
        with queue.consumer("billing") as consumer:
            async for message in consumer:
                consumer.ack(message)
                if message.payload == b"b":
                    break
        with queue.consumer("billing") as consumer:
            assert (await consumer.receive_async(PATIENCE)).payload == b"c"
            await consumer.ack_async(durable=True)
        assert [found.next_sequence for found in queue.consumers()] == [3]

    run(main())


def test_durable_acknowledgement_syncs_in_a_thread(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor moves at once; a failed sync raises, and the cursor stays moved."""
    synced_by = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        synced_by.append(threading.current_thread())
        if len(synced_by) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    async def main() -> None:
        queue.producer().send_many([b"a", b"b"])
        with queue.consumer("billing") as consumer:
            first = await consumer.receive_async(0)
            monkeypatch.setattr(os, "fdatasync", fdatasync)
            await consumer.ack_async()
            assert synced_by == []
            await consumer.ack_async(first, durable=True)
            assert synced_by[0] is not threading.main_thread()
            await consumer.receive_async(0)
            with pytest.raises(SyncFailed):
                await consumer.ack_async(durable=True)
            assert consumer.acknowledged == 2  # type: ignore[attr-defined]
            with pytest.raises(InvalidOption):
                await consumer.ack_async(7)
        with pytest.raises(UsageError):
            await queue.consumer().ack_async()

    asyncio.run(main())


def test_asyncio_is_not_imported_unless_used() -> None:
    """Importing the package takes no time for what is not used."""
    code = "import sys, pagequeue; print('asyncio' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"


def test_doorbell_moves_only_for_announced_waiters(queue: Queue) -> None:
    """I7: a publisher checks for waiters, and moves the doorbell only for them."""
    region, producer = queue._store.write_meta.region, queue.producer()
    before = _core.doorbell(region, False)
    region.store_half(WAITERS, 0)
    producer.send(b"a")
    assert _core.doorbell(region, True) == before
    producer.send(b"b")
    assert _core.doorbell(region, False) == before + 1
    _core.await_doorbell(region, before, 10**12)  # it has moved: no sleep at all
