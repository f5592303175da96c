"""The time of messages: a clock's readings, as long as it runs evenly.

The clock of the system, or one that a user gave, can be wrong for a moment: NTP, a virtual machine
that is resumed, or an operator sets it by days, and sets it right again. The time since the machine
was started runs evenly, also while it sleeps. So the queue knows what the clock should show: the
write meta has how far it was ahead of that time when it was last believed.

A reading that departs from it by more than `BOUND_NS` is doubted. While it is, messages get the
time that an even clock would show, and so do `since=timedelta`, retention and statistics. The first
reading that fits ends the doubt. When readings were doubted for `HOLD_NS`, the clock is believed
again: it was set for good, as after the first boot of a machine without a battery. Messages of
before then are younger than their times say by what the clock jumped ahead, which retention takes
into account (`credited`).

A clock that a user gave is doubted only if it runs: one that stands still, or is stepped by a test,
is taken at its word. It never counts for other processes before that was found out.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core
from pagequeue.format import TIMESTAMP_MAX
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.write_meta import WriteMeta
    from pagequeue.util.timestamps import Clock

log: logging.Logger = logging.getLogger("pagequeue")
BOUND_NS: Final = 10 * NS_PER_S
"""A clock that is set by less is believed at once."""
HOLD_NS: Final = 60 * NS_PER_S
"""One that is set by more is believed when it has shown that for so long."""
WINDOW_NS: Final = NS_PER_S
"""Readings of so much time after one that was looked at, and half of it before, need no look."""
TRIALS: Final = 3
TRIAL_NS: Final = 100_000
SLACK_NS: Final = 2_000
SEEN_NS: Final = 1_000_000
"""A clock that a user gave runs if it was even for so long, ..."""
EVEN_NS: Final = 20_000
"""... but for so much, which pass between reading it and the time since the boot."""


class QueueClock(_core.Clock):
    """The clock of an open queue; calling it returns ns since 1970.

    Args:
        source: returns ns since 1970; None: the system's clock.
        write_meta: of the queue.
        path: of its directory, for the log.
        read_only: whether nothing may be written.
        elapsed: returns ns of the time since the machine was started; None: it is unknown, and the
            clock is believed always.
    """

    def __new__(cls, source: Clock | None, *_others: object, **_: object) -> Self:
        """Make a clock that looks at its first reading."""
        return super().__new__(cls, source)

    def __init__(
        self,
        source: Clock | None,
        write_meta: WriteMeta,
        path: str,
        *,
        read_only: bool,
        elapsed: Callable[[], int] | None = _core.boottime,
    ) -> None:
        self._given = source
        self._meta = write_meta
        self._path = path
        self._read_only = read_only
        self._elapsed = elapsed
        self._runs: bool | None = None if source is not None else True
        self._ahead = 0  # of the elapsed time, when this handle believed it; 0: not yet
        self._since = 0  # when that was
        self._doubted = 0  # when this handle began to doubt it; 0: it does not

    @property
    def doubted_ns(self) -> int:
        """How far the clock is off what it should show, while it is doubted; else 0."""
        elapsed = self._elapsed
        if not self._doubted or elapsed is None:
            return 0
        reading = _core.realtime() if self._given is None else self._given()
        return reading - elapsed() - self._known()

    def credited(self, timestamp: int) -> int:
        """Return the time of a message as the clock would show it that was believed later.

        A message that was sent before the clock jumped ahead is younger than its time says, but not
        younger than the jump.
        """
        for when, ns in self._meta.jumps:
            if timestamp < when:
                timestamp = min(timestamp + ns, when)
        return timestamp

    def compare(self, last: int) -> None:
        """Warn if the time of the last message is ahead of the system's clock."""
        if self._given is None and last - _core.realtime() > BOUND_NS:
            log.warning(
                "%s: its last message is %s ahead of the clock, and later ones get its time: if "
                "the clock is right, close the queue and call `pagequeue repair --times`",
                self._path,
                timedelta(microseconds=(last - _core.realtime()) // 1000),
            )

    def _look(self, reading: int) -> int:
        """Return the time for a reading outside of the window."""
        elapsed = self._elapsed
        if elapsed is None or self._runs is False:
            self._window(0, TIMESTAMP_MAX)
            return reading
        now = elapsed()
        known = self._known()
        if not known:
            return self._believe(reading, now)
        if self._runs is None and self._has_run(reading, now):
            self._runs = True
        expected = now + known
        if -BOUND_NS <= reading - expected <= BOUND_NS:
            return self._believe(reading, now)
        if self._runs is None:
            assert self._given is not None
            self._runs = runs(self._given, elapsed)
            if not self._runs:
                return self._look(reading)
            if not self._read_only and not self._meta.clock_ahead:
                self._meta.believe_clock(known)
        return self._doubt(reading, now, expected)

    def _known(self) -> int:
        """Return how far the clock should be ahead of the elapsed time; 0: unknown."""
        shared = self._meta.clock_ahead
        if self._runs is None or not shared:
            return self._ahead or shared
        return shared

    def _has_run(self, reading: int, now: int) -> bool:
        return (
            self._ahead != 0
            and now - self._since >= SEEN_NS
            and abs(reading - now - self._ahead) <= EVEN_NS
        )

    def _believe(self, reading: int, now: int) -> int:
        self._ahead, self._since = reading - now, now
        if self._doubted:
            self._doubted = 0
            log.warning("%s: the clock runs on as it did before it was set", self._path)
        if self._runs and not self._read_only:
            self._meta.believe_clock(self._ahead)
        ahead = SEEN_NS if self._runs is None else WINDOW_NS
        self._window(reading - WINDOW_NS // 2, WINDOW_NS // 2 + ahead)
        return reading

    def _doubt(self, reading: int, now: int, expected: int) -> int:
        since = self._meta.clock_doubted if not self._read_only else self._doubted
        if not 0 < since <= now:
            since = now
            if not self._read_only:
                self._meta.clock_doubted = now
        if not self._doubted:
            self._doubted = since
            log.warning(
                "%s: the clock was set %s by %.0f s: until it has shown that for %.0f s, messages "
                "get the time that it would show without",
                self._path,
                "ahead" if reading > expected else "back",
                abs(reading - expected) / NS_PER_S,
                HOLD_NS / NS_PER_S,
            )
        if now - since < HOLD_NS:
            self._window(0, 0)
            return expected
        if self._read_only:  # this handle alone believes it, and cannot tell the others
            return reading
        self._doubted = 0
        log.warning("%s: the clock is believed again: it was set for good", self._path)
        self._meta.note_jump(reading, reading - expected)
        return self._believe(reading, now)


def runs(source: Clock, elapsed: Callable[[], int] = _core.boottime) -> bool:
    """Whether a clock runs as time does; one for tests stands still, or is stepped.

    One that is set between two readings is tried again.
    """
    try:
        for _ in range(TRIALS):
            before, first, begun = elapsed(), source(), elapsed()
            while (least := elapsed()) - begun < TRIAL_NS:
                pass
            second, most = source(), elapsed()
            if least - begun - SLACK_NS <= second - first <= most - before + SLACK_NS:
                return True
            if second == first:
                return False
    except Exception:  # noqa: BLE001 - it is the user's, for instance at the end of its readings
        return False
    return False
