"""Export of messages to files of other formats, and import, batch by batch.

| format, and its suffix | contents |
| --- | --- |
| `.parquet`, `.arrow` | columns `sequence`, `timestamp`, `payload`; for records one per field |
| `.jsonl` | an object per line; `payload` is text, or `payload_base64` if it is not UTF-8 |
| `.csv` | the same as columns; `payload_base64` counts if it is not empty |

An exported file gets its name once it is complete and on stable storage. An import sends batches,
each as a whole or not at all: after an error or a kill the earlier batches are in the queue.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.export.row_times import are_rounded
from pagequeue.system.atomic_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.producer.producer import Producer

    Progress = Callable[[int, int], None]

FORMATS: Final = ("parquet", "arrow", "jsonl", "csv")
SUFFIXES: Final = tuple(f".{name}" for name in FORMATS)
BATCHES_PER_PAGE: Final = 16
"""A batch does not continue in the next page; a small one leaves little of a page unused."""


class Writing(Protocol):
    """Writes batches to an open file."""

    def write(self, batch: Batch) -> None:
        """Write one batch."""

    def finish(self) -> None:
        """Write what the format has at the end."""

    def abandon(self) -> None:
        """Drop buffered batches; the caller discards the file."""


class RowGroup(NamedTuple):
    """Some rows of a file.

    Attributes:
        sequences: those in the exported queue; None: the file has none.
        timestamps: ns since 1970, UTC.
        payloads: as for `send_many`: a list of bytes, an Arrow array, or rows of records.
        lengths: of the payloads in bytes.
    """

    sequences: NDArray[np.int64] | None
    timestamps: NDArray[np.int64]
    payloads: Any
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    Attributes:
        path: of the file.
        messages: how many.
        payload_bytes: of all payloads.
        file_bytes: of the file.
        first_sequence: of the first message; None if there was none.
        next_sequence: the one after the last.
    """

    path: str
    messages: int
    payload_bytes: int
    file_bytes: int
    first_sequence: int | None
    next_sequence: int


