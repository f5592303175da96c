"""Forbids that a failing system call loses, doubles or hides a message, hangs, or goes unreported.

Every system call of every scene is failed in turn: the Nth of its kind, once and for ever, with
every error that it can end in, by half of its bytes, and by a signal. Each call of the library must
succeed or end in a typed error that names the path and the cause. Once the fault is over all calls
work again, except on a queue whose sync failed: that one is latched for all processes. Acknowledged
messages are there, refused ones are not, and those reported as durable survive a power cut on a
disk that forgets what it failed to write (I2, I5, I8, I10). A case is a fault.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver, shim
from stress.campaign import Budget, Outcome
from stress.fault_copies import prove_replica
from stress.fault_matrix import Case, cases_of, ordered
from stress.fault_scenes import SCENES, SceneKind
from stress.fault_verdict import Played
from stress.faults import KEPT_DISK, Stage
from stress.faulty_disk import Disk
from stress.history import Log, Sent
from stress.lines import TEMPLATE_UID, Template
from stress.publications import wrong_entries
from stress.steps import PUBLISH, SHAPES, SINGLE, op_of, uid_of
from stress.traffic import HEADER, Proof

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pagequeue import Message

SHORT_SECONDS = 4.0
SHORT_SCENES = 8
HANG_SECONDS = 60.0
DISTINCT_MAX = 12
"""So many different violations are enough to examine."""
TEMPLATE_OPS, FLUSH_AFTER = 28, 8
"""Some five pages: each more makes every scene longer, and adds no new calls."""
LATCHED = "a sync failed"
PROOF_UID = uid_of(SINGLE, 1 << 40)


@dataclass
class Tally:
    """What a worker has done.

    Attributes:
        tried: cases.
        fired: cases in which a call was disturbed.
        kinds: the same by kind of call.
        violations: by their common part, the first of them and how many there were.
        errors: how often each error was raised.
    """

    tried: int = 0
    fired: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    violations: dict[str, tuple[str, int]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, played: Played) -> None:
        """Count a case."""
        self.tried += 1
        self.fired += played.fired > 0
        if played.fired:
            self.kinds[case.kind] += 1
        self.errors.update(set(played.errors))
        for text in played.violations:
            key = re.sub(r"\d+|/\S+|0x[0-9a-f]+|\(.*?\)", "", f"{case.kind} {text}")
            first, count = self.violations.get(key, (f"{case}: {text}", 0))
            self.violations[key] = first, count + 1

    def merge(self, other: Tally) -> None:
        """Count what another one has done."""
        self.tried += other.tried
        self.fired += other.fired
        self.kinds += other.kinds
        self.errors += other.errors
        for key, (text, count) in other.violations.items():
            first, before = self.violations.get(key, (text, 0))
            self.violations[key] = first, before + count

    def words(self) -> list[str]:
        """Return one sentence for each different violation."""
        return [f"{text} ({n} times)" if n > 1 else text for text, n in self.violations.values()]


class Campaign:
    """The whole matrix in an order of the seed, until it is done or the budget is used up."""

    def __init__(self, budget: Budget, directory: Path) -> None:
        self.budget = budget
        self.directory = directory
        self.deadline = time.monotonic() + budget.seconds
        self.template = Template(directory, TEMPLATE_OPS, FLUSH_AFTER)
        self.settled = self._recovered_copy()
        # Playing one undisturbed takes a quarter of a second.
        count = SHORT_SCENES if budget.short else len(SCENES)
        scenes = random.Random(budget.seed).sample(SCENES, count)
        self.scenes = {scene.name: scene for scene in scenes}
        self.ends: dict[str, int] = {}
        self.points = 0
        self.payloads = self._payloads()

    def _recovered_copy(self) -> Path:
        """Return a copy of the template that was closed normally; it needs no recovery."""
        from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

        path = self.directory / "settled"
        shutil.copytree(self.template.path, path)
        Queue(path).close()
        return path

    def _payloads(self) -> list[bytes]:
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.template.path, read_only=True) as queue:
            return [message.payload for message in queue.replay()]

    def find_end(self, name: str) -> None:
        """Record where an undisturbed recovery ends; no message below that may ever be dropped."""
        from pagequeue import Queue  # noqa: PLC0415

        scene = self.scenes[name]
        if scene.fresh:
            return
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            self._place(scene, Path(place))
            with Queue(Path(place, "watched", "deep", "queue")) as queue:
                end = queue.tail_sequence
        assert end >= self.template.durable, f"{name}: cut at {end}"
        self.ends[name] = end

    # --- one case ---------------------------------------------------------------------------------

    def play(self, case: Case, directory: Path) -> Played:
        """Play a case and prove the resulting queue, each in a separate process."""
        scene = self.scenes[case.scene]
        self._place(scene, directory)
        errors = children.ErrorFile(directory / "errors")
        expected = [] if scene.fresh else self.payloads
        played = Played()
        try:
            if self._run(lambda: _act(scene, case, directory, expected), "it", errors, played):
                told = json.loads((directory / "played").read_text(encoding="utf-8"))
                played = Played(**told)
                played.refused = [(uid, number) for uid, number in played.refused]
                played.visible = [(uid, number) for uid, number in played.visible]
                prove = functools.partial(self._prove, scene, directory, played)
                if self._run(prove, "the proof", errors, played):
                    proved = (directory / "proved").read_text(encoding="utf-8")
                    played.violations += json.loads(proved)
            played.violations += errors.said()
        finally:
            errors.close()
        return played

    def _place(self, scene: SceneKind, directory: Path) -> None:
        deep = directory / "watched" / "deep"
        if scene.fresh:
            deep.parent.mkdir(parents=True)
            return
        deep.mkdir(parents=True)
        if scene.cut is None:
            shutil.copytree(self.settled, deep / "queue")
        else:
            shutil.copytree(self.template.path, deep / "queue")
            scene.cut(deep / "queue")

    def _run(self, body: Any, name: str, errors: children.ErrorFile, played: Played) -> bool:  # noqa: ANN401
        """Run a part in a child; record an exit by a signal or an error."""
        pid = children.fork(body, errors, name)
        status = children.ended(pid, HANG_SECONDS)
        if status is None:
            stack = errors.path.with_name("stack")
            where = stack.read_text(encoding="utf-8") if stack.exists() else ""
            played.violations.append(f"{name} hangs for {HANG_SECONDS:g} s {where}")
            children.kill(pid)
        elif os.WIFSIGNALED(status):
            played.violations.append(f"{name} died of signal {os.WTERMSIG(status)}")
        return status == 0

    def _prove(self, scene: SceneKind, directory: Path, played: Played) -> None:
        """Open the queue undisturbed, continue, compare all of it; then repeat it with the disk."""
        wrong: list[str] = []
        path = str(directory / "watched" / "deep" / "queue")
        log = Log(directory / "acked", Sent)
        records = log.events()
        log.close()
        if not scene.fresh:
            end = self.ends[scene.name]
            records += [record for record in self.template.records if record[3] < end]
        uids = [*played.uids, TEMPLATE_UID, PROOF_UID]
        live = _prove_queue(path, uids, records, played, wrong)
        prove_replica(directory, live, played.shipped, wrong)
        if scene.without_indexes:
            wrong = [text for text in wrong if "reason='index: " not in text]
        _prove_disk(path, directory / "disk", live, played.claims, wrong)
        for kept in sorted(directory.glob(KEPT_DISK + "*")):
            _prove_disk(path, kept, live, int(kept.name.removeprefix(KEPT_DISK)), wrong)
        (directory / "proved").write_text(json.dumps(wrong), encoding="utf-8")

    # --- all of them ------------------------------------------------------------------------------

    def matrix(self, tally: Tally) -> list[Case]:
        """Play every scene undisturbed and return all cases, each point of the library first."""
        cases: dict[str, list[Case]] = {}
        points: dict[str, dict[str, list[list[int]]]] = {}
        for name in self.scenes:
            case = Case(name)
            self.find_end(name)
            with tempfile.TemporaryDirectory(dir=self.directory) as place:
                played = self.play(case, Path(place))
            tally.add(case, played)
            cases[name] = list(cases_of(name, played.counts))
            points[name] = played.points
        self.points = len(
            {(kind, at[-1]) for of in points.values() for kind, found in of.items() for at in found}
        )
        return ordered(cases, points, random.Random(self.budget.seed))

    def work(self, cases: Iterable[Case]) -> Tally:
        """Play cases until they are done, the time is up, or violations are enough to examine."""
        tally = Tally()
        for case in cases:
            late = time.monotonic() >= self.deadline and tally.tried > 0
            if late or len(tally.violations) >= driver.violations_enough(DISTINCT_MAX):
                break
            with tempfile.TemporaryDirectory(dir=self.directory) as place:
                tally.add(case, self.play(case, Path(place)))
        return tally

    def run(self) -> Outcome:
        """Share the cases among as many workers as there are processors."""
        tally = Tally()
        cases = self.matrix(tally)
        # Playing all scenes undisturbed tries nothing: half of the time remains for that.
        self.deadline = max(self.deadline, time.monotonic() + self.budget.seconds / 2)
        whole = len(cases)
        if self.budget.cases is not None:
            cases = cases[: self.budget.cases]
        gc.collect()
        gc.freeze()
        if not tally.violations:
            for part in self._shared(cases):
                tally.merge(part)
        tried = tally.tried - len(self.scenes)
        notes = {
            "whole matrix": whole,
            "points": self.points,
            "tried of it": f"{tried}, that is all of it" if tried == whole else tried,
            "disturbed a call": tally.fired,
            "by call": dict(sorted(tally.kinds.items())),
            "errors raised": dict(tally.errors.most_common()),
            "scenes": len(self.scenes),
        }
        outcome = Outcome(tally.tried, tally.words(), notes)
        outcome.require(self.budget, {"the matrix": tried})
        return outcome

    def _shared(self, cases: list[Case]) -> Iterator[Tally]:
        count = max(len(os.sched_getaffinity(0)), 1)
        errors = children.ErrorFile(self.directory / "worker-errors")
        workers = []
        for number in range(count):
            report = self.directory / f"worker-{number}"

            def body(number: int = number, report: Path = report) -> None:
                report.write_text(_told(self.work(cases[number::count])), encoding="utf-8")

            workers.append((children.fork(body, errors, f"worker {number}"), report))
        for pid, report in workers:
            os.waitpid(pid, 0)
            if report.exists():
                yield _heard(report.read_text(encoding="utf-8"))
        for text in errors.said():
            yield Tally(violations={text: (text, 1)})
        errors.close()


def _told(tally: Tally) -> str:
    return json.dumps(
        [tally.tried, tally.fired, tally.kinds, tally.violations, tally.errors], default=list
    )


def _heard(text: str) -> Tally:
    tried, fired, kinds, violations, errors = json.loads(text)
    seen = {key: (first, count) for key, (first, count) in violations.items()}
    return Tally(tried, fired, Counter(kinds), seen, Counter(errors))


def _act(scene: SceneKind, case: Case, directory: Path, expected: list[bytes]) -> None:
    """Be the process whose calls fail; one that hangs prints its stacks."""
    stack = (directory / "stack").open("w", encoding="utf-8")
    faulthandler.dump_traceback_later(HANG_SECONDS * 0.8, file=stack)
    stage = Stage(directory, case, expected)
    stage.prepare()
    scene.play(stage)
    stage.end()
    stage.go_on()
    stage.leave()


def _prove_queue(
    path: str,
    uids: list[int],
    records: list[Sent],
    played: Played,
    wrong: list[str],
) -> list[bytes]:
    """Open the queue undisturbed, continue, and compare; return all payloads."""
    from pagequeue import Queue, SyncFailed  # noqa: PLC0415  the core is chosen by now

    with Queue(path, create=False) as queue, queue.producer() as producer:
        try:
            first, count = op_of(PROOF_UID, 0).run(producer)
        except SyncFailed as error:
            if not played.latched:
                wrong.append(f"opened again, sending reports a failed sync: {error}")
        else:
            records.append(Sent(PROOF_UID, 0, count, first))
            if played.latched:
                wrong.append("a sync failed, and another process sends all the same")
        proof = Proof(op_of, uids, records)
        messages = list(queue.replay())
        proof.run(messages)
        wrong += proof.violations
        problems = queue.verify().problems
        wrong += [f"verify: {p}" for p in problems if not (played.latched and LATCHED in p.reason)]
        wrong += [f"left over: {name}" for name in os.listdir(path) if ".tmp-" in name]
        wrong += _wrongly_there(messages, played)
        publishers = [uid for uid in played.uids if uid % len(SHAPES) >= PUBLISH]
        if publishers and not played.latched:
            wrong += wrong_entries(queue, publishers, op_of, records)
        return [message.payload for message in messages]


def _wrongly_there(messages: list[Message], played: Played) -> Iterator[str]:
    """Yield messages that are there though refused, or are missing though reported as sent."""
    headers = (m.payload[: HEADER.size] for m in messages if len(m.payload) >= HEADER.size)
    there = {HEADER.unpack(header)[:2] for header in headers}
    for uid, number in played.refused:
        if (uid, number) in there:
            yield f"operation {number} of {uid} was refused, and is there"
    for uid, number in played.visible:
        if (uid, number) not in there and op_of(uid, number).payloads[0]:
            yield f"operation {number} of {uid} was sent though not durable, and is not there"


def _prove_disk(path: str, state: Path, live: list[bytes], claims: int, wrong: list[str]) -> None:
    """Cut the power: all durable messages must be there, and after them a prefix at most."""
    from pagequeue import Queue  # noqa: PLC0415

    if claims == 0 or not state.exists():
        return
    image = f"{state}-image"
    Disk(path, state).cut(image, random.Random(0), newer=0.0)
    with Queue(image, create=False) as queue:
        found = [message.payload for message in queue.replay()]
    if len(found) < claims:
        wrong.append(f"reported as durable up to {claims}, and {len(found)} are on disk")
    if found != live[: len(found)]:
        wrong.append("what is on disk is not the beginning of what was sent")


def campaign(budget: Budget) -> Outcome:
    """Play the matrix, in a process whose calls can be failed."""
    if not shim.is_possible():
        return Outcome(0, notes={"left out": "calls are failed on Linux only"})
    if not shim.is_loaded():
        return driver.run_in(__name__, budget, shim.environment())
    base = driver.scratch_directory()
    with tempfile.TemporaryDirectory(prefix="pagequeue-fault-", dir=base) as directory:
        return Campaign(budget, Path(directory)).run()


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it was installed."""
    return driver.run_apart(__name__, budget)
