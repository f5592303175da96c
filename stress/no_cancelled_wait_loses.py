"""Forbids that a cancelled coroutine loses or doubles a message, or sleeps on with one available.

One event loop has several named consumers and several senders, of small messages and of ones that
are larger than a page, all of whose waits are cancelled again and again: by `cancel` after any
number of turns of the loop, by `asyncio.timeout`, by `wait_for`. The queue is small, so that
senders wait for room that consumers make; another process sends as well, and is killed at random
times. Each consumer must see every message once and in order; a message whose send returned is
there, one whose send was cancelled is not, and of what takes pages all or nothing is there; no
coroutine sleeps on while a message is available to it. A case is a wait that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import random
import signal
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.rounds import tries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SHORT_SECONDS = 3.0
VIOLATIONS_MAX = 5
PAGE_BYTES = 8192
PAGES = 8
CONSUMERS = 6
SENDERS = 3
ROUND_SECONDS = 5.0
STALL_TURNS = 50
"""So often the loop runs, a tenth of a second apart, while a waiting consumer lags: then it sleeps
on. Not so long: the process can have stood still, or nothing was sent until just now."""
ROOM_SECONDS = 30.0
END_SECONDS = 60.0
MEAN_LIFE_SECONDS = 0.05
LABEL = struct.Struct("<QQ")  # uid of the sender, number
LAST = (0, 0)
FIRST = (1, 0)
FILL = bytes(PAGES * PAGE_BYTES)
SMALL_MAX = 1200
SMALL_BYTES_MAX = 7000
"""So many at once fit into one page."""
LARGE_SHARE = 0.04
"""Of the messages; they do not fit into one page, and into two."""
LARGE_MAX = 2
"""Of a batch, with small ones between: more can need more pages than the queue may have."""
LARGEST_SHARE = 0.02
LARGEST_BYTES = int(5.5 * PAGE_BYTES)
"""With the active page, it takes all pages that the queue may have."""


def fills(rng: random.Random, count: int) -> list[bytes]:
    """Return what follows the labels of messages that are sent at once."""
    if count == 1 and rng.random() < LARGEST_SHARE:
        return [FILL[:LARGEST_BYTES]]
    large = [rng.random() < LARGE_SHARE for _ in range(count)]
    return [
        FILL[: rng.randrange(PAGE_BYTES, 2 * PAGE_BYTES - 400)]
        if is_large and sum(large[:i]) < LARGE_MAX
        else FILL[: rng.randrange(SMALL_MAX)]
        for i, is_large in enumerate(large)
    ]


class Side:
    """What one coroutine does again and again, and when it began to wait."""

    def __init__(self, loops: Loops, seed: int) -> None:
        self.loops = loops
        self.rng = random.Random(seed)
        self.waits_since: float | None = None

    async def disturbed(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await a call, which may be cancelled in one of several ways."""

        async def counted() -> None:
            self.waits_since = time.monotonic()
            try:
                await call()
            except (asyncio.CancelledError, TimeoutError):
                self.loops.cancelled += 1
                raise
            finally:
                self.waits_since = None

        async def limited(seconds: float) -> None:
            await asyncio.wait_for(counted(), seconds)

        how = self.rng.randrange(4)
        if how == 0:
            await counted()
        elif how == 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.random() * 0.003):
                    await counted()
        else:
            job = counted() if how == 2 else limited(self.rng.random() * 0.003)
            task = asyncio.ensure_future(job)
            for _ in range(self.rng.randrange(10)):
                await asyncio.sleep(0)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.002)
            task.cancel()
            await asyncio.wait({task})
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, TimeoutError):
                raise error


class Receiving(Side):
    """A named consumer and what it saw."""

    def __init__(self, loops: Loops, name: str, seed: int) -> None:
        super().__init__(loops, seed)
        self.consumer = loops.queue.consumer(name)
        self.next = self.consumer.sequence
        self.labels: list[tuple[int, int]] = []

    def saw(self, message: Any) -> None:  # noqa: ANN401 - the package is imported later
        """Check that it is the next one."""
        if message.sequence != self.next:
            raise AssertionError(f"saw {message.sequence} instead of {self.next}")
        self.next += 1
        self.labels.append(LABEL.unpack_from(message.payload))

    async def receive(self) -> None:
        """Receive in one of the ways there are."""
        if self.rng.random() < 0.4:
            for message in await self.consumer.receive_many_async(self.rng.randrange(1, 30)):
                self.saw(message)
        else:
            self.saw(await self.consumer.receive_async())

    async def run(self) -> None:
        """Receive until the last message."""
        while not self.labels or self.labels[-1] != LAST:
            if self.consumer.lag == 0 or self.rng.random() < 0.2:
                self.consumer.ack()  # a waiting consumer must not block senders
            await self.disturbed(self.receive)
        self.consumer.ack()


