"""`format("pagequeue")`: what Spark makes of the name, and the batch read.

Where a session has the native reader's classes, `DefaultSource.java` comes before it, and has this
source write, and read what the native reader does not know.

It is pickled and goes to executors, so it holds its options and no open handle. Filter pushdown is
not defined: in PySpark 4.1 to 4.3 the filters that a source took stay with it, and later queries on
the same frame are filtered too. Ranges are options instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader

from pagequeue import errors
from pagequeue.spark.columns import Need, Table, schema_of
from pagequeue.spark.error_text import noted
from pagequeue.spark.options import place_options, read_options, write_options
from pagequeue.spark.path_glob import find, one_dtype
from pagequeue.spark.planning import Part, plan
from pagequeue.spark.reading import read_part
from pagequeue.spark.streaming import StreamReader
from pagequeue.spark.writing import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
    )
    from pyspark.sql.types import StructType

    from pagequeue.spark.options import ReadOptions, WriteOptions
    from pagequeue.spark.path_glob import Found

NAME = "pagequeue"


class PageQueueSource(DataSource):
    """Queues as a table and as a stream, to read and to write."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return NAME

    @noted()
    def schema(self) -> StructType:
        """Return all columns: records have one for each field, other messages `payload`."""
        return inferred(place_options(self.options))

    @noted()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table."""
        return BatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what reads a stream."""
        options = read_options(self.options, streaming=True)
        _refuse_native(options)
        return StreamReader(options, Table(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a table."""
        return BatchWriter(_python_sink(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what writes a stream."""
        return StreamWriter(_python_sink(self.options), schema, overwrite=overwrite)


def inferred(options: ReadOptions, columns: Sequence[str] | None = None) -> StructType:
    """Return the schema of the queues that options mean.

    Args:
        options: which queues.
        columns: those that are wanted; None: all.

    Raises:
        DtypeMismatch: the queues have different dtypes. NotEncodable: Spark has no type for a
            field. InvalidOption: a column is not known.
    """
    return schema_of(columns, dtype_of(options))


def dtype_of(options: ReadOptions) -> np.dtype[np.void] | None:
    """Return the dtype of the queues that options mean; None: messages of any size, or no queue.

    Raises:
        DtypeMismatch: the queues have different dtypes.
    """
    return one_dtype(_found(options))


def dtypes_of(options: ReadOptions) -> list[np.dtype[np.void] | None]:
    """Return each dtype of the queues that options mean; None: of messages of any size."""
    return list(dict.fromkeys(found.dtype() for found in _found(options))) or [None]


def _found(options: ReadOptions) -> list[Found]:
    try:
        return find(options)
    except errors.QueueNotFound:
        return []  # a reader raises later, a writer creates it


def _refuse_native(options: ReadOptions) -> None:
    if options.reader == "native":
        raise errors.InvalidOption(
            "the calling thread does not have the native reader",
            remedy="call pagequeue.spark.register(spark) in this thread; Spark Connect has none",
        )


def _python_sink(given: Mapping[str, str]) -> WriteOptions:
    options = write_options(given)
    if options.sink == "native":
        raise errors.InvalidOption(
            "the calling thread does not have the native sink",
            remedy="call pagequeue.spark.register(spark) in this thread; Spark Connect has none",
        )
    return options


class BatchReader(DataSourceReader):
    """Reads the messages retained when the frame is first used.

    Args:
        given: the options, as text.
        schema: of the columns that are wanted.
    """

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._options = read_options(given, streaming=False)
        _refuse_native(self._options)
        self._table = Table(schema, Need.PAYLOADS if self._options.check == "all" else Need.NOTHING)

    @noted()
    def partitions(self) -> list[InputPartition]:
        """Return what each task reads."""
        return plan(self._options, self._table)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Give the record batches of one partition."""
        assert isinstance(partition, Part)
        return read_part(partition, self._table, self._options)
