"""PageReader and Consumer: read messages in order, without a lock and without writing to any page.

The hot path is the core's `Reader`. What it cannot resolve (the
next page, damage, timeouts) it leaves to the methods `_on_...`.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue._core import Message
from pagequeue.columns.batch import Batch
from pagequeue.meta.meta_file import lost_meta
from pagequeue.page.compressed_page import BlockInflater
from pagequeue.page.header import REMEDY
from pagequeue.page.large_message import large_message
from pagequeue.page.page import REASONS, lost_page
from pagequeue.receive.async_receive import await_first
from pagequeue.store.options import check_expired
from pagequeue.util.arguments import PLAUSIBLE_NS
from pagequeue.util.closing import Closing
from pagequeue.util.timestamps import TimeLike, to_ns
from pagequeue.wait.coroutine import Turns, check_timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.store.store import Place, Store
    from pagequeue.util.literals import OnExpired
    from pagequeue.wait.coroutine import Found

GOOD = {_core.READ_FRAME, _core.READ_END}
NO_END = 2**64 - 1
KEPT_BYTES = 8 * 4096
"""A batch with more bytes of timestamps keeps its payloads until the next but one: otherwise Python
would return their memory to the system and request it again for the next batch."""
NO_LIMIT = -(2**63)
"""No `since` and no `until`, for the core."""


class PageReader(_core.Reader, Closing):
    """Reads page after page, for Consumer and Replay."""

    __slots__ = ("__weakref__", "_kept", "_kind", "_last", "_store")

    _last: Batch | None
    _kept: list[bytes] | None
    _store: Store
    _kind: str

    def __new__(cls, store: Store, *, waits: bool, kind: str, durable_only: bool = False) -> Self:
        """Read an open store, from the place that `_go` sets."""
        self = super().__new__(cls, store.write_meta.region, waits, durable_only)
        self._store = store
        self._kind = kind
        if not store.schema.is_plain:
            self._decoder = store.schema.decoder
        self._last = self._kept = None
        return self

    def __repr__(self) -> str:
        path = self._store.folder.path
        state = "closed" if self._closed else f"next sequence {self.sequence}"
        return f"<{type(self).__name__} of {path!r}, {state}>"

    def _go(self, place: Place) -> None:
        region = place.page.ready(place.position)
        self._enter(region, place.page.number, place.position, place.sequence)

    # --- events of the core; False: there is no message -------------------------------------------

    def _on_place(self) -> None:
        self._store.folder.check()

    def _on_timeout(self, waited_ns: int) -> None:
        path = self._store.folder.path
        if self._kind == "replay":
            raise errors.NothingReceived(
                "this replay has ended", path=path, remedy="make another one"
            )
        raise errors.NothingReceived(
            f"no message within {waited_ns / 1e9:g} s", path=path, remedy="call again"
        )

    def _on_forked(self) -> None:
        raise errors.ForkedError(
            f"this {self._kind} belongs to the parent process",
            path=self._store.folder.path,
            remedy="open the queue in the child",
        )

    def _on_busy(self) -> None:
        raise errors.ConcurrentUse(
            f"another thread is inside this {self._kind}",
            path=self._store.folder.path,
            remedy="give each thread its own",
        )

    def _on_closed(self) -> None:
        raise errors.ClosedError(
            f"this {self._kind} is closed", path=self._store.folder.path, remedy="make another one"
        )

    def _large(
        self, number: int, position: int, timestamp: int, sequence: int, whole: int
    ) -> Message | None:
        """Return the message whose head the core found; None: this reader moved elsewhere.

        Args:
            number: of the page with the head.
            position: of the head.
            timestamp: of the message.
            sequence: of the message.
            whole: not 0: with its payload in memory.
        """
        message = large_message(
            self._store.page, number, position, timestamp, sequence, self._decoder
        )
        if whole:
            message.load()
        return message

    def _on_page_end(self) -> bool:
        """Continue in the next page."""
        if self._store.awaits_recovery and self._page_number >= self._store.tail.page_number:
            return False
        old: list[object] = [self._region]  # not by its number: retention may have removed it
        try:
            page = self._store.page(self._page_number + 1)
        except errors.Expired as error:
            # A page of fragments, or an empty one, can be gone without a message.
            head = self._store.seek_head()
            if head.sequence != self.sequence:
                raise self._store.expired() from error  # the head has moved since that error
            self._go(head)
            return True
        if page.first_sequence != self.sequence:
            raise errors.CorruptPage(
                f"begins with message {page.first_sequence}, must be {self.sequence}",
                path=page.path,
                position=0,
                reason="wrong first sequence",
                remedy=REMEDY,
            )
        self._enter(page.region, page.number, fmt.PAGE_HEADER_BYTES, self.sequence)
        self._store.pages.passed(page.number - 1, old)
        return True

    def _on_unfilled(self, position: int) -> bool:
        """Decompress the next block of a compressed page."""
        region = self._region
        filler = None if region is None else region.filler
        if (
            region is not None
            and isinstance(filler, BlockInflater)
            and filler.fill(region, position)
        ):
            return True
        return self._on_damaged(_core.READ_NOTHING)  # the block exists, the message does not

    def _on_limit(self) -> bool:
        """Continue after the valid prefix, once a writer has recovered the queue."""
        if self._store.awaits_recovery:
            return False
        self._limit(NO_END)
        return True

    def _on_damaged(self, found: int) -> bool:
        """Raise, unless this is the torn tail of a queue that is not recovered yet."""
        store = self._store
        if store.awaits_recovery and self.sequence >= store.tail.sequence:
            return False
        page = store.page_again(self._page_number)
        region = page.ready(self._position)
        if _core.peek(region, self._position, self.sequence)[0] in GOOD:
            # After a failed sync another file replaced the page, and the old one had lost data.
            self._enter(region, self._page_number, self._position, self.sequence)
            return True
        reason = REASONS.get(found, "unknown")
        raise errors.CorruptFrame(
            f"message {self.sequence} at position {self._position}: {reason}",
            path=page.path,
            position=self._position,
            sequence=self.sequence,
            reason=reason,
            remedy=REMEDY,
        )

    def _on_lost(self) -> None:
        """Raise the error for a page or a write meta that was truncated under its map."""
        page, meta = self._region, self._store.write_meta
        if page is None or not page.broken:
            raise lost_meta(meta.path, meta.region.lost_at)
        name = fmt.page_name(self._store.prefix, self._page_number)
        raise lost_page(self._store.folder.full(name), page.lost_at, self.sequence)

    def _batch(
        self, limit_count: int, timeout: float | None, bytes_max: int = fmt.READ_BYTES_MAX
    ) -> Batch | None:
        """Return the next messages; None at the end."""
        columns = self._read_many(limit_count, timeout, bytes_max)
        if columns is None:
            return None
        if isinstance(columns, Message):  # a large one, whose payload is here
            times = columns.timestamp.to_bytes(8, "little", signed=True)
            return Batch.of_payloads([columns.payload], columns.sequence, times, self._store.schema)
        batch = Batch(*columns, self._store.schema)
        if len(columns[2]) > KEPT_BYTES:
            self._kept = self._last._payloads if self._last is not None else None  # noqa: SLF001 - its own package
            self._last = batch
        return batch

    def close(self) -> None:
        """Unmap the page; closing again has no effect.

        Another thread may close it: a waiting `receive` then ends in `ClosedError`.

        Example:
            >>> consumer.close()
        """
        if self._store.is_forked:
            return  # the parent's
        self._leave()
        self._last = self._kept = None
        if not self._store.read_only:
            with contextlib.suppress(errors.ClosedError):  # then no thread waits any more
                self._store.write_meta.wake()


class Consumer(PageReader):
    """Receives messages in order, each once; any number of consumers receive all of them.

    It belongs to one thread at a time. Made by `Queue.consumer()`. Iterating waits for ever;
    `async for` does too, and lets the event loop run meanwhile.

    Attributes:
        sequence: of the next message.
        missed: messages that retention removed before they were received, skipped with
            `on_expired="skip"`.

    Example:
        >>> with queue.consumer() as consumer:
        ...     consumer.receive(timeout=1.0).payload
        b'one'
    """

    __slots__ = ("_is_passed", "_skips", "_turns", "missed")

    missed: int
    _skips: bool
    _is_passed: bool
    _turns: Turns

    def __new__(
        cls, store: Store, *, durable_only: bool = False, on_expired: OnExpired = "raise"
    ) -> Self:
        """Make a consumer without a place; `seek` sets one."""
        check_expired(store.folder.path, on_expired)
        self = super().__new__(cls, store, waits=True, kind="consumer", durable_only=durable_only)
        self._skips = on_expired == "skip"
        self._is_passed = False
        self._turns = Turns()
        self.missed = 0
        return self

    def __init__(self, store: Store, **options: object) -> None:
        """`__new__` does everything."""

    # --- after retention --------------------------------------------------------------------------

    def _enter_before_head(self, sequence: int) -> None:
        """Go to a place that retention removed: the next read raises Expired, or skips."""
        head = self._store.seek_head()
        self._enter(head.page.region, head.page.number, head.position, sequence)
        self._is_passed = True
        self._limit(sequence)

    def _on_page_end(self) -> bool:
        try:
            return super()._on_page_end()
        except errors.Expired:
            return self._expire()

    def _large(
        self, number: int, position: int, timestamp: int, sequence: int, whole: int
    ) -> Message | None:
        try:
            return super()._large(number, position, timestamp, sequence, whole)
        except errors.Expired:
            if self._store.seek_head().sequence <= sequence:
                raise
            self._expire()
            return None

    def _on_limit(self) -> bool:
        return self._expire() if self._is_passed else super()._on_limit()

    def _expire(self) -> bool:
        """Continue at the head, and count the missed messages, with `on_expired="skip"`.

        Raises:
            Expired: it is "raise".
        """
        head = self._store.seek_head()
        missed = head.sequence - self.sequence
        if missed > 0 and not self._skips:
            raise self._store.expired()
        self._go(head)
        self._is_passed = False
        self._limit(NO_END)
        self.missed += missed
        return True

    # --- for users --------------------------------------------------------------------------------

    def ack(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge messages; only a named consumer can.

        Args:
            message_or_sequence: as for `NamedConsumer.ack`.
            durable: the same.

        Raises:
            UsageError: this consumer has no name.

        Example:
            >>> queue.consumer("billing").ack()
        """
        del message_or_sequence, durable
        raise errors.UsageError(
            "this consumer has no name, so it cannot acknowledge",
            path=self._store.folder.path,
            remedy="open queue.consumer(NAME)",
        )

    def receive_many(self, limit_count: int = 1024, timeout: float | None = None) -> Batch:
        """Return the next published messages, oldest first.

        Args:
            limit_count: most messages to return, 1 to 1_048_576. A batch also ends with its page,
                and after about 1 MiB.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Returns:
            1 to `limit_count` messages with consecutive sequences.

        Raises:
            TimeoutError: no message was published in time; the consumer has not moved.
            Expired: this consumer fell behind retention; carries `head_sequence`.
            CorruptFrame: a published frame fails its checksum; carries file, position, reason.
            CorruptPage, CorruptMeta: a file was truncated while it was open.
            ConcurrentUse: another thread is inside this consumer.
            ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> consumer.receive_many(2, timeout=1.0).payloads
            [b'one', b'two']

        Source: FORMAT.md, "Reading".
        """
        # Keeps I1 and I2.
        batch = self._batch(limit_count, timeout)
        assert batch is not None  # a consumer has no end
        return batch

    def seek(
        self, *, since: TimeLike | None = None, sequence: int | None = None, latest: bool = False
    ) -> None:
        """Go to another place: one of the three, or the head if none is given.

        Args:
            since: the first message that is not older: int ns since 1970, UTC, an aware datetime,
                or a timedelta before now.
            sequence: this message; up to the tail.
            latest: after the last message, to receive new ones only.

        Raises:
            Expired: the sequence is before the head. SequenceOutOfRange: it is after the tail.
            InvalidOption: more than one was given.
            ConcurrentUse, ClosedError, ForkedError: as for `receive_many`.

        Example:
            >>> consumer.seek(since=timedelta(hours=1))
        """
        store = self._store
        if (
            type(since) is int
            and since >= PLAUSIBLE_NS
            and sequence is None
            and not latest
            and not self._is_passed
        ):
            lasts, known = store.pages.table
            at = bisect_left(lasts, since)
            if at < len(known) and self._find(since, known[at]):
                return
        store.check_process(self._kind)
        if self._closed:
            self._on_closed()
        if self._busy:
            self._on_busy()
        if (since is not None) + (sequence is not None) + bool(latest) > 1:
            raise errors.InvalidOption(
                "since, sequence and latest exclude each other", remedy="give one of them"
            )
        oldest = NO_LIMIT
        if since is not None:
            oldest = to_ns(since, store.clock)
            place = store.seek_since(oldest)
        elif sequence is not None:
            place = store.seek_sequence(sequence)
        elif latest:
            place = store.seek_tail()
        else:
            place = store.seek_head()
        self._go(place)
        self._is_passed = False
        self._bound(oldest, NO_LIMIT, fmt.SEQUENCE_MAX)
        self._limit(store.tail.sequence if store.awaits_recovery else NO_END)

    @property
    def lag(self) -> int:
        """How many messages are published and not received yet.

        Example:
            >>> consumer.lag
            5
        """
        if self._closed:
            self._on_closed()
        return max(0, self._store.tail.sequence - self.sequence)

    # --- asyncio ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.receive_async()

    async def receive_async(self, timeout: float | None = None) -> Message:
        """Return the next message, as `receive` does, and let the event loop run meanwhile.

        Any number of consumers wait on any number of loops with one thread for the queue. A
        cancelled wait has not moved the consumer.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.

        Raises:
            TimeoutError: no message was published in time; the consumer has not moved.
            Expired, CorruptFrame, CorruptPage, CorruptMeta, ClosedError: as for `receive`.

        Example:
            >>> message = await consumer.receive_async(timeout=1.0)

        Source: FORMAT.md, "Reading".
        """
        # Keeps I1, I2 and I7.
        timeout = check_timeout(timeout)
        await self._turns.take()
        message = self.poll()
        if message is None:
            message = await self._await_first(self.poll, timeout)
        return message

    async def receive_many_async(
        self, limit_count: int = 1024, timeout: float | None = None
    ) -> Batch:
        """Return the next messages, as `receive_many` does, and let the event loop run meanwhile.

        Args:
            limit_count: most messages to return, 1 to 1_048_576.
            timeout: seconds to wait for the first one; None waits for ever, 0 never waits.

        Returns:
            1 to `limit_count` messages with consecutive sequences.

        Raises:
            TimeoutError: no message was published in time; the consumer has not moved.
            Expired, CorruptFrame, CorruptPage, CorruptMeta, ClosedError: as for `receive_many`.

        Example:
            >>> batch = await consumer.receive_many_async(100, timeout=1.0)

        Source: FORMAT.md, "Reading".
        """

        # Keeps I1, I2 and I7.
        def attempt() -> Batch | None:
            try:
                return self._batch(limit_count, 0)
            except errors.NothingReceived:
                return None

        timeout = check_timeout(timeout)
        await self._turns.take()
        batch = attempt()
        return batch if batch is not None else await self._await_first(attempt, timeout)

    async def ack_async(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge as `ack` does; with `durable` the event loop runs during the sync.

        The cursor moves at once. If the task is cancelled during the sync, the cursor has moved,
        but may not be on stable storage.

        Args:
            message_or_sequence: as for `ack`.
            durable: return when the cursor is on stable storage.

        Raises:
            InvalidOption, SyncFailed, TypeError, UsageError: as for `ack`.

        Example:
            >>> await consumer.ack_async(message, durable=True)
        """
        self.ack(message_or_sequence)
        if durable:
            what = object()  # a sync that is running may have begun before the cursor moved
            await self._store.jobs.run(what, lambda _: self._sync_place()).wait()

    def _sync_place(self) -> None:
        """Put the cursor on stable storage, which only a named consumer has."""

    async def _await_first(
        self, attempt: Callable[[], Found | None], timeout: float | None
    ) -> Found:
        return await await_first(self._store, self._turns, attempt, self._is_near, timeout)

    def _is_near(self) -> bool:
        """Whether the next message may have been published; the notifier's thread calls this."""
        region = self._region
        if self._closed or region is None or self._store.awaits_recovery:
            return True
        return region.broken or region.load_half(self._position) != 0
