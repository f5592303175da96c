"""Compressing sealed pages: the same messages, whoever reads, writes, retires or dies meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import tempfile
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from conftest import START, Disk
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    SMALL,
    Clock,
    compress_for_ever,
    die_while_compressing,
    end,
    files,
    payloads,
    pretend_power_cut,
    ready,
    start,
    until,
)

from pagequeue import (
    CompressReport,
    CorruptFrame,
    CorruptPage,
    DiskFull,
    Expired,
    InvalidOption,
    PageQueueError,
    Queue,
    ReadOnlyQueue,
    Retention,
    SyncFailed,
    SystemLimit,
    repair_queue,
    salvage_queue,
    verify_queue,
)
from pagequeue import compress as rooms
from pagequeue import format as fmt
from pagequeue.inflating import Filler, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue.files import Folder
    from pagequeue.page import WritablePage

PAGE = 16384


@pytest.fixture
def disk(disk: Disk) -> Disk:
    """A directory for a queue whose pages have several blocks."""
    disk.page_bytes = PAGE
    return disk


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of tests are small, and have several blocks all the same."""
    monkeypatch.setattr(fmt, "COMPRESSED_BLOCK_TARGET_BYTES", 1024)


def text(count: int, begin: int = 0) -> list[bytes]:
    """Return payloads that shrink."""
    return [b"message %07d " % n * (n % 13) for n in range(begin, begin + count)]


def fill(queue: Queue, count: int = 500, begin: int = 0) -> list[bytes]:
    """Send so many, some of them in batches; return them."""
    items = text(count, begin)
    with queue.producer() as producer:
        for at in range(0, count, 5):
            if at % 2:
                producer.send_many(items[at : at + 5])
            else:
                for item in items[at : at + 5]:
                    producer.send(item)
    return items


def compressed_pages(disk: Disk) -> list[int]:
    """Return the numbers of the pages that are compressed."""
    numbers = []
    for path in disk.directory.glob("*.page"):
        with contextlib.suppress(FileNotFoundError):  # retired in between
            if path.read_bytes()[:8] == fmt.COMPRESSED_MAGIC:
                numbers.append(int(path.name[6:16]))
    return sorted(numbers)


# --- what it does ---------------------------------------------------------------------------------


def test_sealed_pages_shrink_and_the_active_one_stays(disk: Disk) -> None:
    """I16: the report says how many pages and bytes; a second time there is nothing to do."""
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


def test_progress_is_told(disk: Disk) -> None:
    """Pages done, pages in all."""
    told: list[tuple[int, int]] = []
    with disk.open() as queue:
        fill(queue)
        queue.compress(lambda done, total: told.append((done, total)))
    assert told[0] == (0, told[0][1])
    assert told[-1] == (told[0][1], told[0][1])
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_page_that_would_hardly_shrink_stays(disk: Disk) -> None:
    """It is looked at once, and by a few blocks only."""
    rng = random.Random(1)
    with disk.open() as queue, queue.producer() as producer:
        for _ in range(60):
            producer.send(rng.randbytes(800))
        sealed = queue.info().tail_page - 1
        tried: list[int] = []
        real = rooms.codec.deflate

        def deflate(data: memoryview, level: int, path: str) -> bytes:
            tried.append(len(data))
            return real(data, level, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rooms.codec, "deflate", deflate)
            assert queue.compress() == CompressReport(0, 0, 0, sealed)
            assert 0 < len(tried) <= sealed * rooms.SAMPLES
            tried.clear()
            assert queue.compress() == CompressReport(0, 0, 0, sealed)
            assert tried == []
        assert queue.verify().ok
    assert compressed_pages(disk) == []


