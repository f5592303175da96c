"""Staged rows, written by tasks and not yet published: files next to the queue.

Tasks in Python write Arrow files, those in the JVM blocks of rows (`native/java/RowFile.java`).

Each job has a directory. A task writes one file there, synced, under a name that no other attempt
has, and says in its message what is in it. Only files that messages of winners name are ever read.

A job ends, by commit or abort, in one step that renames its directory: a task that is still
running, was killed, or starts later has no file there any more and cannot create one. What was
renamed is removed at once; if the process dies first, the next job or publisher of the queue
removes it. The driver creates the directory of a table's job, before any task runs. Only tasks know
the query of a stream, so they create it, and one that a late task created anew is removed when the
query commits next. The directory of a driver that died is removed by age.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import WriterCommitMessage

from pagequeue import _core, errors
from pagequeue.bulk.chunk import Chunk
from pagequeue.bulk.chunk import frame_bytes as frame_bytes_of
from pagequeue.bulk.staging_directory import ENDED, staged_directory
from pagequeue.spark.columns import PAYLOAD, TIME
from pagequeue.spark.record_columns import payloads_of
from pagequeue.system.directory import sync_path
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.ownership import ownership_inside
from pagequeue.system.trust import trusted
from pagequeue.util.timestamps import check_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.spark.options import WriteOptions

START: Final = "rows-"
"""Prefix of the names of jobs' directories."""
FOUND_OLD: Final = "found-old"
"""The name of a file in a job's directory: it was found to be unchanged for so long."""
ABANDONED_SECONDS: Final = 7 * 86_400
"""A job without a change for so long belongs to a driver that died and will not come back."""
ROWS_SUFFIX: Final = ".rows"
"""Of the names of files with blocks of rows."""
BLOCK_HEAD: Final = struct.Struct("<QQQ")
"""Of a block: rows, bytes of payloads, whether there are times."""
BLOCK_ALIGN: Final = 8
REMOVAL_TRIES: Final = 3
"""A task that resolved the directory's name before the rename can create a file after it, once."""


@dataclass(frozen=True)
class Shape:
    """What the columns of the rows are.

    Attributes:
        dtype: of the records that the other columns are the fields of; None: there is a payload.
        time: the column of times, or None.
        payload: the column of payloads, if the queue has no dtype.
    """

    dtype: np.dtype[np.void] | None = None
    time: str | None = None
    payload: str = PAYLOAD


@dataclass
class Staged(WriterCommitMessage):
    """What one task has written.

    Attributes:
        name: of its file, below the staging directory; empty: it had no rows.
        count: of its rows.
        frame_bytes: what they take in a page.
        size_bytes: of the file.
        checksum: of the file.
        query: of a stream; empty for a table.
    """

    name: str
    count: int
    frame_bytes: int
    size_bytes: int
    checksum: int
    query: str = ""


