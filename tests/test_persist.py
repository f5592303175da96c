"""persist: what an iterator gives is stored in the background and comes out, at least once."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import PATIENCE, until

from pagequeue import (
    ClosedError,
    ConsumerInUse,
    Flow,
    InvalidOption,
    Message,
    Queue,
    QueueFull,
    ReadOnlyQueue,
    Retention,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

SMALL = 4096
SETTINGS = settings(deadline=None, max_examples=40)


class Upstream:
    """An iterator of numbered elements that says how far it was drawn, and can be told to wait."""

    def __init__(self, end: int, begin: int = 0, size_bytes: int = 0) -> None:
        self.end = end
        self.drawn = begin
        self.fill = b"." * size_bytes
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.gate.wait(PATIENCE)
        if self.drawn == self.end:
            raise self.error or StopIteration
        self.drawn += 1
        return b"%d" % (self.drawn - 1) + self.fill


async def asynchronous(upstream: Upstream) -> AsyncIterator[bytes]:
    """Give what an upstream gives, with suspensions in between."""
    for element in upstream:
        if int(element.rstrip(b".")) % 3 == 0:
            await asyncio.sleep(0)
        yield element


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue."""
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        yield queue


def numbers(messages: list[Message]) -> list[int]:
    """Return the numbers of elements."""
    return [int(message.payload.rstrip(b".")) for message in messages]


def pump_threads() -> list[threading.Thread]:
    """Return the threads that draw."""
    return [thread for thread in threading.enumerate() if thread.name == "pagequeue-persist"]


# --- one life -------------------------------------------------------------------------------------


def test_all_that_goes_in_comes_out_in_order(queue: Queue) -> None:
    """Also what was sent before; then the flow ends, and everything is acknowledged."""
    with queue.persist(Upstream(1000), "down") as flow:
        assert numbers(list(flow)) == list(range(1000))
        assert list(flow) == []
        assert (flow.stored, flow.lag, flow.acknowledged, flow.unstored) == (1000, 0, 1000, [])
    assert not pump_threads()


def test_asynchronous_upstream_comes_out_in_order(queue: Queue, run: Callable[..., Any]) -> None:
    """The upstream runs in a task, the downstream in `async for`."""

    async def main() -> None:
        async with queue.persist(asynchronous(Upstream(1000)), "down") as flow:
            assert numbers([message async for message in flow]) == list(range(1000))
            assert [message async for message in flow] == []
            assert flow.acknowledged == 1000

    run(main())


def test_blocking_upstream_feeds_an_event_loop(queue: Queue, run: Callable[..., Any]) -> None:
    """A blocking iterator runs in a thread, whatever the downstream is."""

    async def main() -> None:
        upstream = Upstream(500)
        async with queue.persist(upstream, "down") as flow:
            seen = []
            async for message in flow:
                seen.append(message)
                if len(seen) == 100:
                    upstream.gate.clear()
                    asyncio.get_running_loop().call_later(0.01, upstream.gate.set)
            assert numbers(seen) == list(range(500))
        assert not pump_threads()

    run(main())


def test_asynchronous_upstream_needs_async_for(queue: Queue) -> None:
    """A mistake that would wait for ever is an error."""
    upstream = asynchronous(Upstream(3))
    with pytest.raises(RuntimeError):
        queue.persist(upstream, "down")

    async def main() -> None:
        async with queue.persist(upstream, "down") as flow:
            with pytest.raises(UsageError):
                next(flow)

    asyncio.run(main())


@pytest.mark.parametrize("source", [b"abc", "abc", 7, lambda last: 7, bytearray(b"x")])
def test_what_is_no_upstream_is_refused(queue: Queue, source: Any) -> None:  # noqa: ANN401
    """A TypeError at once, and the name is free again."""
    with pytest.raises(TypeError):
        queue.persist(source, "down")
    queue.persist([], "down").close()


