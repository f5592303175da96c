"""asyncio: sending never blocks a loop, and a cancelled send has sent no message."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from loops import PATIENCE, until, waiting_senders

from pagequeue import ClosedError, FlushTimeout, Queue, QueueFull, Retention, SyncFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SMALL = 4096
LARGE = b"x" * 1300
"""Three of them fill a page."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue whose page does not fill up."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue:
        yield queue


def full_queue(path: Path, **options: Any) -> Queue:  # noqa: ANN401
    """Return a queue of two pages that are full, kept by a named consumer."""
    queue = Queue(
        path, page_bytes=SMALL, retention=Retention(max_bytes=2 * SMALL), on_full="block", **options
    )
    queue.consumer("slow").close()
    with (
        Queue(path, retention=Retention(max_bytes=2 * SMALL)) as own,
        own.producer() as producer,
        contextlib.suppress(QueueFull),
    ):
        while True:
            producer.send(LARGE)
    return queue


def test_full_queue_does_not_block_the_loop(tmp_path: Path, run: Callable[..., Any]) -> None:
    """Senders wait, the loop runs; an acknowledgement lets all of them send."""

    async def main() -> None:
        with full_queue(tmp_path / "q") as queue, queue.producer() as producer:
            tail = queue.tail_sequence
            tasks = [asyncio.ensure_future(producer.send_async(LARGE)) for _ in range(3)]
            await until(lambda: waiting_senders(queue) == 3)
            assert not any(task.done() for task in tasks)
            assert queue.tail_sequence == tail
            with queue.consumer("slow") as consumer:
                while consumer.lag:
                    consumer.receive_many()
                consumer.ack()
            sent = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert sorted(sent) == list(range(tail, tail + 3))

    run(main())


def test_cancelled_send_has_sent_no_message(tmp_path: Path, run: Callable[..., Any]) -> None:
    """A sender cancelled while it waits for space never sends; the others still do."""

    async def main() -> None:
        with full_queue(tmp_path / "q") as queue, queue.producer() as producer:
            tail = queue.tail_sequence
            given_up = [
                asyncio.ensure_future(producer.send_many_async([LARGE, LARGE])) for _ in range(3)
            ]
            await until(lambda: waiting_senders(queue) == 3)
            other = asyncio.ensure_future(producer.send_async(LARGE))
            await until(lambda: waiting_senders(queue) == 4)
            for task in given_up:
                task.cancel()
            await asyncio.wait(given_up)
            assert all(task.cancelled() for task in given_up)
            assert not other.done()
            again = asyncio.ensure_future(producer.send_async(LARGE))
            await until(lambda: waiting_senders(queue) == 2)
            other.cancel()
            again.cancel()  # no sender waits any more: the thread that waits for space ends
            await asyncio.wait({other, again})
            last = asyncio.ensure_future(producer.send_async(LARGE + b"last"))
            await asyncio.sleep(0)
            with queue.consumer("slow") as consumer:
                while consumer.lag:
                    consumer.receive_many()
                consumer.ack()
            assert await asyncio.wait_for(last, PATIENCE) == tail
            assert queue.last(1).payloads == [LARGE + b"last"]

    run(main())


def test_full_queue_that_raises_does_so_for_coroutines(tmp_path: Path) -> None:
    """`on_full` applies to coroutines: a typed error, no message sent."""

    async def main() -> None:
        full_queue(tmp_path / "q").close()
        retention = Retention(max_bytes=2 * SMALL)
        with Queue(tmp_path / "q", retention=retention) as queue, queue.producer() as producer:
            tail = queue.tail_sequence
            results = await asyncio.gather(
                *(producer.send_async(LARGE) for _ in range(5)), return_exceptions=True
            )
            assert all(isinstance(result, QueueFull) for result in results)
            assert queue.tail_sequence == tail

    asyncio.run(main())


def test_every_send_of_an_always_durable_queue_is_durable(tmp_path: Path) -> None:
    """I5: the send returns after its sync, which many coroutines share."""

    async def main() -> None:
        with Queue(tmp_path / "q", page_bytes=SMALL, sync="always") as queue:
            with queue.producer() as producer:

                async def send(number: int) -> None:
                    sequence = await producer.send_async(b"%d" % number * 100)
                    assert queue.durable_sequence > sequence

                await asyncio.gather(*(send(number) for number in range(50)))
            assert len(queue) == 50

    asyncio.run(main())


def test_flush_does_not_block_the_loop_and_can_time_out(queue: Queue) -> None:
    """A flush waits in a thread; on timeout the error is that the message is sent, not durable."""

    async def main() -> None:
        with queue.producer() as producer:
            producer.send(b"a")
            lock = queue._store.flusher.lock
            with lock.attempt("testing") as taken:
                assert taken
                turns = 0

                async def count() -> None:
                    nonlocal turns
                    while True:
                        turns += 1
                        await asyncio.sleep(0)

                counting = asyncio.ensure_future(count())
                flushing = asyncio.ensure_future(producer.flush_async(PATIENCE))
                await until(lambda: turns > 3)
                assert not flushing.done()
                with pytest.raises(FlushTimeout):
                    await producer.flush_async(timeout=0.05)
                counting.cancel()
            assert await flushing == 1
            assert await producer.flush_async(PATIENCE) == 1
            producer.send(b"b")
            flushes = [asyncio.ensure_future(producer.flush_async()) for _ in range(10)]
            flushes[0].cancel()
            results = await asyncio.gather(*flushes, return_exceptions=True)
            assert results[1:] == [2] * 9

    asyncio.run(main())


def test_closed_producer_raises(queue: Queue) -> None:
    """The same errors as for blocking calls."""

    async def main() -> None:
        producer = queue.producer()
        producer.close()
        for call in (producer.flush_async(), producer.send_async(b"a")):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(TypeError):
            await queue.producer().send_async("text")  # type: ignore[arg-type]
        assert len(queue) == 0

    asyncio.run(main())


def failing(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make this many syncs fail, and later ones work."""
    real = os.fdatasync
    left = [count]

    def fdatasync(fd: int) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)


def test_failed_sync_stops_all_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: every coroutine that shared the sync gets the error, and so does every later send."""

    async def main() -> None:
        with Queue(tmp_path / "q", page_bytes=SMALL, sync=1) as queue:
            producer = queue.producer()
            failing(monkeypatch, 100)
            results = await asyncio.gather(
                *(producer.send_async(b"%d" % n) for n in range(5)), return_exceptions=True
            )
            assert all(isinstance(result, SyncFailed) for result in results)
            with pytest.raises(SyncFailed):
                await producer.send_async(b"later")
            with pytest.raises(SyncFailed):
                await producer.flush_async()
            monkeypatch.undo()
            with contextlib.suppress(SyncFailed):
                queue.close()

    asyncio.run(main())


def test_sending_continues_in_a_thread_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """I5: the messages at risk are rewritten; the coroutines that sent them see no error."""

    async def main() -> None:
        with Queue(tmp_path / "q", page_bytes=SMALL, sync=1, on_sync_failure="seal") as queue:
            producer = queue.producer()
            failing(monkeypatch, 1)
            sent = await asyncio.gather(*(producer.send_async(b"%d" % n) for n in range(20)))
            assert sorted(sent) == list(range(20))
            assert queue.durable_sequence == 20
            producer.send(b"directly")
            assert await producer.send_async(b"later") == 21
            assert [len(message.payload) > 0 for message in queue.replay()] == [True] * 22
            assert queue.verify().ok

    run(main())