def test_empty_and_large_and_single_frames(disk: Disk) -> None:
    """A page with one message of its own size, one with little in it, and one with nothing."""
    with disk.open() as queue, queue.producer() as producer:
        large = b"L" * fmt.payload_bytes_max(PAGE)
        producer.send(large)
        producer.send(b"")
        queue.rotate()
        producer.seal()  # an empty page: only its end mark stands in it
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
    [{"compress_after": -1}, {"compress_after": True}, {"compress_level": 20},
     {"compress_level": -8}],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(disk: Disk, options: dict[str, int]) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidOption):
        disk.open(**options)
    assert not disk.directory.exists() or files(disk.directory) == {}


def test_read_only_queue_compresses_nothing(disk: Disk) -> None:
    """It writes no byte."""
    with disk.open() as queue:
        fill(queue)
    with disk.open(read_only=True) as queue, pytest.raises(ReadOnlyQueue):
        queue.compress()


# --- in the background ----------------------------------------------------------------------------


def test_pages_are_compressed_when_so_many_follow(disk: Disk) -> None:
    """The newest sealed ones stay as they are."""
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


def test_background_goes_on_behind_a_damaged_page(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and the page stays as it is."""
    with disk.open() as queue:
        fill(queue, 1000)
    data = disk.page(2).read_bytes()
    disk.page(2).write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with disk.open(compress_after=0) as queue:
        for _ in range(4):
            fill(queue, 150)
            queue.rotate()
        tail = queue.info().tail_page
        until(lambda: compressed_pages(disk) == [n for n in range(1, tail) if n != 2])
    assert "stays as it is" in caplog.text


def test_closing_does_not_wait_for_the_rest(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is begun stays as it was, without a temporary file."""
    begun = threading.Event()
    go_on = threading.Event()
    real = rooms.codec.deflate

    def slow(data: memoryview, level: int, path: str) -> bytes:
        begun.set()
        go_on.wait(10)
        return real(data, level, path)

    monkeypatch.setattr(rooms.codec, "deflate", slow)
    queue = disk.open(compress_after=0)
    sent = fill(queue)
    assert begun.wait(10)
    closing = threading.Thread(target=queue.close)
    closing.start()
    until(lambda: queue._store.compressing.is_closed)
    go_on.set()
    closing.join(10)
    assert not closing.is_alive()
    assert compressed_pages(disk) == []
    assert not list(disk.directory.glob("*.tmp*"))
    with disk.open() as again:
        assert payloads(again.replay()) == sent


# --- the same as plain pages ----------------------------------------------------------------------

sizes = st.lists(st.integers(0, 900), min_size=1, max_size=60)
moment = st.one_of(st.none(), st.integers(-2, 70))


@settings(max_examples=60, deadline=None)
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
    real = Filler.fill_block

    def fill_block(self: Filler, region: object, number: int) -> bool:
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
    monkeypatch.setattr(Filler, "fill_block", fill_block)
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


def test_index_that_is_missing_or_wrong_is_made_again(disk: Disk) -> None:
    """I6: from the frames, which then are inflated; in memory where nothing may be written."""
    with disk.open() as queue:
        fill(queue)
        messages = list(queue.replay())
        queue.compress()
    disk.index(1).unlink()
    disk.index(2).write_bytes(bytes(len(disk.index(2).read_bytes())))
    with disk.open(read_only=True) as queue:
        for message in messages[::23]:
            assert next(iter(queue.replay(since=message.timestamp))).timestamp == message.timestamp
            assert next(iter(queue.replay(sequence=message.sequence))) == message
    assert not disk.index(1).exists()
    with disk.open() as queue:
        for message in messages[::23]:
            assert next(iter(queue.replay(sequence=message.sequence))) == message
        assert queue.verify().ok
    disk.index(1).unlink()
    assert repair_queue(disk.directory).ok
    assert verify_queue(disk.directory).ok


# --- readers meanwhile ----------------------------------------------------------------------------


def test_readers_inside_finish_and_later_ones_begin(disk: Disk) -> None:
    """I16: who has the old file mapped reads on in it, also when it is gone everywhere else."""
    with disk.open() as queue, disk.open() as other:
        sent = fill(queue, 300)
        consumer, replay = queue.consumer(), other.replay()
        assert consumer.receive().payload == next(replay).payload == sent[0]
        assert queue.compress().pages > 1
        assert [consumer.receive().payload for _ in sent[1:]] == sent[1:]
        assert payloads(replay) == sent[1:]


def test_reader_inside_a_compressed_page_that_is_retired_finishes_it(disk: Disk) -> None:
    """Its blocks are inflated from the file that it holds."""
    with disk.open() as queue, disk.open(retention=Retention(max_bytes=2 * PAGE)) as other:
        sent = fill(queue)
        end_ = queue._store.first_sequence(2)
        queue.compress()
        consumer, replay = queue.consumer(), queue.replay()
        assert consumer.receive().payload == next(replay).payload == sent[0]
        assert other.trim().pages > 1
        assert not disk.page(1).exists()
        assert [consumer.receive().payload for _ in range(1, end_)] == sent[1:end_]
        assert [next(replay).payload for _ in range(1, end_)] == sent[1:end_]
        with pytest.raises(Expired):
            consumer.receive()


def test_memory_is_used_again_and_never_under_a_reader(disk: Disk) -> None:
    """A reader, or a view, keeps its page; the others share few regions."""
    with disk.open() as queue:
        sent = fill(queue, 3000)
        queue.compress()
        pages = queue.info().compressed_page_count
        assert pages > 8
    with disk.open() as queue:
        firsts = [queue._store.first_sequence(n) for n in range(1, pages + 1)]
        readers = [iter(queue.replay(sequence=first + 1)) for first in firsts[:6]]
        got = [[next(reader).payload] for reader in readers]
        assert payloads(queue.replay()) == sent
        for part, reader, first in zip(got, readers, firsts[:6], strict=True):
            part.extend(next(reader).payload for _ in range(300))
            assert part == sent[first + 1 : first + 302]
        assert len(queue._store._pool._regions) <= 3


def test_pool_gives_no_region_that_somebody_holds(disk: Disk) -> None:
    """Neither one that a page has, nor one of which there is a view."""
    with disk.open() as queue:
        fill(queue, 1500)
        queue.compress()
        pool = Pool(PAGE)
        pages = [queue._store.page(n) for n in (1, 2, 3, 4)]
        held = pool.take(pages[0])
        view = memoryview(pool.take(pages[1]))
        given = [pool.take(page) for page in pages]
        assert all(region is not held for region in given)
        assert all(bytes(view[:8]) == bytes(8) for _ in given)


def test_two_threads_read_one_page_at_once(disk: Disk) -> None:
    """I2: a block is seen whole or not at all."""
    disk.page_bytes = PAGE * 16
    with disk.open() as queue:
        sent = fill(queue, 6000)
        queue.compress()
    wrong: list[object] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(15):
                at = rng.randrange(5000)
                if payloads(queue.replay(sequence=at)) != sent[at:]:
                    wrong.append(at)
        except PageQueueError as error:
            wrong.append(error)

    for _ in range(2):
        with disk.open() as queue:
            threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_damage_in_a_mapped_page_is_healed_by_the_compressed_one(disk: Disk) -> None:
    """Who finds damage looks at the file that is there now."""
    with disk.open() as queue:
        sent = fill(queue)
        consumer = queue.consumer()
        consumer.receive()
        old = disk.page(1).open("r+b")
        queue.compress()
        old.seek(700)
        old.write(b"\xff" * 600)
        old.close()
        assert [consumer.receive().payload for _ in sent[1:]] == sent[1:]


# --- retention ------------------------------------------------------------------------------------


def test_max_bytes_counts_what_compressed_pages_take(disk: Disk) -> None:
    """More of them are kept in the same bytes, and never more bytes."""
    limit = 5 * PAGE
    with disk.open(retention=Retention(max_bytes=limit)) as queue:
        for turn in range(25):
            fill(queue, 120, turn * 120)  # less than a page
            queue.compress()
            queue.trim()
        info = queue.info()
        assert info.page_count > 5  # of which 4 would fit otherwise
        assert queue.head_sequence > 0
        taken = sum(path.stat().st_size for path in disk.directory.glob("*.page"))
        assert taken <= limit
        assert queue.verify().ok
        assert [m.sequence for m in queue.replay()] == list(
            range(queue.head_sequence, queue.tail_sequence)
        )


def test_age_removes_compressed_pages(disk: Disk) -> None:
    """As it removes others."""
    disk.clock.step = 10**9
    with disk.open(retention=Retention(max_age=timedelta(hours=2))) as queue:
        fill(queue)
        queue.compress()
        assert queue.info().compressed_page_count > 0
        disk.clock.now += 10**13
        queue.trim()
        assert queue.info().page_count == 1
        assert compressed_pages(disk) == []


def test_page_that_retention_takes_meanwhile_is_left(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: nothing comes back under a name below the head."""
    with disk.open(retention=Retention(max_bytes=2 * PAGE)) as queue:
        fill(queue, 300)
        real = rooms._Sealed.compare

        def compare(self: rooms._Sealed, fd: int, size: int) -> None:
            real(self, fd, size)
            fill(queue, 600, 300)
            queue.trim()

        monkeypatch.setattr(rooms._Sealed, "compare", compare)
        queue.compress()
        head = queue.info().head_page
        assert head > 1
        assert all(number >= head for number in compressed_pages(disk))
        assert not list(disk.directory.glob("*.tmp*"))
        assert queue.verify().ok


def test_leftovers_of_retired_pages_are_removed(disk: Disk) -> None:
    """They belong to nobody; those of others are replaced in their turn."""
    with disk.open(retention=Retention(max_bytes=4 * PAGE)) as queue:
        fill(queue, 1000)
        queue.trim()
        gone = disk.directory / f"{fmt.page_name('queue', 1)}.tmp-zip"
        gone.write_bytes(b"x")
        number = queue.info().head_page
        there = disk.directory / f"{fmt.page_name('queue', number)}.tmp-zip"
        there.write_bytes(b"x")
        queue.compress()
        assert not gone.exists()
        assert not there.exists()
        assert queue.verify().ok


# --- what fails -----------------------------------------------------------------------------------

CALLS = ["open", "pwrite", "fsync", "pread", "rename"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_error_at_any_step_leaves_the_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """I16: a typed error; the page is read as before, nothing is left behind, sending goes on."""
    with disk.open() as queue:
        sent = fill(queue)
        real = getattr(os, call)

        def fail(*args: object, **options: object) -> object:
            on_temporary = call in {"pwrite", "fsync", "rename"} or "tmp-zip" in str(args[0])
            if call == "fsync":
                on_temporary = "tmp-zip" in os.readlink(f"/proc/self/fd/{args[0]}")
            if call == "pread":
                on_temporary = "tmp-zip" in os.readlink(f"/proc/self/fd/{args[0]}")
            if on_temporary:
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises((DiskFull, SystemLimit)) as caught:
                queue.compress()
            assert isinstance(caught.value, DiskFull) == (number == errno.ENOSPC)
            assert caught.value.errno == number
        assert compressed_pages(disk) == []
        assert not list(disk.directory.glob("*.tmp*"))
        assert payloads(queue.replay()) == sent
        sent += fill(queue, 10, 500)
        assert queue.compress().pages > 0
        assert payloads(queue.replay()) == sent


def test_what_the_disk_changed_is_noticed(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Z2: what was written is compared before it takes the page's place."""
    with disk.open() as queue:
        sent = fill(queue)
        real = rooms._write_all

        def write(fd: int, data: bytes, at: int) -> None:
            real(fd, data if at < 2000 else bytes([data[0] ^ 1]) + data[1:], at)

        monkeypatch.setattr(rooms, "_write_all", write)
        with pytest.raises(PageQueueError):
            queue.compress()
        assert compressed_pages(disk) == []
        assert payloads(queue.replay()) == sent


def test_page_that_cannot_be_walked_stays(disk: Disk) -> None:
    """Damage is said, not compressed."""
    with disk.open() as queue:
        fill(queue)
    data = disk.page(1).read_bytes()
    disk.page(1).write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with disk.open() as queue:
        with pytest.raises(CorruptFrame):
            queue.compress()
        assert not list(disk.directory.glob("*.tmp*"))
    assert disk.page(1).stat().st_size == PAGE


def test_latched_queue_is_left_alone(disk: Disk) -> None:
    """After a failed sync nothing is written to it but by repair."""
    with disk.open() as queue:
        fill(queue)
        queue._store.write_meta.latch(errno.EIO, 1)
        with pytest.raises(SyncFailed):
            queue.compress()
    assert repair_queue(disk.directory).ok


def test_failed_sync_with_compressed_pages_is_written_again(disk: Disk) -> None:
    """S2: a compressed page above the mark becomes a plain one, with the same messages."""
    with disk.open(on_sync_failure="seal") as queue:
        sent = fill(queue)
        queue.compress()
        assert queue.durable_sequence == 0
        queue._store.write_meta.latch(errno.EIO, 1)
        with queue.producer() as producer:
            producer.flush()
        assert queue.durable_sequence == len(sent)
        assert payloads(queue.replay()) == sent
        assert queue.verify().ok


def test_killed_at_every_step_the_page_is_there(tmp_path: Path) -> None:
    """I16: dying at each system call of Z1 to Z3; the next run goes on, and nothing is left."""
    step = deaths = 0
    while True:
        disk = Disk(tmp_path / str(step), PAGE)
        with disk.open() as queue:
            sent = fill(queue, 200)
        process = start(die_while_compressing.__name__, disk.directory, step)
        said = process.communicate(timeout=60)[0].split()
        assert verify_queue(disk.directory).ok
        with disk.open() as queue:
            assert payloads(queue.replay()) == sent
            queue.compress()
            assert compressed_pages(disk) == [1]
            assert payloads(queue.replay()) == sent
        assert not list(disk.directory.glob("*.tmp*"))
        if "done" in said:
            break
        deaths += 1
        step += 1
    assert deaths > 20


def test_power_cut_leaves_the_one_file_or_the_other(disk: Disk) -> None:
    """I16: recovery from a mark before, inside and behind compressed pages finds every message."""
    with disk.open() as queue:
        sent = fill(queue, 300)
        with queue.producer() as producer:
            producer.flush()
        sent += fill(queue, 700, 300)
        queue.compress()
    pretend_power_cut(disk.directory)
    with disk.open(read_only=True) as queue:
        assert payloads(queue.replay()) == sent
    with disk.open() as queue:
        assert queue.recovery.scanned
        assert payloads(queue.replay()) == sent
        assert queue.durable_sequence == len(sent)
        assert queue.verify().ok
        sent += fill(queue, 10, 1000)
        assert payloads(queue.replay()) == sent


@pytest.mark.parametrize("meta", ["allMeta", "readMeta", "writeMeta"])
def test_lost_meta_is_made_again_from_compressed_pages(disk: Disk, meta: str) -> None:
    """What a plain page says of itself, a compressed one says too."""
    with disk.open() as queue:
        sent = fill(queue)
        queue.compress()
    if meta == "allMeta":
        disk.page(queue_tail := max(_numbers(disk))).unlink()  # no page of full size is left
        assert queue_tail > 1
    disk.path(meta).unlink()
    if meta == "allMeta":
        report = salvage_queue(disk.directory, disk.directory.parent / "saved")
        with Queue(disk.directory.parent / "saved") as queue:
            assert payloads(queue.replay()) == sent[: report.messages_copied]
            assert queue.page_bytes == PAGE
        return
    assert repair_queue(disk.directory).ok
    with disk.open() as queue:
        assert payloads(queue.replay()) == sent


def _numbers(disk: Disk) -> Iterator[int]:
    return (int(path.name[6:16]) for path in disk.directory.glob("*.page"))


def test_processes_compress_read_and_send_at_once(disk: Disk) -> None:
    """Two that compress, one that sends and retires: each page is done once, nothing is lost."""
    with disk.open() as queue:
        fill(queue, 100)
        others = [start(compress_for_ever.__name__, disk.directory) for _ in range(2)]
        for other in others:
            ready(other)
        sent = text(100)
        for turn in range(10):
            sent += fill(queue, 200, 100 + turn * 200)
            assert payloads(queue.replay()) == sent
        for other in others:
            end(other)
        assert queue.verify().ok
        queue.compress()
        assert len(compressed_pages(disk)) > 3
        assert not list(disk.directory.glob("*.tmp*"))


def test_page_that_another_process_compresses_just_before_is_left(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at a file and locking it, the name can lead to the compressed one."""
    with disk.open() as queue, disk.open() as other:
        sent = fill(queue, 200)
        real = rooms.first_bytes
        looks: list[bytes] = []

        def first_bytes(folder: Folder, name: str) -> bytes:
            found = real(folder, name)
            looks.append(found)
            if len(looks) == 1:
                other.compress()
            return found

        monkeypatch.setattr(rooms, "first_bytes", first_bytes)
        assert queue.compress() == CompressReport()
        assert compressed_pages(disk) == [1]
        assert payloads(queue.replay()) == sent


def test_page_that_is_compressed_while_a_producer_comes_to_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tail was another one by then, so it looks again; nothing is damaged."""
    with disk.open() as queue, disk.open() as other:
        producer = other.producer()
        producer.send(b"first")
        roller = other._store.roller
        real = roller._map
        mapped: list[int] = []

        def map_late(number: int) -> WritablePage:
            mapped.append(number)
            if len(mapped) == 1:
                fill(queue, 300)
                assert queue.compress().pages > 1
            return real(number)

        monkeypatch.setattr(roller, "_map", map_late)
        queue.rotate()
        assert producer.send(b"then") == 301
        assert len(mapped) == 2
        assert payloads(queue.replay()) == [b"first", *text(300), b"then"]


def test_compressed_page_that_stands_where_the_next_comes_is_not_overwritten(disk: Disk) -> None:
    """Somebody put it there, and it has messages."""
    with disk.open() as queue:
        fill(queue, 400)
        queue.compress()
        tail = queue.info().tail_page
    data = disk.page(1).read_bytes()
    disk.page(tail + 1).write_bytes(data)
    assert any(
        "comes next" in p.reason or "not" in p.reason for p in verify_queue(disk.directory).problems
    )
    with disk.open() as queue:
        with pytest.raises(CorruptPage):
            queue.rotate()
        assert disk.page(tail + 1).read_bytes() == data
    disk.page(tail + 1).unlink()
    with disk.open() as queue:
        queue.rotate()
        assert queue.verify().ok


def test_new_file_is_on_stable_storage_before_it_has_the_name(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I14: written, synced, read again, and only then renamed; nothing is written behind that."""
    done: list[str] = []

    def noting(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> object:  # noqa: ANN401
            where = args[0]
            if isinstance(where, int):
                where = os.readlink(f"/proc/self/fd/{where}")
            if str(where).endswith(rooms.MAKER) and (not done or done[-1] != name):
                done.append(name)
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    with disk.open() as queue:
        fill(queue, 200)
        for name in ("ftruncate", "pwrite", "fsync", "pread", "rename"):
            noting(name)
        assert queue.compress().pages == 1
    assert done == ["ftruncate", "pwrite", "fsync", "pread", "rename"]
