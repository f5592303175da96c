"""Resume after a failed sync: rewrite everything that may not be on the disk to new files.

A failed sync is never retried on the same file: the system may have dropped dirty pages, still
serve them from memory, and report success the next time. But memory still has the data. So the
active page is sealed, everything from the durable mark on is copied into new files, checked frame
by frame and synced, and only then replaces the old files. Readers that have an old file mapped
finish in it; it has the same bytes.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.ledger import renew_records
from pagequeue.meta.meta_file import sync_state
from pagequeue.page.compressed_format import inflated, is_compressed
from pagequeue.page.fragments import fragment_damage
from pagequeue.page.header import PageHeader, decode_header
from pagequeue.page.page import REASONS, private_page, private_region, scan_region
from pagequeue.send.queue_end import QueueEnd
from pagequeue.system.directory import read_all
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.text import message_range

if TYPE_CHECKING:
    from pagequeue.store.store import Store

log: logging.Logger = logging.getLogger("pagequeue")
TRIES: Final = 5
"""Each fails only if another sync failed meanwhile."""


def rewrite_undurable(store: Store) -> range:
    """Make all published messages durable through new files; the caller has the flush lock.

    Returns:
        The sequences that were at risk and are durable now.

    Raises:
        PageQueueError: it failed; the queue stays latched, and a later call can succeed.
    """
    for _ in range(TRIES):
        if (done := _try_rewrite(store)) is not None:
            return done
    raise errors.SystemLimit(
        f"{TRIES} times, another sync failed while messages were written to new files",
        path=store.folder.path,
        remedy="repair the disk, then flush again",
    )


def _try_rewrite(store: Store) -> range | None:
    """Write them once; None: a sync of another process or thread failed meanwhile.

    That one can have dropped the new names, whose own sync then succeeds.
    """
    write = store.write_meta
    write.begin_renewal()
    first, durable_page = write.durable_sequence, write.durable_page
    # 1. Seal the active page, so that no producer writes to any of these files again. If the next
    #    page was prepared before the sync of the directory failed, its name can be lost: such a
    #    page is sealed too, until one is created that no failed sync concerns.
    #    Dies here: a latched queue with one or more additional pages.
    with QueueEnd(store) as end:
        while True:
            number = store.tail.page_number + 1
            is_ready = store.folder.exists(fmt.page_name(store.prefix, number))
            end._seal()  # noqa: SLF001 - no user's
            if not is_ready:
                break
    tail = store.tail
    # From here on no process moves the head: a trim looks at the latch under the preparation lock,
    # which making the new page took.
    begin = max(durable_page, store.read_meta.head_page)
    # 2. Copy each page, each entry of a writer and a batch's record to a new file, renamed over the
    #    old one once it is on stable storage.
    #    Dies or power is cut in between: some pages are new, the mark is unchanged.
    for number in range(begin, tail.page_number):
        _rewrite_page(store, number, store.first_sequence(number + 1))
    with store.roller.lock.exclusive(store.lock_timeout, "writing records again"):
        renew_records(store.folder, store.prefix)
    # 3. Sync the new active page, all names, and the head: retention can have moved the head
    #    without syncing it, and step 2 did not rewrite the pages below it.
    _sync_file(store, fmt.page_name(store.prefix, tail.page_number))
    try:
        sync_state(store.folder, fmt.read_meta_name(store.prefix))
        store.folder.sync()
    except OSError as error:
        raise_typed(error, store.folder.path, "syncing the directory")
    # 4. Raise the mark, and only then clear the latch: no process believes the mark before that.
    if not write.is_renewing:
        return None
    write.set_durable(tail.first_sequence, tail.page_number)
    _sync_file(store, fmt.write_meta_name(store.prefix))
    if not write.end_renewal():
        write.set_durable(first, durable_page)
        return None
    write.wake()
    log.warning(
        "%s: %s at risk after a failed sync, written again to new files and on stable storage now",
        store.folder.path,
        message_range(first, tail.first_sequence),
    )
    return range(first, tail.first_sequence)


def _rewrite_page(store: Store, number: int, end_sequence: int) -> None:
    """Copy a sealed page into a new file, checked before it replaces the old one."""
    name = fmt.page_name(store.prefix, number)
    path = store.folder.full(name)
    data = read_all(store.folder, name, store.meta.page_bytes)
    if is_compressed(data):  # its file was synced, but not its index; it becomes a plain page
        data = inflated(data, path)
    header = decode_header(data[: fmt.PAGE_HEADER_BYTES], store.meta.queue_id, number, path)
    index = private_region(b"", store.meta.index_bytes)
    head_sequence = store.head[1]
    _check(private_page(data, store.meta), index, header, end_sequence, head_sequence, path)
    # The index first: its sync may be the one that failed, and the mark covers it too.
    store.folder.make(
        fmt.index_name(store.prefix, number),
        index.read(0, len(index)),
        size_bytes=len(index),
        maker="again",
        synced=True,
    )
    store.folder.make(name, data, size_bytes=store.meta.page_bytes, maker="again", synced=True)


def _check(
    region: _core.Region,
    index: _core.Region,
    header: PageHeader,
    end_sequence: int,
    head_sequence: int,
    path: str,
) -> None:
    """Check a page's frames and its fragment, and write its index."""
    first = header.first_sequence
    assert first is not None
    scan = scan_region(region, index, header, first, None, use=_core.INDEX_WRITE)
    if scan.stopped != _core.READ_END or scan.whole_sequence != end_sequence:
        reason = REASONS.get(scan.stopped, "it ends too early")
        raise errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {reason}: messages up to "
            f"{end_sequence - 1} may have been lost by the failed sync",
            remedy="salvage the queue",
            path=path,
            position=scan.position,
            sequence=scan.sequence,
            reason=reason,
        )
    damage = fragment_damage(region, scan.position, scan.sequence, path)
    # Nobody reads the rest of a retired message, which an earlier power cut can have torn.
    if damage is not None and scan.sequence > head_sequence:
        position, reason = damage
        raise errors.CorruptFrame(
            f"the fragment of message {scan.sequence - 1} at position {position}: {reason}: it may "
            "have been lost by the failed sync",
            remedy="salvage the queue",
            path=path,
            position=position,
            sequence=scan.sequence - 1,
            reason=reason,
        )


def _sync_file(store: Store, name: str) -> None:
    with store.folder.opened(name, writable=False) as fd:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise_typed(error, store.folder.full(name), "syncing the file")
