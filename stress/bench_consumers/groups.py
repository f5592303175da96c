"""Claiming and acknowledging: against queues on SQLite, and by two workers against one."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING

from pagequeue import Queue
from stress.bench.turns import in_turns, medians
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

PAYLOAD = b"x" * 100
OURS, THEIRS, DURABLE = 20_000, 400, 200
ROUNDS = 7
SHARED, SHARED_ROUNDS = 200_000, 15
SQLITE_ACK_GOAL, LITEQUEUE_GOAL, WORKERS_GOAL = 20.0, 10.0, 1.0


def _ours(base: Path, number: int, count: int, *, durable: bool = False) -> float:
    """Return seconds for each message: claim and acknowledge."""
    with Queue(base / f"ours-{number}-{durable}", page_bytes=4 << 20) as queue:
        with queue.producer() as producer:
            for _ in range(count):
                producer.send(PAYLOAD)
        group = queue.group("work")
        begin = time.perf_counter()
        for _ in range(count):
            group.claim(timeout=0).ack(durable)
        seconds = time.perf_counter() - begin
        assert group.lag == 0
    return seconds / count


def _sqlite_ack(base: Path, number: int, count: int) -> float:
    """Return the same of persist-queue's SQLiteAckQueue, as it comes."""
    from persistqueue import SQLiteAckQueue  # noqa: PLC0415  only this case needs it

    queue = SQLiteAckQueue(str(base / f"ack-{number}"), auto_commit=True)
    for _ in range(count):
        queue.put(PAYLOAD)
    begin = time.perf_counter()
    for _ in range(count):
        queue.ack(queue.get())
    seconds = time.perf_counter() - begin
    assert queue.size == 0
    queue.close()
    return seconds / count


def _litequeue(base: Path, number: int, count: int) -> float:
    """Return the same of litequeue, as it comes."""
    from litequeue import (  # type: ignore[import-untyped]  # noqa: PLC0415
        LiteQueue,
    )

    queue = LiteQueue(str(base / f"lite-{number}"))
    for _ in range(count):
        queue.put(PAYLOAD.decode())
    begin = time.perf_counter()
    for _ in range(count):
        message = queue.pop()
        assert message is not None
        queue.done(message.message_id)
    seconds = time.perf_counter() - begin
    assert queue.empty()
    queue.close()
    return seconds / count


def claim_ack(base: Path, *, quick: bool) -> list[Figure]:
    """One process: claim and acknowledge one message after the other."""
    share = 20 if quick else 1
    sides: dict[str, Callable[[int], float]] = {
        "pagequeue": lambda n: _ours(base, n, OURS // share),
        "SQLiteAckQueue": lambda n: _sqlite_ack(base, n, THEIRS // share),
        "litequeue": lambda n: _litequeue(base, n, THEIRS // share),
        "pagequeue, ack(durable=True)": lambda n: _ours(base, n, DURABLE // share, durable=True),
    }
    taken = medians(in_turns(sides, 2 if quick else ROUNDS))
    details = {name: f"{value * 1e6:.2f} us a message" for name, value in taken.items()}
    ours = taken["pagequeue"]
    return [
        Figure(
            "times persist-queue's SQLiteAckQueue",
            taken["SQLiteAckQueue"] / ours,
            "x",
            SQLITE_ACK_GOAL,
            details=details,
        ),
        Figure("times litequeue", taken["litequeue"] / ours, "x", LITEQUEUE_GOAL),
    ]


def _work(path: str, rounds: list[tuple[str, int]], place: int, meet: Barrier) -> None:
    """Claim and acknowledge until no message is left, in each round that wants this worker."""
    with Queue(path) as queue:
        for name, workers in rounds:
            group = queue.group(name, capacity=1024)
            meet.wait()
            while place < workers:
                try:
                    group.claim(timeout=0).ack()
                except TimeoutError:
                    if group.lag == 0:
                        break
            meet.wait()
            group.close()


def two_workers(base: Path, *, quick: bool) -> list[Figure]:
    """Two processes that share a queue, against one that uses it exclusively, in turns."""
    count = SHARED // 20 if quick else SHARED
    rounds = [
        (f"w{workers}-{number}", workers)
        for number in range(2 if quick else SHARED_ROUNDS)
        for workers in (1, 2)
    ]
    path = str(base / "shared")
    with Queue(path) as queue:
        with queue.producer() as producer:
            for _ in range(count):
                producer.send(PAYLOAD)
        context = multiprocessing.get_context("spawn")
        meet = context.Barrier(3)
        started = [
            context.Process(target=_work, args=(path, rounds, place, meet)) for place in (0, 1)
        ]
        for process in started:
            process.start()
        times: dict[int, list[float]] = {1: [], 2: []}
        for name, workers in rounds:
            meet.wait()
            begin = time.perf_counter()
            meet.wait()
            times[workers].append(time.perf_counter() - begin)
            info = next(one for one in queue.consumers() if one.name == name)
            assert info.next_sequence == count, f"{info.next_sequence} of {count} were done"
        for process in started:
            process.join()
    one, two = (statistics.median(times[workers]) for workers in (1, 2))
    details = {
        "one worker": f"{one / count * 1e9:.0f} ns a message",
        "two workers": f"{two / count * 1e9:.0f} ns a message",
    }
    return [Figure("two workers against one", one / two, "x", WORKERS_GOAL, details=details)]
