"""Queue: a directory that several processes open, read from any place, and leave as they like."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import stat
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import support
from support import SMALL, Clock, files, payloads, settle

from pagequeue import ClosedError, Message, Queue, QueueNotFound
from pagequeue import format as fmt
from stress.tampering import pretend_power_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue import Batch


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue of 40 messages on several pages: message i has time i // 4 * 10."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(0)) as queue:
        with queue.producer() as producer:
            for i in range(40):
                producer.send(b"%d" % i + b"." * 400, timestamp=i // 4 * 10)
        yield queue


def sequences(messages: Iterator[Message]) -> list[int]:
    """Return the sequences of messages."""
    return [message.sequence for message in messages]


# --- the directory -------------------------------------------------------------------------------


def test_new_queue_creates_its_directory_for_its_owner_only(tmp_path: Path) -> None:
    """Missing parents are created; other users cannot read the messages."""
    before = os.umask(0)
    try:
        with Queue(tmp_path / "a" / "b", page_bytes=SMALL) as queue:
            queue.producer().send(b"a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()}
    assert modes == {0o600}


def test_files_have_the_names_of_the_format(queue: Queue) -> None:
    """Pages and indexes are numbered from 1 in ten digits; no temporary file is left."""
    pages = queue.info().page_count
    expected = {f"queue-{n:010d}.{kind}" for n in range(1, pages + 1) for kind in ("page", "idx")}
    expected |= {"queue-writeMeta", "queue-readMeta", "queue-allMeta", "queue.lock"}
    assert set(files(queue.directory)) == expected


def test_messages_survive_closing_and_reopening(queue: Queue) -> None:
    """I1: all messages are there again, and sequences and times continue after them."""
    before = list(queue.replay())
    queue.close()
    with Queue(queue.directory, create=False, clock=Clock(5)) as again:
        assert list(again.replay()) == before
        assert again.producer().send(b"next") == 40
        assert again.last(1)[0] == Message(b"next", 90, 40)
        assert again.recovery.actions == []


def test_messages_survive_a_power_cut_that_lost_no_byte(queue: Queue) -> None:
    """I5: with all data on disk, recovery finds every message and reports the scan."""
    before = list(queue.replay())
    queue.close()
    pretend_power_cut(queue.directory)
    with Queue(queue.directory) as again:
        assert again.recovery.scanned
        assert list(again.replay()) == before
        assert again.durable_sequence == 40
        assert again.verify().ok


def test_one_directory_holds_queues_of_different_prefixes(tmp_path: Path) -> None:
    """A prefix names a separate queue, also when it begins like another one."""
    with Queue(tmp_path, page_bytes=SMALL) as one:
        with Queue(tmp_path, prefix="queue-2", page_bytes=2 * SMALL) as two:
            one.producer().send_many([b"a", b"b"])
            two.producer().send(b"c")
            one.rotate()
            assert (payloads(one.replay()), payloads(two.replay())) == ([b"a", b"b"], [b"c"])
            assert (one.page_bytes, two.page_bytes) == (SMALL, 2 * SMALL)
            assert two.prefix == "queue-2"
        assert one.verify().ok
    with Queue(tmp_path, prefix="queue-2", create=False) as two:
        assert payloads(two.replay()) == [b"c"]


def test_page_size_of_a_queue_is_known_when_it_is_opened_again(tmp_path: Path) -> None:
    """Without `page_bytes` the stored size is used; giving the same one is accepted."""
    Queue(tmp_path / "q", page_bytes=2 * SMALL).close()
    for options in ({}, {"page_bytes": 2 * SMALL}, {"read_only": True, "page_bytes": 2 * SMALL}):
        with Queue(tmp_path / "q", **options) as queue:  # type: ignore[arg-type]
            assert queue.page_bytes == 2 * SMALL


def test_queue_does_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means what it meant when the queue was opened."""
    monkeypatch.chdir(tmp_path)
    with Queue("q", page_bytes=SMALL) as queue:
        monkeypatch.chdir("/")
        queue.producer().send_many([b"." * 1900] * 2)
        queue.producer().send_many([b"." * 1900] * 2)
        assert queue.directory == str(tmp_path / "q")
        assert len(list(queue.replay())) == 4


