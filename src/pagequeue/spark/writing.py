"""The writers: tasks stage their rows, the driver publishes them, all or none, once.

The tasks are those of `native/java/RowFile.java`, or of the writers here. A table's job has an id
of its own, made on the driver, or a writer's name and a number that
identify it when it is repeated. A stream's work is named by query and batch, which tasks learn from
Spark and send in their messages, because the driver's commit does not get the query.
When a commit raises, Spark calls abort with the same messages, although it may have published: so
abort only removes staged files, never a row. The ledger decides what is repeated. Tasks can run on
after an abort: `staging.py` says why they leave nothing.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import BinaryType, LongType, StringType

from pagequeue import errors
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.queue.queue import Queue, internals, opened_again
from pagequeue.spark.columns import PAYLOAD, TIME, own_name
from pagequeue.spark.path_glob import Found, id_of
from pagequeue.spark.record_columns import fits, typed
from pagequeue.spark.staging import Shape, Staged, StagedRows, begin, end, end_query, stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import DataType, StructType

    from pagequeue.spark.options import WriteOptions

LOCK_TIMEOUT: Final = 120.0
"""Seconds that a commit waits for another one of the same queue."""
QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


class Target(NamedTuple):
    """The queue that a write was begun for.

    Attributes:
        directory: its absolute path.
        queue_id: in hexadecimal.
    """

    directory: str
    queue_id: str


def shape_of(schema: StructType, dtype: np.dtype[np.void] | None) -> Shape:
    """Return what the columns of rows are for a queue of this dtype.

    Raises:
        InvalidOption: the queue does not take these columns.
    """
    kinds = {field.name: field.dataType for field in schema.fields}
    time = own_name(TIME, dtype)
    if time in kinds and not isinstance(kinds[time], LongType):
        raise errors.InvalidOption(f"column {time} must be of type bigint: ns since 1970")
    others = set(kinds) - {time}
    given, payload = time if time in kinds else None, own_name(PAYLOAD, dtype)
    if dtype is not None and others != {payload}:
        _check_fields(kinds, others, dtype)
        return Shape(dtype, given)
    if not isinstance(kinds.get(payload), BinaryType | StringType):
        raise errors.InvalidOption(
            f"the rows need a column {payload} of type binary or string: select one, "
            "to_json(struct(*)) for example; or create the queue before, with the dtype of the rows"
        )
    if other := sorted(others - {payload}):
        raise errors.InvalidOption(
            f"column {other[0]!r} would be lost: select {payload}, and {time} if times are kept"
        )
    return Shape(None, given, payload)


def _check_fields(kinds: dict[str, DataType], others: set[str], dtype: np.dtype[np.void]) -> None:
    """Raise InvalidOption for columns that are not the fields of records."""
    names = list(dtype.names or ())
    if others != set(names):
        raise errors.InvalidOption(
            f"the columns are {sorted(others)}, the fields of the queue's records {names}: select "
            f"those, or {own_name(PAYLOAD, dtype)}; and {own_name(TIME, dtype)} if times are kept"
        )
    for name in names:
        wanted = typed(dtype[name], name).spark
        if not fits(kinds[name], wanted):
            raise errors.InvalidOption(
                f"column {name!r} has type {kinds[name].simpleString()}, its field needs "
                f"{wanted.simpleString()}: cast it"
            )


def prepare(options: WriteOptions, schema: StructType, *, overwrite: bool) -> tuple[Shape, Target]:
    """Make the queue, or refuse it, before any task runs; return what the columns are, and it.

    Raises:
        InvalidOption: the mode is overwrite, or the queue does not take these columns.
    """
    if overwrite:
        raise errors.InvalidOption(
            "mode overwrite is refused, a queue only grows: write with mode append, or into a new "
            "directory"
        )
    there = Found(os.path.abspath(options.path), options.prefix, options.trust)
    try:
        dtype = there.dtype()
    except errors.QueueNotFound:
        dtype = None
    shape = shape_of(schema, dtype)
    with _open(options) as queue:
        return shape, Target(queue.directory, id_of(queue))


def _open(options: WriteOptions, *, create: bool = True) -> Queue:
    return Queue(
        options.path,
        prefix=options.prefix,
        create=create,
        page_bytes=options.page_bytes if create else None,
        trust=options.trust,
        lock_timeout=LOCK_TIMEOUT,
    )


def _again(options: WriteOptions, target: Target) -> Queue:
    """Open the queue that was prepared, and no other one.

    Raises:
        QueueReplaced: it was removed, moved, or made again.
    """
    opened = partial(_open, replace(options, path=target.directory))
    queue_id = bytes.fromhex(target.queue_id)
    return opened_again(opened, queue_id, "what was begun to be written", "write again")


def publish_table(options: WriteOptions, target: Target, job: str, staged: list[Staged]) -> None:
    """Publish a table's rows, unless the ledger has them, and end its job."""
    options = replace(options, path=target.directory)
    with _again(options, target) as queue, BulkPublisher(internals(queue).store) as ledger:
        rows = StagedRows(options, staged)
        if options.writer is None:
            ledger.publish(job, 0, rows)
            ledger.forget(job)  # the job is never repeated
        else:
            ledger.publish(f"writer {options.writer}", options.piece, rows)
    end(options, job)


def publish_batch(
    options: WriteOptions, target: Target, query: str, batch: int, staged: list[Staged]
) -> None:
    """Publish the rows of a stream's micro-batch, unless the ledger has them, and end its job."""
    options = replace(options, path=target.directory)
    with _again(options, target) as queue, BulkPublisher(internals(queue).store) as ledger:
        ledger.publish(f"query {query}", batch, StagedRows(options, staged))
    end_query(options, query, batch)


def _won(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


class BatchWriter(DataSourceArrowWriter):
    """Writes a table: all rows or none, whatever becomes of tasks.

    Args:
        options: where they go.
        schema: of the rows.
        overwrite: whether the mode is that.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._job = uuid.uuid4().hex
        self._shape, self._target = prepare(options, schema, overwrite=overwrite)
        begin(options, self._job)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a partition."""
        return stage(self._options, self._job, iterator, self._shape)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish them."""
        publish_table(self._options, self._target, self._job, _won(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged; rows that the commit published before it failed stay."""
        del messages
        end(self._options, self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: each micro-batch once, all its rows or none.

    Args:
        options: where they go.
        schema: of the rows.
        overwrite: whether the mode is complete.
    """

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._shape, self._target = prepare(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of a partition."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY)
        batch = None if context is None else context.getLocalProperty(BATCH)
        if not query or not batch:
            raise errors.UsageError(
                f"this Spark does not tell its tasks {QUERY} and {BATCH}, by which a batch is "
                "known again: use a version that the extra 'spark' allows"
            )
        job = f"{query}-{batch}"
        begin(self._options, job)
        return stage(self._options, job, iterator, self._shape, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a micro-batch, unless the ledger has it."""
        staged = _won(messages)
        if staged:  # a batch without tasks has no rows
            publish_batch(self._options, self._target, staged[0].query, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what was staged; a batch that was published stays, and is not done again.

        Without a message of any task the query is unknown: its next commit removes the files.
        """
        end(self._options, *(f"{message.query}-{batchId}" for message in _won(messages)[:1]))
