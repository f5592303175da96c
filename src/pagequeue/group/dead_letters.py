"""Dead letters: messages that were delivered too often, in a queue of their own.

That queue is in the same directory. A dead letter is sent and flushed before its message is
acknowledged: an acknowledgement that reached the disk without it would lose the message. A process
that is killed in between causes a duplicate, which has the same sequence.

A reason that the worker gave is between the header and the payload. Only the worker that gives it
moves the message with it, because the group's table has no room for a text.

Letters that were requeued or purged are acknowledged by a named consumer of that queue, `HANDLED`,
after they were sent: a process that is killed in between sends them again.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import readable_cursors
from pagequeue.producer.producer import Producer
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.receive.replay import Replay
from pagequeue.store.opening import Opening
from pagequeue.store.options import check_options
from pagequeue.store.store import Store
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pagequeue._core import Message
    from pagequeue.receive.named_consumer import NamedConsumer

log: logging.Logger = logging.getLogger("pagequeue")
HANDLED: Final = "handled"
"""The named consumer of a dead-letter queue that requeueing and purging move."""
STEP_COUNT: Final = 1024
"""Letters that are sent again before they are acknowledged."""
REASON_BYTES_MAX: Final = 1024
"""So that header and reason fit into the one OS page that a page of dead letters has more."""
FORMATS: Final = (fmt.DEAD_LETTER_FORMAT, fmt.DEAD_LETTER_FORMAT_REASON)

REASONS: Final = {
    fmt.CAUSE_NONE: "was not acknowledged",
    fmt.CAUSE_NACK: "was given back",
    fmt.CAUSE_LEASE: "was kept until its lease ended",
    fmt.CAUSE_DEATH: "was claimed by a worker that died",
    fmt.CAUSE_DAMAGE: "could not be read",
    fmt.CAUSE_REJECT: "was rejected",
}
"""How the last delivery ended."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that was delivered too often, or rejected.

    Attributes:
        sequence: of the message, in the queue that it was sent to.
        payload: its bytes; None if they were unreadable.
        timestamp: of the message, ns since 1970, UTC; 0 if it was unreadable.
        deliveries: how often it was claimed.
        reason: what the worker gave to `Claim.reject` or `Claim.nack`, else how the last delivery
            ended, in words.
        moved_at: when it was moved to the dead letters.

    Example:
        >>> letter = next(group.dead_letters())
        >>> letter.sequence, letter.deliveries, letter.reason
        (0, 1, 'was given back')
    """

    sequence: int
    payload: bytes | None
    timestamp: int
    deliveries: int
    reason: str
    moved_at: datetime

    @classmethod
    def decode(cls, message: Message) -> DeadLetter:
        """Decode a message of a dead-letter queue.

        Args:
            message: received from that queue.

        Raises:
            InvalidOption: it is not a dead letter.
            NewerFormat: a newer version wrote it.

        Example:
            >>> DeadLetter.decode(dead_queue.consumer().receive()).sequence
            0
        """
        size = fmt.DEAD_LETTER.itemsize
        if len(message.payload) < size:
            raise errors.InvalidOption(
                f"message {message.sequence} is not a dead letter: it has {len(message.payload)} "
                f"bytes, the minimum is {size}",
                remedy="decode messages of a group's dead-letter queue only",
            )
        head = np.frombuffer(message.payload, fmt.DEAD_LETTER, 1)[0]
        if int(head["version"]) not in FORMATS:
            raise errors.NewerFormat(
                f"a dead letter of format {int(head['version'])}, this version reads up to "
                f"{max(FORMATS)}",
                remedy="upgrade pagequeue",
                version=int(head["version"]),
            )
        cause = int(head["cause"])
        begin = size
        reason = REASONS.get(cause, f"ended for reason {cause}")
        if int(head["version"]) == fmt.DEAD_LETTER_FORMAT_REASON:
            begin += int(head["reason_bytes"])
            reason = message.payload[size:begin].decode("utf-8", "replace")
        return cls(
            sequence=int(head["sequence"]),
            payload=None if cause == fmt.CAUSE_DAMAGE else message.payload[begin:],
            timestamp=int(head["timestamp"]),
            deliveries=int(head["deliveries"]),
            reason=reason,
            moved_at=to_datetime(message.timestamp),
        )


def _first_unhandled(store: Store) -> int | None:
    """Return the sequence of the first letter that was not handled; None: the head."""
    for name, cursor in readable_cursors(store.folder, store.prefix, store.meta.queue_id):
        if name == HANDLED and not isinstance(cursor, errors.PageQueueError):
            return max(cursor.next_sequence, store.read_meta.head_sequence)
    return None


def reason_of(error: BaseException) -> str:
    """Return an error as a reason: its type and text."""
    name = type(error).__qualname__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the error of a user's class, whose text fails
        return name
    return f"{name}: {text}" if text else name


def encode_letter(
    sequence: int, message: Message | None, deliveries: int, cause: int, reason: str | None = None
) -> bytes:
    """Return the payload of a dead letter."""
    told = (reason or "").encode("utf-8", "backslashreplace")
    if len(told) > REASON_BYTES_MAX:  # not inside a character
        told = told[:REASON_BYTES_MAX].decode("utf-8", "ignore").encode()
    head = np.zeros(1, fmt.DEAD_LETTER)
    head["version"] = fmt.DEAD_LETTER_FORMAT_REASON if told else fmt.DEAD_LETTER_FORMAT
    head["cause"], head["reason_bytes"] = cause, len(told)
    head["sequence"], head["deliveries"] = sequence, deliveries
    head["timestamp"] = 0 if message is None else message.timestamp
    return head.tobytes() + told + (b"" if message is None else message.payload)


class DeadLetters:
    """The dead letters of one group; the first one opens their queue."""

    def __init__(self, store: Store, name: str) -> None:
        self._source = store
        self.prefix: str = fmt.dead_letter_prefix(store.prefix, name)
        self._store: Store | None = None
        self._producer: Producer | None = None
        self._opening = threading.RLock()

    def check(self) -> None:
        """Raise InvalidOption if their prefix is invalid."""
        check_options(self._source.folder.path, self.prefix, None, 0)

    def _open(self, *, create: bool, read_only: bool = False) -> Store:
        source = self._source
        # One OS page more, so that the group's largest message fits together with its header.
        page_bytes = min(source.meta.page_bytes + fmt.PAGE_BYTES_STEP, fmt.PAGE_BYTES_MAX)
        return Store(
            Opening(
                source.folder.path,
                self.prefix,
                create=create,
                read_only=read_only,
                page_bytes=page_bytes if create else None,
                lock_timeout=source.lock_timeout,
                clock=source.clock,
                file_mode=source.folder.file_mode,
                trust=source.folder.trust,
                within=source.folder,
            )
        )

    def send(
        self,
        sequence: int,
        message: Message | None,
        deliveries: int,
        cause: int,
        reason: str | None = None,
    ) -> None:
        """Send a dead letter; it is on stable storage when this returns."""
        with self._opening:
            if self._producer is None:
                self.check()
                self._store = self._open(create=True)
                self._producer = Producer(self._store)
            producer = self._producer
        producer.send(encode_letter(sequence, message, deliveries, cause, reason))
        producer.flush()

    def read(self) -> Iterator[DeadLetter]:
        """Yield the letters that were not requeued or purged, oldest first."""
        try:
            store = self._open(create=False, read_only=True)
        except errors.QueueNotFound:
            return
        try:
            for message in Replay(store, None, None, _first_unhandled(store)):
                yield DeadLetter.decode(message)
        finally:
            store.close()

    def requeue(self, limit_count: int | None) -> int:
        """Send the oldest letters to the group's queue again; return how many.

        1. Send some, and flush. Dies here: they are sent again by the next call.
        2. Acknowledge them. Power is cut here: the same; what was acknowledged is on the disk.

        Raises:
            JournalOnly: the group's queue is a journal's, to which an entry would be added twice.
        """
        sent = 0
        source = self._source
        source.check_appendable()
        with Producer(source, source.clock) as producer:
            for consumer, batch in self._unhandled(limit_count):
                for message in batch:
                    letter = DeadLetter.decode(message)
                    if letter.payload is None:
                        log.warning(
                            "%s: message %d could not be read, so it is not requeued",
                            source.folder.path,
                            letter.sequence,
                        )
                        continue
                    producer.send(letter.payload)
                    sent += 1
                producer.flush()
                consumer.ack(int(batch[-1].sequence))
        return sent

    def purge(self) -> int:
        """Acknowledge all letters, so that they are not listed any more; return how many."""
        purged = 0
        for consumer, batch in self._unhandled(None):
            purged += len(batch)
            consumer.ack(int(batch[-1].sequence))
        return purged

    def _unhandled(self, limit_count: int | None) -> Iterator[tuple[NamedConsumer, list[Message]]]:
        """Yield letters that were not handled, up to the last one of now, with their consumer."""
        try:
            store = self._open(create=False)
        except errors.QueueNotFound:
            return
        try:
            with open_consumer(
                store,
                HANDLED,
                since=None,
                sequence=None,
                latest=False,
                durable_only=False,
                on_expired="skip",
            ) as consumer:
                end = store.tail.sequence
                if limit_count is not None:
                    end = min(end, consumer.sequence + limit_count)
                while consumer.sequence < end:
                    count = min(end - consumer.sequence, STEP_COUNT)
                    yield consumer, list(consumer.receive_many(count, timeout=0))
        finally:
            store.close()

    def close(self) -> None:
        """Close their queue; closing again has no effect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()
