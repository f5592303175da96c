"""Tuples and dicts as records: what NumPy would cut or wrap is refused, and its field named."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from pagequeue import NotEncodable, Queue
from pagequeue.columns.record_values import records_of_values

if TYPE_CHECKING:
    from pathlib import Path

TRADE = np.dtype([("symbol", "S4"), ("price", "<f4"), ("size", "<u2")])
WIDE = np.dtype(
    [
        ("note", "<U3"),
        ("place", [("x", "<f8"), ("alive", "?")]),
        ("sizes", "<i2", (2,)),
        ("time", "<M8[us]"),
        ("day", "<M8[D]"),
        ("took", "<m8[ms]"),
        ("raw", "V2"),
        ("z", "<c8"),
        ("nano", "<M8[ns]"),
    ],
    align=True,
)
NOON = datetime(2026, 3, 1, 12, 0, 0, 7, tzinfo=UTC)


class Trade(NamedTuple):
    """A record of the dtype TRADE."""

    symbol: bytes
    price: float
    size: int


def wide(**changed: object) -> dict[str, object]:
    """Return a record of the dtype WIDE."""
    record = {
        "note": "abc",
        "place": (1.5, True),
        "sizes": [1, 2],
        "time": NOON,
        "day": date(2026, 3, 1),
        "took": timedelta(milliseconds=5),
        "raw": b"xy",
        "z": 1 + 2j,
        "nano": 1_000,
    }
    return {**record, **changed}


@pytest.mark.parametrize("is_async", [False, True])
def test_record_is_sent_as_tuple_or_dict(tmp_path: Path, *, is_async: bool) -> None:
    """Alone and in batches, the same bytes as NumPy's records of them; publish takes them too."""
    expected = np.array([(b"ab", 1.1, 5)] * 8, TRADE)
    values: list[Any] = [
        (b"ab", 1.1, 5),
        Trade(b"ab", 1.1, 5),
        {"size": 5, "symbol": b"ab", "price": 1.1},
        {"size": np.uint8(5), "symbol": np.bytes_(b"ab"), "price": np.float32(1.1)},
    ]
    with Queue(tmp_path, page_bytes=1 << 16, dtype=TRADE) as queue, queue.producer() as producer:

        async def send() -> None:
            for value in values:
                await producer.send_async(value)
            await producer.send_many_async(iter(values))

        if is_async:
            asyncio.run(send())
        else:
            for value in values:
                producer.send(value)
            producer.send_many(values)
        assert queue.last(8).to_numpy().tobytes() == expected.tobytes()
        queue.publish("import", 1, values)
        assert queue.last(4).to_numpy().tobytes() == expected[:4].tobytes()
        mixed = [values[0], expected[0], expected[0].tobytes(), values[2]]
        producer.send_many(mixed)
        assert queue.last(4).to_numpy().tobytes() == expected[:4].tobytes()


def test_every_kind_of_field_is_converted() -> None:
    """Also records inside records, arrays, and aware times, which become UTC."""
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    (record,) = records_of_values([wide(time=east, place={"alive": False, "x": 2})], WIDE)
    assert record["note"] == "abc"
    assert record["place"].item() == (2.0, False)
    assert record["sizes"].tolist() == [1, 2]
    assert record["time"].item() == NOON.replace(tzinfo=None)
    assert record["day"].item() == date(2026, 3, 1)
    assert record["took"].item() == timedelta(milliseconds=5)
    assert record["raw"].tobytes() == b"xy"
    assert record["z"] == 1 + 2j
    assert record["nano"] == np.datetime64(1_000, "ns")


