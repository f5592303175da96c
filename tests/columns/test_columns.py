"""Reading by time and by the index: between, as-of and times, against a list."""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plugin import MESSAGES, START, Disk
from support import SMALL, Clock, payloads
from tiers import examples

from pagequeue import CorruptFrame, InvalidOption, NaiveDatetime, Queue, Retention
from pagequeue import format as fmt
from stress.tampering import overwrite

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = [10, 10, 20, 20, 20, 30, 50, 50, 50, 50, 50, 70]


def send(queue: Queue, times: list[int], size: int = 1000) -> None:
    """Send a message for each time, three to a page."""
    with queue.producer() as producer:
        for i, timestamp in enumerate(times):
            producer.send(b"%d" % i + b"." * size, timestamp=timestamp)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue in whose pages equal times reach over the ends."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(5)) as queue:
        send(queue, TIMES)
        assert queue.info().page_count == 4
        yield queue


@settings(max_examples=examples(60))
@given(
    steps=st.lists(st.integers(0, 3), max_size=40),
    moments=st.lists(st.integers(-5, 130), max_size=20),
    bounds=st.tuples(st.integers(-5, 130), st.integers(-5, 130)),
    taken=st.integers(0, 20),
    mode=st.sampled_from(["plain", "rotated", "compressed", "retired", "indexless"]),
)
def test_columns_queries_agree_with_a_list(
    steps: list[int], moments: list[int], bounds: tuple[int, int], taken: int, mode: str
) -> None:
    """I1, I6: with equal times, empty pages, removed pages, and without an index."""
    times = np.cumsum([1, *steps]).tolist()[1:]
    since, until = bounds
    with tempfile.TemporaryDirectory() as base:
        keep = Retention(max_bytes=3 * SMALL) if mode == "retired" else None
        with Queue(f"{base}/q", page_bytes=SMALL, clock=Clock(0), retention=keep) as queue:
            send(queue, times)
            if mode == "rotated":
                queue.rotate()
                queue.rotate()
            if mode == "compressed":
                queue.compress()
            if mode == "indexless":
                overwrite(queue._store.folder.full(fmt.index_name("queue", 1)), 0, bytes(999))
            queue.trim()
            head = queue.head_sequence
            times = [*([times[head]] * head if head < len(times) else []), *times[head:]]
            answers = [i - 1 if (i := bisect_right(times, m)) > head else -1 for m in moments]
            assert queue.as_of(np.array(moments, np.int64)).tolist() == answers
            assert [queue.as_of(moment) for moment in moments[:3]] == answers[:3]
            begin = max(bisect_left(times, since), head)
            end = max(bisect_left(times, until), begin)
            between = queue.between(since, until)
            assert list(between) == list(queue.replay(since=since, until=until))
            assert between.sequences.tolist() == list(range(begin, end))
            sequences, found = queue.times(since=since, until=until)
            assert sequences.tolist() == list(range(begin, end))
            assert found.tolist() == times[begin:end] == between.timestamps.tolist()
            assert found.dtype == sequences.dtype == np.int64
            begin = max(head, len(times) - taken)
            assert queue.times(sequence=begin)[1].tolist() == times[begin:]
            assert list(queue.last(taken)) == list(queue.replay(sequence=begin))


# --- as of ---------------------------------------------------------------------------------------


def test_as_of_takes_timestamps_of_every_type(queue: Queue) -> None:
    """A scalar gives an int; an array gives an array of its shape, in any order, empty too."""
    assert queue.as_of(20) == queue.as_of(np.int64(29)) == 4
    assert isinstance(queue.as_of(20), int)
    assert queue.as_of(9) == -1
    moments = np.array([[70, 9], [20, 2**63 - 1]])
    assert queue.as_of(moments).tolist() == [[11, -1], [4, 11]]
    assert queue.as_of([49, 50]).tolist() == [5, 10]
    assert queue.as_of(moments.astype("datetime64[ns]")).tolist() == [[11, -1], [4, 11]]
    assert queue.as_of(datetime.now(UTC)) == 11
    assert queue.as_of(timedelta(0)) == -1  # the clock is at 5
    assert queue.as_of([]).shape == (0,)


