"""Backpressure: sending when `max_bytes` is reached and consumers lag."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import (
    LONG,
    SMALL,
    SOON,
    ack_slowly,
    at_once,
    end,
    finish,
    ready,
    send_until_blocked,
    start,
    until,
    until_asleep,
)
from tiers import slow_but_rows

from pagequeue import (
    ClosedError,
    Expired,
    InvalidOption,
    NamedConsumer,
    Queue,
    QueueFull,
    Retention,
    SyncFailed,
)
from pagequeue import format as fmt
from pagequeue.maintenance import room, trimmer
from pagequeue.maintenance.size_limit import SizeLimit
from pagequeue.maintenance.trimmer import Trimmer
from pagequeue.meta.meta_file import field_of
from pagequeue.producer.producer import Producer
from pagequeue.send.with_room import LOSSES_MIN
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from plugin import Disk

    from pagequeue.maintenance.retention import TrimReport
    from pagequeue.store.store import Store

FULL = b"x" * 1300
"""Three fit into a page of 4096 bytes."""
ROOM_WANTED = field_of(fmt.WRITE_META, "room_wanted")
FOUR_PAGES = Retention(max_bytes=4 * SMALL)


def pages_of(disk: Disk) -> int:
    """Return how many page files there are, while others make and remove some."""
    return len(at_once(disk.directory, "*.page"))


def opened(disk: Disk, on_full: str, **options: object) -> tuple[Queue, NamedConsumer]:
    """Open a queue of at most four pages, with a consumer that receives no message."""
    queue = disk.open(retention=FOUR_PAGES, on_full=on_full, **options)
    consumer = queue.consumer("slow")
    assert isinstance(consumer, NamedConsumer)
    return queue, consumer


def send_all(queue: Queue, count: int = 100) -> int:
    """Send until that is refused; return how many were sent."""
    with queue.producer() as producer:
        for sent in range(count):
            try:
                producer.send(FULL)
            except QueueFull:
                return sent
    return count


def test_raise_refuses_and_sends_no_message(disk: Disk) -> None:
    """When no page can be made any more: all four are full; it names who keeps them."""
    queue, consumer = opened(disk, "raise")
    with queue, queue.producer() as producer:
        assert send_all(queue) == 12
        for call in (lambda: producer.send(FULL), lambda: producer.send_many([FULL] * 2)):
            with pytest.raises(QueueFull, match="'slow'") as caught:
                call()
            assert caught.value.held_by == ("slow",)
        with pytest.raises(QueueFull):
            queue.rotate()
        assert queue.tail_sequence == 12
        assert pages_of(disk) == 4
        # What still fits into the page is taken: it is asked for each page, not for each message.
        assert producer.send(b"small") == 12
        consumer.receive_many()
        consumer.ack()
        assert producer.send(FULL) == 13
        assert pages_of(disk) <= 4
        assert queue.verify().ok


def test_unnamed_consumers_keep_no_page(disk: Disk) -> None:
    """Only a named consumer holds pages; without one the queue is never full."""
    with disk.open(retention=FOUR_PAGES) as queue, queue.consumer() as consumer:
        assert send_all(queue) == 100
        assert pages_of(disk) <= 4
        with pytest.raises(Expired):
            [consumer.receive(0) for _ in range(100)]


def test_drop_oldest_removes_unread_pages(disk: Disk) -> None:
    """The consumer that was passed learns it, or skips and counts."""
    queue, consumer = opened(disk, "drop_oldest")
    with queue:
        assert send_all(queue) == 100
        assert pages_of(disk) <= 4
        head = queue.head_sequence
        assert head >= 100 - 4 * 3
        assert [consumer.receive().sequence for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Expired):
            consumer.receive(0)
        consumer.close()
        with queue.consumer("slow", on_expired="skip") as again:
            assert again.receive().sequence == head
            assert again.missed == head
        assert queue.verify().ok


def test_drop_oldest_removes_as_few_pages_as_possible(disk: Disk) -> None:
    """Only so much goes that the next page has room."""
    queue, _ = opened(disk, "drop_oldest")
    with queue:
        assert send_all(queue, 13) == 13
        assert queue.head_sequence == 3
        assert queue.tail_sequence == 13


def test_block_sleeps_until_there_is_space(disk: Disk) -> None:
    """No message is lost or refused."""
    queue, consumer = opened(disk, "block")
    with queue:
        sent: list[int] = []

        def send() -> None:
            with queue.producer() as producer:
                sent.extend(producer.send(FULL) for _ in range(60))

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: queue.tail_sequence == 12)
        until_asleep(thread)
        assert queue.tail_sequence == 12
        received = []
        while len(received) < 60:
            batch = consumer.receive_many(timeout=LONG)
            received += [message.sequence for message in batch]
            consumer.ack()
            assert pages_of(disk) <= 4
        thread.join()
        assert sent == received == list(range(60))


@pytest.mark.parametrize("how", ["ack", "seek", "group", "other process"])
def test_acknowledgement_wakes_a_blocked_sender(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A sender that waits for room sleeps until what it needs is acknowledged, and no longer."""
    monkeypatch.setattr(room, "SLICE_SECONDS", 600.0)
    with disk.open(retention=FOUR_PAGES, on_full="block", full_timeout=2 * LONG) as queue:
        group = queue.group("workers") if how == "group" else None
        consumer = None if group else queue.consumer("slow")
        meta = queue._store.write_meta.region
        with ThreadPoolExecutor(1) as pool, queue.producer() as producer:
            assert [producer.send(FULL) for _ in range(12)] == list(range(12))
            sending = pool.submit(producer.send, FULL)
            until(lambda: meta.load(ROOM_WANTED) != 0)
            if group is not None:
                for claim in [group.claim(0) for _ in range(3)]:
                    assert not sending.done()
                    claim.ack()
            elif how == "seek":
                consumer.seek(sequence=3)
            elif how == "other process":
                consumer.close()
                finish(start("receive_and_ack", disk.directory, "slow", 3))
            else:
                consumer.receive_many(2)
                consumer.ack()
                (thread,) = pool._threads
                until_asleep(thread)
                assert not sending.done()
                consumer.receive()
                consumer.ack()
            assert sending.result(LONG) == 12


