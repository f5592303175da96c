"""One page with its index: its header, finding by time and sequence, repair of its index."""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING

import pytest
from plugin import START, Disk
from support import flip

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_meta import read_all_meta
from pagequeue.page.header import PageHeader, decode_header
from pagequeue.page.page import Page, map_file, writable_index
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pagequeue import Queue

HEADER = PageHeader(7, bytes(range(16)), 100, START, START + 1)
TIMES = [10, 20, 20, 20, 30, 40]


@pytest.fixture
def page(disk: Disk) -> Iterator[Page]:
    """A page of six messages, three of them of the same time; sequences from 2 on."""
    disk.clock.now = 0
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"-", timestamp=1)
        producer.send(b"-", timestamp=2)
        queue.rotate()
        for number, time in enumerate(TIMES):
            producer.send(b"%d" % number * number, timestamp=time)
    folder = Directory(str(disk.directory), create=False)
    yield Page(folder, "queue", read_all_meta(folder, "queue"), 2)
    folder.close()


def positions(disk: Disk) -> list[int]:
    """Return the positions of page 2's frames, and the position after them."""
    frames = disk.frames(2)
    end = frames[-1].position + 16 + (len(frames[-1].payload) + 7) // 8 * 8
    return [frame.position for frame in frames] + [end]


def test_header_is_read_back_as_written() -> None:
    """A header holds the number and the queue of its page."""
    assert decode_header(HEADER.encode(), HEADER.queue_id, 7, "p") == HEADER
    for change in ({"first_sequence": None}, {"is_continued": True}, {"is_compressed": True}):
        other = HEADER._replace(**change)
        assert decode_header(other.encode(), HEADER.queue_id, 7, "p") == other


def test_every_changed_byte_of_a_header_is_noticed() -> None:
    """I9: no field of a damaged header is used."""
    data = HEADER.encode()
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises((errors.CorruptPage, errors.NewerFormat)):
            decode_header(damaged, HEADER.queue_id, 7, "p")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queue_id": bytes(16)}, "a page of another queue"),
        ({"queue_id": fmt.staged_id(HEADER.queue_id)}, "as it was staged"),
        ({"page_number": 8}, "it is page 8, not 7"),
    ],
)
def test_page_in_the_wrong_place_is_damage(change: dict[str, object], reason: str) -> None:
    """I1: a page that was renamed or copied from elsewhere is never read."""
    data = HEADER._replace(**change).encode()
    with pytest.raises(errors.CorruptPage) as caught:
        decode_header(data, HEADER.queue_id, 7, "p")
    assert caught.value.reason == reason
    assert caught.value.position == 0


def test_page_of_a_newer_version_is_refused(disk: Disk) -> None:
    """Only a version that knows the format reads a page."""
    disk.send(b"x")
    disk.poke(disk.page(1), 8, struct.pack("<I", 9))
    with pytest.raises(errors.NewerFormat), disk.open(read_only=True) as queue:
        list(queue.replay())
    with pytest.raises(errors.NewerFormat), disk.open() as queue:
        queue.producer()


def test_page_with_an_unknown_flag_is_refused() -> None:
    """What a flag of a newer version promises, this one cannot keep."""
    data = bytearray(HEADER.encode())
    data[10:16] = struct.pack("<HI", 2, 0)
    data[12:16] = struct.pack("<I", _core.crc32c(bytes(data)))
    with pytest.raises(errors.NewerFormat, match="flags 0x2"):
        decode_header(bytes(data), HEADER.queue_id, 7, "p")


@pytest.mark.parametrize("size", [0, 64, 4095, 4097, 8192])
def test_page_of_another_size_is_damage(disk: Disk, size: int) -> None:
    """I9: no page is mapped beyond its end."""
    disk.send(b"x")
    os.truncate(disk.page(1), size)
    with pytest.raises(errors.CorruptPage, match="must be 4096"), disk.open(read_only=True) as q:
        list(q.replay())
    with pytest.raises(errors.CorruptPage):
        disk.open()


@pytest.mark.parametrize(
    ("since", "ordinal"),
    [(-(2**63), 0), (0, 0), (10, 0), (11, 1), (20, 1), (21, 4), (30, 4), (40, 5), (41, 6)],
)
def test_find_gives_the_first_that_is_not_older(
    disk: Disk, page: Page, since: int, ordinal: int
) -> None:
    """I6: inclusive, and the first of equal times."""
    assert page.find(since, 6, repair=False) == (ordinal, positions(disk)[ordinal])


def test_find_searches_only_the_given_count(disk: Disk, page: Page) -> None:
    """I6: messages published meanwhile are not part of the search."""
    assert page.find(40, 4, repair=False) == (4, positions(disk)[4])
    assert page.find(5, 0, repair=False) == (0, 64)


def test_locate_gives_each_frame_and_the_position_after_the_last(disk: Disk, page: Page) -> None:
    """I1: sequences are consecutive from the page's first one on."""
    assert page.first_sequence == 2
    assert [page.locate(2 + n, 6, repair=False) for n in range(7)] == positions(disk)


def spoil(kind: str, path: Path) -> None:
    """Spoil an index."""
    data = path.read_bytes()
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(SPOILS[kind](data))


def changed(data: bytes, at: int, form: str, *values: int) -> bytes:
    """Return an index with one word of its first records changed."""
    again = bytearray(data)
    for ordinal, value in enumerate(values):
        struct.pack_into(form, again, 12 * ordinal + at, value)
    return bytes(again)


SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "missing": lambda data: data,
    "short": lambda data: data[:30],
    "long": lambda data: data + bytes(12),
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: b"\xa5" * len(data),
    "shifted": lambda data: data[12:] + bytes(12),
    "times": lambda data: changed(data, 0, "<q", *range(1000, 994, -1)),
    "positions": lambda data: changed(data, 8, "<I", *[64] * 6),
}


@pytest.mark.parametrize("kind", SPOILS)
@pytest.mark.parametrize("repair", [True, False])
def test_wrong_index_costs_time_and_never_correctness(
    disk: Disk, page: Page, kind: str, repair: bool
) -> None:
    """I6: frames prove what the index gives; a reader keeps its rebuilt index private."""
    right = disk.index(2).read_bytes()
    spoil(kind, disk.index(2))
    before = disk.contents()
    for since, ordinal in ((10, 0), (20, 1), (21, 4), (41, 6)):
        assert page.find(since, 6, repair=repair) == (ordinal, positions(disk)[ordinal])
    assert [page.locate(2 + n, 6, repair=repair) for n in range(7)] == positions(disk)
    if repair:
        assert disk.index(2).read_bytes()[:72] == right[:72]
        assert disk.index(2).stat().st_size == len(right)
    else:
        assert disk.contents() == before


def test_damaged_frame_is_named_when_the_index_cannot_be_rebuilt(disk: Disk, page: Page) -> None:
    """I6: damage in the page is not mistaken for damage in the index."""
    at = positions(disk)[3]
    disk.poke(disk.page(2), at + 16, b"!")
    with pytest.raises(errors.CorruptFrame) as caught:
        page.locate(5, 6, repair=True)
    error = caught.value
    assert (error.path, error.position, error.sequence) == (str(disk.page(2)), at, 5)
    assert error.reason == "its checksum is wrong"


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\xff\xff\xff\x3f", "its length is invalid"),
        (0, b"\x0f\0\0\0", "its length is invalid"),
        (0, b"\0\0\0\0", "no frame there"),
        (4, None, "its checksum is wrong"),
        (8, None, "its checksum is wrong"),
    ],
)
def test_damage_is_reported_with_place_and_reason(
    disk: Disk, page: Page, at: int, data: bytes | None, reason: str
) -> None:
    """I2: position, sequence and reason of the first frame that does not validate."""
    position = positions(disk)[2]
    if data is None:  # any other byte than the one that is there
        flip(disk.page(2), position + at)
    else:
        disk.poke(disk.page(2), position + at, data)
    error = page.damage(6)
    assert (error.position, error.sequence, error.reason) == (position, 4, reason)


def test_first_timestamp_is_none_for_a_page_without_a_valid_first_frame(
    disk: Disk, page: Page
) -> None:
    """I6: a damaged frame's time is not searched by."""
    assert page.first_timestamp() == 10
    disk.poke(disk.page(2), 64 + 8, b"\x01")
    assert page.first_timestamp() is None


def test_page_without_first_sequence_is_not_read(page: Page) -> None:
    """I10: a page that is only made ready is not part of the queue."""
    page.header = page.header._replace(first_sequence=None)
    with pytest.raises(errors.CorruptPage, match="no first sequence"):
        _ = page.first_sequence


def test_index_of_the_wrong_size_is_replaced_by_an_empty_one(disk: Disk, page: Page) -> None:
    """I6: its old readers keep what they mapped."""
    folder, meta = page._folder, page._meta
    old = map_file(folder, "queue-0000000002.idx", meta.index_bytes, writable=False)
    same = writable_index(folder, "queue", meta, 2)
    assert same.read(0, 12) == old.read(0, 12) != bytes(12)
    disk.index(2).unlink()
    disk.index(2).write_bytes(b"short")
    made = writable_index(folder, "queue", meta, 2)
    assert made.read(0, meta.index_bytes) == bytes(meta.index_bytes)
    assert old.read(0, 12) != bytes(12)


def test_check_counts_index_records_that_differ(page: Page) -> None:
    """I6: verify compares every record with its frame."""
    index = writable_index(page._folder, "queue", page._meta, 2)
    assert page.check(6, index).index_wrong == 0
    index.write(12, b"\xff")
    index.write(24 + 8, b"\xff")
    scan = page.check(6, index)
    assert (scan.index_wrong, scan.sequence, scan.stopped) == (2, 8, _core.READ_FRAME)


@pytest.mark.slow
def test_threads_that_miss_an_index_at_once_all_find_their_place(disk: Disk) -> None:
    """I6: a concurrent rebuild by another thread is not an error."""
    disk.send(*[b"x"] * 20)
    failed: list[Exception] = []
    with disk.open() as one, disk.open() as two:
        barrier = threading.Barrier(4)

        def search(queue: Queue) -> None:
            barrier.wait()
            try:
                assert len(list(queue.replay(sequence=5))) == 15
            except Exception as error:  # noqa: BLE001 - of any type: it is checked below
                failed.append(error)

        for _ in range(150):
            disk.index(1).unlink(missing_ok=True)
            for queue in (one, two):
                queue._store.pages.clear()
            threads = [threading.Thread(target=search, args=(queue,)) for queue in (one, two) * 2]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert failed == []
