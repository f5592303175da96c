"""Opening read-only never takes the messages before damage for the whole queue (I5).

Each test works on a copy of a queue, as after a power cut: the shared words are not trusted.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support import flip

from pagequeue import Queue, errors, merge, repair_queue
from pagequeue import format as fmt
from pagequeue.cli import main
from pagequeue.page.header import parse_header
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Batch, Message

PAGE = 4096
DURABLE = 240
ALL = 300
ZEROED_AT = 1000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a queue of which the first 240 of 300 messages are durable, with consumers."""
    directory = tmp_path_factory.mktemp("whole") / "q"
    with Queue(directory, page_bytes=PAGE) as queue, queue.producer() as producer:
        for number in range(DURABLE):
            producer.send(b"durable %4d" % number * 4)
        producer.flush()
        with queue.consumer("reader") as consumer:
            consumer.receive(timeout=60)
            consumer.ack()
        with queue.group("workers") as group:
            group.claim(timeout=60).ack()
        for number in range(DURABLE, ALL):
            producer.send(b"sent    %4d" % number * 4)
    return directory


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of it: its words are those of another file, so a writer would recover it."""
    return shutil.copytree(whole, tmp_path / "copy")


def page_of(directory: Path, sequence: int) -> tuple[int, int]:
    """Return the number of the page that has a message, and the first sequence of that page."""
    found = (1, 0)
    for path in sorted(directory.glob("*.page")):
        header = parse_header(path.read_bytes()[: fmt.PAGE_HEADER_BYTES], str(path))
        if header.first_sequence is not None and header.first_sequence <= sequence:
            found = header.page_number, header.first_sequence
    return found


def path_of(directory: Path, number: int) -> Path:
    """Return the path of a page."""
    return directory / fmt.page_name("queue", number)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": os.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "cut in half": lambda path: os.truncate(path, PAGE // 2),
    "zeros": lambda path: overwrite(path, ZEROED_AT, bytes(64)),
    "first frame": lambda path: overwrite(path, fmt.PAGE_HEADER_BYTES, bytes(64)),
    "header": lambda path: overwrite(path, 0, bytes(fmt.PAGE_HEADER_BYTES)),
    "noise": lambda path: overwrite(path, ZEROED_AT, b"\xa5" * 64),
}


def received(queue: Queue) -> list[Message]:
    """Receive with a consumer until no message comes."""
    found = []
    with queue.consumer() as consumer:
        while True:
            try:
                found.append(consumer.receive(timeout=0.2))
            except errors.NothingReceived:
                return found


def polled(queue: Queue) -> list[Message]:
    """Poll until no message is left."""
    with queue.consumer() as consumer:
        return list(iter(consumer.poll, None))


def batched(queue: Queue) -> list[bytes]:
    """Read in batches."""
    batches: list[Batch] = list(queue.batches())
    return [payload for batch in batches for payload in batch.payloads]


READERS: dict[str, Callable[[Queue], Any]] = {
    "replay": lambda queue: list(queue.replay()),
    "since": lambda queue: list(queue.replay(since=1)),
    "batches": batched,
    "receive": received,
    "poll": polled,
    "merge": lambda queue: list(merge([queue])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_below_the_durable_mark_refuses_a_reader(copy: Path, damage: str) -> None:
    """I5: the error names every kind of damage to a page of durable messages."""
    number, _ = page_of(copy, DURABLE - 1)
    DAMAGES[damage](path_of(copy, number))
    with pytest.raises(errors.DamageError, match=r"repair or salvage") as caught:
        Queue(copy, read_only=True)
    assert caught.value.path == str(path_of(copy, number))


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_below_the_mark_is_reported_by_every_way_of_reading(
    copy: Path, damage: str, how: str
) -> None:
    """Pages that opening does not check are checked when they are read."""
    DAMAGES[damage](path_of(copy, 2))
    with pytest.raises(errors.DamageError), Queue(copy, read_only=True) as queue:
        READERS[how](queue)


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_recovered_queue_is_reported_by_every_way_of_reading(
    copy: Path, damage: str, how: str
) -> None:
    """The tail is trusted, but messages that it counts are missing."""
    Queue(copy).close()
    DAMAGES[damage](path_of(copy, 2))
    with pytest.raises(errors.DamageError), Queue(copy, read_only=True) as queue:
        READERS[how](queue)


@pytest.mark.parametrize("damage", DAMAGES)
def test_torn_tail_after_the_mark_is_read_up_to_there_with_a_warning(
    copy: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I5: messages that were never durable can be torn; all durable ones are read."""
    number, first = page_of(copy, ALL - 1)
    assert first > DURABLE
    DAMAGES[damage](path_of(copy, number))
    with Queue(copy, read_only=True) as queue:
        read = [m.sequence for m in queue.replay()]
        assert read == list(range(queue.tail_sequence))
        assert len(queue.last(3)) == 3
        assert {known.name for known in queue.consumers()} == {"reader", "workers"}
    assert DURABLE <= len(read) < ALL
    assert "awaits recovery" in caplog.text


