"""Batches and parts of queues as Arrow: what pyarrow, polars, DuckDB and pandas make of them."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import warm
from plugin import MESSAGES, Disk
from support import SMALL, Clock

from pagequeue import (
    ClosedError,
    CorruptFrame,
    Expired,
    MessageTooLarge,
    Queue,
    Retention,
    merge,
)
from pagequeue.columns import arrow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = [*range(14), 100, 255, 4000, 0, 1]
PAYLOADS = [(bytes(range(256)) * 16)[:size] for size in SIZES] * 3
COPIED = pa.schema(
    [("sequence", pa.int64()), ("timestamp", pa.timestamp("ns", "UTC")), ("payload", pa.binary())]
)
Rows = list[tuple[int, int, bytes]]


def rows_of(table: Any) -> Rows:  # noqa: ANN401 - a table or a batch of pyarrow
    """Return sequence, ns and payload of each row; pyarrow's own checks pass."""
    table.validate(full=True)
    times = table.column("timestamp").cast(pa.int64())
    return list(
        zip(
            table.column("sequence").to_pylist(),
            times.to_pylist(),
            table.column("payload").to_pylist(),
            strict=True,
        )
    )


def sent(queue: Queue, sequence: int = 0) -> Rows:
    """Return the same from the loop of messages."""
    return [(m.sequence, m.timestamp, m.payload) for m in queue.replay(sequence=sequence)]


def by_pyarrow(batches: object) -> Rows:
    """Read with pyarrow."""
    return rows_of(pa.table(batches))


def by_pyarrow_copied(batches: object) -> Rows:
    """Read with pyarrow, which asks for copies."""
    table = pa.RecordBatchReader.from_stream(batches, schema=COPIED).read_all()
    assert table.schema == COPIED
    return rows_of(table)


def by_polars(batches: object) -> Rows:
    """Read with polars."""
    frame = pl.DataFrame(batches)
    assert frame.schema["timestamp"] == pl.Datetime("ns", "UTC")
    return frame.with_columns(pl.col("timestamp").cast(pl.Int64)).rows()


def by_pandas(batches: object) -> Rows:
    """Read with pandas."""
    frame = pa.table(batches).to_pandas()
    if hasattr(pd.DataFrame, "from_arrow"):
        frame = pd.DataFrame.from_arrow(batches)
    assert str(frame["timestamp"].dtype) == "datetime64[ns, UTC]"
    frame["timestamp"] = frame["timestamp"].astype("int64")
    return list(frame.itertuples(index=False, name=None))


def by_duckdb(batches: object) -> Rows:
    """Read with DuckDB, which asks for the stream more than once."""
    with duckdb.connect() as connection:
        connection.register("batches", batches)
        query = "select sequence, epoch_ns(timestamp), payload from batches order by sequence"
        return connection.sql(query).fetchall()


