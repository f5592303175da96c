"""The drop-in for multiprocessing.Queue against multiprocessing.Queue: one puts, one gets.

Both sides have the same loops in two processes, and every object is checked. The clock runs from
the first put to the last get, after both processes are there.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
import statistics
import time
from typing import TYPE_CHECKING, Any

from pagequeue import multiprocessing as drop_in
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnContext
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

GOAL = 5.0
COUNT = 200_000
THEIRS_COUNT = 40_000
ROUNDS = 7
BOUND = 1000
DISTINCT = 1009
OBJECTS: dict[str, Callable[[int], object]] = {
    "an int": lambda number: number,
    "a tuple": lambda number: (number, "name", 2.5),
    "a dict": lambda number: {"id": number, "name": "abc", "values": [1, 2, 3]},
}


def _objects(kind: str, count: int) -> list[object]:
    """Return what is sent: made before the clock runs."""
    made = [OBJECTS[kind](number) for number in range(DISTINCT)]
    return (made * (count // DISTINCT + 1))[:count]


def _put(queue: Any, kind: str, count: int, begin: Barrier, answer: Any) -> None:  # noqa: ANN401
    objects = _objects(kind, count)
    queue.put(None)  # opened, and its thread started
    begin.wait()
    put, used = queue.put, time.process_time()
    started = time.monotonic()
    for obj in objects:
        put(obj)
    if isinstance(queue, multiprocessing.queues.Queue):
        queue.close()
        queue.join_thread()  # its feeder has sent all of it
    answer.send((started, time.process_time() - used))


def _get(
    queue: Any,  # noqa: ANN401
    kind: str,
    count: int,
    begin: Barrier,
    answer: Any,  # noqa: ANN401
    is_joinable: bool,
) -> None:
    objects, get = _objects(kind, count), queue.get
    assert get() is None
    begin.wait()
    used = time.process_time()
    if is_joinable:
        queue.task_done()
        done = queue.task_done
        for expected in objects:
            assert get() == expected
            done()
    else:
        for expected in objects:
            assert get() == expected
    answer.send((time.monotonic(), time.process_time() - used))


def _rates(
    context: SpawnContext,
    queue: Any,  # noqa: ANN401
    kind: str,
    count: int,
) -> tuple[float, float]:
    """Return objects per second through a queue, by the clock and by the busier side's CPU time."""
    is_joinable = hasattr(queue, "task_done")
    begin = context.Barrier(2)
    answers = [context.Pipe(duplex=False) for _ in range(2)]
    started = [
        context.Process(target=_put, args=(queue, kind, count, begin, answers[0][1])),
        context.Process(target=_get, args=(queue, kind, count, begin, answers[1][1], is_joinable)),
    ]
    for process in started:
        process.start()
    last, getting = answers[1][0].recv()
    first, putting = answers[0][0].recv()
    for process in started:
        process.join()
        assert process.exitcode == 0
    queue.close()
    return count / (last - first), count / max(putting, getting)


def drop_in_queue(base: Path, *, quick: bool) -> list[Figure]:
    """Objects per second, one producer and one consumer, in turns; medians."""
    context = multiprocessing.get_context("spawn")
    share = 40 if quick else 1
    figures = []
    number = 0
    for kind in OBJECTS:
        rates: dict[str, list[tuple[float, float]]] = {}
        for _ in range(1 if quick else ROUNDS):
            number += 1
            theirs = THEIRS_COUNT // share
            sides: dict[str, tuple[Any, int]] = {
                "multiprocessing.Queue": (context.Queue(), theirs),
                "Queue": (drop_in.Queue(), COUNT // share),
            }
            if kind == "an int":
                sides |= {
                    "multiprocessing.JoinableQueue": (context.JoinableQueue(), theirs),
                    "JoinableQueue": (drop_in.JoinableQueue(), COUNT // share),
                    "Queue with a directory": (
                        drop_in.Queue(directory=base / str(number)),
                        COUNT // share,
                    ),
                    f"Queue, maxsize={BOUND}": (drop_in.Queue(BOUND), COUNT // share),
                }
            for name, (queue, count) in sides.items():
                rates.setdefault(name, []).append(_rates(context, queue, kind, count))
        clock, cpu = (
            {name: statistics.median(rate[i] for rate in both) for name, both in rates.items()}
            for i in range(2)
        )
        details = {
            name: f"{value:,.0f} a second, {cpu[name]:,.0f} by CPU time of the busier side"
            for name, value in clock.items()
        }
        for name in ("Queue", "JoinableQueue"):
            peer = f"multiprocessing.{name}"
            if name in clock:
                details["by CPU time"] = f"{cpu[name] / cpu[peer]:.2f} x"
                ratio = clock[name] / clock[peer]
                figures.append(Figure(f"times {peer}, {kind}", ratio, "x", GOAL, details=details))
                details = {}
    return figures
