"""Blocks of a page are reserved as messages come, and given back when it is sealed (I10)."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest
from support import until

from pagequeue import DiskFull, Queue, QueueNotFound, _core, repair_queue, verify_queue
from pagequeue import format as fmt
from pagequeue.page import page as pages
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Producer

PAGE_BYTES = 16 << 20
NOISE = os.urandom(1 << 16)


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Blocks are what a disk gives."""
    return on_disk


def blocks(path: Path) -> int:
    """Return how many bytes a file takes on the disk."""
    return path.stat().st_blocks * 512


def used(directory: Path) -> int:
    """Return how many bytes the files of a queue take on the disk."""
    return sum(map(blocks, directory.iterdir()))


def send_all(producer: Producer[bytes]) -> None:
    """Send 6 MiB, one message after the other."""
    for _ in range(100):
        producer.send(NOISE)


@pytest.fixture
def _few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full beyond the first MiB of each file."""
    reserve = _core.reserve

    def reserve_little(
        folder: int, name: str, device: int, inode: int, position: int, length: int
    ) -> None:
        if position + length > 1 << 20:
            raise OSError(errno.ENOSPC, "no space left")
        reserve(folder, name, device, inode, position, length)

    monkeypatch.setattr(_core, "reserve", reserve_little)


def test_one_message_takes_less_than_a_mebibyte(tmp_path: Path) -> None:
    """Of 89 MiB that its files could take."""
    with Queue(tmp_path / "q") as queue, queue.producer() as producer:
        producer.send(b"x")
        assert used(tmp_path / "q") < 1 << 20
    with Queue(tmp_path / "q") as queue:
        queue.producer().send(b"y")
        assert [message.payload for message in queue.replay()] == [b"x", b"y"]
        assert used(tmp_path / "q") < 1 << 20


def test_all_that_is_sent_has_blocks(tmp_path: Path) -> None:
    """And the last OS page, which each producer reads; several processes reserve the same."""
    directory = tmp_path / "q"
    with (
        Queue(directory, page_bytes=PAGE_BYTES) as queue,
        Queue(directory) as other,
        queue.producer() as producer,
        other.producer() as second,
    ):
        while queue.tail_sequence < 150:
            producer.send(NOISE)
            second.send(NOISE)
            store = internals(queue).store
            page = directory / fmt.page_name("queue", store.tail.page_number)
            assert page.stat().st_blocks * 512 >= store.tail.position
        assert store.tail.page_number == 1
    assert verify_queue(directory).problems == []


@pytest.mark.parametrize("size", [0, 1, 8])
def test_tiny_messages_need_more_of_the_index(tmp_path: Path, size: int) -> None:
    """Its share of what is reserved ends before that of the page; one call or many."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many([bytes(size)] * 10_000)
        for _ in range(30_000):
            producer.send(bytes(size))
        assert len(queue) == 40_000
        assert blocks(tmp_path / "q" / fmt.index_name("queue", 1)) >= 40_001 * 12
    assert verify_queue(tmp_path / "q").problems == []


@pytest.mark.parametrize("count", [300_000, 20_000])
def test_sealed_page_and_index_give_back_what_they_do_not_need(tmp_path: Path, count: int) -> None:
    """The index is then within 5 % of 12 bytes for each message."""
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for _ in range(count // 500):
            producer.send_many([bytes(100)] * 500)
        queue.rotate()
        limit = count * fmt.INDEX_RECORD_BYTES * 1.05

        def taken(ending: str) -> int:
            return sum(map(blocks, sorted(directory.glob(f"*.{ending}"))[:-1]))

        until(lambda: taken("idx") <= limit and taken("page") < count * 151)
        assert taken("idx") >= count * fmt.INDEX_RECORD_BYTES
    with Queue(directory, read_only=True) as queue:
        assert len(queue) == count
        assert sum(1 for _ in queue.replay()) == count
        assert queue.last(1)[0].sequence == count - 1
    assert verify_queue(directory).problems == []
    assert not repair_queue(directory).actions


@pytest.mark.usefixtures("_few_blocks")
def test_full_disk_in_the_middle_of_a_page_is_an_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent; the same producer sends when there is room."""
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        with pytest.raises(DiskFull, match=r"queue-0000000001\.(page|idx).*reserving blocks"):
            send_all(producer)
        sent = len(queue)
        # Up to the last place that has blocks, though a whole step had none.
        assert sent == ((1 << 20) - fmt.PAGE_HEADER_BYTES) // (len(NOISE) + 24)
        with pytest.raises(DiskFull):
            producer.send_many([NOISE, b"x"])
        with pytest.raises(DiskFull):
            asyncio.run(producer.send_async(NOISE))
        producer.send(b"small")  # it still fits
        assert len(queue) == sent + 1
        monkeypatch.undo()
        asyncio.run(producer.send_async(NOISE))
        producer.send(NOISE)
        assert len(queue) == sent + 3
    assert verify_queue(directory).problems == []


def test_page_that_was_replaced_gets_no_blocks(tmp_path: Path) -> None:
    """Another file of the same name stays as it is, and nothing is written where no blocks are."""
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"x")
        page = directory / fmt.page_name("queue", 1)
        page.rename(tmp_path / "moved")
        page.write_bytes(b"foreign")
        with pytest.raises(QueueNotFound, match="another file has this name now"):
            send_all(producer)
        assert page.stat().st_size == 7
        assert page.stat().st_blocks <= 8


def test_removed_index_hinders_no_producer(tmp_path: Path) -> None:
    """It is only a hint (I6)."""
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"x")
        (directory / fmt.index_name("queue", 1)).unlink()
        send_all(producer)
        assert len(list(queue.replay())) == 101
    with Queue(directory) as queue:
        assert queue.last(1)[0].sequence == 100


def test_system_that_reserves_nothing_has_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks at once, as `posix_fallocate` finds them."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(_core, "reserve", refuse)
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for _ in range(10):
            producer.send(NOISE)
        page = directory / fmt.page_name("queue", 1)
        assert page.stat().st_blocks * 512 >= PAGE_BYTES
    assert pages.RESERVE_MIN < PAGE_BYTES
