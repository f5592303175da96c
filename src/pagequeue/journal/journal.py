"""Journal: a state that is shared by processes, because all apply the entries of one log."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pagequeue import errors
from pagequeue.journal.appender import Appender
from pagequeue.journal.compaction import Compactor
from pagequeue.journal.machine import EntryCodec, State
from pagequeue.journal.replica import Replica
from pagequeue.journal.report import check_journal
from pagequeue.journal.snapshots import SnapshotGone, Snapshots
from pagequeue.journal.turn import PATIENCE, PATIENCE_SECONDS, Turn
from pagequeue.maintenance.trim_plan import retained_header
from pagequeue.queue.queue import Queue, internals
from pagequeue.store.options import check_snapshots
from pagequeue.util.arguments import absolute_path
from pagequeue.util.arguments import sequence as checked
from pagequeue.util.closing import Closing
from pagequeue.util.state_lock import HOLDER, StateLock
from pagequeue.util.timestamps import to_ns
from pagequeue.wait.coroutine import check_timeout, first
from pagequeue.wait.off_loop import in_thread, off_loop

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pagequeue.journal.compaction import CompactionReport
    from pagequeue.journal.machine import Machine
    from pagequeue.journal.report import JournalReport
    from pagequeue.journal.snapshots import SnapshotInfo
    from pagequeue.store.flush import Sync
    from pagequeue.store.store import Store
    from pagequeue.util.literals import CodecName, Trusted
    from pagequeue.util.timestamps import TimeLike

log: logging.Logger = logging.getLogger("pagequeue")
Found = TypeVar("Found")
PAGE_BYTES: Final = 4 << 20
"""Of a new journal: compaction removes whole pages, so smaller ones than a queue's default."""
COMPACT_BYTES: Final = 1 << 20
"""Opening compacts no shorter log than this."""
NOTHING: Final = -1
"""`decide` returned None."""
OVERTAKEN: Final = -2
"""Another handle appended first."""


class JournalQueue(Queue):
    """The queue of a journal's entries."""

    _is_journal = True


