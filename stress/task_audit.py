"""What the entries of a task store must be, judged from all of them and from what workers noted.

The judge reads entries by their documented form (`pagequeue/tasks/machine.py`) and has a dict of
versions; the library's own machine only makes the states whose digests are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from stress.history import messages_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pagequeue.tasks.state import State

INSERT, CLAIM, FINISH, DELETE, CHANGE, DEPEND, NACK, EXTEND, BURY, CODEC, BOOT, UNDO = range(12)
NO_TASK = {INSERT, CODEC, BOOT}
TOLD_DONE, TOLD_REFUSED, STATE = range(3)
STEPS = 3
VIOLATIONS_MAX = 5
DELIVERIES_MAX = 4
BACKOFF = (0.002, 0.03)
"""Of all workers; up to a quarter of a delay is left out."""
NS_PER_S = 10**9


def digest(state: State) -> int:
    """Return a digest of a state: of all that a snapshot would have."""
    from pagequeue.tasks.machine import TaskMachine  # noqa: PLC0415  the core is chosen by now

    found = hashlib.blake2b(digest_size=8)
    for chunk in TaskMachine().dump(state):
        found.update(chunk)
    return int.from_bytes(found.digest(), "little", signed=True)


class Note(NamedTuple):
    """What a worker was told of a version of a task, or which state it had before an entry.

    Attributes:
        kind: of the note.
        number: of the task, or of the entry.
        version: of the task, or the digest of the state.
    """

    kind: int
    number: int
    version: int


def recorded(path: Path) -> Iterator[tuple[int, int, Any]]:
    """Yield sequence, timestamp and entry of all that the recorder wrote."""
    import msgspec.msgpack  # noqa: PLC0415  an extra

    for sequence, timestamp, payload in messages_in(path):
        version, entry = msgspec.msgpack.decode(payload)
        assert version == 1
        yield sequence, timestamp, entry


class Audit:
    """One judgement.

    Attributes:
        violations: found so far.
        counts: of operations.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.versions: dict[int, int] = {}
        self.values: dict[int, Any] = {}
        self.finished: dict[tuple[int, int], int] = {}
        self.steps: Counter[tuple[str, int]] = Counter()
        self.deleted: set[str] = set()
        self.deliveries: Counter[int] = Counter()
        self.free_at: dict[int, float] = {}
        self.next_id = 1

    def say(self, text: str) -> None:
        """Note a violation."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)

    def take(self, sequence: int, entry: Any) -> None:  # noqa: ANN401 - judged here
        """Judge an entry."""
        _, _, *operations = entry
        before = dict.fromkeys(one[1] for one in operations if one[0] not in NO_TASK)
        for number in before:
            before[number] = self.versions.get(number)
        for operation in operations:
            self.operation(sequence, operation, before)
            self.failed(sequence, entry, operation)

    def operation(self, sequence: int, operation: Any, before: dict[int, int | None]) -> None:  # noqa: ANN401 - the same
        """Judge one operation of an entry."""
        code = operation[0]
        if code in {CODEC, BOOT}:
            return
        if code == INSERT:
            self.versions[self.next_id] = 1
            value = self.values[self.next_id] = json.loads(operation[2])
            self.counts["large jobs"] += "data" in value
            self.next_id += 1
            return
        number, version = operation[1:3]
        if before[number] != version:
            what = "depends on" if code == DEPEND else "commits"
            self.say(
                f"entry {sequence} {what} version {version} of task {number}, which has "
                f"{before[number]}"
            )
        if code == DEPEND:
            self.counts["dependencies"] += 1
            return
        if code in {FINISH, DELETE}:
            self.versions.pop(number, None)
            value = self.values.pop(number)
            if code == FINISH:
                self.finished[number, version] = sequence
                if value["job"] is not None:
                    self.steps[value["job"], value["step"]] += 1
            else:
                self.deleted.add(value["job"])
            return
        self.counts["claims"] += code == CLAIM
        self.versions[number] = version + 1
        if code == CHANGE and operation[4] is not None:
            self.values[number] = json.loads(operation[4])

    def failed(self, sequence: int, entry: Any, operation: Any) -> None:  # noqa: ANN401 - the same
        """Judge whether a task that failed waits long enough, and is claimed often enough."""
        code, number = operation[:2]
        if code == CLAIM:
            if entry[1] < self.free_at.get(number, 0):
                self.say(f"entry {sequence} claims task {number} before it has waited")
            self.deliveries[number] += 1
            if self.deliveries[number] > DELIVERIES_MAX:
                self.say(f"entry {sequence} claims task {number} more than {DELIVERIES_MAX} times")
        elif code == BURY:
            self.counts["dead"] += 1
            times = self.deliveries[number]
            if times < DELIVERIES_MAX:
                self.say(f"entry {sequence} makes task {number} dead after {times} deliveries")
        self.note_wait(entry, operation)

    def note_wait(self, entry: Any, operation: Any) -> None:  # noqa: ANN401 - the same
        """Note from when a task can be claimed, by the even clock, and its deliveries."""
        code, number = operation[:2]
        if code == BOOT:
            self.free_at.clear()
        elif code in {CLAIM, EXTEND}:
            waits = min(BACKOFF[0] * 2 ** (self.deliveries[number] - 1), BACKOFF[1]) * NS_PER_S
            self.free_at[number] = entry[1] + operation[3] - entry[0] + 0.74 * waits
        elif code == NACK:
            self.free_at[number] = entry[1] + max(0, operation[3] - entry[0])
        elif code == UNDO:
            self.free_at.pop(number, None)
            self.deliveries[number] -= 1
        elif code == CHANGE and operation[5] is not None:
            self.free_at.pop(number, None)
            self.deliveries[number] = 0

    def jobs(self) -> None:
        """Judge the workflows: each step of each job once."""
        for job in {name for name, _ in self.steps}:
            counts = [self.steps[job, step] for step in range(STEPS)]
            if max(counts) > 1:
                self.say(f"job {job} has its steps {counts} times")
            if job not in self.deleted and min(counts) == 0:
                self.say(f"job {job} is not finished: its steps were done {counts} times")
        self.counts["jobs done"] = sum(count for (_, s), count in self.steps.items() if s == 2)

    def notes(self, notes: Iterable[Note], states: dict[int, int]) -> None:
        """Judge what workers noted against the entries, and their states against a replay."""
        told: set[tuple[int, int]] = set()
        for kind, number, version in notes:
            ref = (number, version)
            if kind == TOLD_DONE:
                if ref in told:
                    self.say(f"two workers were told that they finished version {ref}")
                told.add(ref)
                if ref not in self.finished:
                    self.say(f"a worker was told that it finished {ref}, and no entry does")
            elif kind == TOLD_REFUSED:
                self.counts["late and refused"] += 1
                if ref in self.finished:
                    self.say(f"a worker was refused, and an entry finishes {ref}")
            else:
                self.counts["states compared"] += 1
                if states.get(number, version) != version:
                    self.say(f"a process had another state than a replay before entry {number}")
                self.counts["states not reached"] += number not in states


def judge(log: Path, notes: Sequence[Note]) -> tuple[list[str], dict[str, int]]:
    """Return violations and figures of a whole round."""
    from pagequeue.tasks.machine import TaskMachine  # noqa: PLC0415  the core is chosen by now

    audit, machine = Audit(), TaskMachine()
    state = machine.initial()
    wanted = {note.number for note in notes if note.kind == STATE}
    states: dict[int, int] = {}
    expected = 0
    for sequence, timestamp, entry in recorded(log):
        if sequence != expected:
            audit.say(f"entry {sequence} came, and {expected} was next")
            break
        if sequence in wanted:
            states[sequence] = digest(state)
        audit.take(sequence, entry)
        machine.apply(state, entry, timestamp)
        expected = sequence + 1
    states[expected] = digest(state)
    audit.jobs()
    audit.notes(notes, states)
    if audit.counts.pop("states not reached"):
        audit.say("a process had entries that the log does not have")
    return audit.violations, dict(audit.counts)
