"""The ledger: the published work of writers that may retry, stored next to the messages.

A writer that can die and repeat its work (a Spark query, for example) names each piece of work. The
publisher of a piece first writes a record of it, and afterwards its entry. An entry lists completed
work; a record that is found was begun, and the pages or frames show whether it was completed. After
a power cut an entry can be there without its messages: recovery removes pieces past the tail, as it
lowers cursors.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from pagequeue import _core, errors
from pagequeue.format import SEQUENCE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.system.directory import Directory

VERSION: Final = 1
BYTES_MAX: Final = 1 << 20
ENTRY: Final = re.compile(r"[0-9a-f]{32}")
STAGED: Final = "-staged"
"""Suffix after the prefix: the directory in the queue's directory that holds staged rows and pages.
"""
LOCK: Final = "lock"
"""In that directory: the lock file of publishers."""
QUEUE: Final = "queue"
"""In an entry or a record: the id of the queue, in hexadecimal."""
DROPPED: Final = "dropped"
"""In an entry: one past the highest piece that it does not list any more."""
KEPT: Final = 16
"""How many pieces of work an entry keeps: a writer repeats its last one, or after a power cut a few
before it."""


def publishing_name(prefix: str) -> str:
    """Return the name of the record of pages that are being published."""
    return f"{prefix}-publishing"


def sending_name(prefix: str) -> str:
    """Return the name of the record of a batch that is being sent."""
    return f"{prefix}-sending"


def published_name(prefix: str, entry: str) -> str:
    """Return the name of a ledger's entry: one writer's completed work."""
    return f"{prefix}-published.{entry}"


def progress(folder: Directory, prefix: str) -> int:
    """Return the progress of an active publisher, as the time of its lock in ns; 0: none."""
    return lock_times(folder, prefix)[0]


def lock_times(folder: Directory, prefix: str) -> tuple[int, int]:
    """Return when the publishers' lock was modified and accessed, in ns; 0: unknown.

    It is modified while its holder assigns sequences, for which all producers wait; it is accessed
    while the holder waits for room, which only delays other publishers.
    """
    try:
        status = folder.status(f"{prefix}{STAGED}/{LOCK}")
    except errors.PageQueueError:  # inaccessible: then waits are not extended for it
        return 0, 0
    return (0, 0) if status is None else (status.st_mtime_ns, status.st_atime_ns)


def entry_of(name: str) -> str:
    """Return the name of a writer's entry."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def read_record(
    folder: Directory, name: str, queue_id: bytes | None = None
) -> dict[str, Any] | None:
    """Return a decoded record or entry; None: it is missing.

    Args:
        folder: of the queue.
        name: of the record.
        queue_id: of the queue; None: the one that the directory is known to have.

    Raises:
        CorruptMeta: it is damaged, or of another queue.
        NewerFormat: a newer version wrote it.
    """
    if not folder.exists(name):
        return None
    try:
        data = folder.read(name, BYTES_MAX)
    except errors.QueueNotFound:
        return None  # another process resolved it
    path = folder.full(name)
    text = data[8:]
    try:
        # Bytes after it were appended by others; a writer's text is ASCII, a byte a character.
        record, end = json.JSONDecoder().raw_decode(text.decode("latin-1"))
        record = record if int(data[:8], 16) == _core.crc32c(text[:end]) else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise nonsense(path, "wrong checksum")
    if record.get("version") != VERSION:
        raise errors.NewerFormat(
            f"written in version {record.get('version')}, this is {VERSION}",
            path=path,
            version=_number(record.get("version")),
            remedy="upgrade pagequeue",
        )
    own = folder.queue_id if queue_id is None else queue_id.hex()
    if own is not None and record.get(QUEUE, own) != own:  # before, records did not name it
        raise nonsense(path, "another queue's")
    if not are_numbers([record.get(DROPPED, 0)]):
        raise nonsense(path, "no entry of a writer")
    pieces = [record.get("unsure", [0, 0, 0]), *_list(record.get("done"))]
    if not isinstance(record.get("writer"), str) or not all(map(_is_piece, pieces)):
        raise nonsense(path, "no entry of a writer")
    return record


def nonsense(path: str, reason: str) -> errors.CorruptMeta:
    """Return the error for an invalid record or entry."""
    return errors.CorruptMeta(
        "invalid record of a writer",
        path=path,
        position=0,
        reason=reason,
        remedy="repair the queue, which removes it; search by hand for what its writer published "
        "last",
    )


def are_numbers(numbers: object, least: int = 0, most: int = SEQUENCE_MAX) -> TypeGuard[list[int]]:
    """Whether this is a list of integers between two others, both included."""
    return isinstance(numbers, list) and all(
        type(number) is int and least <= number <= most for number in numbers
    )


def _is_piece(piece: object) -> bool:
    """Whether this is a piece of work with its sequences."""
    return are_numbers(piece) and len(piece) == 3 and piece[1] <= piece[2]


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else [None]


def _number(found: object) -> int:
    return found if isinstance(found, int) else 0


