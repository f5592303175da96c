"""Shipping: a replica of the sealed pages in another directory, readable as a queue.

A sealed page never changes, so a copy is equivalent to the page. The steps, for one shipper at a
time:

H1. Sync the directory, so that the current manifest survives a power cut; lower the write meta to
    its end where an earlier shipper copied more, and remove files that the manifest does not name.
    The first time, write a manifest without pages, which marks the directory as a replica.
H2. Copy a durable page to a temporary name, compute its checksum, and sync the copy.
H3. Read the copy again and compare the checksum; check every frame in it, and write its index.
H4. Rename both. After some pages, and after the last: sync the directory, then replace the meta
    files, then the manifest, by one rename (I20). It names all pages of a large message or none.
    The first time, write allMeta last: processes recognize a queue by it.

Dies anywhere before H4's manifest: files that no reader opens, which the next shipper removes.
Power is cut there: the same, or the new manifest, and then all that it names is on stable storage.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.maintenance.ship_target import TEMPORARY, Target
from pagequeue.meta.manifest import REMEDY, ShippedPage
from pagequeue.page.compressed_page import map_page
from pagequeue.page.fragments import fragment_damage, head_in
from pagequeue.page.header import REMEDY as DAMAGE_REMEDY
from pagequeue.page.header import decode_header
from pagequeue.page.page import REASONS, Scan, private_region, scan_region
from pagequeue.receive.named_consumer import NamedConsumer, open_consumer
from pagequeue.store.options import check_consumer_name
from pagequeue.system.directory import FILE_MODE
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.arguments import absolute_path
from pagequeue.util.text import message_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Store

PIECE_BYTES: Final = 1 << 20
NOTED_BYTES: Final = 256 << 20
"""Bytes between two updates of the manifest: a killed shipper repeats no more than that, and the
pages of one large message."""


@dataclass(frozen=True)
class ShipReport:
    """The result of shipping.

    Attributes:
        target: the directory of the replica.
        pages: shipped by this call.
        pages_before: shipped earlier.
        pages_left: sealed pages that were not shipped, because they are not on stable storage and
            the queue is open read-only.
        messages: in the pages of this call.
        messages_missed: removed by retention before the first page was shipped.
        bytes_shipped: of the pages of this call, without indexes.
        first_sequence: of the replica's first message.
        end_sequence: one more than that of its last message.

    Example:
        >>> sealed = queue.rotate()  # the active page is not copied
        >>> queue.ship("replica").pages
        1
    """

    target: str
    pages: int
    pages_before: int
    pages_left: int
    messages: int
    messages_missed: int
    bytes_shipped: int
    first_sequence: int
    end_sequence: int


def ship(
    store: Store,
    to: str | os.PathLike[str],
    *,
    consumer: str | None = None,
    file_mode: int = FILE_MODE,
    progress: Callable[[int, int], None] | None = None,
) -> ShipReport:
    """Ship all sealed pages that the replica does not have; see `Queue.ship`."""
    path = absolute_path("to", to)
    source = os.path.realpath(store.folder.path)
    if os.path.commonpath([source, os.path.realpath(path)]) == source:
        raise errors.InvalidOption(
            "the queue's own directory, or one in it",
            path=path,
            remedy="choose a directory elsewhere",
        )
    if consumer is not None:
        check_consumer_name(source, consumer)
    with contextlib.ExitStack() as held:
        target = held.enter_context(Target(path, store, file_mode))
        keeper = None
        if consumer is not None:
            keeper = open_consumer(
                store,
                consumer,
                since=None,
                sequence=None,
                latest=False,
                durable_only=False,
                on_expired="skip",
            )
            held.enter_context(keeper)
        return _Shipping(store, target, keeper).run(progress)


class _Shipping:
    def __init__(self, store: Store, target: Target, consumer: NamedConsumer | None) -> None:
        self._store = store
        self._target = target
        self._consumer = consumer
        self._pages = list(target.manifest.pages)
        self._first = self._next = 0
        self._missed = self._unnoted = 0
        self._whole = self._noted = len(self._pages)  # so many of them end with a whole message
        self._message_end = 0  # the page after the last large message, or after such a commit
        self._is_noting = False
        self._block_memory = bytearray(fmt.FRAGMENT_BLOCK_BYTES)

    def run(self, progress: Callable[[int, int], None] | None) -> ShipReport:
        """Ship page by page; an error leaves the pages before it shipped."""
        store = self._store
        sealed = store.tail.page_number
        if not store.read_only:
            store.flusher.flush_pages(sealed)
        end = min(sealed, store.write_meta.durable_page)
        before = len(self._pages)
        self._next = self._begin()
        if self._pages and self._target.is_complete:  # a shipper can have died before this
            self._release()
        try:
            self._copy_all(end, progress)
        finally:
            self._drop_part()
            if len(self._pages) > self._noted or (self._pages and not self._target.is_complete):
                self._note()
        return self._report(before, sealed - self._next)

    def _copy_all(self, end: int, progress: Callable[[int, int], None] | None) -> None:
        begin = self._next
        while self._next < end:
            if progress is not None:
                progress(self._next - begin, end - begin)
            try:
                page = self._copy(self._next)
            except errors.QueueNotFound:
                begin = self._next = self._passed(self._next)
                continue
            if self._message_end > end:
                break  # the rest of this message is not on stable storage
            self._pages.append(page)
            self._next += 1
            self._unnoted += page.size_bytes
            if self._next >= self._message_end:
                self._whole = len(self._pages)
                if self._unnoted >= NOTED_BYTES:
                    self._note()
        if progress is not None:
            progress(max(end - begin, 0), max(end - begin, 0))

    def _drop_part(self) -> None:
        """Forget pages of what is not copied whole; the next call removes them."""
        part = self._pages[self._whole :]
        if part:
            self._next = part[0].number
            del self._pages[self._whole :]

    def _report(self, before: int, left: int) -> ShipReport:
        new, pages = self._pages[before:], self._pages
        return ShipReport(
            target=self._target.folder.path,
            pages=len(new),
            pages_before=before,
            pages_left=max(left, 0),
            messages=sum(page.end_sequence - page.first_sequence for page in new),
            messages_missed=self._missed,
            bytes_shipped=sum(page.size_bytes for page in new),
            first_sequence=pages[0].first_sequence if pages else self._store.head[1],
            end_sequence=pages[-1].end_sequence if pages else self._store.head[1],
        )

    def _note(self) -> None:
        """Make the copied pages visible, and let retention remove the originals.

        Not again after it failed: the system forgets names that a sync failed to write, and the
        next sync succeeds without them. The next shipper removes these pages and copies them.
        """
        if self._is_noting:
            return
        self._is_noting = True
        self._unnoted, self._noted = 0, len(self._pages)
        self._target.note(replace(self._target.manifest, pages=tuple(self._pages)))
        self._is_noting = False
        self._release()

    def _release(self) -> None:
        """Move the consumer to the end of the pages in the manifest on the disk."""
        end = self._pages[-1].end_sequence
        if self._consumer is not None and end > self._consumer.acknowledged:
            self._consumer.seek(sequence=end)

    # --- the next page ----------------------------------------------------------------------------

    def _begin(self) -> int:
        """Return the number of the first page to ship."""
        store = self._store
        if not self._pages:
            page, self._first = store.read_meta.head
            return page
        last = self._pages[-1]
        if last.end_sequence > store.tail.sequence:
            raise errors.InvalidOption(
                f"it ends with message {last.end_sequence - 1}, the queue with "
                f"{store.tail.sequence - 1}: the queue is an older copy",
                path=self._target.folder.path,
                remedy=REMEDY,
            )
        if not self._is_there(last):
            raise self._another(last)
        return last.number + 1

    def _is_there(self, page: ShippedPage) -> bool:
        """Whether a shipped page has the same frames in the queue, or was retired."""
        store, size = self._store, self._store.meta.page_bytes
        try:
            there = map_page(store.folder, page.file, store.meta)
        except errors.QueueNotFound:
            return page.number < store.read_meta.head_page
        shipped = map_page(self._target.folder, page.file, store.meta)
        end = page.end_position + fmt.FRAME_HEADER_BYTES
        return all(
            there.read(at, size) == shipped.read(at, size)
            for at in range(fmt.PAGE_HEADER_BYTES, end, PIECE_BYTES)
            if (size := min(PIECE_BYTES, end - at))
        )

    def _another(self, page: ShippedPage) -> errors.InvalidOption:
        return errors.InvalidOption(
            f"page {page.number} differs from the one that was shipped: the queue was restored to "
            "an earlier state and then continued",
            path=self._store.folder.path,
            remedy=REMEDY,
        )

    def _passed(self, number: int) -> int:
        """Return the page to continue with after retention removed one; raise if it was needed."""
        store = self._store
        head_page, head_sequence = store.read_meta.head
        if number >= head_page:
            raise errors.MissingPage(
                f"page {number} is missing",
                remedy=DAMAGE_REMEDY,
                path=store.folder.full(fmt.page_name(store.prefix, number)),
                position=0,
                reason="missing page",
            )
        if not self._pages:
            self._missed = head_sequence - self._first
            return head_page
        first = self._pages[-1].end_sequence
        raise errors.Expired(
            f"retention removed {message_range(first, head_sequence)} before they were shipped",
            path=store.folder.path,
            head_sequence=head_sequence,
            remedy="ship into another directory (a glob reads both); with a consumer retention "
            "waits",
        )

    # --- one page ---------------------------------------------------------------------------------

    def _copy(self, number: int) -> ShippedPage:
        """Copy one page and its index to their names (H2, H3)."""
        store, target = self._store, self._target
        name = fmt.page_name(store.prefix, number)
        with store.folder.opened(name, writable=False) as fd:
            try:
                size, checksum = target.put(name, lambda at: os.pread(fd, PIECE_BYTES, at), 0)
            except OSError as error:
                if isinstance(error, errors.PageQueueError):
                    raise
                raise_typed(error, store.folder.full(name), "reading the page")
        self._check_copy(name, size, checksum)
        return self._index(number, size, checksum)

    def _check_copy(self, name: str, size: int, checksum: int) -> None:
        folder = self._target.folder
        found = at = 0
        with folder.opened(name + TEMPORARY, writable=False) as fd:
            try:
                while piece := os.pread(fd, PIECE_BYTES, at):
                    found, at = _core.crc32c(piece, found), at + len(piece)
            except OSError as error:
                raise_typed(error, folder.full(name), "reading the copy")
        if (at, found) != (size, checksum):
            raise errors.CorruptPage(
                "the copy has other bytes than were written",
                remedy="check that disk, then ship again",
                path=folder.full(name),
                position=0,
                reason="copy",
            )

    def _index(self, number: int, size: int, checksum: int) -> ShippedPage:
        """Check the frames of a copy, write its index if it is a plain page, and rename them."""
        store, target = self._store, self._target
        name, index_name = fmt.page_name(store.prefix, number), fmt.index_name(store.prefix, number)
        region = map_page(target.folder, name + TEMPORARY, store.meta)
        data = region.read(0, fmt.PAGE_HEADER_BYTES)
        path = store.folder.full(name)
        header = decode_header(data, store.meta.queue_id, number, path)
        first = header.first_sequence
        expected = self._pages[-1].end_sequence if self._pages else first
        if first is None or first != expected:
            raise errors.CorruptPage(
                f"begins with message {first}, must be {expected}",
                remedy=DAMAGE_REMEDY,
                path=path,
                position=0,
                reason="wrong first sequence",
            )
        index = private_region(b"", store.meta.index_bytes)
        scan = scan_region(region, index, header, first, None, use=_core.INDEX_WRITE)
        if scan.stopped != _core.READ_END or scan.sequence != scan.whole_sequence:
            reason = REASONS.get(scan.stopped, "an incomplete batch")
            raise errors.CorruptFrame(
                f"message {scan.sequence} at position {scan.position}: {reason}, so the page is "
                "not shipped",
                remedy=DAMAGE_REMEDY,
                path=path,
                position=scan.position,
                sequence=scan.sequence,
                reason=reason,
            )
        self._check_fragment(region, number, scan, path)
        if header.is_continued:  # by the next page, at least
            self._message_end = max(self._message_end, number + 2)
        used = (scan.sequence - first) * fmt.INDEX_RECORD_BYTES
        index_bytes = index_checksum = 0
        names = [name]
        if region.filler is None:  # else it is compressed, and has none
            index_bytes, index_checksum = target.put(
                index_name,
                lambda at: index.read(at, max(0, min(PIECE_BYTES, used - at))),
                store.meta.index_bytes,
            )
            names.insert(0, index_name)
        for final in names:
            target.folder.rename(final + TEMPORARY, final)
        first_timestamp = header.floor_timestamp
        if scan.sequence > first:
            first_timestamp = _core.peek(region, fmt.PAGE_HEADER_BYTES, first)[1]
        return ShippedPage(
            number,
            name,
            size,
            f"{checksum:08x}",
            index_bytes,
            f"{index_checksum:08x}",
            first,
            scan.sequence,
            first_timestamp,
            scan.timestamp,
            scan.position,
        )

    def _check_fragment(self, region: _core.Region, number: int, scan: Scan, path: str) -> None:
        """Check the fragment in a copy whose frames are right, and find where its message ends."""
        head = head_in(region)
        if head is not None:
            self._message_end = max(self._message_end, number + head.fragments)
        damage = fragment_damage(region, scan.position, scan.sequence, path, self._block_memory)
        # Nobody reads the rest of a message that was retired before, which a cut can have torn.
        begin = self._pages[0].first_sequence if self._pages else self._store.head[1]
        if damage is not None and scan.sequence > begin:
            position, reason = damage
            raise errors.CorruptFrame(
                f"message {scan.sequence - 1}, a large one, at position {position}: {reason}, so "
                "the page is not shipped",
                remedy=DAMAGE_REMEDY,
                path=path,
                position=position,
                sequence=scan.sequence - 1,
                reason=reason,
            )
