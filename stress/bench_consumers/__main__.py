"""`python -m stress.bench_consumers [--quick] [--directory DIR] [CASE ...]`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stress.bench_consumers.command import main
from stress.bench_consumers.compression import compressed_read, send_beside_compression
from stress.bench_consumers.drop_in import drop_in_queue
from stress.bench_consumers.flows import asyncio_round_trip, persist_throughput
from stress.bench_consumers.groups import claim_ack, two_workers
from stress.bench_consumers.keeping import (
    named_ack_per_100,
    pages_used_again,
    send_beside_retention,
)

if TYPE_CHECKING:
    from stress.bench_consumers.case import Case

CASES: dict[str, Case] = {
    "compressed_read": compressed_read,
    "send_beside_compression": send_beside_compression,
    "drop_in": drop_in_queue,
    "named_ack_per_100": named_ack_per_100,
    "send_beside_retention": send_beside_retention,
    "pages_used_again": pages_used_again,
    "claim_ack": claim_ack,
    "two_workers": two_workers,
    "asyncio_round_trip": asyncio_round_trip,
    "persist_throughput": persist_throughput,
}


if __name__ == "__main__":
    sys.exit(main("bench_consumers", CASES))
