"""Values derived from the remaining files: they agree with every other fact, or are reported."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support import files, flip

from pagequeue import Queue, errors, repair_queue, verify_queue
from pagequeue import format as fmt
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
COUNT = 150


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a durable queue of several pages, the last one empty, with a consumer and a group."""
    directory = tmp_path / "q"
    with Queue(directory, page_bytes=PAGE) as queue, queue.producer() as producer:
        for number in range(COUNT):
            producer.send(b"message %4d " % number * 6)
        with queue.consumer("reader") as consumer:
            consumer.receive_many(10, timeout=60)
            consumer.ack()
        with queue.group("workers") as group:
            group.claim(timeout=60).ack()
        queue.rotate()
        producer.flush()
    return directory


def pages(directory: Path) -> list[Path]:
    """Return the paths of the pages that were rolled into."""
    with Queue(directory, read_only=True) as queue:
        count = queue.stats().page_count
    return [directory / fmt.page_name("queue", number) for number in range(1, count + 1)]


def read(directory: Path) -> list[int]:
    """Return all sequences."""
    with Queue(directory) as queue:
        return [m.sequence for m in queue.replay()]


# --- the header of an empty active page -----------------------------------------------------------

HEADERS: dict[str, Callable[[Path], object]] = {
    "one byte": lambda page: flip(page, 0),
    "magic": lambda page: overwrite(page, 0, b"\xff" * 8),
    "checksum": lambda page: flip(page, 12),
    "queue id": lambda page: overwrite(page, 24, b"\xa5" * 16),
    "sequence": lambda page: flip(page, 40),
    "whole": lambda page: overwrite(page, 0, bytes(fmt.PAGE_HEADER_BYTES)),
}


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("how", HEADERS)
def test_header_of_an_empty_active_page_is_recreated(made: Path, how: str, power_cut: bool) -> None:
    """The end-of-page marker before it determines number and sequence."""
    HEADERS[how](pages(made)[-1])
    if power_cut:
        pretend_power_cut(made)
    assert repair_queue(made).ok
    assert verify_queue(made).ok
    with Queue(made) as queue, queue.producer() as producer:
        assert producer.send(b"on") == COUNT
    assert read(made) == list(range(COUNT + 1))


def test_header_is_not_invented_where_facts_conflict(made: Path) -> None:
    """Bytes in the page, or a tail that counts messages in it, prove that it was not empty."""
    last = pages(made)[-1]
    whole = files(made)
    overwrite(last, 0, bytes(fmt.PAGE_HEADER_BYTES))
    overwrite(last, 2000, b"something")
    assert not repair_queue(made).ok
    for name, data in whole.items():
        (made / name).write_bytes(data)
    with Queue(made) as queue, queue.producer() as producer:
        producer.send(b"one more")
    overwrite(last, 0, bytes(PAGE))
    assert not repair_queue(made).ok


# --- the first page, and the read meta ------------------------------------------------------------


def test_lost_read_meta_does_not_hide_a_lost_first_page(made: Path) -> None:
    """An index without its page proves that the page existed: opening is an error."""
    (made / "queue-readMeta").unlink()
    pages_there = sorted(made.glob("*.page"))
    pages_there[0].unlink()
    before = files(made)
    with pytest.raises(errors.MissingPage):
        Queue(made)
    assert {n: d for n, d in files(made).items() if n in before} == before
    assert not verify_queue(made).ok
    (action, *_) = [text for text in repair_queue(made).actions if "read" in text]
    assert "before it are not here, retention removed them or their pages are lost" in action


def test_lost_first_page_without_any_trace_is_reported(made: Path) -> None:
    """If retention and loss are indistinguishable, the missing messages are named."""
    for path in (
        made / "queue-readMeta",
        made / fmt.page_name("queue", 1),
        made / fmt.index_name("queue", 1),
    ):
        path.unlink()
    assert not verify_queue(made).ok
    with Queue(made) as queue:
        said = " ".join(queue.recovery.actions)
        assert f"the {queue.head_sequence} messages before it are not here" in said


