"""persist: backpressure, and how a flow ends: no thread remains, a lost element is named."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from loops import PATIENCE, until
from support import until as wait_until
from support import until_asleep
from upstreams import Upstream, asynchronous, numbers, pump_threads

from pagequeue import ClosedError, Flow, Queue, QueueFull, Retention

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

SMALL = 4096


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue."""
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        yield queue


def the_pump() -> threading.Thread:
    """Return the one thread that draws; that of another test may be about to end."""
    wait_until(lambda: len(pump_threads()) == 1)
    return pump_threads()[0]


def full(path: Path, on_full: str = "block") -> Queue:
    """Return a queue that two pages fill."""
    return Queue(path, page_bytes=SMALL, retention=Retention(max_bytes=2 * SMALL), on_full=on_full)


def test_upstream_is_paused_while_there_is_no_space(tmp_path: Path) -> None:
    """Backpressure: one element more than is stored is drawn, and no further one."""
    upstream = Upstream(40, size_bytes=1300)
    with full(tmp_path / "q") as queue, queue.persist(upstream, "down") as flow:
        wait_until(lambda: upstream.drawn >= 7)  # three to a page, two pages, one in hand
        until_asleep(the_pump())
        assert upstream.drawn == 7
        assert queue.tail_sequence == 6
        assert numbers(list(flow)) == list(range(40))


def test_asynchronous_upstream_is_paused_while_there_is_no_space(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    """Backpressure does not block the loop."""

    async def main() -> None:
        upstream = Upstream(40, size_bytes=1300)
        with full(tmp_path / "q") as queue:
            async with queue.persist(asynchronous(upstream), "down") as flow:
                await until(lambda: upstream.drawn == 7)
                for _ in range(100):
                    await asyncio.sleep(0)
                assert upstream.drawn == 7
                assert numbers([message async for message in flow]) == list(range(40))

    run(main())


@pytest.mark.parametrize("asynchronously", [False, True])
def test_closing_a_flow_without_space_drops_one_element(
    tmp_path: Path, *, asynchronously: bool
) -> None:
    """It does not wait for space for ever; the held element is named, the rest is not drawn."""
    upstream = Upstream(40, size_bytes=1300)

    async def main(queue: Queue) -> Flow:
        async with queue.persist(asynchronous(upstream), "down") as flow:
            await until(lambda: upstream.drawn == 7 and not flow._feeder._is_asking)
        return flow

    with full(tmp_path / "q") as queue:
        if asynchronously:
            flow = asyncio.run(main(queue))
        else:
            with queue.persist(upstream, "down") as flow:
                wait_until(lambda: upstream.drawn >= 7)
            for thread in pump_threads():
                thread.join(PATIENCE)
        assert [bytes(element)[:2] for element in flow.unstored] == [b"6."]
        assert upstream.drawn == 7
        with queue.persist(Upstream(40, begin=6, size_bytes=1300), "down") as flow:
            assert numbers(list(flow)) == list(range(40))


def test_full_queue_that_raises_ends_the_flow_after_the_stored_messages(tmp_path: Path) -> None:
    """The chosen `on_full` holds: the error is raised after all messages."""
    upstream = Upstream(40, size_bytes=1300)
    with (
        full(tmp_path / "q", on_full="raise") as queue,
        queue.persist(upstream, "down", commit="manual") as flow,
    ):
        assert numbers([next(flow) for _ in range(6)]) == list(range(6))
        with pytest.raises(QueueFull):
            next(flow)
        assert len(flow.unstored) == 1


def test_closing_waits_for_the_element_that_was_asked_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing loses no element that the upstream gives in time."""
    monkeypatch.setattr("pagequeue.flow.flow.CLOSE_SECONDS", PATIENCE)
    upstream = Upstream(40)
    upstream.gate.clear()
    flow = queue.persist(upstream, "down")
    wait_until(lambda: upstream.is_asked)

    def give() -> None:
        wait_until(lambda: flow._feeder._is_stopped)
        upstream.gate.set()

    threading.Thread(target=give).start()
    flow.close()
    assert upstream.drawn == queue.tail_sequence == flow.stored == 1
    wait_until(lambda: not pump_threads())


def test_closing_does_not_wait_for_ever(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream that blocks is abandoned; an element that it gives later is named, not stored."""
    monkeypatch.setattr("pagequeue.flow.flow.CLOSE_SECONDS", 0.05)
    upstream = Upstream(40)
    upstream.gate.clear()
    flow = queue.persist(upstream, "down")
    wait_until(lambda: upstream.is_asked)
    flow.close()
    thread = the_pump()
    upstream.gate.set()
    thread.join(PATIENCE)
    assert flow.unstored == [b"0"]
    assert queue.tail_sequence == 0


def test_cancelled_downstream_ends_the_upstream(queue: Queue, run: Callable[..., Any]) -> None:
    """No task remains, an asynchronous generator is closed, and no element is lost."""
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        number = 0
        try:
            while True:
                yield b"%d" % number
                number += 1
                await asyncio.sleep(0 if number % 20 else 0.001)
        finally:
            closed.append(number)

    async def consume(seen: list[int]) -> None:
        async with queue.persist(endless(), "down") as flow:
            async for message in flow:
                seen.append(int(message.payload))
                await asyncio.sleep(0)

    async def main() -> None:
        seen: list[int] = []
        task = asyncio.ensure_future(consume(seen))
        await until(lambda: len(seen) > 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert seen == list(range(len(seen)))
        assert queue.tail_sequence >= len(seen)
        (found,) = queue.consumers()
        assert len(seen) - 1 <= (found.next_sequence or 0) <= len(seen)

    run(main())


def test_flow_that_is_dropped_stops_drawing(queue: Queue) -> None:
    """A flow can be closed without waiting for the process to end."""
    upstream = Upstream(10**9)
    flow = queue.persist(upstream, "down")
    thread = the_pump()
    del flow
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    queue.persist([], "down").close()


def test_closing_the_queue_ends_its_flows(tmp_path: Path) -> None:
    """A thread that waits downstream gets an error."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    upstream = Upstream(10)
    flow = queue.persist(upstream, "down", commit="manual")
    assert next(flow).payload == b"0"
    queue.close()
    wait_until(lambda: not pump_threads())
    with pytest.raises(ClosedError):
        next(flow)

    async def ask() -> None:
        await anext(flow)

    with pytest.raises(ClosedError):
        asyncio.run(ask())


def test_interrupt_ends_a_wait_downstream(queue: Queue) -> None:
    """Ctrl-C gets through while a flow waits for its upstream."""
    upstream = Upstream(1)
    with queue.persist(upstream, "down") as flow:
        upstream.end = 2
        assert next(flow).payload == b"0"
        upstream.gate.clear()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before or later
                timer.start()
                list(flow)
                time.sleep(PATIENCE)
        finally:
            upstream.gate.set()
            timer.join()
