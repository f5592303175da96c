"""Filled pages: which page takes what, and several pages that are filled at the same time."""

from __future__ import annotations

import os
import random
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import CorruptPage, DiskFull, InvalidOption, Queue
from pagequeue import format as fmt
from pagequeue.bulk import filled_pages
from pagequeue.bulk.chunk import chunk_of
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.bulk.staged_pages import stage
from pagequeue.bulk.staging_directory import StagingDirectory
from pagequeue.page.page import WritablePage
from pagequeue.producer import producer
from pagequeue.queue.queue import internals
from pagequeue.send.queue_end import QueueEnd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

PAGE_BYTES = 4096
ROOM = PAGE_BYTES - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
CORES = [1, 2, 5]


@pytest.fixture(params=CORES)
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the process have some cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(request.param))
    count: int = request.param
    return count


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue[bytes]]:
    """A queue of small pages."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as opened:
        yield opened


def payload(size: int, seed: int = 0) -> bytes:
    """Return noise."""
    return random.Random(seed * 10_000 + size).randbytes(size)


def published(queue: Queue[bytes], *chunks: list[bytes], first: int | None = None) -> list[int]:
    """Stage chunks and publish them; return how many messages begin in each page."""
    store = internals(queue).store
    times = None
    with StagingDirectory(store) as folder:
        given = []
        for chunk in chunks:
            if first is not None:
                times = np.arange(first, first + len(chunk), dtype=np.int64)
                first += len(chunk)
            given.append(chunk_of(chunk, times))
        staged = stage(store, folder, given, synced=False)
        sizes = [page.size for page in staged.pages]
        with BulkPublisher(store) as publisher, QueueEnd(store) as end:
            publisher.append(end, staged)
    return sizes


def received(queue: Queue[bytes]) -> list[tuple[bytes, int]]:
    """Return all messages and their times."""
    with queue.replay() as replay:
        return [(message.payload, message.timestamp) for message in replay]


@pytest.mark.quick_each(4)
@pytest.mark.parametrize("seed", range(3))
def test_messages_of_several_pages_stay_in_order(
    queue: Queue[bytes], cores: int, seed: int
) -> None:
    """Chunks that begin in the middle of a page, large messages between, with times and without."""
    rng = random.Random(seed)
    sizes = [0, 1, 7, 8, 100, 999, ROOM - fmt.FRAME_HEADER_BYTES, PAGE_BYTES, 3 * PAGE_BYTES]
    weights = [4, 4, 4, 4, 9, 9, 1, 1, 1]
    chunks = [
        [payload(size, i) for i, size in enumerate(rng.choices(sizes, weights, k=count))]
        for count in (1, 90, 3, 200, 1, 40)
    ]
    sent = [item for chunk in chunks for item in chunk]
    published(queue, *chunks, first=1000)
    published(queue, *chunks)
    with queue.producer() as producer:
        producer.send(b"after")
    found = received(queue)
    assert [item for item, _ in found] == [*sent, *sent, b"after"]
    assert [time for _, time in found[: len(sent)]] == list(range(1000, 1000 + len(sent)))
    assert len({time for _, time in found[len(sent) : 2 * len(sent)]}) == 1
    assert queue.verify().ok
    assert cores in CORES


@pytest.mark.usefixtures("cores")
def test_a_page_takes_what_fits(queue: Queue[bytes]) -> None:
    """To its last byte, or as many messages as its index has places for."""
    each = (ROOM // 4) // 8 * 8 - fmt.FRAME_HEADER_BYTES
    last = ROOM - 3 * (each + fmt.FRAME_HEADER_BYTES) - fmt.FRAME_HEADER_BYTES
    full = [payload(each, i) for i in range(3)] + [payload(last)]
    assert published(queue, full * 5)[:5] == [4] * 5
    assert published(queue, [*full, b""] * 3)[:3] == [4, 4, 4]
    capacity = internals(queue).store.meta.index_capacity
    assert published(queue, [b""] * (2 * capacity + 1))[:3] == [capacity, capacity, 1]
    assert queue.verify().ok


@pytest.mark.usefixtures("cores")
def test_arrays_are_split_between_pages(queue: Queue[bytes]) -> None:
    """Rows of NumPy, whose parts are views."""
    rows = np.frombuffer(payload(40 * 700), "V40")
    with queue.producer() as producer:
        assert producer.send_many(rows) == range(700)
    assert [item for item, _ in received(queue)] == [bytes(row) for row in rows]


@pytest.mark.usefixtures("cores")
def test_memory_is_taken_for_what_is_sent(
    queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each batch, and for no byte or record more."""
    filled: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
    real = WritablePage.fill

    def fill(self: WritablePage, *place: int) -> None:
        filled.setdefault((self._prefix, self.number), []).append(place)  # type: ignore[arg-type]
        real(self, *place)

    monkeypatch.setattr(WritablePage, "fill", fill)
    monkeypatch.setattr(filled_pages, "FILL_BYTES", 1000)
    monkeypatch.setattr(filled_pages, "BATCH_BYTES", 400)
    sizes = published(queue, [payload(100, i) for i in range(100)])
    assert sorted(sum(place[3] for place in places) for places in filled.values()) == sorted(
        size for size in sizes if size
    )
    for places in filled.values():
        position, ordinal = fmt.PAGE_HEADER_BYTES, 0
        for at, frame_bytes, first, count in places:
            assert (at, first) == (position, ordinal)
            assert frame_bytes == count * fmt.frame_bytes(100)
            position, ordinal = position + frame_bytes, ordinal + count


