"""Forbids that a journal's log and snapshots disagree after a power cut, whenever it comes.

A journal is written, compacted, flushed and opened again under a recorder that knows what each sync
covers (`cut/tree.py`). Then the power is cut at any event: each OS page, size and name of the log,
of the snapshots and of what compaction was about to rename or remove is left as any version since
its last sync. The journal must open then, with a history that is a beginning of the one that was
written and has all that was flushed (I21); every snapshot has its entries in the log (I22); each
state from a snapshot is that from scratch; and it must be so again after more entries, past the
sequence of any snapshot, and another compaction. In some states the log is of an earlier cut than
the snapshots, as on a disk that lies about syncs: then snapshots lie beyond the tail, and none may
be believed. A case is a state.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stress import driver, tampering
from stress.campaign import Budget, Outcome
from stress.cut.tree import Tree
from stress.no_journal_diverges import Chain, opened

if TYPE_CHECKING:
    from pagequeue.journal import Journal

SHORT_SECONDS = 3.0
VIOLATIONS_MAX: Final = 3
STATES: Final = 40
"""Of each recording."""
EARLIER_SHARE: Final = 0.25
"""Of the states, those with a log of an earlier cut."""
STEPS_MIN, STEPS_MAX = 8, 30
ACCOUNTS: Final = 6
FOLDER: Final = "queue-journal"


def append(journal: Journal[dict[str, Any]], name: str, rng: random.Random) -> tuple[int, int]:
    """Append an entry; return how many there are, and the checksum of all."""

    def decide(state: dict[str, Any]) -> list[Any]:
        source, target = map(str, rng.sample(range(ACCOUNTS), 2))
        number = state["lives"].get(name, 0)
        return [name, number, state["count"], source, target, rng.randrange(1, 10**6), ""]

    journal.update(decide, durable=rng.random() < 0.03)
    return journal.read(history_of)


def history_of(state: dict[str, Any]) -> tuple[int, int]:
    """Return how many entries there are, and the checksum of all."""
    return state["count"], state["chain"]


class Recorded:
    """One journal's life.

    Attributes:
        tree: what happened to its directory.
        known: the checksum of the history, by the number of entries.
        promised: when so many entries were guaranteed, in order.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = directory / "j"
        directory.mkdir()
        self.tree = Tree(directory)
        self.known = {0: 0}
        self.promised: list[tuple[int, int]] = []
        self.compactions = 0
        with self.tree.recording():
            for life in range(self.rng.randint(1, 3)):
                self._live(f"{life}")

    def _live(self, name: str) -> None:
        keep = self.rng.choice((1, 2, 2, 3))
        with opened(str(self.path), snapshots=keep, compact_on_open=False) as journal:
            self._promise(journal)
            for _ in range(self.rng.randint(STEPS_MIN, STEPS_MAX)):
                verb = self.rng.choices(("append", "flush", "compact"), (12, 2, 4))[0]
                if verb == "append":
                    for _ in range(self.rng.randint(1, 25)):
                        count, chain = append(journal, name, self.rng)
                        self.known[count] = chain
                elif verb == "flush":
                    journal.flush()
                else:
                    journal.compact()
                    self.compactions += 1
                self.tree.observe()
                self._promise(journal)

    def _promise(self, journal: Journal[dict[str, Any]]) -> None:
        self.promised.append((self.tree.now, journal.queue.durable_sequence))

    def promised_at(self, moment: int) -> int | None:
        """Return how many entries a cut must leave; None: there need be no journal."""
        return max((count for when, count in self.promised if when <= moment), default=None)


