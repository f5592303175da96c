"""Times as users give them, converted to nanoseconds since 1970, UTC.

A time is an int of nanoseconds, an aware datetime, or a timedelta that means "that long ago".
"""

from __future__ import annotations

import functools
import operator
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt
from pagequeue.errors import InvalidOption, NaiveDatetime
from pagequeue.util.arguments import PLAUSIBLE_NS, in_ns, shown, type_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

type_text = "an int of ns, an aware datetime or a timedelta"
TimeLike = int | datetime | timedelta
Clock = Callable[[], int]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NS_PER_S = 1_000_000_000
MICROSECOND = timedelta(microseconds=1)
FINER_UNITS = {"ps", "fs", "as"}
"""Units of NumPy whose whole range fits into 64 bits of ns."""


class Ns(int):
    """A time in ns since 1970 whose unit is known, which is therefore not checked again."""


def system_clock() -> int:
    """Return now, in ns since 1970, UTC."""
    return _core.realtime()


def frozen_clock() -> Clock | None:
    """Return the clock that a test library shows to Python; None: Python has the system's.

    Such a library replaces what Python calls, and not what the system says to compiled code. Both
    sides of a comparison with "ago" are to have the same clock.
    """
    before, told, after = _core.realtime(), time.time_ns(), _core.realtime()
    if before - NS_PER_S <= told <= after + NS_PER_S:
        return None
    return _shown


def _shown() -> int:
    """Return what Python is shown as of now, not when this was made."""
    return time.time_ns()


def to_ns(timestamp: TimeLike, clock: Clock, *, name: str = "since") -> Ns:
    """Return a time in ns since 1970, UTC.

    Args:
        timestamp: int nanoseconds, an aware datetime, or a timedelta meaning that long ago.
        clock: returns the time that "ago" is counted from, ns since 1970.
        name: of the option, for the error.

    Raises:
        NaiveDatetime: the datetime has no zone.
        InvalidType: it has another type.
        InvalidOption: it does not fit into 64 bits of ns, or is surely in another unit.

    Example:
        >>> to_ns(timedelta(seconds=1), clock=lambda: 5_000_000_000)
        4000000000
    """
    if isinstance(timestamp, bool):
        raise type_error(name, timestamp, type_text)
    if isinstance(timestamp, Ns):
        return timestamp
    if hasattr(timestamp, "__index__"):  # NumPy's integers too
        ns = in_ns(name, operator.index(timestamp), alternative=", or an aware datetime")
    elif isinstance(timestamp, datetime):
        if timestamp.utcoffset() is None:
            raise NaiveDatetime(
                f"{name} is a datetime without a zone ({timestamp.isoformat()})",
                remedy="add tzinfo=datetime.UTC, or call .astimezone()",
            )
        ns = (timestamp - EPOCH) // MICROSECOND * 1000
    elif isinstance(timestamp, timedelta):
        ns = clock() - timestamp // MICROSECOND * 1000
    else:
        raise type_error(name, timestamp, type_text)
    if not -fmt.TIMESTAMP_MAX <= ns <= fmt.TIMESTAMP_MAX:
        raise InvalidOption(
            f"{name} is {shown(ns)} ns, outside of 64 bits", remedy="give ns since 1970"
        )
    return Ns(ns)


def check_ns(name: str, timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ns since 1970, unless the numbers are surely in another unit, as `in_ns` tells.

    Raises:
        InvalidOption: the lowest one is, or the one in the middle.
    """
    if timestamps.size and (lowest := int(timestamps.min())) < PLAUSIBLE_NS:
        in_ns(name, lowest)
        in_ns(name, int(timestamps.flat[timestamps.size // 2]))
    return timestamps


def array_to_ns(timestamps: NDArray[Any]) -> NDArray[np.int64]:
    """Return an array of datetime64 in ns since 1970, UTC; NaT becomes the lowest int64.

    Raises:
        InvalidOption: one does not fit into 64 bits of ns.
    """
    unit = np.datetime_data(timestamps.dtype)[0]
    ns = timestamps.astype("datetime64[ns]")
    if unit not in FINER_UNITS:
        is_lost = (ns.astype(timestamps.dtype) != timestamps) & ~np.isnat(timestamps)
        if is_lost.any():
            first = timestamps[is_lost].flat[0]
            raise InvalidOption(f"{first} is outside of 64 bits of ns", remedy="give 1970 to 2262")
    return ns.view(np.int64)


def to_datetime(ns: int) -> datetime:
    """Return ns since 1970 as an aware datetime, cut to microseconds."""
    return EPOCH + timedelta(microseconds=ns // 1000)


def iso_time(timestamp_ns: int) -> str:
    """Return a timestamp as ISO 8601 in UTC with nine digits, all of them kept."""
    seconds, nanoseconds = divmod(timestamp_ns, NS_PER_S)
    return f"{_iso_second(seconds)}.{nanoseconds:09d}Z"


@functools.lru_cache(maxsize=64)  # consecutive messages mostly share their second
def _iso_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def is_masked(values: object) -> bool:
    """Return whether some of the values are masked.

    A masked array exists only after an import of `numpy.ma`, which NumPy does at its first use.
    Using it here would import it on a sender's path, and a child that another thread forks
    meanwhile would inherit the lock of that import and wait for it for ever.
    """
    masks = sys.modules.get("numpy.ma")
    if not isinstance(values, getattr(masks, "MaskedArray", ())):
        return False
    mask: NDArray[Any] = np.ma.getmask(values)  # type: ignore[call-overload]
    return any(mask.tobytes())  # of records: one for each field