READERS = [by_pyarrow, by_pyarrow_copied, by_polars, by_pandas, by_duckdb]
Reader = Callable[[object], Rows]
every_reader = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Return a queue whose payloads are of every size that a view treats differently."""
    with Queue(tmp_path / "q", page_bytes=SMALL, clock=Clock(5)) as queue:
        with queue.producer() as producer:
            for i, payload in enumerate(PAYLOADS):
                producer.send(payload, timestamp=1_700_000_000_000_000_000 + i // 2)
        assert queue.info().page_count > 3
        yield queue


# --- a batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("made", [False, True])
def test_batch_becomes_a_record_batch(queue: Queue, copy: bool, made: bool) -> None:
    """Over several pages, viewed or copied, also when the batch has made its payloads already."""
    batch = queue.last(1000)
    if made:
        assert batch.payloads == PAYLOADS
    table = batch.to_arrow(copy=copy)
    assert table.schema == (COPIED if copy else arrow.schema())
    assert batch.to_arrow().schema == COPIED
    assert rows_of(table) == sent(queue)
    assert rows_of(pa.record_batch(batch)) == sent(queue)
    part = batch[3:20]
    assert rows_of(part.to_arrow(copy=copy)) == sent(queue)[3:20]


@pytest.mark.parametrize("copy", [False, True])
def test_empty_batch_is_an_empty_record_batch(queue: Queue, copy: bool) -> None:
    """No message, no row; the columns are there."""
    table = queue.last(0).to_arrow(copy=copy)
    assert rows_of(table) == []
    assert table.schema == (COPIED if copy else arrow.schema())


def test_views_point_into_the_page_and_copies_do_not(queue: Queue) -> None:
    """A payload of more than 12 bytes is read in place, in the mapped page."""
    batch = queue.between()
    pages = [pa.py_buffer(part.region) for part in batch._parts()]
    ranges = {(page.address, page.size) for page in pages}
    views = batch.to_arrow(copy=False).column("payload").buffers()[2:]
    assert {(buffer.address, buffer.size) for buffer in views} == ranges
    data = batch.to_arrow(copy=True).column("payload").buffers()[2]
    assert all(not at <= data.address < at + size for at, size in ranges)


def test_reader_can_request_copies_of_a_batch(queue: Queue) -> None:
    """The requested schema decides; the original batch keeps its buffers."""
    batch = queue.last(5)
    schema, array = batch.__arrow_c_array__(COPIED.__arrow_c_schema__())
    copied = pa.RecordBatch._import_from_c_capsule(schema, array)
    assert copied.schema == COPIED
    assert rows_of(copied) == sent(queue)[-5:]
    schema, array = batch.__arrow_c_array__(arrow.schema().__arrow_c_schema__())
    assert pa.RecordBatch._import_from_c_capsule(schema, array).schema == arrow.schema()
    assert pa.schema(batch) == pa.record_batch(batch).schema == COPIED


def test_copies_of_more_than_2_gib_have_large_offsets(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of 32 bits hold no more; the schema says which a batch has."""
    batch, few = queue.last(1000), queue.last(1)
    monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 5000)
    rows = batch.to_arrow()
    assert rows.schema.field("payload").type == pa.large_binary()
    assert rows.column("payload").to_pylist() == batch.payloads
    rows.validate(full=True)
    assert pa.schema(batch) == pa.record_batch(batch).schema == rows.schema
    assert few.to_arrow().schema == pa.schema(few) == COPIED
    with pytest.raises(MessageTooLarge, match="take smaller batches"):
        batch.__arrow_c_array__(COPIED.__arrow_c_schema__())
    assert len(batch.to_arrow(copy=False)) == len(PAYLOADS)


def test_large_messages_among_others_have_large_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for what no page holds, also as text; a view of such a message is refused."""
    with Queue(tmp_path / "texts", page_bytes=4096, codec="utf-8") as queue:
        texts = ["a", "b" * 9000, "c" * 50]
        queue.producer().send_many(texts)
        batch = queue.between()
        monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 8000)
        rows = batch.to_arrow()
        assert rows.schema.field("payload").type == pa.large_string()
        assert rows.column("payload").to_pylist() == texts
        with pytest.raises(MessageTooLarge, match="take a copy"):
            batch.to_arrow(copy=False)


def test_stream_has_large_offsets_if_its_reader_requests_them(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches of a stream have one schema, which is fixed before the first one is read."""
    monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 1000)
    with pytest.raises(MessageTooLarge, match="take smaller batches"):
        queue.batches(limit_count=1000).to_arrow().read_all()
    wide = COPIED.set(2, pa.field("payload", pa.large_binary()))
    capsule = queue.batches(limit_count=1000).__arrow_c_stream__(wide.__arrow_c_schema__())
    table = pa.RecordBatchReader._import_from_c_capsule(capsule).read_all()
    assert table.schema == wide
    assert rows_of(table) == sent(queue)


