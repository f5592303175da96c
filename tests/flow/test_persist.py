"""persist: what an iterator gives is stored in the background and comes out, at least once."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Clock, until
from tiers import examples
from upstreams import Upstream, asynchronous, numbers, pump_threads

from pagequeue import (
    ClosedError,
    ConsumerInUse,
    InvalidOption,
    Message,
    NaiveDatetime,
    Queue,
    ReadOnlyQueue,
    Retention,
    UsageError,
)
from pagequeue.meta.commit_record import Record
from pagequeue.meta.ledger import publishing_name, write_record
from pagequeue.queue import flows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue.store.store import Store

SMALL = 4096
SETTINGS = settings(max_examples=examples(40))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return an empty queue."""
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue:
        yield queue


# --- one life -------------------------------------------------------------------------------------


def test_flow_returns_all_elements_in_order(queue: Queue) -> None:
    """Also what was sent before; then the flow ends, and everything is acknowledged."""
    with queue.persist(Upstream(1000), "down") as flow:
        assert numbers(list(flow)) == list(range(1000))
        assert list(flow) == []
        assert (flow.stored, flow.lag, flow.acknowledged, flow.unstored) == (1000, 0, 1000, [])
    until(lambda: not pump_threads())


def test_asynchronous_upstream_keeps_its_order(queue: Queue, run: Callable[..., Any]) -> None:
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
        until(lambda: not pump_threads())

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


@pytest.mark.parametrize("source", [b"abc", "abc", 7, lambda _: 7, bytearray(b"x")])
def test_object_that_is_not_an_iterator_is_refused_as_upstream(queue: Queue, source: Any) -> None:  # noqa: ANN401
    """A TypeError at once, and the name is free again."""
    with pytest.raises(TypeError):
        queue.persist(source, "down")
    queue.persist([], "down").close()


def test_invalid_arguments_are_refused(queue: Queue) -> None:
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


def test_upstream_is_drawn_without_a_reader(queue: Queue) -> None:
    """The upstream runs at its own pace: the queue is in between."""
    upstream = Upstream(300)
    with queue.persist(upstream, "down") as flow:
        until(lambda: queue.tail_sequence == 300)
        assert flow.lag == 300
        assert numbers(list(flow)) == list(range(300))


# --- errors ---------------------------------------------------------------------------------------


class UpstreamError(Exception):
    """What an upstream raises."""


def test_error_of_the_upstream_comes_after_all_stored_messages(queue: Queue) -> None:
    """Every stored message still comes out, once; then the flow is at its end."""
    upstream = Upstream(50)
    upstream.error = UpstreamError("broken")
    with queue.persist(upstream, "down") as flow:
        seen = []
        with pytest.raises(UpstreamError):
            seen.extend(flow)
        assert flow.acknowledged == 50
        assert list(flow) == []


def test_error_of_an_asynchronous_upstream_comes_after_all_stored_messages(
    queue: Queue, run: Callable[..., Any]
) -> None:
    """The same for a task, and in `async for`."""

    async def main() -> None:
        upstream = Upstream(50)
        upstream.error = UpstreamError("broken")
        seen = []
        async with queue.persist(asynchronous(upstream), "down") as flow:
            with pytest.raises(UpstreamError):  # noqa: PT012 - `async for` is what raises
                async for message in flow:
                    seen.append(message)  # noqa: PERF401 - they are wanted in spite of the error
            assert [message async for message in flow] == []
        assert numbers(seen) == list(range(50))

    run(main())


def test_element_that_cannot_be_stored_is_named_in_the_error(queue: Queue) -> None:
    """Text is not a message: the flow ends with the TypeError, and names the element."""
    with queue.persist([b"a", "b", b"c"], "down") as flow:  # type: ignore[list-item]
        assert next(flow).payload == b"a"
        with pytest.raises(TypeError):
            next(flow)
        assert flow.unstored == ["b"]
        assert flow.stored == 1


def test_error_downstream_leaves_its_element_unacknowledged(queue: Queue) -> None:
    """The message in work is redelivered."""

    def work() -> None:
        with queue.persist(Upstream(10), "down") as flow:
            for message in flow:
                assert 1 // (4 - message.sequence) is not None

    with pytest.raises(ZeroDivisionError):
        work()
    with queue.persist([], "down") as flow:
        again = numbers(list(flow))
    assert again[0] == 4
    assert again == list(range(4, 4 + len(again)))


