"""Rows that tasks of the JVM write: the same queues as from Python's tasks, and the same errors."""

from __future__ import annotations

import json
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Queue, _core, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from native_support import write_here
from pyspark.sql import functions as f
from tiers import slow_but

from pagequeue.spark import typed_errors
from pagequeue.spark.native import sinks
from pagequeue.spark.options import write_options
from pagequeue.spark.staging import ROWS_SUFFIX, StagedRows, begin, staging_directory
from pagequeue.spark.writing import prepare

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
HERE = "here"
"""The Python sink's writer, used in this process: Spark would start workers for its tasks."""
SINKS = ("native", HERE)
COUNT = 3_000


def write(frame: DataFrame, directory: Path, sink: str, **options: object) -> None:
    """Write a frame by one of the sinks."""
    options = {"pageBytes": 65_536, **options}
    if sink == HERE:
        write_here(frame, directory, **options)
        return
    writer = frame.write.format("pagequeue").mode("append").option("sink", sink)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    with typed_errors():
        writer.save(str(directory))


def messages(directory: Path) -> list[tuple[int, bytes]]:
    """Return times and payloads of a queue that is valid and has no file of a job."""
    with Queue(directory) as queue:
        assert queue.verify().problems == []
        assert {*os.listdir(directory / "queue-staged")} <= {"lock"}
        return [(m.timestamp, m.payload) for m in queue.replay()]


