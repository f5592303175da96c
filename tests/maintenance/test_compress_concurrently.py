"""Compressing concurrently with readers and retention: they notice only the bytes saved."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from squeezing import PAGE, compressed_pages, fill
from support import payloads, settle

from pagequeue import (
    Expired,
    PageQueueError,
    Retention,
)
from pagequeue import format as fmt
from pagequeue.maintenance import compress as rooms
from pagequeue.page.compressed_page import Pool

if TYPE_CHECKING:
    from plugin import Disk

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def disk(disk: Disk) -> Disk:
    """A directory for a queue whose pages have several blocks."""
    disk.page_bytes = PAGE
    return disk


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


def test_pool_gives_no_region_that_is_in_use(disk: Disk) -> None:
    """Neither one that a page has, nor one of which there is a view."""
    with disk.open() as queue:
        fill(queue, 1500)
        queue.compress()
        pool = Pool(queue._store.meta)
        pages = [queue._store.page(n) for n in (1, 2, 3, 4)]
        held = pool.take(pages[0])
        view = memoryview(pool.take(pages[1]))
        given = [pool.take(page) for page in pages]
        assert all(region is not held for region in given)
        assert all(bytes(view[:8]) == bytes(8) for _ in given)


@pytest.mark.slow
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
    """A reader that finds damage checks the current file of that name."""
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


def test_max_bytes_counts_the_size_of_compressed_pages(disk: Disk) -> None:
    """More of them are kept in the same bytes, and never more bytes."""
    limit = 5 * PAGE
    with disk.open(retention=Retention(max_bytes=limit)) as queue:
        for turn in range(25):
            fill(queue, 120, turn * 120)  # less than a page
            queue.compress()
            queue.trim()
        settle(queue)
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
        settle(queue)  # a trim in the background would remove files after this one has returned
        disk.clock.now += 10**13
        queue.trim()
        assert queue.info().page_count == 1
        assert compressed_pages(disk) == []


def test_page_that_retention_removes_meanwhile_is_not_recreated(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: no page reappears under a name below the head."""
    with disk.open(retention=Retention(max_bytes=2 * PAGE)) as queue:
        fill(queue, 300)
        real = rooms._Sealed.compare

        def compare(self: rooms._Sealed, fd: int, size: int) -> None:
            real(self, fd, size)
            fill(queue, 600, 300)
            queue.trim()

        monkeypatch.setattr(rooms._Sealed, "compare", compare)
        queue.compress()
        settle(queue)
        head = queue.info().head_page
        assert head > 1
        assert all(number >= head for number in compressed_pages(disk))
        assert not list(disk.directory.glob("*.tmp*"))
        assert queue.verify().ok


def test_leftovers_of_retired_pages_are_removed(disk: Disk) -> None:
    """Temporary files of retired pages are removed; others are overwritten later."""
    with disk.open(retention=Retention(max_bytes=4 * PAGE)) as queue:
        fill(queue, 1000)
        settle(queue)
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
