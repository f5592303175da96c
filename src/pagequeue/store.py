"""One open queue directory: its meta files, its pages in order, its locks, its flushes.

Which pages there are is never cached: they run from the read meta's head page to the write meta's
active page. What is cached cannot change: the headers of pages that are part of the queue.
"""

from __future__ import annotations

import logging
import operator
import os
import random
import threading
import time
import uuid
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.background import Background
from pagequeue.files import Folder
from pagequeue.flush import Flusher
from pagequeue.locks import FileLock
from pagequeue.meta import AllMeta, ReadMeta, WriteMeta, read_all_meta, write_all_meta
from pagequeue.page import REMEDY, Page
from pagequeue.recover import Recovery, RecoveryReport
from pagequeue.roll import Roller

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta import Tail

log = logging.getLogger("pagequeue")
CACHED_PAGES = 4
RETRY_SECONDS = 0.01


class Place(NamedTuple):
    """A place in the queue: a page, a position in it, and the sequence that stands there."""

    page: Page
    position: int
    sequence: int


class Store:
    """An open queue directory.

    Args:
        path: of the directory.
        prefix: of all file names.
        create: make the queue if there is none.
        read_only: write no byte and take no lock.
        page_bytes: of a new queue; of an existing one it must be the same; None takes what is.
        lock_timeout: seconds to wait for any lock before a typed error.
        clock: ns since 1970, UTC.
    """

    def __init__(
        self,
        path: str,
        prefix: str,
        *,
        create: bool,
        read_only: bool,
        page_bytes: int | None,
        lock_timeout: float,
        clock: Callable[[], int],
    ) -> None:
        self.prefix = prefix
        self.read_only = read_only
        self.clock = clock
        self.lock_timeout = lock_timeout
        self.report = RecoveryReport()
        self._pid = os.getpid()
        self.background = Background()
        self._locks: list[FileLock] = []
        self._cache: OrderedDict[int, Page] = OrderedDict()
        self._first_timestamps: dict[int, int] = {}
        self._guard = threading.RLock()  # a finalizer may come back in
        self.folder = Folder(path, create=create and not read_only)
        try:
            self.meta = (
                self._open_to_read()
                if read_only
                else self._open_to_write(page_bytes, create=create)
            )
            self._check_page_bytes(page_bytes)
            queue_id, writable = self.meta.queue_id, not read_only
            self.write_meta = WriteMeta(self.folder, prefix, queue_id, writable=writable)
            self.read_meta = ReadMeta(self.folder, prefix, queue_id, writable=writable)
            self._check_made()
            self._prefix_tail = self._unrecovered_tail() if read_only else None
            if not read_only:
                self._open_writing()
        except BaseException:
            self.close()
            raise

    # --- opening ----------------------------------------------------------------------------------

    def _no_queue(self) -> errors.QueueNotFound:
        return errors.QueueNotFound(
            f"no queue with prefix {self.prefix!r} here: check directory and prefix, "
            "it is made when opened for writing with create=True",
            path=self.folder.path,
        )

    def _check_made(self) -> None:
        tail = self.write_meta.tail
        if tail.page_number == 0:
            raise self._no_queue()  # it is being made right now
        if not (
            self.read_meta.head_page <= tail.page_number <= fmt.PAGE_NUMBER_MAX
            and fmt.PAGE_HEADER_BYTES <= tail.position < self.meta.page_bytes
            and self.read_meta.head_sequence <= tail.sequence <= fmt.SEQUENCE_MAX
        ):
            raise errors.CorruptMeta(
                f"it says that writing stands at {tail}, which cannot be: remove this file and "
                "open the queue for writing, it is made again from the pages",
                path=self.write_meta.path, position=0, reason="tail",
            )  # fmt: skip

    def _unrecovered_tail(self) -> Tail | None:
        """Return where the valid prefix ends, if a writer must recover the queue first."""
        if self.write_meta.is_this_boot:
            return None
        tail = Recovery(self.folder, self.prefix, self.meta, self.clock).prefix_tail(
            self.read_meta, self.write_meta
        )
        log.warning(
            "%s: read up to message %d; what follows awaits recovery by a writer",
            self.folder.path, tail.sequence,
        )  # fmt: skip
        return tail

    @property
    def awaits_recovery(self) -> bool:
        """Whether this read-only store shows the valid prefix of a queue that was cut off.

        It ends when a writer has recovered the queue.
        """
        if self._prefix_tail is not None and self.write_meta.is_this_boot:
            self._prefix_tail = None
            self._cache.clear()
        return self._prefix_tail is not None

    def _has_meta(self) -> bool:
        return self.folder.exists(fmt.all_meta_name(self.prefix))

    def _open_to_read(self) -> AllMeta:
        for name in (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name):
            if not self.folder.exists(name(self.prefix)):
                raise self._no_queue()
        return read_all_meta(self.folder, self.prefix)

    def _open_to_write(self, page_bytes: int | None, *, create: bool) -> AllMeta:
        """Take `queue.lock`; the first one in, alone, creates or recovers the queue."""
        if not create and not self._has_meta():
            raise self._no_queue()
        if self._has_meta():
            self.meta = read_all_meta(self.folder, self.prefix)
            self._check_page_bytes(page_bytes)
        presence = self._lock_on(fmt.lock_name(self.prefix), make=True)
        deadline = time.monotonic() + self.lock_timeout
        while True:
            if presence.try_exclusive():
                meta = self._create_or_recover(page_bytes)
                # Another opener can come in between here and recover again: nobody has laid
                # anything down yet, so that changes nothing.
                presence.share(self.lock_timeout)
                return meta
            presence.share(self.lock_timeout)
            if self._is_recovered():
                return read_all_meta(self.folder, self.prefix)
            # Whoever was creating or recovering it died: one of those who waited does it.
            presence.release()
            if time.monotonic() > deadline:
                raise errors.LockTimeout(
                    "it must be recovered, and other processes keep it open: close it there, "
                    "then open it again",
                    path=self.folder.path,
                )
            time.sleep(random.uniform(0, RETRY_SECONDS))  # noqa: S311 - only not in step

    def _is_recovered(self) -> bool:
        """Whether somebody finished creating or recovering the queue, in this boot."""
        names = (fmt.all_meta_name, fmt.read_meta_name, fmt.write_meta_name)
        if not all(self.folder.exists(name(self.prefix)) for name in names):
            return False
        meta = read_all_meta(self.folder, self.prefix)
        write = WriteMeta(self.folder, self.prefix, meta.queue_id, writable=False)
        return write.is_this_boot and write.tail.page_number > 0

    def _create_or_recover(self, page_bytes: int | None) -> AllMeta:
        if self._has_meta():
            meta = read_all_meta(self.folder, self.prefix)
        else:
            self._refuse_headless()
            meta = AllMeta(
                queue_id=uuid.uuid4().bytes,
                created=self.clock(),
                page_bytes=fmt.PAGE_BYTES_DEFAULT if page_bytes is None else page_bytes,
            )
            # Dies behind this: a queue without pages, which the next opener completes.
            write_all_meta(self.folder, self.prefix, meta)
        self.report = Recovery(self.folder, self.prefix, meta, self.clock).run()
        return meta

    def _refuse_headless(self) -> None:
        """Pages without their allMeta are somebody's data: never start a new queue over them."""
        pattern = fmt.page_name_pattern(self.prefix)
        if any(pattern.fullmatch(name) for name in self.folder.names()):
            raise errors.CorruptMeta(
                f"missing, though there are pages with this prefix: {REMEDY}",
                path=self.folder.full(fmt.all_meta_name(self.prefix)),
                position=0, reason="missing",
            )  # fmt: skip

    def _check_page_bytes(self, page_bytes: int | None) -> None:
        if page_bytes is not None and page_bytes != self.meta.page_bytes:
            raise errors.PageSizeMismatch(
                f"the queue has pages of {self.meta.page_bytes} bytes, not {page_bytes}: "
                "leave page_bytes out, or choose another directory or prefix",
                path=self.folder.path, page_bytes=self.meta.page_bytes,
            )  # fmt: skip

    def _lock_on(self, name: str, *, make: bool = False) -> FileLock:
        fd = self.folder.open(name, writable=make, make=make)
        lock = FileLock(fd, self.folder.full(name))
        self._locks.append(lock)
        return lock

    def _open_writing(self) -> None:
        self.write_meta.check_lock()
        self.flusher = Flusher(
            self.folder,
            self.write_meta,
            self.read_meta,
            self._lock_on(fmt.read_meta_name(self.prefix)),
            partial(fmt.page_name, self.prefix),
            partial(fmt.index_name, self.prefix),
        )
        self.roller = Roller(
            self.folder,
            self.prefix,
            self.meta,
            self.write_meta,
            self._lock_on(fmt.all_meta_name(self.prefix)),
            self.background,
            self.clock,
            self.lock_timeout,
        )

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child that inherited the store."""
        return os.getpid() != self._pid

    def check_process(self, kind: str) -> None:
        """Raise if this process is a child that inherited the handle."""
        if self.is_forked:
            raise errors.ForkedError(
                f"this {kind} belongs to the parent process: open the queue in the child",
                path=self.folder.path,
            )

    def __del__(self) -> None:
        """Every handle was dropped without being closed."""
        if hasattr(self, "folder") and not self.is_forked:
            self.close(wait=False)

    def close(self, *, wait: bool = True) -> None:
        """Let go of everything; readers that hold a page keep it."""
        if not self.read_only and hasattr(self, "roller"):
            self.flusher.close()
            self.roller.close()
        self.background.close(wait=wait)
        for lock in self._locks:
            lock.close()
        self._cache.clear()
        for meta in ("write_meta", "read_meta"):
            if hasattr(self, meta):
                getattr(self, meta).close()
                delattr(self, meta)
        self.folder.close()

    # --- pages ------------------------------------------------------------------------------------

    @property
    def tail(self) -> Tail:
        """Where writing stands; before recovery, where the valid prefix ends."""
        if self._prefix_tail is not None and self.awaits_recovery:
            return self._prefix_tail
        return self.write_meta.tail

    def page(self, number: int) -> Page:
        """Return a page of the queue, mapped for reading.

        Raises:
            Expired: it is before the head.
            MissingPage: it should be there.
        """
        cached = self._cache.get(number)
        if cached is not None and number >= self.read_meta.head_page:
            try:  # noqa: SIM105 - a hot path
                self._cache.move_to_end(number)
            except KeyError:
                pass  # another thread, or a finalizer, came in between
            return cached
        try:
            page = Page(self.folder, self.prefix, self.meta, number)
        except errors.QueueNotFound as error:
            head_page = self.read_meta.head_page
            if number < head_page:
                raise self.expired() from error
            raise errors.MissingPage(
                f"page {number} is not there: {REMEDY}",
                path=self.folder.full(fmt.page_name(self.prefix, number)),
                position=0, reason="missing page",
            ) from error  # fmt: skip
        old: list[object] = []
        with self._guard:
            self._cache[number] = page
            if len(self._cache) > CACHED_PAGES:
                old.append(self._cache.popitem(last=False))
        if old:
            self.background.drop(old)
        return page

    def expired(self) -> errors.Expired:
        """Return the error for a place that retention passed."""
        head = self.read_meta.head_sequence
        return errors.Expired(
            f"retention passed this place: seek to {head}, the head",
            path=self.folder.path, head_sequence=head,
        )  # fmt: skip

    def count(self, number: int, tail: Tail | None = None) -> int:
        """Return how many messages a page holds, as of now, or as of a tail."""
        tail = tail or self.tail
        if number == tail.page_number:
            return tail.count
        if number + 1 == tail.page_number:
            return tail.first_sequence - self.page(number).first_sequence
        return self.page(number + 1).first_sequence - self.page(number).first_sequence

    def first_sequence(self, number: int) -> int:
        """Return the first sequence of a page."""
        tail = self.tail
        at_tail = number == tail.page_number
        return tail.first_sequence if at_tail else self.page(number).first_sequence

    def end_sequence(self, number: int) -> int:
        """Return the sequence behind a page's last message, as of now."""
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

    def seek_sequence(self, sequence: int) -> Place:
        """Return the place of a message, or of the next to come.

        Raises:
            Expired: it is before the head. SequenceOutOfRange: it is behind the tail.
        """
        sequence = operator.index(sequence)
        if 0 <= sequence < self.read_meta.head_sequence:
            raise self.expired()
        tail = self.tail
        if not 0 <= sequence <= tail.sequence:
            raise errors.SequenceOutOfRange(
                f"no message has sequence {sequence}: seek to {self.read_meta.head_sequence} "
                f"up to {tail.sequence}",
                path=self.folder.path, head_sequence=self.read_meta.head_sequence,
                tail_sequence=tail.sequence,
            )  # fmt: skip
        number = self.page_of_sequence(sequence)
        page = self.page(number)
        position = page.locate(sequence, self.count(number), mend=not self.read_only)
        return Place(page, position, sequence)

    def seek_head(self) -> Place:
        """Return the place of the first message that can be read."""
        while True:
            number = self.read_meta.head_page
            try:
                page = self.page(number)
            except errors.Expired:
                continue  # retention went on in between
            return Place(page, fmt.PAGE_HEADER_BYTES, page.first_sequence)

    def seek_since(self, since: int) -> Place:
        """Return the place of the first message that is not older than `since` ns."""
        tail = self.tail
        low, high = self.read_meta.head_page, tail.page_number
        while low < high:  # the last page whose first message is older, if there is one
            middle = (low + high + 1) // 2
            first = self._first_timestamp(middle)
            if first is not None and first < since:
                low = middle
            else:
                high = middle - 1
        page = self.page(low)
        ordinal, position = page.find(since, self.count(low, tail), mend=not self.read_only)
        return Place(page, position, page.first_sequence + ordinal)

    def _first_timestamp(self, number: int) -> int | None:
        """Return the timestamp of a page's first message; None when it has none yet."""
        known = self._first_timestamps.get(number)
        if known is not None:
            return known
        last = self.tail.page_number
        for page_number in range(number, last + 1):  # an empty page: what follows it decides
            known = self.page(page_number).first_timestamp()
            if known is not None:
                self._first_timestamps[page_number] = known
                return known
        return None