def test_what_cannot_be_is_refused(queue: Queue) -> None:
    """Options, a queue that is read-only or closed, and a name that is taken."""
    with pytest.raises(InvalidOption):
        queue.persist([], "down", commit="never")
    with Queue(queue.directory, read_only=True) as reading, pytest.raises(ReadOnlyQueue):
        reading.persist([], "down")
    with queue.consumer("down"), pytest.raises(ConsumerInUse):
        queue.persist([], "down")
    flow = queue.persist([], "down")
    queue.close()
    with pytest.raises(ClosedError):
        next(flow)
    with pytest.raises(ClosedError):
        queue.persist([], "down")


def test_upstream_is_drawn_without_anybody_downstream(queue: Queue) -> None:
    """It goes at its own pace: the queue stands in between."""
    upstream = Upstream(300)
    with queue.persist(upstream, "down") as flow:
        deadline = time.monotonic() + PATIENCE
        while queue.tail_sequence < 300:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert flow.lag == 300
        assert numbers(list(flow)) == list(range(300))


# --- errors ---------------------------------------------------------------------------------------


class UpstreamError(Exception):
    """What an upstream raises."""


def test_error_of_the_upstream_comes_behind_all_that_was_stored(queue: Queue) -> None:
    """Nothing that was stored is held back by it; it comes once, then the flow is at its end."""
    upstream = Upstream(50)
    upstream.error = UpstreamError("broken")
    with queue.persist(upstream, "down") as flow:
        seen = []
        with pytest.raises(UpstreamError):
            seen.extend(flow)
        assert flow.acknowledged == 50
        assert list(flow) == []
        upstream.end = 60


def test_error_of_an_asynchronous_upstream_comes_behind_all_that_was_stored(
    queue: Queue, run: Callable[..., Any]
) -> None:
    """The same for a task, and in `async for`."""

    async def main() -> None:
        upstream = Upstream(50)
        upstream.error = UpstreamError("broken")
        seen = []
        async with queue.persist(asynchronous(upstream), "down") as flow:
            with pytest.raises(UpstreamError):
                async for message in flow:
                    seen.append(message)  # noqa: PERF401 - they are wanted in spite of the error
            assert [message async for message in flow] == []
        assert numbers(seen) == list(range(50))

    run(main())


def test_element_that_cannot_be_stored_is_kept_and_said(queue: Queue) -> None:
    """Text is no message: the flow ends with the TypeError, and names what it could not store."""
    with queue.persist([b"a", "b", b"c"], "down") as flow:  # type: ignore[list-item]
        assert next(flow).payload == b"a"
        with pytest.raises(TypeError):
            next(flow)
        assert flow.unstored == ["b"]
        assert flow.stored == 1


def test_error_downstream_leaves_its_element_unacknowledged(queue: Queue) -> None:
    """What was being worked on comes again."""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - that is how it is used
        with queue.persist(Upstream(10), "down") as flow:
            for message in flow:
                1 // (4 - message.sequence)
    with queue.persist([], "down") as flow:
        again = numbers(list(flow))
    assert again[0] == 4
    assert again == list(range(4, 4 + len(again)))


# --- resuming -------------------------------------------------------------------------------------


def test_what_was_stored_and_not_acknowledged_comes_first(queue: Queue) -> None:
    """After a break the last element comes again, then the rest, then what the upstream gives."""
    with queue.persist(Upstream(10), "down") as flow:
        for message in flow:
            if message.sequence == 6:
                break
        deadline = time.monotonic() + PATIENCE
        while queue.tail_sequence < 10:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    with queue.persist(Upstream(15, begin=10), "down") as flow:
        assert numbers(list(flow)) == list(range(6, 15))


def test_committing_by_hand_decides_what_comes_again(queue: Queue) -> None:
    """With `commit="manual"` asking for the next one acknowledges nothing."""
    with queue.persist(Upstream(10), "down", commit="manual") as flow:
        seen = list(flow)
        assert flow.acknowledged == 0
        flow.commit(seen[3], durable=True)
    with queue.persist([], "down", commit="manual") as flow:
        assert numbers([next(flow), next(flow)]) == [4, 5]
        flow.commit()
    with queue.persist([], "down") as flow:
        assert numbers(list(flow)) == [6, 7, 8, 9]


