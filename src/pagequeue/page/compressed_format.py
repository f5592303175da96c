"""The bytes of a compressed page: its head is decoded and checked, its blocks are inflated.

The file has the page's own name. It begins with the front: the page header (with another magic),
the head and one record for each block. The blocks' bytes follow, then a copy of the front and its
size. A block is a run of whole frames, so any block can be inflated without the others. The
positions of blocks follow from their sizes, so they cannot overlap, and the sizes must add up to
the file's. The records say which frame each block begins with, and when that was sent: they are all
the index that a compressed page has.

The module is independent of maps and queues; other readers of the files can use it alone.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page import zstd
from pagequeue.page.header import REMEDY, PageHeader, parse_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HEAD_AT: Final = fmt.PAGE_HEADER_BYTES
BLOCKS_AT: Final = HEAD_AT + fmt.COMPRESSED_HEAD_BYTES
HEAD_REASON: Final = "compressed head"
BLOCK_REASON: Final = "compressed block"
"""How the reasons of such damage begin."""


@dataclass(frozen=True)
class Block:
    """One run of whole frames.

    Attributes:
        offset: of its bytes in the file.
        stored_bytes: in the file.
        position: in the page, of its first frame.
        end: in the page, one past its last frame.
        ordinal: of its first frame in the page.
        checksum: CRC-32C of its bytes in the file.
        timestamp: of its first frame; 0: the page has no message.
    """

    offset: int
    stored_bytes: int
    position: int
    end: int
    ordinal: int
    checksum: int
    timestamp: int


class Head:
    """The decoded head of a compressed page, checked for contradictions.

    Attributes:
        header: the page's own.
        page_bytes: of the page when it is inflated.
        used_bytes: of it; the rest was zeros.
        file_bytes: of the file.
        end_sequence: one past the page's last message.
        first_timestamp: of its first message; None: it has no message.
        last_timestamp: of its last message; None: it has no message.
        head_bytes: of page header, head and blocks' records.
        blocks: in their order.
        positions: where each begins in the page.
        timestamps: of the first frame of each.
    """

    def __init__(
        self, header: PageHeader, record: np.void, blocks: NDArray[np.void], path: str
    ) -> None:
        self.path = path
        self.header = header
        self.page_bytes: int = int(record["page_bytes"])
        self.used_bytes: int = int(record["used_bytes"])
        self.file_bytes: int = int(record["file_bytes"])
        self.end_sequence: int = int(record["end_sequence"])
        has_messages = self.end_sequence != header.first_sequence
        self.first_timestamp: int | None = int(record["first_timestamp"]) if has_messages else None
        self.last_timestamp: int | None = int(record["last_timestamp"]) if has_messages else None
        self.head_bytes: int = BLOCKS_AT + len(blocks) * fmt.COMPRESSED_BLOCK_BYTES
        stored = blocks["stored_bytes"].tolist()
        self.positions: list[int] = blocks["position"].tolist()
        self._ordinals: list[int] = blocks["ordinal"].tolist()
        offsets = accumulate(stored, initial=self.head_bytes)
        ends = [*self.positions[1:], self.used_bytes]
        checksums = blocks["checksum"].tolist()
        self.timestamps: list[int] = blocks["timestamp"].tolist()
        places = zip(offsets, stored, self.positions, ends, strict=False)
        frames = zip(self._ordinals, checksums, self.timestamps, strict=True)
        self.blocks: list[Block] = [
            Block(*place, *frame) for place, frame in zip(places, frames, strict=False)
        ]
        self._check()

    def _check(self) -> None:
        """Raise if the fields contradict each other."""
        first = self.header.first_sequence
        last = self.blocks[-1] if self.blocks else None
        if first is None or last is None:
            raise bad_head(self.path, "no messages and no end")
        count = self.end_sequence - first
        good = (
            fmt.PAGE_BYTES_MIN <= self.page_bytes <= fmt.PAGE_BYTES_MAX
            and self.page_bytes % fmt.PAGE_BYTES_STEP == 0
            and self.used_bytes <= self.page_bytes
            and self.file_bytes <= self.page_bytes
            and 0 <= count <= fmt.index_capacity(self.page_bytes)
            and self.end_sequence <= fmt.SEQUENCE_MAX
            and self.positions[0] == fmt.PAGE_HEADER_BYTES
            and self._ordinals[0] == 0
            and _rises(self.positions, fmt.FRAME_HEADER_BYTES)
            and _rises(self._ordinals, 1)
            and not any(position % fmt.FRAME_ALIGN_BYTES for position in self.positions)
            and last.end - last.position >= fmt.FRAME_HEADER_BYTES
            and last.end % fmt.FRAME_ALIGN_BYTES == 0
            and last.ordinal <= max(count - 1, 0)
            and self.timestamps[0] == (self.first_timestamp or 0)
            and _rises([*self.timestamps, self.last_timestamp or 0], 0)
        )
        if not good:
            raise bad_head(self.path, "its blocks are invalid")
        needed = last.offset + last.stored_bytes + self.head_bytes + fmt.COMPRESSED_END_BYTES
        if needed != self.file_bytes:
            raise bad_head(self.path, f"its blocks need {needed} bytes, not {self.file_bytes}")

    @property
    def count(self) -> int:
        """The number of messages in the page."""
        return self.end_sequence - (self.header.first_sequence or 0)

    def block_at(self, position: int) -> int:
        """Return the number of the block that holds a position of the page."""
        return max(0, bisect_right(self.positions, position) - 1)

    def block_of(self, ordinal: int) -> int:
        """Return the number of the block that holds a frame of the page."""
        return max(0, bisect_right(self._ordinals, ordinal) - 1)

    def ordinals_of(self, number: int) -> tuple[int, int]:
        """Return the ordinals of a block's first frame, and of the first one after it."""
        after = self._ordinals[number + 1] if number + 1 < len(self.blocks) else self.count
        return self._ordinals[number], after

    def plain_header(self) -> bytes:
        """Return the header of the inflated page."""
        return self.header._replace(is_compressed=False).encode()

    def inflate(self, block: Block, stored: bytes) -> bytes:
        """Return the frames of a block, inflated.

        Raises:
            CorruptFrame: its bytes are damaged; carries the position in the file and the first
                message of the block.
            MissingExtra: the extra `zstd` is not installed.
        """
        try:
            if len(stored) != block.stored_bytes or _core.crc32c(stored) != block.checksum:
                raise zstd.BadBlock("wrong checksum")  # noqa: TRY301 - one place for both
            return zstd.inflate(stored, block.end - block.position, self.path)
        except zstd.BadBlock as error:
            raise self.damage(block, str(error)) from error

    def damage(self, block: Block, reason: str) -> errors.CorruptFrame:
        """Return the error for a damaged block."""
        sequence = (self.header.first_sequence or 0) + block.ordinal
        reason = f"{BLOCK_REASON}: {reason}"
        return errors.CorruptFrame(
            f"message {sequence} and those after it, in the bytes from {block.offset} on: {reason}",
            path=self.path,
            position=block.offset,
            sequence=sequence,
            reason=reason,
            remedy=REMEDY,
        )

    def contradiction(self, block: Block) -> errors.CorruptFrame:
        """Return the error for a block whose frames are not those of which the head tells."""
        return self.damage(block, "its frames are not those that the head states")