class Sending(Side):
    """A sender, what it was told, and what it was cancelled in."""

    def __init__(self, loops: Loops, seed: int) -> None:
        super().__init__(loops, seed)
        self.uid = seed
        self.number = 0
        self.sent: set[int] = set()
        self.unknown: list[set[int]] = []

    async def send(self) -> None:
        """Send one message, or several at once; if a thread has to, a cancelled one may be sent."""
        numbers = [self.number + i for i in range(self.rng.choice((1, 1, 2, 4)))]
        self.number = numbers[-1] + 1
        labels = [LABEL.pack(self.uid, number) for number in numbers]
        payloads = list(map(operator.add, labels, fills(self.rng, len(labels))))
        takes_pages = sum(map(len, payloads)) > SMALL_BYTES_MAX
        if takes_pages:
            self.unknown.append(set(numbers))
        if len(payloads) == 1:
            await self.loops.producer.send_async(payloads[0])
        else:
            await self.loops.producer.send_many_async(payloads)
        self.sent.update(numbers)
        if takes_pages:
            self.unknown.pop()

    def expected(self, found: list[int]) -> list[int]:
        """Return what must be there, given what is: all or nothing of what a thread sent.

        A thread that was about to publish when its task was cancelled can do so after the task's
        next message. Else the order is that of sending.
        """
        whole = [sorted(numbers) for numbers in self.unknown if numbers <= set(found)]
        late = {numbers[0]: numbers for numbers in whole}
        in_doubt = {number for numbers in whole for number in numbers}
        told = iter(sorted(self.sent))
        expected: list[int] = []
        for number in found:
            expected += late.get(number, ()) if number in in_doubt else (next(told, -1),)
        return expected + list(told)

    async def run(self) -> None:
        """Send until told to end."""
        while self.loops.is_sending:
            await self.disturbed(self.send)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.003)


