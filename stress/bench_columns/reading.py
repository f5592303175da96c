"""A whole queue as Arrow and NumPy, against pyarrow's files, memory copies and the plain loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from pagequeue import Queue
from stress.bench.turns import medians, seconds_in_turns
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD_BYTES = 100
MESSAGES = 4_000_000
QUICK_MESSAGES = 100_000
LARGE_TIMES = 4
"""The queue whose memory is watched is so many times as large."""
SENT_AT_ONCE = 1000
ROUNDS = 7
COPY_BYTES = 256 << 20
ARROW_GOAL_MILLIONS = 20.0
PEER_GOAL_RATIO = 1.0
COPY_GOAL_RATIO = 0.5
LOOP_GOAL_RATIO = 5.0
MEMORY_GOAL_MB = 64.0
RECORD = np.dtype([("id", "<u8"), ("values", "<f8", (11,)), ("flags", "<u4")])
COPIED = pa.schema(
    [("sequence", pa.int64()), ("timestamp", pa.timestamp("ns", "UTC")), ("payload", pa.binary())]
)


def fill(queue: Queue, count: int) -> None:
    """Send records of 100 bytes, the first field of each its number."""
    records = np.zeros(SENT_AT_ONCE, RECORD)
    with queue.producer() as producer:
        for first in range(0, count, SENT_AT_ONCE):
            records["id"] = np.arange(first, first + SENT_AT_ONCE)
            data = records.tobytes()
            producer.send_many(
                [data[at : at + PAYLOAD_BYTES] for at in range(0, len(data), PAYLOAD_BYTES)]
            )


def seconds_of(ways: dict[str, Callable[[], int]], count: int, *, quick: bool) -> dict[str, float]:
    """Return the median seconds of each way to get so many rows, taken in turns and warm."""

    def checked(name: str, way: Callable[[], int]) -> Callable[[], None]:
        def call() -> None:
            found = way()
            assert found == count, f"{name}: {found} rows of {count}"

        return call

    calls = {name: checked(name, way) for name, way in ways.items()}
    return medians(seconds_in_turns(calls, 1 if quick else ROUNDS))


def whole_queue(base: Path, *, quick: bool) -> list[Figure]:
    """All messages into Arrow, viewed and copied; the same rows from files that pyarrow wrote."""
    count = QUICK_MESSAGES if quick else MESSAGES
    ipc, parquet = str(base / "rows.arrow"), str(base / "rows.parquet")
    with Queue(base / "queue") as queue:
        fill(queue, count)
        rows = pa.RecordBatchReader.from_stream(queue.batches(), schema=COPIED).read_all()
        with pa.ipc.new_file(ipc, COPIED) as writer:
            writer.write_table(rows)
        pq.write_table(rows, parquet, compression="none", use_dictionary=False)
        del rows

        def copies() -> int:
            return int(
                pa.RecordBatchReader.from_stream(queue.batches(), schema=COPIED).read_all().num_rows
            )

        def ipc_file() -> int:
            with pa.OSFile(ipc) as file:
                return int(pa.ipc.open_file(file).read_all().num_rows)

        def ipc_mapped() -> int:
            with pa.memory_map(ipc) as file:
                return int(pa.ipc.open_file(file).read_all().num_rows)

        took = seconds_of(
            {
                "views": lambda: int(pa.table(queue.batches()).num_rows),
                "copies": copies,
                "Arrow IPC file": ipc_file,
                "Arrow IPC file, mapped": ipc_mapped,
                "Parquet file": lambda: int(pq.read_table(parquet).num_rows),
                "Parquet file, mapped": lambda: int(
                    pq.read_table(parquet, memory_map=True).num_rows
                ),
            },
            count,
            quick=quick,
        )
    details = {
        name: f"{count / seconds / 1e6:.1f} million rows/s" for name, seconds in took.items()
    }
    details["note"] = "a mapped IPC file is not read at all; ours has every checksum checked"
    million = count / 1e6
    return [
        Figure(
            "views", million / took["views"], "million rows/s", ARROW_GOAL_MILLIONS, details=details
        ),
        Figure("copies", million / took["copies"], "million rows/s", ARROW_GOAL_MILLIONS),
        *(
            Figure(f"{ours} to {peer}", took[peer] / took[ours], "times as fast", PEER_GOAL_RATIO)
            for ours in ("views", "copies")
            for peer in ("Arrow IPC file", "Parquet file", "Parquet file, mapped")
        ),
    ]


def fixed_records(base: Path, *, quick: bool) -> list[Figure]:
    """All messages as structured arrays, compared with a memory copy and the loop of messages."""
    count = QUICK_MESSAGES if quick else MESSAGES
    source = np.ones(COPY_BYTES, np.uint8)
    target = np.ones(COPY_BYTES, np.uint8)

    def copy() -> int:
        np.copyto(target, source)
        return count

    with Queue(base / "queue") as queue:
        fill(queue, count)
        last = queue.last(1).to_numpy(RECORD)
        assert last["id"].tolist() == [count - 1]
        took = seconds_of(
            {
                "records": lambda: sum(len(batch.to_numpy(RECORD)) for batch in queue.batches()),
                "copy": copy,
                "loop": lambda: len(
                    np.frombuffer(b"".join([m.payload for m in queue.replay()]), RECORD)
                ),
                "empty loop": lambda: sum(1 for _ in queue.replay()),
            },
            count,
            quick=quick,
        )
    read = count * PAYLOAD_BYTES / took["records"]
    copied = COPY_BYTES / took["copy"]
    details = {
        "records": f"{read / 1e9:.2f} GB/s, {count / took['records'] / 1e6:.1f} million/s",
        "memory copy": f"{copied / 1e9:.2f} GB/s",
        "loop": f"{count / took['loop'] / 1e6:.2f} million/s to the same array, "
        f"{count / took['empty loop'] / 1e6:.2f} million/s in an empty loop",
    }
    ratio = took["loop"] / took["records"]
    return [
        Figure(
            "records to a memory copy",
            read / copied,
            "of its bytes/s",
            COPY_GOAL_RATIO,
            details=details,
        ),
        Figure("records to the loop", ratio, "times as fast", LOOP_GOAL_RATIO),
    ]


def memory(base: Path, *, quick: bool) -> list[Figure]:
    """A large queue through a reducer: how much private memory the process needs for that."""
    times = LARGE_TIMES if not quick else 1
    count = (QUICK_MESSAGES if quick else MESSAGES) * times
    with Queue(base / "queue") as queue:
        fill(queue, count)
        pc.sum(pc.binary_length(pa.table(queue.last(10))["payload"].cast(pa.binary())))  # imports
        before, peak, total = own_bytes(), 0, 0
        for batch in pa.RecordBatchReader.from_stream(queue.batches()):
            total += batch.num_rows
            assert pc.max(batch["sequence"]).as_py() == total - 1
            peak = max(peak, own_bytes())
    assert total == count, f"{total} rows of {count}"
    size = count * PAYLOAD_BYTES / 1e6
    details = {"queue": f"{size:.0f} MB of payloads, {count} messages"}
    grown = (peak - before) / 1e6
    return [Figure("growth", grown, "MB private", MEMORY_GOAL_MB, is_bound=True, details=details)]


def own_bytes() -> int:
    """Return the memory that this process has for itself; the pages of files are not in it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None, "needs Linux with RssAnon in /proc/PID/status"
    return int(found[1]) * 1024
