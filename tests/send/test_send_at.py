"""Compare and append: `at` is compared under the writers' lock; a mismatch writes no byte."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import SMALL, count_up, files, finish, payloads, start, until

from pagequeue import (
    ClosedError,
    InvalidOption,
    Overtaken,
    Queue,
    RetryError,
    TimestampOrder,
    _core,
)
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Producer

LATE = 10**18
RECORD = np.dtype([("number", "<i4")])
WAYS: dict[str, tuple[int, Callable[[Producer, int], Any]]] = {
    "send": (1, lambda producer, at: producer.send(b"one", at=at)),
    "send with a time": (1, lambda producer, at: producer.send(b"", timestamp=LATE, at=at)),
    "send_many": (2, lambda producer, at: producer.send_many([b"one", b"two"], at=at)),
    "spans": (2, lambda producer, at: producer.send_many(np.array([b"one", b"two"]), at=at)),
    "rows": (2, lambda producer, at: producer.send_many(np.zeros(2, "V30"), at=at)),
    "times": (2, lambda producer, at: producer.send_many([b"", b""], timestamps=[LATE] * 2, at=at)),
    "send_async": (1, lambda producer, at: asyncio.run(producer.send_async(b"one", at=at))),
    "send_many_async": (
        2,
        lambda producer, at: asyncio.run(producer.send_many_async(iter([b"one", b""]), at=at)),
    ),
}
COUNTERS, COUNTS = 3, 150


@pytest.mark.parametrize("way", WAYS)
def test_message_is_sent_at_the_next_sequence_only(queue: Queue, way: str) -> None:
    """I21: it gets that sequence; else `Overtaken` carries the next one, and no byte changes."""
    count, send = WAYS[way]
    with queue.producer() as producer:
        for at in range(0, 3 * count, count):
            sent = send(producer, at)
            assert sent == (at if count == 1 else range(at, at + count))
            before = files(queue.directory)
            for wrong in {0, at, at + count - 1, at + count + 1, 2**63 - 1}:
                with pytest.raises(Overtaken) as raised:
                    send(producer, wrong)
                assert raised.value.tail_sequence == at + count
                assert raised.value.path == queue.directory
                assert isinstance(raised.value, RetryError)
            assert files(queue.directory) == before
    assert len(queue) == 3 * count
    assert queue.verify().ok


@pytest.mark.parametrize(
    ("options", "item", "items"),
    [
        ({"codec": "json"}, {"a": 1}, [[1], "two"]),
        ({"codec": "utf-8"}, "one", ["one", "two"]),
        ({"dtype": RECORD}, np.array([(3,)], RECORD)[0], np.array([(1,), (2,)], RECORD)),
    ],
    ids=["json", "text", "records"],
)
def test_producers_of_codecs_and_records_compare_as_well(
    tmp_path: Path, options: dict[str, Any], item: object, items: object
) -> None:
    """I21: what encodes the messages makes no difference."""
    with Queue(tmp_path, **options) as queue, queue.producer() as producer:
        assert producer.send(item, at=0) == 0
        assert producer.send_many(items, at=1) == range(1, 3)
        for send in (producer.send, producer.send_many):
            with pytest.raises(Overtaken) as raised:
                send(item if send == producer.send else items, at=1)
            assert raised.value.tail_sequence == len(queue) == 3


def test_no_messages_are_compared_too(queue: Queue) -> None:
    """An empty batch is where the queue ends, or is overtaken."""
    with queue.producer() as producer:
        assert producer.send_many([], at=0) == range(0)
        producer.send(b"one", at=None)
        assert producer.send_many([], at=1) == range(1, 1)
        with pytest.raises(Overtaken) as raised:
            producer.send_many([], at=0)
        assert raised.value.tail_sequence == 1


@pytest.mark.parametrize("send", ["send", "send_many", "send_async", "send_many_async"])
def test_value_that_is_not_a_sequence_is_refused(queue: Queue, send: str) -> None:
    """No message is sent; every integer type is accepted."""
    single = send in {"send", "send_async"}
    with queue.producer() as producer:

        def call(at: object) -> object:
            sent = getattr(producer, send)(b"one" if single else [b"one"], at=at)
            return asyncio.run(sent) if "async" in send else sent

        for wrong in (-1, 2**63, 10**30, -(10**30)):
            with pytest.raises(InvalidOption, match="give a sequence, from 0 to"):
                call(wrong)
        for nonsense in ("0", 0.0, b"0"):
            with pytest.raises(TypeError):
                call(nonsense)
        with pytest.raises(
            TypeError, match="no keyword 'sequence', only timestamp, at and timeout"
        ):
            producer.send(b"one", sequence=0)
        assert len(queue) == 0
        assert call(np.int64(0)) == (0 if single else range(1))


def test_other_errors_are_unchanged(queue: Queue) -> None:
    """Being overtaken comes before an old timestamp, for messages of any size."""
    producer = queue.producer()
    producer.send(b"", timestamp=LATE)
    with pytest.raises(Overtaken):
        producer.send(bytes(SMALL), at=0)
    with pytest.raises(Overtaken):
        producer.send(b"", timestamp=1, at=0)
    with pytest.raises(TimestampOrder):
        producer.send(b"", timestamp=1, at=1)
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(b"", at=0)


def test_sequence_is_compared_after_rolling_too(queue: Queue) -> None:
    """I21: a page that is full, or that another producer rolled, makes no difference."""
    with queue.producer() as one, queue.producer() as two:
        for at in range(0, 40, 2):
            assert one.send(b"x" * 1300, at=at) == at
            assert two.send(b"x" * 1300, at=at + 1) == at + 1
            with pytest.raises(Overtaken) as raised:
                one.send(b"x" * 1300, at=at + 1)
            assert raised.value.tail_sequence == at + 2
    assert queue.info().page_count > 10


def test_what_takes_several_pages_compares_too(queue: Queue) -> None:
    """I21, I23: large messages and batches of several pages, of which one at a place succeeds."""
    large = bytes(3 * SMALL)
    won: list[int] = []

    def race() -> None:
        with queue.producer() as producer:
            for at in range(5, 11):
                until(lambda wanted=at: queue.tail_sequence >= wanted)
                try:
                    won.append(producer.send(large, at=at))
                except Overtaken:
                    continue

    with queue.producer() as producer:
        assert producer.send(large, at=0) == 0
        assert producer.send_many([b"x" * 3000] * 4, at=1) == range(1, 5)
        for send in (
            lambda: producer.send(large, at=1),
            lambda: producer.send_many([b"x" * 3000] * 4, at=6),
            lambda: asyncio.run(producer.send_async(large, at=4)),
        ):
            with pytest.raises(Overtaken) as raised:
                send()
            assert raised.value.tail_sequence == 5
        threads = [threading.Thread(target=race) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(won) == list(range(5, 11))
    assert len(queue) == 11
    assert queue.verify().ok


def test_messages_of_a_producer_that_died_count(queue: Queue) -> None:
    """I3, I21: one that died between publishing and advancing the tail has sent its message."""
    meta = internals(queue).store.write_meta.region
    with queue.producer() as producer:
        producer.send(b"one")
        before = _core.tail(meta)
        producer.send(b"two")
        _core.set_tail(meta, before)
        with pytest.raises(Overtaken) as raised:
            producer.send(b"three", at=1)
        assert raised.value.tail_sequence == 2
        assert producer.send(b"three", at=2) == 2
    assert payloads(queue.replay()) == [b"one", b"two", b"three"]


def test_a_task_that_waited_for_a_page_is_compared_when_it_sends(queue: Queue) -> None:
    """I21: of the tasks that wait for one page, each with the same `at`, one sends."""
    sent, overtaken = [], []

    async def send(producer: Producer, name: bytes, at: int) -> None:
        try:
            sent.append(await producer.send_async(name * 1300, at=at))
        except Overtaken as error:
            overtaken.append(error.tail_sequence)

    async def main(producer: Producer) -> None:
        for at in range(10):  # every third one has to make a page
            await asyncio.gather(*(send(producer, name, at) for name in (b"a", b"b", b"c")))

    with queue.producer() as producer:
        asyncio.run(main(producer))
    assert sent == list(range(10))
    assert overtaken == [at + 1 for at in range(10) for _ in range(2)]


def test_threads_and_processes_that_count_up_lose_no_step(tmp_path: Path) -> None:
    """I21: read the last message, send one more at the next sequence; each step counts once."""
    with Queue(tmp_path, page_bytes=SMALL) as queue:
        queue.producer().send(b"0")
        others = [start(count_up.__name__, tmp_path, COUNTS) for _ in range(COUNTERS)]
        threads = [threading.Thread(target=count_up, args=(tmp_path, COUNTS)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for other in others:
            finish(other)
        steps = COUNTS * (COUNTERS + len(threads))
        assert payloads(queue.replay()) == [b"%d" % i for i in range(steps + 1)]
