"""Spark's batch read, compared with plain reading of the same queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from support import flip

from pagequeue import Queue, Retention, errors
from pagequeue import format as fmt

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from native_support import rows as all_rows
from native_support import source_reader, source_rows
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from pagequeue import spark as pages

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PAGE_BYTES = 4096
START = 1_700_000_000_000_000_000
COUNT = 500
READERS = ("python", "auto")
"""The default is "auto"."""
HOW = ("fail", "skip")


def fill(directory: Path, count: int = COUNT, label: str = "m", *, first: int = 0) -> Path:
    """Send messages a microsecond and a bit apart."""
    clock = iter(range(START + first * 1001, 1 << 62, 1001))
    options = {"page_bytes": PAGE_BYTES, "clock": lambda: START}
    with Queue(directory, **options) as queue, queue.producer() as producer:
        for number in range(first, first + count):
            producer.send(f"{label}{number}".encode() * 3, timestamp=next(clock))
    return directory


def plain(directory: Path, **options: object) -> list[tuple[int, int, bytes]]:
    """Return sequence, timestamp and payload of all messages, read without Spark."""
    with Queue(directory, read_only=True) as queue:
        return [(m.sequence, m.timestamp, m.payload) for m in queue.replay(**options)]  # type: ignore[arg-type]


PLAIN = ["sequence", "timestamp_ns", "payload"]


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    """Return the same of a frame, in order of queue and sequence."""
    return [row[1:] for row in all_rows(frame.select("queue", *PLAIN))]


def damage(directory: Path) -> Path:
    """Change a byte of a payload in the middle of the second page, which is returned."""
    page = directory / fmt.page_name("queue", 2)
    # Not of a checksum that begins like a payload.
    found = re.compile(rb"(m\d+)\1\1").search(page.read_bytes(), 1500)
    assert found is not None
    flip(page, found.start())
    return page


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of a few pages without writers."""
    return fill(tmp_path_factory.mktemp("read") / "q")


