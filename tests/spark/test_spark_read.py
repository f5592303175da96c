"""Spark's batch read, compared with plain reading of the same queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import flip

from pagequeue import Queue, Retention
from pagequeue import format as fmt

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from pagequeue import spark as pages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PAGE_BYTES = 4096
START = 1_700_000_000_000_000_000
COUNT = 500
READERS = ("python", "auto")
"""The default is "auto"."""


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


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    """Return the same of a frame, in order of queue and sequence."""
    columns = ("sequence", "timestamp_ns", "payload")
    found = frame.orderBy("queue", "sequence").select(*columns).collect()
    return [(row[0], row[1], bytes(row[2])) for row in found]


def place_of_payload(page: Path) -> int:
    """Return where a payload is in the middle of a page: not a checksum that begins like one."""
    found = re.compile(rb"(m\d+)\1\1").search(page.read_bytes(), 1500)
    assert found is not None
    return found.start()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of a few pages without writers."""
    return fill(tmp_path_factory.mktemp("read") / "q")


@pytest.mark.parametrize("reader", READERS)
def test_large_messages_are_rows(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """I23: one larger than a page is one row, with the others around it."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many([b"a", bytes(range(256)) * 500, b"b"])
        producer.send_many([b"c"] * 2000)
    frame = pages.read(spark, tmp_path / "q", reader=reader)
    assert rows(frame) == plain(tmp_path / "q")
    assert frame.count() == 2003
    assert frame.agg(f.max(f.length("payload"))).collect()[0][0] == 128_000


@pytest.mark.parametrize("reader", READERS)
def test_all_columns_equal_a_plain_read(spark: SparkSession, filled: Path, reader: str) -> None:
    """The table is the queue: names, sequences, times and payloads."""
    frame = pages.read(spark, filled, reader=reader)
    assert frame.columns == ["queue", "sequence", "timestamp", "timestamp_ns", "payload"]
    assert rows(frame) == plain(filled)
    assert [row[0] for row in frame.select("queue").distinct().collect()] == [str(filled)]
    off = frame.where(f.unix_micros("timestamp") != f.floor(f.col("timestamp_ns") / 1000))
    assert off.count() == 0


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
@pytest.mark.parametrize(
    "columns", [["sequence"], ["timestamp_ns"], ["queue", "timestamp"], ["payload", "sequence"]]
)
def test_a_subset_of_columns_is_that_of_all(
    spark: SparkSession, filled: Path, columns: list[str], reader: str
) -> None:
    """A user's schema names fewer columns, in any order."""
    wanted = pages.read(spark, filled, reader=reader).select(*columns).collect()
    given = pages.read(spark, filled, reader=reader, columns=columns)
    assert given.columns == columns
    assert sorted(given.collect()) == sorted(wanted)


@pytest.mark.parametrize("reader", READERS)
def test_without_a_column_there_are_as_many_rows(
    spark: SparkSession, filled: Path, reader: str
) -> None:
    """Only their number is wanted."""
    assert pages.read(spark, filled, reader=reader, columns=[]).count() == COUNT


@pytest.mark.slow
def test_without_payload_no_payload_is_touched(spark: SparkSession, tmp_path: Path) -> None:
    """Damage in payloads is not noticed by who does not ask for them, and is by who does."""
    fill(tmp_path / "q")
    page = tmp_path / "q" / fmt.page_name("queue", 2)
    flip(page, place_of_payload(page))
    assert pages.read(spark, tmp_path / "q", columns=["sequence", "timestamp"]).count() == COUNT
    with pytest.raises(PySparkException, match="salvage"):
        spark.read.format("pagequeue").load(str(tmp_path / "q")).count()


@pytest.mark.parametrize("reader", READERS)
def test_check_all_finds_damage_that_no_column_needs(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """With `check="all"` each message that a query counts is read, without payload too."""
    fill(tmp_path / "q")

    def table(check: str) -> DataFrame:
        columns = ["sequence"]
        return pages.read(spark, tmp_path / "q", reader=reader, columns=columns, check=check)

    assert table("all").count() == COUNT
    page = tmp_path / "q" / fmt.page_name("queue", 2)
    flip(page, place_of_payload(page))
    assert table("used").count() == COUNT
    for query in (table("all").count, table("all").agg(f.max("sequence")).collect):
        with pytest.raises(PySparkException, match=rf"{page.name}.*salvage"):
            query()
    with pytest.raises(Exception, match="option check is 'some': give one of columns, used, all"):
        table("some").count()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"fromSequence": 17, "toSequence": 251}, (17, 251)),
        ({"toSequence": 10_000}, (0, COUNT)),
        ({"since": START + 1001 * 40}, (40, COUNT)),
        ({"since": START + 1001 * 40 + 1, "until": START + 1001 * 77}, (41, 77)),
        ({"since": "2023-11-14T22:13:20.000050050Z"}, (50, COUNT)),
        ({"fromSequence": 20, "until": START}, (0, 0)),
        ({"since": START * 2}, (0, 0)),
    ],
)
def test_ranges_are_inclusive_at_the_beginning_and_not_at_the_end(
    spark: SparkSession,
    filled: Path,
    options: dict[str, object],
    bounds: tuple[int, int],
    reader: str,
) -> None:
    """Ranges by sequence and by time are those of plain reading."""
    frame = pages.read(spark, filled, reader=reader, **options)  # type: ignore[arg-type]
    assert rows(frame) == plain(filled)[slice(*bounds)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_a_read_can_skip_messages_that_are_not_durable(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """With `durableOnly` a frame ends where what is on stable storage ends."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many([b"a", b"b"])
        producer.flush()
        producer.send(b"c")
        assert len(rows(pages.read(spark, tmp_path / "q", reader=reader))) == 3
        assert len(rows(pages.read(spark, tmp_path / "q", reader=reader, durableOnly="true"))) == 2
        with pytest.raises(Exception, match="durableOnly is 'yes': give one of false, true"):
            rows(pages.read(spark, tmp_path / "q", reader=reader, durableOnly="yes"))


PARTS = [(part_bytes, reader) for part_bytes in (400, 5000, 1 << 30) for reader in READERS]
SMALLEST_PARTS = [(100, "auto"), pytest.param(100, "python", marks=pytest.mark.nightly)]
"""A process for each of hundreds of parts; 400 bytes are some parts to a page already."""


@pytest.mark.parametrize(("part_bytes", "reader"), [*PARTS, *SMALLEST_PARTS])
def test_partitions_have_every_message_once(
    spark: SparkSession, filled: Path, part_bytes: int, reader: str
) -> None:
    """Many partitions to a page, or one for many pages: the rows are the same, in order."""
    frame = pages.read(spark, filled, reader=reader, partitionBytes=part_bytes)
    assert rows(frame) == plain(filled)
    counted = frame.groupBy(f.spark_partition_id()).agg(
        f.min("sequence").alias("first"), f.max("sequence").alias("last"), f.count("*").alias("n")
    )
    for row in counted.collect():
        assert row.last - row.first + 1 == row.n


@pytest.mark.parametrize("reader", READERS)
def test_globs_and_several_paths_are_one_table(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """Every queue that is meant is read once, whichever way it is named."""
    for name in ("a1", "a2", "b1"):
        fill(tmp_path / name, 20, name)

    def table(*paths: str) -> DataFrame:
        given = [str(tmp_path / path) for path in paths]
        return pages.read(spark, given if len(given) > 1 else given[0], reader=reader)

    assert rows(table("a*")) == plain(tmp_path / "a1") + plain(tmp_path / "a2")
    assert rows(table("a1", "*1")) == plain(tmp_path / "a1") + plain(tmp_path / "b1")
    assert table("none*").count() == 0
    (tmp_path / "a3").mkdir()
    assert table("a*").count() == 40


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


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_empty_and_compressed_queues_read(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """No message gives no row; compressed pages give what they had."""
    Queue(tmp_path / "q", page_bytes=PAGE_BYTES).close()
    assert pages.read(spark, tmp_path / "q", reader=reader).count() == 0
    fill(tmp_path / "q")
    with Queue(tmp_path / "q") as queue:
        assert queue.compress().pages > 0
    assert rows(pages.read(spark, tmp_path / "q", reader=reader)) == plain(tmp_path / "q")


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
        assert pages.read(spark, tmp_path / "q", reader=reader).count() == 2
        before = {path.name: path.read_bytes() for path in (tmp_path / "q").glob("*Meta*")}
        assert pages.read(spark, tmp_path / "q", reader=reader).count() == 2
        after = {path.name: path.read_bytes() for path in (tmp_path / "q").glob("*Meta*")}
        assert before == after


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("compressed", [False, True])
def test_damage_fails_the_task_or_is_a_gap_that_is_counted(
    spark: SparkSession, tmp_path: Path, compressed: bool, reader: str
) -> None:
    """A damaged frame names file, place and remedy; skipped, all others are there."""
    fill(tmp_path / "q")
    page = tmp_path / "q" / fmt.page_name("queue", 2)
    if compressed:
        with Queue(tmp_path / "q") as queue:
            queue.compress()
        flip(page, 300)
    else:
        flip(page, place_of_payload(page))
    frame = pages.read(spark, tmp_path / "q", reader=reader)
    with pytest.raises(PySparkException, match=rf"{page.name}.*salvage"):
        frame.collect()
    skipped = pages.read(spark, tmp_path / "q", reader=reader, onDamage="skip")
    there = rows(skipped)
    assert set(there) < {(n, START + n * 1001, f"m{n}".encode() * 3) for n in range(COUNT)}
    missing = pages.gaps(skipped).collect()
    assert sum(row["count"] for row in missing) == COUNT - len(there)
    assert len(missing) == 1
    if not compressed:
        assert len(there) == COUNT - 1


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_a_missing_page_is_a_gap(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """A missing page fails the read, or costs exactly its messages."""
    fill(tmp_path / "q")
    with Queue(tmp_path / "q", read_only=True) as queue:
        first, end = (queue._store.first_sequence(number) for number in (3, 4))
    (tmp_path / "q" / fmt.page_name("queue", 3)).unlink()
    with pytest.raises(PySparkException, match="page 3 is not there"):
        pages.read(spark, tmp_path / "q", reader=reader).collect()
    there = rows(pages.read(spark, tmp_path / "q", reader=reader, onDamage="skip"))
    assert [row[0] for row in there] == [n for n in range(COUNT) if not first <= n < end]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_messages_removed_by_retention_meanwhile_are_an_error_or_skipped(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """Planned, then trimmed: an error with the remedy, or the rest."""
    fill(tmp_path / "q")
    frame = pages.read(spark, tmp_path / "q", reader=reader)
    skipping = pages.read(spark, tmp_path / "q", reader=reader, onExpired="skip")
    assert (frame.count(), skipping.count()) == (COUNT, COUNT)  # now both are planned
    with Queue(tmp_path / "q", retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    assert head > 0
    with pytest.raises(PySparkException, match="retention removed messages"):
        frame.collect()
    assert rows(skipping) == plain(tmp_path / "q")
    assert pages.read(spark, tmp_path / "q", reader=reader).count() == COUNT - head


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_results_are_right_with_every_setting_of_pushdown(
    spark: SparkSession, filled: Path, pushdown: str, reader: str
) -> None:
    """A frame that was filtered once is whole afterwards, in unions and joins with itself too."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    try:
        frame = pages.read(spark, filled, reader=reader)
        some = frame.where("sequence < 10")
        assert some.count() == 10
        assert frame.count() == COUNT
        assert some.union(frame).count() == COUNT + 10
        assert frame.union(some).count() == COUNT + 10
        assert frame.alias("a").join(some.alias("b"), "sequence").count() == 10
        assert some.join(frame, "sequence", "right").count() == COUNT
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
def test_a_session_of_spark_submit_has_its_settings(tmp_path: Path) -> None:
    """What its command line says comes before the defaults."""
    zone, rows = "spark.sql.session.timeZone", "spark.sql.execution.arrow.maxRecordsPerBatch"
    script = tmp_path / "driver.py"
    script.write_text(
        "from pagequeue import spark\n"
        "session = spark.session()\n"
        f"print('found', session.conf.get('{zone}'), session.conf.get('{rows}'))\n"
    )
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    for setting in (
        f"{zone}=Europe/Berlin",
        "spark.ui.enabled=false",
        "spark.driver.host=127.0.0.1",
    ):
        command += ["--conf", setting]
    environment = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, str(script)],
        env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "found Europe/Berlin 65536" in done.stdout, done.stdout + done.stderr


def test_the_source_is_found_without_registration(spark: SparkSession, filled: Path) -> None:
    """PySpark finds `pyspark_pagequeue` automatically."""
    import pyspark_pagequeue  # noqa: PLC0415 - checked here only

    assert pyspark_pagequeue.DefaultSource is pages.PageQueueSource
    fresh = spark.newSession()
    assert fresh.read.format("pagequeue").load(str(filled)).count() == COUNT
