"""Batch: consecutive messages, as messages and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from pagequeue._core import Message
from pagequeue.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


class Batch(Sequence[Message]):
    """Consecutive messages: a sequence of `Message`, and the same as columns.

    Attributes:
        payloads: list of bytes, one for each message.
    """

    __slots__ = ("_first_sequence", "_lengths", "_timestamps", "payloads")

    payloads: list[bytes]

    def __init__(
        self, payloads: list[bytes], first_sequence: int, timestamps: bytes, lengths: bytes
    ) -> None:
        self.payloads = payloads
        self._first_sequence = first_sequence
        self._timestamps = timestamps
        self._lengths = lengths

    @property
    def sequences(self) -> NDArray[np.int64]:
        """The messages' sequences; int64, shape (n,)."""
        first = self._first_sequence
        return np.arange(first, first + len(self.payloads), dtype=np.int64)

    @property
    def timestamps(self) -> NDArray[np.int64]:
        """The messages' times, ns since 1970, UTC; int64, shape (n,), read-only."""
        return np.frombuffer(self._timestamps, np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The payloads' sizes in bytes; int64, shape (n,), read-only."""
        return np.frombuffer(self._lengths, np.int64)

    def __len__(self) -> int:
        return len(self.payloads)

    def _message(self, i: int) -> Message:
        timestamp = int.from_bytes(self._timestamps[8 * i : 8 * i + 8], "little", signed=True)
        return Message(self.payloads[i], timestamp, self._first_sequence + i)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Message | Batch:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a batch holds consecutive messages: slice it with step 1")
            stop = max(start, stop)
            return Batch(
                self.payloads[start:stop],
                self._first_sequence + start,
                self._timestamps[8 * start : 8 * stop],
                self._lengths[8 * start : 8 * stop],
            )
        i = range(len(self))[index]
        return self._message(i)

    def __iter__(self) -> Iterator[Message]:
        for i, (payload, timestamp) in enumerate(
            zip(self.payloads, self.timestamps.tolist(), strict=True), self._first_sequence
        ):
            yield Message(payload, timestamp, i)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return (
            self._first_sequence == other._first_sequence
            and self._timestamps == other._timestamps
            and self.payloads == other.payloads
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        first = self._first_sequence
        which = {0: "", 1: f", sequence {first}"}.get(
            len(self), f", sequences {first} to {first + len(self) - 1}"
        )
        return f"<Batch of {counted(len(self), 'message')}{which}>"


def joined(batches: list[Batch], next_sequence: int) -> Batch:
    """Return one batch of several that follow each other."""
    if not batches:
        return Batch([], next_sequence, b"", b"")
    return Batch(
        [payload for batch in batches for payload in batch.payloads],
        int(batches[0].sequences[0]),
        b"".join(batch.timestamps.tobytes() for batch in batches),
        b"".join(batch.lengths.tobytes() for batch in batches),
    )
