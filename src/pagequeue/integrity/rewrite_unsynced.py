"""Going on after a failed sync: what may not be on the disk is written again, into new files.

A sync that failed is never tried again on the same file: the system may have dropped what it could
not write, keep showing it from memory, and report success the next time. But memory still has it.
So the active page is sealed, everything from the durable mark on is copied into new files, checked
frame by frame and synced, and only then takes the place of the old ones. Readers that have an old
file mapped finish in it; it has the same bytes.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_and_read_meta import sync_words
from pagequeue.page.compressed_format import inflated, is_compressed
from pagequeue.page.header import PageHeader, decode_header
from pagequeue.page.page import REASONS, private_page, private_region, scan_region
from pagequeue.send.producer import Producer
from pagequeue.system.directory import read_all
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.text import message_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Store

log = logging.getLogger("pagequeue")


def rewriter(store: Store) -> Callable[[], object]:
    """Return what goes on after a failed sync, without keeping the store alive."""
    known = weakref.ref(store)

    def rewrite() -> None:
        if (alive := known()) is not None:
            rewrite_undurable(alive)

    return rewrite


def rewrite_undurable(store: Store) -> range:
    """Put all that is published on stable storage through new files; the caller has the flush lock.

    Returns:
        The sequences that were at risk and are durable now.

    Raises:
        PageQueueError: it cannot be done now; the queue stays latched and nothing is worse.
    """
    write = store.write_meta
    first = write.durable_sequence
    begin = max(write.durable_page, store.read_meta.head_page)
    # 1. Seal the active page, so that nobody writes to any of these files again. The next page can
    #    have been made ready before the sync of the directory failed, and its name be dropped: such
    #    a page is sealed too, until one is made that no failed sync has seen.
    #    Dies here: a queue that is latched, with one page more, or some.
    with Producer(store) as producer:
        while True:
            number = store.tail.page_number + 1
            is_ready = store.folder.exists(fmt.page_name(store.prefix, number))
            producer.seal()
            if not is_ready:
                break
    tail = store.tail
    # 2. Each page into a new file, which takes the old one's name when it is on stable storage.
    #    Dies or cut in between: some pages are new, the mark is where it was.
    for number in range(begin, tail.page_number):
        _rewrite_page(store, number, store.first_sequence(number + 1))
    # 3. The new active page, all the names, and the head: retention can have moved it and failed to
    #    sync it, and the pages below it were not written again.
    _sync_file(store, fmt.page_name(store.prefix, tail.page_number))
    try:
        sync_words(store.folder, fmt.read_meta_name(store.prefix))
        store.folder.sync()
    except OSError as error:
        raise_typed(error, store.folder.path, "syncing the directory")
    # 4. The mark, and only then the latch.
    write.set_durable(tail.first_sequence, tail.page_number)
    _sync_file(store, fmt.write_meta_name(store.prefix))
    write.unlatch()
    write.wake()
    log.warning(
        "%s: %s at risk after a failed sync, written again to new files and on stable storage now",
        store.folder.path, message_range(first, tail.first_sequence),
    )  # fmt: skip
    return range(first, tail.first_sequence)


def _rewrite_page(store: Store, number: int, end_sequence: int) -> None:
    """Copy a sealed page into a new file, checked before it takes the old one's name."""
    name = fmt.page_name(store.prefix, number)
    path = store.folder.full(name)
    data = read_all(store.folder, name, store.meta.page_bytes)
    if is_compressed(data):  # its file was synced, but not its index; it becomes a plain page
        data = inflated(data, path)
    header = decode_header(data[: fmt.PAGE_HEADER_BYTES], store.meta.queue_id, number, path)
    index = private_region(b"", store.meta.index_bytes)
    _check(private_page(data, store.meta), index, header, end_sequence, path)
    # The index first: a sync of it may be what failed, and the mark is raised past it, too.
    store.folder.make(
        fmt.index_name(store.prefix, number),
        index.read(0, len(index)),
        size_bytes=len(index),
        maker="again",
        synced=True,
    )
    store.folder.make(name, data, size_bytes=store.meta.page_bytes, maker="again", synced=True)


def _check(
    region: _core.Region, index: _core.Region, header: PageHeader, end_sequence: int, path: str
) -> None:
    """Check a page's frames, and write its index."""
    first = header.first_sequence
    assert first is not None
    scan = scan_region(region, index, header, first, None, use=_core.INDEX_WRITE)
    if scan.stopped != _core.READ_END or scan.whole_sequence != end_sequence:
        reason = REASONS.get(scan.stopped, "it ends too early")
        raise errors.CorruptFrame(
            f"message {scan.sequence} at position {scan.position}: {reason}: what the failed sync "
            f"left is not all there, messages up to {end_sequence - 1} may be lost; "
            "salvage the queue",
            path=path, position=scan.position, sequence=scan.sequence, reason=reason,
        )  # fmt: skip


def _sync_file(store: Store, name: str) -> None:
    with store.folder.opened(name, writable=False) as fd:
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise_typed(error, store.folder.full(name), "syncing the file")
