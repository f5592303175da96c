"""Reading compressed pages, and sending while pages are compressed in the background."""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import Queue, _core
from pagequeue.page import compressed_format, zstd
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READ_GOAL_GB_PER_S = 1.0
SEND_GOAL_RATIO = 3.0
PAYLOAD_BYTES = 1024
DISTINCT = 4096
ROUNDS = 5
SENDER_PAGE_BYTES = 8 << 20
SENT_AT_ONCE = 20
PAUSE_SECONDS = 0.001


def _log_lines(rng: random.Random) -> list[bytes]:
    """Return payloads like the lines of a service's log, several in each."""
    lines = [
        json.dumps(
            {
                "time": 1_700_000_000_000 + i * 13,
                "level": rng.choice(["INFO", "INFO", "INFO", "WARN", "ERROR"]),
                "user": rng.randrange(10_000),
                "path": f"/api/v1/items/{rng.randrange(1000)}",
                "milliseconds": round(rng.expovariate(0.05), 1),
                "message": f"request served from cache in region eu-west-{rng.randrange(4)}",
            }
        ).encode()
        for i in range(DISTINCT * 8)
    ]
    return _cut(b"\n".join(lines))


def _records(rng: random.Random) -> list[bytes]:
    """Return payloads of binary sensor records, most fields of which change little."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    count = DISTINCT * PAYLOAD_BYTES // 64 + 1
    kind = [("time", "<i8"), ("id", "<u4"), ("status", "<u4"), ("values", "<f4", (12,))]
    records = np.zeros(count, kind)
    records["time"] = np.arange(count) * 1000
    records["id"] = numbers.integers(0, 50, count)
    records["values"][:, :6] = np.round(numbers.normal(20.0, 0.3, (count, 6)), 1)
    return _cut(records.tobytes())


def _cut(data: bytes) -> list[bytes]:
    size = PAYLOAD_BYTES
    return [data[at : at + size] for at in range(0, DISTINCT * size, size)]


def _read(queue: Queue) -> tuple[float, float]:
    """Return GB of payload a second, and a second of processor time."""
    started, used, total = time.perf_counter(), time.thread_time(), 0
    for batch in queue.batches():
        total += sum(map(len, batch.payloads))  # made when asked for
    gigabytes = total / 1e9
    return gigabytes / (time.perf_counter() - started), gigabytes / (time.thread_time() - used)


def _inflate(directory: Path) -> tuple[float, float]:
    """Return the same of what Zstandard alone inflates of the same blocks."""
    path = min(directory.glob("*.page"))
    data = path.read_bytes()
    head = compressed_format.parse_front(data, len(data), str(path))
    parts = [
        (data[block.offset : block.offset + block.stored_bytes], block.end - block.position)
        for block in head.blocks
    ]
    started, used = time.perf_counter(), time.thread_time()
    for stored, size in parts:
        zstd.inflate(stored, size, str(path))
    gigabytes = sum(size for _, size in parts) / 1e9
    return gigabytes / (time.perf_counter() - started), gigabytes / (time.thread_time() - used)


def _both(rates: list[tuple[float, float]]) -> str:
    wall, used = (statistics.median(side) for side in zip(*rates, strict=True))
    return f"{wall:.2f} GB/s, {used:.2f} GB/s of processor time"


def _checksum(queue: Queue) -> int:
    return _core.crc32c(
        b"".join(
            _core.crc32c(payload).to_bytes(4, "little")
            for batch in queue.batches()
            for payload in batch.payloads
        )
    )


def _compressed_read(directory: Path, payloads: list[bytes], name: str, total: int) -> Figure:
    with Queue(directory) as queue, queue.producer() as producer:
        for at in range(0, total // PAYLOAD_BYTES, 128):
            producer.send_many([payloads[(at + k) % DISTINCT] for k in range(128)])
        queue.rotate()
        sent = _checksum(queue)
        plain = [_read(queue) for _ in range(ROUNDS)]
        started = time.perf_counter()
        report = queue.compress()
        seconds = time.perf_counter() - started
        assert report.pages > 0, "no page was compressed"
        assert _checksum(queue) == sent, "what is read is not what was sent"
        rates, alone = [], []
        for _ in range(ROUNDS):
            rates.append(_read(queue))
            alone.append(_inflate(directory))
    return Figure(
        f"{name}, {PAYLOAD_BYTES} B",
        statistics.median(wall for wall, _ in rates),
        "GB/s of payload",
        READ_GOAL_GB_PER_S,
        details={
            "rounds": " ".join(f"{wall:.2f}" for wall, _ in rates),
            "compressed": _both(rates),
            "the same queue, plain": _both(plain),
            "Zstandard alone, same blocks": _both(alone),
            "bytes": f"{report.bytes_before / report.bytes_after:.1f} times fewer",
            "compressing, one thread": f"{report.bytes_before / 1e6 / seconds:.0f} MB/s",
        },
    )


def compressed_read(base: Path, *, quick: bool) -> list[Figure]:
    """Measure reading a compressed queue, in batches, in one thread."""
    rng = random.Random(1)
    total = (70 << 20) if quick else (256 << 20)
    kinds: dict[str, Callable[[random.Random], list[bytes]]] = {
        "log lines": _log_lines,
        "sensor records": _records,
    }
    return [
        _compressed_read(base / f"{number}", make(rng), name, total)
        for number, (name, make) in enumerate(kinds.items())
    ]


# --- sending meanwhile ----------------------------------------------------------------------------


def _send(directory: Path, payloads: list[bytes], count: int, after: int | None) -> list[float]:
    """Send some at a time; return the slowest of 1000, 100 and 2 sends, in us, and the pages."""
    taken = np.zeros(count, np.int64)
    with (
        Queue(directory, page_bytes=SENDER_PAGE_BYTES, compress_after=after) as queue,
        queue.producer() as producer,
    ):
        for i in range(count):
            started = time.perf_counter_ns()
            producer.send(payloads[i % DISTINCT])
            taken[i] = time.perf_counter_ns() - started
            if i % SENT_AT_ONCE == 0:
                time.sleep(PAUSE_SECONDS)
        pages = queue.info().compressed_page_count
        assert queue.tail_sequence == count, "not all was sent"
    quantiles = np.quantile(taken, [0.5, 0.99, 0.999]) / 1000
    return [*quantiles.tolist(), float(pages)]


def send_beside_compression(base: Path, *, quick: bool) -> list[Figure]:
    """Compare the slowest of 1000 sends with and without compression in the background."""
    payloads = _log_lines(random.Random(2))
    count = 20_000 if quick else 100_000
    runs: dict[int | None, list[list[float]]] = {None: [], 0: []}
    for turn in range(2 if quick else ROUNDS):
        for after, found in runs.items():
            found.append(_send(base / f"{turn}-{after}", payloads, count, after))
    without, beside = (np.median(np.array(found), axis=0) for found in runs.values())
    assert beside[3] > 0, "no page was compressed meanwhile"
    figure = Figure(
        "p99.9 of send, with compression against without",
        float(beside[2] / without[2]),
        "x",
        SEND_GOAL_RATIO,
        is_bound=True,
        details={
            "without (p50, p99, p99.9)": " ".join(f"{us:.1f}" for us in without[:3]) + " us",
            "with": " ".join(f"{us:.1f}" for us in beside[:3]) + " us",
            "pages compressed in a run": f"{beside[3]:.0f}",
        },
    )
    return [figure]
