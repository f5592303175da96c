"""Arrays sent in one call are the messages that a list of the same payloads is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiers import examples

from pagequeue import (
    ClosedError,
    InvalidOption,
    MissingExtra,
    NotEncodable,
    Queue,
    Retention,
    TimestampOrder,
    _core,
)
from pagequeue.columns import inputs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pagequeue import Producer

pa = pytest.importorskip("pyarrow")

PAYLOADS = st.lists(st.binary(max_size=40), max_size=20)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Give a queue of bytes with small pages."""
    with Queue(tmp_path, page_bytes=1 << 16) as opened:
        yield opened


def sent(queue: Queue) -> list[bytes]:
    """Return all payloads."""
    return [message.payload for message in queue.replay()]


# --- arrays of bytes ------------------------------------------------------------------------------


def shapes(payloads: list[bytes]) -> dict[str, Any]:
    """Return the same payloads as every kind of array that can hold them."""
    half = len(payloads) // 2
    made: dict[str, Any] = {
        name: pa.array(payloads, kind)
        for name, kind in {
            "binary": pa.binary(),
            "large": pa.large_binary(),
            "view": pa.binary_view(),
        }.items()
    }
    made |= {
        f"{name} sliced": pa.array([b"before", *payloads, b"after"], made[name].type)[1:-1]
        for name in tuple(made)
    }
    made["chunked"] = pa.chunked_array(
        [pa.array(part, pa.binary()) for part in (payloads[:half], [], payloads[half:])]
    )
    if payloads and len(set(map(len, payloads))) == 1 and payloads[0]:
        made["fixed"] = pa.array(payloads, pa.binary(len(payloads[0])))
        made["void"] = np.array(payloads, f"V{len(payloads[0])}")
        made["pieces"] = pa.chunked_array([made["fixed"][:1], made["fixed"][1:]])
    return made


@given(
    st.one_of(
        PAYLOADS,
        st.integers(1, 30).flatmap(
            lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=20)
        ),
    )
)
@settings(max_examples=examples(60))
def test_arrow_arrays_are_sent_as_their_list_is(payloads: list[bytes]) -> None:
    """Offsets of either width, views, slices, chunks: the same messages as one by one."""
    with (
        tempfile.TemporaryDirectory() as path,
        Queue(path, page_bytes=1 << 16) as queue,
        queue.producer() as producer,
    ):
        for name, array in shapes(payloads).items():
            told = producer.send_many(array)
            assert len(told) == len(payloads), name
            got = [] if not payloads else queue.last(len(payloads)).payloads
            assert got == payloads, name


@pytest.mark.slow
@given(
    arrays.arrays(arrays.byte_string_dtypes(min_len=1, max_len=12), st.integers(0, 20)),
    st.sampled_from([1, -1, 2, -3]),
)
@settings(max_examples=examples(100))
def test_numpy_bytes_are_sent_as_numpy_returns_each(array: np.ndarray[Any, Any], step: int) -> None:
    """Without the zeros at the end, with those inside; also strided and backwards."""
    with (
        tempfile.TemporaryDirectory() as path,
        Queue(path, page_bytes=1 << 16) as queue,
        queue.producer() as producer,
    ):
        producer.send_many(array[::step])
        assert sent(queue) == [bytes(item) for item in array[::step]]


def test_text_is_sent_as_utf8(queue: Queue) -> None:
    """Arrow's strings are bytes already; a dictionary's values are meant."""
    words = ["grüß", "", "a word of more than twelve bytes"]
    with queue.producer() as producer:
        for kind in (pa.string(), pa.large_string(), pa.string_view()):
            producer.send_many(pa.array(words, kind))
        producer.send_many(pa.array(words).dictionary_encode())
    assert sent(queue) == [word.encode() for word in words] * 4


