"""The core's walk over a page, and its search, on any bytes whatever."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plugin import START, Disk
from tiers import examples

from pagequeue import _core

if TYPE_CHECKING:
    from pathlib import Path

END = 2**63 - 1
CODES = set(range(6))


def region_of(data: bytes, *, writable: bool = False) -> _core.Region:
    """Map some bytes, in a private file."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        region = _core.Region(file.fileno(), len(data), writable)
    region.queue_id = data[24:40].ljust(16, b"\0")
    return region


def map_path(path: Path) -> _core.Region:
    """Map a file for reading."""
    fd = os.open(path, os.O_RDONLY)
    try:
        region = _core.Region(fd, path.stat().st_size, False)
    finally:
        os.close(fd)
    region.queue_id = region.read(24, 16)
    return region


def walk(page: _core.Region, first: int = 0, end: int = END, floor: int = 0) -> tuple[int, ...]:
    """Scan a page from its first frame on."""
    return _core.scan(page, None, first, 64, first, end, floor, _core.INDEX_NONE)


@pytest.fixture
def batches(disk: Disk) -> Disk:
    """Page 1 with a message, a batch of three and another message; all have one timestamp."""
    disk.clock.step = 0
    with disk.open() as queue, queue.producer() as producer:
        producer.send(b"one")
        producer.send_many([b"a", b"b", b"c"])
        producer.send(b"two")
    return disk


def test_walk_stops_after_the_last_frame(batches: Disk) -> None:
    """I2: the true tail is found checksum by checksum."""
    end = 64 + 5 * 24
    assert walk(map_path(batches.page(1))) == (end, 5, START, end, 5, START, 0, 1)


def test_walk_stops_at_the_end_sequence_given(batches: Disk) -> None:
    """I8: complete batches are told apart from frames that only validate."""
    page = map_path(batches.page(1))
    assert walk(page, end=3) == (64 + 72, 3, START, 64 + 24, 1, START, 0, _core.READ_FRAME)
    assert walk(page, end=0) == (64, 0, 0, 64, 0, 0, 0, _core.READ_NOTHING)


def test_incomplete_batch_is_not_whole(batches: Disk) -> None:
    """I8: a batch whose rest was lost ends before its first message."""
    data = bytearray(batches.page(1).read_bytes())
    data[64 + 72 :] = bytes(len(data) - 64 - 72)
    assert walk(region_of(bytes(data))) == (136, 3, START, 88, 1, START, 0, _core.READ_NOTHING)


def test_frame_of_another_sequence_never_validates(batches: Disk) -> None:
    """I2: a stale or misplaced frame is not taken for the right one."""
    page = map_path(batches.page(1))
    assert walk(page, first=1)[7] == _core.READ_BAD_CHECKSUM
    assert _core.peek(page, 64, 0)[0] == _core.READ_FRAME
    assert _core.peek(page, 88, 0)[0] == _core.READ_BAD_CHECKSUM


def test_frame_older_than_the_one_before_is_damage(batches: Disk) -> None:
    """I1: timestamps never go back."""
    page = map_path(batches.page(1))
    assert walk(page, floor=START)[7] == _core.READ_NOTHING
    assert walk(page, floor=START + 1)[:2] == (64, 0)
    assert walk(page, floor=START + 1)[7] == _core.READ_BAD_TIME


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, _core.READ_NOTHING),
        (1, _core.READ_BAD_LENGTH),
        (15, _core.READ_BAD_LENGTH),
        (16, _core.READ_BAD_CHECKSUM),
        (4096 - 64 - 16, _core.READ_BAD_CHECKSUM),  # up to the end mark's place
        (4096 - 64 - 15, _core.READ_BAD_LENGTH),
        (4096 - 64, _core.READ_BAD_LENGTH),
        (2**30 - 1, _core.READ_BAD_LENGTH),
        (2**30, _core.READ_BAD_LENGTH),
        (1 << 31 | 16, _core.READ_BAD_CHECKSUM),
        (1 << 31, _core.READ_BAD_LENGTH),
        (1 << 31 | 15, _core.READ_BAD_LENGTH),
        (1 << 31 | 24, _core.READ_BAD_CHECKSUM),  # it describes a fragment
        (1 << 31 | 4096 - 64, _core.READ_BAD_CHECKSUM),
        (1 << 31 | 4096 - 63, _core.READ_BAD_LENGTH),
        (3 << 30 | 16, _core.READ_BAD_CHECKSUM),  # the head of a large message
        (3 << 30 | 15, _core.READ_BAD_LENGTH),
        (3 << 30 | 4096 - 64 - 15, _core.READ_BAD_LENGTH),
        (2**32 - 1, _core.READ_BAD_LENGTH),
    ],
)
def test_length_words_at_the_limits(word: int, expected: int) -> None:
    """I9: a length never leads out of the page."""
    page = region_of((bytes(64) + struct.pack("<I", word)).ljust(4096, b"\0"))
    assert _core.peek(page, 64, 0)[0] == expected


