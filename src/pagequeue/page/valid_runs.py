"""Walks a page that may be damaged, and yields its runs of valid frames.

After damage the walk continues with the next frame whose position is proved: by an index record, or
by valid frames that lead from it to such a frame or to the page's end. A valid checksum alone is
not a proof: a payload can contain frames of this very queue. The C core's `resync` has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import _core
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator


ANY_TIME: Final = -(2**63)
"""The floor that allows a frame to be older than the one before it."""


class ValidRun(NamedTuple):
    """Consecutive valid frames, perhaps zero.

    Attributes:
        first: sequence of the first.
        end: one past the sequence of the last.
        position: of the first.
        end_position: one past the last.
        timestamp: of the last, in ns; of the frame before the run, if it is empty.
        stopped: one of the core's READ_ codes, for the bytes at `end_position`.
    """

    first: int
    end: int
    position: int
    end_position: int
    timestamp: int
    stopped: int


def valid_runs(
    page: _core.Region,
    index: _core.Region | None,
    first_sequence: int,
    floor_timestamp: int | None,
    *,
    end_sequence: int | None,
    is_sealed: bool,
    sent_sequence: int = 0,
    durable_sequence: int = 0,
    ceiling_timestamp: int = fmt.TIMESTAMP_MAX,
) -> Iterator[ValidRun]:
    """Yield the runs of one page in order; the first starts at the page's first position.

    Args:
        page: its map.
        index: of the same page, if it has one; a record counts if a frame confirms it.
        first_sequence: of the page.
        floor_timestamp: no frame of it is older; None: timestamps are not checked.
        end_sequence: first sequence of the next page; None: unknown.
        is_sealed: whether it must have an end-of-page marker. In an unsealed page of unknown end,
            the first empty slot is the end: unpublished frames can follow it.
        sent_sequence: messages below it were certainly sent; above it, in an unsealed page, only
            whole batches were.
        durable_sequence: the durable mark, if it is in this page: messages below it were on stable
            storage, so an empty slot before it is damage.
        ceiling_timestamp: no frame of it is younger.
    """
    position, sequence = fmt.PAGE_HEADER_BYTES, first_sequence
    floor = ANY_TIME if floor_timestamp is None else floor_timestamp
    limit = fmt.SEQUENCE_MAX if end_sequence is None else max(end_sequence, first_sequence)
    # In an unsealed page, frames directly after the tail were published by a killed producer; in a
    # sealed page, frames after its end do not count.
    scan_limit = limit if is_sealed else fmt.SEQUENCE_MAX
    while True:
        end_position, end, timestamp, *whole, _, stopped = _core.scan(
            page, None, first_sequence, position, sequence, scan_limit, floor, _core.INDEX_NONE
        )
        if not is_sealed and whole[1] >= sent_sequence:
            end_position, end, timestamp = whole
        if end == scan_limit:  # then the scan did not test the next place
            stopped = _core.peek(page, end_position, end)[0]
        yield ValidRun(sequence, end, position, end_position, timestamp, stopped)
        is_early = stopped == _core.READ_END and end_sequence is not None and end < end_sequence
        if (stopped == _core.READ_END and not is_early) or (end >= limit and not is_sealed):
            return
        is_open = not is_sealed and end_sequence is None and end >= durable_sequence
        if stopped == _core.READ_NOTHING and is_open:
            return
        if floor_timestamp is not None:
            floor = timestamp
        found = _core.resync(
            page,
            index,
            first_sequence,
            end_position,
            end,
            max(limit, end),
            max(floor, fmt.TIMESTAMP_MIN),
            ceiling_timestamp,
            durable_sequence,
        )
        if found is None:
            return
        position, sequence = found