@pytest.mark.quick_each(5)
@pytest.mark.parametrize("page_bytes", [4096, SMALL])
@pytest.mark.parametrize(
    ("sizes", "wide"),
    [
        ([10, 90_000, 5], True),
        ([80_001], True),
        ([*[900] * 20, 80_001, 80_001], True),
        ([*[900] * 20, 80_000, 70_000], False),
        ([], False),
    ],
)
def test_stream_has_large_offsets_where_a_message_needs_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page_bytes: int,
    sizes: list[int],
    *,
    wide: bool,
) -> None:
    """The schema is right before the first message is read: from a few headers of pages."""
    monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 80_000)
    expected = pa.large_binary() if wide else pa.binary()
    with Queue(tmp_path / "q", page_bytes=page_bytes) as queue:
        for size in sizes:
            queue.producer().send(bytes([size % 251]) * size)
        batches = queue.batches()
        for rows in (
            pa.table(batches),
            batches.to_arrow().read_all(),
            merge([queue]).to_arrow().read_all(),
        ):
            rows.validate(full=True)
            assert rows.schema.field("payload").type == expected
            found = rows.column("payload").to_pylist()
            assert found == [bytes([size % 251]) * size for size in sizes]
        assert pa.schema(batches) == batches.schema == pa.table(batches).schema
        if wide:  # what follows the message needs no large offsets
            after = queue.batches(sequence=len(sizes) - 1)
            assert (after.schema != COPIED) == (sizes[-1] > arrow.COPY_BYTES_MAX)


def test_merge_that_follows_refuses_a_message_that_its_schema_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed error and no wrong offsets; batches of such a merge have the type that they need."""
    monkeypatch.setattr(arrow, "COPY_BYTES_MAX", 8_000)
    with Queue(tmp_path / "q", page_bytes=4096) as queue, queue.producer() as producer:
        producer.send(b"a")
        with merge([queue], follow=True) as merged:
            rows = iter(merged.to_arrow())
            assert next(rows).column("payload").to_pylist() == [b"a"]
            producer.send(b"b" * 9_000)
            with pytest.raises(MessageTooLarge):
                next(rows)
        with merge([queue]) as merged:
            small, large = [batch.to_arrow() for batch in merged.batches()]
            assert small.schema.field("payload").type == pa.binary()
            assert large.schema.field("payload").type == pa.large_binary()
            assert large.column("payload").to_pylist() == [b"b" * 9_000]


# --- a part of a queue ---------------------------------------------------------------------------


@every_reader
def test_each_reader_takes_a_live_queue(queue: Queue, read: Reader) -> None:
    """One line each; every payload and every time is what was sent."""
    assert read(queue.batches()) == sent(queue)
    assert read(queue.batches(limit_count=3)) == sent(queue)
    assert read(queue.batches(copy=False)) == sent(queue)
    since = sent(queue)[10][1]
    until = sent(queue)[40][1]
    found = read(queue.batches(since=since, until=until))
    assert found == [row for row in sent(queue) if since <= row[1] < until]
    assert len(found) == 30


@every_reader
def test_each_reader_takes_an_empty_part(queue: Queue, read: Reader) -> None:
    """No rows is no error."""
    assert read(queue.batches(since=2_000_000_000_000_000_000)) == []


@every_reader
def test_part_is_the_same_each_time_it_is_read(queue: Queue, read: Reader) -> None:
    """Later messages are not part of it, and one reader's iteration does not affect another's."""
    batches = queue.batches(sequence=5)
    expected = sent(queue, 5)
    next(batches)
    queue.producer().send(b"later", timestamp=sent(queue)[-1][1])
    assert read(batches) == expected
    assert read(batches) == expected
    assert sum(map(len, batches)) < len(expected)


@every_reader
def test_compressed_pages_are_read_as_others(queue: Queue, read: Reader) -> None:
    """Their frames are in memory of this process, which a view keeps."""
    expected = sent(queue)
    assert queue.compress().pages
    assert read(queue.batches()) == expected


def test_duckdb_finds_batches_by_their_name(queue: Queue) -> None:
    """The one line of the README."""
    batches = queue.batches()
    query = "select count(*), sum(octet_length(payload)) from batches"
    assert batches is not None
    assert duckdb.sql(query).fetchall() == [(len(PAYLOADS), sum(map(len, PAYLOADS)))]


@every_reader
def test_damage_in_the_middle_reaches_the_reader(disk: Disk, read: Reader) -> None:
    """The reader's own error type, with file, position and message in its text."""
    disk.send(*MESSAGES)
    position = disk.tear(2, 1)
    with disk.open() as queue:
        batches = queue.batches()
        with pytest.raises(Exception, match="its checksum is wrong") as raised:
            read(batches)
        assert re.search(f"{disk.page(2)}: message 4 at position {position}", str(raised.value))


