"""Queue: the directory as users see it."""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.integrity.repair import RepairReport, repair_queue
from pagequeue.integrity.rewrite_unsynced import rewriter
from pagequeue.maintenance.compress import Compressor
from pagequeue.maintenance.retention import KEEP_ALL, Retainer, Retention
from pagequeue.page.zstd import LEVEL_DEFAULT
from pagequeue.queue.flows import QueueFlows
from pagequeue.queue.groups import QueueGroups
from pagequeue.queue.reading import QueueReading
from pagequeue.receive.consumer import Consumer
from pagequeue.receive.named_consumer import open_consumer
from pagequeue.receive.pace import pace_of
from pagequeue.receive.paced_replay import PacedReplay
from pagequeue.receive.replay import Replay
from pagequeue.schema.schema import requested_schema
from pagequeue.send.codec_producer import make_producer
from pagequeue.store import options
from pagequeue.store.flush import Sync, sync_policy
from pagequeue.store.store import Store
from pagequeue.system.directory import FILE_MODE
from pagequeue.system.trust import trusted
from pagequeue.util.timestamps import Moment, system_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import DTypeLike

    from pagequeue.receive.pace import Speed
    from pagequeue.send.producer import Producer
    from pagequeue.store.power_loss_recovery import RecoveryReport

LOCK_TIMEOUT = 10.0


