"""Forbids that retention removes needed messages, keeps more than it may, or loses its head.

Rounds: producers send into a queue with small pages that is bounded by bytes, by age, or by both,
under every `on_full`; named consumers receive, acknowledge late, in part or durably, and rewind;
readers without a name are inside pages until these are gone; trimmers, rollers and pollers work at
the same time. All are killed at random, now and then all at once, also with the shared state made
to look like another boot's. Meanwhile the parent checks the directory: the head's page is there and
begins with the head's sequence, no consumer that is protected is below it, and the pages from the
head on are within `max_bytes`. Pages *below* the head are what killed trimmers left; they are the
slack, and the next trim removes them. At the end every named consumer has received all that was
sent, byte for byte, though its pages are gone.

A huge trim: a process trims a queue of many pages at once while another one sends; no send waits
for its end.

Lines: a process dies at each Python line of trimming and of making room (`keep_lines.py`).

A case is a kill or a death (I11, I12).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stress import children, driver, keep_lines, tampering
from stress.crew import DRAIN_SECONDS, Crew
from stress.history import Sent, all_of
from stress.keep_readers import KEEPER, READER, ROLES
from stress.keep_scenarios import TRIMMING
from stress.keep_watch import Watcher
from stress.keeping import (
    CONSUMERS,
    PRODUCERS,
    READERS,
    RECEIVED,
    SHAPE,
    Keeping,
    Terms,
    digest_of,
    keep,
    make_queue,
)
from stress.roles import HELPER, NO_MORE, NO_MORE_SENDING, PRODUCER
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 5.0

SLOTS = {PRODUCER: PRODUCERS, KEEPER: CONSUMERS, READER: READERS, HELPER: 3}
ROUND_SECONDS = 4.0
ROUND_KILLS_MAX = 300
MEAN_PAUSE = 0.012
AT_ONCE = (1, 1, 2, 3)
STOP_SHARE = 0.08
KILL_ALL_SHARE = 0.03
CUT_SHARE = 0.5
OLD_BYTES_EVERY = 3
LINES_SHARE = 0.35
"""Of the budget, for deaths at lines."""
HUGE_PAGES = 1_500
WAIT_MAX_SECONDS = 1.0
WAIT_MAX_SHARE = 0.5
"""Of the time that a huge trim takes: a sender that waits longer waits for its end."""
HUGE_TRIMS_MAX = 4
"""A sender also waits when it has no processor: so it must wait again each time."""
WAITED = "a sender waited"
HANG_SECONDS = 60.0
HUGE_PAGE_BYTES = 4096
PAUSE_SECONDS = 0.002


@dataclass
class Expected:
    """The messages that may and must have been received, and last sends of killed producers."""

    records: list[Sent]
    uids: list[int]
    known: dict[int, int] = field(default_factory=dict)
    last_acts: dict[int, tuple[int, int]] = field(default_factory=dict)
    acts: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        next_ = dict.fromkeys(self.uids, 0)
        for uid, number, count, first, _ in self.records:
            next_[uid] = max(next_[uid], number + 1)
            if count:
                payloads = SHAPE.op(uid, number).payloads
                self.known |= {first + i: digest_of(p) for i, p in enumerate(payloads)}
        for uid, number in next_.items():
            act = self.acts[uid] = [digest_of(p) for p in SHAPE.op(uid, number).payloads]
            self.last_acts |= {digest: (uid, place) for place, digest in enumerate(act)}

    def wrong(self, found: dict[int, int], end: int, who: str, *, all_of_it: bool) -> list[str]:
        """Return what is wrong with what a consumer received: digests by sequence."""
        for sequence, digest in found.items():
            if self.known.get(sequence, digest) != digest:
                return [f"{who} received another payload as message {sequence}"]
            if sequence not in self.known and digest not in self.last_acts:
                return [f"{who} received message {sequence}, which no producer sent"]
        if not all_of_it:
            return []
        missing = [sequence for sequence in range(end) if sequence not in found]
        if missing:
            return [f"{who} never received {len(missing)} messages, from {missing[0]} on"]
        return self._halves(found, end, who)

    def _halves(self, found: dict[int, int], end: int, who: str) -> list[str]:
        """Return which last sends of killed producers are there in part, or twice."""
        seen: set[int] = set()
        at = 0
        while at < end:
            if at in self.known:
                at += 1
                continue
            uid, place = self.last_acts[found[at]]
            act = self.acts[uid]
            whole = all(found.get(at + i) == digest for i, digest in enumerate(act))
            empty = found[at] == digest_of(b"")  # its producer is unknown
            if not empty and (place or not whole or uid in seen):
                return [f"{who} received a part of an operation, or one twice, at {at}"]
            seen.add(uid)
            at += 1 if empty else len(act)
        return []


class Round(Crew[Keeping]):
    """One bounded queue, nine processes, and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.terms = Terms.drawn(rng)
        super().__init__(Keeping(directory, self.terms), rng, SLOTS, ROLES)
        self.counts |= {"messages": 0, "messages taken": 0}
        maker = children.fork(lambda: make_queue(self.ground), self.ground.errors, "maker")
        children.ended(maker, DRAIN_SECONDS)
        self.watcher = Watcher(self.ground.path, self.terms)

    def run(self, deadline: float, kills_max: int) -> None:
        """Kill and start again until the round has had enough."""
        for slot in self.slots:
            self.start(slot)
        for turn in itertools.count():
            if self.counts["kills"] >= kills_max or self.violations:
                break
            time.sleep(self.rng.expovariate(1 / MEAN_PAUSE))
            now = time.monotonic()
            self.go_on(now)
            if now >= deadline or (turn % 8 == 0 and self.ground.errors.said()):
                break
            self.violations += self.watcher.look()
            if turn % OLD_BYTES_EVERY == 0:
                self.violations += self.watcher.old_bytes(self.uids, self.records())
            self.act()
        self.go_on(float("inf"))

    def records(self) -> list[Sent]:
        """Return what producers were told."""
        return all_of(self.ground.acked)

    def act(self) -> None:
        """Do one of the operations that must not harm any process."""
        chance = self.rng.random()
        if chance < KILL_ALL_SHARE:
            self.kill_all()
            if self.rng.random() < CUT_SHARE:
                tampering.pretend_power_cut(self.ground.path)
            for slot in self.slots:
                self.start(slot)
        elif chance < KILL_ALL_SHARE + STOP_SHARE and self.stopped is None:
            self.stop(self.rng.choice(self.slots))
        elif chance < 0.6:
            self.start_again(self.rng.sample(self.slots, self.rng.choice(AT_ONCE)))

    def end(self) -> None:
        """Stop all, or kill all; then the consumers receive the rest."""
        if self.rng.random() < 0.4:
            self.kill(self.rng.sample(list(self.pids), len(self.pids)))
        self.ground.phase[0] = NO_MORE_SENDING
        for slot in [slot for slot in self.pids if slot[0] != KEEPER]:
            self.leave(slot)
        self.ground.phase[0] = NO_MORE
        for place in range(CONSUMERS):
            if (KEEPER, place) not in self.pids:
                last = functools.partial(keep, self.ground, place, place)
                pid = children.fork(last, self.ground.errors, f"last keeper {place}")
                self.pids[KEEPER, place] = pid
            self.leave((KEEPER, place))

    def prove(self) -> None:
        """Compare what was received with what was sent; trim again; no file may be left over."""
        with self.terms.open(self.ground.path, 0) as queue:
            queue.trim()
            head, end = queue.head_sequence, queue.tail_sequence
            pages = sorted(
                int(n[6:16]) for n in os.listdir(self.ground.path) if n.endswith(".page")
            )
            if pages[0] != queue._store.read_meta.head_page:
                self.violations.append(f"page {pages[0]} is below the head, and trim leaves it")
            self.violations += self.watcher.look()
            self.violations += [f"verify: {problem}" for problem in queue.verify().problems]
            records = self.records()
            self.violations += self.watcher.old_bytes(self.uids, records)
            left = {m.sequence: digest_of(m.payload) for m in queue.replay()}
        if sorted(left) != list(range(head, end)):
            self.violations.append(f"a replay from {head} to {end} gives {len(left)} messages")
        strays = [name for name in os.listdir(self.ground.path) if ".tmp-" in name]
        self.violations += [f"left over: {name}" for name in strays]
        sent = Expected(records, self.uids)
        for log in [*self.ground.notes, *self.ground.read]:
            found = {one.sequence: one.digest for one in log.events() if one.kind == RECEIVED}
            all_of_it = self.terms.keeps and log in self.ground.notes
            self.violations += sent.wrong(found, end, log.path.name, all_of_it=all_of_it)
        self.violations += sent.wrong(left, end, "the last reader", all_of_it=False)
        self.counts["messages"], self.counts["messages taken"] = end, head
        self.counts["pages used again"] = self.ground.reused


