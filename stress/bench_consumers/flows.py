"""Waiting on an event loop, and elements through a flow, compared with the alternatives."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue as standard
import socket
import statistics
import struct
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pagequeue import Queue
from stress.bench.turns import in_turns, medians
from stress.bench_consumers.case import Figure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from pagequeue import Consumer, Message

    Receive = Callable[[Consumer], Awaitable[Message]]

ROUNDS = 5
ROUND_TRIP_GOAL = 2.0  # two threads are woken instead of one
FLOW_GOAL = 1.0
STAMP = struct.Struct("<q")
PAUSE_SECONDS = 0.0004
"""The other side works so long before it answers, so that this one is really asleep."""
ELEMENT = bytes(100)
Times = tuple[float, float]


def _answer(receive: Callable[[], bytes], send: Callable[[bytes], object], count: int) -> None:
    """Answer so many times with the time of the answer; every second time after some work."""
    for number in range(count):
        assert receive()
        if number % 2:
            until = time.monotonic() + PAUSE_SECONDS
            while time.monotonic() < until:
                pass
        send(STAMP.pack(time.monotonic_ns()))


def _answer_by_queue(base: str, count: int) -> None:
    with (
        Queue(base, prefix="there") as there,
        Queue(base, prefix="back") as back,
        there.consumer() as consumer,
        back.producer() as producer,
    ):
        _answer(lambda: consumer.receive(60).payload, producer.send, count)


def _answer_by_socket(path: str, count: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.connect(path)
        _answer(lambda: there.recv(64), there.sendall, count)


@contextmanager
def _other(target: Callable[[str, int], None], *arguments: object) -> Iterator[None]:
    """Run the other side in a separate process."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    try:
        yield
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


class Trips:
    """Times of round trips, and of return trips that woke a sleeping waiter; in microseconds."""

    def __init__(self) -> None:
        self.trips: list[float] = []
        self.wakes: list[float] = []

    def add(self, number: int, sent_ns: int, answer: bytes) -> None:
        """Note one trip."""
        now = time.monotonic_ns()
        if number % 2:
            self.wakes.append((now - STAMP.unpack(answer)[0]) / 1000)
        else:
            self.trips.append((now - sent_ns) / 1000)

    def medians(self) -> Times:
        """Return both medians."""
        return statistics.median(self.trips), statistics.median(self.wakes)


def _queues(base: Path) -> tuple[Queue, Queue]:
    return (
        Queue(base, prefix="there", page_bytes=1 << 20),
        Queue(base, prefix="back", page_bytes=1 << 20),
    )


def _by_coroutine(base: Path, count: int, receive: Receive) -> Times:
    """Measure coroutines that wait for a queue in a given way."""

    async def main() -> Times:
        trips = Trips()
        there, back = _queues(base)
        with (
            there,
            back,
            back.consumer() as consumer,
            there.producer() as producer,
            _other(_answer_by_queue, str(base), count),
        ):
            for number in range(count):
                sent = time.monotonic_ns()
                producer.send(b"?")
                message = await receive(consumer)
                trips.add(number, sent, message.payload)
        return trips.medians()

    return asyncio.run(main())


def _by_queue(base: Path, count: int) -> Times:
    """Measure coroutines that wait as the library offers it."""
    return _by_coroutine(base, count, lambda consumer: consumer.receive_async(60))


def _by_thread(base: Path, count: int) -> Times:
    """Measure a coroutine that gives each wait to a thread, which is what there was before."""
    return _by_coroutine(base, count, lambda consumer: asyncio.to_thread(consumer.receive, 60))


def _by_receive(base: Path, count: int) -> Times:
    """Measure the blocking call, which polls for a while before it sleeps."""
    trips = Trips()
    there, back = _queues(base)
    with (
        there,
        back,
        back.consumer() as consumer,
        there.producer() as producer,
        _other(_answer_by_queue, str(base), count),
    ):
        for number in range(count):
            sent = time.monotonic_ns()
            producer.send(b"?")
            trips.add(number, sent, consumer.receive(60).payload)
    return trips.medians()