def format_of(path: str) -> str:
    """Return the format that the suffix of a path names, one of `FORMATS`.

    Raises:
        InvalidOption: no format has this suffix.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        known = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise errors.InvalidOption(
            f"no format has the suffix {suffix!r}" if suffix else "no suffix that names a format",
            path=path,
            remedy=f"end the name in {known}, or name the format",
        )
    return suffix[1:]


# --- out ------------------------------------------------------------------------------------------


def export(
    batches: Iterable[Batch],
    path: str,
    begin: Callable[[IO[bytes]], Writing],
    *,
    force: bool = False,
    next_sequence: int = 0,
    progress: Callable[[int], None] | None = None,
) -> ExportReport:
    """Write batches to a file, atomically.

    Args:
        batches: in order; only one is in memory at a time.
        path: of the file.
        begin: makes the writer of the open file.
        force: replace an existing file.
        next_sequence: for the report if there is no message.
        progress: called with the sequence after each batch.

    Raises:
        As for `whole_file`, and for reading.
    """
    count, payload_bytes, first_sequence = 0, 0, None
    with whole_file(path, force=force) as file:
        writing = begin(file)
        try:
            for batch in batches:
                writing.write(batch)
                first = int(batch.sequences[0])
                first_sequence = first if first_sequence is None else first_sequence
                count += len(batch)
                payload_bytes += int(batch.lengths.sum())
                next_sequence = first + len(batch)
                if progress is not None:
                    progress(next_sequence)
            writing.finish()
        except BaseException:
            writing.abandon()
            raise
        file.flush()
        file_bytes = os.fstat(file.fileno()).st_size
    return ExportReport(path, count, payload_bytes, file_bytes, first_sequence, next_sequence)


# --- in -------------------------------------------------------------------------------------------


class Import:
    """Sends the rows of a file in batches, each as a whole or not at all.

    Args:
        producer: sends them.
        page_bytes: of its queue.
        record_bytes: of its records; 0: messages have any size.
        skip_count: rows to skip at the beginning.
        check: whether the file's sequences must have no gap.

    Attributes:
        messages: how many were sent.
        payload_bytes: of their payloads.
        is_rounded: whether all times surely went through a double; None: they do not tell.
    """

    def __init__(
        self,
        producer: Producer,
        page_bytes: int,
        record_bytes: int = 0,
        *,
        skip_count: int = 0,
        check: bool = False,
    ) -> None:
        self._record_bytes = record_bytes
        self._producer = producer
        self._limit_bytes = page_bytes // BATCHES_PER_PAGE
        self._limit_count = max(fmt.index_capacity(page_bytes) // BATCHES_PER_PAGE, 1)
        self._skip_count = skip_count
        self._check = check
        self._row = 0
        self._expected: int | None = None
        self.messages: int = 0
        self.is_rounded: bool | None = None
        self.payload_bytes: int = 0

    def send(self, piece: RowGroup) -> None:
        """Send rows, except those to skip.

        Raises:
            BadRow: the sequences have a gap and `check` is set; or a time is before 1970.
            TimestampOrder: a row is older than the last message of the queue.
            MessageTooLarge: a payload does not fit into a page.
            As for `Producer.send_many` otherwise.
        """
        if self._check:
            self._check_gaps(piece)
        early = np.flatnonzero(piece.timestamps < 0)
        if len(early):
            row = self._row + int(early[0]) + 1
            raise errors.BadRow(
                f"row {row} has the timestamp {piece.timestamps[early[0]]}",
                row=row,
                remedy="give ns since 1970",
            )
        if self.is_rounded is not False:
            told = are_rounded(piece.timestamps)
            self.is_rounded = self.is_rounded if told is None else told
        count = len(piece.timestamps)
        lengths = np.full(count, self._record_bytes) if self._record_bytes else piece.lengths
        start = min(max(self._skip_count - self._row, 0), count)
        for begin, end in self._cuts(lengths, start):
            times = piece.timestamps[begin:end]
            try:
                self._producer.send_many(
                    piece.payloads[begin:end], timestamps=times.view("datetime64[ns]")
                )
            except errors.TimestampOrder as error:
                raise self._out_of_order(times, begin, error) from None
            self.messages += end - begin
            self.payload_bytes += int(lengths[begin:end].sum())
        self._row += count

    def _out_of_order(
        self, times: NDArray[np.int64], begin: int, error: errors.TimestampOrder
    ) -> errors.TimestampOrder:
        """Return the error with its row of the file; `begin`: index of `times[0]` in the piece."""
        back = np.flatnonzero(times[1:] < times[:-1])
        i = int(back[0]) + 1 if len(back) else 0  # or it precedes the last message of the queue
        return errors.TimestampOrder(
            f"row {self._row + begin + i + 1} has the timestamp {times[i]}, earlier than the one "
            f"before it, {error.last_timestamp}",
            path=error.path,
            last_timestamp=error.last_timestamp,
            remedy="sort the file by time, or import into a new queue",
        )

    def _cuts(self, lengths: NDArray[np.int64], start: int) -> Iterator[tuple[int, int]]:
        """Cut rows into runs that are a small part of a page, or one message."""
        frames = (
            lengths + (fmt.FRAME_HEADER_BYTES + fmt.FRAME_ALIGN_BYTES - 1)
        ) & -fmt.FRAME_ALIGN_BYTES
        ends = np.cumsum(frames)
        before = int(ends[start - 1]) if start else 0
        while start < len(ends):
            stop = int(ends.searchsorted(before + self._limit_bytes, "right"))
            stop = min(max(stop, start + 1), start + self._limit_count)
            yield start, stop
            start, before = stop, int(ends[stop - 1])

    def _check_gaps(self, piece: RowGroup) -> None:
        """Raise for the first sequence that does not follow the one before it."""
        if piece.sequences is None:
            raise errors.BadRow(
                "there are no sequences to check", row=1, remedy="import without the check"
            )
        found = piece.sequences
        if not len(found):
            return
        first = int(found[0]) if self._expected is None else self._expected
        wrong = np.flatnonzero(found != np.arange(first, first + len(found)))
        if len(wrong):
            i = int(wrong[0])
            raise errors.BadRow(
                f"row {self._row + i + 1} has sequence {found[i]}, expected {first + i}: "
                "messages are missing or not in order",
                row=self._row + i + 1,
                remedy="import without the check to accept that",
            )
        self._expected = first + len(found)