@pytest.mark.parametrize("reader", ["python", "auto"])
def test_all_columns_equal_a_plain_read(spark: SparkSession, filled: Path, reader: str) -> None:
    """The table is the queue: names, sequences, times and payloads, by either reader."""
    frame = pages.read(spark, filled, reader=reader)
    assert frame.columns == ["queue", "sequence", "timestamp", "timestamp_ns", "payload"]
    assert [row[1:2] + row[3:] for row in all_rows(frame)] == plain(filled)
    assert {(row[0], row[2] - row[3] // 1000) for row in all_rows(frame)} == {(str(filled), 0)}


COLUMNS = (["sequence"], ["timestamp_ns"], ["queue", "timestamp"], ["payload", "sequence"])


def subset(rows: list[tuple[Any, ...]], columns: list[str]) -> list[tuple[Any, ...]]:
    """Return some columns of rows of all."""
    names = ["queue", "sequence", "timestamp", "timestamp_ns", "payload"]
    return [tuple(row[names.index(name)] for name in columns) for row in rows]


@pytest.mark.slow
def test_a_subset_of_columns_is_that_of_all(spark: SparkSession, filled: Path) -> None:
    """A user's schema names fewer columns, in any order, or none."""
    whole = all_rows(pages.read(spark, filled))
    for columns in COLUMNS:
        given = pages.read(spark, filled, columns=columns)
        assert given.columns == columns
        assert all_rows(given) == sorted(subset(whole, columns))
    for reader in READERS:
        assert pages.read(spark, filled, reader=reader, columns=[]).count() == COUNT


def test_the_python_source_reads_some_columns(filled: Path) -> None:
    """The same, without Spark."""
    whole = source_rows(filled)
    for columns in COLUMNS:
        assert source_rows(filled, columns) == subset(whole, columns)


@pytest.mark.slow
def test_check_all_finds_damage_that_no_column_needs(spark: SparkSession, tmp_path: Path) -> None:
    """With `check="all"` each message that a query counts is read, without payload too."""
    fill(tmp_path / "q")

    def table(check: str) -> DataFrame:
        return pages.read(spark, tmp_path / "q", columns=["sequence"], check=check)

    assert table("all").count() == COUNT
    page = damage(tmp_path / "q")
    assert table("used").count() == COUNT
    for query in (table("all").count, table("all").agg(f.max("sequence")).collect):
        with pytest.raises(PySparkException, match=rf"{page.name}.*salvage"):
            query()
    with pytest.raises(Exception, match="option check is 'some': give one of columns, used, all"):
        table("some").count()


def test_the_python_source_checks_all_where_it_is_told_to(tmp_path: Path) -> None:
    """The same, without Spark."""
    page = damage(fill(tmp_path / "q"))
    assert len(source_rows(tmp_path / "q", ["sequence"], check="used")) == COUNT
    with pytest.raises(errors.CorruptFrame, match=page.name):
        source_rows(tmp_path / "q", ["sequence"], check="all")


RANGES: list[tuple[dict[str, object], tuple[int, int]]] = [
    ({"fromSequence": 17, "toSequence": 251}, (17, 251)),
    ({"toSequence": 10_000}, (0, COUNT)),
    ({"since": START + 1001 * 40}, (40, COUNT)),
    ({"since": START + 1001 * 40 + 1, "until": START + 1001 * 77}, (41, 77)),
    ({"since": "2023-11-14T22:13:20.000050050Z"}, (50, COUNT)),
    ({"fromSequence": 20, "until": START}, (0, 0)),
    ({"since": START * 2}, (0, 0)),
]


@pytest.mark.slow
def test_ranges_are_inclusive_at_the_beginning_and_not_at_the_end(
    spark: SparkSession, filled: Path
) -> None:
    """Ranges by sequence and by time are those of plain reading."""
    for options, bounds in RANGES:
        frame = pages.read(spark, filled, **options)  # type: ignore[arg-type]
        assert rows(frame) == plain(filled)[slice(*bounds)], options


@pytest.mark.parametrize(("options", "bounds"), RANGES)
def test_ranges_of_the_python_source(
    filled: Path, options: dict[str, object], bounds: tuple[int, int]
) -> None:
    """The same, without Spark."""
    assert source_rows(filled, PLAIN, **options) == plain(filled)[slice(*bounds)]


@pytest.mark.slow
def test_a_read_can_skip_messages_that_are_not_durable(spark: SparkSession, tmp_path: Path) -> None:
    """With `durableOnly` a frame ends where what is on stable storage ends."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many([b"a", b"b"])
        producer.flush()
        producer.send(b"c")
        assert pages.read(spark, tmp_path / "q").count() == 3
        assert pages.read(spark, tmp_path / "q", durableOnly="true").count() == 2
        assert len(source_rows(tmp_path / "q", durableOnly="true")) == 2
        with pytest.raises(Exception, match="durableOnly is 'yes': give one of false, true"):
            pages.read(spark, tmp_path / "q", durableOnly="yes").count()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part_bytes", "end", "reader"),
    [
        (100, 60, "auto"),
        (5000, COUNT, "auto"),
        (1 << 30, COUNT, "auto"),
        (5000, COUNT, "python"),
        pytest.param(100, COUNT, "python", marks=pytest.mark.nightly),
    ],
)
def test_partitions_have_every_message_once(
    spark: SparkSession, filled: Path, part_bytes: int, end: int, reader: str
) -> None:
    """Many partitions to a page, or one for many pages: the rows are the same, in order."""
    options = {"partitionBytes": part_bytes, "toSequence": end}
    frame = pages.read(spark, filled, reader=reader, **options)
    numbered = frame.select(f.spark_partition_id().alias("part"), *PLAIN).collect()
    assert [(*row[1:3], bytes(row[3])) for row in numbered] == plain(filled)[:end]
    assert [row.part for row in numbered] == sorted(row.part for row in numbered)


@pytest.mark.parametrize("part_bytes", [100, 400, 5000, 1 << 30])
def test_partitions_of_the_python_source_are_consecutive(filled: Path, part_bytes: int) -> None:
    """The same, without Spark."""
    reader = source_reader(filled, ["sequence"], partitionBytes=part_bytes)
    found = [[b["sequence"].to_pylist() for b in reader.read(p)] for p in reader.partitions()]
    assert [number for part in found for batch in part for number in batch] == [*range(COUNT)]


@pytest.mark.slow
def test_globs_and_several_paths_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    """Every queue that is meant is read once, whichever way it is named."""
    for name in ("a1", "a2", "b1"):
        fill(tmp_path / name, 20, name)

    def table(*paths: str) -> DataFrame:
        given = [str(tmp_path / path) for path in paths]
        return pages.read(spark, given if len(given) > 1 else given[0])

    assert rows(table("a*")) == plain(tmp_path / "a1") + plain(tmp_path / "a2")
    assert source_rows(tmp_path / "a*", PLAIN) == rows(table("a*"))
    assert rows(table("a1", "*1")) == plain(tmp_path / "a1") + plain(tmp_path / "b1")
    assert table("none*").count() == 0
    (tmp_path / "a3").mkdir()
    assert table("a*").count() == 40


@pytest.mark.slow
def test_path_without_a_queue_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Unknown options and columns too: each error has a remedy."""
    frame = spark.read.format("pagequeue")
    with pytest.raises(PySparkException, match="check path and prefix"):
        frame.load(str(tmp_path / "none")).count()
    fill(tmp_path / "q", 5)
    with pytest.raises(PySparkException, match="'untill' is not known"):
        frame.option("untill", 5).load(str(tmp_path / "q")).count()
    with pytest.raises(PySparkException, match="since"):
        pages.read(spark, tmp_path / "q").sparkSession.read.format("pagequeue").option(
            "since", "yesterday"
        ).load(str(tmp_path / "q")).count()
    schema = StructType([StructField("payload", StringType())])
    with pytest.raises(PySparkException, match="has type binary, not string"):
        spark.read.format("pagequeue").schema(schema).load(str(tmp_path / "q")).count()


@pytest.mark.slow
def test_empty_and_compressed_queues_read(spark: SparkSession, tmp_path: Path) -> None:
    """No message gives no row; compressed pages give what they had."""
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES).close()
    assert pages.read(spark, tmp_path / "q").count() == len(source_rows(tmp_path / "q")) == 0
    fill(tmp_path / "q")
    with Queue(tmp_path / "q") as queue:
        assert queue.compress().pages > 0
    assert rows(pages.read(spark, tmp_path / "q")) == plain(tmp_path / "q")
    assert source_rows(tmp_path / "q", PLAIN) == plain(tmp_path / "q")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_the_live_page_is_read_up_to_the_tail_at_planning(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """Producers go on meanwhile; a frame keeps what was there when it was first used."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(b"one")
        frame = pages.read(spark, tmp_path / "q", reader=reader)
        assert frame.count() == 1
        producer.send(b"two")
        assert frame.count() == 1
        before = {path.name: path.read_bytes() for path in (tmp_path / "q").glob("*Meta*")}
        assert pages.read(spark, tmp_path / "q", reader=reader).count() == 2
        after = {path.name: path.read_bytes() for path in (tmp_path / "q").glob("*Meta*")}
        assert before == after


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_fails_the_task_or_is_a_gap(tmp_path: Path, *, compressed: bool) -> None:
    """A damaged frame names file, place and remedy; skipped, all others are there."""
    fill(tmp_path / "q")
    if compressed:
        with Queue(tmp_path / "q") as queue:
            queue.compress()
        page = tmp_path / "q" / fmt.page_name("queue", 2)
        flip(page, 300)
    else:
        page = damage(tmp_path / "q")
    with pytest.raises(errors.DamageError, match=rf"{page.name}.*salvage"):
        source_rows(tmp_path / "q")
    there = [row[0] for row in source_rows(tmp_path / "q", PLAIN, onDamage="skip")]
    left = sorted({*range(COUNT)} - {*there})
    assert there == sorted({*there})
    assert left == [*range(left[0], left[-1] + 1)]
    assert compressed or len(left) == 1


@pytest.mark.slow
def test_gaps_of_what_was_skipped_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Through Spark: the reader that skips is the Python source."""
    page = damage(fill(tmp_path / "q"))
    with pytest.raises(PySparkException, match=rf"{page.name}.*salvage"):
        pages.read(spark, tmp_path / "q").collect()
    skipped = pages.read(spark, tmp_path / "q", onDamage="skip")
    there = rows(skipped)
    assert len(there) == COUNT - 1
    (left,) = {row[0] for row in plain(fill(tmp_path / "whole"))} - {row[0] for row in there}
    assert set(there) == {row for row in plain(tmp_path / "whole") if row[0] != left}
    (gap,) = pages.gaps(skipped).collect()
    assert tuple(gap) == (str(tmp_path / "q"), left, left + 1, 1)


def test_a_missing_page_is_a_gap(tmp_path: Path) -> None:
    """A missing page fails the read, or costs exactly its messages."""
    fill(tmp_path / "q")
    with Queue(tmp_path / "q", read_only=True) as queue:
        first, end = (queue._store.first_sequence(number) for number in (3, 4))
    (tmp_path / "q" / fmt.page_name("queue", 3)).unlink()
    with pytest.raises(errors.MissingPage, match="page 3 is not there"):
        source_rows(tmp_path / "q")
    there = source_rows(tmp_path / "q", PLAIN, onDamage="skip")
    assert [row[0] for row in there] == [n for n in range(COUNT) if not first <= n < end]


def test_messages_removed_by_retention_meanwhile_are_an_error_or_skipped(tmp_path: Path) -> None:
    """Planned, then trimmed: an error with the remedy, or the rest."""
    fill(tmp_path / "q")
    readers = [source_reader(tmp_path / "q", PLAIN, onExpired=how) for how in HOW]
    planned = [reader.partitions() for reader in readers]
    with Queue(tmp_path / "q", retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    assert head > 0
    with pytest.raises(errors.Expired, match="retention removed messages"):
        [list(readers[0].read(part)) for part in planned[0]]
    found = [b["sequence"].to_pylist() for part in planned[1] for b in readers[1].read(part)]
    assert [number for batch in found for number in batch] == [*range(head, COUNT)]
    assert source_rows(tmp_path / "q", ["sequence"]) == [(n,) for n in range(head, COUNT)]


@pytest.mark.slow
def test_results_are_right_where_pushdown_is_on(spark: SparkSession, filled: Path) -> None:
    """A frame that was filtered once is whole afterwards, in unions and joins with itself too."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = pages.read(spark, filled, reader="python", columns=["sequence"])
        some = frame.where("sequence < 10")
        assert some.count() == 10
        assert frame.count() == COUNT
        assert some.union(frame).count() == COUNT + 10
        assert frame.alias("a").join(some.alias("b"), "sequence").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.slow
def test_pushdown_is_still_wrong_in_this_pyspark(spark: SparkSession) -> None:
    """When this fails, PySpark has fixed pushdown: define `pushFilters` in `BatchReader`."""
    from spark_pushdown import Numbers  # noqa: PLC0415 - workers import it by this name

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("numbers").load()
        assert frame.where("id < 3").count() == 3
        assert frame.count() == 3, "it is 10 now: filter pushdown can be switched on"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_session_that_runs_keeps_its_settings(spark: SparkSession) -> None:
    """But for those that are given: the time zone of an application stays."""
    zone, rows = "spark.sql.session.timeZone", "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = [(name, spark.conf.get(name)) for name in (zone, rows)]
    spark.conf.set(zone, "Europe/Berlin")
    try:
        assert pages.session(settings={rows: "1000"}).sparkContext is spark.sparkContext
        assert spark.conf.get(zone) == "Europe/Berlin"
        assert spark.conf.get(rows) == "1000"
    finally:
        for name, value in before:
            spark.conf.set(name, value)


@pytest.mark.slow
def test_the_source_is_found_without_registration(spark: SparkSession, filled: Path) -> None:
    """PySpark finds `pyspark_pagequeue` automatically."""
    import pyspark_pagequeue  # noqa: PLC0415 - checked here only

    assert pyspark_pagequeue.DefaultSource is pages.PageQueueSource
    fresh = spark.newSession()
    assert fresh.read.format("pagequeue").load(str(filled)).count() == COUNT