def test_read_only_queue_writes_no_byte(queue: Queue) -> None:
    """I6: all that a reader does leaves every file and time as it is, a missing index included."""
    Path(queue.directory, fmt.index_name("queue", 2)).unlink()
    queue.close()
    before = files(queue.directory)
    times = {path: path.stat().st_mtime_ns for path in Path(queue.directory).iterdir()}
    with Queue(queue.directory, read_only=True) as reading:
        assert sequences(reading.replay(since=50)) == list(range(20, 40))
        assert sequences(reading.replay(sequence=5)) == list(range(5, 40))
        reading.consumer(since=30).receive_many()
        reading.last(7)
        reading.verify()
        reading.info()
    assert files(queue.directory) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_read_only_never_creates_a_queue(tmp_path: Path) -> None:
    """A reader of a missing queue gets an error and leaves no file."""
    for path in (tmp_path, tmp_path / "q"):
        with pytest.raises(QueueNotFound):
            Queue(path, read_only=True)
    assert list(tmp_path.iterdir()) == []


# --- reading -------------------------------------------------------------------------------------


def test_replay_ends_at_the_tail_as_of_its_beginning(queue: Queue) -> None:
    """A replay is finite, even if producers continue."""
    replay = queue.replay(sequence=30)
    producer = queue.producer()
    producer.send_many([b"later"] * 20)
    seen = []
    for message in replay:
        seen.append(message.sequence)
        producer.send(b"later still" * 20)
    assert seen == list(range(30, 40))
    assert next(replay, None) is None


