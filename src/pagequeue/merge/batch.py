"""MergedBatch: messages of several queues in one order, as messages and as columns.

The batches read from each queue are kept unchanged; the order is an array of indices into them.
Columns are built on access, so that a caller that needs only times does not pay for payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, overload

import numpy as np

from pagequeue._core import Message
from pagequeue.columns import arrow
from pagequeue.util.cached import Kept
from pagequeue.util.optional import pyarrow
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.schema.schema import Schema

    Decoder = Callable[[bytes, int], object]


OWN_COLUMNS: Final = 2
"""Sequence and timestamp come before the columns of the payload."""


class Merged(NamedTuple):
    """One message of a merge.

    Attributes:
        queue: index of its queue in the list that was given to `merge`.
        message: the message.

    Example:
        >>> for queue, message in merge([first, second]):
        ...     print(queue, message.payload)
        0 b'a'
        1 b'b'
    """

    queue: int
    message: Message


_MERGED: Final[Callable[[tuple[int, Message]], Merged]] = partial(tuple.__new__, Merged)
"""Makes a Merged of a pair: half the time of its own constructor."""


class MergedSlice(NamedTuple):
    """Some messages of one batch: from `start` up to `stop`."""

    queue: int
    batch: Batch
    start: int
    stop: int
    decoder: Decoder | None = None
    """Makes the messages' values of their payloads; None: they are the payloads."""


class MergedChunk:
    """Slices of several queues, concatenated in the order of the queues.

    Args:
        parts: non-empty slices, ascending by queue; of one queue ascending by sequence.
        names: of the queues, for Arrow.
        schema: that of all queues, if they all have records of one dtype.
    """

    def __init__(
        self, parts: Sequence[MergedSlice], names: tuple[str, ...], schema: Schema | None = None
    ) -> None:
        self.schema = schema
        self._arrow_columns: dict[bool, list[Any]] = {}
        self.parts: tuple[MergedSlice, ...] = tuple(parts)
        self.names = names
        self.timestamps: NDArray[np.int64] = _joined(
            [part.batch.timestamps[part.start : part.stop] for part in parts]
        )

    def order(self) -> NDArray[np.int64]:
        """Return the indices of the messages by timestamp, then queue, then sequence."""
        if len(self.parts) == 1:
            return np.arange(len(self.timestamps), dtype=np.int64)
        return np.argsort(self.timestamps, kind="stable")  # ties keep the order of the parts

    def arrow_columns(self, *, wide: bool) -> list[Any]:
        """Return payloads or fields as Arrow arrays, copied, part by part; they are kept.

        Args:
            wide: whether payloads have offsets of 64 bits.
        """
        kept = self._arrow_columns.get(wide)
        if kept is None:
            columns = zip(*(self._arrow_part(part, wide=wide) for part in self.parts), strict=True)
            kept = [pyarrow().concat_arrays(arrays) for arrays in columns]
            self._arrow_columns[wide] = kept
        return kept

    def _arrow_part(self, part: MergedSlice, *, wide: bool) -> list[Any]:
        batch = part.batch[part.start : part.stop]
        table = arrow.record_batch(batch, copy=True, wide=wide)
        if self.schema is None and "payload" not in table.schema.names:  # records, among others
            pa = pyarrow()
            return [pa.array(batch.payloads, pa.large_binary() if wide else pa.binary())]
        return list(table.columns[OWN_COLUMNS:])

    @property
    def decoders(self) -> dict[int, Decoder | None]:
        """The functions that make values of payloads, by queue."""
        return {part.queue: part.decoder for part in self.parts}

    @Kept
    def payloads(self) -> list[bytes]:
        """The payloads, part by part."""
        return list(
            chain.from_iterable(part.batch.payloads[part.start : part.stop] for part in self.parts)
        )

    @Kept
    def queues(self) -> NDArray[np.int64]:
        """The queues, part by part."""
        counts = [part.stop - part.start for part in self.parts]
        return np.repeat(np.array([part.queue for part in self.parts], np.int64), counts)

    @Kept
    def sequences(self) -> NDArray[np.int64]:
        """The sequences, part by part."""
        return _joined([part.batch.sequences[part.start : part.stop] for part in self.parts])

    @Kept
    def lengths(self) -> NDArray[np.int64]:
        """The lengths, part by part."""
        return _joined([part.batch.lengths[part.start : part.stop] for part in self.parts])