def test_block_ends_after_its_timeout(disk: Disk) -> None:
    """No message was sent."""
    queue, _ = opened(disk, "block", full_timeout=0.3)
    with queue:
        began = time.monotonic()
        assert send_all(queue) == 12
        assert 0.3 <= time.monotonic() - began < SOON
        assert queue.tail_sequence == 12
    queue, _ = opened(disk, "block", full_timeout=0)
    with queue, pytest.raises(QueueFull):
        queue.producer().send(FULL)


SENDS: dict[str, Callable[..., object]] = {
    "send": lambda producer, timeout: producer.send(FULL, timeout=timeout),
    "send_many": lambda producer, timeout: producer.send_many([FULL] * 2, timeout=timeout),
    "send_async": lambda producer, timeout: asyncio.run(
        _awaited(producer.send_async(FULL, timeout=timeout))
    ),
    "send_many_async": lambda producer, timeout: asyncio.run(
        _awaited(producer.send_many_async([FULL], timeout=timeout))
    ),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("way", SENDS)
@pytest.mark.parametrize("full_timeout", [None, 0, 60])
def test_timeout_of_a_call_is_used_instead_of_the_queues(
    disk: Disk, way: str, full_timeout: float | None
) -> None:
    """It bounds this call only; None leaves it to the queue."""
    queue, consumer = opened(disk, "block", full_timeout=full_timeout)
    with queue, queue.producer() as producer:
        for _ in range(12):
            producer.send(FULL)
        for timeout in (0, 0.3, 0.0):
            began = time.monotonic()
            with pytest.raises(QueueFull):
                SENDS[way](producer, timeout)
            assert timeout <= time.monotonic() - began < SOON
        if full_timeout == 0:
            began = time.monotonic()
            with pytest.raises(QueueFull):
                SENDS[way](producer, None)
            assert time.monotonic() - began < SOON
        for wrong in (-1, float("nan"), "1"):
            with pytest.raises((ValueError, TypeError)):
                SENDS[way](producer, wrong)
        assert queue.tail_sequence == 12
        consumer.receive_many(3)
        thread = threading.Timer(0.2, consumer.ack)
        thread.start()
        SENDS[way](producer, 1e300)  # longer than anything is for ever
        thread.join()
        assert queue.tail_sequence > 12


@pytest.mark.parametrize("on_full", ["raise", "drop_oldest"])
def test_timeout_has_no_effect_if_no_send_waits(disk: Disk, on_full: str) -> None:
    """With another `on_full` than "block" it is checked, and not used."""
    queue, _ = opened(disk, on_full)
    with queue, queue.producer() as producer:
        for _ in range(12):
            producer.send(FULL, timeout=5.0)
        began = time.monotonic()
        if on_full == "raise":
            with pytest.raises(QueueFull):
                producer.send(FULL, timeout=60.0)
        else:
            assert producer.send(FULL, timeout=60.0) == 12
        assert time.monotonic() - began < SOON


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("own", [False, True], ids=["the queue's", "the call's"])
@pytest.mark.parametrize("way", ["send", "send_many", "send_async"])
def test_timeout_bounds_a_call_that_loses_each_page_to_another_sender(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, way: str, *, own: bool
) -> None:
    """It does not begin again with each page that another sender fills."""
    for limit in (0.5, 2.0, 8.0):  # on a busy machine the first can end before a page is lost
        with monkeypatch.context() as patch:
            lost = pages_lost_to_another(disk, patch, way, limit, own=own)
        if lost:
            break
    assert lost > 0  # a call that begins again with each loses 100


def pages_lost_to_another(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, way: str, limit: float, *, own: bool
) -> int:
    """Make a call of a full queue that ends in time; return how many pages it lost until then."""
    timeout = limit if own else None
    queue, consumer = opened(disk, "block", full_timeout=None if own else limit)
    producer, other = queue.producer(), queue.producer()
    allows, lost, asked = SizeLimit.allows, [0], [0]
    losing = threading.Lock()

    def lose(self: SizeLimit, store: Store, number: int) -> bool:
        """Make room once the sender has waited for a page, and have another one fill that.

        Not about when the timeout ends: a last look could find the room before it is filled.
        """
        asked[0] += 1
        is_about_due = 0.7 * limit < time.monotonic() - began < 1.6 * limit
        if asked[0] >= 3 and not is_about_due and losing.acquire(blocking=False):
            time.sleep(0.02)
            consumer.receive_many(3)
            consumer.ack()
            other.send_many([FULL] * 3)  # which comes back here
            lost[0] += 1
            assert lost[0] < 100, "it waits for ever"
            asked[0] = 0
            losing.release()
        return allows(self, store, number)

    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(FULL, timeout=timeout),
        "send_many": lambda: producer.send_many([FULL, FULL], timeout=timeout),
        "send_async": lambda: asyncio.run(_awaited(producer.send_async(FULL, timeout=timeout))),
    }
    monkeypatch.setattr(room, "SLICE_SECONDS", 0.005)
    with queue:
        send_all(queue, 12 - queue.tail_sequence)
        assert queue.tail_sequence == 12
        began = time.monotonic()
        monkeypatch.setattr(SizeLimit, "allows", lose)
        with pytest.raises(QueueFull):
            calls[way]()
        assert limit <= time.monotonic() - began < SOON
        assert queue.tail_sequence == 12 + 3 * lost[0]
    return lost[0]


