"""Forbids that closing a queue changes another one's files, hangs, or leaves anything open.

Each round is one process with a queue that is only read, and others that are closed while they are
used: by threads that send, small messages and large ones, roll, trim and read; by threads that put
and get in a queue of the drop-in, which several close at once; by a signal handler that sends in
the middle of making a producer; by a close that a signal handler interrupts with KeyboardInterrupt,
and that is repeated or left to the collector. Afterwards the files of the first queue must be the
same, no file of a closed queue may be open, and each of the calls must have ended. A case is a
queue that was closed.
"""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.rounds import tries
from stress.traffic import streamed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SHORT_SECONDS = 3.0
VIOLATIONS_MAX = 5
PAGE_BYTES = 4096
WIDE = bytes(3900)
LARGE = bytes(3 * PAGE_BYTES)
PAGES = 600
ROUND_SECONDS = 5.0
END_SECONDS = 30.0
"""So long a call that must end may take."""
HANGS_SECONDS = 60.0
CALLS_MAX = 400
FIRST_SEND_CALLS = 400
THREADS = "/pagequeue/util/"
"""In the names of the files that start threads."""
THREAD_CALLS = 12
"""Places there at which a first send can be interrupted, about."""
OPENING_CALLS_MAX = 2500
"""Places at which opening can be interrupted, about."""
TAKEN = ("POP_TOP", "RETURN_VALUE")


def identities(directory: Path) -> dict[str, tuple[int, int]]:
    """Return which file has which name, and when it was changed."""
    return {e.name: (e.inode(), e.stat().st_mtime_ns) for e in os.scandir(directory)}


