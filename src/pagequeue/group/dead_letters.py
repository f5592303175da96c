"""Dead letters: messages that were delivered too often, in a queue of their own beside the first.

Each is sent and flushed before its message counts as acknowledged, because an acknowledgement that
reaches the disk without it would lose the message. Killed in between, it is sent again: the same
message can stand there twice, and its sequence tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.receive.replay import Replay
from pagequeue.send.producer import Producer
from pagequeue.store.options import check_options
from pagequeue.store.store import Store
from pagequeue.util.timestamps import to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pagequeue._core import Message

REASONS: Final = {
    fmt.CAUSE_NONE: "was not acknowledged",
    fmt.CAUSE_NACK: "was given back",
    fmt.CAUSE_LEASE: "was kept until its lease ended",
    fmt.CAUSE_DEATH: "was claimed by a worker that died",
    fmt.CAUSE_DAMAGE: "could not be read",
}
"""What became of its last delivery."""


@dataclass(frozen=True)
class DeadLetter:
    """A message that was delivered too often.

    Attributes:
        sequence: of the message, in the queue that it was sent to.
        payload: its bytes; None if they could not be read any more.
        timestamp: of the message, ns since 1970, UTC; 0 if it could not be read.
        deliveries: how often it was claimed.
        reason: what became of the last one, in words.
        buried: when it was put here.
    """

    sequence: int
    payload: bytes | None
    timestamp: int
    deliveries: int
    reason: str
    buried: datetime

    @classmethod
    def decode(cls, message: Message) -> DeadLetter:
        """Return what a message of a dead-letter queue says.

        Raises:
            InvalidOption: it is no dead letter.
            NewerFormat: a newer version wrote it.
        """
        size = fmt.DEAD_LETTER.itemsize
        if len(message.payload) < size:
            raise errors.InvalidOption(
                f"message {message.sequence} is no dead letter: it has {len(message.payload)} "
                f"bytes, and the least is {size}"
            )
        head = np.frombuffer(message.payload, fmt.DEAD_LETTER, 1)[0]
        if int(head["version"]) != fmt.DEAD_LETTER_FORMAT:
            raise errors.NewerFormat(
                f"a dead letter of format {int(head['version'])}, this is "
                f"{fmt.DEAD_LETTER_FORMAT}: upgrade pagequeue",
                version=int(head["version"]),
            )
        cause = int(head["cause"])
        return cls(
            sequence=int(head["sequence"]),
            payload=None if cause == fmt.CAUSE_DAMAGE else message.payload[size:],
            timestamp=int(head["timestamp"]),
            deliveries=int(head["deliveries"]),
            reason=REASONS.get(cause, f"ended for reason {cause}"),
            buried=to_datetime(message.timestamp),
        )


def encode_letter(sequence: int, message: Message | None, deliveries: int, cause: int) -> bytes:
    """Return the payload of a dead letter."""
    head = np.zeros(1, fmt.DEAD_LETTER)
    head["version"], head["cause"] = fmt.DEAD_LETTER_FORMAT, cause
    head["sequence"], head["deliveries"] = sequence, deliveries
    head["timestamp"] = 0 if message is None else message.timestamp
    return head.tobytes() + (b"" if message is None else message.payload)


class DeadLetters:
    """The dead letters of one group; their queue is opened when the first one comes."""

    def __init__(self, store: Store, name: str) -> None:
        self._beside = store
        self.prefix = fmt.dead_letter_prefix(store.prefix, name)
        self._store: Store | None = None
        self._producer: Producer | None = None

    def check(self) -> None:
        """Raise InvalidOption if there can be no queue of that prefix."""
        check_options(self._beside.folder.path, self.prefix, None, 0)

    def _open(self, *, create: bool, read_only: bool = False) -> Store:
        beside = self._beside
        # One OS page more than there, so that its largest message fits with what stands before it.
        page_bytes = min(beside.meta.page_bytes + fmt.PAGE_BYTES_STEP, fmt.PAGE_BYTES_MAX)
        return Store(
            beside.folder.path, self.prefix, create=create, read_only=read_only,
            page_bytes=page_bytes if create else None, lock_timeout=beside.lock_timeout,
            clock=beside.clock, file_mode=beside.folder.file_mode, trust=beside.folder.trust,
        )  # fmt: skip

    def send(self, sequence: int, message: Message | None, deliveries: int, cause: int) -> None:
        """Send a dead letter; it is on stable storage when this returns."""
        if self._producer is None:
            self._store = self._open(create=True)
            self._producer = Producer(self._store)
        self._producer.send(encode_letter(sequence, message, deliveries, cause))
        self._producer.flush()

    def read(self) -> Iterator[DeadLetter]:
        """Give the letters there are as of now, oldest first."""
        try:
            store = self._open(create=False, read_only=True)
        except errors.QueueNotFound:
            return
        try:
            for message in Replay(store, None, None, None):
                yield DeadLetter.decode(message)
        finally:
            store.close()

    def close(self) -> None:
        """Let go of their queue; closing again does nothing."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        store, self._store = self._store, None
        if store is not None:
            store.close()
