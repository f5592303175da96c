"""What verify says of fixed records: that each message of their queue has the size of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD_BYTES = 4


@dataclass(frozen=True)
class WrongSizes:
    """Messages of one page that are no records.

    Attributes:
        sequence: of the first one.
        position: where it stands.
        size_bytes: of it.
        count: how many there are.
    """

    sequence: int
    position: int
    size_bytes: int
    count: int


def wrong_sizes(
    page: _core.Region,
    index: _core.Region | None,
    first_sequence: int,
    count: int,
    record_bytes: int,
) -> WrongSizes | None:
    """Return which messages of a page are no records; None: all are.

    Args:
        page: whose first frames, so many, validate.
        index: of the page, if it is what the frames say.
        first_sequence: of the page.
        count: of frames.
        record_bytes: of a record.
    """
    if count == 0:
        return None
    if index is None:
        positions = _walked(page, first_sequence, count)
    else:
        records = np.frombuffer(memoryview(index), fmt.INDEX_RECORD, count)
        positions = records["position"].astype(np.int64)
    words = np.frombuffer(memoryview(page), np.uint32)[positions // WORD_BYTES]
    sizes = (words & fmt.LENGTH_MASK).astype(np.int64) - fmt.FRAME_HEADER_BYTES
    wrong = np.flatnonzero(sizes != record_bytes)
    if not len(wrong):
        return None
    i = int(wrong[0])
    return WrongSizes(first_sequence + i, int(positions[i]), int(sizes[i]), len(wrong))


def _walked(page: _core.Region, first_sequence: int, count: int) -> NDArray[np.int64]:
    positions = np.empty(count, np.int64)
    position = fmt.PAGE_HEADER_BYTES
    for i in range(count):
        positions[i] = position
        position = _core.look(page, position, first_sequence + i)[3]
    return positions