@pytest.mark.parametrize("kind", slow_but(["times"], ["text", "bytes", "times"]))
def test_both_sinks_write_the_same(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Text and bytes, empty, small and larger than a block or a page; own times; three tasks."""
    size = f.when(f.col("id") % 1000 == 7, 1_200_000).otherwise(f.col("id") % 40)
    rows = spark.range(0, COUNT, 1, 3).select("id", size.alias("size"))
    text = f.concat(f.col("id").cast("string"), f.expr("repeat('ü', cast(size as int))"))
    columns = {
        "text": [text.alias("payload")],
        "bytes": [
            f.when(f.col("size") == 0, f.lit(b"")).otherwise(text.cast("binary")).alias("payload")
        ],
        "times": [(f.col("id") + 5).alias("timestamp_ns"), text.alias("payload")],
    }
    found = {}
    for sink in SINKS:
        write(rows.select(*columns[kind]), tmp_path / sink, sink)
        found[sink] = messages(tmp_path / sink)
    payloads = [[payload for _, payload in found[sink]] for sink in SINKS]
    assert payloads[0] == payloads[1]
    wanted = [b"%d" % number for number in range(COUNT)]
    assert [payload.partition("ü".encode())[0] for payload in payloads[0]] == [
        b"" if kind == "bytes" and number % 40 == 0 else text for number, text in enumerate(wanted)
    ]
    if kind == "times":
        assert found["native"] == found[HERE]
        assert [time for time, _ in found["native"]] == [*range(5, COUNT + 5)]


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner needs root")
@pytest.mark.parametrize("sink", SINKS)
def test_rows_of_root_belong_to_the_queues_owner(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str
) -> None:
    """Staged files, their directories, and the pages: all that a job of root leaves if it dies."""
    Queue(tmp_path / "q", page_bytes=65_536).close()
    for path in (tmp_path / "q", *(tmp_path / "q").iterdir()):
        os.chown(path, 54321, 54322)
    seen: list[tuple[str, int, int]] = []

    def owners(staged: StagedRows, *given: Any) -> Any:  # noqa: ANN401 - as it is
        paths = [tmp_path / "q", *(tmp_path / "q").rglob("*")]
        seen.extend((path.suffix, path.stat().st_uid, path.stat().st_gid) for path in paths)
        return begin_reading(staged, *given)

    begin_reading = StagedRows.__init__
    monkeypatch.setattr(StagedRows, "__init__", owners)
    write(
        spark.range(10).selectExpr("string(id) payload"), tmp_path / "q", sink, trust="other_owner"
    )
    assert {suffix for suffix, _, _ in seen} & {".rows", ".arrow"}
    assert {(user, group) for _, user, group in seen} == {(54321, 54322)}
    left = [path.stat().st_uid for path in (tmp_path / "q").rglob("*")]
    assert {*left} == {54321}


@pytest.mark.slow
def test_python_sink_writes_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """In the order of partitions, by Spark's workers."""
    frame = spark.range(0, COUNT, 1, 3).selectExpr("cast(id as string) payload")
    write(frame, tmp_path / "q", "python")
    assert [payload for _, payload in messages(tmp_path / "q")] == [b"%d" % n for n in range(COUNT)]


def test_log_says_which_sink_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The native one by default, and why another."""
    schema = json.dumps({"type": "struct", "fields": [_field("payload", "string")]})
    told = {"": "0 -1 0", "&sink=auto": "0 -1 0", "&sink=native": "0 -1 0", "&sink=python": ""}
    for option, answer in told.items():
        given = _words(tmp_path / "q") + option
        with caplog.at_level(logging.INFO, "pagequeue"):
            assert sinks.sink_answer(f"choose\n\n{given}\n{schema}", "") == answer
        assert [text.partition("q: ")[2] for text in caplog.messages] == (
            ["written by the native sink"] if answer else []
        )
        caplog.clear()
    given = _words(tmp_path / "q")
    with caplog.at_level(logging.INFO, "pagequeue"):
        assert sinks.sink_answer(f"choose\n\n{given}\n{schema}", "no classes") == ""
    assert caplog.messages[-1].endswith("q: written by the Python sink: no classes")
    with pytest.raises(errors.InvalidOption, match="cannot write this: no classes"):
        sinks.sink_answer(f"choose\n\n{given}&sink=native\n{schema}", "no classes")


PLAIN = np.dtype(
    [
        ("ok", "?"),
        ("i1", "i1"),
        ("i2", ">i2"),
        ("i4", "<i4"),
        ("i8", ">i8"),
        ("u1", "u1"),
        ("u2", "<u2"),
        ("u4", ">u4"),
        ("u8", "<u8"),
        ("f4", ">f4"),
        ("f8", "<f8"),
        ("s", "<M8[s]"),
        ("ms", ">M8[ms]"),
        ("us", "<M8[us]"),
        ("ns", "<M8[ns]"),
        ("day", "<M8[D]"),
        ("took", "<m8[ms]"),
        ("text", "<U3"),
        ("big", ">U2"),
        ("bytes", "S3"),
        ("raw", "V2"),
        ("list", "<i2", (2, 3)),
        ("times", "<M8[s]", (2,)),
        ("names", "U2", (2,)),
        ("part", [("x", "<u2"), ("at", "<M8[ns]"), ("in", [("y", "S1"), ("z", "<f4", (2,))])]),
    ],
    align=True,
)
VALUES = {
    "ok": "id % 2 = 0",
    "i1": "-id",
    "i2": "cast(id - 40 as int)",
    "i4": "-id",
    "i8": "-id * id",
    "u1": "id",
    "u2": "id * 600",
    "u4": "id * 40000000",
    "u8": "cast(id as decimal(20, 0))",
    "f4": "id / 3",
    "f8": "cast(-id as float)",
    "s": "timestamp_seconds(-id)",
    "ms": "timestamp_millis(id * 7)",
    "us": "timestamp_micros(-id)",
    "ns": "if(id = 3, null, timestamp_micros(id * 10000000))",
    "day": "date_from_unix_date(-id)",
    "took": "make_dt_interval(0, 0, id, 0.25)",
    "text": "substring('h\u00e9\U0001f600', 1, id % 4)",
    "big": "cast(id as string)",
    "bytes": "unhex(if(id % 2 = 0, '410042', '41'))",
    "raw": "unhex('00ff')",
    "list": "array(array(1S, 2S, 3S), array(4S, 5S, cast(id as smallint)))",
    "times": "array(timestamp_seconds(id), null)",
    "names": "array('a', 'bc')",
    "part": "named_struct('x', id, 'at', timestamp_micros(id), 'in', "
    "named_struct('y', unhex('41'), 'z', array(1f, cast(id as float))))",
}


@pytest.mark.slow
def test_both_sinks_write_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    """Every type that the native one knows, aligned, in any order of columns, with times."""
    columns = [f"{text} as `{name}`" for name, text in reversed(VALUES.items())]
    frame = spark.range(0, 100, 1, 2).selectExpr("id + 5 as timestamp_ns", *columns)
    found = {}
    for sink in SINKS:
        Queue(tmp_path / sink, page_bytes=65_536, dtype=PLAIN).close()
        write(frame, tmp_path / sink, sink)
        found[sink] = messages(tmp_path / sink)
    assert len(found["native"]) == 100
    assert found["native"] == found[HERE]


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
def test_payloads_of_records_are_written_as_they_are(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    """In place of columns; one of another size is no record, and nothing is written."""
    Queue(tmp_path / "q", page_bytes=65_536, dtype=[("x", "<u2")]).close()
    write(spark.range(5).selectExpr("unhex('0102') payload"), tmp_path / "q", sink)
    with pytest.raises(errors.PageQueueError, match="is not a record"):
        write(spark.range(5).selectExpr("unhex('010203') payload"), tmp_path / "q", sink)
    assert [payload for _, payload in messages(tmp_path / "q")] == [b"\1\2"] * 5


UNFIT = {
    "i1": ("id + 124", "not hold"),
    "u1": ("id - 3", "not hold"),
    "u2": ("id + 65530", "not hold"),
    "u4": ("-id", "not hold"),
    "u8": ("-id", "not hold"),
    "i8": ("if(id = 7, null, id)", "null"),
    "ok": ("if(id = 7, null, true)", "null"),
    "s": ("timestamp_millis(id)", "not hold"),
    "ms": ("timestamp_micros(id)", "not hold"),
    "ns": ("timestamp_seconds(id * 2000000000)", "not hold"),
    "text": ("repeat('\u00e9', id)", "cut them"),
    "bytes": ("encode(repeat('a', id), 'utf-8')", "cut them"),
    "raw": ("encode(repeat('a', id), 'utf-8')", "not hold"),
    "list": ("array_repeat(array(1S, 2S, 3S), cast(id as int))", "not hold"),
    "names": ("array('a', if(id = 7, null, 'b'))", "null"),
    "part": (VALUES["part"].replace("id", "if(id = 7, null, id)", 1), "null"),
}


@pytest.mark.slow
def test_value_that_a_field_does_not_hold_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """NotEncodable with a remedy, from both sinks, and no row is there."""
    for name, (text, why) in UNFIT.items():
        dtype = np.dtype([(name, PLAIN[name])])
        Queue(tmp_path / name, page_bytes=65_536, dtype=dtype).close()
        frame = spark.range(0, 10, 1, 1).selectExpr(f"{text} as `{name}`")
        for sink in SINKS:
            with pytest.raises(errors.NotEncodable, match=f"'{name}.*{why}"):
                write(frame, tmp_path / name, sink)
            assert messages(tmp_path / name) == []


@pytest.mark.slow
def test_records_that_it_does_not_know_are_left_to_python(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By default; the native sink is refused where it is asked for."""
    Queue(tmp_path / "q", page_bytes=65_536, dtype=[("half", "<f2")]).close()
    frame = spark.range(5).selectExpr("cast(id as float) half")
    write(frame, tmp_path / "q", "auto")
    with pytest.raises(errors.InvalidOption, match="does not write the field 'half' of type"):
        write(frame, tmp_path / "q", "native")
    with Queue(tmp_path / "q") as queue:
        assert [float(message.value["half"]) for message in queue.replay()] == [*range(5)]


def test_dtype_that_changed_since_planning_is_refused(tmp_path: Path) -> None:
    """The rows of other fields would be staged."""
    schema = json.dumps({"type": "struct", "fields": [_field("id", "long")]})
    given = _words(tmp_path / "q")
    Queue(tmp_path / "q", page_bytes=65_536, dtype=[("id", "<i8")]).close()
    told = sinks.sink_answer(f"choose\n\n{given}\n{schema}", "")
    assert sinks.sink_answer(f"table\n\n{given}\n{schema}\nfalse\n{told}", "")
    with pytest.raises(errors.InvalidOption, match="another dtype after"):
        sinks.sink_answer(f"table\n\n{given}\n{schema}\nfalse\n{told.replace('i:8', 'u:8')}", "")


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
def test_null_is_refused_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    """With the name of the column, by both, in payloads and in times."""
    payload = "if(id = 3, null, cast(id as string)) payload"
    with pytest.raises(errors.InvalidOption, match="column payload has a null: fill it"):
        write(spark.range(5).selectExpr(payload), tmp_path / "q", sink)
    time = "if(id = 3, null, id) timestamp_ns"
    with pytest.raises(errors.InvalidOption, match="column timestamp_ns has a null: fill it"):
        write(spark.range(5).selectExpr(time, "'x' payload"), tmp_path / "q", sink)
    assert messages(tmp_path / "q") == []


@pytest.mark.slow
def test_overwrite_and_unknown_names_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before any task runs."""
    frame = spark.range(5).selectExpr("cast(id as string) payload")
    for sink in ("native", "python"):
        writer = frame.write.format("pagequeue").mode("overwrite").option("sink", sink)
        with pytest.raises(errors.InvalidOption, match="a queue only grows"), typed_errors():
            writer.save(str(tmp_path / "q"))
    with pytest.raises(errors.InvalidOption, match="option sink is 'both'"):
        write(frame, tmp_path / "q", "both")
    with pytest.raises(errors.InvalidOption, match=r"pagebyte\b"):
        write(frame, tmp_path / "q", "native", pageByte=4096)


@pytest.mark.slow
def test_piece_is_published_once_whichever_sink_repeats_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The ledger is one; the next piece is added."""
    turns = (("a", 4, "native"), ("again", 4, HERE), ("b", 5, HERE), ("again", 5, "native"))
    for payload, piece, sink in turns:
        frame = spark.range(3).selectExpr(f"'{payload}' payload")
        write(frame, tmp_path / "q", sink, writer="nightly", piece=piece)
    assert [payload for _, payload in messages(tmp_path / "q")] == [b"a"] * 3 + [b"b"] * 3


@pytest.mark.slow
def test_stream_continues_with_the_other_sink(spark: SparkSession, tmp_path: Path) -> None:
    """From one checkpoint: each micro-batch is published once, in order, and leaves no file."""
    source = tmp_path / "source"
    source.mkdir()
    sent = []
    for number, sink in enumerate(("native", "python", "native")):
        rows = [json.dumps({"payload": f"{number}-{i}"}) for i in range(50)]
        (source / f"{number}.json").write_text("\n".join(rows))
        sent += [f"{number}-{i}".encode() for i in range(50)]
        query = (
            spark.readStream.schema("payload string")
            .json(str(source))
            .writeStream.format("pagequeue")
            .option("path", str(tmp_path / "q"))
            .option("sink", sink)
            .option("pageBytes", "65536")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert [payload for _, payload in messages(tmp_path / "q")] == sent


def test_batch_that_is_repeated_is_published_once(tmp_path: Path) -> None:
    """A driver that died after its commit asks again, with the files of new tasks."""
    given = _words(tmp_path / "q")
    schema = json.dumps({"type": "struct", "fields": [_field("payload", "string")]})
    told = sinks.sink_answer(f"stream\n\n{given}\n{schema}\nfalse\n0 -1 0", "")
    target, base, _ = told.split("\n")
    for turn in range(2):
        line = _rows(base, "query-7", f"{turn}", [b"one", b"two"])
        sinks.sink_answer(f"commit batch\n\n{given}\n{target}\nquery 7\n{line}", "")
    assert [payload for _, payload in messages(tmp_path / "q")] == [b"one", b"two"]
    _rows(base, "query-8", "left", [b"three"])
    sinks.sink_answer(f"abort batch\n\n{given}\n{target}\nquery 8", "")
    assert [payload for _, payload in messages(tmp_path / "q")] == [b"one", b"two"]


@pytest.mark.parametrize("how", ["removed", "recreated"])
def test_rows_for_a_queue_that_is_gone_go_to_no_other_one(tmp_path: Path, how: str) -> None:
    """The queue is that of the time when the write began, for tables and for streams."""
    path = tmp_path / "q"
    given = _words(path)
    schema = json.dumps({"type": "struct", "fields": [_field("payload", "string")]})
    told = sinks.sink_answer(f"stream\n\n{given}\n{schema}\nfalse\n0 -1 0", "")
    target, base, _ = told.split("\n")
    line = _rows(base, "query-7", "0", [b"one"])
    shutil.rmtree(path)
    if how == "recreated":
        Queue(path).close()
    for verb, work in (("commit batch", "query 7"), ("commit table", "job")):
        with pytest.raises(errors.QueueReplaced, match="write again"):
            sinks.sink_answer(f"{verb}\n\n{given}\n{target}\n{work}\n{line}", "")
    assert path.exists() == (how == "recreated")
    if how == "recreated":
        with Queue(path) as queue:
            assert not len(queue)


def test_changed_file_publishes_no_row(tmp_path: Path) -> None:
    """Its checksum, and its size, are those that the task told."""
    options = write_options({"path": str(tmp_path / "q"), "pageBytes": "65536"})
    frame_schema = sinks.StructType.fromJson(
        {"type": "struct", "fields": [_field("payload", "string")]}
    )
    prepare(options, frame_schema, overwrite=False)
    begin(options, "job")
    line = _rows(staging_directory(options), "job", "f", [b"abc", b"", b"de"])
    staged = sinks._staged([line])
    rows = StagedRows(options, staged)
    (chunk,) = rows.chunks()
    assert [one.as_py() for one in chunk.payloads] == [b"abc", b"", b"de"]
    assert chunk.lengths.tolist() == [3, 0, 2]
    assert rows.frame_bytes == 24 + 16 + 24
    with open(os.path.join(staging_directory(options), staged[0].name), "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(errors.CorruptMeta, match="other bytes than its task wrote"):
        list(StagedRows(options, staged).chunks())


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _words(directory: Path) -> str:
    return f"path={str(directory).replace('/', '%2F')}&pageBytes=65536"


def _rows(base: str, job: str, name: str, payloads: list[bytes]) -> str:
    """Write what a task of the JVM would, and return its line."""
    there = os.path.join(base, f"rows-{job}")
    os.makedirs(there, mode=0o700, exist_ok=True)
    begins = np.cumsum([0, *map(len, payloads)]).astype("<i4").tobytes()
    joined = b"".join(payloads)
    head = np.array([len(payloads), len(joined), 0], "<u8").tobytes()
    data = head + begins + bytes(-len(begins) % 8) + joined + bytes(-len(joined) % 8)
    file = os.path.join(there, name + ROWS_SUFFIX)
    with open(file, "wb") as written:
        written.write(data)
    frame_bytes = sum(-(-(16 + len(one)) // 8) * 8 for one in payloads)
    path = f"rows-{job}/{name}{ROWS_SUFFIX}"
    return f"{len(payloads)} {frame_bytes} {len(data)} {_core.crc32c(data)} {path}"
