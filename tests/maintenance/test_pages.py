"""Pages, one by one, and what a rotation seals."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import SMALL, SOON, Clock, payloads
from tiers import examples

from pagequeue import (
    ClosedError,
    CorruptPage,
    MissingPage,
    PageInfo,
    Queue,
    QueueFull,
    ReadOnlyQueue,
    Retention,
    Sealed,
)
from pagequeue import format as fmt
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from plugin import Disk

THIRD = b"x" * 1300
"""Three fit into a page of 4096 bytes."""


def brief(page: PageInfo) -> tuple[int, str, range]:
    """Return what identifies a page."""
    return page.number, page.state, range(page.first_sequence, page.end_sequence)


def test_pages_have_their_sequences_times_and_files(disk: Disk) -> None:
    """The timestamps are those of the first and last message; the path is the file's."""
    with disk.open() as queue, queue.producer() as producer:
        (page,) = queue.pages()
        assert brief(page) == (1, "active", range(0))
        assert (page.first_timestamp, page.last_timestamp) == (None, None)
        for _ in range(8):
            producer.send(THIRD)
        found = queue.pages()
        assert list(map(brief, found)) == [
            (1, "sealed", range(3)),
            (2, "sealed", range(3, 6)),
            (3, "active", range(6, 8)),
        ]
        times = [message.timestamp for message in queue.replay()]
        for page in found:
            assert page.first_timestamp == times[page.first_sequence]
            assert page.last_timestamp == times[page.end_sequence - 1]
            assert Path(page.path) == disk.directory / fmt.page_name("queue", page.number)
            assert (page.bytes, page.compressed) == (SMALL, False)
        with Queue(disk.directory, read_only=True) as reader:
            assert reader.pages() == found
        with pytest.raises(ClosedError):
            reader.pages()


def test_compressed_pages_have_the_size_of_their_files(tmp_path: Path) -> None:
    """The rest stays as it was."""
    pytest.importorskip("zstandard", reason="the extra zstd is not installed")
    with Queue(tmp_path, page_bytes=SMALL, clock=Clock(10**9, 7)) as queue:
        queue.producer().send_many([b"x" * 900] * 3)
        queue.rotate()
        queue.producer().send(b"y")
        before = queue.pages()
        queue.compress()
        after = queue.pages()
        assert after[0].compressed and not after[1].compressed  # noqa: PT018
        assert after[0].bytes == Path(after[0].path).stat().st_size < SMALL
        assert brief(after[0]) == brief(before[0])
        assert after[0].first_timestamp == before[0].first_timestamp
        assert after[0].last_timestamp == before[0].last_timestamp
        assert after[1] == before[1]


def test_pages_without_messages_have_no_times(queue: Queue) -> None:
    """A bulk commit adds an empty page where its pages would be an even number."""
    counts = set()
    for piece, count in enumerate((130, 250, 380)):
        queue.publish("w", piece, [b""] * count)
        empty = [page for page in queue.pages() if page.first_sequence == page.end_sequence]
        counts.add(len(empty))
        assert all(page.first_timestamp is page.last_timestamp is None for page in empty)
    assert max(counts) > 0
    assert sum(page.end_sequence - page.first_sequence for page in queue.pages()) == len(queue)


@pytest.mark.parametrize("damage", ["header", "missing"])
def test_damaged_pages_are_typed_errors(disk: Disk, damage: str) -> None:
    """They name the file; verify lists the others."""
    disk.send(*[THIRD] * 8)
    name = fmt.page_name("queue", 2)
    if damage == "header":
        overwrite(disk.directory / name, 20, b"!")
    else:
        (disk.directory / name).unlink()
    with (
        Queue(disk.directory, read_only=True) as queue,
        pytest.raises(CorruptPage if damage == "header" else MissingPage, match=name),
    ):
        queue.pages()


@pytest.mark.slow
def test_pages_while_retention_removes_them(tmp_path: Path) -> None:
    """I12: pages that go meanwhile are left out, and are no error."""
    policy = Retention(max_bytes=3 * SMALL)
    with Queue(tmp_path, page_bytes=SMALL, retention=policy) as queue:
        stop = threading.Event()

        def send() -> None:
            with queue.producer() as producer:
                while not stop.is_set():
                    producer.send(THIRD)

        thread = threading.Thread(target=send)
        thread.start()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            found = queue.pages()
            assert [page.state for page in found] == ["sealed"] * (len(found) - 1) + ["active"]
            for before, after in itertools.pairwise(found):
                assert (before.number + 1, before.end_sequence) == (
                    after.number,
                    after.first_sequence,
                )
        stop.set()
        thread.join()


# --- rotate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["rotate", "rotate_async", "producer"])
def test_rotation_returns_the_sealed_page(queue: Queue, way: str) -> None:
    """Its sequences are those of its messages; None: there was nothing to seal."""
    calls: dict[str, Callable[[], Sealed | None]] = {
        "rotate": queue.rotate,
        "rotate_async": lambda: asyncio.run(queue.rotate_async()),
        "producer": lambda: queue.producer().rotate(),
    }
    assert calls[way]() is None
    with queue.producer() as producer:
        for number in range(1, 5):
            first = len(queue)
            producer.send_many([b"message"] * number)
            name = fmt.page_name(queue.prefix, number)
            sealed = Sealed(number, first, first + number, str(Path(queue.directory, name)))
            assert calls[way]() == sealed
            assert Path(sealed.path).exists()
            assert calls[way]() is None
    assert list(map(brief, queue.pages()))[-1] == (5, "active", range(10, 10))