def test_compressed_page_below_the_mark_refuses_a_reader(whole: Path, tmp_path: Path) -> None:
    """A compressed page counts as the page: missing, truncated and damaged are reported."""
    made = shutil.copytree(whole, tmp_path / "made")
    with Queue(made) as queue, queue.producer() as producer:
        producer.flush()
        assert queue.compress()
        number = queue.stats().page_count - 1
    for damage in ("missing", "empty", "header"):
        copy = shutil.copytree(made, tmp_path / damage)
        DAMAGES[damage](path_of(copy, number))
        with pytest.raises(errors.DamageError):
            Queue(copy, read_only=True)
    copy = shutil.copytree(made, tmp_path / "block")
    overwrite(path_of(copy, number), path_of(copy, number).stat().st_size // 2, b"\xa5" * 32)
    with pytest.raises(errors.DamageError), Queue(copy, read_only=True) as queue:
        list(queue.replay())


def test_lost_mark_makes_every_page_count(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a durable mark, a later page proves that messages before it were sent."""
    overwrite(copy / "queue-writeMeta", 0, b"\xa5" * 64)
    overwrite(path_of(copy, 2), ZEROED_AT, bytes(64))
    assert not repair_queue(copy).ok
    with pytest.raises(errors.DamageError):
        Queue(copy)
    with Queue(copy, read_only=True) as queue:
        assert 0 < queue.tail_sequence < DURABLE
    assert "awaits recovery" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "empty", "cut in half", "header"])
def test_lost_mark_and_last_page_are_not_taken_for_the_tail(copy: Path, damage: str) -> None:
    """I10: an end-of-page marker proves that a page followed; it is not created again."""
    number, _ = page_of(copy, ALL - 1)
    (copy / "queue-writeMeta").unlink()
    DAMAGES[damage](path_of(copy, number))
    before = {path.name: path.read_bytes() for path in copy.glob("*.page")}
    with pytest.raises(errors.DamageError):
        Queue(copy)
    assert {path.name: path.read_bytes() for path in copy.glob("*.page")} == before


@pytest.mark.parametrize("words", ["head_page", "identity", "missing"])
def test_damaged_read_meta_refuses_a_reader(copy: Path, words: str) -> None:
    """A reader does not start at a head without proof."""
    path = copy / "queue-readMeta"
    if words == "missing":
        path.unlink()
    else:
        flip(path, {"head_page": 32, "identity": 16}[words])
    with pytest.raises(errors.DamageError):
        Queue(copy, read_only=True)


@pytest.mark.parametrize(
    "command",
    [["receive"], ["info"], ["export", "--to", "OUT"]],
    ids=" ".join,
)
def test_commands_that_read_end_with_an_error(
    copy: Path, command: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """No command prints part of a queue and exits with 0."""
    number, _ = page_of(copy, DURABLE - 1)
    path_of(copy, number).unlink()
    out = tmp_path / "out.jsonl"
    assert main([command[0], str(copy), *(a.replace("OUT", str(out)) for a in command[1:])]) == 1
    printed, said = capfdbinary.readouterr()
    assert (printed, out.exists()) == (b"", False)
    assert b"repair or salvage" in said
