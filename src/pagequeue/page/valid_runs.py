"""Walking a page that may be damaged: the stretches of frames that validate.

After damage the walk continues with the next frame whose place is proved: by an index record, or
by valid frames that lead from it to such a frame or to the page's end. Its checksum alone
is no proof: a payload can hold frames of this very queue. The C core's `resync` has the rules.
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
    """Frames that validate, one directly behind the other; there can be none of them.

    Attributes:
        first: sequence of the first.
        end: sequence behind the last.
        position: of the first.
        end_position: behind the last.
        timestamp: of the last, in ns; of the frame before the stretch, when it is empty.
        stopped: one of the core's READ_ codes: what stands behind the last.
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
    ceiling_timestamp: int = fmt.TIMESTAMP_MAX,
) -> Iterator[ValidRun]:
    """Give the stretches of one page in order; the first begins at its beginning.

    Args:
        page: its map.
        index: of the same page, if there is one; a record counts if a frame proves it.
        first_sequence: of the page.
        floor_timestamp: no frame of it is older; None: whatever times they have.
        end_sequence: what follows the page begins with this one; None: not known.
        is_sealed: whether an end mark must stand in it. In a page that is not, and whose end is not
            known, the first empty place is the end: behind it can stand what was never sent.
        sent_sequence: what is below it was certainly sent; of what follows in a page that is not
            sealed, only whole batches were.
        ceiling_timestamp: no frame of it is younger.
    """
    position, sequence = fmt.PAGE_HEADER_BYTES, first_sequence
    floor = ANY_TIME if floor_timestamp is None else floor_timestamp
    limit = fmt.SEQUENCE_MAX if end_sequence is None else max(end_sequence, first_sequence)
    # Directly behind the tail stands what a killed producer had published; behind the end of a
    # sealed page nothing counts.
    scan_limit = limit if is_sealed else fmt.SEQUENCE_MAX
    while True:
        end_position, end, timestamp, *whole, _, stopped = _core.scan(
            page, None, first_sequence, position, sequence, scan_limit, floor, _core.INDEX_NONE
        )
        if not is_sealed and whole[1] >= sent_sequence:
            end_position, end, timestamp = whole
        if end == scan_limit:  # then it looked no further
            stopped = _core.look(page, end_position, end)[0]
        yield ValidRun(sequence, end, position, end_position, timestamp, stopped)
        is_early = stopped == _core.READ_END and end_sequence is not None and end < end_sequence
        if (stopped == _core.READ_END and not is_early) or (end >= limit and not is_sealed):
            return
        if stopped == _core.READ_NOTHING and not is_sealed and end_sequence is None:
            return
        if floor_timestamp is not None:
            floor = timestamp
        found = _core.resync(
            page, index, first_sequence, end_position, end, max(limit, end),
            max(floor, fmt.TIMESTAMP_MIN), ceiling_timestamp,
        )  # fmt: skip
        if found is None:
            return
        position, sequence = found
