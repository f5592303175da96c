"""Messages as Parquet and as Arrow's file format, and back; needs the extra `arrow`.

What the queue holds, its dtype or codec, stands in the file too, so that a queue made of it is of
the same kind.
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

KIND: Final = b"pagequeue.schema.schema"
"""The key of what the queue holds, as JSON, in the schema."""
GROUP_BYTES: Final = 16 << 20
"""A row group of Parquet ends after so many bytes."""
PIECE_COUNT: Final = 16384
DAMAGED: Final = "is not whole, or not what its suffix says"


def _parquet() -> Any:  # noqa: ANN401 - it need not be installed
    return library("pyarrow.parquet", "arrow", "files of Parquet")


def schema_of(kind: Schema) -> Any:  # noqa: ANN401 - pyarrow's
    """Return the schema of a file of messages of a queue.

    Raises:
        MissingExtra: pyarrow is not installed.
        NotEncodable: Arrow has no type for a field.
    """
    options = kind.options()
    kept = {KIND: json.dumps(options).encode()} if options else None
    return arrow.schema(kind, copy=True).with_metadata(kept)


class ArrowWriting:
    """Lays batches down as Arrow's record batches."""

    def __init__(self, file: IO[bytes], kind: Schema) -> None:
        self._schema = schema_of(kind)
        self._sink = pyarrow().PythonFile(file, "w")
        self._writer = pyarrow().ipc.new_file(self._sink, self._schema)

    def write(self, batch: Batch) -> None:
        """Lay one batch down."""
        rows = batch.to_arrow(copy=True)
        self._writer.write_batch(rows.replace_schema_metadata(self._schema.metadata))

    def finish(self) -> None:
        """Lay down where the batches stand."""
        self._writer.close()

    def abandon(self) -> None:
        """Nothing is held."""


class ParquetWriting:
    """Lays batches down as row groups, several batches in one."""

    def __init__(self, file: IO[bytes], kind: Schema) -> None:
        self._schema = schema_of(kind)
        self._sink = pyarrow().PythonFile(file, "w")
        self._writer = _parquet().ParquetWriter(self._sink, self._schema)
        self._held: list[Any] = []
        self._held_bytes = 0

    def write(self, batch: Batch) -> None:
        """Lay one batch down, perhaps later."""
        rows = batch.to_arrow(copy=True)
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._lay_down()

    def _lay_down(self) -> None:
        if self._held:
            table = pyarrow().Table.from_batches(self._held)
            self._held, self._held_bytes = [], 0
            self._writer.write_table(table.replace_schema_metadata(self._schema.metadata))

    def finish(self) -> None:
        """Lay down what is held, and where the row groups stand."""
        self._lay_down()
        self._writer.close()

    def abandon(self) -> None:
        """Forget what is held, and that the end is missing."""
        self._held = []
        self._writer.is_open = False  # else it would be laid down when it is collected


# --- back -----------------------------------------------------------------------------------------


class TableFile:
    """A file of rows, opened.

    Attributes:
        kind: what the queue held that it was made of; plain if the file does not say.
        count: of the rows.
    """

    def __init__(self, file: IO[bytes], path: str, *, is_parquet: bool) -> None:
        self._path = path
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
        self.kind = self._kind_of(schema)
        self._names = schema.names
        if twice := sorted({name for name in self._names if self._names.count(name) > 1}):
            raise errors.BadRow(
                f"several columns are called {twice[0]!r}: give each its own name",
                path=path, row=0,
            )  # fmt: skip

    def _kind_of(self, schema: Any) -> Schema:  # noqa: ANN401 - pyarrow's
        told = (schema.metadata or {}).get(KIND)
        if told is None:
            return Schema()
        try:
            return Schema.from_options(json.loads(told))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise errors.BadRow(
                f"what its queue held ({error}) is not known: was it written by a newer version?",
                path=self._path, row=0,
            ) from error  # fmt: skip

    def _damaged(self, error: Exception) -> errors.BadRow:
        reason = " ".join(str(error).split())
        return errors.BadRow(f"{DAMAGED} ({reason})", path=self._path, row=0)

    def pieces(self, kind: Schema) -> Iterator[RowGroup]:
        """Return the rows, piece by piece.

        Args:
            kind: what the queue holds that they go to: fields of its records, or `payload`.

        Raises:
            BadRow: the file is damaged, or its columns cannot be messages.
        """
        pa = pyarrow()
        told = self.kind.dtype
        own = arrow.own_names(() if told is None else told.names or ())
        fields = ["payload"]
        if kind.dtype is not None and not (self.kind.is_plain and "payload" in self._names):
            fields = list(kind.dtype.names or ())
        if missing := {own["timestamp"], *fields} - set(self._names):
            raise errors.BadRow(
                f"columns {sorted(missing)} must be there, not only {self._names}",
                path=self._path, row=0,
            )  # fmt: skip
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
                "the timestamps have no time zone: cast them to timestamp('ns', 'UTC')",
                path=self._path, row=0,
            )  # fmt: skip
        timestamps = self._whole(times, pa.timestamp("ns", "UTC"))
        has_sequence = own["sequence"] in rows.schema.names
        sequences = self._whole(rows.column(own["sequence"])) if has_sequence else None
        if fields != ["payload"]:
            lengths = np.ones(len(rows), np.int64)  # of one size: counting them is enough
            return RowGroup(sequences, timestamps, rows.select(fields), lengths)
        payloads = rows.column("payload")
        if payloads.null_count:
            raise errors.BadRow("a payload is null: messages have bytes", path=self._path, row=0)
        lengths = pa.compute.binary_length(payloads.cast(pa.large_binary()))
        return RowGroup(sequences, timestamps, payloads, lengths.to_numpy().astype(np.int64))

    def _whole(self, column: Any, by: Any = None) -> NDArray[np.int64]:  # noqa: ANN401
        """Return a column as int64, by way of another type if it is of that kind."""
        pa = pyarrow()
        if by is not None and pa.types.is_timestamp(column.type):
            column = column.cast(by)
        elif not pa.types.is_integer(column.type):
            raise errors.BadRow(
                f"a time or a sequence is of type {column.type}: give int64, or timestamp('ns', "
                "'UTC')",
                path=self._path, row=0,
            )  # fmt: skip
        if column.null_count:
            raise errors.BadRow("a time or a sequence is null", path=self._path, row=0)
        return cast("NDArray[np.int64]", column.cast(pa.int64()).to_numpy(zero_copy_only=False))
