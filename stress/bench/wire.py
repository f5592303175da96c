"""The messages all contenders carry, and the checks all of them get.

A message is its number (8 bytes, little-endian), a filler, and an end byte. One by one, every
message is checked for length, number and end byte, and the last of each block for every byte. In
batches, messages are built before the clock starts, in a ring of RING_COUNT, and every byte of
every message is compared: a loss is seen by the order, one of a whole ring by the count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

from stress.bench.plan import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

BLOCK_COUNT = 256  # messages between two full comparisons of every byte
BATCH_COUNT = 1024
RING_COUNT = 8 * BATCH_COUNT
END = 0xA5
NUMBER_BYTES = 8

pack = struct.Struct("<Q").pack
number_of = struct.Struct("<Q").unpack_from


def tail_of(size_bytes: int) -> bytes:
    """Return what follows the number in every message of this size."""
    filler = bytes(range(1, 251)) * (size_bytes // 250 + 1)
    return filler[: size_bytes - NUMBER_BYTES - 1] + bytes([END])


def ring_of(size_bytes: int) -> list[bytes]:
    """Return the ring of ready-made messages that batches are cut from."""
    tail = tail_of(size_bytes)
    return [pack(value) + tail for value in range(RING_COUNT)]


def complain(payload: bytes, value: int) -> NoReturn:
    """Raise, and name the payload that came instead of message number `value`."""
    got = number_of(payload)[0] if len(payload) >= NUMBER_BYTES else "no number"
    raise CheckFailed(f"message {value} expected, got {got} in {len(payload)} bytes")


def check_block(
    receive: Callable[[], bytes], first: int, last: int, size_bytes: int, tail: bytes
) -> None:
    """Receive messages `first` to `last`, which come as bytes, and check them."""
    payload = b""
    for value in range(first, last):
        payload = receive()
        if len(payload) != size_bytes or payload[-1] != END or number_of(payload)[0] != value:
            complain(payload, value)
    if payload != pack(last - 1) + tail:
        complain(payload, last - 1)


def check_block_messages(
    receive: Callable[..., Any],
    first: int,
    last: int,
    size_bytes: int,
    tail: bytes,
    *,
    argument: float,
) -> None:
    """Do the same where messages come as objects with a payload.

    Twice the same loop, because a wrapper for those that give bytes would slow them by 5 %.
    """
    payload = b""
    for value in range(first, last):
        payload = receive(argument).payload
        if len(payload) != size_bytes or payload[-1] != END or number_of(payload)[0] != value:
            complain(payload, value)
    if payload != pack(last - 1) + tail:
        complain(payload, last - 1)


def check_batch(payloads: list[bytes], count: int, ring: list[bytes]) -> None:
    """Compare a list, cut anywhere, that follows `count` messages; `ring` is two of them."""
    at = count % RING_COUNT
    # A peer may return more than a ring at once; each part starts where the last one did.
    for start in range(0, len(payloads), RING_COUNT):
        part = payloads[start : start + RING_COUNT]
        if part != ring[at : at + len(part)]:
            raise CheckFailed(f"the messages after number {count + start} differ")


def check_stream(stream: Iterable[bytes], size_bytes: int, tail: bytes) -> int:
    """Check a finite stream of bytes from number 0 on; return how many came."""
    value = -1
    payload = b""
    for value, payload in enumerate(stream):
        if len(payload) != size_bytes or payload[-1] != END or number_of(payload)[0] != value:
            complain(payload, value)
    if value >= 0 and payload != pack(value) + tail:
        complain(payload, value)
    return value + 1


def check_stream_messages(stream: Iterable[Any], size_bytes: int, tail: bytes) -> int:
    """Do the same where messages come as objects with a payload."""
    value = -1
    payload = b""
    for value, message in enumerate(stream):
        payload = message.payload
        if len(payload) != size_bytes or payload[-1] != END or number_of(payload)[0] != value:
            complain(payload, value)
    if value >= 0 and payload != pack(value) + tail:
        complain(payload, value)
    return value + 1
