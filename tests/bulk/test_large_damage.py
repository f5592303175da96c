"""Fragments that contradict each other, though each has the checksums that it needs.

No power cut leaves them; another program that can read the queue's id could write them. Whatever
they say, reading ends in a typed error: it neither hangs, nor takes the memory that they state, nor
returns a payload that was not sent.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import CorruptFrame, DamageError, Queue, Retention, _core
from pagequeue import format as fmt
from pagequeue.bulk.staged_fragments import frame
from pagequeue.integrity.salvage import salvage_queue
from pagequeue.integrity.verify import verify_queue
from pagequeue.page import large_message
from pagequeue.page.fragments import Head
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue.meta.all_meta import AllMeta

PAGE_BYTES = 1 << 14


def noise(size: int, seed: int = 0) -> bytes:
    """Return bytes that do not repeat."""
    return random.Random(seed).randbytes(size)


BIG = noise(6 * PAGE_BYTES + 77)
FIRST = 2
"""The page with the head of the large message; message 1."""


class Forger:
    """Writes fragments and heads of any content, with the right checksums.

    Args:
        path: of the queue's directory.
        meta: of the queue.
    """

    def __init__(self, path: Path, meta: AllMeta) -> None:
        self.path = path
        self.meta = meta

    def page(self, ordinal: int) -> Path:
        """Return the file of the page with a fragment."""
        return self.path / fmt.page_name("queue", FIRST + ordinal)

    def mark_position(self, ordinal: int) -> int:
        """Return the position of the mark that describes a fragment."""
        head_bytes = fmt.frame_bytes(fmt.LARGE_HEAD.itemsize) if ordinal == 0 else 0
        return fmt.PAGE_HEADER_BYTES + head_bytes

    def describe(self, ordinal: int, /, **fields: int) -> None:
        """Change what a mark says of its fragment."""
        position = self.mark_position(ordinal)
        page = bytearray(self.page(ordinal).read_bytes())
        word, _, timestamp = np.frombuffer(page, fmt.FRAME, 1, position)[0].item()
        begin = position + fmt.FRAME_HEADER_BYTES
        payload = bytearray(page[begin : position + (word & fmt.LENGTH_MASK)])
        record = np.frombuffer(payload, fmt.FRAGMENT, 1)
        for name, value in fields.items():
            record[name] = value
        forged = frame(self.meta, bytes(payload), 2, timestamp, fmt.END_OF_PAGE)
        page[position : position + len(forged)] = forged
        self.page(ordinal).write_bytes(page)

    def agree(self, ordinal: int) -> None:
        """Have a fragment begin earlier in the message, and the one before end there."""
        sizes = []
        for number in (ordinal - 1, ordinal):
            begin = self.mark_position(number) + fmt.FRAME_HEADER_BYTES
            record = np.frombuffer(self.page(number).read_bytes(), fmt.FRAGMENT, 1, begin)
            sizes.append((int(record["offset"][0]), int(record["size"][0])))
        (_, before), (offset, size) = sizes
        self.describe(ordinal - 1, size=before - 1000)
        self.describe(ordinal, offset=offset - 1000, size=size)

    def head(self, payload_bytes: int, count: int, block_bytes: int) -> None:
        """Replace the head of the message."""
        page = bytearray(self.page(0).read_bytes())
        timestamp = np.frombuffer(page, fmt.FRAME, 1, fmt.PAGE_HEADER_BYTES)[0].item()[2]
        payload = Head(payload_bytes, count, block_bytes).encode()
        forged = frame(self.meta, payload, 1, timestamp, fmt.LARGE_MESSAGE)
        page[fmt.PAGE_HEADER_BYTES :][: len(forged)] = forged
        begin = fmt.PAGE_HEADER_BYTES
        page[begin : begin + len(forged)] = forged
        self.page(0).write_bytes(page)


COUNT = 7
BLOCK = fmt.FRAGMENT_BLOCK_BYTES
FORGERIES: dict[str, Callable[[Forger], None]] = {
    "no fragments": lambda forger: forger.head(len(BIG), 0, BLOCK),
    "one fragment too few": lambda forger: forger.head(len(BIG), COUNT - 1, BLOCK),
    "one fragment too many": lambda forger: forger.head(len(BIG), COUNT + 1, BLOCK),
    "more fragments than pages": lambda forger: forger.head(len(BIG), 300, BLOCK),
    "fragments without end": lambda forger: forger.head(len(BIG), (1 << 32) - 1, BLOCK),
    "a payload of one byte more": lambda forger: forger.head(len(BIG) + 1, COUNT, BLOCK),
    "a payload of one byte less": lambda forger: forger.head(len(BIG) - 1, COUNT, BLOCK),
    "no payload": lambda forger: forger.head(0, COUNT, BLOCK),
    "a payload of 2**40 bytes": lambda forger: forger.head(1 << 40, COUNT, BLOCK),
    "a payload of 2**40 bytes, and pages": lambda forger: forger.head(1 << 40, 300, BLOCK),
    "a payload of 2**63 bytes": lambda forger: forger.head(1 << 63, COUNT, BLOCK),
    "blocks of no bytes": lambda forger: forger.head(len(BIG), COUNT, 0),
    "blocks of 4 GiB": lambda forger: forger.head(len(BIG), COUNT, (1 << 32) - 1),
    "an offset too far": lambda forger: forger.describe(3, offset=1 << 39),
    "an offset in another fragment": lambda forger: forger.describe(3, offset=5),
    "an offset before the beginning": lambda forger: forger.describe(0, offset=8),
    "two fragments that agree": lambda forger: forger.agree(3),
    "another ordinal": lambda forger: forger.describe(3, ordinal=4),
    "the ordinal of the last": lambda forger: forger.describe(3, ordinal=COUNT - 1),
    "an empty fragment": lambda forger: forger.describe(3, size=0),
    "a fragment that is shorter": lambda forger: forger.describe(3, size=100),
    "a fragment beyond its page": lambda forger: forger.describe(3, size=PAGE_BYTES),
    "a fragment of 4 GiB": lambda forger: forger.describe(3, size=(1 << 32) - 1),
    "a last fragment that is longer": lambda forger: forger.describe(COUNT - 1, size=9000),
}


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    """A closed queue with a large message between two small ones."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            for payload in (b"a", BIG, b"b"):
                producer.send(payload)
            producer.flush()
        meta = internals(queue).store.meta
    return Forger(tmp_path / "q", meta)


