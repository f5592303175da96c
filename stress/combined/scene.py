"""A scene: some queues are opened, threads and loops use them, and a thread closes them meanwhile.

Right after a queue was closed or dropped, others are opened and read, so that code that still uses
a descriptor number of the old one meets the new one's files. A seed decides all choices; the
scheduler decides their exact timing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pagequeue import ForkedError, Queue, QueueReplaced, SystemLimit
from stress import children
from stress.combined import coroutines, flows, operations, sending
from stress.combined.ground import CLOSED, DONE, NO_QUEUE, REFUSED, Elsewhere, Ground, Spec
from stress.combined.operations import Opening, Over, traced

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Operation = Callable[[Opening, random.Random], None]

SPAN_SECONDS: Final = 0.006
HANDLER_SECONDS: Final = 0.002
ARMED_SHARE: Final = 0.7
FIRST_SECONDS: Final = 200e-6
FIRST_SHARE: Final = 0.4
TWINS_SHARE: Final = 0.4
TWINS_COUNT: Final = 10
TWINS_SECONDS: Final = 0.008
FIRST_COUNT: Final = 24
FILES_SECONDS: Final = 0.002
FILES_SHARE: Final = 0.3
HANDLER_CLOSES_SHARE: Final = 0.2
FEW_MIN, FEW_MAX = 2, 14
CHILD_SECONDS: Final = 60.0
"""A child without a finished operation for so long hangs; each has its own shorter limit."""
CHILD_SENDS: Final = 12
FORKED_SECONDS: Final = 0.001
SAYING_SECONDS: Final = 0.5
FORK_SHARE: Final = 0.05
WRITING: Final[tuple[Operation, ...]] = (
    sending.send,
    sending.send,
    sending.send,
    sending.send,
    sending.send,
    operations.read,
    operations.work,
    operations.rotate,
    operations.flush,
    operations.trim,
    operations.compress,
    operations.ship,
    operations.replay,
    operations.batches,
    operations.peek,
    operations.look,
    operations.verify,
)
TWINS: Final = (*dict.fromkeys(WRITING), operations.ship, operations.verify)
READING: Final[tuple[Operation, ...]] = (
    operations.replay,
    operations.batches,
    operations.peek,
    operations.look,
    operations.verify,
)
FLOWING: Final[tuple[Operation, ...]] = (
    flows.flow,
    flows.flow,
    flows.flow_of_coroutine,
    operations.rotate,
    operations.trim,
    operations.look,
)


class Scene:
    """One scene.

    Attributes:
        openings: the queues that are open in it.
        again: restarts the time after which this process counts as hanging.
        handled: what a signal handler uses; None: not in use.
        closes: whether the handler closes something of it.
    """

    handled: Opening | None = None
    closes = False

    def __init__(self, ground: Ground, rng: random.Random, again: Callable[[], None]) -> None:
        self.ground = ground
        self.rng = rng
        self.again = again
        self.openings: list[Opening] = []
        self.threads: list[threading.Thread] = []
        self.few = False

    # --- the acts ---------------------------------------------------------------------------------

    def play(self) -> None:
        """Play it; every queue is closed at the end."""
        rng = self.rng
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = self.few = rng.random() < 0.06
        try:
            if few:
                self.limit_descriptors(limit[1])
            if rng.random() < FIRST_SHARE and not few:
                self.interrupt_creation()
            if rng.random() < FILES_SHARE and not few:
                self.interrupt_files()
            if rng.random() < TWINS_SHARE and not few:
                self.twins()
            for _ in range(rng.choice((1, 1, 2, 3))):
                self.open(few=few)
            self.arm(HANDLER_SECONDS)
            self.start_threads()
            self.act()
            time.sleep(rng.random() * SPAN_SECONDS * rng.choice((0.1, 1.0, 1.0, 4.0)))
            if rng.random() < FORK_SHARE and not few:
                still = [spec for spec in self.ground.specs if not spec.is_flow | spec.is_moved]
                self.fork(rng.choice(still), rng.choice(WRITING))
            self.end_openings()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            Scene.handled = None
            for thread in self.threads:
                thread.join()
            self.threads.clear()
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            for opening in self.openings:
                self.close(opening)
            self.openings.clear()

    def limit_descriptors(self, most: int) -> None:
        """Leave a few descriptors."""
        used = max(map(int, os.listdir("/proc/self/fd")))
        few = used + self.rng.randint(FEW_MIN, FEW_MAX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        self.ground.note("few descriptors")

    def open(self, *, few: bool, spec: Spec | None = None) -> None:
        """Open one of the queues."""
        ground, rng = self.ground, self.rng
        spec = spec or rng.choice(ground.specs)
        read_only = rng.random() < 0.12
        kind = "open read-only" if read_only else "open"
        try:
            queue = ground.open(spec, rng, read_only=read_only)
        except Elsewhere:
            ground.note(kind, spec.number, REFUSED)
        except SystemLimit as error:
            if not few:
                ground.wrong(kind, spec.number, traced(error))
            ground.note(kind, spec.number, REFUSED)
        except Exception as error:  # noqa: BLE001  any other exception is a violation
            ground.wrong(kind, spec.number, traced(error))
        else:
            ground.note(kind, spec.number)
            opening = Opening(ground, spec, queue, read_only=read_only)
            opening.few = few
            self.openings.append(opening)

    def interrupt_creation(self) -> None:
        """Have a handler send while the main thread creates the first producer."""
        for _ in range(FIRST_COUNT):
            self.open(few=False)
            self.arm(FIRST_SECONDS)
            for opening in self.openings:
                if not opening.read_only and not opening.spec.is_flow:
                    with contextlib.suppress(Over), opening.doing("send"):
                        opening.got.producer()
                while signal.getitimer(signal.ITIMER_REAL)[0]:
                    pass
                self.close(opening)
            Scene.handled = None
            self.openings.clear()

    def interrupt_files(self) -> None:
        """Have a handler close what the main thread writes a payload's file with."""
        for _ in range(FIRST_COUNT):
            self.open(few=False)
            for opening in self.openings:
                if not opening.read_only and not opening.spec.is_flow:
                    Scene.handled, Scene.closes = opening, True
                    seconds = 1e-6 + self.rng.random() * FILES_SECONDS
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                    with contextlib.suppress(Over):
                        while signal.getitimer(signal.ITIMER_REAL)[0]:
                            sending.send_file(opening, self.rng)
                self.close(opening)
            Scene.handled = None
            self.openings.clear()

    def twins(self) -> None:
        """Have two threads begin the same operation at once, and close the queue under them."""
        for _ in range(TWINS_COUNT):
            self.open(few=False)
            for opening in self.openings:
                acts = READING if opening.read_only else FLOWING if opening.spec.is_flow else TWINS
                act, start = self.rng.choice(acts), threading.Barrier(3)
                for _ in range(2):
                    seed = self.rng.getrandbits(60)
                    made = partial(self.twin, opening, act, start, seed)
                    self.threads.append(threading.Thread(target=made, daemon=True))
                    self.threads[-1].start()
                start.wait()
                time.sleep(self.rng.random() ** 2 * TWINS_SECONDS)
                self.close(opening)
            for thread in self.threads:
                thread.join()
            self.threads.clear()
            self.openings.clear()

    def twin(self, opening: Opening, act: Operation, start: threading.Barrier, seed: int) -> None:
        """Begin an operation when all are there."""
        with self.watched(opening):
            start.wait()
            act(opening, type(self.rng)(seed))

    @contextlib.contextmanager
    def watched(self, opening: Opening) -> Iterator[None]:
        """Report an error that ends a thread, which would otherwise be lost."""
        try:
            yield
        except Over:
            pass
        except BaseException as error:  # noqa: BLE001  any exception is reported
            self.ground.wrong("inspect", opening.spec.number, traced(error))

    def arm(self, seconds: float) -> None:
        """Schedule a signal whose handler sends."""
        writable = [each for each in self.openings if not each.read_only and not each.spec.is_flow]
        if writable and self.rng.random() < ARMED_SHARE:
            Scene.closes = self.rng.random() < HANDLER_CLOSES_SHARE
            Scene.handled = self.rng.choice(writable)
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + self.rng.random() * seconds)

    def start_threads(self) -> None:
        """Start threads that use the queues; perhaps one with an event loop."""
        if not self.openings:
            return
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3))):
            seed = self.rng.getrandbits(60)
            opening = self.rng.choice(self.openings)
            thread = threading.Thread(target=self.script, args=(opening, seed), daemon=True)
            self.threads.append(thread)
        loops = [each for each in self.openings if not each.read_only and not each.spec.is_flow]
        if loops and self.rng.random() < 0.2 and not loops[0].few:
            seed = self.rng.getrandbits(60)
            thread = threading.Thread(target=self.loop, args=(loops, seed), daemon=True)
            self.threads.append(thread)
        for thread in self.threads:
            thread.start()

    def script(self, opening: Opening, seed: int) -> None:
        """Do some operations on one queue, until it is closed."""
        rng = type(self.rng)(seed)
        with self.watched(opening):
            for _ in range(rng.randint(1, 5)):
                self.operate(opening, rng)

    def operate(self, opening: Opening, rng: random.Random) -> None:
        """Do one operation."""
        if opening.read_only:
            rng.choice(READING)(opening, rng)
        elif opening.spec.is_flow:
            rng.choice(FLOWING if not opening.few else FLOWING[3:])(opening, rng)
        elif rng.random() < 0.06:
            others = [each for each in self.openings if not each.spec.is_flow]
            operations.merged(opening, rng, others or [opening])
        else:
            rng.choice(WRITING)(opening, rng)

    def loop(self, openings: list[Opening], seed: int) -> None:
        """Have an event loop use queues."""
        try:
            coroutines.run_loop(openings, type(self.rng)(seed))
        except BaseException as error:  # noqa: BLE001  the thread's end would go unnoticed
            self.ground.wrong("coroutine sends", NO_QUEUE, traced(error))

    def act(self) -> None:
        """Use a queue in the main thread, where signals come."""
        if self.openings and self.rng.random() < 0.6:
            with contextlib.suppress(Over):
                self.operate(self.rng.choice(self.openings), self.rng)

    # --- ends -------------------------------------------------------------------------------------

    def end_openings(self) -> None:
        """Close or drop the queues in any order, and open others at once."""
        self.rng.shuffle(self.openings)
        while self.openings:
            opening = self.openings[0]
            self.end(opening)
            self.openings.pop(0)
            if self.rng.random() < 0.7:
                self.visit()

    def end(self, opening: Opening) -> None:
        """Close a queue, or drop it, or both at once."""
        draw = self.rng.random()
        if draw < 0.2:
            opening.closing = True  # its worker's last thread ends meanwhile
            Scene.handled = None
            opening.queue = None
            self.ground.note("drop", opening.spec.number)
            if self.rng.random() < 0.5:
                gc.collect()
                self.ground.note("collect garbage", opening.spec.number)
        elif draw < 0.35:
            opening.closing = True
            other = threading.Thread(target=self.close, args=(opening,), daemon=True)
            other.start()
            self.close(opening, "close twice at once")
            other.join()
        else:
            self.close(opening)

    def close(self, opening: Opening, kind: str = "close") -> None:
        """Close a queue; operations of other threads may be under way."""
        queue = opening.queue
        if queue is None:
            return
        opening.closing = True
        try:
            queue.close()
        except (QueueReplaced, SystemLimit) as error:
            if not (opening.few if isinstance(error, SystemLimit) else opening.spec.is_moved):
                self.ground.wrong(kind, opening.spec.number, traced(error))
        except Exception as error:  # noqa: BLE001  any other exception is a violation
            self.ground.wrong(kind, opening.spec.number, traced(error))
        self.ground.note(kind, opening.spec.number, CLOSED)

    def visit(self) -> None:
        """Open the bystander, or another queue, to read; its descriptors are new ones."""
        ground, rng = self.ground, self.rng
        spec = rng.choice(ground.specs)
        try:
            if rng.random() < 0.8:
                with Queue(ground.bystander, read_only=True) as queue:
                    begin = rng.randrange(len(queue))
                    first = next(iter(queue.batches(sequence=begin, limit_count=20)))
                    if first[0].payload[:8] != begin.to_bytes(8, "little"):
                        ground.wrong("bystander", NO_QUEUE, f"message {begin} is {first[0]}")
                    time.sleep(rng.random() * 0.001)
                ground.note("bystander")
            else:
                with ground.open(spec, rng, read_only=True) as queue:
                    queue.info()
                ground.note("open read-only", spec.number)
        except (Elsewhere, QueueReplaced):
            if not spec.is_moved:
                ground.wrong("bystander", spec.number, "its queue is another place")
        except SystemLimit as error:
            if not self.few:
                ground.wrong("bystander", NO_QUEUE, traced(error))
        except Exception as error:  # noqa: BLE001  any other exception is a violation
            ground.wrong("bystander", NO_QUEUE, traced(error))

    # --- fork -------------------------------------------------------------------------------------

    def first_fork(self) -> None:
        """Fork while a thread does for the first time what needs a module; the child does it too.

        What is imported is imported by then; this is the first that a process does.
        """
        spec = self.rng.choice([spec for spec in self.ground.specs if spec.compresses])
        self.open(few=False, spec=spec)
        for opening in self.openings:
            if not opening.read_only:
                start, seed = threading.Barrier(2), self.rng.getrandbits(60)
                run = partial(self.twin, opening, operations.compress, start, seed)
                thread = threading.Thread(target=run, daemon=True)
                thread.start()
                start.wait()
                time.sleep(self.rng.random() * FORKED_SECONDS)
                self.fork(spec, operations.compress)
                thread.join()
            self.close(opening)
        self.openings.clear()

    def fork(self, spec: Spec, act: Operation) -> None:
        """Fork while threads are inside; the child's handles are dead, and it opens its own."""
        seed = self.rng.getrandbits(60)
        pid = children.fork(lambda: self.child(spec, act, seed), self.ground.errors, "forked child")
        status, done = None, -1
        while status is None and done < (now := self.ground.count_of(pid)):
            done = now
            self.again()
            status = children.ended(pid, CHILD_SECONDS)
        if status is None:
            os.kill(pid, signal.SIGUSR1)  # it prints its stacks
            time.sleep(SAYING_SECONDS)
            children.kill(pid)
            text = f"the child hangs for {CHILD_SECONDS:g} s, after {done} operations"
            self.ground.wrong("fork", spec.number, text)
        elif status != 0:
            self.ground.wrong("fork", spec.number, f"the child ended with status {status}")
        self.ground.note("fork", spec.number, DONE)

    def child(self, spec: Spec, act: Operation, seed: int) -> None:
        """Use inherited objects, which must fail; then send to a new queue, and act once."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        rng = type(self.rng)(seed)
        for opening in self.openings:
            queue = opening.queue
            if queue is None:
                continue
            if not opening.closing:
                self.refused(queue)
            rng.choice((queue.close, gc.collect))()
        with self.ground.open(spec, rng) as queue:
            own = Opening(self.ground, spec, queue, read_only=False)
            with contextlib.suppress(Over):
                sending.send(own, rng, CHILD_SENDS)
                act(own, rng)

    def refused(self, queue: Queue) -> None:
        """Check that an inherited queue refuses to work."""
        try:
            queue.tail_sequence  # noqa: B018  a property that reads the tail
        except ForkedError:
            return
        raise AssertionError("an inherited queue works in a forked child")


def handle(*_: Any) -> None:  # noqa: ANN401  a signal and a frame
    """Send, as a signal handler that interrupts the main thread."""
    opening = Scene.handled
    if opening is not None:
        act = operations.close_by_handler if Scene.closes else sending.send_by_handler
        act(opening, opening.ground.handler_rng)
