"""The native reader's streams: the same offsets, rows and errors as the Python source's."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pagequeue import Queue, Retention, errors

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from native_support import (
    COUNT,
    PAGE_BYTES,
    Verdict,
    damage_other_queue,
    damage_payload,
    fill,
    plain,
    planted_jar,
    threads_after,
    use_reader,
    verdict,
)
from pyspark.errors import StreamingQueryException

from pagequeue import spark as pages
from pagequeue.spark.native import reader as native
from pagequeue.spark.native.partitions import Partitions
from pagequeue.spark.streaming import StreamOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    Row = tuple[str, int, int, bytes]

pytestmark = pytest.mark.spark
OTHER = {"python": "native", "native": "python"}
LIMIT = 60
"""Messages of a micro-batch."""


class Sink:
    """Keeps the rows of each micro-batch; of one that is done again, both times."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Row]]] = []
        self.before: Callable[[int], None] = lambda _: None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Take one micro-batch."""
        self.before(number)
        rows = batch.select("queue", "sequence", "timestamp_ns", "payload").collect()
        self.batches.append((number, sorted((*row[:3], bytes(row.payload)) for row in rows)))

    @property
    def rows(self) -> list[Row]:
        """All rows, sorted."""
        return sorted(row for _, rows in self.batches for row in rows)

    def by_batch(self) -> dict[int, list[Row]]:
        """Return the rows of each micro-batch."""
        return {number: rows for number, rows in self.batches if rows}


def start(stream: DataFrame, checkpoint: Path, sink: Sink, **trigger: Any) -> StreamingQuery:  # noqa: ANN401
    """Start a query."""
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def run(
    spark: SparkSession, path: Path, checkpoint: Path, reader: str, sink: Sink, **options: object
) -> Sink:
    """Read all that there is."""
    options = {"maxRecordsPerTrigger": LIMIT, **options}
    stream = pages.read_stream(spark, path, reader=reader, **options)
    start(stream, checkpoint, sink).awaitTermination()
    return sink


def three(directory: Path) -> Path:
    """Make three queues of different lengths, one compressed; return a glob of them."""
    for name, count in (("a", 90), ("b", 40), ("c", 7)):
        fill(directory / name, count)
    with Queue(directory / "a") as queue:
        queue.rotate()
        assert queue.compress().pages > 0
    return directory / "*"


def all_rows(glob: Path) -> list[Row]:
    """Return the rows of all queues, read without Spark."""
    paths = glob.parent.glob(glob.name)
    return sorted((str(path), *row) for path in paths for row in plain(path))


@pytest.mark.slow
def test_a_query_continues_with_the_other_reader(spark: SparkSession, tmp_path: Path) -> None:
    """Its offsets are the same text; every row comes once, by each reader."""
    glob = three(tmp_path / "in")
    sink = run(spark, glob, tmp_path / "check", "python", Sink())
    assert sink.rows == all_rows(glob)
    for name, before in (("a", 90), ("c", 7)):
        fill(tmp_path / "in" / name, 30, first=before)
    run(spark, glob, tmp_path / "check", "native", sink)
    assert sink.rows == all_rows(glob)
    for path in sorted((tmp_path / "check" / "offsets").glob("[0-9]*")):
        offset = path.read_text().splitlines()[-1]
        assert offset == json.dumps(json.loads(offset))


def _continue_at(whole: Path, there: Path, last: int, *, is_committed: bool) -> None:
    """Copy a checkpoint as it was when the driver died in this micro-batch, or after it."""
    shutil.copytree(whole, there)
    for kind in ("offsets", "commits"):
        for path in (there / kind).glob("*"):
            number = int(re.sub(r"\D", "", path.name))
            if number > last or (kind == "commits" and number == last and not is_committed):
                path.unlink()


def _restarts_hold(
    spark: SparkSession, tmp_path: Path, first: str, second: str, steps: Iterable[int] = range(3)
) -> None:
    """Continue after each of these steps with another reader, and compare each micro-batch."""
    glob = three(tmp_path / "in")
    told = run(spark, glob, tmp_path / "whole", first, Sink()).by_batch()
    assert len(told) == 3
    for last in steps:
        for is_committed in (False, True):
            there = tmp_path / f"check-{last}-{is_committed}"
            _continue_at(tmp_path / "whole", there, last, is_committed=is_committed)
            again = run(spark, glob, there, second, Sink()).by_batch()
            done = {number: rows for number, rows in told.items() if number not in again}
            assert set(done) == {number for number in told if number < last + is_committed}
            assert is_committed or again[last] == told[last]
            assert sorted(row for rows in (done | again).values() for row in rows) == all_rows(glob)


@pytest.mark.slow
@pytest.mark.parametrize(("second", "steps"), [("native", range(3)), ("python", [1])])
def test_a_restart_reads_the_same(
    spark: SparkSession, tmp_path: Path, second: str, steps: Iterable[int]
) -> None:
    """A micro-batch that was planned is done again with the same rows, by either reader."""
    _restarts_hold(spark, tmp_path, "native", second, steps)


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["native", "python"])
def test_a_restart_of_the_python_source_at_every_step_reads_the_same(
    spark: SparkSession, tmp_path: Path, first: str
) -> None:
    """And a checkpoint of its own."""
    _restarts_hold(spark, tmp_path, first, "python")


def _acknowledged(directory: Path) -> int | None:
    with Queue(directory, read_only=True) as queue:
        return next((info.next_sequence for info in queue.consumers()), None)


def _acknowledging_holds(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """What a micro-batch reads is not acknowledged before it is done."""
    path = fill(tmp_path / "q", 200)
    sink, acknowledged = Sink(), []

    def before(number: int) -> None:
        acknowledged.append((number * LIMIT, _acknowledged(path)))

    sink.before = before
    run(spark, path, tmp_path / "check", reader, sink, consumer="spark")
    assert len(acknowledged) == 4
    for begun, until in acknowledged:
        assert until is not None
        assert begun - LIMIT <= until <= begun
    assert _acknowledged(path) == 200


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["python", "native"])
def test_only_what_is_done_is_acknowledged(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """A consumer's position follows the commits, at most a micro-batch later."""
    _acknowledging_holds(spark, tmp_path, reader)


