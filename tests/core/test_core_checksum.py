"""CRC-32C: known values, every form, every length, every alignment."""

from __future__ import annotations

import platform
import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plugin import slow_crc32c

from pagequeue import _core

ID, OTHER = bytes(range(16)), bytes(range(1, 17))

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
KNOWN = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
            "0200000000000000"
        ),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]
LENGTHS = range(5001)
FORMS = range(_core.CRC_BEST + 1)
ALIGNMENTS = 64  # a cache line, and the longest vector


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every form that this CPU has, one after the other, by name; others are the one below."""
    yield _core.choose_crc(request.param)
    _core.choose_crc(_core.CRC_BEST)


def plain(data: bytes, lengths: Iterable[int]) -> dict[int, int]:
    """Return the checksums of beginnings of some data, by a table and nothing else."""
    table = [slow_crc32c(bytes([value])) for value in range(256)]
    # The CRC of one byte is linear in it, which gives a table without a second implementation.
    zero = table[0] ^ 0xFFFFFFFF
    steps = [entry ^ 0xFFFFFFFF ^ zero for entry in table]
    wanted, state, at = {}, 0xFFFFFFFF, 0
    for length in sorted(set(lengths)):
        for byte in data[at:length]:
            state = steps[(state ^ byte) & 255] ^ (state >> 8)
        at = length
        wanted[length] = state ^ 0xFFFFFFFF
    return wanted


def test_the_table_is_plain_and_the_best_form_is_chosen() -> None:
    """The other tests compare forms that differ, where the CPU has more than one."""
    names = [_core.choose_crc(most) for most in FORMS]
    assert names[0] == "table"
    flags = cpu_flags()
    if {"sse4_2", "pclmulqdq"} <= flags:
        assert names[1:3] == ["instruction", "streams"]
    if {"avx2", "vpclmulqdq", "pclmulqdq"} <= flags:
        assert names[3] == "folding 256"
    if {"avx512f", "avx512vl", "avx512bw", "vpclmulqdq"} <= flags:
        assert names[4] == "folding 512"
    with pytest.raises(ValueError, match="0 to"):
        _core.choose_crc(_core.CRC_BEST + 1)


def cpu_flags() -> set[str]:
    """Return what an x86-64 CPU can do; nothing on others."""
    if platform.machine() != "x86_64":
        return set()
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return set(next(line for line in text.splitlines() if line.startswith("flags")).split())


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(form: str, data: bytes, expected: int) -> None:
    """I2: the checksum is the Castagnoli one that everybody else computes."""
    assert _core.crc32c(data) == expected, form


def test_every_length_agrees_with_the_plain_form(form: str) -> None:
    """I2: no length falls between the steps of the fast forms."""
    data = random.Random(3720).randbytes(20000)
    wanted = plain(data, [*LENGTHS, *range(5001, 20000, 997), 20000])
    assert wanted[69] == slow_crc32c(data[:69])
    view = memoryview(data)
    assert {length: _core.crc32c(view[:length]) for length in wanted} == wanted, form


def test_copy_and_its_checksum_agree_with_the_plain_form(form: str) -> None:
    """I2: the checksum that is computed on the way is that of the bytes, and they all arrive."""
    data = random.Random(3721).randbytes(20000)
    wanted = plain(data, [*LENGTHS, *range(5001, 20000, 997), 20000])
    view = memoryview(data)
    for length, checksum in wanted.items():
        assert _core.crc32c_copy(view[:length]) == (data[:length], checksum), (form, length)


def test_all_forms_agree_at_every_alignment() -> None:
    """I2: where a payload lies in memory does not change its checksum."""
    data = random.Random(4).randbytes(7000)
    lengths = [
        0,
        1,
        7,
        8,
        9,
        63,
        64,
        143,
        144,
        255,
        256,
        511,
        512,
        513,
        1024,
        3071,
        3072,
        3073,
        6500,
    ]
    view = memoryview(data)
    results = []
    try:
        for most in FORMS:
            _core.choose_crc(most)
            for start in range(ALIGNMENTS):
                for length in lengths:
                    part = view[start : start + length]
                    copy, checksum = _core.crc32c_copy(part)
                    assert copy == part
                    assert checksum == _core.crc32c(part)
                    results.append(checksum)
    finally:
        _core.choose_crc(_core.CRC_BEST)
    each = len(results) // len(FORMS)
    assert all(results[i * each :][:each] == results[:each] for i in FORMS)


def test_checksum_continued_from_another_covers_both(form: str) -> None:
    """I2: the payload's part can be computed before the lock is taken."""
    data = random.Random(5).randbytes(9000)
    for cut in (0, 1, 8, 1023, 3072, 8999, 9000):
        assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == _core.crc32c(data), form


