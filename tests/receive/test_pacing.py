"""Paced replay: no message is early, and one late message does not delay the later ones."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import SMALL, Clock

from pagequeue import ClosedError, InvalidOption, NothingReceived, Pace, Queue, merge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = 1_700_000_000_000_000_000
TIMES = [START + ms * 1_000_000 for ms in (0, 0, 10, 30, 30, 31, 5000)]


class Timer:
    """A clock that only sleeping moves, perhaps by more than was asked for."""

    def __init__(self, extra_ns: int = 0) -> None:
        self.now = 77
        self.extra_ns = extra_ns
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Go on."""
        assert seconds > 0
        self.slept.append(seconds)
        self.now += max(1, round(seconds * 1e9)) + self.extra_ns

    def pace(self, speed: float) -> Pace:
        """Return a pace on this clock."""
        return Pace(speed, clock=self, sleep=self.sleep)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of messages with given times."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(START)) as queue:
        fill(queue, TIMES)
        yield queue


def fill(queue: Queue, times: list[int]) -> None:
    """Send messages of these times."""
    with queue.producer() as producer:
        for number, time in enumerate(times):
            producer.send(b"%d" % number, timestamp=time)


@pytest.mark.parametrize("speed", [1.0, 10, 0.5])
@pytest.mark.parametrize("extra_ns", [0, 3_000_000])
def test_each_message_comes_when_it_is_due(queue: Queue, speed: float, extra_ns: int) -> None:
    """The first at once; each later one after its distance in time, divided by the speed."""
    timer = Timer(extra_ns)
    started = timer.now
    for message in queue.replay(speed=timer.pace(speed)):
        due = (message.timestamp - START) / speed
        assert due <= timer.now - started <= due + extra_ns + 1
    assert message.timestamp == TIMES[-1]


def test_no_speed_is_as_fast_as_possible(queue: Queue) -> None:
    """A plain replay."""
    assert [m.timestamp for m in queue.replay(speed=None)] == TIMES
    assert type(queue.replay(speed=None)) is type(queue.replay())
    assert [m.timestamp for m in queue.replay(speed=1e9)] == TIMES


def test_slow_reader_gets_the_due_messages_at_once(queue: Queue) -> None:
    """The pace is counted from the start."""
    timer = Timer()
    replay = queue.replay(speed=timer.pace(1.0))
    next(replay)
    timer.now += 30_500_000
    assert [next(replay).timestamp for _ in range(4)] == TIMES[1:5]
    assert timer.slept == []
    assert next(replay).timestamp == TIMES[5]
    assert timer.slept == [0.0005]


@pytest.mark.parametrize("merged", [False, True])
def test_batch_holds_only_due_messages(queue: Queue, *, merged: bool) -> None:
    """Split so that none goes out early."""
    timer = Timer()
    pace = timer.pace(1.0)
    batches = merge([queue], speed=pace).batches() if merged else queue.batches(speed=pace)
    found = []
    for batch in batches:
        elapsed = timer.now - 77
        assert all(batch.timestamps <= START + elapsed)
        found.append(batch.timestamps.tolist())
        if len(found) == 2:
            timer.now += 20_000_000
    assert found == [TIMES[:2], TIMES[2:3], TIMES[3:5], TIMES[5:6], TIMES[6:]]


def test_batch_of_a_pace_is_limited_too(queue: Queue) -> None:
    """`limit_count` holds as well."""
    found = [len(batch) for batch in queue.batches(speed=1e6, limit_count=1)]
    assert found == [1] * 7
    with pytest.raises(ValueError, match="limit_count"):
        next(queue.batches(speed=1.0, limit_count=0))


@given(
    gaps=st.lists(st.integers(0, 10**12), min_size=1, max_size=30),
    speed=st.floats(1e-3, 1e6),
    extra_ns=st.integers(0, 10**10),
)
def test_no_message_is_early_and_lateness_does_not_add_up(
    gaps: list[int], speed: float, extra_ns: int
) -> None:
    """For any gaps, and with sleeps that take too long."""
    timer = Timer(extra_ns)
    pace = timer.pace(speed)
    started, timestamp = timer.now, START
    for gap in [0, *gaps]:
        timestamp += gap
        while (left := pace.left_ns(timestamp)) > 0:
            pace.sleep(left / 1e9, threading.Event())
        elapsed, due = timer.now - started, (timestamp - START) / speed
        assert due - elapsed <= 1e-6 * due
        assert elapsed - due <= extra_ns + 1e-6 * due + 2


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), float("inf"), 5e-324, 1e308])
def test_invalid_speed_is_refused(queue: Queue, speed: float) -> None:
    """With a typed error, before any read; also one by which times would be infinite."""
    for make in (Pace, lambda s: queue.replay(speed=s), lambda s: queue.batches(speed=s)):
        with pytest.raises(InvalidOption, match="give 1e-280"):
            make(speed)


