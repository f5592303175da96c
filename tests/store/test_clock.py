"""The clock of messages: what is wrong for a moment is not believed, what stays is."""

from __future__ import annotations

import itertools
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SMALL, Clock, until

from pagequeue import Queue, Retention
from pagequeue.store.clock import BOUND_NS, HOLD_NS, QueueClock, runs
from pagequeue.util.timestamps import NS_PER_S, frozen_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue.meta.write_meta import WriteMeta

DAY = 86_400 * NS_PER_S
SET = 1_700_000_000 * NS_PER_S
"""How far the clock is ahead of the time since the boot."""
SETTLED = 1_000_000
MINUTE = 60 * NS_PER_S


class Time:
    """Time that passes by 1 us with each reading of any clock, and when it is told to.

    Attributes:
        passed: since the boot.
        ahead: of a clock that runs, as it is set.
    """

    def __init__(self) -> None:
        self.passed = 3600 * NS_PER_S
        self.ahead = SET

    def elapsed(self) -> int:
        """Return the time since the boot."""
        self.passed += 1000
        return self.passed

    def reading(self) -> int:
        """Return what a clock that runs shows."""
        return self.elapsed() + self.ahead


@pytest.fixture
def meta(queue: Queue) -> WriteMeta:
    """Return the write meta of a queue whose clock is not known yet."""
    found = queue._store.write_meta
    found.forget_clock()
    return found


def made(passing: Time, meta: WriteMeta, **options: bool) -> QueueClock:
    """Return a clock like the system's, which it is known to be."""
    clock = QueueClock(
        passing.reading,
        meta,
        "q",
        read_only=options.get("read_only", False),
        elapsed=passing.elapsed,
    )
    clock._runs = True
    return clock


def test_clock_that_is_ahead_for_a_moment_is_not_believed(meta: WriteMeta) -> None:
    """Messages get the time that an even clock would show, and nothing remains of it."""
    passing = Time()
    clock = made(passing, meta)
    assert abs(clock() - SET - passing.passed) <= SETTLED
    for jump in (30 * DAY, -30 * DAY, BOUND_NS + NS_PER_S, -BOUND_NS - NS_PER_S):
        passing.ahead += jump
        for _ in range(10):
            passing.passed += HOLD_NS // 20
            assert abs(clock() - SET - passing.passed) <= SETTLED
            assert meta.clock_doubted
            assert abs(clock.doubted_ns - jump) <= SETTLED
        passing.ahead -= jump
        assert abs(clock() - SET - passing.passed) <= SETTLED
        assert clock.doubted_ns == meta.clock_doubted == 0
        assert meta.jumps == []


