"""A compressed page as bytes: what it must be, and what hostile bytes can do to who reads it."""

from __future__ import annotations

import contextlib
import os
import sys
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from squeezing import PAGE
from support import SMALL, Clock, flip, payloads
from tiers import examples

from pagequeue import (
    CorruptFrame,
    CorruptPage,
    DamageError,
    MissingExtra,
    NewerFormat,
    PageQueueError,
    Queue,
    _core,
    salvage_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.page import compressed_format as zipped
from pagequeue.page import zstd
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK = 1024
HEAD = fmt.PAGE_HEADER_BYTES
TABLE = HEAD + fmt.COMPRESSED_HEAD_BYTES


pytestmark = pytest.mark.usefixtures("small_blocks")


def sent() -> list[bytes]:
    """Return the messages of the queue: some 90 on a page."""
    return [b"message %06d " % n * (n % 17) for n in range(400)]


@pytest.fixture
def compressed(tmp_path: Path, small_blocks: None) -> Path:  # noqa: ARG001 - before it
    """A queue whose sealed pages are compressed, closed."""
    directory = tmp_path / "events"
    with Queue(directory, page_bytes=PAGE, clock=Clock(10**18, 1000)) as queue:
        with queue.producer() as producer:
            for payload in sent():
                producer.send(payload)
        assert queue.compress().pages >= 2
    return directory


def page_of(directory: Path, number: int = 2) -> Path:
    """Return the path of a page."""
    return directory / fmt.page_name("queue", number)


def head_of(data: bytes) -> zipped.Head:
    """Return the header of a file."""
    return zipped.parse_front(data, len(data), "page")


def forge(path: Path, change: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Change a head and its blocks, in both copies, with checksums that are right for that."""
    data = bytearray(path.read_bytes())
    count = len(head_of(bytes(data)).blocks)
    head = np.frombuffer(bytes(data), fmt.COMPRESSED_HEAD, 1, HEAD).copy()
    blocks = np.frombuffer(bytes(data), fmt.COMPRESSED_BLOCK, count, TABLE).copy()
    change(head, blocks)
    head["checksum"] = 0
    head["checksum"] = _core.crc32c(bytes(data[:HEAD]) + head.tobytes() + blocks.tobytes())
    front = bytes(data[:HEAD]) + head.tobytes() + blocks.tobytes()
    data[: len(front)] = front
    behind = len(data) - fmt.COMPRESSED_END_BYTES
    data[behind - len(front) : behind] = front
    path.write_bytes(data)


def test_blocks_are_runs_of_whole_frames_that_cover_the_page(compressed: Path) -> None:
    """I16: every byte up to the end mark is in exactly one block."""
    data = page_of(compressed).read_bytes()
    head = head_of(data)
    assert len(head.blocks) > 5
    assert head.blocks[0].position == fmt.PAGE_HEADER_BYTES
    for block, following in pairwise(head.blocks):
        assert block.end == following.position
        assert block.end - block.position <= BLOCK + fmt.frame_bytes(max(map(len, sent())))
    assert head.blocks[-1].end == head.used_bytes
    page = zipped.inflated(data)
    assert len(page) == PAGE
    assert page[:8] == fmt.PAGE_MAGIC
    assert not any(page[head.used_bytes :])


def test_front_is_stored_twice(compressed: Path) -> None:
    """One copy of the table of blocks can be lost."""
    data = page_of(compressed).read_bytes()
    head = head_of(data)
    assert zipped.second_front(data, "page") == data[: head.head_bytes]


def test_file_is_smaller_and_holds_its_size(compressed: Path) -> None:
    """So a truncated file is noticed."""
    data = page_of(compressed).read_bytes()
    assert len(data) < PAGE * 0.9
    assert head_of(data).file_bytes == len(data)


# --- invalid files --------------------------------------------------------------------------------


def later(position: int) -> Callable[[np.ndarray, np.ndarray], None]:
    """Move the third block to a place in the page."""

    def change(_: np.ndarray, blocks: np.ndarray) -> None:
        blocks["position"][2] = position

    return change


def field(name: str, value: int) -> Callable[[np.ndarray, np.ndarray], None]:
    """Set a field of the head."""

    def change(head: np.ndarray, _: np.ndarray) -> None:
        head[name] = value

    return change


def stored(value: int) -> Callable[[np.ndarray, np.ndarray], None]:
    """Set how many bytes the second block has in the file."""

    def change(_: np.ndarray, blocks: np.ndarray) -> None:
        blocks["stored_bytes"][1] = value

    return change


def swapped(_: np.ndarray, blocks: np.ndarray) -> None:
    """Let blocks go backward."""
    blocks[[1, 2]] = blocks[[2, 1]]


def renumbered(_: np.ndarray, blocks: np.ndarray) -> None:
    """Let a block begin with a frame of the one before."""
    blocks["ordinal"][3] = blocks["ordinal"][2]


def sent_at(number: int, step: int) -> Callable[[np.ndarray, np.ndarray], None]:
    """Let a block begin earlier or later."""

    def change(_: np.ndarray, blocks: np.ndarray) -> None:
        blocks["timestamp"][number] += step

    return change


CANNOT_BE = {
    "a block is older than the one before it": sent_at(3, -(10**15)),
    "a block is newer than the one after it": sent_at(3, 10**15),
    "the first block is not as old as the page": sent_at(0, -1),
    "the last block is newer than the page": sent_at(-1, 10**15),
    "a block begins before the one before it": later(64),
    "a block ends where it begins": later(0),
    "a block begins between frames": later(1500 // 8 * 8 + 3),
    "a block lies after the page": later(2**32 - 8),
    "blocks go backward": swapped,
    "blocks share a frame": renumbered,
    "a block is larger than the file": stored(2**32 - 1),
    "a block is shorter than it is": stored(1),
    "more is used than there is": field("used_bytes", PAGE + 8),
    "no byte is used": field("used_bytes", 0),
    "the page is larger than any": field("page_bytes", 1 << 40),
    "the page has another size": field("page_bytes", PAGE * 2),
    "the file is another size": field("file_bytes", 5),
    "there are more messages than places": field("end_sequence", 2**40),
    "there are less than no messages": field("end_sequence", 0),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("change", CANNOT_BE.values(), ids=CANNOT_BE)
def test_inconsistent_file_is_a_typed_error(
    compressed: Path, change: Callable[[np.ndarray, np.ndarray], None]
) -> None:
    """I9: for all bytes, in bounded memory; messages of other pages are read."""
    path = page_of(compressed)
    forge(path, change)
    with Queue(compressed, read_only=True) as queue:
        third = queue._store.first_sequence(3)
        with pytest.raises(CorruptPage) as caught:
            list(queue.replay(sequence=third - 1))
        assert caught.value.path == str(path)
        assert payloads(queue.replay(sequence=third)) == sent()[third:]
        problems = queue.verify().problems
    assert problems[0].file == str(path)
    assert "compressed head" in problems[0].reason


def test_wrong_time_of_a_block_is_noticed_when_it_leads(compressed: Path) -> None:
    """I6: the frames contradict it. Who reads on does so, and salvage takes every message."""
    path = page_of(compressed)
    data = path.read_bytes()
    block = head_of(data).blocks[3]
    first = (head_of(data).header.first_sequence or 0) + block.ordinal
    with Queue(compressed, read_only=True) as queue:
        before, message, after = list(queue.replay(sequence=first - 1))[:3]
    earlier, later = before.timestamp - message.timestamp, after.timestamp - message.timestamp
    assert earlier < 0 < later
    for step in (earlier // 2, max(later // 2, 1)):
        path.write_bytes(data)
        forge(path, sent_at(3, step))
        with Queue(compressed, read_only=True) as queue:
            for search in (
                lambda queue: next(iter(queue.replay(sequence=after.sequence))),
                lambda queue: queue.as_of(after.timestamp),
                lambda queue: queue.as_of([before.timestamp, after.timestamp]),
                lambda queue: queue.times(),
            ):
                with pytest.raises(CorruptFrame, match="compressed block") as caught:
                    search(queue)
                assert (caught.value.path, caught.value.position) == (str(path), block.offset)
            assert payloads(queue.replay()) == sent()
            problems = queue.verify().problems
        assert [(p.file, p.position, p.sequence) for p in problems] == [
            (str(path), block.offset, first)
        ]
        report = salvage_queue(compressed, compressed.parent / f"saved{step}")
        assert report.messages_copied == len(sent())


def test_damaged_block_is_named_with_place_and_message(compressed: Path) -> None:
    """Messages before it are read; verify names each, and counts the valid ones around it."""
    path = page_of(compressed)
    head = head_of(path.read_bytes())
    block = head.blocks[3]
    flip(path, block.offset + 5)
    bad = (head.header.first_sequence or 0) + block.ordinal
    with Queue(compressed, read_only=True) as queue:
        replay = queue.replay()
        for expected in sent()[:bad]:
            assert next(replay).payload == expected
        with pytest.raises(CorruptFrame, match="compressed block: wrong checksum") as caught:
            next(replay)
        error = caught.value
        assert (error.path, error.position, error.sequence) == (str(path), block.offset, bad)
        behind = bad + head.blocks[4].ordinal - block.ordinal
        assert payloads(queue.replay(sequence=behind)) == sent()[behind:]
        report = queue.verify()
    assert (report.problems[0].position, report.problems[0].sequence) == (block.offset, bad)
    assert report.messages_checked == len(sent()) - (behind - bad)


def test_salvage_takes_the_blocks_that_validate(compressed: Path, tmp_path: Path) -> None:
    """What is lost is exactly the damaged block."""
    path = page_of(compressed)
    head = head_of(path.read_bytes())
    flip(path, head.blocks[3].offset + 5)
    bad = (head.header.first_sequence or 0) + head.blocks[3].ordinal
    behind = (head.header.first_sequence or 0) + head.blocks[4].ordinal
    report = salvage_queue(compressed, tmp_path / "saved")
    assert [(loss.first_sequence, loss.last_sequence) for loss in report.lost] == [
        (bad, behind - 1)
    ]
    assert report.lost[0].file == str(path)
    assert "compressed block" in report.lost[0].reason
    with Queue(tmp_path / "saved") as queue:
        assert payloads(queue.replay()) == sent()[:bad] + sent()[behind:]


@pytest.mark.quick_each(3)
@pytest.mark.parametrize("place", [3, 20, HEAD + 3, HEAD + 50, TABLE + 7])
def test_front_is_repaired_from_its_copy(compressed: Path, tmp_path: Path, place: int) -> None:
    """One copy suffices to read all messages; salvage does not need the repair."""
    path = page_of(compressed)
    flip(path, place)
    assert not verify_queue(compressed).ok
    report = salvage_queue(compressed, tmp_path / "saved")
    assert report.ok
    assert report.messages_copied == len(sent())
    with Queue(compressed) as queue:
        repaired = queue.repair()
        assert repaired.ok, repaired
        assert any("again from its copy" in action for action in repaired.actions)
        assert payloads(queue.replay()) == sent()


@pytest.mark.parametrize("back", [3, 10, 14, 40])
def test_damaged_copy_is_noticed_and_repaired(compressed: Path, back: int) -> None:
    """Verify checks both."""
    path = page_of(compressed)
    flip(path, len(path.read_bytes()) - back)
    assert any("copy" in problem.reason for problem in verify_queue(compressed).problems)
    with Queue(compressed) as queue:
        assert payloads(queue.replay()) == sent()
        assert queue.repair().ok


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("size", [0, 7, 8, 63, 64, 100, 127, 128, 300, -1, -17, 1, 5000])
def test_file_of_another_size_is_a_typed_error(compressed: Path, tmp_path: Path, size: int) -> None:
    """Cut off at any place, or too long: an error; what is whole in it can be salvaged."""
    path = page_of(compressed)
    data = path.read_bytes()
    head = head_of(data)
    longer = size in {1, 5000}
    cut = data + bytes(size) if longer else data[:size]
    path.write_bytes(cut)
    with Queue(compressed, read_only=True) as queue:
        third = queue._store.first_sequence(3)
        with pytest.raises(CorruptPage):
            list(queue.replay(sequence=third - 1))
        assert not queue.verify().ok
    report = salvage_queue(compressed, tmp_path / "saved")
    lost = sum((loss.last_sequence or 0) - (loss.first_sequence or 0) + 1 for loss in report.lost)
    whole = [b for b in head.blocks if b.offset + b.stored_bytes <= len(cut)]
    if longer or len(whole) == len(head.blocks):
        assert lost == 0, report
    elif len(cut) < head.head_bytes:
        assert lost == head.count
    else:
        assert lost == head.count - head.blocks[len(whole)].ordinal
    if longer:
        with Queue(compressed) as queue:
            assert queue.repair().ok


# --- bombs ----------------------------------------------------------------------------------------


def with_block(path: Path, number: int, stored_now: bytes) -> None:
    """Put other bytes into a block, with sizes and checksums that are right for that."""
    data = path.read_bytes()
    head = head_of(data)
    parts = [data[b.offset : b.offset + b.stored_bytes] for b in head.blocks]
    parts[number] = stored_now
    blocks = [
        (len(part), b.position, b.ordinal, _core.crc32c(part), b.timestamp)
        for part, b in zip(parts, head.blocks, strict=True)
    ]
    front = zipped.encode_front(
        head.header,
        blocks,
        page_bytes=head.page_bytes,
        used_bytes=head.used_bytes,
        end_sequence=head.end_sequence,
        first_timestamp=head.first_timestamp or 0,
        last_timestamp=head.last_timestamp or 0,
    )
    path.write_bytes(front + b"".join(parts) + front + zipped.encode_end(len(front)))


def bomb() -> bytes:
    """64 MiB of zeros, in few bytes, with the size that it has."""
    return zstandard.ZstdCompressor().compress(bytes(64 << 20))


def silent_bomb() -> bytes:
    """The same, without saying its size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))


