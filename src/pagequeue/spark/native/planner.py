"""Plans reads for the JVM: what was retained at first use, ranges of it, and pages of those.

A request and its answer are text; `QueueScan.java` and `PartReader.java` have the other side.

| line of a partition | means |
| --- | --- |
| `Q directory prefix name id page_bytes trust` | what follows is of this queue |
| `N first end` | sequences, and no file |
| `T page page_first first end` | times of one page |
| `P page page_first first end turns` | messages of one page; whether the next one follows |
| `E` | no row |
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pagequeue import errors
from pagequeue.queue.queue import internals
from pagequeue.spark.columns import Need
from pagequeue.spark.error_text import attributes_of
from pagequeue.spark.native import intervals
from pagequeue.spark.native.conditions import ranges
from pagequeue.spark.options import read_options
from pagequeue.spark.path_glob import Found, open_each
from pagequeue.spark.planning import Part, cut, page_starts, spans_of, wanted_range
from pagequeue.spark.reading import expired_since

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.spark.options import ReadOptions
    from pagequeue.spark.planning import Piece
    from pagequeue.store.store import Store

BETWEEN: Final = "\n-\n"
ROW_BYTES: Final = 8
"""Weight of a row of which no file is read, for the optimiser."""
Retained = list[tuple[Found, int, int]]


class Planner:
    """What the JVM calls: a `java.util.function.Function` of text to text."""

    def apply(self, request: str) -> str:
        """Return the plan for a request; an error and its attributes come after a `!`."""
        try:
            return answer(request)
        except errors.PageQueueError as error:
            line = " ".join(str(error).splitlines())
            return f"!{type(error).__name__}: {line}\n{attributes_of(error)}"

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
    dtype: str
    retained: str
    need: Need
    limit: int
    aggregates: list[str]
    conditions: list[str]


def given_text(options: dict[str, str], dtype: object) -> str:
    """Return what `Source.java` gets as its option `given`."""
    return quote(json.dumps({"options": options, "dtype": repr(dtype)}), safe="")


def answer(request: str) -> str:
    """Return the plan for a request of `QueueScan.java`."""
    given, retained, sizes, aggregates, *conditions = request.split("\n")
    told = json.loads(unquote(given))
    need, limit = map(int, sizes.split(" "))
    options = read_options(told["options"], streaming=False)
    wanted = _Request(
        options, told["dtype"], retained, Need.PAYLOADS if options.checks_all else Need(need),
        limit, aggregates.split(), [text for text in conditions if text],
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        plan = _Plan(wanted, stack)
        return BETWEEN.join(plan.texts())


class _Plan:
    """Plans one read; queues stay open until it is done."""

    def __init__(self, wanted: _Request, stack: contextlib.ExitStack) -> None:
        self._wanted = wanted
        self._stack = stack
        self._stores: dict[Found, Store] = {}

    def texts(self) -> Iterator[str]:
        """Give what was retained at first use, rows and bytes, and each partition."""
        retained = self._retained()
        yield _written(retained)
        found = [(queue, first, end) for queue, first, end in self._ranges(retained)]
        if self._wanted.aggregates:
            yield "1 8"
            yield " ".join(map(_number, self._aggregated(found)))
            return
        spans = [
            span
            for queue, first, end in found
            for span in spans_of(
                self._store(queue), queue, (first, end), self._wanted.need, skips=False
            )
        ]
        rows = sum(end - first for _, first, end in found)
        yield f"{rows} {max(rows * ROW_BYTES, int(sum(span.weight for span in spans)))}"
        for part in cut(spans, self._wanted.options):
            assert isinstance(part, Part)
            yield "\n".join(line for piece in part.pieces for line in self._lines(piece)) or "E"

    def _retained(self) -> Retained:
        """Return the queues with their sequences, as they were when the frame was first used."""
        if self._wanted.retained:
            told = json.loads(unquote(self._wanted.retained))
            return [(Found(d, p, tuple(trust)), first, end) for d, p, trust, first, end in told]
        retained = []
        for found, queue in open_each(self._wanted.options):
            store = internals(queue).store
            self._check_dtype(store)
            first, end = store.while_retained(partial(wanted_range, queue, self._wanted.options))
            retained.append((found, first, end))
        return retained

    def _check_dtype(self, store: Store) -> None:
        if repr(store.schema.dtype) != self._wanted.dtype:
            raise errors.DtypeMismatch(
                f"its dtype is {store.schema.dtype}, and was {self._wanted.dtype} when the frame "
                "was made",
                path=store.folder.path, dtype=store.schema.dtype, remedy="read again",
            )  # fmt: skip

    def _store(self, found: Found) -> Store:
        """Return an open queue."""
        if found not in self._stores:
            store = internals(self._stack.enter_context(found.open())).store
            self._check_dtype(store)
            self._stores[found] = store
        return self._stores[found]

    def _ranges(self, retained: Retained) -> Retained:
        """Return the sequences that the filters leave, as many as the limit wants."""
        left = self._wanted.limit if self._wanted.limit >= 0 else intervals.END
        found = []
        for queue, first, end in retained:
            seek = partial(self._seek, queue)
            wanted = ranges(self._wanted.conditions, queue.name, first, end, seek)
            wanted = intervals.limited(wanted, left)
            left -= sum(stop - begin for begin, stop in wanted)
            found += [(queue, begin, stop) for begin, stop in wanted]
            if wanted and self._wanted.need is not Need.NOTHING:
                store = self._store(queue)
                if wanted[0][0] < store.read_meta.head_sequence:
                    raise expired_since(store, wanted[0][0])
        return found

    def _seek(self, found: Found, time_ns: int) -> int:
        return self._store(found).seek_since(time_ns).sequence

    def _lines(self, piece: Piece) -> Iterator[str]:
        """Give the lines for consecutive messages of one queue."""
        store = self._store(piece.found)
        yield _queue_line(piece.found, store)
        if self._wanted.need is Need.NOTHING:
            yield f"N {piece.first} {piece.end}"
            return
        try:
            starts = page_starts(store, piece.first, piece.end)
        except errors.Expired as error:
            raise expired_since(store, piece.first) from error
        if starts[0][1] > piece.first:
            raise expired_since(store, piece.first)
        for (number, start), (_, stop) in zip(starts, [*starts[1:], (0, piece.end)], strict=True):
            begin = max(start, piece.first)
            if begin >= stop:
                continue
            if self._wanted.need is Need.TIMES:
                yield f"T {number} {start} {begin} {stop}"
            else:
                yield f"P {number} {start} {begin} {stop} {int(stop < piece.end)}"

    # --- aggregates -------------------------------------------------------------------------------

    def _aggregated(self, found: Retained) -> list[int | None]:
        return [self._aggregate(word, found) for word in self._wanted.aggregates]

    def _aggregate(self, word: str, found: Retained) -> int | None:
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
        store = self._store(found)
        try:
            time_ns = store.time_at(sequence)
        except errors.Expired as error:
            raise expired_since(store, sequence) from error
        return time_ns if kind == "t" else time_ns // 1000


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _written(retained: Retained) -> str:
    told: list[Any] = [
        [found.directory, found.prefix, found.trust, first, end] for found, first, end in retained
    ]
    return quote(json.dumps(told), safe="")


def _queue_line(found: Found, store: Store) -> str:
    words = [quote(text, safe="") for text in (found.directory, found.prefix, found.name)]
    numbers = [store.meta.queue_id.hex(), str(store.meta.page_bytes)]
    return " ".join(["Q", *words, *numbers, ",".join(found.trust)]).rstrip()
