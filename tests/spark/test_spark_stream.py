"""Spark's streaming read and write: offsets, limits, restarts, exactly once."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
from spark_support import attempt_fails
from tiers import slow_but

from pagequeue import Queue, Retention

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pagequeue import spark as pages
from pagequeue.spark.columns import Table, schema_of
from pagequeue.spark.options import read_options
from pagequeue.spark.path_glob import id_of
from pagequeue.spark.streaming import StreamReader, marks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit

    from pagequeue.spark.streaming import Offsets

pytestmark = pytest.mark.spark
PAGE_BYTES = 4096
SHORT = Retention(max_age=timedelta(microseconds=1))


def send(directory: Path, *payloads: bytes) -> None:
    """Send messages, to a new queue if it does not exist."""
    with Queue(directory, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for payload in payloads:
            producer.send(payload)


def numbers(first: int, end: int) -> list[bytes]:
    """Return payloads that are numbered."""
    return [b"%06d" % number for number in range(first, end)]


def payloads(directory: Path) -> list[bytes]:
    """Return all payloads of a queue; it is as it should be."""
    with Queue(directory) as queue:
        assert queue.verify().problems == []
        return [message.payload for message in queue.replay()]


def copy(stream: DataFrame, target: Path, checkpoint: Path, **options: str) -> list[dict[str, Any]]:
    """Copy all there is from a stream to a queue; return the progress of its batches."""
    query = (
        stream.select("payload")
        .writeStream.format("pagequeue")
        .options(**options)
        .option("path", str(target))
        .option("pageBytes", str(PAGE_BYTES))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


class Load(Protocol):
    """Returns a stream of queues, by one of the readers."""

    def __call__(self, path: Path | str, **options: object) -> DataFrame:
        """Return it."""


NATIVE: Final = "pagequeue (native reader)"
"""The source's name in the progress of a query."""


@pytest.fixture
def load(spark: SparkSession) -> Load:
    """What loads a stream; both readers have the same offsets (`StreamOffsets`)."""
    return partial(pages.read_stream, spark, reader="native")


@pytest.mark.parametrize("reader_name", slow_but(["native"], ["native", "python"]))
def test_a_stream_copies_all_and_resumes_at_its_checkpoint(
    spark: SparkSession, reader_name: str, tmp_path: Path
) -> None:
    """A restart from the checkpoint reads the new messages, and none twice."""
    load = partial(pages.read_stream, spark, reader=reader_name)
    send(tmp_path / "q", *numbers(0, 250))
    stream = load(tmp_path / "q", maxRecordsPerTrigger=100)
    done = copy(stream, tmp_path / "to", tmp_path / "check")
    assert [one["numInputRows"] for one in done if one["numInputRows"]] == [100, 100, 50]
    assert (done[0]["sources"][0]["description"] == NATIVE) == (reader_name == "native")
    send(tmp_path / "q", *numbers(250, 300))
    copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    assert payloads(tmp_path / "to") == numbers(0, 300)
    offsets = sorted(
        (tmp_path / "check" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)
    )
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    with Queue(tmp_path / "q") as queue:
        time = next(queue.replay(sequence=299)).timestamp
    assert last == {
        str(tmp_path / "q"): {"sequence": 300, "id": id_at(tmp_path / "q"), "time": time}
    }


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["commits", "offsets"])
def test_a_batch_that_is_done_again_is_published_once(
    load: Load, tmp_path: Path, lost: str
) -> None:
    """The driver dies between its commit and Spark's: the batch comes again, and is known."""
    send(tmp_path / "q", *numbers(0, 200))
    copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    last = max((tmp_path / "check" / "commits").glob("[0-9]*"))
    last.unlink()
    if lost == "offsets":  # also what the batch was is gone: the same id gets other rows
        send(tmp_path / "q", *numbers(200, 210))
        (tmp_path / "check" / "offsets" / last.name).unlink()
        copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
        assert payloads(tmp_path / "to") == numbers(0, 200)
        return
    copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    assert payloads(tmp_path / "to") == numbers(0, 200)
    send(tmp_path / "q", *numbers(200, 210))
    copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    assert payloads(tmp_path / "to") == numbers(0, 210)