@every_reader
def test_closed_queue_is_an_error_of_the_reader(queue: Queue, read: Reader) -> None:
    """A stream started after closing raises ClosedError, if the reader passes errors on."""
    batches = queue.batches()
    queue.close()
    with pytest.raises(ClosedError):
        batches.__arrow_c_stream__()
    with pytest.raises(Exception, match="closed"):
        read(batches)


def test_closing_while_a_stream_is_open_ends_it_with_an_error(queue: Queue) -> None:
    """Batches already returned stay valid; the next one raises an error with the remedy."""
    reader = pa.RecordBatchReader.from_stream(queue.batches(limit_count=2))
    first = reader.read_next_batch()
    expected = sent(queue)[:2]
    queue.close()
    with pytest.raises(pa.ArrowInvalid, match="this replay is closed: make another one"):
        reader.read_next_batch()
    assert rows_of(first) == expected


def test_reader_of_a_queue_that_is_closed_meanwhile_raises_its_own_error(queue: Queue) -> None:
    """ClosedError, each time: what was not read never seems to be the end."""
    batches = queue.batches(limit_count=2)
    reader = batches.to_arrow()
    begun = batches.to_arrow(copy=False)
    first, expected = reader.read_next_batch(), sent(queue)[:2]
    queue.close()
    for read in (reader.read_next_batch, reader.read_all, reader.read_pandas, begun.read_all):
        with pytest.raises(ClosedError, match="this replay is closed: make another one"):
            read()
    with pytest.raises(ClosedError):
        batches.to_arrow()
    assert rows_of(first) == expected


def test_error_of_a_stream_is_raised_again(queue: Queue) -> None:
    """A caller that catches it and reads on must not take the rest for complete."""
    reader = pa.RecordBatchReader.from_stream(queue.batches(limit_count=2))
    reader.read_next_batch()
    queue.close()
    for read in (reader.read_next_batch, reader.read_all):
        with pytest.raises(pa.ArrowInvalid, match="this replay is closed"):
            read()


def test_reader_reads_the_whole_part_each_time(queue: Queue) -> None:
    """As the stream does, views or copies."""
    batches = queue.batches(limit_count=7)
    next(batches)
    for copy in (False, True):
        table = batches.to_arrow(copy=copy).read_all()
        assert table.schema.field("payload").type == (pa.binary() if copy else pa.binary_view())
        assert rows_of(table) == sent(queue)


def test_damage_in_a_reader_is_a_separate_error_type(disk: Disk) -> None:
    """With file, position and sequence; again and again."""
    disk.send(*MESSAGES)
    position = disk.tear(2, 1)
    with disk.open() as queue:
        reader = queue.batches(limit_count=1).to_arrow()
        for _ in range(4):
            reader.read_next_batch()
        for _ in range(2):
            with pytest.raises(CorruptFrame) as raised:
                reader.read_next_batch()
            assert (raised.value.sequence, raised.value.position) == (4, position)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_sending_the_batches_of_a_closed_queue_raises_closed_error(
    tmp_path: Path, queue: Queue, meanwhile: bool
) -> None:
    """Not that Arrow does not accept them; no message was sent."""
    batches = queue.batches(limit_count=2)
    told: Any = batches
    if meanwhile:
        told = batches.to_arrow()
        told.read_next_batch()
    queue.close()
    fields = [("sequence", "<i8"), ("timestamp", "<M8[ns]")]
    with Queue(tmp_path / "records", page_bytes=SMALL, dtype=fields) as other:
        producer = other.producer()
        with pytest.raises(ClosedError):
            producer.send_many(told)
        assert len(other) == 0


