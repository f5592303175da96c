"""Merge of the messages in several queues: exact order, bounded memory, each message once."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SMALL, Clock, flip
from tiers import examples

from pagequeue import (
    ClosedError,
    ConcurrentUse,
    CorruptFrame,
    Expired,
    InvalidOption,
    Merge,
    Merged,
    NaiveDatetime,
    NothingReceived,
    Queue,
    Retention,
    merge,
)
from pagequeue.merge import source as sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., list[Queue]]]:
    """Return what makes queues of messages with given times."""
    made: list[Queue] = []

    def queues(*times: Sequence[int], size: int = 1) -> list[Queue]:
        for own in times:
            queue = Queue(tmp_path / f"q{len(made)}", page_bytes=SMALL, clock=Clock(50))
            fill(queue, own, size)
            made.append(queue)
        return made

    yield queues
    for queue in made:
        queue.close()


def fill(queue: Queue, times: Sequence[int], size: int = 1) -> None:
    """Send messages of these times."""
    with queue.producer() as producer:
        for time in times:
            producer.send(b"." * size, timestamp=time)


def model(queues: Sequence[Queue], **bounds: int) -> list[Merged]:
    """Return what a merge must give: all messages, sorted."""
    items = [
        Merged(number, message)
        for number, queue in enumerate(queues)
        for message in queue.replay(**bounds)  # type: ignore[arg-type]
    ]
    return sorted(items, key=lambda item: (item.message.timestamp, item.queue))


TIMES = st.lists(st.lists(st.integers(0, 12), max_size=40).map(sorted), min_size=1, max_size=5)


@settings(max_examples=examples(30))
@given(
    times=TIMES,
    load_count=st.integers(1, 5),
    limit_count=st.integers(1, 9),
    since=st.none() | st.integers(0, 13),
    until=st.none() | st.integers(0, 13),
    data=st.data(),
)
def test_order_is_that_of_a_sort(
    times: list[list[int]],
    load_count: int,
    limit_count: int,
    since: int | None,
    until: int | None,
    data: st.DataObject,
) -> None:
    """Whatever is read at a time, also where many messages have one time, in whatever mixture."""
    folder = Path(tempfile.mkdtemp())
    queues = [Queue(folder / str(n), page_bytes=SMALL, clock=Clock(99)) for n in range(len(times))]
    before, sources.LOAD_COUNT = sources.LOAD_COUNT, load_count  # type: ignore[misc]
    try:
        for queue, own in zip(queues, times, strict=True):
            fill(queue, own, size=200)
        bounds = {"since": since, "until": until}
        expected = model(queues, **bounds)  # type: ignore[arg-type]
        with merge(queues, **bounds) as merged:  # type: ignore[arg-type]
            found: list[Merged] = []
            while len(found) < len(expected):
                if data.draw(st.booleans()):
                    found.append(merged.receive(timeout=0))
                else:
                    found.extend(merged.receive_many(limit_count, timeout=0))
            assert merged.poll() is None
            assert found == expected
            assert merged.late == 0
        assert list(merge(queues, **bounds)) == expected  # type: ignore[arg-type]
        batches = list(merge(queues, **bounds).batches(limit_count))  # type: ignore[arg-type]
        assert [item for batch in batches for item in batch] == expected
        assert all(1 <= len(batch) <= limit_count for batch in batches)
    finally:
        sources.LOAD_COUNT = before  # type: ignore[misc]
        for queue in queues:
            queue.close()
        shutil.rmtree(folder)


def test_messages_sent_later_are_not_waited_for(make: Callable[..., list[Queue]]) -> None:
    """A merge ends at the tails as they were when it was made."""
    queues = make([1, 5], [2])
    merged = merge(queues)
    fill(queues[0], [6])
    fill(queues[1], [3])
    assert [item.message.timestamp for item in merged] == [1, 2, 5]
    assert list(merged) == []
    with pytest.raises(NothingReceived, match="has ended"):
        merged.receive()
    with pytest.raises(NothingReceived, match="has ended"):
        merged.receive_many()


def test_interrupted_iteration_loses_no_message(make: Callable[..., list[Queue]]) -> None:
    """Loops and batches continue where the one before stopped."""
    queues = make(range(0, 40, 2), range(1, 40, 2))
    merged = merge(queues)
    for item in merged:
        if item.message.timestamp == 9:
            break
    assert next(iter(merged)).message.timestamp == 10
    assert merged.receive_many(3).timestamps.tolist() == [11, 12, 13]
    assert merged.receive().message.timestamp == 14
    rest = [time for batch in merged.batches(7) for time in batch.timestamps.tolist()]
    assert rest == list(range(15, 40))


def test_a_queue_may_be_given_twice_and_none_may_be_given(make: Callable[..., list[Queue]]) -> None:
    """The list is what counts; an empty one ends at once."""
    [queue] = make([1, 2])
    found = [(item.queue, item.message.sequence) for item in merge([queue, queue])]
    assert found == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert list(merge([])) == []
    assert list(merge([], follow=True).batches()) == []


def test_since_and_until_take_times(make: Callable[..., list[Queue]]) -> None:
    """As everywhere: an aware datetime, or that long ago by the queues' clock."""
    start = 1_000_000_000
    queues = make([start, start + 2000, start + 4000], [start + 1000, start + 3000])
    queues[0]._store.clock._given.now = start + 4000  # type: ignore[union-attr]
    moment = datetime.fromtimestamp(1, UTC) + timedelta(microseconds=3)
    found = merge(queues, since=timedelta(microseconds=3), until=moment)
    assert [item.message.timestamp - start for item in found] == [1000, 2000]
    with pytest.raises(NaiveDatetime):
        merge(queues, since=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_names_are_directories_unless_given(make: Callable[..., list[Queue]]) -> None:
    """One for each queue."""
    queues = make([1], [2])
    assert merge(queues).names == tuple(queue.directory for queue in queues)
    assert merge(queues, names=["bids", "trades"]).names == ("bids", "trades")
    with Queue(queues[0].directory, prefix="other", page_bytes=SMALL) as other:
        assert merge([other]).names == (f"{queues[0].directory}/other",)
    with pytest.raises(InvalidOption, match="1 names for 2 queues"):
        merge(queues, names=["bids"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"patience": -1}, InvalidOption),
        ({"patience": float("nan")}, InvalidOption),
        ({"patience": float("inf")}, InvalidOption),
        ({"on_expired": "ignore"}, InvalidOption),
        ({"speed": 0}, InvalidOption),
        ({"speed": float("nan")}, InvalidOption),
        ({"speed": "fast"}, TypeError),
        ({"speed": 1.0, "follow": True}, InvalidOption),
    ],
)
def test_wrong_options_are_refused(
    make: Callable[..., list[Queue]], options: dict[str, object], error: type[Exception]
) -> None:
    """Before anything is read."""
    with pytest.raises(error):
        merge(make([1]), **options)  # type: ignore[arg-type]