@pytest.mark.parametrize("position", [0, 8, 63, 65, 68, 4088, 4096, 4104, 2**32, 2**64 - 8])
def test_positions_where_no_frame_can_begin(position: int) -> None:
    """I9: neither in the header, nor unaligned, nor outside."""
    page = region_of(b"\x10" * 4096)
    assert _core.peek(page, position, 0)[0] == _core.READ_BAD_LENGTH
    assert _core.scan(page, None, 0, position, 0, END, 0, 0)[7] == _core.READ_BAD_LENGTH


@settings(max_examples=examples(150))
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["noise", "lengths", "zeros", "flips"]))
@example(seed=0, kind="zeros")
def test_no_bytes_lead_out_of_page_or_index(seed: int, kind: str) -> None:
    """I9: any page, index and arguments give an answer inside the page."""
    rnd = random.Random(seed)
    page_bytes = rnd.choice([4096, 8192, 4096 + 8, 64, 80])
    page = bytearray(page_bytes)
    if kind in {"noise", "flips"}:
        page = bytearray(rnd.randbytes(page_bytes))
    if kind == "lengths":
        at, sequence = 64, 0
        while at + 32 <= page_bytes and rnd.random() < 0.95:
            size = min(16 + rnd.randrange(60), page_bytes - at - 16)
            word = size | rnd.choice([0, 0, 1 << 30])
            payload = rnd.randbytes(size - 16)
            checksum = _core.frame_checksum(bytes(16), payload, sequence, sequence, word)
            struct.pack_into("<IIq", page, at, word, checksum, sequence)
            page[at + 16 : at + size] = payload
            at += (size + 7) // 8 * 8
            sequence += 1
    records = rnd.randrange(1, 200)
    index = rnd.randbytes(12 * records)
    page_region, index_region = region_of(bytes(page)), region_of(index, writable=True)
    numbers = [0, 1, 5, records, records + 1, 2**32, 2**63, 2**64 - 1]
    first, count, ordinal = (rnd.choice(numbers) for _ in range(3))
    found = _core.find(page_region, index_region, first, count, rnd.choice([-(2**63), 0, 9, END]))
    assert found is None or (found[0] <= count and 64 <= found[1] <= page_bytes)
    place = _core.locate(page_region, index_region, first, count, ordinal)
    assert place is None or 64 <= place <= max(page_bytes, 64)
    for use in (_core.INDEX_NONE, _core.INDEX_CHECK, _core.INDEX_WRITE):
        start = rnd.choice([0, 64, 72, page_bytes - 16, 2**63])
        scan = _core.scan(page_region, index_region, first, start, first, END, 0, use)
        assert scan[7] in CODES
        assert scan[0] == start or scan[0] <= page_bytes
        assert scan[3] <= scan[0]
        assert scan[4] <= scan[1]
    assert page_region.read(0, page_bytes) == bytes(page)


def test_read_only_index_is_never_written(batches: Disk) -> None:
    """I9: an error instead of a fault."""
    page, index = map_path(batches.page(1)), map_path(batches.index(1))
    with pytest.raises(ValueError, match="read-only"):
        _core.scan(page, index, 0, 64, 0, END, 0, _core.INDEX_WRITE)


def test_arguments_of_other_types_are_refused(batches: Disk) -> None:
    """I9: only maps are walked."""
    page = map_path(batches.page(1))
    for call in (
        lambda: _core.scan(b"page", None, 0, 64, 0, END, 0, 0),
        lambda: _core.scan(page, b"index", 0, 64, 0, END, 0, 0),
        lambda: _core.find(page, "index", 0, 1, 0),
        lambda: _core.locate(None, page, 0, 1, 0),
        lambda: _core.peek(bytes(4096), 64, 0),
    ):
        with pytest.raises(TypeError, match="regions"):
            call()


def test_scan_writes_the_index_that_the_producer_wrote(batches: Disk) -> None:
    """I6: the index can be made again from the frames alone."""
    right = batches.index(1).read_bytes()
    made = region_of(b"\xee" * len(right), writable=True)
    _core.scan(map_path(batches.page(1)), made, 0, 64, 0, END, 0, _core.INDEX_WRITE)
    assert made.read(0, 60) == right[:60]
    assert made.read(60 + 8, 4) == bytes(4)  # the record after the last one is marked as unused
    check = _core.scan(map_path(batches.page(1)), made, 0, 64, 0, END, 0, _core.INDEX_CHECK)
    assert check[6] == 0
