"""Fixed records go in as arrays and tables, and come out as one view and as columns."""

from __future__ import annotations

import array
import asyncio
import mmap
import pickle
import tempfile
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import Clock

from pagequeue import (
    DtypeMismatch,
    NotEncodable,
    Queue,
    RecordSize,
)
from pagequeue.format import INDEX_RECORD

if TYPE_CHECKING:
    from pathlib import Path


pa = pytest.importorskip("pyarrow")

RECORD = np.dtype([("time", "<M8[us]"), ("symbol", "S6"), ("price", ">f8"), ("sizes", "<i4", (3,))])
WIDE = np.dtype(
    [
        ("id", "<u4"),
        ("note", "<U5"),
        ("place", [("x", "<f4"), ("alive", "?")]),
        ("raw", "V3"),
        ("day", "<M8[D]"),
        ("took", "<m8[ms]"),
        ("grid", "<i2", (2, 2)),
    ],
    align=True,
)


def filled(dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """Return records whose bytes differ, with text that is text and truths that are 0 or 1."""
    made = np.zeros(count, dtype)
    numbers = np.random.default_rng(1)
    for name in made.dtype.names or ():
        part = made[name]
        if part.dtype.names is not None:
            made[name] = filled(part.dtype, count)
        elif part.dtype.kind in "SU":
            start = "ab\0ü" if part.dtype.kind == "U" else "ab"
            made[name] = [f"{start}{i}"[:5] for i in range(count)]
        elif part.dtype.kind == "V":
            made[name] = [bytes([i % 256, 0, 7])[: part.dtype.itemsize] for i in range(count)]
        elif part.dtype.kind == "b":
            made[name] = numbers.integers(0, 2, part.shape)
        elif part.dtype.kind in "mM":
            made[name] = np.arange(count).astype(part.dtype)
        else:
            made[name] = numbers.integers(0, 100, part.shape)
    return made


def table_of(records: np.ndarray[Any, Any]) -> Any:  # noqa: ANN401
    """Return records as a table of Arrow, by the way of a queue."""
    with tempfile.TemporaryDirectory() as path, Queue(path, dtype=records.dtype) as queue:
        with queue.producer() as producer:
            producer.send_many([record.tobytes() for record in records])
        return pa.table(queue.last(len(records))).select(list(records.dtype.names or ()))


@pytest.mark.parametrize("dtype", [RECORD, WIDE], ids=["record", "wide"])
def test_records_go_in_and_out_in_columns(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    """From an array, strided and backwards, and from a table; out as one view and as a table."""
    records = filled(dtype, 50)
    table = table_of(records)
    turned = table.select(list(reversed(table.column_names)))
    with Queue(tmp_path, dtype=dtype) as queue, queue.producer() as producer:
        for given_, expected in [
            (records, records),
            (records[::-3], records[::-3]),
            (records.view(np.recarray), records),
            (table, records),
            (turned, records),
            (table.slice(7, 9), records[7:16]),
            (pa.concat_tables([table[:20], table[20:]]), records),
            (table.to_batches()[0], records),
            (table.to_struct_array(), records),
            (list(records), records),
            (records[:0], records[:0]),
        ]:
            told = producer.send_many(given_)
            found = queue.last(len(told))
            assert (found.to_numpy() == expected).all(), type(given_)
            assert found.to_numpy().dtype == dtype
        assert pa.table(queue.last(50)[50:]).num_rows == 0
        assert pa.table(queue.batches(sequence=0))[:50].select(table.column_names) == table


def test_rows_are_written_byte_for_byte_as_a_list_is(tmp_path: Path) -> None:
    """For every input type the page has the same bytes, except the checksums (queue id)."""
    records = filled(WIDE, 70)
    pages = []
    for name, payloads in {
        "list": [record.tobytes() for record in records],
        "array": records,
        "table": table_of(records),
    }.items():
        clock = Clock(1000)
        with Queue(tmp_path / name, dtype=WIDE, page_bytes=1 << 16, clock=clock) as queue:
            with queue.producer() as producer:
                producer.send_many(payloads)
            page = bytearray((tmp_path / name / "queue-0000000001.page").read_bytes())
            index = np.fromfile(tmp_path / name / "queue-0000000001.idx", INDEX_RECORD)
            for position in index["position"][:70].tolist():
                page[position + 4 : position + 8] = bytes(4)
            pages.append(bytes(page[64:]))
    assert pages[0] == pages[1] == pages[2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop_columns(["price"]), "price"),
        (lambda t: t.append_column("more", t["price"]), "more"),
        (lambda t: t.rename_columns(["a", "b", "c", "d"]), "fields"),
        (lambda t: t.set_column(2, "price", pa.array(["x"] * len(t))), "'price'"),
        (lambda t: t.set_column(2, "price", pa.array([None] * len(t), pa.float64())), "nulls"),
        (lambda t: t.set_column(1, "symbol", pa.array([b"seven b"] * len(t))), "7 bytes"),
        (
            lambda t: t.set_column(
                3, "sizes", pa.array([[1, 2]] * len(t), pa.list_(pa.int32(), 2))
            ),
            "fixed_size_list of 3",
        ),
        (
            lambda t: t.set_column(
                3, "sizes", pa.array([[1, 2, None]] * len(t), pa.list_(pa.int32(), 3))
            ),
            "nulls",
        ),
        (
            lambda t: t.set_column(
                3, "sizes", pa.array([[1, 2, 2**40]] * len(t), pa.list_(pa.int64(), 3))
            ),
            "sizes",
        ),
    ],
)
def test_table_of_another_dtype_is_refused(tmp_path: Path, change: Any, words: str) -> None:  # noqa: ANN401
    """Columns match fields by name and must hold all their values: no value is lost silently."""
    table = change(table_of(filled(RECORD, 5)))
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        with pytest.raises(NotEncodable, match=words):
            producer.send_many(table)
        assert len(queue) == 0


