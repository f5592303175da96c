"""What Spark does not give a source in Python: the table of docs/spark.md, and its alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pagequeue import Queue

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def clicks(tmp_path: Path) -> str:
    """Return a queue of two messages."""
    with Queue(tmp_path / "clicks", page_bytes=4096) as queue:
        queue.producer().send_many([b"a", b"b"])
    return str(tmp_path / "clicks")


@pytest.fixture
def view(spark: SparkSession, clicks: str) -> Iterator[str]:
    """Return a view of it, made in SQL."""
    spark.sql(f"create temporary view seen using pagequeue options (path '{clicks}')")
    yield "seen"
    spark.catalog.dropTempView("seen")


def frame(spark: SparkSession, clicks: str) -> DataFrame:
    """Return its payloads."""
    return spark.read.format("pagequeue").load(clicks).select("payload")


def stream(spark: SparkSession, clicks: str, out: Path, mode: str, *, parted: bool = False) -> None:
    """Copy it as a stream, until its end."""
    rows = spark.readStream.format("pagequeue").load(clicks)
    if mode != "append":
        rows = rows.groupBy("payload").count()
    writer = rows.select("payload").writeStream.format("pagequeue").outputMode(mode)
    writer = writer.option("checkpointLocation", f"{out}-checkpoint").option("pageBytes", 4096)
    if parted:
        writer = writer.partitionBy("payload")
    query = writer.trigger(availableNow=True).start(str(out))
    query.awaitTermination()


def test_view_in_sql_is_read(spark: SparkSession, view: str) -> None:
    """The alternative to a table."""
    assert spark.sql(f"select count(*) from {view}").collect()[0][0] == 2


@pytest.mark.parametrize("place", ["location '{}'", "options (path '{}', toSequence 2)"])
def test_table_in_sql_is_read(spark: SparkSession, clicks: str, place: str) -> None:
    """Its options are those of a read; dropping it leaves the queue."""
    spark.sql(f"create table clicked using pagequeue {place.format(clicks)}")
    try:
        found = spark.sql("select payload from clicked where sequence = 1").collect()
        one = spark.sql("select count(*) from clicked with (toSequence = 1)").collect()
    finally:
        spark.sql("drop table clicked")
    assert [bytes(row.payload) for row in found] == [b"b"]
    assert one[0][0] == 1
    with Queue(clicks, read_only=True) as queue:
        assert len(queue) == 2


def test_table_in_sql_and_the_python_source(spark: SparkSession, clicks: str) -> None:
    """The option `reader` is one of the table's."""
    options = f"options (path '{clicks}', reader 'python')"
    spark.sql(f"create table clicked using pagequeue {options}")
    try:
        assert spark.sql("select count(*) from clicked").collect()[0][0] == 2
    finally:
        spark.sql("drop table clicked")


def test_path_in_sql_is_an_error(spark: SparkSession, clicks: str) -> None:
    """Spark knows files there only."""
    with pytest.raises(PySparkException):
        spark.sql(f"select count(*) from pagequeue.`{clicks}`").collect()


def test_insert_is_an_error(spark: SparkSession, view: str) -> None:
    """It asks for the columns of a read."""
    with pytest.raises(PySparkException, match="not enough data columns"):
        spark.sql(f"insert into {view} select payload from {view}").collect()


def test_partitioned_write_is_an_error_and_in_a_stream_is_ignored(
    spark: SparkSession, clicks: str, tmp_path: Path
) -> None:
    """No row is lost by either."""
    writer = frame(spark, clicks).write.format("pagequeue").mode("append").partitionBy("payload")
    with pytest.raises(Exception, match="partitioning"):
        writer.save(str(tmp_path / "batch"))
    stream(spark, clicks, tmp_path / "stream", "append", parted=True)
    with Queue(tmp_path / "stream") as queue:
        assert sorted(message.payload for message in queue.replay()) == [b"a", b"b"]


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_stream_only_appends(spark: SparkSession, clicks: str, tmp_path: Path, mode: str) -> None:
    """A queue only grows; nothing is written."""
    with pytest.raises(PySparkException):
        stream(spark, clicks, tmp_path / "stream", mode)
    assert not list((tmp_path / "stream").glob("*.page"))
