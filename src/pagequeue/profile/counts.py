"""What is counted of the messages of one queue, in one pass and constant memory.

Counts and histograms are of all rows in whatever order. What needs order is counted in runs: rows
of a queue that follow each other; `joined` puts the runs in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import format as fmt
from pagequeue.plot.histograms import TIME_BINS, TIME_FIRST_NS, SizeBins

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUNS_MAX: Final = 4096


@dataclass
class Run:
    """Rows of a queue whose sequences follow each other, or are equal.

    Attributes:
        first: sequence.
        last: the highest.
        duplicates: rows that have the sequence of the one before them.
        late: rows that are older than one before them.
        first_time: of the first row, ns since 1970.
        last_time: of the last row.
        least_time: the earliest.
        most_time: the latest.
    """

    first: int
    last: int
    duplicates: int
    late: int
    first_time: int
    last_time: int
    least_time: int
    most_time: int


class Tally:
    """What was counted of one queue.

    Args:
        start: of the first bin of time, ns since 1970.
        bin_ns: the width of a bin.
    """

    def __init__(self, start: int, bin_ns: int) -> None:
        self._start = start
        self._bin_ns = bin_ns
        self.messages: int = 0
        self.payload_bytes: int = 0
        self.sizes: SizeBins = SizeBins()
        self.gaps: SizeBins = SizeBins()
        self.times: NDArray[np.int64] = np.zeros(TIME_BINS, np.int64)
        self.time_bytes: NDArray[np.int64] = np.zeros(TIME_BINS, np.int64)
        self.runs: list[Run] = []

    def add(
        self, sequences: NDArray[np.int64], times: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        """Count rows as they came."""
        self.messages += len(sequences)
        self.payload_bytes += int(sizes.sum())
        self.sizes.add(sizes)
        bins = np.clip((times - self._start) // self._bin_ns, 0, TIME_BINS - 1)
        self.times += np.bincount(bins, minlength=TIME_BINS)
        self.time_bytes += np.bincount(bins, sizes, TIME_BINS).astype(np.int64)
        steps = np.diff(sequences)
        breaks = (steps < 0) | (steps > self._longest_step())
        cuts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(sequences)]
        for first, end in pairwise(cuts):
            self._run(sequences[first:end], times[first:end])

    def _longest_step(self) -> int:
        """Return how far two sequences of a run may be apart.

        What is missing here mostly is in another task, so a run ends there; unless there are so
        many runs that the rows are not in order.
        """
        return 1 if len(self.runs) < RUNS_MAX else fmt.SEQUENCE_MAX

    def _run(self, sequences: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Count rows in order; they extend the last run or begin a new one."""
        run = self.runs[-1] if self.runs else None
        step = 0 if run is None else int(sequences[0]) - run.last
        if run is None or step < 0 or step > self._longest_step():
            begin, time = int(sequences[0]), int(times[0])
            run = Run(begin, begin, 0, 0, time, time, time, time)
            self.runs.append(run)
            sequences, times = sequences[1:], times[1:]
        if not len(sequences):
            return
        steps = np.diff(sequences, prepend=run.last)
        self.gaps.add(np.diff(times, prepend=run.last_time)[steps > 0])
        latest = np.maximum.accumulate(np.concatenate([[run.most_time], times]))
        run.late += int((times < latest[:-1]).sum())
        run.duplicates += int((steps == 0).sum())
        run.last, run.last_time = int(sequences[-1]), int(times[-1])
        run.most_time = int(latest[-1])
        run.least_time = min(run.least_time, int(times.min()))


def bin_width(start: int, last: int) -> int:
    """Return the width of a bin, ns, with which all times from `start` to `last` have one."""
    bin_ns = TIME_FIRST_NS
    while (last - start) // bin_ns >= TIME_BINS:
        bin_ns *= 2
    return bin_ns
