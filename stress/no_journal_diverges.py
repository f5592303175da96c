"""Forbids that processes have different states of one journal, or that an update is lost.

Workers update one journal (`pagequeue.journal`), some of whose entries are larger than a page,
compact it and follow it, and are killed: at
random times, or before or after a step of a compaction (J1 to J5). The state has a checksum of all
entries that led to it, so two processes that have applied as many entries have the same history or
are found out, whatever snapshots they began with. Each writes down what it saw. Between the lives
everything is opened and replayed, and compared with what was written down: every update that
returned is there (I21), a snapshot has no more entries than are on stable storage (I22), and the
log is kept for a snapshot that exists. Now and then the power is cut: entries after the durable
mark go. Or a snapshot is damaged so that its frames validate, or one is there that lies beyond the
tail, as when a directory is put together from copies of two times: neither may be believed. A case
is a life that was ended.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stress import children, driver, tampering
from stress.history import Log
from stress.rounds import in_rounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.journal import Journal
    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 3.0
VIOLATIONS_MAX = 5
PAGE_BYTES = 4096
WORKERS = 3
LIVES_MAX = 60
MEAN_LIFE_SECONDS = 0.06
CUT_SHARE = 0.2
DAMAGE_SHARE = 0.2
BACKUP_SHARE = 0.2
READY_SECONDS = 30.0
STEPS = ("_flush", "_commit", "_kept", "_trim", "sweep", "_write", "remove", "rename")
"""Of a compaction; a life can end before or after each."""
ACCOUNTS = 12
LARGE_SHARE = 0.03
"""Of the entries; each takes several pages."""


class Reached(NamedTuple):
    """Which history a process has."""

    uid: int  # of the life; 0: it was no update of its own
    entries: int
    chain: int  # their checksum


class Chain:
    """The machine: balances, updates by life, and a checksum of the whole history."""

    version = 1

    def initial(self) -> dict[str, Any]:
        """Return the state before everything."""
        return {"chain": 0, "count": 0, "lives": {}, "balances": {}}

    def apply(self, state: dict[str, Any], entry: list[Any], timestamp_ns: int) -> None:
        """Move an amount; the entry tells what its writer saw."""
        from pagequeue import _core  # noqa: PLC0415  the campaign chooses the core

        uid, number, count, source, target, amount, _ = entry
        if count != state["count"]:
            raise AssertionError(f"decided on {count} entries, applied to {state['count']}")
        if number != state["lives"].get(uid, 0):
            raise AssertionError(f"update {number} of a life after {state['lives'].get(uid, 0)}")
        text = json.dumps([entry, timestamp_ns]).encode()
        state["chain"] = _core.crc32c(text, state["chain"])
        state["count"] += 1
        state["lives"][uid] = number + 1
        for name, change in ((source, -amount), (target, amount)):
            state["balances"][name] = state["balances"].get(name, 0) + change

    def dump(self, state: dict[str, Any]) -> Iterable[bytes]:
        """Return a chunk for each part."""
        for name in sorted(state):
            yield json.dumps([name, state[name]], sort_keys=True).encode()

    def load(self, chunks: Iterable[bytes], version: int) -> dict[str, Any]:
        """Return a snapshot's state."""
        del version
        return dict(json.loads(chunk) for chunk in chunks)


def opened(path: str, **options: Any) -> Journal[dict[str, Any]]:  # noqa: ANN401
    """Open the journal."""
    from pagequeue.journal import Journal  # noqa: PLC0415

    return Journal(path, Chain(), page_bytes=PAGE_BYTES, **options)


