"""Killed and stopped processes: no acknowledged message is lost, no process waits for ever."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import (
    LONG,
    SMALL,
    SOON,
    end,
    hold_file_lock,
    hold_writers_lock,
    payloads,
    ready,
    send_for_ever,
    start,
    until,
)

from pagequeue import LockTimeout, Queue, RetryError, _core
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

ROUNDS = 12
needs_mutex = pytest.mark.skipif(
    _core.LOCK_NEEDS_FD == 1, reason="the lock of this system is not a mutex"
)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of small pages whose locks are not waited for long."""
    with Queue(tmp_path / "q", page_bytes=SMALL, lock_timeout=0.3) as queue:
        yield queue


@pytest.mark.slow
def test_producers_killed_while_sending_lose_no_message_and_block_no_process(
    queue: Queue, tmp_path: Path, chance: random.Random
) -> None:
    """I1, I3, I8: acknowledged messages exist once, in order, and the next send works."""
    acked = tmp_path / "acked"
    consumer = queue.consumer()
    expected: dict[bytes, tuple[int, int]] = {}
    with Queue(queue.directory) as own, own.producer() as producer:
        for i in range(ROUNDS):
            batch = (1, 1, 7)[i % 3]
            acked.write_bytes(bytes(8))
            victim = start(send_for_ever.__name__, queue.directory, acked, batch)
            ready(victim)
            time.sleep(chance.random() * 0.03)
            end(victim)
            assert victim.returncode == -signal.SIGKILL
            producer.send(b"next:%d:" % i)
            expected[b"%d" % victim.pid] = int.from_bytes(acked.read_bytes(), "little"), batch
    seen: dict[bytes, list[int]] = {}
    while consumer.lag:
        for message in consumer.receive_many(500, 0):
            who, number, _ = message.payload.split(b":", 2)
            seen.setdefault(who, []).append(int(number))
    assert seen.pop(b"next") == list(range(ROUNDS))
    assert seen.keys() == expected.keys()
    for who, (count, batch) in expected.items():
        assert seen[who] == list(range(len(seen[who])))
        assert len(seen[who]) in {count, count + batch}
    assert queue.verify().ok


def test_queue_of_killed_producers_opens_again(queue: Queue, tmp_path: Path) -> None:
    """I3: the next opener settles what a dead holder published, without a scan."""
    acked = tmp_path / "acked"
    queue.close()
    sent = 0
    for _ in range(3):
        acked.write_bytes(bytes(8))
        victim = start(send_for_ever.__name__, queue.directory, acked, 3)
        ready(victim)
        until(lambda: int.from_bytes(acked.read_bytes(), "little") > 9)
        end(victim)
        sent += int.from_bytes(acked.read_bytes(), "little")
        with Queue(queue.directory, create=False) as again:
            assert not again.recovery.scanned
            assert 0 <= len(again) - sent <= 3
            sent = len(again)
            assert again.producer().send(b"more") == sent
            sent += 1
            assert again.verify().ok


@needs_mutex
@pytest.mark.parametrize("stop", [False, True])
def test_stopped_holder_of_the_writers_lock_is_a_typed_error_not_a_hang(
    queue: Queue, *, stop: bool
) -> None:
    """A lock is never stolen: a send times out with the reason, and has sent no message."""
    with queue.producer() as producer:
        producer.send(b"before")
        holder = start(hold_writers_lock.__name__, queue.directory, stop=stop)
        try:
            ready(holder)
            for call in (
                lambda: producer.send(b"lost"),
                lambda: producer.send_many([b"lost", b"lost"]),
                queue.rotate,
            ):
                begun = time.monotonic()
                with pytest.raises(LockTimeout, match="look for a stopped process") as caught:
                    call()
                assert 0.3 <= time.monotonic() - begun < SOON
                assert caught.value.path == queue.directory
                assert isinstance(caught.value, RetryError)
                assert isinstance(caught.value, TimeoutError)
            assert payloads(queue.replay()) == [b"before"]
            assert queue.consumer().receive(0).payload == b"before"
            producer.flush()
        finally:
            end(holder)
        begun = time.monotonic()
        assert producer.send(b"after") == 1
        assert time.monotonic() - begun < SOON
    assert payloads(queue.replay()) == [b"before", b"after"]
    assert queue.verify().ok


@needs_mutex
@pytest.mark.parametrize("lock_timeout", [float("inf"), 1e300, 1e10])
def test_endless_lock_timeout_waits_until_the_holder_has_exited(
    queue: Queue, lock_timeout: float
) -> None:
    """No number of seconds turns into no wait at all."""
    with Queue(queue.directory, lock_timeout=lock_timeout) as own, own.producer() as producer:
        producer.send(b"before")
        holder = start(hold_writers_lock.__name__, queue.directory)
        ready(holder)
        begun = time.monotonic()
        timer = threading.Timer(0.3, holder.kill)
        timer.start()
        try:
            assert producer.send(b"after") == 1
            assert time.monotonic() - begun > 0.2
        finally:
            timer.join()
            end(holder)


def test_opening_while_another_process_recovers_for_too_long_times_out(queue: Queue) -> None:
    """A stopped recovery stops an opener for no longer than its timeout; then it can go on."""
    queue.close()
    holder = start(hold_file_lock.__name__, f"{queue.directory}/queue.lock")
    try:
        ready(holder)
        begun = time.monotonic()
        with pytest.raises(LockTimeout, match=r"queue\.lock.*opening the queue.*call again"):
            Queue(queue.directory, lock_timeout=0.3)
        assert 0.3 <= time.monotonic() - begun < SOON
        with Queue(queue.directory, read_only=True) as reading:
            assert reading.consumer().poll() is None
    finally:
        end(holder)
    Queue(queue.directory, lock_timeout=0.3).close()


@pytest.mark.parametrize("left", ["after a power cut", "before the meta files"])
def test_opener_that_waited_for_a_recovery_that_was_killed_does_it_itself(
    queue: Queue, left: str
) -> None:
    """I3, I5: the next opener finds a killed recovery or creation unfinished, and completes it."""
    with queue.producer() as producer:
        producer.send(b"before")
    queue.close()
    pretend_power_cut(queue.directory)
    if left == "before the meta files":
        for name in ("queue-writeMeta", "queue-readMeta"):
            Path(queue.directory, name).unlink()
    holder = start(hold_file_lock.__name__, f"{queue.directory}/queue.lock")
    ready(holder)
    timer = threading.Timer(0.2, holder.kill)
    timer.start()
    try:
        with Queue(queue.directory, lock_timeout=LONG) as again:
            assert again.recovery.scanned
            assert again.producer().send(b"after") == 1
            assert payloads(again.replay()) == [b"before", b"after"]
    finally:
        timer.join()
        end(holder)
