"""Named consumers compared with unnamed ones, and sending while retention runs."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING

from pagequeue import Queue, Retention
from pagequeue.page import spare
from stress.bench.turns import in_turns, median_ratio, medians
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pagequeue import Producer

ROUNDS = 7
ACK_GOAL = 0.9
ACK_EVERY = 100
RECEIVED = 300_000
SMALL_BYTES = 100
SEND_GOAL_RATIO = 3.0
PACED_BYTES = 1024
PACED_PAGE_BYTES = 8 << 20
SENT_AT_ONCE = 20
PAUSE_SECONDS = 0.001
REUSE_GOAL = 1.0
PAGE_BYTES = 64 << 20
KEPT_PAGES = 6
KEPT = Retention(max_bytes=KEPT_PAGES * PAGE_BYTES)
NEVER = 1 << 60
MB, GIB = 1e6, 1 << 30


# --- named_ack_per_100 ----------------------------------------------------------------------------


def _received(queue: Queue, count: int, name: str | None) -> float:
    """Receive messages one by one; return how many a second."""
    with queue.consumer(name) as consumer:
        receive = consumer.receive
        started = time.perf_counter()
        if name is None:
            for _ in range(count):
                receive(0)
        else:
            for _ in range(count // ACK_EVERY):
                for _ in range(ACK_EVERY):
                    receive(0)
                consumer.ack()
        return count / (time.perf_counter() - started)


def named_ack_per_100(base: Path, *, quick: bool) -> list[Figure]:
    """Receive with one acknowledgement for each 100 messages, and without name or any."""
    count = 2000 if quick else RECEIVED
    with Queue(base / "q") as queue:
        with queue.producer() as producer:
            for _ in range(count // ACK_EVERY):
                producer.send_many([b"x" * SMALL_BYTES] * ACK_EVERY)
        sides: dict[str, Callable[[int], float]] = {
            "unnamed": lambda _: _received(queue, count, None),
            "named": lambda number: _received(queue, count, f"c{number}"),
        }
        rates = in_turns(sides, 1 if quick else ROUNDS)
        for info in queue.consumers():
            assert info.lag == 0, f"{info.name} acknowledged all but {info.lag}"
    details = {f"{name}, messages/s": f"{rate:,.0f}" for name, rate in medians(rates).items()}
    ratio = median_ratio(list(zip(rates["unnamed"], rates["named"], strict=True)))
    return [Figure("named / unnamed", ratio, "x", ACK_GOAL, details=details)]


# --- send_beside_retention ------------------------------------------------------------------------


def _paced(directory: Path, retention: Retention | None, seconds: float) -> tuple[list[int], int]:
    """Send at a steady pace; return each `send`'s ns, and the number of removed pages."""
    took = []
    payload, clock = b"x" * PACED_BYTES, time.perf_counter_ns
    with Queue(directory, page_bytes=PACED_PAGE_BYTES, retention=retention) as queue:
        with queue.producer() as producer:
            send = producer.send
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                for _ in range(SENT_AT_ONCE):
                    begin = clock()
                    send(payload)
                    took.append(clock() - begin)
                time.sleep(PAUSE_SECONDS)
        gone = queue._store.read_meta.head_page - 1
    shutil.rmtree(directory)
    return took, gone


def _quantile(values: list[int], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] / 1000


def send_beside_retention(base: Path, *, quick: bool) -> list[Figure]:
    """Paced sends of 1 KiB in pages of 8 MiB: all kept, and three pages kept."""
    policies = {"without": None, "with": Retention(max_bytes=3 * PACED_PAGE_BYTES)}
    slow: dict[str, list[float]] = {name: [] for name in policies}
    median: dict[str, list[float]] = {name: [] for name in policies}
    pages = 0
    for _ in range(1 if quick else ROUNDS):
        for name, policy in policies.items():
            took, gone = _paced(base / name, policy, 1.0 if quick else 5.0)
            slow[name].append(_quantile(took, 0.999))
            median[name].append(_quantile(took, 0.5))
            pages += gone
    assert pages or quick, "retention removed no page"
    details = {
        f"{name}, us": f"p50 {statistics.median(median[name]):.2f}, "
        f"p99.9 {statistics.median(slow[name]):.1f}"
        for name in policies
    }
    details["pages removed"] = str(pages)
    ratio = statistics.median(slow["with"]) / statistics.median(slow["without"])
    return [Figure("p99.9 of send, with / without", ratio, "x", SEND_GOAL_RATIO, True, details)]


# --- pages_used_again -----------------------------------------------------------------------------


def _bounded(
    directory: Path, one: Callable[[Producer], object], one_bytes: int, gib: float
) -> tuple[float, float]:
    """Send at full speed under retention; return MB/s, and seconds of processor for each GB."""
    with (
        Queue(directory, page_bytes=PAGE_BYTES, retention=KEPT) as queue,
        queue.producer() as producer,
    ):
        for _ in range(int(KEPT_PAGES * PAGE_BYTES * min(gib, 1.3)) // one_bytes):
            one(producer)
        count = int(gib * GIB) // one_bytes
        used, started = time.process_time(), time.perf_counter()
        for _ in range(count):
            one(producer)
        megabytes = count * one_bytes / MB
        figures = megabytes / (time.perf_counter() - started)
        used = (time.process_time() - used) / megabytes * 1000
    shutil.rmtree(directory)
    return figures, used


def pages_used_again(base: Path, *, quick: bool) -> list[Figure]:
    """Sending at full speed into six pages of 64 MiB: made of retired files, and created fresh."""
    small, large = [b"x" * SMALL_BYTES] * 100, b"x" * 65536
    loads: dict[str, tuple[Callable[[Producer], object], int]] = {
        "batches of 100 x 100 B": (lambda producer: producer.send_many(small), 100 * 120),
        "64 KiB": (lambda producer: producer.send(large), 65536 + 16),
    }
    least = spare.PAGE_BYTES_MIN
    figures = []
    try:
        for load, (one, one_bytes) in loads.items():
            speed: dict[str, list[float]] = {"again": [], "fresh": []}
            used: dict[str, list[float]] = {"again": [], "fresh": []}
            for _ in range(1 if quick else ROUNDS):
                for how, bytes_ in (("fresh", NEVER), ("again", least)):
                    spare.PAGE_BYTES_MIN = bytes_  # type: ignore[misc]
                    megabytes, seconds = _bounded(base / how, one, one_bytes, 0.2 if quick else 2)
                    speed[how].append(megabytes)
                    used[how].append(seconds)
            details = {
                f"{how}, MB/s": f"{statistics.median(speed[how]):,.0f}; processor, s/GB: "
                f"{statistics.median(used[how]):.2f}"
                for how in speed
            }
            ratio = statistics.median(speed["again"]) / statistics.median(speed["fresh"])
            figures.append(
                Figure(f"{load}, again / fresh", ratio, "x", REUSE_GOAL, details=details)
            )
    finally:
        spare.PAGE_BYTES_MIN = least  # type: ignore[misc]
    return figures
