"""Named consumers: they resume, one handle at a time has a name, and no cursor ever skips."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import START, Disk
from support import (
    SMALL,
    end,
    finish,
    flip,
    open_consumer_and_hold,
    overwrite,
    payloads,
    pretend_power_cut,
    ready,
    receive_and_ack_for_ever,
    start,
    until,
    use_consumer_after_fork,
)

from pagequeue import (
    ClosedError,
    ConcurrentUse,
    ConsumerInUse,
    ConsumerNotFound,
    CorruptMeta,
    InvalidOption,
    Queue,
    ReadOnlyQueue,
    SequenceOutOfRange,
    SyncFailed,
    UsageError,
    repair_queue,
    verify_queue,
)
from pagequeue import format as fmt
from pagequeue.cursor import CursorMeta, lower_cursors

if TYPE_CHECKING:
    from pagequeue import Message


def fill(queue: Queue, count: int) -> None:
    """Send messages that say their sequence."""
    with queue.producer() as producer:
        for number in range(len(queue), len(queue) + count):
            producer.send(b"%d" % number)


def cursor_of(disk: Disk, name: str = "billing") -> Path:
    """Return the path of a cursor file."""
    return disk.path(f"readMeta.{name}")


def set_cursor(disk: Disk, sequence: int, name: str = "billing") -> None:
    """Put a cursor somewhere else, as a power cut would."""
    overwrite(cursor_of(disk, name), CursorMeta.NEXT, sequence.to_bytes(8, "little"))


# --- resuming ----------------------------------------------------------------------------------


def test_consumer_resumes_behind_its_last_ack(disk: Disk) -> None:
    """What was acknowledged does not come again, and what was not does, in a later opening too."""
    with disk.open() as queue:
        fill(queue, 10)
        with queue.consumer("billing") as consumer:
            assert consumer.acknowledged == 0
            consumer.receive_many(4)
            consumer.ack()
            consumer.receive_many(3)
        with queue.consumer("billing") as consumer:
            assert consumer.sequence == 4
            assert consumer.lag == 6
            assert consumer.receive().payload == b"4"
    with disk.open() as queue, queue.consumer("billing") as consumer:
        assert consumer.sequence == 4
        assert payloads(consumer.receive_many()) == [b"%d" % n for n in range(4, 10)]


@pytest.mark.parametrize("as_message", [True, False])
def test_ack_is_cumulative_and_takes_a_message_or_its_sequence(
    disk: Disk, as_message: bool
) -> None:
    """It means this message and all before it; what is below the cursor already changes nothing."""

    def given(message: Message) -> Message | int:
        return message if as_message else message.sequence

    with disk.open() as queue:
        fill(queue, 6)
        with queue.consumer("billing") as consumer:
            messages = list(consumer.receive_many())
            consumer.ack(given(messages[3]))
            assert consumer.acknowledged == 4
            consumer.ack(given(messages[1]))
            assert consumer.acknowledged == 4
            consumer.ack()
            assert consumer.acknowledged == 6


def test_ack_of_what_was_not_received_is_refused(disk: Disk) -> None:
    """I11: the cursor never passes a message that its consumer did not get."""
    with disk.open() as queue:
        fill(queue, 6)
        with queue.consumer("billing") as consumer:
            consumer.ack()
            assert consumer.acknowledged == 0
            consumer.receive_many(2)
            for wrong in (2, 5, 6, 10**30, -1, -7):
                with pytest.raises(InvalidOption, match="was not received"):
                    consumer.ack(wrong)
            for wrong in (True, "1", 1.0, b"1"):
                with pytest.raises(TypeError):
                    consumer.ack(wrong)  # type: ignore[arg-type]
            assert consumer.acknowledged == 0
            consumer.seek()
            with pytest.raises(InvalidOption, match="was not received"):
                consumer.ack(0)


def test_place_to_begin_counts_the_first_time_only(disk: Disk) -> None:
    """Later it is an error that names the remedy; and one that cannot be makes no consumer."""
    with disk.open() as queue:
        fill(queue, 6)
        with queue.consumer("by-sequence", sequence=3) as consumer:
            assert consumer.receive().sequence == 3
        with queue.consumer("latest", latest=True) as consumer:
            assert consumer.sequence == 6
        with queue.consumer("since", since=START) as consumer:
            assert consumer.sequence == 0
        for place in ({"sequence": 1}, {"latest": True}, {"since": timedelta(1)}):
            with pytest.raises(UsageError, match="call seek"):
                queue.consumer("latest", **place)  # type: ignore[arg-type]
        with queue.consumer("latest") as consumer:
            assert consumer.sequence == 6
        with pytest.raises(SequenceOutOfRange):
            queue.consumer("never", sequence=7)
        assert [found.name for found in queue.consumers()] == ["by-sequence", "latest", "since"]


def test_seek_moves_the_cursor_at_once(disk: Disk) -> None:
    """Forwards and backwards; the next opening begins there."""
    with disk.open() as queue:
        fill(queue, 9)
        with queue.consumer("billing") as consumer:
            consumer.receive_many(5)
            consumer.ack()
            consumer.seek(sequence=2)
            assert consumer.acknowledged == 2
        with queue.consumer("billing") as consumer:
            assert consumer.receive().sequence == 2
            consumer.seek(latest=True)
        with queue.consumer("billing") as consumer:
            assert consumer.sequence == 9


def test_unnamed_consumer_has_nothing_to_acknowledge(disk: Disk) -> None:
    """The error says what to open instead."""
    with disk.open() as queue, queue.consumer() as consumer:
        with pytest.raises(UsageError, match="no name"):
            consumer.ack()


@pytest.mark.parametrize(
    "name",
    ["", ".", "-x", "a/b", "../x", "a b", "x" * 101, "ü", "a\n", "tmp-1", "tmp", "a.tmp-1", ".tmp"],
)
def test_names_that_could_be_other_files_are_refused(disk: Disk, name: str) -> None:
    """Nothing is made for them; and a name is text."""
    with disk.open() as queue:
        before = sorted(disk.contents())
        for call in (queue.consumer, queue.remove_consumer):
            with pytest.raises(InvalidOption, match="use letters"):
                call(name)
        with pytest.raises(TypeError):
            queue.consumer(7)  # type: ignore[arg-type]
        assert sorted(disk.contents()) == before


def test_longest_name_and_prefix_make_a_file(tmp_path: Path) -> None:
    """Their file's name, and that of its temporary file, are not too long for the system."""
    with Queue(tmp_path, prefix="p" * 100, page_bytes=SMALL) as queue:
        with queue.consumer("n" * 100):
            assert [found.name for found in queue.consumers()] == ["n" * 100]
    for prefix in ("queue-readMeta.x", "queue-readMeta"):
        with pytest.raises(InvalidOption, match="readMeta"):
            Queue(tmp_path, prefix=prefix)