def test_object_that_is_not_a_queue_is_refused(make: Callable[..., list[Queue]]) -> None:
    """A path, for one, because the opener of a queue must close it."""
    [queue] = make([1])
    with pytest.raises(TypeError, match="not str"):
        merge([queue, queue.directory])  # type: ignore[list-item]
    merged = merge([queue])
    for limit_count in (0, 1 << 21):
        with pytest.raises(ValueError, match="limit_count"):
            merged.receive_many(limit_count)
        with pytest.raises(ValueError, match="limit_count"):
            merged.batches(limit_count)
    with pytest.raises(ValueError, match="timeout"):
        merged.receive(timeout=-1)


def test_closing_ends_it(make: Callable[..., list[Queue]]) -> None:
    """The merge, or one of its queues; its queues stay open otherwise."""
    queues = make([1, 3], [2, 4])
    with merge(queues) as merged:
        assert merged.receive().queue == 0
        assert "open" in repr(merged)
    for use in (merged.receive, merged.poll, merged.receive_many, lambda: list(merged)):
        with pytest.raises(ClosedError, match="this merge is closed"):
            use()
    merged.close()
    assert len(list(merge(queues))) == 4
    merged = merge(queues)
    queues[1].close()
    with pytest.raises(ClosedError):
        list(merged)
    with pytest.raises(ClosedError):
        merge(queues)


def test_queues_are_released_when_one_cannot_begin(make: Callable[..., list[Queue]]) -> None:
    """No reader stays open after an error."""
    queues = make([1], [2])
    queues[1].close()
    before = len(queues[0]._opened.handles)
    with pytest.raises(ClosedError):
        merge(queues)
    assert len(queues[0]._opened.handles) == before


def test_damage_is_raised_in_its_place(make: Callable[..., list[Queue]]) -> None:
    """All that is certainly older comes first, then the queue's own error, again and again."""
    queues = make([1, 2, 3, 4], [1, 2, 6, 7], size=1000)
    flip(Path(queues[1].directory) / "queue-0000000001.page", 64 + 2 * 1016 + 100)
    merged = merge(queues)
    found = []
    with pytest.raises(CorruptFrame) as caught:
        found.extend(item.message.timestamp for item in merged)
    assert caught.value.sequence == 2
    found = [item.message.timestamp for item in iter(lambda: merge_part(merged), None)]
    assert found == []
    with pytest.raises(CorruptFrame):
        merged.receive()


def merge_part(merged: Merge) -> Merged | None:
    """Return the next message, or None at damage."""
    try:
        return merged.poll()
    except CorruptFrame:
        return None


