"""Forbids that a message is reported as durable which a sync failed to write.

Some processes send to one queue, flush it in one of the ways there are, and make named consumers,
for which the directory is synced too; in some of them syncs fail, once, a few times or for ever, on
a disk that forgets what it could not write, so that the next sync succeeds and proves no durability
(`faulty_disk.py`). At a random moment and at the end the power fails. All messages reported as
durable by then must be there, and what is there must be a prefix of what was sent. With
`on_sync_failure="stop"` no process sends any more once one was told, also after opening again, and
reading still works; with `"seal"` sending continues in new files (I5). A case is a queue with a
failing sync.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from stress import children, driver, shim
from stress.campaign import Budget, Outcome
from stress.faulty_disk import Disk
from stress.history import Log, Sent
from stress.rounds import tries
from stress.steps import BATCH, LARGE, MIXED, SHAPES, SINGLE, op_of, uid_of
from stress.traffic import VIOLATIONS_MAX, Proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Producer, Queue
    from pagequeue.types import OnSyncFailure

SHORT_SECONDS = 3.0
HANG_SECONDS = 60.0
OPS = 24
KINDS = (MIXED, SINGLE, BATCH, LARGE)
PAGES_BYTES = (4096, 4 * 4096)
"""Many rolls, and pages of which a part can be lost."""
TRIES_AFTER_FAILURE = 3
FLUSH_EVERY = 3
NOT_YET_SENT = ("queue-staged", "queue-publishing")
"""Where a large message is until its commit: a failed sync there ends one call."""
NAME_EVERY = 5
PAUSE_SECONDS = 0.002
CLAIM, FAILURE, SENT = range(3)
SYNCS: Final[dict[str, Any]] = {
    "flush": "none",
    "always": "always",
    "every 4": 4,
    "in time": timedelta(milliseconds=4),
}
POLICIES = ("stop", "seal", "mixed")
"""Of all senders; mixed: of those whose syncs fail "stop", of the others "seal"."""
LASTS = {"once": 1, "twice": 2, "5 times": 5, "for ever": 1 << 40}


class Said(NamedTuple):
    """What a process was told, and when."""

    uid: int
    what: int
    at: int
    sequence: int


@dataclass(frozen=True)
class Plan:
    """One case, from a seed: how it is flushed, which syncs fail, when the power is cut."""

    seed: int

    @property
    def rng(self) -> random.Random:
        """Where the case's randomness starts."""
        return random.Random(self.seed)

    def drawn(self) -> tuple[str, str, str, shim.Order, int]:
        """Return mode, policy, how long it lasts, which syncs fail, how many processes send."""
        rng = self.rng
        mode = rng.choice(list(SYNCS))
        policy = rng.choice(POLICIES)
        lasts = rng.choices(list(LASTS), [4, 1, 1, 2])[0]
        kind = rng.choice(["fdatasync", "fdatasync", "fdatasync", "fsync", "fsync", "msync"])
        nth = rng.randint(1, 12 if kind == "fdatasync" and mode == "always" else 4)
        error = rng.choice([errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT])
        order = shim.Order(kind, nth, LASTS[lasts], error)
        return mode, policy, lasts, order, rng.choice([1, 2, 2, 3])

    def __str__(self) -> str:
        mode, policy, lasts, order, senders = self.drawn()
        return (
            f"case {self.seed}: {mode}, {policy}, {senders} senders, "
            f"{order.kind} {order.nth} fails {lasts}"
        )