@pytest.mark.slow
def test_queues_that_appear_later_join(load: Load, tmp_path: Path) -> None:
    """A glob is evaluated for each micro-batch; a new queue is read from its head."""
    send(tmp_path / "q1", *numbers(0, 10))
    stream = load(tmp_path / "q*", startingOffsets="latest")
    copy(stream, tmp_path / "to", tmp_path / "check")
    send(tmp_path / "q1", *numbers(10, 20))
    send(tmp_path / "q2", *numbers(100, 120))
    stream = load(tmp_path / "q*", startingOffsets="latest")
    copy(stream, tmp_path / "to", tmp_path / "check")
    assert sorted(payloads(tmp_path / "to")) == numbers(10, 20) + numbers(100, 120)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raised", "killed"])
def test_a_task_that_is_tried_again_writes_its_rows_once(
    load: Load, tmp_path: Path, how: str
) -> None:
    """An exception, or a Python worker that is killed, in the first attempt of a micro-batch."""
    sent = numbers(0, 500)
    send(tmp_path / "from", *sent)
    stream = load(tmp_path / "from").select("payload")
    copy(stream.mapInArrow(attempt_fails(how), stream.schema), tmp_path / "to", tmp_path / "c")
    assert payloads(tmp_path / "to") == sent


@pytest.mark.slow
def test_a_stream_of_replicas_reads_newly_shipped_pages(load: Load, tmp_path: Path) -> None:
    """Pages shipped later are read once; replicas of new hosts join."""
    stream = load(tmp_path / "ships" / "*")
    sent: list[bytes] = []
    for turn in range(3):
        for host in range(turn + 1):
            with Queue(tmp_path / f"host-{host}", page_bytes=4096) as queue:
                with queue.producer() as producer:
                    sent += (f"{host} {turn} {number}".encode() for number in range(50))
                    producer.send_many(sent[-50:])
                queue.rotate()
                queue.ship(tmp_path / "ships" / str(host))
        for _ in range(2):  # a queue that joins does so in a separate micro-batch
            copy(stream, tmp_path / "to", tmp_path / "checkpoint")
    assert sorted(payloads(tmp_path / "to")) == sorted(sent)


@pytest.mark.slow
def test_processing_time_follows_a_live_producer(load: Load, tmp_path: Path) -> None:
    """Without an end: what is sent comes, in order."""
    send(tmp_path / "q", *numbers(0, 5))
    query = (
        load(tmp_path / "q")
        .select("payload")
        .writeStream.format("pagequeue")
        .option("path", str(tmp_path / "to"))
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for step in range(3):
            send(tmp_path / "q", *numbers(5 + 5 * step, 10 + 5 * step))
            query.processAllAvailable()
            assert payloads(tmp_path / "to") == numbers(0, 10 + 5 * step)
    finally:
        query.stop()


@pytest.mark.slow
def test_a_consumers_name_holds_back_retention(load: Load, tmp_path: Path) -> None:
    """What Spark has not committed stays; what it has may go."""
    retention = Retention(max_bytes=3 * PAGE_BYTES)
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, retention=retention) as queue:
        send(tmp_path / "q", *numbers(0, 100))
        stream = load(tmp_path / "q", consumer="spark", maxRecordsPerTrigger=60)
        copy(stream, tmp_path / "to", tmp_path / "check")
        (info,) = queue.consumers()
        assert info.name == "spark"
        send(tmp_path / "q", *numbers(100, 2000))
        queue.trim()
        assert queue.head_sequence <= 100
        stream = load(tmp_path / "q", consumer="spark")
        copy(stream, tmp_path / "to", tmp_path / "check")
        assert payloads(tmp_path / "to") == numbers(0, 2000)
        (info,) = queue.consumers()
        assert info.lag == 0
        queue.trim()
        assert queue.head_sequence > 100


@pytest.mark.slow
def test_messages_removed_before_a_stream_read_them_are_an_error(
    spark: SparkSession, load: Load, tmp_path: Path
) -> None:
    """Messages that are lost to a query are an error, or skipped by choice."""
    send(tmp_path / "q", *numbers(0, 100))
    copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    send(tmp_path / "q", *numbers(100, 2000))
    with Queue(tmp_path / "q", retention=Retention(max_bytes=3 * PAGE_BYTES)) as queue:
        queue.trim()
        head = queue.head_sequence
    assert head > 100
    with pytest.raises(StreamingQueryException, match="onExpired=skip"):
        copy(load(tmp_path / "q"), tmp_path / "to", tmp_path / "check")
    skipping = pages.read_stream(spark, tmp_path / "q", reader="auto", onExpired="skip")
    copy(skipping, tmp_path / "to", tmp_path / "check")
    assert payloads(tmp_path / "to") == numbers(0, 100) + numbers(head, 2000)


