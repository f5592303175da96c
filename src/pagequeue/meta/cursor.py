"""Cursors: the next sequence of each named consumer, one small mapped file for each.

An acknowledgement is one aligned 8-byte store, so a kill leaves the old value or the new one. It is
put on stable storage only on request, and before retention removes messages because of it. After a
power cut a cursor can therefore be older than it was, and its messages are redelivered. It can also
be *ahead*: its OS page reached the disk, and the messages did not. Their sequences are then given
to other messages, so recovery lowers such a cursor to the tail before anything new is sent (I11).
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import check_shared, field_of, make_shared, map_shared, sync_state
from pagequeue.system.file_lock import FileLock
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.replaced_file import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue._core import Region
    from pagequeue.system.directory import Directory

log: logging.Logger = logging.getLogger("pagequeue")
TAKE_SECONDS: Final = 0.2
"""How long to retry: `is_open` takes a cursor's lock briefly."""
TAKE_STEP_SECONDS: Final = 0.005
REMEDY: Final = (
    "restore the file from a copy, or remove the consumer, whose place is lost, and make it again"
)


def cursor_names(folder: Directory, prefix: str) -> list[str]:
    """Return the names of all consumers that have a cursor, sorted."""
    return consumers_in(prefix, folder.names())


def consumers_in(prefix: str, files: list[str]) -> list[str]:
    """Return the names of all consumers that have a cursor among these files, sorted."""
    begin = fmt.cursor_name(prefix, "")  # most files are pages: asked first, because it is quick
    files = [file_name for file_name in files if file_name.startswith(begin)]
    found = (fmt.consumer_of(prefix, file_name) for file_name in files)
    return sorted(name for name in found if name is not None)


def cursor_files(folder: Directory, prefix: str) -> list[str]:
    """Return the names of the files of all cursors, sorted."""
    return [fmt.cursor_name(prefix, name) for name in cursor_names(folder, prefix)]


def _corrupt(path: str, position: int, reason: str) -> errors.CorruptMeta:
    return errors.CorruptMeta(
        f"cursor: {reason}", path=path, position=position, reason=reason, remedy=REMEDY
    )