def test_clock_that_is_set_for_good_is_believed_after_a_while(
    meta: WriteMeta, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the first boot of a machine without a battery; the log says it."""
    passing = Time()
    passing.ahead = 1
    clock = made(passing, meta)
    assert clock() < 2 * 3600 * NS_PER_S
    passing.ahead = SET
    with caplog.at_level(logging.WARNING, "pagequeue"):
        assert clock() < 2 * 3600 * NS_PER_S
        passing.passed += HOLD_NS - NS_PER_S
        assert clock() < 2 * 3600 * NS_PER_S
        passing.passed += NS_PER_S
        assert clock() > SET
        assert clock() > SET
    assert [record.message.split(":")[1] for record in caplog.records] == [
        " the clock was set ahead by 1700000000 s",
        " the clock is believed again",
    ]
    assert meta.clock_doubted == 0
    passing.ahead -= 2 * DAY
    assert clock() > SET
    passing.passed += HOLD_NS
    assert clock() < SET - DAY


def test_small_steps_are_believed_at_once(meta: WriteMeta) -> None:
    """NTP sets a clock by seconds."""
    passing = Time()
    clock = made(passing, meta)
    clock()
    for step in (BOUND_NS - NS_PER_S, -BOUND_NS + NS_PER_S, 2 * NS_PER_S):
        passing.ahead += step
        passing.passed += 10 * NS_PER_S
        assert abs(clock() - passing.ahead - passing.passed) <= SETTLED
    assert not meta.clock_doubted


def test_processes_share_what_they_know_and_doubt(meta: WriteMeta) -> None:
    """A process that comes while the clock is wrong, or only lives for a moment, knows better."""
    passing = Time()
    made(passing, meta)()
    passing.ahead += 30 * DAY
    for _ in range(3):  # short ones: together they believe it in the end
        assert abs(made(passing, meta)() - SET - passing.passed) <= SETTLED
        passing.passed += HOLD_NS // 3
    passing.passed += NS_PER_S
    assert made(passing, meta)() > SET + 30 * DAY
    reader = made(passing, meta, read_only=True)
    assert reader() > SET + 30 * DAY
    passing.ahead -= 30 * DAY
    assert reader() > SET + 30 * DAY
    passing.passed += HOLD_NS
    assert reader() < SET + DAY
    assert reader() < SET + DAY
    assert meta.clock_doubted == 0


def test_one_whose_clock_is_right_ends_the_doubt(meta: WriteMeta) -> None:
    """A container with a clock of its own is not believed as long as others run evenly."""
    passing = Time()
    right, wrong = made(passing, meta), made(passing, meta)
    right()
    for _ in range(10):
        passing.passed += HOLD_NS // 2
        passing.ahead += 30 * DAY
        assert abs(wrong() - SET - passing.passed) <= SETTLED
        passing.ahead -= 30 * DAY
        assert abs(right() - SET - passing.passed) <= SETTLED


def test_readings_before_recovery_and_in_another_boot_are_not_compared(meta: WriteMeta) -> None:
    """The time since the boot begins again with each."""
    passing = Time()
    made(passing, meta)()
    meta.region.write(meta.LOCK_KEY, bytes(16))
    passing.ahead += 30 * DAY
    assert made(passing, meta)() > SET + 30 * DAY
    meta.mark_recovered()
    assert made(passing, meta)() > SET + 30 * DAY
    assert meta.clock_doubted == 0


def test_unknown_time_since_the_boot_leaves_the_clock_as_it_is(meta: WriteMeta) -> None:
    """As in a container without /proc."""
    passing = Time()
    clock = QueueClock(passing.reading, meta, "q", read_only=False, elapsed=None)
    clock()
    passing.ahead += 30 * DAY
    assert clock() > SET + 30 * DAY


# --- clocks that a user gave ----------------------------------------------------------------------


def test_clock_of_a_test_is_taken_at_its_word(meta: WriteMeta) -> None:
    """It stands still, or is stepped: it does not run as time does."""
    for source in (Clock(SET), Clock(SET, 1000), Clock(SET, NS_PER_S), iter_clock(SET, DAY)):
        clock = QueueClock(source, meta, "q", read_only=False)
        first = clock()
        if isinstance(source, Clock):
            source.now += 30 * DAY
            assert clock() >= first + 30 * DAY
            source.now -= 30 * DAY
            assert clock() < first + DAY
        else:
            assert [clock() - first for _ in range(2)] == [DAY, 8 * DAY]  # six were a trial
    assert not meta.clock_ahead


def iter_clock(now: int, step: int) -> Callable[[], int]:
    """Return a clock that has one reading for each call."""
    readings = itertools.count(now, step)
    return lambda: next(readings)


def test_clock_that_runs_is_told_from_one_that_does_not() -> None:
    """Also where the process loses its processor in between."""
    passing = Time()
    assert runs(passing.reading, passing.elapsed)
    assert runs(lambda: passing.reading() + DAY, passing.elapsed)
    assert not runs(lambda: SET, passing.elapsed)
    assert not runs(Clock(SET, 1000), passing.elapsed)
    assert not runs(iter([SET]).__next__, passing.elapsed)
    assert not runs(lambda: passing.reading() * 2, passing.elapsed)
    assert runs(time.time_ns)


def test_frozen_time_is_that_of_messages_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that freezes what Python calls: both sides of "ago" have its time."""
    assert frozen_clock() is None
    now = [SET]
    with monkeypatch.context() as frozen:
        frozen.setattr(time, "time_ns", lambda: now[0])
        with Queue(tmp_path / "q") as queue, queue.producer() as producer:
            producer.send(b"a moment ago")
            assert queue.last(1).timestamps.tolist() == [SET]
            assert len(list(queue.replay(since=timedelta(minutes=10)))) == 1
            now[0] += DAY
            assert list(queue.replay(since=timedelta(minutes=10))) == []
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert list(queue.replay(since=timedelta(minutes=10))) == []


# --- retention ------------------------------------------------------------------------------------


def test_a_clock_ahead_for_a_moment_removes_nothing(tmp_path: Path) -> None:
    """Another process trims meanwhile, and `since` finds afterwards what it should."""
    off = [0]
    keep = Retention(max_age=timedelta(days=7), max_idle=timedelta(days=1))

    def opened() -> Queue:
        return Queue(
            tmp_path / "q",
            page_bytes=SMALL,
            clock=lambda: time.time_ns() + off[0],
            retention=keep,
        )

    with opened() as queue, queue.producer() as producer, queue.consumer("slow"):
        for payload in [bytes(1000)] * 20:
            producer.send(payload)
        for off[0] in (30 * DAY, -30 * DAY, 0):
            producer.send_many([bytes(1000)] * 20)
            assert queue.trim().messages == 0
            with opened() as other:
                assert other.trim().messages == 0
                other.producer().send_many([bytes(100_000)] * 3)
        assert queue.head_sequence == 0
        assert queue.consumers()[0].is_idle is False
        times = queue.times()[1]
        assert times[-1] - times[0] < 600 * NS_PER_S
        assert queue.verify().ok


def test_messages_of_before_a_jump_are_as_old_as_they_are(meta: WriteMeta) -> None:
    """The clock was behind, or is ahead for an hour: no week has passed."""
    passing = Time()
    passing.ahead = 1
    clock = made(passing, meta)
    first = clock()
    passing.ahead = SET
    assert clock() - clock.credited(first) < MINUTE
    passing.passed += HOLD_NS
    now = clock()
    assert now > SET
    assert 0 <= now - clock.credited(first) < 2 * MINUTE
    assert clock.credited(now) == now
    passing.ahead += 30 * DAY
    clock()
    passing.passed += HOLD_NS
    assert clock() > SET + 30 * DAY
    for then in (first, now):
        assert 0 <= clock() - clock.credited(then) < 4 * MINUTE
    passing.ahead -= 30 * DAY
    clock()
    passing.passed += HOLD_NS
    assert clock() < SET + DAY
    for then in (first, now):
        assert 0 <= clock() - clock.credited(then) < 6 * MINUTE


steps = st.lists(
    st.tuples(
        st.sampled_from([0, DAY, -DAY, 3600 * NS_PER_S, -NS_PER_S, 400 * DAY]),
        st.sampled_from([1000, NS_PER_S, HOLD_NS // 3, HOLD_NS + NS_PER_S, DAY]),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(plan=steps)
def test_no_message_seems_older_than_it_is(plan: list[tuple[int, int]]) -> None:
    """However the clock jumps: with the last three jumps known, ages are never too high."""
    for meta in metas():
        passing = Time()
        clock = made(passing, meta)
        clock()
        sent: list[tuple[int, int]] = []
        last = jumps = 0
        for jump, pause in plan:
            passing.ahead += jump
            jumps += jump > BOUND_NS
            last = max(last, clock())
            sent.append((passing.passed, last))
            passing.passed += pause
            now = clock()
            if jumps <= 3:
                for then, timestamp in sent:
                    assert now - clock.credited(timestamp) <= passing.passed - then + BOUND_NS


def metas() -> Iterator[WriteMeta]:
    """Give one write meta, of a queue that is gone afterwards."""
    import tempfile  # noqa: PLC0415 - hypothesis takes no fixture of a function

    with tempfile.TemporaryDirectory() as base, Queue(f"{base}/q", page_bytes=SMALL) as queue:
        meta = queue._store.write_meta
        meta.forget_clock()
        yield meta


def test_clock_is_looked_at_once_a_second(tmp_path: Path) -> None:
    """And by each sender for itself: no word of the shared page is read for a message."""
    looks = 0

    class Counting(QueueClock):
        def _look(self, reading: int) -> int:
            nonlocal looks
            looks += 1
            return super()._look(reading)

    with Queue(tmp_path / "q") as queue:
        store = queue._store
        clock = Counting(None, store.write_meta, "q", read_only=False)
        store.clock = clock
        with queue.producer() as producer:
            begun = time.monotonic()
            for _ in range(2000):
                producer.send(b"x")
            producer.send_many([bytes(20_000)] * 10)  # without the GIL
            assert looks <= 2 + 2 * (time.monotonic() - begun)
            until(lambda: time.monotonic() - begun > 1.1)
            before = looks
            producer.send(b"x")
            assert looks > before
