"""Sets of sequences, as half-open intervals in ascending order that do not touch."""

from __future__ import annotations

from typing import Final

Intervals = tuple[tuple[int, int], ...]
FIRST: Final = 0
END: Final = 2**63
"""One past the largest sequence."""


def of(first: int, end: int) -> Intervals:
    """Return the sequences from `first` up to `end`.

    Example:
        >>> of(3, 3)
        ()
    """
    first, end = max(first, FIRST), min(end, END)
    return ((first, end),) if first < end else ()


def both(left: Intervals, right: Intervals) -> Intervals:
    """Return what is in both sets.

    Example:
        >>> both(((0, 5), (8, 9)), ((3, 10),))
        ((3, 5), (8, 9))
    """
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first < end:
            found.append((first, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def either(left: Intervals, right: Intervals) -> Intervals:
    """Return what is in one of the sets, or in both.

    Example:
        >>> either(((0, 5),), ((5, 6), (8, 9)))
        ((0, 6), (8, 9))
    """
    found: list[tuple[int, int]] = []
    for first, end in sorted(left + right):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


def without(whole: Intervals, taken: Intervals) -> Intervals:
    """Return what is in the first set and not in the second.

    Example:
        >>> without(((0, 9),), ((2, 3), (8, 20)))
        ((0, 2), (3, 8))
    """
    gaps = []
    at = FIRST
    for first, end in taken:
        gaps += list(of(at, first))
        at = end
    return both(whole, (*gaps, *of(at, END)))


def last(found: Intervals, count: int) -> Intervals:
    """Return the last `count` of a set.

    Example:
        >>> last(((0, 3), (5, 9)), 5)
        ((2, 3), (5, 9))
    """
    kept = []
    for first, end in reversed(found):
        first = max(first, end - count)  # noqa: PLW2901 - as far as it is wanted
        if first < end:
            kept.append((first, end))
            count -= end - first
    return tuple(reversed(kept))


def limited(found: Intervals, count: int) -> Intervals:
    """Return the first `count` of a set.

    Example:
        >>> limited(((0, 3), (5, 9)), 4)
        ((0, 3), (5, 6))
    """
    kept = []
    for first, end in found:
        end = min(end, first + count)  # noqa: PLW2901 - as far as it is wanted
        if first < end:
            kept.append((first, end))
            count -= end - first
    return tuple(kept)