class CursorMeta:
    """The fields of one cursor, mapped.

    Raises:
        QueueNotFound: no cursor has this name.
        CorruptMeta: it is damaged, or another queue's.
        NewerFormat, UnsafePath, AccessDenied: opening it failed.
    """

    NEXT: Final = field_of(fmt.CURSOR_META, "next_sequence")
    LAST_ACK: Final = field_of(fmt.CURSOR_META, "last_ack")
    OPENED: Final = field_of(fmt.CURSOR_META, "opened")
    CREATED: Final = field_of(fmt.CURSOR_META, "created")
    KIND: Final = field_of(fmt.CURSOR_META, "kind")
    FLOW_FROM: Final = field_of(fmt.CURSOR_META, "flow_from")

    region: Region

    def __init__(
        self, folder: Directory, prefix: str, queue_id: bytes, name: str, *, writable: bool
    ) -> None:
        file_name = fmt.cursor_name(prefix, name)
        self.path: str = folder.full(file_name)
        try:
            self.region, _ = map_shared(
                folder,
                file_name,
                size_bytes=fmt.CURSOR_META_BYTES,
                writable=writable,
                doing="mapping the cursor",
            )
            check_shared(self.region, fmt.CURSOR_META, fmt.CURSOR_MAGIC, queue_id, self.path, name)
        except errors.CorruptMeta as error:
            raise _corrupt(self.path, error.position, error.reason) from error
        self.region.on_lost = partial(_corrupt, self.path, reason="truncated while it was open")
        if self.region.load_half(self.KIND) not in {fmt.CURSOR_OF_CONSUMER, fmt.CURSOR_OF_GROUP}:
            raise _corrupt(self.path, self.KIND, "not the cursor of a consumer or a group")
        if self.next_sequence > fmt.SEQUENCE_MAX:
            raise _corrupt(self.path, self.NEXT, "an invalid sequence")
        if self.flow_from > fmt.SEQUENCE_MAX:
            raise _corrupt(self.path, self.FLOW_FROM, "an invalid sequence")

    @staticmethod
    def make(
        folder: Directory,
        prefix: str,
        queue_id: bytes,
        name: str,
        *,
        next_sequence: int,
        created: int,
        opened: int = 0,
        last_ack: int = 0,
        flow_from: int = 0,
    ) -> None:
        """Create or replace the file, durable with its name.

        Raises:
            SystemLimit: a sync failed; a new file is removed then, a replaced one stays.
        """
        file_name = fmt.cursor_name(prefix, name)
        replaces = folder.exists(file_name)
        make_shared(
            folder,
            file_name,
            fmt.CURSOR_META,
            fmt.CURSOR_MAGIC,
            queue_id,
            consumer=name,
            kind=fmt.CURSOR_OF_CONSUMER,
            created=created,
            opened=opened,
            last_ack=last_ack,
            flow_from=flow_from,
            next_sequence=next_sequence,
        )
        try:
            folder.sync()
        except OSError as error:
            if not replaces:
                folder.remove(file_name)
            raise_typed(error, folder.path, "syncing the directory")

    @property
    def is_group(self) -> bool:
        """Whether it is a group's, which has more fields and a table (`group_table.py`)."""
        return self.region.load_half(self.KIND) == fmt.CURSOR_OF_GROUP

    @property
    def next_sequence(self) -> int:
        """Every message below it is acknowledged."""
        return self.region.load(self.NEXT)

    @property
    def last_ack(self) -> int:
        """Time of the last acknowledgement, in ns; 0 = never."""
        return self.region.load(self.LAST_ACK)

    @property
    def seen(self) -> int:
        """The last sign of life of the consumer, in ns."""
        times = (self.LAST_ACK, self.OPENED, self.CREATED)
        return max(self.region.load(at) for at in times)

    @property
    def created(self) -> int:
        """When it was made, in ns."""
        return self.region.load(self.CREATED)

    @property
    def flow_from(self) -> int:
        """1 + the tail when a flow of this name first asked for the last message; 0: none did."""
        return self.region.load(self.FLOW_FROM)

    @property
    def generation(self) -> tuple[int, int]:
        """Changes whenever the cursor can have moved back; until then it only rises."""
        return self.region.load(self.CREATED), self.region.load(self.OPENED)

    def move(self, next_sequence: int, now: int | None = None) -> None:
        """Set the next sequence; with a time, because messages were acknowledged.

        Dies between the stores: the sequence is right, the time that of the acknowledgement before.
        """
        self.region.store(self.NEXT, next_sequence)
        if now is not None:
            self.region.store(self.LAST_ACK, now)

    def opened(self, now: int) -> None:
        """Record that the consumer was opened."""
        self.region.store(self.OPENED, now)

    def seek(self, next_sequence: int, now: int) -> None:
        """Set the next sequence, perhaps to an earlier one; the caller has the preparation lock.

        Retention, which syncs cursors without that lock, sees by the time that it must sync again.
        """
        self.region.store(self.OPENED, max(now, self.region.load(self.OPENED) + 1))
        self.move(next_sequence, now)

    def seen_by(self, now: int) -> None:
        """Lower what lies ahead of a time; the caller has the queue exclusively."""
        created = self.created
        for at, least in ((self.LAST_ACK, 0), (self.OPENED, created + 1), (self.CREATED, 0)):
            known = self.region.load(at)
            if known > now and not (at == self.OPENED and known == created):
                self.region.store(at, max(now, least) if at != self.CREATED else now)
            elif known > now:
                self.region.store(at, now)

    def begin_flow(self, tail_sequence: int) -> None:
        """Record that a flow of this name asks for the last message, if none did before."""
        if not self.flow_from:
            self.region.store(self.FLOW_FROM, tail_sequence + 1)

    def close(self) -> None:
        """Release the map."""
        del self.region


class Cursor:
    """The cursor of one named consumer, locked exclusively by this handle.

    Raises:
        ConsumerInUse: another thread or process has it open.
        QueueNotFound, CorruptMeta: as for `CursorMeta`.
    """

    def __init__(self, folder: Directory, prefix: str, queue_id: bytes, name: str) -> None:
        self.name = name
        self.sync_failed: bool = False
        self._status = partial(folder.status, fmt.cursor_name(prefix, name))
        self._lock = locked(folder, prefix, name)
        try:
            self.meta: CursorMeta = CursorMeta(folder, prefix, queue_id, name, writable=True)
            self._refuse_group()
        except BaseException:
            self._lock.close()
            raise

    def _refuse_group(self) -> None:
        if self.meta.is_group:
            raise errors.UsageError(
                f"{self.name!r} is a group",
                path=self.meta.path,
                remedy=f"open queue.group({self.name!r}), or choose another name",
            )

    def sync(self) -> None:
        """Put the cursor on stable storage.

        Raises:
            SyncFailed: the sync failed, now or before; a later success would prove nothing.
            LockReplaced: the file was removed or replaced while it was open.
            CorruptMeta: it was truncated.
        """
        try:
            if not self.sync_failed:
                self._lock.sync()
                self.check_file()
                return
            words = "a sync of it failed before"
        except OSError as error:
            self.sync_failed = True
            words = errors.describe(error)
        sequence = self.meta.next_sequence
        raise errors.SyncFailed(
            f"the cursor is not on stable storage ({words}), so after a power cut acknowledged "
            "messages can be redelivered",
            remedy="repair the disk, then open the consumer again",
            path=self.meta.path,
            position=0,
            reason=words,
            first_sequence=sequence,
            end_sequence=sequence,
        )

    def check_file(self) -> None:
        """Raise if this file is not the one that the next opener will find.

        Raises:
            LockReplaced: it was removed or replaced while it was open.
            CorruptMeta: it was truncated.
        """
        status = self._status()
        if status is None or identity_of(status) != self._lock.identity():
            raise errors.LockReplaced(
                "the consumer's file was replaced or removed while it was open, so its place is "
                "not the one that the next process will find",
                path=self.meta.path,
                remedy="close the consumer, then open it again",
            )
        if status.st_size < fmt.CURSOR_META_BYTES:
            raise _corrupt(self.meta.path, status.st_size, "truncated while it was open")

    def close(self) -> None:
        """Release the lock; closing again has no effect."""
        self._lock.close()