def ended(what: str, do: Callable[[], object]) -> None:
    """Run a call in a thread; fail if it does not end."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(END_SECONDS)
    if thread.is_alive():
        faulthandler.dump_traceback()
        raise AssertionError(f"{what} hangs for {END_SECONDS:g} s")


def may_interrupt(before: str, name: str) -> bool:
    """Whether a signal handler can run before an instruction: after a call.

    Not between a call in a `with` block and what ends the block: CPython checks for signals as a
    part of the call, and what that raises is still raised inside of the block.
    """
    return before.startswith("CALL") and (name in TAKEN or name.startswith("STORE_"))


class Closing:
    """One process that opens, uses and closes queues."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.other = directory / "other"
        self.closed = 0
        self.unraised: list[str] = []
        sys.unraisablehook = self.note_unraisable

    def note_unraisable(self, what: Any) -> None:  # noqa: ANN401 - a type that has no name
        """Note what a finalizer raised, except an interrupt in it."""
        if not isinstance(what.exc_value, KeyboardInterrupt):
            self.unraised.append(f"{type(what.exc_value).__name__}: {what.exc_value}")

    def open(self, **options: Any) -> Any:  # noqa: ANN401 - the package is imported later
        """Open the next queue."""
        from pagequeue import Queue  # noqa: PLC0415

        name = f"q{self.closed // 20}"
        return Queue(self.directory / name, page_bytes=PAGE_BYTES, lock_timeout=2.0, **options)

    def run(self) -> None:
        """Close queues until told to end; leave how many."""
        before = identities(self.other)
        kinds = (
            self.beside_threads,
            self.beside_puts_and_gets,
            self.beside_a_handler,
            self.interrupted,
            self.opening_interrupted,
        )
        while not (self.directory / "end").exists():
            self.rng.choice(kinds)()
            self.closed += 1
            if (now := identities(self.other)) != before:
                changed = sorted(set(now.items()) ^ set(before.items()))
                raise AssertionError(f"files of another queue were changed: {changed[:4]}")
            self.look_for_descriptors()
            if self.unraised:
                raise AssertionError(f"a finalizer raised {self.unraised[0]}")
        (self.directory / "cases").write_text(str(self.closed))

    def look_for_descriptors(self) -> None:
        """Fail if a descriptor or thread of a queue stays; a thread may just be ending."""
        gc.collect()
        deadline = time.monotonic() + END_SECONDS
        while (found := self.still_open()) and time.monotonic() < deadline:
            time.sleep(0.001)
        if found:
            raise AssertionError(f"closed, and still open: {found[:4]}")

    def still_open(self) -> list[str]:
        """Return what this process has open of its queues."""
        found = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{fd}")
                if "/errors" not in path and path.startswith(str(self.directory)):
                    found.append(path)
        return found

    def beside_threads(self) -> None:
        """Close while threads use the queue, and open another one at once."""
        from pagequeue import ClosedError, Queue, RetryError, SeekError  # noqa: PLC0415

        queue, wrong = self.open(), []
        uses: tuple[Callable[[], object], ...] = (
            lambda: queue.producer().send(WIDE),
            lambda: queue.producer().send_many([WIDE]),
            lambda: queue.producer().send(LARGE),
            lambda: streamed(queue.producer(), LARGE),
            lambda: (queue.rotate(), queue.trim(), queue.info()),
            lambda: queue.consumer(latest=True).receive(0.001),
            lambda: queue.consumer(f"c{threading.get_ident()}").ack(durable=True),
            lambda: queue.group("g", on_expired="skip").claim(0.001).ack(),
        )

        def use(what: Callable[[], object]) -> None:
            try:
                while True:
                    with contextlib.suppress(RetryError, SeekError):
                        what()
            except ClosedError:
                pass
            except BaseException as error:  # noqa: BLE001 - any other exception is wrong
                wrong.append(f"{type(error).__name__}: {error}")

        what = [uses[0], uses[0], *self.rng.sample(uses, self.rng.randrange(3))]
        threads = [threading.Thread(target=use, args=(one,), daemon=True) for one in what]
        for thread in threads:
            thread.start()
        time.sleep(self.rng.uniform(0, 0.004))
        ended("close() during calls in threads", queue.close)
        with Queue(self.other, read_only=True):
            for thread in threads:
                thread.join(END_SECONDS)
                if thread.is_alive():
                    raise AssertionError("a call hangs when its queue was closed")
        if wrong:
            raise AssertionError(f"instead of ClosedError: {wrong[0]}")

    def beside_puts_and_gets(self) -> None:
        """Close a queue of the drop-in, in two threads, while others put and get."""
        from pagequeue import multiprocessing  # noqa: PLC0415

        kind = self.rng.choice([multiprocessing.Queue, multiprocessing.JoinableQueue])
        queue: Any = kind(page_bytes=PAGE_BYTES)
        wrong: list[str] = []

        def use(what: Callable[[], object]) -> None:
            try:
                while True:
                    what()
            except ValueError:  # it is closed
                pass
            except BaseException as error:  # noqa: BLE001 - any other exception is wrong
                wrong.append(f"{type(error).__name__}: {error}")

        uses = (lambda: queue.put(WIDE), lambda: queue.put(bytes(PAGE_BYTES)), queue.get)
        what = [queue.get, queue.get, *self.rng.sample(uses, self.rng.randrange(1, 3))]
        threads = [threading.Thread(target=use, args=(one,), daemon=True) for one in what]
        for thread in threads:
            thread.start()
        time.sleep(self.rng.uniform(0, 0.004))
        threads.append(threading.Thread(target=queue.close, daemon=True))
        threads[-1].start()
        ended("close() during puts and gets", queue.close)
        for thread in threads:
            thread.join(END_SECONDS)
            if thread.is_alive():
                raise AssertionError("a put or get hangs when its queue was closed")
        if wrong:
            raise AssertionError(f"instead of QueueClosed: {wrong[0]}")
        if kind is multiprocessing.Queue and os.path.exists(queue.directory):
            raise AssertionError(f"closed, and its directory stays: {os.listdir(queue.directory)}")

    def beside_a_handler(self) -> None:
        """Send from a signal handler while a producer is made, then close."""
        from pagequeue import LockTimeout  # noqa: PLC0415  the core is chosen by now

        queue = self.open()

        def handle(*_: object) -> None:
            # In the middle of making a page it is refused, and nothing is sent.
            with contextlib.suppress(LockTimeout):
                queue.producer().send(b"handler")

        def send() -> None:
            queue.producer().send(b"main")

        if self.rng.random() < 0.5:
            calls_max, inside = self.rng.choice([(FIRST_SEND_CALLS, ""), (THREAD_CALLS, THREADS)])
            self.at_some_place(send, calls_max, handle, inside)
        else:
            signal.signal(signal.SIGALRM, handle)
            signal.setitimer(signal.ITIMER_REAL, self.rng.uniform(1e-6, 2e-4))
            send()
            while signal.getitimer(signal.ITIMER_REAL)[0]:
                pass
        workers = sum(thread.name == "pagequeue" for thread in threading.enumerate())
        ended(f"close() with {workers} background threads", queue.close)

    def interrupted(self) -> None:
        """Interrupt closing at any instruction; close again, or drop it."""
        queue = self.open()
        queue.producer().send(WIDE)
        self.interrupt(queue.close, CALLS_MAX)
        held = [queue]
        del queue
        if self.rng.random() < 0.5:
            ended("close() after an interrupted one", held[0].close)
        ended("dropping a queue after an interrupted close()", held.clear)

    def opening_interrupted(self) -> None:
        """Interrupt opening at any instruction: nothing stays open, and the queue opens again."""
        found = self.interrupt(self.open, OPENING_CALLS_MAX)
        if found is not None:
            ended("close() of a queue that was opened", found.close)
        del found
        gc.collect()
        ended("opening after an interrupted one", lambda: self.open().close())

    def interrupt(self, call: Callable[[], Any], calls_max: int) -> Any:  # noqa: ANN401 - what it returns
        """Raise KeyboardInterrupt at one of so many places in a call; return its result or None."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        return self.at_some_place(call, calls_max, interrupt)

    def at_some_place(
        self, call: Callable[[], Any], calls_max: int, act: Callable[[], object], inside: str = ""
    ) -> Any:  # noqa: ANN401 - what it returns
        """Act at one of so many places in a call, as a signal handler does.

        Only places in files count whose names contain a text. Return the call's result, or None if
        it was interrupted.
        """
        left = [self.rng.randrange(1, calls_max)]
        before: dict[FrameType, str] = {}

        def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - as sys.settrace requires
            if inside not in frame.f_code.co_filename:
                return trace
            frame.f_trace_opcodes = True
            if event == "call":
                left[0] -= 1
            if event == "opcode":
                name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                left[0] -= may_interrupt(before.get(frame, ""), name)
                before[frame] = name
            if left[0] == 0 and event in {"call", "opcode"}:
                sys.settrace(None)
                act()
            return trace

        result: list[Any] = []

        def traced() -> None:
            sys.settrace(trace)
            try:
                result.append(call())
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
                before.clear()

        # In a thread of its own: CPython keeps an exception that a trace function raises where
        # another one is handled, with the frames of its traceback, until its thread ends.
        thread = threading.Thread(target=traced)
        thread.start()
        thread.join()
        return result.pop() if result else None


def one_round(directory: Path, rng: random.Random, seconds: float) -> tuple[int, list[str]]:
    """Run one process for a while; return cases and violations."""
    from pagequeue import Queue  # noqa: PLC0415

    errors = children.ErrorFile(directory / "errors")
    with Queue(directory / "other", page_bytes=PAGE_BYTES) as queue, queue.producer() as producer:
        for _ in range(PAGES):
            producer.send(WIDE)
        producer.flush()
    closing = Closing(directory, rng.getrandbits(63))
    pid = children.fork(closing.run, errors, "the closing process")
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not errors.said():
            time.sleep(0.05)
        (directory / "end").touch()
        status = children.ended(pid, HANGS_SECONDS)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    violations = errors.said()
    if status is None:
        children.kill(pid)
        violations.append(f"it hangs for {HANGS_SECONDS:g} s")
    errors.close()
    cases = directory / "cases"
    return int(cases.read_text()) if cases.exists() else len(violations), violations


def campaign(budget: Budget) -> Outcome:
    """Run rounds until the budget is used up; in a process that has no queue open."""
    rng = random.Random(budget.seed)
    base = driver.scratch_directory()
    outcome = Outcome(0, notes={"rounds": 0, "directory": base})
    for left in tries(budget, outcome, VIOLATIONS_MAX):
        with tempfile.TemporaryDirectory(prefix="pagequeue-close-", dir=base) as directory:
            cases, violations = one_round(Path(directory), rng, min(ROUND_SECONDS, left))
        outcome.cases += cases
        outcome.violations += [f"round {outcome.notes['rounds']}: {v}" for v in violations]
        outcome.notes["rounds"] += 1
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