# --- resuming -------------------------------------------------------------------------------------


def test_stored_unacknowledged_messages_are_returned_first(queue: Queue) -> None:
    """After a break the last element is redelivered, then the rest, then new elements."""
    with queue.persist(Upstream(10), "down") as flow:
        for message in flow:
            if message.sequence == 6:
                break
        until(lambda: queue.tail_sequence == 10)
    with queue.persist(Upstream(15, begin=10), "down") as flow:
        assert numbers(list(flow)) == list(range(6, 15))


def test_since_leaves_out_what_is_older_and_brings_nothing_back(tmp_path: Path) -> None:
    """I11: it moves the place forwards only, in a new flow and in one that is resumed."""
    clock = Clock(10**18, 10**9)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        with queue.producer() as producer:
            for number in range(20):
                producer.send(b"%d" % number)
        times = [message.timestamp for message in queue.replay()]
        with queue.persist([], "down", since=times[5], commit="manual") as flow:
            assert flow.acknowledged == 5  # retention does not wait for the others
            assert numbers([next(flow), next(flow)]) == [5, 6]
            flow.commit()
        for since, first in ((times[2], 7), (times[7], 7), (times[9] - 1, 9), (None, 9)):
            with queue.persist([], "down", since=since, commit="manual") as flow:
                assert numbers([next(flow)]) == [first]
        clock.now, clock.step = times[15] + 3 * 10**9, 0
        with queue.persist([], "down", since=timedelta(seconds=3), commit="manual") as flow:
            assert numbers([next(flow)]) == [15]
        with queue.persist(Upstream(23, begin=20), "down", since=10**18 * 2) as flow:
            assert numbers(list(flow)) == [20, 21, 22]
        for wrong, kind in ((datetime(2024, 1, 1), NaiveDatetime), ("now", TypeError)):  # noqa: DTZ001
            with pytest.raises(kind):
                queue.persist([], "down", since=wrong)  # type: ignore[arg-type]
        queue.persist([], "down").close()  # nothing holds the name
        assert queue.consumers()[0].lag == 0


def test_since_passes_what_retention_removed(tmp_path: Path) -> None:
    """A flow that fell behind continues where it is asked to, without `Expired`."""
    policy = Retention(max_bytes=3 * SMALL, keep_unacked=False)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=policy) as queue:
        queue.persist([], "down").close()
        with queue.producer() as producer:
            for number in range(40):
                producer.send(b"%d" % number + b"." * 900)
        queue.trim()
        assert queue.head_sequence > 0
        last = queue.last(1).timestamps[0]
        with queue.persist([], "down", since=int(last)) as flow:
            assert next(flow).sequence <= 39
            assert [message.sequence for message in flow][-1:] in ([39], [])


def test_manual_commit_decides_what_is_redelivered(queue: Queue) -> None:
    """With `commit="manual"` requesting the next message acknowledges none."""
    with queue.persist(Upstream(10), "down", commit="manual") as flow:
        seen = list(flow)
        assert flow.acknowledged == 0
        flow.commit(seen[3], durable=True)
    with queue.persist([], "down", commit="manual") as flow:
        assert numbers([next(flow), next(flow)]) == [4, 5]
        flow.commit()
    with queue.persist([], "down") as flow:
        assert numbers(list(flow)) == [6, 7, 8, 9]


def test_function_gets_the_last_message_and_continues_after_it(queue: Queue) -> None:
    """So an upstream that can resume loses and duplicates no element on the way in."""

    def numbered(last: Message | None) -> Upstream:
        begin = 0 if last is None else int(last.payload) + 1
        return Upstream(begin + 5, begin=begin)

    for round_ in range(3):
        with queue.persist(numbered, "down") as flow:
            assert numbers(list(flow)) == list(range(5 * round_, 5 * round_ + 5))