async def _awaited(sending: Awaitable[object]) -> object:
    return await asyncio.wait_for(sending, SOON)


WAYS: dict[str, Callable[[Producer, float | None], object]] = {
    "send": lambda producer, timeout: producer.send(FULL, timeout=timeout),
    "send_many": lambda producer, timeout: producer.send_many([FULL, FULL], timeout=timeout),
    "rows": lambda producer, timeout: producer.send_many(
        np.full(2, FULL, "S1300"), timeout=timeout
    ),
    "send_async": lambda producer, timeout: asyncio.run(
        _awaited(producer.send_async(FULL, timeout=timeout))
    ),
}


class Losing:
    """A queue with room, whose producer finds each page filled or sealed by another sender.

    Attributes:
        producer: the one that loses.
        lost: how many pages it lost.
        allowed: how many it loses.
    """

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self.producer, self._other, self._how = queue.producer(), queue.producer(), how
        name = {"filled": "_roll_on", "sealed": "_move"}[how]
        real = getattr(Producer, name)

        def beaten(producer: Producer, *asked: object) -> None:
            real(producer, *asked)
            if producer is self.producer and self.lost < self.allowed:
                self.lost += 1
                self._beat()

        self.begin(0)
        monkeypatch.setattr(Producer, name, beaten)
        self.allowed = 10_000

    def begin(self, allowed: int) -> None:
        """Lose up to so many pages from now on, and the active one besides."""
        self.lost = self.allowed = 0
        self._beat()
        self.allowed = allowed

    def _beat(self) -> None:
        self._other.rotate()
        self._other.send_many([FULL] * 3)
        if self._how == "sealed":
            self._other.rotate()


