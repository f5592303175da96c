"""A plain file: length-prefixed messages, appended with O_APPEND and read by another process.

As fast as plain Python makes it: one `writev` for each message, one `write` for each batch; the
reader reads through a buffered reader one by one, and cuts chunks in batches. At the end of the
file it spins.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any

from stress.bench.peers.base import Peer
from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX_BYTES = 4
CHUNK_BYTES = 256 * 1024
prefix_of = struct.Struct("<I").pack
length_at = struct.Struct("<I").unpack_from


class PlainFile(Peer):
    """Appends to one file; the reader follows its end."""

    def _append_descriptor(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.plan.directory / "messages", flags, 0o600)
        self.stack.callback(os.close, descriptor)
        return descriptor

    def _read_descriptor(self) -> int:
        flags = os.O_RDONLY | os.O_CREAT  # the reader may be first
        descriptor = os.open(self.plan.directory / "messages", flags, 0o600)
        self.stack.callback(os.close, descriptor)
        return descriptor

    def open_send(self, channel: str = "main") -> Callable[[bytes], object]:
        """Return what appends one message."""
        del channel
        descriptor, writev = self._append_descriptor(), os.writev

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

    def open_receive(self) -> Callable[..., Any]:
        """Return what waits for one message."""
        reader = self.stack.enter_context(
            os.fdopen(os.dup(self._read_descriptor()), "rb", buffering=CHUNK_BYTES)
        )
        return _messages(reader.read, self.plan.stall_seconds).__next__

    def open_receive_many(self) -> Callable[[], list[bytes]]:
        """Return what waits for a chunk and cuts it into messages."""
        descriptor = self._read_descriptor()
        return _batches(descriptor, self.plan.stall_seconds).__next__


def _messages(read: Callable[[int], bytes], stall_seconds: float) -> Iterator[bytes]:
    """Yield message after message, without end."""

    def rest_of(part: bytes, length: int) -> bytes:
        deadline = time.monotonic() + stall_seconds
        while len(part) < length:
            more = read(length - len(part))
            part += more
            if not more and time.monotonic() > deadline:
                raise CheckFailed("no more messages came")
        return part

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
        chunk += more
        end, stop = len(chunk), 0
        payloads = []
        while stop + PREFIX_BYTES <= end:
            start = stop + PREFIX_BYTES
            after = start + length_at(chunk, stop)[0]
            if after > end:
                break
            payloads.append(chunk[start:after])
            stop = after
        chunk = chunk[stop:]
        if payloads:
            yield payloads
            deadline = time.monotonic() + stall_seconds
