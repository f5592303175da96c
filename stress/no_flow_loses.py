"""Forbids that a flow loses, doubles in its queue, reorders or invents an element.

Two processes compete for one flow (`Queue.persist`): its holder draws numbered elements from an
upstream that continues after the last stored message, and writes down each element that comes out
before it asks for the next. The upstream is a thread's or a task's, the downstream is blocking or
asynchronous; the queue is small, so that the upstream has to wait; some elements are larger than a
page; acknowledgements are automatic
or by hand. Processes are killed at random times, or break off, fail, are cancelled or close in good
order; now and then the shared state is made to look like another boot's, so that the next one has
to recover. Some lives give only a few elements, and then empty the queue by rotating and trimming,
so that only the retained state determines where the next one continues. In the end a last life
drains the rest, and everything is compared: the queue has each element once and in order; each
element came out at least once, no life begins after an element that no life has finished, and none
before the last acknowledgement (I11). A case is a life that was ended.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stress import children, driver, tampering
from stress.history import Log
from stress.rounds import in_rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stress.campaign import Budget, Outcome

SHORT_SECONDS = 3.0
VIOLATIONS_MAX = 5
PAGE_BYTES = 8192
PAGES = 8
LIVES_MAX = 60
MEAN_LIFE_SECONDS = 0.035
CUT_SHARE = 0.15
END_SECONDS = 60.0
FILL = random.Random(7).randbytes(2 * PAGE_BYTES)
LARGE_EVERY = 61
"""One element in so many does not fit into one page."""
HOW = ("blocking", "thread to loop", "task to loop")


def element(number: int) -> bytes:
    """Return an element: its number, and a filling that follows from it."""
    size = number * 2654435761 % 701
    end = 2 * size if number % LARGE_EVERY else PAGE_BYTES + 4 * size
    return number.to_bytes(8, "little") + FILL[size:end]


class CameOut(NamedTuple):
    """An element that came out of the flow."""

    uid: int  # of the life
    number: int
    acknowledged: int  # before it


class BrokenOffError(Exception):
    """How a life ends that fails."""


class Life:
    """One process that has the flow, until it is killed or exits."""

    def __init__(self, directory: Path, seen: Log[CameOut], uid: int, total: int) -> None:
        self.path = str(directory / "q")
        self.seen = seen
        self.uid = uid
        self.total = total
        self.rng = random.Random(uid)
        self.how = self.rng.choice(HOW)
        self.by_hand = self.rng.random() < 0.3
        self.naps = self.rng.random() < 0.3
        self.count_max = self.rng.choice((None, None, None, 10, 300))
        self.ending = self.rng.choice(("break", "raise", "cancel", "close"))
        self.give_max = self.rng.choice((total, total, 3, 40))
        self.empties = self.give_max < total

    def begin(self, last: Any) -> int:  # noqa: ANN401 - the package is imported later
        """Return the element after the last message of the queue."""
        return 0 if last is None else int.from_bytes(last.payload[:8], "little") + 1

    def numbers(self, last: Any) -> range:  # noqa: ANN401
        """Return which elements this life gives."""
        begin = self.begin(last)
        return range(begin, min(begin + self.give_max, self.total))

    def blocking(self, last: Any) -> Iterator[bytes]:  # noqa: ANN401
        """Give the elements from there on."""
        for number in self.numbers(last):
            if number % 97 == 0:
                time.sleep(0.0005)
            yield element(number)

    async def suspending(self, last: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
        """Give the elements from there on, with suspensions."""
        for number in self.numbers(last):
            if number % 5 == 0:
                await asyncio.sleep(0.0005 if number % 97 == 0 else 0)
            yield element(number)

    def source(self, last: Any) -> Any:  # noqa: ANN401
        """Return the upstream of this life."""
        return self.suspending(last) if self.how == "task to loop" else self.blocking(last)

    def took(self, flow: Any, message: Any, count: int) -> bool:  # noqa: ANN401
        """Write down what came out; return whether the life continues."""
        number = int.from_bytes(message.payload[:8], "little")
        if message.payload != element(number) or message.sequence != number:
            raise AssertionError(f"{message.sequence} came out as {number}: not what was sent")
        self.seen.put(CameOut(self.uid, number, flow.acknowledged))
        if self.by_hand and number % 7 == 0:
            flow.commit(message)
        if self.naps and number % 50 == 0:
            time.sleep(0.002)
        return count != self.count_max

    def run(self) -> None:
        """Live: wait for the flow to be free, then hold it."""
        from pagequeue import ConsumerInUse, Queue, Retention  # noqa: PLC0415

        age = timedelta(microseconds=1) if self.empties else None
        retention = Retention(max_bytes=PAGES * PAGE_BYTES, max_age=age)
        with Queue(self.path, page_bytes=PAGE_BYTES, retention=retention, on_full="block") as queue:
            while True:
                try:
                    if self.how == "blocking":
                        self.live(queue)
                    else:
                        asyncio.run(self.live_async(queue))
                except ConsumerInUse:
                    time.sleep(0.002)
                except (BrokenOffError, asyncio.CancelledError):
                    return
                else:
                    if self.empties and self.ending != "close":
                        queue.rotate()
                        queue.trim()
                    return

    def live(self, queue: Any) -> None:  # noqa: ANN401
        """Have the flow, and take what comes out."""
        commit = "manual" if self.by_hand else "auto"
        with queue.persist(self.source, "down", commit=commit) as flow:
            for count, message in enumerate(flow, 1):
                if not self.took(flow, message, count):
                    if self.ending == "raise":
                        raise BrokenOffError
                    if self.ending == "close":
                        queue.close()
                    return
            flow.commit()

    async def live_async(self, queue: Any) -> None:  # noqa: ANN401
        """Have the flow, and take what comes out."""
        commit = "manual" if self.by_hand else "auto"
        task = asyncio.current_task()
        assert task is not None
        async with queue.persist(self.source, "down", commit=commit) as flow:
            count = 0
            async for message in flow:
                count += 1
                if self.took(flow, message, count):
                    continue
                if self.ending == "raise":
                    raise BrokenOffError
                if self.ending == "cancel":
                    loop = asyncio.get_running_loop()
                    loop.call_later(self.rng.random() * 0.002, task.cancel)
                    self.count_max = None
                    continue
                return
            flow.commit()


class Round:
    """One queue, the lives that have its flow, and their killer."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        self.rng = rng
        self.total = rng.choice((2_000, 20_000, 200_000))
        self.errors = children.ErrorFile(directory / "errors")
        self.seen = Log(directory / "seen", CameOut)
        self.pids: list[int] = []
        self.order: list[int] = []
        self.counts = {
            "kills": 0,
            "lives that exited": 0,
            "power cuts pretended": 0,
            "came out": 0,
            "came again": 0,
        }
        self.violations: list[str] = []

    @property
    def cases(self) -> int:
        """Lives that were ended."""
        return self.counts["kills"] + self.counts["lives that exited"]

    def start(self) -> None:
        """Start a life."""
        uid = self.rng.getrandbits(63)
        life = Life(self.directory, self.seen, uid, self.total)
        self.pids.append(children.fork(life.run, self.errors, f"{life.how} ({uid})"))

    def run(self, deadline: float, lives_max: int) -> None:
        """Kill and start again until the round has had enough."""
        self.start()
        self.start()
        while self.cases < lives_max and time.monotonic() < deadline and not self.errors.said():
            time.sleep(self.rng.expovariate(1 / MEAN_LIFE_SECONDS))
            self.reap()
            if self.rng.random() < CUT_SHARE:
                self.kill(list(self.pids))
                path = str(self.directory / "q")
                if os.path.isdir(path):
                    self.counts["power cuts pretended"] += tampering.pretend_power_cut(path)
            else:
                self.kill(self.rng.sample(self.pids, min(1, len(self.pids))))
            while len(self.pids) < 2:
                self.start()
        self.kill(list(self.pids))

    def reap(self) -> None:
        """Collect the processes that exited."""
        for pid in list(self.pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.pids.remove(pid)
                self.counts["lives that exited"] += 1
                if status != 0:
                    self.violations.append(f"a life ended with status {status}")

    def kill(self, pids: list[int]) -> None:
        """Kill lives at once."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
            self.pids.remove(pid)
        self.counts["kills"] += len(pids)

    # --- the proof --------------------------------------------------------------------------------

    def prove(self) -> None:
        """Let a last life drain the rest, then compare all records."""
        from pagequeue import Queue  # noqa: PLC0415

        last = Life(self.directory, self.seen, 1, self.total)
        place = self.place()
        if place < self.total - 5_000:  # enough to see that it continues
            last.total = self.total = min(self.total, self.stored() + 2_000)
        last = Life(self.directory, self.seen, 1, self.total)
        last.count_max, last.by_hand, last.naps = None, False, False
        last.give_max, last.empties = self.total, False
        pid = children.fork(last.run, self.errors, "the last life")
        if children.ended(pid, END_SECONDS) is None:
            children.kill(pid)
            self.violations.append(f"the last life hangs for {END_SECONDS:g} s")
        self.violations += self.errors.said()
        with Queue(self.directory / "q", page_bytes=PAGE_BYTES) as queue:
            for message in queue.replay():
                if message.payload != element(message.sequence):
                    self.violations.append(f"message {message.sequence} is another element")
                    break
            if queue.tail_sequence != self.total:
                self.violations.append(f"{queue.tail_sequence} were stored, not {self.total}")
            self.violations += [f"verify: {problem}" for problem in queue.verify().problems]
        self.prove_order()

    def place(self) -> int:
        """Return the element up to which any came out."""
        return max((one.number for one in self.seen.events()), default=0)

    def stored(self) -> int:
        """Return how many elements are stored."""
        from pagequeue import Queue  # noqa: PLC0415

        with Queue(self.directory / "q", page_bytes=PAGE_BYTES) as queue:  # perhaps the first one
            return queue.tail_sequence

    def prove_order(self) -> None:
        """Compare what came out, life by life."""
        uid_before, expected, furthest, acked = None, 0, 0, 0
        for uid, number, acknowledged in self.seen.events():
            if uid == uid_before:
                if number != expected:
                    self.violations.append(f"a life got {number} instead of {expected}")
            elif not acked <= number <= furthest:
                self.violations.append(
                    f"a life began with {number}; {acked} were acknowledged, {furthest} came out"
                )
            if acknowledged > number:
                self.violations.append(f"{acknowledged} were acknowledged when {number} came out")
            self.counts["came out"] += 1
            self.counts["came again"] += number < furthest
            uid_before, expected = uid, number + 1
            furthest, acked = max(furthest, number + 1), max(acked, acknowledged)
            if len(self.violations) >= driver.violations_enough(VIOLATIONS_MAX):
                return
        if furthest != self.total:
            self.violations.append(f"{furthest} of {self.total} elements came out")


def one_round(base: str, rng: random.Random, deadline: float, lives_max: int) -> Round:
    """Run one round in a new directory."""
    with tempfile.TemporaryDirectory(prefix="pagequeue-flow-", dir=base) as directory:
        current = Round(Path(directory), rng)
        try:
            current.run(deadline, lives_max)
        finally:
            for pid in current.pids:
                children.kill(pid)
        try:
            current.prove()
        except Exception as error:  # noqa: BLE001  a failed open or read is a violation
            current.violations.append(f"{type(error).__name__}: {error}")
        current.errors.close()
        current.seen.close()
    return current


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    import pagequeue.flow.flow  # noqa: F401, PLC0415  children are forked with all of it there

    return in_rounds(budget, one_round, cases_max=LIVES_MAX, violations_max=VIOLATIONS_MAX)


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
