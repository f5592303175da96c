"""The native reader against the Python source and plain reading: the same rows, the same errors."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import struct
import subprocess
import tempfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import islice
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import flip

from pagequeue import Queue, Retention, _core, errors
from pagequeue import format as fmt
from pagequeue.page.header import parse_header
from pagequeue.page.page import REASONS, private_page

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyspark
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_support import (
    COUNT,
    PAGE_BYTES,
    START,
    STEP,
    Verdict,
    damage_other_queue,
    damage_payload,
    fill,
    overwrite,
    page_path,
    plain,
    planted_jar,
    positions,
    renamed,
    rows,
    source_reader,
    source_rows,
    threads_after,
    use_reader,
    verdict,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pagequeue import spark as pages
from pagequeue.spark.native import building
from pagequeue.spark.native import reader as native

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark


def source_verdicts(path: Path, **options: object) -> list[Verdict | None]:
    """Return what the tasks of the Python source end with, in their order; planning can end it."""
    found: list[Verdict | None] = []

    def planned() -> None:
        reader = source_reader(path, **options)
        found.extend(
            verdict(lambda part=part: list(reader.read(part)))  # type: ignore[misc]
            for part in reader.partitions()
        )

    failed = verdict(planned)
    return [failed] if failed else found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of several pages without writers."""
    return fill(tmp_path_factory.mktemp("native") / "q")


# --- the same rows --------------------------------------------------------------------------------


def test_rows_names_and_types_are_those_of_the_python_source(
    spark: SparkSession, filled: Path, tmp_path: Path
) -> None:
    """Plain and compressed pages, a live one, messages larger than a page, several queues."""
    path = tmp_path / "live" / "a"
    with (
        Queue(path, page_bytes=PAGE_BYTES, clock=lambda: START) as queue,
        queue.producer() as producer,
    ):
        producer.send_many([b"a", bytes(range(256)) * 500, b""])
        producer.send_many([b"c" * 40] * 300)
        assert queue.compress().pages > 0
        producer.send_many([b"d" * 40] * 90)
        fill(tmp_path / "live" / "b", 100)
        given = tmp_path / "live" / "*"
        jvm = pages.read(spark, given, reader="native", partitionBytes=60_000)
        assert jvm.schema == pages.read(spark, given, reader="python").schema
        found = rows(jvm)
        assert found == source_rows(given, partitionBytes=60_000)
        assert [row[1:2] + row[3:] for row in found if row[0] == str(path)] == plain(path)
    jvm = pages.read(spark, filled, reader="native")
    assert rows(jvm.drop("queue", "timestamp")) == plain(filled)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"fromSequence": 17, "toSequence": 251},
        {"since": START + STEP * 40},
        {"until": START + STEP * 77},
        {"fromSequence": 20, "until": START},
        {"durableOnly": "true"},
    ],
)
def test_options_mean_the_same(
    spark: SparkSession, filled: Path, options: dict[str, object]
) -> None:
    """Ranges, and partitions that begin and end inside pages."""
    options["partitionBytes"] = 700
    wanted = source_rows(filled, **options)
    jvm = pages.read(spark, filled, reader="native", **options)  # type: ignore[arg-type]
    assert rows(jvm) == wanted
    assert jvm.select("payload").count() == len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"fromSequence": 17, "toSequence": 251}, {"since": START + STEP * 40}]
)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_compressed_pages_lead_to_rows(
    spark: SparkSession, tmp_path: Path, options: dict[str, object]
) -> None:
    """A page without an index: payloads and times alone, from the middle of a block on."""
    fill(tmp_path / "q")
    wanted = source_rows(tmp_path / "q", **options)
    with Queue(tmp_path / "q") as queue:
        assert queue.compress().pages > 0
        assert len(queue._store.page(1).head.blocks) > 2  # type: ignore[attr-defined]
    assert not (tmp_path / "q" / fmt.index_name("queue", 1)).exists()
    options["partitionBytes"] = 700
    found = pages.read(spark, tmp_path / "q", reader="native", **options)
    assert rows(found) == wanted
    times = rows(found.select("sequence", "timestamp_ns"))
    assert times == [(row[1], row[3]) for row in wanted]


RECORD = np.dtype(
    [
        ("i1", "i1"),
        ("i2", ">i2"),
        ("i4", "<i4"),
        ("i8", ">i8"),
        ("u1", "u1"),
        ("u2", "<u2"),
        ("u4", ">u4"),
        ("f4", "<f4"),
        ("f8", ">f8"),
        ("ok", "?"),
        ("sequence", "<i4"),
    ]
)