def test_read_only_queue_lists_and_keeps_no_place(disk: Disk) -> None:
    """It writes no byte."""
    with disk.open() as queue:
        queue.consumer("billing").close()
    before = disk.contents()
    with Queue(disk.directory, read_only=True) as queue:
        for call in (queue.consumer, queue.remove_consumer):
            with pytest.raises(ReadOnlyQueue):
                call("billing")
        assert [found.name for found in queue.consumers()] == ["billing"]
    assert disk.contents() == before


# --- one at a time -----------------------------------------------------------------------------


def test_name_is_open_once_among_threads_and_processes(disk: Disk) -> None:
    """The second gets an error and disturbs nobody; others names are free."""
    with disk.open() as queue, disk.open() as again:
        fill(queue, 3)
        with queue.consumer("billing") as consumer, queue.consumer("other"):
            for other in (queue, again):
                with pytest.raises(ConsumerInUse, match="'billing' is open"):
                    other.consumer("billing")
                with pytest.raises(ConsumerInUse):
                    other.remove_consumer("billing")
            failed = []

            def attempt() -> None:
                try:
                    queue.consumer("billing")
                except ConsumerInUse as error:
                    failed.append(error)

            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()
            assert len(failed) == 1
            process = start(open_consumer_and_hold.__name__, disk.directory, "billing")
            assert ready(process) == "ConsumerInUse"
            end(process)
            assert consumer.receive().sequence == 0
        again.consumer("billing").close()


