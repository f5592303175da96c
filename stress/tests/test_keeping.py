"""The campaigns of named consumers and retention: they run, and they see what they forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue, Retention
from stress import keep_lines, no_retention_takes_what_is_needed, score
from stress.campaign import Budget
from stress.cut.full import wrong_places
from stress.cut.recording import (
    NOWHERE,
    PLACE_ABOUT,
    PLACE_DURABLE,
    Event,
    Kind,
    Places,
    Recording,
    frames_in,
    retired_pages,
)
from stress.keep_scenarios import CURSORS, TRIMMING
from stress.keep_watch import Watcher
from stress.keeping import ABOUT, ACKED, RECEIVED, Note, Terms, places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = 4096


def note(what: int, consumer: int, place: int) -> Event:
    """Return the event with which a run records a consumer's place."""
    return Event(Kind.NOTE, what, consumer, place)


def recording(*events: Event) -> Recording:
    """Return a recording of these events, without any sent message."""
    return Recording("made", 0, b"".join(event.encode() for event in events), b"")


def test_places_of_consumers_follow_from_what_they_said() -> None:
    """At least what was acknowledged durably before the cut, at most what was about to be."""
    of = recording(
        note(PLACE_ABOUT, 0, 0),
        note(PLACE_ABOUT, 0, 5),
        note(PLACE_DURABLE, 0, 5),
        note(7, 0, 99),
        note(PLACE_ABOUT, 0, 9),
        note(PLACE_ABOUT, 1, 3),
    )
    assert of.places_at(0) == {}
    assert of.places_at(2) == {0: Places(0, 5)}
    assert of.places_at(5) == {0: Places(5, 9)}
    assert of.places_at(6) == {0: Places(5, 9), 1: Places(0, 3)}


def test_pages_that_went_are_taken_from_the_record(tmp_path: Path) -> None:
    """With their last contents, also when their files became other pages."""
    first, second = (bytes([n]) * SMALL for n in (1, 2))
    of = recording(
        Event(Kind.NAME, 4, data=b"queue-0000000001.page\0"),
        Event(Kind.PAGE, 4, 0, data=first),
        Event(Kind.PAGE, 4, 1, data=second),
        Event(Kind.NAME, NOWHERE, data=b"queue-0000000001.page\0"),
        Event(Kind.NAME, 4, data=b"queue-0000000000.page.tmp-spare\0"),
        Event(Kind.PAGE, 4, 0, data=bytes(SMALL)),
    )
    assert retired_pages(of.log) == {1: first + second}
    assert frames_in(tmp_path) == b""


def test_consumer_resumes_at_one_of_two_places() -> None:
    """The last acknowledgement that returned, or the one that was begun after it."""
    assert places([]) == [0]
    assert places([Note(5, ABOUT)]) == [0, 5]
    acked = [Note(5, ABOUT), Note(5, ACKED), Note(9, RECEIVED, 1, 1)]
    assert places(acked) == [5]
    assert places([*acked, Note(7, ABOUT)]) == [5, 7]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of three pages with a consumer in its second one."""
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=Retention(max_bytes=9 * SMALL)) as queue:
        with queue.consumer("c0") as consumer, queue.producer() as producer:
            for _ in range(9):
                producer.send(b"x" * 1300)
            for _ in range(4):
                consumer.receive(0)
            consumer.ack()
        yield queue


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({0: Places(4, 4)}, None),
        ({0: Places(5, 9)}, "is at 4"),
        ({0: Places(0, 3)}, "is at 4"),
        ({0: Places(0, 9), 1: Places(0, 9)}, "consumer 1 is gone"),
    ],
)
def test_cursor_in_a_wrong_place_is_noticed(
    queue: Queue, allowed: dict[int, Places], expected: str | None
) -> None:
    """I11: below what was durable, ahead of what was acknowledged, or gone."""
    wrong = wrong_places(queue, allowed)
    assert [text for text in wrong if expected and expected in text] == wrong
    assert bool(wrong) is (expected is not None)


def test_head_without_its_page_and_needed_pages_are_noticed(queue: Queue, tmp_path: Path) -> None:
    """I11, I12: by a watcher of the files alone."""
    queue.consumer("keeper-0").close()
    queue.consumer("keeper-1").close()
    watcher = Watcher(str(tmp_path / "q"), Terms(9, None, "raise", True))
    assert watcher.look() == []
    queue._store.read_meta.advance(3)
    assert [text for text in watcher.look() if "keeper-0 needs 0" in text]
    (tmp_path / "q" / "queue-0000000002.page").rename(tmp_path / "away")
    assert [text for text in watcher.look() if "and it is gone" in text]
    watcher.close()


@pytest.mark.nightly
@pytest.mark.parametrize("scenarios", [TRIMMING, CURSORS], ids=["trimming", "cursors"])
def test_deaths_at_lines_harm_nobody(scenarios: tuple[keep_lines.Scenario, ...]) -> None:
    """I11, I12: every scenario is played undisturbed, and some lines are deadly."""
    outcome = keep_lines.run(Budget(8.0, len(scenarios) + 20, 5), scenarios)
    assert outcome.violations == []
    assert outcome.cases >= len(scenarios)
    assert outcome.notes["executed lines"] > 1000


@pytest.mark.nightly
def test_bounded_queue_survives_some_kills() -> None:
    """I11, I12, I13: the campaign runs its rounds, and pages are used again in them."""
    outcome = no_retention_takes_what_is_needed.run(Budget(12.0, None, 3))
    assert outcome.violations == []
    assert outcome.notes["rounds"] > 0
    assert outcome.notes["messages"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["unacked_not_looked_at", "cursor_not_lowered"])
def test_planted_bug_is_caught(bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Both campaigns catch a bug they are meant for; `stress.score` tries the other bugs."""
    assert score.main([bug, "--seed", "1", "--no-controls"]) == 0
    assert f"caught  {bug}" in capsys.readouterr().out