class Life:
    """One process that updates, compacts and follows, until it is killed."""

    def __init__(self, directory: Path, seen: Log[Reached], uid: int) -> None:
        self.path = str(directory / "j")
        self.seen = seen
        self.uid = uid
        self.rng = random.Random(uid)
        self.follows = self.rng.random() < 0.2
        self.compact_share = self.rng.choice((0.0, 0.02, 0.2))
        self.step = self.rng.choice(STEPS) if self.rng.random() < 0.4 else None
        self.snapshots = self.rng.choice((1, 2, 2, 3))

    def dies_at_its_step(self) -> None:
        """Have this process killed by its own hand, in its second compaction or so."""
        from pagequeue.journal.compaction import Compactor  # noqa: PLC0415
        from pagequeue.journal.snapshots import Snapshots  # noqa: PLC0415
        from pagequeue.system.directory import Directory  # noqa: PLC0415

        if self.step is None:
            return
        owners: tuple[Any, ...] = (Compactor, Snapshots, Directory)
        owner = next(one for one in owners if self.step in vars(one))
        genuine = getattr(owner, self.step)
        left = [self.rng.randrange(1, 4)]
        after = self.rng.random() < 0.5

        def dying(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = genuine(*args, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(owner, self.step, dying)

    def run(self) -> None:
        """Live."""
        self.dies_at_its_step()
        name = f"{self.uid:x}"
        updates = 0
        while True:
            with opened(
                self.path,
                snapshots=self.snapshots,
                read_only=self.follows,
                create=False,
                compact_on_open=self.rng.random() < 0.5,
            ) as journal:
                for _ in range(self.rng.randrange(5, 300)):
                    if self.follows:
                        journal.wait(0.005)
                        self.saw(journal, 0)
                        continue
                    journal.update(lambda state: self.decided(state, name), durable=self.coin(0.05))
                    updates += 1
                    self.saw(journal, self.uid)
                    if self.coin(self.compact_share):
                        journal.compact()

    def coin(self, share: float) -> bool:
        """Whether to do what is done in a share of cases."""
        return self.rng.random() < share

    def decided(self, state: dict[str, Any], name: str) -> list[Any]:
        """Return an entry: what it was decided on is in it."""
        accounts = self.rng.sample(range(ACCOUNTS), 2)
        number = state["lives"].get(name, 0)
        amount = self.rng.randrange(1, 100)
        note = "n" * self.rng.randrange(PAGE_BYTES, 4 * PAGE_BYTES) * self.coin(LARGE_SHARE)
        return [name, number, state["count"], *map(str, accounts), amount, note]

    def saw(self, journal: Journal[dict[str, Any]], uid: int) -> None:
        """Write down how many entries lead to which history."""
        count, chain = journal.read(lambda state: (state["count"], state["chain"]))
        self.seen.put(Reached(uid, count, chain))


class Round:
    """One journal, the lives that share it, and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.path = directory / "j"
        self.rng = rng
        self.errors = children.ErrorFile(directory / "errors")
        self.seen = Log(directory / "seen", Reached)
        self.pids: list[int] = []
        self.names = ("kills", "deaths at a step", "cuts", "damaged", "put together")
        self.counts = dict.fromkeys(self.names, 0)
        self.violations: list[str] = []
        self.entries = 0
        self.known: dict[int, int] = {}
        self.read_to = 0

    @property
    def cases(self) -> int:
        """Lives that were ended."""
        return self.counts["kills"] + self.counts["deaths at a step"]

    def start(self) -> None:
        """Start a life."""
        uid = self.rng.getrandbits(60) | 1
        life = Life(self.directory, self.seen, uid)
        self.pids.append(children.fork(life.run, self.errors, f"life {uid:x}"))

    def run(self, deadline: float, lives_max: int) -> None:
        """Kill, judge and start again until the round has had enough."""
        opened(str(self.path)).close()
        while self.cases < lives_max and time.monotonic() < deadline and not self.violations:
            while len(self.pids) < WORKERS:
                self.start()
            time.sleep(self.rng.expovariate(1 / MEAN_LIFE_SECONDS))
            self.reap()
            if self.rng.random() < 0.5:
                self.kill(self.rng.sample(self.pids, min(1, len(self.pids))))
                continue
            self.kill(list(self.pids))
            self.judge(may_lose=False)
            if not self.violations:
                self.disturb()

    def reap(self) -> None:
        """Collect the lives that ended themselves, at a step of a compaction."""
        for pid in list(self.pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.pids.remove(pid)
                self.counts["deaths at a step"] += 1
                if not children.was_killed(status):
                    self.violations += self.errors.said() or [f"a life ended with {status}"]

    def kill(self, pids: list[int]) -> None:
        """Kill lives at once."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            self.pids.remove(pid)
            if not children.was_killed(status):
                self.violations += self.errors.said()
        self.counts["kills"] += len(pids)

    # --- the proof --------------------------------------------------------------------------------

    def judge(self, *, may_lose: bool) -> None:
        """Compare what the files tell with what the lives saw; none of them runs."""
        self.check_files()
        self.compare(may_lose=may_lose)

    def compare(self, *, may_lose: bool) -> None:
        """Open, replay, and compare with everything that was seen."""
        from pagequeue.queue.queue import internals  # noqa: PLC0415

        lost: list[int] = []
        seen = self.seen.events(self.read_to)
        for _, count, chain in seen:
            if self.known.setdefault(count, chain) != chain:
                self.violations.append(f"two histories of {count} entries were seen")
        self.read_to += len(seen)
        for read_only in (True, False):
            with opened(
                str(self.path), create=False, read_only=read_only, compact_on_open=False
            ) as journal:
                # A life that was killed can have published an entry that the tail does not count
                # yet: others have seen it, and so does who catches up.
                journal.catch_up()
                count, chain = journal.state["count"], journal.state["chain"]
                if count != (end := internals(journal.queue).store.published_end):
                    self.violations.append(f"{count} entries applied of {end}")
                lost = [one for one in self.known if one > count]
                if lost and not may_lose:
                    self.violations.append(f"{max(lost)} entries were seen, {count} are there")
                if self.known.get(count, chain) != chain:
                    self.violations.append(f"another history of {count} entries than was seen")
                if sum(journal.state["balances"].values()):
                    self.violations.append("the balances do not add up")
                if not read_only:
                    problems = [
                        one for one in journal.verify().problems if not may_lose or "beyond" in one
                    ]
                    self.violations += [f"verify: {one}" for one in problems if not may_lose]
                    self.entries = max(self.entries, count)
        self.known = {one: known for one, known in self.known.items() if one not in lost}

    def check_files(self) -> None:
        """Check what must hold in the files at any time (I22)."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.path, create=False, read_only=True) as queue:
            durable = queue.durable_sequence
            named = self.snapshots()
            if named and named[0] < queue.head_sequence:
                self.violations.append(
                    f"a snapshot of {named[0]} entries, the log begins with {queue.head_sequence}"
                )
            if named and named[-1] > durable:
                self.violations.append(f"a snapshot of {named[-1]} entries, {durable} are durable")
            for consumer in queue.consumers():
                place, newest = consumer.next_sequence, max(named, default=0)
                if consumer.name == "journal" and (place is None or place > newest):
                    self.violations.append(
                        f"the log is kept from {place} on, and the newest snapshot has {newest}"
                    )

    def snapshots(self) -> list[int]:
        """Return the sequences of all snapshots with their names, oldest first."""
        return sorted(int(path.name[-20:]) for path in self.path.glob("queue-journal/snapshot-*"))

    # --- what happens while nobody runs -----------------------------------------------------------

    def disturb(self) -> None:
        """Cut the power, damage a snapshot, or put the directory together from two copies."""
        chance = self.rng.random()
        if chance < CUT_SHARE:
            self.counts["cuts"] += 1
            self.cut()
            self.compare(may_lose=True)
        elif chance < CUT_SHARE + DAMAGE_SHARE:
            self.damage()
        elif chance < CUT_SHARE + DAMAGE_SHARE + BACKUP_SHARE:
            self.put_together()

    def forget_boot(self) -> None:
        """Make every queue look as after a power cut."""
        tampering.pretend_power_cut(self.path)
        for path in self.path.glob("queue-journal/snapshot-*"):
            tampering.pretend_power_cut(path)

    def cut(self) -> None:
        """Lose entries from any after the durable mark on; and so in each snapshot, a queue too."""
        self.cut_queue(self.path)
        for path in self.path.glob("queue-journal/snapshot-*"):
            self.cut_queue(path)
        self.forget_boot()

    def cut_queue(self, path: Path) -> None:
        """Lose messages of one queue that are not on stable storage."""
        from pagequeue import Queue  # noqa: PLC0415
        from pagequeue import format as fmt  # noqa: PLC0415
        from pagequeue.queue.queue import internals  # noqa: PLC0415

        with Queue(path, create=False, read_only=True) as queue:
            first = max(queue.durable_sequence, queue.head_sequence)
            tail, page_bytes = queue.tail_sequence, queue.page_bytes
            if first >= tail or (end := self.rng.randint(first, tail)) == tail:
                return
            place = internals(queue).readable().seek_sequence(end)
            name, at = fmt.page_name("queue", place.page.number), place.position
        tampering.overwrite(path / name, at, bytes(page_bytes - at))

    def damage(self) -> None:
        """Change the state in the newest snapshot, in frames that validate; its digest stays."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.path, create=False, read_only=True) as queue:
            head = queue.head_sequence
        usable = [one for one in self.snapshots() if one >= head]
        if len(usable) + (head == 0) < 2:
            return
        self.counts["damaged"] += 1
        path = self.path / "queue-journal" / f"snapshot-{usable[-1]:020}"
        with Queue(path, create=False, read_only=True) as queue:
            messages = [message.payload for message in queue.replay()]
            page_bytes = queue.page_bytes
        shutil.rmtree(path)
        changed = [one.replace(b'["chain", ', b'["chain", 1') for one in messages]
        with Queue(path, page_bytes=page_bytes) as queue, queue.producer() as producer:
            producer.send_many(changed)
            producer.flush()
        if self.is_mended():
            self.compare(may_lose=False)

    def put_together(self) -> None:
        """Restore the log of a while ago, and leave the snapshots of now; then continue."""
        backup = self.directory / "backup"
        shutil.copytree(self.path, backup, ignore=shutil.ignore_patterns("queue-journal"))
        begun = self.entries
        with opened(str(self.path), create=False, snapshots=3) as journal:
            life = Life(self.directory, self.seen, self.rng.getrandbits(60) | 1)
            name = f"{life.uid:x}"
            for _ in range(self.rng.randrange(1, 30)):
                journal.update(lambda state: life.decided(state, name))
            report = journal.compact()
            head = journal.queue.head_sequence
        if report.pages or head > begun:  # the log of before is needed for what it had
            shutil.rmtree(backup)
            return
        self.counts["put together"] += 1
        for path in self.path.iterdir():
            if path.is_file():
                path.unlink()
        shutil.rmtree(self.path / "queue-staged", ignore_errors=True)
        for path in backup.iterdir():
            path.rename(self.path / path.name)
        backup.rmdir()
        self.forget_boot()
        kept = [one for one in self.snapshots() if one >= self.head() or self.head() == 0]
        if self.head() and not [one for one in kept if one <= begun]:
            return  # nothing could be right: the next round begins anew
        self.known = {one: chain for one, chain in self.known.items() if one <= begun}
        with opened(str(self.path), create=False, compact_on_open=False) as journal:
            life = Life(self.directory, self.seen, self.rng.getrandbits(60) | 1)
            name = f"{life.uid:x}"
            for _ in range(self.rng.randrange(1, 60)):
                journal.update(lambda state: life.decided(state, name))
                life.saw(journal, life.uid)
        if self.is_mended():
            self.compare(may_lose=False)

    def head(self) -> int:
        """Return the first sequence of the log."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.path, create=False, read_only=True) as queue:
            return queue.head_sequence

    def is_mended(self) -> bool:
        """Open and compact, which replaces what is damaged; whether the history is known."""
        with opened(str(self.path), create=False, compact_on_open=False) as journal:
            count, chain = journal.state["count"], journal.state["chain"]
            if self.known.get(count, chain) != chain or count != journal.queue.tail_sequence:
                self.violations.append(f"a snapshot was believed: another history of {count}")
                return False
            journal.compact()
            return True


def one_round(base: str, rng: random.Random, deadline: float, lives_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-journal-", dir=base) as directory:
        current = Round(Path(directory), rng)
        try:
            current.run(deadline, lives_max)
            current.kill(list(current.pids))
            if not current.violations:
                current.judge(may_lose=False)
        except Exception as error:  # noqa: BLE001  a failed open or read is a violation
            current.violations.append(f"{type(error).__name__}: {error}")
        finally:
            for pid in current.pids:
                children.kill(pid)
        current.counts["entries"] = current.entries
        current.errors.close()
        current.seen.close()
    return current


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    import pagequeue.journal  # noqa: F401, PLC0415  children are forked with all of it there

    return in_rounds(budget, one_round, cases_max=LIVES_MAX, violations_max=VIOLATIONS_MAX)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