def test_a_thread_that_fails_leaves_nothing(
    queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full for one of the pages that are filled at the same time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    real = WritablePage.fill

    def fill(self: WritablePage, *place: Any) -> None:  # noqa: ANN401
        if self._prefix == "filled" and self.number == 3:
            raise DiskFull("no space", path="there", remedy="free some")
        real(self, *place)

    monkeypatch.setattr(WritablePage, "fill", fill)
    with queue.producer() as producer:
        with pytest.raises(DiskFull):
            producer.send_many([payload(100, i) for i in range(200)])
        monkeypatch.undo()
        assert producer.send(b"next") == 0
    assert [item for item, _ in received(queue)] == [b"next"]
    staged = os.path.join(queue.directory, "queue-staged")
    assert os.listdir(staged) == []
    assert not [t for t in threading.enumerate() if t.name == "pagequeue-task"]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("suffix", [".page", ".idx"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.usefixtures("cores")
def test_a_page_that_was_changed_is_not_published(
    queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch, suffix: str, number: int
) -> None:
    """Another process wrote there: neither its bytes nor its times come into the queue."""
    monkeypatch.setattr(filled_pages, "MAPPED_MAX", 0)
    store = internals(queue).store
    sent = [payload(100, i) for i in range(90)]
    with StagingDirectory(store) as folder:
        staged = stage(store, folder, [chunk_of(sent, np.arange(1, 91))], synced=False)
        page = staged.pages[number - 1]
        name = fmt.page_name(page.prefix, page.number).removesuffix(".page") + suffix
        at = (page.size - 1) * fmt.INDEX_RECORD_BYTES if suffix == ".idx" else PAGE_BYTES // 2
        with open(folder.full(name), "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 4]))
        with (
            BulkPublisher(store) as publisher,
            QueueEnd(store) as end,
            pytest.raises(CorruptPage, match="was changed"),
        ):
            publisher.append(end, staged)
    with queue.producer() as producer:
        assert producer.send(b"next") == 0
    assert [item for item, _ in received(queue)] == [b"next"]
    assert queue.verify().ok


@pytest.mark.parametrize("size", [100, 2_990, 3_010])
def test_a_list_that_changes_while_it_is_read_needs_times_all_the_same(
    queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """What another thread adds or takes has no time, or shifts those of the others."""
    given = [b"0123456789"] * 3_000
    times = np.full(len(given), 1 << 62, np.int64)

    def changed(*_: object) -> bool:
        given[:] = [b"0123456789"] * size
        return True

    monkeypatch.setattr(producer, "_is_more", changed)
    with queue.producer() as sender:
        with pytest.raises(InvalidOption, match=f"3000 timestamps for {size} messages"):
            sender.send_many(given, timestamps=times)
        assert sender.send(b"next") == 0


def test_cores_that_change_at_any_time_lose_and_repeat_no_message(
    queue: Queue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: `taskset`, a control group or another thread changes them between any two calls."""
    counts = random.Random(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(counts.randint(1, 5)))
    for seed in range(5):
        before = queue.info().tail_sequence
        given = [payload(size, seed) for size in range(300)]
        with queue.producer() as sender:
            assert sender.send_many(given) == range(before, before + len(given))
    assert [data for data, _ in received(queue)] == [
        payload(size, seed) for seed in range(5) for size in range(300)
    ]


def test_staging_makes_no_queue_and_takes_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each staged page has a writer with its own fields; two hidden queues took 2,900 calls."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    package, calls = os.path.dirname(fmt.__file__), list[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls.append(frame.f_code.co_qualname)

    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue, queue.producer() as producer:
        given = [bytes(1000)] * 1500
        producer.send_many(given)
        sys.setprofile(count)
        try:
            producer.send_many(given)
        finally:
            sys.setprofile(None)
    assert not [
        call for call in calls if call.startswith(("Store.__init__", "Opening", "Recovery"))
    ]
    assert len(calls) < 1000
