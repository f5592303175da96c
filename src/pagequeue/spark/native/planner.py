"""Plans reads of tables for the JVM: what was retained at first use, and ranges of it.

A request and its answer are text; `QueueScan.java` has the other side.
"""

from __future__ import annotations

import contextlib
import json
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pyspark import SparkContext

from pagequeue import errors
from pagequeue.queue.queue import internals
from pagequeue.spark.columns import Need
from pagequeue.spark.error_text import attributes_of
from pagequeue.spark.native import intervals
from pagequeue.spark.native.choosing import OF_SCHEMA, OF_TABLE, schema_answer, table_answer
from pagequeue.spark.native.conditions import ranges
from pagequeue.spark.native.partitions import BETWEEN, Columns, Partitions
from pagequeue.spark.native.sinks import OF_SINK, sink_answer
from pagequeue.spark.native.streams import OF_STREAM, Streams
from pagequeue.spark.options import read_options
from pagequeue.spark.path_glob import Found, open_each
from pagequeue.spark.planning import wanted_range
from pagequeue.spark.reading import expired_since

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pagequeue.spark.native.partitions import Ranges
    from pagequeue.spark.options import ReadOptions

BUG: Final = "!!"
ROW_BYTES: Final = 8
"""Weight of a row of which no file is read, for the optimiser."""


class Planner:
    """What the JVM calls: a `java.util.function.Function` of text to text.

    Args:
        prepared: of each application why its JVM does not have the classes; empty: it has.
    """

    def __init__(self, prepared: Mapping[str, str]) -> None:
        self._prepared = prepared
        self._streams = Streams()

    def apply(self, request: str) -> str:
        """Return the answer to a request.

        An error and its attributes come after a `!`, the traceback of another one after two.
        """
        try:
            return self._answer(request)
        except errors.PageQueueError as error:
            line = " ".join(str(error).splitlines())
            return f"!{type(error).__name__}: {line}\n{attributes_of(error)}"
        except Exception:  # noqa: BLE001 - a bug; py4j's exception overflows a stack in Spark
            return BUG + traceback.format_exc()

    def _answer(self, request: str) -> str:
        if request.startswith(OF_STREAM):
            return self._streams.answer(request.removeprefix(OF_STREAM))
        if request.startswith(OF_SINK):
            return sink_answer(request.removeprefix(OF_SINK), self._why_not())
        if request.startswith(OF_SCHEMA):
            return schema_answer(request.removeprefix(OF_SCHEMA))
        if request.startswith(OF_TABLE):
            return table_answer(request.removeprefix(OF_TABLE), self._why_not())
        return answer(request)

    def _why_not(self) -> str:
        """Return why the application has no classes: those of an earlier one can be around."""
        running = SparkContext._active_spark_context  # noqa: SLF001 - the only access
        application = "" if running is None else running.applicationId
        return self._prepared.get(application, "this session was not registered")

    def equals(self, other: object) -> bool:
        """Whether it is this object, for Java."""
        return other is self

    def hashCode(self) -> int:  # noqa: N802 - Java's name
        """Return a number for Java's maps."""
        return 1

    def toString(self) -> str:  # noqa: N802 - the same
        """Return a text for Java."""
        return "pagequeue's planner"

    class Java:
        """What py4j reads."""

        implements: Final = ("java.util.function.Function",)


class _Request(NamedTuple):
    """What is to be planned."""

    options: ReadOptions
    columns: Columns
    retained: str
    need: Need
    limit: int
    limited: str
    aggregates: list[str]
    conditions: list[str]


def answer(request: str) -> str:
    """Return the plan for a request of `QueueScan.java`."""
    given, retained, sizes, aggregates, *conditions = request.split("\n")
    told = json.loads(unquote(given))
    need, limit, limited = sizes.split(" ")
    options = read_options(told["options"], streaming=False)
    wanted = _Request(
        options,
        Columns(told["columns"], told["dtype"]),
        retained,
        Need(int(need)),
        int(limit),
        limited,
        aggregates.split(),
        [text for text in conditions if text],
    )
    with contextlib.ExitStack() as stack:
        plan = _Plan(wanted, stack)
        return BETWEEN.join(plan.texts())


