"""Publisher: appends any number of messages atomically, and once for each piece of work.

Messages that fit into one page are one batch (I8), sent on the condition that it gets the sequence
named by a record on stable storage: the next publisher that finds the record compares it with the
messages to tell whether the batch was sent. If other producers are faster each time, they wait
while the record is written, and it is the first batch of a page. More messages are written to
staged pages, which are renamed into the queue and published by one store (I19). Ordinary producers
continue meanwhile; only while staged pages get their sequences do they wait, as for a page that is
being created.
"""

# ruff: noqa: SLF001 - a queue's end is the writer's, without its public methods

from __future__ import annotations

import contextlib
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.chunk import Chunk, chunk_of
from pagequeue.bulk.staged_pages import (
    StagedPages,
    assign_sequences,
    stage,
    too_early,
)
from pagequeue.bulk.staging_directory import StagingDirectory, open_staged, remove_abandoned
from pagequeue.meta.commit_record import Record, read_publishing
from pagequeue.meta.ledger import (
    ENTRY,
    LOCK,
    are_numbers,
    done_in,
    entry_of,
    is_entered,
    lock_times,
    nonsense,
    published_name,
    publishing_name,
    read_record,
    sending_name,
    unsure,
    with_piece,
    write_record,
)
from pagequeue.page.header import CHECKSUM_AT
from pagequeue.receive.replay import Replay
from pagequeue.send.queue_end import QueueEnd
from pagequeue.send.refusals import not_durable, overtaken, starved
from pagequeue.send.with_room import LOSSES_MIN, ROOM_SECONDS
from pagequeue.store.pending_commit import resolve_pending, roll_back, write_down
from pagequeue.system.file_lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from pagequeue.meta.write_meta import Tail
    from pagequeue.store.store import Store

TRIES: Final = 10
"""Attempts to send a batch while other producers send in between; then they wait for it."""
ROOM_TRIES: Final = 100
SYNC_TRIES: Final = 5
"""Attempts of a call whose own syncs failed each time, though the queue could continue."""
OTHERS_SECONDS: Final = 1.0
"""A call waits so long for another publisher, whatever its timeout: that is for room."""


class BulkSource(Protocol):
    """The messages of one publication; `chunks` may be called more than once."""

    count: int
    frame_bytes: int

    def chunks(self) -> Iterator[Chunk]:
        """Yield all messages in order; all chunks have times, or none has."""
        ...