def huge_trim(base: str) -> list[str]:
    """Trim many pages at once while another process sends; return what is wrong."""
    from pagequeue import PageQueueError, Queue, Retention  # noqa: PLC0415  the core is chosen

    def trim(path: str) -> None:
        with Queue(path, retention=Retention(max_bytes=10 * HUGE_PAGE_BYTES)) as queue:
            began = time.monotonic()
            queue.trim()
            Path(f"{path}-took").write_text(str(time.monotonic() - began))

    with tempfile.TemporaryDirectory(prefix="pagequeue-huge-", dir=base) as directory:
        path, errors = f"{directory}/q", children.ErrorFile(Path(directory) / "errors")
        waited = 0.0
        with Queue(path, page_bytes=HUGE_PAGE_BYTES) as queue, queue.producer() as producer:
            for _ in range(HUGE_PAGES):
                producer.send(bytes(HUGE_PAGE_BYTES - 200))
            pid = children.fork(lambda: trim(path), errors, "the trimmer")
            deadline = time.monotonic() + HANG_SECONDS
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                began = time.monotonic()
                try:
                    producer.send(bytes(HUGE_PAGE_BYTES - 200))
                except PageQueueError as error:
                    children.kill(pid)
                    return [f"sending during a trim of {HUGE_PAGES} pages: {error}"]
                waited = max(waited, time.monotonic() - began)
                time.sleep(PAUSE_SECONDS)
            if time.monotonic() >= deadline:
                children.kill(pid)
                return [f"trimming {HUGE_PAGES} pages takes {HANG_SECONDS:g} s"]
            found = queue.verify().problems
        said = errors.said()
        errors.close()
        took = float(Path(f"{path}-took").read_text()) if not said else 0.0
    if waited > max(WAIT_MAX_SECONDS, WAIT_MAX_SHARE * took):
        said.append(f"{WAITED} {waited:.3f} s during a trim of {HUGE_PAGES} pages, {took:.3f} s")
    return [*said, *map(str, found)]


