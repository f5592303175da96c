"""The campaign of combinations: it sees what it is there to see."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue
from stress.combined import files, sending
from stress.combined.ground import KINDS, NO_QUEUE, Ground
from stress.combined.judge import Judge
from stress.combined.operations import Opening, read, work
from stress.combined.worker import record_one
from stress.history import Sent, messages_in
from stress.lodgers import Resources
from stress.no_combination_breaks_a_promise import grown

if TYPE_CHECKING:
    from collections.abc import Iterator

COMBINED = Path(sending.__file__).parent


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """The shared state of a round, with its queues, of which the first was used."""
    made = Ground(str(tmp_path), str(tmp_path / "bystander"), 1)
    made.create()
    rng = random.Random(1)
    with made.open(made.specs[0], rng) as queue:
        opening = Opening(made, made.specs[0], queue, read_only=False)
        for _ in range(5):
            sending.send(opening, rng)
        for _ in range(20):
            read(opening, rng)
            work(opening, rng)
        record_one(opening)
    yield made
    made.close()


def judged(ground: Ground) -> str:
    """Return what is reported for the first queue."""
    Judge(ground, ground.specs[0]).run()
    return " ".join(ground.errors.said())


def test_every_kind_of_operation_is_noted_somewhere() -> None:
    """A name in the list that no operation records would fail every run; here it fails at once."""
    sources = [*COMBINED.glob("*.py"), COMBINED.parent / "no_combination_breaks_a_promise.py"]
    text = "".join(path.read_text("utf-8") for path in sources if path.name != "ground.py")
    assert [kind for kind in KINDS if f'"{kind}"' not in text] == []


def test_sound_queue_is_judged_sound(ground: Ground) -> None:
    """Sends, the consumer and the group agree with the ledger."""
    assert judged(ground) == ""


def test_message_that_was_refused_and_is_there_is_found(ground: Ground) -> None:
    """A sender whose send was reported as refused would send it again."""
    uid, number, *_ = ground.sent[0].events()[-1]
    with Queue(ground.specs[0].directory) as queue, queue.producer() as producer:
        payload = next(queue.replay(sequence=queue.tail_sequence - 1)).payload
        producer.send(payload)
    assert f"operation {number} of {uid}" in judged(ground) or "there twice" in judged(ground)


def test_acknowledged_message_that_is_not_there_is_found(ground: Ground) -> None:
    """The record of a send that returned names a message that never came."""
    uid, number, *_ = ground.sent[0].events()[-1]
    tail = sum(1 for _ in messages_in(ground.ledgers[0]))
    ground.sent[0].put(Sent(uid, number + 1, 1, tail))
    assert "acknowledged, and not there" in judged(ground)


def test_consumer_that_skips_is_found(ground: Ground) -> None:
    """Its place is after messages that it never received."""
    (Path(ground.base) / "read-0").write_bytes(b"")
    assert "never got" in judged(ground)


def test_group_that_gives_out_twice_is_found(ground: Ground) -> None:
    """An acknowledgement that returned counts."""
    records = ground.worked[0].events()
    ground.worked[0].put(next(record for record in records if record[2] == 2))
    assert "acknowledged or rejected twice" in judged(ground)


@pytest.mark.parametrize("act", ["write", "replace", "add", "remove"])
def test_change_of_a_bystander_is_found(tmp_path: Path, act: str) -> None:
    """Bytes, another file of the same name, a new name, a missing one."""
    directory = tmp_path / "bystander"
    files.make_bystander(str(directory))
    watch = files.Watch(str(directory))
    with Queue(directory, read_only=True) as queue:
        assert len(list(queue.replay())) == files.BYSTANDER_PAGES
    assert watch.changed() == watch.changed_bytes() == []
    page = directory / "queue-0000000003.page"
    data = page.read_bytes()
    probe = tmp_path / "probe"
    probe.touch()
    while probe.stat().st_mtime_ns <= page.stat().st_mtime_ns:  # the change has another time
        probe.touch()
    if act == "write":
        with page.open("r+b") as file:
            file.write(data[:100])
    elif act == "replace":
        other = directory / "other"
        other.write_bytes(data)
        other.rename(page)
    elif act == "add":
        (directory / "queue-0000000999.page").write_bytes(data)
    else:
        page.unlink()
    assert len(watch.changed()) == 1


def test_file_of_no_queue_in_a_live_directory_is_found(ground: Ground) -> None:
    """What another queue leaves there, and strangers' files that change."""
    live = files.LiveWatch(ground.specs)
    assert live.changed() == live.changed_strangers() == []
    Path(ground.specs[2].directory, "lost-0000000001.page").write_bytes(b"")
    assert "a file of no queue" in live.changed()[0]
    Path(live.strangers[0]).write_bytes(b"")
    assert live.changed_strangers()


def test_page_that_goes_is_found_unless_its_commit_was_never_published(ground: Ground) -> None:
    """Others remove the pages of a publisher that died before it published them."""
    spec = next(spec for spec in ground.specs if spec.retention is None and not spec.compresses)
    live = files.LiveWatch(ground.specs)
    page = Path(spec.directory, f"{spec.prefix}-0000000900.page")
    record = Path(spec.directory, f"{spec.prefix}-publishing")
    record.touch()
    page.touch()
    assert live.changed() == []
    page.unlink()
    record.unlink()
    assert live.changed() == []
    page.touch()
    assert live.changed() == []
    page.unlink()
    assert live.changed() == [f"{page}: gone, though that queue is never trimmed"]


def test_violation_is_told_with_what_was_done_before(ground: Ground) -> None:
    """The last operations on the queue, by whom, and how they ended."""
    ground.note("bystander", NO_QUEUE)
    ground.wrong("send", 0, "lost")
    (said,) = ground.errors.said()
    assert said.startswith("send, queue 0: lost")
    assert "record, queue 0: done" in said


def test_growth_is_found() -> None:
    """Descriptors exactly, memory beyond its noise."""
    rest = Resources(descriptors=5, threads=1, maps=0, anonymous_bytes=1 << 24, stores=0)
    flat = [rest] * 6
    assert grown(flat) == []
    assert grown([*flat, replace(rest, descriptors=6)])
    assert grown([*flat, replace(rest, stores=1)])
    assert grown([*flat, replace(rest, anonymous_bytes=1 << 25)])
