"""Producer: sends messages, and makes them durable.

The hot path is the core's `Writer.send`. What it cannot resolve (another page is active, the page
is full, a sync failed, a payload is refused) it leaves to the methods `_on_...`.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.append import append_pages
from pagequeue.columns.inputs import (
    PLAIN,
    check_count,
    columns_of,
    is_columnar,
    items_of,
    times_of,
)
from pagequeue.producer import from_loop
from pagequeue.producer.from_loop import LARGE, Deferred, DeferredEvents
from pagequeue.producer.payload_file import PayloadWriter
from pagequeue.send import refusals
from pagequeue.send.page_writer import send_columns
from pagequeue.send.queue_end import QueueEnd
from pagequeue.store.sealed import sealed_page
from pagequeue.util import arguments
from pagequeue.wait.coroutine import check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer
    from typing_extensions import TypeVar as TypeVarWithDefault

    from pagequeue.columns.inputs import ColumnInput
    from pagequeue.send.with_room import Many, Times
    from pagequeue.store.sealed import Sealed
    from pagequeue.store.store import Store
    from pagequeue.util.timestamps import Clock

if TYPE_CHECKING:  # what is sent; `Producer` alone sends any objects
    Sent = TypeVarWithDefault("Sent", default=Any, contravariant=True)  # noqa: PLC0105
else:
    Sent = TypeVar("Sent")
SAMPLE: Final = 64
"""So many payloads of a batch say whether it is likely to need several pages."""


class Producer(QueueEnd, Generic[Sent]):
    """Sends messages to one queue. Threads may share it; after a fork the child opens its own.

    Made by `Queue.producer()`.

    Example:
        >>> with queue.producer() as producer:
        ...     producer.send(b"one")
        0
    """

    __slots__ = ("_deferred", "_files", "_syncs")

    _syncs: bool
    _deferred: DeferredEvents
    _files: weakref.WeakValueDictionary[int, PayloadWriter]
    _takes_pages = True
    """Whether it sends messages of several pages; else they are too large."""

    def __new__(cls, store: Store, clock: Clock | None = None, sync_every: int = 0) -> Self:
        """Attach to the active page of an open store; `clock` returns ns, None = the system's."""
        self = super().__new__(cls, store, clock, sync_every)
        self._deferred = DeferredEvents()
        self._files = weakref.WeakValueDictionary()
        self._syncs = sync_every > 0
        return self

    def __init__(self, store: Store, clock: Clock | None = None, sync_every: int = 0) -> None:
        """`__new__` does everything, before any call of the core."""

    if TYPE_CHECKING:  # the core's, for what this queue takes

        def send(  # type: ignore[override]  # noqa: D102 - the core has it
            self,
            payload: Sent,
            /,
            *,
            timestamp: int | None = None,
            at: int | None = None,
            timeout: float | None = None,
        ) -> int: ...

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"page {self._page_number}"
        return f"<Producer of {self._store.folder.path!r}, {state}>"

    def send_many(
        self,
        payloads: Many,
        *,
        timestamps: Times | None = None,
        at: int | None = None,
        timeout: float | None = None,
    ) -> range:
        """Make messages visible to every process, all at once or not at all.

        Args:
            payloads: C-contiguous bytes-like objects; or, copied without an object for each: a
                NumPy array of bytes (without trailing zeros) or of records, shape (n,), or an Arrow
                array of binary or string values. With a `dtype`, records of it, tuples or dicts of
                its fields, or an Arrow table with them as columns; with a codec, objects. Any
                number, of any size.
            timestamps: one for each payload, int64 ns since 1970, UTC, or datetime64, shape (n,),
                for replaying history: in ascending order, none before the queue's last one.
            at: the sequence that the first message must get; if another one is next when the
                writers' lock is held, none is sent. None: whichever is next.
            timeout: seconds that this call may wait for room in a queue that was opened with
                `on_full="block"`, or lose each page to other senders, in all; None: its
                `full_timeout`.

        Returns:
            the sequences of the messages, consecutive.

        Raises:
            TypeError: a payload is not bytes-like, or holds addresses of objects.
            InvalidOption: the timestamps are not as many as the payloads; `at` is no sequence.
            Overtaken: another sequence than `at` is next; carries it as `tail_sequence`.
            MessageTooLarge: `max_bytes` cannot hold all of them; none was sent.
            NotEncodable, DtypeMismatch, RecordSize: the queue does not hold such messages; a field
                is named.
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
        given: Any = columns
        if columns is None:
            given = self._sequence_of(payloads)
            check_count(times, len(given))
            if self._takes_pages and _is_more(given, self._store.meta.page_bytes):
                pages = self._append(given, times, at, timeout, unless_one=True)
                if pages is not None:
                    return pages
        else:
            check_count(times, columns.count)
        try:
            if columns is None:
                sent = self._send_many(given, times, at, timeout)
            else:
                sent = send_columns(self, columns, times, at, timeout)
        except errors.MessageTooLarge:
            return self._send_pages(given, times, at, timeout)
        if sent is None:
            tail = self._store.tail.sequence
            if at is not None and at != tail:
                raise refusals.overtaken(self._store, tail)
            return range(tail, tail)
        first, count = sent
        return range(first, first + count)

    def _send_large(
        self, payload: Buffer, timestamp: int, at: int, timeout_ns: int, never_blocks: int
    ) -> int:
        """Send a message of several pages; called by the core, with negative numbers for None."""
        times = None if timestamp < 0 else timestamp.to_bytes(8, "little")
        timeout = None if timeout_ns < 0 else timeout_ns / 1e9
        timeout = _core.NEVER_BLOCK if never_blocks else timeout
        return self._send_pages((payload,), times, None if at < 0 else at, timeout).start

    def _send_pages(
        self,
        payloads: Any,  # noqa: ANN401 - or columns
        times: bytes | None,
        at: int | None,
        timeout: float | None,
    ) -> range:
        """Send messages that do not fit into one page, all at once.

        Raises:
            MessageTooLarge: this producer can only send what fits into one.
        """
        sent = self._append(payloads, times, at, timeout, unless_one=False)
        assert sent is not None
        return sent

    def _append(
        self,
        payloads: Any,  # noqa: ANN401 - or columns
        times: bytes | None,
        at: int | None,
        timeout: float | None,
        *,
        unless_one: bool,
    ) -> range | None:
        """Send messages in pages of their own; None, if asked, where one page takes them all."""
        self._check_open()
        self._check_takes_pages()
        if timeout is _core.NEVER_BLOCK:
            raise Deferred(LARGE, 0, self._page_number)
        timeout = check_timeout(timeout)
        sent = append_pages(
            self,
            payloads,
            times,
            at=at,
            timeout=timeout,
            check=self._check_sending,
            synced=self._syncs,
            unless_one=unless_one,
        )
        if sent is not None:
            self._flush_if_asked(sent.stop)
        return sent

    def _check_sending(self) -> None:
        """Raise if what is not visible yet is not to be sent any more."""
        self._check_open()
        self._deferred.check()

    def _check_takes_pages(self) -> None:
        if not self._takes_pages:
            raise refusals.too_large(self._store)

    def open(self, *, timestamp: int | None = None) -> PayloadWriter:
        """Return a writable binary file whose content becomes one message when it is closed.

        The payload can have any size up to 2**40 bytes, and is never in memory as a whole; other
        producers go on meanwhile. In a queue with a codec it is the encoded form of an object.
        Nothing is sent if the `with` block is left by an exception.

        Args:
            timestamp: as for `send`, ns since 1970, UTC.

        Raises:
            MessageTooLarge, RecordSize: this queue's messages all have one size.
            ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> with producer.open() as file:
            ...     file.write(b"first part, ")
            ...     file.write(b"second part")
            12
            11
            >>> file.sequence
            0
        """
        self._check_open()
        if self._record_bytes:
            raise refusals.record_size(self._store, 0)
        if timestamp is not None:
            timestamp = arguments.timestamp("timestamp", timestamp)
        self._check_takes_pages()
        file = PayloadWriter(self, timestamp, synced=self._syncs)
        self._files[id(file)] = file
        # Registered before the check: closing has seen the file, or the check sees the closing.
        if self._closed:
            file.abandon()
            raise refusals.closed(self._store)
        return file

    def _flush_if_asked(self, end_sequence: int) -> None:
        """Flush what was sent by pages, if each send is flushed, or a number of them."""
        if self._syncs:
            self._flush_sent(end_sequence)

    def _in_columns(self, payloads: object) -> ColumnInput | None:
        """Return payloads that are columns; None: they are not columns."""
        return columns_of(payloads)

    def _sequence_of(self, payloads: Iterable[Any]) -> Sequence[Buffer]:
        """Return the payload of each object, to be read more than once."""
        items = self._one_by_one(payloads)
        return items if isinstance(items, list | tuple) else tuple(items)

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
            5

        Source: FORMAT.md, "Flushing".
        """
        # Keeps I5.
        self._check_open()
        durable = self._store.flusher.flush(timeout)
        self._check_whole()
        return durable

    async def send_async(
        self,
        payload: Sent,
        *,
        timestamp: int | None = None,
        at: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Send as `send` does, and let the event loop run while waiting for room and for syncs.

        A task that is cancelled while it waits for room has not sent the message. If it is
        cancelled while it waits for a sync, which only happens with another `sync` than "none", the
        message is sent and visible, but may not be on stable storage. A message of several pages
        is written by a thread: a task that is cancelled meanwhile has not sent it, unless the
        thread was about to make it visible; then it can follow what the task sends next.

        Args:
            payload: as for `send`.
            timestamp: as for `send`, ns since 1970, UTC.
            at: as for `send`; compared when the message is sent, after all waiting.
            timeout: as for `send`, in seconds.

        Returns:
            the sequence of the message.

        Raises:
            Overtaken, QueueFull, MessageTooLarge, NotDurable, SyncFailed, ClosedError: as for
                `send`.

        Example:
            >>> await producer.send_async(b"one")
            0

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I1, I3 and I4.
        return await from_loop.send_from_loop(
            self, lambda left: self.send(payload, timestamp=timestamp, at=at, timeout=left), timeout
        )

    async def send_many_async(
        self,
        payloads: Many,
        *,
        timestamps: Times | None = None,
        at: int | None = None,
        timeout: float | None = None,
    ) -> range:
        """Send as `send_many` does, and let the event loop run while waiting for room and syncs.

        If the task is cancelled: as for `send_async`; the batch is sent as a whole or not at all.

        Args:
            payloads: as for `send_many`.
            timestamps: as for `send_many`, shape (n,).
            at: as for `send_many`; compared when the messages are sent, after all waiting.
            timeout: as for `send_many`, in seconds.

        Returns:
            the sequences of the messages, consecutive.

        Raises:
            Overtaken, QueueFull, MessageTooLarge, NotDurable, SyncFailed, ClosedError: as for
                `send_many`.

        Example:
            >>> await producer.send_many_async([b"one", b"two"])
            range(0, 2)

        Source: FORMAT.md, "Publishing".
        """
        # Keeps I2 and I8.
        fixed = payloads if is_columnar(payloads) else list(payloads)  # tried more than once
        if timestamps is not None and not is_columnar(timestamps):
            timestamps = items_of(timestamps)
        return await from_loop.send_from_loop(
            self,
            lambda left: self.send_many(fixed, timestamps=timestamps, at=at, timeout=left),
            timeout,
        )

    async def flush_async(self, timeout: float | None = None) -> int:
        """Flush as `flush` does, and let the event loop run meanwhile.

        Coroutines that flush at the same time share their syncs. If the task is cancelled, the
        sent messages may or may not reach stable storage.

        Args:
            timeout: seconds to wait; None waits for ever.

        Returns:
            the durable sequence: every message below it is on stable storage.

        Raises:
            FlushTimeout: the messages did not reach stable storage in time.
            SyncFailed, ClosedError, ForkedError: as for `flush`.

        Example:
            >>> await producer.flush_async(timeout=10.0)
            5

        Source: FORMAT.md, "Flushing".
        """
        # Keeps I5.
        timeout = check_timeout(timeout)
        self._check_open()
        await from_loop.await_durable(self, self._store.tail.sequence, timeout)
        self._check_whole()
        return self._store.write_meta.durable_sequence

    def close(self) -> None:
        """Unmap the page; sent messages stay, and closing again has no effect.

        A concurrent `send` of another thread ends first, or ends in `ClosedError`, also one that
        waits for room. What was written to files of `open` that are not closed is discarded;
        closing such a file afterwards raises `ClosedError`.

        Example:
            >>> producer.close()
        """
        if self._store.is_forked:
            return  # the parent's
        self._detach_all()
        for known in self._files.valuerefs():
            if (file := known()) is not None:
                file.abandon()
        super().close()

    def rotate(
        self, *, timeout: float | None = None, check: Callable[[], None] | None = None
    ) -> Sealed | None:
        """Seal the active page and continue in a new one; an empty page stays the active one.

        Args:
            timeout: seconds to wait for room, as for `send`.
            check: called while waiting for room; what it raises ends the call.

        Returns:
            the page that was sealed; None: the active page was empty.

        Raises:
            QueueFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `send`.

        Example:
            >>> producer.rotate().page_number
            1
        """
        self._check_open()
        timeout = check_timeout(timeout)
        store = self._store
        with store.folder.descriptor:
            if store.write_meta.failed_errno:
                store.flusher.resume()
            wanted = None if check is None else partial(self._check_rotating, check)
            deadline = store.limits.deadline(timeout)
            while (tail := store.tail).count > 0:
                end = self._roll_from(tail.page_number, deadline, wanted)
                try:
                    return sealed_page(store, tail, end)
                except errors.Expired:
                    continue  # another process sealed it, and retention removed it since
        return None

    def _check_rotating(self, check: Callable[[], None]) -> None:
        self._check_open()
        check()

    def _defer(self, event: str, value: int) -> None:
        """Leave what may block to others: this is an event loop's thread."""
        self._deferred.defer(event, value, self._page_number)


def _is_more(payloads: Sequence[Any], page_bytes: int) -> bool:
    """Whether payloads probably need several pages, by a sample: trying one page reads them all."""
    count = len(payloads)
    if count * fmt.FRAME_HEADER_BYTES < page_bytes // SAMPLE:
        return False
    sample = payloads[:: max(count // SAMPLE, 1)]
    if set(map(type, sample)) != {bytes}:
        return False
    frame_bytes = sum(map(len, sample)) / len(sample) + fmt.FRAME_HEADER_BYTES
    return frame_bytes * count > page_bytes
