"""Pages that stay mapped for seeks: what is found there, and when they are unmapped."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SMALL, Clock, until
from tiers import examples

from pagequeue import ForkedError, Queue, Retention, errors
from pagequeue import format as fmt
from pagequeue.store import page_cache
from pagequeue.store import store as store_module
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pagequeue import Consumer
    from pagequeue.page.page import Page

COUNT = 60
START, STEP = 1_000, 10


def fill(queue: Queue, count: int = COUNT, first: int = 0) -> None:
    """Send messages, three to a page, one each 10 ns."""
    with queue.producer() as producer:
        for i in range(first, first + count):
            producer.send(b"%d" % i + b"." * 1000, timestamp=START + STEP * i)


def visit(consumer: Consumer, count: int = COUNT) -> None:
    """Go to each message by its time, from the last one to the first, and read it."""
    for i in reversed(range(count)):
        consumer.seek(since=START + STEP * i - 3)
        assert consumer.receive(0).sequence == i


def maps(queue: Queue) -> list[str]:
    """Return the mapped page files of a queue, each as often as it is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f"{queue.directory}/" in line and ".page" in line]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Return a queue of 20 pages, at which no worker looks, however slow the test is."""
    monkeypatch.setattr(page_cache, "KEEP_SECONDS", 3600.0)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(5)) as queue:
        fill(queue)
        assert queue.info().page_count == 20
        yield queue


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of each page that is mapped."""
    numbers: list[int] = []
    open_page = store_module.open_page

    def counting(*args: object) -> object:
        numbers.append(args[3])  # type: ignore[arg-type]
        return open_page(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "open_page", counting)
    return numbers


def test_page_is_mapped_once_for_many_seeks(queue: Queue, opened: list[int]) -> None:
    """Seeks by time and by number go to pages that stay mapped; reading on from them works."""
    with queue.consumer() as consumer:
        visit(consumer)
        opened.clear()
        visit(consumer)
        for i in range(COUNT):
            consumer.seek(sequence=i)
            assert consumer.receive(0).sequence == i
        assert opened == []
        consumer.seek(since=START)
        assert [consumer.receive(0).sequence for _ in range(COUNT)] == list(range(COUNT))
        consumer.seek(since=START + STEP * COUNT)
        assert consumer.poll() is None


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 2, 1_000_000]), min_size=1, max_size=150),
    size=st.sampled_from([1, 1000]),
    seed=st.integers(0, 99),
)
def test_known_pages_and_the_long_way_agree(steps: list[int], size: int, seed: int) -> None:
    """I6: with equal times over page ends, and times at no steady pace."""
    times = np.cumsum([1, *steps]).tolist()[1:]
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as base,
        Queue(f"{base}/q", page_bytes=SMALL, clock=Clock(0)) as queue,
    ):
        with queue.producer() as producer:
            for timestamp in times[:-1]:
                producer.send(b"." * size, timestamp=timestamp)
        with queue.consumer() as consumer:
            for turn in range(60):
                if turn == 40:  # more in the active page, or after it
                    with queue.producer() as producer:
                        producer.send(b"." * size, timestamp=times[-1])
                there = times if turn >= 40 else times[:-1]
                since = chance.choice(times) + chance.choice([-1, 0, 0, 1])
                consumer.seek(since=since)
                message = consumer.poll()
                found = len(there) if message is None else message.sequence
                assert found == bisect_left(there, since)


def test_time_after_a_roll_is_in_the_new_page(queue: Queue) -> None:
    """The page that was active is known as that, and its messages are counted again."""
    with queue.consumer() as consumer:
        visit(consumer)
        for first in range(COUNT, 3 * COUNT):
            fill(queue, 1, first)
            for i in (first, first - 1, first - 4):
                consumer.seek(since=START + STEP * i - 3)
                assert consumer.receive(0).sequence == i