def test_stream_that_is_dropped_half_way_releases_its_pages(queue: Queue) -> None:
    """Afterwards only the queue has the pages."""
    reader = pa.RecordBatchReader.from_stream(queue.batches(limit_count=2))
    assert len(reader.read_next_batch()) == 2
    count = len(queue._opened.handles)
    del reader
    gc.collect()
    assert len(queue._opened.handles) < count
    assert len(pa.table(queue.batches())) == len(PAYLOADS)


def test_arrays_may_be_released_by_another_thread(queue: Queue) -> None:
    """The last reference to a page can go anywhere."""
    tables = [pa.table(queue.batches(limit_count=2, copy=False)) for _ in range(20)]
    streams = [queue.batches(copy=False).__arrow_c_stream__() for _ in range(20)]

    def drop() -> None:
        while tables:
            tables.pop()
            streams.pop()

    threads = [threading.Thread(target=drop) for _ in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tables == streams == []
    assert by_pyarrow(queue.batches()) == sent(queue)


@every_reader
def test_results_stay_valid_after_closing_and_retention(tmp_path: Path, read: Reader) -> None:
    """A view pins its page: the page is not reused, and its bytes stay mapped."""
    keep = Retention(max_bytes=4 * SMALL)
    with Queue(tmp_path / "q", page_bytes=SMALL, retention=keep) as queue:
        with queue.producer() as producer:
            for i in range(8):
                producer.send(b"%d" % i * 1300)
        batches = queue.batches()
        table = pa.table(queue.batches(copy=False))
        frame = pl.DataFrame(queue.batches(copy=False))
        expected = sent(queue)
        with queue.producer() as producer:
            for _ in range(40):
                producer.send(b"new" * 400)
        queue.trim()
        assert queue.head_sequence > 8
        with pytest.raises(Exception, match="retention passed this place") as raised:
            read(batches)
        assert read is by_duckdb or isinstance(raised.value, Expired)
    assert rows_of(table) == expected
    assert by_polars(frame) == expected


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    """All else works; the methods that need pyarrow name the extra to install."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pagequeue import MissingExtra, Queue\n"
        f"queue = Queue({str(tmp_path / 'q')!r}, page_bytes=4096)\n"
        "queue.producer().send(b'a')\n"
        "batches, batch = queue.batches(), queue.last(1)\n"
        "uses = [batch.to_arrow, batch.__arrow_c_array__, batch.__arrow_c_schema__,\n"
        "        batches.__arrow_c_stream__, lambda: batches.schema]\n"
        "for use in uses:\n"
        "    try:\n"
        "        use()\n"
        "    except MissingExtra as error:\n"
        "        assert error.extra == 'arrow' and '[arrow]' in str(error)\n"
        "    else:\n"
        "        raise AssertionError(use)\n"
        "assert batch.to_numpy('S1').tolist() == [b'a']\n"
        "assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules\n"
    )
    warm.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_importing_the_package_imports_no_pyarrow() -> None:
    """It is an extra, and takes a tenth of a second to import."""
    code = "import sys, pagequeue; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_batches_have_a_schema_and_can_be_closed(queue: Queue) -> None:
    """Closing ends only the iterator: each stream starts from the beginning."""
    with queue.batches() as batches:
        assert batches.schema == pa.schema(batches) == COPIED
        assert queue.batches(copy=False).schema == arrow.schema()
        assert batches.sequence == 0
    with pytest.raises(ClosedError):
        next(batches)
    assert by_pyarrow(batches) == sent(queue)
