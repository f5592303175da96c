"""PayloadWriter: a message that is written as a file, and is never in memory as a whole."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.append import check_size
from pagequeue.bulk.publisher import BulkPublisher
from pagequeue.bulk.staged_pages import Staging
from pagequeue.bulk.staging_directory import StagingDirectory
from pagequeue.columns.inputs import bytes_of
from pagequeue.page.fragments import fragment_count, fragment_rooms
from pagequeue.util.closing import finalizer
from pagequeue.util.state_lock import HOLDER, StateLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

    from pagequeue.bulk.staged_fragments import FragmentWriter
    from pagequeue.producer.producer import Producer

SPOOL_BYTES: Final = 1 << 20
"""A payload that is not larger than this is sent as an ordinary message."""


class PayloadWriter(io.RawIOBase):
    """A message that is written as a binary file, and sent when that is closed.

    It is made by `Producer.open`. Leaving its `with` block by an exception, dropping it, or the
    death of the process sends nothing, and leaves nothing.

    Attributes:
        sequence: of the message, once it is sent; None before.

    Example:
        >>> with producer.open() as file, open(path, "rb") as source:
        ...     shutil.copyfileobj(source, file)
    """

    def __init__(self, producer: Producer, timestamp: int | None, *, synced: bool) -> None:
        super().__init__()
        self._synced = synced
        self._producer = producer
        self._store = store = producer._store  # noqa: SLF001 - no user's
        self._timestamp = timestamp
        self._spool = bytearray()
        self._spool_max = min(SPOOL_BYTES, fmt.payload_bytes_max(store.meta.page_bytes))
        self._held = contextlib.ExitStack()
        self._staging: Staging | None = None
        self._writer: FragmentWriter | None = None
        self._lock = StateLock()
        self._is_done = False  # it is sent, or never will be
        self._is_abandoned = False
        self._checked_bytes = 0
        self.sequence: int | None = None

    def writable(self) -> bool:
        """Whether it can be written: always."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return len(self._spool) + (0 if self._writer is None else self._writer.written)

    def write(self, data: Buffer, /) -> int:
        """Append bytes to the payload; return how many.

        Raises:
            TypeError: they are not bytes-like, or hold addresses of objects.
            DiskFull: they do not fit on the disk; the message cannot be sent any more.
            MessageTooLarge: `max_bytes` cannot hold the message, or it exceeds 2**40 bytes.
            LockTimeout: a signal handler called it while its own thread was inside.
            ClosedError, ForkedError: the producer cannot be used.
        """
        self._producer._check_open()  # noqa: SLF001 - no user's
        with self._alone("writing to a payload's file"):
            if self._is_done:
                self._producer._check_open()  # noqa: SLF001 - closed meanwhile, and this with it
                raise ValueError("I/O operation on closed file")
            if type(data) is bytes:
                return self._append(data, len(data))
            with bytes_of(data) as given:
                return self._append(given, len(given))

    def _append(self, data: bytes | memoryview, count: int) -> int:
        writer = self._writer
        if writer is None and len(self._spool) + count <= self._spool_max:
            self._spool += data
            return count
        if writer is None:
            writer = self._begin_pages()
        size = writer.written + count
        if size > self._checked_bytes:
            self._check_room(size)
        return writer.write(data)

    def _check_room(self, size: int) -> None:
        """Check a size of the payload, which takes more pages than the last one checked."""
        check_size(self._store, np.array([size], np.int64))
        page_bytes = self._store.meta.page_bytes
        first, others = fragment_rooms(page_bytes)
        self._checked_bytes = first + (fragment_count(page_bytes, size) - 1) * others

    def _begin_pages(self) -> FragmentWriter:
        store = self._store
        self._held.enter_context(store.folder.descriptor)
        folder = self._held.enter_context(StagingDirectory(store))
        self._staging = Staging(store, folder, synced=self._synced)
        writer = self._writer = self._held.enter_context(self._staging.fragments())
        writer.write(self._spool)
        self._spool = bytearray()
        return writer

    def close(self) -> None:
        """Send the message; closing again has no effect.

        Raises:
            As for `Producer.send`: the message was not sent.
        """
        if not self._is_done:
            try:
                self._producer._check_open()  # noqa: SLF001 - no user's
            except errors.PageQueueError:
                self.discard()
                raise
            with self._alone("closing a payload's file"):
                if not self._is_done:
                    self._is_done = True
                    self._send()
        if self._is_abandoned:
            self._is_abandoned = False
            self._producer._check_open()  # noqa: SLF001 - no user's

    @contextlib.contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        """Let no other thread in, and no handler; release in the end what nobody needs."""
        try:
            store = self._store
            with self._lock.held(store.lock_timeout, doing, store.folder.path):
                yield
        finally:
            if self._is_done:
                self._release()

    def _send(self) -> None:
        if self._writer is None or self._staging is None:
            # The core's own: bytes are sent as they are, also to a queue with a codec.
            payload, timestamp = bytes(self._spool), self._timestamp
            self.sequence = _core.Writer.send(self._producer, payload, timestamp=timestamp)
            return
        self._staging.add_fragments(self._writer.finish(), self._timestamp)
        staged = self._staging.finish()
        deadline = self._store.limits.deadline()
        check = self._producer._check_open  # noqa: SLF001 - no user's
        with BulkPublisher(self._store, deadline) as publisher:
            left = deadline - time.monotonic()
            sent = publisher.append(self._producer, staged, timeout=left, check=check)
        self.sequence = sent.start
        self._producer._flush_if_asked(sent.stop)  # noqa: SLF001 - no user's

    def discard(self) -> None:
        """Send nothing, and remove what was written, when no call is inside any more."""
        self._is_done = True
        self._release()

    def abandon(self) -> None:
        """Discard it, because its producer is closed: closing it afterwards raises."""
        if not self._is_done:
            self._is_abandoned = True
            self.discard()

    def _release(self) -> None:
        """Release all, unless a call is inside, which does that when it ends."""
        me = [threading.get_ident()]
        holder = self._lock.holder
        try:
            if holder.setdefault(HOLDER, me) is me:
                if not self._store.is_forked:  # else the files are the parent's
                    self._held.close()
                super().close()
        finally:
            if HOLDER in holder and holder[HOLDER] is me:
                del holder[HOLDER]

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    @finalizer
    def __del__(self) -> None:
        """It was dropped without being closed."""
        if "_is_done" in self.__dict__ and not self._is_done:
            self.discard()