def test_text_queue_takes_only_arrow_strings(tmp_path: Path) -> None:
    """Bytes are refused: they need not be valid text."""
    with Queue(tmp_path, codec="utf-8") as queue, queue.producer() as producer:
        producer.send_many(pa.array(["a", "ü"]))
        with pytest.raises(NotEncodable):
            producer.send_many(pa.array([b"\xff"]))
        assert [message.value for message in queue.replay()] == ["a", "ü"]


def test_other_iterables_are_sent_one_by_one(queue: Queue) -> None:
    """Rows of bytes, single values, generators, other arrays."""
    numbers = np.arange(6, dtype=np.uint8).reshape(3, 2)
    with queue.producer() as producer:
        producer.send_many(numbers)
        producer.send_many(np.arange(2, dtype="<u2"))
        producer.send_many(iter([b"a", bytearray(b"b")]))
    assert sent(queue) == [b"\0\1", b"\2\3", b"\4\5", b"\0\0", b"\1\0", b"a", b"b"]


@pytest.mark.parametrize(
    "wrong",
    [
        pa.array([b"a", None]),
        pa.chunked_array([[b"a"], [None]], pa.binary()),
        pa.array([1, 2]),
        pa.table({"payload": [b"a"]}),
        pa.array([{"payload": b"a"}]),
        np.array([object()], [("a", "O")]),
        np.ma.masked_array(np.array([b"a", b"b"]), [False, True]),
        pa.array([b""], pa.binary(0)),
    ],
    ids=lambda wrong: f"{type(wrong).__name__} {getattr(wrong, 'type', '')}",
)
def test_array_that_is_not_of_payloads_is_refused(queue: Queue, wrong: object) -> None:
    """Nulls, numbers and tables: no message is sent."""
    with queue.producer() as producer, pytest.raises(NotEncodable):
        producer.send_many(wrong)
    assert len(queue) == 0


@pytest.mark.parametrize("offsets", [[0, 2, 1], [0, 1, 9], [-1, 1, 2], [3, 3, 3]])
@pytest.mark.parametrize("width", ["<i4", "<i8"])
def test_array_that_lies_about_its_bytes_is_refused(
    queue: Queue, offsets: list[int], width: str
) -> None:
    """I9: no byte outside an array's buffers is read, even if its offsets are wrong."""
    told, layout = np.array(offsets, width).tobytes(), "o" if width == "<i4" else "O"
    with queue.producer() as producer:
        for first, count in ((0, 2), (0, 9), (1, 2), (2**61, 1)):
            with pytest.raises(ValueError, match="broken"):
                producer._send_spans(((layout, first, count, (told, b"ab")),), count, None)
    assert len(queue) == 0


@pytest.mark.parametrize(
    "words",
    [
        [-1, 0, 0, 0],
        [13, 0, 1, 0],
        [13, 0, -1, 0],
        [13, 0, 0, 9],
        [13, 0, 0, -1],
        [2**31 - 1, 0, 0, 0],
    ],
)
def test_views_that_lie_are_refused(queue: Queue, words: list[int]) -> None:
    """I9: the same for views."""
    view = np.array(words, "<i4").tobytes()
    with queue.producer() as producer, pytest.raises(ValueError, match="broken"):
        producer._send_spans((("v", 0, 1, (view, bytes(20))),), 1, None)


def test_core_checks_the_shapes_that_it_is_given(queue: Queue) -> None:
    """I9: the core validates the arguments of the layers above, too."""
    with queue.producer() as producer:
        for columns, row_bytes in [
            (((b"abc", 0), (b"ab", 1)), 2),
            (((b"abc", 2),), 2),
            (((b"abc", 2**63),), 2),
            (((np.zeros((2, 2)), 0),), 8),
            (((np.zeros(2), 0),), 4),
        ]:
            with pytest.raises(ValueError, match="fit into a row"):
                producer._send_rows(columns, row_bytes, None)
        for parts, count in [
            ((("S", 0, 2, (np.zeros(1, "V4"),)),), 2),
            ((("o", 2**63, 2, (b"", b"")),), 2),
            ((("o", 0, 2, (b"",)),), 2),
            ((("v", 0, 1, ()),), 1),
            ((("S", 0, 1, (np.zeros(1, "V4"),)),), 2),
            ((("S", 0, 3, (np.zeros(3, "V4"),)),), 2),
            ((("x", 0, 1, (b"",)),), 1),
        ]:
            with pytest.raises(ValueError, match=r"broken|layout"):
                producer._send_spans(parts, count, None)
        with pytest.raises(ValueError, match="one for each"):
            producer._send_rows(((b"ab", 0),), 1, bytes(8))
        with pytest.raises(MemoryError):
            producer._send_spans((), 2**63, None)
        assert producer._send_rows((), 4, None) is None
        assert len(queue) == 0


