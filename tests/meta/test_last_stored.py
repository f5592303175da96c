"""What a flow continues after outlives retention: kills, cuts, full disks and damage included."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import (
    CorruptMeta,
    DiskFull,
    Message,
    NewerFormat,
    Queue,
    Retention,
    _core,
    repair_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.maintenance import trimmer
from pagequeue.meta import last_stored
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SMALL = 4096
AT_ONCE = Retention(max_age=timedelta(microseconds=1))


def opened(path: Path, **options: Any) -> Queue:  # noqa: ANN401 - whatever a queue takes
    """Open the queue of a test, which keeps no acknowledged messages."""
    return Queue(path / "q", page_bytes=SMALL, **{"retention": AT_ONCE, **options})


def upstream(end: int) -> Callable[[Message | None], Iterator[bytes]]:
    """Return a source of numbers up to an end, which continues after a message."""

    def source(last: Message | None) -> Iterator[bytes]:
        begin = 0 if last is None else int(last.payload) + 1
        return (b"%d" % number for number in range(begin, end))

    return source


def take(queue: Queue, end: int, name: str = "worker") -> list[int]:
    """Return what comes out of a flow up to an end."""
    with queue.persist(upstream(end), name) as flow:
        return [int(message.payload) for message in flow]


def empty(queue: Queue) -> None:
    """Have retention take all that was sent."""
    queue.rotate()
    queue.trim()
    assert len(queue) == 0


def kept(path: Path) -> list[str]:
    """Return the names of the files that keep a last message.

    A trim in the background can be writing the same record again, under a temporary name.
    """
    names = os.listdir(path / "q")
    return sorted(name for name in names if "-stored." in name and ".tmp-" not in name)


def test_flow_continues_after_all_was_trimmed(tmp_path: Path) -> None:
    """Each element comes once, however often the queue is emptied."""
    found = []
    for end in (100, 100, 150, 151):
        with opened(tmp_path) as queue:
            found += take(queue, end)
            empty(queue)
            assert queue.verify().ok
    assert found == list(range(151))
    assert kept(tmp_path) == ["queue-stored.150"]


def test_source_gets_the_message_as_it_was(tmp_path: Path) -> None:
    """Payload, time and sequence; and its value, with a codec."""
    seen: list[Message | None] = []

    def source(last: Message | None) -> list[bytes]:
        seen.append(last)
        return []

    with opened(tmp_path, codec="json") as queue:
        queue.persist(source, "worker").close()
        with queue.producer() as producer, queue.consumer("worker") as consumer:
            producer.send({"n": 1})
            sent = consumer.receive()
            consumer.ack()
        empty(queue)
        queue.persist(source, "worker").close()
    assert seen == [None, sent]
    assert seen[1] is not None
    assert seen[1].value == {"n": 1}


def test_asynchronous_flow_continues(tmp_path: Path) -> None:
    """The same for tasks."""

    async def main() -> list[int]:
        async with queue.persist(upstream(20), "worker") as flow:
            return [int(message.payload) async for message in flow]

    with opened(tmp_path) as queue:
        assert asyncio.run(main()) == list(range(20))
        empty(queue)
        assert asyncio.run(main()) == []


def test_queue_without_a_flow_keeps_no_message(tmp_path: Path) -> None:
    """Retention removes all, as configured; also after the flow's consumer was removed."""
    with opened(tmp_path) as queue:
        queue.producer().send(b"x")
        empty(queue)
        assert kept(tmp_path) == []
        assert take(queue, 3) == [0, 1, 2]
        empty(queue)
        assert kept(tmp_path) == ["queue-stored.3"]
        queue.remove_consumer("worker")
        queue.producer().send(b"x")
        empty(queue)
        assert kept(tmp_path) == []


def test_flow_on_an_emptied_queue_starts_from_the_beginning(tmp_path: Path) -> None:
    """Messages trimmed before the first flow opened do not belong to a flow."""
    with opened(tmp_path) as queue:
        queue.producer().send(b"7")
        empty(queue)
        assert take(queue, 2) == [0, 1]