@pytest.mark.parametrize("on_expired", ["raise", "skip"])
def test_retention_that_is_faster_raises_or_is_counted(tmp_path: Path, on_expired: str) -> None:
    """Expired, or counted; messages after the head come in order."""
    retention = Retention(max_bytes=8 * SMALL)  # no trim before the merge has begun
    with (
        Queue(tmp_path / "a", page_bytes=SMALL, retention=retention) as first,
        Queue(tmp_path / "b", page_bytes=SMALL) as second,
    ):
        fill(first, [1] * 8, size=1000)  # three of them on a page
        fill(second, [1, 2, 400])
        merged = merge([first, second], on_expired=on_expired)
        fill(first, range(2, 200), size=1000)
        first.trim()
        head_sequence = first.head_sequence  # a trim in the background may still move it
        assert head_sequence > 8
        if on_expired == "raise":
            with pytest.raises(Expired):
                list(merged)
        else:
            found = [item.queue for item in merged]
            assert found == [0] * 3 + [1] * 3
            assert head_sequence - 3 <= merged.missed <= first.head_sequence - 3


def test_second_thread_inside_is_refused(make: Callable[..., list[Queue]]) -> None:
    """A merge belongs to one thread at a time."""
    merged = merge(make([1, 2]))
    with merged._exclusive(), pytest.raises(ConcurrentUse):
        merged.receive()
    assert merged.receive().message.timestamp == 1


def test_little_is_held_however_much_there_is(
    make: Callable[..., list[Queue]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue is read when what was read of it has been given out, not before."""
    monkeypatch.setattr(sources, "LOAD_COUNT", 8)
    queues = make(range(0, 4000, 2), range(1, 4000, 2), range(5000, 5600))
    merged = merge(queues)
    for number, item in enumerate(merged):
        assert item.message.timestamp == (number if number < 4000 else number + 1000)
        for source in merged._sources:
            given = number if source.queue == 2 else number // 2
            assert source.sequence <= max(given - 4000 * (source.queue == 2), 0) + 16
    assert number == 4599
    assert sorted(map(attrgetter("sequence"), merged._sources)) == [600, 2000, 2000]


def test_values_are_those_of_each_queue(tmp_path: Path) -> None:
    """Each queue has its own codec; payloads stay bytes."""
    with (
        Queue(tmp_path / "a", page_bytes=SMALL, clock=Clock(1), codec="json") as first,
        Queue(tmp_path / "b", page_bytes=SMALL, clock=Clock(1)) as second,
    ):
        with first.producer() as producer:
            producer.send({"bid": 3}, timestamp=2)
            producer.send([1], timestamp=4)
        fill(second, [3])
        values = [item.message.value for item in merge([first, second])]
        assert values == [{"bid": 3}, b".", [1]]
        assert next(merge([first, second]).batches())[0].message.value == {"bid": 3}
        assert [m.value for m in first.replay(speed=1e9)] == [{"bid": 3}, [1]]


def test_arrow_reads_a_merge_as_a_stream(make: Callable[..., list[Queue]]) -> None:
    """All that is left, whatever the queues are called; an empty one has its columns too."""
    pa = pytest.importorskip("pyarrow")
    queues = make([1, 3], [2], [])
    merged = merge(queues, names=["a", "b", "c"])
    merged.receive()
    table = pa.table(merged)
    assert table["queue"].to_pylist() == ["b", "a"]
    assert table["sequence"].to_pylist() == [0, 1]
    assert pa.table(merge(queues[2:])).column_names == table.column_names


def test_reader_of_a_merge_whose_queue_is_closed_raises_its_own_error(
    make: Callable[..., list[Queue]],
) -> None:
    """ClosedError, each time, while Arrow's own stream has only its text."""
    pytest.importorskip("pyarrow")
    queues = make(range(0, 4000, 2), range(1, 4000, 2), size=1000)
    merged = merge(queues)
    reader = merged.to_arrow()
    assert reader.schema.names == ["queue", "sequence", "timestamp", "payload"]
    assert len(reader.read_next_batch())
    queues[0].close()
    for read in (reader.read_all, reader.read_next_batch):
        with pytest.raises(ClosedError):
            read()


def test_records_of_one_dtype_have_typed_columns(tmp_path: Path) -> None:
    """Queues of other kinds among them: then their payloads."""
    pytest.importorskip("pyarrow")
    dtype = np.dtype([("price", "<f8"), ("queue", "<i4")])
    clock = Clock(7)
    with (
        Queue(tmp_path / "a", page_bytes=SMALL, clock=clock, dtype=dtype) as first,
        Queue(tmp_path / "b", page_bytes=SMALL, clock=clock, dtype=dtype) as second,
        Queue(tmp_path / "c", page_bytes=SMALL, clock=clock) as third,
    ):
        for number, queue in enumerate((first, second)):
            with queue.producer() as producer:
                producer.send_many(np.array([(1.5, number), (2.5, number)], dtype))
        fill(third, [8])
        table = merge([second, first], names=["b", "a"]).receive_many().to_arrow()
        assert table.schema.names == ["queue_name", "sequence", "timestamp", "price", "queue"]
        assert table["queue"].to_pylist() == [1, 1, 0, 0]
        assert table["queue_name"].to_pylist() == ["b", "b", "a", "a"]
        table = merge([first, third]).receive_many().to_arrow()
        assert [len(payload) for payload in table["payload"].to_pylist()] == [12, 12, 1]