EACH = [(way, how, own) for way in WAYS for how in ("filled", "sealed") for own in (False, True)]
PAIRS = [EACH[at] for at in (0, 3, 5, 6, 8, 11, 13, 14)]
"""Each way with both kinds of loss and both timeouts, and each of those with each other."""


@pytest.mark.quick_each(5)
@pytest.mark.parametrize(("way", "how", "own"), slow_but_rows(PAIRS, EACH))
def test_timeout_bounds_a_call_that_loses_each_page_although_there_is_space(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, way: str, how: str, *, own: bool
) -> None:
    """It never waits for space, so that no limit would end it; no message was sent."""
    many = Retention(max_bytes=20_000 * SMALL)
    # Time enough for a hundred pages, during which it is busy; on a busy machine not the first.
    for limit in (0.4, 1.6, 6.4, 20.0):
        timeout, full_timeout = (limit, 60.0) if own else (None, limit)
        with (
            disk.open(retention=many, on_full="block", full_timeout=full_timeout) as queue,
            monkeypatch.context() as patch,
        ):
            first = queue.tail_sequence
            losing = Losing(queue, patch, how)
            began = time.monotonic()
            with pytest.raises(
                QueueFull, match="other senders filled or sealed each page"
            ) as caught:
                WAYS[way](losing.producer, timeout)
            assert limit <= time.monotonic() - began < SOON
            assert caught.value.held_by == ()
            assert LOSSES_MIN <= losing.lost < losing.allowed
            assert queue.tail_sequence == first + 3 * (losing.lost + 1)  # the other's
            if losing.lost > 2 * LOSSES_MIN:
                losing.allowed = losing.lost + 5
                WAYS[way](losing.producer, timeout)
                break
    assert losing.lost > 2 * LOSSES_MIN


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("how", ["filled", "sealed"])
@pytest.mark.parametrize("way", WAYS)
def test_sender_that_does_not_wait_succeeds_among_busy_ones(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, way: str, how: str
) -> None:
    """Some lost pages are no full queue: with room, it sends; but not for ever."""
    many = Retention(max_bytes=20_000 * SMALL)
    with disk.open(retention=many, on_full="block") as queue:
        losing = Losing(queue, monkeypatch, how)
        losing.begin(10)
        WAYS[way](losing.producer, 0)
        losing.begin(10_000)
        with pytest.raises(QueueFull):
            WAYS[way](losing.producer, 0)
        assert 10 < losing.lost < 40
        if way == "send":
            losing.begin(100)
            WAYS[way](losing.producer, None)
            assert losing.lost == 100