def test_retired_page_is_not_served(queue: Queue) -> None:
    """What retention of another handle removed is not found any more, and its map goes."""
    retention = Retention(max_bytes=6 * SMALL)
    with queue.consumer() as consumer, Queue(queue.directory, retention=retention) as other:
        visit(consumer)
        other.trim()
        head = queue.head_sequence
        assert head > 20
        for since in (START + 5, START + STEP * (head - 1), START + STEP * head):
            consumer.seek(since=since)
            assert consumer.receive(0).sequence == head
        assert queue._store.pages.trim()
        until(lambda: len(maps(queue)) <= 20 - head // 3 + 2)


def test_replaced_page_is_not_served(queue: Queue) -> None:
    """The old file of a compressed page keeps its blocks no longer than until the next look."""
    with queue.consumer() as consumer, Queue(queue.directory) as other:
        visit(consumer)
        assert other.compress().pages
        queue._store.pages.trim()
        assert list(queue._store.pages) == [20]
        until(lambda: len(maps(queue)) <= 3)  # the active page twice, and the consumer's
        visit(consumer)
        assert queue._store.page(5).is_compressed


def test_old_file_that_lost_data_is_mapped_again(queue: Queue) -> None:
    """After a failed sync another file has the page: what is wrong in the old one is not damage."""
    name = fmt.page_name("queue", 5)
    path = Path(queue.directory, name)
    with queue.consumer() as consumer:
        visit(consumer)
        shutil.copy(path, path.with_name("copy"))
        with path.open("r+b") as old:
            os.rename(path.with_name("copy"), path)
            old.seek(fmt.PAGE_HEADER_BYTES)
            old.write(b"\xff" * 3000)
        for sequence in (14, 13, 12):
            consumer.seek(since=START + STEP * sequence)
            assert consumer.receive(0).sequence == sequence
            consumer.seek(sequence=sequence)
            assert consumer.receive(0).sequence == sequence


def test_wrong_index_of_a_known_page_is_rebuilt(queue: Queue) -> None:
    """I6: an index is only a hint, also one that led to the right place before."""
    with queue.consumer() as consumer:
        visit(consumer)
        for number in range(1, 21):
            noise = random.Random(number).randbytes(36)
            overwrite(Path(queue.directory, fmt.index_name("queue", number)), 0, noise)
        visit(consumer)


def test_damage_in_a_known_page_is_told(queue: Queue) -> None:
    """I2: a message that is damaged after it was found once is not found again."""
    with queue.consumer() as consumer:
        visit(consumer)
        overwrite(Path(queue.directory, fmt.page_name("queue", 5)), 3000, b"\xff" * 40)
        with pytest.raises(errors.CorruptFrame, match="0000000005"):
            visit(consumer)


def test_unused_pages_are_let_go(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that seeks no more has few pages mapped some seconds later."""
    monkeypatch.setattr(page_cache, "KEEP_SECONDS", 0.02)
    with queue.consumer() as consumer:
        visit(consumer)
        until(lambda: len(maps(queue)) <= page_cache.RECENT_PAGES + 3)
        visit(consumer)
        # Nor is another look due then.
        until(
            lambda: (
                queue._store.background._repeated.seconds_left() is None
                and len(queue._store.pages.table[1]) <= page_cache.RECENT_PAGES
            )
        )


def test_used_pages_stay(queue: Queue, opened: list[int]) -> None:
    """A look drops only the pages that no seek has used since the last one."""
    with queue.consumer() as consumer:
        visit(consumer)
        for _ in range(3):
            queue._store.pages.trim()
            for i in (4, 31):
                consumer.seek(since=START + STEP * i)
        assert set(queue._store.pages) >= {2, 11}
        assert len(set(queue._store.pages)) <= page_cache.RECENT_PAGES + 2
        opened.clear()
        consumer.seek(since=START + STEP * 4)
        consumer.seek(sequence=31)
        assert opened == []


def test_page_that_is_found_while_the_queue_is_closed_is_not_kept(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing empties what is kept; a seek of another thread can end after that."""
    store = queue._store
    keep = page_cache.PageCache.keep

    def late(cache: page_cache.PageCache, page: Page) -> None:
        queue.close()
        keep(cache, page)

    monkeypatch.setattr(page_cache.PageCache, "keep", late)
    with pytest.raises(errors.ClosedError):
        queue.consumer(sequence=4)
    assert list(store.pages) == []
    until(lambda: maps(queue) == [])


def test_pages_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more pages than the bound stay mapped, and what is in the others is found."""
    monkeypatch.setattr(page_cache, "SOUGHT_PAGES", 6)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(5)) as queue:
        fill(queue)
        with queue.consumer() as consumer:
            visit(consumer)
            visit(consumer)
            assert len(queue._store.pages.table[1]) <= 6
            until(lambda: len(maps(queue)) <= 6 + page_cache.RECENT_PAGES + 3)


def test_reading_through_keeps_no_page_that_was_passed(queue: Queue) -> None:
    """A page that a reader has left is unmapped: its memory would count as the reader's.

    That is so for the page where it was made, too, to which no other seek went.
    """
    queue._store.pages.clear()
    with queue.consumer(sequence=4) as consumer:
        for i in range(4, COUNT):
            assert consumer.receive(0).sequence == i
        assert set(queue._store.pages) <= {20}
        until(lambda: len(maps(queue)) <= 2)  # the active page, by the fixture's producer too


def test_pages_are_let_go_when_the_system_gives_no_more_maps(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address space and maps are bounded: other uses come before pages that may be sought again."""
    open_page = store_module.open_page

    def short(*args: object) -> object:
        if len(list(queue._store.pages)) > 8:
            raise errors.SystemLimit("no more maps", remedy="raise the limit")
        return open_page(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "open_page", short)
    with queue.consumer() as consumer:
        visit(consumer)
        assert len(list(queue._store.pages)) <= 9


@pytest.mark.parametrize("is_busy", [False, True])
def test_child_of_a_fork_keeps_no_page(queue: Queue, is_busy: bool) -> None:
    """Its copies of the maps would keep the files of removed pages for as long as it lives.

    So would those that wait in the parent's worker to be unmapped.
    """
    begun, done = threading.Event(), threading.Event()
    if is_busy:
        queue._store.background.submit(lambda: (begun.set(), done.wait(60)))
        assert begun.wait(60)
    with queue.consumer() as consumer:
        visit(consumer)
        assert len(maps(queue)) >= 20
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.seek(since=START)
            except ForkedError:
                code = 0 if len(maps(queue)) <= 3 else 2
            finally:
                os._exit(code)
        done.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        visit(consumer)


@pytest.mark.parametrize("since", [-(1 << 63) - 1, -(1 << 70), 1 << 63, 1 << 70])
def test_time_outside_of_64_bits_is_the_same_error_where_pages_are_known(
    queue: Queue, since: int
) -> None:
    """A typed one, as before any page is known."""
    with queue.consumer() as consumer:
        visit(consumer)
        with pytest.raises(errors.InvalidOption, match="outside of 64 bits"):
            consumer.seek(since=since)


def came_in(point: int, do: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Call a handler before the nth instruction of the cache in a call; whether it has so many."""
    left = point

    def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as in Python's docs
        nonlocal left
        if frame.f_code.co_filename != page_cache.__file__:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            left = -1
            sys.settrace(None)
            handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return left < 0


@pytest.mark.slow
def test_signal_handler_that_seeks_may_come_in_anywhere(queue: Queue) -> None:
    """What the interrupted seek had begun to change is another thing then."""
    pages = queue._store.pages
    pages._sought_max = page_cache.RECENT_PAGES + 1
    with queue.consumer() as consumer, queue.consumer() as other:

        def seek(i: int) -> None:
            for _ in range(2):
                consumer.seek(since=START + STEP * i)
                assert consumer.receive(0).sequence == i
                consumer.seek(sequence=i)
                assert consumer.receive(0).sequence == i

        def handler() -> None:
            for i in (3, 9, 15, 21, COUNT - 1):
                other.seek(since=START + STEP * i)
                assert other.receive(0).sequence == i
            for _ in range(2):  # the second one drops all
                pages.trim()

        for i in (30, COUNT - 2):
            point = 1
            while True:
                for known in (6, 12, 18):
                    other.seek(since=START + STEP * known)
                if not came_in(point, lambda i=i: seek(i), handler):
                    break
                point += 1
            assert point > 100