class _Plan:
    """Plans one read of a table."""

    def __init__(self, wanted: _Request, stack: contextlib.ExitStack) -> None:
        self._wanted = wanted
        self._parts = Partitions(wanted.options, wanted.need, wanted.columns, stack)

    def texts(self) -> Iterator[str]:
        """Give what was retained at first use, rows and bytes, and each partition."""
        retained = self._retained()
        yield _written(retained)
        found = [(queue, first, end) for queue, first, end in self._ranges(retained)]
        if self._wanted.aggregates:
            yield "1 8"
            yield " ".join(map(_number, self._aggregated(found)))
            return
        weight, texts = self._parts.texts(found)
        rows = sum(end - first for _, first, end in found)
        yield f"{rows} {max(rows * ROW_BYTES, int(weight))}"
        yield from texts

    def _retained(self) -> Ranges:
        """Return the queues with their sequences, as they were when the frame was first used."""
        if self._wanted.retained:
            told = json.loads(unquote(self._wanted.retained))
            known = [(Found(d, p, tuple(t), i), *range_) for (d, p, t, i), *range_ in told]
            for queue, _, _ in known:
                self._parts.store(queue)  # raises if it is not there now
            return known
        retained = []
        for found, queue in open_each(self._wanted.options):
            store = internals(queue).store
            self._wanted.columns.check(store)
            first, end = store.while_retained(partial(wanted_range, queue, self._wanted.options))
            retained.append((found, first, end))
        return retained

    def _ranges(self, retained: Ranges) -> Ranges:
        """Return the sequences that the filters and the limit leave.

        A limit is one of all rows; with an order it is one of each queue, for Spark to sort.
        """
        left = self._wanted.limit if self._wanted.limit >= 0 else intervals.END
        found = []
        for queue, first, end in retained:
            seek = partial(self._seek, queue, first)
            wanted = ranges(self._wanted.conditions, queue.name, first, end, seek)
            if self._wanted.limited == "last":
                wanted = intervals.last(wanted, left)
            else:
                wanted = intervals.limited(wanted, left)
            if self._wanted.limited == "any":
                left -= sum(stop - begin for begin, stop in wanted)
            found += [(queue, begin, stop) for begin, stop in wanted]
            if wanted and self._wanted.need is not Need.NOTHING:
                store = self._parts.store(queue)
                if wanted[0][0] < store.read_meta.head_sequence:
                    raise expired_since(store, wanted[0][0])
        return found

    def _seek(self, found: Found, first: int, time_ns: int) -> int:
        """Return the first sequence that is not older.

        Raises:
            Expired: it can be among the messages from `first` on that retention removed.
        """
        store = self._parts.store(found)
        sequence = store.seek_since(time_ns).sequence
        if first < (head := store.read_meta.head_sequence) and sequence <= head:
            page = store.while_retained(lambda: store.page(store.read_meta.head_page))
            if time_ns <= page.header.floor_timestamp:
                raise expired_since(store, first)
        return sequence

    # --- aggregates -------------------------------------------------------------------------------

    def _aggregated(self, found: Ranges) -> list[int | None]:
        return [self._aggregate(word, found) for word in self._wanted.aggregates]

    def _aggregate(self, word: str, found: Ranges) -> int | None:
        """Return one value; None: there is no message."""
        if word == "count":
            return sum(end - first for _, first, end in found)
        which, kind = word.split("_")
        values = [
            self._value(kind, queue, first if which == "min" else end - 1)
            for queue, first, end in found
        ]
        return (min if which == "min" else max)(values, default=None)

    def _value(self, kind: str, found: Found, sequence: int) -> int:
        if kind == "s":
            return sequence
        store = self._parts.store(found)
        try:
            time_ns = store.time_at(sequence)
        except errors.Expired as error:
            raise expired_since(store, sequence) from error
        return time_ns if kind == "t" else time_ns // 1000


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _written(retained: Ranges) -> str:
    told: list[Any] = [[tuple(found), first, end] for found, first, end in retained]
    return quote(json.dumps(told), safe="")