class State:
    """One state that a cut left."""

    def __init__(self, recorded: Recorded, target: Path, rng: random.Random) -> None:
        self.recorded = recorded
        self.path = target / "j"
        self.rng = rng
        self.known = dict(recorded.known)
        self.moment = self.log_moment = rng.randint(1, recorded.tree.now)
        begun = recorded.promised[0][0]
        self.is_earlier = self.moment > begun and rng.random() < EARLIER_SHARE
        if self.is_earlier:
            self.log_moment = rng.randint(begun, self.moment)
        recorded.tree.cut(target, self._moment_of, rng)

    def _moment_of(self, folder: str) -> int:
        return self.moment if FOLDER in folder else self.log_moment

    def wrong(self) -> list[str]:
        """Return what is wrong with it."""
        from pagequeue import errors  # noqa: PLC0415  the core is chosen by now

        promised = self.recorded.promised_at(self.log_moment)
        try:
            self._new_boot()
            if self.rng.random() < 0.5:
                with self._opened(read_only=True) as journal:
                    self._check(journal, promised or 0)
            with self._opened() as journal:
                self._check(journal, promised or 0)
                if not self.is_earlier:
                    self._check_snapshots(journal)
                self._continue(journal)
            with self._opened() as journal:
                self._check(journal, 0)
                journal.compact()
            with self._opened(read_only=True) as journal:
                self._check(journal, 0)
                problems = journal.verify().problems
        except errors.QueueNotFound as error:
            return [] if promised is None else [f"{type(error).__name__}: {error}"]
        except errors.CorruptSnapshot as error:
            # Whatever the log of an earlier time needs may have been removed since then.
            return [] if self.is_earlier else [f"{type(error).__name__}: {error}"]
        except Exception as error:  # noqa: BLE001  no power cut may cause any exception
            return [f"{type(error).__name__}: {error}"]
        return [f"verify: {problem}" for problem in problems]

    def _new_boot(self) -> None:
        if not self.path.exists():
            return
        for path in (self.path, *self.path.glob(f"{FOLDER}/*-*")):
            tampering.pretend_power_cut(path)

    def _opened(self, *, read_only: bool = False) -> Journal[dict[str, Any]]:
        return opened(str(self.path), create=False, compact_on_open=False, read_only=read_only)

    def _check(self, journal: Journal[dict[str, Any]], promised: int) -> None:
        """Compare the state with what was written, and with all ways that lead to it."""
        from pagequeue.journal.replica import Built  # noqa: PLC0415

        count, chain = history_of(journal.state)
        tail = journal.queue.tail_sequence
        if count != tail:
            raise AssertionError(f"{count} entries are in the state, {tail} in the log")
        if count < promised:
            raise AssertionError(f"{count} entries are there, {promised} were guaranteed")
        if self.known.get(count) != chain:
            raise AssertionError(f"another history of {count} entries than was written")
        replica, machine = journal._replica, Chain()
        if journal.queue.head_sequence == 0:
            scratch = replica.replay(Built(machine.initial(), 0)).state
            if scratch != journal.state:
                raise AssertionError(f"another state of {count} entries from scratch")
        for sequence, loaded in _believed(journal).items():
            if self.known.get(sequence) != loaded["chain"]:
                raise AssertionError(f"snapshot {sequence} is believed, and of another history")
            if replica.replay(Built(loaded, sequence)).state != journal.state:
                raise AssertionError(f"another state of {count} entries from snapshot {sequence}")

    def _check_snapshots(self, journal: Journal[dict[str, Any]]) -> None:
        """Check that the log has the entries of each snapshot (I22), and is kept for one (J4)."""
        newest = max(journal._replica.snapshots.sequences(), default=0)
        if newest > (tail := journal.queue.tail_sequence):
            raise AssertionError(f"a snapshot of {newest} entries, and {tail} are in the log")
        for consumer in journal.queue.consumers():
            if consumer.next_sequence is None or consumer.next_sequence > newest:
                raise AssertionError(
                    f"the log is kept from {consumer.next_sequence} on, and the newest snapshot "
                    f"has {newest} entries"
                )

    def _continue(self, journal: Journal[dict[str, Any]]) -> None:
        """Append other entries than were there, past all snapshots."""
        newest = max(journal._replica.snapshots.sequences(), default=0)
        end = max(newest, journal.sequence) + self.rng.randint(1, 5)
        count = journal.sequence
        self.known = {one: chain for one, chain in self.known.items() if one <= count}
        while count < end:
            count, chain = append(journal, "after", self.rng)
            self.known[count] = chain
        if self.rng.random() < 0.5:
            journal.flush()


def _believed(journal: Journal[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the states of all snapshots that the library loads and the log continues."""
    from pagequeue import errors  # noqa: PLC0415

    snapshots, found = journal._replica.snapshots, {}
    for sequence in snapshots.sequences():
        if sequence >= journal.queue.head_sequence:
            with contextlib.suppress(errors.DamageError):
                found[sequence] = snapshots.load(sequence, Chain())
    return found


def campaign(budget: Budget) -> Outcome:
    """Record journals and cut them until the budget is used up."""
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0, notes={"recordings": 0, "events": 0, "compactions": 0, "earlier logs": 0})
    base = Path(tempfile.mkdtemp(prefix="pagequeue-cuts-", dir=driver.scratch_directory()))

    def is_over() -> bool:
        done = budget.cases is not None and outcome.cases >= budget.cases
        return (
            done
            or len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
            or (time.monotonic() > deadline and outcome.cases > 0)
        )

    try:
        while not is_over():
            seed = rng.getrandbits(40)
            recorded = Recorded(base / "live", seed)
            outcome.notes["recordings"] += 1
            outcome.notes["events"] += recorded.tree.now
            outcome.notes["compactions"] += recorded.compactions
            for _ in range(STATES):
                if is_over():
                    break
                state_seed = rng.getrandbits(40)
                state = State(recorded, base / "cut", random.Random(state_seed))
                wrong = state.wrong()
                outcome.cases += 1
                outcome.notes["earlier logs"] += state.is_earlier
                outcome.violations += [
                    f"journal {seed}, state {state_seed}, cut before event {state.moment} of "
                    f"{recorded.tree.now}{', its log earlier' * state.is_earlier}: {text}"
                    for text in wrong
                ]
                shutil.rmtree(base / "cut")
            shutil.rmtree(base / "live")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