def test_wider_integers_and_other_units_fit_if_no_value_is_lost(tmp_path: Path) -> None:
    """A frame of another library has its own habits."""
    table = table_of(filled(RECORD, 5))
    wide = table.set_column(3, "sizes", table["sizes"].cast(pa.list_(pa.int64(), 3)))
    wide = wide.set_column(0, "time", table["time"].cast(pa.timestamp("ns", "UTC")))
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        producer.send_many(wide)
        assert (queue.last(5).to_numpy() == filled(RECORD, 5)).all()


def test_array_of_another_dtype_is_refused(tmp_path: Path) -> None:
    """Also one of the same size; bytes of the right size are records."""
    records = filled(RECORD, 4)
    other = records.astype([*RECORD.descr[:2], ("price", "<f8"), RECORD.descr[3]])
    with Queue(tmp_path, dtype=RECORD) as queue, queue.producer() as producer:
        with pytest.raises(DtypeMismatch, match="astype") as caught:
            producer.send_many(other)
        assert caught.value.dtype == RECORD
        for wrong in (pa.array([b"short"]), np.array([b"short"]), pa.array([b"12"], pa.binary(2))):
            with pytest.raises(RecordSize):
                producer.send_many(wrong)
        assert len(queue) == 0
        whole = [record.tobytes() for record in records]
        producer.send_many(pa.array(whole))
        producer.send_many(pa.array(whole, pa.binary(RECORD.itemsize)))
        assert (queue.last(8).to_numpy() == np.concatenate([records, records])).all()
        with pytest.raises(DtypeMismatch):
            queue.last(1).to_numpy("<f8")


EIGHT = np.dtype([("a", "<i4"), ("s", "S4")])
VALUES: dict[str, Any] = {
    "a float": np.full(3, 1.5),
    "an integer": np.full(3, 7, "<i8"),
    "a time": np.array(["2026-01-01"] * 3, "M8[ns]"),
    "a complex number": np.zeros(3, "<c8"),
    "text": np.array(["ab"] * 3),
    "halves": np.zeros((3, 2), "<f4"),
    "bytes as numbers": np.zeros((3, 8), "u1"),
    "truths": np.zeros((3, 8), "?"),
    "raw halves": np.zeros(3, "V4"),
    "other names": np.zeros(3, [("b", "<i4"), ("s", "S4")]),
    "another order": np.zeros(3, [("s", "S4"), ("a", "<i4")]),
    "other offsets": np.zeros(
        3, {"names": ["a", "s"], "formats": ["<i4", "S4"], "offsets": [4, 0]}
    ),
    "another byte order": np.zeros(3, [("a", ">i4"), ("s", "S4")]),
    "another type": np.zeros(3, [("a", "<u4"), ("s", "S4")]),
    "an array inside": np.zeros(3, [("a", "<i4"), ("s", "S1", (4,))]),
    "objects": np.full(3, 1.5, object),
    "every second": np.full(6, 1.5)[::2],
}
"""Items of eight bytes that are not records."""


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_values_of_the_size_of_a_record_are_not_records(tmp_path: Path, values: Any) -> None:  # noqa: ANN401
    """Whichever call takes them: as an array, one by one, and as a buffer with a format."""
    refused = (DtypeMismatch, NotEncodable)
    one, raised = values[:1], []
    with Queue(tmp_path, dtype=EIGHT) as queue, queue.producer() as producer:
        for send in (
            lambda: producer.send_many(values),
            lambda: producer.send_many(list(values)),
            lambda: asyncio.run(producer.send_many_async(values)),
            lambda: queue.publish("w", 1, values),
            lambda: queue.publish("w", 1, list(values)),
            lambda: producer.send(one),
            lambda: producer.send(one[0]),
            lambda: asyncio.run(producer.send_async(one[0])),
        ):
            with pytest.raises(refused) as caught:
                send()
            raised.append(caught.value)
        if values.dtype.kind in "fic" and values.flags.c_contiguous:
            with pytest.raises(DtypeMismatch, match="format"):
                producer.send(memoryview(one))
        assert len(queue) == 0
    assert all(
        "no message was sent" in str(error) or "one dimension" in str(error) for error in raised
    )