def _by_socket(base: Path, count: int) -> Times:
    """Measure asyncio's own streams over a Unix socket."""

    async def main() -> Times:
        trips = Trips()
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        connected = asyncio.get_running_loop().create_future()
        path = str(base / "socket")
        server = await asyncio.start_unix_server(lambda r, w: connected.set_result((r, w)), path)
        async with server:
            with _other(_answer_by_socket, path, count):
                reader, writer = await connected
                for number in range(count):
                    sent = time.monotonic_ns()
                    writer.write(b"?")
                    trips.add(number, sent, await reader.readexactly(STAMP.size))
                writer.close()
        return trips.medians()

    return asyncio.run(main())


def asyncio_round_trip(base: Path, *, quick: bool) -> list[Figure]:
    """A message to another process and back, waited for by a coroutine."""
    count = 200 if quick else 2000
    measures: dict[str, Callable[[Path, int], Times]] = {
        "queue, coroutine": _by_queue,
        "Unix socket, asyncio streams": _by_socket,
        "queue, asyncio.to_thread": _by_thread,
        "queue, blocking receive": _by_receive,
    }

    def side(name: str) -> Callable[[int], Times]:
        def measure(number: int) -> Times:
            place = base / f"{number}-{name.replace(' ', '-')}"
            place.mkdir()
            return measures[name](place, count)

        return measure

    found = in_turns({name: side(name) for name in measures}, 1 if quick else ROUNDS)
    trips = medians({name: [trip for trip, _ in times] for name, times in found.items()})
    wakes = medians({name: [wake for _, wake in times] for name, times in found.items()})
    return [
        Figure(
            f"{what} of a coroutine, over that of asyncio's Unix socket",
            figures["queue, coroutine"] / figures["Unix socket, asyncio streams"],
            "x",
            ROUND_TRIP_GOAL,
            is_bound=True,
            details={name: f"{value:.1f} us, median" for name, value in figures.items()},
        )
        for what, figures in (("round trip", trips), ("wake-up", wakes))
    ]


# --- flows ----------------------------------------------------------------------------------------


def _by_flow(base: Path, count: int) -> float:
    """Return elements a second through a flow."""
    with Queue(base, page_bytes=16 << 20) as queue:
        started = time.perf_counter()
        with queue.persist((ELEMENT for _ in range(count)), "down") as flow:
            assert sum(1 for _ in flow) == count
        return count / (time.perf_counter() - started)


def _by_threads(base: Path, count: int) -> float:
    """Return elements a second from thread to thread, through a queue that forgets them."""
    del base
    between: standard.Queue[bytes | None] = standard.Queue(10_000)

    def draw() -> None:
        for element in (ELEMENT for _ in range(count)):
            between.put(element)
        between.put(None)

    started = time.perf_counter()
    thread = threading.Thread(target=draw)
    thread.start()
    assert sum(1 for _ in iter(between.get, None)) == count
    thread.join()
    return count / (time.perf_counter() - started)


def persist_throughput(base: Path, *, quick: bool) -> list[Figure]:
    """Elements through a flow, stored and acknowledged, against `queue.Queue` and a thread."""
    count = 5_000 if quick else 200_000
    sides: dict[str, Callable[[int], float]] = {
        "flow": lambda number: _by_flow(base / str(number), count),
        "thread": lambda _: _by_threads(base, count),
    }
    rates = medians(in_turns(sides, 1 if quick else ROUNDS))
    flow, thread = rates["flow"], rates["thread"]
    return [
        Figure(
            "elements a second, over those of queue.Queue between two threads",
            flow / thread,
            "x",
            FLOW_GOAL,
            details={
                "flow": f"{flow:,.0f} elements/s, persistent, acknowledged one by one",
                "queue.Queue": f"{thread:,.0f} elements/s",
            },
        )
    ]
