"""Carrying out a plan under the recorder, by handles of one process or by several processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from stress import children
from stress.cut.plan import (
    CALLS,
    HABITS,
    HANDLES,
    LEAP_POINTS,
    MIXED,
    RACE,
    Plan,
    Step,
    habit_of,
    steps_of,
)
from stress.cut.recording import (
    PLACE_ABOUT,
    PLACE_DURABLE,
    PUBLISHED,
    Recorder,
    Recording,
    frames_and_large,
)
from stress.history import Log, Sent
from stress.traffic import Proof

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Message, NamedConsumer

WAIT_SECONDS = 60.0
TAKE_COUNT = 5
LOOK_AHEAD = 20
UIDS_MAX = 1000
FRAME_BYTES = 16


class Gone(NamedTuple):
    """A message whose page was removed, with the fields of a message that a proof uses."""

    sequence: int
    timestamp: int
    payload: bytes


def name_of(place: int) -> str:
    """Return the name of the consumer of the producer in this place."""
    return f"c{place}"


class RunFailed(Exception):
    """The run itself failed, before any power was cut."""


class Actor:
    """One producer with its own queue handle, the results it got, and the guarantees it has.

    The first ones have a named consumer as well.
    """

    def __init__(
        self, plan: Plan, path: str, uid: int, place: int, recorder: Recorder, acked: Log[Sent]
    ) -> None:
        self.plan = plan
        self.path = path
        self.uid = uid
        self.place = place
        self.recorder = recorder
        self.acked = acked
        self.number = 0
        self.consumer: NamedConsumer | None = None
        self.open()

    def open(self) -> None:
        """Open the queue."""
        from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

        self.queue = self.plan.open(self.path)
        self.producer = self.queue.producer()
        if self.place < self.plan.consumers:
            consumer = self.queue.consumer(name_of(self.place))
            assert isinstance(consumer, NamedConsumer)
            self.consumer = consumer
            self.recorder.note(PLACE_ABOUT, self.place, consumer.acknowledged)

    def close(self) -> None:
        """Close it; it flushes unless the plan has syncs switched off."""
        tail = self.queue.tail_sequence
        self.queue.close()
        if self.plan.sync != "none":
            self.recorder.flushed(tail)

    def drop(self) -> None:
        """Close it after a sync failed: it may report that once more."""
        from pagequeue import SyncFailed  # noqa: PLC0415  the core is chosen by now

        with suppress(SyncFailed):
            self.queue.close()

    def send(self) -> None:
        """Run the next operation, and write down what it returned."""
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        number = self.number
        self.recorder.note(self.uid, number, self.queue.tail_sequence)
        try:
            first, count = self.plan.op(self.uid, number).run(self.producer)
        except QueueFull:
            if not self.plan.kept:
                raise
            return
        self.number += 1
        self.acked.put(Sent(self.uid, number, count, first))
        if count and self.plan.op(self.uid, number).publishes:
            self.recorder.note(PUBLISHED, self.uid, number)
            self.recorder.flushed(first + count)
        if self.plan.sync == "always" and count:
            self.recorder.flushed(first + count)

    def flush(self) -> None:
        """Flush, and record the guarantee."""
        self.recorder.flushed(self.producer.flush())

    def take(self, step: Step) -> None:
        """Receive some messages and acknowledge them, durably or not."""
        consumer = self.consumer
        if consumer is None:
            return
        for _ in range(TAKE_COUNT * step.at_pass):
            if consumer.poll() is None:
                break
        place = consumer.sequence
        durable = step.other % 2 == 0
        self.recorder.note(PLACE_ABOUT, self.place, place)
        consumer.ack(durable=durable)
        if durable:
            self.recorder.note(PLACE_DURABLE, self.place, place)

    def fail(self, step: Step) -> bool:
        """Flush while one or two syncs fail; return whether all later writes are refused."""
        from pagequeue import SyncFailed  # noqa: PLC0415  the core is chosen by now

        self.recorder.fail_syncs(step.at_pass, 1 + step.other % 2)
        try:
            self.flush()
        except SyncFailed:
            return self.plan.policy == "stop"
        finally:
            self.recorder.fail_syncs(0, 0)
        return False

    def die(self, step: Step) -> None:
        """Die in the next operation, if it reaches that point; or in the next that publishes.

        Or while rolling from a page that has room for what the others send next; or after a call.
        """
        from pagequeue import QueueFull, _core  # noqa: PLC0415  the core is chosen by now

        if step.point in LEAP_POINTS or (step.point == CALLS and step.other == 0):
            ahead = range(self.number, self.number + LOOK_AHEAD)
            publishing = [one for one in ahead if self.plan.op(self.uid, one).publishes]
            if step.point in LEAP_POINTS:  # what fits into one page is sent as a batch
                publishing = [one for one in publishing if self._takes_pages(one)] or publishing
            first = next(iter(publishing), 0)
            while self.number < first:
                self.send()
        if step.point == CALLS:
            self.die_at_call(step)
            return
        _core.set_kill_point(step.point, step.at_pass)  # type: ignore[attr-defined]
        if step.rotates_and_dies:
            with suppress(QueueFull):
                self.queue.rotate()
        else:
            self.send()
        _core.set_kill_point(0, 0)  # type: ignore[attr-defined]

    def _takes_pages(self, number: int) -> bool:
        payloads = self.plan.op(self.uid, number).payloads
        return sum(map(len, payloads)) + FRAME_BYTES * len(payloads) > self.plan.page_bytes

    def die_at_call(self, step: Step) -> None:
        """Die right after a system call, in an operation that makes several."""
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        self.recorder.die_at_call(step.at_pass)
        with suppress(QueueFull):
            (self.send, self.queue.rotate, self.flush, self.queue.trim)[step.other]()
            self.queue.rotate()
            self.flush()
        self.recorder.die_at_call(0)

    def do(self, step: Step) -> None:
        """Take a step that concerns no other producer."""
        if step.verb == "reopen":
            self.close()
            self.open()
        elif step.verb == "die":
            self.die(step)
        elif step.verb == "take":
            self.take(step)
        elif step.verb == "trim":
            self.queue.trim()
        else:
            {"send": self.send, "flush": self.flush}[step.verb]()


class Run:
    """One recorded run."""

    def __init__(self, plan: Plan, recorder: Recorder, directory: Path) -> None:
        self.plan = plan
        self.recorder = recorder
        self.directory = directory
        self.path = str(directory / "queue")
        self.acked = Log(directory / "acked", Sent)
        self.errors = children.ErrorFile(directory / "errors")
        self.uids: list[int] = []

    def uid(self, habit: int = MIXED) -> int:
        """Return the uid of one more producer."""
        number = self.plan.seed * UIDS_MAX + len(self.uids)
        self.uids.append(number * HABITS + habit)
        return self.uids[-1]

    def actor(self, uid: int, place: int) -> Actor:
        """Return a producer with the queue open, in this process."""
        return Actor(self.plan, self.path, uid, place, self.recorder, self.acked)

    def play(self) -> Recording:
        """Carry out the plan and return what was recorded.

        Raises:
            RunFailed: it failed without any power cut.
        """
        try:
            with self.recorder.recording(self.path):
                by_kind: dict[str, Callable[[], None]] = {HANDLES: self._handles, RACE: self._race}
                by_kind.get(self.plan.kind, self._processes)()
                # What a dead one left of pages below the head goes while it is still recorded.
                self.plan.open(self.path).close()
            log = self.recorder.log()
            sent, large = self._proved(log)
        finally:
            self.acked.close()
            self.errors.close()
        return Recording(f"trace {self.plan.seed}", self.plan.seed, log, sent, large=large)

    def _proved(self, log: bytes) -> tuple[bytes, list[bytes]]:
        """Return the frames that there were, once they are proved to be what was sent."""
        with self.plan.open(self.path) as queue:
            messages = list(queue.replay())
            head, tail = queue.head_sequence, queue.tail_sequence
        sent, large = frames_and_large(Path(self.path), log)
        recording = Recording("", 0, b"", sent, large=large)
        found = [(timestamp, payload) for timestamp, payload, _ in recording.messages()]
        gone = [Gone(i, *one) for i, one in enumerate(found[:head])]
        proof = Proof(self.plan.op, self.uids, self.acked.events())
        proof.run(cast("list[Message]", [*gone, *messages]))
        wrong = proof.violations + self.recorder.failures + self.errors.said()
        if found[head:] != [(message.timestamp, message.payload) for message in messages]:
            wrong.append(f"a replay up to {tail} gives other messages than the pages hold")
        if wrong:
            raise RunFailed("; ".join(wrong))
        return sent, large

    # --- handles in one process -------------------------------------------------------------------

    def _handles(self) -> None:
        actors = [self.actor(self.uid(), place) for place in range(self.plan.producers)]
        for step in steps_of(self.plan):
            actor = actors[step.producer]
            if step.verb == "restart":
                self._open_again(actors, Actor.close)
            elif step.verb == "fail":
                if actor.fail(step):
                    self._open_again(actors, Actor.drop, self._repair)
            elif step.verb == "flush inside":
                other = actors[step.other]
                with self.recorder.calling_at(step.point, step.at_pass, partial(flush_in, other)):
                    actor.send()
            else:
                actor.do(step)
        for one in actors:
            one.close()

    def _open_again(
        self,
        actors: list[Actor],
        close: Callable[[Actor], None],
        between: Callable[[], None] | None = None,
    ) -> None:
        for one in actors:
            close(one)
        if between is not None:
            between()
        for one in actors:
            one.open()

    def _repair(self) -> None:
        """Repair a queue in which a sync failed; then all of it is on stable storage."""
        from pagequeue import Queue, repair_queue  # noqa: PLC0415  the core is chosen by now

        report = repair_queue(self.path)
        if not report.ok:
            raise RunFailed(f"repair failed: {report.remaining}")
        with Queue(self.path, read_only=True) as queue:
            self.recorder.flushed(queue.tail_sequence)

    # --- processes that take turns ----------------------------------------------------------------

    def _processes(self) -> None:
        members = [Member(self, place) for place in range(self.plan.producers)]
        try:
            for step in steps_of(self.plan):
                if step.verb == "restart":
                    for member in members:
                        member.end()
                    members = [Member(self, place) for place in range(len(members))]
                elif not members[step.producer].do(step):
                    members[step.producer] = Member(self, step.producer)
            for member in members:
                member.end()
        finally:
            for member in members:
                member.kill()

    # --- processes that race ----------------------------------------------------------------------

    def _race(self) -> None:
        def body(uid: int, place: int, mine: list[Step]) -> None:
            actor = self.actor(uid, place)
            for step in mine:
                actor.do(step)
            actor.close()

        steps = steps_of(self.plan)
        pids = []
        for number in range(self.plan.producers):
            mine = [step for step in steps if step.producer == number]
            uid = self.uid()
            race = partial(body, uid, number, mine)
            pids.append(children.fork(race, self.errors, f"racer {number}"))
        for pid in pids:
            if children.ended(pid, WAIT_SECONDS) is None:
                children.kill(pid)
                raise RunFailed(f"a producer hangs for {WAIT_SECONDS:g} s")


def flush_in(actor: Actor) -> None:
    """Flush where another one's publish or roll is under way.

    If that one is a part of a flush of the same thread, this one is refused, as documented.
    """
    from pagequeue import LockTimeout  # noqa: PLC0415  the core is chosen by now

    with suppress(LockTimeout):
        actor.flush()


class Member:
    """A producer in a separate process that takes a step when it is told to."""

    def __init__(self, run: Run, place: int) -> None:
        self.run = run
        uid = run.uid(habit_of(run.plan, place))
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def body() -> None:
            os.close(self._commands)
            os.close(self._answers)
            actor = run.actor(uid, place)
            os.write(answers, b"r")
            with os.fdopen(commands, encoding="ascii") as lines:
                for line in lines:
                    if line == "end\n":
                        actor.close()
                    else:
                        actor.do(Step(**json.loads(line)))
                    os.write(answers, b"d")

        self.pid = children.fork(body, run.errors, f"member {uid}")
        os.close(commands)
        os.close(answers)
        self._answered(b"r")

    def _answered(self, expected: bytes) -> bool:
        """Wait for an answer; no answer means that the process is gone."""
        answer = os.read(self._answers, 1)
        if answer == expected:
            return True
        status = children.ended(self.pid, WAIT_SECONDS)
        self._let_go()
        if not children.was_killed(status):
            raise RunFailed(f"a producer ended with {status}: {self.run.errors.said()}")
        return False

    def _let_go(self) -> None:
        self.pid = 0
        os.close(self._commands)
        os.close(self._answers)

    def do(self, step: Step) -> bool:
        """Have it take a step; return whether it is still alive."""
        told: dict[str, Any] = vars(step)
        os.write(self._commands, json.dumps(told).encode() + b"\n")
        return self._answered(b"d")

    def end(self) -> None:
        """Have it close the queue, and end it."""
        if self.pid:
            os.write(self._commands, b"end\n")
            self._answered(b"d")
            self.kill()

    def kill(self) -> None:
        """End it."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._let_go()


def record(seed: int, recorder: Recorder, base: str) -> Recording:
    """Make, carry out and record the plan of a seed, in a directory below `base`.

    Raises:
        RunFailed: it failed without any power cut.
    """
    directory = Path(tempfile.mkdtemp(prefix="pagequeue-cut-", dir=base))
    try:
        return Run(Plan.of(seed), recorder, directory).play()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