# --- the reader without Spark ---------------------------------------------------------------------


def reader(path: Path, **options: object) -> StreamReader:
    """Return a reader as Spark would make it."""
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    return StreamReader(read_options(given, streaming=True), Table(schema_of()))


def id_at(path: Path) -> str:
    """Return the id of a queue."""
    with Queue(path, read_only=True) as queue:
        return id_of(queue)


def sequences(offsets: Offsets) -> dict[str, int]:
    """Return the sequences that offsets have; each has the id of the queue that is there."""
    assert all(offset["id"] == id_at(Path(name)) for name, offset in offsets.items())
    return {name: offset["sequence"] for name, offset in offsets.items()}


def test_a_query_begins_at_its_starting_offset(tmp_path: Path) -> None:
    """The earliest message, the next to come, or the first that is not older than a time."""
    clock = iter(range(1000, 9999, 10))
    with Queue(tmp_path / "q", page_bytes=PAGE_BYTES, clock=lambda: next(clock)) as queue:
        with queue.producer() as producer:
            for number in range(10):
                producer.send(b"%d" % number)
        third = list(queue.replay())[3].timestamp
    name = str(tmp_path / "q")
    assert sequences(reader(tmp_path / "q").initialOffset()) == {name: 0}
    assert sequences(reader(tmp_path / "q", startingOffsets="latest").initialOffset()) == {name: 10}
    assert sequences(reader(tmp_path / "q", startingOffsets=third).initialOffset()) == {name: 3}


