"""A recorded run: its events, what was sent, and what was guaranteed before it began."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import mmap
import re
import struct
from ctypes import CFUNCTYPE, byref, c_char_p, c_int, c_long, c_uint64, c_void_p
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pagequeue import format as fmt
from stress.traced import trace
from stress.traffic import HEADER, VIOLATIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOG_BYTES_MAX: Final = 256 << 20
EVENT: Final = struct.Struct("<IIQQQ")  # kind, bytes that follow, a, b, c; as in `cut_events.h`
NOWHERE: Final = 2**64 - 1
PLACE_ABOUT, PLACE_DURABLE = NOWHERE - 1, NOWHERE - 2
"""Notes: a named consumer's place may be this from now on; will not come back below it."""
PUBLISHED = NOWHERE - 3
"""Note: this operation of a producer was published, and its ledger's entry is durable."""
SHIPPED = NOWHERE - 4
"""Note: a replica was reported to hold all messages below this one."""
PAGE_NAME: Final = re.compile(rb"queue-([0-9]{10})\.page")
OS_PAGE_BYTES: Final = 4096
PREFIX: Final = "queue"
NO_POINT: Final = 0


class Kind(IntEnum):
    """What an event is; as in `cut_events.h`."""

    PAGE = 1
    SIZE = 2
    NAME = 3
    SYNC = 4
    DIRSYNC = 5
    BASE = 6
    MADE = 7
    PARENTSYNC = 8
    POINT = 9
    FLUSHED = 10
    NOTE = 11
    FAILED = 12


