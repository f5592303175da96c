"""A journal against a dict: handles open, append, compact, die, and lose power, in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from journals import Accounts
from tiers import examples

from pagequeue.journal import Journal
from stress.tampering import pretend_power_cut

NAMES = st.sampled_from(["ann", "bob", "eve"])
AMOUNTS = st.integers(1, 9)
HANDLES = st.integers(0, 2)
OPTIONS = st.fixed_dictionaries(
    {"snapshots": st.integers(1, 3), "compact_on_open": st.booleans()},
)


class JournalMachine(RuleBasedStateMachine):
    """Three handles of one journal, each open or not, writing or following."""

    @initialize()
    def create(self) -> None:
        """Begin with one handle."""
        self.directory = Path(tempfile.mkdtemp())
        self.model: dict[str, int] = {}
        self.count = 0
        self.handles: list[Journal[dict[str, int]] | None] = [None] * 3
        self.open(0, options={}, read_only=False)

    @rule(number=HANDLES, options=OPTIONS, read_only=st.booleans())
    def open(self, number: int, options: dict[str, Any], *, read_only: bool) -> None:
        """Open a handle, which has the state at once."""
        if self.handles[number] is None:
            if not any(path.suffix == ".page" for path in self.directory.iterdir()):
                read_only = False
            handle = Journal(
                self.directory, Accounts(), read_only=read_only, page_bytes=4096, **options
            )
            self.handles[number] = handle
            assert handle.state == self.model

    @rule(number=HANDLES)
    def close(self, number: int) -> None:
        """Close a handle."""
        handle, self.handles[number] = self.handles[number], None
        if handle is not None:
            handle.close()

    def writing(self, number: int) -> Journal[dict[str, int]] | None:
        """Return a handle that may write, or None."""
        handle = self.handles[number]
        return None if handle is None or handle._turn is None else handle

    @rule(number=HANDLES, name=NAMES, amount=AMOUNTS, times=st.sampled_from([1, 1, 2, 60]))
    def add(self, number: int, name: str, amount: int, times: int) -> None:
        """Append entries."""
        if (handle := self.writing(number)) is not None:
            for _ in range(times):
                assert handle.update(lambda _: [name, amount]) == self.count
                self.count += 1
                self.model[name] = self.model.get(name, 0) + amount

    @rule(number=HANDLES, source=NAMES, to=NAMES)
    def move(self, number: int, source: str, to: str) -> None:
        """Append an entry that depends on the state, or none."""
        if (handle := self.writing(number)) is None:
            return

        def decide(state: dict[str, int]) -> list[object] | None:
            return [source, to, state[source]] if state.get(source) else None

        if self.model.get(source):
            assert handle.update(decide) == self.count
            self.count += 1
            amount = self.model[source]
            self.model[source] -= amount
            self.model[to] = self.model.get(to, 0) + amount
        else:
            assert handle.update(decide) is None

    @rule(number=HANDLES)
    def compact(self, number: int) -> None:
        """Compact; the newest snapshot is that of now."""
        if (handle := self.writing(number)) is not None:
            assert handle.compact().sequence == self.count
            assert handle.snapshots()[0].sequence == self.count
            assert len(handle.snapshots()) <= handle._keep

    @rule(number=HANDLES)
    def catch_up(self, number: int) -> None:
        """Follow."""
        handle = self.handles[number]
        if handle is not None:
            assert handle.catch_up() == self.count
            assert handle.state == self.model

    @rule(number=HANDLES)
    def verify(self, number: int) -> None:
        """Replay everything."""
        handle = self.handles[number]
        if handle is not None:
            report = handle.verify()
            damaged = [path for path in self.snapshot_paths() if not any(path.iterdir())]
            assert len(report.problems) == len(damaged), report.problems
            assert report.sequence == self.count

    def snapshot_paths(self) -> list[Path]:
        """Return the directories of all snapshots, oldest first."""
        return sorted(self.directory.glob("queue-journal/snapshot-*"))

    @precondition(lambda self: any(self.directory.glob("queue-journal/snapshot-*")))
    @rule(chance=st.randoms())
    def damage(self, chance: Any) -> None:  # noqa: ANN401 - a Random
        """Damage a snapshot, of those that the log can do without."""
        paths = sorted(self.directory.glob("queue-journal/snapshot-*"))
        handle = next((one for one in self.handles if one is not None), None)
        if handle is None or (handle.queue.head_sequence > 0 and len(paths) < 2):
            return
        oldest = int(paths[0].name[-20:])
        if handle.queue.head_sequence > 0 and oldest < handle.queue.head_sequence:
            return
        shutil.rmtree(paths[-1])
        if chance.random() < 0.5:
            paths[-1].mkdir()

    @rule()
    def power_cut(self) -> None:
        """All are gone at once, and everything must be scanned again."""
        for number in range(3):
            self.close(number)
        pretend_power_cut(self.directory)
        for path in self.directory.glob("queue-journal/snapshot-*"):
            pretend_power_cut(path)

    @invariant()
    def none_is_ahead(self) -> None:
        """No handle has what was never appended."""
        for handle in self.handles:
            assert handle is None or handle.sequence <= self.count

    def teardown(self) -> None:
        """Open once more, from scratch."""
        for number in range(3):
            self.close(number)
        with Journal(self.directory, Accounts()) as journal:
            assert journal.state == self.model
        shutil.rmtree(self.directory)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=examples(15),
    stateful_step_count=20,
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
