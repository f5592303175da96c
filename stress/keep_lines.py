"""Dying at the N-th executed Python line of trimming, of making room, and of what moves a cursor.

Each case begins with the copy of a queue of some pages and two named consumers, made once. The
witness is a process that has the queue open before the victim comes, or opens it afterwards; then
the first opener recovers it. It proves the messages and continues with it.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.children import STALL_SECONDS
from stress.keep_scenarios import (
    BEHIND,
    BEHIND_AT,
    DONE,
    MUCH,
    NEW,
    PAGE_BYTES,
    Layout,
    Scenario,
)
from stress.steps import PAGE_NUMBER_AT
from stress.tampering import overwrite
from stress.traced import At, Deaths, Victim
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pagequeue import Queue

SURVIVES: Final = 0.5
SHORT_SCENARIOS: Final = 3
HANG_SECONDS: Final = 45.0
PLACES_FILE: Final = "places"


# --- one case -------------------------------------------------------------------------------------


def make_template(path: str, layout: Layout) -> None:
    """Make the queue that all cases begin with."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    with Queue(path, page_bytes=PAGE_BYTES) as queue:
        names = {DONE: queue.consumer(DONE), BEHIND: queue.consumer(BEHIND)}
        with queue.producer() as producer:
            for sequence in range(layout.total):
                producer.send(layout.payload(sequence))
        for name, place in ((DONE, layout.total), (BEHIND, BEHIND_AT)):
            for _ in range(place):
                names[name].receive(0)
            names[name].ack(durable=True)


class Witness:
    """Has victims die, and proves the queues they leave; in a separate process."""

    def __init__(self, path: str, scenario: Scenario, errors: children.ErrorFile) -> None:
        self.path, self.scenario, self.errors = path, scenario, errors

    def run(self, deaths: tuple[At | None, ...], *, survives: bool) -> None:
        """Have a victim die at each of these lines, one after the other, then continue.

        Args:
            deaths: None: no victim dies, and the places of all lines are recorded.
            survives: whether this process has the queue open all the while.
        """
        with ExitStack() as stack:
            queue = stack.enter_context(self.scenario.open(self.path)) if survives else None
            for at in deaths:
                pid = children.fork(functools.partial(self.victim, at), self.errors, "victim")
                if children.ended(pid, HANG_SECONDS) is None:
                    children.kill(pid)
                    raise AssertionError(f"the victim at {at} hangs")
            self.prove(queue or stack.enter_context(self.scenario.open(self.path)))
        with self.scenario.open(self.path):
            strays = [name for name in os.listdir(self.path) if ".tmp-" in name]
            assert not strays, f"left over: {strays}"

    def victim(self, at: At | None) -> None:
        """Die at a line, if execution reaches it."""
        notes = Path(self.path).with_name(PLACES_FILE)
        if self.scenario.cut:
            victim = Victim(at, notes, self.path)
            with self.scenario.open(self.path):
                victim.end()
        else:
            with self.scenario.open(self.path) as queue:
                victim = Victim(at, notes, self.path)
                self.scenario.act(queue)
                victim.end()

    def prove(self, queue: Queue) -> None:
        """Compare what is there, then trim, send and receive."""
        head = self.whole(queue)
        cursors = {c.name: c for c in queue.consumers()}
        self.cursors_are_right(queue, cursors, head)
        started = time.monotonic()
        queue.trim()
        pages = sorted(int(n[6:16]) for n in os.listdir(self.path) if n.endswith(".page"))
        head_page = queue._store.read_meta.head_page
        assert pages[0] == head_page, f"page {pages[0]} is left, the head is {head_page}"
        took = time.monotonic() - started
        assert took <= STALL_SECONDS, f"trimming took {took:.3f} s"
        self.whole(queue)
        self.go_on(queue, sorted(cursors))

    def whole(self, queue: Queue) -> int:
        """Compare all messages; return the head."""
        head, tail = queue.head_sequence, queue.tail_sequence
        messages = [(m.sequence, m.payload) for m in queue.replay()]
        payload = self.scenario.layout.payload
        assert messages == [(i, payload(i)) for i in range(head, tail)], f"not {head} to {tail}"
        assert self.scenario.tail <= tail <= self.scenario.tail + 2 * MUCH, f"it ends at {tail}"
        assert self.scenario.layout.begins_page(head), f"the head is {head}"
        problems = queue.verify().problems
        assert not problems, f"verify: {problems}"
        return head

    def cursors_are_right(self, queue: Queue, cursors: Mapping[str, object], head: int) -> None:
        """Each is where it was or where it was moved to, and the messages it needs are there."""
        from pagequeue import NamedConsumer  # noqa: PLC0415  the core is chosen by now

        tail = self.scenario.tail
        allowed: dict[str, tuple[int | None, ...]] = {
            DONE: (tail,),
            BEHIND: self.scenario.places,
            NEW: (None, 0, 10),
        }
        for name, places in allowed.items():
            if name not in cursors:
                assert None in places, f"{name} is gone"
                continue
            with queue.consumer(name, on_expired="skip") as consumer:
                assert isinstance(consumer, NamedConsumer)
                place = consumer.acknowledged
                assert place in places, f"{name} is at {place}, not at one of {places}"
                if self.scenario.protects:
                    assert place >= head, f"{name} needs {place}, and the head is {head}"

    def go_on(self, queue: Queue, names: list[str]) -> None:
        """Send some more: every consumer receives all from its place on."""
        from pagequeue import QueueFull  # noqa: PLC0415  the core is chosen by now

        tail, payload = queue.tail_sequence, self.scenario.layout.payload
        with queue.producer() as producer, suppress(QueueFull):
            producer.send(payload(tail))
        end = queue.tail_sequence
        for name in names:
            with queue.consumer(name, on_expired="skip") as consumer:
                begin = consumer.sequence
                found = []
                while consumer.lag:
                    found += [(m.sequence, m.payload) for m in consumer.receive_many(64, 0)]
                begin += consumer.missed
                assert found == [(i, payload(i)) for i in range(begin, end)], f"{name}: not all"
                assert not (consumer.missed and self.scenario.protects), f"{name} missed a message"