def two_frames() -> bytes:
    """More than one frame."""
    one = zstandard.ZstdCompressor().compress(b"x" * 100)
    return one + one


def lying_bomb() -> bytes:
    """It declares the size of a block, and inflates to more."""
    said = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20)))
    assert said[4] & 0xC0 == 0x80  # a content size of 4 bytes
    said[said.index((64 << 20).to_bytes(4, "little")) :][:4] = (1080).to_bytes(4, "little")
    return bytes(said)


@pytest.mark.parametrize("make", [bomb, silent_bomb, two_frames, lying_bomb, bytes])
def test_bomb_stops_at_the_size_of_its_block(compressed: Path, make: Callable[[], bytes]) -> None:
    """I9: an error in bounded memory."""
    path = page_of(compressed)
    head = head_of(path.read_bytes())
    with_block(path, 2, make())
    with Queue(compressed, read_only=True) as queue:
        inside = (head.header.first_sequence or 0) + head.blocks[2].ordinal
        tracemalloc.start()
        with pytest.raises(CorruptFrame, match="compressed block"):
            list(queue.replay(sequence=inside))
        with pytest.raises(CorruptFrame):
            list(queue.replay())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()
        assert not queue.verify().ok


def test_frames_of_another_page_in_a_block_are_damage(compressed: Path) -> None:
    """I6: what is inflated proves itself by its own checksums, as in any page."""
    other = page_of(compressed, 1).read_bytes()
    path = page_of(compressed)
    head = head_of(path.read_bytes())
    block = head.blocks[2]
    frames = zipped.inflated(other)[block.position : block.end]
    with_block(path, 2, zstandard.ZstdCompressor().compress(frames))
    with Queue(compressed, read_only=True) as queue:
        with pytest.raises(DamageError):
            list(queue.replay())
        assert not queue.verify().ok