@pytest.mark.parametrize("size_bytes", [10, 900])
def test_upstream_continues_after_what_a_dead_feeder_did_not_count(
    tmp_path: Path, size_bytes: int
) -> None:
    """I3: it died between publishing an element and advancing the tail: the element is stored."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        with queue.producer() as producer:
            producer.send(b"0")
            before = queue._store.tail
            producer.send_many([b"%*d" % (size_bytes, i) for i in range(1, 9)])
        after = queue._store.tail
        if after.page_number > before.page_number:  # a bulk commit keeps its record up to M8
            record = Record(before.page_number + 1, before.sequence, 0, after, None, {})
            write_record(queue._store.folder, publishing_name("queue"), record.as_json())
        queue._store.write_meta.tail = before
        lasts = []

        def source(last: Message | None) -> list[bytes]:
            assert last is not None
            lasts.append(int(last.payload))
            return [b"9"]

        with queue.persist(source, "down") as flow:
            assert numbers(flow) == list(range(10))
        assert lasts == [8]


def test_upstream_continues_though_what_was_not_counted_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: another producer advances the tail, and all is acknowledged."""
    retention = Retention(drop_acknowledged=True)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=retention) as queue:
        with queue.producer() as producer:
            producer.send(b"0")
            before = queue._store.tail
            producer.send_many([b"1", b"2"])
        with queue.consumer("down") as consumer:
            consumer.receive_many(timeout=0)
            consumer.ack()
        queue._store.write_meta.tail = before
        real, calls = flows._last_published, []

        def late(store: Store, sequence: int) -> Message:
            calls.append(sequence)
            queue.rotate()
            queue.trim()  # or the thread that trims after a roll was faster
            until(lambda: queue.head_sequence == 3)
            return real(store, sequence)

        monkeypatch.setattr(flows, "_last_published", late)
        lasts = []

        def source(last: Message | None) -> list[bytes]:
            assert last is not None
            lasts.append(last.payload)
            return [b"3"]

        with queue.persist(source, "down") as flow:
            assert numbers(flow) == [3]
        assert (lasts, calls) == ([b"2"], [1])


class Lives:
    """A flow that lives several times, each time until it was broken off, and its model."""

    def __init__(self, directory: Path, rng: random.Random, how: str) -> None:
        self.directory = directory
        self.rng = rng
        self.how = how
        self.total = rng.randrange(1, 60)
        self.acked = 0

    def source(self, last: Message | None) -> Any:  # noqa: ANN401
        """Continue after the last message."""
        begin = 0 if last is None else int(last.payload.rstrip(b".")) + 1
        upstream = Upstream(self.total, begin=begin, size_bytes=self.rng.randrange(400))
        return asynchronous(upstream) if self.how == "async" else upstream

    def live(self, queue: Queue, stop_after: int, *, commits: bool) -> list[int]:
        """Return what comes out until so many did."""
        seen: list[int] = []
        with queue.persist(self.source, "down") as flow:
            for message in flow:
                seen.extend(numbers([message]))
                if len(seen) == stop_after:
                    if commits:
                        flow.commit()
                    break
        return seen

    async def live_async(self, queue: Queue, stop_after: int, *, commits: bool) -> list[int]:
        """Return what comes out until so many did."""
        seen: list[int] = []
        async with queue.persist(self.source, "down") as flow:
            async for message in flow:
                seen.extend(numbers([message]))
                if len(seen) == stop_after:
                    if commits:
                        flow.commit()
                    break
        return seen

    def next_life(self) -> None:
        """Live once, and compare it with the model."""
        stop_after = self.rng.randrange(1, self.total + 2)
        commits = self.rng.random() < 0.5
        retention = Retention(max_bytes=3 * SMALL)
        with Queue(self.directory, page_bytes=SMALL, retention=retention, on_full="block") as queue:
            if self.how == "for":
                seen = self.live(queue, stop_after, commits=commits)
            else:
                seen = asyncio.run(self.live_async(queue, stop_after, commits=commits))
            assert seen == list(range(self.acked, self.acked + len(seen)))
            broken_off = len(seen) == stop_after
            self.acked += len(seen) - (broken_off and not commits)
            places = {found.name: found.next_sequence for found in queue.consumers()}
            assert places == {"down": self.acked}


@SETTINGS
@given(seed=st.integers(0, 2**32), how=st.sampled_from(["for", "async for", "async"]))
def test_any_lives_give_all_of_it_at_least_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, how: str
) -> None:
    """Each life begins after the last acknowledgement; no element is skipped on either way."""
    lives = Lives(tmp_path_factory.mktemp("flow"), random.Random(seed), how)
    while lives.acked < lives.total:
        lives.next_life()
