"""Correct times that lie ahead of the clock, because it was wrong when messages were sent.

Every later message of such a queue has the time of the last one, until the clock is there. So the
times that are ahead become now: the messages are younger than that, and not older than their new
times say. Nothing else of them changes: order, sequences and batches stay.

1. Each page with such a time, oldest first, is written to a new file, which replaces the old one
   once it is on stable storage: first its index, then the page.
   Dies here: times still do not go back, because those of later pages are ahead of now; the next
   call does the rest.
2. The directory is synced, and only then the last timestamp is lowered: messages that are sent from
   here on get the time of the clock. Dies before: it is ahead, and the next call lowers it.
3. What consumers were seen at, and what is known of the clock.

Readers that have an old file mapped finish in it; it has the same messages.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import CursorMeta, cursor_names
from pagequeue.meta.manifest import read_manifest
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import Tail, WriteMeta
from pagequeue.page.compressed_format import inflated, is_compressed
from pagequeue.page.header import decode_header, read_header
from pagequeue.page.page import private_page, private_region, scan_region
from pagequeue.system.directory import read_all
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.text import grouped
from pagequeue.util.timestamps import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.header import PageHeader
    from pagequeue.system.directory import Directory

HEAD: Final = struct.Struct("<IIq")
"""A frame's length, checksum and timestamp."""
CHECKSUM_AT: Final = field_of(fmt.FRAME, "checksum")


def refuse_others(folder: Directory, prefix: str, *, is_journal: bool) -> None:
    """Raise for queues whose times are compared with those in other files.

    Raises:
        JournalOnly: it is a journal. UsageError: it is a copy that `ship` made.
    """
    if is_journal:
        raise errors.JournalOnly(
            "a journal's snapshots name the time of an entry, so times of entries must stay",
            path=folder.path,
            remedy="wait until the clock is there; only `Journal.at` and `info` show these times",
        )
    if read_manifest(folder, prefix) is not None:
        raise errors.UsageError(
            "a copy that ship() made, whose manifest has the checksums of its files",
            path=folder.path,
            remedy="correct the times of its queue, then ship that to a new directory",
        )


def correct_times(
    folder: Directory, prefix: str, meta: AllMeta, now: int, did: Callable[[str], object]
) -> None:
    """Lower what lies ahead of `now`; the caller has the queue exclusively, and recovered it.

    Raises:
        CorruptFrame, CorruptPage: a page is damaged.
        DiskFull: a page does not fit on the disk a second time.
    """
    write = WriteMeta(folder, prefix, meta.queue_id, writable=True)
    read = ReadMeta(folder, prefix, meta.queue_id, writable=False)
    try:
        tail, head_page = write.tail, read.head[0]
        count = _correct_pages(folder, prefix, meta, (head_page, tail), now)
        if tail.last_timestamp > now:
            _sync(folder)
            tail.last_timestamp = now
            write.tail = tail
        if count:
            did(f"set the times of {grouped(count, 'message')} that were ahead to {iso_time(now)}")
        _correct_cursors(folder, prefix, meta, now)
        write.forget_clock(after=now)
        write.sync()
    finally:
        write.close()
        read.close()


def _correct_pages(
    folder: Directory, prefix: str, meta: AllMeta, pages: tuple[int, Tail], now: int
) -> int:
    """Write the pages with times ahead of now again; return how many messages had one."""
    head_page, tail = pages
    first = tail.page_number
    if tail.last_timestamp <= now and first == head_page:
        return 0
    while first > head_page:  # from the one in which it begins
        floor = read_header(folder, prefix, meta.queue_id, first).floor_timestamp
        if floor <= now:
            break
        first -= 1
    return sum(
        _correct_page(folder, prefix, meta, number, now)
        for number in range(first, tail.page_number + 1)
    )


def _correct_page(folder: Directory, prefix: str, meta: AllMeta, number: int, now: int) -> int:
    name = fmt.page_name(prefix, number)
    path = folder.full(name)
    data = read_all(folder, name, meta.page_bytes)
    if is_compressed(data):
        data = inflated(data, path)
    header = decode_header(data[: fmt.PAGE_HEADER_BYTES], meta.queue_id, number, path)
    header = header._replace(is_compressed=False)
    page = bytearray(data)
    count = _lower(page, header, now)
    lowered = header._replace(floor_timestamp=min(header.floor_timestamp, now))
    if not count and lowered == header:
        return 0
    page[: fmt.PAGE_HEADER_BYTES] = lowered.encode()
    made = bytes(page)
    index = private_region(b"", meta.index_bytes)
    first = header.first_sequence
    assert first is not None
    scan_region(private_page(made, meta), index, lowered, first, None, use=_core.INDEX_WRITE)
    folder.make(
        fmt.index_name(prefix, number),
        index.read(0, len(index)),
        size_bytes=len(index),
        maker="again",
        synced=True,
    )
    folder.make(name, made, size_bytes=meta.page_bytes, maker="again", synced=True)
    return count


def _lower(page: bytearray, header: PageHeader, now: int) -> int:
    """Lower the times of the frames of a page; return how many messages had a later one."""
    position, sequence, count = fmt.PAGE_HEADER_BYTES, header.first_sequence or 0, 0
    while position + fmt.FRAME_HEADER_BYTES <= len(page):
        word, checksum, timestamp = HEAD.unpack_from(page, position)
        length = word & fmt.LENGTH_MASK
        end = position + length
        if word == 0 or length < fmt.FRAME_HEADER_BYTES or end > len(page):
            break  # the last frame; verify has checked all of them
        payload = page[position + fmt.FRAME_HEADER_BYTES : end]
        if _core.frame_checksum(header.queue_id, payload, timestamp, sequence, word) != checksum:
            break
        is_end = word & fmt.LARGE_MESSAGE == fmt.END_OF_PAGE
        if timestamp > now:
            made = _core.frame_checksum(header.queue_id, payload, now, sequence, word)
            HEAD.pack_into(page, position, word, made, now)
            count += not is_end
        if is_end:
            break
        sequence += 1
        position = -(-end // fmt.FRAME_ALIGN_BYTES) * fmt.FRAME_ALIGN_BYTES
    return count


def _correct_cursors(folder: Directory, prefix: str, meta: AllMeta, now: int) -> None:
    """Let no consumer seem to be active because of a time that is ahead."""
    for name in cursor_names(folder, prefix):
        with contextlib.suppress(*errors.NOT_RETRYABLE):  # repair reports a damaged one
            CursorMeta(folder, prefix, meta.queue_id, name, writable=True).seen_by(now)


def _sync(folder: Directory) -> None:
    try:
        folder.sync()
    except OSError as error:
        raise_typed(error, folder.path, "syncing the directory")
