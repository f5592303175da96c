"""Producer: sends messages, and makes them durable.

The hot path is the core's `Writer.send`. The core passes to `_on_event` all that it cannot resolve:
another page is active, the page is full, a sync failed, a payload is refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.columns.inputs import PLAIN, FixedRows, check_count, columns_of, times_of
from pagequeue.meta.all_and_read_meta import field_of, lost_meta
from pagequeue.meta.write_meta import Tail
from pagequeue.page.page import lost_page
from pagequeue.send.async_send import AwaitedSends, DeferredEvents
from pagequeue.system.file_lock import LivenessLock
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Buffer

    from pagequeue.columns.inputs import ColumnInput
    from pagequeue.page.page import WritablePage
    from pagequeue.send.async_send import Many, Times
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
SIZES: Final = {_core.EVENT_TOO_LARGE, _core.EVENT_BATCH_TOO_LARGE, _core.EVENT_WRONG_SIZE}


class Producer(_core.Writer, AwaitedSends, Closing):
    """Sends messages to one queue. Threads may share it; after a fork the child opens its own.

    Made by `Queue.producer()`.

    Example:
        >>> with queue.producer() as producer:
        ...     producer.send(b"one")
        0
    """

    __slots__ = (
        "__weakref__",
        "_ahead_since",
        "_deferred",
        "_guard",
        "_lock_file",
        "_page",
        "_store",
    )

    _store: Store
    _page: WritablePage | None
    _guard: threading.RLock
    _lock_file: LivenessLock
    _ahead_since: tuple[float, int]
    _deferred: DeferredEvents

    def __new__(cls, store: Store, clock: Clock | None = None, sync_every: int = 0) -> Self:
        """Attach to the active page of an open store; `clock` returns ns, None = the system's."""
        with store.folder.descriptor:
            return cls._made(store, clock, sync_every)

    @classmethod
    def _made(cls, store: Store, clock: Clock | None, sync_every: int) -> Self:
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
        self._store = store
        self._lock_file = lock_file  # closed when no call is inside: the core has its descriptor
        self._guard = threading.RLock()
        self._page = None
        self._ahead_since = (0.0, 0)
        self._deferred = DeferredEvents()
        try:
            store.folder.admit(self)
            self._move()
        except BaseException:
            self._detach_all()
            raise
        return self

    def __init__(self, store: Store, clock: Clock | None = None, sync_every: int = 0) -> None:
        """`__new__` does everything, before any call of the core."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"page {self._page_number}"
        return f"<Producer of {self._store.folder.path!r}, {state}>"

    def send_many(self, payloads: Many, *, timestamps: Times | None = None) -> range:
        """Make messages visible to every process, all at once or not at all.

        Args:
            payloads: C-contiguous bytes-like objects; or, copied without an object for each: a
                NumPy array of bytes (without trailing zeros) or of records, shape (n,), or an Arrow
                array of binary or string values. With a `dtype`, records of it, or an Arrow table
                with its fields as columns; with a codec, objects. They must fit into one page.
            timestamps: one for each payload, int64 ns since 1970, UTC, or datetime64, shape (n,),
                for replaying history: in ascending order, none before the queue's last one.

        Returns:
            the sequences of the messages, consecutive.

        Raises:
            TypeError: a payload is not bytes-like, or holds addresses of objects.
            InvalidOption: the timestamps are not as many as the payloads.
            MessageTooLarge: a payload, or all together, do not fit into a page; carries
                `fitting_count`.
            NotEncodable, DtypeMismatch, RecordSize: the queue does not hold such messages.
            TimestampOrder: a timestamp is earlier than the one before it.
            NotDurable: sent and visible, but the sync that `sync=` asked for did not succeed.
            QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `send`.
            After NotDurable, and perhaps after SyncFailed, the messages are visible; after all
            others they were not sent.

        Example:
            >>> producer.send_many([b"one", b"two"])
            range(0, 2)

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I2 and I8.
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
        """Return payloads that are columns; None: they are not columns."""
        return columns_of(payloads)

    def _one_by_one(self, payloads: Iterable[Any]) -> Iterable[Buffer]:
        """Return the payload of each object."""
        return payloads

    def flush(self, timeout: float | None = None) -> int:
        """Put all messages that this or any other process has sent so far on stable storage.

        Args:
            timeout: seconds to wait for another process that is flushing; None waits for ever.

        Returns:
            the durable sequence: every message below it is on stable storage.

        Raises:
            SyncFailed: a sync failed; the queue is latched, and no more messages can be sent.
            FlushTimeout: another process was flushing for too long.
            CorruptPage, CorruptMeta: a file was truncated while it was open.
            ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> producer.flush(timeout=10.0)
            2

        Source: FORMAT.md, "Flushing".
        """
        # Keeps I5.
        self._check_open()
        durable = self._store.flusher.flush(timeout)
        self._check_whole()
        return durable

    def close(self) -> None:
        """Unmap the page; sent messages stay, and closing again has no effect.

        A concurrent `send` of another thread ends first, or ends in `ClosedError`.
        """
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
            self._page = None
            self._detach()

    def rotate(self) -> None:
        """Seal the active page and continue in a new one; an empty page stays the active one.

        Raises:
            QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `send`.

        Example:
            >>> producer.rotate()
        """
        self._check_open()
        store = self._store
        with store.folder.descriptor:
            if store.write_meta.failed_errno:
                self._on_event(_core.EVENT_FAILED, 0)
            if store.tail.count > 0:
                self.seal()

    def seal(self) -> None:
        """Seal the active page, even an empty one, and even after a failed sync."""
        self._roll_from(self._store.tail.page_number, self._store.roller.deadline())

    # --- events of the core -----------------------------------------------------------------------

    def _check_open(self) -> None:
        self._store.check_process("producer")
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> errors.ClosedError:
        """Return the error for a closed producer.

        Raises:
            LockReplaced: it was closed because the lock file was replaced.
        """
        if self._store.folder.is_replaced:
            self._store.folder.check()
        return errors.ClosedError(
            "this producer is closed",
            path=self._store.folder.path,
            remedy="make another one with queue.producer()",
        )

    def _on_event(self, event: int, value: int) -> bool:
        """Resolve what the core cannot; True: the core tries again."""
        if event == _core.EVENT_SYNC:
            self._flush_sent(value)
        elif event == _core.EVENT_AHEAD:
            with contextlib.suppress(errors.ClosedError):  # the message is sent
                self._populate_ahead(value)
        elif self._deferred.defers(event, value, self._page_number):
            pass  # this is an event loop's thread, which must not block
        elif event == _core.EVENT_MOVED:
            self._move()
        elif event == _core.EVENT_FULL:  # the value is how long this call has been blocked, in ns
            self._roll_from(self._page_number, self._store.roller.deadline(value))
        elif event == _core.EVENT_FAILED:
            self._store.flusher.resume()
        else:
            raise self._refusal(event, value)
        return True

    def _flush_sent(self, end_sequence: int) -> None:
        """Flush after a send: the message is sent, so no error may read as if it was not."""
        with self._sent_already():
            self._store.flusher.flush(None, end_sequence)
            self._check_whole()

    @contextlib.contextmanager
    def _sent_already(self) -> Iterator[None]:
        """Turn the errors of a flush after a send into NotDurable."""
        try:
            yield
        except errors.NotDurable:
            raise
        except (errors.RetryError, errors.ClosedError, errors.ForkedError) as error:
            raise errors.NotDurable(
                f"sent and visible, but not on stable storage: {error}",
                path=self._store.folder.path,
                remedy="then flush, and do not send it again",
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

    def _refusal(self, event: int, value: int) -> errors.PageQueueError:
        """Return the error for an event that cannot be resolved.

        Raises:
            SystemLimit: the system refused a lock for another reason than the file's content.
        """
        store = self._store
        path = store.folder.path
        error: errors.PageQueueError
        if event == _core.EVENT_CLOSED:
            error = self._closed_error()
        elif event == _core.EVENT_FORKED:
            error = errors.ForkedError(
                "this producer belongs to the parent process",
                path=path,
                remedy="open the queue in the child",
            )
        elif event in SIZES:
            error = _wrong_size(store, event, value, self._fitting)
        elif event == _core.EVENT_OLD_TIMESTAMP:
            last = store.tail.last_timestamp
            error = errors.TimestampOrder(
                f"timestamp {value} is earlier than the last one, {last}",
                path=path, last_timestamp=last,
                remedy="send history in order of time, or to a queue of its own",
            )  # fmt: skip
        elif event == _core.EVENT_STALLED:
            error = errors.LockTimeout(
                f"the writers' lock was held for {value / 1e9:g} s",
                path=path,
                remedy="look for a stopped process that has the queue open (continue or kill it), "
                "then call again",
            )
        elif event == _core.EVENT_LOST:
            error = self._lost(self._page)
        elif event == _core.EVENT_NO_LOCK:
            error = _no_lock(store, value)
        elif event == _core.EVENT_EXHAUSTED:
            error = errors.SequencesExhausted(
                "no sequence is left", path=path, remedy="start a new queue"
            )
        else:
            error = self._damaged()
        return error

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
                    return  # another thread did it
                try:
                    page = store.roller.page(tail.page_number)
                    break
                except (errors.QueueNotFound, errors.CorruptPage):
                    if store.tail.page_number == tail.page_number:
                        raise  # else others rolled again, and this page was retired or compressed
            self._ahead_since = (time.monotonic(), tail.position)
            self._attach(
                page.region,
                page.index,
                page.number,
                tail.first_sequence,
                tail.position + FIRST_AHEAD_BYTES,
            )
            # Kept only now that the core has attached: an exception before changes nothing.
            old: list[object] = [self._page]
            self._page = page
            store.roller.let_go(page.number)
            store.background.drop(old)

    def _roll_from(
        self,
        number: int,
        deadline: float = math.inf,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Seal page `number`, if it is still the active one, and continue in the next one.

        Args:
            number: of the page.
            deadline: until when to wait for room, in seconds of the monotonic clock.
            check: raises when the roll is not wanted any more.
        """
        with self._store.folder.descriptor:
            self._roll_on(number, deadline, check)

    def _roll_on(self, number: int, deadline: float, check: Callable[[], None] | None) -> None:
        store = self._store
        while store.tail.page_number == number:
            # Without the guard: this may wait for consumers to make room, and closing must not.
            try:
                next_page = store.roller.next_page(
                    number + 1, check or self._check_open, self._commit_pages, deadline=deadline
                )
            except (errors.QueueNotFound, errors.CorruptPage):
                if store.tail.page_number == number:
                    raise
                break  # others rolled again, and this page was retired or compressed
            with self._guard:
                self._move()
                if self._page_number != number:
                    return  # another process rolled meanwhile
                result = self._roll(next_page.region, store.roller.header(next_page))
                if result == _core.APPEND_LOST:
                    raise self._lost(next_page if next_page.region.broken else self._page)
                if result not in {_core.APPEND_DONE, _core.APPEND_MOVED}:
                    raise self._damaged()
                if result == _core.APPEND_DONE and store.after_roll is not None:
                    store.background.submit(store.after_roll)
        self._move()

    def freeze(self) -> Tail | None:
        """Stop all processes from writing to the active page; None: try again (M3)."""
        self._check_open()
        self._move()
        result, *words = self._freeze()
        if result == _core.APPEND_LOST:
            raise self._lost(self._page)
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
            raise self._damaged()

    def _populate_ahead(self, position: int) -> None:
        """Take page faults ahead of the tail, and create the next page, in the background."""
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


# --- what a producer refuses ----------------------------------------------------------------------


def _no_lock(store: Store, number: int) -> errors.CorruptMeta:
    """Return the error for a writers' lock that was overwritten.

    Raises:
        SystemLimit: the system refused a lock for another reason than the file's content.
    """
    path, words = store.write_meta.path, os.strerror(number)
    if _core.LOCK_NEEDS_FD:  # the lock is not in the file
        raise_typed(OSError(number, words), path, "taking the writers' lock")
    return errors.CorruptMeta(
        f"the writers' lock in this file is corrupt ({words}): the file was overwritten while in "
        "use",
        path=path, position=field_of(fmt.WRITE_META, "mutex"), reason="writers' lock",
        remedy="close the queue in all processes, then repair it, or restore the file from a copy",
    )  # fmt: skip


def _too_large(store: Store, size_bytes: int) -> errors.MessageTooLarge:
    limit = fmt.payload_bytes_max(store.meta.page_bytes)
    return errors.MessageTooLarge(
        f"a payload of {size_bytes} bytes does not fit into a page, which holds {limit}",
        path=store.folder.path, size_bytes=size_bytes, limit_bytes=limit,
        remedy="split it, or create the queue with larger page_bytes",
    )  # fmt: skip


def _batch_too_large(store: Store, size_bytes: int, fitting: int) -> errors.MessageTooLarge:
    limit = store.meta.page_bytes - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
    return errors.MessageTooLarge(
        f"a batch of {size_bytes} bytes with its headers does not fit into a page of "
        f"{limit} bytes and {store.meta.index_capacity} messages, its first {fitting} messages do",
        path=store.folder.path, size_bytes=size_bytes, limit_bytes=limit, fitting_count=fitting,
        remedy=f"send it in parts, as rows[:{fitting}] and so on, or create the queue with larger "
        "page_bytes",
    )  # fmt: skip


def _wrong_size(
    store: Store, event: int, size_bytes: int, fitting: int
) -> errors.MessageTooLarge | errors.RecordSize:
    if event == _core.EVENT_TOO_LARGE:
        return _too_large(store, size_bytes)
    if event == _core.EVENT_BATCH_TOO_LARGE:
        return _batch_too_large(store, size_bytes, fitting)
    dtype, record_bytes = store.schema.dtype, store.schema.record_bytes
    return errors.RecordSize(
        f"a payload of {size_bytes} bytes is not a record of {record_bytes} bytes, dtype {dtype}",
        path=store.folder.path, size_bytes=size_bytes, record_bytes=record_bytes,
        remedy="send records of this dtype, or create a queue without dtype for messages of any "
        "size",
    )  # fmt: skip
