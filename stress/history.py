"""The history of a run: events that its processes write down, and that its judge reads.

An event is a NamedTuple of whole numbers, and a log has events of one kind. Processes append to it,
each event by one `write`, which SIGKILL cannot undo: the order of the events is that of the writes.
What a process writes before a call precedes the call; what it writes after a call follows it.

Whole messages are kept in a file of their own, by one process at a time.
"""

from __future__ import annotations

import mmap
import os
import struct
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pagequeue import Message

HEAD = struct.Struct("<qqq")
"""Before each kept payload: sequence, timestamp, bytes."""
COUNT = struct.Struct("<q")
MEMORY_EVENTS_MAX = 200_000


class Sent(NamedTuple):
    """An operation of a producer that has returned.

    Attributes:
        uid: of the producer.
        number: of the operation, from 0 on.
        messages: how many it sent; 0: none.
        first: sequence of the first one.
        at: when it had returned, in ns of the monotonic clock; 0: that does not matter.
    """

    uid: int
    number: int
    messages: int
    first: int
    at: int = 0


class Seen(NamedTuple):
    """How far a consumer has come.

    Attributes:
        uid: of the consumer.
        end: sequence after the last message that it received.
        digest: of all messages before.
        is_durable: whether all of them were on stable storage.
    """

    uid: int
    end: int
    digest: int
    is_durable: int = 0


class Kept(NamedTuple):
    """A message that was kept."""

    sequence: int
    timestamp: int
    payload: bytes


Event = TypeVar("Event", bound=NamedTuple)


@cache
def packing(kind: type[NamedTuple]) -> struct.Struct:
    """Return how events of a kind are written."""
    return struct.Struct(f"<{len(kind._fields)}q")


def unpacked(kind: type[Event], data: bytes) -> list[Event]:
    """Return the whole events in some bytes."""
    form = packing(kind)
    whole = len(data) // form.size * form.size
    return [kind._make(fields) for fields in form.iter_unpack(data[:whole])]


class Log(Generic[Event]):
    """Events of one kind in a file, to which any process appends."""

    def __init__(self, path: Path, kind: type[Event]) -> None:
        self.path = path
        self.kind = kind
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def put(self, event: Event) -> None:
        """Append an event; when this returns, no kill can undo it."""
        os.write(self._fd, packing(self.kind).pack(*event))

    def put_all(self, events: Iterable[Event]) -> None:
        """Append events; a kill inside leaves the first of them, each one whole."""
        os.write(self._fd, b"".join(packing(self.kind).pack(*event) for event in events))

    def events(self, begin: int = 0) -> list[Event]:
        """Return all whole events, or those from a place on."""
        return unpacked(self.kind, self.path.read_bytes()[begin * packing(self.kind).size :])

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class MemoryLog(Generic[Event]):
    """Events in memory that is shared with the parent: no limit of a process forbids them."""

    def __init__(self, kind: type[Event]) -> None:
        self.kind = kind
        self._map = mmap.mmap(-1, COUNT.size + MEMORY_EVENTS_MAX * packing(kind).size)

    def put(self, event: Event) -> None:
        """Append an event; it counts when it is whole."""
        (count,) = COUNT.unpack_from(self._map)
        packing(self.kind).pack_into(
            self._map, COUNT.size + count * packing(self.kind).size, *event
        )
        self._map[: COUNT.size] = COUNT.pack(count + 1)

    def events(self) -> list[Event]:
        """Return all events."""
        (count,) = COUNT.unpack_from(self._map)
        end = COUNT.size + count * packing(self.kind).size
        return unpacked(self.kind, self._map[COUNT.size : end])

    def close(self) -> None:
        """Release the memory."""
        self._map.close()


def all_of(logs: Iterable[Log[Event] | MemoryLog[Event]]) -> list[Event]:
    """Return the events of all these logs."""
    return list(chain.from_iterable(log.events() for log in logs))


class MessageLog:
    """Messages as they were received, in a file that one process at a time continues.

    Attributes:
        count: how many it has.
    """

    def __init__(self, path: Path) -> None:
        self.count = end = 0
        for kept in messages_in(path):
            self.count, end = self.count + 1, end + HEAD.size + len(kept.payload)
        self._file = path.open("ab", buffering=0)
        self._file.truncate(end)

    def put_all(self, messages: Iterable[Message]) -> None:
        """Append messages; a kill inside leaves the first of them."""
        parts = []
        for message in messages:
            payload = message.payload
            parts += [HEAD.pack(message.sequence, message.timestamp, len(payload)), payload]
            self.count += 1
        self._file.write(b"".join(parts))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def messages_in(path: Path) -> Iterator[Kept]:
    """Yield the whole messages that were kept."""
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at + HEAD.size <= len(data):
        sequence, timestamp, size = HEAD.unpack_from(data, at)
        at += HEAD.size + size
        if at > len(data):
            return
        yield Kept(sequence, timestamp, data[at - size : at])
