"""Compressing sealed pages: the same messages by every way to them, in fewer bytes."""

from __future__ import annotations

import random
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugin import START, Disk
from squeezing import PAGE, compressed_pages, fill
from support import (
    LONG,
    SMALL,
    Clock,
    files,
    payloads,
    until,
)
from tiers import examples

from pagequeue import (
    CompressReport,
    InvalidOption,
    InvalidType,
    Queue,
    ReadOnlyQueue,
    repair_queue,
)
from pagequeue import format as fmt
from pagequeue.integrity import verify as verifying
from pagequeue.maintenance import compress as rooms
from pagequeue.page import page as page_module
from pagequeue.page.compressed_page import BlockInflater, CompressedPage

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Message

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def disk(disk: Disk) -> Disk:
    """A directory for a queue whose pages have several blocks."""
    disk.page_bytes = PAGE
    return disk


# --- what it does ---------------------------------------------------------------------------------


def test_sealed_pages_shrink_and_the_active_one_stays(disk: Disk) -> None:
    """I16: the report counts pages and bytes; a second run has no page to compress."""
    with disk.open() as queue:
        sent = fill(queue)
        last = queue.info().tail_page
        before = {path.name: path.stat().st_size for path in disk.directory.glob("*.page")}
        report = queue.compress()
        assert compressed_pages(disk) == list(range(1, last))
        after = [disk.page(number).stat().st_size for number in range(1, last)]
        assert report == CompressReport(last - 1, (last - 1) * PAGE, sum(after), 0)
        assert report.bytes_after < report.bytes_before / 2
        assert before[disk.page(last).name] == disk.page(last).stat().st_size == PAGE
        assert payloads(queue.replay()) == sent
        assert queue.verify().ok
        assert queue.info().compressed_page_count == last - 1
        assert queue.compress() == CompressReport()
    assert not list(disk.directory.glob("*.tmp*"))
    with disk.open(read_only=True) as queue:
        assert payloads(queue.replay()) == sent


def test_progress_is_reported(disk: Disk) -> None:
    """Pages done, pages in all."""
    told: list[tuple[int, int]] = []
    with disk.open() as queue:
        fill(queue)
        queue.compress(lambda done, total: told.append((done, total)))
    assert told[0] == (0, told[0][1])
    assert told[-1] == (told[0][1], told[0][1])
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_page_that_would_hardly_shrink_stays(disk: Disk) -> None:
    """It is checked once, and by a few blocks only."""
    rng = random.Random(1)
    with disk.open() as queue, queue.producer() as producer:
        for _ in range(60):
            producer.send(rng.randbytes(800))
        sealed = queue.info().tail_page - 1
        tried: list[int] = []
        real = rooms.zstd.deflate

        def deflate(data: memoryview, level: int, path: str) -> bytes:
            tried.append(len(data))
            return real(data, level, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rooms.zstd, "deflate", deflate)
            assert queue.compress() == CompressReport(0, 0, 0, sealed)
            assert 0 < len(tried) <= sealed * rooms.SAMPLES
            tried.clear()
            assert queue.compress() == CompressReport(0, 0, 0, sealed)
            assert tried == []
        assert queue.verify().ok
    assert compressed_pages(disk) == []


def test_page_that_would_be_larger_stays(tmp_path: Path) -> None:
    """One message of random bytes that fills its page: it is valid, and left uncompressed."""
    payload = random.Random(1).randbytes(3900)
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(payload)
        queue.rotate()
        assert queue.compress() == CompressReport(0, 0, 0, 1)
        assert [message.payload for message in queue.replay()] == [payload]
        assert queue.verify().ok


def test_empty_and_large_and_single_frames(disk: Disk) -> None:
    """A page with one message as large as the page, one with few messages, and an empty one."""
    with disk.open() as queue, queue.producer() as producer:
        large = b"L" * fmt.payload_bytes_max(PAGE)
        producer.send(large)
        producer.send(b"")
        queue.rotate()
        producer._seal()  # an empty page: it has only its end-of-page marker
        producer.send(b"last")
        queue.rotate()
        tail = queue.info().tail_page
        assert queue.compress().pages == tail - 1
        assert payloads(queue.replay()) == [large, b"", b"last"]
        for sequence, item in enumerate([large, b"", b"last"]):
            assert payloads(queue.replay(sequence=sequence))[0] == item
        assert queue.verify().ok
        assert len(queue.last(2)) == 2