def test_listing_tells_who_is_open_and_disturbs_nobody(disk: Disk) -> None:
    """Looking takes the lock for a moment; opening just then waits for it."""
    with disk.open() as queue:
        stop = threading.Event()
        seen = set()

        def look() -> None:
            while not stop.is_set():
                seen.update(found.is_open for found in queue.consumers())

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(60):
            queue.consumer("billing").close()
        with queue.consumer("billing"):
            until(lambda: True in seen)
        until(lambda: False in seen)
        stop.set()
        thread.join()


def test_name_of_a_killed_process_is_free_at_once(disk: Disk) -> None:
    """The kernel lets go of it; what the dead one had acknowledged stays so."""
    with disk.open() as queue:
        fill(queue, 5)
        process = start(open_consumer_and_hold.__name__, disk.directory, "billing", ack=3)
        assert ready(process) == "open"
        with pytest.raises(ConsumerInUse):
            queue.consumer("billing")
        assert queue.consumers()[0].is_open
        end(process)
        began = time.monotonic()
        with queue.consumer("billing") as consumer:
            assert time.monotonic() - began < 0.2
            assert consumer.sequence == 3


def test_name_is_free_when_its_handle_was_dropped_or_the_queue_closed(disk: Disk) -> None:
    """Nothing need be closed by hand."""
    queue = disk.open()
    queue.consumer("a")
    queue.consumer("a").close()
    held = queue.consumer("a")
    queue.close()
    with disk.open() as again:
        again.consumer("a").close()
    for use in (held.ack, held.seek, held.receive):
        with pytest.raises(ClosedError):
            use()


def test_child_of_a_fork_cannot_use_it_and_does_not_keep_it(disk: Disk) -> None:
    """The parent goes on, and when it is dead the name is free, though the child lives."""
    Queue(disk.directory, page_bytes=SMALL).close()
    process = start(use_consumer_after_fork.__name__, disk.directory)
    outcomes = json.loads(ready(process))
    assert set(outcomes.values()) == {"ForkedError"}
    child = int(ready(process))
    end(process)
    try:
        with disk.open() as queue, queue.consumer("billing") as consumer:
            assert consumer.sequence == 2
    finally:
        os.kill(child, signal.SIGKILL)


def test_consumer_inside_another_thread_is_not_acknowledged(disk: Disk) -> None:
    """It belongs to one thread at a time."""
    with disk.open() as queue:
        consumer = queue.consumer("billing")
        thread = threading.Thread(target=lambda: pytest.raises(ClosedError, consumer.receive))
        thread.start()
        until(lambda: consumer._busy)
        with pytest.raises(ConcurrentUse):
            consumer.ack()
        consumer.close()
        thread.join()


# --- kills and power cuts ----------------------------------------------------------------------


def test_killed_consumer_gets_again_only_what_it_had_not_acknowledged(disk: Disk) -> None:
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
        assert all(b - a in {0, 1} for a, b in zip(numbers, numbers[1:], strict=False))


def test_cursor_ahead_of_the_tail_is_lowered_before_anything_is_sent(written: Disk) -> None:
    """I11: after a power cut its messages are gone, and their sequences are given anew."""
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


