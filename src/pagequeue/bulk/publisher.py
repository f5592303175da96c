"""Publication: any number of messages, all of them or none, and once for each piece of work.

What fits into one page is one batch (I8), sent on the condition that it gets the sequence that a
record on stable storage names: whoever finds that record can tell by the messages whether it was
sent. What does not is laid down in pages beside the queue, which get their names and are published
by one store (I19). Either way ordinary producers go on; while the second kind gets its sequences
they wait, as they do for a page that is being made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.bulk.staged_pages import (
    Chunk,
    StagedPages,
    assign_sequences,
    chunk_of,
    stage,
    too_early,
)
from pagequeue.meta.ledger import (
    ENTRY,
    LOCK,
    STAGED,
    are_numbers,
    done_in,
    entry_of,
    nonsense,
    progress,
    published_name,
    publishing_name,
    read_record,
    sending_name,
    unsure,
    with_piece,
    write_record,
)
from pagequeue.page.page import map_plain
from pagequeue.receive.replay import Replay
from pagequeue.send.producer import Producer
from pagequeue.store.pending_commit import (
    Record,
    read_publishing,
    roll_back,
    settle_publishing,
    write_down,
)
from pagequeue.system.directory import FILE_MODE, Directory
from pagequeue.system.file_lock import FileLock
from pagequeue.system.trust import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.store.store import Store

TRIES: Final = 20
"""So often a batch is tried behind producers that come in between; then it takes pages."""
ROOM_TRIES: Final = 100
PAGES: Final = "pages-"
"""What the names of directories begin with in which pages are laid down."""


class BulkSource(Protocol):
    """What is to be published; `chunks` can be asked for more than once."""

    count: int
    frame_bytes: int

    def chunks(self) -> Iterator[Chunk]:
        """Give all of it in order; all chunks have times, or none."""
        ...


class BulkPublisher:
    """Publishes into one queue, one publisher at a time; close it when done.

    Args:
        store: of the queue, open for writing.

    Raises:
        LockTimeout: another one is publishing, and did not go on for too long.
        UnsafePath: the directory beside the queue is a link, or somebody else's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.folder
        self._prefix = store.prefix
        self._sync_names = store.flusher.sync_names
        self._held = contextlib.ExitStack()
        self._staged = _staged(
            store.folder.path, store.prefix, store.folder.file_mode, store.folder.trust
        )
        self._held.callback(self._staged.close)
        self.path = self._staged.path
        try:
            self._lock = self._locked()
        except BaseException:
            self._held.close()
            raise

    def _locked(self) -> FileLock:
        """Lock the file that publishers lock, and not one that had its name before."""
        while True:
            lock = FileLock(
                self._staged.open(LOCK, writable=True, make=True), self._staged.full(LOCK)
            )
            lock.progress = partial(progress, self._folder, self._prefix)
            with contextlib.ExitStack() as held:
                held.callback(lock.close)
                held.enter_context(lock.exclusive(self._store.lock_timeout, "publishing"))
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

        What a publisher left that died is settled first.

        Raises:
            CorruptMeta: the ledger is damaged.
            Expired: retention took what would have to tell, and nobody published meanwhile.
        """
        self._settle()
        entry = self._entry(writer)
        if entry is not None and "unsure" in entry and entry["unsure"][0] == piece:
            raise self._store.expired(
                f"nobody can tell whether piece {piece} of {writer!r} was published as messages "
                f"{entry['unsure'][1]} to {entry['unsure'][2] - 1} before {{head}}, now the head: "
                "look for them where they went, or publish it as another piece"
            )
        return done_in(entry, piece)

    def forget(self, writer: str) -> None:
        """Remove the entry of a writer that never comes again."""
        self._folder.remove(published_name(self._prefix, entry_of(writer)))

    def _entry(self, writer: str) -> dict[str, Any] | None:
        return read_record(self._folder, published_name(self._prefix, entry_of(writer)))

    def publish(self, writer: str, piece: int, source: BulkSource) -> range:
        """Make all of the source visible, durably, unless that was done before.

        Args:
            writer: who publishes; each has a ledger's entry of its own.
            piece: of its work, from 0 on; never an earlier one behind a later one.
            source: what is published.

        Returns:
            Its sequences.

        Raises:
            TimestampOrder: its times are not in order, or begin before the queue's last one.
            MessageTooLarge: one of its messages fits into no page.
            DiskFull, QueueFull, LockTimeout, SyncFailed: as for `Producer.send`; SyncFailed and
                NotDurable can mean that it is visible: `done` tells.

        Source: FORMAT.md, "Publishing pages"; keeps I8, I19.
        """
        known = self.done(writer, piece)
        if known is not None:
            return known
        before = self._entry(writer)
        entry = _Entry(writer, piece, before)
        store = self._store
        with _Sender(store) as producer:
            producer._record_bytes = store.schema.record_bytes  # noqa: SLF001 - its own package
            found = None
            if source.count and self._fits(source):
                found = self._send(producer, entry, source)
            if found is None:
                found = self._publish_pages(producer, entry, source)
            producer._flush_sent(found.stop)  # noqa: SLF001 - its own package
        return found

    def _fits(self, source: BulkSource) -> bool:
        meta = self._store.meta
        room = meta.page_bytes - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
        return source.frame_bytes <= room and source.count <= meta.index_capacity

    # --- one batch --------------------------------------------------------------------------------

    def _send(self, producer: _Sender, entry: _Entry, source: BulkSource) -> range | None:
        """Send one batch; None: others always came in between."""
        whole = _joined(list(source.chunks()))
        for _ in range(TRIES):
            tail = self._store.tail
            first, times = tail.sequence, whole.times
            if times is None:
                now = max(self._store.clock(), tail.last_timestamp)
                times = np.full(len(whole.payloads), now, np.int64)
            elif int(times[0]) < tail.last_timestamp:
                raise too_early(self._folder.path, int(times[0]), tail.last_timestamp)
            sequences = range(first, first + len(whole.payloads))
            # 1. The record, on stable storage. Dies here: no such messages; it is removed.
            write_record(self._folder, sending_name(self._prefix), {
                "entry": entry_of(entry.writer), **entry.with_sequences(sequences),
                "first_sequence": first, "count": len(sequences), "digest": _digest(whole, times),
            }, self._sync_names)  # fmt: skip
            # 2. The batch, at that sequence and with these times, or not at all. Dies here: the
            #    messages say that it was done.
            if producer.send_at(first, whole.payloads, times):
                # 3. The entry. Cut before the flush: recovery takes it back with the messages.
                with self._visible():
                    self._enter(sending_name(self._prefix), entry_of(entry.writer))
                return sequences
        self._folder.remove(sending_name(self._prefix))
        return None

    def _enter(self, record: str, entry: str) -> None:
        """Make a record an entry, on stable storage."""
        self._folder.rename(record, published_name(self._prefix, entry))
        self._sync_names()

    @contextlib.contextmanager
    def _visible(self) -> Iterator[None]:
        """Behind the store that publishes: no error may read as if nothing was sent."""
        try:
            yield
        except errors.NotDurable:
            raise
        except errors.RetryError as error:
            raise errors.NotDurable(
                f"published and visible, but the ledger is not on stable storage: {error}; then "
                "publish the same piece again, which sends nothing twice",
                path=self._folder.path,
            ) from error

    def _settle(self) -> None:
        """Settle what a publisher left that died; nobody else publishes now."""
        store = self._store
        for name in self._staged.names():
            if name.startswith(PAGES):
                self._drop(name)
        name = sending_name(self._prefix)
        record = self._read_sending(name)
        if record is not None:
            try:
                if self._was_sent(record):
                    self._enter(name, record["entry"])
                else:
                    self._folder.remove(name)
            except errors.Expired:  # only its own writer has to know that nobody knows
                entry = published_name(self._prefix, record["entry"])
                write_record(self._folder, entry, unsure(record), self._sync_names)
                self._folder.remove(name)
        if read_publishing(self._folder, self._prefix) is not None:
            with Producer(store) as producer, self._prepared("settling a publication"):
                self._settle_publishing(producer)
            self._sync_names()

    def _settle_publishing(self, producer: Producer) -> None:
        store = self._store
        settle_publishing(
            self._folder, self._prefix, store.meta, store.write_meta,
            producer._commit_pages, self._sync_names,  # noqa: SLF001 - its own package
        )  # fmt: skip

    def _drop(self, name: str) -> None:
        """Remove a directory in which pages were laid down; what is left the next one removes."""
        with contextlib.suppress(OSError), self._staged.descriptor as staged:
            shutil.rmtree(name, ignore_errors=True, dir_fd=staged)

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
                raise nonsense(self._folder.full(name), "no record of a batch")
        return record

    def _was_sent(self, record: dict[str, Any]) -> bool:
        """Whether the batch that a record names stands in the queue."""
        first, end = record["first_sequence"], record["first_sequence"] + record["count"]
        if end > self._store.tail.sequence:
            return False
        chunks = []
        with Replay(self._store, None, None, first, end) as replay:
            while (batch := replay._batch(fmt.READ_COUNT_MAX, 0)) is not None:  # noqa: SLF001
                chunks.append(chunk_of(batch.payloads, batch.timestamps))
        whole = _joined(chunks)
        assert whole.times is not None
        return bool(_digest(whole, whole.times) == record["digest"])

    # --- many pages -------------------------------------------------------------------------------

    def _prepared(self, doing: str) -> contextlib.AbstractContextManager[None]:
        return self._store.roller.lock.exclusive(self._store.lock_timeout, doing)

    def _publish_pages(self, producer: Producer, entry: _Entry, source: BulkSource) -> range:
        store = self._store
        if source.count == 0:
            first = store.tail.sequence
            done = entry.with_sequences(range(first, first))
            name = published_name(self._prefix, entry_of(entry.writer))
            write_record(self._folder, name, done, self._sync_names)
            return range(first, first)
        name = PAGES + uuid.uuid4().hex
        try:
            # M1. All pages, laid down beside the queue. Dies here: a directory that is removed.
            laid = stage(store, self._staged.full(name), source.chunks())
            for _ in range(ROOM_TRIES):
                if store.write_meta.failed_errno:  # not below: going on needs the preparation lock
                    store.flusher.go_on()
                first = self._first_page()
                if store.roller.make_room is not None:  # for all of it, before any of it is there
                    store.roller.make_room(first + len(laid.pages) - 1, producer._check_open)  # noqa: SLF001
                sequences = None
                try:
                    with self._prepared("publishing pages"):
                        sequences = self._publish_laid(producer, entry, laid, first)
                except errors.RetryError:
                    if sequences is None:
                        raise
                    with self._visible():  # it could not be unlocked, and was published
                        raise
                if sequences is not None:
                    break
            else:
                raise errors.LockTimeout(
                    f"other producers rolled {ROOM_TRIES} times in a row: call again",
                    path=store.folder.path,
                )
        finally:
            self._drop(name)
        if store.after_roll is not None:
            store.background.submit(store.after_roll)
        return sequences

    def _first_page(self) -> int:
        """Return the number that the first page gets, as things stand."""
        number = self._store.tail.page_number + 1
        while self._folder.exists(fmt.page_name(self._prefix, number)):
            number += 1
        return number

    def _publish_laid(
        self, producer: Producer, entry: _Entry, laid: StagedPages, first_page: int
    ) -> range | None:
        """Publish pages that were laid down; None: somebody rolled, so try again.

        The preparation lock is held: nobody makes a page, retires one, or looks for a record. For
        pages from `first_page` on there is room.
        """
        store, folder, prefix = self._store, self._folder, self._prefix
        if folder.exists(publishing_name(prefix)):  # of one who locked another file: it died
            self._settle_publishing(producer)
        laid.check_times(store)  # before a page is sealed for nothing
        # M2. No page stands behind the active one, and none can be made. Dies here: nothing did.
        active = store.tail.page_number
        while store.roller.take(active + 1):
            producer._roll_from(active)  # noqa: SLF001 - not from the next one, if others rolled
            active = store.tail.page_number
        if active + 1 > first_page:
            return None
        # M3. Nobody lays anything down in the active page any more. Dies here: it is left (I8).
        tail = producer.freeze()
        if tail is None or tail.page_number != active:
            return None
        # M4. Sequences, times and headers, now that they are known; all of it synced.
        beyond = assign_sequences(store, laid, tail, self._lock.touch)
        sequences = range(tail.sequence, beyond.sequence)
        done = entry.with_sequences(sequences)
        record = Record(
            active + 1, tail.sequence, laid.first_checksum(store), beyond, entry_of(entry.writer),
            done,
        )  # fmt: skip
        # M5. The record, then the names, synced. Dies here: whoever makes a page, or opens the
        #     queue alone, finds no mark and removes them.
        write_record(folder, publishing_name(prefix), record.as_json(), self._sync_names)
        try:
            laid.give_names(store, record.first_page)
            self._sync_names()
            name = fmt.page_name(prefix, record.first_page)
            page = map_plain(folder, name, store.meta, writable=False)
            # M6 to M8. One store publishes all of it. Dies behind it: the next one finishes.
            header = page.read(0, fmt.PAGE_HEADER_BYTES)
            producer._commit_pages(page, header, beyond)  # noqa: SLF001 - its own package
        except BaseException:
            if store.tail.page_number <= active:
                roll_back(folder, prefix, record, self._sync_names)
            raise
        # M9. The entry. Cut before the flush: recovery takes it back if it took the mark.
        with self._visible():
            write_down(folder, prefix, record)
            self._sync_names()
        return sequences


class _OvertakenError(Exception):
    """Another one has the sequence, or a later time."""


class _Sender(Producer):
    """A producer that can send on a condition."""

    __slots__ = ()

    def send_at(self, sequence: int, payloads: list[bytes], times: NDArray[np.int64]) -> bool:
        """Send a batch as the messages from a sequence on; False: nothing was sent.

        Another one has that sequence by now, or a later time.
        """
        self._only_at = sequence + 1
        try:
            self.send_many(payloads, timestamps=times)
        except _OvertakenError:
            return False
        finally:
            self._only_at = 0
        return True

    def _on_event(self, event: int, value: int) -> bool:
        if event in {_core.EVENT_CROWDED, _core.EVENT_OLD_TIMESTAMP} and self._only_at:
            raise _OvertakenError
        return super()._on_event(event, value)


class _Entry(NamedTuple):
    """The ledger's entry of a writer, as it becomes."""

    writer: str
    piece: int
    before: dict[str, Any] | None

    def with_sequences(self, sequences: range) -> dict[str, Any]:
        """Return what it says when this piece has these sequences."""
        return with_piece(self.before, self.writer, self.piece, sequences)