def test_buffer_of_bytes_or_records_is_a_record(tmp_path: Path) -> None:
    """A format of single bytes is that of bytes; others must be that of the dtype."""
    record = np.array([(7, b"seven")], EIGHT)
    data = record.tobytes()
    memory = mmap.mmap(-1, 8)
    memory[:] = data
    given = [
        data,
        bytearray(data),
        memoryview(data),
        memoryview(data).cast("c"),
        array.array("b", data),
        memory,
        pa.py_buffer(data),
        pickle.PickleBuffer(data),
        record,
        record[0],
        np.array(record[0]),
        memoryview(record),
        np.void(data),
        np.bytes_(data),
        np.rec.array(record)[0],
        np.ma.array(record)[0],
    ]
    with Queue(tmp_path, dtype=EIGHT) as queue, queue.producer() as producer:
        for one in given:
            producer.send(one)
        producer.send_many(np.ma.array(record))
        producer.send_many(record.view("V8"))
        producer.send_many([record[0], data, (7, b"seve"), memory])
        found = queue.last(100).to_numpy()
        assert len(found) == len(given) + 6
        assert (found == record[0]).all()
        array_of_doubles = array.array("d", [1.5])
        with pytest.raises(DtypeMismatch, match="format 'd'"):
            producer.send_many([data, array_of_doubles])


def test_masked_fields_are_refused(tmp_path: Path) -> None:
    """A mask has no bytes; what is below it is not what the sender means."""
    records = np.ma.array(np.zeros(3, EIGHT))
    records["a"][1] = np.ma.masked
    with Queue(tmp_path, dtype=EIGHT) as queue, queue.producer() as producer:
        for send in (
            lambda: producer.send_many(records),
            lambda: producer.send_many(list(records)),
            lambda: producer.send(records[1]),
        ):
            with pytest.raises(NotEncodable, match="masked"):
                send()
        producer.send(records[0])
        assert len(queue) == 1


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_series_of_numbers_is_not_records(tmp_path: Path, library: str) -> None:
    """Its items have the size of a record; one of bytes, and a frame of the fields, are sent."""
    module = pytest.importorskip(library)
    record = np.array([(7, b"seve")], EIGHT)
    with Queue(tmp_path, dtype=EIGHT) as queue, queue.producer() as producer:
        for values in ([1.5], [7], ["abcdefgh"]):
            with pytest.raises(NotEncodable):
                producer.send_many(module.Series(values))
        with pytest.raises(NotEncodable, match="'a'"):
            producer.send_many(module.DataFrame({"a": [1.5], "s": [b"seve"]}))
        producer.send_many(module.Series([record.tobytes()]))
        producer.send_many(module.DataFrame({"a": [7], "s": [b"seve"]}))
        assert (queue.last(9).to_numpy() == record[0]).all()
        assert len(queue) == 2


