"""The header of a page: encoded, decoded, and compared with the expected page."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from pagequeue.system.directory import Directory

REMEDY = "repair or salvage the queue, or restore the file from a copy"
CODES: Final = {"|V8": "8s", "|V16": "16s", "<u2": "H", "<u4": "I", "<u8": "Q", "<i8": "q"}
LAYOUT: Final = struct.Struct("<" + "".join(CODES[part[1]] for part in fmt.PAGE_HEADER.descr))
"""For each page that is rolled into and read: NumPy takes several times as long for one record."""
HEADER_CHECKSUM_AT: Final = field_of(fmt.PAGE_HEADER, "checksum")
NO_CHECKSUM: Final = bytes(4)
STAGED: Final = "as it was staged"
"""The reason of an error for a page whose bulk commit did not reach the disk, but its name did."""


class PageHeader(NamedTuple):
    """The decoded header. `first_sequence` is None until producers roll into the page.

    `is_continued` tells that the next page has messages of the same bulk commit, of whose pages a
    power cut can take any: see `core/protocol/judge.c`.
    """

    page_number: int
    queue_id: bytes
    first_sequence: int | None
    floor_timestamp: int
    created: int
    is_compressed: bool = False
    is_continued: bool = False

    def encode(self) -> bytes:
        """Return the bytes at the beginning of the page."""
        first = fmt.UNSET_SEQUENCE if self.first_sequence is None else self.first_sequence
        fields = (
            self.page_number,
            self.queue_id,
            first,
            self.floor_timestamp,
            self.created,
        )
        magic = fmt.COMPRESSED_MAGIC if self.is_compressed else fmt.PAGE_MAGIC
        flags = fmt.COMMIT_CONTINUES if self.is_continued else 0
        checksum = _core.crc32c(LAYOUT.pack(magic, fmt.FORMAT_VERSION, flags, 0, *fields))
        return LAYOUT.pack(magic, fmt.FORMAT_VERSION, flags, checksum, *fields)


def bad_header(path: str, reason: str) -> errors.CorruptPage:
    """Return the error for a page header that is wrong."""
    return errors.CorruptPage(
        f"page header: {reason}", path=path, position=0, reason=reason, remedy=REMEDY
    )


def parse_header(data: bytes, path: str) -> PageHeader:
    """Return the header of any page of any queue.

    Raises:
        CorruptPage: it is not a page's header, or its checksum is wrong.
        NewerFormat: written by a newer version.
    """
    if len(data) < fmt.PAGE_HEADER_BYTES:
        raise bad_header(path, "too short")
    magic, version, flags, stated, number, queue_id, first, floor, created = LAYOUT.unpack_from(
        data
    )
    if magic not in {fmt.PAGE_MAGIC, fmt.COMPRESSED_MAGIC}:
        raise bad_header(path, "wrong magic")
    if version < fmt.FORMAT_VERSION:
        raise bad_header(path, "no format")
    if version > fmt.FORMAT_VERSION:
        raise errors.NewerFormat(
            f"written in format {version}, this is {fmt.FORMAT_VERSION}",
            path=path,
            version=version,
            remedy="upgrade pagequeue",
        )
    before, after = data[:HEADER_CHECKSUM_AT], data[HEADER_CHECKSUM_AT + 4 : LAYOUT.size]
    if _core.crc32c(before + NO_CHECKSUM + after) != stated:
        raise bad_header(path, "wrong checksum")
    if flags & ~fmt.COMMIT_CONTINUES:
        raise errors.NewerFormat(
            f"has flags {flags:#x}, of which this version knows {fmt.COMMIT_CONTINUES:#x} only",
            path=path,
            version=version,
            remedy="upgrade pagequeue",
        )
    if first > fmt.SEQUENCE_MAX and first != fmt.UNSET_SEQUENCE:
        raise bad_header(path, "first sequence")
    return PageHeader(
        number,
        queue_id,
        None if first == fmt.UNSET_SEQUENCE else first,
        floor,
        created,
        magic == fmt.COMPRESSED_MAGIC,
        bool(flags & fmt.COMMIT_CONTINUES),
    )


def decode_header(data: bytes, queue_id: bytes, page_number: int, path: str) -> PageHeader:
    """Return a page's header.

    Raises:
        CorruptPage: it is not this page of this queue.
        NewerFormat: written by a newer version.
    """
    header = parse_header(data, path)
    if header.queue_id != queue_id:
        is_staged = header.queue_id == fmt.staged_id(queue_id)
        raise bad_header(path, STAGED if is_staged else "a page of another queue")
    if header.page_number != page_number:
        raise bad_header(path, f"it is page {header.page_number}, not {page_number}")
    return header


def first_bytes(folder: Directory, name: str) -> bytes:
    """Return the bytes of a page's header; fewer, if the file is shorter."""
    with folder.opened(name, writable=False) as fd:
        try:
            return os.pread(fd, fmt.PAGE_HEADER_BYTES, 0)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")


def read_header(folder: Directory, prefix: str, queue_id: bytes, number: int) -> PageHeader:
    """Return a page's header, read without mapping the page.

    Raises:
        PageQueueError: it or its file is damaged, missing or inaccessible.
    """
    name = fmt.page_name(prefix, number)
    return decode_header(first_bytes(folder, name), queue_id, number, folder.full(name))


def inflated_bytes(folder: Directory, name: str) -> int:
    """Return the inflated size that a compressed page states; 0: its head is cut off."""
    with folder.opened(name, writable=False) as fd:
        try:
            data = os.pread(fd, fmt.COMPRESSED_HEAD_BYTES, fmt.PAGE_HEADER_BYTES)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")
    if len(data) < fmt.COMPRESSED_HEAD_BYTES:
        return 0
    return int(np.frombuffer(data, fmt.COMPRESSED_HEAD)[0]["page_bytes"])


CHECKSUM_AT: Final = field_of(fmt.FRAME, "checksum")
