"""Batch: consecutive messages, as messages and as columns.

A batch refers to the pages of its messages and to positions in them, and makes no object for a
message before it is used. While it has its pages, their files are not recycled (I13), so it stays
valid after the queue is closed or removed. It releases them once it has copied its payloads.
"""
# ruff: noqa: SLF001 - a batch joined from batches uses their private attributes

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple, overload

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue._core import Message
from pagequeue.columns import arrow
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from numpy.typing import DTypeLike, NDArray

    from pagequeue.schema.schema import Schema

TIME_BYTES = 8
SPAN_BYTES = 8
"""Position and size of a payload in its page, `<u4` each."""


class PageSlice(NamedTuple):
    """The messages of a batch that are in one page.

    Attributes:
        region: the page.
        spans: position and size of each payload, 8 bytes together.
        first_sequence: of the first message.
    """

    region: _core.Region
    spans: bytes
    first_sequence: int

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """The payloads' sizes in bytes; shape (n,)."""
        return np.frombuffer(self.spans, np.uint32)[1::2]

    @property
    def position(self) -> int:
        """The position of the first payload."""
        return int.from_bytes(self.spans[:4], "little")

    def payloads(self) -> list[bytes]:
        """Return copies of the payloads.

        Raises:
            CorruptPage: the page was truncated meanwhile.
        """
        return _core.payloads(self.region, self.spans, self.first_sequence)

    def records(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return the payloads, which all have the dtype's size, as a view of the page.

        Raises:
            CorruptPage: the page was truncated meanwhile.
        """
        _core.check_intact(self.region, self.spans, self.first_sequence)
        frame_bytes = fmt.frame_bytes(kind.itemsize)
        return np.ndarray(
            (len(self.lengths),), kind, memoryview(self.region), self.position, (frame_bytes,)
        )


class Batch(Sequence[Message]):
    """Consecutive messages: a sequence of `Message`, and the same as columns.

    It is a view of pages, and the checksum of each message is verified. The pages stay mapped, also
    after retention removed them or the queue was closed, until `payloads` is read; then the batch
    has copies.

    Example:
        >>> batch = consumer.receive_many(2)
        >>> batch.payloads, batch.sequences
        ([b'a', b'b'], array([0, 1]))
        >>> batch[0].payload
        b'a'
    """

    __slots__ = (
        "__weakref__",
        "_first_sequence",
        "_kind",
        "_of",
        "_payloads",
        "_region",
        "_spans",
        "_times",
    )

    _of: list[Batch] | None
    """The batches it was joined from, until its columns are joined."""

    def __init__(
        self,
        region: _core.Region | None,
        first_sequence: int,
        timestamps: bytes,
        spans: bytes,
        kind: Schema | None = None,
    ) -> None:
        self._region = region
        self._first_sequence = first_sequence
        self._times = timestamps
        self._spans = spans
        self._kind = kind
        self._payloads: list[bytes] | None = None
        self._of = None

    @classmethod
    def of_payloads(
        cls,
        payloads: list[bytes],
        first_sequence: int,
        timestamps: bytes,
        kind: Schema | None = None,
    ) -> Batch:
        """Return a batch without pages.

        Args:
            payloads: of its messages, in order.
            first_sequence: that of the first one.
            timestamps: ns since 1970, UTC, as the bytes of an int64 for each.
            kind: what decodes them; None: they are bytes.

        Example:
            >>> Batch.of_payloads([b"one"], 7, bytes(8))[0].sequence
            7
        """
        batch = cls(None, first_sequence, timestamps, b"", kind)
        batch._payloads = payloads
        return batch

    @classmethod
    def _joined(cls, batches: list[Batch]) -> Batch:
        """Return one batch of several consecutive ones."""
        whole = cls(None, batches[0]._first_sequence, b"", b"", batches[0]._kind)
        whole._of = batches
        return whole

    # --- columns ----------------------------------------------------------------------------------

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, one bytes object for each message; created on first access and kept.

        Raises:
            CorruptPage: the file of a page was truncated meanwhile.

        Example:
            >>> batch.payloads[:2]
            [b'one', b'two']
        """
        payloads = self._payloads
        if payloads is not None:
            return payloads
        region, batches = self._region, self._of
        if region is not None:
            payloads = _core.payloads(region, self._spans, self._first_sequence)
        else:
            payloads = [payload for batch in batches or () for payload in batch.payloads]
            self._times = self._whole_times()
        self._payloads = payloads
        self._region = self._of = None  # in this order: other threads may read both
        return payloads

    @property
    def sequences(self) -> NDArray[np.int64]:
        """The messages' sequences; int64, shape (n,).

        Example:
            >>> batch.sequences
            array([0, 1, 2, 3, 4])
        """
        first = self._first_sequence
        return np.arange(first, first + len(self), dtype=np.int64)

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """The messages' times, ns since 1970, UTC; int64, shape (n,), read-only.

        Example:
            >>> batch.timestamps.tolist() == [message.timestamp for message in batch]
            True
        """
        return np.frombuffer(self._whole_times(), np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The payloads' sizes in bytes; int64, shape (n,), read-only.

        Example:
            >>> batch.lengths
            array([3, 3, 5, 4, 4])
        """
        batches = self._of
        if batches is not None:
            empty = np.empty(0, np.int64)
            lengths = np.concatenate([empty, *(batch.lengths for batch in batches)])
        else:
            parts, payloads = self._parts(), self._payloads
            if payloads is not None:
                lengths = np.fromiter(map(len, payloads), np.int64, len(payloads))
            else:
                lengths = parts[0].lengths.astype(np.int64) if parts else np.empty(0, np.int64)
        lengths.setflags(write=False)
        return lengths

    def to_numpy(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Return the payloads as records of a fixed size.

        If all are in one page and `payloads` was not read, the array is a view of the page, strided
        over the frames' headers; else it is a copy.

        Args:
            dtype: of a payload; None: that of the queue. A queue with a dtype takes no other.

        Returns:
            records, shape (n,), read-only. A view keeps its page mapped.

        Example:
            >>> batch.to_numpy("<i8")
            array([1, 2, 3])

        Raises:
            DtypeMismatch: the queue has records of another dtype.
            InvalidOption: neither the queue nor the call has a dtype.
            RecordSize: a payload has another size; carries `sequence`.
            TypeError: the dtype holds Python objects.
            CorruptPage: the file of a page was truncated meanwhile.
        """
        kind = self._dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"{kind} holds Python objects, payloads cannot: give another dtype")
        if kind.subdtype is not None:
            return self.to_numpy([("record", kind)])["record"]
        self._check_records(kind.itemsize)
        parts, payloads = self._parts(), self._payloads
        if payloads is not None:
            return np.frombuffer(b"".join(payloads), kind)
        arrays = [part.records(kind) for part in parts]
        if len(arrays) == 1:
            return arrays[0]
        whole: NDArray[Any] = np.empty(len(self), kind)
        for part, records in zip(parts, arrays, strict=True):
            begin = part.first_sequence - self._first_sequence
            whole[begin : begin + len(records)] = records
        whole.setflags(write=False)
        return whole

    def _dtype(self, dtype: DTypeLike | None) -> np.dtype[Any]:
        own = None if self._kind is None else self._kind.dtype
        if dtype is None:
            if own is None:
                raise errors.InvalidOption(
                    "this queue has no dtype", remedy="pass one to to_numpy()"
                )
            return own
        asked = np.dtype(dtype)
        if own is not None and asked != own:
            raise errors.DtypeMismatch(
                f"the queue has records of dtype {own}, not {asked}",
                dtype=own,
                remedy="leave dtype out, then view or convert the records",
            )
        return asked

    def _check_intact(self) -> None:
        """Raise CorruptPage if the file of a page was truncated."""
        for part in self._parts():
            _core.check_intact(part.region, part.spans, part.first_sequence)

    def _check_records(self, size_bytes: int) -> None:
        """Raise if a payload has another size."""
        if size_bytes == 0:
            raise errors.InvalidOption("the dtype has size 0", remedy="give one with a size")
        lengths = self.lengths
        wrong = np.flatnonzero(lengths != size_bytes)
        if len(wrong):
            i = int(wrong[0])
            sequence, found = self._first_sequence + i, int(lengths[i])
            raise errors.RecordSize(
                f"message {sequence} has {found} bytes, the dtype {size_bytes}",
                sequence=sequence,
                size_bytes=found,
                record_bytes=size_bytes,
                remedy="give the dtype of the sent records",
            )

    # --- Arrow ------------------------------------------------------------------------------------

    def to_arrow(self, *, copy: bool = True) -> Any:  # noqa: ANN401 - pyarrow need not be there
        """Return the messages as a `pyarrow.RecordBatch`; needs the extra `arrow`.

        Args:
            copy: True: `payload` is a copy of type binary, or string with the codecs `"utf-8"` and
                `"json"`; of more than 2 GiB it is large_binary or large_string. False: it is a view
                of the pages, of type binary_view, which fewer operations of libraries take.

        Returns:
            columns `sequence` (int64), `timestamp` (timestamp[ns, UTC]) and `payload`; in a queue
            with a dtype copies of its fields instead of `payload`.

        Example:
            >>> batch.to_arrow().column_names
            ['sequence', 'timestamp', 'payload']

        Raises:
            MissingExtra: pyarrow is not installed.
            NotEncodable: Arrow has no type for a field of the dtype; the text names it.
            MessageTooLarge: with `copy=False`, a message exceeds 2 GiB: take a copy.
            NotDecodable: a payload that should be text is not UTF-8.
            CorruptPage: the file of a page was truncated meanwhile.
        """
        return arrow.record_batch(self, copy=copy, text=True, wide=None)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the messages as Arrow's two capsules, for any library that takes them.

        polars treats a batch as a sequence of objects: give it `batch.to_arrow()` or
        `queue.batches()`.

        Raises:
            As for `to_arrow`.
        """
        return arrow.array_capsules(self, requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the capsule of the schema of `__arrow_c_array__`."""
        return arrow.schema_of(self).__arrow_c_schema__()

    # --- messages ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        batches = self._of
        if batches is not None:
            return sum(map(len, batches))
        return len(self._times) // TIME_BYTES

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a batch holds consecutive messages: slice it with step 1")
            return self._slice(start, max(start, stop))
        i = range(len(self))[index]
        timestamp = int.from_bytes(self._slice(i, i + 1)._whole_times(), "little", signed=True)
        payloads = self._payloads
        payload = payloads[i] if payloads is not None else self._slice(i, i + 1).payloads[0]
        return Message(payload, timestamp, self._first_sequence + i, self._decoder)

    @property
    def _decoder(self) -> Callable[[bytes, int], Any] | None:
        return None if self._kind is None else self._kind.decoder

    def _slice(self, start: int, stop: int) -> Batch:
        first_sequence = self._first_sequence + start
        region, batches, payloads = self._region, self._of, self._payloads
        if batches is not None:
            begins = accumulate(map(len, batches), initial=0)
            parts = [
                batch._slice(max(start - begin, 0), stop - begin)
                for batch, begin in zip(batches, begins, strict=False)
                if begin < stop and start < begin + len(batch)
            ]
            return joined(parts, first_sequence, self._kind)
        times = self._times[TIME_BYTES * start : TIME_BYTES * stop]
        if payloads is not None:
            return Batch.of_payloads(payloads[start:stop], first_sequence, times, self._kind)
        spans = self._spans[SPAN_BYTES * start : SPAN_BYTES * stop]
        return Batch(region, first_sequence, times, spans, self._kind)

    def __iter__(self) -> Iterator[Message]:
        decoder = self._decoder
        for i, (payload, timestamp) in enumerate(
            zip(self.payloads, self.timestamps.tolist(), strict=True), self._first_sequence
        ):
            yield Message(payload, timestamp, i, decoder)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (
            self._first_sequence == other._first_sequence
            and self._whole_times() == other._whole_times()
            and self.payloads == other.payloads
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        payloads = self.payloads
        return Batch.of_payloads, (payloads, self._first_sequence, self._times, self._kind)

    def __repr__(self) -> str:
        first = self._first_sequence
        which = {0: "", 1: f", sequence {first}"}.get(
            len(self), f", sequences {first} to {first + len(self) - 1}"
        )
        return f"<Batch of {counted(len(self), 'message')}{which}>"

    # --- its pages --------------------------------------------------------------------------------

    def _whole_times(self) -> bytes:
        """Return the timestamps of all pages, joined."""
        batches = self._of
        if batches is not None and not self._times:
            self._times = b"".join([batch._whole_times() for batch in batches])
        return self._times

    def _parts(self) -> list[PageSlice]:
        """Return a slice for each page; an empty list after the payloads were copied."""
        region, batches = self._region, self._of
        if batches is not None:
            parts = [part for batch in batches for part in batch._parts()]
            if sum(len(part.lengths) for part in parts) != len(self):
                _ = self.payloads  # a large message among them is a copy
                return []
            return parts
        if region is None:
            return []
        return [PageSlice(region, self._spans, self._first_sequence)]


def joined(batches: list[Batch], next_sequence: int, kind: Schema | None = None) -> Batch:
    """Return one batch of several consecutive ones."""
    if len(batches) == 1:
        return batches[0]
    return Batch._joined(batches) if batches else Batch(None, next_sequence, b"", b"", kind)