def one_round(base: str, rng: random.Random, deadline: float, kills_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-keep-", dir=base) as directory:
        current = Round(Path(directory), rng)
        try:
            current.run(min(deadline, time.monotonic() + ROUND_SECONDS), kills_max)
            current.end()
        finally:
            for pid in current.pids.values():
                children.kill(pid)
        current.violations += current.ground.errors.said()
        try:
            current.prove()
        except Exception as error:  # noqa: BLE001  a failed open or read is a violation
            current.violations.append(f"{type(error).__name__}: {error}")
        current.watcher.close()
        current.ground.close()
        shutil.rmtree(current.ground.path)
    return current


def campaign(budget: Budget) -> Outcome:
    """Run deaths at lines, then rounds; in a process that has no queue open."""
    import pagequeue  # noqa: F401, PLC0415  children are forked with all of it there

    rng = random.Random(budget.seed)
    lines = dataclasses.replace(
        budget, seconds=budget.seconds * LINES_SHARE, cases=budget.cases and budget.cases // 3
    )
    outcome = keep_lines.run(lines, TRIMMING)
    notes = outcome.notes = {"lines": outcome.notes, "rounds": 0, "checks": 0, "slack pages": 0}
    base = driver.scratch_directory()
    for _ in range(HUGE_TRIMS_MAX):
        wrong = huge_trim(base)
        if not any(WAITED in text for text in wrong):
            break
    outcome.violations += wrong
    deadline = time.monotonic() + budget.seconds * (1 - LINES_SHARE)
    while (not notes["rounds"] or time.monotonic() < deadline) and len(
        outcome.violations
    ) < driver.violations_enough(VIOLATIONS_MAX):
        left = ROUND_KILLS_MAX
        if budget.cases is not None:
            left = min(left, budget.cases - outcome.cases)
        if left <= 0:
            break
        done = one_round(base, rng, deadline, left)
        outcome.cases += done.counts["kills"]
        outcome.violations += [f"{done.terms}: {violation}" for violation in done.violations]
        notes["rounds"] += 1
        notes["checks"] += done.watcher.looks
        notes["slack pages"] = max(notes["slack pages"], done.watcher.slack_pages)
        for what, count in done.counts.items():
            notes[what] = notes.get(what, 0) + count
    outcome.require(budget, {"rounds": notes["rounds"]})
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
