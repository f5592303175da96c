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
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL: Final = 5
"""Not the highest there is: what stays in a directory is read by other Pythons as well."""
loads = pickle.loads
UnpicklingError = pickle.UnpicklingError

_SHARED: Final = cast("dict[type, Any]", ForkingPickler._extra_reducers)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to them
_EVERYBODYS: Final = cast("dict[type, Any]", copyreg.dispatch_table)


_PLAIN: Final = frozenset((int, str, bytes, float, bool, type(None)))
"""What no reducer is ever asked for."""

_Pickler: TypeAlias = "tuple[Callable[[object], None], Callable[[], None], list[bytes]]"
"""To dump, to forget what was dumped, and what was written."""

_spare: list[_Pickler] = []
"""Those that nobody is using: one goes out for each call, also when a reducer calls `dumps`."""


class _Reducers:
    """Those of `multiprocessing`, then everybody's, as they are when a class is looked up."""

    def __getitem__(self, kind: type) -> Any:  # noqa: ANN401 - what was registered
        try:
            return _SHARED[kind]
        except KeyError:
            return _EVERYBODYS[kind]


def _make() -> _Pickler:
    parts: list[bytes] = []
    pickler = pickle.Pickler(SimpleNamespace(write=parts.append), PROTOCOL)
    pickler.dispatch_table = _Reducers()  # type: ignore[assignment]  # it asks nothing else
    return pickler.dump, pickler.clear_memo, parts


def dumps(obj: object) -> bytes:
    """Return the pickle of an object.

    Raises:
        Whatever pickling it raises: `PicklingError`, `TypeError`, `AttributeError`, its own errors.
    """
    if type(obj) in _PLAIN:
        return pickle.dumps(obj, PROTOCOL)
    try:
        pickler = _spare.pop()
    except IndexError:
        pickler = _make()
    dump, forget, parts = pickler
    dump(obj)  # raises: this pickler is in the middle of something, and is given up
    forget()  # or it would keep the object
    if len(parts) == 1:
        data = parts.pop()
    else:
        data = b"".join(parts)
        parts.clear()
    _spare.append(pickler)
    return data
