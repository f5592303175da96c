"""Bugs that only a combination shows; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.columns import arrow_records
from pagequeue.group import open as group_open
from pagequeue.integrity import inspection, problem, verify
from pagequeue.maintenance import ship_target
from pagequeue.page import zstd
from pagequeue.producer import payload_file
from pagequeue.queue import lifecycle
from pagequeue.store import clock
from pagequeue.system import replaced_file
from pagequeue.util import optional, retry
from pagequeue.wait import shared_jobs
from stress.plants.plant import COMBINED, in_python
from stress.plants.rewrite import rewrite

COMBINING = (
    in_python(
        "manifest_looked_for_once",
        "two first shippers: one takes the other's files for a queue",
        "false report of damage",
        {COMBINED: 240.0},
    ),
    in_python(
        "closed_is_damaged",
        "a queue that is closed while it is verified is called damaged",
        "false report of damage",
        {COMBINED: 30.0},
    ),
    in_python(
        "imported_beside_a_fork",
        "a child is forked while another thread imports, and hangs",
        "forks",
        {COMBINED: 60.0},
    ),
    in_python(
        "clock_believed_at_once",
        "a reading that an even clock would not show is the time of messages, and of retention",
        "messages that are seconds old are removed, and those after them have its time",
        {COMBINED: 30.0},
    ),
    in_python(
        "moved_directory_unnoticed",
        "a queue whose directory was moved or removed is used as if it was there",
        "what is sent into it is never found",
        {COMBINED: 90.0},
    ),
    in_python(
        "job_fails_for_ever",
        "a message is delivered any number of times",
        "one that always fails is no dead letter",
        {COMBINED: 30.0},
    ),
    in_python(
        "closed_file_says_nothing",
        "closing a payload's file whose producer was closed by a signal handler raises nothing",
        "a message that was not sent is taken for sent",
        {COMBINED: 60.0},
    ),
)


def manifest_looked_for_once() -> None:
    """A shipper ignores manifests that another one began meanwhile."""
    rewrite(
        ship_target.Target,
        "__init__",
        ("its files.\n            manifest = read_manifest(self.folder, prefix)\n", "its files.\n"),
    )


def closed_is_damaged() -> None:
    """An error of the handle is noted as one of the files, and verifying ends with a report."""
    rewrite(problem, "problem_of", (", errors.ClosedError, errors.ForkedError", ""))
    for room in (inspection, verify):
        room.problem_of = problem.problem_of  # type: ignore[attr-defined]
    rewrite(lifecycle.OpenQueue, "inspect", ("    store.folder.descriptor.check()\n", ""))


def clock_believed_at_once() -> None:
    """As any clock that an operator sets."""
    rewrite(
        clock.QueueClock,
        "_look",
        ("return self._doubt(reading, now, expected)", "return self._believe(reading, now)"),
    )


def moved_directory_unnoticed() -> None:
    """Only names inside of the directory are compared."""
    rewrite(
        replaced_file.IdentityGuard, "_search", ("if self._directory is not None:", "if False:")
    )


def job_fails_for_ever() -> None:
    """The limit of deliveries is read, and not used."""
    rewrite(
        retry,
        "check_retry",
        ("return Retry(max_deliveries, first, most)", "return Retry(None, first, most)"),
    )
    group_open.check_retry = retry.check_retry  # type: ignore[attr-defined]


def closed_file_says_nothing() -> None:
    """The file is discarded, and closing it again has no effect."""
    rewrite(payload_file.PayloadWriter, "abandon", ("self._is_abandoned = True\n", "pass\n"))


def imported_beside_a_fork() -> None:
    """A fork does not wait for an import."""
    rewrite(optional, "load", ("    with _loading:\n        return", "    return"))
    for room in (shared_jobs, arrow_records, zstd):
        room.load = optional.load  # type: ignore[attr-defined]
