"""What a task counts of its rows, for `profile`: one row for each queue, however many it saw."""

from __future__ import annotations

from dataclasses import astuple, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from pagequeue.plot.histograms import SizeBins
from pagequeue.profile.counts import Run, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SCHEMA: Final = (
    "queue string, messages bigint, payload_bytes bigint, sizes array<bigint>, gaps array<bigint>, "
    "times array<bigint>, time_bytes array<bigint>, runs array<bigint>"
)
RUN_NUMBERS: Final = len(fields(Run))
LISTS: Final = ("sizes", "gaps", "times", "time_bytes", "runs")
ARROW: Final = pa.schema(
    [
        ("queue", pa.string()),
        ("messages", pa.int64()),
        ("payload_bytes", pa.int64()),
        *((name, pa.list_(pa.int64())) for name in LISTS),
    ]
)


def bins_as_numbers(bins: SizeBins) -> list[int]:
    """Return a histogram as numbers."""
    return [*bins.counts.tolist(), bins.below, bins.total, bins.least or 0, bins.most or 0]


def bins_of(numbers: NDArray[np.int64]) -> SizeBins:
    """Return a histogram that was made numbers."""
    bins = SizeBins()
    below, total, least, most = numbers[-4:].tolist()
    if total:
        bins.counts += numbers[:-4]
        bins.below, bins.total, bins.least, bins.most = below, total, least, most
    return bins


def counting(start: int, bin_ns: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what counts a task's batches of queue, sequence, timestamp_ns and size."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        tallies: dict[str, Tally] = {}
        for batch in batches:
            if not batch.num_rows:
                continue
            names = batch.column(0).dictionary_encode()
            codes = names.indices.to_numpy(zero_copy_only=False)
            columns = [batch.column(n).to_numpy(zero_copy_only=False) for n in (1, 2, 3)]
            cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
            for first, end in pairwise(cuts):
                name = names.dictionary[codes[first]].as_py()
                tally = tallies.setdefault(name, Tally(start, bin_ns))
                tally.add(*(column[first:end].astype(np.int64) for column in columns))
        rows = [
            (
                name,
                tally.messages,
                tally.payload_bytes,
                bins_as_numbers(tally.sizes),
                bins_as_numbers(tally.gaps),
                tally.times.tolist(),
                tally.time_bytes.tolist(),
                [number for run in tally.runs for number in astuple(run)],
            )
            for name, tally in tallies.items()
        ]
        if rows:
            arrays = [
                pa.array(column, kind)
                for column, kind in zip(zip(*rows, strict=True), ARROW.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)

    return count
