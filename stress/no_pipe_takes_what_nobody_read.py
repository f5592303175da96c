"""Forbids that `receive --consumer` acknowledges what its reader did not read, or skips a message.

A case is a separate receiver process whose stdout is a pipe. Its reader, which is this process,
reads pieces of random sizes and ends at a random time, or kills the receiver. Afterwards the cursor
is at most where the reader is, and at least there unless the receiver was killed. What the reader
gets begins at the cursor and continues without a gap. Standard descriptors are closed at random:
the exit code stays what it is, and none of them becomes a file of the queue (I11). Nor does one of
them in a program that has them closed, opens the queue and sends: a later print would write into
that file.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NoReturn

from stress import driver
from stress.campaign import Budget, Outcome
from stress.rounds import tries

if TYPE_CHECKING:
    from pagequeue import Queue

SHORT_SECONDS = 3.0
PAGE_BYTES = 65_536
COUNT = 400
PAYLOAD_BYTES_MAX = 3_000
LARGE_BYTES_MAX = 3 * PAGE_BYTES
LARGE_SHARE = 0.03
READ_BYTES_MAX = 9_000
PIECES_MAX = 60
PAUSE_SECONDS_MAX = 0.003
VIOLATIONS_MAX = 5
NAME = "shop"
EXIT_CLOSED_PIPE = 141


def run(budget: Budget) -> Outcome:
    """Run it in a process that has no queue open."""
    return driver.run_apart(__name__, budget)


def campaign(budget: Budget) -> Outcome:
    """Have readers and receivers end, until the budget is used up."""
    from pagequeue.cli import app, receive  # noqa: F401, PLC0415  children are forked with it

    rng = random.Random(budget.seed)
    outcome = Outcome(0)
    for seconds in tries(budget, outcome, VIOLATIONS_MAX):
        with tempfile.TemporaryDirectory(dir=driver.scratch_directory()) as directory:
            deadline = time.monotonic() + seconds
            _one_queue(os.path.join(directory, "q"), rng, outcome, deadline, budget.cases)
    return outcome


def _one_queue(
    path: str, rng: random.Random, outcome: Outcome, deadline: float, cases: int | None
) -> None:
    """Receive one queue to its end, by as many receivers as that takes."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    with Queue(path, page_bytes=PAGE_BYTES) as queue:
        with queue.producer() as producer:
            for number in range(COUNT):
                size_bytes = rng.choice((0, 10, rng.randrange(PAYLOAD_BYTES_MAX)))
                if rng.random() < LARGE_SHARE:
                    size_bytes = rng.randrange(PAGE_BYTES, LARGE_BYTES_MAX)
                producer.send(struct.pack("<I", number) + bytes(size_bytes))
        queue.consumer(NAME).close()
        outcome.violations += _without_streams(path, rng)
        place = 0
        while place < COUNT and time.monotonic() < deadline and cases != outcome.cases:
            outcome.cases += 1
            found = _Case(path, rng)
            found.play()
            after = _acknowledged(queue)
            outcome.violations += found.wrong(place, after)
            place = after
            if len(outcome.violations) >= driver.violations_enough(VIOLATIONS_MAX):
                return


def _without_streams(path: str, rng: random.Random) -> list[str]:
    """Use the queue in a program whose standard descriptors are closed; return what is wrong."""
    closed = [fd for fd in range(3) if rng.random() < 0.7]
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _open_and_roll(path, theirs, closed)
    os.close(theirs)
    with os.fdopen(ours) as file:
        wrong = file.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return wrong if code == 0 else [*wrong, f"exit code {code} of a program with {closed} closed"]


