"""Partitions for the JVM: the pages of ranges of sequences, as text.

`PartReader.java` has the other side.

| line of a partition | means |
| --- | --- |
| `Q directory prefix name id page_bytes trust` | what follows is of this queue |
| `N first end` | sequences, and no file |
| `T page page_first first end` | times of one page |
| `P page page_first first end turns` | messages of one page; whether the next one follows |
| `E` | no row |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from pagequeue import errors
from pagequeue.queue.queue import internals
from pagequeue.spark.columns import Need
from pagequeue.spark.native.column_specs import OWN, column_specs
from pagequeue.spark.path_glob import Found
from pagequeue.spark.planning import Part, cut, page_starts, spans_of
from pagequeue.spark.reading import expired_since

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator, Mapping

    from pagequeue.queue.queue import Queue
    from pagequeue.spark.options import ReadOptions
    from pagequeue.spark.planning import Piece
    from pagequeue.store.store import Store

BETWEEN: Final = "\n-\n"
OPEN_MAX: Final = 16
"""Queues that are open at once: a glob can mean more than a process may have files."""
Ranges = list[tuple[Found, int, int]]


class Columns(NamedTuple):
    """What a table or a stream has to have in each queue, also in those that come later.

    Attributes:
        specs: the columns that are wanted, as the Java side calls them.
        dtype: of the queues that were there first, as text.
    """

    specs: Mapping[str, str]
    dtype: str

    def check(self, store: Store) -> None:
        """Raise DtypeMismatch if a queue does not have them, or at other places."""
        dtype = store.schema.dtype
        is_same = self.specs.items() <= column_specs(dtype).items()
        has_fields = not set(self.specs.values()) <= set(OWN.values())
        if not is_same or (has_fields and repr(dtype) != self.dtype):
            raise errors.DtypeMismatch(
                f"its dtype is {dtype}, and that of the queues at first use {self.dtype}: the "
                f"columns {', '.join(self.specs)} are not the same",
                path=store.folder.path,
                dtype=dtype,
                remedy="read again, or read the queues apart",
            )


class Partitions:
    """Plans partitions of ranges of sequences; the queues used last stay open until it is done.

    Args:
        options: of the read.
        need: what the columns need.
        columns: that each queue must have.
        stack: closes them.
    """

    def __init__(
        self,
        options: ReadOptions,
        need: Need,
        columns: Columns,
        stack: contextlib.ExitStack,
    ) -> None:
        self._options = options
        self._need = need
        self._columns = columns
        self._open: dict[Found, Queue] = {}
        stack.callback(self._close)

    def store(self, found: Found) -> Store:
        """Return an open queue; it is closed when some others were asked for after it."""
        queue = self._open.pop(found, None)
        is_new = queue is None
        if queue is None:
            self._close(OPEN_MAX - 1)
            queue = found.open()
        self._open[found] = queue  # as the last one
        store = internals(queue).store
        if is_new:
            self._columns.check(store)
        return store

    def _close(self, left: int = 0) -> None:
        """Close all queues but so many that were used last."""
        while len(self._open) > left:
            self._open.pop(next(iter(self._open))).close()

    def texts(self, ranges: Ranges) -> tuple[float, list[str]]:
        """Return about how many bytes are read, and the partitions, as text."""
        spans = [
            span
            for queue, first, end in ranges
            for span in spans_of(self.store(queue), queue, (first, end), self._need, skips=False)
        ]
        texts = []
        for part in cut(spans, self._options):
            assert isinstance(part, Part)
            texts.append("\n".join(line for piece in part.pieces for line in self._lines(piece)))
        return sum(span.weight for span in spans), [text or "E" for text in texts]

    def _lines(self, piece: Piece) -> Iterator[str]:
        """Give the lines for consecutive messages of one queue."""
        store = self.store(piece.found)
        yield _queue_line(piece.found, store)
        if self._need is Need.NOTHING:
            yield f"N {piece.first} {piece.end}"
            return
        try:
            starts = page_starts(store, piece.first, piece.end)
        except errors.Expired as error:
            raise expired_since(store, piece.first) from error
        if starts[0][1] > piece.first:
            raise expired_since(store, piece.first)
        for (number, start), (_, stop) in zip(starts, [*starts[1:], (0, piece.end)], strict=True):
            begin = max(start, piece.first)
            if begin >= stop:
                continue
            if self._need is Need.TIMES:
                yield f"T {number} {start} {begin} {stop}"
            else:
                yield f"P {number} {start} {begin} {stop} {int(stop < piece.end)}"


def _queue_line(found: Found, store: Store) -> str:
    words = [quote(text, safe="") for text in (found.directory, found.prefix, found.name)]
    numbers = [store.meta.queue_id.hex(), str(store.meta.page_bytes)]
    return " ".join(["Q", *words, *numbers, ",".join(found.trust)]).rstrip()
