"""Times ahead of the clock are set to now, and nothing else changes, wherever it is interrupted."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support import SMALL

from pagequeue import JournalOnly, Queue, UsageError, repair_queue, verify_queue
from pagequeue.cli import main
from pagequeue.errors import DiskFull
from pagequeue.journal import Journal
from pagequeue.system.directory import Directory
from pagequeue.util.timestamps import NS_PER_S
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400 * NS_PER_S
AHEAD = 30 * DAY
Found = list[tuple[int, bytes]]


def filled(path: Path, *, compressed: bool = False) -> tuple[Found, int]:
    """Make a queue whose last messages are of a clock that was ahead; return it, and since when."""
    now = time.time_ns()
    with Queue(path, page_bytes=SMALL) as queue, queue.producer() as producer:
        for number in range(10):
            producer.send(b"%d" % number * 500, timestamp=now - 3600 * NS_PER_S + number)
        producer.send(b"wrong", timestamp=now + AHEAD)
        producer.send_many([b"batch"] * 20)
        producer.send_many([bytes(1000)] * 20)  # over several pages
        producer.send(bytes(range(256)) * 100)  # a large one
        queue.consumer("worker").close()
        for number in range(10):
            producer.send(b"%d" % number * 500)
        if compressed:
            queue.rotate()
            queue.compress()
            producer.send(b"last")
        return contents(queue), 10


def contents(queue: Queue) -> Found:
    """Return time and payload of each message."""
    return [(message.timestamp, message.payload) for message in queue.replay()]


@pytest.mark.parametrize("compressed", [False, True])
def test_times_that_are_ahead_become_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, compressed: bool
) -> None:
    """The messages of before, payloads, sequences and batches stay; later ones get the time."""
    path = tmp_path / "q"
    before, first = filled(path, compressed=compressed)
    with caplog.at_level(logging.WARNING, "pagequeue"), Queue(path) as queue:
        assert "29 days, 23:" in caplog.text
        assert "repair --times" in caplog.text
        assert AHEAD / NS_PER_S - 600 < queue.info().seconds_ahead <= AHEAD / NS_PER_S
        assert queue.info().clock_off_seconds == 0
        report = queue.verify()
        assert report.ok
        assert AHEAD / NS_PER_S - 600 < report.seconds_ahead <= AHEAD / NS_PER_S
        assert queue.producer().send(b"later") == len(before)
        before = contents(queue)
        assert before[-1][0] == before[-2][0]
        done = time.time_ns()
        report = queue.repair(times=True)
        assert report.ok
        assert f"set the times of {len(before) - first} messages that were ahead" in str(report)
        after = contents(queue)
        assert after[:first] == before[:first]
        assert [payload for _, payload in after] == [payload for _, payload in before]
        assert all(done <= ns <= time.time_ns() for ns, _ in after[first:])
        assert len({ns for ns, _ in after[first:]}) == 1
        assert queue.verify().ok
        assert queue.verify().seconds_ahead == queue.info().seconds_ahead == 0
        sent = queue.producer().send(b"now")
        assert queue.last(1).timestamps[0] > after[-1][0]
        assert [m.sequence for m in queue.replay(since=queue.last(1)[0].timestamp)] == [sent]
        assert len(list(queue.replay(since=timedelta(minutes=30)))) == len(before) - first + 1
        assert queue.repair(times=True).actions == []
    assert verify_queue(path).ok


def test_power_cut_after_it_changes_nothing(tmp_path: Path) -> None:
    """The pages are on stable storage before their names."""
    path = tmp_path / "q"
    before, _ = filled(path)
    assert repair_queue(path, times=True).ok
    pretend_power_cut(path)
    with Queue(path) as queue:
        after = contents(queue)
        assert [payload for _, payload in after] == [payload for _, payload in before]
        assert max(ns for ns, _ in after) <= time.time_ns()
        assert queue.verify().ok


def test_interrupted_at_any_file_it_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times never go back from one message to the next, whatever is new by then."""
    path = tmp_path / "q"
    before, _ = filled(path)
    make = Directory.make
    left, made = 0, 0

    def failing(self: Directory, name: str, *args: Any, **options: Any) -> object:  # noqa: ANN401
        nonlocal made
        if options.get("maker") == "again":
            made += 1
            if made > left:
                raise DiskFull("no space", path=name, remedy="free some")
        return make(self, name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "make", failing)
        while True:
            made = 0
            try:
                assert repair_queue(path, times=True).ok
                break
            except DiskFull:
                left += 1
            with Queue(path, read_only=True) as queue:
                times = [ns for ns, _ in contents(queue)]
                assert times == sorted(times)
                # An index is written before its page: until then it is only a wrong hint (I6).
                assert all(problem.file.endswith(".idx") for problem in queue.verify().problems)
    assert left > 4
    with Queue(path) as queue:
        after = contents(queue)
        assert [payload for _, payload in after] == [payload for _, payload in before]
        assert max(ns for ns, _ in after) <= time.time_ns()


