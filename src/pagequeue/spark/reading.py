"""What a task does: reads its pieces and gives Arrow batches, every frame checked.

It opens the queue read-only, so no producer waits for it. Damage, and messages that retention
removed between planning and reading, raise an error, or with the option `skip` become gaps that the
log counts. No other message is missing without an error.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.compressed_page import derived_index, map_page
from pagequeue.page.page import map_file
from pagequeue.page.valid_runs import ValidRun, valid_runs
from pagequeue.queue.queue import internals
from pagequeue.receive.batches import BATCH_BYTES
from pagequeue.receive.replay import Replay
from pagequeue.spark.columns import Need, Rows, Table
from pagequeue.spark.error_text import noted
from pagequeue.util.text import message_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.columns.batch import Batch
    from pagequeue.spark.options import ReadOptions
    from pagequeue.spark.planning import Part, Piece
    from pagequeue.store.store import Store

log: logging.Logger = logging.getLogger("pagequeue")
ROWS_MAX: Final = 1 << 18
"""Rows of a batch that has no payloads."""
NO_TIMES: Final = np.empty(0, np.int64)


def read_part(part: Part, table: Table, options: ReadOptions) -> Iterator[Any]:
    """Give the record batches of one partition, in order of sequence within each queue.

    Raises:
        CorruptFrame, CorruptPage, MissingPage: damage, unless it is skipped.
        Expired: retention took messages since the read was planned, unless that is skipped.
    """
    with noted():
        for piece in part.pieces:
            layout = table.layout(piece.found.dtype())
            for rows in _PieceReader(piece, layout.need, options).rows():
                if rows.size:
                    yield layout.batch(rows)


def expired_since(store: Store, sequence: int) -> errors.Expired:
    """Return the error for messages that retention removed since a read was planned."""
    return store.expired(
        f"retention removed messages from {sequence} on since the read was planned: read again, "
        "give a stream the option consumer, or onExpired=skip"
    )


class _PieceReader:
    """Reads one piece."""

    def __init__(self, piece: Piece, need: Need, options: ReadOptions) -> None:
        self._piece = piece
        self._need = need
        self._options = options
        self._at = piece.first  # what is before it was given, or is a gap that was told

    def rows(self) -> Iterator[Rows]:
        """Give all of it."""
        piece = self._piece
        with piece.found.open() as queue:
            if self._need is Need.NOTHING:
                for first in range(piece.first, piece.end, ROWS_MAX):
                    yield self._rows(first, min(ROWS_MAX, piece.end - first), NO_TIMES, None)
                return
            store = internals(queue).store
            while self._at < piece.end:
                try:
                    yield from self._remaining(store)
                except errors.Expired as error:
                    self._pass_expired(store, error)
                except errors.DamageError as error:
                    if not self._options.skips_damage:
                        raise
                    yield from self._around(store, error)

    def _rows(
        self, first: int, count: int, timestamps: NDArray[np.int64], batch: Batch | None
    ) -> Rows:
        return Rows(self._piece.found.name, first, count, timestamps, batch)

    def _remaining(self, store: Store) -> Iterator[Rows]:
        """Give what follows, up to the end or to what is wrong."""
        if self._need is Need.TIMES:
            yield from self._times(store)
            return
        with Replay(store, None, None, self._at, self._piece.end) as replay:
            yield from self._drain(replay)
        if self._at < self._piece.end:
            raise errors.SequenceOutOfRange(
                f"message {self._at} was there when the read was planned, and is not: it was cut "
                "off by a recovery; read again",
                path=store.folder.path,
                head_sequence=store.read_meta.head_sequence,
                tail_sequence=store.tail.sequence,
            )

    def _drain(self, replay: Replay) -> Iterator[Rows]:
        while (batch := _next(replay)) is not None:
            self._at = replay.sequence
            yield self._of_batch(batch)

    def _of_batch(self, batch: Batch) -> Rows:
        first = self._at - len(batch)
        return self._rows(first, len(batch), batch.timestamps, batch)

    def _times(self, store: Store) -> Iterator[Rows]:
        """Give times by the index alone; of each page two frames prove it."""
        while self._at < self._piece.end:
            number = store.page_of_sequence(self._at)
            page, count = store.page(number), store.count(number)
            first = page.first_sequence
            if self._at < first:
                raise store.expired()
            end = min(self._piece.end - first, count, self._at - first + ROWS_MAX)
            times = page.times(self._at - first, end, count, repair=False)
            begin, self._at = self._at, first + end
            yield self._rows(begin, len(times), times, None)

    # --- unreadable messages ----------------------------------------------------------------------

    def _gap(self, end: int, why: str) -> None:
        """Skip unreadable messages, and log that."""
        if end > self._at:
            log.warning(
                "%s: skipped %s: %s", self._piece.found.name, message_range(self._at, end), why
            )
        self._at = max(self._at, end)

    def _pass_expired(self, store: Store, error: errors.Expired) -> None:
        if not self._options.skips_expired:
            raise expired_since(store, self._at) from error
        head = store.read_meta.head_sequence
        if head <= self._at:
            raise error
        self._gap(min(head, self._piece.end), "retention took them")

    def _around(self, store: Store, error: errors.DamageError) -> Iterator[Rows]:
        """Give what can be read of the page that is damaged, and pass over the rest of it."""
        why = str(error)
        number, end = _page_bounds(store, self._at)
        end = min(end, self._piece.end)
        for run, region in _good(store, number):
            begin = max(run.first, self._at)
            if run.end <= self._at or begin >= end:
                continue
            self._gap(begin, why)
            position = _position(region, run, begin)
            replay = Replay(store, None, None, None, 0)
            replay._enter(region, number, position, begin)  # noqa: SLF001 - its own package
            replay._bound(-(2**63), -(2**63), min(run.end, end))  # noqa: SLF001 - the same
            with replay:
                yield from self._drain(replay)
        self._gap(end, why)


def _next(replay: Replay) -> Batch | None:
    try:
        return replay._batch(fmt.READ_COUNT_MAX, 0, BATCH_BYTES)  # noqa: SLF001 - its own package
    except errors.NothingReceived:
        return None  # a tail that awaits recovery


def _page_bounds(store: Store, sequence: int) -> tuple[int, int]:
    """Return the page of a sequence, and where the next page begins.

    By the pages whose headers can be read.
    """
    number, end = store.read_meta.head_page, store.tail.sequence
    for other in range(number, store.tail.page_number + 1):
        try:
            first = store.first_sequence(other)
        except errors.DamageError:
            continue
        if first > sequence:
            return number, first
        number = other
    return number, end


def _good(store: Store, number: int) -> Iterator[tuple[ValidRun, _core.Region]]:
    """Give the runs of a page that validate, as far as anything of it can be read."""
    name = fmt.page_name(store.prefix, number)
    try:
        first = store.first_sequence(number)
        end = store.end_sequence(number) if number == store.tail.page_number else None
        region = map_page(store.folder, name, store.meta, wrong=_noted)
    except (errors.DamageError, errors.QueueNotFound):
        return
    sealed = number < store.tail.page_number
    index = derived_index(region, store.meta)
    if index is None:
        with contextlib.suppress(errors.PageQueueError):  # only a hint
            index = map_file(
                store.folder,
                fmt.index_name(store.prefix, number),
                store.meta.index_bytes,
                writable=False,
            )
    for run in valid_runs(region, index, first, None, end_sequence=end, is_sealed=sealed):
        yield run, region


def _noted(error: errors.DamageError) -> None:
    """Ignore the damage: the runs of valid frames show what is missing."""


def _position(region: _core.Region, run: ValidRun, sequence: int) -> int:
    """Return the position of a message in a run of valid frames."""
    position: int = _core.scan(
        region,
        None,
        run.first,
        run.position,
        run.first,
        sequence,
        -(2**63),
        _core.INDEX_NONE,
    )[0]
    return position
