"""Finding frames of one page by time or number: by the index, which is only a hint (I6).

What the index leads to must prove itself. Where it does not, the index is written again from the
frames, and the search is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pagequeue import errors

Found = TypeVar("Found")


class PageSearch:
    """The part of `Page` that searches."""

    @property
    def region(self) -> _core.Region:
        """The map of the page."""
        raise NotImplementedError

    @property
    def first_sequence(self) -> int:
        """The sequence of the page's first frame."""
        raise NotImplementedError

    def index(self, count: int, *, mend: bool) -> _core.Region:
        """Return the page's index."""
        raise NotImplementedError

    def rebuild_index(self, count: int, *, mend: bool) -> _core.Region:
        """Write the index of the first `count` frames again."""
        raise NotImplementedError

    def damage(self, count: int | None) -> errors.CorruptFrame:
        """Return the error for the first frame, of `count`, that does not validate."""
        raise NotImplementedError

    def find(self, since: int, count: int, *, mend: bool) -> tuple[int, int]:
        """Return ordinal and position of the first of `count` frames that is not older.

        The ordinal is `count`, and the position behind the last frame, when all are older.

        Raises:
            CorruptFrame: the frames themselves are damaged.
        """
        return self._by_index(
            lambda page, index, first: _core.find(page, index, first, count, since),
            count,
            mend=mend,
        )

    def find_many(self, moments: NDArray[np.int64], count: int, *, mend: bool) -> NDArray[np.int64]:
        """Return for each moment how many of `count` frames are not later.

        Args:
            moments: ns since 1970, UTC, none earlier than the one before it; shape (n,).
            count: of the page's frames.
            mend: whether the index may be written again.

        Raises:
            CorruptFrame: the frames themselves are damaged.
        """
        found = self._by_index(
            lambda page, index, first: _core.find_many(page, index, first, count, moments.data),
            count,
            mend=mend,
        )
        return np.frombuffer(found, np.int64)

    def times(self, ordinal: int, end_ordinal: int, count: int, *, mend: bool) -> NDArray[np.int64]:
        """Return the timestamps of the frames from one ordinal up to another; shape (n,).

        They are the index's: only the first and the last frame are read, and prove it.

        Raises:
            CorruptFrame: the frames themselves are damaged.
        """
        found = self._by_index(
            lambda page, index, first: _core.times(page, index, first, ordinal, end_ordinal),
            count,
            mend=mend,
        )
        return np.frombuffer(found, np.int64)

    def locate(self, sequence: int, count: int, *, mend: bool) -> int:
        """Return the position of a message of this page, or behind the last of `count`.

        Raises:
            CorruptFrame: the frames themselves are damaged.
        """
        ordinal = sequence - self.first_sequence
        return self._by_index(
            lambda page, index, first: _core.locate(page, index, first, count, ordinal),
            count,
            mend=mend,
        )

    def _by_index(
        self,
        look: Callable[[_core.Region, _core.Region, int], Found | None],
        count: int,
        *,
        mend: bool,
    ) -> Found:
        """Return what is found by the index; if it is wrong, by one that is written again.

        Args:
            look: called with page, index and first sequence; None: the index is wrong.
            count: of the page's frames.
            mend: whether the index may be written again.

        Raises:
            CorruptFrame: the frames themselves are damaged.
        """
        first = self.first_sequence
        found = look(self.region, self.index(count, mend=mend), first)
        if found is None:
            found = look(self.region, self.rebuild_index(count, mend=mend), first)
        if found is None:
            raise self.damage(count)
        return found


def first_batch_end(page: _core.Region, first_sequence: int) -> int:
    """Return the position after a page's first message, or after the batch that it begins."""
    position, sequence = fmt.PAGE_HEADER_BYTES, first_sequence
    while True:
        length = page.load_half(position)
        found, _, _, end = _core.look(page, position, sequence)
        if found != _core.READ_FRAME:
            return position
        if not length & fmt.MORE_OF_BATCH:
            return end
        position, sequence = end, sequence + 1