# --- atomicity ------------------------------------------------------------------------------------


def all_shapes(count: int) -> list[Any]:
    """Return so many messages of 100 bytes in every shape."""
    data = [b"x" * 100] * count
    return [
        data,
        np.array(data),
        np.array(data, "V100"),
        pa.array(data),
        pa.array(data, pa.binary(100)),
    ]


@pytest.mark.parametrize("shape", range(5))
def test_rows_of_many_pages_are_sent_at_once(queue: Queue, shape: int) -> None:
    """I19: they are one run of sequences, in pages of their own."""
    with queue.producer() as producer:
        assert producer.send_many(all_shapes(3000)[shape]) == range(3000)
        assert producer.send_many(all_shapes(10)[shape]) == range(3000, 3010)
    assert [len(message.payload) for message in queue.replay()] == [100] * 3010
    assert queue.info().page_count > 4
    assert queue.verify().ok


def test_rows_beyond_the_index_take_more_pages(queue: Queue) -> None:
    """Small messages: the index is full first. A row larger than a page is a large message."""
    with queue.producer() as producer:
        assert len(producer.send_many(np.zeros(2048, "V1"))) == 2048
        assert len(producer.send_many(np.zeros(5000, "V1"))) == 5000
        assert producer.send_many(np.zeros(2, "V70000")) == range(7048, 7050)
    assert queue.last(1).payloads == [bytes(70000)]


def test_closed_producer_sends_no_rows(queue: Queue) -> None:
    """Not even none of them."""
    producer = queue.producer()
    producer.close()
    for rows_ in (np.array([b"a"]), np.zeros(2, "V4"), np.zeros(0, "V4"), pa.array([b"a"])):
        with pytest.raises(ClosedError):
            producer.send_many(rows_)


def test_rows_keep_sync_modes_and_retention(tmp_path: Path) -> None:
    """What is sent in columns counts as what is sent one by one."""
    retention = Retention(max_bytes=4 << 16)
    with Queue(tmp_path, page_bytes=1 << 16, sync=50, retention=retention) as queue:
        with queue.producer() as producer:
            for i in range(200):
                told = producer.send_many(np.full(120, i, "<i8").view("V8"))
                assert queue.durable_sequence == told.stop
        queue.trim()
        assert queue.head_sequence > 0
        assert queue.last(1).payloads == [(199).to_bytes(8, "little")]


