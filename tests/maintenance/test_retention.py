"""Retention: whole pages, oldest first; the head moves before a file goes; no reader skips."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from plugin import START, Disk
from retaining import FULL, KEEP_TWO, PAGE_AND_INDEX, fill, numbers, only_by_hand
from support import (
    SMALL,
    until,
)

from pagequeue import Expired, InvalidOption, Queue, ReadOnlyQueue, Retention, TrimReport
from pagequeue.meta import cursor

if TYPE_CHECKING:
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
        assert queue.trim().pages == 2
        assert queue.head_sequence == 9
        assert len(queue) == 3


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
        {"max_bytes": True},
    ],
)
def test_values_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    """At once, where they are given."""
    with pytest.raises(InvalidOption):
        Retention(**wrong)  # type: ignore[arg-type]


def test_wrong_types_and_too_few_bytes_are_refused(disk: Disk) -> None:
    """A number of seconds is not a timedelta; less than two pages is refused."""
    for wrong in ({"max_age": 5}, {"max_idle": 5.0}, {"max_bytes": "1"}, {"keep_unacked": 1}):
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
    """I11: up to the page that holds the first message that somebody has not."""
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


def test_consumer_that_is_silent_for_too_long_keeps_nothing(
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


def test_cursor_that_cannot_be_read_keeps_everything(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position of its consumer is unknown, so all pages are kept for it."""
    only_by_hand(monkeypatch)
    with disk.open(retention=KEEP_TWO) as queue:
        queue.consumer("slow", latest=True).close()
        fill(queue, 5)
        disk.path("readMeta.slow").write_bytes(b"no cursor")
        assert queue.trim() == TrimReport(held_by=("slow",))
        queue.remove_consumer("slow")
        assert queue.trim().pages == 3


def test_trimming_in_a_queue_that_is_closed_says_nothing(
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
        queue._opened.retainer.trim_quietly()
    assert caplog.messages == []
