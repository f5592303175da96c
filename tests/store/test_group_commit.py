"""Group commit: who waits for another one's sync is covered by the next, or leads it."""

from __future__ import annotations

import errno
import math
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support import LONG, SMALL, SOON, end, flush_and_hang, ready, start, until, until_asleep

from pagequeue import FlushTimeout, Queue, SyncFailed
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.store.flush import WAIT_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from pagequeue import Producer


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue whose sends are durable when they return."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync="always") as queue:
        yield queue


class Gate:
    """Holds every sync until it is opened, and can then fail; the rest is the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.error = 0
        self.syncs = 0
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        self.syncs += 1
        self.entered.release()
        assert self.opened.wait(2 * LONG)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self._real(fd)


class Sending(threading.Thread):
    """One send in a thread, and what became of it."""

    def __init__(self, send: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._send = send
        self.outcome: object = None
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        """Send."""
        begun = time.monotonic()
        try:
            self.outcome = self._send()
        except Exception as error:  # noqa: BLE001  checked by the test
            self.outcome = error
        self.seconds = time.monotonic() - begun

    def ended(self) -> object:
        """Wait for the end, and return what came of it."""
        self.join(LONG)
        assert not self.is_alive()
        return self.outcome


def followers(queue: Queue, count: int) -> list[Sending]:
    """Return sends that have published and wait for another one's sync."""
    first = queue.tail_sequence
    found = [Sending(lambda: queue.producer().send(b"f")) for _ in range(count)]
    until(lambda: queue.tail_sequence == first + count)
    return found


def offset_of(name: str) -> int:
    """Return the offset of a field of the write meta."""
    return field_of(fmt.WRITE_META, name)


def test_send_during_a_sync_is_not_covered_by_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: that sync began before the message was written; the next one covers all waiters."""
    gate = Gate(monkeypatch)
    leader = Sending(lambda: queue.producer().send(b"l"))
    assert gate.entered.acquire(timeout=LONG)
    waiting = followers(queue, 7)
    for sending in waiting:
        until_asleep(sending)
    assert all(sending.is_alive() for sending in [leader, *waiting])
    gate.opened.set()
    assert leader.ended() == 0
    assert sorted(int(str(sending.ended())) for sending in waiting) == list(range(1, 8))
    assert gate.syncs == 2
    assert queue.durable_sequence == 8


def test_follower_that_is_covered_never_enters_python(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core wakes it, checks the durable mark and returns; only a leader calls Python."""
    gate = Gate(monkeypatch)
    asked: list[int] = []
    on_sync = type(queue.producer())._on_sync

    def counted(self: Producer, end_sequence: int) -> None:
        asked.append(end_sequence)
        on_sync(self, end_sequence)

    monkeypatch.setattr("pagequeue.producer.producer.Producer._on_sync", counted)
    leader = Sending(lambda: queue.producer().send(b"l"))
    assert gate.entered.acquire(timeout=LONG)
    waiting = followers(queue, 1)
    gate.opened.set()
    assert leader.ended() == 0
    assert waiting[0].ended() == 1
    # Again and again for one that waits for so long that the leader may be dead.
    assert asked[:2] == [1, 2]
    assert set(asked[2:]) <= {2}
    # As if another process had the turn and raised the mark.
    meta = queue._store.write_meta
    for _ in range(100):
        first = queue.tail_sequence
        assert meta.await_turn(99_999, WAIT_NS)
        asked.clear()
        waiting = followers(queue, 3)
        meta.set_durable(first + 3, meta.durable_page)
        meta.end_turn()
        found = sorted(int(str(sending.ended())) for sending in waiting)
        assert found == [first, first + 1, first + 2]
        # One that waits for longer than this looks whether the leader is dead.
        if all(sending.seconds < 0.01 for sending in waiting):
            break
    else:
        pytest.fail("a send took 10 ms and more, each time")
    assert asked == []


@pytest.mark.parametrize("policy", ["stop", "seal"])
def test_failed_sync_acknowledges_no_waiting_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """I5: each waiter gets the error, or is durable by another sync."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync="always", on_sync_failure=policy) as queue:
        gate = Gate(monkeypatch)
        gate.error = errno.EIO
        leader = Sending(lambda: queue.producer().send(b"l"))
        assert gate.entered.acquire(timeout=LONG)
        waiting = followers(queue, 4)
        meta = queue._store.write_meta
        latch = meta.latch

        def latched(number: int, page: int) -> None:
            gate.error = 0  # the disk works again, for new files
            latch(number, page)

        monkeypatch.setattr(meta, "latch", latched)
        gate.opened.set()
        found = [sending.ended() for sending in [leader, *waiting]]
        if policy == "stop":
            assert all(isinstance(outcome, SyncFailed) for outcome in found)
            assert queue.durable_sequence == 0
            monkeypatch.undo()
            with pytest.raises(SyncFailed):
                queue.close()
        else:
            assert sorted(int(str(outcome)) for outcome in found) == list(range(5))
            assert queue.durable_sequence == 5
            assert [m.payload for m in queue.replay()] == [b"l", *[b"f"] * 4]


@pytest.mark.parametrize("step", ["begun", "locked", "synced", "marked", "unlocked"])
def test_follower_takes_over_from_a_leader_that_was_killed(tmp_path: Path, step: str) -> None:
    """I5, I7: killed at any step of its turn, a leader blocks the others only briefly."""
    with Queue(tmp_path / "q", page_bytes=SMALL, sync="always") as queue:
        leader = start(flush_and_hang.__name__, queue.directory, step)
        try:
            assert ready(leader) == step
            sending = Sending(lambda: queue.producer().send(b"f"))
            until(lambda: queue.tail_sequence == 2)
            if step in {"begun", "unlocked"}:  # it holds no lock: no process waits for its end
                assert sending.ended() == 1
            else:
                until_asleep(sending)
                assert sending.is_alive(), sending.outcome  # stopped or slow: never robbed
        finally:
            end(leader)
        died = time.monotonic()
        assert sending.ended() == 1
        assert time.monotonic() - died < SOON
        assert queue.durable_sequence == 2


def test_signal_ends_the_wait_for_another_ones_sync(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that raises is not kept waiting by a sync that hangs; the message was sent."""

    class Interrupted(Exception):
        pass

    def handler(_: int, __: FrameType | None) -> None:
        raise Interrupted

    gate = Gate(monkeypatch)
    leader = Sending(lambda: queue.producer().send(b"l"))
    assert gate.entered.acquire(timeout=LONG)
    before = signal.signal(signal.SIGALRM, handler)

    def interrupt() -> None:
        until(lambda: queue.tail_sequence == 2)  # the message is sent, and its sync is waited for
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    interrupting = threading.Thread(target=interrupt)
    try:
        interrupting.start()
        with pytest.raises(Interrupted):
            queue.producer().send(b"f")
    finally:
        interrupting.join()
        signal.signal(signal.SIGALRM, before)
        gate.opened.set()
    assert leader.ended() == 0
    assert queue.producer().send(b"next") == 2
    assert queue.durable_sequence == 3


