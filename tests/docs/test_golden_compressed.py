"""Compressed pages written by released versions still read, byte for byte as they were written."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from test_golden import GOLDEN, VERSIONS, check, expected

from pagequeue import Queue
from pagequeue import format as fmt
from pagequeue.page import compressed_format

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 1000


def write_compressed(version: str) -> None:
    """Compress a copy of a version's golden queue, with several blocks in a page.

    To be run once for each released version, with that version:
    `python -c "from test_golden_compressed import *; write_compressed('VERSION')"`.
    """
    directory = GOLDEN / f"{version}-compressed"
    shutil.copytree(GOLDEN / version, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fmt, "COMPRESSED_BLOCK_TARGET_BYTES", BLOCK_BYTES)
        with Queue(directory, compress_level=3) as queue:
            queue.compress()
    for name in ("queue-allMeta", "queue-readMeta", "queue-writeMeta"):
        shutil.copy(GOLDEN / version / name, directory / name)
    (directory / "queue.lock").unlink()


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_compressed_queue_reads(version: str, tmp_path: Path) -> None:
    """I16: every message, sequence and time, in every way to read; no file is written."""
    directory = tmp_path / "golden"
    shutil.copytree(GOLDEN / f"{version}-compressed", directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with Queue(directory, read_only=True) as queue:
        check(list(queue.replay()))
        assert queue.info().compressed_page_count == queue.info().page_count - 1
        assert queue.verify().problems == []
        for message in queue.replay():
            assert next(iter(queue.replay(sequence=message.sequence))) == message
            first = next(iter(queue.replay(since=message.timestamp)))
            assert first.timestamp == message.timestamp
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    with Queue(directory) as queue:
        assert queue.recovery.scanned
        check(list(queue.replay()))
        assert queue.producer().send(b"new") == len(expected())


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_compressed_pages_are_the_golden_pages(version: str) -> None:
    """I16: the same frames at the same positions; and this version writes the same front."""
    seen = 0
    for path in sorted((GOLDEN / f"{version}-compressed").glob("*.page")):
        data = path.read_bytes()
        if not compressed_format.is_compressed(data):
            continue
        seen += 1
        assert compressed_format.inflated(data) == (GOLDEN / version / path.name).read_bytes()
        head = compressed_format.parse_front(data, len(data), path.name)
        assert len(head.blocks) > 1
        blocks = [
            (b.stored_bytes, b.position, b.ordinal, b.checksum, b.timestamp) for b in head.blocks
        ]
        front = compressed_format.encode_front(
            head.header,
            blocks,
            page_bytes=head.page_bytes,
            used_bytes=head.used_bytes,
            end_sequence=head.end_sequence,
            first_timestamp=head.first_timestamp or 0,
            last_timestamp=head.last_timestamp or 0,
        )
        assert data.startswith(front)
        assert data.endswith(front + compressed_format.encode_end(len(front)))
    assert seen == 3


def test_golden_compressed_files_are_small() -> None:
    """The checked-in files do not reveal the machine that wrote them."""
    for version in VERSIONS:
        paths = list((GOLDEN / f"{version}-compressed").iterdir())
        assert sum(path.stat().st_size for path in paths) < 100_000
        assert not any(path.name.endswith(".lock") for path in paths)