@pytest.mark.parametrize("speed", [1e-280, 1e280])
def test_times_are_finite_at_the_last_speeds(speed: float) -> None:
    """Between the first and the last time that there can be."""
    now = [0, 2**63 - 1, 2**63 - 1].pop
    pace = Pace(speed, clock=lambda: now(0))
    assert pace.left_ns(0) == 0
    pace.left_ns(2**63 - 1)
    assert pace.due() >= 0


@pytest.mark.parametrize("speed", [True, "1", b"1"])
def test_speed_that_is_not_a_number_is_refused(queue: Queue, speed: object) -> None:
    """A TypeError."""
    with pytest.raises(TypeError, match="a number or a Pace"):
        queue.replay(speed=speed)  # type: ignore[arg-type]


def test_merge_keeps_the_pace_of_all_queues(queue: Queue, tmp_path: Path) -> None:
    """One start for all."""
    with Queue(tmp_path / "other", page_bytes=SMALL, clock=Clock(START)) as other:
        fill(other, [START + 5_000_000, START + 20_000_000])
        timer = Timer()
        elapsed = []
        for item in merge([queue, other], speed=timer.pace(2.0)):
            elapsed.append(timer.now - 77)
            assert elapsed[-1] >= (item.message.timestamp - START) / 2
        assert elapsed == [
            0,
            0,
            2_500_000,
            5_000_000,
            10_000_000,
            15_000_000,
            15_000_000,
            15_500_000,
            2_500_000_000,
        ]


def test_poll_and_receive_keep_the_pace_too(queue: Queue) -> None:
    """No call returns a message before it is due."""
    timer = Timer()
    for replay, payload in (
        (queue.replay(speed=timer.pace(1.0)), lambda found: found.payload),
        (merge([queue], speed=timer.pace(1.0)), lambda found: found.message.payload),
    ):
        assert [payload(replay.poll()), payload(replay.receive())] == [b"0", b"1"]  # type: ignore[no-untyped-call]
        assert replay.poll() is None
        with pytest.raises(NothingReceived):
            replay.receive(timeout=0)
        assert payload(replay.receive()) == b"2"  # type: ignore[no-untyped-call]


def test_replay_has_the_sequence_of_the_next_message(queue: Queue) -> None:
    """`sequence` is that of the next message, also where more was read already."""
    replay = queue.replay(speed=1e9)
    assert replay.sequence == 0
    for number, _ in enumerate(replay):
        assert replay.sequence == number + 1
    with pytest.raises(NothingReceived, match="has ended"):
        replay.receive()
    assert replay.poll() is None


@pytest.mark.parametrize("what", ["replay", "merge", "queue"])
def test_closing_ends_a_long_wait(queue: Queue, what: str) -> None:
    """Another thread closes; the thread that waits for the next message gets ClosedError."""
    replay = merge([queue], speed=1e-4) if what == "merge" else queue.replay(speed=1e-4)
    iterator = iter(replay)
    next(iterator), next(iterator)
    timer = threading.Timer(0.05, queue.close if what == "queue" else replay.close)
    timer.start()
    with pytest.raises(ClosedError):
        next(iterator)
    timer.join()


def test_interrupted_wait_loses_no_message(queue: Queue) -> None:
    """Ctrl-C while waiting; the message comes later."""

    class Impatient(Timer):
        def sleep(self, seconds: float) -> None:
            if not self.slept:
                self.slept.append(seconds)
                raise KeyboardInterrupt
            super().sleep(seconds)

    for merged in (False, True):
        pace = Impatient().pace(1.0)
        replay = merge([queue], speed=pace) if merged else queue.replay(speed=pace)
        found: list[object] = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(replay)
        found.extend(replay)
        assert len(found) + 2 * (len(found) == 5) == 7


def test_coroutines_keep_the_pace(queue: Queue) -> None:
    """With the loop's own sleep, or one that is given, which may be a coroutine function."""
    timer = Timer()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)
        timer.sleep(seconds)

    async def main() -> None:
        pace = Pace(1.0, clock=timer, sleep=sleep)
        async for item in merge([queue], speed=pace):
            assert timer.now - 77 >= item.message.timestamp - START
        found = [item async for item in merge([queue], speed=1000.0)]
        assert len(found) == 7
        merged = merge([queue], speed=timer.pace(1e-3))
        await merged.receive_many_async()
        with pytest.raises(TimeoutError):
            await merged.receive_async(timeout=0)

    asyncio.run(main())
    assert timer.slept