def test_compressed_pages_and_empty_ones_keep_the_last_message(tmp_path: Path) -> None:
    """In any of these pages."""
    pytest.importorskip("zstandard")
    with opened(tmp_path, retention=None) as queue:
        take(queue, 900)
        queue.rotate()
        queue.compress()
    with opened(tmp_path) as queue:
        queue.trim()
        assert len(queue) == 0
        assert take(queue, 901) == [900]


def test_messages_of_plain_producers_count(tmp_path: Path) -> None:
    """It is the last message of the queue, by any producer."""
    with opened(tmp_path) as queue:
        assert take(queue, 5) == [0, 1, 2, 3, 4]
        queue.producer().send(b"9")
        with queue.consumer("worker") as consumer:
            consumer.receive()
            consumer.ack()
        empty(queue)
        assert take(queue, 11) == [10]


@pytest.mark.parametrize("damage", ["flip", "short", "gone", "other"])
def test_damaged_record_is_an_error_and_never_a_restart(tmp_path: Path, damage: str) -> None:
    """No element is sent twice; verify names the file, and repair leaves it."""
    with opened(tmp_path) as queue:
        take(queue, 5)
        empty(queue)
    path = tmp_path / "q" / "queue-stored.4"
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "short":
        path.write_bytes(data[:40])
    elif damage == "flip":
        path.write_bytes(data[:-1] + b"\xff")
    else:
        path.write_bytes(last_stored.encode(bytes(16), Message(b"4", 1, 4)))
    with opened(tmp_path) as queue:
        with pytest.raises(CorruptMeta, match="last message of the queue"):
            take(queue, 6)
        assert queue.tail_sequence == 5
    if damage != "gone":
        assert [p for p in verify_queue(tmp_path / "q").problems if "stored" in str(p)]
        assert not repair_queue(tmp_path / "q").ok
    with opened(tmp_path) as queue:  # the remedy
        queue.remove_consumer("worker")
        path.unlink(missing_ok=True)
        assert take(queue, 1) == [0]


def altered(data: bytes, damage: str) -> bytes:
    """Return the bytes of a kept message with something else in them, and a valid checksum."""
    record = np.frombuffer(data, fmt.STORED, 1).copy()
    payload = data[fmt.STORED.itemsize :]
    if damage == "magic":
        record["magic"] = np.void(fmt.WRITE_MAGIC)
    elif damage == "newer":
        record["version"] += 1
    elif damage == "longer":
        payload += b"0"
    else:
        record["sequence"] -= 1
    record["checksum"] = 0
    record["checksum"] = _core.crc32c(record.tobytes() + payload)
    return record.tobytes() + payload


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        ("magic", CorruptMeta, "wrong magic"),
        ("newer", NewerFormat, "written in format"),
        ("longer", CorruptMeta, "wrong size"),
        ("renamed", CorruptMeta, "keeps message 3"),
    ],
)
def test_record_of_something_else_is_refused_although_its_checksum_is_right(
    tmp_path: Path, damage: str, error: type[Exception], reason: str
) -> None:
    """A file from a backup, of a newer version or under another name: no source continues after it.

    Continuing after message 3 would send element 4 twice; after b"40", skip 36.
    """
    with opened(tmp_path) as queue:
        take(queue, 5)
        empty(queue)
    path = tmp_path / "q" / "queue-stored.4"
    path.write_bytes(altered(path.read_bytes(), damage))
    with opened(tmp_path) as queue:
        with pytest.raises(error, match=reason):
            take(queue, 6)
        assert queue.tail_sequence == 5
    assert not verify_queue(tmp_path / "q").ok


def test_full_disk_keeps_the_page_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for the record, the last message stays in its page."""

    def full(*_: object) -> None:
        raise DiskFull("no room", path="here")

    with opened(tmp_path) as queue:
        take(queue, 900)
        monkeypatch.setattr(trimmer, "write_stored", full)
        queue.rotate()
        with pytest.raises(DiskFull):
            queue.trim()
        assert [int(m.payload) for m in queue.replay()][-1] == 899
        assert queue.head_sequence > 0
        assert take(queue, 900) == []
        monkeypatch.undo()
        empty(queue)
        assert take(queue, 901) == [900]


def test_killed_after_keeping_and_before_the_head_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1, T2: a record ahead of the head is ignored, and written again."""
    with opened(tmp_path) as queue:
        take(queue, 5)
        with monkeypatch.context() as patched:
            patched.setattr(trimmer.Trimmer, "_move_head", lambda *_, **__: 1 / 0)
            queue.rotate()
            with pytest.raises(ZeroDivisionError):
                queue.trim()
        assert kept(tmp_path) == ["queue-stored.4"]
        assert take(queue, 7) == [5, 6]
        empty(queue)
        assert take(queue, 8) == [7]