def test_lowered_cursor_is_durable_before_the_queue_is_settled(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: a recovery that is cut off there is done again by the next one."""
    with disk.open() as queue:
        fill(queue, 5)
        queue.consumer("billing").close()
    set_cursor(disk, 50)
    pretend_power_cut(disk.directory)

    def fail(*_: object) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr("pagequeue.recover.lower_cursors", fail)
    with pytest.raises(OSError, match="no"):
        disk.open()
    monkeypatch.undo()
    order: list[str] = []
    monkeypatch.setattr(
        "pagequeue.recover.lower_cursors",
        lambda *args: (order.append("cursors"), lower_cursors(*args)),
    )
    monkeypatch.setattr(
        "pagequeue.meta.WriteMeta.settle",
        lambda self, settle=__import__("pagequeue.meta").meta.WriteMeta.settle: (
            order.append("settled"),
            settle(self),
        ),
    )
    with disk.open() as queue, queue.consumer("billing") as consumer:
        assert order == ["cursors", "settled"]
        assert consumer.sequence == 5


def test_older_cursor_after_a_power_cut_delivers_again(disk: Disk) -> None:
    """At least once: nothing promises that an acknowledgement without a sync is on the disk."""
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


def test_durable_ack_syncs_and_a_failed_sync_is_never_taken_back(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a durable one costs a sync; after a failure the next success could mean nothing."""
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
def test_damaged_cursor_is_named_reported_and_left(disk: Disk, how: str) -> None:
    """Its place cannot be known from anything else, so only its owner can say what to do."""
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


# --- listing, removing -------------------------------------------------------------------------


def test_listing_tells_place_lag_and_last_ack(disk: Disk) -> None:
    """In order of the names; info has the same list."""
    with disk.open() as queue:
        fill(queue, 7)
        with queue.consumer("b") as consumer:
            consumer.receive_many(3)
            consumer.ack()
            queue.consumer("a").close()
            first, second = queue.consumers()
            assert queue.info().consumers == [first, second]
        assert (first.name, first.next_sequence, first.lag, first.is_open) == ("a", 0, 7, False)
        assert first.last_ack is None
        assert (second.name, second.next_sequence, second.lag, second.is_open) == ("b", 3, 4, True)
        assert second.last_ack is not None
        assert START <= second.last_ack.timestamp() * 1e9 <= disk.clock.now


def test_removed_consumer_begins_anew(disk: Disk) -> None:
    """And one that is not there is an error with the remedy."""
    with disk.open() as queue:
        fill(queue, 3)
        with queue.consumer("billing") as consumer:
            consumer.receive_many()
            consumer.ack()
        queue.remove_consumer("billing")
        assert not cursor_of(disk).exists()
        with pytest.raises(ConsumerNotFound, match="lists them"):
            queue.remove_consumer("billing")
        with queue.consumer("billing", sequence=1) as consumer:
            assert consumer.sequence == 1


def test_interrupted_making_leaves_a_file_that_recovery_sweeps(disk: Disk) -> None:
    """A temporary name is nobody's cursor."""
    disk.send(b"a")
    left = disk.path("readMeta.billing.tmp-123")
    left.write_bytes(b"half")
    with disk.open() as queue:
        assert queue.consumers() == []
        assert not left.exists()
    assert fmt.consumer_of("queue", "queue-readMeta") is None
    assert fmt.consumer_of("queue", "queue-readMeta.tmp-2") is None
    assert fmt.consumer_of("queue", "queue-readMeta.a") == "a"


def test_durable_only_consumer_with_a_name_waits_for_the_flush(disk: Disk) -> None:
    """So no acknowledgement can be ahead of what a power cut leaves."""
    with disk.open() as queue, queue.consumer("billing", durable_only=True) as consumer:
        with queue.producer() as producer:
            producer.send(b"a")
            assert consumer.poll() is None
            producer.flush()
        assert consumer.receive(5).payload == b"a"
        consumer.ack()


def test_many_openings_leave_nothing_behind(disk: Disk) -> None:
    """Descriptors and maps go with the handle."""
    with disk.open() as queue:
        queue.consumer("billing").close()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            queue.consumer("billing").close()
            queue.consumers()
        assert len(os.listdir("/proc/self/fd")) == before


def test_processes_take_a_name_from_each_other_without_loss(disk: Disk) -> None:
    """One after the other, each gets what follows what the one before acknowledged."""
    with disk.open() as queue:
        fill(queue, 30)
    for turn in range(3):
        process = start(open_consumer_and_hold.__name__, disk.directory, "b", ack=10, leave=True)
        assert ready(process) == "open"
        finish(process)
        with disk.open() as queue:
            assert queue.consumers()[0].next_sequence == 10 * (turn + 1)