class MergedBatch(Sequence[Merged]):
    """Messages of several queues in one order: a sequence of `Merged`, and the same as columns.

    Example:
        >>> batch = merge([first, second]).receive_many(2)
        >>> batch.payloads, batch.queues.tolist()
        ([b'a', b'b'], [0, 1])
    """

    __slots__ = ("_chunk", "_order")

    _chunk: MergedChunk
    _order: NDArray[np.int64]

    def __init__(self, chunk: MergedChunk, order: NDArray[np.int64]) -> None:
        self._chunk = chunk
        self._order = order

    @property
    def payloads(self) -> list[bytes]:
        """The payloads: list of bytes, one for each message.

        Example:
            >>> batch.payloads
            [b'a', b'b']
        """
        return list(map(self._chunk.payloads.__getitem__, self._order.tolist()))

    @property
    def queues(self) -> NDArray[np.int64]:
        """The index of each message's queue in the list of queues; int64, shape (n,).

        Example:
            >>> batch.queues
            array([0, 1])
        """
        return self._chunk.queues[self._order]

    @property
    def sequences(self) -> NDArray[np.int64]:
        """The messages' sequences, each in its queue; int64, shape (n,).

        Example:
            >>> batch.sequences
            array([0, 0])
        """
        return self._chunk.sequences[self._order]

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """The messages' times, ns since 1970, UTC, ascending; int64, shape (n,).

        Example:
            >>> batch.timestamps
            array([1, 2])
        """
        return self._chunk.timestamps[self._order]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The payloads' sizes in bytes; int64, shape (n,).

        Example:
            >>> batch.lengths
            array([1, 1])
        """
        return self._chunk.lengths[self._order]

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Merged: ...
    @overload
    def __getitem__(self, index: slice) -> MergedBatch: ...
    def __getitem__(self, index: int | slice) -> Merged | MergedBatch:
        if isinstance(index, slice):
            return MergedBatch(self._chunk, self._order[index])
        i = range(len(self))[index]
        return next(iter(MergedBatch(self._chunk, self._order[i : i + 1])))

    def __iter__(self) -> Iterator[Merged]:
        return self.items()[0]

    def items(self) -> tuple[Iterator[Merged], Iterator[int]]:
        """Return an iterator of the messages, and one that knows how many of them remain.

        Example:
            >>> messages, left = batch.items()
            >>> [message.payload for _, message in messages]
            [b'a', b'b']
        """
        numbers = self.queues.tolist()
        columns: list[list[Any]] = [
            self.payloads,
            self.timestamps.tolist(),
            self.sequences.tolist(),
        ]
        decoders = self._chunk.decoders
        if any(decoders.values()):
            columns.append(list(map(decoders.__getitem__, numbers)))
        messages, queues = starmap(Message, zip(*columns, strict=True)), iter(numbers)
        return map(_MERGED, zip(queues, messages, strict=False)), queues

    def to_arrow(self) -> Any:  # noqa: ANN401 - pyarrow need not be there
        """Return the messages as a `pyarrow.RecordBatch`; needs the extra `arrow`.

        Returns:
            columns `queue` (its name, as a dictionary), `sequence` (int64), `timestamp`
            (timestamp[ns, UTC]) and `payload` (binary, a copy; large_binary where it needs that);
            or, where all queues have records of one dtype, a column for each of its fields.

        Raises:
            MissingExtra: pyarrow is not installed.

        Example:
            >>> batch.to_arrow().schema.names
            ['queue', 'sequence', 'timestamp', 'payload']
        """
        return self._to_arrow(wide=arrow.needs_wide(self._chunk.lengths))

    def _to_arrow(self, *, wide: bool) -> Any:  # noqa: ANN401 - pyarrow need not be there
        """Return the same; `wide`: whether payloads have offsets of 64 bits."""
        pa, schema = pyarrow(), arrow_schema(self._chunk.schema, wide=wide)
        names = self._chunk.names
        queue = pa.DictionaryArray.from_arrays(
            pa.array(self.queues.astype(np.int32)), pa.array(names, pa.string())
        )
        own = [
            pa.Array.from_buffers(schema.field(i).type, len(self), [None, pa.py_buffer(column)])
            for i, column in enumerate((self.sequences, self.timestamps), 1)
        ]
        order = pa.array(self._order)
        columns = [column.take(order) for column in self._chunk.arrow_columns(wide=wide)]
        return pa.RecordBatch.from_arrays([queue, *own, *columns], schema=schema)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the messages as Arrow's two capsules, for any library that accepts them."""
        capsules: tuple[object, object] = self.to_arrow().__arrow_c_array__(requested_schema)
        return capsules

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MergedBatch):
            return NotImplemented
        return list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        queues = counted(len(set(self.queues.tolist())), "queue")
        return f"<MergedBatch of {counted(len(self), 'message')} of {queues}>"


def arrow_schema(schema: Schema | None, *, wide: bool = False) -> Any:  # noqa: ANN401 - pyarrow need not be there
    """Return the `pyarrow.Schema` of merged batches.

    Args:
        schema: that of all queues, if they all have records of one dtype.
        wide: whether payloads have offsets of 64 bits.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    pa = pyarrow()
    columns = arrow.schema(schema, copy=True, wide=wide)
    name = "queue_name" if "queue" in columns.names else "queue"
    return columns.insert(0, pa.field(name, pa.dictionary(pa.int32(), pa.string())))


def _joined(columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
