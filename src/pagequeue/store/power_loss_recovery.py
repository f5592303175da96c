"""Makes a queue's files and finds its true tail, with the queue locked exclusively.

After a kill the shared state is right except for what the dead holder of the writers' lock had
begun; `crash_recovery.py` resolves that from the tail on. After a power cut, a copy or a lost write
meta it is not trusted: from the durable mark on, every frame is checked, and the first incomplete
one ends the queue. The bytes after it are zeroed, and that is synced before anything new is written
(I5). Each step can be repeated, so the next opener finishes a recovery that was interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import consumers_in, lower_cursors
from pagequeue.meta.group_table import recover_groups
from pagequeue.meta.ledger import lower_entries
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import Tail, WriteMeta
from pagequeue.page.compressed_format import HEAD_REASON
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import (
    REMEDY,
    STAGED,
    PageHeader,
    decode_header,
    first_bytes,
    parse_header,
)
from pagequeue.page.large_message import FoundPage, LargePayload
from pagequeue.page.listing import page_numbers, retired
from pagequeue.page.page import (
    PROOF,
    REASONS,
    Scan,
    index_to_rebuild,
    make_page,
    map_plain,
    missing_page,
    private_region,
    scan_region,
    writable_index,
    zero_after,
)
from pagequeue.store.crash_recovery import BATCH_OPEN, CrashRecovery
from pagequeue.store.pending_commit import resolve_in_recovery, unpublished
from pagequeue.store.ring_recovery import kept_run
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory

log: logging.Logger = logging.getLogger("pagequeue")
UNKNOWN = -1
"""The first sequence of a page whose header has none."""
TORN = {"wrong size", "too short", "wrong magic", "wrong checksum", STAGED}
"""The damage that a power cut can do to a page in use; other reasons mean another page."""
MADE_AGAIN = {"wrong size", "too short", STAGED}
"""Of these, what leaves nothing to keep."""


@dataclass
class RecoveryReport:
    """What opening the queue had to do.

    Attributes:
        scanned: whether frames were checked from the durable mark on, as after a power cut.
        messages_recovered: published by a producer that was killed before it updated the tail.
        messages_checked: valid frames that the scan found.
        messages_dropped: whole frames of an incomplete batch, dropped.
        bytes_zeroed: of torn frames, in the last page.
        pages_removed: numbers of removed pages, all after the true tail.
        actions: one sentence for each step taken.

    Example:
        >>> Queue("events").recovery.actions
        []
    """

    scanned: bool = False
    messages_recovered: int = 0
    messages_checked: int = 0
    messages_dropped: int = 0
    bytes_zeroed: int = 0
    pages_removed: list[int] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    def did(self, sentence: str) -> None:
        """Record a step.

        Args:
            sentence: what was done.

        Example:
            >>> report = RecoveryReport()
            >>> report.did("removed a temporary file")
            >>> report.actions
            ['removed a temporary file']
        """
        self.actions.append(sentence)


def missing_before(head_page: int, head_sequence: int) -> str:
    """Return a clause on the messages missing before a head that the listing determined."""
    if head_sequence == 0:
        return ""
    return (
        f", page {head_page}: the {counted(head_sequence, 'message')} before it are not here, "
        "retention removed them or their pages are lost"
    )


def _nothing_in(first: int, header: PageHeader) -> Scan:
    """Return the scan of a page without messages."""
    at, floor = fmt.PAGE_HEADER_BYTES, header.floor_timestamp
    return Scan(at, first, floor, at, first, floor, 0, _core.READ_NOTHING)


class Recovery:
    """One recovery; the caller holds `queue.lock` exclusively."""

    def __init__(
        self, folder: Directory, prefix: str, meta: AllMeta, clock: Callable[[], int]
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.meta = meta
        self.clock = clock
        self.report: RecoveryReport = RecoveryReport()
        self._whole_to = 0  # the last page of a bulk commit that was found to be whole
        self._is_made_again = False  # whether the last page has to be a new file

    def run(self) -> RecoveryReport:
        """Bring the queue into a state that producers can continue from."""
        names = self._sweep()
        numbers = page_numbers(self.prefix, names)
        read = self._read_meta(numbers)
        self._write, known = self._write_meta(read)
        write = self._write
        is_ring = self.meta.is_ring
        if known and write.is_recovered:
            crash = CrashRecovery(self.folder, self.prefix, self.meta, write, self.report.did)
            self.report.messages_recovered = crash.run()
        else:
            if is_ring and (numbers or known):
                read, numbers = self._keep_run(write, read, numbers)
                known = True
            self._scan(write, read, numbers, durable_known=known)
        # Cut in the middle of it: the state is not marked as recovered; the next open repeats it.
        tail = write.tail.sequence
        low = read.head_sequence if is_ring else 0
        # No file of a consumer, a group or a publisher was made or removed since `names`.
        consumers = consumers_in(self.prefix, names)
        lower_cursors(
            self.folder, self.prefix, self.meta.queue_id, low, tail, self.report.did, consumers
        )
        recover_groups(
            self.folder,
            self.prefix,
            self.meta.queue_id,
            low,
            tail,
            self.report.did,
            self.clock,
            consumers,
        )
        resolve_in_recovery(
            self.folder, self.prefix, self.meta, write.tail, self.report.did, self._sync
        )
        lower_entries(self.folder, self.prefix, tail, self.report.did, names)
        self._remove_retired(read)
        write.mark_recovered()
        if self.report.actions:
            log.warning("%s: recovered: %s", self.folder.path, "; ".join(self.report.actions))
        return self.report

    # --- the existing files -----------------------------------------------------------------------

    def _sweep(self) -> list[str]:
        """Remove what an interrupted maker of a file left under a temporary name.

        Returns:
            the names that are left.
        """
        names = self.folder.names()
        if not any(fmt.TEMPORARY in name for name in names):
            return names
        pattern = fmt.temporary_pattern(self.prefix)
        for name in filter(pattern.fullmatch, names):
            self.folder.remove(name)
        return [name for name in names if not pattern.fullmatch(name)]

    def _page_numbers(self) -> list[int]:
        return page_numbers(self.prefix, self.folder.names())

    def _read_meta(self, numbers: list[int]) -> ReadMeta:
        if not self.folder.exists(fmt.read_meta_name(self.prefix)):
            head_page, head_sequence = fmt.FIRST_PAGE, 0
            if numbers:
                head_page = numbers[0]
                head_sequence = self._header(head_page).first_sequence or 0
                self._refuse_lost_head(head_page)
                missing = missing_before(head_page, head_sequence)
                self.report.did(f"recreated the read meta from the first page{missing}")
            ReadMeta.make(
                self.folder,
                self.prefix,
                self.meta.queue_id,
                head_page=head_page,
                head_sequence=head_sequence,
            )
        return ReadMeta(self.folder, self.prefix, self.meta.queue_id, writable=True)

    def _refuse_lost_head(self, head_page: int) -> None:
        """Raise if an index remains of a missing page: retention removes both."""
        below = [n for n in page_numbers(self.prefix, self.folder.names(), "idx") if n < head_page]
        if below and below[-1] == head_page - 1:
            raise self._missing(below[-1])

    def _write_meta(self, read: ReadMeta) -> tuple[WriteMeta, bool]:
        """Return the write meta, and whether its durable mark is known."""
        if not self.folder.exists(fmt.write_meta_name(self.prefix)):
            WriteMeta.make(
                self.folder, self.prefix, self.meta.queue_id, durable_sequence=read.head_sequence
            )
        write = WriteMeta(self.folder, self.prefix, self.meta.queue_id, writable=True)
        # Every finished recovery has set the durable page; one that was interrupted right after
        # the line above, or ended in an error, has not.
        return write, write.durable_page > 0

    def _header(self, number: int) -> PageHeader:
        name = fmt.page_name(self.prefix, number)
        region = map_page(self.folder, name, self.meta, filled=False)
        data = region.read(0, fmt.PAGE_HEADER_BYTES)
        return decode_header(data, self.meta.queue_id, number, self.folder.full(name))

    def prefix_tail(self, read: ReadMeta, write: WriteMeta) -> Tail:
        """Return the tail that `run` would find, without changing anything.

        Raises:
            DamageError: a message below the durable mark is missing or damaged, which `run`
                refuses as well: the pages before it are never taken for the whole queue.
        """
        numbers = self._page_numbers()
        durable = max(write.durable_sequence, read.head_sequence)
        if not numbers:
            raise self._missing(read.head_page)
        number, header = self._start(read, write, numbers, durable)
        while True:
            name = fmt.page_name(self.prefix, number)
            region = map_page(self.folder, name, self.meta)
            first = header.first_sequence or 0
            scan = scan_region(region, None, header, first, None)
            is_torn = self._is_torn(region, header, durable)
            following = None
            if is_torn:
                scan = _nothing_in(first, header)
            elif scan.stopped == _core.READ_END:
                following = self._next_header(number + 1, scan, durable, write.durable_page)
            elif header.is_compressed:  # the whole page is on stable storage
                durable = max(durable, scan.whole_sequence + 1)
            if following is None:
                break
            number, header = number + 1, following
        is_early = number < write.durable_page and scan.stopped != _core.READ_END
        if scan.whole_sequence < durable or is_early:
            raise self._damage(number, scan, durable)
        return Tail(
            number, scan.whole_position, scan.whole_sequence - first, first, scan.whole_timestamp
        )

    def _next_header(
        self, number: int, before: Scan, promised: int, durable_page: int
    ) -> PageHeader | None:
        """Return the header of the page after an end-of-page marker; None: the queue ends there.

        Raises:
            DamageError: messages of this page were on stable storage, and it is unreadable.
        """
        try:
            header = self._header(number)
        except errors.QueueNotFound as error:
            if before.sequence < promised or number <= durable_page:
                raise self._missing(number) from error
            return None
        except errors.CorruptPage as error:
            if before.sequence < promised or not self._may_be_torn(number, error, durable_page):
                raise
            return None
        if header.first_sequence == before.sequence:
            return header
        if before.sequence < promised:
            raise self._wrong_first(number, before.sequence)
        return None

    # --- a ring, after a power cut ----------------------------------------------------------------

    def _keep_run(
        self, write: WriteMeta, read: ReadMeta, numbers: list[int]
    ) -> tuple[ReadMeta, list[int]]:
        """Make one run of whole pages the ring, and remove the others (ring_recovery.py).

        Cut in between: the same run is found again, because what is removed is never part of it,
        and the head moves before any page below it is removed.
        """
        if write.is_failed_in_this_boot:
            raise self._sync_failed(write)
        durable = write.durable_sequence
        run, found = kept_run(self.folder, self.prefix, self.meta, numbers, durable)
        head_page, head_sequence = read.head
        kept = [page.number for page in run]
        if not run:
            first = max([head_sequence, durable, *(page.end for page in found)])
            floor = max((page.timestamp for page in found), default=0)
            kept = [max([*numbers, head_page, write.durable_page]) + 1]
            self._make(kept[0], first, floor)
            head_page, head_sequence = kept[0], first
        elif head_page not in kept:
            head_page, head_sequence = run[0].number, run[0].first
        if (head_page, head_sequence) != read.head:
            ReadMeta.make(
                self.folder,
                self.prefix,
                self.meta.queue_id,
                head_page=head_page,
                head_sequence=head_sequence,
            )
            self._sync()
            self.report.did(
                f"moved the head to message {head_sequence}, page {head_page}: a ring is trimmed "
                "without a sync"
            )
            read = ReadMeta(self.folder, self.prefix, self.meta.queue_id, writable=True)
        if durable < head_sequence or not kept[0] <= write.durable_page <= kept[-1]:
            # The mark is in a page that is gone; nothing after the head was on stable storage.
            place = [page.number for page in run if page.first <= max(durable, head_sequence)]
            write.set_durable(max(durable, head_sequence), place[-1] if place else kept[0])
        others = [number for number in numbers if number not in kept]
        for number in reversed(others):
            for name in self._names(number):
                self.folder.remove(name)
        if others:
            self.report.did(f"removed {counted(len(others), 'page')} that the ring had used again")
        for page in run:  # an index can be another page's, or older than its page
            index = writable_index(self.folder, self.prefix, self.meta, page.number)
            region = map_page(self.folder, fmt.page_name(self.prefix, page.number), self.meta)
            header = self._header(page.number)
            scan_region(region, index, header, page.first, None, use=_core.INDEX_WRITE)
            index.zero((page.end - page.first) * fmt.INDEX_RECORD_BYTES)
        return read, kept

    # --- after a power cut, a copy or a lost write meta -------------------------------------------

    def _scan(
        self, write: WriteMeta, read: ReadMeta, numbers: list[int], *, durable_known: bool
    ) -> None:
        if write.is_failed_in_this_boot:
            raise self._sync_failed(write)
        durable = max(write.durable_sequence, read.head_sequence)
        # Without a durable mark only an end-of-page marker shows that a page is missing.
        promised = durable if durable_known else fmt.SEQUENCE_MAX
        begin, header = self._start(read, write, numbers, durable)
        number = begin
        while True:
            region, index, scan = self._scan_page(number, header, durable)
            self.report.messages_checked += scan.sequence - (header.first_sequence or 0)
            if scan.stopped != _core.READ_END:
                break
            self._sync(*self._files(number))
            number += 1
            header = self._follow(number, scan, promised, write.durable_page)
        if scan.whole_sequence < durable or number < write.durable_page:
            raise self._damage(number, scan, durable)
        later = [other for other in numbers if other > number]
        if not durable_known:
            self._refuse_lost_pages(number, scan, later)
        # 1. Zero the torn bytes, then sync all of it before anything new is acknowledged.
        #    Cut here: the next recovery finds the same tail and does the same.
        if numbers:  # else the page was made just now, of zeros
            self._cut(region, index, header, scan)
        self._remove(later)
        self._sync(*self._files(number))
        self._sync()
        # 2. The shared state. Cut here: the same again, from the same durable mark.
        first = header.first_sequence or 0
        write.region.store(BATCH_OPEN, 0)
        write.tail = Tail(
            number, scan.whole_position, scan.whole_sequence - first, first, scan.whole_timestamp
        )
        write.set_durable(scan.whole_sequence, number)
        if write.failed_errno:
            # It failed in another boot: the frames were read from the disk.
            write.unlatch()
            self.report.did("cleared the failure latch: all remaining messages were synced again")
        self._sync(fmt.write_meta_name(self.prefix))
        if durable_known or numbers:
            self.report.scanned = True
            self.report.did(
                f"checked {counted(self.report.messages_checked, 'message')} from page {begin} on; "
                f"the next sequence is {scan.whole_sequence}"
            )

    def _start(
        self, read: ReadMeta, write: WriteMeta, numbers: list[int], durable: int
    ) -> tuple[int, PageHeader]:
        """Return the last page that begins before the durable mark, or the head.

        Not one after the mark's own: there a producer that died while it rolled can have left a
        header, with a sequence that others then sent in the page before.
        """
        head = read.head_page
        if not numbers:
            # A new queue's first page is missing; what salvage makes need not begin at sequence 0.
            if head != fmt.FIRST_PAGE or durable > read.head_sequence or write.durable_page > 0:
                raise self._missing(head)
            return head, self._make(head, read.head_sequence, 0)
        last = min(numbers[-1], write.durable_page or numbers[-1])
        low, high = head, max(last, head)
        try:
            best = (head, self._header(head))
        except errors.QueueNotFound as error:
            raise self._missing(head) from error
        if best[1].first_sequence is None:
            # Only a page with messages was ever the first; taking it would hide those before it.
            raise errors.CorruptMeta(
                f"its head is page {head}, which is only prepared, without messages",
                path=self.folder.full(fmt.read_meta_name(self.prefix)),
                position=ReadMeta.HEAD_PAGE,
                reason="head page",
                remedy=REMEDY,
            )
        while low < high:
            middle = (low + high + 1) // 2
            try:
                header = self._header(middle)
            except (errors.DamageError, errors.QueueNotFound):
                header = None
            first = None if header is None else header.first_sequence
            if header is not None and first is not None and first < durable:
                best, low = (middle, header), middle
            else:
                high = middle - 1
        return best

    def _scan_page(
        self, number: int, header: PageHeader, durable: int
    ) -> tuple[_core.Region, _core.Region, Scan]:
        """Check a page's frames and write its index; raise before that if durable ones are bad."""
        name = fmt.page_name(self.prefix, number)
        region = map_page(self.folder, name, self.meta)
        first = header.first_sequence or 0
        if self._is_torn(region, header, durable):
            self._is_made_again = header.is_continued or region.filler is not None
            if self._is_made_again:
                index = private_region(b"", self.meta.index_bytes)
            else:
                region = map_plain(self.folder, name, self.meta, writable=True, reserved=False)
                index = writable_index(self.folder, self.prefix, self.meta, number, reserved=False)
            self.report.did(
                f"dropped the messages from {first} on: a large one, or several that were sent at "
                "once, were not all on stable storage"
            )
            return region, index, _nothing_in(first, header)
        if first < durable:
            scan = scan_region(region, None, header, first, durable - first)
            if scan.whole_sequence < durable and scan.stopped != _core.READ_END:
                raise self._damage(number, scan, durable)
        if region.filler is None:
            index = index_to_rebuild(self.folder, self.prefix, self.meta, number)
        else:  # it is compressed, and has none
            index = private_region(b"", self.meta.index_bytes)
        scan = scan_region(region, index, header, first, None, use=_core.INDEX_WRITE)
        if scan.stopped != _core.READ_END:  # it is not sealed, and will be written to
            # Only what is not zero is written, and lies in blocks.
            region = map_plain(self.folder, name, self.meta, writable=True, reserved=False)
        return region, index, scan

    def _is_torn(self, region: _core.Region, header: PageHeader, durable: int) -> bool:
        """Whether the bulk commit that goes on in a page is incomplete, after the durable mark.

        Its pages need not be on stable storage before it is visible (M4), so all of it is checked
        (I19, I23). Below the mark nothing of it is read.
        """
        if (header.first_sequence or 0) < durable or header.page_number <= self._whole_to:
            return False
        try:
            while True:
                number, first = header.page_number, header.first_sequence or 0
                if fmt.is_large(region.load_half(fmt.PAGE_HEADER_BYTES)):
                    large = LargePayload(self._found, number, fmt.PAGE_HEADER_BYTES, first)
                    if not large.is_whole():
                        return True
                if not header.is_continued:
                    break
                scan = scan_region(region, None, header, first, None)
                header = self._header(number + 1)
                if scan.stopped != _core.READ_END or header.first_sequence != scan.whole_sequence:
                    return True
                region = map_page(self.folder, fmt.page_name(self.prefix, number + 1), self.meta)
                if not header.is_continued and not self._has_first_batch(region, header):
                    return True
        except (errors.DamageError, errors.QueueNotFound):
            return True
        self._whole_to = header.page_number
        return False

    def _has_first_batch(self, region: _core.Region, header: PageHeader) -> bool:
        """Whether the first batch of a page is whole: with it, a commit of several pages ends."""
        first = header.first_sequence or 0
        scan = scan_region(region, None, header, first, None)
        return scan.whole_sequence > first or scan.stopped == _core.READ_END

    def _found(self, number: int) -> FoundPage:
        name = fmt.page_name(self.prefix, number)
        region = map_page(self.folder, name, self.meta)
        header = self._header(number)
        first = UNKNOWN if header.first_sequence is None else header.first_sequence
        return FoundPage(self.folder.full(name), region, first)

    def _names(self, number: int) -> tuple[str, str]:
        return fmt.page_name(self.prefix, number), fmt.index_name(self.prefix, number)

    def _files(self, number: int) -> list[str]:
        """Return the names of a page and of its index; a compressed one has none."""
        page, index = self._names(number)
        return [page, index] if self.folder.exists(index) else [page]

    def _sync(self, *names: str) -> None:
        """Put files on stable storage; without names, the directory.

        Raises:
            SyncFailed: the failure latch is set, so that no process in this boot trusts the
                contents of memory; no message was acknowledged yet.
        """
        if not self.folder.is_durable:
            return
        try:
            for name in names:
                with self.folder.opened(name, writable=False) as fd:
                    os.fdatasync(fd)
            if not names:
                self.folder.sync()
        except OSError as error:
            if isinstance(error, errors.PageQueueError):
                raise
            write = self._write
            last = max([write.durable_page, *self.report.pages_removed])
            write.latch(error.errno or errno.EIO, last)
            raise self._sync_failed(write) from error

    def _sync_failed(self, write: WriteMeta) -> errors.SyncFailed:
        words = os.strerror(write.failed_errno)
        return errors.SyncFailed(
            f"a sync failed in this boot ({words}), so memory can show data that the disk lacks",
            path=self.folder.path,
            position=0,
            reason=words,
            first_sequence=write.durable_sequence,
            end_sequence=write.tail.sequence,
            remedy="repair the disk, then repair the queue, which writes it again to new files",
        )

    def _make(self, number: int, first_sequence: int, floor: int) -> PageHeader:
        header = PageHeader(number, self.meta.queue_id, first_sequence, floor, self.clock())
        # Synced before it has its name: after a power cut, a first page without its header would be
        # damage.
        make_page(self.folder, self.prefix, self.meta, header, synced=True, may_grow=True)
        return header

    def _follow(self, number: int, before: Scan, promised: int, durable_page: int) -> PageHeader:
        """Return the header of the page after an end-of-page marker, rewritten if it was lost."""
        name = fmt.page_name(self.prefix, number)
        try:
            header = self._header(number)
            if header.first_sequence == before.sequence:
                return header
        except errors.QueueNotFound as error:
            if before.sequence < promised or number <= durable_page:
                raise self._missing(number) from error
            return self._make(number, before.sequence, before.timestamp)
        except errors.CorruptPage as error:
            if before.sequence < promised or not self._may_be_torn(number, error, durable_page):
                raise
            if error.reason in MADE_AGAIN or number > durable_page:
                # No flush passed it, and its frames can be some of a commit, of which its own
                # header would tell.
                self.folder.remove(name)
                self.report.did(f"made page {number} again ({error.reason})")
                return self._make(number, before.sequence, before.timestamp)
        region = map_plain(self.folder, name, self.meta, writable=True)
        found = _core.peek(region, fmt.PAGE_HEADER_BYTES, before.sequence)[0]
        # Without a durable mark, an empty page that was only prepared can follow.
        may_be_unused = promised == fmt.SEQUENCE_MAX and found == _core.READ_NOTHING
        if (
            before.sequence < promised
            and found not in PROOF
            and not (may_be_unused and self._is_unused(name))
        ):
            # Below the durable mark no header is lost, and its frames are not those that follow.
            raise self._wrong_first(number, before.sequence)
        header = PageHeader(
            number, self.meta.queue_id, before.sequence, before.timestamp, self.clock()
        )
        region.write(0, header.encode())
        self.report.did(f"wrote the header of page {number} again")
        return header

    def _may_be_torn(self, number: int, error: errors.CorruptPage, durable_page: int) -> bool:
        """Whether a power cut can leave a page like this after the durable mark.

        Not a compressed one, which is on stable storage before it has its name; and no durable page
        has another size after it.
        """
        if error.reason.startswith(HEAD_REASON):
            return False
        if error.reason == "wrong size" and number <= durable_page:
            return False
        return error.reason in TORN or self._is_unused(fmt.page_name(self.prefix, number))

    def _is_unused(self, name: str) -> bool:
        """Whether a page of any number was only prepared: no message was ever sent to it."""
        data = first_bytes(self.folder, name)
        return parse_header(data, self.folder.full(name)).first_sequence is None

    def _wrong_first(self, number: int, sequence: int) -> errors.CorruptPage:
        return errors.CorruptPage(
            f"does not begin with message {sequence}, with which the page before it ends",
            path=self.folder.full(fmt.page_name(self.prefix, number)),
            position=0,
            reason="wrong first sequence",
            remedy=REMEDY,
        )

    def _missing(self, number: int) -> errors.MissingPage:
        return missing_page(self.folder.full(fmt.page_name(self.prefix, number)), number)

    def _damage(self, number: int, scan: Scan, durable: int) -> errors.CorruptFrame:
        sequence, position = scan.sequence, scan.position
        if scan.stopped == _core.READ_FRAME:  # all that was looked at are valid
            sequence, position = scan.whole_sequence, scan.whole_position
        reason = REASONS.get(scan.stopped, "an incomplete batch")
        return errors.CorruptFrame(
            f"message {sequence} at position {position}: {reason}, though all below {durable} was "
            "on stable storage",
            path=self.folder.full(fmt.page_name(self.prefix, number)),
            position=position,
            sequence=sequence,
            reason=reason,
            remedy=REMEDY,
        )

    def _refuse_lost_pages(self, number: int, scan: Scan, later: list[int]) -> None:
        """Raise if, without a durable mark, the scan ended at damage before later messages."""
        waiting = unpublished(self.folder, self.prefix, number, scan)
        for other in later:
            if other in waiting:
                continue
            first = self._header(other).first_sequence
            if first is not None and first >= scan.sequence:
                raise self._damage(number, scan, first)

    def _cut(
        self, region: _core.Region, index: _core.Region, header: PageHeader, scan: Scan
    ) -> None:
        if self._is_made_again:
            # A new file, because what is sent to this page next goes on in no other page: with the
            # flag, recovery would drop that, and the flag cannot go before the frames do.
            self._make(header.page_number, header.first_sequence or 0, header.floor_timestamp)
            return
        dropped = scan.sequence - scan.whole_sequence
        page_name, index_name = self._names(header.page_number)
        zeroed = zero_after(self.folder, page_name, region, scan.whole_position)
        count = scan.whole_sequence - (header.first_sequence or 0)
        zero_after(self.folder, index_name, index, count * fmt.INDEX_RECORD_BYTES)
        self.report.messages_dropped = dropped
        self.report.bytes_zeroed = zeroed
        if zeroed:
            batch = f", an incomplete batch of {counted(dropped, 'message')} among them"
            self.report.did(
                f"zeroed {counted(zeroed, 'byte')} after position {scan.whole_position} of page "
                f"{header.page_number}{batch if dropped else ''}"
            )

    def _remove_retired(self, read: ReadMeta) -> None:
        """Remove the files that an interrupted retention left below a head that is proved."""
        number, sequence = read.head
        left = retired(self.prefix, self.folder.names(), number)
        if not left:
            return
        with contextlib.suppress(errors.DamageError, errors.QueueNotFound):
            if self._header(number).first_sequence == sequence:
                # The head first: the one on disk can still be an older one.
                self._sync(fmt.read_meta_name(self.prefix))
                for name in left:
                    self.folder.remove(name)
                self.report.did(
                    f"removed {counted(len(left), 'file')} below page {number}, the head"
                )

    def _remove(self, later: list[int]) -> None:
        """Remove pages after the tail, the newest first, so that an interruption leaves no gap."""
        for number in reversed(later):
            self.folder.remove(fmt.page_name(self.prefix, number))
            self.folder.remove(fmt.index_name(self.prefix, number))
        self.report.pages_removed = later
        if later:
            self.report.did(f"removed {counted(len(later), 'page')} after the tail")