def test_power_cut_that_loses_all_after_the_new_head(tmp_path: Path) -> None:
    """T1: the page that becomes the head has its first message on the disk."""
    with opened(tmp_path, retention=None) as queue:
        take(queue, 900)
    with opened(tmp_path, retention=Retention(drop_acknowledged=True)) as queue:
        synced: list[tuple[int, int]] = []
        real = trimmer.first_batch_end

        def end_of(page: Any, first: int) -> int:  # noqa: ANN401
            synced.append((first, real(page, first)))
            return synced[-1][1]

        trimmer.first_batch_end = end_of  # type: ignore[assignment]
        try:
            queue.trim()
        finally:
            trimmer.first_batch_end = real
        head = queue.head_sequence
        page = queue._store.read_meta.head_page
    assert synced[-1][0] == head
    path = tmp_path / "q" / fmt.page_name("queue", page)
    data = path.read_bytes()
    path.write_bytes(data[: synced[-1][1]].ljust(SMALL, b"\0"))
    pretend_power_cut(tmp_path / "q")
    with opened(tmp_path) as queue:
        assert queue.tail_sequence == head + 1
        assert take(queue, head + 3) == [head + 1, head + 2]


def test_power_cut_before_the_flush_of_a_lowered_queue(tmp_path: Path) -> None:
    """A record ahead of the tail is not taken for the message that later has its number."""
    with opened(tmp_path) as queue:
        take(queue, 5)
        empty(queue)
    (tmp_path / "q" / "queue-stored.4").rename(tmp_path / "q" / "queue-stored.6")
    stale = last_stored.encode(queue._store.meta.queue_id, Message(b"77", 1, 4))
    (tmp_path / "q" / "queue-stored.4").write_bytes(stale)
    data = last_stored.encode(queue._store.meta.queue_id, Message(b"99", 1, 6))
    (tmp_path / "q" / "queue-stored.6").write_bytes(data)
    with opened(tmp_path) as queue:
        queue.producer().send(b"5")
        queue.producer().send(b"6")
        with queue.consumer("worker") as consumer:
            for _ in range(2):
                consumer.receive()
            consumer.ack()
        empty(queue)
        assert take(queue, 8) == [7]
    assert kept(tmp_path) == ["queue-stored.6"]


def test_random_lives_with_trims_between(tmp_path: Path) -> None:
    """Against a list: every element once, whatever was emptied when."""
    rng = random.Random(3)
    found: list[int] = []
    end = 0
    for _ in range(25):
        with opened(tmp_path, retention=rng.choice([AT_ONCE, Retention(max_bytes=3 * SMALL)])) as q:
            end += rng.choice([0, 1, 3, 300])
            found += take(q, end)
            if rng.random() < 0.7:
                q.rotate()
            q.trim()
    assert found == list(range(end))


def test_head_moves_through_the_pages_of_a_large_message(tmp_path: Path) -> None:
    """Its last pages have no first message: what was stored before the first of them is kept."""
    path = tmp_path / "q"
    sent = [bytes([i]) * (8 * SMALL) for i in range(3)]
    with (
        Queue(path, page_bytes=SMALL) as queue,
        queue.persist(lambda _: iter(sent), "down") as flow,
    ):
        assert [message.payload for message in flow] == sent
        pages = queue._store.tail.page_number
    stored = set()
    for left in range(pages, 2, -1):
        with Queue(path, retention=Retention(max_bytes=left * SMALL)) as queue:
            queue.trim()
            stored |= {*kept(tmp_path)}
    assert "queue-stored.0" in stored
    assert kept(tmp_path) == ["queue-stored.2"]
