"""The core's judge: it finds the oracle's end, what is kept of a ring, and ends on any bytes."""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from damaged import STEPS, damage, made
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, Refused
from tiers import examples

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.judge.diagnosis import diagnose, kept_run
from pagequeue.judge.evidence import Evidence, promise_of
from pagequeue.meta.all_meta import read_all_meta
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import private_region
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from damaged import Made

CHUNK = 60
ID = bytes(range(16))


@pytest.fixture(scope="module")
def queues(tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    """Return the queues that are damaged."""
    place = tmp_path_factory.mktemp("made")
    return [made(place / str(i), name) for i, name in enumerate(STEPS)]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that is gone afterwards."""
    path = tmp_path / "damaged"
    yield path
    shutil.rmtree(path)


def evidence_in(folder: Directory) -> Evidence:
    """Return the evidence of a queue."""
    meta = read_all_meta(folder, "queue")
    read = ReadMeta(folder, "queue", meta.queue_id, writable=False)
    write = WriteMeta(folder, "queue", meta.queue_id, writable=False)
    promise = promise_of(folder, "queue", read, write)
    return Evidence(folder, "queue", meta, promise, page_numbers("queue", folder.names()))


def judged(path: Path) -> tuple[int | None, int | None, bool]:
    """Return where a writer and a reader find the end, and whether a page is missing."""
    folder = Directory(str(path), create=False, read_only=True)
    try:
        found = diagnose(evidence_in(folder))
        error, read = found.error(), None
        with contextlib.suppress(errors.PageQueueError):
            read = found.readable().sequence
        end = None if error is not None or found.end is None else found.end.sequence
        return end, read, isinstance(error, errors.MissingPage)
    finally:
        folder.close()


def expected(path: Path) -> tuple[int | None, int | None, bool]:
    """Return the same by the oracle."""
    try:
        end = Oracle(path).end()
    except Refused as refused:
        prefix = None if refused.prefix is None else refused.prefix.sequence
        return None, prefix, refused.reason == "missing"
    return end.sequence, end.sequence, False


@pytest.mark.quick_each(16)
@pytest.mark.parametrize("chunk", range(48))
def test_the_judge_finds_the_end_of_the_oracle(
    queues: list[Made], directory: Path, chunk: int
) -> None:
    """I5, I19, I23: in any damaged directory, for a writer and for a reader."""
    for seed in range(1000 + chunk * CHUNK, 1000 + (chunk + 1) * CHUNK):
        done = damage(queues[seed % len(queues)], directory, seed)
        assert judged(directory) == expected(directory), f"seed {seed}: {done}"


@pytest.mark.quick_each(8)
@pytest.mark.parametrize("chunk", range(16))
def test_the_run_of_a_ring_is_the_oracles(queues: list[Made], directory: Path, chunk: int) -> None:
    """What is kept has the mark, or is the last run after it; its pages follow each other."""
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        done = damage(queues[seed % len(queues)], directory, seed)
        folder = Directory(str(directory), create=False, read_only=True)
        try:
            found = [page.number for page in kept_run(evidence_in(folder)).pages]
        finally:
            folder.close()
        assert found == Oracle(directory).kept_run(), f"seed {seed}: {done}"


def hostile_page(rng: random.Random, number: int) -> bytes:
    """Return a page with a right header, and frames of any lengths."""
    flags, first = rng.choice((0, 1)), rng.choice((0, 1, 5, fmt.UNSET_SEQUENCE))
    data = bytearray(rng.randbytes(4096) if rng.random() < 0.5 else 4096)
    data[:8], data[8:10] = fmt.PAGE_MAGIC, fmt.FORMAT_VERSION.to_bytes(2, "little")
    data[10:12], data[12:16] = flags.to_bytes(2, "little"), bytes(4)
    data[16:24], data[24:40] = number.to_bytes(8, "little"), ID
    data[40:48], data[48:64] = first.to_bytes(8, "little"), bytes(16)
    data[12:16] = _core.crc32c(bytes(data[:64])).to_bytes(4, "little")
    at = 64
    while at < 4096 - 32 and rng.random() < 0.8:
        word = rng.choice((0, 1 << 30, 2 << 30, 3 << 30)) | rng.choice((16, 32, 40, 4000, 5000))
        data[at : at + 4] = word.to_bytes(4, "little")
        size = max(0, min((word & fmt.LENGTH_MASK) - 16, 4096 - at - 16))
        payload = bytes(data[at + 16 : at + 16 + size])
        sequence = (0 if first == fmt.UNSET_SEQUENCE else first) + rng.choice((0, 0, 0, 1))
        checksum = _core.frame_checksum(ID, payload, 0, sequence, word)
        data[at + 4 : at + 16] = checksum.to_bytes(4, "little") + bytes(8)
        at += fmt.frame_bytes(size)
    return bytes(data)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 1))
def test_the_judge_ends_on_any_bytes(seed: int, walk: int) -> None:
    """I9: whatever it is shown, also sizes and states that do not fit what is there."""
    rng = random.Random(seed)
    pages = rng.randrange(1, 8)
    place = [rng.choice((0, 1, 2, 5, fmt.SEQUENCE_MAX)) for _ in range(5)]
    judge = _core.Judge(
        ID, 4096, (1, place[0]), (place[1], place[2]), pages, (place[3], place[3] + 2, 1), walk
    )
    for _ in range(4 * pages + 8):
        wanted = judge.wants()
        if wanted is None:
            break
        number, _, following = wanted
        if number > pages or (not following and rng.random() < 0.1):
            judge.show(number, _core.FILE_MISSING, 0, None)
        elif rng.random() < 0.1:
            judge.show(number, rng.choice((_core.FILE_BROKEN, _core.FILE_PLAIN)), 64, None)
        else:
            region = private_region(hostile_page(rng, number), 4096)
            judge.show(number, rng.choice((0, 0, 1)), 4096, region)
    else:
        pytest.fail("it always wants another page")
    tail, refusal = judge.tail(), judge.refusal()
    assert walk or (tail is not None) or (refusal is not None)


def test_the_judge_refuses_what_is_no_page() -> None:
    """A page of the right size must be shown with its bytes."""
    judge = _core.Judge(ID, 4096, (1, 0), (0, 0), 1, (0, 0, 0), _core.WALK_TAIL)
    with pytest.raises(ValueError, match="region"):
        judge.show(1, _core.FILE_PLAIN, 4096, None)
    with pytest.raises(ValueError, match="region"):
        judge.show(1, _core.FILE_PLAIN, 4096, private_region(b"", 8192))
    with pytest.raises(TypeError, match="region"):
        judge.show(1, _core.FILE_PLAIN, 4096, b"")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="16 bytes"):
        _core.Judge(b"", 4096, (1, 0), (0, 0), 1, (0, 0, 0), _core.WALK_TAIL)
    assert judge.wants() == (1, False, False)
