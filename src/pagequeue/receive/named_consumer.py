"""NamedConsumer: a consumer that resumes after its last acknowledgement, in any process.

Its place is in a cursor file, which one handle at a time has locked; the kernel releases the lock
when that process ends, however it ends. Messages that were received and not acknowledged before a
kill are received again: at least once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import Cursor, CursorMeta
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.receive.consumer import Consumer
from pagequeue.store.options import check_consumer_name
from pagequeue.system.replaced_file import CHECK_SECONDS
from pagequeue.util.arguments import shown, whole
from pagequeue.util.closing import finalizer

if TYPE_CHECKING:
    from pagequeue._core import Message
    from pagequeue.store.store import Store
    from pagequeue.util.literals import OnExpired
    from pagequeue.util.timestamps import TimeLike

log: logging.Logger = logging.getLogger("pagequeue")
NEXT, LAST_ACK = CursorMeta.NEXT, CursorMeta.LAST_ACK
"""Copied here, because acknowledging is a hot path."""
CHECK_NS: Final = int(CHECK_SECONDS * 1e9)


class NamedConsumer(Consumer):
    """A consumer with a name, whose place is persistent. Made by `Queue.consumer(name)`.

    Attributes:
        name: of the consumer.

    Example:
        >>> with queue.consumer("billing") as consumer:
        ...     message = consumer.receive(timeout=1.0)
        ...     consumer.ack(message)
    """

    __slots__ = ("_checked_at", "_cursor", "name")

    name: str
    _cursor: Cursor
    _checked_at: int

    def __new__(
        cls, store: Store, name: str, *, durable_only: bool = False, on_expired: OnExpired = "raise"
    ) -> Self:
        """Make a consumer without a place; `open_consumer` sets one."""
        self = super().__new__(cls, store, durable_only=durable_only, on_expired=on_expired)
        self.name = name
        self._checked_at = 0
        return self

    def __init__(self, store: Store, name: str, **options: object) -> None:
        """`__new__` does everything."""

    def _resume(self, cursor: Cursor) -> None:
        """Go to the place of the cursor."""
        store, sequence = self._store, cursor.meta.next_sequence
        tail = store.tail.sequence
        end = tail if sequence <= tail else store.published_end
        if sequence > end:
            # Another version of the file was copied here while the queue was in use.
            log.warning(
                "%s: the cursor is at %d, after the next sequence %d: lowered to that",
                cursor.meta.path,
                sequence,
                end,
            )
            sequence = end
            cursor.meta.move(sequence)
            cursor.sync()
        cursor.meta.opened(store.clock())
        self._cursor = cursor
        try:
            self._go(store.seek_sequence(min(sequence, tail)))
        except errors.Expired:
            self._enter_before_head(sequence)
        # Past what a producer published that died before it advanced the tail (I3).
        while tail <= self.sequence < sequence and self._batch(
            min(sequence - self.sequence, fmt.READ_COUNT_MAX), 0.0
        ):
            pass

    @property
    def acknowledged(self) -> int:
        """The cursor: every message below it is acknowledged.

        Example:
            >>> consumer.ack(message)
            >>> consumer.acknowledged
            1
        """
        self._check()
        return self._cursor.meta.next_sequence

    def ack(
        self, message_or_sequence: Message | int | None = None, *, durable: bool = False
    ) -> None:
        """Acknowledge a message and all before it: a later process continues after it.

        An acknowledgement is never undone by a lower one. It costs a store into memory, and
        survives every kill; without `durable` a power cut can restore an older place, and the
        messages after that are received again.

        Args:
            message_or_sequence: the last message that is done, or its sequence; None: all messages
                received so far.
            durable: return when the place is on stable storage.

        Raises:
            InvalidOption: the message was not received yet, or not since the last `seek`.
            QueueReplaced: the queue, or this consumer's file, is not where the name leads.
            SyncFailed: with `durable`: acknowledged, but a power cut can undo that.
            InvalidType: the argument is neither a message nor a sequence.
            ConcurrentUse, ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> consumer.ack(message, durable=True)
        """
        store = self._store
        if self._closed or self._busy or store.is_forked:
            self._check()
        region, received = self._cursor.meta.region, self.sequence
        if message_or_sequence is None:  # the cursor is never ahead of this
            wanted = received
        else:
            wanted = _end_of(message_or_sequence)
            if not 0 < wanted <= received:
                raise errors.InvalidOption(
                    f"message_or_sequence is {shown(wanted - 1)}, which was not received",
                    path=store.folder.path,
                    remedy=f"acknowledge received messages, up to message {received - 1}",
                )
            wanted = max(wanted, region.load(NEXT))
        now = store.clock()
        if not 0 <= now - self._checked_at < CHECK_NS:
            self._checked_at = now
            self._on_place()
        # Dies between: the place is right, the time is that of the previous acknowledgement.
        region.store(NEXT, wanted)
        region.store(LAST_ACK, now)
        _core.made_room(store.write_meta.region, wanted)
        if durable:
            self._cursor.sync()

    def _on_place(self) -> None:
        """Raise if the queue's directory, or the cursor, is not what its name leads to."""
        self._store.folder.check()
        if hasattr(self, "_cursor"):
            try:
                self._cursor.check_file()
            except errors.PageQueueError:
                self._leave()
                raise

    def _begin_flow(self) -> int:
        """Record durably that a flow of this name needs the last message.

        Returns:
            1 + the tail when the first flow of this name did so.

        Raises:
            SyncFailed: the record is not on stable storage.
        """
        meta = self._cursor.meta
        meta.begin_flow(self._store.tail.sequence)
        self._cursor.sync()  # also if a process that died here had recorded it in memory
        return meta.flow_from

    def _sync_place(self) -> None:
        """Put the place on stable storage; threads of event loops call this too."""
        self._cursor.sync()

    def seek(
        self, *, since: TimeLike | None = None, sequence: int | None = None, latest: bool = False
    ) -> None:
        """Go to another place, and move the cursor there at once, forwards or backwards.

        Skipped messages count as acknowledged; messages after the new place as not acknowledged.

        Args:
            since: as for `Consumer.seek`.
            sequence: as for `Consumer.seek`.
            latest: as for `Consumer.seek`.

        Raises:
            LockTimeout: another process is trimming for too long.
            Expired, SequenceOutOfRange, InvalidOption: as for `Consumer.seek`.

        Example:
            >>> consumer.seek(sequence=0)  # receive all retained messages again
        """
        self._check()
        store = self._store
        # Under this lock, so that retention does not remove the place before it is stored.
        with store.roller.lock.exclusive(store.lock_timeout, "moving a consumer"):
            super().seek(since=since, sequence=sequence, latest=latest)
            self._cursor.meta.seek(self.sequence, store.clock())
        _core.made_room(store.write_meta.region, self.sequence)

    def _check(self) -> None:
        """Raise if this handle cannot be used now, by this thread."""
        self._store.check_process(self._kind)
        if self._closed:
            self._on_closed()
        if self._busy:
            self._on_busy()

    def close(self) -> None:
        """Unmap the page and release the name; closing again has no effect.

        The next handle of this name receives all messages that were not acknowledged.

        Example:
            >>> consumer.close()
        """
        if self._store.is_forked:
            return  # the parent's
        super().close()
        if hasattr(self, "_cursor"):
            self._cursor.close()

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_cursor") and not self._store.is_forked:
            self._cursor.close()


