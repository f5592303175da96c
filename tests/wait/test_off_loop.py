"""What coroutines have threads do: it needs none of the program's, and happens once or not."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import loops
import pytest
from support import LONG, until, until_asleep

from pagequeue import (
    ClosedError,
    Consumer,
    Group,
    Merge,
    Producer,
    Queue,
    QueueFull,
    Retention,
    SystemLimit,
)
from pagequeue.journal import Journal
from pagequeue.tasks import TaskClaim, TaskStore
from pagequeue.wait.off_loop import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

SMALL = 4096
LARGE = bytes(3 * SMALL)
"""A message of several pages."""
ONLY_IN_A_THREAD = {
    Journal: "at catch_up compact read update verify",
    TaskClaim: "ack extend nack save",
    TaskStore: "compact finish get insert modify stats tasks",
}


def test_what_only_runs_in_a_thread_goes_through_one_place() -> None:
    """All other asynchronous forms wait on the loop."""
    for kind in (Consumer, Group, Journal, Merge, Producer, Queue, TaskClaim, TaskStore):
        found = {
            name.removesuffix("_async")
            for name in dir(kind)
            if name.endswith("_async") and hasattr(getattr(kind, name), "__wrapped__")
        }
        assert found == set(ONLY_IN_A_THREAD.get(kind, "").split()), kind


def test_asynchronous_form_has_the_signature_and_its_own_text() -> None:
    """`help` shows it with its name, and examples that await it."""
    form = TaskStore.insert_async
    assert inspect.iscoroutinefunction(form)
    assert inspect.signature(form).parameters == inspect.signature(TaskStore.insert).parameters
    assert form.__qualname__ == "TaskStore.insert_async"
    text = inspect.getdoc(form) or ""
    assert '>>> (await store.insert_async("mail"' in text
    assert "In a thread" in text
    assert "priority: a higher one is claimed first." in text


# --- room -----------------------------------------------------------------------------------------


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue in which senders wait for the consumer "reader"."""
    limit = Retention(max_bytes=8 * SMALL)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=limit, on_full="block") as queue:
        queue.consumer("reader").close()
        with queue.producer() as producer, contextlib.suppress(QueueFull):
            while True:
                producer.send(bytes(1000), timeout=0)
        yield queue


WAYS: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
    "send_async": lambda _, producer, __, **given: producer.send_async(bytes(1000), **given),
    "large send_async": lambda _, producer, __, **given: producer.send_async(LARGE, **given),
    "send_many_async": lambda _, producer, __, **given: producer.send_many_async(
        [bytes(1500)] * 4, **given
    ),
    "publish_async": lambda queue, _, i, **given: queue.publish_async(
        f"writer {i}", 0, [LARGE], **given
    ),
    "rotate_async": lambda queue, _, __, **given: queue.rotate_async(**given),
}
COUNT = min(32, (os.cpu_count() or 1) + 4) + 1
"""More than threads of an executor."""


@pytest.mark.parametrize("way", WAYS)
def test_coroutines_that_wait_for_room_leave_threads_to_all_others(full: Queue, way: str) -> None:
    """The consumer acknowledges, and all of them go on."""

    async def main() -> int:
        with full.producer() as producer, full.consumer("reader") as consumer:
            calls = [WAYS[way](full, producer, i) for i in range(COUNT)]
            tasks = [asyncio.create_task(call) for call in calls]
            for _ in range(3):
                await asyncio.to_thread(int)  # the program's threads are not taken
            assert not any(task.done() for task in tasks)
            while not all(task.done() for task in tasks):
                with contextlib.suppress(TimeoutError):
                    await consumer.receive_async(timeout=0.1)
                await consumer.ack_async(durable=True)
            await asyncio.gather(*tasks)
            return len(tasks)

    assert asyncio.run(asyncio.wait_for(main(), LONG)) == COUNT


@pytest.mark.parametrize("way", WAYS)
def test_timeout_for_room_ends_in_queue_full_behind_others_that_wait(full: Queue, way: str) -> None:
    """The first of the line has none."""

    async def main() -> None:
        with full.producer() as producer, full.producer() as other:
            first = asyncio.create_task(WAYS[way](full, producer, 0))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await WAYS[way](full, other, 1, timeout=0.1)
            assert not first.done()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

    tail = full.tail_sequence
    asyncio.run(asyncio.wait_for(main(), LONG))
    assert full.tail_sequence == tail


