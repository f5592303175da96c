"""One open queue directory: its pages in order, its searches, its flushes.

Which pages there are is never cached: they run from the read meta's head page to the write meta's
active page. What is cached cannot change: the headers of pages that are part of the queue.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.ledger import progress
from pagequeue.page.compressed_page import Pool, open_page
from pagequeue.page.fragments import head_in
from pagequeue.page.page import Page, missing_page
from pagequeue.page.ring_maps import RingMaps, are_pages_kept
from pagequeue.page.spare import drop_spare, keep_spare
from pagequeue.store.clock import QueueClock
from pagequeue.store.flush import Flusher
from pagequeue.store.page_cache import PageCache
from pagequeue.store.policy import Limits, Unlimited
from pagequeue.store.published import published_end
from pagequeue.store.roll import Roller
from pagequeue.system.descriptors import await_others
from pagequeue.util.arguments import shown, whole
from pagequeue.util.closing import finalizer
from pagequeue.util.timestamps import system_clock
from pagequeue.util.weakly import weakly
from pagequeue.util.worker import Background
from pagequeue.wait.notifier import Notifier
from pagequeue.wait.shared_jobs import SharedJobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.read_meta import ReadMeta
    from pagequeue.meta.write_meta import Tail, WriteMeta
    from pagequeue.schema.schema import Schema
    from pagequeue.store.opening import Opening
    from pagequeue.store.policy import Policy
    from pagequeue.store.power_loss_recovery import RecoveryReport
    from pagequeue.system.directory import Directory

MAPS = ("write_meta", "read_meta")
CLOSE_SECONDS_MAX: Final = 60.0
"""Closing waits no longer than this for other threads, however long a lock may be waited for."""
Found = TypeVar("Found")


class Place(NamedTuple):
    """A place in the queue: a page, a position in it, and the sequence of the message there."""

    page: Page
    position: int
    sequence: int


class Store:
    """An open queue directory.

    Args:
        opening: of the directory; it is closed with the store, or if this fails.
        policy: what the store asks; it is not asked anything before this returns.
    """

    def __init__(self, opening: Opening, policy: Policy | None = None) -> None:
        self.prefix: str = opening.prefix
        self.read_only: bool = opening.read_only
        self.lock_timeout: float = opening.lock_timeout
        self.policy: Policy = policy or Unlimited()
        self.limits: Limits = self.policy.limits
        self._fork_count = _core.fork_count()
        self.background: Background = Background()
        self.compressing: Background = Background()  # takes longer than making a page may wait
        self._has_spare = False  # kept a retired page to be used again
        self._guard = threading.RLock()  # a finalizer may come back in
        self._notifier: Notifier | None = None
        self.jobs: SharedJobs = SharedJobs()
        self._opening = opening
        self.is_clock_known: bool = opening.is_clock_known
        self.folder: Directory = opening.folder
        self.meta: AllMeta = opening.meta
        self.report: RecoveryReport = opening.report
        self.schema: Schema = opening.schema
        self._pool = Pool(self.meta)
        is_kept = self.meta.is_ring and are_pages_kept(self.meta)
        self._ring_maps = RingMaps(self.folder, self.prefix, self.meta) if is_kept else None
        self.write_meta: WriteMeta = opening.write_meta
        self.read_meta: ReadMeta = opening.read_meta
        self.clock: QueueClock = QueueClock(
            None if opening.clock is system_clock else opening.clock,
            self.write_meta,
            self.folder.path,
            read_only=self.read_only,
            elapsed=_core.boottime if self.is_clock_known else None,
        )
        self.pages: PageCache = PageCache(self.folder, self.meta, self.read_meta, self.background)
        self._prefix_tail = opening.prefix_tail
        self._prefix_key = opening.write_meta.lock_key
        try:
            if not self.read_only:
                self._open_writing()
        except BaseException:
            self.close()
            raise

    @property
    def awaits_recovery(self) -> bool:
        """Whether this read-only store shows the valid prefix of a queue that was cut off.

        It ends when a writer has recovered the queue.
        """
        if self._prefix_tail is not None and self.write_meta.lock_key != self._prefix_key:
            self._prefix_tail = None
            self._opening.proved_headers.clear()
            self.pages.clear()
        return self._prefix_tail is not None

    def _open_writing(self) -> None:
        self.write_meta.check_lock()
        self.flusher: Flusher = Flusher(
            self.folder,
            self.write_meta,
            self.read_meta,
            self._opening.lock_on(fmt.read_meta_name(self.prefix)),
            partial(fmt.page_name, self.prefix),
            partial(fmt.index_name, self.prefix),
            self.clock,
            weakly(self, self.policy.rewrite) if self.policy.resumes else None,
        )
        preparation = self._opening.lock_on(
            fmt.all_meta_name(self.prefix), progress=partial(progress, self.folder, self.prefix)
        )
        self.roller: Roller = Roller(
            self.folder,
            self.prefix,
            self.meta,
            self.write_meta,
            self.read_meta,
            preparation,
            self.background,
            self.clock,
            self.lock_timeout,
            self.flusher.sync_removals,
        )
        self.clock.compare(self.tail.last_timestamp)

    @property
    def may_repair(self) -> bool:
        """Whether an index that is found to be wrong may be written again."""
        return not self.read_only and not self.folder.is_replaced

    @property
    def notifier(self) -> Notifier:
        """Wakes the coroutines that wait for this queue."""
        with self._guard:
            if self._notifier is None:
                self._notifier = Notifier(
                    self.write_meta, read_only=self.read_only, check_place=self.folder.check
                )
            notifier = self._notifier
        if self.folder.descriptor.is_closed:  # perhaps before it was there to be ended
            notifier.end()
        return notifier

    @property
    def is_closed(self) -> bool:
        """Whether no operation begins any more."""
        return self.folder.descriptor.is_closed

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child that inherited the store."""
        return _core.fork_count() != self._fork_count

    def check_appendable(self) -> None:
        """Raise if only a journal may append to this queue.

        Raises:
            JournalOnly: its messages are a journal's entries.
        """
        if self.schema.is_journal:
            raise errors.JournalOnly(
                "its messages are the entries of a journal",
                path=self.folder.path,
                remedy="open it with pagequeue.journal.Journal and call update, or send to another "
                "queue",
            )

    def check_process(self, what: str) -> None:
        """Raise if this process is a child that inherited the handle."""
        if self.is_forked:
            raise errors.ForkedError(
                f"this {what} belongs to the parent process",
                remedy="open the queue in the child",
                path=self.folder.path,
            )

    @property
    def head(self) -> tuple[int, int]:
        """The first readable page and its first sequence."""
        return self.read_meta.head

    @finalizer
    def __del__(self) -> None:
        """Every handle was dropped without being closed."""
        if "folder" in self.__dict__ and not self.is_forked:
            self.close(wait=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise what is wrong: the maps of a closed store are gone."""
            if name in MAPS:
                self.folder.descriptor.check()
            raise AttributeError(name)

    def close(self, *, wait: bool = True) -> None:
        """Close all that was opened; readers that hold a page keep it.

        No operation begins any more. One that has begun, in another thread or because this was
        called from a signal handler within it, keeps the files open until it ends, also beyond
        this call, which waits for it and for the store's threads for `lock_timeout`, at most
        `CLOSE_SECONDS_MAX` seconds. What an exception out of a signal handler interrupts is
        continued by calling again, and by dropping the store.
        """
        if self.is_forked:
            return  # the parent's: its locks and threads are not ours to end
        operations = self.folder.descriptor
        operations.close(self._release)
        ending = [self._notifier, self.compressing, self.__dict__.get("flusher"), self.background]
        threads = [one for one in ending if one is not None]
        for one in threads:
            one.end()
        if not wait or operations.is_inside:  # a thread may wait for what we interrupted
            return
        deadline = time.monotonic() + min(self.lock_timeout, CLOSE_SECONDS_MAX)
        for one in threads:
            one.await_end(max(0.0, deadline - time.monotonic()))
        await_others(operations, max(0.0, deadline - time.monotonic()))

    def _release(self) -> None:
        """Release the files; the last operation has ended."""
        if self._has_spare:
            with contextlib.suppress(errors.PageQueueError):  # recovery removes it as well
                drop_spare(self.folder, self.prefix)
        if "roller" in self.__dict__:
            self.flusher.forget_page()
            self.roller.close()
        if "pages" in self.__dict__:
            self.pages.clear()
        ring_maps = self.__dict__.get("_ring_maps")  # opening can have been interrupted before it
        if ring_maps is not None:
            ring_maps.clear()
        for name in MAPS:
            meta = self.__dict__.pop(name, None)
            if meta is not None:
                meta.close()  # the flusher and others still refer to it
        self._opening.release()

    # --- pages ------------------------------------------------------------------------------------

    @property
    def tail(self) -> Tail:
        """The tail; before recovery, the end of the valid prefix."""
        if self._prefix_tail is not None and self.awaits_recovery:
            return self._prefix_tail
        return self.write_meta.tail

    @property
    def published_end(self) -> int:
        """The sequence after the last message that readers find; the tail can be before it (I3)."""
        while True:
            tail = self.tail
            end = published_end(self.folder, self.prefix, self.meta, tail)
            if self.tail.page_number == tail.page_number:
                return end  # else retention may have removed that page before it was read

    def page(self, number: int) -> Page:
        """Return a page of the queue, mapped for reading.

        Raises:
            Expired: it is before the head.
            MissingPage: it should be there.
        """
        cached = self.pages.get(number)
        if cached is not None and number >= self.read_meta.head_page:
            return cached
        with self.folder.descriptor:  # until it is in the cache, which closing empties
            return self._page(number)

    def _page(self, number: int) -> Page:
        try:
            page = self._open_page(number)
        except errors.QueueNotFound as error:
            self.folder.check()
            head_page = self.read_meta.head_page
            if number < head_page:
                raise self.expired() from error
            raise missing_page(
                self.folder.full(fmt.page_name(self.prefix, number)), number
            ) from error
        self.pages.add(page)
        self.pages.drop_retired()
        return page

    def _open_page(self, number: int) -> Page:
        while True:
            page = None if self._ring_maps is None else self._ring_maps.page(number)
            if page is not None:
                return page
            try:
                header = self._opening.proved_headers.get(number)
                if header is not None:
                    return Page(self.folder, self.prefix, self.meta, number, header=header)
                return open_page(self.folder, self.prefix, self.meta, number, self._pool)
            except errors.SystemLimit:
                if not self._shrink():
                    raise

    def _shrink(self) -> bool:
        """Drop what is only kept, because maps, memory or descriptors are short; False: nothing."""
        had_maps = self._ring_maps is not None and self._ring_maps.clear()
        return self.pages.shrink() or had_maps

    def forget(self, number: int) -> None:
        """Drop a page whose file was replaced; readers of the old file keep its map."""
        self.pages.forget([number])

    def page_again(self, number: int) -> Page:
        """Return a page, mapped again: its file can have been replaced by one with the same frames.

        Raises:
            Expired, MissingPage: as for `page`.
        """
        self.forget(number)
        return self.page(number)

    def keep_spare(self, number: int) -> bool:
        """Keep a retired page to be used again, unless there is one; it is removed at the end."""
        kept = keep_spare(self.folder, self.prefix, number, self.meta.page_bytes)
        self._has_spare = self._has_spare or kept
        return kept

    def expired(self, remedy: str | None = None) -> errors.Expired:
        """Return the error for a place that retention passed; the remedy is to seek by default."""
        head = self.read_meta.head_sequence
        return errors.Expired(
            "retention passed this place",
            path=self.folder.path,
            head_sequence=head,
            seek_sequence=head if remedy is None else None,
            remedy=(remedy or "seek to {head}, the head").format(head=head),
        )

    def time_at(self, sequence: int) -> int:
        """Return when a message was sent, in ns since 1970, UTC.

        Raises:
            Expired: it is before the head. SequenceOutOfRange: it was never sent.
        """
        place = self.seek_sequence(sequence)
        return _core.peek(place.page.ready(place.position), place.position, sequence)[1]

    def file_bytes(self) -> int:
        """Return what is allocated on disk for all files of the queue, spare pages included."""
        total = 0
        pattern, within = fmt.file_pattern(self.prefix), fmt.directory_names(self.prefix)
        for name in self.folder.names():
            if pattern.fullmatch(name):
                status = self.folder.status(name)
                total += status.st_blocks if status is not None else 0  # retired in between
            elif name in within:
                total += self._blocks_below(name)
        return total * 512

    def _blocks_below(self, name: str) -> int:
        """Return the blocks of the files in a directory beside the queue's files."""
        total = 0
        with contextlib.suppress(OSError), self.folder.descriptor as folder:
            for _, _, files, there in os.fwalk(name, dir_fd=folder):
                for file in files:
                    with contextlib.suppress(FileNotFoundError):  # removed in between
                        total += os.stat(file, dir_fd=there, follow_symlinks=False).st_blocks
        return total

    def count(self, number: int, tail: Tail | None = None) -> int:
        """Return how many messages a page holds, as of now, or as of a tail.

        Raises:
            Expired: retention removed the tail's page meanwhile, and this one came after it.
        """
        tail = tail or self.tail
        if number == tail.page_number:
            return tail.count
        if number > tail.page_number:
            raise self.expired()
        if number + 1 == tail.page_number:
            return tail.first_sequence - self.first_sequence(number)
        return self.first_sequence(number + 1) - self.first_sequence(number)

    def first_sequence(self, number: int) -> int:
        """Return the first sequence of a page."""
        tail = self.tail
        if number == tail.page_number:
            return tail.first_sequence
        known = self.pages.first_sequences.get(number)
        if known is None:
            known = self.page(number).first_sequence
            if number < tail.page_number:
                self.pages.first_sequences[number] = known
        return known

    def end_sequence(self, number: int) -> int:
        """Return the current end sequence of a page: one past its last message."""
        tail = self.tail
        return tail.sequence if number == tail.page_number else self.first_sequence(number + 1)

    def page_of_sequence(self, sequence: int) -> int:
        """Return the number of the page that holds a sequence, or where it will come."""
        low, high = self.read_meta.head_page, self.tail.page_number
        while low < high:
            middle = (low + high + 1) // 2
            if self.first_sequence(middle) <= sequence:
                low = middle
            else:
                high = middle - 1
        return low

    def holds_over(self, size_bytes: int, sequence: int) -> bool:
        """Whether a large message from a sequence on has more bytes than this.

        The pages of one, after its first, and the page after them have the same first sequence: so
        few headers tell, and only the heads of such messages are read. A page that cannot be read
        counts for nothing here: its messages cannot be read either.
        """
        step = max(1, size_bytes // self.meta.page_bytes // 2)
        before = -1
        try:
            for number in range(self.page_of_sequence(sequence), self.tail.page_number + 1, step):
                first = self.first_sequence(number)
                if first == before and self._large_bytes(first - 1) > size_bytes:
                    return True
                before = first
        except errors.PageQueueError:
            return False
        return False

    def _large_bytes(self, sequence: int) -> int:
        """Return the size of a large message; 0: it is not a large one."""
        head = head_in(self.page(self.page_of_sequence(sequence)).ready(fmt.PAGE_HEADER_BYTES))
        return 0 if head is None else head.payload_bytes

    def while_retained(self, search: Callable[[], Found]) -> Found:
        """Return the result of a search in the pages; repeat it if retention advanced meanwhile.

        Raises:
            Expired: retention removed the requested place.
        """
        while True:
            head_page = self.read_meta.head_page
            try:
                return search()
            except errors.Expired:
                if self.read_meta.head_page == head_page:
                    raise

    def seek_sequence(self, sequence: int) -> Place:
        """Return the place of a message, or of the next to come.

        Raises:
            Expired: it is before the head. SequenceOutOfRange: it is after the tail.
        """
        sequence = whole("sequence", sequence)
        return self.while_retained(partial(self._seek_sequence, sequence))

    def seek_tail(self) -> Place:
        """Return the place of the next message to come, which retention never passes."""
        return self.while_retained(lambda: self._seek_sequence(self.tail.sequence))

    def _seek_sequence(self, sequence: int) -> Place:
        if 0 <= sequence < self.read_meta.head_sequence:
            raise self.expired()
        tail = self.tail
        if not 0 <= sequence <= tail.sequence:
            head_sequence = self.read_meta.head_sequence
            raise errors.SequenceOutOfRange(
                f"no message has sequence {shown(sequence)}",
                path=self.folder.path,
                head_sequence=head_sequence,
                tail_sequence=tail.sequence,
                remedy=f"seek to {head_sequence} up to {tail.sequence}",
            )
        number = self.page_of_sequence(sequence)
        if self.page(number).first_sequence > sequence:
            raise self.expired()  # retention advanced meanwhile
        count = self.count(number)
        repair = self.may_repair_index(number)
        page, position = self._in_page(
            number, lambda page: page.locate(sequence, count, repair=repair)
        )
        self.pages.keep(page)
        return Place(page, position, sequence)

    def _in_page(self, number: int, search: Callable[[Page], Found]) -> tuple[Page, Found]:
        """Return a page and what was found in it; of a file that was replaced, in the new one."""
        page = self.page(number)
        try:
            return page, search(page)
        except errors.CorruptFrame:
            if not self.pages.is_replaced(page):
                raise
        except errors.SystemLimit:
            if not self._shrink():
                raise
        page = self.page_again(number)
        return page, search(page)

    def may_repair_index(self, number: int) -> bool:
        """Whether an index may be written: not that of a page that retention took."""
        return self.may_repair and number >= self.read_meta.head_page

    def seek_head(self) -> Place:
        """Return the place of the first message that can be read."""
        while True:
            number = self.read_meta.head_page
            try:
                page = self.page(number)
            except errors.Expired:
                continue  # retention advanced meanwhile
            return Place(page, fmt.PAGE_HEADER_BYTES, page.first_sequence)

    def seek_since(self, since: int) -> Place:
        """Return the place of the first message that is not older than `since` ns."""
        return self.while_retained(partial(self._seek_since, since))

    def _seek_since(self, since: int) -> Place:
        head_page, tail = self.read_meta.head_page, self.tail
        low, high = head_page, tail.page_number
        while low < high:  # the last page whose first message is older, if there is one
            middle = (low + high + 1) // 2
            first = self.first_timestamp(middle)
            if first is not None and first < since:
                low = middle
            else:
                high = middle - 1
        count = self.count(low, tail)
        repair = self.may_repair_index(low)
        page, (ordinal, position) = self._in_page(
            low, lambda page: page.find(since, count, repair=repair)
        )
        self._note(page, count, tail)
        return Place(page, position, page.first_sequence + ordinal)

    def _note(self, page: Page, count: int, tail: Tail) -> None:
        """Keep a page to which a seek went, and remember which times lead to it."""
        self.pages.keep(page)
        before = None if self.awaits_recovery else self.own_first_timestamp(page.number)
        if before is None:
            return
        if page.number == tail.page_number:
            self.pages.learn(page, before, None, None)
        elif (last := self.first_timestamp(page.number + 1)) is not None:
            self.pages.learn(page, before, last, count)

    def first_timestamp(self, number: int) -> int | None:
        """Return the timestamp of a page's first message; None when it has none yet.

        An empty page, or one whose first message is damaged, has that of what follows it.
        """
        pages = range(number, self.tail.page_number + 1)
        return next(
            (known for n in pages if (known := self.own_first_timestamp(n)) is not None), None
        )

    def own_first_timestamp(self, number: int) -> int | None:
        """Return the timestamp of a page's first message; None when there is none that is right."""
        known = self.pages.first_timestamps.get(number)
        if known is None:
            known = self.page(number).first_timestamp()
            if known is not None:
                self.pages.first_timestamps[number] = known
        return known
