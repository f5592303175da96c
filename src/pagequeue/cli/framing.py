r"""Framing of messages in a byte stream; does no I/O.

- newline: each payload, then `\n`. A payload that contains one is read back as two.
- null: each payload, then a zero byte, with the same limitation.
- length-prefixed: each payload's length as four bytes, little-endian, then the payload. Any payload
  is read back unchanged.

Bytes after the last separator are a message too, unless there are none.
"""

from __future__ import annotations

import enum
import itertools
import struct
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH_PREFIX: Final = struct.Struct("<I")
"""Precedes each payload; four bytes, because pages and so messages are smaller than 4 GiB."""


class FramingError(ValueError):
    """The input is cut off inside a message."""


class Framing(enum.Enum):
    """How two messages are separated."""

    NEWLINE = "newline"
    NULL = "null"
    LENGTH = "length-prefixed"


class Decoder(Protocol):
    """Takes pieces of a stream and returns the messages that they complete."""

    unit: str
    """What error messages call one of its messages: line or record."""

    @property
    def pending_bytes(self) -> int:
        """The known size of the incomplete message."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that this piece completes."""

    def finish(self) -> list[bytes]:
        """Return what the end of the stream completes; FramingError if it cuts a message."""


class SeparatorDecoder:
    """Messages that end with one byte."""

    def __init__(self, separator: bytes, unit: str) -> None:
        self.unit = unit
        self._separator = separator
        self._rest: list[bytes] = []  # pieces: joining at every feed would be quadratic
        self._rest_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """The bytes since the last separator."""
        return self._rest_bytes

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages whose separator has arrived."""
        messages = piece.split(self._separator)
        last = messages.pop()
        if messages and self._rest:
            messages[0] = b"".join((*self._rest, messages[0]))
        if messages:
            self._rest.clear()
            self._rest_bytes = 0
        if last:
            self._rest.append(last)
            self._rest_bytes += len(last)
        return messages

    def finish(self) -> list[bytes]:
        """Return the bytes after the last separator, if any, as a message."""
        last = b"".join(self._rest)
        self._rest.clear()
        self._rest_bytes = 0
        return [last] if last else []


class LengthDecoder:
    """Messages preceded by their length."""

    unit = "record"

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._count = 0

    @property
    def pending_bytes(self) -> int:
        """The length prefix of the next message, 0 until it is complete."""
        if len(self._buffer) < LENGTH_PREFIX.size:
            return 0
        return int(LENGTH_PREFIX.unpack_from(self._buffer)[0])

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that have reached the length of their prefix."""
        buffer = self._buffer
        buffer += piece
        available_bytes = len(buffer)
        messages: list[bytes] = []
        position = 0
        with memoryview(buffer) as view:
            while position + LENGTH_PREFIX.size <= available_bytes:
                start = position + LENGTH_PREFIX.size
                end = start + LENGTH_PREFIX.unpack_from(view, position)[0]
                if end > available_bytes:
                    break
                messages.append(bytes(view[start:end]))
                position = end
        del buffer[:position]
        self._count += len(messages)
        return messages

    def finish(self) -> list[bytes]:
        """Return an empty list; raise FramingError if the stream ends inside a message."""
        if not self._buffer:
            return []
        have_bytes = len(self._buffer) - LENGTH_PREFIX.size
        cut = (
            "inside its length"
            if have_bytes < 0
            else f"after {have_bytes} of its {self.pending_bytes} bytes"
        )
        raise FramingError(
            f"record {self._count + 1}: the input ends {cut}; "
            "is it length-prefixed (4 bytes little-endian), and was it copied whole?"
        )


def decoder(framing: Framing) -> Decoder:
    """Return a new decoder for the start of a stream."""
    if framing is Framing.LENGTH:
        return LengthDecoder()
    if framing is Framing.NULL:
        return SeparatorDecoder(b"\0", "record")
    return SeparatorDecoder(b"\n", "line")


def encode(framing: Framing, payloads: Sequence[bytes]) -> bytes:
    """Return the payloads as a stream, the last one terminated too."""
    if framing is Framing.LENGTH:
        lengths = map(LENGTH_PREFIX.pack, map(len, payloads))
        return b"".join(itertools.chain.from_iterable(zip(lengths, payloads, strict=True)))
    separator = b"\0" if framing is Framing.NULL else b"\n"
    return separator.join((*payloads, b""))
