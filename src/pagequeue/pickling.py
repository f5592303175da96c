"""Objects to bytes and back, by pickle: for those who chose it, and for nobody else.

Unpickling runs what the bytes say. So only what the drop-in for `multiprocessing.Queue` reads comes
through here, from directories that nobody but their owner could write to (`trust.py`).

`multiprocessing` has reducers of its own, for sockets, connections and bound methods; they count
here as well. Its own pickler copies their table for every object, which takes longer than all the
rest, so here picklers are used again.
"""

from __future__ import annotations

import copyreg
import pickle
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL: Final = 5
"""Not the highest there is: what stays in a directory is read by other Pythons as well."""
FIRST_BYTE: Final = b"\x80"
"""Every pickle of this protocol begins with it."""

loads = pickle.loads

_SHARED: Final = cast("dict[type, Any]", ForkingPickler._extra_reducers)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to them
_EVERYBODYS: Final = cast("dict[type, Any]", copyreg.dispatch_table)


class _Pickler(NamedTuple):
    """One pickler, what it wrote, and how many reducers it knows."""

    dump: Callable[[object], None]
    forget: Callable[[], None]
    parts: list[bytes]
    known_count: int


_spare: list[_Pickler] = []
"""Those that nobody is using: one goes out for each call, also when a reducer calls `dumps`."""


def _make() -> _Pickler:
    parts: list[bytes] = []
    pickler = pickle.Pickler(SimpleNamespace(write=parts.append), PROTOCOL)
    pickler.dispatch_table = {**_EVERYBODYS, **_SHARED}
    known_count = len(_EVERYBODYS) + len(_SHARED)
    return _Pickler(pickler.dump, pickler.clear_memo, parts, known_count)


def dumps(obj: object) -> bytes:
    """Return the pickle of an object.

    Raises:
        Whatever pickling it raises: `PicklingError`, `TypeError`, `AttributeError`, its own errors.
    """
    try:
        pickler = _spare.pop()
        if pickler[3] != len(_EVERYBODYS) + len(_SHARED):
            pickler = _make()  # somebody registered another reducer
    except IndexError:
        pickler = _make()
    dump, forget, parts, _ = pickler
    dump(obj)  # raises: this pickler is in the middle of something, and is given up
    forget()  # or it would keep the object
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    _spare.append(pickler)
    return data
