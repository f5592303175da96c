"""Walking after damage: to the next frame that proves itself, past all that only resemble one."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest
from support import SMALL

from pagequeue import Queue, _core
from pagequeue import format as fmt
from pagequeue.page.page import private_region
from pagequeue.page.valid_runs import ValidRun, valid_runs

if TYPE_CHECKING:
    from pathlib import Path

MAX = fmt.TIMESTAMP_MAX


def page_of(tmp_path: Path, payloads: list[bytes], page_bytes: int = SMALL) -> bytearray:
    """Return the bytes of a first page with these messages, sealed."""
    with Queue(tmp_path / "q", page_bytes=page_bytes) as queue, queue.producer() as producer:
        for payload in payloads:
            producer.send(payload)
        producer.rotate()
        return bytearray((tmp_path / "q" / fmt.page_name("queue", 1)).read_bytes())


def region_of(page: bytes) -> _core.Region:
    """Map the bytes of a page, of the queue that its header names."""
    region = private_region(bytes(page), len(page))
    region.queue_id = bytes(page[24:40])
    return region


def walked(
    page: bytes, index: bytes | None = None, end: int | None = None, *, sealed: bool = True
) -> list[ValidRun]:
    """Return the stretches of a page whose first sequence is 0."""
    region = region_of(page)
    indexed = None if index is None else private_region(index, len(index))
    return list(valid_runs(region, indexed, 0, 0, end_sequence=end, is_sealed=sealed))


def sequences(found: list[ValidRun]) -> list[int]:
    """Return the sequences of all frames in stretches."""
    return [n for stretch in found for n in range(stretch.first, stretch.end)]


def positions(payloads: list[bytes]) -> list[int]:
    """Return the position of each frame."""
    result, at = [], fmt.PAGE_HEADER_BYTES
    for payload in payloads:
        result.append(at)
        at += fmt.frame_bytes(len(payload))
    return [*result, at]


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("length", [0, 1, 16, 200, 0xFFFFFFFF, 0x80000010, 0x40000018])
@pytest.mark.parametrize("ordinal", [0, 3, 9])
def test_only_the_damaged_frame_is_passed_over(tmp_path: Path, ordinal: int, length: int) -> None:
    """I2, I6: whatever its length is, the frame after it is found by its own checksum."""
    payloads = [bytes([65 + n]) * (n * 17 % 90 + 1) for n in range(10)]
    page = page_of(tmp_path, payloads)
    at = positions(payloads)[ordinal]
    page[at : at + 4] = length.to_bytes(4, "little")
    found = walked(page)
    assert sequences(found) == [n for n in range(10) if n != ordinal]
    assert found[-1].stopped == _core.READ_END


def test_damaged_end_of_page_marker_leaves_all_frames(tmp_path: Path) -> None:
    """The walk ends with the reason."""
    payloads = [b"abc"] * 5
    page = page_of(tmp_path, payloads)
    page[positions(payloads)[-1] + 4] ^= 0xFF
    assert sequences(walked(page, end=5)) == list(range(5))
    assert walked(page, end=5)[-1].stopped == _core.READ_BAD_CHECKSUM


def test_long_stretch_of_garbage_is_passed_over(tmp_path: Path) -> None:
    """Many frames can be gone at once; their number follows from the next one's sequence."""
    payloads = [b"x" * 20] * 60
    page = page_of(tmp_path, payloads)
    at = positions(payloads)
    page[at[7] : at[41] + 5] = random.Random(3).randbytes(at[41] + 5 - at[7])
    assert sequences(walked(page)) == [*range(7), *range(42, 60)]


def test_frames_of_another_place_are_not_taken(tmp_path: Path) -> None:
    """I6: a payload that holds a copy of a page yields none of that page's frames again."""
    inner = page_of(tmp_path / "a", [b"inner %d" % n for n in range(8)])
    payloads = [b"before"] * 9 + [bytes(inner[64:600])] + [b"beyond"] * 3
    page = page_of(tmp_path / "b", payloads)
    page[positions(payloads)[9] + 4] ^= 1  # the checksum of the one that holds the copy
    assert sequences(walked(page)) == [*range(9), *range(10, 13)]


def test_end_is_a_bound(tmp_path: Path) -> None:
    """I8: what follows the end of the page, as the next one begins, was never part of it."""
    payloads = [b"abc"] * 10
    page = page_of(tmp_path, payloads)
    assert sequences(walked(page, end=6)) == list(range(6))
    page[positions(payloads)[2]] ^= 1
    assert sequences(walked(page, end=6)) == [0, 1, 3, 4, 5]


