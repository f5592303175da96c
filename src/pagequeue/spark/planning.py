"""Which messages a read means, cut into partitions.

Only heads of pages are looked at, and the index where a time has to be found: no payload is touched
before a task does. A partition is a run of pages, or a part of one, so that all have about the same
weight; the live page counts up to the tail as it is now.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.queue.queue import internals
from pagequeue.spark.columns import Need
from pagequeue.spark.path_glob import Found, end_of, open_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.queue.queue import Queue
    from pagequeue.spark.columns import Table
    from pagequeue.spark.options import ReadOptions
    from pagequeue.store.store import Store

PART_BYTES_MIN: Final = 8 << 20
"""A smaller partition costs more to start than to read."""
PART_BYTES_MAX: Final = 512 << 20
PARTS_EACH_CPU: Final = 4
TIME_BYTES: Final = fmt.INDEX_RECORD_BYTES


class Piece(NamedTuple):
    """Messages of one queue that one task reads, from `first` up to `end`."""

    found: Found
    first: int
    end: int


class Part(InputPartition):
    """What one task reads.

    Attributes:
        pieces: in order; none: no row.
    """

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class _Span(NamedTuple):
    """Messages in one page, and about how many bytes they have."""

    found: Found
    first: int
    end: int
    weight: float


def plan(options: ReadOptions, table: Table) -> list[InputPartition]:
    """Return the partitions of a batch read.

    Raises:
        QueueNotFound: no queue matches. DamageError: a page's header or index is damaged.
    """
    spans: list[_Span] = []
    for found, queue in open_each(options):
        store = internals(queue).store
        need = table.layout(store.schema.dtype).need
        first, end = store.while_retained(partial(wanted_range, queue, options))
        spans += spans_of(store, found, (first, end), need, skips=options.skips_damage)
    return cut(spans, options)


def plan_ranges(
    ranges: list[tuple[Found, int, int]], options: ReadOptions, table: Table
) -> list[InputPartition]:
    """Return the partitions of a micro-batch, whose sequences are known."""
    spans: list[_Span] = []
    for found, first, end in ranges:
        with found.open() as queue:
            store = internals(queue).store
            need = table.layout(store.schema.dtype).need
            spans += spans_of(store, found, (first, end), need, skips=options.skips_damage)
    return cut(spans, options)


def wanted_range(queue: Queue, options: ReadOptions) -> tuple[int, int]:
    """Return the wanted sequences: the first, and the end, exclusive."""
    store = internals(queue).store
    end = end_of(queue, options)  # before the head, which can only pass it later
    first = store.read_meta.head_sequence
    if options.first is not None:
        first = max(first, options.first)
    if options.end is not None:
        end = min(end, options.end)
    if options.since is not None:
        first = max(first, store.seek_since(options.since).sequence)
    if options.until is not None:
        end = min(end, store.seek_since(options.until).sequence)
    return first, max(first, end)


def spans_of(
    store: Store, found: Found, wanted: tuple[int, int], need: Need, *, skips: bool
) -> Iterator[_Span]:
    """Yield the pages of a range; if retention removes one meanwhile, the task fails."""
    first, end = wanted
    if first >= end:
        return
    if need is Need.NOTHING:
        yield _Span(found, first, end, 0.0)
        return
    try:
        starts = page_starts(store, first, end)
    except (errors.Expired, errors.DamageError) as error:
        if isinstance(error, errors.DamageError) and not skips:
            raise
        yield _Span(found, first, end, 0.0)
        return
    for (number, start), (_, stop) in zip(starts, [*starts[1:], (0, end)], strict=True):
        begin = max(start, first)
        if begin < stop:
            count = stop - begin
            weight = count * TIME_BYTES if need is Need.TIMES else _bytes(store, number, count)
            yield _Span(found, begin, stop, weight)


def page_starts(store: Store, first: int, end: int) -> list[tuple[int, int]]:
    """Return numbers and first sequences of the pages of a range."""
    last = store.page_of_sequence(end - 1)
    return [(n, store.first_sequence(n)) for n in range(store.page_of_sequence(first), last + 1)]


def _bytes(store: Store, number: int, count: int) -> float:
    """Return about how many bytes of a page so many of its messages take."""
    tail = store.tail
    used = tail.position if number == tail.page_number else store.meta.page_bytes
    return used * count / max(store.count(number, tail), 1)


def cut(spans: list[_Span], options: ReadOptions) -> list[InputPartition]:
    """Return partitions of about the same weight."""
    total = sum(span.weight for span in spans)
    target = options.partition_bytes
    if target is None:
        wanted = total / (PARTS_EACH_CPU * (os.cpu_count() or 1))
        target = int(min(max(wanted, PART_BYTES_MIN), PART_BYTES_MAX))
    room = total / max(1, round(total / target))
    parts: list[InputPartition] = []
    pieces: list[Piece] = []
    left = room
    for span in spans:
        first = span.first
        each = span.weight / (span.end - span.first)
        while first < span.end:
            count = span.end - first
            if each > 0 and count * each > left * (1 + 1e-9):
                count = max(1, min(count, round(left / each)))
            _add(pieces, Piece(span.found, first, first + count))
            first += count
            left -= count * each
            if left <= each / 2 and each > 0:
                parts.append(Part(tuple(pieces)))
                pieces, left = [], room
    if pieces or not parts:  # without a part Spark fails
        parts.append(Part(tuple(pieces)))
    return parts


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece; one that begins at the end of the last extends it."""
    last = pieces[-1] if pieces else None
    if last is not None and last.found == piece.found and last.end == piece.first:
        pieces[-1] = Piece(piece.found, last.first, piece.end)
    else:
        pieces.append(piece)
