"""Moments as users give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pagequeue import errors
from pagequeue.util.timestamps import system_clock, to_datetime, to_ns

NOW = 1_700_000_000_123_456_789


def clock() -> int:
    """Return the same moment always."""
    return NOW


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (0, 0),
        (NOW, NOW),
        (-5, -5),
        (2**63 - 1, 2**63 - 1),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC), 1_700_000_000_123_456_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), -1000),
        (timedelta(0), NOW),
        (timedelta(minutes=10), NOW - 600 * 10**9),
        (timedelta(microseconds=1), NOW - 1000),
        (timedelta(seconds=-1), NOW + 10**9),
    ],
)
def test_times_become_nanoseconds(moment: object, expected: int) -> None:
    """An int is ns, a datetime is exact to its microsecond, a timedelta is that long ago."""
    assert to_ns(moment, clock) == expected


def test_naive_datetime_is_refused() -> None:
    """A datetime without a zone could mean any of many moments."""
    with pytest.raises(errors.NaiveDatetime, match="until is a datetime without a zone"):
        to_ns(datetime(2024, 1, 1), clock, name="until")  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("moment", [True, 1.5, "2024-01-01", None, b"1"])
def test_other_types_are_refused(moment: object) -> None:
    """No type is converted by guess."""
    with pytest.raises(TypeError, match="since must be an int of ns"):
        to_ns(moment, clock)


@pytest.mark.parametrize("moment", [2**63, -(2**63), datetime.max.replace(tzinfo=UTC)])
def test_times_outside_of_64_bits_are_refused(moment: object) -> None:
    """No time wraps around."""
    with pytest.raises(errors.InvalidOption, match="outside of 64 bits"):
        to_ns(moment, clock)


def test_longest_ago_is_refused_or_taken_but_never_wraps() -> None:
    """A timedelta of thousands of years is a typed error."""
    with pytest.raises(errors.InvalidOption):
        to_ns(timedelta.max, clock)


@pytest.mark.parametrize("ns", [0, 999, 1000, NOW, 2**63 - 1])
def test_datetimes_are_aware_and_cut_to_microseconds(ns: int) -> None:
    """A message's time is its timestamp, never later."""
    moment = to_datetime(ns)
    assert moment.utcoffset() == timedelta(0)
    assert to_ns(moment, clock) == ns // 1000 * 1000


def test_system_clock_is_in_nanoseconds() -> None:
    """The default clock counts ns since 1970."""
    assert abs(system_clock() / 1e9 - datetime.now(UTC).timestamp()) < 5