def test_function_gets_the_last_message_and_goes_on_behind_it(queue: Queue) -> None:
    """So an upstream that knows its place loses and doubles nothing on the way in."""

    def numbered(last: Message | None) -> Upstream:
        begin = 0 if last is None else int(last.payload) + 1
        return Upstream(begin + 5, begin=begin)

    for round_ in range(3):
        with queue.persist(numbered, "down") as flow:
            assert numbers(list(flow)) == list(range(5 * round_, 5 * round_ + 5))


@SETTINGS
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["for", "async for", "async"]))
def test_any_lives_give_all_of_it_at_least_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, how: str
) -> None:
    """Against a model: each life begins behind the last acknowledgement, and nothing is skipped."""
    rng = random.Random(seed)
    total = rng.randrange(1, 60)
    retention = Retention(max_bytes=3 * SMALL)

    def source(last: Message | None) -> Any:  # noqa: ANN401
        begin = 0 if last is None else int(last.payload.rstrip(b".")) + 1
        upstream = Upstream(total, begin=begin, size_bytes=rng.randrange(400))
        return asynchronous(upstream) if how == "async" else upstream

    acked, received = 0, 0
    directory = tmp_path_factory.mktemp("flow")
    while acked < total:
        stop_after = rng.randrange(1, total + 2)
        commits = rng.random() < 0.5
        with Queue(directory, page_bytes=SMALL, retention=retention, on_full="block") as queue:

            async def live_async(flow: Flow, seen: list[int], stop_after: int) -> None:
                async with flow:
                    async for message in flow:
                        seen.extend(numbers([message]))
                        if len(seen) == stop_after:
                            break

            seen: list[int] = []
            if how == "for":
                with queue.persist(source, "down") as flow:
                    for message in flow:
                        seen.extend(numbers([message]))
                        if len(seen) == stop_after:
                            if commits:
                                flow.commit()
                            break
            else:

                async def main(queue: Queue = queue, n: int = stop_after) -> list[int]:
                    seen: list[int] = []
                    await live_async(queue.persist(source, "down"), seen, n)
                    return seen

                seen = asyncio.run(main())
            assert seen == list(range(acked, acked + len(seen)))
            stopped = len(seen) == stop_after
            acked += len(seen) - (stopped and not (how == "for" and commits))
            received = max(received, acked)
            info = {found.name: found.next_sequence for found in queue.consumers()}
            assert info == {"down": acked}
    assert received == total


# --- backpressure and closing ---------------------------------------------------------------------


def full(path: Path, on_full: str = "block") -> Queue:
    """Return a queue that two pages fill."""
    return Queue(path, page_bytes=SMALL, retention=Retention(max_bytes=2 * SMALL), on_full=on_full)


def test_upstream_stands_still_while_there_is_no_room(tmp_path: Path) -> None:
    """Backpressure: one element more than is stored is drawn, and no further one."""
    upstream = Upstream(40, size_bytes=1300)
    with full(tmp_path / "q") as queue, queue.persist(upstream, "down") as flow:
        deadline = time.monotonic() + PATIENCE
        while upstream.drawn < 7:  # three to a page, two pages, one in hand
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(0.1)
        assert upstream.drawn == 7
        assert queue.tail_sequence == 6
        assert numbers(list(flow)) == list(range(40))


