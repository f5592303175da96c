"""Salvage of messages that contain pages: no message is invented, and no loss is silent."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pagequeue import Queue, SalvageReport, _core, salvage_queue
from pagequeue import format as fmt

TIME = 2_000_000_000_000_000_000
OUTER = 65536


def fill(directory: Path, payloads: list[bytes], page_bytes: int, *, seal: bool = False) -> None:
    """Send messages, all at one time, as a coarse clock does."""
    with Queue(directory, page_bytes=page_bytes) as queue, queue.producer() as producer:
        for payload in payloads:
            producer.send(payload, timestamp=TIME)
        producer.flush()
        if seal:
            producer.rotate()


def page_path(directory: Path, number: int = 1) -> Path:
    """Return where a page is."""
    return directory / fmt.page_name("queue", number)


def frames(page: bytes) -> bytes:
    """Return what a page holds, without the zeros after it."""
    return page.rstrip(b"\0") + bytes(16)


def crafted(queue_id: bytes, first: int, count: int) -> bytes:
    """Return frames of a queue as an attacker who knows its id can forge them, and a marker."""
    made = b""
    for sequence in range(first, first + count + 1):
        payload = b"" if sequence == first + count else b"crafted %d" % sequence
        word = 16 + len(payload) | (0 if payload else fmt.END_OF_PAGE)
        checksum = _core.frame_checksum(queue_id, payload, TIME, sequence, word)
        made += word.to_bytes(4, "little") + checksum.to_bytes(4, "little")
        made += TIME.to_bytes(8, "little") + payload + bytes(-len(payload) % 8)
    return made


def flip(path: Path, at: int, bit: int = 1) -> None:
    """Flip bits of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def salvaged(directory: Path) -> tuple[list[bytes], SalvageReport]:
    """Return what salvage saves, and its report."""
    target = Path(tempfile.mkdtemp(dir=directory.parent)) / "saved"
    report = salvage_queue(directory, target)
    with Queue(target) as queue:
        return [message.payload for message in queue.replay()], report


def check(sent: list[bytes], got: list[bytes], report: SalvageReport, whole: set[int]) -> None:
    """What was saved was sent, in order; what was not is reported; what is whole was saved."""
    saved = {n for run in report.runs for n in range(run.first, run.last + 1)}
    assert got == [sent[n] for n in sorted(saved)]
    assert whole <= saved
    lost: set[int] = set()
    for loss in report.lost:
        end = len(sent) - 1 if loss.last_sequence is None else loss.last_sequence
        lost |= set(range(loss.first_sequence, end + 1))
    assert set(range(len(sent))) - saved <= lost
    assert report.ok == (len(saved) == len(sent))


def inner_of(tmp_path: Path, kind: str, outer: Path) -> bytes:
    """Return a payload that holds frames: of another queue, of a copy of this one, or crafted."""
    if kind == "other":
        fill(tmp_path / "inner", [b"inner %02d" % n + b"." * 50 for n in range(20)], 4096)
        return page_path(tmp_path / "inner").read_bytes()
    if kind == "copy":
        copy = tmp_path / "copy"
        shutil.copytree(outer, copy)
        fill(copy, [b"copy %d" % n for n in range(9)], OUTER, seal=True)
        return frames(page_path(copy).read_bytes())
    queue_id = (outer / fmt.all_meta_name("queue")).read_bytes()[16:32]
    return b"x" * 8 + crafted(queue_id, 1, 8) + crafted(queue_id, 2, 7) + crafted(queue_id, 3, 4)


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("kind", ["other", "copy", "crafted"])
@pytest.mark.parametrize("place", ["length", "payload", "word"])
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seal", [True, False])
def test_frames_inside_a_payload_are_never_messages(
    tmp_path: Path, kind: str, place: str, *, has_index: bool, seal: bool
) -> None:
    """I2: after damage only a frame at a proved position belongs to the queue."""
    outer = tmp_path / "outer"
    fill(outer, [b"outer 0"], OUTER)
    inner = inner_of(tmp_path, kind, outer)
    sent = [b"outer 0", inner, *(b"outer %d" % n for n in range(2, 9))]
    fill(outer, sent[1:], OUTER, seal=seal)
    at = page_path(outer).read_bytes().index(inner[:64]) - 16
    flip(page_path(outer), at + {"length": 3, "word": 0, "payload": 16 + 3}[place], 0x20)
    if not has_index:
        (outer / fmt.index_name("queue", 1)).unlink()
    got, report = salvaged(outer)
    check(sent, got, report, set(range(9)) - {1})