def write_record(
    folder: Directory,
    name: str,
    record: dict[str, Any],
    sync: Callable[[], None] | None = None,
    *,
    synced: bool = True,
) -> None:
    """Put a record or an entry on stable storage, with its name, in place of the one before.

    Args:
        folder: of the queue.
        name: of the record.
        record: its contents.
        sync: puts the directory's entries on stable storage, and latches the queue if that
            fails; None: recovery calls this, and is repeated after a failure.
        synced: whether its contents must be on stable storage; if not, only a kill leaves it whole.

    Raises:
        DiskFull, SystemLimit: the one before stays. What `sync` raises.
    """
    own = {} if folder.queue_id is None else {QUEUE: folder.queue_id}
    text = json.dumps({"version": VERSION, **record, **own}, sort_keys=True).encode()
    data = f"{_core.crc32c(text):08x}".encode() + text
    folder.make(name, data, size_bytes=len(data), synced=synced)
    (sync or folder.sync_entries)()


def done_in(entry: dict[str, Any] | None, piece: int) -> range | None:
    """Return the sequences of a completed piece of work; None: it is not completed.

    Pieces up to the highest that the entry does not list any more are completed, at unknown
    sequences.
    """
    if entry is None:
        return None
    for done, first, end in entry["done"]:
        if done == piece:
            return range(first, end)
    return range(0) if piece < _begin(entry) else None


def is_entered(folder: Directory, prefix: str, entry: str, done: list[Any]) -> bool:
    """Whether an entry has the last of these pieces: then a record of it is of no use any more.

    A failed sync can have dropped the rename of the record. Then a power cut brings it back, when
    the entry can list later pieces, which renaming the record would forget.
    """
    try:
        known = read_record(folder, published_name(prefix, entry))
    except errors.PageQueueError:
        return False  # it is replaced
    return done_in(known, done[-1][0]) is not None


def _begin(entry: dict[str, Any]) -> int:
    """Return the lowest piece of which an entry tells that it is not completed."""
    if DROPPED in entry:
        return int(entry[DROPPED])
    # Written before entries had that: pieces never decreased.
    return min((int(done) for done, _, _ in entry["done"]), default=0)


def with_piece(
    entry: dict[str, Any] | None, writer: str, piece: int, sequences: range
) -> dict[str, Any]:
    """Return an entry with one more completed piece of work."""
    before = [] if entry is None else entry["done"]
    begin = 0 if entry is None else _begin(entry)
    done = [*before, [piece, sequences.start, sequences.stop]]
    begin = max([begin, *(number + 1 for number, _, _ in done[:-KEPT])])
    return {"writer": writer, "done": done[-KEPT:], DROPPED: begin}


def unsure(record: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a record whose completion cannot be determined any more."""
    *done, last = record["done"]
    return {"writer": record["writer"], "done": done, "unsure": last, DROPPED: _begin(record)}


def damaged(folder: Directory, prefix: str, queue_id: bytes) -> dict[str, errors.CorruptMeta]:
    """Return the errors of invalid entries, and of a batch's record, by their names."""
    pattern = re.compile(re.escape(published_name(prefix, "")) + r"[0-9a-f]{32}")
    found = {}
    for name in sorted(folder.names()):
        if name == sending_name(prefix) or pattern.fullmatch(name):
            try:
                read_record(folder, name, queue_id)
            except errors.CorruptMeta as error:
                found[name] = error
            except errors.PageQueueError:
                continue  # inaccessible, so its contents are unknown
    return found


def renew_records(folder: Directory, prefix: str) -> None:
    """Write entries and a batch's record to new files, so that the next sync includes their names.

    A failed sync can have dropped the name of the record, or the rename that made it an entry. The
    caller has the preparation lock, under which both are written.
    """
    begin = published_name(prefix, "")
    for name in folder.names():
        is_entry = name.startswith(begin) and ENTRY.fullmatch(name, len(begin))
        if is_entry or name == sending_name(prefix):
            try:
                data = folder.read(name, BYTES_MAX)
            except (errors.QueueNotFound, errors.AccessError):
                continue  # it was removed meanwhile, or verify reports it
            folder.make(name, data, size_bytes=max(len(data), 1), maker="again", synced=True)


def lower_entries(
    folder: Directory,
    prefix: str,
    tail_sequence: int,
    did: Callable[[str], None],
    names: list[str],
) -> None:
    """Remove pieces past the tail, which a power cut took; only with the queue locked.

    The names of all files are given.
    """
    begin = published_name(prefix, "")
    for name in sorted(name for name in names if name.startswith(begin)):
        if not ENTRY.fullmatch(name, len(begin)):
            continue
        try:
            entry = read_record(folder, name)
        except errors.CorruptMeta:
            continue  # a publisher that needs it gets the error
        if entry is None:
            continue
        kept = [piece for piece in entry["done"] if piece[2] <= tail_sequence]
        if len(kept) < len(entry["done"]):
            write_record(folder, name, {**entry, "done": kept})
            did(f"removed the work after the tail from {name}")
