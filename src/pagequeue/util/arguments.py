"""Checks of arguments: each error names the argument, shows its value and ends with the remedy.

A value of a wrong type is `InvalidType`, one that is invalid `InvalidOption`. The core calls these
functions too, with what it does not take, so that both speak alike.
"""

from __future__ import annotations

import math
import operator
import os
from datetime import UTC, datetime
from numbers import Real
from typing import TYPE_CHECKING, Final

from pagequeue.errors import InvalidOption, InvalidType, QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Collection

SHOWN_CHARACTERS: Final = 60
"""Of a value, in an error."""
NUMBER_MAX: Final = 2**63 - 1
TIMESTAMP_REMEDY: Final = "give ns since 1970, from 0 to 2**63 - 1"
OTHER_UNIT_NS: Final = 1_009_843_200 * 10**9, 4_102_444_800 * 10**9
"""2002 to 2100: a number that is such a time in another unit is taken for that."""
PLAUSIBLE_NS: Final = OTHER_UNIT_NS[0]
"""A number from here on is in ns."""
UNITS: Final = {"microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9}
"""Their ns."""
TIMEOUT_REMEDY: Final = "give seconds, 0 or more, or None for ever"


def shown(value: object) -> str:
    """Return a value for an error: an int can have more digits than Python converts."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the caller's own class, or too many digits
        text = f"of class {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def type_error(name: str, value: object, wanted: str) -> InvalidType:
    """Return the error for an argument of a wrong type."""
    return InvalidType(f"{name} must be {wanted}, not {type(value).__name__}")


def value_error(name: str, value: object, remedy: str, *, path: str | None = None) -> InvalidOption:
    """Return the error for an argument with an invalid value."""
    return InvalidOption(f"{name} is {shown(value)}", path=path, remedy=remedy)


def whole(
    name: str,
    value: object,
    least: int | None = None,
    most: int | None = None,
    *,
    path: str | None = None,
    remedy: str | None = None,
) -> int:
    """Return a whole number.

    Raises:
        InvalidType: it is not an int, and not of a class like NumPy's integers; or it is a bool.
        InvalidOption: it is below `least`, or above `most`.
    """
    if isinstance(value, bool):
        raise type_error(name, value, "an int")
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise type_error(name, value, "an int") from None
    if (least is not None and number < least) or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise value_error(name, number, remedy or f"give {limits}", path=path)
    return number


def sequence(name: str, value: object) -> int:
    """Return a sequence, whether the queue has it or not.

    Raises:
        InvalidType, InvalidOption: it is not that.
    """
    return whole(name, value, 0, NUMBER_MAX, remedy="give a sequence, from 0 to 2**63 - 1")


def timestamp(name: str, value: object) -> int:
    """Return a timestamp of a message, ns since 1970.

    Raises:
        InvalidType, InvalidOption: it is not that, or surely in another unit.
    """
    return in_ns(name, whole(name, value, 0, NUMBER_MAX, remedy=TIMESTAMP_REMEDY))


def in_ns(name: str, value: int, *, alternative: str = "") -> int:
    """Return ns since 1970, unless the number is surely one of seconds, ms or us.

    Those of the years 2002 to 2100 are, taken for ns, all in the first weeks of 1970. Whole seconds
    in ns, which people write in tests, are not refused: no number of another unit is that.

    Args:
        name: of the argument, for the error.
        value: the number.
        alternative: what else can be given, for the error.

    Raises:
        InvalidOption: it is in another unit.
    """
    if value >= PLAUSIBLE_NS or (unit := unit_of(value)) is None:
        return value
    meant = value * UNITS[unit]
    raise InvalidOption(
        f"{name} is {value}, which as ns since 1970 is {_day(value)}, and as {unit} {_day(meant)}",
        remedy=f"give {meant} if it is in {unit}{alternative}",
    )


def unit_of(value: int) -> str | None:
    """Return the unit in which a number is surely meant, one of `UNITS`; None: it can be ns."""
    if value >= PLAUSIBLE_NS or value % 10**9 == 0:
        return None
    first, end = OTHER_UNIT_NS
    return next((unit for unit, ns in UNITS.items() if first <= value * ns < end), None)


def _day(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%d}"


def number(
    name: str, value: object, remedy: str = "give a number", *, path: str | None = None
) -> float:
    """Return a number.

    Raises:
        InvalidType: it is not a real number, or it is a bool.
        InvalidOption: it is NaN, or exceeds what a float holds.
    """
    if isinstance(value, bool) or not (isinstance(value, Real) or hasattr(value, "__index__")):
        raise type_error(name, value, "a number")
    try:
        result = float(value)
    except OverflowError:
        raise value_error(name, value, remedy, path=path) from None
    except (TypeError, ValueError):  # an array of several, or of text
        raise type_error(name, value, "a number") from None
    if math.isnan(result):
        raise value_error(name, value, remedy, path=path)
    return result


def seconds(
    name: str,
    value: object,
    most: float = math.inf,
    *,
    path: str | None = None,
    remedy: str | None = None,
) -> float:
    """Return seconds, 0 to `most`; infinity is for ever.

    Raises:
        InvalidType, InvalidOption: it is not that.
    """
    if remedy is None:
        remedy = TIMEOUT_REMEDY if most == math.inf else f"give seconds, 0 to {most:g}"
    result = number(name, value, remedy, path=path)
    if not 0 <= result <= most:
        raise value_error(name, value, remedy, path=path)
    return result


def text(name: str, value: object) -> str:
    """Return a plain str that can be stored.

    Raises:
        InvalidType: it is not a str. InvalidOption: it has lone surrogates, which UTF-8 has not.
    """
    if not isinstance(value, str):
        raise type_error(name, value, "a str")
    plain = str.__str__(value)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise value_error(name, plain, "give text without lone surrogates") from None
    return plain


def absolute_path(name: str, value: object) -> str:
    """Return the absolute path that a str, bytes or a path object names; nothing need be there.

    Raises:
        InvalidType: it is not one of these.
        InvalidOption: it is empty, or the system has no such name: it has a NUL, or characters
            that cannot be encoded.
        QueueNotFound: it is relative, and the current directory was removed.
    """
    try:
        path = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        raise type_error(name, value, "a path, as str, bytes or os.PathLike") from None
    if not path:
        raise InvalidOption(f"{name} is empty", remedy="give a path, '.' for the current directory")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise value_error(name, path, "give a path without NUL and lone surrogates")
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise QueueNotFound(
            f"{name} is {shown(path)}, and the current directory was removed",
            path=path,
            remedy="give an absolute path, or change to a directory that exists",
        ) from None


def choice(name: str, value: object, known: Collection[str], *, path: str | None = None) -> None:
    """Raise InvalidOption for a value that is not one of the known names.

    Another type than str too: a caller sees what to give, whatever the mistake was.
    """
    if not isinstance(value, str) or value not in known:
        *most, last = (f'"{one}"' for one in known)
        raise value_error(name, value, f"give {', '.join(most)} or {last}", path=path)
