"""Exchange: messages into a file of another format, and back, a batch at a time.

| suffix | what |
| --- | --- |
| `.parquet`, `.arrow` | columns `sequence`, `timestamp`, `payload`; of records a column a field |
| `.jsonl` | an object a line; `payload` is text, `payload_base64` stands for what is not UTF-8 |
| `.csv` | the same as columns; `payload_base64` counts where it is not empty |

A file that is written has its name only when it is whole and on stable storage. What is read is
sent in batches, each all or nothing: what came before an error, or a kill, is in the queue.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.system.atomic_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.send.producer import Producer

    Progress = Callable[[int, int], None]

SUFFIXES: Final = (".parquet", ".arrow", ".jsonl", ".csv")
BATCHES_PER_PAGE: Final = 16
"""A batch does not go on in the next page, so a small part of a page leaves little of it unused."""


class Writing(Protocol):
    """What lays batches down in an open file."""

    def write(self, batch: Batch) -> None:
        """Lay one batch down."""

    def finish(self) -> None:
        """Lay down what stands at the end."""

    def abandon(self) -> None:
        """Let go of everything; the file is thrown away."""


class RowGroup(NamedTuple):
    """Some rows of a file.

    Attributes:
        sequences: what they were in the queue that was exported; None: the file does not say.
        timestamps: ns since 1970, UTC.
        payloads: what `send_many` takes: a list of bytes, an array of Arrow, or rows of records.
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
        next_sequence: behind the last one.
    """

    path: str
    messages: int
    payload_bytes: int
    file_bytes: int
    first_sequence: int | None
    next_sequence: int


def suffix_of(path: str) -> str:
    """Return the suffix that says a file's format.

    Raises:
        InvalidOption: there is none of that suffix.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise errors.InvalidOption(
            f"no format has the suffix {suffix!r}: use {', '.join(SUFFIXES)}"
        )
    return suffix


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
    """Write batches to a file, whole or not at all.

    Args:
        batches: in order; one at a time is held.
        path: of the file.
        begin: makes what lays batches down.
        force: replace what stands there.
        next_sequence: what the report says if there is no message.
        progress: called with the sequence behind each batch.

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
    """Sends the rows of a file, in batches that are all or nothing.

    Args:
        producer: sends them.
        page_bytes: of its queue.
        record_bytes: of its records; 0: messages are of any size.
        skip_count: rows at the beginning that are passed over.
        check: whether the file's sequences must follow each other without a gap.

    Attributes:
        messages: how many were sent.
        payload_bytes: of their payloads.
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
        self.messages = 0
        self.payload_bytes = 0

    def send(self, piece: RowGroup) -> None:
        """Send rows, but for those that are passed over.

        Raises:
            BadRow: the sequences have a gap, and that is checked; or a time is before 1970.
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
                f"row {row} has the timestamp {piece.timestamps[early[0]]}: give ns since 1970",
                row=row,
            )
        count = len(piece.timestamps)
        lengths = np.full(count, self._record_bytes) if self._record_bytes else piece.lengths
        start = min(max(self._skip_count - self._row, 0), count)
        for begin, end in self._cuts(lengths, start):
            times = piece.timestamps[begin:end]
            try:
                self._producer.send_many(piece.payloads[begin:end], timestamps=times)
            except errors.TimestampOrder as error:
                raise self._out_of_order(times, begin, error) from None
            self.messages += end - begin
            self.payload_bytes += int(lengths[begin:end].sum())
        self._row += count

    def _out_of_order(
        self, times: NDArray[np.int64], begin: int, error: errors.TimestampOrder
    ) -> errors.TimestampOrder:
        """Say which row of the file goes back in time; `begin`: the piece's row of the first."""
        back = np.flatnonzero(times[1:] < times[:-1])
        i = int(back[0]) + 1 if len(back) else 0  # or it is older than what the queue has
        return errors.TimestampOrder(
            f"row {self._row + begin + i + 1} has the timestamp {times[i]}, earlier than the one "
            f"before it, {error.last_timestamp}: sort the file by time, or import into a new queue",
            path=error.path, last_timestamp=error.last_timestamp,
        )  # fmt: skip

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
            raise errors.BadRow("there are no sequences to check: import without it", row=1)
        found = piece.sequences
        if not len(found):
            return
        first = int(found[0]) if self._expected is None else self._expected
        wrong = np.flatnonzero(found != np.arange(first, first + len(found)))
        if len(wrong):
            i = int(wrong[0])
            raise errors.BadRow(
                f"row {self._row + i + 1} has sequence {found[i]}, {first + i} must follow: "
                "messages are missing, or not in order; import without the check to take it so",
                row=self._row + i + 1,
            )
        self._expected = first + len(found)
