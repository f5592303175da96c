"""Publishes all files of a micro-batch in the table, exactly once, whichever process dies.

    # A1. Spark writes the files, in a directory of this attempt.
    #     Dies here: the next archive removes the directory and repeats the batch.
    # A2. Each is named after the messages that it holds; what the table has already is left out.
    #     Dies here: the same.
    # A3. All of it is put on stable storage, and before that the ids of queues that are new.
    #     Dies here: the same. An id of a queue of which the table has nothing does not count.
    # A4. One rename makes the directory `publishing`. From here on the batch is archived.
    #     Dies here: the next archive continues with A5 first.
    # A5. File by file goes to its place, those of a queue in order of sequence.
    #     Dies here: the next archive moves the remaining ones.
    # A6. The empty directory is removed. The batch is acknowledged after that.
    #     Dies before: the batch is repeated; by the names the table has all of it: no row is added.

A power cut is the same: files are synced before A4, names before A6. A reader during A5 sees the
beginning of the batch for some queues; no message twice, and none that disappears again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from pagequeue import errors
from pagequeue.meta.all_meta import another_queue
from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.directories import lock_on, make, sync_all
from pagequeue.system.atomic_file import whole_file
from pagequeue.system.directory import sync_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

LOCK_TIMEOUT: Final = 10.0


class LastRow(NamedTuple):
    """The last row of a queue: its sequence, its time in ns since 1970, and its payload."""

    sequence: int
    timestamp_ns: int
    payload: bytes


class Published(NamedTuple):
    """What became the table's.

    Attributes:
        messages: how many.
        size_bytes: of their files.
        directories: hours, by their directories below the table, that have more files now.
    """

    messages: int
    size_bytes: int
    directories: tuple[str, ...]


class Publisher:
    """The one that writes to a table; close it when done.

    Args:
        table: its directory; made if it is not there.

    Raises:
        LockTimeout: another process writes to it.
        InvalidOption: the directory has other files. NotADirectory: it is a file.
    """

    def __init__(self, table: str) -> None:
        self.table: str = os.path.abspath(table)
        if not table_layout.is_table(self.table):
            try:
                others = os.listdir(self.table)
            except FileNotFoundError:
                others = []
            except NotADirectoryError as error:
                raise errors.NotADirectory(
                    "a file, or below a file: give a directory for the table, a new one",
                    path=self.table,
                ) from error
            if others:
                raise errors.InvalidOption(
                    "is not empty, and not a table that `archive` made",
                    path=self.table,
                    remedy="give a new directory",
                )
            make(table_layout.work_path(self.table))
        lock_on(table_layout.work_path(self.table, table_layout.READERS), writable=True).close()
        self._lock = lock_on(table_layout.work_path(self.table, table_layout.LOCK), writable=True)
        self._held = contextlib.ExitStack()
        try:
            held = self._lock.exclusive(LOCK_TIMEOUT, "archiving to the table")
            self._held.enter_context(held)
            self._settle()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write."""
        self._held.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _path(self, *names: str) -> str:
        return table_layout.work_path(self.table, *names)

    def _settle(self) -> None:
        """Finish or remove what a killed archive has started."""
        self._place()
        for name in os.listdir(self._path()):
            if name.startswith((table_layout.STAGING, table_layout.COMPACTING)):
                shutil.rmtree(self._path(name), ignore_errors=True)
        self._ends: dict[str, int] = {}
        self._queue_ids = table_layout.queue_ids(self.table)

    def staging(self) -> str:
        """Return where files of the next batch are written to: a directory not there yet (A1)."""
        return self._path(table_layout.STAGING + uuid.uuid4().hex)

    def publish(
        self, staged: str, queue_ids: Mapping[str, str] | None = None, *, is_gapless: bool = False
    ) -> Published:
        """Make what was staged the table's (A2 to A6).

        Args:
            staged: a directory that `staging` gave, with files below `queue=/date=/hour=`.
            queue_ids: of the queues that these messages are of, in hexadecimal, by their names; of
                others it is not known.
            is_gapless: what is new of a queue must follow what the table has of it.

        Raises:
            QueueReplaced: the table has messages of another queue of that name; it is as it was.
            SequenceOutOfRange: messages between are missing; the table is as it was.
            DiskFull, SystemLimit: the table is as it was, or the next one finishes.
        """
        self._know({_queue_directory(path) for path in _parquet_files(staged)}, queue_ids or {})
        kept = [file for path in _parquet_files(staged) if (file := self._kept(staged, path))]
        if is_gapless:
            self._check_follows(kept)
        if kept:
            there = {os.path.dirname(file.path) for file in kept}
            sync_all(os.path.join(staged, file.path) for file in kept)
            sync_all(os.path.join(staged, path) for path in _with_above(there))
            os.rename(staged, self._path(table_layout.PUBLISHING))
            sync_path(self._path())
            self._place()
            for file in kept:
                queue = _queue_directory(file.hour.directory)
                self._ends[queue] = max(self._ends[queue], file.end)
        shutil.rmtree(staged, ignore_errors=True)
        return Published(
            sum(file.rows for file in kept),
            sum(file.size_bytes for file in kept),
            tuple(sorted({file.hour.directory for file in kept})),
        )

    def end(self, queue_directory: str) -> int:
        """Return the end of a queue in the archive, exclusive."""
        if queue_directory not in self._ends:
            self._ends[queue_directory] = table_layout.last_end(self.table, queue_directory)
        return self._ends[queue_directory]

    def last_row(self, queue: str, queue_id: str) -> LastRow | None:
        """Return the last row of a queue; None: there is none, or it is of another queue."""
        directory = f"queue={table_layout.quote(queue)}"
        if self._queue_ids.get(queue) != queue_id or not self.end(directory):
            return None
        found = table_layout.last_file(self.table, directory)
        assert found is not None
        with pq.ParquetFile(os.path.join(self.table, found.path)) as file:
            rows = file.read_row_group(file.num_row_groups - 1, list(LastRow._fields))
        return LastRow(**rows.slice(rows.num_rows - 1).to_pylist()[0])

    def _know(self, directories: set[str], queue_ids: Mapping[str, str]) -> None:
        """Compare the ids of queues with those of the table, and store the new ones (A3).

        By its name and its sequences a queue that was recreated is archived already, in part.
        """
        known = self._queue_ids
        for directory in sorted(directories):
            name = table_layout.queue_of(directory)
            queue_id = queue_ids.get(name)
            if queue_id is None or known.get(name) == queue_id:
                continue
            if name in known and self.end(directory):
                raise another_queue(
                    name,
                    f"the table {self.table}",
                    known[name],
                    queue_id,
                    "archive the new queue to another table, or under another path",
                )
            known = {**known, name: queue_id}
        if known != self._queue_ids:
            with whole_file(self._path(table_layout.QUEUE_IDS), force=True) as file:
                file.write(json.dumps(known, sort_keys=True).encode())
            self._queue_ids = known

    def _kept(self, staged: str, path: str) -> _Staged | None:
        """Give a file its name, without what the table has; None: it has all of it (A2)."""
        hour = table_layout.hour_of(os.path.dirname(path))
        end = self.end(_queue_directory(path))
        full = os.path.join(staged, path)
        found = _range(full)
        if found is not None and found[0] < end < found[1]:
            _drop_before(full, end)
            found = _range(full)
        if found is None or found[1] <= end:
            os.unlink(full)
            return None
        first, stop, rows = found
        file = _Staged(hour, first, stop, os.path.getsize(full), rows)
        os.rename(full, os.path.join(staged, file.path))
        return file

    def _check_follows(self, kept: list[_Staged]) -> None:
        """Raise if messages are missing between the table and what is to be published."""
        ends: dict[str, int] = {}
        for file in sorted(kept, key=lambda file: file.first):
            queue = _queue_directory(file.hour.directory)
            end = ends.get(queue, self.end(queue) or file.first)
            if file.first != end:
                raise errors.SequenceOutOfRange(
                    f"the table has {file.hour.queue} up to message {end}, and the next that came "
                    f"is {file.first}: the checkpoint is another table's or a newer one; give a "
                    "new checkpoint, what is archived already is left out then",
                    path=self.table,
                    head_sequence=end,
                    tail_sequence=file.first,
                )
            ends[queue] = file.end

    def _place(self) -> None:
        """Move what is published to its place (A5, A6)."""
        publishing = self._path(table_layout.PUBLISHING)
        if not os.path.isdir(publishing):
            return
        paths = sorted(_parquet_files(publishing))
        for directory in sorted({os.path.dirname(path) for path in paths}):
            make(os.path.join(self.table, directory))
        for path in paths:
            os.rename(os.path.join(publishing, path), os.path.join(self.table, path))
        # Also those that one placed that died before it synced them.
        placed = {os.path.relpath(path, publishing) for path, _, _ in os.walk(publishing)}
        sync_all(
            path for one in placed - {"."} if os.path.isdir(path := os.path.join(self.table, one))
        )
        sync_path(self.table)
        shutil.rmtree(publishing)
        sync_path(self._path())


