"""Bugs of task stores; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.tasks import claim, machine, plan
from stress.plants.plant import TASK, in_python
from stress.plants.rewrite import rewrite

TASKING = (
    in_python(
        "claim_without_a_version",
        "a claim leaves the task's version as it was",
        "a worker whose claim was taken over commits",
        {TASK: 20.0},
    ),
    in_python(
        "dependency_not_compared",
        "a transaction ignores the versions of its dependencies",
        "decisions on what has changed",
        {TASK: 20.0},
    ),
    in_python(
        "successor_apart",
        "a task is finished in one entry and its successor inserted in another",
        "a kill in between loses the job",
        {TASK: 60.0},
    ),
    in_python(
        "snapshot_forgets_deliveries",
        "a state that is loaded counts deliveries from 0",
        "processes with different states",
        {TASK: 20.0},
    ),
    in_python(
        "lease_by_the_clock",
        "leases and delays end at a time of the clock, which is set meanwhile",
        "tasks of dead workers wait for hours",
        {TASK: 150.0},
    ),
    in_python(
        "dead_worker_without_backoff",
        "a task whose lease ended can be claimed at once",
        "a task that kills its workers is tried as fast as they start",
        {TASK: 20.0},
    ),
)


def claim_without_a_version() -> None:
    """Neither in the state nor in what the worker gets."""
    rewrite(machine, "_claim", ("    record.version = version + 1\n", ""))
    rewrite(plan, "_claimed", ("record.version + 1", "record.version"))
    machine._EFFECTS[machine.CLAIM] = machine._claim


def dependency_not_compared() -> None:
    """Neither before the entry nor when it is applied."""
    rewrite(plan, "_check_versions", ("wanted.depend, ", ""))
    rewrite(
        machine,
        "_current",
        ("record is None or record.version != version", "record is None"),
    )


def successor_apart() -> None:
    """First the one, then the other, after a pause in which a kill comes often enough."""
    rewrite(
        claim.TaskClaim,
        "ack",
        (
            "_transaction(insert, change, delete, depend, [self.task.ref])",
            "_transaction((), change, delete, depend, [self.task.ref])",
        ),
        (
            "    return modified\n",
            ("    __import__('time').sleep(0.002)\n    return self._store.modify(insert=insert)\n"),
        ),
    )


def lease_by_the_clock() -> None:
    """As it was: what is due depends on what the clock shows."""
    rewrite(machine, "_delayed", ("return entry[1] + delay if", "return None if"))


def dead_worker_without_backoff() -> None:
    """Only what is given back waits."""
    rewrite(plan, "_backoff_left", ("return max(0, record.due + delay - now[1])", "return 0"))


def snapshot_forgets_deliveries() -> None:
    """As a `load` that misses a field."""
    rewrite(
        machine,
        "_record",
        ("return Record(*fields)", "return Record(*fields[:6], 0, *fields[7:])"),
    )
