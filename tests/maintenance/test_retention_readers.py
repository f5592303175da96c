"""Readers inside pages that retention removes: they finish, and none skips a message."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from retaining import KEEP_TWO, fill, only_by_hand
from support import (
    LONG,
    SMALL,
    end,
    ready,
    send_and_trim_for_ever,
    start,
)

from pagequeue import (
    Consumer,
    Expired,
    Queue,
    Retention,
    SequenceOutOfRange,
    verify_queue,
)
from pagequeue.store.store import Store

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from plugin import Disk

    from pagequeue.meta.write_meta import Tail

WALKS = 40
JUST_NOW = timedelta(microseconds=1)


def test_reader_inside_a_retired_page_finishes_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its map stays; then it learns where the head is."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        consumer, replay, until_head = queue.consumer(), queue.replay(), queue.consumer(sequence=6)
        next(replay)
        queue.trim()
        assert [m.sequence for m in consumer.receive_many()] == [0, 1, 2]
        for read in (consumer.poll, lambda: list(replay)):
            with pytest.raises(Expired) as caught:
                read()
            assert caught.value.head_sequence == 9
        # The page after page 3 is the head now: no message was missed.
        assert [until_head.receive().sequence for _ in range(9)] == list(range(6, 15))
        with pytest.raises(Expired):
            queue.consumer(sequence=8)
        assert queue.consumer(since=0).receive().sequence == 9
        assert queue.last(100).sequences.tolist() == list(range(9, 15))


@pytest.mark.slow
def test_head_and_its_sequence_are_read_consistently(tmp_path: Path) -> None:
    """I12: however fast the head moves, no reader mixes two heads."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        fill(queue, 300, each=1)
        meta = queue._store.read_meta
        firsts = {
            n: queue._store.first_sequence(n) for n in range(1, queue._store.tail.page_number)
        }
        with Queue(tmp_path / "q", read_only=True) as other:
            seen: list[tuple[int, int]] = []
            stop = threading.Event()

            def poll() -> None:
                while not stop.is_set():
                    seen.append(other._store.head)

            thread = threading.Thread(target=poll)
            thread.start()
            for number in range(2, max(firsts) + 1):
                meta.advance(firsts[number])
                time.sleep(0)
            stop.set()
            thread.join()
        assert all(firsts[number] == sequence for number, sequence in seen)
        assert meta.head == (max(firsts), firsts[max(firsts)])


def walk_all_pages(queue: Queue, random_: random.Random) -> None:
    """Use everything that walks over pages; only `Expired` may come, and never at the head."""
    head = queue.head_sequence
    assert len(queue) >= 0
    found = [message.sequence for message in queue.last(5)]
    assert found == list(range(found[0], found[0] + len(found))) if found else True
    for choice in (
        lambda: next(iter(queue.replay(sequence=head)), None),
        lambda: [batch.sequences[0] for batch in queue.batches()],
        lambda: list(queue.replay(since=timedelta(milliseconds=random_.randrange(50)))),
        lambda: queue.consumer(sequence=random_.randrange(head, head + 40)).poll(),
    ):
        passed = None
        with contextlib.suppress(SequenceOutOfRange):  # after the tail
            try:
                choice()
            except Expired as error:
                passed = error
        assert passed is None or passed.head_sequence >= head
    assert queue.consumer().sequence >= head
    assert queue.consumer(since=0).sequence >= head
    info = queue.info()
    assert info.head_sequence >= head
    assert info.message_count == info.tail_sequence - info.head_sequence >= 0
    assert verify_queue(queue.directory).problems == []


@pytest.mark.slow
def test_readers_race_with_rolls_and_retention(tmp_path: Path, chance: random.Random) -> None:
    """I12: in threads and processes, no reader sees a gap, a missing page or a wrong head."""
    Queue(tmp_path / "q", page_bytes=SMALL).close()
    processes = [start(send_and_trim_for_ever.__name__, tmp_path / "q") for _ in range(2)]
    for process in processes:
        assert ready(process) == "sending"
    failed: list[BaseException] = []
    stop = threading.Event()

    def follow(consumer: Consumer) -> None:
        try:
            expected = consumer.sequence
            while not stop.is_set():
                before = consumer.missed
                message = consumer.receive(LONG)
                expected += consumer.missed - before
                assert message.sequence == expected
                expected += 1
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    with (
        Queue(tmp_path / "q") as queue,
        Queue(tmp_path / "q", read_only=True) as reading,
    ):
        threads = [
            threading.Thread(target=follow, args=(handle.consumer(on_expired="skip"),))
            for handle in (queue, reading)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(WALKS):
                walk_all_pages(chance.choice([queue, reading]), chance)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for process in processes:
                end(process)
        assert failed == []
        assert queue.head_sequence > 0
        assert queue.verify().problems == []


def pass_the_tail(queue: Queue) -> None:
    """Have retention remove all that is there, and send one message more."""
    for _ in range(2):
        queue.producer().send(b"b")
        queue.rotate()
    queue.trim()
    queue.producer().send(b"b")


def test_times_while_retention_passes_the_tail_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new head comes after that tail, and has no next page: the call begins again."""
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=Retention(max_age=JUST_NOW)) as queue:
        queue.producer().send(b"a")
        find = Store.page_of_sequence

        def after(store: Store, sequence: int) -> int:
            monkeypatch.undo()
            pass_the_tail(queue)
            return find(store, sequence)

        monkeypatch.setattr(Store, "page_of_sequence", after)
        assert queue.times()[0].tolist() == [queue.head_sequence] == [3]


def test_as_of_while_retention_passes_the_tail_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is taken before the tail, so that there is always a page between them."""
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=Retention(max_age=JUST_NOW)) as queue:
        queue.producer().send(b"a")
        seen = Store.tail.fget
        assert seen is not None

        def before(store: Store) -> Tail:
            tail = seen(store)
            monkeypatch.undo()
            pass_the_tail(queue)
            return tail

        monkeypatch.setattr(Store, "tail", property(before))
        assert queue.as_of((1 << 63) - 1) == 3