class _Staged(NamedTuple):
    """A staged file by its final name; as `Stored`, with its rows."""

    hour: table_layout.Hour
    first: int
    end: int
    size_bytes: int
    rows: int

    @property
    def path(self) -> str:
        return table_layout.Stored(self.hour, self.first, self.end, self.size_bytes).path


def _queue_directory(path: str) -> str:
    return path.partition(os.sep)[0]


def _parquet_files(directory: str) -> Iterator[str]:
    """Give the paths of Parquet files in directories below this one."""
    for path, _, names in os.walk(directory):
        below = os.path.relpath(path, directory)
        if not below.startswith(("_", ".")):
            yield from (os.path.join(below, n) for n in names if n.endswith(".parquet"))


def _with_above(directories: set[str]) -> set[str]:
    """Return directories and those above them."""
    found = {""}
    for directory in directories:
        parts = directory.split(os.sep)
        found |= {os.path.join(*parts[: depth + 1]) for depth in range(len(parts))}
    return found


def _range(path: str) -> tuple[int, int, int] | None:
    """Return first sequence, end and number of rows of a file; None: it is empty."""
    metadata = pq.read_metadata(path)
    if metadata.num_rows == 0:
        return None
    column = metadata.schema.names.index("sequence")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    statistics = [group.column(column).statistics for group in groups if group.num_rows]
    first = min(one.min for one in statistics)
    return first, max(one.max for one in statistics) + 1, metadata.num_rows


def copy_rows(sources: list[str], target: str, first: int = 0) -> None:
    """Write the rows of Parquet files to a new one, in their order, batch by batch.

    Args:
        sources: their paths.
        target: the path of the new one.
        first: rows below this sequence are left out.
    """
    with pq.ParquetFile(sources[0]) as file:
        schema, group = file.schema_arrow, file.metadata.row_group(0)
        compression = group.column(0).compression
    with pq.ParquetWriter(target, schema, compression=compression) as writer:
        for path in sources:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    rows: Any = batch
                    if first:
                        rows = batch.filter(pc.greater_equal(batch.column("sequence"), first))
                    if rows.num_rows:
                        writer.write_batch(rows)


def _drop_before(path: str, end: int) -> None:
    copy_rows([path], path + ".rest", end)
    os.rename(path + ".rest", path)