@pytest.mark.parametrize("word", [0, fmt.END_OF_PAGE | 16, 2**32 - 1, 8])
def test_inflated_data_is_verified(compressed: Path, word: int) -> None:
    """A block of zeros, of end marks or of impossible lengths ends in an error, not in waiting."""
    path = page_of(compressed)
    block = head_of(path.read_bytes()).blocks[2]
    frames = (word.to_bytes(4, "little") + bytes(12)) * PAGE
    forged = frames[: block.end - block.position]
    with_block(path, 2, zstandard.ZstdCompressor().compress(forged))
    with Queue(compressed, read_only=True) as queue, pytest.raises(DamageError):
        list(queue.replay())
    with Queue(compressed, read_only=True) as queue, queue.consumer() as consumer:
        with pytest.raises(DamageError):
            list(iter(consumer.poll, None))
        with pytest.raises(DamageError):
            consumer.receive(timeout=60)


@pytest.mark.slow
@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(places=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=9)), min_size=1))
def test_any_bytes_are_read_right_or_refused(
    compressed: Path, places: list[tuple[float, bytes]]
) -> None:
    """I9, I16: whatever is overwritten, each message comes as it was sent or not at all."""
    path = page_of(compressed)
    data = path.read_bytes()
    try:
        for place, text in places:
            overwrite(path, int(place * (len(data) - 1)), text)
        with Queue(compressed, read_only=True) as queue:
            got = []
            with contextlib.suppress(PageQueueError):
                got.extend(queue.replay())
            assert payloads(got) == sent()[: len(got)]
            queue.verify()
    finally:
        path.write_bytes(data)


