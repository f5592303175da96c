"""Objects to bytes and back by pickle, used only by the drop-in for `multiprocessing.Queue`.

Unpickling can execute arbitrary code, so the drop-in reads only directories that no user other than
their owner can write to (`trust.py`).

The reducers of `multiprocessing`, for sockets, connections and bound methods, apply here too. Its
own pickler copies their table for every object, which costs more than the pickling, so this module
reuses picklers.
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
"""Not the highest: other versions of Python also read a persistent directory."""
loads: Final = pickle.loads
UnpicklingError = pickle.UnpicklingError

_SHARED: Final = cast("dict[type, Any]", ForkingPickler._extra_reducers)  # type: ignore[attr-defined]  # noqa: SLF001 - the only access
_GLOBAL: Final = cast("dict[type, Any]", copyreg.dispatch_table)


_PLAIN: Final = frozenset((int, str, bytes, float, bool, type(None)))
"""Types that pickle without a reducer."""

_Pickler: TypeAlias = "tuple[Callable[[object], None], Callable[[], None], list[bytes]]"
"""The calls dump and clear_memo, and the list of written parts."""

_spare: list[_Pickler] = []
"""Idle picklers; each call takes one, also a call of `dumps` from a reducer."""


class _Reducers:
    """The reducers of `multiprocessing`, then those of copyreg, read at each lookup."""

    def __getitem__(self, kind: type) -> Any:  # noqa: ANN401 - a reducer
        try:
            return _SHARED[kind]
        except KeyError:
            return _GLOBAL[kind]


def _make() -> _Pickler:
    parts: list[bytes] = []
    pickler = pickle.Pickler(SimpleNamespace(write=parts.append), PROTOCOL)
    pickler.dispatch_table = _Reducers()  # type: ignore[assignment]  # pickle calls only __getitem__
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
    dump(obj)  # if it raises, this pickler is dropped in its unknown state
    forget()  # else it keeps a reference to the object
    if len(parts) == 1:
        data = parts.pop()
    else:
        data = b"".join(parts)
        parts.clear()
    _spare.append(pickler)
    return data