def test_messages_that_are_not_durable_are_read_later(tmp_path: Path) -> None:
    """With `durableOnly` a stream never has what a power cut can take from its queue."""
    path, name = tmp_path / "q", str(tmp_path / "q")
    with Queue(path, page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        producer.send_many([b"a", b"b"])
        producer.flush()
        producer.send(b"c")
        stream = reader(path, durableOnly="true")
        assert sequences(stream.reportLatestOffset()) == {name: 2}
        assert sequences(stream.latestOffset({name: 0}, ReadAllAvailable())) == {name: 2}
        assert sequences(stream.latestOffset({name: 2}, ReadAllAvailable())) == {name: 2}
        assert sequences(stream.latestOffset({name: 3}, ReadAllAvailable())) == {name: 3}, (
            "read without it"
        )
        latest = reader(path, durableOnly="true", startingOffsets="latest")
        assert sequences(latest.initialOffset()) == {name: 2}
        assert sequences(reader(path).reportLatestOffset()) == {name: 3}
        producer.flush()
        assert sequences(stream.latestOffset({name: 2}, ReadAllAvailable())) == {name: 3}


def test_a_queue_emptied_by_retention_is_skipped(tmp_path: Path) -> None:
    """With `onExpired=skip` the offset advances to the tail, and not past it."""
    path, name = tmp_path / "q", str(tmp_path / "q")
    with Queue(path, page_bytes=PAGE_BYTES, retention=SHORT) as queue:
        with queue.producer() as producer:
            producer.send(b"one")
        queue.rotate()
        queue.trim()
        assert queue.head_sequence == queue.tail_sequence == 1
    stream = reader(path, onExpired="skip", maxRecordsPerTrigger=5)
    assert sequences(stream.latestOffset({name: 0}, ReadMaxRows(5))) == {name: 1}
    assert sequences(stream.latestOffset({name: 1}, ReadMaxRows(5))) == {name: 1}


def test_limits_bound_a_micro_batch(tmp_path: Path) -> None:
    """Rows and bytes are shared among queues; what one does not need the others get."""
    names = [str(tmp_path / name) for name in ("a", "b", "c")]
    for name, count in zip(names, (5, 100, 100), strict=True):
        send(Path(name), *(bytes(100) for _ in range(count)))
    start = dict.fromkeys(names, 0)
    by_rows = reader(tmp_path / "*", maxRecordsPerTrigger=65)
    assert by_rows.getDefaultReadLimit() == ReadMaxRows(65)
    end = sequences(by_rows.latestOffset(start, ReadMaxRows(65)))
    assert end == dict(zip(names, (5, 30, 30), strict=True))
    by_bytes = reader(tmp_path / "*", maxBytesPerTrigger=12_000)
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(12_000)
    end = sequences(by_bytes.latestOffset(start, ReadMaxBytes(12_000)))
    assert end[names[0]] == 5
    assert 80 <= sum(end.values()) <= 100
    assert sequences(
        reader(tmp_path / "*", maxBytesPerTrigger=1).latestOffset(start, ReadMaxBytes(1))
    ) == {
        **start,
        names[0]: 1,
    }
    everything = sequences(by_rows.latestOffset(start, ReadAllAvailable()))
    assert everything == dict(zip(names, (5, 100, 100), strict=True))


def test_every_offset_is_reached_step_by_step(tmp_path: Path) -> None:
    """However small the limit, the end comes, and every message lies between two offsets once."""
    for name, count in (("a", 7), ("b", 23), ("c", 1)):
        send(tmp_path / name, *numbers(0, count))
    stream = reader(tmp_path / "*", maxRecordsPerTrigger=4)
    stream.prepareForTriggerAvailableNow()
    send(tmp_path / "a", b"later")
    offset, rows = stream.initialOffset(), 0
    while True:
        end = stream.latestOffset(offset, stream.getDefaultReadLimit())
        if end == offset:
            break
        parts = stream.partitions(offset, end)
        batch = sum(one.num_rows for part in parts for one in stream.read(part))
        assert 0 < batch <= 6
        rows += batch
        offset = end
    assert rows == 31
    assert sequences(offset) == {
        str(tmp_path / name): count for name, count in (("a", 7), ("b", 23), ("c", 1))
    }


def test_a_queue_that_is_being_created_is_read_later(tmp_path: Path) -> None:
    """A glob that matches it reads the others; by its own path it is not there yet."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    send(tmp_path / "q1", b"one")
    (tmp_path / "q2").mkdir()
    name = "queue-allMeta"
    (tmp_path / "q2" / name).write_bytes((tmp_path / "q1" / name).read_bytes())
    name = str(tmp_path / "q1")
    stream = reader(tmp_path / "q*")
    assert sequences(stream.initialOffset()) == {name: 0}
    assert sequences(stream.reportLatestOffset()) == {name: 1}
    assert sequences(stream.latestOffset({name: 0}, ReadAllAvailable())) == {name: 1}
    with pytest.raises(errors.QueueNotFound):
        reader(tmp_path / "q2").initialOffset()


def test_a_queue_that_joins_has_no_field_in_place_of_our_column(tmp_path: Path) -> None:
    """Its values would be taken for sequences."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    send(tmp_path / "q1", b"one")
    stream = reader(tmp_path / "q*")
    names = [str(tmp_path / name) for name in ("q1", "q2")]
    (part,) = stream.partitions({names[0]: 0}, {names[0]: 1})
    assert [batch.num_rows for batch in stream.read(part)] == [1]
    with Queue(tmp_path / "q2", dtype=[("sequence", "<i8")]) as queue:
        queue.producer().send((7,))
    with pytest.raises(errors.DtypeMismatch, match="column 'sequence' is a field only in"):
        stream.partitions({names[1]: 0}, {names[1]: 1})


def old(offsets: Offsets) -> Offsets:
    """Return offsets as they were before they had ids."""
    return sequences(offsets)


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_a_queue_that_was_made_anew_is_refused(
    tmp_path: Path, count: int, available_now: bool
) -> None:
    """It has the same sequences, and other messages: the first ones would be missing."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    path = tmp_path / "q"
    send(path, *numbers(0, 5))
    start = reader(path, startingOffsets="latest").initialOffset()
    before = id_at(path)
    shutil.rmtree(path)
    send(path, *numbers(0, count))
    stream = reader(path)
    if available_now:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(errors.QueueReplaced, match="new checkpoint") as caught:
        stream.latestOffset(start, ReadAllAvailable())
    assert (caught.value.queue_id, caught.value.found_id) == (before, id_at(path))
    end = {str(path): {"sequence": 6, "id": before}}
    with pytest.raises(errors.QueueReplaced):  # planned before it was recreated
        stream.partitions(start, end)


def test_a_queue_is_told_from_another_one_between_planning_and_reading(tmp_path: Path) -> None:
    """A task opens the queue after the driver did, for an old checkpoint too."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    path, name = tmp_path / "q", str(tmp_path / "q")
    send(path, *numbers(0, 5))
    stream = reader(path)
    (part,) = stream.partitions({name: 0}, {name: 5})
    shutil.rmtree(path)
    send(path, *numbers(0, 5))
    with pytest.raises(errors.QueueReplaced):
        list(stream.read(part))


def test_the_consumer_of_a_stream_is_of_the_queue_of_its_checkpoint(tmp_path: Path) -> None:
    """Acknowledging in another queue would have retention take what nobody read."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    path = tmp_path / "q"
    send(path, *numbers(0, 5))
    stream = reader(path, consumer="spark")
    mark = marks_of(reader(path).initialOffset())
    shutil.rmtree(path)
    send(path, *numbers(0, 5))
    with pytest.raises(errors.QueueReplaced):
        stream._keep(mark)
    with Queue(path) as queue:
        assert not queue.consumers()


def test_a_checkpoint_without_ids_goes_on_and_gets_them(tmp_path: Path) -> None:
    """Before, offsets were sequences alone."""
    path, name = tmp_path / "q", str(tmp_path / "q")
    send(path, *numbers(0, 9))
    stream = reader(path)
    end = stream.latestOffset({name: 4}, ReadAllAvailable())
    assert sequences(end) == {name: 9}
    (part,) = stream.partitions({name: 4}, end)
    assert sum(batch.num_rows for batch in stream.read(part)) == 5
    (part,) = stream.partitions({name: 4}, old(end))
    assert sum(batch.num_rows for batch in stream.read(part)) == 5


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(3)])
def test_a_queue_that_was_restored_to_an_earlier_state_is_refused(
    tmp_path: Path, limit: ReadLimit
) -> None:
    """It has the same id, and other messages after those that were restored."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    path = tmp_path / "q"
    send(path, *numbers(0, 5))
    start = reader(path).initialOffset()
    shutil.copytree(path, tmp_path / "backup")
    send(path, *numbers(5, 7))
    stream = reader(path)
    end = stream.latestOffset(start, limit)
    while (more := stream.latestOffset(end, limit)) != end:
        end = more
    assert sequences(end) == {str(path): 7}
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    with pytest.raises(errors.SequenceOutOfRange, match="the queue ends at 5"):
        reader(path).latestOffset(end, limit)
    send(path, *numbers(5, 20))
    with pytest.raises(errors.SequenceOutOfRange, match="an earlier state"):
        reader(path).latestOffset(end, limit)
    end = reader(path).latestOffset({str(path): 7}, ReadAllAvailable())  # it knows no time
    assert sequences(end) == {str(path): 20}


@pytest.mark.parametrize("offset", ["13", None, {"id": "0"}, {"sequence": "1"}, True])
def test_what_is_no_offset_is_refused(tmp_path: Path, offset: object) -> None:
    """Of another source, or of a version that comes later."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    send(tmp_path / "q", b"one")
    with pytest.raises(errors.InvalidOption, match="new checkpoint"):
        reader(tmp_path / "q").latestOffset({str(tmp_path / "q"): offset}, ReadAllAvailable())


@pytest.mark.parametrize("available_now", [False, True])
def test_an_older_queue_is_refused(tmp_path: Path, available_now: bool) -> None:
    """An offset past the tail is not one of this queue."""
    from pagequeue import errors  # noqa: PLC0415 - used here only

    send(tmp_path / "q", b"one")
    stream = reader(tmp_path / "q")
    if available_now:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(errors.SequenceOutOfRange, match="new checkpoint"):
        stream.latestOffset({str(tmp_path / "q"): 5}, ReadAllAvailable())


def test_a_relative_path_is_that_of_the_time_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that changes its directory reads on in the same queue."""
    send(tmp_path / "q", b"one")
    monkeypatch.chdir(tmp_path)
    stream = reader(Path("q"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert sequences(stream.initialOffset()) == {str(tmp_path / "q"): 0}