class Event(NamedTuple):
    """One event of a log."""

    kind: Kind
    a: int = 0
    b: int = 0
    c: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        """Return it in the encoding of a log."""
        padded = self.data.ljust(-(-len(self.data) // 8) * 8, b"\0")
        return EVENT.pack(self.kind, len(padded), self.a, self.b, self.c) + padded


class Places(NamedTuple):
    """The places a named consumer may have: the last guaranteed one, and the furthest."""

    least: int
    most: int


@dataclass
class Recording:
    """One run of the library, as the engine takes it.

    Attributes:
        name: where it comes from, with the seeds to make it again.
        seed: of the plan.
        log: the events, as in `cut_events.h`.
        sent: every message's frame in order, as encoded in a page.
        promised: messages that had to survive before it began.
        least: messages that every recovery finds, guaranteed or not.
        large: the payloads of the large messages among them, in order.
    """

    name: str
    seed: int
    log: bytes
    sent: bytes
    promised: int = 0
    least: int = 0
    large: list[bytes] = field(default_factory=list)

    def messages(self) -> list[tuple[int, bytes, bool]]:
        """Return what was sent: timestamp, payload, whether its batch or bulk commit continues."""
        found = []
        large = iter(self.large)
        at = 0
        while at < len(self.sent):
            length = int.from_bytes(self.sent[at : at + 4], "little")
            bytes_ = length & fmt.LENGTH_MASK
            timestamp = int.from_bytes(self.sent[at + 8 : at + 16], "little", signed=True)
            payload = self.sent[at + fmt.FRAME_HEADER_BYTES : at + bytes_]
            if fmt.is_large(length):
                payload = next(large)
            found.append((timestamp, payload, bool(fmt.has_more(length))))
            at += _frame_bytes(self.sent, at)
        for i, (one, following) in enumerate(itertools.pairwise(found)):
            if _is_continued(one[1], following[1]):
                found[i] = (*one[:2], True)
        return found

    def events(self) -> Iterator[Event]:
        """Return what was recorded, event by event."""
        at = 0
        while at < len(self.log):
            kind, size, a, b, c = EVENT.unpack_from(self.log, at)
            at += EVENT.size
            yield Event(Kind(kind), a, b, c, self.log[at : at + size])
            at += size

    def places_at(self, moment: int) -> dict[int, Places]:
        """Return the possible places of each named consumer that existed before an event."""
        found: dict[int, Places] = {}
        for number, (kind, what, consumer, place) in self._notes:
            if number >= moment:
                break
            least, most = found.get(consumer, Places(0, 0))
            if what == PLACE_DURABLE:
                least = place
            found[consumer] = Places(least, max(most, place))
            assert kind == Kind.NOTE
        return found

    def published_at(self, moment: int) -> list[tuple[int, int]]:
        """Return which operations, as uid and number, had been published before an event."""
        found = []
        for number, event in enumerate(self.events()):
            if number >= moment:
                break
            if event.kind == Kind.NOTE and event.a == PUBLISHED:
                found.append((event.b, event.c))
        return found

    def shipped_at(self, moment: int) -> int:
        """Return how many messages a replica was reported to hold before an event."""
        notes = itertools.islice(self.events(), moment)
        return max(
            (one.b for one in notes if one.kind == Kind.NOTE and one.a == SHIPPED), default=0
        )

    @functools.cached_property
    def _notes(self) -> list[tuple[int, tuple[Kind, int, int, int]]]:
        return [
            (number, event[:4])
            for number, event in enumerate(self.events())
            if event.kind == Kind.NOTE and event.a in {PLACE_ABOUT, PLACE_DURABLE}
        ]

    def first_frames(self, count: int) -> bytes:
        """Return the first frames of what was sent."""
        at = 0
        for _ in range(count):
            at += _frame_bytes(self.sent, at)
        return self.sent[:at]

    def first_large(self, count: int) -> list[bytes]:
        """Return the payloads of the large messages among the first ones."""
        words = []
        at = 0
        for _ in range(count):
            words.append(int.from_bytes(self.sent[at : at + 4], "little"))
            at += _frame_bytes(self.sent, at)
        return self.large[: sum(map(fmt.is_large, words))]

    def save(self, path: Path) -> None:
        """Write it to a file."""
        head = {
            "name": self.name,
            "seed": self.seed,
            "log": len(self.log),
            "sent": len(self.sent),
            "promised": self.promised,
            "least": self.least,
            "large": [len(payload) for payload in self.large],
        }
        parts = json.dumps(head).encode() + b"\n", self.log, self.sent, *self.large
        path.write_bytes(b"".join(parts))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read it from a file."""
        line, _, rest = path.read_bytes().partition(b"\n")
        head: dict[str, Any] = json.loads(line)
        sizes = [head.pop("log"), head.pop("sent"), *head.pop("large", [])]
        parts = []
        for begin, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
            parts.append(rest[begin : begin + size])
        if sum(sizes) != len(rest):
            raise ValueError(f"{path} is not a whole recording")
        return cls(log=parts[0], sent=parts[1], large=parts[2:], **head)


def _is_continued(payload: bytes, following: bytes) -> bool:
    """Whether the next message is of the same call; no frame says that of a bulk commit."""
    if min(len(payload), len(following)) < HEADER.size:
        return False
    uid, number, place = HEADER.unpack_from(payload)[:3]
    return HEADER.unpack_from(following)[:3] == (uid, number, place + 1)


def _frame_bytes(data: bytes, at: int) -> int:
    """Return what a frame takes."""
    length = int.from_bytes(data[at : at + 4], "little")
    return fmt.frame_bytes((length & fmt.LENGTH_MASK) - fmt.FRAME_HEADER_BYTES)


def retired_pages(log: bytes) -> dict[int, bytes]:
    """Return the pages removed during the recording, with their last contents, by number."""
    found: dict[int, bytes] = {}
    files: dict[int, dict[int, bytes]] = {}
    names: dict[bytes, int] = {}
    for kind, a, b, _, data in Recording("", 0, log, b"").events():
        if kind == Kind.PAGE:
            files.setdefault(a, {})[b] = data
        elif kind == Kind.NAME:
            name = data.rstrip(b"\0")
            before = names.get(name, NOWHERE)
            names[name] = a
            page = PAGE_NAME.fullmatch(name)
            if page and before not in {NOWHERE, a}:
                parts = files.get(before, {})
                zeros = bytes(OS_PAGE_BYTES)
                whole = [parts.get(part, zeros) for part in range(max(parts, default=-1) + 1)]
                found[int(page[1])] = b"".join(whole)
    return found


def frames_in(directory: Path, log: bytes = b"", first_page: int = 1) -> bytes:
    """Return all frames of a queue's pages in order as stored, without end-of-page markers.

    Args:
        directory: of the queue.
        log: of the recording: pages that were removed meanwhile are taken from there.
        first_page: to begin with.
    """
    return frames_and_large(directory, log, first_page)[0]


def frames_and_large(
    directory: Path, log: bytes = b"", first_page: int = 1
) -> tuple[bytes, list[bytes]]:
    """Return the same, and the payloads of the large messages among them."""
    found = []
    large: list[bytes] = []
    pages = retired_pages(log)
    pages |= {int(p.name[6:16]): p.read_bytes() for p in directory.glob(f"{PREFIX}-*.page")}
    for number in sorted(pages):
        if number < first_page:
            continue
        page = pages[number]
        at = fmt.PAGE_HEADER_BYTES
        while at + fmt.FRAME_HEADER_BYTES <= len(page):
            length = int.from_bytes(page[at : at + 4], "little")
            if length == 0 or fmt.is_end(length):
                break
            if fmt.is_large(length):
                large.append(b"")
            end = at + _frame_bytes(page, at)
            found.append(page[at:end])
            at = end
        if int.from_bytes(page[at : at + 4], "little") == 0:
            break  # the active page; after it there are only prepared pages
        end = at + _frame_bytes(page, at)
        if end > at + fmt.FRAME_HEADER_BYTES and large:
            size = int(np.frombuffer(page, fmt.FRAGMENT, 1, at + fmt.FRAME_HEADER_BYTES)["size"][0])
            large[-1] += page[end : end + size]
    return b"".join(found), large


class Recorder:
    """The preloaded recorder, in this process and in the children it forks while recording."""

    CALLED = CFUNCTYPE(None)

    def __init__(self) -> None:
        # With the GIL: a thread that gave it up at each line would wait 5 ms to get it back.
        self._library = ctypes.PyDLL(None)
        if not hasattr(self._library, "pq_trace_start"):
            raise RuntimeError("the recorder is not preloaded in this process")
        signatures: dict[str, tuple[Any, ...]] = {
            "pq_trace_start": (c_int, c_char_p, c_uint64),
            "pq_trace_end": (None,),
            "pq_trace_log": (c_void_p, c_void_p, c_void_p, c_void_p),
            "pq_trace_flushed": (None, c_uint64),
            "pq_trace_note": (None, c_uint64, c_uint64, c_uint64),
            "pq_trace_line": (None,),
            "pq_trace_fail": (None, c_int, c_int),
            "pq_trace_die": (None, c_int),
            "pq_trace_call": (None, c_int, c_long, self.CALLED),
        }
        for name, (result, *arguments) in signatures.items():
            function = getattr(self._library, name)
            function.restype = result
            function.argtypes = arguments
        self._looked = c_uint64.from_buffer(mmap.mmap(-1, ctypes.sizeof(c_uint64)))
        self._called: Any = None
        self.failures: list[str] = []

    @contextlib.contextmanager
    def recording(self, path: str) -> Iterator[None]:
        """Record a directory, which may be made only now, while the block runs."""
        error = self._library.pq_trace_start(path.encode(), LOG_BYTES_MAX)
        if error:
            raise OSError(error, "no memory for the recorder")
        self.failures.clear()
        end = trace(self._line)
        try:
            yield
        finally:
            end()
            self._library.pq_trace_end()

    @property
    def lines(self) -> int:
        """How many lines of the library it took snapshots at, in this process and its children."""
        return self._looked.value

    def _line(self, _module: str, _number: int) -> None:
        self._looked.value += 1
        self._library.pq_trace_line()

    def log(self) -> bytes:
        """Return the events of the last recording."""
        bytes_, events, full = c_uint64(), c_uint64(), c_int()
        place = self._library.pq_trace_log(byref(bytes_), byref(events), byref(full))
        if full.value:
            raise RuntimeError("the run was too large to be recorded")
        return ctypes.string_at(place, bytes_.value)

    def flushed(self, sequence: int) -> None:
        """Record that all messages below this one are guaranteed to survive."""
        self._library.pq_trace_flushed(sequence)

    def note(self, *numbers: int) -> None:
        """Note three numbers, for people."""
        self._library.pq_trace_note(*numbers)

    def fail_syncs(self, first: int, count: int) -> None:
        """Have so many syncs of this process fail, from the `first`-th on; 0 of them: none."""
        self._library.pq_trace_fail(first, count)

    def die_at_call(self, number: int) -> None:
        """Have this process die right after its `number`-th recorded call; 0: live on."""
        self._library.pq_trace_die(number)

    @contextlib.contextmanager
    def calling_at(self, point: int, at_pass: int, what: Callable[[], None]) -> Iterator[None]:
        """Call once, from inside the core, when it reaches a kill point the n-th time.

        Not any more when the block has ended.
        """

        def called() -> None:
            try:
                what()
            except Exception as error:  # noqa: BLE001  it cannot get through the core
                self.failures.append(f"inside of point {point}: {type(error).__name__}: {error}")
                del self.failures[VIOLATIONS_MAX:]

        self._called = self.CALLED(called)
        self._library.pq_trace_call(point, at_pass, self._called)
        try:
            yield
        finally:
            self._library.pq_trace_call(NO_POINT, 0, self._called)
