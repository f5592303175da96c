"""Batches: a part of a queue, batch by batch, and as Arrow's stream.

The iterator holds one batch at a time: reading needs memory for that one, however large the queue
is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pagequeue.columns import arrow
from pagequeue.columns.batch import Batch
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.receive.replay import Replay
    from pagequeue.schema.schema import Schema

BATCH_BYTES: Final = 2 << 20
"""A batch ends after so many bytes of its page: enough that the cost of each batch is small, and
few enough to fit into a processor's cache."""


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
        self, replay: Replay, again: Callable[[], Replay], limit_count: int, kind: Schema
    ) -> None:
        self._replay = replay
        self._kind = kind
        self._again = again
        self._limit_count = limit_count

    def __next__(self) -> Batch:
        batch = self._replay.read_batch(self._limit_count, BATCH_BYTES)
        if batch is None:
            raise StopIteration
        return batch

    @property
    def sequence(self) -> int:
        """The sequence of the next message; at the end, that after the last one."""
        return self._replay.sequence

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow may be missing
        """The `pyarrow.Schema` of Arrow's stream.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        return arrow.schema(self._kind)

    def __arrow_c_schema__(self) -> object:
        """Return the schema of Arrow's stream, as a capsule."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the whole part as Arrow's stream, in a capsule.

        Args:
            requested_schema: the schema that the reader prefers, as a capsule: if its `payload` has
                another type than binary_view, payloads are copied.

        Raises:
            MissingExtra: pyarrow is not installed.
            Expired: retention removed the beginning of the part.
            ClosedError: the queue was closed. The reader gets later errors from its own library;
                their text has the file and the position.
        """
        return arrow.stream_capsule(
            _all(self._again(), self._limit_count), self._kind, requested_schema
        )

    def close(self) -> None:
        """Unmap the page; Arrow's streams continue."""
        self._replay.close()


def _all(replay: Replay, limit_count: int) -> Iterator[Batch]:
    """Return all batches, then unmap the page."""
    with replay:
        yield from iter(partial(replay.read_batch, limit_count, BATCH_BYTES), None)
