"""Tuples and mappings as fixed records: converted by NumPy, and refused where that loses something.

NumPy alone cuts text that is too long, drops fractions, and names no field. So values that do not
come back as they were given are converted again, field by field. Only floats may be rounded.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

REFUSALS: Final = (TypeError, ValueError, OverflowError)
"""How NumPy refuses a value."""
FROM_KINDS: Final = {"i": "iub", "u": "iub", "f": "iubf", "c": "iubfc"}
"""By the kind of a field: the kinds of values that it holds; for others only their own."""
ENDS: Final = (b"\0", "\0")
"""NumPy takes such an end for padding."""
WORDS: Final = {
    "b": "a bool",
    "i": "an integer that fits",
    "u": "an integer that fits, from 0 on",
    "f": "a number",
    "c": "a number",
    "S": "a bytes object of at most {size} bytes, of which the last one is not 0",
    "U": "a text of at most {count} characters, of which the last one is not NUL",
    "V": "a bytes object of at most {size} bytes",
    "M": "a datetime",
    "m": "a timedelta",
}
"""By the kind of a field: what it takes."""


def is_record(value: object) -> bool:
    """Whether a value is converted to a record: a tuple of all fields, or a mapping of their names.

    Example:
        >>> is_record((1, 2.5)), is_record([1, 2.5])
        (True, False)
    """
    return isinstance(value, tuple | Mapping)


def records_of_values(values: Sequence[object], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return tuples and mappings as records, shape (n,).

    Raises:
        NotEncodable: a field is missing, unknown, or cannot hold its value; the message names it.

    Example:
        >>> records_of_values([{"price": 2.5}, (3.5,)], np.dtype([("price", "f8")]))
        array([(2.5,), (3.5,)], dtype=[('price', '<f8')])
    """
    rows = [_row(value, dtype, _Place("", i, len(values))) for i, value in enumerate(values)]
    try:
        with np.errstate(over="ignore"):  # found below
            found = np.array(rows, dtype)
        if found.tolist() == rows:
            return found
    except REFUSALS:  # or an array inside a record, which has no truth
        pass
    return _by_field(rows, dtype, "")


class _Place:
    """Where a value is: the name of its field, and its record if there are several."""

    def __init__(self, name: str, i: int, count: int) -> None:
        self.name, self.i, self.count = name, i, count

    def __str__(self) -> str:
        record = f"record {self.i}" if self.count > 1 else "the record"
        within = f" of {record}" if self.count > 1 else ""
        return f"field {self.name!r}{within}" if self.name else record


def _row(value: object, dtype: np.dtype[Any], place: _Place) -> tuple[object, ...]:
    """Return a value as a tuple of all fields."""
    names, fields = dtype.names, dtype.fields
    assert names is not None
    assert fields is not None
    if isinstance(value, Mapping):
        _check_names(value, names, place)
        items = [value[name] for name in names]
    elif not isinstance(value, tuple):
        raise errors.NotEncodable(
            f"{place} is {reprlib.repr(value)}, not a record; no message was sent",
            remedy=f"give a tuple or a dict with the fields {list(names)}",
        )
    elif len(value) != len(names):
        raise errors.NotEncodable(
            f"{place} has {len(value)} values for {len(names)} fields; no message was sent",
            remedy=f"give one for each of {list(names)}, or a dict",
        )
    else:
        items = list(value)
    for i, name in enumerate(names):
        field: np.dtype[Any] = fields[name][0]
        if field.names is not None:
            inner = _Place(_inside(place.name, name), place.i, place.count)
            items[i] = _row(items[i], field, inner)
        elif field.kind == "M" and isinstance(items[i], datetime):
            items[i] = _in_utc(items[i])
    return tuple(items)


def _check_names(value: Mapping[Any, object], names: tuple[str, ...], place: _Place) -> None:
    missing = [name for name in names if name not in value]
    unknown = [name for name in value if name not in names]
    if missing or unknown:
        told = [f"no value for {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise errors.NotEncodable(
            f"{place} has {' and '.join(told)}; no message was sent",
            remedy=f"give the fields {list(names)}",
        )


def _inside(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name


def _in_utc(value: datetime) -> datetime:
    """Return an aware datetime as NumPy takes it: in UTC, without a zone."""
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


# --- field by field -------------------------------------------------------------------------------


def _by_field(rows: list[tuple[Any, ...]], dtype: np.dtype[Any], outer: str) -> NDArray[Any]:
    found = np.zeros(len(rows), dtype)
    names, fields = dtype.names, dtype.fields
    assert names is not None
    assert fields is not None
    for i, name in enumerate(names):
        field: np.dtype[Any] = fields[name][0]
        column, path = [row[i] for row in rows], _inside(outer, name)
        if field.names is not None:
            found[name] = _by_field(column, field, path)
        else:
            found[name] = _column(column, field, path)
    return found


def _column(column: list[Any], field: np.dtype[Any], name: str) -> NDArray[Any]:
    """Return the values of one field."""
    base, shape = field.subdtype or (field, ())
    try:
        converted = _converted(column, base, shape)
    except REFUSALS:
        converted = None
    if converted is not None:
        return converted
    for i, value in enumerate(column):
        try:
            if _converted([value], base, shape) is not None:
                continue
        except REFUSALS:
            pass
        wanted = WORDS[base.kind].format(size=base.itemsize, count=base.itemsize // 4)
        raise errors.NotEncodable(
            f"{_Place(name, i, len(column))} is {reprlib.repr(value)}, which {field} cannot hold; "
            "no message was sent",
            remedy=f"give {wanted}{f', in the shape {shape}' if shape else ''}",
        )
    return np.concatenate([_converted([value], base, shape) for value in column])  # of mixed kinds


def _converted(
    column: list[Any], base: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any] | None:
    """Return values of one field; None: some do not fit.

    Raises:
        TypeError, ValueError, OverflowError: NumPy does not take them.
    """
    if base.kind == "V":
        given = np.array(column, object)
        fits = all(isinstance(one, bytes) and len(one) <= base.itemsize for one in given.flat)
        return np.array(column, base) if fits and given.shape[1:] == shape else None
    given = _given(column, base)
    if given.shape != (len(column), *shape):
        return None
    if given.dtype.kind not in FROM_KINDS.get(base.kind, base.kind):
        return None
    if base.kind in "SU":
        is_cut = any(one[-1:] in ENDS for one in np.array(column, object).flat)
        return None if is_cut or given.itemsize > base.itemsize else given.astype(base)
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(base)
    if base.kind in "fc":
        lost = np.isinf(found) & ~np.isinf(given)
    else:
        lost = (found != given) & ~(_is_nat(found) & _is_nat(given))
    return None if lost.any() else found


def _given(column: list[Any], base: np.dtype[Any]) -> NDArray[Any]:
    """Return values as NumPy sees them; times in the unit that they have."""
    if base.kind not in "mM":
        return np.array(column)
    try:
        return np.array(column, base.kind + "8")
    except ValueError:  # integers have no unit of their own
        return np.array(column, base)


def _is_nat(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnat(values) if values.dtype.kind in "mM" else np.zeros(values.shape, bool)
