"""Prepares the next page ahead of need, and keeps the writable maps of pages.

The process that needs a page first makes it under the preparation lock, off the writer's path if
there is time: blocks reserved, page faults taken a few MiB ahead of the tail. It has its final name
before any end-of-page marker leads to it (I10). Rolling itself is one call into the core, under the
writers' lock.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.ledger import publishing_name
from pagequeue.meta.meta_file import field_of
from pagequeue.page.compressed_format import is_compressed
from pagequeue.page.header import PageHeader, decode_header, first_bytes, parse_header
from pagequeue.page.page import (
    GROWS_FROM,
    WritablePage,
    make_page,
    map_plain,
    renamed_page,
    writable_index,
)
from pagequeue.page.ring_maps import are_pages_kept
from pagequeue.page.spare import drop_spare, has_spare
from pagequeue.store.pending_commit import resolve_pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.read_meta import ReadMeta
    from pagequeue.meta.write_meta import WriteMeta
    from pagequeue.store.pending_commit import CommitPages
    from pagequeue.system.directory import Directory
    from pagequeue.system.file_lock import FileLock
    from pagequeue.util.worker import Background

log: logging.Logger = logging.getLogger("pagequeue")
FIRST_SEQUENCE_AT: Final = field_of(fmt.PAGE_HEADER, "first_sequence")


class Roller:
    """Maps pages for writers, and makes the next one.

    Attributes:
        lock: the preparation lock: pages are made, retired and promised to consumers one at a time.
    """

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        meta: AllMeta,
        write_meta: WriteMeta,
        read_meta: ReadMeta,
        lock: FileLock,
        background: Background,
        clock: Callable[[], int],
        lock_timeout: float,
        sync_removals: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._meta = meta
        self._write_meta = write_meta
        self._read_meta = read_meta
        self.lock = lock
        self._background = background
        self._clock = clock
        self._lock_timeout = lock_timeout
        self._sync_removals = sync_removals
        self._pages: dict[int, WritablePage] = {}  # the active one, and the next if it is there
        self._left: dict[int, WritablePage] = {}  # of a ring: those before it, to be used again
        self._is_ring = meta.is_ring
        self._asked = 0
        self._is_fast = False  # whether all memory of a page is wanted at once
        self._guard = threading.RLock()  # a finalizer may come back in
        _rollers.add(self)

    def page(self, number: int) -> WritablePage:
        """Return the active page."""
        with self._guard:
            page = self._pages.get(number)
        if page is None:
            with self._folder.descriptor:  # until it is kept, where closing finds it
                page = self._keep(self._map(number))
        return page

    def forget_before(self, number: int) -> None:
        """Forget the pages before this one."""
        with self._guard:
            left = [self._pages.pop(key) for key in list(self._pages) if key < number]
            old: list[object] = [page for page in left if not page.region.is_renewable]
            self._left |= {page.number: page for page in left if page.region.is_renewable}
            head_page = self._read_meta.head_page
            old += [self._left.pop(key) for key in list(self._left) if key < head_page - 1]
        if old:
            self._background.drop(old)

    def made(self, number: int) -> WritablePage | None:
        """Return a page that this process has mapped; None: it has not, or it was truncated."""
        with self._guard:
            page = self._pages.get(number)
            if page is not None and page.region.broken:
                # While it was still empty: another one replaces it.
                page = None
                del self._pages[number]
        return page

    def can_renew(self, number: int) -> bool:
        """Whether a retired page of a ring is mapped here, so that the next one can use it."""
        return number in self._left

    def first_to_renew(self, head_page: int) -> int | None:
        """Return the first sequence after a ring's head page, if that could be used again here.

        None: this page, or the one after it, is not mapped here.
        """
        with self._guard:
            page = self._left.get(head_page)
            after = self._left.get(head_page + 1) or self._pages.get(head_page + 1)
        if page is None or after is None or page.region.broken or after.region.broken:
            return None
        return after.region.load(FIRST_SEQUENCE_AT)

    def is_there(self, number: int) -> bool:
        """Whether a page has a file, or a bulk commit is pending, which can make it."""
        page, pending = fmt.page_name(self._prefix, number), publishing_name(self._prefix)
        return self._folder.exists(page) or self._folder.exists(pending)

    def renew(self, number: int, head_page: int, head_sequence: int) -> WritablePage | None:
        """Make the next page of a ring of the one before the head (X1 to X5).

        The caller has the preparation lock.

        Returns:
            None if that is not mapped here, or another process or thread has it open.
        """
        with self._guard:
            page = self._left.pop(head_page - 1, None)
        if page is None or page.region.broken or page.index.broken:
            return None
        header = PageHeader(number, self._meta.queue_id, None, 0, self._clock())
        count = head_sequence - page.region.load(FIRST_SEQUENCE_AT)
        old, new = self._names(page.number), self._names(number)
        used = (count + 1) * fmt.INDEX_RECORD_BYTES
        data = header.encode()
        if not self._folder.renew(page.region, page.index, old, new, data, used):
            return None
        return self._keep(renamed_page(self._folder, self._prefix, page, number, data))

    def _names(self, number: int) -> tuple[str, str]:
        return fmt.page_name(self._prefix, number), fmt.index_name(self._prefix, number)

    def next_page(self, number: int, commit: CommitPages | None = None) -> WritablePage:
        """Return a page that may not exist yet, and for which there is room.

        Args:
            number: of the page.
            commit: completes the bulk commit of a publisher that died.

        Raises:
            DiskFull: the disk is full. LockTimeout: another process holds the preparation lock.
            LockReplaced: the lock file was replaced since the queue was opened.
        """
        with self._folder.descriptor:
            page = self.made(number)
            if page is None:  # its makers check
                return self._keep(self._make(number, 0, 1.0, commit))
            self._folder.check()
            return page

    def _keep(self, page: WritablePage) -> WritablePage:
        """Share a page with the other threads; the first one mapped is the one that counts."""
        with self._guard:
            return self._pages.setdefault(page.number, page)

    def prepare(
        self,
        number: int,
        make_room: Callable[[], object] | None = None,
        *,
        reach: int,
        filled_bytes: int,
        frame_bytes: float,
    ) -> None:
        """Prepare a page in the background; errors are raised when the page is needed.

        Args:
            number: of the page.
            make_room: makes room for it, or raises; called first, in the background. None: there
                is room.
            reach: bytes whose page faults are taken at once.
            filled_bytes: bytes whose memory is allocated at once.
            frame_bytes: mean size of frames so far.
        """
        if self._is_ring:
            return
        with self._guard:
            if number <= self._asked:
                return
            self._asked = number
            self._is_fast = filled_bytes >= self._meta.page_bytes

        def job() -> None:
            with self._folder.descriptor:
                if make_room is not None:
                    make_room()
                page = self._keep(self._make(number, filled_bytes, frame_bytes))
            end = min(reach, len(page.region))
            if page.plan_faults(0, end) < end:
                # Later: a producer can roll into it before.
                self._background.submit(partial(page.populate, 0, end, frame_bytes))

        self._background.submit(job)

    def take(self, number: int) -> bool:
        """Map the next page if it is there already; the caller has the preparation lock."""
        if not self._folder.exists(fmt.page_name(self._prefix, number)):
            return False
        page = self._mapped(number)
        self._refuse_used(page)
        self._keep(page)
        return True

    def header(self, page: WritablePage) -> bytes:
        """Return the header of a next page, without the fields that the roll sets."""
        if page.header is not None:
            return page.header
        data = page.region.read(0, fmt.PAGE_HEADER_BYTES)
        path = self._folder.full(fmt.page_name(self._prefix, page.number))
        try:
            decode_header(data, self._meta.queue_id, page.number, path)
        except errors.CorruptPage:  # a producer was killed while it wrote it
            return PageHeader(page.number, self._meta.queue_id, None, 0, self._clock()).encode()
        return data

    def _map(self, number: int) -> WritablePage:
        page = self._mapped(number)
        path = self._folder.full(fmt.page_name(self._prefix, number))
        data = page.region.read(0, fmt.PAGE_HEADER_BYTES)
        decode_header(data, self._meta.queue_id, number, path)
        return page

    def _mapped(self, number: int) -> WritablePage:
        name = fmt.page_name(self._prefix, number)
        whole = self._meta.page_bytes <= GROWS_FROM
        region = map_plain(self._folder, name, self._meta, writable=True, reserved=whole)
        index = writable_index(self._folder, self._prefix, self._meta, number, reserved=whole)
        if number < self._read_meta.head_page and not self._folder.exists(name):
            # Retired between the two: its index was created again, and nothing else removes it.
            self._folder.remove(fmt.index_name(self._prefix, number))
            raise errors.QueueNotFound(
                "this page was retired meanwhile", path=self._folder.full(name), remedy="call again"
            )
        return WritablePage(self._folder, self._prefix, number, region, index)

    def _make(
        self, number: int, filled_bytes: int, frame_bytes: float, commit: CommitPages | None = None
    ) -> WritablePage:
        if number > fmt.PAGE_NUMBER_MAX:
            raise errors.SequencesExhausted(
                "no page number is left", path=self._folder.path, remedy="start a new queue"
            )
        with self.lock.exclusive(self._lock_timeout, "making the next page"):
            self._folder.check()
            known = self._pages.get(number)
            if known is not None and not known.region.broken:
                return known  # another thread made it meanwhile
            if self._folder.exists(publishing_name(self._prefix)):  # its publisher died (M4)
                resolve_pending(
                    self._folder,
                    self._prefix,
                    self._meta,
                    self._write_meta,
                    commit,
                    self._sync_removals,
                )
            if number > self._write_meta.tail.page_number:
                if self._folder.exists(fmt.page_name(self._prefix, number)):
                    # Its contents do not matter, unless they are messages: the roll writes the
                    # header. It must not be recreated: another process can have mapped it and roll
                    # into it.
                    page = None
                    try:
                        page = self._mapped(number)
                    except errors.CorruptPage as error:
                        name = fmt.page_name(self._prefix, number)
                        if is_compressed(first_bytes(self._folder, name)):
                            raise  # it has messages: a foreign file
                        log.warning("%s; it was empty and is recreated", error)
                    if page is not None:
                        self._refuse_used(page)
                        return page
                return self._keep(self._new(number, filled_bytes, frame_bytes))
        return self._mapped(number)

    def make_held(self, number: int) -> None:
        """Make the next page, which does not exist; the caller has the preparation lock."""
        self._keep(self._new(number, 0, 1.0))

    def _new(self, number: int, filled_bytes: int, frame_bytes: float) -> WritablePage:
        header = PageHeader(number, self._meta.queue_id, None, 0, self._clock())
        if self._is_ring:
            return self.renew(number, *self._read_meta.head) or self._fresh(header)
        # A spare pays off where all memory of the page is needed at once; for a slow producer its
        # zeros would only be written to the disk.
        may_reuse = self._is_fast
        if not may_reuse and has_spare(self._folder, self._prefix):
            self._background.submit(partial(drop_spare, self._folder, self._prefix))
        return make_page(
            self._folder,
            self._prefix,
            self._meta,
            header,
            filled_bytes=filled_bytes,
            frame_bytes=frame_bytes,
            may_reuse=may_reuse,
            may_grow=not may_reuse,
        )

    def _fresh(self, header: PageHeader) -> WritablePage:
        """Make a new page of a ring, whose memory will be used again and again."""
        page_bytes = self._meta.page_bytes
        page = make_page(
            self._folder,
            self._prefix,
            self._meta,
            header,
            filled_bytes=page_bytes,
            frame_bytes=page_bytes,
            kept=are_pages_kept(self._meta),
        )
        page.populate(page.plan_faults(0, page_bytes), page_bytes, page_bytes)
        return page

    def _refuse_used(self, page: WritablePage) -> None:
        """Raise if the prepared next page has messages: a foreign file.

        Raises:
            CorruptPage: it has; it was not written to.
        """
        name = fmt.page_name(self._prefix, page.number)
        path = self._folder.full(name)
        try:
            header = parse_header(page.region.read(0, fmt.PAGE_HEADER_BYTES), path)
        except errors.CorruptPage:
            return  # a producer was killed while it wrote it
        first = header.first_sequence
        if (
            first is not None
            and _core.peek(page.region, fmt.PAGE_HEADER_BYTES, first)[0] == _core.READ_FRAME
            and page.number > self._write_meta.tail.page_number  # no producer rolled into it
        ):
            raise errors.CorruptPage(
                f"this page comes next, and it has messages, from {first} on, as page "
                f"{header.page_number}",
                path=path,
                position=0,
                reason="it has messages already",
                remedy="repair the queue, or move the file away",
            )

    def close(self) -> None:
        """Release the maps."""
        with self._guard:
            self._pages.clear()
            self._left.clear()

    def leave_to_parent(self) -> None:
        """Drop the maps that a fork copied: they would keep the blocks of removed files."""
        self._pages, self._left = {}, {}


_rollers: weakref.WeakSet[Roller] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for roller in list(_rollers):
        roller.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