def test_tasks_that_wait_for_one_page_have_their_own_deadlines(disk: Disk) -> None:
    """A task that begins later is not ended by the timeout of the one before it."""
    queue, _ = opened(disk, "block", full_timeout=0.6)
    ended: list[float] = []

    async def send(producer: Producer, delay: float) -> None:
        await asyncio.sleep(delay)
        began = time.monotonic()
        with pytest.raises(QueueFull):
            await producer.send_async(FULL)
        ended.append(time.monotonic() - began)

    async def both() -> None:
        producer = queue.producer()
        await asyncio.gather(send(producer, 0.0), send(producer, 0.3))

    with queue:
        assert send_all(queue, 12) == 12
        asyncio.run(both())
        assert all(0.6 <= seconds < SOON for seconds in ended), ended
        assert len(ended) == 2


@pytest.mark.parametrize("closing", ["producer", "queue"])
def test_closing_ends_the_wait_of_another_thread(disk: Disk, closing: str) -> None:
    """It does not wait for consumers, and the sender gets a typed error."""
    queue, _ = opened(disk, "block")
    producer = queue.producer()
    outcome: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                producer.send(FULL)
        except ClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: queue.tail_sequence == 12)
    until_asleep(thread)
    (producer if closing == "producer" else queue).close()
    thread.join(SOON)
    assert len(outcome) == 1
    queue.close()


def test_ctrl_c_ends_the_wait(disk: Disk) -> None:
    """No message was sent, and the queue is whole."""
    queue, _ = opened(disk, "block")
    with queue:
        process = start(send_until_blocked.__name__, disk.directory)
        assert ready(process) == "sending"
        until(lambda: queue.tail_sequence == 12)
        until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        assert json.loads(finish(process)) == ["interrupted", 12]
        assert queue.verify().ok


@pytest.mark.slow
def test_blocked_senders_and_slow_consumers_in_many_processes(tmp_path: Path) -> None:
    """All that was sent is received by each, in order, with never more than the pages allowed."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        for name in ("a", "b"):
            queue.consumer(name).close()
        receivers = [start(ack_slowly.__name__, tmp_path / "q", name, 120) for name in ("a", "b")]
        for receiver in receivers:
            assert ready(receiver) == "open"
        senders = [start(send_until_blocked.__name__, tmp_path / "q", 60) for _ in range(2)]
        for process in (*senders, *receivers):
            finish(process)
        assert [found.next_sequence for found in queue.consumers()] == [120, 120]
        assert queue.head_sequence > 0
        assert len(list((tmp_path / "q").glob("*.page"))) <= 5
        assert queue.verify().ok


def test_sender_continues_when_the_consumer_that_kept_pages_is_removed(disk: Disk) -> None:
    """A killed consumer's name blocks until it is opened again, idle or removed."""
    queue, consumer = opened(disk, "block", full_timeout=LONG)
    with queue:
        consumer.close()
        thread = threading.Thread(target=send_all, args=(queue, 20))
        thread.start()
        until(lambda: queue.tail_sequence == 12)
        queue.remove_consumer("slow")
        thread.join()
        assert queue.tail_sequence == 20


def test_failed_sync_ends_the_wait(disk: Disk) -> None:
    """I5: a latched queue removes no page, so waiting for space would never end."""
    queue, _ = opened(disk, "block")
    with queue:
        thread = threading.Thread(
            target=lambda: (
                until(lambda: queue.tail_sequence == 12) or queue._store.write_meta.latch(5, 1)
            )
        )
        thread.start()
        with pytest.raises(SyncFailed):
            send_all(queue)
        thread.join()
        assert queue.tail_sequence == 12


def test_sender_that_waits_for_room_continues_after_a_failed_sync(disk: Disk) -> None:
    """With `on_sync_failure="seal"`, also if it is a sync of another process that fails."""
    queue, consumer = opened(disk, "block", on_sync_failure="seal", full_timeout=LONG)
    with queue:

        def fail_then_ack() -> None:
            until(lambda: queue.tail_sequence == 12)
            queue._store.write_meta.latch(5, 1)
            until(lambda: not queue.stats().sync_failed)
            for _ in range(20):
                consumer.receive(LONG)
                consumer.ack()

        thread = threading.Thread(target=fail_then_ack)
        thread.start()
        send_all(queue, 20)
        thread.join()
        assert queue.tail_sequence == 20
        assert queue.verify().ok