@dataclass
class Scene:
    """One queue, the processes that use it, and what they recorded."""

    plan: Plan
    directory: Path
    violations: list[str] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)
    failed: bool = False

    def __post_init__(self) -> None:
        self.mode, self.policy, self.lasts, self.order, self.senders = self.plan.drawn()
        self.path = str(self.directory / "queue")
        self.errors = children.ErrorFile(self.directory / "errors")
        self.acked = Log(self.directory / "acked", Sent)
        self.said = Log(self.directory / "said", Said)
        self.disk = Disk(self.path, self.directory / "disk")

    def close(self) -> None:
        """Close the files."""
        for log in (self.errors, self.acked, self.said):
            log.close()

    def say(self, uid: int, what: int, sequence: int, when: int | None = None) -> None:
        """Record what a process was told; no kill and no power cut undoes it."""
        self.said.put(Said(uid, what, when or time.monotonic_ns(), sequence))

    def claims(self) -> int:
        """Return up to where any process was told that all is on stable storage."""
        return max((one.sequence for one in self.said.events() if one.what == CLAIM), default=0)

    # --- the processes that use it ----------------------------------------------------------------

    def opened(self, order: shim.Order | None, policy: str = "") -> Queue:
        """Open the queue in this process, with its syncs on the disk's model."""
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        shim.watch(self.path)

        def told(_kind: str, path: str, error: int) -> int:
            self.disk.told(path, error)
            return 0

        shim.on_sync(told)
        page_bytes = PAGES_BYTES[self.plan.seed % len(PAGES_BYTES)]
        queue = Queue(
            self.path,
            page_bytes=page_bytes,
            sync=SYNCS[self.mode],
            on_sync_failure=cast("OnSyncFailure", policy or self.policy.replace("mixed", "stop")),
        )
        shim.begin(order)
        return queue

    def send_all(self, uid: int, order: shim.Order | None) -> None:
        """Be a sender: send and flush; once told of a failed sync try a few times more, and end."""
        from pagequeue import DiskFull, SyncFailed, SystemLimit  # noqa: PLC0415

        others = "seal" if self.policy == "mixed" and order is None else ""
        queue = self.opened(order, others)
        if self.plan.seed % 2:
            _commit_slowly()
        tries = 0
        with queue.producer() as producer:
            for op in range(OPS):
                try:
                    self._send(producer, uid)
                    if op % NAME_EVERY == uid % NAME_EVERY:
                        self._get_ready(producer)
                        self._name(queue, f"c{uid}-{op}")
                    time.sleep(PAUSE_SECONDS if self.mode == "in time" else 0)
                except (SystemLimit, DiskFull) as error:  # by the errno that failed the sync
                    if not any(name in (error.path or "") for name in NOT_YET_SENT):
                        raise
                    # Nothing was sent; no other sender has to know of it.
                    uid += len(SHAPES)
                except SyncFailed:
                    self.say(uid, FAILURE, 0)
                    uid += len(SHAPES)  # this one died in the middle of an operation
                    tries += 1
                    if tries > TRIES_AFTER_FAILURE and self.policy != "seal":
                        break
                self.say(uid, CLAIM, queue.durable_sequence)
        try:
            queue.close()
        except SyncFailed:
            self.say(uid, FAILURE, 0)

    def _send(self, producer: Producer, uid: int) -> None:
        number = self._numbers.get(uid, 0)
        began = time.monotonic_ns()
        first, count = op_of(uid, number).run(producer)
        self.acked.put(Sent(uid, number, count, first))
        self._numbers[uid] = number + 1
        if count:
            self.say(uid, SENT, first, began)
        if self.mode == "always":
            self.say(uid, CLAIM, first + count)
        if self.mode == "flush" and number % FLUSH_EVERY == 0:
            self.say(uid, CLAIM, producer.flush())

    def _get_ready(self, producer: Producer) -> None:
        """Have the next page made early, as a fast producer of large pages does."""
        store = producer._store
        number = store.tail.page_number + 1
        store.roller.prepare(number, reach=0, filled_bytes=0, frame_bytes=1.0)
        time.sleep(PAUSE_SECONDS)

    def _name(self, queue: Queue, name: str) -> None:
        """Make a named consumer; if the sync of its name fails the queue must be latched."""
        from pagequeue import SystemLimit, errors  # noqa: PLC0415

        try:
            queue.consumer(name).close()
        except (SystemLimit, errors.DiskFull) as error:
            if error.path == self.path and self.policy == "stop":
                self.say(0, FAILURE, 0)

    _numbers: dict[int, int] = field(default_factory=dict)

    def watch(self, ready: int) -> None:
        """Be a reader of what is durable, until killed."""
        queue = self.opened(None)
        consumer = queue.consumer(durable_only=True)
        os.write(ready, b"r")
        while True:
            durable = queue.durable_sequence
            while (message := consumer.poll()) is not None:
                durable = max(durable, message.sequence + 1)
            self.say(0, CLAIM, durable)
            time.sleep(PAUSE_SECONDS)

    # --- one case ---------------------------------------------------------------------------------

    def play(self) -> None:
        """Play it; `violations` lists what went wrong."""
        os.mkdir(self.path, 0o700)
        if not self.apart(self._make, "making the queue"):
            return
        ready, say_ready = os.pipe()
        watcher = children.fork(lambda: self.watch(say_ready), self.errors, "the watcher")
        os.close(say_ready)
        os.read(ready, 1)
        os.close(ready)
        rng = random.Random(self.plan.seed + 1)
        pids = []
        for number in range(self.senders):
            uid = uid_of(rng.choice(KINDS), 100 * (number + 1))
            self.uids += [uid + i * len(SHAPES) for i in range(OPS + 1)]
            order = self.order if number == 0 else None
            pids.append(
                children.fork(
                    lambda uid=uid, order=order: self.send_all(uid, order),  # type: ignore[misc]
                    self.errors,
                    f"sender {number}",
                )
            )
        time.sleep(rng.random() * 0.05)
        claimed = self.claims()
        self.disk.cut(str(self.directory / "cut"), rng, newer=0.0)
        for pid in pids:
            self._ended(pid)
        children.kill(watcher)
        self.failed = any(one.what == FAILURE for one in self.said.events())
        self._judge_words()
        if self.apart(self._prove, "the proof"):
            self.apart(lambda: self._after_a_cut("cut", claimed), "the cut in between")
            self.disk.cut(str(self.directory / "end"), rng, newer=rng.choice([0.0, 0.0, 0.5, 1.0]))
            self.apart(lambda: self._after_a_cut("end", self.claims()), "the cut at the end")
        self.violations += self.errors.said()

    def _make(self) -> None:
        self.disk.start()
        self.opened(None).close()

    def _ended(self, pid: int) -> None:
        status = children.ended(pid, HANG_SECONDS)
        if status is None:
            self.violations.append(f"a sender hangs for {HANG_SECONDS:g} s")
            children.kill(pid)

    def apart(self, body: Callable[[], None], name: str) -> bool:
        """Run a part in a child; return whether all was well."""
        pid = children.fork(body, self.errors, name)
        status = children.ended(pid, HANG_SECONDS)
        if status is None:
            self.violations.append(f"{name} hangs for {HANG_SECONDS:g} s")
            children.kill(pid)
        return status == 0

    def _judge_words(self) -> None:
        """No process sends after a reported failure, and none is told of one that was overcome."""
        records = self.said.events()
        failures = [one.at for one in records if one.what == FAILURE]
        if self.policy == "stop" and failures:
            late = [one for one in records if one.what == SENT and one.at > min(failures)]
            if late:
                self.violations.append(f"{len(late)} were sent after a failed sync was told")
        if self.policy == "seal" and failures and self.lasts == "once":
            self.violations.append("a sync failed once, and the queue did not continue")

    def _prove(self) -> None:
        """Open the queue again: whether more can be sent follows; all that was sent is there."""
        uid = uid_of(SINGLE, 1 << 40)
        records = self.acked.events()
        queue = self.opened(None)
        sent = self._go_on(queue, uid)
        stopped = sent is None
        assert self.policy == "mixed" or stopped == (self.policy == "stop" and self.failed), (
            f"opened again, sending {'fails' if stopped else 'works'}"
        )
        if sent is None:
            queue = self._repaired(queue)
            uid += len(SHAPES)
            sent = self._go_on(queue, uid)
            assert sent is not None, "repaired, and sending fails"
        records.append(Sent(uid, 0, sent[1], sent[0]))
        proof = Proof(op_of, [*self.uids, uid_of(SINGLE, 1 << 40), uid], records)
        messages = list(queue.replay())
        proof.run(messages)
        assert not proof.violations, proof.violations
        sizes = [len(message.payload) for message in messages]
        (self.directory / "sizes").write_text(json.dumps(sizes), encoding="ascii")
        (self.directory / "live").write_bytes(b"".join(message.payload for message in messages))
        queue.close()

    def _go_on(self, queue: Queue, uid: int) -> tuple[int, int] | None:
        """Send and flush; return first sequence and count, None if that is refused."""
        from pagequeue import SyncFailed  # noqa: PLC0415  the core is chosen by now

        with queue.producer() as producer:
            try:
                sent = op_of(uid, 0).run(producer)
                self.say(uid, CLAIM, producer.flush())
            except SyncFailed:
                return None
        return sent

    def _repaired(self, queue: Queue) -> Queue:
        """Close a queue that is stopped, repair it, open it again; reading works before that."""
        from pagequeue import SyncFailed, repair_queue  # noqa: PLC0415

        before = [message.payload for message in queue.replay()]
        with contextlib.suppress(SyncFailed):
            queue.close()
        report = repair_queue(self.path)
        assert report.ok, report.remaining
        queue = self.opened(None)
        self.say(0, CLAIM, queue.durable_sequence)
        assert [message.payload for message in queue.replay()] == before, "repairing changed it"
        return queue

    def _after_a_cut(self, name: str, claimed: int) -> None:
        """Open what is on the disk: all that was claimed, and a beginning of what was sent."""
        from pagequeue import Queue  # noqa: PLC0415

        sizes = json.loads((self.directory / "sizes").read_text(encoding="ascii"))
        with Queue(self.directory / name, create=False) as queue:
            found = [message.payload for message in queue.replay()]
        assert len(found) >= claimed, (
            f"durable up to {claimed} was reported, {len(found)} are there"
        )
        with (self.directory / "live").open("rb") as file:
            live = [file.read(size) for size in sizes[: len(found)]]
        assert found == live, "what is on the disk is not the beginning of what was sent"


