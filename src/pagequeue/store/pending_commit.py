"""The record of a bulk commit, and the recovery of an interrupted one.

Staged pages get their final names after the tail, where no reader looks for them; the end-of-page
marker before them makes all of them visible by one store (I19). A process that makes a page finds
the record of a publisher that died, because both need the preparation lock: if the marker is there
it completes the commit, otherwise it removes the pages. FORMAT.md has the steps M1 to M9.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.commit_record import read_publishing
from pagequeue.meta.ledger import is_entered, published_name, publishing_name
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import CHECKSUM_AT, REMEDY, read_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import BAD, REASONS, map_plain, scan_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.commit_record import Record
    from pagequeue.meta.write_meta import Tail, WriteMeta
    from pagequeue.system.directory import Directory

    CommitPages = Callable[[_core.Region, bytes, Tail], None]
    Sync = Callable[[], None]


def remove_pages(folder: Directory, prefix: str, pages: range, sync: Sync) -> None:
    """Remove pages that were not published, the newest first, and sync that.

    The next roll writes an end-of-page marker. A power cut that kept the marker and brought these
    names back would publish the pages after all.
    """
    for number in reversed(page_numbers(prefix, folder.names(), "idx")):
        if number in pages:
            folder.remove(fmt.page_name(prefix, number))
            folder.remove(fmt.index_name(prefix, number))
    sync()


def remove_again(folder: Directory, prefix: str, page_bytes: int, pages: range) -> None:
    """Remove again the names of removed pages, which the disk may still have.

    A failed sync can have dropped their removal, and the next one then succeeds without it. A name
    that is made and removed again is a change that the next sync writes.
    """
    if len(pages) * page_bytes > folder.space_bytes:
        return  # so many pages do not fit on the file system
    there = set(folder.names())
    for number in reversed(pages):
        for name in (fmt.page_name(prefix, number), fmt.index_name(prefix, number)):
            if name not in there:
                folder.remove_again(name)


def roll_back(folder: Directory, prefix: str, record: Record, sync: Sync) -> None:
    """Undo a commit that was not published; no reader has seen any of it."""
    remove_pages(folder, prefix, record.pages, sync)
    # Dies here, or could not sync: the same again, so the record goes last.
    folder.remove(publishing_name(prefix))


def write_down(folder: Directory, prefix: str, record: Record) -> None:
    """Write the entry of a published record (M9), unless another process did.

    Dies before: the next process that finds the record does it. After a power cut without the
    entry's name the record is there again, and the same is done.
    """
    if record.entry is None or is_entered(folder, prefix, record.entry, record.done["done"]):
        folder.remove(publishing_name(prefix))
        return
    try:
        folder.rename(publishing_name(prefix), published_name(prefix, record.entry))
    except errors.QueueNotFound:
        return


def resolve_pending(
    folder: Directory,
    prefix: str,
    meta: AllMeta,
    write: WriteMeta,
    commit: CommitPages | None,
    sync: Sync,
) -> None:
    """Complete or roll back a dead publisher's commit; the caller has the preparation lock.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: of the queue.
        write: the shared state of writers.
        commit: does M6 to M8; None: a commit that needs it raises.
        sync: puts names on stable storage.

    Raises:
        LockTimeout: the commit must be completed, and `commit` is None.
        CorruptMeta: the record is damaged. CorruptFrame: the frame at the marker's place is.
    """
    record = read_publishing(folder, prefix)
    if record is None:
        return
    tail = write.tail
    if tail.page_number < record.first_page:
        if not _is_marked(folder, prefix, meta, tail, record):
            if write.is_failed:  # perhaps by the sync of an earlier removal
                remove_again(folder, prefix, meta.page_bytes, record.pages)
            roll_back(folder, prefix, record, sync)
            return
        if commit is None:
            raise errors.LockTimeout(
                "the commit of a publisher that died must be completed first",
                path=folder.path,
                remedy="send a message, which completes it",
            )
        name = fmt.page_name(prefix, record.first_page)
        page = map_plain(folder, name, meta, writable=False)
        commit(page, page.read(0, fmt.PAGE_HEADER_BYTES), record.beyond)
    write_down(folder, prefix, record)


def resolve_in_recovery(
    folder: Directory,
    prefix: str,
    meta: AllMeta,
    tail: Tail,
    did: Callable[[str], None],
    sync: Sync,
) -> None:
    """Do the same in a recovery, which has set the tail from the frames and markers already."""
    try:
        record = read_publishing(folder, prefix)
    except errors.CorruptMeta:
        # Its pages would be taken for a user's. The markers were followed, so no page after the
        # tail was ever published.
        remove_pages(folder, prefix, _waiting(folder, prefix, meta, tail), sync)
        folder.remove(publishing_name(prefix))
        did(f"removed {publishing_name(prefix)}, which was damaged")
        return
    if record is None:
        return
    if tail.page_number >= record.first_page and not _is_another(folder, prefix, meta, record):
        write_down(folder, prefix, record)
        did("completed the commit of pages whose publisher died")
    else:
        waiting = range(tail.page_number + 1, record.beyond.page_number + 1)
        remove_again(folder, prefix, meta.page_bytes, waiting)
        remove_pages(folder, prefix, waiting, sync)
        folder.remove(publishing_name(prefix))
        did("removed pages whose publisher died before it published them")


def _is_marked(folder: Directory, prefix: str, meta: AllMeta, tail: Tail, record: Record) -> bool:
    """Whether the marker before the pages was written."""
    if tail.page_number != record.first_page - 1:
        return False
    name = fmt.page_name(prefix, tail.page_number)
    page = map_plain(folder, name, meta, writable=False)
    scan = scan_from(page, tail.first_sequence, tail.position, tail.sequence, 0)
    if scan.stopped in BAD:  # it could have been the marker: the pages are kept
        raise errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {REASONS[scan.stopped]}, where "
            "a publisher died",
            path=folder.full(name),
            position=scan.position,
            sequence=scan.sequence,
            reason=REASONS[scan.stopped],
            remedy=REMEDY,
        )
    return scan.stopped == _core.READ_END and scan.sequence == record.first_sequence


def _is_another(folder: Directory, prefix: str, meta: AllMeta, record: Record) -> bool:
    """Whether the first page is not that of the record, whose commit was rolled back.

    A power cut can bring the record back after that. A missing page was retired, and the directory
    synced before.
    """
    try:
        page = map_page(folder, fmt.page_name(prefix, record.first_page), meta)
    except (errors.QueueNotFound, errors.DamageError):
        return False
    return page.load_half(fmt.PAGE_HEADER_BYTES + CHECKSUM_AT) != record.first_checksum


def _waiting(folder: Directory, prefix: str, meta: AllMeta, tail: Tail) -> range:
    """Return the pages after the tail up to the last of this queue that has messages."""
    last = tail.page_number
    for number in page_numbers(prefix, folder.names()):
        if number > tail.page_number:
            with contextlib.suppress(errors.DamageError, errors.QueueNotFound):
                header = read_header(folder, prefix, meta.queue_id, number)
                if header.first_sequence is not None and header.first_sequence >= tail.sequence:
                    last = number
    return range(tail.page_number + 1, last + 1)