@pytest.mark.slow
def test_records_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers of every size and order; a field keeps its name before our own column."""
    records = np.frombuffer(random.Random(5).randbytes(RECORD.itemsize * 200), RECORD).copy()
    for name in ("f4", "f8"):
        records[name] = np.arange(200) / 4 - 9
    records["ok"] = np.arange(200) % 3 == 0
    with (
        Queue(tmp_path / "q", page_bytes=PAGE_BYTES, dtype=RECORD) as queue,
        queue.producer() as producer,
    ):
        for part in np.array_split(records, 4):
            producer.send_many(part)
    jvm = pages.read(spark, tmp_path / "q", reader="native")
    assert jvm.schema == pages.read(spark, tmp_path / "q", reader="python").schema
    assert repr(rows(jvm)) == repr(source_rows(tmp_path / "q"))  # a NaN is not equal to itself
    some = jvm.where(f"sequence = {int(records['sequence'][5])} and queue_sequence < 100")
    assert [row.queue_sequence for row in some.collect()] == [5]


# --- pushed down ----------------------------------------------------------------------------------

EDGES = [-(2**63), -1, 0, 1, 9, COUNT - 1, COUNT, 2**63 - 1]
TIMES = [
    -(2**63),
    -1,
    0,
    START - 1,
    START,
    START + 1,
    START + 3 * STEP,
    START + 30 * STEP - 1,
    START + (COUNT - 1) * STEP,
    2**63 - 1,
]
VALUES = {
    "sequence": st.sampled_from(EDGES) | st.integers(-3, COUNT + 3),
    "timestamp_ns": st.sampled_from(TIMES) | st.integers(START - 9, START + COUNT * STEP + 9),
    "timestamp": st.integers(START // 1000 - 3, START // 1000 + COUNT + 5),
}


def _literal(column: str, value: int) -> str:
    if column == "timestamp":
        return f"timestamp_micros({value})"
    return "(-9223372036854775807L - 1)" if value == -(2**63) else f"{value}L"


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """One comparison, as SQL."""
    column = draw(st.sampled_from(sorted(VALUES)))
    values = [
        _literal(column, value) for value in draw(st.lists(VALUES[column], min_size=2, max_size=4))
    ]
    how = draw(
        st.sampled_from(
            [
                "<",
                "<=",
                ">",
                ">=",
                "=",
                "<>",
                "<=>",
                "in",
                "between",
                "is null",
                "is not null",
                "null",
                "flipped",
            ]
        )
    )
    if how == "in":
        return f"{column} in ({', '.join(values)})"
    if how == "between":
        return f"{column} between {values[0]} and {values[1]}"
    if how.startswith("is"):
        return f"{column} {how}"
    if how == "null":
        return f"{column} in ({values[0]}, null)"
    if how == "flipped":
        return f"{values[0]} < {column}"
    return f"{column} {how} {values[0]}"


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]}) and ({two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}) or ({two[1]})"),
        inner.map(lambda one: f"not ({one})"),
    ),
    max_leaves=4,
)


INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="module")
def kept(spark: SparkSession, filled: Path) -> DataFrame:
    """The rows in Spark's memory, which Spark filters itself."""
    there = [(str(filled), *row[:2]) for row in plain(filled)]
    frame = spark.createDataFrame(there, "queue string, sequence long, timestamp_ns long")
    return frame.withColumn("timestamp", f.timestamp_micros(f.expr("timestamp_ns div 1000")))


def _filters_agree(
    spark: SparkSession, filled: Path, kept: DataFrame, conditions: list[str]
) -> None:
    """What Spark itself makes of each condition is right; its interpreter is enough for that."""
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    try:
        _compare_filters(spark, filled, kept, conditions)
    finally:
        for name in INTERPRETED:
            spark.conf.unset(name)


def _compare_filters(
    spark: SparkSession, filled: Path, kept: DataFrame, conditions: list[str]
) -> None:
    jvm = pages.read(spark, filled, reader="native").select("sequence")
    columns = [f.expr(text).alias(str(i)) for i, text in enumerate(conditions)]
    wanted = kept.select("sequence", *columns).collect()
    each = [jvm.where(text).select(f.lit(i), "sequence") for i, text in enumerate(conditions)]
    found = rows(reduce(DataFrame.union, each))
    for i, text in enumerate(conditions):
        chosen = [sequence for condition, sequence in found if condition == i]
        assert chosen == sorted(row.sequence for row in wanted if row[1 + i]), text


@pytest.mark.slow
def test_filters_are_exact_at_their_edges(
    spark: SparkSession, filled: Path, kept: DataFrame
) -> None:
    """By sequence and time, at the ends of int64, with negation and nulls."""
    conditions = [
        "sequence < 10",
        "sequence <= 10",
        "sequence > 10",
        "sequence >= 10",
        "sequence = 10",
        "sequence <> 10",
        "sequence in (3, 4, 9, 299, 300)",
        "not (sequence in (3, null))",
        f"timestamp_ns >= {START + 3 * STEP}",
        f"timestamp_ns > {START + 3 * STEP}",
        f"timestamp_ns < {START + 3 * STEP}",
        f"timestamp_ns <= {START + 3 * STEP}",
        f"timestamp = timestamp_micros({START // 1000 + 3})",
        f"timestamp > timestamp_micros({START // 1000 + 3})",
        f"not (timestamp <= timestamp_micros({START // 1000 + 3}) or sequence > 50)",
        f"timestamp_ns <= {2**63 - 1}",
        "timestamp_ns > (-9223372036854775807L - 1)",
        f"queue = '{filled}' and sequence between 7 and 9",
        "queue in ('other')",
    ]
    _filters_agree(spark, filled, kept, conditions)
    jvm = pages.read(spark, filled, reader="native")
    assert jvm.where("sequence < 10").count() == 10


