"""MergeOrder: takes messages of several queues in the order of a merge; never waits.

`cut` is the lowest bound of any queue: all older messages are already held. Older messages are
taken; messages of exactly that time only from the queue with that bound and those before it in the
list, because it can still get messages of that time, which precede those of later queues.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from pagequeue.merge.batch import MergedBatch, MergedChunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagequeue.merge.batch import MergedSlice
    from pagequeue.merge.source import MergeSource
    from pagequeue.schema.schema import Schema

PAUSE_SECONDS_MIN: Final = 0.0001
PAUSE_SECONDS_MAX: Final = 3600.0


class MergeOrder:
    """Orders the messages of several queues.

    Args:
        sources: the queues, in the order that decides between messages of one time.
        names: of the queues.
        patience_ns: longest time that a message waits for silent queues.

    Attributes:
        ended: all queues have ended, and no message is held.
        schema: that of all queues, if they all have records of one dtype.
        late: messages taken after newer ones, because they came too late.
    """

    __slots__ = ("_last", "_names", "_patience_ns", "_sources", "ended", "late", "schema")

    def __init__(
        self, sources: Sequence[MergeSource], names: tuple[str, ...], patience_ns: int
    ) -> None:
        self._sources = tuple(sources)
        self._names = names
        self._patience_ns = patience_ns
        self._last = -math.inf
        self.ended: bool = False
        self.late: int = 0
        schemas = {source.record_dtype: source.schema for source in sources}
        self.schema: Schema | None = (
            next(iter(schemas.values())) if len(schemas) == 1 and None not in schemas else None
        )

    def attempt(self) -> MergedBatch | None:
        """Return the messages that are next in order; None if none are ready."""
        live = [source for source in self._sources if source.is_live(self._patience_ns)]
        if not live:
            self.ended = True
            return None
        parts = _taken(live)
        if not parts:
            held = [source for source in live if source.is_held]
            if held and self._held_seconds(held) <= 0:
                parts = _taken(held)
        return self._ordered(parts) if parts else None

    def prepare_wait(self) -> list[tuple[MergeSource, int]]:
        """Prepare to wait for all silent queues; return each with its doorbell's value."""
        return [
            (source, source.prepare_wait())
            for source in self._sources
            if not source.ended and not source.is_held
        ]

    def pause_seconds(self) -> float:
        """Return the seconds after which another attempt can succeed without a new message."""
        patience_ns = self._patience_ns
        silent = [source for source in self._sources if not source.ended and not source.is_held]
        held = [source for source in self._sources if source.is_held]
        pauses = [PAUSE_SECONDS_MAX]
        pauses.extend(source.seconds_to_end(patience_ns) for source in silent)
        if held:
            first = min(source.first_timestamp for source in held)
            pauses.append(self._held_seconds(held))
            pauses.append(max(source.seconds_to(first + patience_ns) for source in silent))
        return max(min(pauses), PAUSE_SECONDS_MIN)

    def _held_seconds(self, held: list[MergeSource]) -> float:
        """Return the seconds until a message has been held for the patience."""
        read_at = min(source.read_at for source in held)
        return read_at + self._patience_ns / 1e9 - time.monotonic()

    def _ordered(self, parts: list[MergedSlice]) -> MergedBatch:
        chunk = MergedChunk(parts, self._names, self.schema)
        batch = MergedBatch(chunk, chunk.order())
        timestamps = batch.timestamps
        if timestamps[0] < self._last:
            self.late += int(timestamps.searchsorted(self._last, "left"))
        self._last = max(self._last, int(timestamps[-1]))
        return batch


def _taken(sources: list[MergeSource]) -> list[MergedSlice]:
    """Take the messages that are in order among these queues, without waiting for others."""
    cut = min(source.bound for source in sources)
    last = next(source.queue for source in sources if source.bound == cut)
    parts = [source.take(cut, inclusive=source.queue <= last) for source in sources]
    return [part for part in parts if part is not None]
