"""NumPy dtypes of fixed records as plain JSON, and back; the JSON is untrusted input.

The form is NumPy's own for dtypes with names, formats, offsets and an itemsize, so that padding and
the order of the fields are kept. A format is a type string such as `<f8`, such a form again, or
`[format, [sizes]]` for an array inside a record. Each part is validated before NumPy sees it; none
is evaluated or unpickled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

FIELDS_MAX: Final = 1024
DEPTH_MAX: Final = 16
NDIM_MAX: Final = 32
RECORD_BYTES_MAX: Final = 1 << 30
_UNIT: Final = r"\[(?:[1-9]\d{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
_TYPE: Final = re.compile(
    rf"[<>](?:[iu][248]|f[248]|c8|c16|U[1-9]\d{{0,8}}|[mM]8(?:{_UNIT})?)"
    r"|\|(?:b1|[iu]1|[SV][1-9]\d{0,8})"
)
"""Without `long double`, whose layout depends on the machine."""


def record_dtype(dtype: DTypeLike) -> np.dtype[np.void]:
    """Return a user's dtype, checked to be one that a queue can store.

    Raises:
        ValueError: a queue cannot store it; the message gives the reason.
        TypeError: not a dtype.

    Example:
        >>> record_dtype([("price", "<f8")])
        dtype([('price', '<f8')])
    """
    found = np.dtype(dtype)
    if found.names is None:
        raise ValueError(f"a record has fields, and {found} has none")
    stored = parse(describe(found))
    if stored != found:
        raise ValueError(f"{found} cannot be stored unchanged: remove titles and metadata")
    return stored


def remedy_for(dtype: object) -> str:
    """Return what to give instead of a dtype that `record_dtype` refused."""
    try:
        form = np.dtype(dtype).str  # type: ignore[call-overload]
    except (TypeError, ValueError):
        form = ""
    field = form if _TYPE.fullmatch(form) else "<f8"
    return (
        f"give fields of numbers, text, bytes or times, as in [('value', {field!r})]; for other "
        "objects give a codec"
    )


def describe(dtype: np.dtype[Any]) -> dict[str, object]:
    """Return a dtype with fields as plain JSON.

    Raises:
        ValueError: a queue cannot store the type of a field.
    """
    assert dtype.names is not None
    assert dtype.fields is not None
    formats: list[object] = []
    for name in dtype.names:
        part = dtype.fields[name][0]
        base, shape = part.subdtype or (part, ())
        form = base.str if base.names is None else describe(base)
        formats.append([form, list(shape)] if shape else form)
    return {
        "names": list(dtype.names),
        "formats": formats,
        "offsets": [dtype.fields[name][1] for name in dtype.names],
        "itemsize": dtype.itemsize,
    }


def parse(form: object) -> np.dtype[np.void]:
    """Return the dtype of a form that `describe` made.

    Raises:
        ValueError: `describe` makes no such form.
    """
    return _record(form, DEPTH_MAX)


def _record(form: object, depth: int) -> np.dtype[np.void]:
    if depth == 0:
        raise ValueError("records are nested too deep")
    if not isinstance(form, dict) or set(form) != {"names", "formats", "offsets", "itemsize"}:
        raise ValueError("a record has names, formats, offsets and an itemsize")
    names, formats, offsets = form["names"], form["formats"], form["offsets"]
    lists = all(isinstance(part, list) for part in (names, formats, offsets))
    if not lists or not 0 < len(names) == len(formats) == len(offsets) <= FIELDS_MAX:
        raise ValueError(f"a record has 1 to {FIELDS_MAX} fields")
    if len(set(map(_name, names))) != len(names):
        raise ValueError("two fields have the same name")
    parts = [_part(part, depth) for part in formats]
    starts = [_whole(offset, 0) for offset in offsets]
    size_bytes = _whole(form["itemsize"], 1)
    places = sorted(
        (start, start + part.itemsize) for start, part in zip(starts, parts, strict=True)
    )
    for (_, end), (begin, _) in zip(places, [*places[1:], (size_bytes, 0)], strict=True):
        if begin < end:
            raise ValueError("fields overlap, or reach beyond the record")
    fields = {"names": names, "formats": parts, "offsets": starts, "itemsize": size_bytes}
    return cast("np.dtype[np.void]", np.dtype(cast("Any", fields)))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"invalid field name {name!r}")
    return name


def _whole(number: object, least: int) -> int:
    if type(number) is not int or not least <= number <= RECORD_BYTES_MAX:
        raise ValueError(f"{number!r} is not an integer from {least} to {RECORD_BYTES_MAX}")
    return number


def _part(form: object, depth: int) -> np.dtype[Any]:
    if isinstance(form, str):
        if not _TYPE.fullmatch(form):
            raise ValueError(f"a queue cannot store values of type {form!r}")
        return np.dtype(form)
    if not isinstance(form, list):
        return _record(form, depth - 1)
    if len(form) != 2 or isinstance(form[0], list) or not isinstance(form[1], list):
        raise ValueError("an array in a record has a format and its sizes")
    inner, shape = _part(form[0], depth), [_whole(size, 1) for size in form[1]]
    total = inner.itemsize
    for size in shape:
        total = _whole(total * size, 1)
    if not 0 < len(shape) <= NDIM_MAX:
        raise ValueError(f"an array in a record has 1 to {NDIM_MAX} sizes")
    return np.dtype((inner, tuple(shape)))
