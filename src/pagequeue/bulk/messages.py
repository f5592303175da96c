"""Messages of plain Python as the source of a bulk commit, and publishing them.

What can change afterwards is copied first: a publication reads its messages more than once, and the
digest in its record is of the bytes that were sent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.chunk import Chunk, frame_bytes
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.columns import inputs
from pagequeue.columns.inputs import FixedRows, VarRows
from pagequeue.send.payloads import columns_for, payloads_for
from pagequeue.send.with_room import with_room
from pagequeue.util.arguments import text, value_error, whole
from pagequeue.util.optional import load, pyarrow
from pagequeue.wait.coroutine import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pagequeue.send.with_room import Many, Times
    from pagequeue.store.store import Store
    from pagequeue.wait.shared_jobs import SharedJob

WRITER_BYTES_MAX: Final = 255


class Messages:
    """Messages that are published at once.

    Args:
        parts: arrays of NumPy or Arrow, or tuples of bytes, whose items follow one another.
        times: one for each, ns since 1970; None: the time of the commit.

    Attributes:
        count: of all messages.
        frame_bytes: what they take in pages.
    """

    def __init__(self, parts: list[Any], times: NDArray[np.int64] | None) -> None:
        self._parts = [(part, _lengths(part)) for part in parts]
        self._times = times
        self.count: int = sum(len(lengths) for _, lengths in self._parts)
        self.frame_bytes: int = sum(frame_bytes(lengths) for _, lengths in self._parts)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all messages in order."""
        first = 0
        for part, lengths in self._parts:
            end = first + len(lengths)
            times = None if self._times is None else self._times[first:end]
            yield Chunk(part, lengths, times)
            first = end


def messages_of(store: Store, payloads: Many, timestamps: Times | None) -> Messages:
    """Return messages in whatever form `send_many` takes them, copied where they could change.

    Raises:
        TypeError, InvalidOption, NotEncodable, DtypeMismatch, TimestampOrder, MissingExtra: as for
            `Producer.send_many`.
    """
    told = inputs.times_of(timestamps)
    columns = None
    if type(payloads) not in inputs.PLAIN:
        is_plain = store.schema.is_plain
        columns = inputs.columns_of(payloads) if is_plain else columns_for(store, payloads)
    if columns is None:
        items = payloads if store.schema.is_plain else payloads_for(store, payloads)
        parts: list[Any] = [tuple(_core.payload(item) for item in items)]
    elif isinstance(columns, FixedRows):
        parts = [_assembled(columns)]
    else:
        parts = _arrays(columns, payloads)
    times = None if told is None else np.frombuffer(told, np.int64)
    messages = Messages(parts, times)
    inputs.check_count(told, messages.count)
    return messages


def _lengths(part: Any) -> NDArray[np.int64]:  # noqa: ANN401 - a tuple, or an array of two libraries
    if isinstance(part, tuple):
        return np.fromiter(map(len, part), np.int64, len(part))
    if not isinstance(part, np.ndarray):
        lengths = load("pyarrow.compute").binary_length(part).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    if part.dtype.kind == "S":
        return np.asarray(np.char.str_len(part), np.int64)
    return np.full(len(part), part.itemsize, np.int64)


def _assembled(rows: FixedRows) -> NDArray[np.void]:
    """Return rows as one array of their own."""
    items = np.zeros((rows.count, rows.row_bytes), np.uint8)
    for data, at in rows.columns:
        values = np.ascontiguousarray(data).view(np.uint8).reshape(rows.count, data.itemsize)
        items[:, at : at + data.itemsize] = values
    return items.reshape(-1).view(np.dtype((np.void, rows.row_bytes)))


def _arrays(columns: VarRows, payloads: Many) -> list[Any]:
    """Return payloads of different sizes as arrays."""
    if isinstance(payloads, np.ndarray):  # zeros at the end of an item are not part of it
        return [payloads.copy() for _ in columns.parts]
    arrow = pyarrow()
    values = inputs.arrow_values(payloads)
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        values.validate(full=True)  # its offsets lead nowhere else
        chunks = values.cast(arrow.large_binary()).chunks
    except arrow.ArrowException as error:
        raise errors.NotEncodable(
            f"Arrow does not accept this {type(payloads).__name__} ({error})",
            remedy="give valid arrays",
        ) from error
    return [chunk for chunk in chunks if len(chunk)]


# --- publishing -----------------------------------------------------------------------------------


def publish(
    store: Store,
    writer: str,
    piece: int,
    payloads: Many,
    *,
    timestamps: Times | None,
    timeout: float | None,
    check: Callable[[], None] | None = None,
) -> range:
    """Publish messages as a piece of a writer's work, unless that was done before.

    Args:
        store: of the queue, open for writing.
        writer: its name; the same as the option `writer` of Spark.
        piece: of its work.
        payloads: the messages.
        timestamps: of each; None: the time of the commit.
        timeout: seconds to wait for room; None: the queue's.
        check: called while waiting for room; raises when the piece is not wanted any more.
    """
    name, piece = _checked(store, writer, piece)
    timeout = check_timeout(timeout)
    messages = messages_of(store, payloads, timestamps)
    deadline = store.limits.deadline(timeout)
    with store.folder.descriptor, BulkPublisher(store, deadline) as publisher:
        left = deadline - time.monotonic()
        return publisher.publish(f"writer {name}", piece, messages, left, check)


async def publish_async(
    store: Store,
    writer: str,
    piece: int,
    payloads: Many,
    *,
    timestamps: Times | None,
    timeout: float | None,
) -> range:
    """Publish as `publish` does, in a thread, and wait for room on the event loop."""
    fixed = payloads if inputs.is_columnar(payloads) else list(payloads)
    if timestamps is not None and not inputs.is_columnar(timestamps):
        timestamps = inputs.items_of(timestamps)

    def attempt(job: SharedJob[range], left: float | None) -> range:
        return publish(
            store, writer, piece, fixed, timestamps=timestamps, timeout=left, check=job.check
        )

    return await with_room(
        store, check_timeout(timeout), attempt, line="pages", check=store.folder.descriptor.check
    )


def _checked(store: Store, writer: str, piece: int) -> tuple[str, int]:
    """Return the name of a writer and the number of its piece.

    Raises:
        InvalidType, InvalidOption: one is invalid.
    """
    path = store.folder.path
    writer = text("writer", writer)
    number = whole(
        "piece",
        piece,
        0,
        fmt.SEQUENCE_MAX,
        path=path,
        remedy="give a number from 0 to 2**63 - 1, higher for each piece",
    )
    try:
        length = len(writer.encode())
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= WRITER_BYTES_MAX:
        remedy = f"give a name of 1 to {WRITER_BYTES_MAX} bytes in UTF-8"
        raise value_error("writer", writer, remedy, path=path)
    return writer, number
