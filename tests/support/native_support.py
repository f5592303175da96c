"""What tests of the native reader share: queues, damage, verdicts, and readers with a bug."""

from __future__ import annotations

import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from support import flip

from pagequeue import Queue, errors
from pagequeue import format as fmt
from pagequeue.spark import typed_errors
from pagequeue.spark.columns import schema_of
from pagequeue.spark.native import building
from pagequeue.spark.native import reader as native
from pagequeue.spark.options import place_options, write_options
from pagequeue.spark.source import BatchReader, dtype_of
from pagequeue.spark.writing import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PAGE_BYTES = 4096
START = 1_700_000_000_000_000_000
STEP = 1001
COUNT = 300


class Verdict(NamedTuple):
    """What a query ends with: class, text and attributes of the error."""

    kind: str
    text: str
    attributes: dict[str, object]


def fill(directory: Path, count: int = COUNT, *, first: int = 0, **options: Any) -> Path:  # noqa: ANN401
    """Send messages of different sizes a microsecond and a bit apart, some at the same time."""
    with (
        Queue(directory, page_bytes=PAGE_BYTES, clock=lambda: START, **options) as queue,
        queue.producer() as producer,
    ):
        for number in range(first, first + count):
            payload = f"m{number}".encode() * (number % 5)
            producer.send(payload, timestamp=START + number // 3 * 3 * STEP)
    return directory


def plain(directory: Path) -> list[tuple[int, int, bytes]]:
    """Return sequence, timestamp and payload of all messages, read without Spark."""
    with Queue(directory, read_only=True) as queue:
        return [(m.sequence, m.timestamp, m.payload) for m in queue.replay()]


def verdict(way: Callable[[], object]) -> Verdict | None:
    """Return the error of this package that a query ends with; None: it ends well."""
    try:
        with typed_errors():
            way()
    except errors.PageQueueError as own:
        told = {name: value for name, value in vars(own).items() if name[0] != "_"}
        return Verdict(type(own).__name__, str(own), told)
    return None


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return all rows, in order; bytes as bytes, and `timestamp` in microseconds since 1970."""
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", f.unix_micros("timestamp"))
    return sorted(
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.collect()
    )


def source_reader(
    path: object,
    columns: Sequence[str] | None = None,
    **options: object,
) -> BatchReader:
    """Return the Python source's reader, to be used here.

    Spark would start a worker for each of its tasks, twice where they fail.
    """
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    return BatchReader(given, schema_of(columns, dtype_of(place_options(given))))


def source_rows(
    path: object, columns: Sequence[str] | None = None, **options: object
) -> list[tuple[Any, ...]]:
    """Return all rows as the tasks of the Python source give them, in order of its partitions."""
    reader = source_reader(path, columns, **options)
    return [
        tuple(row.values())
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in _as_numbers(batch).to_pylist()
    ]


def _as_numbers(batch: Any) -> Any:  # noqa: ANN401 - pyarrow is not typed
    """Return a batch whose column `timestamp` is in microseconds since 1970, as in `rows`."""
    number = pa.int64()
    fields = [
        pa.field(field.name, number) if field.type == pa.timestamp("us", "UTC") else field
        for field in batch.schema
    ]
    return batch.cast(pa.schema(fields))


def write_here(frame: DataFrame, directory: Path, **options: object) -> None:
    """Write a frame by the Python sink's writer, as one task of Spark's and its driver would."""
    given = {"path": str(directory), **{name: str(value) for name, value in options.items()}}
    writer = BatchWriter(write_options(given), frame.schema, overwrite=False)
    staged = []
    try:
        staged.append(writer.write(iter(frame.toArrow().to_batches())))
        writer.commit(list(staged))
    except BaseException:
        writer.abort(list(staged))
        raise


def threads_after(before: int) -> int:
    """Return how many threads there are when they are as few as before, or after a minute.

    One ends when it sees that its connection to the JVM is closed.
    """
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    return threading.active_count()


def page_path(directory: Path, number: int) -> Path:
    """Return the path of a page."""
    return directory / fmt.page_name("queue", number)


def positions(page: Path) -> list[int]:
    """Return where the frames of a page begin, and its end-of-page mark."""
    data, found, position = page.read_bytes(), [], 64
    while True:
        word = struct.unpack_from("<I", data, position)[0]
        found.append(position)
        if word >> 30 == 2:
            return found
        position += ((word & fmt.LENGTH_MASK) + 7) // 8 * 8


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write into a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def damage_payload(there: Path) -> None:
    """A byte of a payload: nothing but the checksum tells."""
    page = page_path(there, 2)
    data = page.read_bytes()
    position = next(
        at for at in positions(page) if struct.unpack_from("<I", data, at)[0] & fmt.LENGTH_MASK > 18
    )
    flip(page, position + 17)


def damage_other_queue(there: Path) -> None:
    """Another queue's page, with the same number and sequences: only its id differs."""
    fill(there.parent / "other")
    page_path(there, 2).write_bytes(page_path(there.parent / "other", 2).read_bytes())


def renamed(name: str, file: str = "", old: str = "", new: str = "") -> dict[str, str]:
    """Return the sources in another package, with one change."""
    texts = {
        one: text.replace("package pagequeue;", f"package {name};")
        for one, text in building.sources().items()
    }
    if file:
        assert texts[file].count(old) == 1
        texts[file] = texts[file].replace(old, new)
    return texts


def planted_jar(spark: SparkSession, jar: Path, plants: Mapping[str, Sequence[Any]]) -> Path:
    """Write a jar of readers with a bug each, in packages of their own: compiled at once.

    Args:
        spark: a session.
        jar: where it goes.
        plants: of each package the changed file, the text there, and what replaces it.
    """
    texts = {
        f"{name}/{file}": text
        for name, (changed, old, new, *_) in plants.items()
        for file, text in renamed(name, changed, old, new).items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "sources", lambda: texts)
        jar.write_bytes(building.jar_bytes(building.compiled(spark)))
    return jar


def use_reader(spark: SparkSession, patch: pytest.MonkeyPatch, jar: Path, name: str) -> None:
    """Read with the classes of this package in a jar from now on, until the patch is undone.

    Executors know a jar by its file name alone, so each has its own.
    """
    native.prepare(spark)
    spark._jsparkSession.sessionState().resourceLoader().addJar(str(jar))
    getattr(spark._jvm, name).Planner.set(
        native._planner,
        spark.sparkContext._gateway.java_gateway_server.getCallbackClient(),  # type: ignore[union-attr]
    )
    patch.setattr(native, "FORMAT", name)