def test_floats_may_be_rounded_and_unset() -> None:
    """What every float does; times may be unset too."""
    rows = [(b"", 0.1, 0), (b"", float("nan"), 1), (b"", float("inf"), 2), (b"", 2**30 + 1, 3)]
    found = records_of_values(rows, TRADE)["price"]
    assert np.array_equal(found, np.array([0.1, np.nan, np.inf, 2**30], np.float32), equal_nan=True)
    (record,) = records_of_values([wide(time=np.datetime64("NaT"))], WIDE)
    assert np.isnat(record["time"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("symbol", "ab"),
        ("symbol", b"abcde"),
        ("symbol", None),
        ("symbol", [b"a"]),
        ("price", "1.5"),
        ("price", 1j),
        ("price", 1e300),
        ("price", None),
        ("price", [1.0]),
        ("size", -1),
        ("size", 1 << 16),
        ("size", 1 << 70),
        ("size", 1.5),
        ("size", "1"),
        ("size", float("nan")),
        ("size", object()),
    ],
)
def test_field_that_cannot_hold_its_value_is_named(
    tmp_path: Path, field: str, value: object
) -> None:
    """Nothing is cut, wrapped or parsed; in a batch the record is named too, and none is sent."""
    good = {"symbol": b"ab", "price": 1.5, "size": 5}
    bad = {**good, field: value}
    with Queue(tmp_path, page_bytes=1 << 16, dtype=TRADE) as queue, queue.producer() as producer:
        with pytest.raises(NotEncodable, match=f"field '{field}' is .*cannot hold; no message"):
            producer.send(bad)
        with pytest.raises(NotEncodable, match=f"field '{field}' of record 1 is"):
            producer.send_many([good, bad, good])
        assert len(queue) == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"note": "abcd"}, "field 'note'"),
        ({"note": b"abc"}, "field 'note'"),
        ({"place": (1.5, 1)}, "field 'place.alive'"),
        ({"place": (1.5,)}, "field 'place' has 1 values for 2 fields"),
        ({"place": {"x": 1.5}}, r"field 'place' has no value for \['alive'\]"),
        ({"place": 1.5}, "field 'place' is 1.5, not a record"),
        ({"sizes": [1, 2, 3]}, "field 'sizes'"),
        ({"sizes": [1, 1 << 15]}, "field 'sizes'"),
        ({"sizes": 1}, "field 'sizes'"),
        ({"time": "soon"}, "field 'time'"),
        ({"day": NOON}, "field 'day'"),
        ({"took": timedelta(microseconds=5)}, "field 'took'"),
        ({"raw": b"xyz"}, "field 'raw'"),
        ({"other": 1}, r"the record has unknown \['other'\]"),
    ],
)
def test_other_kinds_of_fields_are_named_too(changed: dict[str, object], told: str) -> None:
    """With the path of a field inside a record."""
    with pytest.raises(NotEncodable, match=told):
        records_of_values([wide(**changed)], WIDE)


@pytest.mark.parametrize("value", ["text", [b"ab", 1.5, 5], 5, 1.5, None, True])
def test_what_is_no_record_is_told_the_fields(tmp_path: Path, value: Any) -> None:  # noqa: ANN401
    """The error is a TypeError, and names what to send."""
    with Queue(tmp_path, page_bytes=1 << 16, dtype=TRADE) as queue, queue.producer() as producer:
        for call in (lambda: producer.send(value), lambda: producer.send_many([value])):
            with pytest.raises(TypeError, match=r"a tuple or a dict of the fields \['symbol'"):
                call()
        with pytest.raises(NotEncodable, match="has 2 values for 3 fields"):
            producer.send((b"ab", 1.5))
        assert len(queue) == 0


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        ("text", "codec='utf-8'"),
        ({"a": 1}, "codec='json' for objects, or with dtype="),
        ((1, 2.5), "codec='json' for objects, or with dtype="),
        ([1, 2.5], "codec='json' for objects, or with dtype="),
        (None, "codec="),
        (5, "codec="),
    ],
)
def test_queue_of_bytes_names_the_option_that_takes_the_value(
    tmp_path: Path,
    value: Any,  # noqa: ANN401
    remedy: str,
) -> None:
    """In each form of sending; no message is sent."""
    with Queue(tmp_path, page_bytes=1 << 16) as queue, queue.producer() as producer:
        for call in (
            lambda: producer.send(value),
            lambda: producer.send_many([b"x", value]),
            lambda: asyncio.run(producer.send_async(value)),
            lambda: queue.publish("import", 1, [value]),
        ):
            with pytest.raises(TypeError, match=f"not '{type(value).__name__}'.*{remedy}"):
                call()
        assert len(queue) == 0
