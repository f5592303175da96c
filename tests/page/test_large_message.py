"""A large payload as a file: what each way to read gives."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from pagequeue import CorruptFrame, Queue
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = fmt.FRAGMENT_BLOCK_BYTES
PAYLOAD = random.Random(2).randbytes(9 * BLOCK + 5)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue with one large message."""
    with Queue(tmp_path / "q", page_bytes=1 << 20) as queue, queue.producer() as producer:
        producer.send(PAYLOAD)
        yield queue


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("begin", [0, 1, BLOCK, 3 * BLOCK + 1, len(PAYLOAD) - 1, len(PAYLOAD)])
@pytest.mark.parametrize("size", [1000, 1 << 16, BLOCK - 1, BLOCK, 3 * BLOCK, 1 << 40])
def test_reading_by_any_size_gives_the_payload(queue: Queue, begin: int, size: int) -> None:
    """As of any raw file: at most so many bytes, fewer where a block or a page ends."""
    with queue.last(1)[0].open() as file:
        file.seek(begin)
        parts = list(iter(lambda: file.read(size), b""))
        assert file.tell() == len(PAYLOAD)
        assert file.read(0) == file.read() == b""
        assert all(0 < len(part) <= size for part in parts)
        assert b"".join(parts) == PAYLOAD[begin:]
        file.seek(begin)
        assert file.read() == PAYLOAD[begin:]
        assert file.tell() == len(PAYLOAD)


@pytest.mark.parametrize("size", [1000, BLOCK, 1 << 20, None])
def test_read_gives_no_byte_of_a_damaged_block(
    tmp_path: Path, queue: Queue, size: int | None
) -> None:
    """I23: what is before the block comes, and then the error."""
    at = BLOCK + 3
    for path in (tmp_path / "q").glob("queue-0*.page"):
        data = path.read_bytes()
        if PAYLOAD[at : at + 99] in data:
            place = data.index(PAYLOAD[at : at + 99])
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with queue.consumer() as consumer:
        file = consumer.receive(timeout=0).open()
    good = 0 if size is None else BLOCK
    while file.tell() < good:
        begin = file.tell()
        assert file.read(size) == PAYLOAD[begin : file.tell()]
    assert file.tell() == good
    with pytest.raises(CorruptFrame):
        file.read(size)
    file.seek(2 * BLOCK)
    assert file.read() == PAYLOAD[2 * BLOCK :]