def test_missing_pyarrow_is_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Arrow array of another library, without pyarrow, raises an error naming the extra."""

    class Foreign:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise AssertionError

    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with queue.producer() as producer, pytest.raises(MissingExtra, match=r"\[arrow\]"):
        producer.send_many(Foreign())


# --- times ----------------------------------------------------------------------------------------

TIMES = [5, 5, 6, 1 << 40]


def all_times() -> list[Any]:
    """Return the same times in every shape."""
    return [
        TIMES,
        iter(TIMES),
        np.array(TIMES),
        np.array(TIMES, np.uint64),
        np.array(TIMES, "M8[ns]"),
        pa.array(TIMES),
        pa.array(TIMES, pa.timestamp("ns", "UTC")),
        np.array([*TIMES, 0])[:4],
    ]


@pytest.mark.quick_each(7)
@pytest.mark.parametrize("shape", range(5))
@pytest.mark.parametrize("form", range(8))
def test_messages_of_one_call_have_the_times_that_are_given(
    queue: Queue, shape: int, form: int
) -> None:
    """I1: and what follows is not earlier."""
    with queue.producer() as producer:
        producer.send_many(all_shapes(4)[shape], timestamps=all_times()[form])
        assert queue.last(4).timestamps.tolist() == TIMES
        assert queue._store.tail.last_timestamp == TIMES[-1]
        assert [m.sequence for m in queue.replay(since=6)] == [2, 3]
        assert [m.sequence for m in queue.replay(until=6)] == [0, 1]
        producer.send(b"now")
    assert queue.last(1).timestamps[0] > TIMES[-1]
    assert queue.verify().ok


@pytest.mark.parametrize("shape", range(5))
def test_decreasing_times_are_refused(queue: Queue, shape: int) -> None:
    """I1: decreasing, older than the last one, before 1970, or too few: no message is sent."""
    with queue.producer() as producer:
        producer.send(b"", timestamp=100)
        for times, error in [
            ([200, 199, 201, 202], TimestampOrder),
            ([99, 200, 201, 202], TimestampOrder),
            ([-1, 200, 201, 202], ValueError),
            ([200, 201, 202], ValueError),
            ([2**63, 2**63, 2**63, 2**63], ValueError),
            ([1.5, 2.5, 3.5, 4.5], TypeError),
            ([[200], [201], [202], [203]], TypeError),
            ("abcd", TypeError),
        ]:
            with pytest.raises(error):
                producer.send_many(all_shapes(4)[shape], timestamps=times)
        assert len(queue) == 1
        producer.send_many(all_shapes(0)[0], timestamps=[])


@pytest.mark.parametrize("shape", range(5))
@pytest.mark.parametrize("count", [0, 3, 5])
def test_wrong_number_of_times_is_an_error(queue: Queue, shape: int, count: int) -> None:
    """One time for each message is needed; the error has both counts."""
    with queue.producer() as producer:
        told = f"{count} timestamps for 4 messages; no message was sent: give one for each"
        for payloads in (all_shapes(4)[shape], iter([b"x"] * 4)):
            with pytest.raises(InvalidOption, match=told):
                producer.send_many(payloads, timestamps=range(count))
        with pytest.raises(InvalidOption, match=told):
            asyncio.run(producer.send_many_async(all_shapes(4)[shape], timestamps=range(count)))
    assert not len(queue)


def test_times_changed_by_another_thread_after_the_check_have_no_effect() -> None:
    """They are copied before they are checked."""
    times = np.array([1, 2, 3])
    told = inputs.times_of(times)
    times[:] = 0
    assert told == np.array([1, 2, 3]).tobytes()


@given(st.lists(st.tuples(st.integers(0, 50), st.binary(max_size=9)), min_size=1, max_size=30))
@settings(max_examples=examples(60))
def test_queue_with_many_times_is_found_by_time(told: list[tuple[int, bytes]]) -> None:
    """Since, until and times agree with a list, also inside a batch."""
    told = sorted(told, key=lambda pair: pair[0])
    times = [time for time, _ in told]
    with tempfile.TemporaryDirectory() as path, Queue(path, page_bytes=4096) as queue:
        with queue.producer() as producer:
            producer.send_many(pa.array([data for _, data in told]), timestamps=times)
        for since in range(0, 52, 3):
            expected = [data for time, data in told if time >= since]
            assert [m.payload for m in queue.replay(since=since)] == expected
        assert queue.times()[1].tolist() == times


# --- checksums ------------------------------------------------------------------------------------


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("form", [0, _core.CRC_BEST])
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 12, 15, 100, 3073])
def test_checksums_side_by_side_are_right(tmp_path: Path, size: int, form: int) -> None:
    """Of every count of rows, and of the rest of fewer than are computed together."""
    _core.choose_crc(form)
    try:
        with Queue(tmp_path, page_bytes=1 << 20) as queue:
            producer: Producer
            with queue.producer() as producer:
                for count in range(1, 10):
                    data = np.random.default_rng(count).bytes(count * size)
                    producer.send_many(np.frombuffer(data, f"V{size}"))
                    found = queue.last(count).payloads
                    assert b"".join(found) == data
            _core.choose_crc(_core.CRC_BEST - form)
            assert queue.verify().ok
    finally:
        _core.choose_crc(_core.CRC_BEST)


@pytest.mark.parametrize("unit", ["Y", "D", "s"])
def test_time_beyond_64_bits_of_ns_is_refused(queue: Queue, unit: str) -> None:
    """NumPy's own cast would wrap around, and the message would be from another century."""
    late = np.array(["2600"], f"M8[{unit}]")
    with pytest.raises(InvalidOption, match="outside of 64 bits"):
        queue.producer().send_many([b"a"], timestamps=late)
    with pytest.raises(InvalidOption, match="outside of 64 bits"):
        queue.as_of(late)
    assert len(queue) == 0


