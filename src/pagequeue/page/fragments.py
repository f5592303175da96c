"""Fragments of messages larger than a page: one in each of several pages, and how each is found.

The head of such a message is an ordinary frame, the only one of its page, and has the size of the
payload. A fragment follows the end-of-page mark of the head's page and of each page after it; the
mark itself says where the fragment belongs in the payload, and has a checksum for each of its
blocks. The pages between have no frames, so the message takes one sequence.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pagequeue import _core
from pagequeue import format as fmt

WRONG_BLOCK: Final = "the checksum of a block is wrong"
SUM_BYTES: Final = 4


class Head(NamedTuple):
    """What the head of a large message says: bytes of its payload, and of a block; fragments."""

    payload_bytes: int
    fragments: int
    block_bytes: int

    def encode(self) -> bytes:
        """Return the payload of the head's frame."""
        return np.array(self, fmt.LARGE_HEAD).tobytes()

    def has_right_count(self, page_bytes: int) -> bool:
        """Whether it states as many fragments as its payload has in pages of this size."""
        return self.fragments == fragment_count(page_bytes, self.payload_bytes)

    def extent(self, page_bytes: int, ordinal: int) -> tuple[int, int]:
        """Return offset and size of a fragment; each but the last one fills its page."""
        first, others = fragment_rooms(page_bytes)
        offset = first + (ordinal - 1) * others if ordinal else 0
        room = others if ordinal else first
        return offset, max(0, min(room, self.payload_bytes - offset))

    def ordinal_at(self, page_bytes: int, offset: int) -> int:
        """Return the ordinal of the fragment with a byte of the payload."""
        first, others = fragment_rooms(page_bytes)
        return 0 if offset < first else 1 + (offset - first) // others


class Fragment(NamedTuple):
    """A fragment in its page.

    Attributes:
        path: of the page's file.
        region: the map of the page.
        position: of its bytes in the page.
        mark_position: of the end-of-page mark that describes it.
        offset: of its bytes in the message.
        size: in bytes.
        checksums: of its blocks.
    """

    path: str
    region: _core.Region
    position: int
    mark_position: int
    offset: int
    size: int
    checksums: tuple[int, ...]

    @property
    def end(self) -> int:
        """The offset after it in the message."""
        return self.offset + self.size

    def forget(self) -> None:
        """Give back the memory that its page's map takes, if the file has the bytes as well."""
        if not self.region.writable:
            self.region.forget(0, len(self.region))

    def block_bytes(self, block: int) -> int:
        """Return the size of one of its blocks."""
        return min(fmt.FRAGMENT_BLOCK_BYTES, self.size - block * fmt.FRAGMENT_BLOCK_BYTES)


