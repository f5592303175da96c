"""Forbids that a process that dies at any one step harms another one.

A child is killed by a real SIGKILL at a chosen step: at each numbered point of the core's publish,
roll, bulk commit and flush, and at each executed Python line of the library that makes, sends to,
rolls, flushes, publishes into and recovers a queue. Then a process that had the queue open must
send and flush without a stall and receive whole frames in order, and an opener must find every
acknowledged message, once, byte for byte, batches and publications whole, none invented (I2, I3,
I4, I8, I10, I19). Recovery itself is killed too, twice in a row. A case is a death.
"""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
import time
from collections import defaultdict
from itertools import count, product
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from stress import driver, variant
from stress.campaign import Budget, Outcome
from stress.lines import PLACES_FILE, SCENARIOS, Scenario, Template, act
from stress.steps import KINDS, PAGE_BYTES, Scene, uid_of
from stress.traced import At, Deaths
from stress.traffic import VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pagequeue.types import Sync

    Step = tuple[int, str, bool | None]

SHORT_SECONDS = 6.0

PUBLISH_POINTS = range(1, 9)
ROLL_POINTS = range(11, 16)
FLUSH_POINTS = range(16, 18)
LEAP_POINTS = range(31, 36)
"""Of publishing many pages by one store."""
LEAPS = ("publish", "large", "batch with large")
"""Kinds of traffic that do so."""
POINTS = (*PUBLISH_POINTS, *ROLL_POINTS, *FLUSH_POINTS)
BEFORE_HEADER, BEHIND_ROLL = 11, 15
PASSES_MAX = 12
LINE_UIDS = 1 << 32
"""Victims that die at lines have uids from here on: what they send is the seed's."""
VICTIM_OPS = 600
EARLY_DEATHS = 2
"""Lines at which victims die each time after a scenario was played undisturbed."""


