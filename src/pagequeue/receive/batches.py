"""Batches: a part of a queue, batch by batch, and as Arrow's stream.

The iterator holds one batch at a time: reading needs memory for that one, however large the queue
is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pagequeue.columns import arrow
from pagequeue.columns.batch import Batch
from pagequeue.columns.inputs import StreamSource
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.receive.replay import Replay
    from pagequeue.schema.schema import Schema

BATCH_BYTES: Final = 2 << 20
"""A batch ends after so many bytes of its page: enough that the cost of each batch is small, and
few enough to fit into a processor's cache."""
LIST_BYTES: Final = 256 << 10
"""Or after so many, where payloads are taken as lists: what was checked, the objects to which it is
copied, and those of the batch before, whose memory is used again, fit into it together."""


class Batches(Iterator[Batch], Closing):
    """A finite iterator of batches; made by `Queue.batches()`.

    Libraries that read Arrow accept it as it is: `pyarrow.table(batches)`,
    `polars.DataFrame(batches)`, `pandas.DataFrame.from_arrow(batches)`, `duckdb.sql("select ...
    from batches")`. Each gets the whole part, from its beginning, as often as it reads it: DuckDB
    does that more than once for a query. The part ends with the last message that was published
    when the iterator was made.

    Example:
        >>> [len(batch) for batch in queue.batches(limit_count=2)]
        [2, 2, 1]
        >>> pyarrow.table(queue.batches()).num_rows
        5
    """

    def __init__(
        self,
        replay: Replay,
        again: Callable[[], Replay],
        limit_count: int,
        kind: Schema,
        *,
        copy: bool = True,
    ) -> None:
        self._replay = replay
        self._kind = kind
        self._again = again
        self._limit_count = limit_count
        self._copy = copy
        self._first = replay.sequence
        self._bytes_max = BATCH_BYTES
        self._last: weakref.ref[Batch] | None = None  # it can have the only map of a page

    def __next__(self) -> Batch:
        last = None if self._last is None else self._last()
        if last is not None:
            is_list = last._payloads is not None  # noqa: SLF001 - its own library
            self._bytes_max = LIST_BYTES if is_list else BATCH_BYTES
            del last  # if it was the caller's to drop, its memory is used again now
        batch = self._replay.read_batch(self._limit_count, self._bytes_max)
        if batch is None:
            raise StopIteration
        self._last = weakref.ref(batch)
        return batch

    @property
    def sequence(self) -> int:
        """The sequence of the next message; at the end, that after the last one.

        Example:
            >>> queue.batches(sequence=3).sequence
            3
        """
        return self._replay.sequence

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow may be missing
        """The `pyarrow.Schema` of Arrow's stream.

        Raises:
            MissingExtra: pyarrow is not installed.

        Example:
            >>> queue.batches().schema.names
            ['sequence', 'timestamp', 'payload']
        """
        return arrow.schema(self._kind, copy=self._copy, text=True, wide=self._is_wide())

    def _is_wide(self) -> bool:
        """Whether copies need offsets of 64 bits: a stream has one schema for all batches."""
        return self._replay.holds_over(arrow.COPY_BYTES_MAX, self._first)

    def __arrow_c_schema__(self) -> object:
        """Return the schema of Arrow's stream, as a capsule."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the whole part as Arrow's stream, in a capsule.

        Args:
            requested_schema: the schema that the reader prefers, as a capsule: payloads are copied
                unless its `payload` is of type binary_view. Without one, `payload` is large_binary
                where a message exceeds 2 GiB.

        Raises:
            MissingExtra: pyarrow is not installed.
            Expired: retention removed the beginning of the part.
            ClosedError: the queue was closed. Arrow's stream has no types of errors, so the reader
                gets later errors from its own library; their text has the file and the position.
                `to_arrow` raises them as they are.
        """
        return arrow.stream_capsule(
            _all(self._again(), self._limit_count),
            self._kind,
            requested_schema,
            copy=self._copy,
            wide=self._is_wide(),
        )

    def to_arrow(self, *, copy: bool | None = None) -> Any:  # noqa: ANN401 - pyarrow may be missing
        """Return the whole part as a `pyarrow.RecordBatchReader`; needs the extra `arrow`.

        It gives the same as `pyarrow.table(batches)`, and raises this library's own errors. Where a
        message exceeds 2 GiB, `payload` is large_binary in all batches.

        Args:
            copy: as for `Batch.to_arrow`; None: as `Queue.batches` was called.

        Raises:
            MissingExtra: pyarrow is not installed.
            Expired: retention removed the beginning of the part.
            ClosedError: the queue was closed; also from the reader, if it is closed meanwhile.
            MessageTooLarge: from the reader, with `copy=False`: a message exceeds 2 GiB.

        Example:
            >>> queue.batches().to_arrow().read_all().num_rows
            5
        """
        copy = self._copy if copy is None else copy
        return arrow.batch_reader(
            _all(self._again(), self._limit_count), self._kind, copy=copy, wide=self._is_wide()
        )

    def close(self) -> None:
        """Unmap the page; Arrow's streams continue.

        Example:
            >>> batches = queue.batches()
            >>> batches.close()
        """
        self._replay.close()


StreamSource.register(Batches)


def _all(replay: Replay, limit_count: int) -> Iterator[Batch]:
    """Return all batches, then unmap the page; an error comes again with the next call."""
    return iter(partial(_next_of, replay, limit_count), None)


def _next_of(replay: Replay, limit_count: int) -> Batch | None:
    batch = replay.read_batch(limit_count, BATCH_BYTES)
    if batch is None:
        replay.close()
    return batch