@pytest.mark.parametrize("level", [-7, 1, 19])
def test_every_level_is_read_the_same(disk: Disk, level: int) -> None:
    """The level is the writer's business."""
    with disk.open(compress_level=level) as queue:
        sent = fill(queue)
        assert queue.compress().pages > 1
        assert payloads(queue.replay()) == sent


@pytest.mark.parametrize(
    "options",
    [
        {"compress_after": -1},
        {"compress_after": True},
        {"compress_level": 20},
        {"compress_level": -8},
    ],
)
def test_invalid_options_are_refused(disk: Disk, options: dict[str, int]) -> None:
    """Before anything is made."""
    expected = InvalidType if True in options.values() else InvalidOption
    with pytest.raises(expected):
        disk.open(**options)
    assert not disk.directory.exists() or files(disk.directory) == {}


def test_read_only_queue_compresses_no_page(disk: Disk) -> None:
    """It writes no byte."""
    with disk.open() as queue:
        fill(queue)
    with disk.open(read_only=True) as queue, pytest.raises(ReadOnlyQueue):
        queue.compress()


# --- in the background ----------------------------------------------------------------------------


def test_pages_are_compressed_when_so_many_follow(disk: Disk) -> None:
    """The newest sealed pages are left uncompressed."""
    with disk.open(compress_after=2) as queue:
        sent = fill(queue, 1000)
        tail = queue.info().tail_page
        until(lambda: compressed_pages(disk) == list(range(1, tail - 2)))
        assert payloads(queue.replay()) == sent
        sent += fill(queue, 600, 1000)
        tail = queue.info().tail_page
        until(lambda: compressed_pages(disk) == list(range(1, tail - 2)))
        assert payloads(queue.replay()) == sent
    assert compressed_pages(disk)[-1] == tail - 3


