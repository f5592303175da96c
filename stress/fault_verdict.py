"""What an error must be like that a failing system call leads to."""

from __future__ import annotations

import errno
import os
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stress import shim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stress.fault_matrix import Case

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
DENIED = {errno.EACCES, errno.EROFS}


class Interrupted(Exception):
    """What the signal handler of a case raises."""


@dataclass
class Played:
    """The result of a case.

    Attributes:
        fired: how many calls were disturbed.
        counts: of calls, by kind.
        points: of an undisturbed case: those of each call, by kind; see `fault_matrix.py`.
        uids: of all producers.
        refused: operations whose error states that no message was sent.
        visible: operations whose error states that the messages were sent all the same.
        claims: the highest sequence below which all was reported to be on stable storage.
        shipped: what the replica of sealed pages was last reported to have.
        latched: whether all later sends must be refused.
        violations: what went wrong, one sentence each.
        errors: names of errors that were raised.
    """

    fired: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    points: dict[str, list[list[int]]] = field(default_factory=dict)
    uids: list[int] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    visible: list[tuple[int, int]] = field(default_factory=list)
    claims: int = 0
    shipped: int = 0
    latched: bool = False
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Judge:
    """Reports what is wrong with an error.

    Attributes:
        case: the fault.
        directory: below which everything lies.
        policy: of the queue, when a sync fails.
    """

    case: Case
    directory: str
    policy: str

    def wrong_with(self, error: BaseException, fired_before: int) -> Iterator[str]:
        """Yield what is wrong with the error of a call before which so many calls had failed."""
        from pagequeue import PageQueueError, SyncFailed  # noqa: PLC0415  the core is chosen by now

        if isinstance(error, Interrupted):
            return
        if not isinstance(error, PageQueueError):
            yield "ends in an error that is not typed"
            return
        if shim.fired() == 0:
            yield "fails before anything was disturbed"
        path = error.path or ""
        if not path.startswith(self.directory) or path not in str(error):
            yield "ends in an error that does not name the path"
        if isinstance(error, SyncFailed) and self.policy == "seal" and not self.case.forever:
            yield "stops trying though a sync works again"
        over = fired_before > 0 and not self.case.forever
        if over and not (isinstance(error, SyncFailed) and self.case.fails_syncs):
            yield "fails though the fault is over"
        yield from self._wrong_kind(error)

    def _wrong_kind(self, error: BaseException) -> Iterator[str]:
        """Yield if the error states a different cause than the fault."""
        import pagequeue  # noqa: PLC0415

        if isinstance(error, pagequeue.NotDurable):
            return  # its text names what kept it from being durable
        if isinstance(error, pagequeue.SyncFailed):
            if not self.case.fails_syncs:
                yield "reports a failed sync, and none failed"
            return
        if isinstance(error, OSError) and error.errno not in {None, self.case.error}:
            yield f"names error {error.errno}, it was {self.case.error}"
        known: tuple[type[Exception], ...] = (pagequeue.RetryError, pagequeue.AccessDenied)
        if self.case.kind == "flock" and self.case.how == "EAGAIN" and self.case.forever:
            known += (pagequeue.LockReplaced,)  # another process has it, as the fault reported
        if not isinstance(error, known):
            yield "reports another kind of fault"
        if self.case.error in NO_ROOM and not isinstance(error, pagequeue.DiskFull):
            yield "does not report that there is no room"
        if self.case.error in DENIED and not isinstance(error, pagequeue.AccessDenied):
            yield "does not report that it is not permitted"


def place_of(error: BaseException) -> str:
    """Return the lines that an error came through, the last three of them."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " > ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames)


def descriptors() -> set[int]:
    """Return the descriptors that are open."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in found if target_of(fd) is not None}


def target_of(fd: int) -> str | None:
    """Return the name of what a descriptor is open on."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
    except OSError:
        return None