def test_frames_after_an_empty_slot_of_an_open_page_are_ignored(tmp_path: Path) -> None:
    """I4: a dead producer can have written frames there that it never sent."""
    payloads = [b"abc"] * 10
    page = page_of(tmp_path, payloads)
    at = positions(payloads)[4]
    page[at : at + 4] = bytes(4)
    assert sequences(walked(page, sealed=False)) == [0, 1, 2, 3]
    assert sequences(walked(page, sealed=True)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_index_that_lies_leads_nowhere(tmp_path: Path) -> None:
    """I6: its positions are tried, and proved."""
    payloads = [b"abc" * 9] * 10
    page = page_of(tmp_path, payloads)
    page[positions(payloads)[4]] ^= 1
    lies = random.Random(5).randbytes(fmt.index_capacity(SMALL) * fmt.INDEX_RECORD_BYTES)
    assert sequences(walked(page, lies)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_forged_lengths_end_in_bounded_time() -> None:
    """A page full of headers whose payload is the rest of the page is skipped, not walked."""
    size = 1 << 20
    page = bytearray(size)
    for at in range(64, size - 64, 8):
        length = size - at - 64
        page[at : at + 16] = length.to_bytes(4, "little") + b"\1\2\3\4" + (5).to_bytes(8, "little")
    started = time.process_time()
    assert sequences(walked(page, end=1 << 40)) == []
    assert time.process_time() - started < 20


def test_random_pages_give_no_frames() -> None:
    """No frame is invented from noise."""
    rng = random.Random(11)
    for _ in range(40):
        noise = rng.randbytes(SMALL)
        assert sequences(walked(noise)) == []


def frame_of(payload: bytes, sequence: int, *, end: bool = False) -> bytes:
    """Return a frame of the queue whose id is zeros."""
    word = fmt.FRAME_HEADER_BYTES + len(payload) | (fmt.END_OF_PAGE if end else 0)
    checksum = _core.frame_checksum(bytes(16), payload, 77, sequence, word)
    head = word.to_bytes(4, "little") + checksum.to_bytes(4, "little")
    return head + (77).to_bytes(8, "little") + payload + bytes(-len(payload) % 8)


def test_resync_finds_a_sequence_of_any_size() -> None:
    """A CRC run backwards gives the sequence, also across a border of 2**32."""
    for sequence in (1, 2**32 - 1, 2**32, 2**40 + 12345, 2**62):
        frames = frame_of(b"abc", sequence) + frame_of(b"abc", sequence + 1)
        frames += frame_of(b"", sequence + 2, end=True)
        low = max(0, sequence - 1000)
        region = region_of((bytes(64) + frames).ljust(SMALL, b"\0"))
        assert _core.resync(region, None, low, 56, low, sequence + 2**31, 0, MAX) == (64, sequence)
        region = region_of((bytes(128) + frames).ljust(SMALL, b"\0"))
        near = max(0, sequence - 3)
        assert _core.resync(region, None, near, 64, near, sequence + 9, 0, MAX) == (128, sequence)
        far = _core.resync(region, None, low, 64, low, sequence + 9, 0, MAX)
        assert (far is None) == (sequence - low > 4), "there is no room for so many in between"


def test_resync_refuses_invalid_arguments() -> None:
    """Bad arguments are the caller's bug."""
    region = region_of(bytes(SMALL))
    for arguments in ((5, 64, 4, 9), (0, 64, 5, 4), (0, 64, 0, 2**63)):
        with pytest.raises(ValueError, match="order"):
            _core.resync(region, None, *arguments, 0, MAX)


def test_frames_that_lead_to_the_mark_are_found_without_an_index() -> None:
    """The mark's page reached the mark on the disk; with zeros after it, or damage of what came."""
    frames = [frame_of(b"%3d" % number * 4, number) for number in range(20)]
    page = bytes(64) + b"".join(frames)
    hole = page[:160] + bytes(64) + page[224:]
    for rest in (b"", b"\xa5" * 50):
        region = region_of((hole + rest).ljust(SMALL, b"\0"))
        assert _core.resync(region, None, 0, 160, 3, fmt.SEQUENCE_MAX, 0, MAX) is None
        assert _core.resync(region, None, 0, 160, 3, fmt.SEQUENCE_MAX, 0, MAX, 20) == (224, 5)
        assert _core.resync(region, None, 0, 160, 3, fmt.SEQUENCE_MAX, 0, MAX, 21) is None


def test_two_places_that_lead_to_the_mark_prove_nothing() -> None:
    """A damaged message can hold frames of this very queue, up to the same mark."""
    forged = b"".join(frame_of(b"forged", number) for number in range(4, 10))
    frames = [frame_of(b"%3d" % number * 4, number) for number in range(10)]
    frames[3] = bytes(16) + frame_of(forged, 3)[16:]  # its header is lost
    page = bytes(64) + b"".join(frames)
    at = 64 + 3 * len(frames[0])
    real = at + len(frames[3])
    for rest, found in ((b"", (real, 4)), (b"\xa5" * 50, None)):
        region = region_of((page + rest).ljust(SMALL, b"\0"))
        assert _core.resync(region, None, 0, at, 3, fmt.SEQUENCE_MAX, 0, MAX, 10) == found