def by_claim(queue: Queue) -> bytes:
    """Receive the message as a worker of a group."""
    with queue.group("workers") as group:
        group.claim(timeout=0).ack()
        return bytes(group.claim(timeout=0).message.payload)


def by_file(queue: Queue) -> bytes:
    """Read the message as a file, from its middle on first."""
    message = list(queue.replay())[1]
    with message.open() as file:
        for offset in (len(BIG) // 2, len(BIG) - 1, 3 * PAGE_BYTES):
            file.seek(offset)
            part = file.read(100)
            assert part == BIG[offset : offset + 100]
        file.seek(0)
        return bytes(file.read())


def by_batch(queue: Queue) -> bytes:
    """Read all of it in columns."""
    found: list[bytes] = []
    for batch in queue.batches():
        found += batch.payloads
    return found[1]


WAYS: dict[str, Callable[[Queue], bytes]] = {
    "replay": lambda queue: list(queue.replay())[1].payload,
    "last": lambda queue: queue.last(2).payloads[0],
    "batches": by_batch,
    "file": by_file,
    "claim": by_claim,
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_fragments_that_contradict_each_other_are_damage(
    tmp_path: Path, forger: Forger, forgery: str
) -> None:
    """I23: a typed error that names file and message; no hang, and no memory of the stated size."""
    FORGERIES[forgery](forger)
    tracemalloc.start()
    try:
        for way, read in WAYS.items():
            with Queue(forger.path, read_only=way != "claim") as queue:
                with pytest.raises((DamageError, TimeoutError)) as caught:
                    read(queue)
                if isinstance(caught.value, CorruptFrame):
                    assert caught.value.sequence == 1
        assert verify_queue(forger.path).problems
        report = salvage_queue(forger.path, tmp_path / "saved")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [(1, 1)]
    with Queue(tmp_path / "saved") as saved:
        assert [message.payload for message in saved.replay()] == [b"a", b"b"]
    assert peak_bytes < 64 << 20


@pytest.mark.parametrize("size", [PAGE_BYTES, (1 << 32) - 1])
def test_no_replica_is_made_of_a_fragment_beyond_its_page(
    tmp_path: Path, forger: Forger, size: int
) -> None:
    """I23: shipping and compressing refuse the page, as reading it would."""
    forger.describe(3, size=size)
    with Queue(forger.path, read_only=False) as queue:
        queue.rotate()
        with pytest.raises(CorruptFrame, match="the size of the fragment is invalid"):
            queue.ship(tmp_path / "ship")
        with pytest.raises(CorruptFrame, match="the size of the fragment is invalid"):
            queue.compress()


def test_what_is_not_forged_is_read(forger: Forger) -> None:
    """The tests above fail for the right reason."""
    for read in WAYS.values():
        with Queue(forger.path) as queue:
            assert read(queue) == BIG
    assert verify_queue(forger.path).problems == []


@pytest.mark.parametrize(
    "forgery", [name for name in FORGERIES if "offset" in name or "two" in name]
)
def test_file_of_many_pages_is_checked_as_it_is_read(
    forger: Forger, forgery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I23: of so many pages that they are not mapped together, any seek finds sent bytes or damage.

    A reader that begins in the middle of the message does not see the fragments before.
    """
    monkeypatch.setattr(large_message, "KEPT_PAGES_MAX", 2)
    FORGERIES[forgery](forger)
    damaged = 0
    with Queue(forger.path, read_only=True) as queue:
        message = list(queue.replay())[1]
        for offset in range(0, len(BIG), 1000):
            file = message.open()
            file.seek(offset)
            try:
                part = file.read(50)
            except CorruptFrame:
                damaged += 1
            else:
                assert BIG[offset:].startswith(part)
                assert part
        assert 0 < damaged < len(BIG) // 1000
        with pytest.raises(CorruptFrame, match=r"add up|another's"):
            _ = message.payload


def test_verify_beside_retention_blames_no_page_behind_a_large_message(tmp_path: Path) -> None:
    """Retention removes the message after its head was checked: what follows is whole."""
    retention = Retention(drop_acknowledged=True)
    with Queue(tmp_path, page_bytes=PAGE_BYTES, retention=retention) as queue:
        consumer = queue.consumer("all")
        with queue.producer() as producer:
            producer.send(b"x" * (3 * PAGE_BYTES))
            producer.send_many([b"y" * 1000] * 40)

        def at(done: int, total: int) -> None:
            del total
            if done == 1:  # the head was checked, its fragments were not
                consumer.receive_many(30)
                consumer.ack()
                queue.trim()

        report = verify_queue(tmp_path, progress=at)
        assert queue.head_sequence >= 1
        assert report.problems == []


def test_verify_names_the_message_of_a_damaged_mark_once(forger: Forger) -> None:
    """I23: not the message after it, to which the mark leads, and not for each later fragment."""
    position = forger.mark_position(3)
    page = bytearray(forger.page(3).read_bytes())
    page[position + fmt.FRAME_HEADER_BYTES] ^= 1
    forger.page(3).write_bytes(page)
    first, second = verify_queue(forger.path).problems
    assert (first.file, first.position) == (str(forger.page(3)), position)
    assert "end-of-page marker" in first.reason
    assert (second.sequence, second.file) == (1, str(forger.page(3)))


def test_verify_names_a_message_once_whose_head_is_damaged(forger: Forger) -> None:
    """I23: its fragments are not damaged, and no message besides it is."""
    page = bytearray(forger.page(0).read_bytes())
    page[fmt.PAGE_HEADER_BYTES + fmt.FRAME_HEADER_BYTES] ^= 1
    forger.page(0).write_bytes(page)
    (only,) = verify_queue(forger.path).problems
    assert (only.sequence, only.position) == (1, fmt.PAGE_HEADER_BYTES)


@pytest.mark.parametrize("has_index", [True, False])
def test_verify_finds_a_head_among_other_frames(tmp_path: Path, has_index: bool) -> None:
    """I23: a head is the only frame of its page, whatever its checksum says."""
    path = tmp_path / "q"
    with Queue(path, page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            producer.send_many([b"a", bytes(fmt.LARGE_HEAD.itemsize), b"b"])
        meta = internals(queue).store.meta
        (_, place, _) = queue.replay()
    position = fmt.PAGE_HEADER_BYTES + fmt.frame_bytes(1)
    head = Head(5, 1, BLOCK).encode()
    forged = frame(meta, head, place.sequence, place.timestamp, fmt.LARGE_MESSAGE)
    page = path / fmt.page_name("queue", 1)
    data = bytearray(page.read_bytes())
    data[position : position + len(forged)] = forged
    page.write_bytes(data)
    if not has_index:
        (path / fmt.index_name("queue", 1)).unlink()
    found = [one for one in verify_queue(path).problems if one.sequence == 1]
    assert [(one.position, one.file) for one in found] == [(position, str(page))]
    with Queue(path, read_only=True) as queue, pytest.raises(CorruptFrame, match="head"):
        list(queue.replay())


# --- a full disk, compression, retention ----------------------------------------------------------


def test_last_byte_of_each_page_has_a_block(tmp_path: Path) -> None:
    """Every mapping process may read it: in a hole, a full tmpfs raises SIGBUS."""
    with Queue(tmp_path / "q", page_bytes=1 << 16) as queue, queue.producer() as producer:
        producer.send(noise(100_000))
        for path in sorted((tmp_path / "q").glob("queue-*2.*")) + sorted(
            (tmp_path / "q").glob("queue-*3.*")
        ):
            fd = os.open(path, os.O_RDONLY)
            try:
                end = os.fstat(fd).st_size - 1
                assert os.lseek(fd, end, os.SEEK_DATA) == end, path.name
            finally:
                os.close(fd)


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("more", range(8))
def test_fragment_that_ends_anywhere_is_compressed(tmp_path: Path, more: int) -> None:
    """I16: what is used of a page ends at a multiple of 8, the fragment need not."""
    text = b"x" * (3 * PAGE_BYTES + more)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            producer.send(text)
        queue.rotate()
        assert queue.compress().pages > 3
        assert [message.payload for message in queue.replay()] == [text]
        assert queue.verify().problems == []


def test_reader_whose_large_message_is_gone_skips_it(tmp_path: Path) -> None:
    """I12: retention takes the message's pages while the reader is at its head."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for i in range(3):
            producer.send(noise(100_000, i))
        producer.send(b"last")
        one = queue.consumer(on_expired="skip")
        many = queue.consumer(on_expired="skip")
        told = queue.consumer()
        with Queue(tmp_path / "q", retention=Retention(max_bytes=5 * PAGE_BYTES)) as trimming:
            trimming.trim()
        assert queue.head_sequence == 3
        assert one.receive(timeout=0).payload == b"last"
        assert many.receive_many(5, timeout=0).payloads == [b"last"]
        assert (one.missed, many.missed) == (3, 3)
        with pytest.raises(Exception, match="retention passed"):
            told.receive(timeout=0)


def test_checksum_of_a_block_includes_the_queue(forger: Forger) -> None:
    """I23: blocks of another queue's message never validate."""
    page: Any = forger.page(3).read_bytes()
    position = forger.mark_position(3)
    word = int.from_bytes(page[position : position + 4], "little")
    data = position + fmt.frame_bytes((word & fmt.LENGTH_MASK) - fmt.FRAME_HEADER_BYTES)
    record_at = position + fmt.FRAME_HEADER_BYTES
    size = int(np.frombuffer(page, fmt.FRAGMENT, 1, record_at)["size"][0])
    stored = int.from_bytes(page[record_at + fmt.FRAGMENT.itemsize :][:4], "little")
    block = page[data : data + size]
    assert stored == _core.crc32c(block, _core.crc32c(forger.meta.queue_id))
    assert stored != _core.crc32c(block)
