"""Records as `FieldWriter.java` writes them: a word for each field, and after it for its parts.

A word is `kind:size:order:offset:name:dtype`, percent-encoded; names are those in errors. Offsets
count from the record that the field is in, or from the array's element.

| kind | size | order |
| --- | --- | --- |
| `b`, `i`, `u`, `f` | bytes | `<` or `>` |
| `S`, `V`, `U` | bytes | the same |
| `M` or `m` with its unit: `Mus`, `MD` | 8 | the same |
| `r`, a record | 0 | `<` |
| `a`, one dimension of an array | elements | bytes from one element to the next |
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE: Final = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}
UNITS: Final = {("s", 1), ("ms", 1), ("us", 1), ("ns", 1)}


class Unknown(Exception):
    """The Java side cannot write a field; the text says which."""


def record_words(dtype: np.dtype[np.void]) -> list[str]:
    """Return the words of a dtype's fields.

    Raises:
        Unknown: the Java side cannot write one of them.

    Example:
        >>> record_words(numpy.dtype([("id", ">u4")]))
        ['u:4:>:0:id:%3Eu4']
    """
    return list(_parts(dtype, ""))


def _parts(dtype: np.dtype[Any], within: str) -> Iterator[str]:
    assert dtype.fields is not None
    for name in dtype.names or ():
        field, offset = dtype.fields[name][:2]
        yield from _words(field, offset, f"{within}{name}")


def _words(dtype: np.dtype[Any], offset: int, name: str) -> Iterator[str]:
    def word(kind: str, size: int, order: object, offset: int = offset) -> str:
        return f"{kind}:{size}:{order}:{offset}:{quote(name, safe='')}:{quote(str(dtype), safe='')}"

    if dtype.names is not None:
        yield word("r", 0, "<")
        yield from _parts(dtype, f"{name}.")
    elif dtype.subdtype is not None:
        base, shape = dtype.subdtype
        if base.names is not None or not dtype.itemsize:
            raise Unknown(f"the field {name!r} of type {dtype}")
        for i, size in enumerate(shape):
            stride = base.itemsize * math.prod(shape[i + 1 :])
            yield word("a", size, stride, offset if i == 0 else 0)
        yield from _words(base, 0, name)
    else:
        yield word(_kind(dtype, name), dtype.itemsize, _order(dtype))


def _kind(dtype: np.dtype[Any], name: str) -> str:
    if f"{dtype.kind}{dtype.itemsize}" in WHOLE or (dtype.kind in "SUV" and dtype.itemsize):
        return dtype.kind
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)
        if unit in UNITS or (dtype.kind == "M" and unit == ("D", 1)):
            return f"{dtype.kind}{unit[0]}"
    raise Unknown(f"the field {name!r} of type {dtype}")


def _order(dtype: np.dtype[Any]) -> str:
    is_big = dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big")
    return ">" if is_big else "<"