def place_copy(template: Path, path: str, scenario: Scenario) -> None:
    """Put the queue where the case wants it."""
    shutil.copytree(template, path)
    if scenario.cut:
        meta = Path(path, "queue-writeMeta").read_bytes()
        number = int.from_bytes(meta[PAGE_NUMBER_AT : PAGE_NUMBER_AT + 8], "little")
        overwrite(Path(path, f"queue-{number:010}.page"), 64 + 8, b"torn")
        return
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    pid = os.fork()  # this process has no queue open, and shall have none
    if pid == 0:
        Queue(path).close()  # so that the victim finds a recovered copy
        os._exit(0)
    os.waitpid(pid, 0)


def one_case(
    base: Path,
    template: Path,
    scenario: Scenario,
    deaths: tuple[At | None, ...],
    use_places: Callable[[Path], None],
    *,
    survives: bool,
) -> list[str]:
    """Play one case, pass on the file of places, and return the violations."""
    directory = Path(tempfile.mkdtemp(dir=base))
    path = str(directory / "queue")
    errors = children.ErrorFile(directory / "errors")
    try:
        place_copy(template, path, scenario)
        witness = Witness(path, scenario, errors)
        pid = children.fork(lambda: witness.run(deaths, survives=survives), errors, "witness")
        wrong = []
        if children.ended(pid, 2 * HANG_SECONDS) is None:
            children.kill(pid)
            wrong = ["the witness hangs"]
        wrong += [said.strip().splitlines()[-1] for said in errors.said()]
        use_places(directory / PLACES_FILE)
        return wrong
    finally:
        errors.close()
        shutil.rmtree(directory)


def run(budget: Budget, scenarios: tuple[Scenario, ...]) -> Outcome:
    """Have victims die at all lines, in an order of the seed, until the budget is used up."""
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    if budget.short:  # executing all lines of one takes most of a second
        scenarios = tuple(rng.sample(scenarios, SHORT_SCENARIOS))
    outcome = Outcome(0)
    deaths: Deaths[Scenario] = Deaths()
    with tempfile.TemporaryDirectory(prefix="pagequeue-keep-", dir=driver.scratch_directory()) as d:
        base, template = Path(d), Path(d) / "template"
        errors = children.ErrorFile(base / "errors")
        children.ended(
            children.fork(
                lambda: make_template(str(template), scenarios[0].layout), errors, "template"
            ),
            HANG_SECONDS,
        )
        outcome.violations += errors.said()
        errors.close()
        for scenario in scenarios:
            take = functools.partial(deaths.add, scenario)
            survives = not scenario.cut
            wrong = one_case(base, template, scenario, (None,), take, survives=survives)
            outcome.violations += [f"{scenario.name}, no victim died: {w}" for w in wrong]
            outcome.cases += 1
        # Executing the lines kills none: half of the time remains for that.
        deadline = max(deadline, time.monotonic() + budget.seconds / 2)
        for scenario, at in deaths.ordered(rng):
            enough = budget.cases is not None and outcome.cases >= budget.cases
            late = time.monotonic() >= deadline and outcome.cases > len(scenarios)
            if (
                enough
                or late
                or len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
            ):
                break
            again = (deaths.another(scenario, rng),) if rng.random() < 0.3 else ()
            survives = not scenario.cut and rng.random() < SURVIVES
            steps = (at, *again)
            wrong = one_case(base, template, scenario, steps, deaths.died, survives=survives)
            outcome.violations += [
                f"{scenario.name}, died at {', then '.join(map(str, steps))}, "
                f"{'with' if survives else 'without'} a survivor: {w}"
                for w in wrong
            ]
            outcome.cases += len(steps)
    tried = outcome.cases - len(scenarios)
    outcome.notes = {"tried": tried, **deaths.notes()}
    outcome.require(budget, {"lines": tried})
    return outcome
