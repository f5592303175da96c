"""Named consumers: they resume, one handle at a time has a name, and no cursor ever skips."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cursors import cursor_of, fill
from plugin import START, Disk
from support import (
    LONG,
    SMALL,
    SOON,
    end,
    finish,
    open_consumer_and_hold,
    payloads,
    ready,
    start,
    until,
    use_consumer_after_fork,
)

from pagequeue import (
    ClosedError,
    ConcurrentUse,
    ConsumerInUse,
    ConsumerNotFound,
    InvalidOption,
    Queue,
    ReadOnlyQueue,
    Retention,
    SequenceOutOfRange,
    UsageError,
)
from pagequeue import format as fmt
from pagequeue.meta import cursor
from pagequeue.store import published

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue import Message


# --- resuming ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [10, 900])
def test_consumer_resumes_after_what_a_dead_producer_did_not_count(
    disk: Disk, size_bytes: int
) -> None:
    """I3: its producer died before it advanced the tail, and no other sent since: no redelivery."""
    with disk.open() as queue:
        fill(queue, 2)
        before = queue._store.tail
        with queue.producer() as producer:
            producer.send_many([bytes([i]) * size_bytes for i in range(9)])
        with queue.consumer("billing") as consumer:
            for _ in range(11):
                consumer.receive(0)
            consumer.ack()
        queue._store.write_meta.tail = before
        with queue.consumer("billing") as consumer:
            assert (consumer.acknowledged, consumer.sequence, consumer.lag) == (11, 11, 0)
            assert consumer.poll() is None


def test_consumer_resumes_after_more_than_one_batch_that_was_not_counted(tmp_path: Path) -> None:
    """I3: a page holds more messages than a batch may have."""
    count = fmt.READ_COUNT_MAX + 10
    with Queue(tmp_path) as queue, queue.producer() as producer:
        producer.send(b"first")
        before = queue._store.tail
        producer.send_many(np.zeros(count, "V1"))
        with queue.consumer("billing") as consumer:
            while consumer.lag:
                consumer.receive_many(fmt.READ_COUNT_MAX, 0)
            consumer.ack()
        queue._store.write_meta.tail = before
        with queue.consumer("billing") as consumer:
            assert (consumer.acknowledged, consumer.sequence) == (count + 1, count + 1)


def test_consumer_keeps_its_place_while_the_page_is_removed_that_is_looked_at(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I11: the tail was loaded before another producer advanced it, and retention came."""
    retention = Retention(drop_acknowledged=True)
    with disk.open(retention=retention) as queue, queue.producer() as producer:
        fill(queue, 2)
        before = queue._store.tail
        producer.send_many([b"c"] * 9)
        with queue.consumer("billing") as consumer:
            consumer.receive_many(100, 0)
            consumer.ack()
        queue._store.write_meta.tail = before
        real, passed = published.map_with_header, []

        def late(*args: Any) -> Any:  # noqa: ANN401 - of `map_with_header`
            if not passed:
                passed.append(True)
                queue.rotate()
                queue.trim()
            return real(*args)

        monkeypatch.setattr(published, "map_with_header", late)
        with queue.consumer("billing", on_expired="skip") as consumer:
            assert consumer.acknowledged == 11
        assert passed
        assert queue.head_sequence > 2


def test_consumer_resumes_after_its_last_ack(disk: Disk) -> None:
    """Acknowledged messages are not redelivered, all others are, in a later opening too."""
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
    """It acknowledges this message and all before it; one below the cursor has no effect."""

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


def test_ack_of_an_unreceived_message_is_refused(disk: Disk) -> None:
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


def test_start_position_applies_to_a_new_consumer_only(disk: Disk) -> None:
    """Later it is an error with the remedy; an invalid one creates no consumer."""
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


def test_unnamed_consumer_cannot_acknowledge(disk: Disk) -> None:
    """The error names the call that opens a named one."""
    with (
        disk.open() as queue,
        queue.consumer() as consumer,
        pytest.raises(UsageError, match="no name"),
    ):
        consumer.ack()


@pytest.mark.parametrize(
    "name",
    ["", ".", "-x", "a/b", "../x", "a b", "x" * 101, "ü", "a\n", "tmp-1", "tmp", "a.tmp-1", ".tmp"],
)
def test_names_that_could_be_other_files_are_refused(disk: Disk, name: str) -> None:
    """No file is created for them; and a name is text."""
    with disk.open() as queue:
        before = sorted(disk.contents())
        for call in (queue.consumer, queue.remove_consumer):
            with pytest.raises(InvalidOption, match="use letters"):
                call(name)
        with pytest.raises(TypeError):
            queue.consumer(7)  # type: ignore[arg-type]
        assert sorted(disk.contents()) == before


def test_longest_name_and_prefix_give_a_valid_file_name(tmp_path: Path) -> None:
    """Their file's name, and that of its temporary file, are not too long for the system."""
    with Queue(tmp_path, prefix="p" * 100, page_bytes=SMALL) as queue, queue.consumer("n" * 100):
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
    """The second opener gets an error, and the first is unaffected; other names are free."""
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


def test_listing_reports_which_consumers_are_open_and_blocks_none(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing holds the lock briefly; opening at that time waits for it."""
    monkeypatch.setattr(cursor, "TAKE_SECONDS", LONG)
    with disk.open() as queue:
        stop = threading.Event()
        seen = set()

        def list_consumers() -> None:
            while not stop.is_set():
                seen.update(found.is_open for found in queue.consumers())

        thread = threading.Thread(target=list_consumers)
        thread.start()
        for _ in range(60):
            queue.consumer("billing").close()
        with queue.consumer("billing"):
            until(lambda: True in seen)
        until(lambda: False in seen)
        stop.set()
        thread.join()


def test_name_of_a_killed_process_is_free_at_once(disk: Disk) -> None:
    """The kernel releases the lock; the acknowledgements of the dead process stay."""
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
            assert time.monotonic() - began < SOON
            assert consumer.sequence == 3


def test_name_is_free_when_its_handle_was_dropped_or_the_queue_closed(disk: Disk) -> None:
    """An explicit close of the consumer is not needed."""
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
    """The parent continues, and after its death the name is free, though the child lives."""
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

        def receive() -> None:
            with pytest.raises(ClosedError):
                consumer.receive()

        thread = threading.Thread(target=receive)
        thread.start()
        until(lambda: consumer._busy)
        with pytest.raises(ConcurrentUse):
            consumer.ack()
        consumer.close()
        thread.join()


# --- listing, removing -------------------------------------------------------------------------


def test_listing_has_cursor_lag_and_last_ack(disk: Disk) -> None:
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


def test_removed_consumer_starts_again(disk: Disk) -> None:
    """Removing an unknown one is an error with the remedy."""
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


def test_durable_only_consumer_with_a_name_waits_for_the_flush(disk: Disk) -> None:
    """So no acknowledgement can be ahead of what a power cut leaves."""
    with disk.open() as queue, queue.consumer("billing", durable_only=True) as consumer:
        with queue.producer() as producer:
            producer.send(b"a")
            assert consumer.poll() is None
            producer.flush()
        assert consumer.receive(60).payload == b"a"
        consumer.ack()


def test_many_openings_leak_no_resources(disk: Disk) -> None:
    """Descriptors and maps are released with the handle."""
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
