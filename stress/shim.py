"""Fails chosen system calls of this process: the other half of `harness/shim.c`.

The library must be preloaded when the process starts: see `environment`. Then `watch` names the
directory below which calls are counted, and between `begin` and `end` the calls of one kind, from
the Nth on, end in an error, move half of their bytes, or are interrupted by a signal.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stress import variant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType, FrameType

KINDS = (
    "open",
    "mmap",
    "munmap",
    "stat",
    "read",
    "write",
    "fallocate",
    "ftruncate",
    "fsync",
    "fdatasync",
    "msync",
    "rename",
    "unlink",
    "mkdir",
    "flock",
    "fcntl",
    "readdir",
    "madvise",
    "futex",
    "close",
    "chmod",
    "statfs",
    "unlock",
)
"""The counted calls, in the order of `enum kind`; each kind includes all calls of its sort."""
SYNCS = frozenset({"fsync", "fdatasync", "msync"})
SHORT = -1
GO_ON = -2
NOTHING = -1
PRELOAD_VARIABLE = "LD_PRELOAD"
HARNESS = Path(__file__).resolve().parent / "harness"
_LISTENER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int)


@dataclass(frozen=True)
class Order:
    """Which calls are disturbed, and how.

    Attributes:
        kind: one of KINDS.
        nth: the first of them, from 1.
        times: how many in a row.
        error: the system's error number; SHORT: half of the bytes; GO_ON: the call is made.
        signal: raised before that; 0: none.
    """

    kind: str
    nth: int
    times: int = 1
    error: int = GO_ON
    signal: int = 0


def build() -> Path:
    """Build the library, or take what was built from the same."""
    sources = sorted(HARNESS.glob("shim*.c"))
    arguments = [
        *("-shared", "-fPIC", "-O2", "-fvisibility=hidden", *variant.BASE_FLAGS),
        *variant.define_flags(variant.BASE_DEFINES),
        "-ldl",
    ]
    return variant.compiled(variant.compiler(), sources, arguments, HARNESS)


def environment() -> dict[str, str]:
    """Return this process's environment, with the library in it."""
    known = os.environ.get(PRELOAD_VARIABLE, "")
    return {**os.environ, PRELOAD_VARIABLE: ":".join(filter(None, [str(build()), known]))}


def is_possible() -> bool:
    """Whether this system preloads libraries as the shim needs it."""
    return sys.platform == "linux"


@functools.cache
def _library() -> Any | None:  # noqa: ANN401  ctypes has no public type for it
    library = ctypes.CDLL(None)
    if not hasattr(library, "shim_begin"):
        return None
    library.shim_watch.argtypes = [ctypes.c_char_p]
    library.shim_begin.argtypes = [
        ctypes.c_int,
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_int,
    ]
    for name in ("count", "fired"):
        getattr(library, f"shim_{name}").restype = ctypes.c_long
    library.shim_fired_path.restype = ctypes.c_char_p
    library.shim_at.argtypes = [ctypes.c_uint32]
    library.shim_place.argtypes = [ctypes.c_int, ctypes.c_long]
    library.shim_place.restype = ctypes.c_uint64
    assert library.shim_kind_count() == len(KINDS), "shim.py and shim.h list other kinds"
    return library


def is_loaded() -> bool:
    """Whether this process was started with the library."""
    return _library() is not None


def _loaded() -> Any:  # noqa: ANN401
    library = _library()
    assert library is not None, "start the process with shim.environment()"
    return library


def watch(directory: str) -> None:
    """Watch calls on files below this directory from now on; count none yet."""
    _loaded().shim_watch(os.fsencode(directory))


def begin(order: Order | None = None) -> None:
    """Count calls from now on, and disturb those that the order names."""
    if order is None:
        _loaded().shim_begin(NOTHING, 0, 0, GO_ON, 0)
    else:
        kind = KINDS.index(order.kind)
        _loaded().shim_begin(kind, order.nth, order.times, order.error, order.signal)


def end() -> None:
    """Leave all calls alone again."""
    _loaded().shim_end()


def counts() -> Mapping[str, int]:
    """Return how many calls of each kind there were since `begin`."""
    library = _loaded()
    return {kind: int(library.shim_count(i)) for i, kind in enumerate(KINDS)}


def note_places(*, on: bool) -> None:
    """Note from now on, or no longer, in which place of the program each counted call is made."""
    _loaded().shim_note_places(on)


def teller() -> Callable[[int], object]:
    """Return a function that tells the number of the place that the calling thread is at."""
    found: Callable[[int], object] = _loaded().shim_at
    return found


def places() -> Mapping[str, list[tuple[int, int]]]:
    """Return the place of each call since `begin`, and a number for its sort of file."""
    place = _loaded().shim_place
    return {
        kind: [
            (number & 0xFFFFFFFF, number >> 32)
            for nth in range(1, count + 1)
            for number in (int(place(KINDS.index(kind), nth)),)
        ]
        for kind, count in counts().items()
        if count
    }


def fired() -> int:
    """Return how many calls were disturbed since `begin`."""
    return int(_loaded().shim_fired())


def fired_path() -> str:
    """Return what the call that was disturbed last was about."""
    return os.fsdecode(_loaded().shim_fired_path())


def on_sync(listener: Callable[[str, str, int], int] | None) -> None:
    """Have every sync below the directory told: its kind, its path, its error or 0.

    The listener's own calls are not counted. It returns 0, or a signal that came while it ran and
    is to be raised again now that it has ended: an exception raised in it would reach no caller.
    """

    def told(kind: int, path: bytes, error: int) -> int:
        assert listener is not None
        return listener(KINDS[kind], os.fsdecode(path), error)

    _listening[:] = [told.__code__]

    made = _LISTENER() if listener is None else _LISTENER(told)
    _kept[:] = [made]
    _loaded().shim_on_sync(made)


def is_listening(frame: FrameType | None) -> bool:
    """Whether a signal handler that was called in this frame came into a listener."""
    while frame is not None:
        if frame.f_code in _listening:
            return True
        frame = frame.f_back
    return False


_kept: list[Any] = []
_listening: list[CodeType] = []
