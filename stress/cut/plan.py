"""What a recorded run does: a plan that follows from a seed, and the producers that carry it out.

Payloads are of two kinds. Mixed ones are what the kill campaigns send. Echoes have one size in the
whole run and bodies that are all the same, under a clock that may stop or go back: then frames of
different histories fit into each other's places, and only what the library does about them, not
luck, keeps them apart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stress.keeping import use_small_pages_again
from stress.traffic import HEADER, LARGE_IN_BATCH, LARGE_WAYS, Op, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Queue
    from pagequeue.types import OnSyncFailure, Sync

START: Final = 1_700_000_000_000_000_000
HANDLES, PROCESSES, RACE = "handles", "processes", "race"
KINDS: Final = (HANDLES, HANDLES, PROCESSES, PROCESSES, RACE)
CLOCKS: Final = ("real", "still", "still", "back")
KEEPING_STEPS: Final = 30
KEEPS_SHARE: Final = 0.3
"""Of the plans, those with named consumers."""
REUSES_SHARE: Final = 0.7
"""Of those, the ones in which files of retired pages are reused."""
POLICIES: Final = ("stop", "seal")
SYNCS: Final[tuple[Sync, ...]] = (
    "none",
    "none",
    "none",
    "always",
    3,
    7,
    timedelta(milliseconds=50),
)
"""Timers that flush more often keep the recorder busy, and starve the other processes."""
PAGE_BYTES: Final = (4096, 8192, 8192, 16384, 32768)
PUBLISH_POINTS: Final = range(1, 9)
ROLL_POINTS: Final = range(11, 16)
HEADER_POINTS: Final = (12, 13)
"""Where the next page has its header, and no mark leads to it."""
INSIDE_BATCH: Final = (3, 4)
LEAP_POINTS: Final = range(31, 36)
COMMIT_POINTS: Final = range(32, 34)
"""Where the pages have their names, and no message is visible."""
CALLS: Final = 50
"""Not a point of the core: to die at a call to the system."""
CALLS_MAX: Final = 16
ECHO_BATCH_MAX: Final = 6
PUBLISHES_SHARE: Final = 0.5
"""Of the plans that may, those in which producers publish."""
PUBLISH_PARTS: Final = 48
PUBLISH_COUNT_MAX: Final = 120
LARGE_PARTS: Final = 32
PUBLISHED_PAGE_BYTES_MAX: Final = 8192
"""More would be too much to record."""
LARGE_SHARE: Final = 0.08
"""Of the plans, those in which mostly large messages and batches with such are sent."""
LARGE_PAGE_BYTES: Final = PAGE_BYTES[0]
LARGE_PLAN_PARTS: Final = 160
LARGE_PLAN_WAYS: Final = (*LARGE_WAYS, *4 * [LARGE_IN_BATCH])
LARGE_PLAN_SYNCS: Final[tuple[Sync, ...]] = ("none", "none", "none", "always", 7)
LARGE_PLAN_STEPS_MAX: Final = 12
"""Each of them takes several pages, which have to be recorded."""
MIXED, SINGLES, BATCHES, HABITS = range(4)
"""What a producer of echoes sends, by its uid modulo the number of habits."""


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        seed: all else follows from it.
        kind: whether the producers are handles in one process, processes that take turns (and
            die), or processes that race.
        producers: how many at a time.
        steps: of all of them together.
        page_bytes: of the queue.
        sync: as `Queue` takes it.
        policy: what is done when a sync fails, as `Queue` takes it.
        clock: real, standing still, or going back.
        echo: size of all payloads, or 0 for mixed ones.
        kept: pages that retention allows, or 0 for no retention.
        consumers: named ones; each belongs to the producer in its place.
        reuses: whether files of retired pages become the next ones.
        publishes: whether some of what is sent is published as one, mostly in pages.
        large: whether most of what is sent does not fit into one page.
    """

    seed: int
    kind: str
    producers: int
    steps: int
    page_bytes: int
    sync: Sync
    policy: OnSyncFailure
    clock: str
    echo: int
    kept: int = 0
    consumers: int = 0
    reuses: bool = False
    publishes: bool = False
    large: bool = False

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Return the plan of a seed."""
        rng = random.Random(seed)
        page_bytes = rng.choice(PAGE_BYTES)
        keeping = random.Random(seed ^ 0x4EE9)
        keeps = keeping.random() < KEEPS_SHARE
        if keeps:  # many pages, so that some are removed
            page_bytes = keeping.choice(PAGE_BYTES[:2])
        plan = cls(
            seed=seed,
            kind=rng.choice(KINDS),
            producers=rng.randint(2, 4),
            steps=rng.randint(15, 50) + keeps * KEEPING_STEPS,
            page_bytes=page_bytes,
            sync=rng.choice(SYNCS),
            policy=rng.choice(POLICIES),
            clock=rng.choice(CLOCKS),
            echo=rng.choice((0, *2 * [rng.randint(HEADER.size, page_bytes // 8)])),
            kept=keeping.choice((0, 2, 2, 3, 4)) if keeps else 0,
            consumers=keeping.randint(1, 2) if keeps else 0,
            reuses=keeps and keeping.random() < REUSES_SHARE,
            publishes=page_bytes <= PUBLISHED_PAGE_BYTES_MAX
            and not keeps
            and random.Random(seed ^ 0x1EA9).random() < PUBLISHES_SHARE,
        )
        if not keeps and random.Random(seed ^ 0xB16).random() < LARGE_SHARE:
            plan = dataclasses.replace(  # a race would take too long while it is recorded
                plan,
                kind=HANDLES if plan.kind == RACE else plan.kind,
                page_bytes=LARGE_PAGE_BYTES,
                steps=min(plan.steps, LARGE_PLAN_STEPS_MAX),
                sync=LARGE_PLAN_SYNCS[seed % len(LARGE_PLAN_SYNCS)],
                echo=0,
                publishes=True,
                large=True,
            )
        return plan

    @property
    def words(self) -> str:
        """Return it in one line."""
        sends = f"echoes of {self.echo} bytes" if self.echo else "mixed payloads"
        return (
            f"{self.producers} {self.kind}, {self.steps} steps, {sends}, pages of "
            f"{self.page_bytes}, sync {self.sync}, {self.policy}, clock {self.clock}, "
            f"{self.consumers} named consumers, {self.kept or 'all'} pages kept"
            f"{', used again' * self.reuses}{', published in parts' * self.publishes}"
            f"{', mostly large' * self.large}"
        )

    def ticks(self) -> Callable[[], int] | None:
        """Return a producer's clock; None for the system's."""
        if self.clock == "real":
            return None
        step = 1_000_000 if self.clock == "back" else 0
        now = START

        def clock() -> int:
            nonlocal now
            now -= step
            return now

        return clock

    def open(self, path: str) -> Queue:
        """Open the queue as this plan's producers do."""
        from pagequeue import Queue, Retention  # noqa: PLC0415  the core is chosen by now

        use_small_pages_again(really=self.reuses)  # this process opens queues of many plans
        return Queue(
            path,
            page_bytes=self.page_bytes,
            sync=self.sync,
            on_sync_failure=self.policy,
            clock=self.ticks(),
            retention=Retention(max_bytes=self.kept * self.page_bytes or None),
        )

    def op(self, uid: int, number: int) -> Op:
        """Return operation `number` of producer `uid`."""
        if self.echo:
            return self._echo(uid, number)
        shape = Shape(
            payload_bytes_max=self.page_bytes * 3 // 10,
            batch_bytes_max=self.page_bytes * 6 // 10,
            batch_count_max=8,
            batch_parts=80,
            rotate_parts=8,
            row_parts=64,
            publish_parts=PUBLISH_PARTS * self.publishes,
            publish_count_max=PUBLISH_COUNT_MAX,
            large_parts=LARGE_PLAN_PARTS if self.large else LARGE_PARTS * self.publishes,
            large_bytes=2 * self.page_bytes,
            large_ways=LARGE_PLAN_WAYS if self.large else LARGE_WAYS,
        )
        return shape.op(uid, number)

    def _echo(self, uid: int, number: int) -> Op:
        draw = hashlib.blake2b(b"%d %d" % (uid, number), digest_size=3).digest()
        if self.publishes and uid % HABITS == MIXED and draw[2] < PUBLISH_PARTS:
            count = 1 + draw[1] % min(PUBLISH_COUNT_MAX, 3 * self.page_bytes // (self.echo + 16))
            body = bytes(self.echo - HEADER.size)
            rows = [HEADER.pack(uid, number, i, count, self.echo, 0) + body for i in range(count)]
            return Op(rows, publishes=(uid, number))
        batch = uid % HABITS == BATCHES or (uid % HABITS == MIXED and draw[0] < 128)
        count = 2 + draw[1] % (ECHO_BATCH_MAX - 1) if batch else 1
        body = bytes(self.echo - HEADER.size)
        return Op([HEADER.pack(uid, number, i, count, self.echo, 0) + body for i in range(count)])


@dataclass(frozen=True)
class Step:
    """One action of one producer.

    Attributes:
        verb: send, flush, reopen, restart (all of them), die (in a send), flush inside (of
            another one's send), fail (in a flush), take (receive and acknowledge), trim.
        producer: which one.
        point: of the core, to die or to flush at.
        at_pass: of that point; the sync that fails.
        other: the producer that flushes inside.
    """

    verb: str
    producer: int
    point: int = 0
    at_pass: int = 1
    other: int = 0

    @property
    def rotates_and_dies(self) -> bool:
        """Whether the producer dies while it seals a page that has room for more."""
        return self.verb == "die" and self.point in ROLL_POINTS and self.other % 2 == 1


def steps_of(plan: Plan) -> list[Step]:
    """Return the steps of a plan, in order."""
    rng = random.Random(plan.seed ^ 0x57E9)
    verbs = {"send": 100, "flush": rng.choice((3, 10, 25)), "reopen": 2}
    if plan.kind == HANDLES:
        verbs |= {"restart": 2, "flush inside": rng.choice((0, 10))}
        # A thread that flushes or trims would take the failure.
        if not isinstance(plan.sync, timedelta) and not plan.kept:
            verbs |= {"fail": rng.choice((0, 5, 20))}
    if plan.kind == PROCESSES:
        verbs |= {"die": rng.choice((5, 30)), "restart": 1}
    if plan.consumers:
        verbs |= {"take": 60, "trim": 12 if plan.kept else 0}
    steps = []
    for verb in rng.choices(list(verbs), list(verbs.values()), k=plan.steps):
        producer = rng.randrange(plan.producers)
        other = (producer + rng.randint(1, plan.producers - 1)) % plan.producers
        points = PUBLISH_POINTS if rng.random() < 0.8 else ROLL_POINTS
        point = rng.choice((*2 * INSIDE_BATCH, *points))
        at_pass = rng.choice((1, 1, 2, 3)) if verb != "die" else 1
        if verb == "die" and plan.publishes and rng.random() < 0.5:
            # The last one: the first two, of processes, do not publish.
            point = rng.choice((*LEAP_POINTS, CALLS, CALLS))
            at_pass = rng.randint(1, CALLS_MAX) if point == CALLS else 1
            steps.append(Step("die", plan.producers - 1, point, at_pass))
        elif verb == "die" and rng.random() < 0.4:
            steps.append(Step("die", producer, CALLS, rng.randint(1, CALLS_MAX), rng.randrange(4)))
        elif verb == "die" and rng.random() < 0.3:
            # What others send then has the sequence in the next page's header, and is flushed.
            point = rng.choice((*ROLL_POINTS, *HEADER_POINTS))
            steps.append(Step("die", producer, point, 1, other))
            steps += [Step(verb, other) for verb in ("send", "send", "flush")[: rng.choice((0, 3))]]
        elif verb == "die" and rng.random() < 0.7:
            # Half a batch, and then a message that ends where the batch's second one begins.
            inside = rng.choice(INSIDE_BATCH)
            steps.append(Step("die", 0, inside, rng.randint(2, 3) if inside == 3 else 1))
            steps.append(Step("send", 1))
        else:
            steps.append(Step(verb, producer, point, at_pass, other))
    return steps


def habit_of(plan: Plan, place: int) -> int:
    """Return the habit of the producer in this place: the first and second are made to collide."""
    return (BATCHES, SINGLES)[place] if plan.kind == PROCESSES and place < 2 else MIXED
