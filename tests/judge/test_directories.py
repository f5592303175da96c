"""Random damaged directories: all that opens, reads or checks a queue finds the oracle's end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from damaged import STEPS, Made, damage, made
from oracle import End, Oracle, Refused

from pagequeue import Queue, errors, salvage_queue, verify_queue
from pagequeue import format as fmt
from stress.tampering import overwrite

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = range(132)


class Case(NamedTuple):
    """What one directory was found to be.

    Attributes:
        what: the seed and the damage.
        end: where the oracle says that the queue ends; None: it refuses to open it.
        prefix: what a reader may be shown all the same, where the mark is lost.
        written: where the queue ends for a writer; None: it was refused.
        read: the same for a reader.
        is_ok: whether verify reports no problem.
        checked: how many messages verify counted.
    """

    what: str
    end: End | None
    prefix: End | None
    written: int | None
    read: int | None
    is_ok: bool
    checked: int


def opened(path: Path, *, read_only: bool) -> int | None:
    """Return the sequence after the last message; None: the queue is damaged."""
    try:
        with Queue(path, read_only=read_only) as queue:
            return queue.tail_sequence
    except errors.DamageError:
        return None


def case_of(queue: Made, path: Path, seed: int) -> Case:
    """Damage a queue, and ask all."""
    done = damage(queue, path, seed)
    end = prefix = None
    try:
        end = prefix = Oracle(path).end()
    except Refused as refused:
        prefix = refused.prefix
    read = opened(path, read_only=True)
    report = verify_queue(path)
    written = opened(path, read_only=False)
    shutil.rmtree(path)
    what = f"seed {seed}: {', '.join(done)}"
    return Case(what, end, prefix, written, read, report.ok, report.messages_checked)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Return what the directories were found to be."""
    place = tmp_path_factory.mktemp("directories")
    queues = [made(place / f"made{i}", name) for i, name in enumerate(STEPS)]
    found = [case_of(queues[seed % len(queues)], place / "damaged", seed) for seed in SEEDS]
    shutil.rmtree(place)
    return found


def sequence_of(end: End | None) -> int | None:
    """Return the sequence of an end."""
    return None if end is None else end.sequence


def test_a_writer_ends_where_the_oracle_does(cases: list[Case]) -> None:
    """I5: all that is guaranteed, and of the rest what is whole."""
    wrong = [case for case in cases if case.written != sequence_of(case.end)]
    assert not wrong
    kept = [case.end for case in cases if case.end is not None]
    assert len(SEEDS) / 4 < len(kept) < len(SEEDS)
    assert {end.page for end in kept} > {1, 2, 3, 4}


def test_a_reader_ends_where_a_writer_does(cases: list[Case]) -> None:
    """Only where the mark is lost it may be shown a prefix that a writer is refused."""
    assert not [case for case in cases if case.read != sequence_of(case.prefix)]


def test_a_reader_is_refused_a_queue_with_a_missing_page(tmp_path: Path) -> None:
    """Also where the mark is lost: the pages before it are never taken for the whole queue."""
    queue = made(tmp_path / "made", "messages")
    meta = bytearray(queue.files[name := fmt.write_meta_name("queue")])
    meta[256:272] = bytes(16)
    for file, data in {**queue.files, name: bytes(meta)}.items():
        (tmp_path / file).write_bytes(data)
    (tmp_path / fmt.page_name("queue", 2)).unlink()
    for read_only in (True, False):
        with pytest.raises(errors.MissingPage):
            Queue(tmp_path, read_only=read_only)


def test_verify_is_not_ok_with_another_count_than_opening_keeps(cases: list[Case]) -> None:
    """Where it finds no problem, it checked exactly what opening keeps."""
    opens = [case for case in cases if case.written is not None and case.is_ok]
    assert opens
    assert not [case for case in opens if case.checked != case.written]
    assert not [case for case in cases if case.written is None and case.is_ok]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("unflushed", [0, 500])
def test_salvage_copies_all_flushed_messages_but_the_damaged_ones(
    tmp_path: Path, unflushed: int, *, has_index: bool
) -> None:
    """A block of zeros in the active page costs the messages in it, and no other."""
    count, path = 20_000, tmp_path / "q"
    with Queue(path, page_bytes=1 << 21) as queue, queue.producer() as producer:
        producer.send_many([b"%07d" % number + bytes(49) for number in range(count)])
        producer.flush()
        if unflushed:
            producer.send_many([b"%07d" % number + bytes(49) for number in range(unflushed)])
    copy = shutil.copytree(path, tmp_path / "copy")
    overwrite(copy / fmt.page_name("queue", 1), 100 * 4096, bytes(4096))
    index = copy / fmt.index_name("queue", 1)
    if not has_index:
        index.write_bytes(bytes(index.stat().st_size))
    report = salvage_queue(copy, tmp_path / "salvaged")
    assert report.messages_copied >= count - 4096 // 72 - 2
    assert len(report.lost) == 1
