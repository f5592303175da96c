"""The figures of queues: what `pagequeue profile` shows, and that of Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pagequeue.plot.histograms import SizeBins, TimeBins

if TYPE_CHECKING:
    from pagequeue.profile.counts import Run


@dataclass
class QueueProfile:
    """The figures of one queue, or of all of them together.

    Attributes:
        queue: its name.
        messages: that are there, each copy counted.
        payload_bytes: of all of them.
        first_sequence: the lowest, and `last_sequence`, the highest; None: no message.
        first_timestamp: the earliest, ns since 1970, and `last_timestamp`, the latest.
        missing: sequences between the lowest and the highest that are not there.
        duplicates: messages whose sequence is there before.
        late: messages that are older than one with a lower sequence.
        sizes: of payloads, bytes.
        gaps: from each message to the next one, ns.
        times: messages and bytes by time.
        lags: of each named consumer; of a table how many messages its queue has more, where that
            can be read here, as that of `archive`.
    """

    queue: str
    messages: int = 0
    payload_bytes: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    missing: int = 0
    duplicates: int = 0
    late: int = 0
    sizes: SizeBins = field(default_factory=SizeBins)
    gaps: SizeBins = field(default_factory=SizeBins)
    times: TimeBins = field(default_factory=TimeBins)
    lags: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Messages a second from the first to the last; 0 if their times are equal."""
        span = (self.last_timestamp or 0) - (self.first_timestamp or 0)
        return (self.messages - 1) * 1e9 / span if span > 0 else 0.0

    @property
    def peak_rate(self) -> float:
        """Messages a second in the bin of time that has most."""
        return float(self.times.messages.max()) * 1e9 / self.times.bin_ns

    @property
    def lag(self) -> int | None:
        """The largest known lag, or None."""
        return max(self.lags.values(), default=None)


@dataclass
class Profile:
    """The figures of queues.

    Attributes:
        queues: each of them, by name.
        total: all together; sequences are those of no queue, so None.
    """

    queues: list[QueueProfile]
    total: QueueProfile


def joined(one: QueueProfile, runs: list[Run]) -> bool:
    """Concatenate the runs of a queue; False: they overlap."""
    runs.sort(key=lambda run: (run.first, run.last))
    one.first_sequence, one.last_sequence = runs[0].first, max(run.last for run in runs)
    one.first_timestamp = min(run.least_time for run in runs)
    one.last_timestamp = max(run.most_time for run in runs)
    one.late = sum(run.late for run in runs)
    span = one.last_sequence - one.first_sequence + 1
    latest, before = runs[0].most_time, runs[0]
    for run in runs[1:]:
        if run.first <= before.last or run.least_time < latest:
            return False
        one.gaps.add(np.array([run.first_time - before.last_time]))
        latest, before = max(latest, run.most_time), run
    one.duplicates = sum(run.duplicates for run in runs)
    one.missing = span - (one.messages - one.duplicates)
    return True


def summed(counted: dict[str, QueueProfile]) -> Profile:
    """Return queues and their sum."""
    queues = [counted[name] for name in sorted(counted)]
    total = QueueProfile("")
    for one in queues:
        for name in ("messages", "payload_bytes", "missing", "duplicates", "late"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        if one.messages:
            total.times.start, total.times.bin_ns = one.times.start, one.times.bin_ns
            times = [one.first_timestamp, total.first_timestamp]
            total.first_timestamp = min(time for time in times if time is not None)
            times = [one.last_timestamp, total.last_timestamp]
            total.last_timestamp = max(time for time in times if time is not None)
        total.times.messages += one.times.messages
        total.times.payload_bytes += one.times.payload_bytes
        for mine, its in ((total.sizes, one.sizes), (total.gaps, one.gaps)):
            mine.merge(its)
        for name, lag in one.lags.items():
            total.lags[name] = total.lags.get(name, 0) + lag
    return Profile(queues, total)
