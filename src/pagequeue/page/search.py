"""Finds frames of one page by time or number, through the index, which is only a hint (I6).

The frame that the index leads to must confirm it. If it does not, the index is rebuilt from the
frames, and the search is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pagequeue import errors

Found = TypeVar("Found")


class IndexedPage(Protocol):
    """What a search needs of a page."""

    @property
    def region(self) -> _core.Region:
        """The map of the page."""

    @property
    def first_sequence(self) -> int:
        """The sequence of the page's first frame."""

    def index(self, count: int, *, repair: bool) -> _core.Region:
        """Return the page's index."""

    def rebuild_index(self, count: int, *, repair: bool) -> _core.Region:
        """Rebuild the index of the first `count` frames; with `repair`, in its file."""

    def damage(self, count: int | None) -> errors.CorruptFrame:
        """Return the error for the first invalid frame among `count` frames."""


def find(page: IndexedPage, since: int, count: int, *, repair: bool) -> tuple[int, int]:
    """Return ordinal and position of the first of `count` frames that is not older.

    If all are older, the ordinal is `count`, and the position is one past the last frame.

    Raises:
        CorruptFrame: the frames themselves are damaged.
    """
    return _by_index(
        page,
        lambda region, index, first: _core.find(region, index, first, count, since),
        count,
        repair=repair,
    )


def find_many(
    page: IndexedPage, wanted: NDArray[np.int64], count: int, *, repair: bool
) -> NDArray[np.int64]:
    """Return for each timestamp how many of `count` frames are not later.

    Args:
        page: to search.
        wanted: timestamps in ns since 1970, UTC, in ascending order; shape (n,).
        count: of the page's frames.
        repair: whether a wrong index may be rewritten in its file.

    Raises:
        CorruptFrame: the frames themselves are damaged.
    """
    found = _by_index(
        page,
        lambda region, index, first: _core.find_many(region, index, first, count, wanted.data),
        count,
        repair=repair,
    )
    return np.frombuffer(found, np.int64)


def times(
    page: IndexedPage, ordinal: int, end_ordinal: int, count: int, *, repair: bool
) -> NDArray[np.int64]:
    """Return the timestamps of the frames from one ordinal up to another; shape (n,).

    They are the index's: only the first and the last frame are read, to confirm it.

    Raises:
        CorruptFrame: the frames themselves are damaged.
    """
    found = _by_index(
        page,
        lambda region, index, first: _core.times(region, index, first, ordinal, end_ordinal),
        count,
        repair=repair,
    )
    return np.frombuffer(found, np.int64)


def locate(page: IndexedPage, sequence: int, count: int, *, repair: bool) -> int:
    """Return the position of a message of this page, or one past the last of `count`.

    Raises:
        CorruptFrame: the frames themselves are damaged.
    """
    ordinal = sequence - page.first_sequence
    return _by_index(
        page,
        lambda region, index, first: _core.locate(region, index, first, count, ordinal),
        count,
        repair=repair,
    )


def _by_index(
    page: IndexedPage,
    search: Callable[[_core.Region, _core.Region, int], Found | None],
    count: int,
    *,
    repair: bool,
) -> Found:
    """Search by the index; if it is wrong, rebuild it and search again.

    Args:
        page: to search.
        search: called with page, index and first sequence; returns None if the index is wrong.
        count: of the page's frames.
        repair: whether a wrong index may be rewritten in its file.
    """
    first = page.first_sequence
    found = search(page.region, page.index(count, repair=repair), first)
    if found is None:
        found = search(page.region, page.rebuild_index(count, repair=repair), first)
    if found is None:
        raise page.damage(count)
    return found


def first_batch_end(page: _core.Region, first_sequence: int) -> int:
    """Return the position after a page's first message, or after the batch that starts with it."""
    position, sequence = fmt.PAGE_HEADER_BYTES, first_sequence
    while True:
        length = page.load_half(position)
        found, _, _, end = _core.peek(page, position, sequence)
        if found != _core.READ_FRAME:
            return position
        if not fmt.has_more(length):
            return end
        position, sequence = end, sequence + 1
