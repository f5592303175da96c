"""Cursor files: kills, power cuts, damage; a cursor never skips."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from cursors import cursor_of, fill, set_cursor
from safely import replace
from support import SMALL, end, flip, payloads, ready, receive_and_ack_for_ever, start

from pagequeue import (
    ConsumerInUse,
    CorruptMeta,
    LockReplaced,
    Queue,
    SyncFailed,
    repair_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.meta.cursor import CursorMeta, lower_cursors
from pagequeue.meta.write_meta import WriteMeta
from stress.tampering import overwrite, pretend_power_cut

if TYPE_CHECKING:
    from plugin import Disk


# --- kills and power cuts ----------------------------------------------------------------------


def test_killed_consumer_gets_only_its_unacknowledged_messages_again(disk: Disk) -> None:
    """I11: over many kills, every message is processed, and none from below the cursor twice."""
    out = disk.directory.parent / "processed"
    with disk.open() as queue:
        fill(queue, 400)
        while True:
            process = start(
                receive_and_ack_for_ever.__name__, disk.directory, "billing", str(out), total=400
            )
            ready(process)
            time.sleep(0.01)
            ended = process.poll() is not None
            end(process)
            lines = out.read_text().splitlines()
            with queue.consumer("billing") as consumer:
                # A line is written before it is acknowledged.
                acknowledged = consumer.acknowledged
                assert set(range(acknowledged)) <= {int(line) for line in lines if line}
            if acknowledged == 400:
                break
            assert not ended or acknowledged == 400
        # Again came at most the one that was in work at each kill.
        numbers = [int(line) for line in lines if line]
        assert sorted(set(numbers)) == list(range(400))
        assert all(b - a in {0, 1} for a, b in itertools.pairwise(numbers))


def test_cursor_ahead_of_the_tail_is_lowered_before_a_message_is_sent(written: Disk) -> None:
    """I11: after a power cut its messages are lost, and their sequences are assigned again."""
    shutil.copytree(written.directory, written.directory.parent / "copy")
    with written.open() as queue, queue.consumer("billing") as consumer:
        consumer.receive_many()
        tail = queue.tail_sequence
        while consumer.sequence < tail:
            consumer.receive_many()
        consumer.ack(durable=True)
        assert consumer.acknowledged == tail
    cut = written.zero(2, 1)
    assert cut > 0
    written.path("0000000003.page").unlink()
    written.cut_power(durable=3)
    with written.open() as queue:
        new_tail = queue.tail_sequence
        assert new_tail == 4 < tail
        assert any("lowered consumer 'billing'" in did for did in queue.recovery.actions)
        fill(queue, 6)
    with written.open() as queue, queue.consumer("billing") as consumer:
        assert [m.sequence for m in consumer.receive_many()] == list(range(4, 10))
        assert queue.verify().ok


def test_lowered_cursor_is_durable_before_the_queue_is_marked_recovered(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: an interrupted recovery is repeated by the next one."""
    with disk.open() as queue:
        fill(queue, 5)
        queue.consumer("billing").close()
    set_cursor(disk, 50)
    pretend_power_cut(disk.directory)

    def fail(*_: object) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr("pagequeue.store.power_loss_recovery.lower_cursors", fail)
    with pytest.raises(OSError, match="no"):
        disk.open()
    monkeypatch.undo()
    order: list[str] = []
    real = WriteMeta.mark_recovered

    def lower(*args: object) -> None:
        order.append("cursors")
        lower_cursors(*args)  # type: ignore[arg-type]

    def mark_recovered(self: WriteMeta) -> None:
        order.append("settled")
        real(self)

    monkeypatch.setattr("pagequeue.store.power_loss_recovery.lower_cursors", lower)
    monkeypatch.setattr(WriteMeta, "mark_recovered", mark_recovered)
    with disk.open() as queue, queue.consumer("billing") as consumer:
        assert order == ["cursors", "settled"]
        assert consumer.sequence == 5