def _end_of(message_or_sequence: Message | int) -> int:
    """Return the sequence after a message."""
    if isinstance(message_or_sequence, _core.Message):
        return message_or_sequence.sequence + 1
    return whole("message_or_sequence", message_or_sequence) + 1


def open_consumer(
    store: Store,
    name: str,
    *,
    since: TimeLike | None,
    sequence: int | None,
    latest: bool,
    durable_only: bool,
    on_expired: OnExpired,
) -> NamedConsumer:
    """Open a named consumer; create it if it does not exist.

    Raises:
        ConsumerInUse: another thread or process has it open.
        UsageError: it exists, and a place to begin was given.
    """
    check_consumer_name(store.folder.path, name)
    consumer = NamedConsumer(store, name, durable_only=durable_only, on_expired=on_expired)
    folder, queue_id = store.folder, store.meta.queue_id
    while True:
        cursor = None
        # Under this lock, so that retention does not remove the place between finding and storing
        # it, and that no other process opens the new cursor first.
        with store.roller.lock.exclusive(store.lock_timeout, "making a consumer"):
            made = not folder.exists(fmt.cursor_name(store.prefix, name))
            if made:
                Consumer.seek(consumer, since=since, sequence=sequence, latest=latest)
                now = store.clock()
                # Dies after this: a consumer at the place where it will begin.
                with store.read_meta.making(ReadMeta.CONSUMERS_MADE):
                    CursorMeta.make(
                        folder,
                        store.prefix,
                        queue_id,
                        name,
                        next_sequence=consumer.sequence,
                        created=now,
                        opened=now,
                    )
                cursor = _cursor(store, name)
        if not made:
            cursor = _cursor(store, name)
        if cursor is not None:
            break  # else it was removed meanwhile
    try:
        if not made:
            _refuse_place(cursor, given=since is not None or sequence is not None or latest)
        consumer._resume(cursor)  # noqa: SLF001 - the same module
    except BaseException:
        cursor.close()
        raise
    return consumer


def _cursor(store: Store, name: str) -> Cursor | None:
    """Open a cursor; None: it does not exist."""
    try:
        return Cursor(store.folder, store.prefix, store.meta.queue_id, name)
    except errors.QueueNotFound:
        return None


def _refuse_place(cursor: Cursor, *, given: bool) -> None:
    """Raise if a place to begin was given for a consumer that exists."""
    if given:
        raise errors.UsageError(
            f"consumer {cursor.name!r} exists and resumes at {cursor.meta.next_sequence}",
            path=cursor.meta.path,
            remedy="leave since, sequence and latest out, and call seek to go elsewhere",
        )