@pytest.mark.parametrize("way", ["send_async", "large send_async", "send_many_async"])
def test_closing_the_producer_ends_coroutines_that_wait_for_room(full: Queue, way: str) -> None:
    """Also those that are not the first of the line; nothing is sent."""

    async def main() -> None:
        producer = full.producer()
        tasks = [asyncio.create_task(WAYS[way](full, producer, i)) for i in range(3)]
        await loops.until(lambda: loops.waiting_senders(full) == 3)
        producer.close()
        for task in tasks:
            with pytest.raises(ClosedError):
                await task

    tail = full.tail_sequence
    asyncio.run(asyncio.wait_for(main(), LONG))
    assert full.tail_sequence == tail


def by_file(producer: Producer) -> None:
    """Write a message of several pages as a file."""
    with producer.open() as file:
        file.write(LARGE)


BLOCKING: dict[str, Callable[[Producer], object]] = {
    "small": lambda producer: producer.send(bytes(1000)),
    "large": lambda producer: producer.send(LARGE),
    "batch": lambda producer: producer.send_many([bytes(1500)] * 4),
    "file": by_file,
}


@pytest.mark.parametrize("way", BLOCKING)
def test_closing_the_producer_ends_threads_that_wait_for_room(full: Queue, way: str) -> None:
    """Nothing is sent, also later."""
    producer, ended = full.producer(), []
    polled = threading.Event()

    def send() -> None:
        try:
            polled.set()
            BLOCKING[way](producer)
        except ClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert polled.wait(LONG)
    until_asleep(thread)
    tail = full.tail_sequence
    producer.close()
    thread.join(LONG)
    assert len(ended) == 1
    assert full.tail_sequence == tail


# --- without a thread -----------------------------------------------------------------------------


def test_what_is_refused_for_want_of_a_thread_never_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython's executor has it in its list, and would do it with the next thread."""

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with Queue(tmp_path / "q", page_bytes=SMALL) as queue, queue.producer() as producer:
            with monkeypatch.context() as context:
                context.setattr(threading.Thread, "start", refuse)
                for call in (
                    lambda: producer.send_async(LARGE),
                    lambda: queue.publish_async("writer", 0, [b"one"]),
                    queue.rotate_async,
                    lambda: in_thread(lambda: done.append("it")),
                ):
                    with pytest.raises(SystemLimit, match="cannot start a thread"):
                        await call()
            await in_thread(int)
            await in_thread(int)
            assert len(queue) == 0

    done: list[str] = []
    asyncio.run(main())
    assert done == []


def test_what_threads_can_do_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is there does it, though no other can be started."""

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        begun = threading.Event()
        await in_thread(int)
        busy = asyncio.create_task(in_thread(lambda: begun.wait(LONG)))
        await asyncio.sleep(0)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        more = asyncio.create_task(in_thread(lambda: "done"))
        await asyncio.sleep(0)
        begun.set()
        assert await busy
        assert await more == "done"

    asyncio.run(asyncio.wait_for(main(), LONG))


def test_job_whose_coroutine_was_cancelled_before_a_thread_began_is_not_done() -> None:
    """It waits for a thread, and nobody wants it any more."""

    async def main() -> None:
        go, begun, done = threading.Event(), [], []

        def wait() -> None:
            begun.append(1)
            go.wait(LONG)

        busy = [asyncio.create_task(in_thread(wait)) for _ in range(64)]
        await asyncio.sleep(0)
        until(lambda: begun)
        late = asyncio.create_task(in_thread(lambda: done.append("late")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        go.set()
        await asyncio.gather(*busy)
        await in_thread(int)
        assert done == []

    asyncio.run(asyncio.wait_for(main(), LONG))


# --- a call inside of a call ----------------------------------------------------------------------


def test_send_that_interrupts_a_coroutines_send_blocks_as_any_other(tmp_path: Path) -> None:
    """A signal handler's, in the same thread: it makes the page that it needs, and returns."""
    inside = []

    def clock() -> int:  # where a handler can run
        if inside:
            inside.clear()
            sent.append(producer.send(bytes(1500)))
        return 1

    sent: list[int] = []
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        producer = queue.producer()

        async def main() -> None:
            for _ in range(6):
                inside.append(1)
                await producer.send_async(bytes(1500))

        asyncio.run(main())
        assert len(sent) == 6
        assert len(queue) == 12
