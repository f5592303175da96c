"""Turn: how a handle that others keep overtaking gets its entry in.

Handles append without asking anybody, which is fastest while few do. One that was overtaken
`PATIENCE` times and for `PATIENCE_SECONDS` takes the turn: a lock on a small file, so that one
handle at a time has it, and in the file the time until which the others hold back. So a handle
whose `decide` is slow is overtaken only by what was under way already.

Dies or stops while it has the turn: the kernel releases the lock, and the others wait until the
time in the file, `TURN_NS_MAX` at most, whatever is in it. Only fairness depends on it.
"""

from __future__ import annotations

import contextlib
import random
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue.system.file_lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.system.directory import Directory

NAME: Final = "turn"
FILE_BYTES: Final = 4096
PATIENCE: Final = 3
PATIENCE_SECONDS: Final = 0.0005
"""A handle takes the turn after as many attempts, if they took as long: a quick one gets its entry
in sooner by trying again than the others notice that they should hold back."""
TURN_NS_FIRST: Final = 2_000_000
TURN_NS_MAX: Final = 1_000_000_000
NAP_SECONDS: Final = 0.0002
NS_PER_SECOND: Final = 1_000_000_000


class Turn:
    """The turn of one journal.

    Args:
        folder: the journal's directory.

    Attributes:
        until: returns until when the others hold back, by the host's monotonic clock in ns; 0: no
            handle has the turn.
    """

    def __init__(self, folder: Directory) -> None:
        self._folder = folder
        with contextlib.suppress(errors.RetryError):  # it is there: another process made it
            status = folder.status(NAME)
            if status is None or (stat.S_ISREG(status.st_mode) and status.st_size < FILE_BYTES):
                folder.make(NAME, b"", size_bytes=FILE_BYTES)
        self._lock = FileLock(folder.open(NAME, writable=True), folder.full(NAME))
        with folder.opened(NAME, writable=True) as fd:
            self._region = _core.Region(fd, FILE_BYTES, True)
        self._region.on_lost = partial(_lost, folder.full(NAME))
        load = self._region.load
        self.until: Callable[[], int] = partial(load, 0)

    def wait(self, deadline: float) -> None:
        """Wait while another handle has the turn, until its time or a deadline is over."""
        until = self.until()
        while 0 < until - _core.monotonic() <= TURN_NS_MAX and time.monotonic() < deadline:
            time.sleep(random.uniform(NAP_SECONDS / 2, NAP_SECONDS))  # noqa: S311 - not in step
            until = self.until()

    @contextlib.contextmanager
    def held(self, deadline: float, seconds: float) -> Iterator[Taken]:
        """Have the turn, as soon as no other handle has it, or do without it at the deadline.

        Args:
            deadline: by the monotonic clock.
            seconds: that an attempt takes.
        """
        taken = Taken(self._region, seconds)
        with contextlib.ExitStack() as stack:
            while time.monotonic() < deadline:
                if stack.enter_context(self._lock.attempt("waiting for its turn")):
                    stack.callback(taken.end)
                    taken.is_held = True
                    break
                stack.close()
                time.sleep(random.uniform(NAP_SECONDS / 2, NAP_SECONDS))  # noqa: S311 - the same
            yield taken

    def close(self) -> None:
        """Release the file."""
        self._lock.close()


def _lost(path: str, position: int) -> errors.CorruptMeta:
    """Return the error for a file that was truncated under its map."""
    return errors.CorruptMeta(
        "truncated while it was open",
        path=path,
        position=position,
        reason="truncated",
        remedy="close the journal in all processes, then open it again, which makes the file again",
    )


class Taken:
    """The turn while a handle has it.

    Attributes:
        is_held: whether it has it.
    """

    def __init__(self, region: _core.Region, seconds: float) -> None:
        self._region = region
        wanted = int(2 * seconds * NS_PER_SECOND)
        self._ns = min(max(TURN_NS_FIRST, wanted), TURN_NS_MAX)
        self.is_held = False

    def extend(self) -> None:
        """Let the others hold back for the next attempt, for twice as long as for the last one."""
        if self.is_held:
            self._region.store(0, _core.monotonic() + self._ns)
            self._ns = min(2 * self._ns, TURN_NS_MAX)

    def end(self) -> None:
        """Let the others append again."""
        self._region.store(0, 0)
