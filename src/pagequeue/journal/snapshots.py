"""Snapshots of a journal: each is a queue in a separate directory, named by its sequence.

Committed by one rename, after the log up to it is on stable storage; never loaded when it lies
beyond the tail (I22): a power cut can otherwise bring back a snapshot of entries that it took, and
the entries that get their sequences later would be missing from the state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.columns.inputs import bytes_of
from pagequeue.meta.all_meta import read_all_meta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.queue.queue import Queue
from pagequeue.receive.replay import Replay
from pagequeue.system.directory import Directory
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.tree import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pagequeue.journal.machine import Machine
    from pagequeue.producer.producer import Producer
    from pagequeue.store.store import Store
    from pagequeue.util.literals import Trusted

FORMAT: Final = 1
TEMPORARY: Final = "tmp-"
HEAD, CHUNK, PART, END = b"H", b"C", b"P", b"E"
"""What a message of a snapshot begins with: the head, a chunk or its last part, a part that others
follow, the end."""
PIECE_BYTES: Final = 1 << 20
"""A longer chunk is stored in parts."""
BATCH_BYTES: Final = 256 << 10
PAGE_BYTES_MAX: Final = 4 << 20
"""A snapshot that does not fit into one page of this size has several."""
DIGEST_BYTES: Final = 32


class SnapshotGone(Exception):
    """Compaction removed the snapshot while it was read."""


@dataclass(frozen=True)
class SnapshotInfo:
    """What a snapshot's head tells.

    Attributes:
        sequence: of the first entry that it does not include.
        machine_version: of the machine that wrote it.
        created: ns since 1970, UTC.
        bytes: of its frames and page headers.
        path: of its directory.

    Example:
        >>> report = journal.compact()
        >>> journal.snapshots()[0].sequence
        1000
    """

    sequence: int
    machine_version: int
    created: int
    bytes: int
    path: str


class SnapshotQueue(Queue[Any]):
    """The queue of one snapshot, opened in the open directory that has them.

    Args:
        folder: that directory.
        name: of the snapshot's directory.
        options: as for `Queue`.
    """

    def __init__(self, folder: Directory, name: str, **options: Any) -> None:  # noqa: ANN401 - as they are
        self._within = folder
        super().__init__(folder.full(name), **options)


class Snapshots:
    """The snapshots of one journal.

    Args:
        store: of the entries.
        trust: accepted risks, as for `Queue`.

    Attributes:
        path: of the directory that has them.
        folder: the open directory; None: it does not exist, and may not be created.
    """

    def __init__(self, store: Store, trust: Trusted) -> None:
        self._store = store
        self._trust = trust
        self.path: str = store.folder.full(fmt.journal_name(store.prefix))
        self.folder: Directory | None = None
        with contextlib.suppress(errors.QueueNotFound):
            self.folder = Directory(
                self.path,
                create=not store.read_only,
                read_only=store.read_only,
                file_mode=store.folder.file_mode,
                trust=store.folder.trust,
                within=store.folder,
            )

    def close(self) -> None:
        """Close the directory."""
        if self.folder is not None:
            self.folder.close()

    def sequences(self) -> list[int]:
        """Return the sequences of all snapshots that have their names, newest first."""
        if self.folder is None:
            return []
        found = map(fmt.JOURNAL_SNAPSHOT.fullmatch, self.folder.names())
        return sorted((int(match[1]) for match in found if match is not None), reverse=True)

    def _name(self, sequence: int) -> str:
        return f"snapshot-{sequence:020}"

    def full(self, sequence: int) -> str:
        """Return the path of a snapshot's directory."""
        return os.path.join(self.path, self._name(sequence))

    # --- reading ----------------------------------------------------------------------------------

    def load(self, sequence: int, machine: Machine[Any]) -> Any:  # noqa: ANN401 - the machine's state
        """Return the state that a snapshot has.

        Raises:
            CorruptSnapshot, CorruptFrame, CorruptMeta, MissingPage: it is damaged, another queue's,
                or lies beyond the tail.
            NewerFormat: a later version of the machine wrote it.
            SnapshotGone: compaction removed it meanwhile.
        """
        with self._reading(sequence) as (queue, head):
            version = head["machine"]
            if version > machine.version:
                raise errors.NewerFormat(
                    f"written by version {version} of the machine, this is {machine.version}",
                    path=self.full(sequence),
                    version=version,
                    remedy="upgrade the program",
                )
            chunks = self._chunks(queue, sequence)
            try:
                state = machine.load(chunks, version)
            except errors.DamageError:
                raise
            except Exception as error:
                for _ in chunks:  # damage is found at the end, and explains it
                    pass
                error.add_note(f"while the machine loaded {self.full(sequence)}")
                raise
            for _ in chunks:  # a machine need not read to the end, where the digest is
                pass
            return state

    def check(self, sequence: int) -> None:
        """Read a snapshot to its end; raise what `load` raises for a damaged one."""
        with self._reading(sequence) as (queue, _):
            for _ in self._chunks(queue, sequence):
                pass

    def info(self, sequence: int) -> SnapshotInfo:
        """Return what a snapshot's head tells; raise what `load` raises."""
        with self._reading(sequence) as (queue, head):
            return SnapshotInfo(
                sequence,
                head["machine"],
                head["created"],
                queue.info().used_bytes,
                self.full(sequence),
            )

    @contextlib.contextmanager
    def _reading(self, sequence: int) -> Iterator[tuple[Queue, dict[str, Any]]]:
        """Open a snapshot and check its head."""
        name = self._name(sequence)
        assert self.folder is not None
        folder, trust = self.folder, self._trust
        try:
            if not self._store.read_only and not _is_recovered(folder, name):
                # After a power cut, and in a copy: recover it, as every queue.
                SnapshotQueue(folder, name, create=False, trust=trust).close()
            with SnapshotQueue(folder, name, create=False, read_only=True, trust=trust) as queue:
                yield queue, self._head(queue, sequence)
        except (errors.DamageError, errors.AccessError) as error:
            self._store.folder.check()
            if isinstance(error, errors.QueueReplaced) or not folder.exists(name):
                raise SnapshotGone from error
            if isinstance(error, errors.AccessError):
                raise self._corrupt(sequence, error.problem) from error
            raise

    def _head(self, queue: Queue, sequence: int) -> dict[str, Any]:
        first = next(iter(queue.replay()), None)
        if first is None or first.payload[:1] != HEAD:
            raise self._corrupt(sequence, "no head")
        try:
            head = json.loads(first.payload[1:])
            found = {name: head[name] for name in ("format", "queue", "sequence", "machine")}
            created, last = head["created"], head["last"]
            is_right = all(isinstance(found[name], int) for name in ("format", "sequence"))
            is_right &= isinstance(found["machine"], int) and isinstance(created, int)
            is_right &= last is None or (isinstance(last, list) and len(last) == 2)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._corrupt(sequence, "its head is not readable") from error
        if not is_right:
            raise self._corrupt(sequence, "its head is not readable")
        if found["format"] > FORMAT:
            raise errors.NewerFormat(
                f"a snapshot of format {found['format']}, this is {FORMAT}",
                path=self.full(sequence),
                version=found["format"],
                remedy="upgrade pagequeue",
            )
        if found["queue"] not in self._store.meta.ids:
            raise self._corrupt(sequence, "of another queue")
        if found["sequence"] != sequence:
            raise self._corrupt(sequence, f"of sequence {found['sequence']}")
        self._check_place(sequence, last)
        return head  # type: ignore[no-any-return]

    def _check_place(self, sequence: int, last: list[int] | None) -> None:
        """Raise unless the log has the entries that the snapshot includes (I22)."""
        tail = self._store.tail.sequence
        if sequence > tail:
            raise self._corrupt(sequence, f"beyond the tail, {tail}")
        found = last_entry(self._store, sequence)  # None: the log begins after it
        if last is not None and found is not None and last != found:
            raise self._corrupt(sequence, f"the log has another entry {sequence - 1}")

    def _chunks(self, queue: Queue, sequence: int) -> Iterator[bytes]:
        """Yield the chunks; raise at the end if they are not those that were written."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        parts: list[bytes] = []
        count = 0
        end = None
        for batch in queue.batches():
            for payload in batch.payloads:
                if end is not None:
                    raise self._corrupt(sequence, "continues after its end")
                kind = payload[:1]
                if kind == END:
                    end = payload[1:]
                    continue
                _add(digest, payload)
                if kind == HEAD and not count and not parts:
                    continue
                if kind not in {CHUNK, PART}:
                    raise self._corrupt(sequence, f"an unknown message {kind!r}")
                parts.append(payload[1:])
                if kind == CHUNK:
                    yield parts[0] if len(parts) == 1 else b"".join(parts)
                    parts.clear()
                    count += 1
        if end is None or parts:
            raise self._corrupt(sequence, "ends early")
        if not self._is_digest(end, digest.digest()):
            raise self._corrupt(sequence, "its digest is wrong")

    @staticmethod
    def _is_digest(stored: bytes, computed: bytes) -> bool:
        return stored == computed

    def _corrupt(self, sequence: int, reason: str) -> errors.CorruptSnapshot:
        return errors.CorruptSnapshot(
            f"snapshot {sequence} is not usable ({reason})",
            path=self.full(sequence),
            position=0,
            reason=reason,
            sequence=sequence,
            remedy="compact the journal, which writes another one and removes this",
        )

    # --- writing ----------------------------------------------------------------------------------

    def write(self, sequence: int, machine: Machine[Any], state: Any) -> int:  # noqa: ANN401 - the machine's state
        """Write a snapshot; return its bytes. The log below the sequence is on stable storage.

        Dies in between: a directory without a snapshot's name, which `sweep` removes.

        Raises:
            DiskFull, SystemLimit, SyncFailed: it could not be written; no file is left.
        """
        assert self.folder is not None
        folder, store = self.folder, self._store
        name = f"{TEMPORARY}{uuid.uuid4().hex}"
        head = {
            "format": FORMAT,
            "queue": store.meta.queue_id.hex(),
            "sequence": sequence,
            "machine": machine.version,
            "created": store.clock(),
            "last": last_entry(store, sequence),
        }
        try:
            written = self._write(folder, name, head, machine.dump(state))
            self._commit(folder, name, sequence)
        except BaseException:
            self._remove(name)
            raise
        return written

    def _write(
        self, folder: Directory, name: str, head: dict[str, Any], chunks: Iterable[bytes]
    ) -> int:
        store = self._store
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        pieces = _pieces(chunks)
        begun, needed = [HEAD + json.dumps(head).encode()], 0
        for piece in pieces:
            begun.append(piece)
            needed += fmt.frame_bytes(len(piece))
            if needed > PAGE_BYTES_MAX // 2 or len(begun) > PAGE_BYTES_MAX // 64:
                break
        needed = max(2 * needed, 64 * len(begun)) + 2 * fmt.PAGE_BYTES_STEP
        page_bytes = min(-(-needed // fmt.PAGE_BYTES_STEP) * fmt.PAGE_BYTES_STEP, PAGE_BYTES_MAX)
        total = 0
        with (
            SnapshotQueue(
                folder,
                name,
                page_bytes=page_bytes,
                file_mode=store.folder.file_mode,
                trust=self._trust,
                lock_timeout=store.lock_timeout,
                clock=store.clock,
            ) as queue,
            queue.producer() as producer,
        ):
            batch: list[bytes] = []
            batch_bytes = 0
            for piece in chain(begun, pieces):
                _add(digest, piece)
                batch.append(piece)
                batch_bytes += fmt.frame_bytes(len(piece))
                if batch_bytes > BATCH_BYTES or len(batch) >= page_bytes // 256:
                    _send(producer, batch)
                    total += batch_bytes
                    batch, batch_bytes = [], 0
            _send(producer, [*batch, END + digest.digest()])
            producer.flush()
        return total + batch_bytes

    def _commit(self, folder: Directory, name: str, sequence: int) -> None:
        """Give a whole snapshot its name, durably (I22)."""
        final = self._name(sequence)
        if folder.exists(final):  # a damaged one
            self._remove(final)
        folder.rename(name, final)
        try:
            folder.sync()
        except OSError as error:
            # The next sync can succeed without the name: the next compaction writes it again.
            self._remove(final)
            raise_typed(error, self.path, "syncing the directory")

    def remove(self, sequence: int) -> None:
        """Remove a snapshot; a process that reads it finds it gone, or reads it to its end."""
        self._remove(self._name(sequence))

    def _remove(self, name: str) -> None:
        """Remove a directory; first it loses its name, so that no process finds half of it."""
        assert self.folder is not None
        gone = f"{TEMPORARY}{uuid.uuid4().hex}"
        with contextlib.suppress(errors.QueueNotFound):
            self.folder.rename(name, gone)
        self._erase(gone)

    def _erase(self, name: str) -> None:
        """Remove what has a temporary name: a directory, or whatever was put in its place."""
        assert self.folder is not None
        with self.folder.descriptor as fd:
            remove_tree(name, fd)

    def sweep(self) -> None:
        """Remove what interrupted compactions left; only the one compactor calls this."""
        assert self.folder is not None
        for name in self.folder.names():
            if name.startswith(TEMPORARY):
                self._erase(name)


def last_entry(store: Store, sequence: int) -> list[int] | None:
    """Return time and checksum of the entry before a sequence; None: the log does not have it."""
    if sequence == 0 or sequence - 1 < store.read_meta.head_sequence:
        return None
    try:
        with Replay(store, None, None, sequence - 1, sequence) as entries:
            message = next(entries)
    except errors.Expired:
        return None
    return [message.timestamp, _core.crc32c(message.payload)]


def _is_recovered(journal: Directory, name: str) -> bool:
    """Whether a snapshot can be read as it is: it was written in this boot, in this very place."""
    folder = Directory(
        journal.full(name), create=False, read_only=True, trust=journal.trust, within=journal
    )
    try:
        meta = read_all_meta(folder, "queue")
        write = WriteMeta(folder, "queue", meta.queue_id, writable=False)
        return write.is_recovered
    finally:
        folder.close()


def _add(digest: Any, payload: bytes) -> None:  # noqa: ANN401 - hashlib has no name for it
    digest.update(len(payload).to_bytes(4, "little"))
    digest.update(payload)


def _send(producer: Producer, batch: list[bytes]) -> None:
    if batch:
        producer.send_many(batch)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        view = bytes_of(chunk)
        begin = 0
        while len(view) - begin > PIECE_BYTES:
            yield PART + view[begin : begin + PIECE_BYTES]
            begin += PIECE_BYTES
        yield CHUNK + view[begin:]