def test_lost_read_meta_of_a_whole_queue_loses_no_message(made: Path) -> None:
    """The first page ever is the head, and no message is missing."""
    (made / "queue-readMeta").unlink()
    with Queue(made) as queue:
        assert "not here" not in " ".join(queue.recovery.actions)
    assert read(made) == list(range(COUNT))


# --- what opening refuses, verify finds -----------------------------------------------------------


def exchange(made: Path, one: int, other: int) -> None:
    """Exchange two pages."""
    first, second = (made / fmt.page_name("queue", number) for number in (one, other))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


REFUSED: dict[str, Callable[[Path], object]] = {
    "pages exchanged": lambda made: exchange(made, 3, 4),
    "last pages exchanged": lambda made: exchange(made, len(pages(made)) - 2, len(pages(made)) - 1),
    "first pages exchanged": lambda made: exchange(made, 1, 2),
    "page missing": lambda made: (made / fmt.page_name("queue", 3)).unlink(),
    "page empty": lambda made: (made / fmt.page_name("queue", 3)).write_bytes(b""),
    "page zero": lambda made: (made / fmt.page_name("queue", 3)).write_bytes(bytes(PAGE)),
    "frame": lambda made: overwrite(made / fmt.page_name("queue", 3), 1000, b"\xa5" * 64),
    "header": lambda made: overwrite(made / fmt.page_name("queue", 1), 0, bytes(64)),
    "allMeta": lambda made: flip(made / "queue-allMeta", 20),
    "readMeta": lambda made: flip(made / "queue-readMeta", 16),
    "head page": lambda made: overwrite(made / "queue-readMeta", 32, b"\x03"),
    "writeMeta": lambda made: flip(made / "queue-writeMeta", 16),
}


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("power_cut", [True, False])
@pytest.mark.parametrize("damage", REFUSED)
def test_verify_reports_every_error_of_opening(
    made: Path, damage: str, power_cut: bool, durable: bool
) -> None:
    """Whatever opening or reading to the end raises, verify has a problem with."""
    copy = shutil.copytree(made, made.with_name("copy"))
    if not durable:  # as if no flush had ever happened
        overwrite(copy / "queue-writeMeta", 256, bytes(8))
        overwrite(copy / "queue-writeMeta", 264, b"\x01")
    if not power_cut:
        Queue(copy).close()
    REFUSED[damage](copy)
    found, refused = verify_queue(copy).problems, ""
    try:
        with Queue(copy) as queue:
            list(queue.replay())
    except errors.PageQueueError as error:
        refused = str(error)
    assert found or not refused


# --- bytes after small files ----------------------------------------------------------------------


@pytest.mark.quick_each(3)
@pytest.mark.parametrize(
    "name",
    [
        "queue-readMeta.workers",
        "queue-readMeta.reader",
        "queue-readMeta",
        "queue-writeMeta",
        "queue-allMeta",
        "queue-0000000001.idx",
        "queue-0000000001.page",
    ],
)
def test_appended_bytes_are_found_and_cut_off(made: Path, name: str) -> None:
    """Seven bytes appended to any file do no harm: verify names them, repair cuts them off."""
    before = (made / name).read_bytes()
    with (made / name).open("ab") as file:
        file.write(b"garbage")
    problems = verify_queue(made).problems
    assert [problem.file for problem in problems] == [str(made / name)]
    assert name.endswith((".idx", ".page")) or str(len(before)) in problems[0].reason
    assert repair_queue(made).ok
    assert len((made / name).read_bytes()) == len(before)
    assert verify_queue(made).ok
    with Queue(made) as queue:
        assert {known.next_sequence for known in queue.consumers()} == {1, 10}
        with queue.group("workers") as group:
            assert group.claim(timeout=60).message.sequence == 1


def test_group_with_appended_bytes_continues(made: Path) -> None:
    """It opens without a repair."""
    with (made / "queue-readMeta.workers").open("ab") as file:
        file.write(b"garbage")
    with Queue(made) as queue, queue.group("workers") as group:
        assert group.claim(timeout=60).message.sequence == 1
