"""A plain file: length-prefixed messages, appended with O_APPEND and read by another process.

As fast as plain Python makes it: one `writev` for each message, one `write` for each batch; the
reader reads through a buffered reader one by one, and cuts chunks in batches. At the end of the
file it spins.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any, ClassVar

from stress.bench.peers.base import Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PREFIX_BYTES = 4
CHUNK_BYTES = 256 * 1024
prefix_of = struct.Struct("<I").pack
length_at = struct.Struct("<I").unpack_from


class PlainFile(Peer):
    """Appends to one file for each direction; the reader follows its end."""

    lacks: ClassVar[Mapping[str, str]] = {
        "block": "a reader that waits polls",
        "seek": "no index",
        "seek far": "no index",
    }

    def _append_descriptor(self, channel: str = "main") -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.plan.directory / channel, flags, 0o600)
        self.stack.callback(os.close, descriptor)
        return descriptor

    def _read_descriptor(self, channel: str = "main") -> int:
        flags = os.O_RDONLY | os.O_CREAT  # the reader may be first
        descriptor = os.open(self.plan.directory / channel, flags, 0o600)
        self.stack.callback(os.close, descriptor)
        return descriptor

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what appends one message."""
        descriptor, writev = self._append_descriptor(channel), os.writev

        def send(payload: bytes) -> None:
            length = len(payload)
            if writev(descriptor, (prefix_of(length), payload)) != length + PREFIX_BYTES:
                raise CheckFailed("a short write")

        return send

    def open_send_many(self) -> Callable[[list[bytes]], object]:
        """Return what appends a list of messages by one write."""
        descriptor = self._append_descriptor()

        def send_many(payloads: list[bytes]) -> None:
            joined = b"".join([prefix_of(len(payload)) + payload for payload in payloads])
            if os.write(descriptor, joined) != len(joined):
                raise CheckFailed("a short write")

        return send_many

    def _reader(self, channel: str = "main") -> Any:  # noqa: ANN401 - a file
        descriptor = os.dup(self._read_descriptor(channel))
        return self.stack.enter_context(os.fdopen(descriptor, "rb", buffering=CHUNK_BYTES))

    def open_receive(self, channel: str = "main") -> Callable[..., Any]:
        """Return what waits for one message."""
        return _messages(self._reader(channel).read, self.plan.stall_seconds).__next__

    def open_poll(self, channel: str = "main") -> Callable[[], Any]:
        """Return what reads the next message, if it begins; it waits for the rest of one."""
        descriptor, size_bytes = self._read_descriptor(channel), self.plan.size_bytes + PREFIX_BYTES
        read, at = os.pread, 0

        def poll() -> bytes | None:
            nonlocal at
            message = read(descriptor, size_bytes, at)
            if len(message) < size_bytes:
                return None
            at += size_bytes
            return message[PREFIX_BYTES:]

        return poll

    def open_stream(self) -> Iterator[bytes]:
        """Return the messages of the file."""
        read = self._reader().read
        while prefix := read(PREFIX_BYTES):
            yield read(length_at(prefix)[0])

    def open_batches(self) -> Iterator[list[bytes]]:
        """Return the messages of each chunk of the file."""
        descriptor, chunk = self._read_descriptor(), b""
        while more := os.read(descriptor, CHUNK_BYTES):
            payloads, chunk = _cut(chunk + more)
            yield payloads

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what waits for a chunk and cuts it into messages."""
        descriptor = self._read_descriptor()
        return _batches(descriptor, self.plan.stall_seconds).__next__


def _messages(read: Callable[[int], bytes], stall_seconds: float) -> Iterator[bytes]:
    """Yield message after message, without end."""

    def rest_of(part: bytes, length: int) -> bytes:
        deadline = time.monotonic() + stall_seconds
        parts, left = [part], length - len(part)
        while left:
            if more := read(left):
                parts.append(more)
                left -= len(more)
            elif time.monotonic() > deadline:
                raise CheckFailed("no more messages came")
        return b"".join(parts)

    while True:
        prefix = read(PREFIX_BYTES)
        if len(prefix) < PREFIX_BYTES:
            prefix = rest_of(prefix, PREFIX_BYTES)
        length = length_at(prefix)[0]
        payload = read(length)
        if len(payload) < length:
            payload = rest_of(payload, length)
        yield payload


def _batches(descriptor: int, stall_seconds: float) -> Iterator[list[bytes]]:
    """Yield the whole messages of each chunk, without end."""
    chunk = b""
    deadline = time.monotonic() + stall_seconds
    while True:
        more = os.read(descriptor, CHUNK_BYTES)
        if not more:
            if time.monotonic() > deadline:
                raise CheckFailed("no more messages came")
            continue
        payloads, chunk = _cut(chunk + more)
        if payloads:
            yield payloads
            deadline = time.monotonic() + stall_seconds


def _cut(chunk: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole messages of a chunk, and what is left."""
    end, stop = len(chunk), 0
    payloads = []
    while stop + PREFIX_BYTES <= end:
        start = stop + PREFIX_BYTES
        after = start + length_at(chunk, stop)[0]
        if after > end:
            break
        payloads.append(chunk[start:after])
        stop = after
    return payloads, chunk[stop:]
