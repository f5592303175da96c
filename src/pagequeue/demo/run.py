"""One run of the demo: starts five workers, monitors them, replays and checks. Prints no output.

Every failure raises DemoError after all workers have ended. The death of a worker closes its pipe,
which is noticed at once; a worker that hangs is noticed after a time without progress.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from dataclasses import asdict, dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagequeue import Queue
from pagequeue.demo import check, workers
from pagequeue.demo import flights as demo_flights
from pagequeue.demo.workers import Go, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pagequeue.demo.flights import Flight
    from pagequeue.demo.workers import Work

STALL_SECONDS: Final = 30.0
EXIT_SECONDS: Final = 5.0
LOOK_UP_COUNT: Final = 1_000
"""Rows to read between two checks for dead workers."""
LOG_NAME: Final = "demo-events.log"
STATISTICS: Final = "statistics"
LOG: Final = "event log"


class Display(Protocol):
    """Progress of a run."""

    def phase(self, text: str) -> None:
        """Tell what is being done now."""

    def totals(self, counts: dict[str, int]) -> None:
        """Tell how many messages each worker will see, by its name."""

    def count(self, name: str, count: int) -> None:
        """Tell how many messages a worker has seen; comes after `totals`."""


class DemoError(Exception):
    """The demo found faults or failed; `faults` has a line for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True)
class Rate:
    """How fast some messages went."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Report:
    """The result of a run without faults."""

    flights: int
    airports: dict[str, int]
    payload_bytes: int
    sent: Rate
    received: dict[str, Rate]
    replayed: Rate
    replayed_since: int
    carriers: dict[str, list[int]]
    """By code: flights, departed, late ones, minutes of delay."""
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Return it all for JSON."""
        return {"ok": True} | asdict(self)


class _Worker:
    """A child process, and our end of the line to it."""

    def __init__(self, name: str, work: Work, plan: Plan, argument: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=workers.run,
            args=(theirs, work, plan, argument),
            name=f"pagequeue demo {name}",
            daemon=True,
        )
        self.process.start()
        theirs.close()  # so that its death closes the line
        self.ready = False
        self.result: dict[str, Any] | None = None

    def handle_messages(self, display: Display) -> None:
        """Take one word from the worker; DemoError if it has failed or died."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(EXIT_SECONDS)
            raise DemoError(
                [f"{self.name} died with exit code {self.process.exitcode} before it was done"]
            ) from None
        if kind == "ready":
            self.ready = True
        elif kind == "progress":
            display.count(self.name, value)
        elif kind == "done":
            self.result = value
        else:
            raise DemoError([f"{self.name} failed: {value}"])

    def say(self, value: object) -> None:
        """Send the worker a word; DemoError if it has died."""
        try:
            self.connection.send(value)
        except OSError:
            self.process.join(EXIT_SECONDS)
            raise DemoError(
                [f"{self.name} died with exit code {self.process.exitcode} before it was done"]
            ) from None


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM until the block ends: a worker that is starting reads from us.

    Blocked, so that the workers inherit that: Ctrl-C goes to the whole group, and they need not
    tell of it. And noted by handlers, because another thread of ours can be given the signal.
    """
    ending = (signal.SIGINT, signal.SIGTERM)
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda n, _: received.append(n)) for number in ending}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(signal.Signals(received[0]))


