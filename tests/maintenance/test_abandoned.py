"""Consumers that no process has open, and that keep pages: the log names them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from support import SMALL, Clock, end, ready, settle, start

from pagequeue import Queue, Retention
from pagequeue.maintenance import abandoned
from pagequeue.maintenance.abandoned import CLOSED_SECONDS, WARN_AGAIN_SECONDS, AbandonedWatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue whose pages are to go as soon as they are sealed."""
    retention = Retention(max_age=timedelta(microseconds=1))
    with Queue(tmp_path, page_bytes=SMALL, retention=retention) as opened:
        yield opened


def send_pages(queue: Queue, count: int) -> None:
    """Send so many pages, and wait until they were trimmed."""
    with queue.producer() as producer:
        for _ in range(3 * count):
            producer.send(bytes(1300))
    settle(queue)


@pytest.mark.parametrize("kind", ["consumer", "group"])
def test_consumer_that_was_killed_and_keeps_pages_is_reported(
    queue: Queue, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is full, and no sender waits: the disk just fills. Once, not at each roll."""
    monkeypatch.setattr(abandoned, "CLOSED_SECONDS", 0.0)
    monkeypatch.setattr(abandoned, "CHECK_SECONDS", 0.0)
    process = start("open_and_hold", queue.directory, kind, "dead")
    assert ready(process) == "open"
    send_pages(queue, 3)
    assert caplog.records == []
    end(process)
    send_pages(queue, 6)
    (record,) = caplog.records
    assert "retention keeps pages for 'dead', which no process has open" in record.getMessage()
    assert queue.head_sequence == 0
    queue.remove_consumer("dead")
    send_pages(queue, 1)
    assert queue.head_sequence > 0


def test_consumer_that_is_opened_again_soon_is_not_reported(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """A service is restarted: only who is away for a minute is named, and once an hour."""
    clock = Clock(0)
    watch = AbandonedWatch(clock=lambda: clock.now / 10)
    store = queue._store
    consumer = queue.consumer("app")
    queue.consumer("other").close()

    def note(seconds: float, *held_by: str) -> int:
        clock.now += int(seconds * 10)
        watch.note(store, held_by)
        return len(caplog.records)

    assert note(0, "app") == 0
    consumer.close()
    assert note(CLOSED_SECONDS, "app") == 0  # it is seen for the first time
    consumer = queue.consumer("app")
    assert note(CLOSED_SECONDS - 1, "app") == 0
    consumer.close()
    assert note(20, "app") == 0
    assert note(CLOSED_SECONDS / 2, "app", "other") == 0
    assert note(20) == 0  # it has acknowledged all
    assert note(20, "app") == 0
    assert note(CLOSED_SECONDS, "app") == 1
    assert note(CLOSED_SECONDS, "app", "other") == 1
    assert note(WARN_AGAIN_SECONDS, "app", "other") == 2
    assert "'app', 'other'" in caplog.records[-1].getMessage()
