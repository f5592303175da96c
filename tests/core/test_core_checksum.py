"""CRC-32C: known values, both forms, every length, every alignment."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from plugin import slow_crc32c

from pagequeue import _core

ID, OTHER = bytes(range(16)), bytes(range(1, 17))

if TYPE_CHECKING:
    from collections.abc import Iterator

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
LENGTHS = [
    *range(70),
    *range(1016, 1033),
    *range(2040, 2056),
    *range(3064, 3090),
    *range(6136, 6160),
    *range(3090, 20000, 997),
    20000,
]


@pytest.fixture(params=[True, False], ids=["hardware", "table"])
def form(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both forms of the checksum, one after the other."""
    yield _core.choose_crc(request.param)
    _core.choose_crc(True)


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(form: str, data: bytes, expected: int) -> None:
    """I2: the checksum is the Castagnoli one that everybody else computes."""
    assert _core.crc32c(data) == expected, form


def test_every_length_agrees_with_the_slow_form(form: str) -> None:
    """I2: no length falls between the steps of the fast forms."""
    data = random.Random(3720).randbytes(20000)
    state, at = 0xFFFFFFFF, 0
    table = [slow_crc32c(bytes([value])) for value in range(256)]
    # The CRC of one byte is linear in it, which gives a table without a second implementation.
    zero = table[0] ^ 0xFFFFFFFF
    steps = [entry ^ 0xFFFFFFFF ^ zero for entry in table]
    wanted = {}
    for length in sorted(set(LENGTHS)):
        for byte in data[at:length]:
            state = steps[(state ^ byte) & 255] ^ (state >> 8)
        at = length
        wanted[length] = state ^ 0xFFFFFFFF
    assert wanted[69] == slow_crc32c(data[:69])
    assert {length: _core.crc32c(data[:length]) for length in wanted} == wanted, form


def test_both_forms_agree_at_every_alignment() -> None:
    """I2: where a payload lies in memory does not change its checksum."""
    data = memoryview(random.Random(4).randbytes(7000))
    results = []
    try:
        for allow in (True, False):
            _core.choose_crc(allow)
            results.append(
                [
                    _core.crc32c(data[start : start + length])
                    for start in range(17)
                    for length in (0, 1, 7, 8, 9, 63, 3071, 3072, 3073, 6500)
                ]
            )
    finally:
        _core.choose_crc(True)
    assert results[0] == results[1]


def test_going_on_from_another_is_the_checksum_of_both(form: str) -> None:
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


def test_only_contiguous_bytes_are_summed() -> None:
    """A checksum of a strided view would be one of other bytes."""
    with pytest.raises((TypeError, BufferError)):
        _core.crc32c(memoryview(b"abcdef")[::2])
    with pytest.raises(TypeError):
        _core.crc32c("text")