class Crew:
    """The workers of one run.

    Args:
        plan: what they are told.
        display: is told each worker's count.
        producer: what each producer does.
    """

    def __init__(self, plan: Plan, display: Display, producer: Work) -> None:
        self._display = display
        self._workers: list[_Worker] = []
        with _signals_later():
            try:
                self.consumers: list[_Worker] = [
                    self._start(STATISTICS, workers.keep_statistics, plan, ""),
                    self._start(LOG, workers.write_log, plan, ""),
                ]
                self.producers: list[_Worker] = [
                    self._start(origin, producer, plan, origin) for origin in demo_flights.ORIGINS
                ]
            except BaseException:
                self.kill()
                raise

    def _start(self, name: str, work: Work, plan: Plan, argument: str) -> _Worker:
        worker = _Worker(name, work, plan, argument)
        self._workers.append(worker)
        return worker

    def watch(self, waited_for: Iterable[_Worker], reached: Callable[[_Worker], bool]) -> None:
        """Hear all workers until those waited for have come so far."""
        missing = [worker for worker in waited_for if not reached(worker)]
        while missing:
            if not self.handle_messages(STALL_SECONDS):
                names = ", ".join(worker.name for worker in missing)
                raise DemoError([f"no progress for {STALL_SECONDS:g} s, waiting for {names}"])
            missing = [worker for worker in missing if not reached(worker)]

    def handle_messages(self, timeout: float) -> bool:
        """Handle messages of workers, waiting `timeout` for the first; return whether any came."""
        lines = {worker.connection: worker for worker in self._workers if worker.result is None}
        ready = connection.wait(list(lines), timeout)
        for line in ready:
            assert isinstance(line, connection.Connection)
            lines[line].handle_messages(self._display)
        return bool(ready)

    def kill(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(EXIT_SECONDS)
            worker.connection.close()

    def finish(self) -> None:
        """Wait for the workers' ends, which must be good ones."""
        for worker in self._workers:
            worker.process.join(EXIT_SECONDS)
            if worker.process.exitcode != 0:
                raise DemoError([f"{worker.name} ended with exit code {worker.process.exitcode}"])


@contextlib.contextmanager
def _crew(plan: Plan, display: Display, producer: Work) -> Iterator[Crew]:
    crew = Crew(plan, display, producer)
    try:
        yield crew
        crew.finish()
    finally:
        crew.kill()


def run(
    directory: str,
    source: Path,
    *,
    limit_count: int | None = None,
    seconds: float | None = None,
    display: Display,
    producer: Work = workers.produce,
) -> Report:
    """Send the flights through a queue in three processes, follow them in two, and check all.

    Args:
        directory: the queue's directory; may hold messages of earlier runs.
        source: the zipped CSV file of the flights.
        limit_count: how many rows of the source; None means all.
        seconds: over how long to spread the flights; None is as fast as it goes.
        display: is told how it goes.
        producer: what each producer does.

    Raises:
        DemoError: a flight is missing, doubled, changed or out of order, the statistics or the
            replay differ from the source, or a worker died.
    """
    began = time.monotonic()
    display.phase("reading the source, starting five processes")
    log = Path(directory) / LOG_NAME
    with Queue(directory) as queue:
        first_sequence = queue.tail_sequence
        plan = Plan(directory, str(source), str(log), first_sequence, limit_count, seconds)
        with _crew(plan, display, producer) as crew:
            flights = []
            airports = dict.fromkeys(demo_flights.ORIGINS, 0)
            for count, flight in enumerate(demo_flights.read_flights(source, limit_count)):
                if count % LOOK_UP_COUNT == 0:
                    crew.handle_messages(0)  # reading can take long: notice a dead worker
                flights.append(flight)
                airports[flight.origin] += 1
            totals = airports | {STATISTICS: len(flights), LOG: len(flights)}
            display.totals(totals)
            display.phase("waiting for all to be ready")
            results = _follow_live(crew, queue, flights, display)
        display.phase("checking against the source")
        entries = [check.read_entry(line) for line in log.read_bytes().splitlines()]
        faults = check.check_log(flights, entries, first_sequence)
        faults += check.check_statistics(
            check.expected_statistics(*demo_flights.source_lines(source, limit_count)),
            results[STATISTICS]["carriers"],
        )
        since = entries[len(entries) // 2].timestamp if entries else 0
        replayed, replay_rate = _replay(queue, since)
        faults += check.check_replay(entries, replayed, since)
        faults += [
            f"damaged: {problem.file}: {problem.reason}" for problem in queue.verify().problems
        ]
    if faults:
        raise DemoError(faults)
    return _report(results, airports, replay_rate, since, time.monotonic() - began)


def _follow_live(
    crew: Crew, queue: Queue, flights: Sequence[Flight], display: Display
) -> dict[str, Any]:
    """Start all at once, and return each worker's result by its name."""
    all_workers = (*crew.producers, *crew.consumers)
    crew.watch(all_workers, lambda worker: worker.ready)
    times = [flight.scheduled for flight in flights] or ["1970-01-01T00:00Z"]
    go = Go(time.monotonic(), min(times), max(times))
    display.phase("flying")
    for worker in all_workers:
        worker.say(go)
    crew.watch(crew.producers, lambda worker: worker.result is not None)
    for worker in crew.consumers:
        worker.say(queue.tail_sequence)
    crew.watch(crew.consumers, lambda worker: worker.result is not None)
    return {worker.name: worker.result for worker in all_workers}


def _replay(queue: Queue, since: int) -> tuple[list[check.Entry], Rate]:
    """Return all messages since a time, message by message, and how fast they came."""
    started = time.monotonic()
    messages = list(queue.replay(since=since))
    rate = Rate(len(messages), time.monotonic() - started)
    return [
        check.Entry(message.sequence, message.timestamp, message.payload) for message in messages
    ], rate


def _report(
    results: dict[str, Any], airports: dict[str, int], replayed: Rate, since: int, seconds: float
) -> Report:
    sent = [results[origin] for origin in airports]
    first = min(result["started"] for result in sent)
    last = max(result["ended"] for result in sent)
    count = sum(result["count"] for result in sent)
    return Report(
        flights=count,
        airports=airports,
        payload_bytes=sum(result["bytes"] for result in sent),
        sent=Rate(count, last - first),
        received={
            name: Rate(results[name]["count"], results[name]["ended"] - results[name]["started"])
            for name in (STATISTICS, LOG)
        },
        replayed=replayed,
        replayed_since=since,
        carriers=results[STATISTICS]["carriers"],
        seconds=seconds,
    )