class Loops:
    """One process with one event loop, and all that runs on it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.is_sending = True
        self.cancelled = 0
        self.queue: Any = None
        self.producer: Any = None

    def run(self) -> None:
        """Run until told to end; then compare, and write down how many cases there were."""
        from pagequeue import Queue  # noqa: PLC0415

        try:
            with Queue(self.directory / "q", **options()) as queue, queue.producer() as producer:
                self.queue, self.producer = queue, producer
                asyncio.run(self.main())
        finally:
            (self.directory / "cases").write_text(str(self.cancelled))

    async def main(self) -> None:
        """Run all coroutines, and check that none sleeps while a message is available."""
        receiving = [Receiving(self, f"c{i}", self.rng.getrandbits(63)) for i in range(CONSUMERS)]
        sending = [Sending(self, self.rng.getrandbits(63)) for _ in range(SENDERS)]
        async with asyncio.TaskGroup() as group:
            takers = [group.create_task(side.run()) for side in receiving]
            givers = [group.create_task(side.run()) for side in sending]
            watch = group.create_task(self.watch(receiving))
            while not (self.directory / "end").exists():  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.02)
            self.is_sending = False
            await asyncio.wait(givers)
            # A large one, after each that a thread still publishes though it was cancelled.
            await self.producer.send_async(LABEL.pack(*LAST) + FILL[: PAGE_BYTES + 1])
            await asyncio.wait(takers)
            watch.cancel()
        self.compare(receiving, sending)

    async def watch(self, receiving: list[Receiving]) -> None:
        """Raise when a consumer waits for long although it lags."""
        turns: dict[Receiving, tuple[float | None, int]] = dict.fromkeys(receiving, (None, 0))
        while True:
            await asyncio.sleep(0.1)
            for side in receiving:
                since, count = turns[side]
                is_same = side.waits_since is not None and side.waits_since == since
                count = count + 1 if is_same and side.consumer.lag > 0 else 0
                turns[side] = side.waits_since, count
                if count >= STALL_TURNS:
                    raise AssertionError(
                        f"{side.consumer.name} sleeps though a message is available"
                    )

    def compare(self, receiving: list[Receiving], sending: list[Sending]) -> None:
        """Compare what all have seen with each other, and with what senders were told."""
        labels = receiving[0].labels
        for side in receiving[1:]:
            if side.labels != labels:
                raise AssertionError("two consumers saw different messages")
        if len(labels) != self.queue.tail_sequence:
            raise AssertionError(f"{len(labels)} of {self.queue.tail_sequence} were seen")
        if len(set(labels)) != len(labels):
            raise AssertionError("a message is there twice")
        own = {side.uid: side for side in sending}
        found: dict[int, list[int]] = {uid: [] for uid, _ in labels}
        for uid, number in labels:
            found[uid].append(number)
        for uid, numbers in found.items():
            is_own = uid in own
            expected = own[uid].expected(numbers) if is_own else list(range(len(numbers)))
            if numbers != expected:
                raise AssertionError(
                    f"of {uid}: there and not told: {sorted(set(numbers) - set(expected))[:5]}, "
                    f"told and not there: {sorted(set(expected) - set(numbers))[:5]}; "
                    f"{wrong_order(numbers, expected)}"
                )


def wrong_order(numbers: list[int], expected: list[int]) -> str:
    """Return where two lists of numbers begin to differ."""
    pairs = enumerate(zip(numbers, expected, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(map(len, (numbers, expected))))
    return f"from {at} on: {numbers[at : at + 8]} instead of {expected[at : at + 8]}"


def options() -> dict[str, Any]:
    """Return how all open the queue."""
    from pagequeue import Retention  # noqa: PLC0415

    retention = Retention(max_bytes=PAGES * PAGE_BYTES)
    return {"page_bytes": PAGE_BYTES, "retention": retention, "on_full": "block"}


def send_for_ever(directory: Path, uid: int) -> None:
    """Send numbered messages until killed."""
    from pagequeue import Queue  # noqa: PLC0415

    rng = random.Random(uid)
    with Queue(directory / "q", **options()) as queue, queue.producer() as producer:
        number = 0
        while True:
            producer.send(LABEL.pack(uid, number) + fills(rng, 1)[0])
            number += 1
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.002)


def one_round(directory: Path, rng: random.Random, seconds: float) -> tuple[int, list[str]]:
    """Run one loop for a while; return cases and violations."""
    from pagequeue import Queue, QueueFull  # noqa: PLC0415

    errors = children.ErrorFile(directory / "errors")
    with Queue(directory / "q", **options()) as queue, queue.producer() as producer:
        for i in range(CONSUMERS):
            queue.consumer(f"c{i}").close()
        # As a producer leaves it that dies before it rolls.
        queue._store.roller.next_page(queue._store.tail.page_number + 1)
        try:
            producer.send(LABEL.pack(*FIRST) + FILL[:LARGEST_BYTES], timeout=ROOM_SECONDS)
        except QueueFull as error:
            return 1, [f"the first message: {error}"]
    loops = Loops(directory, rng.getrandbits(63))
    pid = children.fork(loops.run, errors, "the loop")
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and not errors.said():
            uid = rng.getrandbits(63) | 1
            sender = children.fork(lambda uid=uid: send_for_ever(directory, uid), errors, "sender")  # type: ignore[misc]
            time.sleep(rng.expovariate(1 / MEAN_LIFE_SECONDS))
            children.kill(sender)
        (directory / "end").touch()
        status = children.ended(pid, END_SECONDS)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    violations = errors.said()
    if status is None:
        children.kill(pid)
        violations.append(f"the loop hangs for {END_SECONDS:g} s")
    errors.close()
    cases = directory / "cases"
    return int(cases.read_text()) if cases.exists() else 0, violations


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    import pagequeue.flow.flow  # noqa: F401, PLC0415  children are forked with all of it there

    rng = random.Random(budget.seed)
    base = driver.scratch_directory()
    outcome = Outcome(0, notes={"rounds": 0, "directory": base})
    for left in tries(budget, outcome, VIOLATIONS_MAX):
        with tempfile.TemporaryDirectory(prefix="pagequeue-cancel-", dir=base) as directory:
            cases, violations = one_round(Path(directory), rng, min(ROUND_SECONDS, left))
        outcome.cases += cases
        outcome.violations += [f"round {outcome.notes['rounds']}: {v}" for v in violations]
        outcome.notes["rounds"] += 1
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
