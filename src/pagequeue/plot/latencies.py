"""Latencies from one queue to a second one, found from the payloads.

| rule | latency of a message in the second queue |
| --- | --- |
| `payload` | its time, less that of the message in the first queue with the same payload |
| `field:NAME` | the same for payloads that are JSON objects with the same value of that field |
| `time` | its time, less the first 8 bytes of its payload: little-endian int64, ns since 1970 |
| `time:NAME` | the same with a whole number in that field of a JSON object |

Messages of the first queue wait for their match in order of time, the newest 200,000 of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue.errors import InvalidOption
from pagequeue.plot.histograms import SizeBins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pagequeue.merge.batch import MergedBatch

WAITING_MAX: Final = 200_000
TIME_BYTES: Final = 8
RULES: Final = "payload, field:NAME, time or time:NAME"


class Latencies:
    """The latencies from one queue to another.

    Args:
        rule: how they are found.

    Attributes:
        bins: the latencies, ns.
        unmatched: messages of the second queue without one.

    Raises:
        InvalidOption: the rule is unknown.
    """

    def __init__(self, rule: str = "payload") -> None:
        kind, _, name = rule.partition(":")
        is_known = (
            (kind == "time" and rule != "time:") or rule == "payload" or (kind == "field" and name)
        )
        if not is_known:
            raise InvalidOption(f"unknown rule {rule!r} for latencies", remedy=f"give {RULES}")
        self.needs_both: bool = kind != "time"
        self.bins: SizeBins = SizeBins()
        self.unmatched: int = 0
        self._waiting: dict[int, int] = {}
        self._find: Callable[[bytes], Any]
        if name:
            self._find = lambda payload: _field(payload, name)
        elif kind == "time":
            self._find = _first_bytes
        else:
            self._find = lambda payload: payload

    def add(self, batch: MergedBatch) -> None:
        """Take messages of the first queue (0) and the second (1), in order of time."""
        rows = zip(batch.queues.tolist(), batch.timestamps.tolist(), batch.payloads, strict=True)
        found = list(self._matched(rows) if self.needs_both else self._from_payloads(rows))
        self.bins.add(np.array(found, np.int64))

    def _from_payloads(self, rows: Iterable[tuple[int, int, bytes]]) -> Iterable[int]:
        for queue, timestamp, payload in rows:
            if queue == 1:
                sent = self._find(payload)
                if type(sent) is int and abs(timestamp - sent) < 1 << 62:
                    yield timestamp - sent
                else:
                    self.unmatched += 1

    def _matched(self, rows: Iterable[tuple[int, int, bytes]]) -> Iterable[int]:
        waiting = self._waiting
        for queue, timestamp, payload in rows:
            key = self._find(payload)
            if queue == 0:
                if key is not None:
                    waiting.setdefault(hash(key), timestamp)
                    if len(waiting) > WAITING_MAX:
                        del waiting[next(iter(waiting))]
                continue
            sent = None if key is None else waiting.pop(hash(key), None)
            if sent is None:
                self.unmatched += 1
            else:
                yield timestamp - sent


def _first_bytes(payload: bytes) -> int | None:
    if len(payload) < TIME_BYTES:
        return None
    return int.from_bytes(payload[:TIME_BYTES], "little", signed=True)


def _field(payload: bytes, name: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return a number or a text from a field of a JSON object, or None."""
    try:
        value = json.loads(payload).get(name)
    except (ValueError, AttributeError, RecursionError):
        return None
    return value if isinstance(value, int | float | str) else None
