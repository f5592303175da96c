"""Retention: whole pages, oldest first; the head moves before a file goes; no reader skips."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from plugin import START, Disk
from retaining import FULL, KEEP_TWO, PAGE_AND_INDEX, fill, numbers, only_by_hand
from support import (
    SMALL,
    until,
)

from pagequeue import (
    Expired,
    InvalidOption,
    Queue,
    QueueFull,
    ReadOnlyQueue,
    Retention,
    TrimReport,
)
from pagequeue.maintenance import trimmer
from pagequeue.meta import cursor
from pagequeue.page import page

if TYPE_CHECKING:
    from pathlib import Path

    from pagequeue.system.directory import Directory

# --- what goes ---------------------------------------------------------------------------------


def test_oldest_pages_go_until_the_bytes_fit(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I12: whole ones, never the active one; the page that comes next counts."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        fill(queue, 5)
        assert queue.trim() == TrimReport(3, 9, 3 * PAGE_AND_INDEX, ())
        assert queue.head_sequence == 9
        assert [message.sequence for message in queue.replay()] == list(range(9, 15))
        assert len(queue) == 6
        assert queue.info().page_count == 2
        assert queue.trim() == TrimReport()
        assert queue.verify().ok
    assert numbers(disk) == [4, 5]
    with disk.open() as queue:
        assert queue.head_sequence == 9
        assert queue.producer().send(b"next") == 15


def test_pages_go_when_their_last_message_is_too_old(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the times of the messages, with the queue's clock."""
    only_by_hand(monkeypatch)
    disk.clock.step = 10**9
    with disk.open(retention=Retention(max_age=timedelta(seconds=1000))) as queue:
        fill(queue, 4)
        assert queue.trim() == TrimReport()
        last = [m.timestamp for m in queue.replay()][2]
        disk.clock.step = 0
        disk.clock.now = last + 1000 * 10**9
        assert queue.trim().pages == 0
        disk.clock.now += 1
        assert queue.trim().pages == 1
        disk.clock.now = START + 10**15
        assert queue.trim().pages == 3
        assert queue.head_sequence == 12
        assert len(queue) == 0


def test_active_page_is_sealed_when_its_first_message_is_too_old(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes when its last one is: in a quiet queue an age is an age, too."""
    only_by_hand(monkeypatch)
    disk.clock.step = 0
    with disk.open(retention=Retention(max_age=timedelta(seconds=1000))) as queue:
        producer = queue.producer()
        producer.send(b"old")
        disk.clock.now += 1000 * 10**9
        producer.send(b"new")
        assert queue.trim() == TrimReport()
        assert queue.info().page_count == 1
        disk.clock.now += 1
        assert queue.trim() == TrimReport()
        assert queue.info().page_count == 2
        assert producer.send(b"newer") == 2
        disk.clock.now += 1000 * 10**9
        assert queue.trim().messages == 2
        assert [message.payload for message in queue.replay()] == [b"newer"]
        assert queue.verify().ok


def test_sealing_an_active_page_that_is_too_old_neither_waits_nor_fails(disk: Disk) -> None:
    """A queue that a consumer keeps full has no room for the page after it."""
    keep = Retention(max_age=timedelta(seconds=1000), max_bytes=2 * SMALL)
    with disk.open(retention=keep, on_full="block") as queue:
        with queue.consumer("slow") as consumer:
            for _ in range(2):
                queue.producer().send(b"old")
                disk.clock.now += 10**15
                assert queue.trim().messages == 0
            assert queue.info().page_count == 2
            for _ in range(2):
                assert consumer.receive().payload == b"old"
            consumer.ack()
        queue.trim()
        assert len(queue) == 0


def test_quiet_queue_ages_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread applies the age where no message comes, and so nobody rolls."""
    keep = Retention(max_age=timedelta(milliseconds=50))
    monkeypatch.setattr(trimmer, "AGE_CHECKED_MIN", keep.max_age)
    monkeypatch.setattr(trimmer, "CHECK_SECONDS_MIN", 0.01)
    with Queue(tmp_path / "q", retention=keep) as queue:
        queue.producer().send(b"old")
        until(lambda: len(queue) == 0)
        assert queue.tail_sequence == 1


def test_no_retention_keeps_all(disk: Disk) -> None:
    """And trimming reports that no page was removed."""
    with disk.open() as queue:
        fill(queue, 4)
        assert queue.trim() == TrimReport()
        assert queue.head_sequence == 0


def test_rolling_applies_it_in_the_background(disk: Disk) -> None:
    """Each roll trims; page files never exceed the limit."""
    with disk.open(retention=Retention(max_bytes=4 * SMALL)) as queue:
        with queue.producer() as producer:
            for _ in range(60):
                producer.send(FULL)
                assert len(numbers(disk)) <= 4
        until(lambda: queue.info().page_count <= 3)
        assert queue.verify().ok


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_age": timedelta(0)},
        {"max_age": -timedelta(1)},
        {"max_idle": timedelta(0)},
        {"max_bytes": 0},
        {"max_bytes": -1},
        {"drop_acknowledged": True, "keep_unacked": False},
    ],
)
def test_invalid_values_are_refused(wrong: dict[str, object]) -> None:
    """At once, where they are given."""
    with pytest.raises(InvalidOption):
        Retention(**wrong)  # type: ignore[arg-type]