def test_as_of_refuses_values_that_are_not_timestamps(queue: Queue) -> None:
    """The error names the accepted types."""
    with pytest.raises(NaiveDatetime):
        queue.as_of(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake
    with pytest.raises(TypeError, match="integers of ns or datetime64"):
        queue.as_of([1.5])
    with pytest.raises(InvalidOption, match="NaT"):
        queue.as_of(np.array(["NaT"], "datetime64[ns]"))
    with pytest.raises(InvalidOption, match="64 bits"):
        queue.as_of(np.array([2**64 - 1], np.uint64))
    with pytest.raises(TypeError):
        queue.as_of("now")  # type: ignore[call-overload]


def test_as_of_an_empty_queue_is_minus_one(tmp_path: Path) -> None:
    """There is no last message."""
    with Queue(tmp_path / "q", page_bytes=SMALL) as queue:
        assert queue.as_of([0, 2**62]).tolist() == [-1, -1]
        assert queue.times()[0].tolist() == queue.times()[1].tolist() == []
        assert len(queue.between()) == 0


def test_wrong_index_never_makes_a_wrong_answer(queue: Queue) -> None:
    """I6: records that are plausible and wrong are found out, and written again."""
    path = queue._store.folder.full(fmt.index_name("queue", 2))
    original = Path(path).read_bytes()
    records = np.frombuffer(original, fmt.INDEX_RECORD).copy()
    times = [10, 10, 20, 20, 20, 30]
    for change in ({"timestamp": 29}, {"timestamp": 0}, {"position": 64}, {"position": 4088}):
        for record in (0, 2):
            wrong = records.copy()
            for field, value in change.items():
                wrong[record][field] = value
            overwrite(path, 0, wrong.tobytes())
            with Queue(queue.directory) as again:
                assert again.as_of([19, 20, 29, 30, 49]).tolist() == [1, 4, 4, 5, 5]
            overwrite(path, 0, wrong.tobytes())
            with Queue(queue.directory) as again:
                assert again.times(until=50)[1].tolist() == times
    assert queue.verify().ok


@pytest.mark.parametrize("ordinal", [0, 1, 2])
def test_damage_that_would_have_to_prove_an_answer_is_an_error(disk: Disk, ordinal: int) -> None:
    """No answer is made of a frame that does not validate; others go on."""
    disk.send(*MESSAGES)
    disk.tear(2, ordinal)
    with disk.open() as queue:
        moments = queue.last(1).timestamps
        assert queue.as_of(moments).tolist() == [7]
        times = [frame.timestamp for frame in disk.frames(2)][:3]
        with pytest.raises(CorruptFrame, match=f"message {3 + ordinal}"):
            queue.as_of(times[ordinal])


def test_damage_at_the_beginning_of_a_page_is_not_skipped(disk: Disk) -> None:
    """The last message of the page before is not proof that it is the answer."""
    with disk.open() as queue, queue.producer() as producer:
        for i, payload in enumerate(MESSAGES):
            producer.send(payload, timestamp=START + 10 * i)
    disk.tear(2, 0)
    with disk.open() as queue:
        assert queue.as_of(START + 10) == 1
        for moment in (START + 35, START + 45):
            with pytest.raises(CorruptFrame, match="message 3"):
                queue.as_of(moment)


# --- times, between ------------------------------------------------------------------------------


def test_times_reads_only_the_payloads_that_prove_it(disk: Disk) -> None:
    """Damage between the first and the last message of a page is not detected: it is not read."""
    disk.send(*MESSAGES)
    with disk.open() as queue:
        expected = queue.between().timestamps.tolist()
    disk.tear(2, 1)
    with disk.open() as queue:
        assert queue.times()[1].tolist() == expected
        with pytest.raises(CorruptFrame, match="message 4"):
            queue.times(sequence=4)
        with pytest.raises(CorruptFrame, match="message 4"):
            queue.between()


def test_sequences_are_refused_as_by_a_consumer(queue: Queue) -> None:
    """A sequence after the tail is not a valid start."""
    for use in (queue.times, queue.batches):
        with pytest.raises(ValueError, match="no message has sequence 99"):
            use(sequence=99)
        with pytest.raises(NaiveDatetime, match="until"):
            use(until=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_between_is_one_batch_over_all_its_pages(queue: Queue) -> None:
    """Columns, slices and messages are those of the replay; payloads are made where asked for."""
    batch = queue.between(20, 60)
    messages = list(queue.replay(since=20, until=60))
    assert len(batch._parts()) == 4
    assert batch[2] == messages[2]
    assert batch[-1] == messages[-1]
    assert len(batch._parts()) == 4
    for start, stop in [(0, 9), (1, 2), (0, 4), (4, 9), (3, 8), (5, 5), (8, 100)]:
        part = batch[start:stop]
        assert part.sequences.tolist() == [m.sequence for m in messages[start:stop]]
        assert part.timestamps.tolist() == [m.timestamp for m in messages[start:stop]]
        assert part.lengths.tolist() == [len(m.payload) for m in messages[start:stop]]
        assert part[1:][:2] == batch[start:stop][1:3]
        assert list(part) == messages[start:stop]
    assert batch.payloads == payloads(messages)
    assert batch == queue.between(20, 60)
    assert list(queue.between()) == list(queue.replay())


def test_times_and_between_follow_concurrent_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page removed between lookup and opening is resolved again."""
    with Queue(
        tmp_path / "q", page_bytes=SMALL, clock=Clock(5), retention=Retention(max_bytes=3 * SMALL)
    ) as queue:
        store, page = queue._store, queue._store.page
        store.background.end()  # the trim below is the only one
        send(queue, TIMES)
        head = queue.head_sequence

        def late(number: int) -> object:
            monkeypatch.setattr(store, "page", page)
            store.pages.clear()
            queue.trim()
            return page(number)

        monkeypatch.setattr(store, "page", late)
        sequences, times = queue.times()
        assert sequences.tolist() == list(range(queue.head_sequence, 12))
        assert times.tolist() == TIMES[queue.head_sequence :]
        assert queue.head_sequence > head


def test_batches_are_small_while_payloads_are_read_as_lists(tmp_path: Path) -> None:
    """A batch of columns has up to 2 MiB, one after a list 256 KiB; no message is left out."""
    count = 40_000
    with Queue(tmp_path / "q") as queue:
        with queue.producer() as producer:
            producer.send_many([i.to_bytes(100, "little") for i in range(count)])
        sizes = [len(batch) for batch in queue.batches()]
        frame_bytes = fmt.frame_bytes(100)
        assert max(sizes) * frame_bytes > 1 << 20
        lists = [batch.payloads for batch in queue.batches()]
        assert all(
            len(payloads) * frame_bytes <= (256 << 10) + frame_bytes for payloads in lists[1:]
        )
        whole = [payload for payloads in lists for payload in payloads]
        assert [int.from_bytes(payload, "little") for payload in whole] == list(range(count))
        batches = queue.batches()
        next(batches).payloads.clear()
        small = next(batches)
        assert len(small) * frame_bytes <= (256 << 10) + frame_bytes
        assert len(next(batches)) == max(sizes)  # columns again
        assert len(next(queue.batches(limit_count=30_000))) == max(sizes)