class _Summed:
    """A file that is written from its beginning to its end, and summed."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - a raw file
        self._file = file
        self.checksum = 0
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:  # noqa: ANN401 - Arrow's buffers
        rest = memoryview(data).cast("B")
        self.checksum = _core.crc32c(rest, self.checksum)
        self.size_bytes += len(rest)
        size_bytes = len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]
        return size_bytes

    def flush(self) -> None:
        """Return at once: writes are unbuffered."""


def staging_directory(options: WriteOptions) -> str:
    """Return the directory of all jobs' directories; create it if necessary.

    Raises:
        UnsafePath: it is a link, or belongs to another user.
        DiskFull, SystemLimit: the system refused.
    """
    trust = trusted(options.trust, options.path)
    return staged_directory(options.path, options.prefix, trust)


def begin(options: WriteOptions, job: str) -> None:
    """Create the directory of a job; a job that has ended gets a new one.

    Raises:
        UnsafePath: it is a link, or belongs to another user.
        DiskFull, SystemLimit: the system refused.
    """
    trust = trusted(options.trust, options.path)
    staged_directory(options.path, options.prefix, trust, START + job)


def stage(
    options: WriteOptions, job: str, batches: Iterator[Any], shape: Shape, query: str = ""
) -> Staged:
    """Write a task's rows to a file of its own, in the directory of its job.

    Args:
        options: where they go.
        job: of the task.
        batches: record batches of this shape.
        shape: what their columns are.
        query: of a stream.

    Raises:
        AccessError: the job has ended, or its directory was removed.
        DiskFull, SystemLimit: the system refused; the file is removed.
        InvalidOption, NotEncodable: a value is null, or does not fit into its field.
    """
    there = os.path.join(staging_directory(options), START + job)
    name = f"{uuid.uuid4().hex}.arrow"
    path = os.path.join(there, name)
    count = frame_bytes = 0
    try:
        with open(path, "xb", buffering=0, opener=_private) as file:
            sink = _Summed(file)
            writer = None
            for batch in batches:
                rows = _rows(batch, shape)
                if writer is None:
                    writer = pa.ipc.new_stream(sink, rows.schema)
                writer.write_batch(rows)
                count += rows.num_rows
                frame_bytes += frame_bytes_of(_lengths(rows.column(PAYLOAD)))
            if writer is not None:
                writer.close()
            os.fsync(file.fileno())
        sync_path(there)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, FileNotFoundError) and not os.path.isdir(there):
            raise errors.AccessError(
                "the job of these rows has ended, or its directory was removed",
                path=there,
                remedy="run the job again",
            ) from error
        if isinstance(error, OSError) and not isinstance(error, errors.PageQueueError):
            raise_typed(error, path, "writing rows")
        raise
    if count == 0:
        with contextlib.suppress(FileNotFoundError):  # the job has ended
            os.unlink(path)
        return Staged("", 0, 0, 0, 0, query)
    name = os.path.join(START + job, name)
    return Staged(name, count, frame_bytes, sink.size_bytes, sink.checksum, query)


def _private(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        ownership_inside(os.path.dirname(path)).give(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _rows(batch: Any, shape: Shape) -> Any:  # noqa: ANN401 - pyarrow is not typed
    """Return a batch with payloads as binary, without nulls."""
    columns = {}
    if shape.dtype is None:
        columns[PAYLOAD] = _whole(batch, shape.payload).cast(pa.binary())
    else:
        columns[PAYLOAD] = payloads_of(batch, shape.dtype)
    if shape.time is not None:
        columns[TIME] = _whole(batch, shape.time)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _whole(batch: Any, name: str) -> Any:  # noqa: ANN401 - the same
    column = batch.column(name)
    if column.null_count:
        raise errors.InvalidOption(
            f"column {name} has a null: fill it, or filter such rows out before writing"
        )
    return column


def _lengths(payloads: Any) -> NDArray[np.int64]:  # noqa: ANN401 - the same
    lengths = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int64)


class StagedRows:
    """The rows of all tasks that won, in order of partitions: what is to be published.

    Args:
        options: where they go.
        messages: of the tasks.

    Attributes:
        count: of the rows.
        frame_bytes: what they take in pages.
    """

    def __init__(self, options: WriteOptions, messages: list[Staged]) -> None:
        self._there = staging_directory(options)
        self._messages = [message for message in messages if message.count]
        self.count: int = sum(message.count for message in self._messages)
        self.frame_bytes: int = sum(message.frame_bytes for message in self._messages)

    def chunks(self) -> Iterator[Chunk]:
        """Give all rows.

        Raises:
            CorruptMeta: a file is not what its task wrote.
            InvalidOption: times are surely in another unit than ns.
        """
        for message in self._messages:
            path = os.path.join(self._there, message.name)
            try:
                file = pa.memory_map(path)
            except OSError as error:
                raise _damaged(path, f"reading it failed ({error})") from error
            with file:
                data = file.read_buffer()
                if data.size != message.size_bytes or _core.crc32c(data) != message.checksum:
                    raise _damaged(path, "it has other bytes than its task wrote")
                for chunk in (_blocks if path.endswith(ROWS_SUFFIX) else _batches)(data):
                    if chunk.times is not None:
                        check_ns(f"one of the times in column {TIME}", chunk.times)
                    yield chunk


def _batches(data: Any) -> Iterator[Chunk]:  # noqa: ANN401 - pyarrow is not typed
    for batch in pa.ipc.open_stream(data):
        times = None
        if TIME in batch.schema.names:
            times = batch.column(TIME).to_numpy(zero_copy_only=False)
        payloads = batch.column(PAYLOAD)
        yield Chunk(payloads, _lengths(payloads), times)


def _blocks(data: Any) -> Iterator[Chunk]:  # noqa: ANN401 - the same
    at = 0
    while at < data.size:
        count, payload_bytes, has_times = BLOCK_HEAD.unpack_from(data, at)
        begins = at + BLOCK_HEAD.size
        payloads = _aligned(begins + 4 * (count + 1))
        end = at = _aligned(payloads + payload_bytes)
        times = None
        if has_times:
            times = np.frombuffer(data, "<i8", count, end)
            at += 8 * count
        offsets = data.slice(begins, 4 * (count + 1))
        array = pa.Array.from_buffers(
            pa.binary(), count, [None, offsets, data.slice(payloads, payload_bytes)]
        )
        yield Chunk(array, np.diff(np.frombuffer(offsets, "<i4")).astype(np.int64), times)


def _aligned(position: int) -> int:
    return -(-position // BLOCK_ALIGN) * BLOCK_ALIGN


def _damaged(path: str, reason: str) -> errors.CorruptMeta:
    return errors.CorruptMeta(
        f"{reason}; no row was published",
        path=path,
        position=0,
        reason=reason,
        remedy="run the job again",
    )


def end(options: WriteOptions, *jobs: str) -> None:
    """End jobs: none of their tasks has rows there any more. Remove what others left, too.

    It raises nothing when the system refuses: a commit has published by now, and what cannot be
    removed is abandoned.
    """
    with contextlib.suppress(OSError, errors.PageQueueError):
        there = staging_directory(options)
        for job in jobs:
            _retire(there, START + job)
        _clear(there)


def end_query(options: WriteOptions, query: str, batch: int) -> None:
    """End the micro-batches of a query up to this one, as `end` does; those of earlier runs too."""
    start = f"{query}-"
    with contextlib.suppress(OSError, errors.PageQueueError):
        jobs = [
            name.removeprefix(START)
            for name in os.listdir(staging_directory(options))
            if name.startswith(START + start)
            and (number := name.removeprefix(START + start)).isdecimal()
            and int(number) <= batch
        ]
        end(options, *jobs)


def _retire(there: str, name: str) -> None:
    """Take a directory away from all tasks, and remove it."""
    path, ended = os.path.join(there, name), os.path.join(there, ENDED + uuid.uuid4().hex)
    try:
        # Dies after it: a directory that no task can find; the next job or publisher removes it.
        os.rename(path, ended)
    except FileNotFoundError:
        return
    except OSError:
        ended = path  # a full disk can have no place for the new name
    _remove(ended)


def _remove(path: str) -> None:
    for _ in range(REMOVAL_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return


def _clear(there: str) -> None:
    """Remove directories of jobs that ended, and retire those that were abandoned."""
    before = time.time() - ABANDONED_SECONDS
    with os.scandir(there) as entries:
        for entry in entries:
            if entry.name.startswith(ENDED):
                _remove(entry.path)
            elif entry.name.startswith(START) and _is_abandoned(entry.path, before):
                _retire(there, entry.name)


def _is_abandoned(directory: str, before: float) -> bool:
    """Whether a job's directory has not changed since a time, nor since it was found to be old.

    A clock that is ahead for a moment makes all directories old: so the first who finds that only
    says so, by a file in it, and one who finds that this is as old, too, believes it.
    """
    changed = _last_change(directory)
    if changed >= before:
        return False
    note = os.path.join(directory, FOUND_OLD)
    if os.path.exists(note) and os.stat(note).st_mtime >= changed:
        return True
    with contextlib.suppress(OSError):
        os.close(os.open(note, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(note, (before + ABANDONED_SECONDS,) * 2)
    return False


def _last_change(directory: str) -> float:
    """Return the time of the last change of a directory and of its files, in seconds."""
    try:
        with os.scandir(directory) as entries:
            times = [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
        return max([os.stat(directory).st_mtime, *times])
    except OSError:
        return time.time()  # it changes at this moment
