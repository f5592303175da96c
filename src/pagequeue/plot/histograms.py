"""Histograms of a queue, updated batch by batch in constant memory.

`TimeBins` has at most 512 bins; a message after the last one doubles their width. `SizeBins` has a
bin for each power of a root of two.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIME_BINS: Final = 512
STEPS_PER_OCTAVE: Final = 4
OCTAVES: Final = 64
TIME_FIRST_NS: Final = 1_000


class TimeBins:
    """Messages and bytes by time.

    Attributes:
        start: of the first bin, ns since 1970, UTC; None before the first message.
        bin_ns: width of a bin, a power of two times 1 us.
        messages: by bin; int64, shape (512,).
        payload_bytes: the same.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self.bin_ns: int = TIME_FIRST_NS
        self.messages: NDArray[np.int64] = np.zeros(TIME_BINS, np.int64)
        self.payload_bytes: NDArray[np.int64] = np.zeros(TIME_BINS, np.int64)

    def add(self, timestamps: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Count messages; their times never go back."""
        if not len(timestamps):
            return
        if self.start is None:
            self.start = int(timestamps[0])
        while (int(timestamps[-1]) - self.start) // self.bin_ns >= TIME_BINS:
            self._widen()
        bins = (timestamps - self.start) // self.bin_ns
        self.messages += np.bincount(bins, minlength=TIME_BINS)
        self.payload_bytes += np.bincount(bins, lengths, TIME_BINS).astype(np.int64)

    def _widen(self) -> None:
        self.bin_ns *= 2
        for counts in (self.messages, self.payload_bytes):
            half = counts.reshape(-1, 2).sum(axis=1)
            counts[:] = 0
            counts[: len(half)] = half

    @property
    def used(self) -> int:
        """How many bins there are up to the last one that has a message."""
        return int(np.flatnonzero(self.messages)[-1]) + 1 if self.messages.any() else 0


class SizeBins:
    """Numbers above 0 by their logarithm, four bins for each doubling; 0 and less by themselves.

    Attributes:
        counts: bin i is for 2**(i / 4) up to 2**((i + 1) / 4); int64, shape (256,).
        below: how many were 0 or less.
        total: how many there were.
        least: the smallest number, and `most` the largest; None while there was none.
    """

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(STEPS_PER_OCTAVE * OCTAVES, np.int64)
        self.below: int = 0
        self.total: int = 0
        self.least: int | None = None
        self.most: int | None = None

    def add(self, numbers: NDArray[np.int64]) -> None:
        """Count numbers."""
        if not len(numbers):
            return
        above = numbers[numbers > 0]
        bins = np.floor(np.log2(above) * STEPS_PER_OCTAVE + 1e-9).astype(np.int64)
        self.counts += np.bincount(bins, minlength=len(self.counts))
        self.below += len(numbers) - len(above)
        self.total += len(numbers)
        low, high = int(numbers.min()), int(numbers.max())
        self.least = low if self.least is None else min(self.least, low)
        self.most = high if self.most is None else max(self.most, high)

    def merge(self, other: SizeBins) -> None:
        """Count what another one has counted."""
        self.counts += other.counts
        self.below += other.below
        self.total += other.total
        if other.least is not None and other.most is not None:
            self.least = other.least if self.least is None else min(self.least, other.least)
            self.most = other.most if self.most is None else max(self.most, other.most)

    def quantile(self, part: float) -> float:
        """Return the quantile `part`, a whole number to a fifth; 0 if the histogram is empty."""
        wanted = part * self.total
        if self.total == 0 or wanted <= self.below:
            return 0.0
        i = int(np.searchsorted(np.cumsum(self.counts) + self.below, wanted))
        upper = float(self.edges()[min(i, len(self.counts) - 1) + 1])
        return min(math.floor(upper), float(self.most or 0))

    def edges(self) -> NDArray[np.float64]:
        """Return where the bins begin, and the last one ends; float64, shape (257,)."""
        return np.exp2(np.arange(len(self.counts) + 1) / STEPS_PER_OCTAVE)