@pytest.mark.parametrize("policy", ["stop", "seal"])
@pytest.mark.parametrize("on_full", ["raise", "drop_oldest", "block"])
def test_failed_sync_is_not_taken_for_a_full_queue(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, on_full: str, policy: str
) -> None:
    """No page is removed then, though no consumer needs it: the sender continues, or is told."""
    real, left = Trimmer.trim_to, [5]

    def meets(self: Trimmer, store: Store, *args: float, **options: bool) -> TrimReport:
        while left:
            store.write_meta.latch(left.pop(), 1)
        return real(self, store, *args, **options)

    with disk.open(retention=FOUR_PAGES, on_full=on_full, on_sync_failure=policy) as queue:
        queue._store.background.end()
        assert send_all(queue, 12) == 12
        monkeypatch.setattr(Trimmer, "trim_to", meets)
        if policy == "seal":
            assert send_all(queue) == 100
            assert pages_of(disk) <= 4
        else:
            with pytest.raises(SyncFailed):
                send_all(queue)
        assert not left
        assert queue.verify().ok == (policy == "seal")


@pytest.mark.parametrize("payload", [FULL, 4 * FULL], ids=["small", "large"])
@pytest.mark.parametrize(
    "failing",
    [(Directory, "sync"), (trimmer, "sync_state"), (trimmer, "sync_header")],
    ids=["names", "head", "header"],
)
def test_sender_continues_after_a_failed_sync_of_a_trim(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, failing: tuple[object, str], payload: bytes
) -> None:
    """With `on_sync_failure="seal"` it is not told of one that fails while it makes room."""
    left = [errno.EIO]

    def fails(*args: object, **more: object) -> object:
        if left:
            raise OSError(left.pop(), "failed")
        return real(*args, **more)

    with (
        disk.open(retention=FOUR_PAGES, on_sync_failure="seal") as queue,
        queue.producer() as producer,
    ):
        queue._store.background.end()
        assert send_all(queue, 12) == 12
        real = getattr(*failing)
        monkeypatch.setattr(*failing, fails)
        assert producer.send(payload) == 12
        assert not left
        assert producer.flush() == 13
        assert queue.verify().ok


def test_invalid_options_are_refused(disk: Disk) -> None:
    """Before anything is made."""
    for wrong in ({"on_full": "wait"}, {"full_timeout": -1}, {"full_timeout": float("nan")}):
        with pytest.raises(InvalidOption):
            disk.open(**wrong)
    for other in ({}, {"max_bytes": 1 << 20}, 1 << 20):
        with pytest.raises(TypeError, match="must be a Retention"):
            disk.open(retention=other)
    assert not disk.directory.exists()


def test_error_names_a_few_of_many_that_keep_pages(disk: Disk) -> None:
    """All of them are in its attribute."""
    queue, consumer = opened(disk, "raise")
    consumer.close()
    with queue:
        for number in range(9):
            queue.consumer(f"n{number}").close()
        send_all(queue)
        with pytest.raises(QueueFull) as caught:
            queue.rotate()
    assert len(caught.value.held_by) == 10
    assert "'n4' and 5 more, which no process has open, so the message was not sent" in str(
        caught.value
    )


def test_killed_receiver_process_keeps_its_pages(disk: Disk) -> None:
    """Its cursor holds them; the next consumer of that name receives them."""
    queue, consumer = opened(disk, "raise")
    consumer.close()
    with queue:
        process = start(ack_slowly.__name__, disk.directory, "slow", 10**6)
        assert ready(process) == "open"
        end(process)
        assert send_all(queue) == 12
        with queue.consumer("slow") as again:
            received: list[int] = []
            while len(received) < 12:
                received += [message.sequence for message in again.receive_many(timeout=0)]
            assert received == list(range(12))