def _rises(numbers: Sequence[int], least: int) -> bool:
    return all(after - before >= least for before, after in pairwise(numbers))


def bad_head(path: str, reason: str, position: int = HEAD_AT) -> errors.CorruptPage:
    """Return the error for a compressed page with an invalid head."""
    reason = f"{HEAD_REASON}: {reason}"
    return errors.CorruptPage(reason, path=path, position=position, reason=reason, remedy=REMEDY)


def read_at(fd: int, size: int, at: int) -> bytes:
    """Return bytes of a file, as many as there are; the error is the system's own."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, at)):
        parts.append(part)
        size, at = size - len(part), at + len(part)
    return b"".join(parts)


def is_compressed(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is a compressed page."""
    return data[:8] == fmt.COMPRESSED_MAGIC


# --- the head -------------------------------------------------------------------------------------


def front_bytes(data: bytes, path: str) -> int:
    """Return the size of a front, given its first `BLOCKS_AT` bytes.

    Raises:
        CorruptPage: its number of blocks is invalid.
    """
    if len(data) < BLOCKS_AT:
        raise bad_head(path, "too short")
    record = np.frombuffer(data, fmt.COMPRESSED_HEAD, 1, HEAD_AT)[0]
    count = int(record["block_count"])
    if not 1 <= count <= fmt.PAGE_BYTES_MAX // fmt.FRAME_HEADER_BYTES:
        raise bad_head(path, f"invalid number of blocks: {count}")
    return BLOCKS_AT + count * fmt.COMPRESSED_BLOCK_BYTES


def parse_front(data: bytes, file_bytes: int | None, path: str) -> Head:
    """Return the decoded front of a compressed page.

    Args:
        data: the whole front; more bytes can follow.
        file_bytes: of the file; None: not compared.
        path: for errors.

    Raises:
        CorruptPage: it is damaged, or contradicts itself.
        NewerFormat: written by a newer version, or with another method.
    """
    header = parse_header(data, path)
    if not header.is_compressed:
        raise bad_head(path, "not a compressed page", 0)
    size = front_bytes(data, path)
    if len(data) < size:
        raise bad_head(path, "cut off")
    fixed = np.frombuffer(data, fmt.COMPRESSED_HEAD, 1, HEAD_AT).copy()
    stated = int(fixed[0]["checksum"])
    fixed["checksum"] = 0
    if _core.crc32c(data[:HEAD_AT] + fixed.tobytes() + data[BLOCKS_AT:size]) != stated:
        raise bad_head(path, "wrong checksum")
    record = fixed[0]
    if int(record["method"]) != fmt.METHOD_ZSTD:
        raise errors.NewerFormat(
            f"compressed by method {record['method']}, this version knows {fmt.METHOD_ZSTD}",
            path=path,
            version=header_version(data),
            remedy="upgrade pagequeue",
        )
    count = int(record["block_count"])
    blocks = np.frombuffer(data, fmt.COMPRESSED_BLOCK, count, BLOCKS_AT)
    head = Head(header, record, blocks, path)
    if file_bytes is not None and head.file_bytes != file_bytes:
        reason = f"the file has {file_bytes} bytes, its head states {head.file_bytes}"
        raise bad_head(path, reason, min(head.file_bytes, file_bytes))
    return head