def block_count(size: int) -> int:
    """Return how many blocks a fragment of this size has."""
    return -(-size // fmt.FRAGMENT_BLOCK_BYTES)


def mark_bytes(blocks: int) -> int:
    """Return the bytes of an end-of-page mark that describes a fragment of so many blocks."""
    return fmt.frame_bytes(fmt.FRAGMENT.itemsize + SUM_BYTES * blocks)


def fragment_room(page_bytes: int, mark_position: int) -> int:
    """Return how many bytes fit after an end-of-page mark at a position; at most 0: none."""
    return page_bytes - mark_position - mark_bytes(block_count(page_bytes - mark_position))


def mark_position(*, is_head: bool) -> int:
    """Return the position of the end-of-page mark that describes a fragment."""
    head_bytes = fmt.frame_bytes(fmt.LARGE_HEAD.itemsize) if is_head else 0
    return fmt.PAGE_HEADER_BYTES + head_bytes


def fragment_rooms(page_bytes: int) -> tuple[int, int]:
    """Return how many bytes the first fragment of a message has, if it fills its page, and others.

    The page of the first one has the head as well.
    """
    return (
        fragment_room(page_bytes, mark_position(is_head=True)),
        fragment_room(page_bytes, mark_position(is_head=False)),
    )


def fragment_count(page_bytes: int, payload_bytes: int) -> int:
    """Return how many fragments a payload has."""
    first, others = fragment_rooms(page_bytes)
    return 1 + -(-max(0, payload_bytes - first) // others)


def decode_head(data: bytes) -> Head | None:
    """Return the head that a frame's payload describes; None: it is no such payload."""
    if len(data) != fmt.LARGE_HEAD.itemsize:
        return None
    head = Head(*map(int, np.frombuffer(data, fmt.LARGE_HEAD)[0].item()))
    good = (
        head.payload_bytes <= fmt.LARGE_BYTES_MAX
        and 1 <= head.fragments <= fmt.PAGE_NUMBER_MAX
        and head.block_bytes == fmt.FRAGMENT_BLOCK_BYTES
    )
    return head if good else None


def fragment_in(
    region: _core.Region, mark_position: int, end_sequence: int, path: str
) -> tuple[Fragment, int] | str:
    """Return the fragment that the mark at a position describes, and its ordinal.

    Args:
        region: the map of the page.
        mark_position: of its end-of-page mark.
        end_sequence: one past the sequence of the message.
        path: of the page, for its errors.

    Returns:
        the fragment; or why there is none.
    """
    found, _, payload_bytes, data_position = _core.peek(region, mark_position, end_sequence)
    if found != _core.READ_END:
        return "no valid end-of-page mark"
    record_bytes = fmt.FRAGMENT.itemsize
    if payload_bytes < record_bytes:
        return "no fragment after the end-of-page mark"
    data = region.read(mark_position + fmt.FRAME_HEADER_BYTES, payload_bytes)
    offset, size, ordinal = map(int, np.frombuffer(data, fmt.FRAGMENT, 1)[0].item())
    count = block_count(size)
    if size > len(region) - data_position or record_bytes + SUM_BYTES * count > payload_bytes:
        return "the size of the fragment is invalid"
    checksums = np.frombuffer(data, "<u4", count, record_bytes).tolist()
    return Fragment(
        path, region, data_position, mark_position, offset, size, tuple(checksums)
    ), ordinal


def bad_block(fragment: Fragment, memory: bytearray) -> int | None:
    """Return the position of the first block with a wrong checksum; None: all are right.

    Args:
        fragment: to check.
        memory: at least one block, which is overwritten.

    Raises:
        CorruptPage: the file was truncated.
    """
    for block, checksum in enumerate(fragment.checksums):
        size = fragment.block_bytes(block)
        position = fragment.position + block * fmt.FRAGMENT_BLOCK_BYTES
        if not _core.copy_checked(fragment.region, position, size, checksum, memory, 0):
            return position
    return None


def fragment_damage(
    region: _core.Region,
    mark_position: int,
    end_sequence: int,
    path: str,
    memory: bytearray | None = None,
) -> tuple[int, str] | None:
    """Return position and reason of the damage of a page's fragment.

    Args:
        region: the map of the page.
        mark_position: of its end-of-page mark.
        end_sequence: one past the sequence of the message.
        path: of the page.
        memory: at least one block, which is overwritten; by default memory of its own.

    Returns:
        None if the page has no fragment, or a whole one.
    """
    if not _core.peek(region, mark_position, end_sequence)[2]:
        return None
    found = fragment_in(region, mark_position, end_sequence, path)
    if isinstance(found, str):
        return mark_position, found
    bad = bad_block(found[0], memory or bytearray(fmt.FRAGMENT_BLOCK_BYTES))
    return None if bad is None else (bad, WRONG_BLOCK)


def content_end(
    region: _core.Region, mark_position: int, end_sequence: int, path: str
) -> int | None:
    """Return where the fragment after a page's end-of-page mark ends; None: there is none.

    Args:
        region: the map of the page.
        mark_position: of its end-of-page mark.
        end_sequence: one past the sequence of the message.
        path: of the page.
    """
    found = fragment_in(region, mark_position, end_sequence, path)
    return None if isinstance(found, str) else found[0].position + found[0].size


def head_in(region: _core.Region) -> Head | None:
    """Return the head of a large message at the beginning of a page; None: none is there."""
    at = fmt.PAGE_HEADER_BYTES
    word = region.load_half(at)
    if not fmt.is_large(word):
        return None
    size = (word & fmt.LENGTH_MASK) - fmt.FRAME_HEADER_BYTES
    if size != fmt.LARGE_HEAD.itemsize:
        return None
    return decode_head(region.read(at + fmt.FRAME_HEADER_BYTES, size))