def test_asynchronous_upstream_stands_still_while_there_is_no_room(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    """Backpressure does not block the loop."""

    async def main() -> None:
        upstream = Upstream(40, size_bytes=1300)
        with full(tmp_path / "q") as queue:
            async with queue.persist(asynchronous(upstream), "down") as flow:
                await until(lambda: upstream.drawn == 7)
                await asyncio.sleep(0.1)
                assert upstream.drawn == 7
                assert numbers([message async for message in flow]) == list(range(40))

    run(main())


@pytest.mark.parametrize("asynchronously", [False, True])
def test_closing_a_flow_that_finds_no_room_gives_up_one_element(
    tmp_path: Path, *, asynchronously: bool
) -> None:
    """It does not wait for room that nobody makes; what it held is named, the rest is undrawn."""
    upstream = Upstream(40, size_bytes=1300)

    async def main(queue: Queue) -> Flow:
        async with queue.persist(asynchronous(upstream), "down") as flow:
            await until(lambda: upstream.drawn == 7)
        return flow

    with full(tmp_path / "q") as queue:
        if asynchronously:
            flow = asyncio.run(main(queue))
        else:
            with queue.persist(upstream, "down") as flow:
                while upstream.drawn < 7:
                    time.sleep(0.002)
            for thread in pump_threads():
                thread.join(PATIENCE)
        assert [bytes(element)[:2] for element in flow.unstored] == [b"6."]
        assert upstream.drawn == 7
        with queue.persist(Upstream(40, begin=6, size_bytes=1300), "down") as flow:
            assert numbers(list(flow)) == list(range(40))


def test_full_queue_that_raises_ends_the_flow_behind_what_is_stored(tmp_path: Path) -> None:
    """What was chosen for a full queue holds: the error comes out behind all messages."""
    with full(tmp_path / "q", on_full="raise") as queue:
        with queue.persist(Upstream(40, size_bytes=1300), "down", commit="manual") as flow:
            seen = []
            with pytest.raises(QueueFull):  # noqa: PT012 - they are wanted in spite of the error
                for message in flow:
                    seen.append(message)
            assert numbers(seen) == list(range(6))
            assert len(flow.unstored) == 1


def test_closing_waits_for_the_element_that_was_asked_for(queue: Queue) -> None:
    """An upstream that gives it in time loses nothing by closing."""
    upstream = Upstream(40)
    upstream.gate.clear()
    flow = queue.persist(upstream, "down")
    threading.Timer(0.05, upstream.gate.set).start()
    flow.close()
    assert upstream.drawn == queue.tail_sequence == flow.stored == 1
    assert not pump_threads()


def test_closing_does_not_wait_for_ever(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream that gives nothing is left behind; what it gives later is named, not stored."""
    monkeypatch.setattr("pagequeue.flow.CLOSE_SECONDS", 0.05)
    upstream = Upstream(40)
    upstream.gate.clear()
    flow = queue.persist(upstream, "down")
    flow.close()
    (thread,) = pump_threads()
    upstream.gate.set()
    thread.join(PATIENCE)
    assert flow.unstored == [b"0"]
    assert queue.tail_sequence == 0


def test_cancelled_downstream_ends_the_upstream(queue: Queue, run: Callable[..., Any]) -> None:
    """No task is left, an asynchronous generator is closed, and nothing is lost."""
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
    """Nobody has to wait for a process to end to get rid of a flow."""
    upstream = Upstream(10**9)
    flow = queue.persist(upstream, "down")
    (thread,) = pump_threads()
    del flow
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    queue.persist([], "down").close()


def test_closing_the_queue_ends_its_flows(tmp_path: Path) -> None:
    """Whoever waits downstream in another thread gets an error."""
    queue = Queue(tmp_path / "q", page_bytes=SMALL)
    upstream = Upstream(10)
    flow = queue.persist(upstream, "down")
    assert next(flow).payload == b"0"
    queue.close()
    assert not pump_threads()
    with pytest.raises(ClosedError):
        next(flow)


def test_interrupt_ends_a_wait_downstream(queue: Queue) -> None:
    """Ctrl-C gets through while a flow waits for its upstream."""
    upstream = Upstream(1)
    with queue.persist(upstream, "down") as flow:
        upstream.end = 2
        assert next(flow).payload == b"0"
        upstream.gate.clear()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come a moment later
                list(flow)
                time.sleep(PATIENCE)
        finally:
            upstream.gate.set()
            timer.join()