class Journal(Closing, Generic[State]):
    """A state that processes share: a log of entries, and a machine that applies them.

    Every process has the state in memory and applies all entries in their order. `update` appends
    an entry on the condition that no other one came first, so it is decided on the state that it
    changes. Threads and coroutines may share a journal; each process opens its own.

    Args:
        directory: as for `Queue`.
        machine: what the entries mean; see `Machine`.
        codec: of the entries: `"json"`, `"msgpack"`, `"bytes"` or `"pickle"`; as for `Queue`.
        sync: as for `Queue`: how durable entries are across a power cut.
        snapshots: how many snapshots compaction keeps, 1 or more. If the newest is damaged, the one
            before it and the entries after that give the same state.
        read_only: only follow: write no byte.
        create: create the journal if it does not exist; False makes that an error.
        prefix: as for `Queue`.
        page_bytes: as for `Queue`; 4 MiB for a new journal, because compaction removes whole pages.
        compact_on_open: whether opening compacts when the log since the last snapshot is larger
            than that snapshot, and than 1 MiB.
        lock_timeout: as for `Queue`.
        clock: as for `Queue`: the time of entries.
        file_mode: as for `Queue`.
        trust: as for `Queue`.

    Attributes:
        queue: the entries, a queue to read; only `update` appends to it.

    Raises:
        NotAJournal: the queue exists and is not a journal's.
        PoisonEntry: the machine refuses an entry.
        CorruptSnapshot: entries were compacted away, and no snapshot can be read.
        NewerFormat: a later version of the machine wrote the journal.
        InvalidOption, QueueNotFound, DamageError, DiskFull, LockTimeout: as for `Queue`.

    Example:
        >>> with Journal("accounts", Accounts()) as journal:
        ...     journal.update(lambda state: {"account": "ann", "amount": 5})
        0

    Source: FORMAT.md, "Journals".
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        machine: Machine[State],
        *,
        codec: CodecName = "json",
        sync: Sync = "none",
        snapshots: int = 2,
        read_only: bool = False,
        create: bool = True,
        prefix: str = "queue",
        page_bytes: int | None = None,
        compact_on_open: bool = True,
        lock_timeout: float = 10.0,
        clock: Callable[[], int] | None = None,
        file_mode: int = 0o600,
        trust: Trusted = (),
    ) -> None:
        self._keep = check_snapshots(snapshots)
        self._machine = machine
        self._lock = StateLock()
        self._slow_seconds = 0.0  # that deciding took when it last had the turn
        self._turn: Turn | None = None
        # Checked before anything is made: a journal has no other codecs.
        entry_codec = EntryCodec(codec, machine, absolute_path("directory", directory))
        self.queue: Queue = _opened(
            directory,
            read_only=read_only,
            create=create,
            codec=codec,
            sync=sync,
            prefix=prefix,
            page_bytes=page_bytes,
            lock_timeout=lock_timeout,
            clock=clock,
            file_mode=file_mode,
            trust=trust,
        )
        self._opened = internals(self.queue)
        self._files = contextlib.ExitStack()
        try:
            self._snapshots = Snapshots(self._opened.store, trust)
            self._files.callback(self._snapshots.close)
            self._replica = Replica(self.queue, machine, entry_codec, self._snapshots)
            self._codec = entry_codec
            self._dumps, self._version = entry_codec.dumps, entry_codec.version
            if not read_only:
                self._open_writing()
                if compact_on_open:
                    self._compact_if_worth_it()
        except BaseException:
            self.close()
            raise

    def _open_writing(self) -> None:
        opened = self._opened
        store, options = opened.store, opened.options
        self._sync_every = options.sync_every
        self._unsynced = 0
        self._producer = opened.keep(Appender(store, store.clock), store)
        self._send = self._producer.send
        self._compactor = Compactor(
            self.queue, self._producer, self._machine, self._snapshots, self._keep
        )
        assert self._snapshots.folder is not None
        turn = Turn(self._snapshots.folder)
        self._files.callback(turn.close)
        self._turn = turn

    # --- the state --------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state after all entries below `sequence`; do not change it.

        Other threads that use the journal may change it meanwhile, if the machine changes states in
        place: `read` excludes them.

        Example:
            >>> journal.state["ann"]
            5
        """
        state: State = self._replica.state
        return state

    @property
    def sequence(self) -> int:
        """The sequence of the next entry to apply: the state has all entries below it.

        Example:
            >>> journal.sequence
            1000
        """
        return self._replica.sequence

    def catch_up(self) -> int:
        """Apply all entries that were published so far, by any process.

        Returns:
            the sequence of the next entry.

        Raises:
            PoisonEntry: the machine refuses an entry; the state is that before it.
            NewerFormat: a later version of the machine wrote an entry.
            CorruptSnapshot: entries were compacted away, and no snapshot can be read.
            CorruptFrame, ClosedError, ForkedError, LockTimeout: as for `Queue`.

        Example:
            >>> journal.catch_up()
            1000
        """
        return self._alone(self._caught_up)

    def _caught_up(self) -> int:
        self._replica.advance()
        return self._replica.sequence

    catch_up_async = off_loop(catch_up)
    """Catch up as `catch_up` does, in a thread, and let the event loop run meanwhile."""

    def read(self, query: Callable[[State], Found]) -> Found:
        """Return what a function finds in the newest state; no thread changes it meanwhile.

        Args:
            query: gets the state; it must not change it, and not use the journal.

        Raises:
            PoisonEntry, NewerFormat, CorruptSnapshot, ClosedError: as for `catch_up`.

        Example:
            >>> journal.read(lambda state: state["ann"])
            5
        """

        def look() -> Found:
            self._replica.advance()
            return query(self._replica.state)

        return self._alone(look)

    read_async = off_loop(read)
    """Read as `read` does, in a thread, and let the event loop run meanwhile."""

    def wait(self, timeout: float | None = None, *, after: int | None = None) -> bool:
        """Wait until an entry was published, and apply all that were.

        Args:
            timeout: seconds to wait; None waits for ever, 0 never waits.
            after: return when the state has an entry of this sequence or a later one; None: the
                next that this journal has not applied. Give the `sequence` that a decision was
                made by, so that no entry that another thread applied since then is missed.

        Returns:
            whether there is such an entry; False: it did not come in time.

        Raises:
            PoisonEntry, NewerFormat, CorruptSnapshot, ClosedError: as for `catch_up`.

        Example:
            >>> journal.wait(timeout=1.0)
            False
        """
        timeout = check_timeout(timeout)
        sequence = self.sequence if after is None else checked("after", after)
        if self.sequence > sequence or self.queue.tail_sequence > sequence:
            return self.catch_up() > sequence
        if timeout == 0:
            return False
        try:
            with self.queue.consumer(sequence=min(sequence, self.queue.tail_sequence)) as watcher:
                deadline = math.inf if timeout is None else time.monotonic() + timeout
                while watcher.sequence <= sequence:
                    left = None if timeout is None else max(0.0, deadline - time.monotonic())
                    watcher.receive(left)
        except errors.NothingReceived:
            return False
        except errors.Expired:  # compaction passed it, so it was published
            pass
        return self.catch_up() > sequence

    async def wait_async(self, timeout: float | None = None, *, after: int | None = None) -> bool:
        """Wait as `wait` does, and let the event loop run meanwhile.

        Args:
            timeout: as for `wait`.
            after: as for `wait`.

        Raises:
            PoisonEntry, NewerFormat, CorruptSnapshot, ClosedError: as for `catch_up`.

        Example:
            >>> await journal.wait_async(timeout=1.0)
            False
        """
        timeout = check_timeout(timeout)
        store = self._opened.readable()
        sequence = self.sequence if after is None else checked("after", after)

        def is_there() -> bool:
            return store.tail.sequence > sequence

        found = await first(
            store.notifier, lambda: is_there() or None, maybe_ready=is_there, timeout=timeout
        )
        if found is None:
            return False
        await in_thread(self.catch_up)
        return self.sequence > sequence

    # --- changing it ------------------------------------------------------------------------------

    def update(
        self,
        decide: Callable[[State], Any],
        *,
        durable: bool = False,
        timeout: float | None = None,
    ) -> int | None:
        """Append the entry that a function decides on, and apply it.

        The function sees the newest state, and its entry is appended only if no other one was
        appended meanwhile; else it decides again, on the state after that. So it can be called
        several times. It must not change the state, and not use the journal; what it raises is
        raised, and no entry is appended. It runs without any lock between processes.

        A handle that was overtaken several times makes the others hold back, for twice as long as
        it took to decide and then longer, up to a second: it gets its entry in if it decides within
        that.

        Args:
            decide: gets the state; returns an entry for the codec, or None to append none.
            durable: return when the entry is on stable storage.
            timeout: seconds until it gives up because others are always faster; None: never.

        Returns:
            the sequence of the entry; None: `decide` returned None.

        Raises:
            UpdateTimeout: others appended first until the timeout; no entry was appended.
            NotEncodable: the codec cannot encode the entry; no entry was appended.
            NotDurable: appended and applied, but not on stable storage.
            PoisonEntry: the machine refuses an entry: one of others, and no entry was appended; or,
                if `error.sequence` is what this call appended, its own.
            ReadOnlyQueue: the journal was opened with `read_only=True`.
            ConcurrentUse: `decide` uses the journal.
            DiskFull, SyncFailed, LockTimeout, ClosedError, ForkedError: as for `Producer.send`.

        Example:
            >>> new = {"account": "ann", "amount": 5}
            >>> journal.update(lambda state: None if "ann" in state else new)
            0

        Source: FORMAT.md, "Journals".
        """
        turn = self._turn
        if turn is None:
            self._opened.writable("append entries")
            raise self._closed_error()
        if timeout is not None:
            timeout = check_timeout(timeout)
        sequence = OVERTAKEN if turn.until() else self._attempt(decide)
        if sequence == OVERTAKEN:
            sequence = self._insist(turn, decide, timeout)
        if sequence == NOTHING:
            return None
        if durable or self._sync_every:
            self._sync(sequence, durable=durable)
        return sequence

    def _insist(self, turn: Turn, decide: Callable[[State], Any], timeout: float | None) -> int:
        """Repeat an attempt until it succeeds, in the end by taking the turn.

        Returns:
            the sequence, or `NOTHING`.

        Raises:
            UpdateTimeout: others appended first until the timeout.
        """
        now = time.monotonic()
        deadline = math.inf if timeout is None else now + timeout
        impatient = now + PATIENCE_SECONDS
        attempts, sequence = 0, OVERTAKEN
        begun = now - self._slow_seconds
        while self._slow_seconds < PATIENCE_SECONDS and (attempts < PATIENCE or now < impatient):
            if turn.until():
                turn.wait(deadline)
            begun = time.monotonic()
            sequence = self._attempt(decide)
            attempts, now = attempts + 1, time.monotonic()
            if sequence != OVERTAKEN or now >= deadline:
                break
        if sequence == OVERTAKEN and now < deadline:
            with turn.held(deadline, now - begun) as taken:
                while sequence == OVERTAKEN and time.monotonic() < deadline:
                    taken.extend()
                    begun = time.monotonic()
                    sequence = self._attempt(decide)
            self._slow_seconds = time.monotonic() - begun
        if sequence == OVERTAKEN:
            raise errors.UpdateTimeout(
                f"others appended first for {timeout:g} s",
                path=self.queue.directory,
                remedy="call again, with a longer timeout, or decide faster",
            )
        return sequence

    def _attempt(self, decide: Callable[[State], Any]) -> int:
        """Catch up, decide and append; return the sequence, `NOTHING` or `OVERTAKEN`."""
        # As `_alone`, which would take a twentieth of the time of an update.
        me = [threading.get_ident()]
        lock = self._lock
        holder, waiting = lock.holder, lock.waiting
        try:
            if waiting or holder.setdefault(HOLDER, me) is not me:
                self._queue_up(me)
            replica = self._replica
            replica.advance()
            try:
                entry = decide(replica.state)
            except BaseException as error:
                if isinstance(error, MemoryError) or not isinstance(error, Exception):
                    replica.doubt()  # it may have arranged the state anew, and not to the end
                raise
            if entry is None:
                return NOTHING
            try:
                payload = self._dumps((self._version, entry))
            except MemoryError:
                raise
            except Exception as error:
                raise self._codec.refusal(entry, error) from error
            at = replica.sequence
            try:
                sequence = self._send(payload, at=at)
            except errors.Overtaken:
                return OVERTAKEN
            replica.advance_own(entry, len(payload))
            return sequence
        finally:
            if HOLDER in holder and holder[HOLDER] is me:  # no call before `del`
                del holder[HOLDER]
            if waiting:
                lock.wake()

    def _sync(self, sequence: int, *, durable: bool) -> None:
        """Flush what was appended, as `sync` or `durable` asks; without the lock of the state."""
        if not durable:
            if not self._sync_every:
                return
            self._unsynced += 1  # threads may lose one: the last N - 1 are not promised anyway
            if self._unsynced < self._sync_every:
                return
        self._unsynced = 0
        self._producer.flush_sent(sequence + 1)

    update_async = off_loop(update)
    """Update as `update` does, in a thread, and let the event loop run meanwhile."""

    def flush(self, timeout: float | None = None) -> int:
        """Put all entries so far on stable storage, those of other processes too.

        Args:
            timeout: seconds to wait for a flush of another thread or process; None waits for ever.

        Returns:
            the durable sequence: every entry below it is on stable storage.

        Raises:
            FlushTimeout: not on stable storage in time; the entries are visible.
            SyncFailed: the disk refused; as for `Producer.flush`.
            ReadOnlyQueue: the journal was opened with `read_only=True`.
            ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> journal.flush()
            1000
        """
        # Keeps I5.
        return self._writer("flush it").flush(timeout)

    async def flush_async(self, timeout: float | None = None) -> int:
        """Flush as `flush` does, and let the event loop run meanwhile.

        Coroutines that flush at the same time share their syncs. If the task is cancelled, the
        entries may or may not reach stable storage.

        Args:
            timeout: as for `flush`.

        Raises:
            FlushTimeout, SyncFailed, ReadOnlyQueue, ClosedError, ForkedError: as for `flush`.

        Example:
            >>> await journal.flush_async(timeout=10.0)
            1000
        """
        # Keeps I5.
        return await self._writer("flush it").flush_async(timeout)

    def _writer(self, what: str) -> Appender:
        """Return the producer, if this journal may write.

        Raises:
            ReadOnlyQueue: it may not. ClosedError, ForkedError: nor may it read.
        """
        self._opened.writable(what)
        return self._producer

    # --- snapshots --------------------------------------------------------------------------------

    def compact(self) -> CompactionReport:
        """Write a snapshot of the newest state, and remove the pages of entries that it replaces.

        Other processes append and follow meanwhile; threads of this process wait. One process at a
        time compacts: in all others this has no effect. Until there are as many snapshots as are
        kept, no entry is removed.

        Raises:
            PoisonEntry: the machine refuses an entry; no snapshot was written.
            DiskFull, SystemLimit: the snapshot could not be written; no entry was removed.
            SyncFailed: the queue is latched; no entry was removed.
            ReadOnlyQueue, LockTimeout, ClosedError, ForkedError: as for `Queue.trim`.

        Example:
            >>> journal.compact().sequence
            1000

        Source: FORMAT.md, "Journals".
        """
        # Keeps I22.
        self._opened.writable("compact it")
        return self._alone(self._compact)

    def _compact(self) -> CompactionReport:
        self._lock.allow_long()
        replica = self._replica
        replica.advance()
        report = self._compactor.run(replica.sequence, replica.state)
        if report.sequence is not None:
            replica.snapshot, replica.log_bytes = report.sequence, 0
        return report

    compact_async = off_loop(compact)
    """Compact as `compact` does, in a thread, and let the event loop run meanwhile."""

    def _compact_if_worth_it(self) -> None:
        """Compact when the log since the last snapshot is larger than that snapshot."""
        replica = self._replica
        if replica.log_bytes <= COMPACT_BYTES:
            return
        if replica.snapshot is not None:
            try:
                if replica.log_bytes <= self._snapshots.info(replica.snapshot).bytes:
                    return
            except (errors.DamageError, SnapshotGone):
                pass
        try:
            self.compact()
        except (errors.DiskFull, errors.SystemLimit, errors.LockTimeout) as error:
            log.warning("%s: not compacted: %s", self.queue.directory, error)

    def snapshots(self) -> list[SnapshotInfo]:
        """Return what the heads of all snapshots tell, newest first, without the damaged ones.

        Example:
            >>> report = journal.compact()
            >>> [snapshot.sequence for snapshot in journal.snapshots()]
            [1000]
        """
        self._opened.readable()
        found = []
        for sequence in self._snapshots.sequences():
            with contextlib.suppress(errors.DamageError, SnapshotGone):
                found.append(self._snapshots.info(sequence))
        return found

    def at(self, moment: TimeLike) -> State:
        """Return the state after all entries that are not later than a time.

        It is built from the nearest snapshot before it; the journal's own state does not move.

        Args:
            moment: int ns since 1970, UTC, an aware datetime, or a timedelta before now.

        Raises:
            Expired: the entries of that time were compacted away.
            PoisonEntry, NewerFormat, CorruptSnapshot: as for `catch_up`.
            NaiveDatetime, InvalidOption, TypeError: the time is invalid.

        Example:
            >>> journal.at(timedelta(hours=1))  # an hour ago there was no entry
            {}
        """
        store = self._opened.readable()
        ns = to_ns(moment, store.clock, name="moment")
        end = store.while_retained(lambda: self._end_of(store, ns))
        state: State = self._replica.build(end).state
        return state

    at_async = off_loop(at)
    """Return what `at` does, in a thread, and let the event loop run meanwhile."""

    def _end_of(self, store: Store, ns: int) -> int:
        """Return the sequence after the last entry that is not later than a time.

        Raises:
            Expired: that entry was compacted away, and was not the last of those.
        """
        if (end := self.queue.as_of(ns) + 1) > 0:
            return end
        head_page, head = store.head
        if head == 0 or ns >= retained_header(store, head_page).floor_timestamp:
            return head
        raise store.expired("ask for a later time: what came before {head} was compacted away")

    def verify(self, progress: Callable[[int, int], None] | None = None) -> JournalReport:
        """Check the log and all snapshots, and that the entries lead from each state to the next.

        All entries are applied again, from the initial state if none was removed, else from the
        oldest snapshot; the result is compared with each snapshot and with the state in memory, by
        `==`, else by what `dump` gives. Takes the memory of two states.

        Args:
            progress: called with the pages of the log that are checked, and the pages in all.

        Raises:
            ClosedError, ForkedError: the handle cannot be used.

        Example:
            >>> journal.verify().ok
            True
        """
        report = self.queue.verify(progress)
        return self._alone(lambda: check_journal(self._replica, self._machine, self.queue, report))

    verify_async = off_loop(verify)
    """Verify as `verify` does, in a thread, and let the event loop run meanwhile."""

    # --- one thread at a time ---------------------------------------------------------------------

    def _alone(self, do: Callable[[], Found]) -> Found:
        """Call a function while no other thread uses the state.

        Raises:
            ConcurrentUse: this thread uses it already.
            LockTimeout: another thread uses it for too long.
        """
        me = [threading.get_ident()]
        lock = self._lock
        holder, waiting = lock.holder, lock.waiting
        try:
            if waiting or holder.setdefault(HOLDER, me) is not me:
                self._queue_up(me)
            return do()
        finally:
            if HOLDER in holder and holder[HOLDER] is me:  # no call before `del`
                del holder[HOLDER]
            if waiting:
                lock.wake()

    def _queue_up(self, me: list[int]) -> None:
        """Wait for the state, after the threads that wait already; while one compacts, for long."""
        store = self._opened.store
        store.check_process("journal")
        if self._lock.is_mine():
            raise self._nested()
        if not self._lock.wait(me, store.lock_timeout):
            raise self._stuck()

    def _nested(self) -> errors.ConcurrentUse:
        return errors.ConcurrentUse(
            "the journal is used by a function that it called",
            path=self.queue.directory,
            remedy="let decide and query use only the state that they get",
        )

    def _stuck(self) -> errors.LockTimeout:
        return errors.LockTimeout(
            f"another thread used this journal for {self._opened.store.lock_timeout:g} s",
            path=self.queue.directory,
            remedy="find the decide, query or apply that hangs, then call again",
        )

    def _closed_error(self) -> errors.ClosedError:
        return errors.ClosedError(
            "this journal is closed", path=self.queue.directory, remedy="open it again"
        )

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the queue of entries; closing again has no effect.

        Raises:
            SyncFailed: as for `Queue.close`.

        Example:
            >>> journal.close()
        """
        try:
            self.queue.close()
        finally:
            self._files.close()

    def __repr__(self) -> str:
        state = "closed" if self._opened.is_closed else f"next entry {self.sequence}"
        return f"<Journal {self.queue.directory!r}, prefix {self.queue.prefix!r}, {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Journal cannot be pickled: open it by its path in the other process")


def _opened(directory: str | os.PathLike[str], **options: Any) -> Queue:  # noqa: ANN401 - of Queue
    """Open the queue of a journal; a new one with pages of `PAGE_BYTES`.

    Raises:
        NotAJournal: the queue is another one.
    """
    if options["page_bytes"] is not None or not options["create"] or options["read_only"]:
        options["create"] &= not options["read_only"]
        return JournalQueue(directory, **options)
    while True:
        with contextlib.suppress(errors.QueueNotFound):
            return JournalQueue(directory, **(options | {"create": False}))
        with contextlib.suppress(errors.PageSizeMismatch):  # another process was faster
            return JournalQueue(directory, **(options | {"page_bytes": PAGE_BYTES}))
