r"""How messages stand one after another in a byte stream. No input and no output here.

- newline: each payload, then `\n`. A payload that holds one comes back as two.
- null: each payload, then a zero byte. The same.
- length-prefixed: each payload's length as four bytes, little-endian, then the payload. Loses
  nothing, whatever the payloads hold.

What stands behind the last separator is a message too, unless it is empty.
"""

from __future__ import annotations

import enum
import itertools
import struct
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH_PREFIX: Final = struct.Struct("<I")
"""Stands before each payload; four bytes, because no page and so no message reaches 4 GiB."""


class FramingError(ValueError):
    """The input is cut off inside a message."""


class Framing(enum.Enum):
    """Which bytes keep two messages apart."""

    NEWLINE = "newline"
    NULL = "null"
    LENGTH = "length-prefixed"


class Decoder(Protocol):
    """Takes pieces of a stream as they come, gives the messages that are whole."""

    unit: str
    """What a person calls one of its messages: line or record."""

    @property
    def pending_bytes(self) -> int:
        """The bytes, known so far, of the message that is not whole yet."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that this piece completes."""

    def finish(self) -> list[bytes]:
        """Return what the end of the stream completes; FramingError if that is half a message."""


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
        """Return the messages whose separator has come."""
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
        """Return what stands behind the last separator."""
        last = b"".join(self._rest)
        self._rest.clear()
        self._rest_bytes = 0
        return [last] if last else []


class LengthDecoder:
    """Messages with their length before them."""

    unit = "record"

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._count = 0

    @property
    def pending_bytes(self) -> int:
        """The length that the next message has announced, 0 as long as it has not."""
        if len(self._buffer) < LENGTH_PREFIX.size:
            return 0
        return int(LENGTH_PREFIX.unpack_from(self._buffer)[0])

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that have come to their announced length."""
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
        """Return nothing: whole messages were given already, and half of one is an error."""
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
    """Return the payloads as they stand in a stream, the last one ended too."""
    if framing is Framing.LENGTH:
        lengths = map(LENGTH_PREFIX.pack, map(len, payloads))
        return b"".join(itertools.chain.from_iterable(zip(lengths, payloads, strict=True)))
    separator = b"\0" if framing is Framing.NULL else b"\n"
    return separator.join((*payloads, b""))
