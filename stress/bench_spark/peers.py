"""Other data sources in Python: a row at a time, and Arrow batches that are in memory already."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from pagequeue import Queue
from pagequeue.receive.batches import BATCH_BYTES
from pagequeue.spark.columns import COLUMNS, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType


class _Part(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        super().__init__((first, end))
        self.first = first
        self.end = end


def _parts(count: int, parts: int) -> list[InputPartition]:
    ends = [count * number // parts for number in range(parts + 1)]
    return [_Part(first, end) for first, end in pairwise(ends)]


class NaiveSource(DataSource):
    """Reads and writes a queue as one would at first: a message, a row."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "naive"

    def schema(self) -> StructType:
        """Return the columns of ours."""
        return schema_of()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads."""
        return _NaiveReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes; not atomic, which would only cost more."""
        del schema, overwrite
        return _NaiveWriter(self.options["path"])


class _NaiveReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._path = options["path"]
        self._count = int(options["count"])
        self._parts = int(options["parts"])
        self._names = schema.names

    def partitions(self) -> list[InputPartition]:
        return _parts(self._count, self._parts)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, _Part)
        with Queue(self._path, read_only=True) as queue:
            for message in queue.replay(sequence=partition.first):
                if message.sequence == partition.end:
                    return
                row = {
                    "queue": self._path,
                    "sequence": message.sequence,
                    "timestamp": message.time,
                    "timestamp_ns": message.timestamp,
                    "payload": message.payload,
                }
                yield tuple(row[name] for name in self._names)


class _NaiveWriter(DataSourceWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with Queue(self._path) as queue, queue.producer() as producer:
            for row in iterator:
                producer.send(bytes(row.payload))
            producer.flush()
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        del messages

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        del messages


class MemorySource(DataSource):
    """Gives one batch again and again, as the fastest source that Python code can be."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "memory"

    def schema(self) -> StructType:
        """Return the columns of ours."""
        return schema_of()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads."""
        return _MemoryReader(self.options, schema)


class _MemoryReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._count = int(options["count"])
        self._parts = int(options["parts"])
        self._payload_bytes = int(options["payloadBytes"])
        self._names = schema.names

    def partitions(self) -> list[InputPartition]:
        return _parts(self._count, self._parts)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Part)
        each = max(1, BATCH_BYTES // self._payload_bytes)
        whole = self._batch(each)
        left = partition.end - partition.first
        while left > 0:
            yield whole if left >= each else whole.slice(0, left)
            left -= each

    def _batch(self, count: int) -> Any:  # noqa: ANN401 - pyarrow is not typed
        times = np.arange(count, dtype=np.int64)
        data = np.full(count * self._payload_bytes, ord("x"), np.uint8)
        ends = np.arange(count + 1, dtype=np.int32) * self._payload_bytes
        arrays = {
            "queue": pa.repeat(pa.scalar(uuid.uuid4().hex), count),
            "sequence": pa.array(times),
            "timestamp": pa.array(times).cast(COLUMNS["timestamp"].arrow),
            "timestamp_ns": pa.array(times),
            "payload": pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)]
            ),
        }
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._names], self._names)
