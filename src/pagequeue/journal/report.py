"""Verifying a journal: the log, the snapshots, and that the entries lead from one to the next."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue.journal.replica import Built, Stopped
from pagequeue.journal.snapshots import SnapshotGone
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from pagequeue.integrity.verify import VerifyReport
    from pagequeue.journal.machine import Machine
    from pagequeue.journal.replica import Replica
    from pagequeue.queue.queue import Queue


TRIES: Final = 20
"""Times that compaction may pass a verification before that is an error."""


@dataclass(frozen=True)
class JournalReport:
    """The result of `Journal.verify`.

    Attributes:
        ok: whether there is no problem.
        sequence: of the first entry that was not applied again.
        replayed_from: the sequence that replaying began with: 0, or that of the oldest snapshot.
        snapshots: sequences of those that are what the entries lead to, oldest first.
        problems: each as a sentence.

    Example:
        >>> report = journal.compact()
        >>> journal.verify()
        JournalReport(ok=True, sequence=1000, replayed_from=0, snapshots=(1000,), problems=())
    """

    ok: bool
    sequence: int
    replayed_from: int
    snapshots: tuple[int, ...]
    problems: tuple[str, ...]


def check_journal(
    replica: Replica, machine: Machine[Any], queue: Queue, log: VerifyReport
) -> JournalReport:
    """Return what is wrong with a journal; its replica does not move meanwhile.

    Args:
        replica: of this process.
        machine: of the journal.
        queue: of the entries.
        log: what verifying that found.
    """
    for tries_left in reversed(range(TRIES)):
        # What prevents it is found again below, and reported.
        with contextlib.suppress(errors.PoisonEntry, errors.DamageError, errors.NewerFormat):
            replica.advance()
        check = _Check(replica, machine, queue)
        check.problems += [str(problem) for problem in log.problems]
        try:
            check.run()
        except errors.Expired:  # another process compacts, faster than this one reads
            if not tries_left:
                raise
        else:
            break
    return JournalReport(
        not check.problems,
        check.built.sequence,
        check.begun,
        tuple(check.proved),
        tuple(check.problems),
    )


class _Check:
    """One verification: a state that is built again, and compared on its way."""

    def __init__(self, replica: Replica, machine: Machine[Any], queue: Queue) -> None:
        self._replica = replica
        self._machine = machine
        self._queue = queue
        self._head = queue.head_sequence
        self._tail = queue.tail_sequence
        self._path = queue.directory
        self.problems: list[str] = []
        self.proved: list[int] = []
        self.built = Built(None, self._head)
        self.begun = self._head

    def run(self) -> None:
        """Apply all entries again and compare."""
        snapshots = self._replica.snapshots
        states = [
            (sequence, state)
            for sequence in reversed(snapshots.sequences())
            if self._head <= sequence <= self._replica.sequence
            and (state := self._loaded(sequence)) is not None
        ]
        if self._head == 0:
            self.built = Built(self._machine.initial(), 0)
        elif states:
            sequence, (state,) = states.pop(0)
            self.built = Built(state, sequence)
            self.begun = sequence
            self.proved.append(sequence)
        else:
            newest = max(snapshots.sequences(), default=0)
            if self._queue.head_sequence != self._head or newest > self._replica.sequence:
                raise self._queue_expired()
            self.problems.append(
                f"{self._path}: entries below {self._head} were compacted away, and no snapshot "
                "can be read"
            )
            return
        for sequence, (state,) in states:
            if not self._replay(sequence):
                return
            if self._is_same(state):
                self.proved.append(sequence)
            else:
                self.problems.append(
                    f"{snapshots.full(sequence)}: not the state that the entries lead to"
                )
        if not self._replay(self._replica.sequence):
            return
        if not self._is_same(self._replica.state):
            self.problems.append(
                f"{self._path}: the state in memory is not what the entries lead to: is the "
                "machine deterministic, and did only it change the state?"
            )
        # The state in memory stops before an entry that the machine refuses; so does each opening.
        self._replay(max(self._tail, self._replica.sequence))

    def _queue_expired(self) -> errors.Expired:
        return internals(self._queue).readable().expired("call again: the journal was compacted")

    def _loaded(self, sequence: int) -> tuple[Any] | None:
        try:
            return (self._replica.snapshots.load(sequence, self._machine),)
        except SnapshotGone as error:
            raise self._queue_expired() from error
        except (errors.DamageError, errors.NewerFormat) as error:
            self.problems.append(str(error))
            return None

    def _replay(self, end: int) -> bool:
        try:
            self.built = self._replica.replay(self.built, end)
        except Stopped as stopped:
            self.problems.append(str(self._replica.refusal(stopped)))
            return False
        except errors.DamageError as error:
            self.problems.append(str(error))
            return False
        return True

    def _is_same(self, state: Any) -> bool:  # noqa: ANN401 - the machine's state
        built = self.built.state
        try:
            if bool(state == built):
                return True
        except (TypeError, ValueError):  # arrays compare one by one
            pass
        return self._digest(state) == self._digest(built)

    def _digest(self, state: Any) -> bytes:  # noqa: ANN401 - the same
        digest = hashlib.blake2b()
        for chunk in self._machine.dump(state):
            digest.update(len(chunk).to_bytes(8, "little"))
            digest.update(chunk)
        return digest.digest()