def locked(folder: Directory, prefix: str, name: str) -> FileLock:
    """Return the exclusive lock on a cursor; the kernel releases it when this process ends.

    Raises:
        ConsumerInUse: another thread or process holds it.
        QueueNotFound: no cursor has this name.
    """
    file_name = fmt.cursor_name(prefix, name)
    deadline = time.monotonic() + TAKE_SECONDS
    while True:
        lock = FileLock(folder.open(file_name, writable=True), folder.full(file_name))
        try:
            taken = lock.try_exclusive()
            if taken and folder.identity(file_name) == lock.identity():
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()  # in use; or it was removed, or replaced, before it was locked
        if time.monotonic() > deadline:
            raise errors.ConsumerInUse(
                f"consumer {name!r} is open already, in this process or in another one",
                path=folder.full(file_name),
                remedy="close that one first, or choose another name",
            )
        time.sleep(TAKE_STEP_SECONDS)


def is_open(folder: Directory, prefix: str, name: str) -> bool:
    """Return whether a cursor is open now; a concurrent opener waits for this test."""
    file_name = fmt.cursor_name(prefix, name)
    lock = FileLock(folder.open(file_name, writable=False), folder.full(file_name))
    try:
        return not lock.try_shared()
    finally:
        lock.close()


def sync_cursor(folder: Directory, prefix: str, name: str) -> None:
    """Put a cursor on stable storage, open or not; the error is the system's own."""
    sync_state(folder, fmt.cursor_name(prefix, name))


def readable_cursors(
    folder: Directory, prefix: str, queue_id: bytes, names: list[str] | None = None
) -> Iterator[tuple[str, CursorMeta | errors.PageQueueError]]:
    """Yield each cursor, mapped for reading while it is referenced, or the error of reading it.

    Args:
        folder: of the queue.
        prefix: of its file names.
        queue_id: of the queue.
        names: of the consumers; None: of all.
    """
    for name in cursor_names(folder, prefix) if names is None else names:
        try:
            meta = CursorMeta(folder, prefix, queue_id, name, writable=False)
        except errors.QueueNotFound:
            continue  # removed meanwhile
        except errors.ClosedError:
            raise  # this is not about the cursor
        except errors.NOT_RETRYABLE as error:
            yield name, error
            continue
        yield name, meta


def lower_cursors(
    folder: Directory,
    prefix: str,
    queue_id: bytes,
    head_sequence: int,
    tail_sequence: int,
    did: Callable[[str], None],
    names: list[str] | None = None,
) -> None:
    """Lower every cursor that is ahead of the tail to it; the caller has the queue alone (I11).

    Raise those before the head of a ring to it: they had acknowledged what was used again, and a
    power cut took that back. Elsewhere the head is given as 0.

    An unreadable file is left: no other file records its consumer's place. The lowered cursor is a
    new file, durable before anything new is sent: otherwise the old one could come back at the next
    power cut, and skip the messages sent until then.

    The names of consumers and groups are given; None: those in the directory.
    """
    for name, meta in readable_cursors(folder, prefix, queue_id, names):
        if isinstance(meta, errors.PageQueueError):
            log.warning("%s", meta)
        elif meta.is_group:
            continue
        elif meta.next_sequence > tail_sequence:
            # Dies or cut before the rename: it is still ahead, and the next recovery lowers it.
            _move(folder, prefix, queue_id, name, meta, tail_sequence)
            did(
                f"lowered consumer {name!r} from {meta.next_sequence} to {tail_sequence}, the next "
                "sequence: the power cut took later messages that it had acknowledged"
            )
        elif meta.next_sequence < head_sequence:
            # Dies or cut before the rename: the same again.
            _move(folder, prefix, queue_id, name, meta, head_sequence)
            did(
                f"raised consumer {name!r} from {meta.next_sequence} to {head_sequence}, the head: "
                "it had acknowledged what the ring used again"
            )


def _move(
    folder: Directory,
    prefix: str,
    queue_id: bytes,
    name: str,
    meta: CursorMeta,
    next_sequence: int,
) -> None:
    CursorMeta.make(
        folder,
        prefix,
        queue_id,
        name,
        next_sequence=next_sequence,
        created=meta.created,
        last_ack=meta.last_ack,
        flow_from=min(meta.flow_from, next_sequence + 1),
    )