def test_rotation_that_another_process_did_first_is_returned_too(queue: Queue) -> None:
    """Threads that rotate while others send: each page is whole and known by its range."""
    found: list[Sealed] = []
    stop = threading.Event()

    def rotate() -> None:
        while not stop.is_set():
            sealed = queue.rotate()
            if sealed is not None:
                found.append(sealed)

    threads = [threading.Thread(target=rotate) for _ in range(3)]
    for thread in threads:
        thread.start()
    with queue.producer() as producer:
        for number in range(200):
            producer.send(b"%d" % number)
    stop.set()
    for thread in threads:
        thread.join()
    pages = {page.number: brief(page) for page in queue.pages()}
    for sealed in found:
        extent = range(sealed.first_sequence, sealed.end_sequence)
        assert pages[sealed.page_number] == (sealed.page_number, "sealed", extent)
        assert len(extent) > 0
    assert len(payloads(queue.replay())) == 200


def test_rotation_waits_for_room_as_long_as_it_may(disk: Disk) -> None:
    """QueueFull: the page stays active; a cancelled task ends its thread's wait."""
    policy = Retention(max_bytes=2 * SMALL)
    with disk.open(retention=policy, on_full="block") as queue, queue.producer() as producer:
        queue.consumer("slow")
        for _ in range(4):
            producer.send(THIRD)
        for timeout in (0, 0.2):
            began = time.monotonic()
            with pytest.raises(QueueFull):
                queue.rotate(timeout=timeout)
            assert timeout <= time.monotonic() - began < SOON
        with pytest.raises(ValueError, match="0 or more"):
            queue.rotate(timeout=-1)

        async def cancelled() -> None:
            with pytest.raises(QueueFull):
                await queue.rotate_async(timeout=0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.rotate_async(), 0.1)

        began = time.monotonic()
        asyncio.run(cancelled())  # waits for its threads
        assert time.monotonic() - began < SOON
        assert queue.pages()[-1].number == 2
    with Queue(disk.directory, read_only=True) as reader:
        with pytest.raises(ReadOnlyQueue):
            reader.rotate()
        with pytest.raises(ReadOnlyQueue):
            asyncio.run(reader.rotate_async())


def test_rotation_during_retention_is_not_an_error(tmp_path: Path) -> None:
    """The range is known although the page, and the next one, may be gone."""
    policy = Retention(max_bytes=2 * SMALL)
    with Queue(tmp_path, page_bytes=SMALL, retention=policy) as queue:
        ranges: list[range] = []
        guard = threading.Lock()

        def rotate() -> None:
            with queue.producer() as producer:
                for _ in range(60):
                    producer.send(b"x")
                    sealed = producer.rotate()
                    if sealed is not None:
                        with guard:
                            ranges.append(range(sealed.first_sequence, sealed.end_sequence))

        threads = [threading.Thread(target=rotate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        known = sorted({(extent.start, extent.stop) for extent in ranges})
        assert all(first < end for first, end in known)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(known))


# --- a model --------------------------------------------------------------------------------------


class PagesMachine(RuleBasedStateMachine):
    """Whatever is sent, rotated and reopened: the pages are a partition of the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="pagequeue-model-")
        self.clock = Clock(10**12, 1000)
        self.sealed: dict[int, range] = {}

    @initialize()
    def create(self) -> None:
        self.queue = Queue(self.directory, page_bytes=SMALL, clock=self.clock)

    def teardown(self) -> None:
        self.queue.close()
        shutil.rmtree(self.directory)

    @rule(count=st.integers(0, 8), size=st.integers(0, 400))
    def send(self, count: int, size: int) -> None:
        with self.queue.producer() as producer:
            producer.send_many([b"x" * size] * count)

    @rule()
    def rotate(self) -> None:
        sealed = self.queue.rotate()
        if sealed is not None:
            assert sealed.page_number not in self.sealed
            extent = range(sealed.first_sequence, sealed.end_sequence)
            self.sealed[sealed.page_number] = extent

    @rule(count=st.sampled_from([1, 130, 260]))
    def publish(self, count: int) -> None:
        self.queue.publish("w", len(self.queue), [b"y"] * count)

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.queue = Queue(self.directory, clock=self.clock)

    @invariant()
    def pages_are_a_partition(self) -> None:
        if not hasattr(self, "queue"):
            return
        times = [message.timestamp for message in self.queue.replay()]
        end = 0
        for place, page in enumerate(self.queue.pages(), 1):
            assert (page.number, page.first_sequence) == (place, end)
            end = page.end_sequence
            if end > page.first_sequence:
                assert page.first_timestamp == times[page.first_sequence]
                assert page.last_timestamp == times[end - 1]
            if place in self.sealed:
                assert self.sealed[place] == range(page.first_sequence, end)
        assert end == len(times) == self.queue.tail_sequence


TestPages = PagesMachine.TestCase
TestPages.settings = settings(
    max_examples=examples(15),
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
