"""Queues of records in Spark: a column for each field, to read and to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Queue

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
import pyspark.sql.types as sql
from pyspark.errors import PySparkException

import pagequeue.spark
from pagequeue import errors
from pagequeue.spark.columns import Need, Table, own_name, schema_of
from pagequeue.spark.options import place_options, read_options
from pagequeue.spark.record_columns import column, fits, payloads_of, typed
from pagequeue.spark.source import inferred
from pagequeue.spark.streaming import StreamReader
from pagequeue.spark.writing import shape_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE_BYTES = 4096
TICK = np.dtype([("symbol", "S4"), ("price", "<f8"), ("size", "<u4"), ("at", "<M8[us]")])
EVERYTHING = np.dtype(
    [
        ("u1", "u1"),
        ("u8", ">u8"),
        ("i2", "<i2"),
        ("f2", "<f2"),
        ("f4", ">f4"),
        ("ok", "?"),
        ("ns", "<M8[ns]"),
        ("s", "<M8[s]"),
        ("day", "<M8[D]"),
        ("took", "<m8[ns]"),
        ("text", "<U3"),
        ("bytes", "S3"),
        ("raw", "V2"),
        ("list", "<i4", (2, 3)),
        ("part", [("x", "<u2"), ("at", "<M8[ns]")]),
        ("times", "<M8[ns]", (2,)),
    ]
)


def ticks(first: int, end: int) -> NDArray[np.void]:
    """Return records that tell their number."""
    records = np.zeros(end - first, TICK)
    records["size"] = np.arange(first, end)
    records["price"] = records["size"] / 4
    records["symbol"] = np.where(records["size"] % 2, b"AB", b"C\0D")
    records["at"] = records["size"].astype("M8[us]")
    return records


def fill(directory: Path, records: NDArray[np.void], dtype: np.dtype[Any] = TICK) -> Path:
    """Send records to a queue of small pages."""
    with (
        Queue(directory, page_bytes=PAGE_BYTES, dtype=dtype) as queue,
        queue.producer() as producer,
    ):
        for part in np.array_split(records, -(-len(records) // 30)):
            producer.send_many(part, timestamps=np.full(len(part), int(records["size"][0])))
    return directory


@pytest.mark.slow
def test_records_are_columns_of_their_fields(spark: SparkSession, tmp_path: Path) -> None:
    """Without a schema: our own columns, then one for each field, over all queues of a glob."""
    for number in range(2):
        fill(tmp_path / f"q{number}", ticks(number * 500, number * 500 + 500))
    frame = spark.read.format("pagequeue").load(str(tmp_path / "q*"))
    assert frame.schema.simpleString() == (
        "struct<queue:string,sequence:bigint,timestamp:timestamp,timestamp_ns:bigint,"
        "symbol:binary,price:double,size:bigint,at:timestamp_ntz>"
    )
    rows = sorted((row["size"], row["symbol"], row["price"], row["at"]) for row in frame.collect())
    wanted = ticks(0, 1000)
    assert rows == [
        (tick["size"], tick["symbol"], tick["price"], tick["at"].item()) for tick in wanted
    ]
    assert frame.groupBy("symbol").count().count() == 2
    assert frame.count() == 1000


@pytest.mark.slow
def test_a_schema_or_columns_take_some_of_them(spark: SparkSession, tmp_path: Path) -> None:
    """A user's schema builds only what it names; payloads can still be had as bytes."""
    fill(tmp_path / "q", ticks(0, 100))
    frame = spark.read.format("pagequeue").schema("size bigint, sequence bigint")
    assert [tuple(row) for row in frame.load(str(tmp_path / "q")).orderBy("size").collect()] == [
        (number, number) for number in range(100)
    ]
    read = pagequeue.spark.read(spark, tmp_path / "q", columns=["payload", "price"], until=10**18)
    assert {bytes(row.payload) for row in read.collect()} == {
        tick.tobytes() for tick in ticks(0, 100)
    }
    refused = {"other bigint": "unknown column 'other'", "size int": "has type bigint"}
    for columns, text in refused.items():
        with pytest.raises(PySparkException, match=text):
            spark.read.format("pagequeue").schema(columns).load(str(tmp_path / "q")).collect()


