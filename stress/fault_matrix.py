"""The fault matrix: every call of every scene, and all that it can end in; and its order.

Most calls are like others: a page is opened in a loop, and each scene opens the queue. The bugs are
where a call is made once. So calls that the library makes by one way, that is by the same lines of
functions that called each other, on files of one sort, in whatever scene, are one point; each point
has a turn before any has another.
"""

from __future__ import annotations

import errno
import itertools
import signal
from collections import Counter, defaultdict
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from stress import shim

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Mapping, Sequence

BURST = 100
"""How often an error that asks for a retry is repeated for "ever": more would be a system hang."""
FOR_EVER = 1 << 40
ALARM_RETURNS, ALARM_RAISES = "alarm returns", "alarm raises"
INTERRUPTED = " with EINTR"
TRY_AGAIN = {"EINTR", "EAGAIN"}
ALARMS = {handler + more for handler in (ALARM_RETURNS, ALARM_RAISES) for more in ("", INTERRUPTED)}

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
}
"""The possible outcomes of each call; `short`: half of the bytes."""

LIMITED: Final = {
    "open",
    "mmap",
    "read",
    "write",
    "fallocate",
    "ftruncate",
    "fsync",
    "fdatasync",
    "msync",
    "rename",
    "unlink",
    "mkdir",
}
"""Kinds of calls that use up something, or change what is on the disk."""
SERVICES: Final = ("system.", "page.", "util.", "meta.", "store.store:")
"""Modules in which the calls are made for all others: what counts is which others."""
DEPTHS: Final = (2, 4)
"""So many lines of other modules are one point, for all points but the finest."""
LEVELS: Final = len(DEPTHS) + 1


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


def points_of(way: Sequence[str], sort: int) -> list[int]:
    """Return numbers of a call's points, which are the finer the more lines they comprise.

    Args:
        way: places of the lines of the library that made the call, the innermost first.
        sort: a number for the sort of file.
    """
    told = [place for place in way if not place.startswith(SERVICES)]
    return [*(hash((sort, *told[:depth])) for depth in DEPTHS), hash((sort, *way))]


def ordered(
    cases: Mapping[str, Sequence[Case]],
    points: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
    rng: random.Random,
) -> list[Case]:
    """Return all cases, in a random order in which each point comes before any comes again.

    First come the coarsest points, then what is new among finer ones; of these, those first at
    which the fewest calls are made. Three cases are of kinds in `LIMITED`, then one of another.

    Args:
        cases: of each scene.
        points: of each scene, kind of call, and call: see `points_of`.
        rng: makes the choices.
    """
    columns: dict[tuple[str, str, int], list[Case]] = defaultdict(list)
    keys = {}
    for scene, found in cases.items():
        for case in found:
            keys[case] = [(case.kind, point) for point in points[scene][case.kind][case.nth - 1]]
            columns[scene, *keys[case][-1]].append(case)
    by_outcome = [_by_outcome(found, rng) for found in columns.values()]
    rng.shuffle(by_outcome)
    calls = Counter(
        level
        for key in {(case[:3], tuple(key)) for case, key in keys.items()}
        for level in enumerate(key[1])
    )
    seen: set[tuple[int, tuple[str, int]]] = set()
    turns: Counter[tuple[str, int]] = Counter()
    ranked = []
    for case in itertools.chain(*map(_known, zip_longest(*by_outcome))):
        levels = set(enumerate(keys[case]))
        new = min((level for level, _ in levels - seen), default=LEVELS)
        seen |= levels
        turns[keys[case][-1]] += 1
        rank = (LEVELS + turns[keys[case][-1]], 0)
        if new < LEVELS:
            rank = (new, calls[new, keys[case][new]].bit_length())
        ranked.append((rank, case))
    rng.shuffle(ranked)
    ranked.sort(key=itemgetter(0))
    limited = [case for _, case in ranked if case.kind in LIMITED]
    others = [case for _, case in ranked if case.kind not in LIMITED]
    threes = [limited[at : at + 3] for at in range(0, len(limited), 3)]
    mixed = zip_longest(threes, others, fillvalue=None)
    return [case for three, other in mixed for case in _known([*(three or []), other])]


def _known(cases: Iterable[Case | None]) -> list[Case]:
    return [case for case in cases if case is not None]


def _by_outcome(cases: list[Case], rng: random.Random) -> list[Case]:
    """Shuffle the cases of a point: each outcome before any comes again.

    The first is an error that does not only ask for a retry, if the call has such.
    """
    rng.shuffle(cases)
    turns: Counter[str] = Counter()
    ranked = []
    for case in cases:
        ranked.append((turns[case.how], case))
        turns[case.how] += 1
    ranked.sort(key=itemgetter(0))
    found = [case for _, case in ranked]
    first = min(found, key=lambda case: (case.how in ALARMS, case.how in TRY_AGAIN))
    return [first, *(case for case in found if case is not first)]
