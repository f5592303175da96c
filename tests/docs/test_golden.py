"""Queues written by released versions still read, byte for byte as they were written."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from unittest import mock

import pytest

from pagequeue import Message, Queue

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = ["0.1.0"]
START = 1_600_000_000_000_000_000
STEP = 1_000_000
ID = bytes(range(0xA0, 0xB0))
PAYLOADS = [bytes((n * k) % 251 for k in range(n * 97 % 1000)) for n in range(24)]
BATCH = [b"", b"batch", b"\x00" * 9, b"\xff" * 500]
LAST = b"the last one"
LOCK_WORDS = slice(64, 192)
FLUSHED_AT = slice(304, 312)
TURN_WORDS = slice(320, 348)


def write_golden(directory: Path) -> None:
    """Write the queue of this version: single messages, a batch, an explicit time, several pages.

    To be run once for each released version, with that version:
    `python -c "from test_golden import *; write_golden(GOLDEN / 'VERSION')"`.
    """
    ticks = iter(range(START, START + 10**12, STEP))
    with (
        mock.patch("uuid.uuid4", return_value=uuid.UUID(bytes=ID)),
        Queue(directory, page_bytes=4096, clock=lambda: next(ticks)) as queue,
        queue.producer() as producer,
    ):
        for payload in PAYLOADS[:20]:
            producer.send(payload)
        producer.send_many(BATCH)
        for payload in PAYLOADS[20:]:
            producer.send(payload)
        producer.flush()
        producer.send(LAST, timestamp=START + 10**12)
    # The lock's fields name the boot, file and library that they belong to, and the turn's fields
    # the process that flushes now; they are meaningless here. The last flush has a time only
    # since later: zeros are an unknown one.
    path = directory / "queue-writeMeta"
    data = bytearray(path.read_bytes())
    for words in (LOCK_WORDS, FLUSHED_AT, TURN_WORDS):
        data[words] = bytes(words.stop - words.start)
    path.write_bytes(data)
    (directory / "queue.lock").unlink()


def expected() -> list[bytes]:
    """Return what the golden queue holds."""
    return [*PAYLOADS[:20], *BATCH, *PAYLOADS[20:], LAST]


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a checked-in queue."""
    directory = tmp_path / "golden"
    shutil.copytree(GOLDEN / request.param, directory)
    return directory


def check(messages: list[Message]) -> None:
    """Compare messages with what was written."""
    assert [m.payload for m in messages] == expected()
    assert [m.sequence for m in messages] == list(range(29))
    times = [m.timestamp for m in messages]
    assert times == sorted(times)
    assert times[-1] == START + 10**12
    assert len(set(times[20:24])) == 1  # a batch has one time
    assert all(time % STEP == 0 and START <= time <= START + 10**12 for time in times)


def test_golden_queue_reads_without_writing(golden: Path) -> None:
    """I1, I2: every message, sequence and time of a released version's files."""
    before = {path.name: path.read_bytes() for path in golden.iterdir()}
    with Queue(golden, read_only=True) as queue:
        check(list(queue.replay()))
        assert queue.verify().problems == []
        assert queue.stats().last_flush is None
        assert (queue.page_bytes, queue.head_sequence, queue.durable_sequence) == (4096, 0, 28)
        for message in queue.replay():
            first = next(iter(queue.replay(since=message.timestamp)))
            assert first.timestamp == message.timestamp
            assert next(iter(queue.replay(sequence=message.sequence))) == message
        batches = list(queue.batches())
        assert [p for batch in batches for p in batch.payloads] == expected()
    assert {path.name: path.read_bytes() for path in golden.iterdir()} == before


def test_golden_queue_recovers_and_takes_new_messages(golden: Path) -> None:
    """I5: a copy is scanned, no message is lost, and new messages follow."""
    with Queue(golden) as queue:
        assert queue.recovery.scanned
        assert queue.recovery.bytes_zeroed == 0
        check(list(queue.replay()))
        with queue.producer() as producer:
            assert producer.send(b"new") == 29
            assert producer.flush() == 30
        assert queue.verify().problems == []
        assert queue.info().page_count >= 3


def test_this_version_writes_the_same_bytes(tmp_path: Path) -> None:
    """A format that changed without a new version number would be noticed here."""
    write_golden(tmp_path / "again")
    made = {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    kept = {path.name: path.read_bytes() for path in (GOLDEN / VERSIONS[-1]).iterdir()}
    assert sorted(made) == sorted(kept)
    for name, data in made.items():
        assert data == kept[name], name


def test_golden_files_are_small_and_free_of_machine_names() -> None:
    """The checked-in files do not reveal the machine that wrote them."""
    for version in VERSIONS:
        paths = list((GOLDEN / version).iterdir())
        assert sum(path.stat().st_size for path in paths) < 100_000
        assert (GOLDEN / version / "queue-writeMeta").read_bytes()[LOCK_WORDS] == bytes(128)
