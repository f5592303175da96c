"""Messages as Parquet and as Arrow's file format, and back; needs the extra `arrow`.

The file's metadata has the queue's dtype or codec, so that an import creates a queue of the same
schema.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any, Final, cast

import numpy as np

from pagequeue import errors
from pagequeue.columns import arrow
from pagequeue.export.files import RowGroup
from pagequeue.schema.schema import Schema
from pagequeue.util.optional import library, pyarrow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.export.row_times import Layout

KIND: Final = b"pagequeue.kind"
"""The key of the queue's schema, as JSON, in the metadata of the file's schema."""
GROUP_BYTES: Final = 16 << 20
"""Size at which a Parquet row group ends."""
PIECE_COUNT: Final = 16384
DAMAGED: Final = "incomplete, or of another format"


def _parquet() -> Any:  # noqa: ANN401 - it need not be installed
    return library("pyarrow.parquet", "arrow", "files of Parquet")


def schema_of(kind: Schema, *, wide: bool = False) -> Any:  # noqa: ANN401 - pyarrow's
    """Return the schema of a file of messages of a queue; with `wide`, of more than 2 GiB each.

    Raises:
        MissingExtra: pyarrow is not installed.
        NotEncodable: Arrow has no type for a field.
    """
    options = kind.options()
    kept = {KIND: json.dumps(options).encode()} if options else None
    return arrow.schema(kind, copy=True, wide=wide).with_metadata(kept)


class ArrowWriting:
    """Writes batches as Arrow record batches.

    Args:
        file: to write to.
        kind: schema of the queue.
        wide: whether a message can exceed 2 GiB.
    """

    def __init__(self, file: IO[bytes], kind: Schema, *, wide: bool = False) -> None:
        self._wide = wide
        self._schema = schema_of(kind, wide=wide)
        self._sink = pyarrow().PythonFile(file, "w")
        self._writer = pyarrow().ipc.new_file(self._sink, self._schema)

    def write(self, batch: Batch) -> None:
        """Write one batch."""
        rows = arrow.record_batch(batch, copy=True, wide=self._wide)
        self._writer.write_batch(rows.replace_schema_metadata(self._schema.metadata))

    def finish(self) -> None:
        """Write the footer, which has the positions of the batches."""
        self._writer.close()

    def abandon(self) -> None:
        """Return at once: batches are not buffered."""


class ParquetWriting:
    """Writes batches as row groups, several batches in one."""

    def __init__(self, file: IO[bytes], kind: Schema) -> None:
        self._schema = schema_of(kind)
        self._sink = pyarrow().PythonFile(file, "w")
        self._writer = _parquet().ParquetWriter(self._sink, self._schema)
        self._held: list[Any] = []
        self._held_bytes = 0

    def write(self, batch: Batch) -> None:
        """Write one batch, perhaps later.

        Raises:
            MessageTooLarge: a message exceeds the 2 GiB that a value of Parquet can have.
        """
        arrow.check_value(int(batch.lengths.max(initial=0)), "export to a file of Arrow, .arrow")
        rows = arrow.record_batch(batch, copy=True)
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._held:
            table = pyarrow().Table.from_batches(self._held)
            self._held, self._held_bytes = [], 0
            self._writer.write_table(table.replace_schema_metadata(self._schema.metadata))

    def finish(self) -> None:
        """Write the buffered batches, and the footer with the positions of the row groups."""
        self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        """Drop the buffered batches, and the footer."""
        self._held = []
        self._writer.is_open = False  # else its finalizer would write the footer


# --- back -----------------------------------------------------------------------------------------


class TableFile:
    """An open file of rows.

    Args:
        file: to read.
        path: of it, for errors.
        is_parquet: or Arrow's own format.
        layout: names of the columns, and the unit of times that are integers.

    Attributes:
        kind: schema of the exported queue; plain if the file has none.
        count: of the rows; -1: unknown.
    """

    count: int

    def __init__(self, file: IO[bytes], path: str, *, is_parquet: bool, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        pa = pyarrow()
        try:
            if is_parquet:
                opened = _parquet().ParquetFile(file)
                self._batches = opened.iter_batches(PIECE_COUNT)
                schema, self.count = opened.schema_arrow, opened.metadata.num_rows
            else:
                reader = pa.ipc.open_file(file)
                self._batches = map(reader.get_batch, range(reader.num_record_batches))
                schema, self.count = reader.schema, -1
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        self.kind: Schema = self._kind_of(schema)
        self._names = schema.names
        if twice := sorted({name for name in self._names if self._names.count(name) > 1}):
            raise errors.BadRow(
                f"several columns are called {twice[0]!r}",
                path=path,
                row=0,
                remedy="give each column its own name",
            )

    def _kind_of(self, schema: Any) -> Schema:  # noqa: ANN401 - pyarrow's
        stored = (schema.metadata or {}).get(KIND)
        if stored is None:
            return Schema()
        try:
            return Schema.from_options(json.loads(stored))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise errors.BadRow(
                f"the schema of its queue is unknown ({error})",
                path=self._path,
                row=0,
                remedy="use the version of pagequeue that wrote the file",
            ) from error

    def _damaged(self, error: Exception) -> errors.BadRow:
        reason = " ".join(str(error).split())
        return errors.BadRow(f"{DAMAGED} ({reason})", path=self._path, row=0)

    def pieces(self, kind: Schema) -> Iterator[RowGroup]:
        """Return the rows, piece by piece.

        Args:
            kind: schema of the target queue: rows have its records' fields, or `payload`.

        Raises:
            BadRow: the file is damaged, or its columns do not fit the schema.
        """
        pa = pyarrow()
        stored = self.kind.dtype
        own = arrow.own_names(() if stored is None else stored.names or ())
        own |= self._layout.names
        payload = self._layout.name("payload")
        fields = [payload]
        if kind.dtype is not None and not (self.kind.is_plain and payload in self._names):
            fields = list(kind.dtype.names or ())
        if missing := {own["timestamp"], *fields} - set(self._names):
            raise errors.BadRow(
                f"columns {sorted(missing)} are missing from {self._names}",
                path=self._path,
                row=0,
                remedy="add them, or name others with --column timestamp=NAME",
            )
        try:
            for batch in self._batches:
                for start in range(0, len(batch), PIECE_COUNT):
                    yield self._piece(batch.slice(start, PIECE_COUNT), own, fields)
        except pa.ArrowException as error:
            raise self._damaged(error) from error

    def _piece(self, rows: Any, own: dict[str, str], fields: list[str]) -> RowGroup:  # noqa: ANN401
        pa = pyarrow()
        times = rows.column(own["timestamp"])
        if pa.types.is_timestamp(times.type) and times.type.tz is None:
            raise errors.BadRow(
                "the timestamps have no time zone",
                path=self._path,
                row=0,
                remedy="cast them to timestamp('ns', 'UTC')",
            )
        timestamps = self._times(times)
        has_sequence = own["sequence"] in rows.schema.names
        sequences = self._whole(rows.column(own["sequence"])) if has_sequence else None
        payload = self._layout.name("payload")
        if fields != [payload]:
            lengths = np.ones(len(rows), np.int64)  # of one size: only the count matters
            return RowGroup(sequences, timestamps, rows.select(fields), lengths)
        payloads = rows.column(payload)
        if payloads.null_count:
            raise errors.BadRow(
                "a payload is null", path=self._path, row=0, remedy="fill it or drop the row"
            )
        lengths = pa.compute.binary_length(payloads.cast(pa.large_binary()))
        return RowGroup(sequences, timestamps, payloads, lengths.to_numpy().astype(np.int64))

    def _times(self, column: Any) -> NDArray[np.int64]:  # noqa: ANN401 - pyarrow's
        """Return the times of rows in ns."""
        pa = pyarrow()
        try:
            if self._layout.unit == "iso" and not pa.types.is_timestamp(column.type):
                return np.array([self._layout.ns(text) for text in column.to_pylist()], np.int64)
            times = self._whole(column, pa.timestamp("ns", "UTC"))
            return times if pa.types.is_timestamp(column.type) else self._layout.many_ns(times)
        except ValueError as error:
            if isinstance(error, errors.BadRow):
                raise
            raise errors.BadRow(str(error), path=self._path, row=0) from error

    def _whole(self, column: Any, by: Any = None) -> NDArray[np.int64]:  # noqa: ANN401
        """Return a column as int64; timestamps are cast to the type `by` first."""
        pa = pyarrow()
        if by is not None and pa.types.is_timestamp(column.type):
            column = column.cast(by)
        elif not pa.types.is_integer(column.type):
            raise errors.BadRow(
                f"a time or a sequence is of type {column.type}",
                path=self._path,
                row=0,
                remedy="give int64, or timestamp('ns', 'UTC')",
            )
        if column.null_count:
            raise errors.BadRow(
                "a time or a sequence is null", path=self._path, row=0, remedy="drop the row"
            )
        return cast("NDArray[np.int64]", column.cast(pa.int64()).to_numpy(zero_copy_only=False))