def _commit_slowly() -> None:
    """Let time pass between the names of a commit and its mark, in which other syncs can fail."""
    from pagequeue.bulk.staged_pages import StagedPages  # noqa: PLC0415  the core is chosen by now

    give_names = StagedPages.give_names

    def slowly(pages: StagedPages, *to: Any) -> None:  # noqa: ANN401 - as it is called
        give_names(pages, *to)
        time.sleep(PAUSE_SECONDS)

    StagedPages.give_names = slowly  # type: ignore[assignment,method-assign]


def campaign(budget: Budget) -> Outcome:
    """Play cases of the seed, in a process whose calls can be failed."""
    if not shim.is_possible():
        return Outcome(0, notes={"left out": "calls are failed on Linux only"})
    if not shim.is_loaded():
        return driver.run_in(__name__, budget, shim.environment())
    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    told: Counter[str] = Counter()
    importlib.import_module("pagequeue")
    gc.collect()
    gc.freeze()
    for _ in tries(budget, outcome, VIOLATIONS_MAX):
        plan = Plan(rng.getrandbits(32))
        base = driver.scratch_directory()
        with tempfile.TemporaryDirectory(prefix="pagequeue-sync-", dir=base) as directory:
            scene = Scene(plan, Path(directory))
            try:
                scene.play()
            finally:
                scene.close()
            outcome.cases += 1
            outcome.violations += [f"{plan}: {text}" for text in scene.violations]
            told[f"{scene.policy}: {'told' if scene.failed else 'not told'}"] += 1
    outcome.notes["a failed sync was"] = dict(sorted(told.items()))
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it was installed."""
    return driver.run_apart(__name__, budget)