def test_since_is_inclusive_and_until_exclusive(queue: Queue) -> None:
    """Every pair of moments cuts out exactly the messages in between, over pages."""
    for since in (None, -1, 0, 5, 10, 50, 90, 91):
        for until in (None, 0, 1, 10, 55, 90, 1000):
            expected = [
                i
                for i in range(40)
                if (since is None or i // 4 * 10 >= since)
                and (until is None or i // 4 * 10 < until)
            ]
            assert sequences(queue.replay(since=since, until=until)) == expected
            batches = list(queue.batches(since=since, until=until))
            assert [m.sequence for batch in batches for m in batch] == expected
            assert all(batches)


def test_since_and_sequence_together_take_the_later_one(queue: Queue) -> None:
    """Both are lower bounds."""
    assert sequences(queue.replay(since=50, sequence=3)) == list(range(20, 40))
    assert sequences(queue.replay(since=50, sequence=30)) == list(range(30, 40))


def test_ago_is_counted_from_the_queue_s_clock(tmp_path: Path) -> None:
    """A timedelta means that long before now, and a clock that steps back keeps the order."""
    clock = Clock(10**12)
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=clock) as queue:
        producer = queue.producer()
        for now in (10, 20, 5, 30):
            clock.now = 10**12 + now * 10**9
            producer.send(b"%d" % now)
        assert payloads(queue.replay(since=timedelta(seconds=10))) == [b"20", b"5", b"30"]
        assert payloads(queue.replay(until=timedelta(seconds=10))) == [b"10"]
        assert [m.timestamp // 10**9 - 1000 for m in queue.replay()] == [10, 20, 20, 30]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_batches_are_the_replay_in_columns(queue: Queue, limit: int) -> None:
    """I1: batches of at most the limit, none empty, joined are the replay."""
    batches: list[Batch] = list(queue.batches(sequence=7, limit_count=limit))
    assert all(1 <= len(batch) <= limit for batch in batches)
    assert [m for batch in batches for m in batch] == list(queue.replay(sequence=7))


@pytest.mark.parametrize("count", [0, 1, 7, 39, 40, 41, 10**12])
def test_last_gives_that_many_or_all(queue: Queue, count: int) -> None:
    """The last messages, oldest first."""
    assert list(queue.last(count)) == list(queue.replay())[max(0, 40 - count) :]


def test_last_gives_no_more_than_asked_while_others_send(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent between looking at the tail and reading does not make it more."""
    batches = queue.batches

    def late(**options: int) -> Iterator[Batch]:
        queue.producer().send(b"late")
        return batches(**options)

    monkeypatch.setattr(queue, "batches", late)
    assert len(queue.last(3)) == 3


def test_length_and_bounds_follow_the_messages_sent(queue: Queue) -> None:
    """Head, tail and length are as of now; an empty queue is true all the same."""
    assert (queue.head_sequence, queue.tail_sequence, len(queue)) == (0, 40, 40)
    queue.producer().send_many([b"a", b"b"])
    assert (queue.head_sequence, queue.tail_sequence, len(queue)) == (0, 42, 42)
    with Queue(queue.directory, prefix="empty", page_bytes=SMALL) as empty:
        assert len(empty) == 0
        assert empty


def test_rotate_of_the_queue_rolls_its_producers(queue: Queue) -> None:
    """I1: concurrent senders are unaffected."""
    producer = queue.producer()
    pages = queue.info().page_count
    for i in range(40, 45):
        queue.rotate()
        assert producer.send(b"%d" % i) == i
    assert queue.info().page_count == pages + 5
    assert sequences(queue.replay()) == list(range(45))
    assert queue.verify().ok


# --- closing -------------------------------------------------------------------------------------


def test_closing_a_queue_closes_all_its_handles(queue: Queue) -> None:
    """Each use of the queue or a handle is then one typed error that names the path."""
    producer, consumer, replay = queue.producer(), queue.consumer(), queue.replay()
    batches = queue.batches(limit_count=1)
    next(batches)
    queue.close()
    queue.close()
    uses: list[Callable[[], object]] = [
        queue.producer,
        queue.consumer,
        queue.replay,
        queue.batches,
        queue.info,
        queue.verify,
        queue.rotate,
        lambda: queue.last(1),
        lambda: len(queue),
        lambda: queue.head_sequence,
        lambda: queue.tail_sequence,
        lambda: queue.durable_sequence,
        lambda: producer.send(b"a"),
        lambda: producer.send_many([b"a"]),
        lambda: producer.send_many([]),
        producer.flush,
        producer.rotate,
        consumer.poll,
        consumer.receive,
        consumer.receive_many,
        consumer.seek,
        lambda: next(consumer),
        lambda: next(replay),
        lambda: next(batches),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match=f"{queue.directory}: this .* is closed: "):
            use()
    assert "closed" in repr(queue)
    assert (queue.directory, queue.prefix, queue.page_bytes) == (queue.directory, "queue", SMALL)


def test_queue_is_not_picklable(queue: Queue) -> None:
    """A queue goes to another process by its path."""
    with pytest.raises(TypeError, match="open it by its path"):
        pickle.dumps(queue)


def open_things(directory: str) -> tuple[int, int]:
    """Return how many descriptors and maps of this process lead into a directory."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of the listing
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(link.startswith(directory) for link in links), sum(directory in m for m in maps)


def test_closing_gives_back_every_descriptor_and_map(tmp_path: Path) -> None:
    """A process can open and close queues for ever."""
    directory = str(tmp_path / "q")
    with Queue(directory, page_bytes=SMALL) as again:
        again.producer().send(b"a")
    for read_only in (False, True) * 10:
        with Queue(directory, read_only=read_only) as again:
            consumer, replay = again.consumer(), again.replay()
            list(replay)
            consumer.receive_many()
            if not read_only:
                again.producer().send_many([b"." * 900] * 3)
    del consumer, replay, again
    gc.collect()
    assert open_things(directory) == (0, 0)


def test_failed_opening_releases_every_descriptor_and_map(tmp_path: Path) -> None:
    """An error while opening leaves no file open."""
    Queue(tmp_path / "q", page_bytes=SMALL).close()
    for options in ({"page_bytes": 2 * SMALL}, {"prefix": "no", "create": False}):
        with pytest.raises((ValueError, FileNotFoundError)):
            Queue(tmp_path / "q", **options)  # type: ignore[arg-type]
    gc.collect()
    assert open_things(str(tmp_path)) == (0, 0)


def test_dropped_handles_release_their_maps(queue: Queue) -> None:
    """Producers, consumers and replays that are dropped without closing leak no file."""
    list(queue.replay())
    queue.producer().send(b"a")
    gc.collect()
    settle(queue)
    before = open_things(queue.directory)
    for _ in range(30):
        queue.producer().send(b"a")
        queue.consumer().receive_many()
        next(queue.replay(since=50))
        next(queue.batches())
    gc.collect()
    settle(queue)
    descriptors, maps = open_things(queue.directory)
    assert descriptors == before[0]
    assert maps <= before[1] + 4  # pages kept at hand


def test_dropped_queue_releases_every_descriptor_and_map(tmp_path: Path) -> None:
    """A queue that is dropped without closing leaks no file either."""
    directory = str(tmp_path / "q")
    Queue(directory, page_bytes=SMALL).close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for read_only in (False, True) * 3:
            queue = Queue(directory, read_only=read_only)
            queue.consumer().poll()
            if not read_only:
                queue.producer().send(b"a")
            del queue
            gc.collect()
    support.until(lambda: open_things(directory) == (0, 0))  # its thread may be at work
