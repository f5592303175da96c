"""`python -m stress.bench_columns [--quick] [--directory DIR] [CASE ...]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stress.bench_columns.merging import merged_batches
from stress.bench_columns.reading import fixed_records, memory, whole_queue
from stress.bench_columns.writing import sent_at_once
from stress.bench_consumers.command import main

if TYPE_CHECKING:
    from stress.bench_consumers.case import Case

CASES: dict[str, Case] = {
    "whole_queue": whole_queue,
    "fixed_records": fixed_records,
    "memory": memory,
    "merged_batches": merged_batches,
    "sent_at_once": sent_at_once,
}


if __name__ == "__main__":
    sys.exit(main("bench_columns", CASES))
