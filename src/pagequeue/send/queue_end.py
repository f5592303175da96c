"""QueueEnd: where messages are appended to a queue: which page is active, and which is next.

The core appends. What it cannot resolve (another page is active, the page is full, a sync failed, a
payload is refused) it leaves to the methods `_on_...`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import lost_meta
from pagequeue.meta.write_meta import Tail
from pagequeue.page.page import FIRST_SEQUENCE_AT
from pagequeue.send import refusals
from pagequeue.system.file_lock import LivenessLock
from pagequeue.util.closing import Closing
from pagequeue.util.timestamps import NS_PER_S
from pagequeue.util.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock

FIRST_AHEAD_BYTES: Final = 64 << 10
"""A producer that sends less than this takes its page faults as they come."""
SLOW_AHEAD_BYTES: Final = 2 << 20
"""Page faults are taken so far ahead of the tail. Not further: OS pages that stay untouched for
long are written to disk as zeros first."""
FAST_AHEAD_BYTES: Final = 24 << 20
"""The same for a fast producer: enough to last while the next page is created."""
FAST_BYTES_PER_S: Final = 40 << 20
PAUSE_SECONDS: Final = 0.0005
NS_MAX: Final = 2**62


class QueueEnd(_core.Writer, Closing):
    """Appends to one queue. Threads may share it; after a fork the child opens its own.

    Args:
        store: of the queue, open for writing.
        clock: returns ns; None: the system's.
        sync_every: so many messages are flushed by the call that sends them; 0: never.
        check: called while waiting for room; raises when what is sent is not wanted any more.
    """

    __slots__ = (
        "__weakref__",
        "_ahead_since",
        "_check",
        "_guard",
        "_job",
        "_lock_file",
        "_page",
        "_ready_page",
        "_store",
        "_told_reserved",
    )

    _store: Store
    _check: Callable[[], None] | None
    _page: WritablePage | None
    _ready_page: WritablePage | None
    _job: Callable[[], None]
    _told_reserved: int
    _guard: threading.RLock
    _lock_file: LivenessLock
    _ahead_since: tuple[float, int]

    def __new__(
        cls,
        store: Store,
        clock: Clock | None = None,
        sync_every: int = 0,
        check: Callable[[], None] | None = None,
    ) -> Self:
        """Attach to the active page."""
        with store.folder.descriptor:
            return cls._made(store, clock, sync_every, check)

    @classmethod
    def _made(
        cls, store: Store, clock: Clock | None, sync_every: int, check: Callable[[], None] | None
    ) -> Self:
        store.folder.check()  # else the error for a removed file would be QueueNotFound
        name = fmt.write_meta_name(store.prefix)
        lock_file = LivenessLock(store.folder.open(name, writable=True), store.folder.full(name))
        with lock_file.descriptor as fd:
            self = super().__new__(
                cls,
                store.write_meta.region,
                fd,
                store.write_meta.is_foreign,
                store.lock_timeout,
                clock,
                sync_every,
            )
        if store.limits.wait_seconds is not None:
            self._full_timeout = int(min(store.limits.wait_seconds * NS_PER_S, NS_MAX))
        self._store = store
        self._check = check
        self._lock_file = lock_file  # closed when no call is inside: the core has its descriptor
        self._guard = threading.RLock()
        self._page = None  # or the one before that of the core: see `_follow`
        self._ready_page = None  # the last one that the core was given for its next roll
        self._job = weakly(self, QueueEnd._look_ahead)
        self._told_reserved = -1  # of the page, to the core
        self._ahead_since = (0.0, 0)
        try:
            store.folder.admit(self)
            self._move()
        except BaseException:
            self._detach_all()
            raise
        return self

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        sync_every: int = 0,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`__new__` does everything, before any call of the core."""

    def close(self) -> None:
        """Unmap the page; a concurrent call of another thread ends first, or raises."""
        if self._store.is_forked:
            return  # the parent's: another thread of it may have been inside when it forked
        self._detach_all()
        # A call that is inside holds the writers' lock, or is about to: another process must not be
        # able to recover the queue before that call ends.
        deadline = time.monotonic() + self._store.lock_timeout
        while self._inside and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        if not self._inside:  # else it is closed with the handle, which that thread refers to
            self._lock_file.close()

    def _detach_all(self) -> None:
        with self._guard:
            self._page = self._ready_page = None
            self._detach()

    def _seal(self) -> None:
        """Seal the active page, even an empty one, and even after a failed sync."""
        store = self._store
        with store.folder.descriptor:
            self._roll_on(store.tail.page_number, store.limits.deadline(), None)

    # --- events of the core -----------------------------------------------------------------------

    def _check_open(self) -> None:
        """Raise unless this process may use the producer."""
        self._store.check_process("producer")
        if self._closed:
            raise refusals.closed(self._store)

    def _check_wanted(self) -> None:
        """Raise if what is sent is not wanted any more, or this was closed."""
        self._check_open()
        if self._check is not None:
            self._check()

    def _on_moved(self) -> None:
        self._move()

    def _on_full(self, blocked_ns: int) -> None:
        """Roll; the call may be blocked for so long."""
        self._roll_from(self._page_number, time.monotonic() + blocked_ns / NS_PER_S)

    def _on_failed(self) -> None:
        self._store.flusher.resume()

    def _on_place(self) -> None:
        self._store.folder.check()

    def _on_sync(self, end_sequence: int) -> None:
        self._flush_sent(end_sequence)

    def _on_closed(self) -> None:
        raise refusals.closed(self._store)

    def _on_forked(self) -> None:
        raise refusals.forked(self._store)

    def _on_too_large(self, size_bytes: int) -> None:
        if self._record_bytes:
            raise refusals.record_size(self._store, size_bytes)
        raise refusals.too_large(self._store)

    def _on_batch_too_large(self, _: int) -> None:
        raise refusals.too_large(self._store)

    def _on_wrong_size(self, size_bytes: int) -> None:
        raise refusals.record_size(self._store, size_bytes)

    def _on_old_timestamp(self, timestamp: int) -> None:
        raise refusals.old_timestamp(self._store, timestamp)

    def _on_overtaken(self, tail_sequence: int) -> None:
        raise refusals.overtaken(self._store, tail_sequence)

    def _on_starved(self, waited_ns: int) -> None:
        raise refusals.starved(self._store.folder.path, waited_ns / NS_PER_S)

    def _on_stalled(self, waited_ns: int) -> None:
        raise refusals.stalled(self._store, waited_ns)

    def _on_lost(self) -> None:
        self._follow()
        raise refusals.lost(self._store, self._page)

    def _on_no_lock(self, number: int) -> None:
        raise refusals.no_lock(self._store, number)

    def _on_exhausted(self) -> None:
        raise refusals.exhausted(self._store)

    def _on_damaged(self, _: int) -> None:
        raise self._damaged()

    def _flush_sent(self, end_sequence: int) -> None:
        """Flush after a send: the message is sent, so no error may read as if it was not."""
        with self._sent_already():
            self._store.flusher.flush(None, end_sequence)
            self._check_whole()

    def _sent_already(self) -> contextlib.AbstractContextManager[None]:
        """Turn the errors of a flush after a send into NotDurable."""
        return refusals.not_durable(
            self._store.folder.path,
            "sent and visible, but not on stable storage",
            "then flush, and do not send it again",
        )

    def _check_whole(self) -> None:
        """Raise if the active page or the write meta was truncated while it was open."""
        self._follow()
        page = self._page
        if self._store.write_meta.region.broken or (page is not None and page.region.broken):
            raise refusals.lost(self._store, page)

    def _damaged(self) -> errors.DamageError:
        """Return the error for an active page that is not as it was written."""
        return self._store.page(self._page_number).damage(None)

    # --- pages ------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Attach to the page that is active now, which another thread or process rolled to."""
        store = self._store
        with store.folder.descriptor, self._guard:
            self._check_open()
            while True:
                tail = store.tail
                if tail.page_number == 0:  # truncated inside its only OS page: zeros
                    raise lost_meta(store.write_meta.path, 0)
                if self._page_number == tail.page_number:
                    self._follow()
                    return  # another thread did it
                try:
                    page = store.roller.page(tail.page_number)
                    break
                except (errors.QueueNotFound, errors.CorruptPage):
                    if store.tail.page_number == tail.page_number:
                        raise  # else others rolled again, and this page was retired or compressed
            self._follow()  # else the page before would be forgotten without what follows its roll
            self._ahead_since = (time.monotonic(), tail.position)
            ahead_at = tail.position + FIRST_AHEAD_BYTES
            if store.meta.is_ring and page.populated >= len(page.region):
                is_filling = store.policy.has_room(store, page.number + 1)
                ahead_at = len(page.region) // (4 if is_filling else 1)
            self._attach(
                page.region,
                page.index,
                page.number,
                tail.first_sequence,
                ahead_at,
                *page.reserved_bytes,
            )
            self._told_reserved = page.reserved
            # Kept only now that the core has attached: an exception before changes nothing.
            old: list[object] = [self._page]
            is_renewable = self._page is not None and self._page.region.is_renewable
            self._page = page
            self._ready_page = None
            store.roller.forget_before(page.number)
            if not is_renewable:  # else the roller has it, and to wake the thread costs more
                store.background.drop(old)

    def _on_unreserved(self, frames_bytes: int) -> None:
        """Reserve blocks of the active page for so many bytes of frames.

        Raises:
            DiskFull, SystemLimit: it has none left; nothing was sent.
        """
        store, number = self._store, self._page_number
        tail = store.tail
        if tail.page_number != number:
            return  # the core finds that out
        # Not `_page`: a signal handler can send when the core has attached to a later one.
        page = store.roller.page(number)
        end = tail.position + frames_bytes + fmt.FRAME_HEADER_BYTES
        if end <= page.reserved == self._told_reserved:
            end = page.reserved + 1  # of the index it is too little: the messages are tiny
        try:
            with store.folder.descriptor:
                page.reserve(end)
        except errors.QueueNotFound:
            if store.tail.page_number == page.number:
                raise
        self._tell_reserved(page)

    def _tell_reserved(self, page: WritablePage) -> None:
        with self._guard:
            if self._page_number == page.number:
                self._told_reserved = page.reserved
                self._reserved(*page.reserved_bytes)

    def _roll_from(
        self,
        number: int,
        deadline: float = math.inf,
        check: Callable[[], None] | None = None,
    ) -> int | None:
        """Seal page `number`, if it is still the active one, and continue in the next one.

        Args:
            number: of the page.
            deadline: until when to wait for room, in seconds of the monotonic clock.
            check: raises when the roll is not wanted any more.

        Returns:
            the first sequence of the next page; None: another thread or process sealed this one,
            or it was sealed to continue after a failed sync.
        """
        flusher = self._store.flusher
        with self._store.folder.descriptor:
            try:
                return self._roll_on(number, deadline, check)
            except errors.SyncFailed:  # the names of a dead publisher's pages
                if not flusher.can_resume:
                    raise
                flusher.resume()
        return None

    def _roll_on(
        self, number: int, deadline: float, check: Callable[[], None] | None
    ) -> int | None:
        store = self._store
        first_sequence = None
        while store.tail.page_number == number:
            # Without the guard: this may wait for consumers to make room, and closing must not.
            try:
                next_page = self._next_page(number + 1, deadline, check or self._check_wanted)
            except (errors.QueueNotFound, errors.CorruptPage):
                if store.tail.page_number == number:
                    raise
                break  # others rolled again, and this page was retired or compressed
            with self._guard:
                if not self._is_at(number):
                    return None  # another process rolled meanwhile
                self._follow()
                result = self._roll(next_page.region, store.roller.header(next_page))
                if result == _core.APPEND_LOST:
                    raise refusals.lost(
                        self._store, next_page if next_page.region.broken else self._page
                    )
                if result not in {_core.APPEND_DONE, _core.APPEND_MOVED}:
                    raise self._damaged()
                if result == _core.APPEND_DONE:
                    # From its map: retention may have removed the file already.
                    first_sequence = next_page.region.load(FIRST_SEQUENCE_AT)
                    self._after_roll(first_sequence)
        self._move()
        return first_sequence

    def _next_page(self, number: int, deadline: float, check: Callable[[], None]) -> WritablePage:
        """Return a page that may not exist yet.

        Raises:
            DiskFull: the disk is full. QueueFull: the limit of retention is reached.
            LockTimeout, LockReplaced: as for `Roller.next_page`.
        """
        store, roller = self._store, self._store.roller
        if roller.made(number) is None:
            renewed = store.policy.renew(store, number)
            if renewed is not None:
                return renewed
            with store.folder.descriptor:
                ask_for_room(store, number, check, deadline)  # a ring's mostly makes the page
        return roller.next_page(number, self._commit_pages)

    def _is_at(self, number: int) -> bool:
        """Whether a page is the active one, or was a moment ago, which the core compares."""
        if self._page_number != number:
            self._move()
        return self._page_number == number

    def _freeze_page(self) -> Tail | None:
        """Stop all processes from writing to the active page; None: try again (M3)."""
        self._check_open()
        self._move()
        result, *words = self._freeze()
        if result == _core.APPEND_LOST:
            raise refusals.lost(self._store, self._page)
        if result == _core.APPEND_DAMAGED:
            raise self._damaged()
        return Tail(*words) if result == _core.APPEND_DONE else None

    def _commit_pages(self, page: _core.Region, header: bytes, beyond: Tail) -> None:
        """Publish all pages from the next one to a tail (M6 to M8).

        No error follows their publication: this producer attaches to the last page when it needs
        that.

        Raises:
            CorruptPage: other messages were written before them. SyncFailed: the queue is latched.
        """
        words = (
            beyond.page_number,
            beyond.position,
            beyond.count,
            beyond.first_sequence,
            beyond.last_timestamp,
        )
        self._move()
        result = self._bulk_commit(page, header, words)
        if result == _core.APPEND_LOST:
            raise refusals.lost(self._store, self._page)
        if result == _core.APPEND_FAILED:
            raise self._store.flusher.failed(self._store.write_meta.failed_errno)
        if result == _core.APPEND_DAMAGED or (
            result == _core.APPEND_MOVED and self._store.tail.page_number < beyond.page_number
        ):
            raise self._damaged()

    def _after_roll(self, first_sequence: int) -> None:
        """Have done in the background what follows a roll from `_page`."""
        store, old = self._store, self._page
        # The pages of a ring are used again, whole.
        if old is not None and old.is_large and not store.meta.is_ring:
            count = first_sequence - old.region.load(FIRST_SEQUENCE_AT)
            store.background.submit_later(partial(_release, store, old, count))
        store.policy.rolled(store)

    def _follow(self) -> bool:
        """Do what follows a roll that the core made into the page that was ready.

        Returns:
            whether it made one since the last call.
        """
        with self._guard:
            page = self._ready_page
            if page is None or page.number != self._page_number or self._closed:
                return False
            self._ready_page = None
            then, there = self._ahead_since
            before = self._page
            self._ahead_since = (then, there - (0 if before is None else len(before.region)))
            if before is not None:
                self._after_roll(page.region.load(FIRST_SEQUENCE_AT))
            old: list[object] = [before]
            del before
            self._page = page
            self._store.roller.forget_before(page.number)
            self._store.background.drop(old)
            return True

    def _on_ahead(self, position: int) -> None:
        """Let the background look ahead: page faults, and the next page; the message is sent."""
        with contextlib.suppress(errors.ClosedError):
            if not self._store.background.submit(self._job):  # it has no thread
                self._ahead(position + SLOW_AHEAD_BYTES)

    def _look_ahead(self) -> None:
        """Take page faults ahead of the tail, and make the next page; called in the background."""
        store = self._store
        with store.folder.descriptor:
            has_rolled = self._follow()
            page, tail = self._page, store.tail
            if page is None or self._closed or tail.page_number != page.number:
                return  # it is done again in the page that is active by now
            if has_rolled and tail.position < FIRST_AHEAD_BYTES:
                self._ahead(fmt.PAGE_HEADER_BYTES + FIRST_AHEAD_BYTES)
                return
            if store.meta.is_ring:
                self._make_fresh(page.number + 1)
            self._populate_ahead(page, tail)
            self._make_ready(page.number + 1)
            if self._ready_page is None:  # it is being made
                job = weakly(self, QueueEnd._make_ready, page.number + 1)
                store.background.submit(job)

    def _make_fresh(self, number: int) -> None:
        """Make a page of a ring that is not full yet, in this thread: it takes milliseconds.

        Later pages are made by the roll itself, which uses old ones again: a thread would stop the
        sender for as long, and has to wait for the GIL.
        """
        store = self._store
        if store.roller.made(number) is None and store.policy.has_room(store, number):
            store.roller.next_page(number)

    def _populate_ahead(self, page: WritablePage, tail: Tail) -> None:
        store, position = self._store, tail.position
        then, there = self._ahead_since
        now = time.monotonic()
        self._ahead_since = (now, position)
        fast = position - there > (now - then) * FAST_BYTES_PER_S
        reach = FAST_AHEAD_BYTES if fast else SLOW_AHEAD_BYTES
        page_bytes = len(page.region)
        end = min(position + reach, page_bytes)
        start = page.plan_faults(position, end)
        frame_bytes = position / max(tail.count, 1)
        # A flush writes every folio that has a changed byte, whole, and filling makes large ones.
        is_filled = fast and not store.write_meta.is_durable_inside(tail)
        # The first page of a queue that will stay small is not followed by a whole second one.
        soon = page_bytes // (4 if page.number == fmt.FIRST_PAGE else page_bytes)
        following = position + reach // 4
        self._ahead(min(following, soon) if position < soon else following)
        is_whole = end == page_bytes  # then the next page is more urgent
        if end > start and not is_whole:
            self._populate(page, start, end, frame_bytes)
        if (fast and position >= soon) or position >= page_bytes // 2:
            store.roller.prepare(
                page.number + 1,
                weakly(store, ask_for_room, page.number + 1),
                reach=reach,
                filled_bytes=page_bytes if is_filled else 0,
                frame_bytes=frame_bytes,
            )
        if end > start and is_whole:
            job = weakly(self, QueueEnd._populate, page, start, end, frame_bytes)
            store.background.submit(job)

    def _populate(self, page: WritablePage, start: int, end: int, frame_bytes: float) -> None:
        with self._store.folder.descriptor:
            page.populate(start, end, frame_bytes)
            self._tell_reserved(page)

    def _make_ready(self, number: int) -> None:
        """Give the next page to the core, so that its roll needs no call of Python."""
        store = self._store
        # A ring makes it when it is needed.
        page = None if store.meta.is_ring else store.roller.made(number)
        if page is None:
            return
        header = store.roller.header(page)
        with store.folder.descriptor, self._guard:
            if (
                self._ready_page is None
                and self._page_number + 1 == number
                and self._ready(
                    page.region,
                    page.index,
                    number,
                    *page.reserved_bytes,
                    header,
                    store.folder.descriptor,
                    store.folder.watched,
                )
            ):
                self._ready_page = page


def ask_for_room(
    store: Store,
    number: int,
    check: Callable[[], None] | None = None,
    deadline: float = math.inf,
) -> None:
    """Make room for a page; not after a failed sync, when a page is needed to continue.

    Args:
        store: of the queue.
        number: of the page.
        check: raises when the page is not needed any more; None: no sender waits for it.
        deadline: until when to wait, in seconds of the monotonic clock.
    """
    if (
        store.limits.pages < math.inf
        and number > store.write_meta.tail.page_number
        and not store.write_meta.is_failed
        and not store.folder.exists(fmt.page_name(store.prefix, number))
    ):
        store.policy.make_room(store, number, check, deadline)


def _release(store: Store, page: WritablePage, count: int) -> None:
    """Give back blocks that a sealed page does not need."""
    with store.folder.descriptor:
        page.release(count)
