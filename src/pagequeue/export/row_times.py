"""The times of a file's rows: which column has them, and in which unit.

A row of an export has its time twice, as a number of ns and as text. Both are compared: a program
that read the file and wrote it again can have changed the number's unit, or rounded it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from pagequeue import format as fmt
from pagequeue.util.arguments import PLAUSIBLE_NS, UNITS, unit_of
from pagequeue.util.time_text import parse_iso, precision_of
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

TimeUnit = Literal["ns", "us", "ms", "s", "iso"]
TIME_UNITS: Final[tuple[TimeUnit, ...]] = ("ns", "us", "ms", "s", "iso")
SHORT: Final[dict[str, TimeUnit]] = {"microseconds": "us", "milliseconds": "ms", "seconds": "s"}
NS_OF: Final = {"ns": 1} | {SHORT[unit]: ns for unit, ns in UNITS.items()}
BY_TEXT: Final = "import the text, --time-unit iso --column timestamp=time"
ROUNDED_NS: Final = 256
"""The distance of two doubles from 2004 to 2043."""
SAMPLE_COUNT: Final = 64
ROUNDED_MIN: Final = 8
"""So many different times tell whether all went through a double: of true ones one in 256 could."""


@dataclass(frozen=True)
class Layout:
    """Where the rows of a file have what a message is made of.

    Attributes:
        unit: of the times; "iso": they are text. None: ns, and what is surely not is refused.
        names: of columns that are called otherwise, by their names in an export; "": there is none.
    """

    unit: TimeUnit | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, own: str) -> str:
        """Return how a column is called in the file."""
        return self.names.get(own, own)

    def ns(self, given: object) -> int:
        """Return the time of a row.

        Raises:
            ValueError: it is not a time in the unit; the message ends with the remedy.
        """
        if self.unit == "iso":
            if not isinstance(given, str):
                raise ValueError(f"timestamp is {given!r}: give text in ISO 8601")
            return self._fitting(given, parse_iso(given))
        if type(given) is not int:
            text = ", or --time-unit iso for text" if isinstance(given, str) else ""
            raise ValueError(f"timestamp is {given!r}: give an integer of 64 bits{text}")
        value = self._fitting(given, given * NS_OF[self.unit or "ns"])
        if self.unit is None and value < PLAUSIBLE_NS and (unit := unit_of(value)) is not None:
            raise ValueError(
                f"timestamp is {given}, as it would be in {unit}: give --time-unit {SHORT[unit]}, "
                f"or --time-unit ns if it is one of 1970"
            )
        return value

    def _fitting(self, given: object, ns: int) -> int:
        if not -fmt.TIMESTAMP_MAX <= ns <= fmt.TIMESTAMP_MAX:
            raise ValueError(f"timestamp is {given!r}: give one that fits into 64 bits of ns")
        return ns

    def many_ns(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the times of rows, of integers in the unit.

        Raises:
            ValueError: as for `ns`.
        """
        factor = NS_OF.get(self.unit or "ns")
        if factor is None or (self.unit is None and given.size and given.min() < PLAUSIBLE_NS):
            return np.array([self.ns(value) for value in given.tolist()], np.int64)
        if (
            given.size
            and max(abs(int(given.min())), abs(int(given.max()))) * factor > (1 << 63) - 1
        ):
            self.ns(max(given.tolist(), key=abs))
        return given * factor

    def time_of(self, given: object, readable: object) -> int:
        """Return the time of a row that may have it as text as well.

        Raises:
            ValueError: as for `ns`, or the two contradict each other.
        """
        told = None
        if type(given) is not int or self.unit is not None or readable != _iso_of(given):
            told = self._told(readable)
        elif given < PLAUSIBLE_NS:
            return given  # of 1970 indeed
        try:
            ns = self.ns(given)
        except ValueError as error:
            raise ValueError(f"{error}{'' if told is None else f'; or {BY_TEXT}'}") from None
        if told is not None:
            self._compare(given, ns, str(readable), told)
        return ns

    def _told(self, readable: object) -> int | None:
        """Return the time of a text; None: it is of another meaning, or not to be compared."""
        if not isinstance(readable, str) or self.name("time") == self.name("timestamp"):
            return None
        try:
            return parse_iso(readable)
        except ValueError:
            return None

    def _compare(self, given: object, ns: int, readable: str, told: int) -> None:
        precision = max(precision_of(readable), NS_OF.get(self.unit or "ns", 1))
        if abs(ns - told) < precision:
            return
        which = f"timestamp is {given}, and as text {readable}"
        if abs(ns - told) <= ROUNDED_NS:
            raise ValueError(
                f"{which}: the number went through a double, which rounds it: {BY_TEXT}"
            )
        if type(given) is int:
            for unit, factor in NS_OF.items():
                if abs(given * factor - told) < max(precision, factor):
                    raise ValueError(f"{which}: give --time-unit {unit}, or {BY_TEXT}")
        raise ValueError(f"{which}: correct one of them, or ignore the text with --column time=")


def _iso_of(ns: int) -> str | None:
    """Return ns as an export writes them; None: it has none so large."""
    return iso_time(ns) if 0 <= ns <= fmt.TIMESTAMP_MAX else None


def are_rounded(times: NDArray[np.int64]) -> bool | None:
    """Whether these times surely went through a double, in which ns are rounded.

    Returns:
        None: they do not tell, because they are few, or whole microseconds.
    """
    some = sorted(set(times[:SAMPLE_COUNT].tolist()))
    if len(some) < ROUNDED_MIN or not any(value % 1000 for value in some):
        return None
    return all(
        int(float(value)) == value or int(Decimal(repr(float(value)))) == value for value in some
    )
