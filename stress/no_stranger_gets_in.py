"""Forbids that another user reads or changes a queue, or leads its user out of its directory.

Run as root, in processes of other users. A queue that was made under any umask has the modes it
was asked for, and another user cannot open, read, rename or remove any of it. In a shared sticky
directory a stranger plants links, hard links, FIFOs, directories, devices, sockets and files of
another user's under the names that the queue has or will have: before it is made, when it lost a
file, and all the while. Opening then works without any of these or is refused by a typed error, at
once; no file is written outside or into the stranger's; none of his files is taken. When his files
are removed, everything that was sent is there. No address of the sender's memory is in a payload.

A case is an opening, or a try to get in.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  other users may not read our modules
import contextlib
import encodings.ascii  # noqa: F401  the same
import os
import pwd  # noqa: F401  the same
import random
import shutil
import stat
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stress import children, driver
from stress.campaign import Budget, Outcome
from stress.history import MemoryLog, Sent
from stress.hostile import (
    KINDS,
    NAMES,
    PREFIX,
    STRANGER,
    VICTIM,
    Neighbourhood,
    become,
    pester,
)
from stress.rounds import tries
from stress.tenant import problems_of
from stress.traffic import VIOLATIONS_MAX, Proof, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue import Producer, Queue

SHORT_SECONDS = 3.0

PAGE_BYTES = 16 << 10
SHAPE = Shape(
    payload_bytes_max=4096,
    batch_bytes_max=12 << 10,
    rotate_parts=40,
    large_parts=20,
    large_bytes=50 << 10,
)
MODES = (0o600, 0o600, 0o600, 0o640, 0o666)
UMASKS = (0, 0o022, 0o077, 0o777)
LOCK_SECONDS = 0.3
ANSWER_SECONDS = 30.0
PESTER_SECONDS = 0.15


class Scene:
    """One neighbourhood, its victim and its stranger."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.rng = rng
        self.owner = rng.choice((0, VICTIM, VICTIM))
        self.place = Neighbourhood(base, self.owner, rng)
        self.errors = children.ErrorFile(base / "errors")
        self.acked = MemoryLog(Sent)
        self.uids: list[int] = []
        self.tries = 0
        self.violations: list[str] = []

    # --- processes --------------------------------------------------------------------------------

    def as_user(self, uid: int, body: Callable[[], None], name: str) -> None:
        """Run a function as another user; it must end, and in time."""

        def dropped() -> None:
            become(uid)
            body()

        pid = children.fork(dropped, self.errors, name)
        status = children.ended(pid, ANSWER_SECONDS)
        self.tries += 1
        if status is None:
            children.kill(pid)
            self.violations.append(f"{name} blocks for {ANSWER_SECONDS:g} s")
        elif os.WIFSIGNALED(status):
            self.violations.append(f"{name} ended by signal {os.WTERMSIG(status)}")

    def use(self, path: Path, uid: int, mode: int, *, must: bool) -> None:
        """Make or open the queue, send, roll, read; `must`: no obstacle is planted."""
        from pagequeue import Queue, errors  # noqa: PLC0415

        os.umask(self.rng.choice(UMASKS))
        try:
            with Queue(
                path,
                prefix=PREFIX,
                page_bytes=PAGE_BYTES,
                file_mode=mode,
                lock_timeout=LOCK_SECONDS,
            ) as queue:
                self.send_and_look(queue, uid, mode)
        except errors.PageQueueError as error:
            if must or not error.path:
                raise

    def send_and_look(self, queue: Queue, uid: int, mode: int) -> None:
        """Send some, and see whose files these are."""
        with queue.producer() as producer:
            for number in range(self.rng.randint(1, 12)):
                op = SHAPE.op(uid, number)
                first, count = op.run(producer)
                self.acked.put(Sent(uid, number, count, first))
            self.send_addresses(producer)
            producer.flush()
        whose(queue, mode)
        assert sum(len(batch) for batch in queue.batches()) == len(queue)

    def send_addresses(self, producer: Producer) -> None:
        """Send what holds addresses of this process, which readers must not learn."""
        addresses: list[Any] = [np.array([object()]), memoryview(bytes(8)).cast("P")]
        with contextlib.suppress(TypeError):
            producer.send(self.rng.choice(addresses))
            raise AssertionError("an address of the sender's memory was published")

    # --- scenes -----------------------------------------------------------------------------------

    def victim(self, path: Path, mode: int, *, must: bool = False) -> None:
        """Let the victim use the queue."""
        uid = self.rng.getrandbits(63)
        self.uids.append(uid)
        self.as_user(self.owner, partial(self.use, path, uid, mode, must=must), "the victim")

    def locked_out(self) -> None:
        """A queue in a private directory: another user gets no access to it."""
        path = self.place.outside / "queue"
        self.victim(path, 0o600, must=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, "the directory is open to others"
        self.as_user(STRANGER, partial(denied_outside, path), "the stranger")
        path.chmod(0o755)  # as an administrator might: the files keep others out all the same
        self.as_user(STRANGER, partial(denied_inside, path), "the stranger")
        path.chmod(0o700)
        self.prove(path)
        shutil.rmtree(path)

    def planted(self) -> None:
        """Plants wait for the victim: before the queue is made, or where it has lost a file."""
        path, mode = self.place.shared, self.rng.choice(MODES)
        if self.rng.random() < 0.5:
            self.victim(path, mode, must=True)
            for name in self.rng.sample(NAMES[1:10], self.rng.randint(0, 2)):
                if "page" not in name and not name.endswith("allMeta"):
                    (path / name).unlink(missing_ok=True)
        for _ in range(self.rng.randint(1, 3)):
            self.place.plant(self.rng.choice(KINDS), self.rng.choice(NAMES))
        for _ in range(2):
            self.victim(path, mode)
        self.place.clear()
        self.victim(path, mode, must=True)
        self.prove(path)

    def pestered(self) -> None:
        """The stranger plants all the while."""
        path, mode = self.place.shared, self.rng.choice(MODES)
        rng = random.Random(self.rng.getrandbits(63))

        def pest() -> None:
            become(STRANGER)
            pester(path, self.place.attic, self.place.outside, rng)

        pid = children.fork(pest, self.errors, "the pest")
        try:
            deadline = time.monotonic() + PESTER_SECONDS
            while time.monotonic() < deadline:
                self.victim(path, mode)
        finally:
            if not children.was_killed(children.kill(pid)):
                self.violations.append("the pest exited unasked")
        self.place.clear()
        self.victim(path, mode, must=True)
        self.prove(path)

    def lured(self) -> None:
        """The queue's directory itself is the stranger's, a link, or world-writable."""
        path = self.place.shared / "queue"
        target = self.place.attic / "queue"
        kind = self.rng.choice(("link", "link to ours", "his", "FIFO", "file", "open"))
        if kind == "link":
            path.symlink_to(target)
        elif kind == "link to ours":
            path.symlink_to(self.place.outside / "below")
        elif kind == "his":
            shutil.copytree(target, path)
        elif kind == "FIFO":
            os.mkfifo(path)
        elif kind == "file":
            path.write_bytes(b"")
        else:
            path.mkdir()
            path.chmod(0o777)
        for each in [path, *(path.iterdir() if kind == "his" else ())]:
            owner = self.owner if kind == "open" else STRANGER
            os.chown(each, owner, owner, follow_symlinks=False)
        self.as_user(self.owner, partial(refused, path, kind), "the lured")

    # --- proof ------------------------------------------------------------------------------------

    def prove(self, path: Path) -> None:
        """Every message that was sent is there, once."""
        from pagequeue import Queue, errors  # noqa: PLC0415

        try:
            with Queue(path, prefix=PREFIX, read_only=True, trust=("other_owner",)) as queue:
                proof = Proof(SHAPE.op, self.uids, self.acked.events())
                proof.run(message for batch in queue.batches() for message in batch)
                self.violations += proof.violations
                self.violations += [f"verify: {problem}" for problem in problems_of(queue)]
        except errors.PageQueueError as error:
            self.violations.append(f"{type(error).__name__}: {error}")

    def run(self, own_queue: Path) -> None:
        """Play one of the scenes."""
        shutil.copytree(own_queue, self.place.attic / "queue")
        for path in (self.place.attic / "queue", *(self.place.attic / "queue").iterdir()):
            os.chown(path, STRANGER, STRANGER)
        try:
            kinds = (self.locked_out, self.planted, self.planted, self.pestered, self.lured)
            self.rng.choice(kinds)()
            self.violations += self.errors.said()
            self.violations += self.place.harm()
        finally:
            self.place.close()
            self.acked.close()
            self.errors.close()


def whose(queue: Queue, mode: int) -> None:
    """Raise unless every file in use is a regular one of this user, with one name and its mode.

    An index whose name a stranger was first to take is not in use: it is only a hint (I6), and the
    queue works without it.
    """
    directory = Path(queue.directory)
    names = [*(f"{PREFIX}-{meta}" for meta in ("allMeta", "writeMeta", "readMeta"))]
    names.append(f"{PREFIX}.lock")
    for number in range(1, queue.info().tail_page + 1):
        names += [f"{PREFIX}-{number:010d}.{kind}" for kind in ("page", "idx")]
    for name in names:
        status = (directory / name).lstat()
        if name.endswith(".idx") and status.st_uid != os.geteuid():
            assert not is_mapped(status.st_ino), f"{name} is mapped, and not ours: {status}"
            continue
        right = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        assert right, f"{name} is not a file of ours: {status}"
        assert status.st_nlink == 1, f"{name} has other names: {status}"
        assert stat.S_IMODE(status.st_mode) == mode, f"{name} has mode {status.st_mode:o}"


def is_mapped(inode: int) -> bool:
    """Whether this process has a file mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return any(line.split()[4] == str(inode) for line in lines)


def denied(act: Callable[[], object], words: str) -> None:
    """Raise unless this is not permitted."""
    try:
        act()
    except PermissionError:
        return
    raise AssertionError(f"permitted: {words}")


def denied_outside(path: Path) -> None:
    """Try all there is against a directory that keeps others out."""
    from pagequeue import Queue, errors  # noqa: PLC0415

    for read_only in (True, False):
        try:
            Queue(path, prefix=PREFIX, read_only=read_only)
        except (errors.AccessDenied, errors.UnsafePath):
            continue
        raise AssertionError(f"opened by a stranger, read_only={read_only}")
    denied(lambda: os.listdir(path), "listing")
    denied((path / f"{PREFIX}-allMeta").stat, "looking")


def denied_inside(path: Path) -> None:
    """The same where only the files keep others out."""
    from pagequeue import Queue, errors  # noqa: PLC0415

    for read_only in (True, False):
        try:
            Queue(path, prefix=PREFIX, read_only=read_only, trust=("other_owner",))
        except errors.AccessDenied:
            continue
        raise AssertionError(f"opened by a stranger, read_only={read_only}")
    for file in list(path.iterdir()):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            opening = os.O_RDONLY | os.O_DIRECTORY if file.is_dir() else flags
            denied(partial(os.open, file, opening), f"opening {file}")
        denied(file.unlink, f"removing {file}")
        denied(partial(file.rename, path / "other"), f"renaming {file}")
        denied(partial(file.chmod, 0o666), f"changing the mode of {file}")
    denied((path / f"{PREFIX}-0000000099.page").touch, "making a file")


def refused(path: Path, kind: str) -> None:
    """Open what a stranger has laid in the way; that must be refused."""
    from pagequeue import Queue, errors  # noqa: PLC0415

    try:
        Queue(path, prefix=PREFIX, page_bytes=PAGE_BYTES, lock_timeout=LOCK_SECONDS)
    except (errors.UnsafePath, errors.NotADirectory, errors.AccessDenied) as error:
        if not error.path:
            raise
        return
    raise AssertionError(f"the directory was taken: {kind}")


def campaign(budget: Budget) -> Outcome:
    """Play scenes until the budget is used up; in a process that has no queue open."""
    from pagequeue import Queue  # noqa: PLC0415

    outcome = Outcome(0)
    if os.geteuid() != 0:
        outcome.notes["left out"] = "all of it: becoming another user needs root"
        return outcome
    rng = random.Random(budget.seed)
    with tempfile.TemporaryDirectory(
        prefix="pagequeue-stranger-", dir=driver.scratch_directory()
    ) as name:
        base = Path(name)
        base.chmod(0o711)
        own = base / "own"
        with Queue(own, prefix=PREFIX, page_bytes=PAGE_BYTES) as queue, queue.producer() as sender:
            sender.send(b"a message of the stranger's")
        for number, _ in enumerate(tries(budget, outcome, VIOLATIONS_MAX), 1):
            directory = base / f"scene-{number}"
            directory.mkdir()
            # Its own: a scene draws as often as it has time for, and the next ones are the seed's.
            scene = Scene(directory, random.Random(rng.getrandbits(64)))
            scene.run(own)
            outcome.cases += scene.tries
            outcome.violations += [f"scene {number}: {words}" for words in scene.violations]
            shutil.rmtree(directory)
            outcome.notes["scenes"] = number
    return outcome


def run(budget: Budget) -> Outcome:
    """Run the campaign on the installed core."""
    return driver.run_apart(__name__, budget)