# --- without Zstandard, and of later versions -----------------------------------------------------


def lose_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a machine on which the extra is not installed."""
    monkeypatch.setattr(zstd, "_known", {})
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)


def test_without_the_extra_reading_names_it(
    compressed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading, verifying and salvaging name it, and no message counts as lost."""
    lose_zstd(monkeypatch)
    with Queue(compressed) as queue:
        with pytest.raises(MissingExtra, match=r"pip install .*\[zstd\]") as caught:
            list(queue.replay())
        assert caught.value.extra == "zstd"
        assert isinstance(caught.value, ImportError)
        last = queue._store.tail.first_sequence
        assert payloads(queue.replay(sequence=last)) == sent()[last:]
        with queue.producer() as producer:
            assert producer.send(b"more") == len(sent())
        for look in (queue.compress, queue.verify, lambda: queue.salvage(tmp_path / "saved")):
            with pytest.raises(MissingExtra):
                look()


def test_without_the_extra_no_page_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requesting it fails at once; a queue without compression does not need it."""
    lose_zstd(monkeypatch)
    with Queue(tmp_path, page_bytes=SMALL) as queue, queue.producer() as producer:
        producer.send(b"one")
        queue.rotate()
        with pytest.raises(MissingExtra):
            queue.compress()
    before = sorted(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "new"):
        with pytest.raises(MissingExtra):
            Queue(path, compress_after=1)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "new").exists()
    Queue(tmp_path, compress_after=1, read_only=True).close()  # compresses nothing


def test_another_method_is_a_newer_format(compressed: Path) -> None:
    """It is for those who know it, and not damage."""
    forge(page_of(compressed), field("method", 7))
    with Queue(compressed, read_only=True) as queue, pytest.raises(NewerFormat, match="method 7"):
        list(queue.replay())