def _end_holds(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    """The trigger AvailableNow reads what was there, although more comes, in limited steps."""
    path = fill(tmp_path / "q", 130)
    sink = Sink()

    def before(number: int) -> None:
        if number < 5:  # a query that reads on would not end
            fill(path, 20, first=130 + 20 * number)

    sink.before = before
    run(spark, path, tmp_path / "check", reader, sink)
    assert [len(rows) for _, rows in sink.batches] == [60, 60, 10]
    assert [row[1] for row in sink.rows] == list(range(130))


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["native", pytest.param("python", marks=pytest.mark.nightly)])
def test_a_query_ends_where_the_queue_ended(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """With a producer at work, and a limit for each micro-batch."""
    _end_holds(spark, tmp_path, reader)


@pytest.mark.slow
def test_a_query_is_stopped_at_any_time_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No stream, no thread and no handle in the driver, and the next one continues."""
    path, target = fill(tmp_path / "q", 120), tmp_path / "to"

    def copied() -> list[bytes]:
        try:
            return [payload for *_, payload in plain(target)]
        except errors.QueueNotFound:
            return []

    run(spark, path, tmp_path / "first", "native", Sink())
    before = threading.active_count()
    payloads: list[bytes] = []
    for turn in itertools.count():
        stream = pages.read_stream(spark, path, reader="native", maxRecordsPerTrigger=9)
        query = (
            stream.select("payload")
            .writeStream.format("pagequeue")
            .option("path", str(target))
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        goal = len(payloads) + 9 * turn
        deadline = time.monotonic() + 60
        while len(payloads) < min(goal, 120) and time.monotonic() < deadline:
            time.sleep(0.01)
            payloads = copied()
        query.stop()
        assert query.exception() is None
        assert native._planner._streams._running == {}
        payloads = copied()
        assert len(payloads) >= min(goal, 120)
        if len(payloads) == 120:
            break
    assert threads_after(before) <= before
    assert payloads == [payload for *_, payload in plain(path)]


@pytest.mark.slow
def test_a_query_whose_rows_are_shuffled_leaves_no_thread(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark plans each of its micro-batches in another thread than that of the query."""
    path = fill(tmp_path / "q", 6)
    run(spark, path, tmp_path / "first", "native", Sink())
    before = threading.active_count()
    stream = pages.read_stream(spark, path, reader="native", maxRecordsPerTrigger=1)
    sizes: list[int] = []
    count = lambda batch, _: sizes.append(batch.count())  # noqa: E731
    writer = stream.repartition(2).writeStream.foreachBatch(count)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sizes == [1] * 6
    may = before + 1  # of the JVM's finalizer, once it has collected an object of py4j
    assert threads_after(may) <= may


@pytest.mark.slow
def test_an_unexpected_error_ends_a_query_with_its_traceback(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not an error of ours is told, too; as py4j's it overflows a stack in Spark."""

    def fails(*_: object) -> None:
        raise RuntimeError("a bug " * 1000)

    path = fill(tmp_path / "q", 5)
    with monkeypatch.context() as patch:
        patch.setattr(StreamOffsets, "latestOffset", fails)
        with pytest.raises(StreamingQueryException, match="RuntimeError: a bug a bug"):
            run(spark, path, tmp_path / "check", "native", Sink())
    assert native._planner._streams._running == {}


@pytest.mark.slow
def test_another_thread_starts_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Python's threads are threads of their own in the JVM."""
    path = fill(tmp_path / "q", 50)
    stream = pages.read_stream(spark, path, reader="native")
    sink, failed = Sink(), []

    def work() -> None:
        try:
            start(stream, tmp_path / "check", sink).awaitTermination()
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert len(sink.rows) == 50


# --- errors ---------------------------------------------------------------------------------------


def _verdicts(spark: SparkSession, path: Path, tmp_path: Path) -> dict[str, Verdict | None]:
    """Return what a query with each reader ends with."""
    return {
        reader: verdict(
            lambda reader=reader: run(  # type: ignore[misc]
                spark,
                path,
                tmp_path / f"check-{reader}",
                reader,
                Sink(),
                maxRecordsPerTrigger=10 * COUNT,
            )
        )
        for reader in OTHER
    }


@pytest.mark.slow
def test_damage_ends_a_query_with_the_same_error(spark: SparkSession, tmp_path: Path) -> None:
    """Class, file, place and remedy of both readers."""
    path = fill(tmp_path / "q")
    damage_payload(path)
    found = _verdicts(spark, path, tmp_path)
    assert found["native"] == found["python"]
    assert found["native"] is not None
    assert found["native"].kind == "CorruptFrame"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Expired", "shorter", "longer", "QueueNotFound"])
def test_what_became_of_a_queue_is_the_same_error(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    """Retention was faster, the queue was recreated, or it is gone; whatever the trigger."""
    path = fill(tmp_path / "q", 100)
    for reader in OTHER:
        run(spark, path, tmp_path / f"check-{reader}", reader, Sink())
    if case == "Expired":
        fill(path, 400, first=100)
        keep = Retention(max_age=timedelta(microseconds=1))
        with Queue(path, retention=keep) as queue:
            queue.rotate()
            queue.trim()
    else:
        shutil.rmtree(path)
        if case != "QueueNotFound":
            fill(path, {"shorter": 5, "longer": 200}[case])
    found = _verdicts(spark, path, tmp_path)
    assert found["native"] is not None
    if case in {"shorter", "longer"}:
        case = "QueueReplaced"
        stream = pages.read_stream(spark, path, reader="native")
        query = start(stream, tmp_path / "check-native", Sink(), processingTime="0 seconds")
        assert verdict(query.processAllAvailable) == found["native"]
        query.stop()
    assert found["native"] == found["python"]
    assert found["native"].kind == case


@pytest.mark.slow
def test_a_later_queue_must_have_the_columns_of_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fields have their places in records of one dtype; without fields any queue may join."""
    one = np.zeros(20, [("id", "<i4"), ("price", ">f8")])
    one["id"] = range(20)
    other = np.zeros(5, [("price", ">f8"), ("id", "<i4")])

    def send(name: str, records: Any) -> None:  # noqa: ANN401 - NumPy's
        with (
            Queue(tmp_path / "in" / name, dtype=records.dtype) as queue,
            queue.producer() as producer,
        ):
            producer.send_many(records)

    send("a", one)
    glob = tmp_path / "in" / "*"
    fields = pages.read_stream(spark, glob, reader="native", columns=["id", "price"])
    plain_columns = pages.read_stream(spark, glob, reader="native", columns=["payload"])
    found: list[tuple[int, float]] = []
    keep = lambda batch, _: found.extend(tuple(row) for row in batch.collect())  # noqa: E731
    place = str(tmp_path / "check")
    writer = fields.writeStream.foreachBatch(keep).option("checkpointLocation", place)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert found == [(number, 0.0) for number in range(20)]
    send("b", other)
    send("c", one)

    def twice() -> None:  # a queue joins in a micro-batch of its own
        for _ in range(2):
            writer.trigger(availableNow=True).start().awaitTermination()

    failed = verdict(twice)
    assert failed is not None
    assert failed.kind == "DtypeMismatch"
    assert failed.attributes["path"] == str(tmp_path / "in" / "b")
    sizes: list[int] = []
    count = lambda batch, _: sizes.append(batch.count())  # noqa: E731
    plain_columns.writeStream.foreachBatch(count).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert sum(sizes) == 45


# --- which reader ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_auto_is_the_native_reader_where_it_can(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of the log tells which, and why; asked for by name it is an error."""
    path = fill(tmp_path / "q", 5)
    by_name = spark.readStream.format("pagequeue")
    with caplog.at_level("INFO", "pagequeue"):
        found = []
        for stream in (
            pages.read_stream(spark, path),
            by_name.load(str(path)),
            pages.read_stream(spark, path, onExpired="skip"),
        ):
            query = start(stream, tmp_path / f"check{len(found)}", Sink())
            query.awaitTermination()
            assert query.lastProgress is not None
            found.append(query.lastProgress.sources[0].description)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        *[f"{path}: read by the native reader"] * 2,
        f"{path}: read by the Python source: it does not know onExpired=skip",
    ]
    is_native = [description == "pagequeue (native reader)" for description in found]
    assert is_native == [True, True, False]
    with pytest.raises(errors.InvalidOption, match=r"onDamage=skip.*python.*auto"):
        pages.read_stream(spark, path, reader="native", onDamage="skip")
    with pytest.raises(errors.InvalidOption, match="'since' is not known"):
        pages.read_stream(spark, path, since="10m")
    native = spark.readStream.format("pagequeue").option("reader", "native")
    with pytest.raises(StreamingQueryException, match="onDamage=skip"):
        start(
            native.option("onDamage", "skip").load(str(path)), tmp_path / "check", Sink()
        ).awaitTermination()


# --- readers with a bug ---------------------------------------------------------------------------

PLANTS: dict[str, tuple[str, str, str]] = {
    "streamchecksum": (
        "Frames.java",
        "if (sum(at + HEADER, sequence) != stated) {",
        "if (false) {",
    ),
    "streamqueueid": ("PageFile.java", "if (!own) {", "if (false) {"),
    "streamfirst": (
        "PartReader.java",
        "new Messages(place, number(words, 1), number(words, 2), number(words, 3),",
        "new Messages(place, number(words, 1), number(words, 2), number(words, 3) + 1,",
    ),
    "streamlast": (
        "PartReader.java",
        "number(words, 4), words[5]",
        "number(words, 4) - 1, words[5]",
    ),
    "streamoffset": (
        "QueueStream.java",
        "return new JsonOffset(json);",
        'return new JsonOffset("{}");',
    ),
    "streamstart": (
        "QueueStream.java",
        "ask(PARTITIONS, start.json(), end.json())",
        "ask(PARTITIONS, initialOffset().json(), end.json())",
    ),
    "streamend": (
        "QueueStream.java",
        "ask(PARTITIONS, start.json(), end.json())",
        "ask(PARTITIONS, start.json(), reportLatestOffset().json())",
    ),
    "streamlimit": (
        "QueueStream.java",
        'ReadAllAvailable ? "all" : "limited"',
        'ReadAllAvailable ? "all" : "all"',
    ),
    "streamnow": ("QueueStream.java", 'ask("prepare", "", "");', ""),
    "streamack": (
        "QueueStream.java",
        'ask("commit", end.json(), "");',
        'ask("commit", ask("report", "", ""), "");',
    ),
}


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jar of all readers with a bug."""
    return planted_jar(spark, tmp_path_factory.mktemp("planted") / "streams.jar", PLANTS)


def _offsets_hold(spark: SparkSession, tmp_path: Path) -> None:
    """Restarts, the end and acknowledgements are right."""
    for number, holds in enumerate((_acknowledging_holds, _end_holds)):
        holds(spark, tmp_path / str(number), "native")
    _restarts_hold(spark, tmp_path / "restarts", "python", "native")


@pytest.fixture
def ended(spark: SparkSession) -> Iterator[None]:
    """Stop what a bug keeps from ending."""
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.nightly
@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("name", sorted(set(PLANTS) - {"streamchecksum", "streamqueueid"}))
def test_a_stream_with_a_bug_is_caught(
    spark: SparkSession,
    tmp_path: Path,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Offsets off by one, other offsets, no limit, no end, acknowledged before it is done."""
    use_reader(spark, monkeypatch, planted, name)
    with pytest.raises((AssertionError, StreamingQueryException)):
        _offsets_hold(spark, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("bug", ["first", "early end", "late end", "admitted"])
def test_offsets_that_are_off_by_one_are_caught(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """What the driver plans for a micro-batch."""
    right, admitted = StreamOffsets.ranges, StreamOffsets._admitted
    by = {"first": (1, 0), "early end": (0, -1), "late end": (0, 1)}.get(bug)
    if by is None:
        monkeypatch.setattr(
            StreamOffsets,
            "_admitted",
            lambda self, ready: {name: end - 1 for name, end in admitted(self, ready).items()},
        )
    else:
        monkeypatch.setattr(
            StreamOffsets,
            "ranges",
            lambda *given: [
                (found, first + by[0], stop + by[1]) for found, first, stop in right(*given)
            ],
        )
    with pytest.raises((AssertionError, StreamingQueryException)):
        _offsets_hold(spark, tmp_path)


def _after_planning(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> Verdict | None:
    """Return what a query ends with whose pages are damaged after its micro-batch was planned."""
    path = fill(tmp_path / "q")
    right = Partitions.texts

    def texts(self: Partitions, ranges: Any) -> tuple[float, Iterable[str]]:  # noqa: ANN401
        found = right(self, ranges)
        damage(path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Partitions, "texts", texts)
        return verdict(
            lambda: run(
                spark, path, tmp_path / "check", "native", Sink(), maxRecordsPerTrigger=COUNT
            )
        )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("damage", "plant", "kind"),
    [
        (damage_payload, "streamchecksum", "CorruptFrame"),
        (damage_other_queue, "streamqueueid", "CorruptPage"),
    ],
)
def test_a_stream_that_does_not_check_is_caught(
    spark: SparkSession,
    tmp_path: Path,
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    plant: str,
    kind: str,
) -> None:
    """Tasks check what was right when the driver planned the micro-batch."""
    found = _after_planning(spark, tmp_path / "right", monkeypatch, damage)
    assert found is not None
    assert found.kind == kind
    use_reader(spark, monkeypatch, planted, plant)
    other = _after_planning(spark, tmp_path / "wrong", monkeypatch, damage)
    assert other is None or other.kind != kind


@pytest.mark.slow
def test_pages_are_cut_into_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch of several pages has several tasks; without payload no page is opened."""
    path = fill(tmp_path / "q")
    sink = Sink()
    run(
        spark,
        path,
        tmp_path / "check",
        "native",
        sink,
        maxRecordsPerTrigger=COUNT,
        partitionBytes=PAGE_BYTES // 3,
    )
    assert sink.rows == all_rows(path)