def test_masked_times_are_refused(queue: Queue) -> None:
    """A masked element has no valid time; the number under the mask is not used."""
    masked = np.ma.array([10**18], mask=[True])
    with pytest.raises(TypeError, match="masked"):
        queue.producer().send_many([b"a"], timestamps=masked)
    with pytest.raises(InvalidOption, match="masked"):
        queue.as_of(masked)


@pytest.mark.parametrize("array", [np.array(["\u00e9"]), np.array([[b"ab", b"c"]])])
def test_text_and_tables_of_bytes_are_refused(queue: Queue, array: Any) -> None:  # noqa: ANN401
    """Text has no bytes before it is encoded, and a row of a table is no message."""
    with pytest.raises(NotEncodable, match=r"cannot send an? (array|table)"):
        queue.producer().send_many(array)
    assert len(queue) == 0


def test_keys_are_not_sent_for_values(tmp_path: Path) -> None:
    """Iterating over a dict or a data frame gives its keys."""
    with Queue(tmp_path / "json", codec="json") as queue, queue.producer() as producer:
        with pytest.raises(NotEncodable, match="gives only its keys"):
            producer.send_many({"k": 1})
        producer.send_many([{"k": 1}])
        assert next(iter(queue.replay())).value == {"k": 1}


def test_sending_an_array_imports_no_module(tmp_path: Path) -> None:
    """A child forked while another thread imports waits for ever for the lock of that import."""
    code = (
        "import sys, numpy as np; from pagequeue import Queue; q = Queue(sys.argv[1])\n"
        "p = q.producer(); p.send(b'a'); before = set(sys.modules)\n"
        "p.send_many(np.array([b'b'], 'V1'), timestamps=np.array([2 * 10**18]))\n"
        "print(sorted(set(sys.modules) - before))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "q")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"


@pytest.mark.parametrize("bad", [-1, 1 << 63, 1 << 64, 1 << 200, -(1 << 70)])
def test_timestamp_that_63_bits_do_not_hold_is_the_same_typed_error_everywhere(
    tmp_path: Path, bad: int
) -> None:
    """No message is sent, and the error has the remedy."""
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        with pytest.raises(InvalidOption, match="give ns since 1970"):
            producer.send(b"a", timestamp=bad)
        with pytest.raises(InvalidOption, match="give ns since 1970"):
            producer.send_many([b"a"], timestamps=[bad])
        assert len(queue) == 0


def test_shape_of_timestamps_is_told(queue: Queue) -> None:
    """One for all, or rows of them, are a mistake that the error names."""
    with queue.producer() as producer:
        with pytest.raises(TypeError, match="one for each message, not int"):
            producer.send_many([b"a", b"b"], timestamps=5)
        with pytest.raises(TypeError, match="in one dimension, not int64 in 2"):
            producer.send_many([b"a", b"b"], timestamps=np.zeros((1, 2), np.int64))
    assert not len(queue)
