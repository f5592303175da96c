"""Makes a queue's files and finds its true tail, with the queue locked exclusively.

After a kill the shared state is right except for what the dead holder of the writers' lock had
begun; `crash_recovery.py` resolves that from the tail on. After a power cut, a copy or a lost write
meta it is not trusted: from the durable mark on every frame is checked, and the judge finds where
the queue ends. Nothing is written before it is known that all guaranteed messages are there. Then
each page is brought into the state that it was found to have, the bytes after the end are zeroed,
and that is synced before anything new is written (I5). Each step can be repeated, so the next
opener finishes a recovery that was interrupted.
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
from pagequeue.judge.diagnosis import diagnose, kept_run
from pagequeue.judge.evidence import Evidence, promise_of
from pagequeue.meta.cursor import consumers_in, lower_cursors
from pagequeue.meta.group_table import recover_groups
from pagequeue.meta.ledger import lower_entries
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.compressed_format import is_compressed
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, decode_header, first_bytes
from pagequeue.page.listing import page_numbers, retired
from pagequeue.page.page import (
    index_to_rebuild,
    make_page,
    map_plain,
    missing_page,
    scan_region,
    writable_index,
    zero_after,
)
from pagequeue.store.crash_recovery import BATCH_OPEN, CrashRecovery
from pagequeue.store.pending_commit import resolve_in_recovery
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.judge.diagnosis import Diagnosis, PageVerdict
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory

log: logging.Logger = logging.getLogger("pagequeue")


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
            self._check_frames(write, read, numbers, durable_known=known)
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
            number = below[-1]
            raise missing_page(self.folder.full(fmt.page_name(self.prefix, number)), number)

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
        run, end, latest = kept_run(self._evidence(write, read, numbers))
        head_page, head_sequence = read.head
        kept = [page.number for page in run]
        if not run:
            first = max(head_sequence, durable, end)
            kept = [max([*numbers, head_page, write.durable_page]) + 1]
            self._make(kept[0], first, latest)
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
            self._write_index(page, index)
            index.zero((page.scan.whole_sequence - page.first) * fmt.INDEX_RECORD_BYTES)
        return read, kept

    def _evidence(self, write: WriteMeta, read: ReadMeta, numbers: list[int]) -> Evidence:
        promise = promise_of(self.folder, self.prefix, read, write)
        return Evidence(self.folder, self.prefix, self.meta, promise, numbers)

    # --- after a power cut, a copy or a lost write meta -------------------------------------------

    def _check_frames(
        self, write: WriteMeta, read: ReadMeta, numbers: list[int], *, durable_known: bool
    ) -> None:
        if write.is_failed_in_this_boot:
            raise self._sync_failed(write)
        diagnosis = diagnose(self._evidence(write, read, numbers))
        error = diagnosis.error()
        if error is not None:
            raise error
        tail = diagnosis.end
        assert tail is not None
        number = tail.page_number
        for page in diagnosis.pages:
            self._apply(diagnosis, page)
            if page.kind == _core.PAGE_SEALED:
                self._sync(*self._files(page.number))
        # 1. The torn bytes are zeros: sync all of it before anything new is acknowledged.
        #    Cut here: the next recovery finds the same tail and does the same.
        self._remove([other for other in numbers if other > number])
        self._sync(*self._files(number))
        self._sync()
        # 2. The shared state. Cut here: the same again, from the same durable mark.
        write.region.store(BATCH_OPEN, 0)
        write.tail = tail
        write.set_durable(tail.sequence, number)
        if write.failed_errno:
            # It failed in another boot: the frames were read from the disk.
            write.unlatch()
            self.report.did("cleared the failure latch: all remaining messages were synced again")
        self._sync(fmt.write_meta_name(self.prefix))
        if durable_known or numbers:
            self.report.scanned = True
            self.report.did(
                f"checked {counted(self.report.messages_checked, 'message')} from page "
                f"{diagnosis.pages[0].number} on; the next sequence is {tail.sequence}"
            )

    def _apply(self, diagnosis: Diagnosis, page: PageVerdict) -> None:
        """Bring a page into the state that the judge found it to be in."""
        number, name = page.number, fmt.page_name(self.prefix, page.number)
        if page.kind == _core.PAGE_TO_MAKE:
            if number in diagnosis.evidence.numbers:
                error = diagnosis.evidence.error_of(number)
                self.folder.remove(name)
                self.report.did(f"made page {number} again ({getattr(error, 'reason', 'missing')})")
            self._make(number, page.first, page.floor)
            return
        if page.is_header_lost:
            header = PageHeader(number, self.meta.queue_id, page.first, page.floor, self.clock())
            map_plain(self.folder, name, self.meta, writable=True).write(0, header.encode())
            self.report.did(f"wrote the header of page {number} again")
        if page.kind == _core.PAGE_DROPPED:
            self.report.did(
                f"dropped the messages from {page.first} on: a large one, or several that were "
                "sent at once, were not all on stable storage"
            )
            if page.is_fresh:
                # A new file, because what is sent to this page next goes on in no other page: with
                # the flag, recovery would drop that, and the flag cannot go before the frames do.
                self._make(number, page.first, page.floor)
            else:
                self._cut(page, fmt.PAGE_HEADER_BYTES, page.first)
            return
        self.report.messages_checked += page.scan.sequence - page.first
        if not is_compressed(first_bytes(self.folder, name)):  # else it has no index
            index = index_to_rebuild(self.folder, self.prefix, self.meta, number)
            self._write_index(page, index)
        if page.kind == _core.PAGE_OPEN:
            self.report.messages_dropped = page.scan.sequence - page.scan.whole_sequence
            self._cut(page, page.scan.whole_position, page.scan.whole_sequence)

    def _write_index(self, page: PageVerdict, index: _core.Region) -> None:
        name = fmt.page_name(self.prefix, page.number)
        region = map_page(self.folder, name, self.meta)
        header = PageHeader(page.number, self.meta.queue_id, page.first, page.floor, 0)
        scan_region(region, index, header, page.first, None, use=_core.INDEX_WRITE)

    def _cut(self, page: PageVerdict, position: int, end: int) -> None:
        """Zero a page from a position on, and its index from a message on."""
        number, (page_name, index_name) = page.number, self._names(page.number)
        # Only what is not zero is written, and lies in blocks.
        region = map_plain(self.folder, page_name, self.meta, writable=True, reserved=False)
        index = writable_index(self.folder, self.prefix, self.meta, number, reserved=False)
        zeroed = zero_after(self.folder, page_name, region, position)
        zero_after(self.folder, index_name, index, (end - page.first) * fmt.INDEX_RECORD_BYTES)
        self.report.bytes_zeroed = zeroed
        if zeroed:
            dropped = self.report.messages_dropped
            batch = f", an incomplete batch of {counted(dropped, 'message')} among them"
            self.report.did(
                f"zeroed {counted(zeroed, 'byte')} after position {position} of page {number}"
                f"{batch if dropped else ''}"
            )

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

    def _make(self, number: int, first_sequence: int, floor: int) -> None:
        header = PageHeader(number, self.meta.queue_id, first_sequence, floor, self.clock())
        # Synced before it has its name: after a power cut, a first page without its header would be
        # damage.
        make_page(self.folder, self.prefix, self.meta, header, synced=True, may_grow=True)

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
