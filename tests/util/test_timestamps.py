"""Moments as users give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from pagequeue import errors
from pagequeue.util import arguments
from pagequeue.util.arguments import UNITS
from pagequeue.util.timestamps import check_ns, system_clock, to_datetime, to_ns

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


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["since", "until", "moment"])
def test_numbers_of_another_unit_are_refused(unit: str, name: str) -> None:
    """As ns they would all be in January 1970; the error says what they are in that unit."""
    number = NOW // UNITS[unit]
    meant = number * UNITS[unit]
    with pytest.raises(errors.InvalidOption) as caught:
        to_ns(number, clock, name=name)
    assert f"{name} is {number}, which as ns since 1970 is 1970-01-" in str(caught.value)
    assert f"as {unit} 2023-11-14: give {meant} if it is in {unit}" in str(caught.value)
    assert to_ns(meant, clock) == meant
    assert arguments.unit_of(number) == unit


@pytest.mark.parametrize("ns", [5, 123_456_789, 10**9, 3 * 10**9, 10**12, 10**15 + 7, 10**17])
def test_numbers_that_tests_write_are_ns(ns: int) -> None:
    """Whole seconds, and what is before 2002 in every unit."""
    assert to_ns(ns, clock) == ns
    assert arguments.timestamp("timestamp", ns) == ns


def test_time_whose_unit_is_known_is_not_doubted() -> None:
    """A datetime of 1970 is one, and its ns too, wherever they are handed on."""
    moment = datetime(1970, 1, 1, 0, 28, 20, 123456, tzinfo=UTC)
    ns = to_ns(moment, clock)
    assert ns == 1_700_123_456_000
    assert to_ns(ns, clock) == ns
    with pytest.raises(errors.InvalidOption):
        to_ns(int(ns), clock)


def test_arrays_of_another_unit_are_refused() -> None:
    """By their lowest number and the one in the middle; a single toy number passes."""
    many = np.arange(NOW, NOW + 10**12, 10**9)
    assert check_ns("one", many) is many
    for unit, ns in UNITS.items():
        with pytest.raises(errors.InvalidOption, match=f"one is .* as {unit} 2023"):
            check_ns("one", many // ns)
        with pytest.raises(errors.InvalidOption, match=f"one is .* as {unit} 2023"):
            check_ns("one", np.array([0, *(many // ns)]))
    check_ns("one", np.array([5, 6, 7, 1 << 40]))