def test_reader_of_before_goes_on(tmp_path: Path) -> None:
    """It finishes in the files that it has mapped, and loses no message."""
    path = tmp_path / "q"
    before, _ = filled(path)
    with Queue(path, read_only=True) as queue:
        reading = queue.replay()
        assert next(reading).payload == before[0][1]
        assert repair_queue(path, times=True).ok
        assert [message.payload for message in reading] == [payload for _, payload in before[1:]]


def test_consumer_that_was_seen_ahead_is_not_active_for_ever(tmp_path: Path) -> None:
    """Else it would keep pages until the clock is there."""
    path = tmp_path / "q"
    now = [time.time_ns() + AHEAD]
    with Queue(path, page_bytes=SMALL, clock=lambda: now[0]) as queue:
        queue.producer().send(b"x")
        with queue.consumer("worker") as consumer:
            consumer.receive()
            consumer.ack()
        queue.group("workers").close()
    assert repair_queue(path, times=True).ok
    with Queue(path) as queue:
        seen = [cursor.seen for cursor in cursors(queue)]
        assert len(seen) == 2
        assert max(seen) <= time.time_ns()


def cursors(queue: Queue) -> list[Any]:
    """Return the cursors of a queue."""
    from pagequeue.meta.cursor import readable_cursors  # noqa: PLC0415 - only here

    store = queue._store
    return [meta for _, meta in readable_cursors(store.folder, "queue", store.meta.queue_id)]


def test_it_is_refused_where_other_files_have_the_times(tmp_path: Path) -> None:
    """A journal's snapshots, and the manifest of a ship."""
    with Journal(tmp_path / "j", Log()) as journal:
        journal.update(lambda _: "entry")
    with pytest.raises(JournalOnly, match="snapshots"):
        repair_queue(tmp_path / "j", times=True)
    filled(tmp_path / "q")
    with Queue(tmp_path / "q") as queue:
        queue.rotate()
        queue.producer().flush()
        queue.ship(tmp_path / "ship")
    with pytest.raises(UsageError, match="ship"):
        repair_queue(tmp_path / "ship", times=True)


class Log:
    """A machine that keeps its entries."""

    version = 1

    def initial(self) -> list[str]:
        """Return no entry."""
        return []

    def apply(self, state: list[str], entry: str, timestamp_ns: int) -> list[str]:
        """Add one."""
        del timestamp_ns
        return [*state, entry]


def test_command_shows_and_sets_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`verify` notes them, `info` has them, `repair --times` sets them."""
    path = str(tmp_path / "q")
    filled(tmp_path / "q")
    assert main(["verify", path]) == 0
    assert "days, " in (said := capfd.readouterr().err)
    assert "ahead of the clock" in said
    assert main(["info", path]) == 0
    assert "seconds ahead" in capfd.readouterr().out
    assert main(["repair", path]) == 0
    assert "set the times" not in capfd.readouterr().out
    assert main(["repair", path, "--times"]) == 0
    assert "set the times of 52 messages" in capfd.readouterr().out
    assert main(["verify", path]) == 0
    assert capfd.readouterr().err == ""
