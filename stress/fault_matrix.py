"""The fault matrix: every call of every scene, and all that it can end in."""

from __future__ import annotations

import errno
import signal
from typing import TYPE_CHECKING, Final, NamedTuple

from stress import shim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BURST = 100
"""How often an error that asks for a retry is repeated for "ever": more would be a system hang."""
FOR_EVER = 1 << 40
ALARM_RETURNS, ALARM_RAISES = "alarm returns", "alarm raises"
INTERRUPTED = " with EINTR"
TRY_AGAIN = {"EINTR", "EAGAIN"}

_ROOM = ("ENOSPC", "EDQUOT")
_RESOURCE = ("EMFILE", "ENFILE", "ENOMEM")
_SYNC = ("EIO", *_ROOM, "EROFS")
ERRORS: Final[Mapping[str, tuple[str, ...]]] = {
    "open": ("EIO", *_ROOM, *_RESOURCE, "EINTR", "EROFS", "EACCES", "EAGAIN"),
    "mmap": ("EIO", *_RESOURCE, "EACCES", "EAGAIN"),
    "munmap": ("ENOMEM",),
    "stat": ("EIO", "ENOMEM", "EACCES"),
    "read": ("EIO", "ENOMEM", "EINTR", "EAGAIN", "short"),
    "write": ("EIO", *_ROOM, "ENOMEM", "EINTR", "EROFS", "EAGAIN", "short"),
    "fallocate": ("EIO", *_ROOM, "ENOMEM", "EINTR", "EROFS", "EACCES"),
    "ftruncate": ("EIO", *_ROOM, "EINTR", "EROFS", "EACCES"),
    "fsync": (*_SYNC, "EINTR", "ENOMEM"),
    "fdatasync": (*_SYNC, "EINTR", "ENOMEM"),
    "msync": (*_SYNC, "ENOMEM"),
    "rename": (*_SYNC, "EACCES", "ENOMEM"),
    "unlink": (*_SYNC, "EACCES", "ENOMEM"),
    "mkdir": (*_SYNC, "EACCES", "ENOMEM"),
    "flock": ("EINTR", "EAGAIN", "ENOLCK", "EIO"),
    "unlock": ("EINTR", "ENOLCK", "EIO"),
    "fcntl": ("EMFILE", "ENOMEM"),
    "readdir": ("EIO", "ENOMEM", "EACCES"),
    "madvise": ("EIO", "ENOMEM", "EAGAIN"),
    "futex": ("EINTR", "EAGAIN"),
    "close": ("EIO", *_ROOM, "EINTR"),
    "chmod": ("EIO", "EROFS", "EACCES"),
    "statfs": ("EIO", "ENOMEM", "EACCES"),
}  # fmt: skip
"""The possible outcomes of each call; `short`: half of the bytes."""


class Case(NamedTuple):
    """One fault: which scene, which call, which outcome; `how` is "" for an undisturbed run."""

    scene: str
    kind: str = ""
    nth: int = 0
    how: str = ""
    forever: bool = False

    def __str__(self) -> str:
        if not self.how:
            return f"{self.scene}, undisturbed"
        often = "for ever" if self.forever else "once"
        return f"{self.scene}: {self.kind} {self.nth}, {self.how} {often}"

    @property
    def order(self) -> shim.Order | None:
        """The order for the shim."""
        if not self.how:
            return None
        times = 1
        if self.forever:
            times = BURST if self.how in TRY_AGAIN else FOR_EVER
        alarm = signal.SIGALRM if self.how.startswith("alarm") else 0
        return shim.Order(self.kind, self.nth, times, self.error or shim.GO_ON, alarm)

    @property
    def error(self) -> int:
        """The error number, 0 for none."""
        if self.how.endswith(INTERRUPTED):
            return errno.EINTR
        return shim.SHORT if self.how == "short" else getattr(errno, self.how, 0)

    @property
    def fails_syncs(self) -> bool:
        """Whether data may not reach the disk because of it."""
        return self.kind in shim.SYNCS and self.error > 0 and self.error != errno.EINTR


def cases_of(scene: str, counts: Mapping[str, int]) -> Iterator[Case]:
    """Yield all cases of a scene, whose undisturbed run makes so many calls of each kind."""
    for kind, count in counts.items():
        for nth in range(1, count + 1):
            for how in ERRORS[kind]:
                yield Case(scene, kind, nth, how, forever=False)
                yield Case(scene, kind, nth, how, forever=True)
            for handler in (ALARM_RETURNS, ALARM_RAISES):
                yield Case(scene, kind, nth, handler)
                if "EINTR" in ERRORS[kind]:
                    yield Case(scene, kind, nth, handler + INTERRUPTED)
            if nth == 1:
                yield Case(scene, kind, nth, ALARM_RETURNS, forever=True)