@pytest.mark.parametrize("name", ["s", "u"])
def test_end_that_numpy_takes_for_padding_is_refused(tmp_path: Path, name: str) -> None:
    """It would be cut, and the field cannot hold the value without loss."""
    dtype = np.dtype([("s", "S4"), ("u", "<U4")])
    good = {"s": b"\0a", "u": "\0a"}
    bad = good | {name: b"a\0" if name == "s" else "a\0"}
    with Queue(tmp_path, dtype=dtype) as queue, queue.producer() as producer:
        for payloads in ([bad], pa.Table.from_pylist([good, bad])):
            with pytest.raises(NotEncodable, match=f"{name!r}"):
                producer.send_many(payloads)
        producer.send_many(pa.Table.from_pylist([good, {"s": b"", "u": ""}]))
        producer.send(good)
        assert queue.last(3).to_numpy().tolist() == [(b"\0a", "\0a"), (b"", ""), (b"\0a", "\0a")]


def test_time_of_day_does_not_become_a_day(tmp_path: Path) -> None:
    """Arrow's own cast drops it without a word."""
    with Queue(tmp_path, dtype=[("day", "<M8[D]")]) as queue, queue.producer() as producer:
        midnight = datetime(2026, 1, 2)  # noqa: DTZ001 - NumPy's days have no zone
        with pytest.raises(NotEncodable, match=r"'day'.*times of day"):
            producer.send_many(pa.table({"day": [midnight, midnight.replace(hour=5)]}))
        producer.send_many(pa.table({"day": [midnight]}))
        assert queue.last(1)[0].value["day"] == np.datetime64("2026-01-02")


def test_field_without_a_type_in_arrow_is_named(tmp_path: Path) -> None:
    """NumPy's arrays still work."""
    dtype = np.dtype([("good", "<i4"), ("wave", "<c16")])
    with Queue(tmp_path, dtype=dtype) as queue, queue.producer() as producer:
        producer.send_many(np.zeros(2, dtype))
        with pytest.raises(NotEncodable, match="wave"):
            queue.last(2).to_arrow()
        with pytest.raises(NotEncodable, match="wave"):
            producer.send_many(pa.table({"good": [1], "wave": [2]}))
        assert queue.last(2).to_numpy()["wave"].tolist() == [0, 0]


def test_field_that_is_called_as_our_column_keeps_its_name(tmp_path: Path) -> None:
    """No column is there twice."""
    dtype = np.dtype([("timestamp", "<i8"), ("sequence", "<i8")])
    with Queue(tmp_path, dtype=dtype) as queue, queue.producer() as producer:
        producer.send_many(np.array([(5, 6)], dtype))
        names = pa.table(queue.batches()).column_names
    assert names == ["queue_sequence", "queue_timestamp", "timestamp", "sequence"]


def test_rows_of_a_page_can_be_sent_on(tmp_path: Path) -> None:
    """A view of one queue's page is sent to another without an object for each."""
    records = filled(RECORD, 30)
    with Queue(tmp_path / "a", dtype=RECORD) as a, Queue(tmp_path / "b", dtype=RECORD) as b:
        with a.producer() as producer:
            producer.send_many(records)
        batch = a.last(30)
        with b.producer() as producer:
            producer.send_many(batch.to_numpy(), timestamps=batch.timestamps)
        assert (b.last(30).to_numpy() == records).all()
        assert (b.last(30).timestamps == batch.timestamps).all()


def test_missing_time_stays_missing_both_ways(tmp_path: Path) -> None:
    """NaT becomes null and null NaT, in a column and in lists of it."""
    dtype = np.dtype([("day", "<M8[D]"), ("took", "<m8[ms]", (2,)), ("at", "<M8[ns]")])
    records = np.ones(4, dtype)
    for name in dtype.names or ():
        records[name][1] = "NaT"
    table = table_of(records)
    assert [table[name].null_count for name in ("day", "at")] == [1, 1]
    with Queue(tmp_path, dtype=dtype) as queue, queue.producer() as producer:
        producer.send_many(table)
        assert queue.last(4).to_numpy().tobytes() == records.tobytes()


@pytest.mark.parametrize("day", [2**31, -(2**31), 2**62])
def test_day_beyond_arrows_is_refused(tmp_path: Path, day: int) -> None:
    """Arrow counts days in 32 bits; another day is never made of one."""
    records = np.zeros(3, [("day", "<M8[D]")])
    records["day"][2] = np.datetime64(day, "D")
    with Queue(tmp_path, dtype=records.dtype) as queue, queue.producer() as producer:
        producer.send_many(records)
        with pytest.raises(NotEncodable, match=f"'day' has the day {day} "):
            queue.last(3).to_arrow()
        assert queue.last(2).to_numpy()["day"][1] == np.datetime64(day, "D")
        assert len(queue.between(0, 2**62).to_numpy()) == 3