class Campaign:
    """All steps in an order of the seed, until the budget is used up."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.rng = random.Random(budget.seed)
        self.base = driver.scratch_directory()
        self.deadline = time.monotonic() + budget.seconds
        self.numbers = count(2)
        self.outcome = Outcome(0, notes={"points": {}, "lines": {}})
        self.deaths: Deaths[tuple[Scenario, int]] = Deaths()

    def run(self) -> Outcome:
        """Give points of the core and lines of Python the same time."""
        with tempfile.TemporaryDirectory(prefix="pagequeue-step-", dir=self.base) as directory:
            template = Template(Path(directory))
            points = self.points()
            lines = self.lines(template)
            spent = {points: 0.0, lines: 0.0}
            while not self.finished():
                kind = min(spent, key=spent.__getitem__)
                started = time.monotonic()
                next(kind)
                spent[kind] += time.monotonic() - started
        self.outcome.require(self.budget, self.parts())
        return self.outcome

    def parts(self) -> dict[str, int]:
        """Return how often each part was tried."""
        notes = self.outcome.notes
        return {"points": len(notes["points"]), "lines": notes["lines"].get("tried", 0)}

    def finished(self) -> bool:
        """Whether the budget is used up, or there are enough violations to examine."""
        enough = self.budget.cases is not None and self.outcome.cases >= self.budget.cases
        failed = len(self.outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX)
        late = time.monotonic() >= self.deadline and all(self.parts().values())
        return enough or failed or late

    def scene(self, name: str, play: Callable[[Scene], None]) -> None:
        """Play one scene in a new directory and count its deaths."""
        with (
            tempfile.TemporaryDirectory(prefix="pagequeue-step-", dir=self.base) as directory,
            Scene(directory) as scene,
        ):
            try:
                play(scene)
            except Exception as error:  # noqa: BLE001  opening or proving failed: that is the case
                scene.violations.append(f"{type(error).__name__}: {error}")
                scene.violations += scene.errors.said()
            self.outcome.cases += scene.killed
            self.outcome.violations += [f"{name}: {text}" for text in scene.violations]

    # --- points of the core -----------------------------------------------------------------------

    def points(self) -> Iterator[None]:
        """Every point, by every kind of traffic, at its first pass and at random later ones."""
        notes = self.outcome.notes["points"]
        for turn in count():
            either: tuple[bool | None, ...] = (None,)  # with a survivor or without, by chance
            steps = list(product(POINTS, ("single", "batch", "rotate", "rows"), either))
            steps += product(POINTS, ("publish", "large"), either)
            leaps = list(product(LEAP_POINTS, LEAPS, either if turn else (True, False)))
            for point, kind, has_survivor in self.woven(leaps, steps):
                at_pass = 1 + turn if turn < 2 else self.rng.randint(1, PASSES_MAX)
                name = f"point {point}, pass {at_pass}, {kind}"
                survivor = self.rng.random() < 0.75 if has_survivor is None else has_survivor
                next_points = LEAP_POINTS if point in LEAP_POINTS else POINTS
                again = self.rng.choice([None, None, self.rng.choice(next_points)])
                if point == BEFORE_HEADER:
                    again = self.rng.choice([again, BEHIND_ROLL])
                self.scene(name, self.at_point(point, at_pass, kind, again, survivor=survivor))
                notes[f"{kind} {point}"] = notes.get(f"{kind} {point}", 0) + 1
                yield

    def woven(self, rare: list[Step], usual: list[Step]) -> list[Step]:
        """Shuffle both lists, and mix them so that a short run meets both evenly."""
        placed = []
        for steps in (self.shuffled(rare), self.shuffled(usual)):
            placed += [(at / len(steps), step) for at, step in enumerate(steps)]
        placed.sort(key=itemgetter(0))
        return [step for _, step in placed]

    def shuffled(self, steps: list[Step]) -> list[Step]:
        """Shuffle steps, but take each point once before any is taken again."""
        times = defaultdict[int, "count[int]"](count)
        order = self.rng.sample(steps, len(steps))
        return sorted(order, key=lambda step: next(times[step[0]]))

    def at_point(
        self, point: int, at_pass: int, kind: str, again: int | None, *, survivor: bool
    ) -> Callable[[Scene], None]:
        """Return the scene in which victims die at points of the core."""

        def play(scene: Scene) -> None:
            if survivor:
                scene.start_survivor(next(self.numbers))
            if not self.victim(scene, point, at_pass, kind):
                scene.violations.append("the victim did not reach that point")
            # A publisher dies there in a roll of a staged page, or of the queue.
            if again == BEHIND_ROLL and point == BEFORE_HEADER and kind not in LEAPS:
                scene.tear_next_header(sequence_first=self.rng.random() < 0.5)
            if again is not None:
                self.victim(scene, again, 1, "mixed")
            scene.verify()
            if survivor:
                scene.let_survivor_go_on()
            scene.prove()

        return play

    def victim(self, scene: Scene, point: int, at_pass: int, kind: str) -> bool:
        """Have a producer die at a point of the core; return whether it did."""
        uid = uid_of(KINDS[kind], next(self.numbers))

        def body() -> None:
            from pagequeue import Queue, _core  # noqa: PLC0415  the core is chosen by now

            sync: Sync = "always" if point in FLUSH_POINTS else "none"
            queue = Queue(scene.path, page_bytes=PAGE_BYTES, sync=sync)
            with queue, queue.producer() as producer:
                _core.set_kill_point(point, at_pass)  # type: ignore[attr-defined]
                for number in range(VICTIM_OPS):
                    scene.send(producer, uid, number)

        return scene.sacrifice(uid, body, f"victim at point {point}")

    # --- lines of Python --------------------------------------------------------------------------

    def lines(self, template: Template) -> Iterator[None]:
        """Every line of every scenario, in an order from the seed; then all over again.

        Some of what is known comes before the next scenario is played, for a run that ends there.
        """
        ends: dict[str, int | None] = {}
        plays = [
            (turn, self.rng.random(), scenario)
            for scenario in SCENARIOS
            for turn in range(scenario.plays)
        ]
        for _, _, scenario in sorted(plays, key=itemgetter(0, 1)):
            self.scene(scenario.name, self.counted(template, scenario, ends))
            yield
            for (known, uid), at in self.deaths.ordered(self.rng)[:EARLY_DEATHS]:
                self.at_line(template, known, uid, at, ends[known.name])
                yield
        while True:
            for (scenario, uid), at in self.deaths.ordered(self.rng):
                self.at_line(template, scenario, uid, at, ends[scenario.name])
                yield

    def at_line(
        self, template: Template, scenario: Scenario, uid: int, at: At, ending: int | None
    ) -> None:
        """Have a victim die at a line, and sometimes one after it."""
        survivor = not scenario.fresh and not scenario.recovers and self.rng.random() < 0.5
        at_lines = {uid: at}
        if self.rng.random() < 0.5:
            another = self.deaths.another((scenario, uid), self.rng)
            at_lines[uid_of(scenario.kind, next(self.numbers))] = another
        play = self.at_lines(template, scenario, at_lines, ending, survivor=survivor)
        where = ", then ".join(map(str, at_lines.values()))
        self.scene(f"{scenario.name}, died at {where}", play)
        tried = self.outcome.notes["lines"].get("tried", 0) + 1
        self.outcome.notes["lines"] = {"tried": tried, **self.deaths.notes()}

    def counted(
        self, template: Template, scenario: Scenario, ends: dict[str, int | None]
    ) -> Callable[[Scene], None]:
        """Return the scene in which no victim dies, and which records the lines there are.

        What is sent follows from the uid, and so do the lines: the victim has the same uid.
        """
        uid = uid_of(scenario.kind, self.rng.randrange(LINE_UIDS, 2 * LINE_UIDS))

        def play(scene: Scene) -> None:
            ends[scenario.name] = template.end_sequence(scene, scenario)
            shutil.rmtree(scene.path, ignore_errors=True)
            with Scene(str(scene.directory / "counted")) as counted:
                template.place(counted, scenario)
                counted.sacrifice(uid, lambda: act(counted, scenario, uid, None), "no victim")
                counted.prove(ends[scenario.name])
                scene.violations += counted.violations
                self.deaths.add((scenario, uid), counted.directory / PLACES_FILE)

        return play

    def at_lines(
        self,
        template: Template,
        scenario: Scenario,
        at_lines: Mapping[int, At],
        ending: int | None,
        *,
        survivor: bool,
    ) -> Callable[[Scene], None]:
        """Return the scene in which victims, by uid, die at Python lines."""

        def play(scene: Scene) -> None:
            template.place(scene, scenario)
            if survivor:
                scene.start_survivor(next(self.numbers))
            for uid, at in at_lines.items():
                body = functools.partial(act, scene, scenario, uid, at)
                scene.sacrifice(uid, body, f"victim at {at}")
            self.deaths.died(scene.directory / PLACES_FILE)
            if survivor:
                scene.let_survivor_go_on()
            scene.prove(ending)

        return play


def campaign(budget: Budget) -> Outcome:
    """Run the steps; in a process that has no queue open and a core with kill points."""
    return Campaign(budget).run()


def run_with(budget: Budget, defines: Mapping[str, str]) -> Outcome:
    """Run the campaign on a core that was built with these defines."""
    return driver.run_apart(__name__, budget, defines)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the core as it is, with kill points."""
    return run_with(budget, variant.KILL_POINTS)