class BulkPublisher:
    """Publishes into one queue, one publisher at a time; close it when done.

    Args:
        store: of the queue, open for writing.
        deadline: until when to wait for another publisher, which may wait for room, in seconds of
            the monotonic clock; in any case, for `OTHERS_SECONDS`.
        staging: the caller's staged pages, in use until this is closed; None: it has none.

    Raises:
        LockTimeout: another publisher made no progress for too long.
        QueueFull: the deadline is over.
        UnsafePath: the staging directory is a link, or belongs to another user.
    """

    def __init__(
        self, store: Store, deadline: float = math.inf, staging: StagingDirectory | None = None
    ) -> None:
        self._store = store
        self._folder = store.folder
        self._prefix = store.prefix
        self._sync_names = store.flusher.sync_names
        self._held = contextlib.ExitStack()
        self._own = "" if staging is None else staging.name
        if staging is None:
            self._staged = open_staged(store.folder, store.prefix)
            self._held.callback(self._staged.close)
        else:
            self._staged = staging.parent
        self.path: str = self._staged.path
        try:
            self._lock = self._locked(max(deadline, time.monotonic() + OTHERS_SECONDS))
        except BaseException:
            self._held.close()
            raise

    def _locked(self, until: float) -> FileLock:
        """Lock the publishers' lock file; retry if it was replaced meanwhile."""
        while True:
            lock = FileLock(
                self._staged.open(LOCK, writable=True, make=True),
                self._staged.full(LOCK),
                progress=partial(lock_times, self._folder, self._prefix),
            )
            with contextlib.ExitStack() as held:
                held.callback(lock.close)
                try:
                    held.enter_context(
                        lock.exclusive(self._store.lock_timeout, "publishing", until)
                    )
                except errors.LockTimeout as error:
                    if time.monotonic() < until:
                        raise
                    raise errors.QueueFull(
                        f"others sent or published all the while ({error}), so nothing was sent",
                        path=self._folder.path,
                        held_by=(),
                        remedy="send again, with a longer timeout",
                    ) from error
                if self._staged.identity(LOCK) == lock.identity():
                    self._held.push(held.pop_all())
                    return lock

    def close(self) -> None:
        """Let others publish."""
        with contextlib.suppress(errors.PageQueueError):  # closing unlocks as well
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def done(self, writer: str, piece: int) -> range | None:
        """Return the sequences of a piece of work that was published; None: it was not.

        A publication that was interrupted is resolved first.

        Raises:
            CorruptMeta: the ledger is damaged.
            Expired: retention removed the messages that would decide it.
        """
        self._recover()
        entry = self._entry(writer)
        if entry is not None and "unsure" in entry and entry["unsure"][0] == piece:
            raise self._store.expired(
                f"it is unknown whether piece {piece} of {writer!r} was published as messages "
                f"{entry['unsure'][1]} to {entry['unsure'][2] - 1} before {{head}}, now the head: "
                "find out from their consumers, or publish it as another piece"
            )
        return done_in(entry, piece)

    def forget(self, writer: str) -> None:
        """Remove the entry of a writer that will not publish again."""
        self._folder.remove(published_name(self._prefix, entry_of(writer)))

    def _entry(self, writer: str) -> dict[str, Any] | None:
        return read_record(self._folder, published_name(self._prefix, entry_of(writer)))

    def publish(
        self,
        writer: str,
        piece: int,
        source: BulkSource,
        timeout: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> range:
        """Publish all messages of the source durably, unless this piece was published before.

        Args:
            writer: name of the publishing writer; each has its own entry in the ledger.
            piece: of its work, from 0 on, never decreasing.
            source: the messages.
            timeout: seconds to wait for room; None: the queue's `full_timeout`.
            check: called while waiting for room; raises when the piece is not wanted any more.

        Returns:
            Its sequences.

        Raises:
            TimestampOrder: its times are not in order, or begin before the queue's last one.
            MessageTooLarge: `max_bytes` cannot hold so many pages.
            DiskFull, QueueFull, LockTimeout, SyncFailed: as for `Producer.send`; SyncFailed and
                NotDurable can mean that it is visible: call `done` to find out.
        """
        # FORMAT.md, "Publishing pages"; keeps I8 and I19.
        self._store.check_appendable()
        flusher = self._store.flusher
        for _ in range(SYNC_TRIES - 1):
            try:
                return self._publish_once(writer, piece, source, timeout, check)
            except errors.SyncFailed:  # the ledger tells whether it was published
                if not flusher.can_resume:
                    raise
                flusher.resume()
        return self._publish_once(writer, piece, source, timeout, check)

    def _publish_once(
        self,
        writer: str,
        piece: int,
        source: BulkSource,
        timeout: float | None,
        check: Callable[[], None] | None,
    ) -> range:
        known = self.done(writer, piece)
        if known is not None:
            return known
        before = self._entry(writer)
        entry = _Entry(writer, piece, before)
        store = self._store
        with QueueEnd(store, check=partial(self._wait_on, check)) as end:
            end._record_bytes = store.schema.record_bytes
            if source.count and self._fits(source):
                found = self._send(end, entry, source, timeout)
            else:
                found = self._publish_pages(end, entry, source, timeout)
            end._flush_sent(found.stop)
        return found

    def append(
        self,
        end: QueueEnd,
        staged: StagedPages,
        at: int | None = None,
        timeout: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> range:
        """Publish staged pages that are no writer's work: their sender does not repeat it.

        Args:
            end: of the queue.
            staged: the pages.
            at: the sequence that the first message must get; None: any.
            timeout: seconds to wait for room; None: the queue's `full_timeout`.
            check: called until they are published; raises when they are not wanted any more.

        Raises:
            MessageTooLarge: `max_bytes` cannot hold so many pages.
            Overtaken: the next sequence is another than `at`. Others as for `publish`.
        """
        self._recover()
        wanted = partial(self._wait_on, check or end._check_wanted)
        return self._publish_all(end, wanted, None, staged, at, timeout)

    def _fits(self, source: BulkSource) -> bool:
        meta = self._store.meta
        room = meta.page_bytes - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
        return source.frame_bytes <= room and source.count <= meta.index_capacity

    # --- one batch --------------------------------------------------------------------------------

    def _send(
        self, end: QueueEnd, entry: _Entry, source: BulkSource, timeout: float | None
    ) -> range:
        """Send one batch.

        Raises:
            QueueFull: the timeout is over, and others were faster each time.
            LockTimeout: the same, after many attempts.
        """
        whole = _joined(list(source.chunks()))
        began, deadline = time.monotonic(), self._store.limits.deadline(timeout)
        for losses in range(ROOM_TRIES):
            if losses > LOSSES_MIN and time.monotonic() > deadline:
                raise starved(self._folder.path, time.monotonic() - began)
            if losses < TRIES:
                tail = self._store.tail
                with self._entering():
                    times = self._write_sending(entry, whole, tail)
                self._sync_names()
                sequences = self._send_recorded(end, whole, times, tail, deadline)
            else:
                sequences = self._send_first(end, entry, whole, deadline)
            if sequences is not None:
                # 3. Rename the record to the entry. Power is cut before the flush: recovery reverts
                #    it together with the messages.
                with self._visible():
                    self._enter(sending_name(self._prefix), entry_of(entry.writer))
                return sequences
        self._folder.remove(sending_name(self._prefix))
        raise _others_were_faster(self._store)

    def _write_sending(self, entry: _Entry, whole: Chunk, tail: Tail) -> NDArray[np.int64]:
        """Write the record of a batch that comes next; return its times.

        1. Write the record to stable storage. Dies here: no message matches it; it is removed.

        The caller has the preparation lock.

        Raises:
            TimestampOrder: the batch has earlier times than the queue.
        """
        count, times = len(whole.payloads), whole.times
        if times is None:
            now = max(self._store.clock(), tail.last_timestamp)
            times = np.full(count, now, np.int64)
        elif int(times[0]) < tail.last_timestamp:
            raise too_early(self._folder.path, int(times[0]), tail.last_timestamp)
        record = {
            "entry": entry_of(entry.writer),
            **entry.with_sequences(range(tail.sequence, tail.sequence + count)),
            "first_sequence": tail.sequence,
            "count": count,
            "digest": _digest(whole, times),
        }
        write_record(self._folder, sending_name(self._prefix), record, _nothing)
        return times

    def _send_recorded(
        self,
        end: QueueEnd,
        whole: Chunk,
        times: NDArray[np.int64],
        tail: Tail,
        deadline: float,
    ) -> range | None:
        """Send the batch of a record; return its sequences. None: another producer was faster.

        2. Send it with the sequence and the times of the record, or not at all. Dies here: the
           messages match the record.
        """
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        try:
            end._send_many(whole.payloads, times.tobytes(), tail.sequence, left)
        except (errors.Overtaken, errors.TimestampOrder):
            return None  # that sequence is taken, or a later timestamp
        return range(tail.sequence, tail.sequence + len(whole.payloads))

    def _send_first(
        self, end: QueueEnd, entry: _Entry, whole: Chunk, deadline: float
    ) -> range | None:
        """Send a batch as the first one of a page, for which other producers wait meanwhile.

        Returns:
            its sequences; None: others rolled before, or one was faster after the roll: try again.
        """
        store = self._store
        if store.write_meta.failed_errno:  # before the preparation lock, which it needs
            store.flusher.resume()
        number = self._make_room(end, end._check_wanted, 1, deadline)
        if number is None:
            return None
        end._check_wanted()
        with self._prepared("publishing a batch"):
            # As M2 and M3. Dies here: the queue has rolled, or the page is abandoned (I8).
            active = self._use_up_next_page(end)
            tail = end._freeze_page()
            if tail is None or tail.page_number != active:
                return None
            times = self._write_sending(entry, whole, tail)
            self._sync_names()
            # No process has the next page before this line, so that none has rolled.
            is_ring, policy = store.meta.is_ring, store.policy
            if active + 1 <= number or (is_ring and policy.has_room(store, active + 1)):
                store.roller.make_held(active + 1)
            elif policy.renew(store, active + 1, is_held=True) is None:
                return None
            end._roll_from(active)
        return self._send_recorded(end, whole, times, tail, deadline)

    def _enter(self, record: str, entry: str) -> None:
        """Rename a record to an entry, on stable storage."""
        with self._entering():  # else older contents could replace it: see `renew_records`
            self._folder.rename(record, published_name(self._prefix, entry))
        self._sync_names()

    def _visible(self) -> contextlib.AbstractContextManager[None]:
        """Raise NotDurable for errors after the store that publishes: the messages are visible."""
        return not_durable(
            self._folder.path,
            "published and visible, but the ledger is not on stable storage",
            "then publish the same piece again, which sends no message twice",
        )

    def _recover(self) -> None:
        """Resolve the publication of a dead publisher; the publishers' lock is held."""
        try:
            self._resolve()
        except errors.SyncFailed:
            if not self._store.flusher.can_resume:
                raise
            self._store.flusher.resume()
            self._resolve()

    def _resolve(self) -> None:
        store = self._store
        remove_abandoned(self._staged, self._own)
        name = sending_name(self._prefix)
        record = self._read_sending(name)
        if record is not None:
            try:
                entry = record["entry"]
                known = is_entered(self._folder, self._prefix, entry, record["done"])
                if not known and self._was_sent(record):
                    self._enter(name, entry)
                else:
                    self._folder.remove(name)
            except errors.Expired:  # unknown; only its own writer has to know that
                with self._entering():
                    entry = published_name(self._prefix, record["entry"])
                    write_record(self._folder, entry, unsure(record), self._sync_names)
                self._folder.remove(name)
        if read_publishing(self._folder, self._prefix) is not None:
            try:
                with QueueEnd(store) as end, self._prepared("resolving a publication"):
                    self._recover_commit(end)
            except errors.SyncFailed:
                if store.flusher.can_resume:
                    raise
                return  # it was not published; the record stays in the queue, which has stopped
            self._sync_names()

    def _recover_commit(self, end: QueueEnd) -> None:
        store = self._store
        resolve_pending(
            self._folder,
            self._prefix,
            store.meta,
            store.write_meta,
            end._commit_pages,
            store.flusher.sync_removals,
        )

    def _read_sending(self, name: str) -> dict[str, Any] | None:
        record = read_record(self._folder, name)
        if record is not None:
            numbers = [record.get(word) for word in ("first_sequence", "count", "digest")]
            entry = record.get("entry")
            if not (
                are_numbers(numbers)
                and 0 < record["count"] <= self._store.meta.index_capacity
                and isinstance(entry, str)
                and ENTRY.fullmatch(entry)
                and record["done"]
            ):
                raise nonsense(self._folder.full(name), "not a record of a batch")
        return record

    def _was_sent(self, record: dict[str, Any]) -> bool:
        """Whether the batch that a record names is in the queue."""
        first, end = record["first_sequence"], record["first_sequence"] + record["count"]
        if end > self._store.tail.sequence:
            return False
        with Replay(self._store, None, None, first, end) as replay:
            messages = list(replay)
        times = np.array([message.timestamp for message in messages], np.int64)
        whole = chunk_of([message.payload for message in messages], times)
        return bool(_digest(whole, times) == record["digest"])

    # --- many pages -------------------------------------------------------------------------------

    def _prepared(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return self._store.roller.lock.exclusive(self._store.lock_timeout, doing)

    def _entering(self) -> contextlib.AbstractContextManager[None]:
        return self._prepared("writing the entry of a writer")

    def _publish_pages(
        self, end: QueueEnd, entry: _Entry, source: BulkSource, timeout: float | None
    ) -> range:
        store = self._store
        if source.count == 0:
            first = store.tail.sequence
            done = entry.with_sequences(range(first, first))
            with self._entering():
                name = published_name(self._prefix, entry_of(entry.writer))
                write_record(self._folder, name, done, self._sync_names)
            return range(first, first)
        pages = 1 + source.frame_bytes // store.meta.page_bytes
        refuse_at_once(store, pages | 1, timeout, end._check_wanted)
        with StagingDirectory(store) as folder:
            # M1. Write all staged pages. Dies here: a directory that the next publisher removes.
            staged = stage(store, folder, source.chunks())
            return self._publish_all(end, end._check_wanted, entry, staged, timeout=timeout)

    def _publish_all(
        self,
        end: QueueEnd,
        check: Callable[[], None],
        entry: _Entry | None,
        staged: StagedPages,
        at: int | None = None,
        timeout: float | None = None,
    ) -> range:
        """Publish staged pages, as soon as no other producer rolls meanwhile."""
        store = self._store
        check_no_ring(store)
        if len(staged.pages) >= store.limits.pages:
            raise too_many_pages(store, len(staged.pages))
        began, deadline = time.monotonic(), store.limits.deadline(timeout)
        for losses in range(ROOM_TRIES):
            if losses > LOSSES_MIN and time.monotonic() > deadline:
                raise starved(self._folder.path, time.monotonic() - began)
            if store.write_meta.failed_errno:  # before the preparation lock, which it needs
                store.flusher.resume()
            first = self._make_room(end, check, len(staged.pages), deadline)
            if first is None:
                continue
            check()
            sequences = None
            try:
                with self._prepared("publishing pages"):
                    sequences = self._publish_staged(end, entry, staged, first, at)
            except errors.RetryError:
                if sequences is None:
                    raise
                with self._visible():  # published, but unlocking failed
                    raise
            if sequences is not None:
                break
        else:
            raise _others_were_faster(store)
        staged.unmap(store.background)
        store.policy.rolled(store)
        return sequences

    def _wait_on(self, check: Callable[[], None] | None) -> None:
        """Check whether to wait on for room, and show other publishers that this one is alive."""
        if check is not None:
            check()
        self._lock.touch_access()

    def _check_at(self, tail: Tail, at: int | None) -> None:
        """Raise Overtaken if the next sequence is another one."""
        if at is not None and tail.sequence != at:
            raise overtaken(self._store, tail.sequence)

    def _make_room(
        self, end: QueueEnd, check: Callable[[], None], count: int, deadline: float
    ) -> int | None:
        """Make room for all pages, before any is renamed; None: try again.

        Returns:
            the number of the first page, unless producers roll meanwhile.
        """
        store, first = self._store, self._first_page()
        last = first + count - 1
        if last - store.tail.page_number >= store.limits.pages:
            # The next page is there already, of a producer that rolls, or that died then. With the
            # active page before it there would never be room for these.
            with self._prepared("publishing pages"):
                self._use_up_next_page(end)
            return None
        store.policy.make_room(store, last, check, deadline)
        return first

    def _first_page(self) -> int:
        """Return the number that the first page gets, unless producers roll meanwhile."""
        number = self._store.tail.page_number + 1
        while self._folder.exists(fmt.page_name(self._prefix, number)):
            number += 1
        return number

    def _use_up_next_page(self, end: QueueEnd) -> int:
        """Roll until no page follows the active one; return its number."""
        store = self._store
        active = store.tail.page_number
        while store.roller.take(active + 1):
            end._roll_from(active)  # not from the next one, if others rolled
            active = store.tail.page_number
        return active

    def _publish_staged(
        self,
        end: QueueEnd,
        entry: _Entry | None,
        staged: StagedPages,
        first_page: int,
        at: int | None,
    ) -> range | None:
        """Publish staged pages; None: another producer rolled, so try again.

        The caller holds the preparation lock, so that no process creates or retires a page or reads
        a pending record, and has made room for the pages from `first_page` on.
        """
        store, folder, prefix = self._store, self._folder, self._prefix
        if folder.exists(publishing_name(prefix)):  # its publisher locked a replaced file, and died
            self._recover_commit(end)
        staged.check_times(store)  # before a page is sealed for a commit that fails
        self._check_at(store.tail, at)
        # M2. Use up the page after the active one; no process can create another. Dies here: the
        #     queue has rolled.
        active = self._use_up_next_page(end)
        if active + 1 > first_page:
            return None
        # M3. Freeze the active page: no producer writes to it any more. Dies here: producers treat
        #     it as abandoned (I8).
        tail = end._freeze_page()
        if tail is None or tail.page_number != active:
            return None
        self._check_at(tail, at)  # the last time, because no message follows before the commit
        # M4. Assign sequences, times and headers, which are known now; sync the pages, but for a
        #     single large message that its sender does not flush.
        beyond = assign_sequences(store, staged, tail, self._lock.touch)
        sequences = range(tail.sequence, beyond.sequence)
        done = {} if entry is None else entry.with_sequences(sequences)
        page = staged.first_region(store)
        record = Record(
            active + 1,
            tail.sequence,
            page.load_half(fmt.PAGE_HEADER_BYTES + CHECKSUM_AT),
            beyond,
            None if entry is None else entry_of(entry.writer),
            done,
        )
        # M5. Write the record, then rename the pages, each synced if the pages were. Dies here: the
        #     next process that creates a page or opens the queue exclusively finds no marker and
        #     removes them.
        sync_names = self._sync_names if staged.is_synced else _nothing
        try:
            name = publishing_name(prefix)
            write_record(folder, name, record.as_json(), sync_names, synced=staged.is_synced)
            staged.give_names(store, record.first_page)
            sync_names()
            # M6 to M8. One store publishes all messages. Dies after it: the next process that
            #     creates a page completes the commit.
            header = page.read(0, fmt.PAGE_HEADER_BYTES)
            end._commit_pages(page, header, beyond)
        except BaseException as error:
            if store.tail.page_number > active:
                raise
            if isinstance(error, errors.SyncFailed) and store.flusher.can_resume:
                # The pages are staged again. As if this process had died, the record stays: the
                # next page, which continuing after the failed sync makes, resolves it.
                staged.take_names_back(store, record.first_page)
                return None
            with contextlib.suppress(errors.SyncFailed):  # then the record stays as well
                roll_back(folder, prefix, record, store.flusher.sync_removals)
            raise
        # M9. Write the entry. Power is cut before the flush: recovery reverts it if the marker is
        #     lost.
        with self._visible():
            write_down(folder, prefix, record)
            try:
                sync_names()
            except errors.SyncFailed:
                if not store.flusher.can_resume:
                    raise  # else the next flush continues, and puts all names on stable storage
        return sequences


class _Entry(NamedTuple):
    """The ledger's next entry of a writer."""

    writer: str
    piece: int
    before: dict[str, Any] | None

    def with_sequences(self, sequences: range) -> dict[str, Any]:
        """Return the entry's contents once this piece has these sequences."""
        return with_piece(self.before, self.writer, self.piece, sequences)


def _others_were_faster(store: Store) -> errors.LockTimeout:
    return errors.LockTimeout(
        f"other producers sent or rolled, or syncs failed, {ROOM_TRIES} times in a row",
        path=store.folder.path,
        remedy="call again",
    )


def _nothing() -> None:
    """Sync nothing: recovery checks what follows the durable mark."""


def check_no_ring(store: Store, size_bytes: int = 0) -> None:
    """Raise MessageTooLarge for messages that need pages of their own, if the queue is a ring.

    After a power cut a ring is one run of whole pages, which can begin with any page: also with
    one inside of a message, or of a commit.
    """
    if store.meta.is_ring:
        limit = fmt.payload_bytes_max(store.meta.page_bytes)
        raise errors.MessageTooLarge(
            f"a ring takes what fits into one page, which holds {limit} bytes; nothing was sent",
            path=store.folder.path,
            size_bytes=size_bytes or limit + 1,
            limit_bytes=limit,
            remedy="send less at once, make a larger ring, or give it a larger page_bytes",
        )


def refuse_at_once(
    store: Store, pages: int, timeout: float | None, check: Callable[[], None] | None
) -> None:
    """Raise QueueFull before pages are staged, for a sender that tries again until there is room.

    Args:
        store: of the queue.
        pages: how many are to be published, or some fewer.
        timeout: of this attempt, in seconds; only such a sender's is so short.
        check: raises when they are not wanted any more.
    """
    is_short = timeout is not None and timeout <= ROOM_SECONDS
    if is_short and store.limits.blocks:
        deadline = store.limits.deadline(timeout)
        store.policy.make_room(store, store.tail.page_number + pages, check, deadline)


def too_many_pages(store: Store, count: int, size_bytes: int = 0) -> errors.MessageTooLarge:
    """Return the error for messages that `max_bytes` can never hold."""
    limit_bytes = int(store.limits.pages) * store.meta.page_bytes
    return errors.MessageTooLarge(
        f"{count} pages besides the active one are needed, and max_bytes allows "
        f"{store.limits.pages:.0f} in all; nothing was sent",
        path=store.folder.path,
        size_bytes=size_bytes or count * store.meta.page_bytes,
        limit_bytes=limit_bytes,
        remedy="raise max_bytes, or send it in parts",
    )


def _joined(chunks: list[Chunk]) -> Chunk:
    """Return all chunks as one chunk of bytes objects."""
    payloads: list[bytes] = []
    for chunk in chunks:
        given = chunk.payloads
        if isinstance(given, np.ndarray):
            given = given.tolist()
        payloads += given if isinstance(given, list | tuple) else given.to_pylist()
    times = [chunk.times for chunk in chunks if chunk.times is not None]
    return chunk_of(payloads, np.concatenate(times) if times else None)


def _digest(whole: Chunk, times: NDArray[np.int64]) -> int:
    """Return a checksum of a batch's payloads, lengths and times."""
    begun = _core.crc32c(np.ascontiguousarray(times, np.int64).tobytes())
    return _core.crc32c(b"".join(whole.payloads), _core.crc32c(whole.lengths.tobytes(), begun))
