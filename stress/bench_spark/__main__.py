"""`python -m stress.bench_spark [--quick] [--gigabytes N] [--directory DIR] [CASE ...]`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from stress.bench_consumers.command import main
from stress.bench_spark import native, shared
from stress.bench_spark.reading import scans
from stress.bench_spark.streaming import micro_batches
from stress.bench_spark.workers import workers
from stress.bench_spark.writing import writes

if TYPE_CHECKING:
    from stress.bench_consumers.case import Case

REPEATED = ("read_1024", "readers_1024", "write_1024", "workers")
"""A quick run leaves them out: the same ways as others, and a cluster of five JVMs."""
CASES: dict[str, Case] = {
    "read_100": partial(scans, payload_bytes=100),
    "read_1024": partial(scans, payload_bytes=1024),
    "readers_100": partial(native.readers, payload_bytes=100),
    "readers_1024": partial(native.readers, payload_bytes=1024),
    "write_100": partial(writes, payload_bytes=100),
    "write_1024": partial(writes, payload_bytes=1024),
    "stream": micro_batches,
    "workers": workers,
}


def run() -> int:
    """Run cases; the exit code is 1 if one failed to measure."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--gigabytes", type=float, default=shared.GIGABYTES)
    options, rest = parser.parse_known_args()
    shared.GIGABYTES = options.gigabytes
    sys.argv[1:] = rest
    cases = dict(CASES)
    if "--quick" in rest:
        shared.SETTINGS |= shared.QUICK_SETTINGS
        for name in set(REPEATED) - set(rest):
            del cases[name]
    try:
        return main("bench_spark", cases)
    finally:
        shared.stop()


if __name__ == "__main__":
    sys.exit(run())
