"""Queue: the one class through which a directory is used; its methods delegate by subject.

`lifecycle.py` has the open store and its handles, `reading.py` consumers, replays and columns,
`flows.py` iterators that are stored on their way. Retention, compression, replicas and statistics
are in the package `maintenance`, groups in `group`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, overload

from pagequeue import errors
from pagequeue.bulk import messages
from pagequeue.group.open import open_group
from pagequeue.integrity.salvage import SalvageReport, salvage_queue
from pagequeue.integrity.verify import VerifyReport, verify
from pagequeue.maintenance.consumers import ConsumerInfo, consumers, remove_consumer
from pagequeue.maintenance.info import Info, info
from pagequeue.maintenance.pages import PageInfo, pages
from pagequeue.maintenance.retention import Retention
from pagequeue.maintenance.ship import ShipReport, ship
from pagequeue.maintenance.stats import Stats, stats
from pagequeue.meta.all_meta import another_queue
from pagequeue.page import zstd
from pagequeue.producer.codec_producer import make_producer
from pagequeue.producer.producer import Producer, Sent
from pagequeue.queue import flows, reading
from pagequeue.queue.lifecycle import OpenOptions, OpenQueue, options_of_no_ring
from pagequeue.receive.pace import pace_of
from pagequeue.schema.codec import codec_of
from pagequeue.schema.schema import requested_schema
from pagequeue.send.with_room import with_room
from pagequeue.store import options
from pagequeue.store.flush import Sync, sync_policy
from pagequeue.store.opening import Opening
from pagequeue.system.directory import FILE_MODE, Directory
from pagequeue.system.trust import trusted
from pagequeue.util.arguments import absolute_path, type_error
from pagequeue.util.closing import Closing
from pagequeue.util.retry import BACKOFF, DELIVERIES_MAX
from pagequeue.util.timestamps import TimeLike, frozen_clock, system_clock
from pagequeue.wait.coroutine import check_timeout

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any, Literal, Unpack

    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray
    from typing_extensions import Buffer

    from pagequeue.columns.batch import Batch
    from pagequeue.flow.flow import Flow, Source
    from pagequeue.group.group import Group
    from pagequeue.integrity.repair import RepairReport
    from pagequeue.maintenance.compress import CompressReport
    from pagequeue.maintenance.retention import TrimReport
    from pagequeue.queue.queue_options import QueueOptions
    from pagequeue.receive.batches import Batches
    from pagequeue.receive.consumer import Consumer
    from pagequeue.receive.pace import Speed
    from pagequeue.receive.replay import Replay
    from pagequeue.send.with_room import Many, Times
    from pagequeue.store.power_loss_recovery import RecoveryReport
    from pagequeue.store.sealed import Sealed
    from pagequeue.store.store import Store
    from pagequeue.util.literals import (
        Backoff,
        CodecName,
        CommitMode,
        OnExpired,
        OnFull,
        OnSyncFailure,
        Trusted,
    )
    from pagequeue.wait.shared_jobs import SharedJob

LOCK_TIMEOUT = 10.0


class Queue(Closing, Generic[Sent]):
    """A persistent queue in a directory. Threads may share it; each process opens its own.

    Args:
        directory: its path; created, with permissions for its owner only, if it does not exist.
        prefix: of all file names, so that one directory can hold several queues.
        create: create the queue if it does not exist; False makes that an error.
        read_only: open without write permission, write no byte, and lock only the pages that are
            read, shared. Waiting readers then poll every 50 us to 10 ms instead of being woken.
        page_bytes: size of each page file, a multiple of 4096 from 4096 to 2**30; 64 MiB for a
            new queue. A message or batch that does not fit into one page takes several.
        sync: how durable the messages of this process's producers are across a power cut.
            `"none"`: a prefix survives, as far as the system has written it. `"always"`: all sent
            messages survive. An int N: all but at most the last N - 1 messages of each producer. A
            timedelta: all but what was sent within that time. Closing flushes, except with
            `"none"`.
        on_sync_failure: what this process does when a sync fails. `"stop"`: no process writes to
            the queue until it is repaired. `"seal"`: seal the page and write the messages at risk
            to new files; if that succeeds no message is lost and sending continues, if not the next
            flush or send tries again.
        lock_timeout: seconds to wait for a lock that another process holds.
        clock: returns ns since 1970, UTC; for tests and simulations.
        file_mode: permission bits of new files, whatever the umask, from 0o600 to 0o666; a new
            directory gets x where they have r. Not stored: each opening has its own. What is made
            in the queue of another user has the mode of its files, and what root makes there
            belongs to that user.
        trust: risks that are accepted; opening refuses all others. `"other_owner"`: a directory
            that belongs to another user than this one or root (root may read any), or a file in
            it that belongs to none of these and not to the directory's owner. `"world_writable"`:
            a directory that every user may write to, without the sticky bit.
            `"network_file_system"`: NFS, SMB, FUSE and the like; never for a queue that two hosts
            use.
        retention: what to keep; None keeps all. Each opening has its own: it applies when this
            process rolls to another page, and with `trim`.
        on_full: what this process does when it needs another page, `max_bytes` is reached, and
            named consumers have not acknowledged the pages that would be removed. `"raise"`:
            `QueueFull`. `"block"`: the sender sleeps until there is room. `"drop_oldest"`: these
            pages are removed, oldest first. This is checked once for each page, not for each
            message. None: `"block"` in a ring, else `"raise"`.
        full_timeout: seconds that a call may be blocked in all before it raises `QueueFull`; None
            waits for ever.
        compress_after: compress sealed pages that are followed by so many others, in the
            background when this process rolls; None: only when `compress` is called.
        compress_level: of Zstandard, from -7 (fast) to 19 (small).
        ring: bytes of a new queue that is a ring: its pages and their indexes never take more on
            the disk (3/11 of it is for the indexes; other files take 4 KiB each, and a group's 112
            bytes of its `capacity`, 7 MiB by default). Pages that all named consumers and groups
            have acknowledged are used again, and a sender that finds none waits until one is. While
            there is no named consumer the oldest messages go. There are four pages unless
            `page_bytes` is given; a message, and a batch, should fit into one. Every later opening
            is of the same ring, given again or not; it takes no `compress_after`, no `sync` but
            `"none"`, not `on_full="drop_oldest"`, and of a `retention` only `max_idle`. A kill
            loses nothing; a power cut any or all of what was not flushed, or was acknowledged.
            None: no ring, or that of the queue.
        dtype: of a new queue of fixed records, a NumPy dtype with fields; an existing queue must
            have the same; None takes that of the queue.
        codec: of a new queue, what encodes objects as payloads: `"bytes"`, `"utf-8"`, `"json"`,
            `"msgpack"`, `"arrow"` or `"pickle"`; an existing queue must have the same. None: bytes,
            or that of the queue; but objects are unpickled only if `"pickle"` is given.

    Raises:
        QueueNotFound: the queue does not exist, and `create` is False.
        NotADirectory, UnsafePath, AccessDenied: the path cannot be used, or other users could
            replace its files.
        PageSizeMismatch, DtypeMismatch, CodecMismatch: the queue has another one.
        NewerFormat: a newer version wrote it.
        MissingExtra: the library of `codec` or `compress_after` is not installed; nothing was
            created. A queue that has a codec opens without its library if `codec` is left out.
        CorruptMeta, CorruptPage, CorruptFrame, MissingPage: damage other than a torn tail.
        JournalOnly: the queue is a journal's, which removes entries itself, and has no `retention`.
        DiskFull: the first page does not fit on the disk.
        LockTimeout: another process is recovering the queue, for too long.

    Example:
        >>> with Queue("numbers") as queue, queue.producer() as producer:
        ...     producer.send(b"one")
        0

    Source: FORMAT.md, "Opening".
    """

    _is_journal = False
    """Whether the queue is created as a journal's, and must be one; see `pagequeue.journal`."""
    _within: Directory | None = None
    """The open directory that has the queue's; see `Directory`."""

    @overload
    def __init__(
        self: Queue[Buffer],
        directory: str | os.PathLike[str],
        *,
        codec: Literal["bytes"] | None = None,
        dtype: None = None,
        **options: Unpack[QueueOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[str],
        directory: str | os.PathLike[str],
        *,
        codec: Literal["utf-8"],
        dtype: None = None,
        **options: Unpack[QueueOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[Any],
        directory: str | os.PathLike[str],
        *,
        codec: CodecName | None = None,
        dtype: DTypeLike | None = None,
        **options: Unpack[QueueOptions],
    ) -> None: ...
    # Opening keeps I5 and I10.
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        prefix: str = "queue",
        create: bool = True,
        read_only: bool = False,
        page_bytes: int | None = None,
        sync: Sync = "none",
        on_sync_failure: OnSyncFailure = "stop",
        lock_timeout: float = LOCK_TIMEOUT,
        clock: Callable[[], int] | None = None,
        file_mode: int = FILE_MODE,
        trust: Trusted = (),
        retention: Retention | None = None,
        on_full: OnFull | None = None,
        full_timeout: float | None = None,
        compress_after: int | None = None,
        compress_level: int = zstd.LEVEL_DEFAULT,
        ring: int | None = None,
        dtype: DTypeLike | None = None,
        codec: CodecName | None = None,
    ) -> None:
        path = absolute_path("directory", directory)
        page_bytes, lock_timeout = options.check_options(path, prefix, page_bytes, lock_timeout)
        file_mode = options.check_file_mode(path, file_mode)
        sync_every, flush_seconds = sync_policy(sync)
        options.check_sync_failure(path, on_sync_failure)
        full_timeout = options.check_full(
            path, "raise" if on_full is None else on_full, full_timeout
        )
        if not isinstance(retention, Retention | None):
            raise type_error("retention", retention, "a Retention")
        compressing = options.check_compress(path, compress_after, compress_level)
        if (ring := options.check_ring(path, ring, page_bytes)) is not None:
            options.refuse_beside_ring(
                path, options_of_no_ring(retention, on_full, sync != "none", compress_after)
            )
            if self._is_journal:
                raise errors.InvalidOption("ring of a journal", remedy="leave ring out")
        schema = requested_schema(dtype, codec, path, is_journal=self._is_journal)
        # A missing library is found before anything is created, not by the first message.
        if codec is not None:
            codec_of(codec)
        if compress_after is not None and not read_only:
            zstd.check(path)
        open_directory = partial(
            Opening,
            path,
            prefix,
            read_only=read_only,
            page_bytes=page_bytes,
            lock_timeout=lock_timeout,
            clock=clock or frozen_clock() or system_clock,
            file_mode=file_mode,
            trust=trusted(trust, path),
            schema=schema,
            ring_bytes=ring,
            within=self._within,
        )
        how = OpenOptions(
            open_directory=open_directory,
            retaining=(retention, on_full, full_timeout),
            compressing=compressing,
            seals=on_sync_failure == "seal",
            syncs=sync != "none",
            sync_every=sync_every,
            flush_seconds=flush_seconds,
            trust=trust,
        )
        self._opened = OpenQueue(how, create=create)

    @property
    def _store(self) -> Store:
        return self._opened.store

    # --- what was fixed at creation ---------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The absolute path of the directory.

        Example:
            >>> queue.directory == os.path.abspath("events")
            True
        """
        return self._store.folder.path

    @property
    def prefix(self) -> str:
        """The prefix of all file names.

        Example:
            >>> queue.prefix
            'queue'
        """
        return self._store.prefix

    @property
    def page_bytes(self) -> int:
        """The size of each page file, in bytes.

        Example:
            >>> queue.page_bytes
            65536
        """
        return self._store.meta.page_bytes

    @property
    def dtype(self) -> np.dtype[np.void] | None:
        """The dtype of the records; None: messages are of any size.

        Example:
            >>> queue.dtype is None
            True
        """
        return self._store.schema.dtype

    @property
    def codec(self) -> CodecName:
        """The name of the codec; "bytes": objects are sent as they are, and must be bytes-like.

        Example:
            >>> queue.codec
            'bytes'
        """
        return self._store.schema.codec

    # --- what it holds now ------------------------------------------------------------------------

    @property
    def head_sequence(self) -> int:
        """The sequence of the first message that is retained.

        Example:
            >>> queue.head_sequence
            0
        """
        return self._opened.readable().read_meta.head_sequence

    @property
    def tail_sequence(self) -> int:
        """The sequence that the next message gets.

        Example:
            >>> queue.tail_sequence
            5
        """
        return self._opened.readable().tail.sequence

    @property
    def durable_sequence(self) -> int:
        """The sequence of the first message that is not known to be on stable storage.

        Example:
            >>> queue.producer().flush() == queue.durable_sequence
            True
        """
        return self._opened.readable().write_meta.durable_sequence

    def __len__(self) -> int:
        """Return how many messages are retained."""
        head = self.head_sequence  # before the tail, which only grows
        return self.tail_sequence - head

    def __bool__(self) -> bool:
        """A queue is true even when it is empty."""
        return True

    @property
    def recovery(self) -> RecoveryReport:
        """What opening had to repair; empty if another process already had the queue open.

        Example:
            >>> queue.recovery.actions
            []
        """
        return self._store.report

    # --- sending and receiving --------------------------------------------------------------------

    def producer(self) -> Producer[Sent]:
        """Return a new producer.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            JournalOnly: its messages are the entries of a journal.

        Example:
            >>> with queue.producer() as producer:
            ...     producer.send_many([b"one", b"two"])
            range(0, 2)
        """
        store, how = self._opened.writable("send"), self._opened.options
        return self._opened.keep(make_producer(store, store.clock, how.sync_every), store)

    def publish(
        self,
        writer: str,
        piece: int,
        payloads: Many,
        *,
        timestamps: Times | None = None,
        timeout: float | None = None,
    ) -> range:
        """Send messages durably, once for each writer and piece, however often this is called.

        All of them become visible at once, however many and large they are; what does not fit into
        a page is staged in files first. After an error, a kill or a power cut, call it again with
        the same writer and piece: if the messages are there, it returns their sequences and sends
        nothing.

        Args:
            writer: a name, 1 to 255 bytes; each has its own pieces. A batch write of Spark with
                this option `writer` is the same one.
            piece: of the writer's work, 0 to 2**63 - 1; give each a higher number than the one
                before. The last 16 are remembered with their sequences.
            payloads: as for `Producer.send_many`; held in memory until it returns.
            timestamps: as for `Producer.send_many`; None: the time of the commit for all.
            timeout: seconds to wait for room in a queue that was opened with `on_full="block"`;
                None: its `full_timeout`.

        Returns:
            the sequences of the messages, consecutive; `range(0)` for a piece up to the highest
            that is not remembered any more, which was published before or left out.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            JournalOnly: its messages are the entries of a journal.
            TypeError, InvalidOption, NotEncodable, DtypeMismatch, RecordSize, TimestampOrder: as
                for `Producer.send_many`; nothing was sent.
            MessageTooLarge: a payload exceeds 2**40 bytes, or `max_bytes` can never hold the
                messages; nothing was sent.
            QueueFull, DiskFull, LockTimeout: nothing was sent; LockTimeout also if another
                publisher made no progress.
            NotDurable, SyncFailed: the messages may be visible.
            Expired: the last attempt was interrupted, and retention has removed what would show
                whether it succeeded: find out, and then publish as another piece.
            CorruptMeta: the record of this writer is damaged.

        Example:
            >>> queue.publish("import", 0, [b"six", b"seven"])
            range(5, 7)
            >>> queue.publish("import", 0, [b"six", b"seven"])  # again, after a crash
            range(5, 7)

        Source: FORMAT.md, "Publishing pages".
        """
        # Keeps I8 and I19.
        return messages.publish(
            self._opened.writable("publish"),
            writer,
            piece,
            payloads,
            timestamps=timestamps,
            timeout=timeout,
        )

    async def publish_async(
        self,
        writer: str,
        piece: int,
        payloads: Many,
        *,
        timestamps: Times | None = None,
        timeout: float | None = None,
    ) -> range:
        """Publish as `publish` does, in a thread, and let the event loop run meanwhile.

        If the task is cancelled, the messages may or may not be sent, all or none: publish the same
        piece again. A publication that waits for room ends when its task is cancelled.

        Args:
            writer: as for `publish`.
            piece: as for `publish`.
            payloads: as for `publish`.
            timestamps: as for `publish`, shape (n,).
            timeout: as for `publish`, in seconds.

        Returns:
            the sequences of the messages, as `publish` does.

        Raises:
            QueueFull, MessageTooLarge, NotDurable, SyncFailed, Expired, ClosedError: as for
                `publish`.

        Example:
            >>> asyncio.run(queue.publish_async("import", 0, [b"six", b"seven"]))
            range(5, 7)

        Source: FORMAT.md, "Publishing pages".
        """
        # Keeps I8 and I19.
        return await messages.publish_async(
            self._opened.writable("publish"),
            writer,
            piece,
            payloads,
            timestamps=timestamps,
            timeout=timeout,
        )

    def consumer(
        self,
        name: str | None = None,
        *,
        since: TimeLike | None = None,
        sequence: int | None = None,
        latest: bool = False,
        durable_only: bool = False,
        on_expired: OnExpired = "raise",
    ) -> Consumer:
        """Return a new consumer; without a place to begin, at the earliest message.

        Args:
            name: makes it persistent: the consumer continues after its last `ack`, in this or any
                later process, and retention keeps what it has not acknowledged. `since`, `sequence`
                and `latest` give the place where it begins the first time. One handle at a time can
                have it open.
            since: begin with the first message that is not older: int ns since 1970, UTC, an aware
                datetime, or a timedelta before now.
            sequence: begin with this message.
            latest: begin with the next message that is sent.
            durable_only: receive a message only when it is on stable storage, so that no action
                follows from a message that a power cut could still undo. Some producer must flush.
            on_expired: what happens when retention removed messages that were not received.
                `"raise"`: `Expired`. `"skip"`: the consumer continues at the head and counts what
                it missed in `.missed`.

        Raises:
            ConsumerInUse: another thread or process has the named consumer open.
            UsageError: the named consumer exists, and a place to begin was given: call its `seek`.
            ReadOnlyQueue: a name was given, and the queue was opened with `read_only=True`.
            Expired: the sequence is before the head. SequenceOutOfRange: it is after the tail.
            NaiveDatetime, InvalidOption, TypeError: an argument is invalid.

        Example:
            >>> with queue.consumer("billing") as consumer:
            ...     message = consumer.receive(timeout=1.0)
            ...     consumer.ack()

        Source: FORMAT.md, "Reading" and "Since".
        """
        return reading.consumer(
            self._opened,
            name,
            since=since,
            sequence=sequence,
            latest=latest,
            durable_only=durable_only,
            on_expired=on_expired,
        )

    def group(
        self,
        name: str,
        *,
        lease: float = 30.0,
        max_deliveries: int | None = DELIVERIES_MAX,
        backoff: Backoff = BACKOFF,
        since: TimeLike | None = None,
        sequence: int | None = None,
        latest: bool = False,
        on_expired: OnExpired = "raise",
        capacity: int | None = None,
    ) -> Group:
        """Return a handle of a work group: workers in any number of processes share its messages.

        Each message is claimed by one worker at a time, in order of sequence. It is redelivered
        until it is acknowledged: after `nack`, when its lease ends, and when the process that
        claimed it dies. It then waits, longer each time, while others are delivered. Retention
        keeps what is not acknowledged.

        Args:
            name: of the group; created if it does not exist. No consumer may have it.
            lease: seconds that a claim of this handle lasts, unless it is extended.
            max_deliveries: after so many failed deliveries a message is moved to the dead letters,
                a queue of its own, with the reason: see `Group.dead_letters`. None: it is
                redelivered for ever.
            backoff: seconds that a message waits after its first failed delivery, and at most;
                each further one doubles the delay. Up to a quarter of it is left out, by the
                message's sequence. `nack(delay=)` says otherwise for one delivery. None: it is
                redelivered at once, before all new messages.
            since: where a new group begins: with the first message that is not older.
            sequence: the same: with this message.
            latest: the same: with the next message that is sent.
            on_expired: what happens when retention removed messages that were not claimed.
                `"raise"`: `Expired`. `"skip"`: the group continues at the head and counts what it
                missed in `.missed`.
            capacity: most messages that can be claimed or delayed at a time, for all handles, from
                now on; then `TooManyClaims`. None: as it was, and of a new group 4,194,304. Its
                file has room for 65,536, or for fewer, 112 bytes each, and is doubled when these
                are in use.

        Raises:
            UsageError: a consumer has this name; or the group exists, and a place to begin was
                given.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            Expired: the sequence is before the head. SequenceOutOfRange: it is after the tail.
            InvalidOption, TypeError, NaiveDatetime: an argument is invalid.
            DiskFull: the group's file does not fit on the disk.

        Example:
            >>> with queue.group("workers", lease=60.0) as group:
            ...     claim = group.claim(timeout=1.0)
            ...     claim.message.payload
            ...     claim.ack()
            b'one'

        Source: FORMAT.md, "Groups".
        """
        # Keeps I14 and I15.
        store = self._opened.writable("share its messages")
        group = open_group(
            store,
            name,
            lease=lease,
            max_deliveries=max_deliveries,
            backoff=backoff,
            since=since,
            sequence=sequence,
            latest=latest,
            on_expired=on_expired,
            capacity=capacity,
        )
        return self._opened.keep(group, store)

    def persist(
        self,
        source: Source,
        name: str,
        *,
        since: TimeLike | None = None,
        commit: CommitMode = "auto",
        on_expired: OnExpired = "raise",
    ) -> Flow:
        """Store what an iterator yields, in the background, and return it again, at least once.

        Elements that were stored and not acknowledged before, by this or any earlier process, come
        first. Reading from the source begins at once, in a thread, or in a task of the running
        event loop if the source is asynchronous. The source is read at its own pace, and not while
        the queue is full: give the queue a `retention` with `max_bytes`, and `on_full="block"`. Use
        a queue for one flow only: all messages that are sent to it come out.

        Args:
            source: an iterable or asynchronous iterable of bytes-like elements; or a function that
                gets the last message of the queue, or None, and returns an iterable that continues
                after it, so that no element is lost or stored twice, whichever process is killed.
                The function gets the last message even if retention removed its page: a copy is
                kept until the consumer of this name is removed.
            name: of the consumer that returns the elements.
            since: leave out, for good, what was stored earlier and is not acknowledged yet: int ns
                since 1970, UTC, an aware datetime, or a timedelta before now. It never brings back
                what was acknowledged. None: everything comes out.
            commit: `"auto"` acknowledges an element when the next one is requested, and the last
                one when the end is. `"manual"` leaves it to `Flow.commit`.
            on_expired: as for `consumer`.

        Returns:
            a `Flow`: iterate it, with `for` or, for any source, `async for`; close it afterwards,
            or use it in a `with` or `async with` block.

        Raises:
            ConsumerInUse: the flow, or the consumer of this name, is open elsewhere.
            CorruptMeta: the copy of the last message is damaged or missing.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            NaiveDatetime, InvalidOption, TypeError: an argument is invalid.
            RuntimeError: the source is asynchronous, and no event loop is running.

        Example:
            >>> with queue.persist([b"one", b"two"], "elements") as flow:
            ...     [element.payload for element in flow]
            [b'one', b'two']

        Source: FORMAT.md, "Cursors".
        """
        # Keeps I11.
        return flows.persist(
            self._opened, source, name, since=since, commit=commit, on_expired=on_expired
        )

    # --- parts of it ------------------------------------------------------------------------------

    def replay(
        self,
        *,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        sequence: int | None = None,
        speed: Speed | None = None,
    ) -> Replay:
        """Return a finite iterator of messages, up to the tail as of now.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.
            speed: 1.0 with the pauses between the messages as they were sent, 10.0 ten times as
                fast, or a `Pace`; None: without pauses.

        Raises:
            CorruptFrame: the iterator reached a damaged message.
            Expired, SequenceOutOfRange, NaiveDatetime, InvalidOption, TypeError: as for `consumer`.

        Example:
            >>> [message.payload for message in queue.replay(sequence=3)]
            [b'four', b'five']
        """
        return reading.replay(self._opened, since, until, sequence, None, pace_of(speed))

    def batches(
        self,
        *,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        sequence: int | None = None,
        limit_count: int = reading.BATCH_COUNT,
        speed: Speed | None = None,
        copy: bool = True,
    ) -> Batches:
        """Return a finite iterator of batches: the same messages as `replay`, as columns.

        It is also a stream for every library that reads Arrow's: see `Batches`.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.
            limit_count: most messages in a batch, 1 to 1_048_576; it also ends with its page, and
                after about 2 MiB, or 256 KiB while `payloads` of the batches are read.
            speed: as for `replay`; a batch holds all messages that are due. Arrow's streams have no
                pauses.
            copy: what Arrow's streams hold: copies of the payloads, as binary, or as strings with
                the codecs `"utf-8"` and `"json"`; or with False views of the pages, as binary_view,
                which fewer operations of libraries take. A batch itself is a view either way.

        Raises:
            CorruptFrame, Expired, SequenceOutOfRange, NaiveDatetime, InvalidOption, TypeError: as
                for `replay`.

        Example:
            >>> [len(batch) for batch in queue.batches(limit_count=2)]
            [2, 2, 1]
        """
        return reading.batches(
            self._opened,
            since=since,
            until=until,
            sequence=sequence,
            limit_count=limit_count,
            speed=speed,
            copy=copy,
        )

    def last(self, count: int) -> Batch:
        """Return the last messages, oldest first: `count` of them, or all if there are fewer.

        Args:
            count: 0 or more.

        Raises:
            InvalidOption: the count is negative.
            CorruptFrame: one of the messages is damaged.

        Example:
            >>> queue.last(2).payloads
            [b'four', b'five']
        """
        return reading.last(self._opened, count)

    def between(self, since: TimeLike | None = None, until: TimeLike | None = None) -> Batch:
        """Return all messages of a range of time as one batch.

        It takes 16 bytes of memory for each message; payloads stay in their pages, mapped, until
        they are used. Compressed pages are decompressed, and take their full size.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).

        Raises:
            CorruptFrame, NaiveDatetime, InvalidOption, TypeError: as for `batches`.

        Example:
            >>> len(queue.between(since=timedelta(hours=1)))
            5
        """
        return reading.between(self._opened, since, until)

    @overload
    def as_of(self, timestamps: TimeLike) -> int: ...
    @overload
    def as_of(self, timestamps: ArrayLike) -> NDArray[np.int64]: ...
    def as_of(self, timestamps: TimeLike | ArrayLike) -> int | NDArray[np.int64]:
        """Return the sequence of the last message that is not later than a time; -1 for none.

        Many times are searched for together: only the index of each page is searched, and the
        frames that the index leads to are checked.

        Args:
            timestamps: int ns since 1970, UTC, an aware datetime or a timedelta before now; or many
                times, as an array of integers (ns since 1970, UTC) or of `datetime64`, of any
                shape.

        Returns:
            an int for one time; for an array int64 of the same shape.

        Raises:
            CorruptFrame: a message that the answer depends on is damaged.
            NaiveDatetime, InvalidOption, TypeError: an argument is invalid.

        Example:
            >>> queue.as_of([0, time.time_ns()])
            array([-1,  4])

        Source: FORMAT.md, "Since".
        """
        # Keeps I6.
        return reading.as_of(self._opened.readable(), timestamps)

    def times(
        self,
        *,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        sequence: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when messages were sent, by the index alone.

        In each page the first and the last message of the range are read, and verify the index; the
        payloads between are not read, so damage in them is not found. A compressed page has no
        index: its messages are read. It takes 16 bytes of memory for each message.

        Args:
            since: begin with the first message that is not older (inclusive).
            until: end before the first message that is not older (exclusive).
            sequence: begin with this message.

        Returns:
            sequences, and timestamps in ns since 1970, UTC; int64, shape (n,).

        Raises:
            CorruptFrame, Expired, SequenceOutOfRange, NaiveDatetime, InvalidOption, TypeError: as
                for `batches`.

        Example:
            >>> sequences, timestamps = queue.times(since=timedelta(hours=1))
        """
        return reading.times(self._opened.readable(), since, until, sequence)

    # --- its state --------------------------------------------------------------------------------

    def info(self) -> Info:
        """Return sizes in bytes, times, sequences and consumers, as of now.

        Example:
            >>> queue.info().message_count
            5
        """
        return self._opened.inspect(lambda store: info(store, self._opened.sealed))

    def stats(self) -> Stats:
        """Return how full the queue is and how far its consumers are, cheaply; see `rates`.

        Example:
            >>> queue.stats().depth
            5
        """
        return self._opened.inspect(stats)

    def pages(self) -> list[PageInfo]:
        """Return the retained pages, oldest first; the last one is active, all others are sealed.

        Each takes a few microseconds; the first call also maps each page, for the time of its first
        message.

        Raises:
            CorruptPage, MissingPage: a page is damaged or missing; `verify` lists all damage.
            MissingExtra: a page is compressed, and the extra `zstd` is not installed.

        Example:
            >>> [(page.number, page.state, page.end_sequence) for page in queue.pages()]
            [(1, 'active', 5)]
        """
        return self._opened.inspect(pages)

    def consumers(self) -> list[ConsumerInfo]:
        """Return all named consumers and groups, in order of their names.

        If the file of one is damaged, its `problem` tells what is wrong.

        Example:
            >>> [(consumer.name, consumer.lag) for consumer in queue.consumers()]
            [('billing', 4)]
        """
        return self._opened.inspect(consumers)

    def remove_consumer(self, name: str) -> None:
        """Remove a named consumer or a group for good; retention keeps no page for it any more.

        Args:
            name: of the consumer or group.

        Raises:
            ConsumerNotFound: no consumer or group has this name.
            ConsumerInUse: a thread or process has it open.
            ReadOnlyQueue: the queue was opened with `read_only=True`.

        Example:
            >>> queue.remove_consumer("billing")
        """
        remove_consumer(self._opened.writable("remove a consumer"), name)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Check every page, frame and index, without changing them.

        Args:
            progress: called with the pages done and the pages in all.

        Example:
            >>> queue.verify().ok
            True
        """
        return self._opened.inspect(
            lambda store: verify(store.folder, store.prefix, progress, store.clock)
        )

    # --- maintenance ------------------------------------------------------------------------------

    def trim(self) -> TrimReport:
        """Apply this queue's retention now: remove whole pages, oldest first, never the active one.

        With a `max_age` the active page is sealed when its first message is too old, and goes like
        the others when its last one is.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            DiskFull: the page after one to be sealed does not fit; older pages were removed.
            AccessDenied: this user may not remove the oldest page, which belongs to another user,
                because the directory has the sticky bit; the page can still be read.
            LockTimeout: another process is creating a page or trimming, for too long.
            SyncFailed: a sync failed; the queue is latched.

        Example:
            >>> queue.trim().pages
            0

        Source: FORMAT.md, "Retention".
        """
        # Keeps I12.
        store = self._opened.writable("trim")
        assert self._opened.upkeep is not None
        return self._opened.upkeep.trimmer.trim(store)

    def compress(self, progress: Callable[[int, int], None] | None = None) -> CompressReport:
        """Compress all sealed pages, concurrently with senders and readers.

        A rename replaces each page atomically; processes that have the old file mapped continue to
        read from that.

        Args:
            progress: called with the pages done and the pages in all.

        Raises:
            MissingExtra: the extra `zstd` is not installed.
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            DiskFull: the compressed copy of a page does not fit on the disk; the page is unchanged.
            CorruptFrame: a page is damaged, and is unchanged.
            SyncFailed: the queue is latched.

        Example:
            >>> sealed = queue.rotate()  # the active page is not compressed
            >>> queue.compress().pages
            1

        Source: FORMAT.md, "Compressing".
        """
        # Keeps I16.
        store = self._opened.writable("compress pages")
        assert self._opened.upkeep is not None
        return self._opened.upkeep.compressor.run(store, progress)

    def ship(
        self,
        to: str | os.PathLike[str],
        *,
        consumer: str | None = None,
        file_mode: int = FILE_MODE,
        progress: Callable[[int, int], None] | None = None,
    ) -> ShipReport:
        """Copy the sealed pages that a replica lacks into its directory, while others send.

        The replica is a queue that can be read: by `Queue(..., read_only=True)`, the command and
        Spark, on this host or wherever the directory is mounted or copied to. Its manifest lists
        every page with checksums and sequences; a page appears there whole, checked and on stable
        storage, or not at all, whichever process dies. Only pages that are on stable storage here
        are copied: a queue that is open for writing is flushed first.

        Args:
            to: the directory, for pages of this queue only; created if it does not exist.
            consumer: name of a consumer that acknowledges what was copied, so that retention
                waits for it; created at the head if it does not exist.
            file_mode: permission bits of the copies, as for `Queue`.
            progress: called with the pages done and the pages in all.

        Raises:
            Expired: retention removed pages that follow those copied before; all that could be
                copied was.
            CorruptFrame, CorruptPage, MissingPage: a page here is damaged, so it and those after it
                are not copied; or a file of the replica changed since it was copied.
            InvalidOption: the directory holds other files, or the queue is an older copy of what
                was copied there.
            ReadOnlyQueue: a consumer was given, and the queue was opened with `read_only=True`.
            ConsumerInUse: another thread or process has that consumer open.
            LockTimeout: another process is copying into this directory, for too long.
            DiskFull, SystemLimit, SyncFailed: copying was interrupted; pages in the manifest stay.
            MissingExtra: a page is compressed, and the extra `zstd` is not installed.

        Example:
            >>> sealed = queue.rotate()  # the active page is not copied
            >>> queue.ship("replica", consumer="backup").pages
            1

        Source: FORMAT.md, "Shipping".
        """
        # Keeps I20.
        queue = self._opened
        store = queue.readable()
        if consumer is not None:
            queue.writable("keep a named consumer's place")
        file_mode = options.check_file_mode(store.folder.path, file_mode)
        return ship(store, to, consumer=consumer, file_mode=file_mode, progress=progress)

    def rotate(self, *, timeout: float | None = None) -> Sealed | None:
        """Seal the active page now and continue in a new one, while others send.

        An empty page stays the active one.

        Args:
            timeout: seconds to wait for room in a queue that was opened with `on_full="block"`;
                None: its `full_timeout`.

        Returns:
            the page that was sealed, by this call or by another process meanwhile, with its
            sequences and its path, also if retention has removed it already; None: the active page
            was empty.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            DiskFull: the next page does not fit on the disk; the queue is unchanged.
            QueueFull: retention leaves no room for the next page; the queue is unchanged.
            LockTimeout, SyncFailed: as for `Producer.send`.

        Example:
            >>> queue.rotate().end_sequence
            5
        """
        store = self._opened.writable("rotate")
        with Producer(store, store.clock) as producer:
            return producer.rotate(timeout=timeout)

    async def rotate_async(self, *, timeout: float | None = None) -> Sealed | None:
        """Rotate as `rotate` does, in a thread, and let the event loop run meanwhile.

        If the task is cancelled, the page may be sealed or not; a rotation that waits for room ends
        then.

        Args:
            timeout: as for `rotate`, in seconds.

        Returns:
            the page that was sealed; None: the active page was empty.

        Raises:
            ReadOnlyQueue, DiskFull, QueueFull, LockTimeout, SyncFailed: as for `rotate`.

        Example:
            >>> asyncio.run(queue.rotate_async()).end_sequence
            5
        """
        store = self._opened.writable("rotate")

        def rotate(job: SharedJob[Sealed | None], left: float | None) -> Sealed | None:
            with Producer(store, store.clock) as producer:
                return producer.rotate(timeout=left, check=job.check)

        still_open = store.folder.descriptor.check
        return await with_room(store, check_timeout(timeout), rotate, line="page", check=still_open)

    def salvage(
        self,
        target: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
        *,
        keep_partial: bool = False,
    ) -> SalvageReport:
        """Copy all messages that are still valid into a new queue; see `salvage_queue`.

        Args:
            target: path of a directory that has no queue of this prefix.
            progress: called with the page files done and the page files in all.
            keep_partial: also copy what is valid of a send that is not whole.

        Example:
            >>> queue.salvage("salvaged").messages_copied
            5
        """
        store, trust = self._opened.readable(), self._opened.options.trust
        store.folder.check()  # salvage goes by the path
        return salvage_queue(
            store.folder.path,
            target,
            prefix=store.prefix,
            trust=trust,
            progress=progress,
            keep_partial=keep_partial,
        )

    def repair(
        self, progress: Callable[[int, int], None] | None = None, *, times: bool = False
    ) -> RepairReport:
        """Repair whatever can be repaired without losing a message; see `repair_queue`.

        This closes every handle made from this queue; no other process may have the queue open. If
        the queue cannot be reopened because of the problems that remain, or if this raises, the
        queue is closed too.

        Args:
            progress: called with the pages done and the pages in all, while the result is verified.
            times: also set times that lie ahead of the system's clock to now, as `repair_queue`.

        Raises:
            ReadOnlyQueue: the queue was opened with `read_only=True`.
            LockTimeout: another process has the queue open.

        Example:
            >>> queue.repair().ok
            True
        """
        return self._opened.repair(progress, times=times)

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the queue and every handle made from it; closing again has no effect.

        Sent messages stay visible; unflushed ones are written back by the operating system. Calls
        that other threads have begun end, mostly in `ClosedError`: closing waits for them, for
        `lock_timeout` and 60 s at most, and they keep the queue's files open until then. If Ctrl-C
        interrupts closing, closing again, or dropping the queue, completes it.

        Raises:
            SyncFailed: the queue was opened with another `sync` than "none", and its last flush
                failed; it is closed all the same.

        Example:
            >>> queue.close()
        """
        self._opened.close()

    def __repr__(self) -> str:
        state = "closed" if self._opened.is_closed else "open"
        return f"<Queue {self._store.folder.path!r}, prefix {self.prefix!r}, {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Queue cannot be pickled: open it by its path in the other process")


def internals(queue: Queue) -> OpenQueue:
    """Return what a queue's methods work on, for packages above this one."""
    return queue._opened  # noqa: SLF001 - the one way in for these packages


def opened_again(
    open_queue: Callable[..., Queue], queue_id: bytes, kept: str, remedy: str
) -> Queue:
    """Open the queue that was open before, in this process or another one.

    Args:
        open_queue: opens it; called with `create=False`.
        queue_id: of the queue.
        kept: what refers to it: the subject of the error's message.
        remedy: what the caller can do where it is not there any more.

    Raises:
        QueueReplaced: the path leads to another queue, or to none.
    """
    try:
        queue = open_queue(create=False)
    except errors.QueueNotFound as error:
        raise another_queue(error.path or "", kept, queue_id.hex(), None, remedy) from error
    found = internals(queue).store.meta.queue_id
    if found != queue_id:
        queue.close()
        raise another_queue(queue.directory, kept, queue_id.hex(), found.hex(), remedy)
    return queue