def test_lost_index_record_is_bridged_by_whole_frames_only(tmp_path: Path) -> None:
    """I6: between damage and a proved record, frames count that lead to it without a gap."""
    outer = tmp_path / "outer"
    fill(outer, [b"outer 0"], OUTER)
    inner = inner_of(tmp_path, "crafted", outer)
    sent = [b"outer 0", inner, *(b"outer %d" % n for n in range(2, 9))]
    fill(outer, sent[1:], OUTER)
    flip(page_path(outer), page_path(outer).read_bytes().index(inner) - 13, 0x20)
    for ordinal in (2, 3):
        flip(outer / fmt.index_name("queue", 1), ordinal * 12 + 9)
    got, report = salvaged(outer)
    check(sent, got, report, set(range(9)) - {1})


def test_hole_before_messages_of_others_is_reported(tmp_path: Path) -> None:
    """In a page with an unknown end, frames after an empty slot are reported, not copied."""
    outer = tmp_path / "outer"
    with Queue(outer, page_bytes=4096) as queue, queue.producer() as producer:
        for n in range(6):
            producer.send(b"message %d" % n, timestamp=TIME)
    (outer / fmt.write_meta_name("queue")).unlink()
    data = page_path(outer).read_bytes()
    at = data.index(b"message 2") - 16
    page_path(outer).write_bytes(data[:at] + bytes(32) + data[at + 32 :])
    got, report = salvaged(outer)
    assert got == [b"message %d" % n for n in range(len(got))]
    assert len(got) == 6 or not report.ok


def test_damaged_last_message_that_the_index_has_is_reported(tmp_path: Path) -> None:
    """No other file of a copied directory mentions it: it may have been lost."""
    outer = tmp_path / "outer"
    with Queue(outer, page_bytes=4096) as queue, queue.producer() as producer:
        for n in range(5):
            producer.send(b"message %d" % n, timestamp=TIME)
    copy = tmp_path / "copy"
    shutil.copytree(outer, copy)
    flip(page_path(copy), page_path(copy).read_bytes().index(b"message 4"))
    got, report = salvaged(copy)
    assert got == [b"message %d" % n for n in range(4)]
    assert not report.ok


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    kinds=st.lists(st.sampled_from(["bits", "zeros"]), max_size=3),
    index=st.sampled_from(["whole", "bits", "gone"]),
)
def test_salvaged_messages_were_sent_and_lost_ones_are_reported(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kinds: list[str], index: str
) -> None:
    """A subsequence, complete reports, and no whole message with a proved record is lost."""
    rng = random.Random(seed)
    base = tmp_path_factory.mktemp("property")
    outer = base / "outer"
    fill(outer, [b"outer 0"], OUTER)
    nested = [inner_of(base, kind, outer) for kind in ("other", "copy", "crafted")]
    sent = [b"outer 0"]
    while sum(map(len, sent)) < OUTER // 2:
        sent.append(rng.choice([*nested, b"%d" % len(sent), rng.randbytes(rng.randrange(300))]))
    fill(outer, sent[1:], OUTER, seal=rng.random() < 0.5)
    path, index_path = page_path(outer), outer / fmt.index_name("queue", 1)
    records = index_path.read_bytes()
    before = bytearray(path.read_bytes())
    page = bytearray(before)
    end = int.from_bytes(records[len(sent) * 12 - 4 : len(sent) * 12], "little")
    for kind in kinds:
        at = rng.randrange(fmt.PAGE_HEADER_BYTES, end)
        size = 1 if kind == "bits" else min(rng.randrange(1, 600), end - at)
        page[at : at + size] = (
            bytes([page[at] ^ 1 << rng.randrange(8)]) if size == 1 else bytes(size)
        )
    path.write_bytes(page)
    bad: set[int] = set()
    if index == "bits":
        at = rng.randrange(len(sent) * 12)
        flip(index_path, at)
        bad.add(at // 12)
    elif index == "gone":
        index_path.unlink()
    positions = [
        int.from_bytes(records[n * 12 + 8 : n * 12 + 12], "little") for n in range(len(sent))
    ]
    ends = [at + 16 + len(payload) for at, payload in zip(positions, sent, strict=True)]
    whole = {
        n
        for n, (a, b) in enumerate(zip(positions, ends, strict=True))
        if page[a:b] == before[a:b] and n not in bad and index != "gone"
    }
    got, report = salvaged(outer)
    check(sent, got, report, whole)
    shutil.rmtree(base)