def staged_directory(
    path: str, prefix: str, file_mode: int = FILE_MODE, trust: frozenset[str] = NOTHING
) -> str:
    """Return the directory beside a queue in which rows and pages wait; made if need be.

    Raises:
        UnsafePath: it is a link, or somebody else's.
    """
    folder = _staged(path, prefix, file_mode, trust)
    folder.close()
    return folder.path


def _staged(path: str, prefix: str, file_mode: int, trust: frozenset[str]) -> Directory:
    staged = os.path.join(path, prefix + STAGED)
    # Not synced: a failed sync of the queue's directory would have to stop the whole queue, and a
    # power cut may take what was not committed.
    return Directory(staged, create=True, durable=False, file_mode=file_mode, trust=trust)


def _joined(chunks: list[Chunk]) -> Chunk:
    """Return all of it as one chunk of bytes objects."""
    payloads: list[bytes] = []
    for chunk in chunks:
        given = chunk.payloads
        payloads += given if isinstance(given, list) else given.to_pylist()
    times = [chunk.times for chunk in chunks if chunk.times is not None]
    return chunk_of(payloads, np.concatenate(times) if times else None)


def _digest(whole: Chunk, times: NDArray[np.int64]) -> int:
    """Return what tells this batch from others that could stand in its place."""
    begun = _core.crc32c(np.ascontiguousarray(times, np.int64).tobytes())
    return _core.crc32c(b"".join(whole.payloads), _core.crc32c(whole.lengths.tobytes(), begun))