def test_frame_checksum_covers_queue_payload_timestamp_sequence_and_word(form: str) -> None:
    """I2: a stale or misplaced frame, or one of another queue, never validates."""
    right = _core.frame_checksum(ID, b"payload", 5, 6, 23)
    rest = (5).to_bytes(8, "little") + (6).to_bytes(8, "little") + (23).to_bytes(4, "little")
    assert right == slow_crc32c(ID + b"payload" + rest), form
    others = [
        _core.frame_checksum(ID, b"paYload", 5, 6, 23),
        _core.frame_checksum(ID, b"payload", 4, 6, 23),
        _core.frame_checksum(ID, b"payload", 5, 7, 23),
        _core.frame_checksum(ID, b"payload", 5, 6, 23 | 1 << 30),
        _core.frame_checksum(ID, b"payload", -5, 6, 23),
        _core.frame_checksum(OTHER, b"payload", 5, 6, 23),
    ]
    assert right not in others
    assert len(set(others)) == len(others)


PAYLOADS = [*range(600), *range(600, 8000, 61)]
"""Each step of the fast forms: vectors, three long streams, three short ones, words, bytes."""


@pytest.fixture(scope="module")
def headers() -> dict[int, bytes]:
    """The beginnings of frames with so many bytes of `FRAMED`, their checksums by a table."""
    table = [slow_crc32c(bytes([value])) for value in range(256)]
    steps = [entry ^ table[0] for entry in table]
    made, state, done = {}, 0xFFFFFFFF, 0
    for length in PAYLOADS:
        for byte in (ID + FRAMED)[done : 16 + length]:
            state = steps[(state ^ byte) & 255] ^ (state >> 8)
        done = 16 + length
        word, whole = 16 + length, state
        for byte in struct.pack("<qQI", -5, length, word):
            whole = steps[(whole ^ byte) & 255] ^ (whole >> 8)
        made[length] = struct.pack("<IIq", word, whole ^ 0xFFFFFFFF, -5)
    assert made[77][4:8] == (
        slow_crc32c(ID + FRAMED[:77] + struct.pack("<qQI", -5, 77, 93)).to_bytes(4, "little")
    )
    return made


FRAMED = random.Random(3722).randbytes(8000)


def test_frame_of_every_length_validates_where_its_checksum_is_the_plain_form_s(
    form: str, headers: dict[int, bytes]
) -> None:
    """I2: whatever form a producer's CPU had, every other one reads its frames."""
    page = _core.Region(-1, 8192, True)
    page.queue_id = ID
    page.write(64 + 16, FRAMED)
    found = []
    for length, header in headers.items():
        page.write(64, header)
        found.append((length, _core.peek(page, 64, length)[0]))
    assert found == [(length, _core.READ_FRAME) for length in PAYLOADS], form


def test_frame_with_one_wrong_bit_never_validates(form: str, headers: dict[int, bytes]) -> None:
    """I2: in each step of a form, at both ends of the payload and in its middle."""
    page = _core.Region(-1, 8192, True)
    page.queue_id = ID
    page.write(64 + 16, FRAMED)
    for length in PAYLOADS[1::7]:
        page.write(64, headers[length])
        for at in {0, length // 2, length - 1}:
            page.write(80 + at, bytes([FRAMED[at] ^ 1 << length % 8]))
            assert _core.peek(page, 64, length)[0] == _core.READ_BAD_CHECKSUM, (form, length, at)
            page.write(80 + at, FRAMED[at : at + 1])
    assert page.read(80, 8000) == FRAMED


def test_only_contiguous_bytes_are_summed() -> None:
    """A checksum of a strided view would be one of other bytes."""
    with pytest.raises((TypeError, BufferError)):
        _core.crc32c(memoryview(b"abcdef")[::2])
    with pytest.raises(TypeError):
        _core.crc32c("text")
