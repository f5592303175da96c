"""Producer: sends messages, and makes them durable.

The hot path is the core's `Writer.send`; here stands what it cannot settle by itself: another page
is active, the page is full, the queue failed, the payload does not fit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.columns.inputs import PLAIN, FixedRows, check_count, columns_of, times_of
from pagequeue.meta.all_and_read_meta import lost_meta
from pagequeue.meta.write_meta import Tail
from pagequeue.page.page import lost_page
from pagequeue.send.async_send import AwaitedSends, DeferredEvents
from pagequeue.send.producer_errors import refusal
from pagequeue.system.file_lock import LivenessLock
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Buffer

    from pagequeue.columns.inputs import ColumnInput
    from pagequeue.page.page import WritablePage
    from pagequeue.send.async_send import Many, Times
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock

FIRST_AHEAD_BYTES = 64 << 10
"""A producer that sends less than this takes its page faults as they come."""
SLOW_AHEAD_BYTES = 2 << 20
"""Page faults are taken so far ahead of the tail. Not further: OS pages that stay untouched for
long are written to disk as zeros first."""
FAST_AHEAD_BYTES = 24 << 20
"""The same for a producer that is fast: enough to last while the next page is made."""
FAST_BYTES_PER_S = 40 << 20
PAUSE_SECONDS = 0.0005


class Producer(_core.Writer, AwaitedSends, Closing):
    """Sends messages to one queue. Threads may share it; after a fork the child opens its own.

    Made by `Queue.producer()`.
    """

    __slots__ = ("__weakref__", "_ahead_since", "_aside", "_guard", "_lock_file", "_page", "_store")

    _store: Store
    _page: WritablePage | None
    _guard: threading.RLock
    _lock_file: LivenessLock
    _ahead_since: tuple[float, int]
    _aside: DeferredEvents

    def __new__(cls, store: Store, clock: Clock | None = None, sync_every: int = 0) -> Self:
        """Attach to the active page of an open store; `clock` returns ns, None = the system's."""
        with store.folder.descriptor:
            return cls._made(store, clock, sync_every)

    @classmethod
    def _made(cls, store: Store, clock: Clock | None, sync_every: int) -> Self:
        store.folder.check()  # else what was removed is only said to be not there
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
        self._store = store
        self._lock_file = lock_file  # closed when nobody is inside: the core has its number
        self._guard = threading.RLock()
        self._page = None
        self._ahead_since = (0.0, 0)
        self._aside = DeferredEvents()
        try:
            store.folder.admit(self)
            self._move()
        except BaseException:
            self._detach_all()
            raise
        return self

    def __init__(self, store: Store, clock: Clock | None = None, sync_every: int = 0) -> None:
        """Everything is done in `__new__`, before the core can be asked for anything."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"page {self._page_number}"
        return f"<Producer of {self._store.folder.path!r}, {state}>"

    def send_many(self, payloads: Many, *, timestamps: Times | None = None) -> range:
        """Make messages visible to every process, all at once or not at all.

        Args:
            payloads: C-contiguous bytes-like objects; or, copied without an object for each: a
                NumPy array of bytes (without the zeros at their ends) or of records, an Arrow array
                of binary or string values. With a `dtype`, records of it, or a table of Arrow's
                with its fields as columns; with a codec, objects. They must fit into one page.
            timestamps: for each of them, int64 ns since 1970 or datetime64, shape (n,), for
                replaying history: never going back, and none before the last one in the queue.

        Returns:
            Their sequences, consecutive.

        Raises:
            TypeError: one of them is not bytes-like, or holds addresses of objects; nothing was
                sent.
            InvalidOption: there is not one timestamp for each of them.
            MessageTooLarge: one of them, or all together, do not fit into a page; carries
                `fitting_count`.
            NotEncodable, DtypeMismatch, RecordSize: they are not what the queue holds.
            TimestampOrder: a time is earlier than the one before it.
            QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `send`.

        Source: FORMAT.md, "Publishing"; keeps I2, I8.
        """
        times = times_of(timestamps)
        columns = None if type(payloads) in PLAIN else self._in_columns(payloads)
        if columns is None:
            items = self._one_by_one(payloads)
            if times is not None:
                items = tuple(items)
                check_count(times, len(items))
            sent = self._send_many(items, times)
        elif isinstance(columns, FixedRows):
            check_count(times, columns.count)
            sent = self._send_rows(columns.columns, columns.row_bytes, times)
        else:
            check_count(times, columns.count)
            sent = self._send_spans(columns.parts, columns.count, times)
        if sent is None:
            tail = self._store.tail.sequence
            return range(tail, tail)
        first, count = sent
        return range(first, first + count)

    def _in_columns(self, payloads: object) -> ColumnInput | None:
        """Return what is to be sent as columns; None: it is not in columns."""
        return columns_of(payloads)

    def _one_by_one(self, payloads: Iterable[Any]) -> Iterable[Buffer]:
        """Return the payloads of what is to be sent."""
        return payloads

    def flush(self, timeout: float | None = None) -> int:
        """Put all that this or any other process has sent so far on stable storage.

        Args:
            timeout: seconds to wait for another process that is flushing; None waits for ever.

        Returns:
            The durable sequence: every message below it is on stable storage.

        Raises:
            SyncFailed: a sync failed; the queue is latched and nothing more can be sent.
            FlushTimeout: another process was flushing for too long.
            CorruptPage, CorruptMeta: a file was truncated while it was open.

        Source: FORMAT.md, "Flushing"; keeps I5.
        """
        self._check_open()
        durable = self._store.flusher.flush(timeout)
        self._check_whole()
        return durable

    def close(self) -> None:
        """Let go of the page. What was sent stays; closing again does nothing.

        A `send` of another thread that is under way is waited for, or ends in `ClosedError`.
        """
        if self._store.is_forked:
            return  # the parent's: another thread of it may have been inside when it forked
        self._detach_all()
        # Whoever is inside still holds the writers' lock, or is about to: the queue must not be
        # given up for others to recover before.
        deadline = time.monotonic() + self._store.lock_timeout
        while self._inside and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        if not self._inside:  # else it goes with the handle, which that thread has
            self._lock_file.close()

    def _detach_all(self) -> None:
        with self._guard:
            self._page = None
            self._detach()

    def rotate(self) -> None:
        """Seal the active page and go on in a new one; an empty page stays as it is."""
        self._check_open()
        store = self._store
        with store.folder.descriptor:
            if store.write_meta.failed_errno:
                self._on_event(_core.EVENT_FAILED, 0)
            if store.tail.count > 0:
                self.seal()

    def seal(self) -> None:
        """Seal the active page, also an empty one, and also after a failed sync."""
        self._roll_from(self._store.tail.page_number)

    # --- what the core asks -----------------------------------------------------------------------

    def _check_open(self) -> None:
        self._store.check_process("producer")
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> errors.ClosedError:
        """Return the error for a producer that was closed, or stopped: then it says why.

        Raises:
            LockReplaced: that is why.
        """
        if self._store.folder.is_replaced:
            self._store.folder.check()
        return errors.ClosedError(
            "this producer is closed: make another one with queue.producer()",
            path=self._store.folder.path,
        )

    def _on_event(self, event: int, value: int) -> bool:
        """Settle what the core could not; True = try again."""
        if event == _core.EVENT_SYNC:
            self._flush_sent(value)
        elif event == _core.EVENT_AHEAD:
            with contextlib.suppress(errors.ClosedError):  # the message is sent
                self._look_ahead(value)
        elif self._aside.puts_off(event, value, self._page_number):
            pass  # an event loop's thread, which must not wait
        elif event == _core.EVENT_MOVED:
            self._move()
        elif event == _core.EVENT_FULL:
            self._roll_from(self._page_number)
        elif event == _core.EVENT_FAILED:
            self._store.flusher.resume()
        else:
            raise refusal(self, event, value)
        return True

    def _flush_sent(self, end_sequence: int) -> None:
        """Flush behind a send: it was sent, so no error may read as if it was not."""
        with self._sent_already():
            self._store.flusher.flush(None, end_sequence)
            self._check_whole()

    @contextlib.contextmanager
    def _sent_already(self) -> Iterator[None]:
        """Raise NotDurable for what keeps messages that were sent from stable storage."""
        try:
            yield
        except errors.NotDurable:
            raise
        except (errors.RetryError, errors.ClosedError, errors.ForkedError) as error:
            raise errors.NotDurable(
                f"sent and visible, but not on stable storage: {error}; then flush, and do not "
                "send it again",
                path=self._store.folder.path,
            ) from error

    def _check_whole(self) -> None:
        """Raise if the active page or the write meta was truncated while it was open."""
        page = self._page
        if self._store.write_meta.region.broken or (page is not None and page.region.broken):
            raise self._lost(page)

    def _lost(self, page: WritablePage | None) -> errors.DamageError:
        store = self._store
        meta = store.write_meta
        if page is None or meta.region.broken or not page.region.broken:
            return lost_meta(meta.path, meta.region.lost_at)
        path = store.folder.full(fmt.page_name(store.prefix, page.number))
        return lost_page(path, page.region.lost_at)

    # --- pages ------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Attach to the page that is active now."""
        store = self._store
        with store.folder.descriptor, self._guard:
            self._check_open()
            while True:
                tail = store.tail
                if tail.page_number == 0:  # truncated inside its only OS page: zeros
                    raise lost_meta(store.write_meta.path, 0)
                if self._page_number == tail.page_number:
                    return  # another thread did it
                try:
                    page = store.roller.page(tail.page_number)
                    break
                except (errors.QueueNotFound, errors.CorruptPage):
                    if store.tail.page_number == tail.page_number:
                        raise  # else others rolled on, and it was retired or compressed
            self._ahead_since = (time.monotonic(), tail.position)
            self._attach(
                page.region,
                page.index,
                page.number,
                tail.first_sequence,
                tail.position + FIRST_AHEAD_BYTES,
            )
            # The core has it: only now is it ours. An exception before leaves all as it was.
            old: list[object] = [self._page]
            self._page = page
            store.roller.let_go(page.number)
            store.background.drop(old)

    def _roll_from(self, number: int, check: Callable[[], None] | None = None) -> None:
        """Seal page `number`, unless that was done already, and go on in the next one."""
        with self._store.folder.descriptor:
            self._roll_on(number, check)

    def _roll_on(self, number: int, check: Callable[[], None] | None) -> None:
        store = self._store
        while store.tail.page_number == number:
            # Without the guard: it can take as long as consumers need to make room, and closing
            # must not wait for them.
            try:
                next_page = store.roller.next_page(
                    number + 1, check or self._check_open, self._commit_pages
                )
            except (errors.QueueNotFound, errors.CorruptPage):
                if store.tail.page_number == number:
                    raise
                break  # others rolled on, and it was retired or compressed
            with self._guard:
                self._move()
                if self._page_number != number:
                    return  # another process rolled in between
                result = self._roll(next_page.region, store.roller.header(next_page))
                if result == _core.APPEND_LOST:
                    raise self._lost(next_page if next_page.region.broken else self._page)
                if result not in {_core.APPEND_DONE, _core.APPEND_MOVED}:
                    raise refusal(self, _core.EVENT_DAMAGED, 0)
                if result == _core.APPEND_DONE and store.after_roll is not None:
                    store.background.submit(store.after_roll)
        self._move()

    def freeze(self) -> Tail | None:
        """Have nobody lay anything down in the active page any more; None: try again (M3)."""
        self._check_open()
        self._move()
        result, *words = self._freeze()
        if result == _core.APPEND_LOST:
            raise self._lost(self._page)
        if result == _core.APPEND_DAMAGED:
            raise refusal(self, _core.EVENT_DAMAGED, 0)
        return Tail(*words) if result == _core.APPEND_DONE else None

    def _commit_pages(self, page: _core.Region, header: bytes, beyond: Tail) -> None:
        """Publish all pages from the next one on, up to a tail (M6 to M8).

        Nothing can fail once they are visible: the last page is attached to when it is needed.

        Raises:
            CorruptPage: other messages came in front of them. SyncFailed: the queue is latched.
        """
        words = (
            beyond.page_number, beyond.position, beyond.count, beyond.first_sequence,
            beyond.last_timestamp,
        )  # fmt: skip
        self._move()
        result = self._leap(page, header, words)
        if result == _core.APPEND_LOST:
            raise self._lost(self._page)
        if result == _core.APPEND_FAILED:
            raise self._store.flusher.failed(self._store.write_meta.failed_errno)
        if result == _core.APPEND_DAMAGED or (
            result == _core.APPEND_MOVED and self._store.tail.page_number < beyond.page_number
        ):
            raise refusal(self, _core.EVENT_DAMAGED, 0)

    def _look_ahead(self, position: int) -> None:
        """Take page faults ahead of the tail, and have the next page made, in the background."""
        page, store = self._page, self._store
        if page is None:
            return
        then, there = self._ahead_since
        now = time.monotonic()
        self._ahead_since = (now, position)
        fast = position - there > (now - then) * FAST_BYTES_PER_S
        reach = FAST_AHEAD_BYTES if fast else SLOW_AHEAD_BYTES
        page_bytes = len(page.region)
        start = max(page.populated, position)
        end = min(position + reach, page_bytes)
        frame_bytes = position / max(store.tail.count, 1)
        if end > start:
            page.populated = end
            store.background.submit(lambda: page.populate(start, end, frame_bytes))
        if fast or position >= page_bytes // 2:
            store.roller.prepare(
                page.number + 1,
                reach=reach,
                filled_bytes=page_bytes if fast else 0,
                frame_bytes=frame_bytes,
            )
        self._ahead(position + reach // 4)