def test_queues_of_different_dtypes_do_not_make_a_table(tmp_path: Path) -> None:
    """The error names both, and the remedy; no dtype is guessed."""
    fill(tmp_path / "a", ticks(0, 10))
    Queue(tmp_path / "b", page_bytes=PAGE_BYTES).close()
    place = place_options({"path": str(tmp_path / "*"), "since": "nonsense"})
    with pytest.raises(errors.DtypeMismatch, match="read the queues apart"):
        inferred(place)
    assert inferred(place_options({"path": str(tmp_path / "none*")})) == schema_of()
    assert inferred(place_options({"path": str(tmp_path / "none")})) == schema_of()


@pytest.mark.slow
def test_a_table_of_different_dtypes_has_their_common_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With a schema each queue gives the columns that it names."""
    fill(tmp_path / "a", ticks(0, 10))
    with Queue(tmp_path / "b", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"plain")
    frame = spark.read.format("pagequeue").schema("payload binary").load(str(tmp_path / "*"))
    assert b"plain" in {bytes(row.payload) for row in frame.collect()}
    assert frame.count() == 11


@pytest.mark.slow
def test_a_stream_of_records_has_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Read as a stream and written as one, into a queue of the same records, once each."""
    fill(tmp_path / "q", ticks(0, 300))
    Queue(tmp_path / "copy", page_bytes=PAGE_BYTES, dtype=TICK).close()
    stream = spark.readStream.format("pagequeue").load(str(tmp_path / "q"))
    for _ in range(2):
        query = (
            stream.select("timestamp_ns", *TICK.names or ())
            .writeStream.format("pagequeue")
            .option("path", str(tmp_path / "copy"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    with Queue(tmp_path / "copy", read_only=True) as queue, queue.batches() as batches:
        copied = np.concatenate([batch.to_numpy() for batch in batches])
        assert queue.verify().ok
    assert np.array_equal(np.sort(copied, order="size"), ticks(0, 300))


def test_a_stream_fails_when_a_queue_of_another_dtype_joins(tmp_path: Path) -> None:
    """The columns were fixed when the stream was created."""
    fill(tmp_path / "a", ticks(0, 10))
    options = {"path": str(tmp_path / "*")}
    reader = StreamReader(
        read_options(options, streaming=True), Table(inferred(place_options(options)))
    )
    with Queue(tmp_path / "b", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"plain")
    end = reader.reportLatestOffset()
    with pytest.raises(errors.InvalidOption, match="unknown column 'symbol'"):
        reader.partitions(dict.fromkeys(end, 0), end)


@pytest.mark.slow
def test_records_are_written_from_columns(spark: SparkSession, tmp_path: Path) -> None:
    """By name, in any order, integers of any width; times are kept."""
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES, dtype=TICK).close()
    frame = spark.range(0, 500, 1, 2).selectExpr(
        "timestamp_micros(id) at",
        "cast(id as int) size",
        "id / 4 price",
        "cast('AB' as binary) symbol",
        "id timestamp_ns",
    )
    frame.write.format("pagequeue").mode("append").save(str(tmp_path / "q"))
    with Queue(tmp_path / "q") as queue:
        assert queue.verify().ok
        whole = queue.last(500).to_numpy()
        assert list(queue.last(500).timestamps) == list(range(500))
    wanted = ticks(0, 500)
    wanted["symbol"] = b"AB"
    assert np.array_equal(whole, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql_text", "text"),
    [
        ("id size", "the fields of the queue's records"),
        ("'x' size, 1D price, cast('AB' as binary) symbol, timestamp_micros(id) at", "cast it"),
        ("id - 1 size, 1D price, cast('A' as binary) symbol, timestamp_micros(id) at", "not hold"),
        ("id size, 1D price, cast('ABCDE' as binary) symbol, timestamp_micros(id) at", "cut them"),
        (
            (
                "if(id = 7, null, id) size, 1D price, cast('A' as binary) symbol, "
                "timestamp_micros(id) at"
            ),
            "null",
        ),
        ("cast('abc' as binary) payload", "is not a record"),
    ],
)
def test_value_that_is_not_a_record_is_refused(
    spark: SparkSession, tmp_path: Path, sql_text: str, text: str
) -> None:
    """With a remedy, and no row is there."""
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES, dtype=TICK).close()
    frame = spark.sql(f"select {sql_text} from range(10)")
    with pytest.raises(PySparkException, match=text):
        frame.write.format("pagequeue").mode("append").save(str(tmp_path / "q"))
    with Queue(tmp_path / "q") as queue:
        assert len(queue) == 0


# --- without Spark's processes --------------------------------------------------------------------


def test_every_type_of_field_has_a_column_and_survives() -> None:
    """Times finer than microseconds are rounded down; all else is as it was."""
    records = np.zeros(4, EVERYTHING)
    records["u1"], records["u8"], records["i2"] = 255, 2**64 - 1, -3
    records["f2"], records["f4"], records["ok"] = 0.5, -2.25, True
    records["ns"] = np.array([-1, 0, 1999, 10**18], "M8[ns]")
    records["s"] = np.datetime64(1_700_000_000, "s")
    records["day"], records["took"] = np.datetime64(-5, "D"), np.timedelta64(7000, "ns")
    records["text"], records["bytes"], records["raw"] = "hé", b"a\0b", b"\0\1"
    records["list"] = np.arange(24).reshape(4, 2, 3)
    records["part"]["x"], records["part"]["at"] = 65535, records["ns"]
    records["times"] = records["ns"][:, np.newaxis]
    names = list(EVERYTHING.names or ())
    kinds = [typed(EVERYTHING[name], name) for name in names]
    arrays = [column(records, name, kind.arrow) for name, kind in zip(names, kinds, strict=True)]
    assert [array.type for array in arrays] == [kind.arrow for kind in kinds]
    assert arrays[names.index("ns")].cast(pa.int64()).to_pylist() == [-1, 0, 1, 10**15]
    assert all(fits(kind.spark, kind.spark) for kind in kinds)
    payloads = payloads_of(pa.RecordBatch.from_arrays(arrays, names=names), EVERYTHING)
    back = np.frombuffer(b"".join(payloads.to_pylist()), EVERYTHING)
    down = records.copy()
    for field in (down["ns"], down["times"], down["part"]["at"]):
        field[:] = field.astype("M8[us]")
    for name in names:
        assert np.array_equal(back[name], down[name])


def test_our_own_columns_give_way_to_fields() -> None:
    """A field keeps its name, also one that only differs in case, as Spark compares."""
    dtype = np.dtype([("Sequence", "<i4"), ("payload", "<i4"), ("queue", "<i4")])
    assert schema_of(dtype=dtype).names == [
        "queue_queue",
        "queue_sequence",
        "timestamp",
        "timestamp_ns",
        "Sequence",
        "payload",
        "queue",
    ]
    table = Table(sql.StructType([sql.StructField("queue_sequence", sql.LongType())]))
    assert table.layout(dtype).need is Need.NOTHING
    assert own_name("payload", dtype) == "queue_payload"
    only = np.dtype([("payload", "<i4")])
    fields = sql.StructType([sql.StructField("payload", sql.IntegerType())])
    assert shape_of(fields, only).dtype == only
    raw = sql.StructType([sql.StructField("queue_payload", sql.BinaryType())])
    assert (shape_of(raw, only).dtype, shape_of(raw, only).payload) == (None, "queue_payload")


def test_a_field_without_a_spark_type_is_named(tmp_path: Path) -> None:
    """The other columns of such a queue can still be read, with a schema of them."""
    with pytest.raises(errors.NotEncodable, match="field 'z'"):
        typed(np.dtype("<c8"), "z")
    far = np.zeros(1, [("s", "<M8[s]")])
    far["s"] = np.datetime64(2**50, "s")
    with pytest.raises(errors.NotEncodable, match="does not hold"):
        column(far, "s", pa.timestamp("us"))
    odd = np.dtype([("z", "<c8"), ("size", "<u4")])
    fill(tmp_path / "q", np.zeros(3, odd), odd)
    place = place_options({"path": str(tmp_path / "q")})
    with pytest.raises(errors.NotEncodable, match="field 'z'"):
        inferred(place)
    assert inferred(place, ["payload", "size"]).names == ["payload", "size"]
