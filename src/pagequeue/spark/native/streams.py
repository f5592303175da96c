"""Streams of the native reader: the driver's side, which `QueueStream.java` calls.

Offsets, limits and consumers are those of the Python source (`StreamOffsets`), so that a query can
continue with the other reader; what is different is who reads the pages. Each query has its own
`StreamOffsets`, from its first request to `stop`. Spark's thread of the query sends the requests:
py4j gives it a thread here, as for a function of `foreachBatch`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from pagequeue.spark.columns import Need
from pagequeue.spark.native.partitions import BETWEEN, Columns, Partitions
from pagequeue.spark.options import read_options
from pagequeue.spark.streaming import StreamOffsets

if TYPE_CHECKING:
    from pagequeue.spark.streaming import Offsets

OF_STREAM: Final = "stream\n"
"""How a request begins."""


class Streams:
    """The streams of this driver's queries."""

    def __init__(self) -> None:
        self._running: dict[str, _Stream] = {}

    def answer(self, request: str) -> str:
        """Return the answer to a request of `QueueStream.java`: offsets as JSON, or partitions."""
        key, verb, given, first, second = request.split("\n")
        if verb == "stop":
            stream = self._running.pop(key, None)
            if stream is not None:
                stream.offsets.stop()
            return ""
        if key not in self._running:
            self._running[key] = _Stream(json.loads(unquote(given)))
        return self._running[key].answer(verb, first, second)


class _Stream:
    """One query's."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._options = read_options(told["options"], streaming=True)
        self._columns = Columns(told["columns"], told["dtype"])
        self._need = Need(max(map(_need, self._columns.specs.values()), default=0))
        self.offsets = StreamOffsets(self._options)

    def answer(self, verb: str, first: str, second: str) -> str:
        """Return the answer to one request."""
        offsets = self.offsets
        match verb:
            case "initial":
                return json.dumps(offsets.initialOffset())
            case "limit":
                return self._limit()
            case "prepare":
                offsets.prepareForTriggerAvailableNow()
            case "latest":
                limit = offsets.getDefaultReadLimit() if second == "limited" else ReadAllAvailable()
                return json.dumps(offsets.latestOffset(json.loads(first), limit))
            case "report":
                return json.dumps(offsets.reportLatestOffset())
            case "parts":
                return BETWEEN.join(self._parts(json.loads(first), json.loads(second)))
            case "commit":
                offsets.commit(json.loads(first))
            case _:
                raise ValueError(f"unknown request {verb!r}")
        return ""

    def _limit(self) -> str:
        limit = self.offsets.getDefaultReadLimit()
        if isinstance(limit, ReadMaxRows):
            return f"rows {limit.max_rows}"
        return f"bytes {limit.max_bytes}" if isinstance(limit, ReadMaxBytes) else "all"

    def _parts(self, start: Offsets, end: Offsets) -> list[str]:
        """Return what each task of a micro-batch reads."""
        ranges = self.offsets.ranges(start, end)
        if not ranges:
            return []
        with contextlib.ExitStack() as stack:
            parts = Partitions(self._options, self._need, self._columns, stack)
            return parts.texts(ranges)[1]


def _need(spec: str) -> Need:
    """Return what must be read for a column."""
    own = {"q": Need.NOTHING, "s": Need.NOTHING, "m": Need.TIMES, "t": Need.TIMES}
    return own.get(spec, Need.PAYLOADS)
