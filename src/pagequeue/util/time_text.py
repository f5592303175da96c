"""Times as people type and read them: `10m`, ISO 8601 with its zone, or nanoseconds.

These functions do not read the clock; the caller passes the current time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from pagequeue.format import TIMESTAMP_MAX
from pagequeue.util.arguments import in_ns
from pagequeue.util.timestamps import Ns

NS_PER_SECOND: Final = 1_000_000_000
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "h": 3_600 * NS_PER_SECOND,
    "d": 86_400 * NS_PER_SECOND,
    "w": 604_800 * NS_PER_SECOND,
}
_DURATION_PART: Final = re.compile(r"(\d{1,18})(ns|us|ms|s|m|h|d|w)", re.ASCII)
_DURATION: Final = re.compile(rf"(?:{_DURATION_PART.pattern})+", re.ASCII)
_INTEGER: Final = re.compile(r"\d{1,20}", re.ASCII)
_FRACTION: Final = re.compile(r":\d\d[.,](\d+)", re.ASCII)
_EXAMPLES: Final = "10m, 1h30m, 2026-01-31T08:00:00Z or nanoseconds since 1970"


def parse_duration(text: str) -> int:
    """Return the nanoseconds that a text such as `10m` or `1h30m` means.

    Raises:
        ValueError: it is not a duration; the message ends with examples.

    Example:
        >>> parse_duration("1h30m")
        5400000000000
    """
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a duration; write one like 90s, 10m, 2h, 1d or 1h30m")
    return sum(int(count) * _UNITS_NS[unit] for count, unit in _DURATION_PART.findall(text))


def parse_time(text: str, now_ns: int) -> Ns:
    """Return the time that a text means, in nanoseconds since 1970, UTC.

    Args:
        text: a duration, meaning that long ago; ISO 8601 with a zone; or nanoseconds.
        now_ns: the current time, nanoseconds since 1970, UTC.

    Returns:
        The time; 0 for times before 1970.

    Raises:
        ValueError: it has another form, no zone, is too late, or surely in another unit; the
            message ends with examples.

    Example:
        >>> parse_time("1970-01-01T00:00:01Z", now_ns=0)
        1000000000
    """
    if _INTEGER.fullmatch(text):
        result = in_ns("the time", int(text), alternative=", or write it in ISO 8601")
    elif _DURATION.fullmatch(text):
        result = now_ns - parse_duration(text)
    else:
        result = parse_iso(text)
    if result > TIMESTAMP_MAX:
        raise ValueError(f"{text!r} lies after the year 2262; write an earlier time")
    return Ns(max(result, 0))


def precision_of(text: str) -> int:
    """Return the ns of the last digit of a time in ISO 8601."""
    fraction = _FRACTION.search(text)
    return NS_PER_SECOND if fraction is None else int(10 ** max(0, 9 - len(fraction[1])))


def parse_iso(text: str) -> int:
    """Return the nanoseconds of an ISO 8601 text, all nine digits of its fraction kept.

    Raises:
        ValueError: it is not that, or has no zone.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write one like {_EXAMPLES}") from None
    if time.tzinfo is None:
        raise ValueError(
            f"{text!r} has no time zone; write "
            f"{time.isoformat()}Z for UTC, or end it with an offset like +02:00"
        )
    nanoseconds = time.microsecond * 1_000
    fraction = _FRACTION.search(text)
    if fraction is not None and int(f"{fraction[1]:0<9}"[:6]) == time.microsecond:
        nanoseconds = int(f"{fraction[1]:0<9}"[:9])
    seconds = time.astimezone(UTC).replace(microsecond=0) - datetime.fromtimestamp(0, UTC)
    return (seconds.days * 86_400 + seconds.seconds) * NS_PER_SECOND + nanoseconds
