"""The simulator's parts in C: built, loaded, and called.

The recorder is preloaded into the process that runs the library. The engine, linked with the core's
own sources, builds the states that a power cut can leave, and recovers them in memory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from ctypes import POINTER, byref, c_char_p, c_int, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stress import variant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stress.cut.recording import Recording

HARNESS = Path(__file__).resolve().parents[1] / "harness"
MODES: Final = ("OS pages", "sectors", "cache lines")
RESULTS: Final = (
    "fine",
    "refused",
    "damage below the durable mark",
    "lost",
    "continues past what was sent",
    "a frame that was not sent there",
    "ends inside a batch",
)
SEEDS_PER_MOMENT: Final = 64
SEEN_BITS: Final = 1 << 26


def _headers() -> str:
    """Return a flag that differs when one of the harness's headers does."""
    text = b"".join(path.read_bytes() for path in sorted(HARNESS.glob("*.h")))
    return f"-DHARNESS_HEADERS=0x{hashlib.blake2b(text, digest_size=7).hexdigest()}"


def recorder() -> Path:
    """Build the library to preload."""
    flags = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden", _headers())
    arguments = [*variant.BASE_FLAGS, *flags, *variant.define_flags(variant.BASE_DEFINES)]
    arguments += ["-Wl,--no-as-needed", "-ldl"]
    sources = [HARNESS / "recorder.c", HARNESS / "recorder_calls.c"]
    return variant.compiled(variant.compiler(), sources, arguments)


def core(defines: Mapping[str, str]) -> Path:
    """Build a core whose kill points the recorder sees."""
    flags = ("-O2", "-Wl,--wrap=pq_kill_point")
    everything = {**variant.KILL_POINTS, **defines}
    return variant.build(everything, flags, [HARNESS / "recorder_hook.c"])


class Found(ctypes.Structure):
    """What the engine found in one state; as in `cut.h`."""

    seed: int
    moment: int
    promised: int
    tail: int
    page: int
    position: int
    sequence: int
    result: int
    _fields_ = (
        *((name, c_uint64) for name in ("seed", "moment", "promised", "tail")),
        *((name, c_uint64) for name in ("page", "position", "sequence")),
        ("result", c_uint32),
    )

    @property
    def words(self) -> str:
        """Return it in words."""
        return (
            f"{RESULTS[self.result]}: cut before event {self.moment}, {self.promised} messages "
            f"were guaranteed, {self.tail} are found; page {self.page}, position {self.position}, "
            f"message {self.sequence}"
        )


@functools.cache
def engine(defines: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    """Build and load the engine, with the core's sources as they are with these defines."""
    sources = [HARNESS / name for name in ("cut_trace.c", "cut_state.c", "cut_check.c")]
    flags = ("-O3", "-shared", "-fPIC", f"-I{HARNESS}", _headers())
    path = variant.build_program(sources, [*flags, *variant.define_flags(dict(defines))])
    library = ctypes.CDLL(str(path))
    signatures = {
        "cut_load": (
            c_void_p,
            c_char_p,
            c_uint64,
            c_char_p,
            c_uint64,
            c_char_p,
            c_uint64,
            c_uint64,
        ),
        "cut_free": (None, c_void_p),
        "cut_choose": (None, c_void_p, c_uint64, c_int),
        "cut_choose_last": (None, c_void_p),
        "cut_name_count": (c_uint32, c_void_p),
        "cut_name": (c_char_p, c_void_p, c_uint32),
        "cut_bytes": (c_void_p, c_void_p, c_uint32, POINTER(c_uint64)),
        "cut_gone": (c_int, c_void_p),
        "cut_events": (c_uint64, c_void_p),
        "cut_check": (c_int, c_void_p, POINTER(Found)),
        "cut_run": (
            c_uint64,
            c_void_p,
            c_uint64,
            c_int,
            c_uint64,
            POINTER(c_uint8),
            c_uint64,
            POINTER(Found),
        ),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Seen:
    """Marks of the states that were tried, to estimate how many of them were distinct."""

    def __init__(self) -> None:
        self.bits = (c_uint8 * (SEEN_BITS // 8))()

    def distinct(self) -> int:
        """Return about how many different ones were marked."""
        free = SEEN_BITS - int.from_bytes(bytes(self.bits), "little").bit_count()
        return round(-SEEN_BITS * math.log(max(free, 1) / SEEN_BITS))


class States:
    """The states that a power cut can leave of one recorded run."""

    def __init__(self, recording: Recording, defines: Mapping[str, str]) -> None:
        self._engine = engine(tuple(sorted(defines.items())))
        self._log, self._sent = recording.log, recording.sent  # the engine points into them
        self._continues = bytes(continues for _, _, continues in recording.messages())
        self._trace = self._engine.cut_load(
            self._log,
            len(self._log),
            self._sent,
            len(self._sent),
            self._continues,
            recording.promised,
            recording.least,
        )
        if not self._trace:
            raise ValueError("the recording is damaged")

    def close(self) -> None:
        """Free what the engine holds."""
        trace, self._trace = self._trace, None
        if trace:
            self._engine.cut_free(trace)

    @property
    def events(self) -> int:
        """How many events there are."""
        return int(self._engine.cut_events(self._trace))

    def choose(self, seed: int, mode: int) -> None:
        """Build the state of this seed."""
        self._engine.cut_choose(self._trace, seed, mode)

    def choose_last(self) -> None:
        """Build the state at the end, without any cut."""
        self._engine.cut_choose_last(self._trace)

    def check(self) -> Found:
        """Recover the state in memory."""
        found = Found()
        self._engine.cut_check(self._trace, byref(found))
        return found

    def run(self, seed: int, mode: int, count: int, seen: Seen) -> tuple[int, Found | None]:
        """Try the states of `count` seeds in a row; return how many, and the first bad one."""
        found = Found()
        tried = self._engine.cut_run(
            self._trace, seed, mode, count, seen.bits, SEEN_BITS, byref(found)
        )
        return tried, found if found.result else None

    def files(self) -> dict[str, bytes] | None:
        """Return every file of the state; None when the directory is not there."""
        if self._engine.cut_gone(self._trace):
            return None
        found = {}
        for i in range(self._engine.cut_name_count(self._trace)):
            size = c_uint64()
            place = self._engine.cut_bytes(self._trace, i, byref(size))
            if place:
                name = self._engine.cut_name(self._trace, i).decode()
                found[name] = ctypes.string_at(place, size.value)
        return found
