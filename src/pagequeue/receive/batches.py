"""Batches: a part of a queue, batch by batch, and as Arrow's stream.

It names the part and holds none of it: a reader that takes one batch after the other needs memory
for one of them, however large the queue is.
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

BATCH_BYTES: Final = 2 << 20
"""A batch ends after so many bytes of its page: enough that what is done once for each batch costs
little, and it still fits into a processor's cache."""


class Batches(Iterator[Batch], Closing):
    """A finite iterator of batches; made by `Queue.batches()`.

    Libraries that know Arrow take it as it is: `pyarrow.table(batches)`,
    `polars.DataFrame(batches)`, `pandas.DataFrame.from_arrow(batches)`, `duckdb.sql("select ...
    from batches")`. Each of them gets all of the part, from its beginning, as often as it asks:
    DuckDB does so more than once for a query. What was published by when this was made belongs to
    the part.
    """

    def __init__(self, replay: Replay, again: Callable[[], Replay], limit_count: int) -> None:
        self._replay = replay
        self._kind = replay._store.schema  # noqa: SLF001 - its own package
        self._again = again
        self._limit_count = limit_count

    def __next__(self) -> Batch:
        batch = self._replay._batch_on(self._limit_count, BATCH_BYTES)  # noqa: SLF001 - its own package
        if batch is None:
            raise StopIteration
        return batch

    @property
    def sequence(self) -> int:
        """The sequence of the next message that the iterator gives, or behind the last one."""
        return self._replay.sequence

    @property
    def schema(self) -> Any:  # noqa: ANN401 - pyarrow need not be there
        """The `pyarrow.Schema` that Arrow's stream has.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        return arrow.schema(self._kind)

    def __arrow_c_schema__(self) -> object:
        """Return the capsule of the schema that Arrow's stream has."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return all of the part as the capsule of Arrow's stream.

        Args:
            requested_schema: the capsule of the schema that the reader would like: with `payload`
                of another type than binary_view, payloads are copied.

        Raises:
            MissingExtra: pyarrow is not installed.
            Expired: retention passed the beginning of the part.
            ClosedError: the queue was closed. What goes wrong later reaches the reader as an error
                of its own library, in whose text the file and the position stand.
        """
        return arrow.stream_capsule(
            _all(self._again(), self._limit_count), self._kind, requested_schema
        )

    def close(self) -> None:
        """Let go of the page; streams that were handed out go on."""
        self._replay.close()


def _all(replay: Replay, limit_count: int) -> Iterator[Batch]:
    """Return all batches, and let go of the page behind them."""
    with replay:
        yield from iter(partial(replay._batch_on, limit_count, BATCH_BYTES), None)  # noqa: SLF001 - its own package