def _open_and_roll(path: str, out: int, closed: list[int]) -> NoReturn:
    """Read, then make pages; report which of the descriptors is a file of a queue."""
    from pagequeue import Queue  # noqa: PLC0415  the core is chosen by now

    code = 1
    try:
        for fd in closed:
            os.close(fd)
        with Queue(path, read_only=True) as queue:
            _say_strange(path, out, closed, "reading")
            queue.last(1)
        with (
            Queue(f"{path}-other", page_bytes=PAGE_BYTES) as queue,
            queue.producer() as producer,
        ):
            producer.send(b"here")
            queue.rotate()
            producer.flush()
            _say_strange(path, out, closed, "sending")
        code = 0
    finally:
        os._exit(code)


def _say_strange(path: str, out: int, closed: list[int], doing: str) -> None:
    for fd in closed:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(os.path.realpath(path)):
            os.write(out, f"descriptor {fd} was closed and is {target} while {doing}\n".encode())


def _acknowledged(queue: Queue) -> int:
    place = queue.consumers()[0].next_sequence
    assert place is not None
    return place


class _Case:
    """One receiver and its reader."""

    def __init__(self, path: str, rng: random.Random) -> None:
        self._path = path
        self._rng = rng
        self._closed = [fd for fd in (0, 2) if rng.random() < 0.3]
        self._read = b""
        self._has_end = self._is_killed = False
        self._status = 0
        self._strange: list[str] = []

    def play(self) -> None:
        """Start the receiver, read from it, and end one of the two."""
        rng = self._rng
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _receive(self._path, theirs, self._closed)
        os.close(theirs)
        for _ in range(rng.randrange(PIECES_MAX)):
            piece = os.read(ours, rng.randrange(1, READ_BYTES_MAX))
            if not piece:
                self._has_end = True
                break
            self._read += piece
            if rng.random() < 0.3:
                time.sleep(rng.random() * PAUSE_SECONDS_MAX)
        if self._read:
            self._look_at_descriptors(pid)
        if rng.random() < 0.3 and not self._has_end:
            self._is_killed = True
            os.kill(pid, signal.SIGKILL)
        os.close(ours)
        self._status = os.waitpid(pid, 0)[1]

    def _look_at_descriptors(self, pid: int) -> None:
        for fd in self._closed:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:  # it has ended
                continue
            if target.startswith(os.path.realpath(self._path)):
                self._strange.append(f"descriptor {fd} was closed and is {target} now")

    def wrong(self, before: int, after: int) -> list[str]:
        """Return what is wrong, with the cursor's places before and after."""
        found = list(self._strange)
        numbers = []
        position = 0
        while position + 4 <= len(self._read):
            end = position + 4 + struct.unpack_from("<I", self._read, position)[0]
            if end > len(self._read):
                break
            numbers.append(struct.unpack_from("<I", self._read, position + 4)[0])
            position = end
        if numbers != list(range(before, before + len(numbers))):
            found.append(f"the cursor was {before}, and the reader got {numbers[:3]}...")
        place = before + len(numbers)
        if after > place:
            found.append(f"{after - place} messages acknowledged that the reader did not read")
        if after < (before if self._is_killed else place):
            found.append(f"the reader is at {place}, and the cursor at {after}")
        code = os.waitstatus_to_exitcode(self._status)
        good = {-signal.SIGKILL, 0} if self._is_killed else {0, EXIT_CLOSED_PIPE}
        if code not in good:
            found.append(f"exit code {code}, with {self._closed} closed")
        return found


def _receive(path: str, out: int, closed: list[int]) -> NoReturn:
    """Be the command, as a shell would start it."""
    code = 1
    try:
        os.dup2(out, 1)
        os.close(out)
        for fd in closed:
            os.close(fd)
            setattr(sys, {0: "stdin", 2: "stderr"}[fd], None)  # as the interpreter starts then
        arguments = ["receive", path, "--consumer", NAME, "--format", "raw", "--length-prefixed"]
        sys.argv = ["pagequeue", *arguments]
        from pagequeue.cli import main  # noqa: PLC0415  the core is chosen by now

        code = main()
    finally:
        os._exit(code)
