"""What the demo's child processes do. Imports neither click nor rich: five processes start this.

A worker sends "ready", waits for "go", reports its progress, and ends with "done" and its result or
with "failed" and why. When its parent goes away it leaves without a word.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pagequeue import Queue
from pagequeue.demo import flights as demo_flights

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pagequeue import Batch

    Work = Callable[["Link", "Plan", str], dict[str, Any]]

PROGRESS_COUNT: Final = 1_000
"""Messages that a producer sends between two words about its progress."""
BATCH_COUNT: Final = 1_024
POLL_SECONDS: Final = 0.25
LATE_MINUTES: Final = 15
"""A departure is late from here on, as the United States' statistics count it."""


@dataclass(frozen=True)
class Plan:
    """What all workers of one run share; crosses to them pickled."""

    directory: str
    source: str
    log: str
    """Where the log consumer writes its event log."""
    first_sequence: int
    """Where this run's messages start; not 0 in a directory that was kept."""
    limit_count: int | None
    seconds: float | None
    """Over how long to spread the year; None is as fast as it goes."""


@dataclass(frozen=True)
class Go:
    """The start signal."""

    at: float
    """time.monotonic(), which the processes of one host share."""
    first: str
    last: str
    """Which flight times the run spans, ISO 8601."""


class Link:
    """A worker's end of the line to its parent."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def wait_for_go(self) -> Go:
        """Report readiness, and return the start signal when it arrives."""
        self._connection.send(("ready", None))
        go = self._connection.recv()
        assert isinstance(go, Go)
        return go

    def progress(self, count: int) -> None:
        """Report how many messages were sent or received."""
        self._connection.send(("progress", count))

    def end(self) -> int | None:
        """Return the sequence to stop before, if the parent has sent it."""
        if not self._connection.poll():
            return None
        sequence = self._connection.recv()
        assert isinstance(sequence, int)
        return sequence


def run(connection: Connection[Any, Any], work: Work, plan: Plan, name: str) -> None:
    """Do one worker's work and report how it ended; the child process's entry."""
    gc.disable()  # many small objects and no cycles
    try:
        result = work(Link(connection), plan, name)
        connection.send(("done", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the parent has gone
    except Exception as error:  # noqa: BLE001 - the parent tells it, whatever it is
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        sys.exit(1)


def produce(link: Link, plan: Plan, origin: str) -> dict[str, Any]:
    """Send one airport's flights in event order, one call for each."""
    flights = sorted(
        demo_flights.read_flights(Path(plan.source), plan.limit_count, origin),
        key=demo_flights.event_order,
    )
    payloads = [flight.payload() for flight in flights]
    with Queue(plan.directory, create=False) as queue, queue.producer() as producer:
        send = producer.send
        go = link.wait_for_go()
        started = time.monotonic()
        if plan.seconds is None:
            for first in range(0, len(payloads), PROGRESS_COUNT):
                for payload in payloads[first : first + PROGRESS_COUNT]:
                    send(payload)
                link.progress(min(first + PROGRESS_COUNT, len(payloads)))
        else:
            dues = _dues([flight.scheduled for flight in flights], go, plan.seconds)
            for count, (payload, due) in enumerate(zip(payloads, dues, strict=True)):
                _sleep_until(due, link, count)
                send(payload)
        ended = time.monotonic()
        link.progress(len(payloads))
        return {
            "count": len(payloads),
            "bytes": sum(map(len, payloads)),
            "started": started,
            "ended": ended,
        }


def _dues(times: list[str], go: Go, seconds: float) -> list[float]:
    """Return when each flight is to be sent, if all flight times last so many seconds."""
    first = datetime.fromisoformat(go.first)
    span = (datetime.fromisoformat(go.last) - first).total_seconds() or 1.0
    scale = seconds / span
    return [go.at + (datetime.fromisoformat(at) - first).total_seconds() * scale for at in times]


def _sleep_until(due: float, link: Link, count: int) -> None:
    """Sleep until it is time, and show life meanwhile."""
    while (rest := due - time.monotonic()) > 0:
        link.progress(count)
        time.sleep(min(rest, POLL_SECONDS))


def _follow(link: Link, plan: Plan, take: Callable[[Batch], None]) -> dict[str, Any]:
    """Pass each batch to `take`, up to the end that the parent sends."""
    count = 0
    end = None
    started = ended = 0.0
    with (
        Queue(plan.directory, create=False) as queue,
        queue.consumer(sequence=plan.first_sequence) as consumer,
    ):
        link.wait_for_go()
        while end is None or consumer.sequence < end:
            if end is None:
                end = link.end()
            try:
                batch = consumer.receive_many(BATCH_COUNT, timeout=POLL_SECONDS)
            except TimeoutError:
                continue
            started = started or time.monotonic()
            take(batch)
            ended = time.monotonic()
            count += len(batch)
            link.progress(count)
    return {"count": count, "started": started, "ended": ended}


def keep_statistics(link: Link, plan: Plan, name: str) -> dict[str, Any]:
    """Keep delay statistics by carrier: flights, departed, late ones, minutes of delay."""
    del name
    carriers: dict[str, list[int]] = {}
    decode = demo_flights.from_payload

    def take(batch: Batch) -> None:
        for payload in batch.payloads:
            flight = decode(payload)
            row = carriers.setdefault(flight.carrier, [0, 0, 0, 0])
            row[0] += 1
            delay = flight.departure_delay
            if delay is not None:
                row[1] += 1
                row[2] += delay >= LATE_MINUTES
                row[3] += delay

    return _follow(link, plan, take) | {"carriers": carriers}


def write_log(link: Link, plan: Plan, name: str) -> dict[str, Any]:
    """Write each message to the event log: sequence, timestamp, payload."""
    del name
    with Path(plan.log).open("wb") as log:

        def take(batch: Batch) -> None:
            columns = zip(
                batch.sequences.tolist(), batch.timestamps.tolist(), batch.payloads, strict=True
            )
            log.write(b"".join([b"%d %d %s\n" % column for column in columns]))

        return _follow(link, plan, take)