def header_version(data: bytes) -> int:
    """Return the format version in a page header."""
    return int(np.frombuffer(data, fmt.PAGE_HEADER, 1)[0]["version"])


def encode_front(
    header: PageHeader,
    blocks: Sequence[tuple[int, int, int, int, int]],
    *,
    page_bytes: int,
    used_bytes: int,
    end_sequence: int,
    first_timestamp: int,
    last_timestamp: int,
) -> bytes:
    """Return the front of a compressed page.

    Args:
        header: the page's own.
        blocks: stored bytes, position, ordinal, checksum and timestamp of each.
        page_bytes: of the page.
        used_bytes: of it.
        end_sequence: one past its last message.
        first_timestamp: of its first message; 0: it has no message.
        last_timestamp: of its last one.
    """
    records = np.array(list(blocks), fmt.COMPRESSED_BLOCK)
    head_bytes = BLOCKS_AT + records.nbytes
    stored = int(records["stored_bytes"].sum(dtype=np.int64))
    fixed = np.zeros(1, fmt.COMPRESSED_HEAD)
    fixed["page_bytes"] = page_bytes
    fixed["used_bytes"] = used_bytes
    fixed["file_bytes"] = 2 * head_bytes + stored + fmt.COMPRESSED_END_BYTES
    fixed["end_sequence"] = end_sequence
    fixed["first_timestamp"] = first_timestamp
    fixed["last_timestamp"] = last_timestamp
    fixed["block_count"] = len(records)
    fixed["method"] = fmt.METHOD_ZSTD
    front = header._replace(is_compressed=True).encode()
    fixed["checksum"] = _core.crc32c(front + fixed.tobytes() + records.tobytes())
    return front + fixed.tobytes() + records.tobytes()


def encode_end(head_bytes: int) -> bytes:
    """Return the last bytes of a compressed page, which state the size of its second front."""
    record = np.zeros(1, fmt.COMPRESSED_END)
    record["magic"] = np.void(fmt.COMPRESSED_MAGIC)
    record["head_bytes"] = head_bytes
    record["checksum"] = _core.crc32c(record.tobytes()[:12])
    return record.tobytes()


def parse_end(data: bytes) -> int:
    """Return the size of the front that the last bytes of a file state; 0: they are invalid."""
    if len(data) != fmt.COMPRESSED_END_BYTES:
        return 0
    head_bytes = int(np.frombuffer(data, fmt.COMPRESSED_END)[0]["head_bytes"])
    return head_bytes if data == encode_end(head_bytes) else 0


def second_front(data: bytes, path: str) -> bytes | None:
    """Return the second front of a whole file, if it and the end bytes are valid."""
    size = fmt.COMPRESSED_END_BYTES
    head_bytes = parse_end(data[-size:])
    if not BLOCKS_AT < head_bytes < len(data) - size:
        return None
    front = data[len(data) - size - head_bytes : len(data) - size]
    try:
        parse_front(front, len(data), path)
    except (errors.DamageError, errors.UpgradeError):
        return None
    return front


def repaired_fronts(data: bytes, path: str) -> bytes | None:
    """Return a whole file with both fronts, if one of them is damaged and the other is valid.

    A file that is too long is truncated. None: both are intact, or neither is valid.
    """
    front, end = None, len(data)
    if is_compressed(data):
        with contextlib.suppress(errors.DamageError, errors.UpgradeError):
            size = front_bytes(data, path)
            end = parse_front(data[:size], None, path).file_bytes
            front = data[:size]
    if front is None:
        front = second_front(data, path)
    if front is None or end > len(data):
        return None
    blocks_end = end - len(front) - fmt.COMPRESSED_END_BYTES
    whole = front + data[len(front) : blocks_end] + front + encode_end(len(front))
    return None if whole == data else whole


# --- a whole page ---------------------------------------------------------------------------------


def inflated(data: bytes, path: str = "memory") -> bytes:
    """Return the inflated page, given the bytes of a compressed page's file.

    Raises:
        CorruptPage, CorruptFrame: the file is damaged.
        NewerFormat: written by a newer version.
        MissingExtra: the extra `zstd` is not installed.
    """
    head = parse_front(data[: front_bytes(data, path)], len(data), path)
    page = bytearray(head.page_bytes)
    page[: fmt.PAGE_HEADER_BYTES] = head.plain_header()
    for block in head.blocks:
        stored = data[block.offset : block.offset + block.stored_bytes]
        page[block.position : block.end] = head.inflate(block, stored)
    return bytes(page)