class Queue(QueueGroups, QueueReading, QueueFlows):
    """A persistent queue in a directory. Threads may share it; processes each open their own.

    Args:
        directory: its path; made, readable for its owner only, if it is not there.
        prefix: of all file names, so that one directory can hold several queues.
        create: make the queue if there is none; False makes that an error.
        read_only: open without write permission, write no byte, lock only the pages it reads,
            shared. A reader then polls with pauses of up to 10 ms instead of being woken.
        page_bytes: size of each page file, a multiple of 4096 from 4096 to 2**30; 64 MiB for a
            new queue. A message, and a batch, must fit into one page.
        sync: what this process's producers do for a power cut. `"none"`: a prefix survives it, as
            far as the system has written. `"always"`: all that was sent survives it. An int N: at
            most the last N - 1 messages of each producer do not. A timedelta: at most what was
            sent within that time does not. Closing flushes, except for `"none"`.
        on_sync_failure: what this process does when a sync fails. `"stop"`: nothing more is
            written, by anybody, until the queue is repaired. `"seal"`: the page is sealed and what
            is at risk is written again to new files; if that works nothing is lost and writing
            goes on, if not it is tried again at the next flush or send.
        lock_timeout: seconds to wait for a lock that another process holds.
        clock: returns ns since 1970, UTC; for tests and simulations.
        file_mode: permission bits of the files that are made, whatever the umask, from 0o600 to
            0o666; the directory gets x where they have r. Not stored: each opening has its own.
        trust: what is refused unless it is named here. `"other_owner"`: a directory that belongs
            to another user than this one or root (root may read any), or a file in it that belongs
            to neither these nor the directory's owner. `"world_writable"`: a directory that
            everybody may write to, without the sticky bit. `"network_file_system"`: NFS, SMB, FUSE
            and the like; never for a queue that two hosts use.
        retention: what is kept; None keeps all. Each opening has its own: it applies when this
            process rolls into another page, and with `trim`.
        on_full: what this process does when another page is needed, `max_bytes` is reached, and
            named consumers have not acknowledged what would have to go. `"raise"`: `QueueFull`.
            `"block"`: the sender sleeps until there is room. `"drop_oldest"`: pages go all the
            same, oldest first. It is asked once for each page, not for each message.
        full_timeout: seconds after which a blocked sender gets `QueueFull`; None waits for ever.
        compress_after: pages behind which so many sealed ones follow are compressed in the
            background when this process rolls; None: only when `compress` is called.
        compress_level: of Zstandard, from -7 (fast) to 19 (small).
        dtype: of a new queue of fixed records, a NumPy dtype with fields; an existing one must
            have the same; None takes what stands there.
        codec: of a new queue, what makes payloads of objects: `"bytes"`, `"utf-8"`, `"json"`,
            `"msgpack"`, `"arrow"` or `"pickle"`; an existing one must have the same. None: bytes,
            or what stands there, but for `"pickle"`, which unpickles only for who names it.

    Raises:
        QueueNotFound: there is none, and `create` is False.
        NotADirectory, UnsafePath, AccessDenied: the path cannot be used, or others than its owner
            could exchange what stands there.
        PageSizeMismatch, DtypeMismatch, CodecMismatch: the queue has another one.
        NewerFormat: a newer version wrote it.
        CorruptMeta, CorruptPage, CorruptFrame, MissingPage: damage that is not a torn tail.
        DiskFull: there is no room for the first page.
        LockTimeout: another process is recovering it for too long.

    Source: FORMAT.md, "Opening"; keeps I5, I10.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        prefix: str = "queue",
        create: bool = True,
        read_only: bool = False,
        page_bytes: int | None = None,
        sync: Sync = "none",
        on_sync_failure: str = "stop",
        lock_timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], int] | None = None,
        file_mode: int = FILE_MODE,
        trust: Collection[str] = (),
        retention: Retention | None = None,
        on_full: str = "raise",
        full_timeout: float | None = None,
        compress_after: int | None = None,
        compress_level: int = LEVEL_DEFAULT,
        dtype: DTypeLike | None = None,
        codec: str | None = None,
    ) -> None:
        if not os.fspath(directory):
            raise errors.InvalidOption("directory is empty: give a path, '.' for this one")
        path = os.path.abspath(os.fsdecode(directory))
        page_bytes, lock_timeout = options.check_options(path, prefix, page_bytes, lock_timeout)
        file_mode = options.check_file_mode(path, file_mode)
        self._sync_every, interval = sync_policy(sync)
        options.check_sync_failure(path, on_sync_failure)
        full_timeout = options.check_full(path, on_full, full_timeout)
        if not isinstance(retention, Retention | None):
            raise TypeError(f"retention must be a Retention, not {type(retention).__name__}")
        self._compressing = options.check_compress(path, compress_after, compress_level)
        self._retaining = (retention or KEEP_ALL, on_full, full_timeout)
        self._closed = False
        self._clock = clock
        self._handles = weakref.WeakValueDictionary()
        self._open_store = partial(
            Store, path, prefix, read_only=read_only, page_bytes=page_bytes,
            lock_timeout=lock_timeout, clock=clock or system_clock, file_mode=file_mode,
            trust=trusted(trust, path), schema=requested_schema(dtype, codec, path),
        )  # fmt: skip
        self._flushes_on_close = sync != "none" and not read_only
        self._flush_seconds = interval
        self._seals = on_sync_failure == "seal"
        self._trust = trust
        self._store = self._start(create=create)

    def _start(self, *, create: bool) -> Store:
        store = self._open_store(create=create)
        if not store.read_only:
            try:
                self._retainer = Retainer(store, *self._retaining)
                self._compressor = Compressor(store, *self._compressing)
            except BaseException:
                store.close()
                raise
            if self._seals:
                store.flusher.rewrite = rewriter(store)
            if self._flush_seconds is not None:
                store.flusher.flush_every(self._flush_seconds)
        return store

    # --- handles ----------------------------------------------------------------------------------

    def producer(self) -> Producer:
        """Return a new producer.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
        """
        store = self._open()
        self._check_writable("send")
        return self._keep(make_producer(store, self._clock, self._sync_every), store)

    def consumer(
        self,
        name: str | None = None,
        *,
        since: Moment | None = None,
        sequence: int | None = None,
        latest: bool = False,
        durable_only: bool = False,
        on_expired: str = "raise",
    ) -> Consumer:
        """Return a new consumer; at the earliest message unless told otherwise.

        Args:
            name: one that stays: the consumer goes on behind its last `ack`, in this or any later
                process, and retention keeps what it has not acknowledged. `since`, `sequence` and
                `latest` say where it begins the first time. One handle at a time has it open.
            since: begin with the first message that is not older: int ns, aware datetime, or
                timedelta meaning that long ago.
            sequence: begin with this message.
            latest: begin with the next message that is sent.
            durable_only: receive a message only when it is on stable storage, so that nothing is
                acted on that a power cut could take back. Somebody must flush.
            on_expired: what happens when retention was faster. `"raise"`: `Expired`. `"skip"`: it
                goes on at the head and counts what it missed in `.missed`.

        Raises:
            ConsumerInUse: another thread or process has the named one open.
            UsageError: the named one exists, and a place to begin was given: call its `seek`.
            ReadOnlyQueue: a name was given, and the queue was opened with `read_only=True`.
            Expired: the sequence is before the head. SequenceOutOfRange: it is behind the tail.
            NaiveDatetime, InvalidOption, TypeError: what was given cannot be.

        Source: FORMAT.md, "Reading" and "Since"; keeps I2, I6.
        """
        store = self._open()
        if name is None:
            consumer = Consumer(store, durable_only=durable_only, on_expired=on_expired)
            consumer.seek(since=since, sequence=sequence, latest=latest)
        else:
            self._check_writable("keep a named consumer's place")
            consumer = open_consumer(
                store, name, since=since, sequence=sequence, latest=latest,
                durable_only=durable_only, on_expired=on_expired,
            )  # fmt: skip
        return self._keep(consumer, store)

    def replay(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        sequence: int | None = None,
        speed: Speed | None = None,
    ) -> Replay:
        """Return a finite iterator of messages, up to the tail as of now.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.
            speed: 1.0 as they were sent, 10.0 ten times as fast, a `Pace`; None: at once.

        Raises:
            As for `consumer`; and CorruptFrame, when damage is reached.
        """
        place = (self._open(), since, until, sequence, None)
        pace = pace_of(speed)
        replay = Replay(*place) if pace is None else PacedReplay(*place, pace)
        return self._keep(replay, place[0])

    # --- what stands there ------------------------------------------------------------------------

    @property
    def head_sequence(self) -> int:
        """The first message retained."""
        return self._open().read_meta.head_sequence

    @property
    def tail_sequence(self) -> int:
        """The next message to be written."""
        return self._open().tail.sequence

    @property
    def durable_sequence(self) -> int:
        """The first message that is not yet known to be on stable storage."""
        return self._open().write_meta.durable_sequence

    def __len__(self) -> int:
        """Messages retained."""
        head = self.head_sequence  # before the tail, which only grows
        return self.tail_sequence - head

    def __bool__(self) -> bool:
        """A queue is true even when it is empty."""
        return True

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the queue had to do; nothing, if another process has it open already."""
        return self._store.report

    # --- upkeep -----------------------------------------------------------------------------------

    def repair(self, progress: Callable[[int, int], None] | None = None) -> RepairReport:
        """Mend what can be mended without losing a message; see `repair_queue`.

        Every handle made from this queue is closed; no other process may have it open. Where the
        queue cannot be opened again because of what remains, or this raises, it is closed as well.

        Args:
            progress: called with pages done and pages in all, while the result is verified.
        """
        store = self._open()
        self._check_writable("repair")
        try:
            self._close_handles()
            store.close()
            self._close_handles()  # those that other threads were making
            report = repair_queue(
                store.folder.path, prefix=store.prefix, trust=self._trust,
                lock_timeout=store.lock_timeout, progress=progress,
                dtype=store.schema.dtype, codec=store.schema.codec,
            )  # fmt: skip
            with contextlib.suppress(errors.DamageError):
                self._store = self._start(create=False)
        finally:
            if self._closed:  # by another thread, which saw the store of before
                self._store.close()
            if self._store.is_closed:
                self._closed = True
        return report

    def _close_handles(self) -> None:
        for known in self._handles.valuerefs():
            if (handle := known()) is not None:
                handle.close()

    def close(self) -> None:
        """Close the queue and every handle made from it; closing again does nothing.

        What was sent stays visible; what was not flushed is in the system's hands. Operations that
        other threads have begun end, mostly in `ClosedError`: they are waited for, `lock_timeout`
        and 60 s at most, and keep the queue's files open until then. Closing that Ctrl-C
        interrupted is continued by closing again, or by dropping the queue.

        Raises:
            SyncFailed: the queue was opened with another `sync` than "none", and its last flush
                failed; it is closed all the same.
        """
        self._closed = True
        store = self._store
        if store.is_forked:
            return  # the parent's: its locks and threads are not ours to end
        try:
            self._close_handles()
            if self._flushes_on_close and not store.is_closed:
                with contextlib.suppress(errors.ClosedError):  # by another thread just now
                    store.flusher.flush(None)
        finally:
            store.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Queue {self._store.folder.path!r}, prefix {self.prefix!r}, {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Queue cannot be pickled: open it by its path in the other process")

    def _open(self) -> Store:
        if self._closed:
            raise errors.ClosedError(
                "this queue is closed: open it again", path=self._store.folder.path
            )
        self._store.check_process("queue")
        return self._store