def test_flush_times_out_during_a_hanging_sync(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlushTimeout comes after the given timeout, independent of who has the turn and the lock."""
    gate = Gate(monkeypatch)
    leader = Sending(lambda: queue.producer().send(b"l"))
    assert gate.entered.acquire(timeout=LONG)
    for timeout in (0.0, 0.05):
        begun = time.monotonic()
        with pytest.raises(FlushTimeout):
            queue.producer().flush(timeout)
        assert timeout <= time.monotonic() - begun < SOON
    gate.opened.set()
    assert leader.ended() == 0


def test_closing_during_a_sync_keeps_the_message(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that is closed while its send waits: the message is sent, and durable."""
    gate = Gate(monkeypatch)
    leader = Sending(lambda: queue.producer().send(b"l"))
    assert gate.entered.acquire(timeout=LONG)
    producer = queue.producer()
    waiting = Sending(lambda: producer.send(b"f"))
    until(lambda: queue.tail_sequence == 2)
    producer.close()
    gate.opened.set()
    assert leader.ended() == 0
    assert waiting.ended() == 1
    assert queue.durable_sequence == 2


@pytest.mark.parametrize(
    "words",
    [
        {"flush_begun": 1},
        {"flush_turn": 2**32 - 1, "flush_begun": 0},
        {"gather_to": 2**64 - 1, "gather_until": 2**63 - 1},
        {"gather_to": 2**64 - 1, "gather_until": 2**64 - 1},
        {"gather_to": 1 << 40, "gather_begun": 1, "gather_until": None},
    ],
    ids=str,
)
def test_any_value_of_the_turns_fields_blocks_a_flush_only_briefly(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, words: dict[str, int | None]
) -> None:
    """I9: they only hint who should flush, and when; the lock and the mark decide."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)  # however busy the disk is
    region = queue._store.write_meta.region
    producer = queue.producer()
    for name, value in words.items():
        number = time.monotonic_ns() + 900_000 if value is None else value
        if fmt.WRITE_META.fields[name][0].itemsize == 8:
            region.store(offset_of(name), number)
        else:
            region.store_half(offset_of(name), number)

    def send_some() -> None:
        for count in range(1, 20):
            producer.send(b"x")
            assert queue.durable_sequence == count

    assert Sending(send_some).ended() is None


def test_senders_at_the_same_time_share_syncs(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was woken by one sync is waited for by the next one, so that groups stay large."""
    real, syncs = os.fdatasync, []

    def slow(fd: int) -> None:
        syncs.append(fd)
        time.sleep(0.002)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)

    def send_some() -> None:
        with queue.producer() as producer:
            for _ in range(40):
                sequence = producer.send(b"x")
                assert queue.durable_sequence > sequence

    for round_ in range(1, 21):  # a busy machine can only worsen the measurement
        syncs.clear()
        sending = [Sending(send_some) for _ in range(8)]
        assert [thread.ended() for thread in sending] == [None] * 8
        assert queue.durable_sequence == 320 * round_
        if len(syncs) < 320 / 2:
            break
    assert len(syncs) < 320 / 2


def test_early_sender_waits_no_longer_than_the_gathering_time(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that waits for a group commit checks the time itself: others may never send."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    region = queue._store.write_meta.region
    shortest = math.inf
    deadline = time.monotonic() + SOON  # a busy machine can only worsen the measurement
    with queue.producer() as producer:
        while shortest >= 0.001 and time.monotonic() < deadline:
            begun = time.monotonic()
            region.store(offset_of("gather_until"), time.monotonic_ns() + 100_000)
            region.store(offset_of("gather_to"), queue.tail_sequence + 8)
            producer.send(b"x")
            shortest = min(shortest, time.monotonic() - begun)
    assert 0.0001 <= shortest < 0.001


def test_single_sender_does_not_wait_for_others(queue: Queue) -> None:
    """If no sender waited during the last sync, the next one begins at once."""
    with queue.producer() as producer:
        for _ in range(5):
            producer.send(b"x")
            assert queue._store.write_meta.region.load(offset_of("gather_to")) == 0