@pytest.mark.slow
@settings(
    max_examples=4,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(conditions=st.lists(CONDITIONS, min_size=8, max_size=8))
def test_filters_are_those_of_spark(
    spark: SparkSession, filled: Path, kept: DataFrame, conditions: list[str]
) -> None:
    """Any combination of comparisons selects what Spark selects."""
    _filters_agree(spark, filled, kept, conditions)


@pytest.mark.slow
def test_limits_aggregates_and_columns_are_pushed_down(spark: SparkSession, filled: Path) -> None:
    """They show in the plan, read no payload, and a frame that was used is whole afterwards."""
    jvm = pages.read(spark, filled, reader="native", check="used")
    counted = jvm.where("sequence >= 7").agg(
        f.count("*"),
        f.count("payload"),
        f.min("sequence"),
        f.max("timestamp_ns"),
        f.min("timestamp"),
    )
    plan = counted._jdf.queryExecution().toString()
    assert "PushedAggregates: [count count min_s max_t min_m]" in plan
    assert "sequence >= 7" in plan
    table = plain(filled)
    row = counted.collect()[0]
    assert row[:4] == (COUNT - 7, COUNT - 7, 7, table[-1][1])
    assert int(row[4].timestamp() * 1e6) // 10 == table[7][1] // 10_000
    none = jvm.where("sequence < 0").agg(f.count("*"), f.max("sequence")).collect()[0]
    assert tuple(none) == (0, None)
    for frame in (jvm, pages.read(spark, filled, reader="native", columns=["sequence"])):
        assert frame.agg(f.lit(7)).collect() == [(7,)]  # of no column: there is nothing to push
    assert len(jvm.limit(3).collect()) == 3
    assert "PushedLimit: 3" in jvm.limit(3)._jdf.queryExecution().toString()
    some = jvm.where("sequence < 10")
    assert some.union(jvm).count() == COUNT + 10
    assert jvm.alias("a").join(some.alias("b"), "sequence").count() == 10
    assert jvm.count() == COUNT


ORDERS: dict[str, str | None] = {
    "sequence": "first",
    "-sequence": "last",
    "-timestamp_ns -sequence payload": "last",
    "-timestamp -timestamp_ns -sequence": "last",
    "timestamp sequence -queue": "first",
    "-timestamp_ns sequence": None,  # of equal times the first ones
    "-timestamp_ns payload sequence": None,
    "payload sequence": None,
    "queue sequence": None,
}
"""Orders without two equal rows, and which rows of each queue are read for a limit."""


def _ordered(rows: list[Row], order: str) -> list[Row]:
    for name in reversed(order.split()):
        rows = sorted(rows, key=itemgetter(name.lstrip("-")), reverse=name[0] == "-")
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_first_and_last_rows_are_read_without_the_others(
    spark: SparkSession, filled: Path, order: str
) -> None:
    """They are those of Spark, filtered or not; a limit can be in the middle of equal times."""
    jvm = pages.read(spark, filled, reader="native")
    every = jvm.collect()
    keys = [f.desc(name[1:]) if name[0] == "-" else f.asc(name) for name in order.split()]
    some = jvm.where("sequence between 7 and 200 and sequence not in (198, 199)")
    kept = [row for row in every if row.sequence in {*range(7, 198), 200}]
    for frame, rows_there in ((jvm, every), (some, kept)):
        for count in (1, 2, 5, COUNT + 1):
            few = frame.orderBy(*keys).limit(count)
            assert few.collect() == _ordered(rows_there, order)[:count]
            which = ORDERS[order]
            told = f"PushedLimit: {count} {which} of each queue" if which else "PushedLimit: none"
            assert told in few._jdf.queryExecution().toString()


@pytest.mark.slow
def test_the_last_rows_of_many_queues_are_in_the_last_pages(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Damage in other pages is not noticed, because they are not read."""
    fill(tmp_path / "in" / "a", 250)
    fill(tmp_path / "in" / "b", 290)
    page = page_path(tmp_path / "in" / "a", 1)
    flip(page, positions(page)[4] + 5)
    jvm = pages.read(spark, tmp_path / "in" / "*", reader="native")
    newest = jvm.orderBy(f.desc("sequence"), "queue").limit(45).select("sequence").collect()
    assert [row.sequence for row in newest] == [
        *range(289, 249, -1),
        *(n for n in (249, 248) for _ in "ab"),
        247,
    ]
    assert verdict(jvm.orderBy(f.desc("sequence")).limit(400).collect) is not None


@pytest.mark.slow
def test_what_is_pushed_down_checks_what_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    """`check="used"`: a count opens no page, a time is of a checked frame. "all": every frame."""
    fill(tmp_path / "q")
    with Queue(tmp_path / "q", read_only=True) as queue:
        last = queue._store.seek_sequence(COUNT - 1)
        flip(Path(last.page.path), last.position + 8)  # of its time
    damage_payload(tmp_path / "q")
    used, every = (
        pages.read(spark, tmp_path / "q", reader="native", check=check) for check in ("used", "all")
    )
    ends = used.agg(f.count("*"), f.min("sequence"), f.max("sequence")).collect()[0]
    assert tuple(ends) == (COUNT, 0, COUNT - 1)
    assert used.agg(f.min("timestamp_ns")).collect()[0][0] == START
    newest = verdict(lambda: used.agg(f.max("timestamp_ns")).collect())
    assert newest is not None
    assert (newest.kind, newest.attributes["sequence"]) == ("CorruptFrame", COUNT - 1)
    found = verdict(every.count)
    assert found is not None
    assert found.text.startswith(f"{page_path(tmp_path / 'q', 2)}: message ")
    few = every.where("sequence < 3")  # what a filter leaves out is not read
    assert few.count() == 3
    plan = few.groupBy().count()._jdf.queryExecution().toString()
    assert "PushedAggregates: []" in plan
    assert "Checked: all" in plan
    assert "Checked: used" in used._jdf.queryExecution().toString()
    page_path(tmp_path / "q", 2).unlink()
    assert pages.read(spark, tmp_path / "q", reader="native", check="used").count() == COUNT


def _one_checksum(there: Path) -> Path:
    """Damage one checksum: the index is proved by other frames."""
    page = page_path(fill(there), 2)
    flip(page, positions(page)[4] + 5)
    return page


@pytest.mark.slow
def test_by_default_what_the_columns_need_is_checked(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever the query uses of it; what filters leave out is not read."""
    page = _one_checksum(tmp_path / "q")
    frame = pages.read(spark, tmp_path / "q", reader="native")
    ends = frame.agg(f.min("sequence"), f.max("timestamp_ns"))
    for query in (frame.count, frame.select("queue").collect, ends.collect):
        found = verdict(query)
        assert found is not None
        assert found.text.startswith(f"{page}: message ")
    times, none = (
        pages.read(spark, tmp_path / "q", reader="native", columns=columns)
        for columns in (["queue", "timestamp"], ["sequence"])
    )
    assert times.count() == none.count() == COUNT
    assert frame.where("sequence < 3").count() == 3  # what a filter leaves out is not read
    page.unlink()
    assert none.count() == COUNT
    assert verdict(times.count) is not None
    assert "Checked: columns" in frame._jdf.queryExecution().toString()


def test_the_python_source_checks_what_the_columns_need(tmp_path: Path) -> None:
    """Its columns are all that it is told of a query."""
    page = _one_checksum(tmp_path / "q")
    (found,) = filter(None, source_verdicts(tmp_path / "q"))
    assert found.text.startswith(f"{page}: message ")
    for columns in (["sequence"], ["queue", "timestamp"]):
        assert len(source_rows(tmp_path / "q", columns)) == COUNT
    page.unlink()
    assert len(source_rows(tmp_path / "q", ["sequence"])) == COUNT
    with pytest.raises(errors.MissingPage):
        source_rows(tmp_path / "q", ["queue", "timestamp"])


# --- damage ---------------------------------------------------------------------------------------


def _checksum(there: Path) -> None:
    page = page_path(there, 2)
    flip(page, positions(page)[4] + 5)


def _timestamp(there: Path) -> None:
    page = page_path(there, 2)
    flip(page, positions(page)[7] + 9)


def _length(there: Path) -> None:
    page = page_path(there, 2)
    overwrite(page, positions(page)[5], struct.pack("<I", 0x3FFFFFF0))


def _hole(there: Path) -> None:
    page = page_path(there, 2)
    overwrite(page, positions(page)[5], bytes(4))


def _mark(there: Path) -> None:
    page = page_path(there, 2)
    flip(page, positions(page)[-1] + 4)


def _early_mark(there: Path) -> None:
    """A frame in the middle becomes a valid end of the page."""
    page = page_path(there, 2)
    data = page.read_bytes()
    ordinal = 6
    sequence = struct.unpack_from("<Q", data, 40)[0] + ordinal
    word = 0x80000000 | 16
    checksum = _core.crc32c(data[24:40] + struct.pack("<qQI", 0, sequence, word))
    overwrite(page, positions(page)[ordinal], struct.pack("<IIq", word, checksum, 0))


def _moved(there: Path) -> None:
    """The frames of a page in the place of another one's, under its header."""
    data = page_path(there, 3).read_bytes()
    overwrite(page_path(there, 2), 64, data[64:])


def _other_frames(there: Path) -> None:
    """Another queue's frames under the right header: only the checksums tell."""
    fill(there.parent / "other")
    overwrite(page_path(there, 2), 64, page_path(there.parent / "other", 2).read_bytes()[64:])


def _magic(there: Path) -> None:
    flip(page_path(there, 2), 0)


def _header(there: Path) -> None:
    flip(page_path(there, 2), 50)


def _number(there: Path) -> None:
    page_path(there, 2).write_bytes(page_path(there, 3).read_bytes())


def _flag(there: Path) -> None:
    """A flag that only a newer version knows, under the right checksum."""
    page = page_path(there, 2)
    head = bytearray(page.read_bytes()[: fmt.PAGE_HEADER_BYTES])
    head[10:16] = struct.pack("<HI", 4, 0)
    head[12:16] = struct.pack("<I", _core.crc32c(bytes(head)))
    overwrite(page, 0, bytes(head))


def _staged(there: Path) -> None:
    page = page_path(there, 2)
    header = parse_header(page.read_bytes()[: fmt.PAGE_HEADER_BYTES], str(page))
    overwrite(page, 0, header._replace(queue_id=fmt.staged_id(header.queue_id)).encode())


def _shorter(there: Path) -> None:
    os.truncate(page_path(there, 2), 2048)


def _longer(there: Path) -> None:
    os.truncate(page_path(there, 2), 8192)


def _missing(there: Path) -> None:
    page_path(there, 2).unlink()


def _link(there: Path) -> None:
    page_path(there, 2).rename(there / "elsewhere")
    page_path(there, 2).symlink_to(there / "elsewhere")


def _fifo(there: Path) -> None:
    page_path(there, 2).unlink()
    os.mkfifo(page_path(there, 2))


def _index(there: Path) -> None:
    """Only a hint: no error."""
    index = there / fmt.index_name("queue", 2)
    index.write_bytes(random.Random(1).randbytes(index.stat().st_size))


def _no_index(there: Path) -> None:
    (there / fmt.index_name("queue", 2)).unlink()


SEEN = (
    damage_payload,
    _checksum,
    _timestamp,
    _length,
    _hole,
    _mark,
    _early_mark,
    _moved,
    damage_other_queue,
    _other_frames,
    _magic,
    _header,
    _flag,
    _staged,
    _number,
    _shorter,
    _longer,
    _missing,
    _link,
    _fifo,
)
WHOLE, IN_PIECES = 1 << 30, 2000
"""Bytes of a partition: the whole queue is one task, or a page is several."""


def _native_verdict(spark: SparkSession, there: Path, **options: object) -> Verdict | None:
    frame = pages.read(spark, there, reader="native", **options)  # type: ignore[arg-type]
    return verdict(lambda: frame.selectExpr("sum(length(payload))").collect())


def _same_verdict(
    spark: SparkSession, there: Path, *, parts: tuple[int, ...] = (WHOLE, IN_PIECES)
) -> list[Verdict | None]:
    """Compare what both readers make of damage, and return it.

    Of several tasks that fail, Spark names the one that was first.
    """
    results = []
    for part_bytes in parts:
        wanted = source_verdicts(there, partitionBytes=part_bytes)
        failed = [one for one in wanted if one is not None] or [None]
        found = _native_verdict(spark, there, partitionBytes=part_bytes)
        assert found in failed
        results.append(found)
    for part_bytes in parts[1:]:
        counted = pages.read(spark, there, reader="native", check="all", partitionBytes=part_bytes)
        assert verdict(counted.count) in failed
    return results


def _same_after_planning(spark: SparkSession, there: Path, damage: Callable[[Path], None]) -> None:
    """Plan, damage, and compare what the tasks find with what opening finds then."""
    frame = pages.read(spark, there, reader="native").select("payload")
    physical = frame._jdf.queryExecution()
    physical.executedPlan().execute().getNumPartitions()  # planned now
    damage(there)
    found = verdict(lambda: physical.executedPlan().execute().count())
    assert found is not None
    wanted = next(filter(None, source_verdicts(there, partitionBytes=WHOLE)), None)
    assert wanted is not None
    assert found.kind == wanted.kind
    name = "queue-0000000002.page"
    assert (name in found.text) == (name in wanted.text)


@pytest.mark.slow
@pytest.mark.parametrize("damage", SEEN)
def test_damage_of_every_kind_is_the_same_error(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Whether the whole queue is one task, or a page is several."""
    fill(tmp_path / "q")
    damage(tmp_path / "q")
    assert None not in _same_verdict(spark, tmp_path / "q")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_index, _no_index])
def test_a_wrong_index_costs_nothing(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Messages and times are found without it."""
    fill(tmp_path / "q")
    damage(tmp_path / "q")
    assert _same_verdict(spark, tmp_path / "q") == [None, None]
    wanted = plain(tmp_path / "q")
    for part_bytes in (900, 300):
        jvm = pages.read(spark, tmp_path / "q", reader="native", partitionBytes=part_bytes)
        assert rows(jvm.drop("queue", "timestamp")) == wanted
        assert rows(jvm.select("timestamp_ns")) == sorted((row[1],) for row in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("damage", SEEN)
def test_what_happens_after_planning_is_found_by_tasks(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Planned whole, then damaged: a task must see what opening would have."""
    fill(tmp_path / "q")
    _same_after_planning(spark, tmp_path / "q", damage)


@pytest.mark.slow
def test_random_damage_of_a_compressed_page_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In its front, its blocks, its second front and its end."""
    rng = random.Random(11)
    fill(tmp_path / "q")
    with Queue(tmp_path / "q") as queue:
        assert queue.compress().pages > 0
    page = page_path(tmp_path / "q", 2)
    whole = page.read_bytes()
    places = [0, 4, 9, 17, 30, 41, 64, 73, 81, 89, 112, 116, 120, 128, 132, 136, 140]
    places += [rng.randrange(144, len(whole)) for _ in range(12)]
    for place in places:
        page.write_bytes(whole)
        flip(page, place)
        _same_verdict(spark, tmp_path / "q", parts=(WHOLE,))
    for size in (0, 100, 200, len(whole) - 1, len(whole) + 1):
        page.write_bytes((whole + b"\0")[:size])
        _same_verdict(spark, tmp_path / "q", parts=(WHOLE,))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "position"), [(2, 90), (2, 102), (3, 70), (3, 2000)])
def test_damaged_fragments_are_the_same_error(
    spark: SparkSession, tmp_path: Path, number: int, position: int
) -> None:
    """The head, a mark with its checksums, and a block of a message larger than a page."""
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send(bytes(range(256)) * 60)
        producer.send(b"after")
    flip(page_path(tmp_path / "q", number), position)
    assert None not in _same_verdict(spark, tmp_path / "q", parts=(WHOLE,))


@pytest.mark.slow
def test_what_retention_took_is_expired(spark: SparkSession, tmp_path: Path) -> None:
    """A frame keeps what was there when it was first used; what is gone since is an error."""
    fill(tmp_path / "q")
    python, jvm = source_reader(tmp_path / "q"), pages.read(spark, tmp_path / "q", reader="native")
    parts = python.partitions()
    total = "sum(length(payload))"
    assert jvm.selectExpr("count(*)").collect()[0][0] == COUNT
    fill(tmp_path / "q", 50, first=COUNT)
    assert jvm.selectExpr(total, "count(*)").collect()[0][1] == COUNT
    physical = jvm.select("payload")._jdf.queryExecution()
    physical.executedPlan().execute().getNumPartitions()  # planned before retention takes pages
    with Queue(tmp_path / "q", retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    assert head > 0
    wanted = verdict(lambda: [list(python.read(part)) for part in parts])
    found = verdict(jvm.selectExpr(total).collect)
    assert found == wanted
    assert found is not None
    assert found.kind == "Expired"
    assert found.attributes["head_sequence"] == head
    by_task = verdict(lambda: physical.executedPlan().execute().count())
    assert by_task is not None
    assert (by_task.kind, by_task.attributes) == (
        found.kind,
        found.attributes | {"remedy": by_task.attributes["remedy"]},
    )
    assert len(jvm.where(f"sequence >= {head}").select("payload").collect()) == COUNT - head


@pytest.mark.slow
@pytest.mark.parametrize("check", ["columns", "used"])
def test_a_filter_by_time_tells_what_retention_took(
    spark: SparkSession, tmp_path: Path, check: str
) -> None:
    """Where the times of a frame's removed messages decide, their absence is an error."""
    path = fill(tmp_path / "q")
    table = plain(path)
    jvm = pages.read(spark, path, reader="native", check=check).select("sequence", "timestamp_ns")
    assert jvm.count() == COUNT
    with Queue(path, retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    floor = table[head - 1][1]
    for text in (f"= {START}", f"< {START + STEP}", f">= {table[30][1]}", f">= {floor}"):
        found = verdict(jvm.where(f"timestamp_ns {text}").collect)
        assert found is not None
        assert (found.kind, found.attributes["head_sequence"]) == ("Expired", head)
    for bound in (floor + 1, table[head + 5][1]):
        left = [row[0] for row in table[head:] if row[1] >= bound]
        later = jvm.where(f"timestamp_ns >= {bound}")
        assert [row.sequence for row in later.collect()] == left
    assert later.count() == len(left)


@pytest.mark.slow
def test_another_queue_at_the_same_place_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """A frame that was used before means the queue that was there then."""
    path = fill(tmp_path / "q")
    python, jvm = source_reader(path), pages.read(spark, path, reader="native")
    parts = python.partitions()
    assert [jvm.count(), len(jvm.collect())] == [COUNT, COUNT]
    shutil.rmtree(path)
    fill(path, 2 * COUNT)
    for use in (lambda: [list(python.read(part)) for part in parts], jvm.count, jvm.collect):
        found = verdict(use)
        assert found is not None
        assert found.kind == "QueueReplaced"
    assert pages.read(spark, path, reader="native").count() == 2 * COUNT
    assert len(source_rows(path)) == 2 * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("file", ["zeros", "a later page"])
def test_a_file_that_is_used_again_is_expired(
    spark: SparkSession, tmp_path: Path, file: str
) -> None:
    """A task opened a page that was removed then, and its file became another one's."""
    path = fill(tmp_path / "q")
    physical = pages.read(spark, path, reader="native").select("payload")._jdf.queryExecution()
    physical.executedPlan().execute().getNumPartitions()  # planned before retention takes pages
    with Queue(path, retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    assert not page_path(path, 1).exists()
    with Queue(path, read_only=True) as queue:
        page = page_path(path, queue._store.read_meta.head_page)
    page_path(path, 1).write_bytes(bytes(PAGE_BYTES) if file == "zeros" else page.read_bytes())
    found = verdict(lambda: physical.executedPlan().execute().count())
    assert found is not None
    assert (found.kind, found.attributes["head_sequence"]) == ("Expired", head)


# --- the reader itself ----------------------------------------------------------------------------


def is_native(frame: DataFrame) -> bool:
    """Whether `explain` shows the native reader."""
    return "pagequeue (native reader)" in frame._jdf.queryExecution().toString()


@pytest.mark.slow
def test_the_reader_that_is_asked_for_is_told(spark: SparkSession, filled: Path) -> None:
    """What the native one does not know is an error with a remedy; the default is "auto"."""
    assert is_native(pages.read(spark, filled, Reader="native"))
    assert is_native(pages.read(spark, filled))
    assert not is_native(pages.read(spark, filled, reader="python"))
    by_name = spark.read.format("pagequeue")
    assert is_native(by_name.load(str(filled)))
    for reader in ("auto", "native", "python"):
        frame = by_name.option("Reader", reader).load(str(filled))
        assert is_native(frame) == (reader != "python")
    assert not is_native(
        by_name.option("reader", "auto").option("onExpired", "skip").load(str(filled))
    )
    with pytest.raises(errors.InvalidOption, match=r"onDamage=skip.*python.*auto"):
        pages.read(spark, filled, reader="native", onDamage="skip")
    with pytest.raises(errors.InvalidOption, match="reader is 'other'"):
        pages.read(spark, filled, reader="native", Reader="other")
    both_set = spark.read.format("pagequeue").option("reader", "native").option("onDamage", "skip")
    found = verdict(lambda: both_set.load(str(filled)).count())
    assert found is not None
    assert found.kind == "InvalidOption"
    assert "onDamage=skip" in found.text


@pytest.mark.slow
def test_auto_is_the_native_reader_where_it_can(
    spark: SparkSession, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of the log tells; the wrong value of any option is an error at once."""
    with caplog.at_level("INFO", "pagequeue"):
        frame = pages.read(spark, filled, reader="auto", fromSequence=9)
        assert is_native(frame)
    assert [record.getMessage() for record in caplog.records] == [
        f"{filled}: read by the native reader"
    ]
    with pytest.raises(errors.InvalidOption, match="since"):
        pages.read(spark, filled, reader="auto", since="yesterday")


FALLBACKS: dict[str, str] = {
    "onDamage": "it does not know onDamage=skip",
    "onExpired": "it does not know onExpired=skip",
    "dtype": "it does not know the type of the column 'text'",
    "compiler": "its classes cannot be compiled in this session (",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(FALLBACKS))
def test_auto_is_the_python_source_where_the_native_reader_cannot(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    """The same table, and one line of the log tells why; asked for by name it is an error."""
    options: dict[str, str] = {"onDamage": "skip"} if case == "onDamage" else {}
    if case == "dtype":
        records = np.array([("a", 1), ("b", 2)], [("text", "U4"), ("number", "<i4")])
        with Queue(tmp_path / "q", dtype=records.dtype) as queue, queue.producer() as producer:
            producer.send_many(records)
        wanted: list[tuple[Any, ...]] = [("a", 1), ("b", 2)]
    else:
        fill(tmp_path / "q", 20)
        wanted = plain(tmp_path / "q")
    if case == "onExpired":
        options = {"onexpired": "skip"}
    if case == "compiler":
        monkeypatch.setattr(building, "sources", lambda: {"A.java": "no Java"})
        monkeypatch.delitem(native._prepared, spark.sparkContext.applicationId)
    with caplog.at_level("INFO", "pagequeue"):
        frame = pages.read(spark, tmp_path / "q", reader="auto", **options)
        assert not is_native(frame)
    *others, line = [record.getMessage() for record in caplog.records]
    assert len(others) == (case == "compiler")  # of the session, once
    assert line.startswith(f"{tmp_path / 'q'}: read by the Python source: {FALLBACKS[case]}")
    if case in {"dtype", "compiler"}:  # what skips is read by Python in other tests
        mine = ("text", "number") if case == "dtype" else ("sequence", "timestamp_ns", "payload")
        assert rows(frame.select(*mine)) == wanted
    with pytest.raises(errors.InvalidOption, match=re.escape(FALLBACKS[case])):
        pages.read(spark, tmp_path / "q", reader="native", **options)
    if case == "dtype":  # the columns that it knows
        assert is_native(pages.read(spark, tmp_path / "q", reader="auto", columns=["number"]))


def test_a_session_of_spark_connect_has_the_python_source() -> None:
    """It has no JVM to put classes into."""
    assert "Spark Connect" in native.prepare(SimpleNamespace())


@pytest.mark.slow
def test_a_thread_or_a_session_that_was_not_registered_has_the_python_source(
    spark: SparkSession, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registered, it has the native reader; the rows are the same."""

    def by_name() -> DataFrame:
        return spark.read.format("pagequeue").load(str(filled))

    def told(before: Callable[[], None]) -> bool:
        def work() -> bool:
            before()
            frame = by_name()
            assert frame.count() == COUNT
            return is_native(frame)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    assert not told(lambda: None)
    assert told(lambda: pages.register(spark))
    monkeypatch.delitem(native._prepared, spark.sparkContext.applicationId)
    frame = by_name()  # as with the classes of a session that was stopped
    assert not is_native(frame)
    assert frame.count() == COUNT


@pytest.mark.slow
def test_queries_leave_no_thread_in_the_driver(spark: SparkSession, filled: Path) -> None:
    """Spark plans what comes before a shuffle in threads of its own, new ones each time."""

    def counted() -> int:
        return len(pages.read(spark, filled, reader="native").groupBy("queue").count().collect())

    assert counted() == 1
    before = threading.active_count()
    for _ in range(3):
        assert counted() == 1
    assert threads_after(before) <= before


@pytest.mark.slow
def test_more_queues_are_read_than_there_may_be_files(spark: SparkSession, tmp_path: Path) -> None:
    """The driver has few of them open at a time, for a filter by time, too."""
    for number in range(40):
        with Queue(tmp_path / "in" / str(number), page_bytes=PAGE_BYTES) as queue:
            queue.producer().send_many([b"a", b"b"])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in range(before[0]) if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 30, None)), before[1]))
    try:
        jvm = pages.read(spark, tmp_path / "in" / "*", reader="native")
        assert jvm.count() == 80
        assert jvm.where("timestamp_ns > 0").agg(f.max("timestamp_ns"), f.count("*")).count() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_jar_is_kept_where_nobody_else_can_write(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By content; a directory that others can write to is not used, nor a file that they can."""
    monkeypatch.setattr(building, "compiled", lambda _: {"pagequeue/A.class": b"one"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = building.jar(spark)
    assert os.path.dirname(path) == str(tmp_path / "pagequeue")
    assert (tmp_path / "pagequeue").stat().st_mode & 0o777 == 0o700
    assert os.stat(path).st_mode & 0o777 == 0o600
    monkeypatch.setattr(building, "compiled", lambda _: {"pagequeue/A.class": b"other"})
    before = os.stat(path).st_ino
    assert building.jar(spark) == path
    assert os.stat(path).st_ino == before  # it was taken as it is
    os.chmod(path, 0o666)
    assert building.jar(spark) == path
    assert os.stat(path).st_ino != before
    (tmp_path / "pagequeue").chmod(0o777)
    assert not building.jar(spark).startswith(str(tmp_path / "pagequeue"))
    monkeypatch.setattr(building, "sources", lambda: {"A.java": "other"})
    assert os.path.basename(building.jar(spark)) != os.path.basename(path)


def test_the_jar_is_not_kept_where_it_would_be_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a home not below the working directory; as another user not in this one's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for an unknown user
    assert os.path.isabs(building._cache())
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert os.path.isabs(building._cache())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "theirs").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    user = os.geteuid()
    if user == 0:
        os.chown(tmp_path / "theirs", 1, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert os.path.isabs(building._cache())
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b"])
def test_a_cache_whose_path_spark_does_not_take_is_used(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Spark makes URIs of paths, and loses some of them: it gets a copy of the jar."""
    (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    package = f"kept{len(name)}"
    text = f"package {package}; public final class A {{ public static int one() {{ return 1; }} }}"
    monkeypatch.setattr(building, "sources", lambda: {f"{package}/A.java": text})
    path = building.jar(spark)
    (kept,) = (tmp_path / name / "pagequeue").iterdir()
    assert Path(path).read_bytes() == kept.read_bytes()
    native.prepare(spark)
    spark._jsparkSession.sessionState().resourceLoader().addJar(path)
    assert getattr(spark._jvm, package).A.one() == 1
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / name))
        with pytest.raises(building.NotCompiled, match="set TMPDIR"):
            building.jar(spark)


def _walked(page: bytes, queue_id: bytes, first: int) -> str:
    """Return what the core finds in a page, as the Java side puts it."""

    class Meta:
        page_bytes = len(page)

    Meta.queue_id = queue_id  # type: ignore[attr-defined]
    region = private_page(page, Meta)  # type: ignore[arg-type]
    position, sequence, timestamp, *_, stopped = _core.scan(
        region, None, first, 64, first, fmt.SEQUENCE_MAX, -(2**63), _core.INDEX_NONE
    )
    return f"{position} {sequence} {timestamp} {REASONS[stopped]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in (1, 2, 3))]
)
def test_the_frame_reader_agrees_with_the_core_on_any_bytes(
    spark: SparkSession, filled: Path, seed: int
) -> None:
    """Real pages with bytes changed, lengths forged, frames moved, and with right checksums."""
    rng = random.Random(seed)
    native.prepare(spark)
    walk = spark._jvm.pagequeue.Verdicts.walk  # type: ignore[union-attr]
    pages_there = [page_path(filled, number).read_bytes() for number in (1, 2, 3)]
    reasons = set()
    for turn in range(400):
        page = bytearray(rng.choice(pages_there))
        queue_id, first = bytes(page[24:40]), struct.unpack_from("<Q", page, 40)[0]
        if turn % 5 == 0:  # frames with right checksums and any length, flags, times, sequences
            first = rng.choice([first, 253, 2**32 - 2, rng.randrange(2**62)])
            page += bytes(rng.choice([0, 3 * PAGE_BYTES]))
            limit = len(page)
            position, sequence = 64, first
            for _ in range(rng.randrange(6)):
                size = rng.choice([0, 1, 7, 8, 9, 300, 4095, 4096, limit - position - 32])
                size = max(0, min(size, limit - position - 16))
                word = (16 + size) | rng.choice([0, 0, 1, 2, 3]) << 30
                body = rng.randbytes(size)
                time_ns = rng.randrange(-(2**63), 2**63)
                rest = struct.pack("<qQI", time_ns, sequence, word)
                checksum = _core.crc32c(queue_id + body + rest)
                frame = struct.pack("<IIq", word, checksum, time_ns) + body
                page[position : position + len(frame)] = frame
                position, sequence = position + (16 + size + 7) // 8 * 8, sequence + 1
                if position + 16 > limit:
                    break
            del page[limit:]
        else:
            for _ in range(rng.randrange(1, 4)):
                at = rng.choice([rng.randrange(64, len(page)), rng.randrange(64, 400)])
                page[at] = rng.randrange(256)
        data = bytes(page)
        found = walk(bytearray(data), bytearray(queue_id), first)
        assert found == _walked(data, queue_id, first)
        reasons.add(re.sub(r"^\S+ \S+ \S+ ", "", found))
    assert len(reasons) == 4


# --- what other classes would give ----------------------------------------------------------------


PLANTS: dict[str, tuple[str, str, str, Callable[[Path], None]]] = {
    "nochecksum": (
        "Frames.java",
        "if (sum(at + HEADER, sequence) != stated) {",
        "if (false) {",
        damage_payload,
    ),
    "noqueueid": ("PageFile.java", "if (!own) {", "if (false) {", damage_other_queue),
    "noheader": ("PageFile.java", "if ((int) crc.getValue() != stated) {", "if (false) {", _header),
    "nomark": ("Messages.java", "if (turns && !isTurned) {", "if (false) {", _mark),
}


OFFSETS: dict[str, tuple[str, str, str]] = {
    "nofirst": (
        "PartReader.java",
        "new Messages(place, number(words, 1), number(words, 2), number(words, 3),",
        "new Messages(place, number(words, 1), number(words, 2), number(words, 3) + 1,",
    ),
    "nolast": ("PartReader.java", "number(words, 4), words[5]", "number(words, 4) - 1, words[5]"),
    "latetimes": (
        "PartReader.java",
        "new Times(place, number(words, 1), number(words, 2), number(words, 3),",
        "new Times(place, number(words, 1), number(words, 2), number(words, 3) + 1,",
    ),
    "latenumbers": ("Numbers.java", "rows.first = at;", "rows.first = at + 1;"),
    "latesequence": ("Messages.java", "rows.first = at;", "rows.first = at + 1;"),
    "earlypayload": (
        "Messages.java",
        "window.at(position) + Frames.HEADER;",
        "window.at(position) + Frames.HEADER - 1;",
    ),
    "nextpayload": (
        "Messages.java",
        "window.at(position) + Frames.HEADER;",
        "window.at(window.frames.next) + Frames.HEADER;",
    ),
}


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jar of all readers with a bug, each in a package of its own: compiled at once."""
    jar = tmp_path_factory.mktemp("planted") / "planted.jar"
    return planted_jar(spark, jar, PLANTS | OFFSETS)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_reader_that_does_not_check_is_caught(
    spark: SparkSession,
    tmp_path: Path,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Checksum, queue id, header, end of the page; frames of another page fail their checksums."""
    _, _, _, damage = PLANTS[name]
    use_reader(spark, monkeypatch, planted, name)
    fill(tmp_path / "q")
    jvm = pages.read(spark, tmp_path / "q", reader="native")
    assert rows(jvm.drop("queue", "timestamp")) == plain(tmp_path / "q")
    with pytest.raises(AssertionError):  # behind planning, because that checks headers too
        _same_after_planning(spark, tmp_path / "q", damage)


def _offsets_hold(spark: SparkSession, path: Path) -> None:
    """Each message is there once, with its own sequence, time and payload, in pieces of pages."""
    wanted = plain(path)
    for part_bytes in (300, WHOLE):
        jvm = pages.read(spark, path, reader="native", partitionBytes=part_bytes)
        assert rows(jvm.drop("queue", "timestamp")) == wanted
        for names in (["sequence", "timestamp_ns"], ["sequence"]):
            some = pages.read(
                spark, path, reader="native", partitionBytes=part_bytes, columns=names
            )
            assert rows(some) == [row[: len(names)] for row in wanted]


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(OFFSETS))
def test_offsets_that_are_off_by_one_are_caught(
    spark: SparkSession,
    filled: Path,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """At the beginning and the end of a piece, in times, sequences and payloads."""
    _offsets_hold(spark, filled)
    use_reader(spark, monkeypatch, planted, name)
    with pytest.raises((AssertionError, PySparkException)):
        _offsets_hold(spark, filled)


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["time", "sequence", "limit"])
def test_a_filter_that_is_off_by_one_is_caught(
    spark: SparkSession,
    filled: Path,
    kept: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    bug: str,
) -> None:
    """At the edge of a range, by time and by sequence."""
    from pagequeue.spark.native import conditions, intervals  # noqa: PLC0415 - patched here only

    right = intervals.of
    if bug == "time":
        monkeypatch.setitem(conditions.NS_EACH, "m", 1001)
    elif bug == "sequence":
        monkeypatch.setattr(intervals, "of", lambda first, end: right(first, end + 1))
    else:
        monkeypatch.setattr(intervals, "of", lambda first, end: right(first + (first > 0), end))
    with pytest.raises((AssertionError, PySparkException)):
        test_filters_are_exact_at_their_edges(spark, filled, kept)


@pytest.mark.nightly
def test_classes_of_javac_read_the_same(
    spark: SparkSession, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources are plain Java: where a JDK is there, its compiler gives the same classes."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("needs javac")
    texts = renamed("byjavac")
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    jars = os.path.join(os.path.dirname(pyspark.__file__), "jars", "*")
    command = [javac, "-J-XX:TieredStopAtLevel=1", "--release", "17", "-nowarn", "-proc:none"]
    command += ["-cp", jars, "-d", str(tmp_path / "out")]
    subprocess.run(
        [*command, *(str(tmp_path / name) for name in texts)], check=True, capture_output=True
    )
    classes = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*.class")
    }
    with zipfile.ZipFile(building.jar(spark)) as jar:
        assert {name.replace("pagequeue/", "byjavac/") for name in jar.namelist()} == set(classes)
    (tmp_path / "byjavac.jar").write_bytes(building.jar_bytes(classes))
    use_reader(spark, monkeypatch, tmp_path / "byjavac.jar", "byjavac")
    jvm = pages.read(spark, filled, reader="native")
    assert rows(jvm.drop("queue", "timestamp")) == plain(filled)
    assert jvm.where("sequence < 5").count() == 5