def test_wrong_types_and_too_few_bytes_are_refused(disk: Disk) -> None:
    """A number of seconds is not a timedelta; less than two pages is refused."""
    for wrong in (
        {"max_bytes": True},
        {"max_age": 5},
        {"max_idle": 5.0},
        {"max_bytes": "1"},
        {"keep_unacked": 1},
        {"drop_acknowledged": 1},
    ):
        with pytest.raises(TypeError):
            Retention(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="two pages"):
        disk.open(retention=Retention(max_bytes=2 * SMALL - 1))
    disk.open(retention=Retention(max_bytes=2 * SMALL)).close()
    with Queue(disk.directory, read_only=True) as queue, pytest.raises(ReadOnlyQueue):
        queue.trim()


# --- what stays for consumers ------------------------------------------------------------------


def test_pages_stay_until_every_named_consumer_acknowledged_them(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: up to the page that holds the first unacknowledged message of any consumer."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        slow, fast = queue.consumer("slow"), queue.consumer("fast")
        fill(queue, 6)
        assert queue.trim() == TrimReport(held_by=("fast", "slow"))
        fast.seek(latest=True)
        for acked, head in ((1, 0), (2, 3), (3, 3), (5, 6)):
            while slow.sequence <= acked:
                slow.receive()
            slow.ack(acked)
            report = queue.trim()
            assert queue.head_sequence == head
            assert report.held_by == ("slow",)
        slow.close()
        assert queue.trim().held_by == ("slow",)
        queue.remove_consumer("slow")
        assert queue.trim().pages == 2
        assert queue.head_sequence == 12


ACKNOWLEDGED = Retention(drop_acknowledged=True)


def test_acknowledged_pages_go_and_all_stay_while_there_is_no_consumer(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: up to the page with the first message that a consumer or group still needs."""
    only_by_hand(monkeypatch)
    with disk.open(retention=ACKNOWLEDGED) as queue:
        fill(queue, 6)
        assert queue.trim() == TrimReport()
        slow, fast = queue.consumer("slow"), queue.consumer("fast")
        group = queue.group("workers")
        fast.seek(latest=True)
        for acked, head in ((1, 0), (2, 3), (6, 6), (13, 12)):
            while slow.sequence <= acked:
                slow.receive()
            slow.ack(acked)
            for claim in group.claim_many(100, timeout=0):
                claim.ack()
            assert queue.trim().held_by == ()  # no limit of bytes or age is exceeded
            assert queue.head_sequence == min(head, group_floor(queue) // 3 * 3)
        slow.seek(latest=True)
        fast.close()
        while queue.consumers()[-1].lag:
            for claim in group.claim_many(100, timeout=0):
                claim.ack()
        queue.trim()
        assert queue.head_sequence == 15  # never the active page
        assert [message.sequence for message in queue.replay()] == [15, 16, 17]
        late = queue.consumer("late")
        fill(queue, 2)
        slow.seek(latest=True)
        assert queue.trim().pages == 0
        slow.close()
        late.close()
        group.close()
        for name in ("slow", "fast", "late", "workers"):
            queue.remove_consumer(name)
        until(lambda: queue.trim().pages == 0)
        assert queue.head_sequence == 15
        assert queue.verify().ok


def group_floor(queue: Queue) -> int:
    """Return the sequence below which the group has acknowledged all."""
    return next(one.next_sequence or 0 for one in queue.consumers() if one.name == "workers")


def test_acknowledged_pages_go_whenever_the_sender_rolls(disk: Disk) -> None:
    """In the background, without `trim`; what is needed stays at any size."""
    with disk.open(retention=ACKNOWLEDGED) as queue, queue.consumer("reader") as reader:
        fill(queue, 8)
        assert queue.info().page_count == 8
        while reader.poll() is not None:
            reader.ack()
        with queue.producer() as producer:
            for _ in range(4):
                producer.send(FULL)
        until(lambda: queue.head_sequence == 24)  # all before the page with the first one not seen
        fill(queue, 5)
        assert reader.receive(timeout=0).sequence == 24
        assert queue.verify().ok


def test_silent_consumers_alone_let_no_page_go(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is silent for longer than `max_idle` keeps no page, and drops none."""
    only_by_hand(monkeypatch)
    policy = Retention(drop_acknowledged=True, max_idle=timedelta(seconds=10))
    with disk.open(retention=policy) as queue:
        queue.consumer("silent").close()
        fill(queue, 4)
        disk.clock.now += 20 * 10**9
        assert queue.trim().pages == 0
        with queue.consumer("active") as active:
            active.seek(sequence=7)
            assert queue.trim().pages == 2
            assert queue.head_sequence == 6


def test_damaged_consumer_keeps_everything(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: what it needs is unknown."""
    only_by_hand(monkeypatch)
    with disk.open(retention=ACKNOWLEDGED) as queue:
        queue.consumer("damaged").close()
        queue.consumer("reader", latest=True).close()
        fill(queue, 4)
        queue.consumer("reader").seek(latest=True)
        path = disk.directory / "queue-readMeta.damaged"
        path.write_bytes(b"?" * path.stat().st_size)
        assert queue.trim().pages == 0
        assert queue.head_sequence == 0


@pytest.mark.parametrize("on_full", ["block", "drop_oldest"])
def test_limits_count_besides_what_is_acknowledged(disk: Disk, on_full: str) -> None:
    """`max_bytes` holds as without it, and frees no page that a consumer needs but to drop it."""
    policy = Retention(drop_acknowledged=True, max_bytes=4 * SMALL)
    with disk.open(retention=policy, on_full=on_full, full_timeout=0.1) as queue:
        reader = queue.consumer("reader")
        if on_full == "block":
            with pytest.raises(QueueFull) as raised:
                fill(queue, 9)
            assert raised.value.held_by == ("reader",)
            assert queue.head_sequence == 0
            while reader.poll() is not None:
                reader.ack()
            fill(queue, 2)
        else:
            fill(queue, 9)
            assert queue.head_sequence > 0
        assert queue.info().page_count <= 4


def test_without_keep_unacked_consumers_are_passed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get `Expired` with the head, and can seek there."""
    only_by_hand(monkeypatch)
    policy = Retention(max_bytes=3 * SMALL, keep_unacked=False)
    with disk.open(retention=policy) as queue:
        consumer = queue.consumer("slow")
        fill(queue, 5)
        assert queue.trim().pages == 3
        assert [consumer.receive().sequence for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(Expired) as caught:
                consumer.receive(0)
            assert caught.value.head_sequence == 9
        consumer.close()
        consumer = queue.consumer("slow")
        assert (consumer.sequence, consumer.lag) == (0, 15)
        for read in (consumer.poll, consumer.receive, consumer.receive_many):
            with pytest.raises(Expired):
                read()
        consumer.seek(sequence=caught.value.head_sequence)
        assert consumer.receive().sequence == 9


@pytest.mark.parametrize("named", [True, False])
def test_passed_consumer_skips_to_the_head_and_counts(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """Inside a page it finishes that first; a named one that comes later begins at the head."""
    only_by_hand(monkeypatch)
    policy = Retention(max_bytes=3 * SMALL, keep_unacked=False)
    with disk.open(retention=policy) as queue:
        consumer = queue.consumer("slow" if named else None, on_expired="skip")
        fill(queue, 5)
        assert consumer.receive().sequence == 0
        queue.trim()
        received = [consumer.receive().sequence for _ in range(5)]
        assert received == [1, 2, 9, 10, 11]
        assert consumer.missed == 6
        if named:
            consumer.close()
            consumer = queue.consumer("slow", on_expired="skip")
            assert consumer.receive_many().sequences[0] == 9
            assert consumer.missed == 9
            consumer.ack()
            assert queue.consumers()[0].next_sequence == 12
    with disk.open() as queue, pytest.raises(InvalidOption, match="on_expired"):
        queue.consumer(on_expired="ignore")


def test_consumer_that_is_silent_for_too_long_keeps_no_page(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and shown in the list; opening it ends the silence."""
    only_by_hand(monkeypatch)
    disk.clock.step = 0
    policy = Retention(max_bytes=3 * SMALL, max_idle=timedelta(hours=1))
    hour = 3600 * 10**9
    with disk.open(retention=policy) as queue:
        queue.consumer("slow").close()
        disk.clock.now += 3 * hour  # no message to acknowledge: not silent
        fill(queue, 5)
        assert not queue.consumers()[0].is_idle
        assert queue.trim() == TrimReport(held_by=("slow",))
        disk.clock.now += hour
        assert queue.trim().pages == 0
        disk.clock.now += 1
        assert queue.consumers()[0].is_idle
        with queue.consumer("slow"):
            assert not queue.consumers()[0].is_idle
            assert queue.trim().pages == 0
        disk.clock.now += 2 * hour
        with caplog.at_level(logging.WARNING, "pagequeue"):
            assert queue.trim() == TrimReport(3, 9, 3 * PAGE_AND_INDEX, ())
            queue.trim()
        told = (
            f"{queue.directory}: consumer 'slow' was silent for longer than 1:00:00: no page is "
            "kept for it any more"
        )
        assert [r.message for r in caplog.records if "was silent" in r.message] == [told]
        with queue.consumer("slow") as consumer, pytest.raises(Expired):
            consumer.receive(0)


def test_unreadable_cursor_keeps_all_pages(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position of its consumer is unknown, so all pages are kept for it."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        queue.consumer("slow", latest=True).close()
        fill(queue, 5)
        disk.path("readMeta.slow").write_bytes(b"no cursor")
        assert queue.trim() == TrimReport(held_by=("slow",))
        queue.remove_consumer("slow")
        assert queue.trim().pages == 3


def test_trimming_in_a_queue_that_is_closed_logs_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing comes while the worker trims: no warning, and no consumer is called unreadable."""
    queue = disk.open(retention=KEEP_TWO)
    queue.consumer("slow", latest=True).close()
    real = cursor.cursor_names

    def closing(folder: Directory, prefix: str) -> list[str]:
        found = list(real(folder, prefix))
        queue.close()
        return found

    monkeypatch.setattr(cursor, "cursor_names", closing)
    with caplog.at_level(logging.WARNING, "pagequeue"):
        queue._opened.upkeep.trimmer.trim_quietly(queue._store)
    assert caplog.messages == []


@pytest.mark.parametrize("step", ["map_file", "index_to_rebuild", "writable_index"])
def test_search_leaves_no_index_of_a_page_that_retention_removes_meanwhile(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """T4: no trim would find it below the head. The search itself finds the message.

    Where the page was gone before the index was looked for, that is nothing to be warned of.
    """
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue, queue.consumer() as consumer:
        fill(queue, 5)
        disk.index(2).unlink()
        real, trimmed = getattr(page, step), []

        def late(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - of both
            if not trimmed:
                trimmed.append(True)
                assert queue.trim().pages == 3
            return real(*args, **options)

        monkeypatch.setattr(page, step, late)
        consumer.seek(sequence=4)
        assert consumer.receive(0).sequence == 4
        assert queue.head_sequence == 9
        assert bool(caplog.messages) == (step != "map_file")
        assert [path.name[6:16] for path in sorted(disk.directory.glob("*.idx"))] == [
            "0000000004",
            "0000000005",
        ]
