"""Arrays sent in one call, against `send` in a loop and a copy of the same bytes into warm pages.

Of each way the best of several turns counts: a call takes a few milliseconds, and what disturbs it
on a busy machine only adds to that.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from pagequeue import Queue
from stress.bench.turns import seconds_in_turns
from stress.bench_columns.reading import PAYLOAD_BYTES, RECORD
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pagequeue import Producer

ROWS = 100_000
LOOP_ROWS = 10_000
ROUNDS = 21
QUICK_ROWS = 2_000
PAGE_BYTES = 512 << 20
LOOP_GOAL_RATIO = 10.0
COPY_GOAL_RATIO = 0.5


def rows_of(count: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return records of 100 bytes that differ."""
    rows = np.zeros(count, RECORD)
    rows["id"] = np.arange(count)
    rows["values"] = np.arange(count)[:, np.newaxis] / 7
    return rows


def columns_of(rows: np.ndarray[Any, np.dtype[np.void]]) -> pa.Table:
    """Return the same as a table of Arrow's."""
    values = pa.array(np.ascontiguousarray(rows["values"]).reshape(-1))
    return pa.table(
        {
            "id": pa.array(np.ascontiguousarray(rows["id"])),
            "values": pa.FixedSizeListArray.from_arrays(values, rows["values"].shape[1]),
            "flags": pa.array(np.ascontiguousarray(rows["flags"])),
        }
    )


class _Copier:
    """Copies bytes into pages that were touched, each copy after the last one."""

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._pages = np.frombuffer(mmap.mmap(-1, PAGE_BYTES), np.uint8)
        self._pages[:: mmap.PAGESIZE] = 1
        self._at = 0

    def __call__(self) -> None:
        end = self._at + len(self._data)
        if end > len(self._pages):
            self._at, end = 0, len(self._data)
        self._pages[self._at : end] = self._data
        self._at = end


def rates_of(ways: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, float]:
    """Return the best million rows a second of each way, taken in turns and warm."""
    taken = seconds_in_turns({name: way for name, (way, _) in ways.items()}, rounds)
    return {name: count / min(taken[name]) / 1e6 for name, (_, count) in ways.items()}


def _warm(producer: Producer, size_bytes: int) -> None:
    """Take the faults of the active page, which the benchmark is not about."""
    page = producer._page
    assert page is not None
    page.populate(0, size_bytes, PAYLOAD_BYTES)


def sent_at_once(base: Path, *, quick: bool) -> list[Figure]:
    """Records in an array, in a table and in a list, and one by one."""
    count, loop_count = (QUICK_ROWS, QUICK_ROWS) if quick else (ROWS, LOOP_ROWS)
    rounds = 2 if quick else ROUNDS
    rows = rows_of(count)
    table, raw = columns_of(rows), [row.tobytes() for row in rows]
    strings, binary = np.array(raw), pa.array(raw)
    with (
        Queue(base / "records", dtype=RECORD, page_bytes=PAGE_BYTES) as records,
        Queue(base / "bytes", page_bytes=PAGE_BYTES) as plain,
        records.producer() as to_records,
        plain.producer() as to_plain,
    ):
        warm_bytes = PAGE_BYTES
        _warm(to_records, warm_bytes)
        _warm(to_plain, warm_bytes)

        def loop(producer: Producer, payloads: Iterable[Any]) -> None:
            send = producer.send
            for payload in payloads:
                send(payload)

        rates = rates_of(
            {
                "array": (lambda: to_records.send_many(rows), count),
                "table": (lambda: to_records.send_many(table), count),
                "array of bytes": (lambda: to_plain.send_many(strings), count),
                "Arrow's binary": (lambda: to_plain.send_many(binary), count),
                "list": (lambda: to_plain.send_many(raw), count),
                "loop over the array": (lambda: loop(to_records, rows[:loop_count]), loop_count),
                "loop over bytes": (lambda: loop(to_plain, raw[:loop_count]), loop_count),
                "copy": (_Copier(rows.tobytes()), count),
            },
            rounds,
        )
        to_records.send_many(table)
        sent = records.last(count).to_numpy()
        assert (sent == rows).all(), "the records are not what was sent"
    details = {name: f"{rate:.1f} million rows/s" for name, rate in rates.items()}
    ready, copied = (rates[name] / rates["loop over bytes"] for name in ("array", "copy"))
    details["against a loop over bytes that exist"] = f"{ready:.1f} times; the copy {copied:.1f}"
    return [
        Figure(
            "array to loop over it",
            rates["array"] / rates["loop over the array"],
            "times",
            LOOP_GOAL_RATIO,
            details=details,
        ),
        Figure("array to copy", rates["array"] / rates["copy"], "of its bytes", COPY_GOAL_RATIO),
    ]
