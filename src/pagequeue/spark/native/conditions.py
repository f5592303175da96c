"""Filters as exact ranges of sequences.

The Java side gives a filter as words in prefix order; `Conditions.java` names them. Times never go
back within a queue, so a filter on them is a range of sequences too, found by a search. No column
has a null: `not` is the complement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

from pagequeue.spark.native import intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.spark.native.intervals import Intervals

NS_EACH: Final = {"s": 1, "t": 1, "m": 1000}
"""The unit of a column's values; `m` is in microseconds, rounded down."""


def ranges(
    conditions: list[str], name: str, first: int, end: int, seek: Callable[[int], int]
) -> Intervals:
    """Return the sequences of a queue for which all conditions hold.

    Args:
        conditions: each as text.
        name: of the queue.
        first: the first sequence there is.
        end: one past the last.
        seek: returns the first sequence whose time is not below one in ns since 1970.
    """
    whole = intervals.of(first, end)
    found = whole
    for text in conditions:
        evaluation = _Evaluation(iter(text.split(" ")), name, whole, seek)
        found = intervals.both(found, evaluation.next())
    return found


class _Evaluation:
    """Reads one filter, word after word."""

    def __init__(
        self, words: Iterator[str], name: str, whole: Intervals, seek: Callable[[int], int]
    ) -> None:
        self._words = words
        self._name = name
        self._whole = whole
        self._seek = seek

    def next(self) -> Intervals:
        """Return the sequences for which the filter that comes next holds."""
        word = next(self._words)
        if word == "all":
            return self._whole
        if word == "none":
            return ()
        if word == "not":
            return intervals.without(self._whole, self.next())
        if word in {"and", "or"}:
            left, right = self.next(), self.next()
            return intervals.both(left, right) if word == "and" else intervals.either(left, right)
        comparison = next(self._words)
        values = [next(self._words) for _ in range(int(next(self._words)))]
        if word == "q":
            names = [unquote_plus(value.removeprefix("'")) for value in values]
            return self._whole if self._name in names else ()
        found: Intervals = ()
        for value in values:
            found = intervals.either(found, self._compared(word, comparison, int(value)))
        return intervals.both(self._whole, found)

    def _compared(self, column: str, comparison: str, value: int) -> Intervals:
        """Return the sequences whose value compares so with this one."""
        unit = NS_EACH[column]
        low, high = value * unit, (value + 1) * unit  # the values that are equal to it
        place = self._place if column != "s" else int
        below, above = intervals.FIRST, intervals.END
        if comparison == "<":
            return intervals.of(below, place(low))
        if comparison == "<=":
            return intervals.of(below, place(high))
        if comparison == ">":
            return intervals.of(place(high), above)
        if comparison == ">=":
            return intervals.of(place(low), above)
        return intervals.of(place(low), place(high))

    def _place(self, time_ns: int) -> int:
        """Return the first sequence that is not older, also beyond the ends of int64."""
        if not self._whole or time_ns <= -(2**63):
            return intervals.FIRST
        return self._seek(time_ns) if time_ns < 2**63 else intervals.END