def test_background_continues_after_a_damaged_page(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """The damage is logged once, and the page is left uncompressed."""
    with disk.open() as queue:
        fill(queue, 1000)
    data = disk.page(2).read_bytes()
    disk.page(2).write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with disk.open(compress_after=0) as queue:
        queue.rotate()  # all others are due, and no other roll asks for them
        tail = queue.info().tail_page
        assert tail > 4
        until(lambda: compressed_pages(disk) == [n for n in range(1, tail) if n != 2])
    assert "left uncompressed" in caplog.text


def test_background_asks_again_after_there_was_no_thread(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next roll starts it."""
    with disk.open(compress_after=0) as queue:
        with monkeypatch.context() as patch:
            asked: list[object] = []
            patch.setattr(queue._store.compressing, "submit", asked.append)
            fill(queue)
            until(lambda: asked)
        queue.rotate()
        tail = queue.info().tail_page
        until(lambda: compressed_pages(disk) == list(range(1, tail)))


def test_closing_does_not_wait_for_the_rest(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is begun stays as it was, without a temporary file."""
    begun = threading.Event()
    go_on = threading.Event()
    real = rooms.zstd.deflate

    def slow(data: memoryview, level: int, path: str) -> bytes:
        begun.set()
        go_on.wait(LONG)
        return real(data, level, path)

    monkeypatch.setattr(rooms.zstd, "deflate", slow)
    queue = disk.open(compress_after=0)
    sent = fill(queue)
    assert begun.wait(LONG)
    closing = threading.Thread(target=queue.close)
    closing.start()
    until(lambda: queue._store.compressing.is_closed)
    go_on.set()
    closing.join(LONG)
    assert not closing.is_alive()
    assert compressed_pages(disk) == []
    assert not list(disk.directory.glob("*.tmp*"))
    with disk.open() as again:
        assert payloads(again.replay()) == sent


# --- the same as plain pages ----------------------------------------------------------------------

sizes = st.lists(st.integers(0, 900), min_size=1, max_size=60)
moment = st.one_of(st.none(), st.integers(-2, 70))


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    sizes=sizes,
    steps=st.lists(st.integers(0, 2), min_size=60, max_size=60),
    queries=st.lists(st.tuples(moment, moment, moment, st.integers(1, 50)), max_size=8),
    block=st.sampled_from([16, 200, 1000, 10**6]),
)
def test_compressed_queue_reads_as_the_plain_one(
    sizes: list[int],
    steps: list[int],
    queries: list[tuple[int | None, int | None, int | None, int]],
    block: int,
) -> None:
    """I16: for any messages, any since, until, sequence and limit, by replay, batches and last."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fmt, "COMPRESSED_BLOCK_TARGET_BYTES", block)
        clock = Clock(START)
        with Queue(directory, page_bytes=SMALL, clock=clock) as queue:
            producer = queue.producer()
            for n, size in enumerate(sizes):
                clock.now += steps[n]  # several have the same time
                producer.send(b"%d." % n * size if size < 200 else b"z" * size)
            plain = [_read(queue, query, len(sizes)) for query in queries]
            all_plain = list(queue.replay())
            queue.compress()
            with Queue(directory, read_only=True, clock=clock) as other:
                for q in (queue, other):
                    assert [_read(q, query, len(sizes)) for query in queries] == plain
                    assert list(q.replay()) == all_plain
                    with q.consumer() as consumer:
                        assert [consumer.poll() for _ in sizes] == all_plain
            info = queue.info()
            assert info.message_count == len(sizes)
            assert queue.verify().ok


def _read(
    queue: Queue, query: tuple[int | None, int | None, int | None, int], count: int
) -> list[object]:
    """Return what some calls give for a query."""
    since, until_, sequence, limit = query
    begin = None if since is None else START + since
    end_ = None if until_ is None else START + until_
    first = None if sequence is None else max(0, min(sequence, count))
    batches = queue.batches(since=begin, until=end_, sequence=first, limit_count=limit)
    seen: list[object] = [list(queue.replay(since=begin, until=end_, sequence=first))]
    seen.append([message for batch in batches for message in batch])
    seen.append(list(queue.last(limit)))
    seen.append([part.tolist() for part in queue.times(since=begin, until=end_, sequence=first)])
    if begin is not None:
        asked = np.arange(max(begin, START + 2), max(begin, START + 2) + limit)
        seen.append(queue.as_of(asked).tolist())
    with queue.consumer(since=begin) as consumer:
        seen.append(consumer.poll())
        consumer.seek(sequence=first or 0)
        seen.append((consumer.poll(), consumer.lag))
    return seen


def test_random_access_inflates_no_more_than_it_needs(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block for a sequence, at most two for a time; looking through pages inflates none."""
    inflated: list[int] = []
    real = BlockInflater.fill_block

    def fill_block(self: BlockInflater, region: object, number: int) -> bool:
        done = real(self, region, number)  # type: ignore[arg-type]
        inflated.extend([number] * done)
        return done

    disk.clock.step = 1000
    with disk.open() as queue:
        fill(queue, 2000)
        queue.compress()
    with disk.open() as queue:
        messages = list(queue.replay())
        pages = queue.info().compressed_page_count
        assert pages > 8
    monkeypatch.setattr(BlockInflater, "fill_block", fill_block)
    rng = random.Random(5)
    for message in rng.sample(messages[:-200], 40):
        with disk.open(read_only=True) as queue:
            inflated.clear()
            assert next(iter(queue.replay(sequence=message.sequence))) == message
            assert len(inflated) <= 1
        with disk.open(read_only=True) as queue:
            inflated.clear()
            assert next(iter(queue.replay(since=message.timestamp))).timestamp == message.timestamp
            assert len(inflated) <= 2
    with disk.open(read_only=True) as queue:
        inflated.clear()
        info = queue.info()
        assert info.message_count == len(messages)
        assert len(inflated) <= 1  # for the time of the first message


# --- the index ------------------------------------------------------------------------------------


def indexes(disk: Disk) -> list[int]:
    """Return the numbers of the pages that have an index."""
    return sorted(int(path.name[6:16]) for path in disk.directory.glob("*.idx"))


def find_all(queue: Queue, messages: list[Message]) -> None:
    """Find some messages by their time and by their sequence."""
    for message in messages[::23]:
        assert next(iter(queue.replay(since=message.timestamp))).timestamp == message.timestamp
        assert next(iter(queue.replay(sequence=message.sequence))) == message


def test_compressed_page_has_no_index(disk: Disk) -> None:
    """Z5: the head of the file leads to a block, and the block's frames to a message."""
    with disk.open() as queue:
        fill(queue)
        messages = list(queue.replay())
        queue.compress()
        tail = queue.info().tail_page
        assert indexes(disk) == [tail]
        find_all(queue, messages)
    with disk.open(read_only=True) as queue:
        find_all(queue, messages)
    with disk.open() as queue:
        find_all(queue, messages)
        assert queue.verify().ok
    assert repair_queue(disk.directory).actions == []
    assert indexes(disk) == [tail]


def test_index_of_a_compressed_page_is_not_read(disk: Disk) -> None:
    """A process that died after Z3 left it; it may be anything, and the next run removes it."""
    with disk.open() as queue:
        fill(queue)
        messages = list(queue.replay())
        queue.compress()
        tail = queue.info().tail_page
    for number in range(1, tail):
        disk.index(number).write_bytes(b"x" * 5000)
    for read_only in (True, False):
        with disk.open(read_only=read_only) as queue:
            find_all(queue, messages)
            assert queue.verify().ok
    assert repair_queue(disk.directory).actions == []
    with disk.open() as queue:
        assert queue.compress() == CompressReport()
        assert indexes(disk) == [tail]


def test_reader_of_the_plain_file_makes_no_index_of_a_compressed_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own map of the plain page leads to the messages; also if it came in between."""
    with disk.open() as queue, disk.open() as early, disk.open() as late:
        fill(queue)
        messages = list(queue.replay())
        first = [message for message in messages if message.sequence < 60]
        pages = [other._store.page(1) for other in (early, late)]  # no index is mapped yet
        real = page_module.index_to_rebuild

        def rebuilt(*given: Any) -> object:  # noqa: ANN401 - the same
            queue.compress()
            return real(*given)

        monkeypatch.setattr(page_module, "index_to_rebuild", rebuilt)
        disk.index(1).unlink()
        for page in pages:  # the first one looks at the name before the page is compressed
            for message in first:
                ordinal, position = page.find(message.timestamp, len(first), repair=True)
                assert first[ordinal].timestamp == message.timestamp
                assert position == page.locate(ordinal, len(first), repair=True)
        assert compressed_pages(disk)[0] == 1
        assert 1 not in indexes(disk)
        find_all(early, messages)
        find_all(late, messages)


def test_verify_does_not_miss_the_index_that_compressing_removes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has mapped the plain page, and finds no index then."""
    with disk.open() as queue:
        fill(queue)
        real = verifying.map_file
        looked: list[object] = []

        def late(*given: Any, **options: Any) -> object:  # noqa: ANN401 - the same
            if not looked:
                looked.append(queue.compress())
            return real(*given, **options)

        monkeypatch.setattr(verifying, "map_file", late)
        assert queue.verify().problems == []
        assert looked


def test_times_are_found_in_every_block(disk: Disk) -> None:
    """All of `times` and `as_of`: before, in, between and after the messages, and many at once."""
    disk.clock.step = 1000
    with disk.open() as queue:
        fill(queue)
        sequences, times = queue.times()
        wanted = np.sort(np.concatenate([times, times - 1, times + 1]))[1:]
        wanted = wanted[wanted >= times[0]]
        plain = queue.as_of(wanted)
        parts = [queue.times(since=int(times[i]), until=int(times[-i])) for i in range(1, 200, 7)]
        queue.compress()
        for opened in (queue, disk.open(read_only=True)):
            assert np.array_equal(opened.times()[0], sequences)
            assert np.array_equal(opened.times()[1], times)
            assert np.array_equal(opened.as_of(wanted), plain)
            assert [opened.as_of(int(at)) for at in wanted[::37]] == plain[::37].tolist()
            for i, part in zip(range(1, 200, 7), parts, strict=True):
                again = opened.times(since=int(times[i]), until=int(times[-i]))
                assert all(map(np.array_equal, again, part))


def test_index_made_in_memory_goes_with_the_memory(disk: Disk) -> None:
    """Of each block that was searched, 12 bytes a message."""
    with disk.open() as queue:
        fill(queue)
        queue.compress()
        page = queue._store.page(1)
        assert isinstance(page, CompressedPage)
        page.times(0, page.head.count, page.head.count, repair=False)
        _, filler = page._memory_and_filler()
        assert sum(map(len, filler._indexes.values())) == 12 * page.head.count
        page.release_memory()
        _, filler = page._memory_and_filler()
        assert filler._indexes == {}