def test_older_cursor_after_a_power_cut_delivers_again(disk: Disk) -> None:
    """At least once: an acknowledgement without a sync is not guaranteed to be on disk."""
    with disk.open() as queue:
        fill(queue, 5)
        with queue.consumer("billing") as consumer:
            consumer.receive_many()
            consumer.ack()
            queue.producer().flush()
    set_cursor(disk, 2)
    pretend_power_cut(disk.directory)
    with disk.open() as queue, queue.consumer("billing") as consumer:
        assert [m.sequence for m in consumer.receive_many()] == [2, 3, 4]


def test_cursor_that_was_put_back_while_the_queue_is_open_is_lowered(disk: Disk) -> None:
    """I11: a copy of another time cannot skip what is still to come."""
    with disk.open() as queue:
        fill(queue, 3)
        queue.consumer("billing").close()
        set_cursor(disk, 9)
        problems = queue.verify().problems
        assert [p.position for p in problems] == [CursorMeta.NEXT]
        assert "the tail is 3" in problems[0].reason
        with queue.consumer("billing") as consumer:
            assert consumer.sequence == 3
        assert queue.verify().ok


def test_durable_ack_syncs_and_a_failed_sync_stays_an_error(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a durable one costs a sync; after a failure a later success would be no proof."""
    with disk.open() as queue:
        fill(queue, 4)
        consumer = queue.consumer("billing")
        synced: list[int] = []
        real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
        consumer.receive()
        consumer.ack()
        assert synced == []
        consumer.ack(durable=True)
        assert len(synced) == 1

        def fail(_: int) -> None:
            raise OSError(5, "no")

        monkeypatch.setattr(os, "fdatasync", fail)
        consumer.receive()
        with pytest.raises(SyncFailed, match="not on stable storage"):
            consumer.ack(durable=True)
        assert consumer.acknowledged == 2
        monkeypatch.undo()
        with pytest.raises(SyncFailed, match="failed before"):
            consumer.ack(durable=True)
        consumer.ack()


# --- damage ------------------------------------------------------------------------------------


def damage(disk: Disk, how: str) -> None:
    """Damage the cursor file in one way."""
    path = cursor_of(disk)
    if how == "empty":
        path.write_bytes(b"")
    elif how == "magic":
        flip(path, 0)
    elif how == "checksum":
        flip(path, 12)
    elif how == "kind":
        flip(path, CursorMeta.KIND)
    elif how == "sequence":
        overwrite(path, CursorMeta.NEXT, b"\xff" * 8)
    elif how == "foreign":
        with Queue(disk.directory.parent / "other", page_bytes=SMALL) as other:
            other.consumer("billing").close()
        shutil.copy(disk.directory.parent / "other" / path.name, path)


@pytest.mark.parametrize("how", ["empty", "magic", "checksum", "kind", "sequence", "foreign"])
def test_damaged_cursor_is_named_reported_and_kept(disk: Disk, how: str) -> None:
    """Its position is unknown, so only its owner can decide."""
    with disk.open() as queue:
        fill(queue, 3)
        queue.consumer("billing").close()
    damage(disk, how)
    path = str(cursor_of(disk))
    with disk.open() as queue:
        with pytest.raises(CorruptMeta, match="remove the consumer") as caught:
            queue.consumer("billing")
        assert caught.value.path == path
        found = queue.consumers()[0]
        assert (found.name, found.next_sequence, found.lag) == ("billing", None, None)
        assert found.problem is not None
        assert [problem.file for problem in queue.verify().problems] == [path]
        assert payloads(queue.replay()) == [b"0", b"1", b"2"]
    before = cursor_of(disk).read_bytes()
    assert [problem.file for problem in repair_queue(disk.directory).remaining] == [path]
    assert cursor_of(disk).read_bytes() == before
    with disk.open() as queue:
        queue.remove_consumer("billing")
        assert queue.consumers() == []
        with queue.consumer("billing") as consumer:
            assert consumer.sequence == 0
    assert verify_queue(disk.directory).ok


@pytest.mark.parametrize("kind", ["consumer", "group"])
def test_exchanged_files_of_two_consumers_are_refused_and_reported(disk: Disk, kind: str) -> None:
    """Each file has its owner's name in its checksum: none resumes at another one's place."""
    with disk.open() as queue:
        fill(queue, 3)
        if kind == "consumer":
            with queue.consumer("billing") as consumer:
                consumer.receive_many()
                consumer.ack()
            queue.consumer("audit").close()
        else:
            with queue.group("billing") as group:
                group.take()
            queue.group("audit").close()
    billing = cursor_of(disk)
    audit = billing.with_name(billing.name.replace("billing", "audit"))
    exchanged = billing.read_bytes()
    billing.write_bytes(audit.read_bytes())
    audit.write_bytes(exchanged)
    paths = {str(billing), str(audit)}
    assert {problem.file for problem in verify_queue(disk.directory).problems} == paths
    with disk.open() as queue:
        for name in ("billing", "audit"):
            with pytest.raises(CorruptMeta, match="checksum"):
                queue.consumer(name) if kind == "consumer" else queue.group(name)
        assert {problem.file for problem in queue.verify().problems} == paths
    assert {problem.file for problem in repair_queue(disk.directory).remaining} == paths


def test_interrupted_creation_leaves_a_file_that_recovery_removes(disk: Disk) -> None:
    """A file with a temporary name is not a cursor."""
    disk.send(b"a")
    left = disk.path("readMeta.billing.tmp-123")
    left.write_bytes(b"half")
    with disk.open() as queue:
        assert queue.consumers() == []
        assert not left.exists()
    assert fmt.consumer_of("queue", "queue-readMeta") is None
    assert fmt.consumer_of("queue", "queue-readMeta.tmp-2") is None
    assert fmt.consumer_of("queue", "queue-readMeta.a") == "a"


def test_one_of_many_concurrent_creators_of_a_name_has_it(disk: Disk) -> None:
    """The others are told that it is in use, not that it exists."""
    with disk.open() as queue:
        fill(queue, 5)
        for turn in range(8):
            gate = threading.Barrier(4)

            def make(name: str, gate: threading.Barrier) -> object:
                gate.wait()
                try:
                    return queue.consumer(name, sequence=3)
                except ConsumerInUse:
                    return None

            with ThreadPoolExecutor(4) as pool:
                made = list(pool.map(make, [f"n{turn}"] * 4, [gate] * 4))
            assert sum(handle is not None for handle in made) == 1
        assert {found.next_sequence for found in queue.consumers()} == {3}


@pytest.mark.parametrize("how", ["removed", "replaced", 64, 100])
def test_durable_ack_into_a_removed_file_is_an_error(disk: Disk, how: str | int) -> None:
    """The next opener of the consumer would not find the acknowledgement."""
    with disk.open() as queue:
        fill(queue, 3)
        with queue.consumer("billing") as consumer:
            consumer.receive(0)
            consumer.ack(durable=True)
            if isinstance(how, int):
                os.truncate(cursor_of(disk), how)
            else:
                replace(cursor_of(disk), how)
            consumer.receive(0)
            error = CorruptMeta if isinstance(how, int) else LockReplaced
            with pytest.raises(error, match="while it was open") as caught:
                consumer.ack(durable=True)
            assert caught.value.path == str(cursor_of(disk))


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_file_that_is_not_a_cursor_is_one_problem(disk: Disk, kind: str) -> None:
    """A directory has several names by nature."""
    disk.send(b"a")
    {"directory": os.mkdir, "fifo": os.mkfifo}[kind](cursor_of(disk))
    (problem,) = verify_queue(disk.directory).problems
    assert (problem.kind, problem.file) == ("access", str(cursor_of(disk)))


def test_consumer_that_is_removed_right_after_its_creation_is_created_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing does not take the creation lock: the opener succeeds in the end."""
    make, left = CursorMeta.make, [1, 1]

    def made(*arguments: object, **words: int) -> None:
        make(*arguments, **words)
        if left.pop():
            cursor_of(disk).unlink()
            left.append(0)

    monkeypatch.setattr(CursorMeta, "make", made)
    with disk.open() as queue:
        fill(queue, 3)
        with queue.consumer("billing", sequence=1) as consumer:
            assert consumer.receive(0).payload == b"1"
            consumer.ack(durable=True)
        assert [c.next_sequence for c in queue.consumers()] == [2]
