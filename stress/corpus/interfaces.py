"""Operations on a damaged queue, in a child: each interface returns its results as plain JSON."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import pagequeue
from pagequeue import Queue, errors
from stress.corpus.shapes import START_NS, STEP_NS
from stress.corpus.victim import CONSUMER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stress.corpus.shapes import Place
    from stress.corpus.victim import Victim

Seen = dict[str, Any]
Row = tuple[int, int, str]
LOCK_TIMEOUT = 0.5
SENT = [bytes([65 + number]) * 1000 for number in range(5)]
"""Sent after opening: more than a page of them, so that the queue has to roll."""
CLOCK_NS = START_NS + 10**6 * STEP_NS


def digest(payload: bytes) -> str:
    """Return the digest that represents a payload in a row."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def row_of(message: pagequeue.Message | Place) -> Row:
    """Return the fields of a message that must be equal in every copy of it."""
    return message.sequence, message.timestamp, digest(message.payload)


def described(error: errors.PageQueueError) -> Seen:
    """Return an error's class, fields and text."""
    return {
        "kind": type(error).__name__,
        "path": error.path,
        "position": getattr(error, "position", None),
        "sequence": getattr(error, "sequence", None),
        "reason": getattr(error, "reason", None) or str(error),
        "text": str(error),
    }


def tried(call: Callable[[], Iterable[Any]]) -> tuple[list[Any], Seen | None]:
    """Return all that an iterable gives, and the typed error that it ended with."""
    found: list[Any] = []
    try:
        found.extend(row_of(message) for message in call())
    except errors.PageQueueError as error:
        return found, described(error)
    return found, None


def typed(interface: Callable[[Victim], Seen]) -> Callable[[Victim], Seen]:
    """Turn a typed error of an interface into a result; any other error is a crash."""

    def run(victim: Victim) -> Seen:
        try:
            return interface(victim)
        except errors.PageQueueError as error:
            return {"error": described(error)}

    return run


def opened(victim: Victim, **options: Any) -> Queue:  # noqa: ANN401 - any option of Queue
    """Open the queue."""
    return Queue(victim.directory, lock_timeout=LOCK_TIMEOUT, **options)


def problems_of(problems: Sequence[Any]) -> list[Seen]:
    """Return problems as plain data, files by their names."""
    return [
        {
            "file": os.path.basename(problem.file),
            "position": problem.position,
            "sequence": problem.sequence,
            "reason": problem.reason,
        }
        for problem in problems
    ]


# --- opening --------------------------------------------------------------------------------------


def opening(victim: Victim) -> Seen:
    """Open for writing, send, read all."""
    with opened(victim, clock=lambda: CLOCK_NS) as queue:
        seen: Seen = {"reports": list(queue.recovery.actions), "tail": queue.tail_sequence}
        with queue.producer() as producer:
            seen["sent"] = [producer.send(payload) for payload in SENT]
        seen["read"], seen["read_error"] = tried(queue.replay)
    return seen


def after_cut(victim: Victim) -> Seen:
    """Do the same with the shared state of another boot; the recovered queue must verify."""
    assert victim.cut_power()
    seen = opening(victim)
    with opened(victim) as queue:
        seen["problems"] = problems_of(queue.verify().problems)
    return seen


def reading_after_cut(victim: Victim) -> Seen:
    """Open without writing, with the shared state of another boot, and read all."""
    assert victim.cut_power()
    with opened(victim, read_only=True) as queue:
        read, error = tried(queue.replay)
        return {"read": read, "read_error": error}


def read_only(victim: Victim) -> Seen:
    """Open without writing."""
    with opened(victim, read_only=True) as queue:
        return {"tail": queue.tail_sequence, "head": queue.head_sequence}


def reading(victim: Victim) -> Seen:
    """Read through in all ways, without writing."""
    original = victim.original
    with opened(victim, read_only=True) as queue:
        seen: Seen = {}
        seen["read"], seen["read_error"] = tried(queue.replay)
        seen["since"] = []
        for place in original.places[:: max(1, len(original.places) // 5)]:
            since = place.timestamp
            rows, error = tried(lambda since=since: queue.replay(since=since))  # type: ignore[misc]
            seen["since"].append([place.sequence, rows, error])
        seen["from_page"] = {}
        begins = {place.page: place.sequence for place in reversed(original.places)}
        for number, first in sorted(begins.items()):
            rows, error = tried(lambda first=first: queue.replay(sequence=first))  # type: ignore[misc]
            seen["from_page"][str(number)] = [rows, error]
        seen["last"], seen["last_error"] = tried(lambda: queue.last(3))
        return seen


def named(victim: Victim) -> Seen:
    """Continue as a named consumer, in two lives."""
    with opened(victim, clock=lambda: CLOCK_NS) as queue:
        with queue.consumer(CONSUMER) as consumer:
            seen: Seen = {"start": consumer.sequence}
            seen["read"] = [row_of(message) for message in iter(consumer.poll, None)]
            consumer.ack()
        with queue.consumer(CONSUMER) as consumer:
            seen["start_again"] = consumer.sequence
    return seen


# --- verify, repair, salvage ----------------------------------------------------------------------


def verify(victim: Victim) -> Seen:
    """Verify the directory."""
    report = pagequeue.verify_queue(victim.directory)
    return {"problems": problems_of(report.problems), "ok": report.ok}


def salvage_into(victim: Victim, name: str) -> Seen:
    """Salvage into a new directory, and read what is there."""
    target = victim.directory.parent / name
    report = pagequeue.salvage_queue(victim.directory, target)
    with Queue(target) as queue:
        rows, error = tried(queue.replay)
        problems = problems_of(queue.verify().problems)
    return {
        "copied": rows,
        "error_in_target": error,
        "problems_in_target": problems,
        "count": report.messages_copied,
        "runs": [[run.first, run.last, run.target_first] for run in report.runs],
        "lost": [[loss.first_sequence, loss.last_sequence] for loss in report.lost],
        "lost_files": [os.path.basename(loss.file) for loss in report.lost],
        "conflicts": [
            {"file": os.path.basename(again.file), "sequence": sequence}
            for again in report.conflicts
            for sequence in range(again.first_sequence, again.last_sequence + 1)
        ],
        "ok": report.ok,
    }


def salvage(victim: Victim) -> Seen:
    """Salvage the queue as it is."""
    return salvage_into(victim, "salvaged")


def repair(victim: Victim) -> Seen:
    """Repair; then verify, salvage, open and read the result."""
    report = pagequeue.repair_queue(victim.directory, lock_timeout=LOCK_TIMEOUT)
    seen: Seen = {
        "reports": list(report.actions),
        "remaining": problems_of(report.remaining),
        "ok": report.ok,
        "after": verify(victim),
        "salvaged": salvage(victim),
    }
    if report.ok:
        seen["opened"] = typed(opening)(victim)
    return seen


RUN = {
    interface.__name__: typed(interface)
    for interface in (
        opening,
        after_cut,
        reading_after_cut,
        read_only,
        reading,
        verify,
        repair,
        salvage,
        named,
    )
}
WRITES_NOTHING = frozenset({"read_only", "reading", "verify", "salvage"})
NEEDS = {"verify": "verify_queue", "repair": "repair_queue", "salvage": "salvage_queue"}
"""Names of the package that an interface needs."""
