"""The file of a group: its table of claims, mapped by every handle, and its snapshots.

The table is shared memory: it survives every kill, and is trusted only within the boot, the mount
and the file that it was made in. After a power cut the floor (one word, as in every cursor) and the
last synced snapshot are used. Neither is ever ahead of the true state, so messages acknowledged
later are redelivered, and no unacknowledged message is skipped (I14).

Snapshots alternate between two places. The one on stable storage is never overwritten, so a death
or a power cut during a write leaves it whole.

A full table is doubled: the file gets another part, with as many records and two larger places for
snapshots; what there is stays where it is. A handle maps the file as it can become, beyond its end,
so it has the new part as soon as that exists.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.cursor import REMEDY, readable_cursors
from pagequeue.meta.meta_file import check_shared, field_of, identity_record, map_shared
from pagequeue.meta.write_meta import check_lock_abi, lock_key_of
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.retry import BACKOFF
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pagequeue.system.directory import Directory

log: logging.Logger = logging.getLogger("pagequeue")
KEY_AT: Final = field_of(fmt.GROUP_META, "table_boot")
KEY_BYTES: Final = field_of(fmt.GROUP_META, "lock_abi") - KEY_AT


@dataclass(frozen=True)
class Waiting:
    """A claimed and unacknowledged message, as stored in a snapshot."""

    sequence: int
    due: int = 0  # ns since 1970, UTC
    deliveries: int = 1
    cause: int = fmt.CAUSE_NONE


@dataclass(frozen=True)
class Snapshot:
    """The state of a group at one time.

    Attributes:
        new_sequence: the first message that was never claimed.
        waiting: those below it that are not acknowledged, in order.
        ordinal: number of the snapshot; 0 = made from the floor.
    """

    new_sequence: int
    waiting: list[Waiting] = field(default_factory=list)
    ordinal: int = 0

    @property
    def floor(self) -> int:
        """Every message below it is acknowledged."""
        return self.waiting[0].sequence if self.waiting else self.new_sequence

    def within(self, floor: int, tail: int) -> Snapshot:
        """Return the same without messages below the floor or from the tail on."""
        new = min(max(self.new_sequence, floor), tail)
        kept = [one for one in self.waiting if floor <= one.sequence < new]
        return Snapshot(new, kept, self.ordinal)


def encode_snapshot(ordinal: int, new_sequence: int, records: bytes) -> bytes:
    """Return the bytes of a snapshot."""
    header = np.zeros(1, fmt.SNAPSHOT)
    header["magic"] = np.void(fmt.SNAPSHOT_MAGIC)
    header["ordinal"] = ordinal
    header["count"] = len(records) // fmt.SNAPSHOT_RECORD.itemsize
    header["new_sequence"] = new_sequence
    header["checksum"] = _core.crc32c(header.tobytes() + records)
    return header.tobytes() + records


def decode_snapshot(data: bytes) -> Snapshot | None:
    """Return the decoded snapshot; None: it is invalid or incomplete."""
    if len(data) < fmt.SNAPSHOT.itemsize:
        return None
    header = np.frombuffer(data, fmt.SNAPSHOT, 1).copy()
    found = int(header["checksum"][0])
    header["checksum"] = 0
    end = fmt.SNAPSHOT.itemsize + int(header["count"][0]) * fmt.SNAPSHOT_RECORD.itemsize
    records = data[fmt.SNAPSHOT.itemsize : end]
    if (
        header["magic"][0].tobytes() != fmt.SNAPSHOT_MAGIC
        or end > len(data)
        or _core.crc32c(header.tobytes() + records) != found
    ):
        return None
    rows = np.frombuffer(records, fmt.SNAPSHOT_RECORD)
    waiting = [
        Waiting(int(row["sequence"]), int(row["due"]), int(row["deliveries"]), int(row["cause"]))
        for row in rows
    ]
    return Snapshot(int(header["new_sequence"][0]), waiting, int(header["ordinal"][0]))


def encode_waiting(waiting: list[Waiting]) -> bytes:
    """Return the records of a snapshot."""
    rows = np.zeros(len(waiting), fmt.SNAPSHOT_RECORD)
    for row, one in zip(rows, waiting, strict=True):
        row["sequence"], row["due"] = one.sequence, one.due
        row["deliveries"], row["cause"] = one.deliveries, one.cause
    return rows.tobytes()


def _word(name: str) -> int:
    return field_of(fmt.GROUP_META, name)


class GroupTable:
    """The file of one group, mapped as a whole.

    Args:
        folder: of the queue.
        prefix: of its file names.
        queue_id: of the queue.
        name: of the group.
        writable: whether it is mapped for writing.
        grows: whether it is mapped beyond its end, for a handle that stays open.

    Raises:
        QueueNotFound: neither a consumer nor a group has this name.
        UsageError: a consumer has this name.
        CorruptMeta: it is damaged, or another queue's.
        NewerFormat, UnsafePath, AccessDenied: opening it failed.
    """

    NEXT: Final = _word("next_sequence")
    GROWN: Final = _word("grown")
    LIMIT: Final = _word("limit")
    CAPACITY: Final = _word("capacity")
    LOCK_ABI: Final = _word("lock_abi")
    OPENED: Final = _word("opened")
    OUTSTANDING: Final = _word("outstanding")
    OWNER: Final = _word("owner")
    TURN: Final = _word("turn")
    SNAPSHOT: Final = _word("snapshot")
    DEAD_LETTERS: Final = _word("dead_letters")
    MISSED: Final = _word("missed")
    KIND: Final = _word("kind")

    region: _core.Region
    inode: int

    def __init__(
        self,
        folder: Directory,
        prefix: str,
        queue_id: bytes,
        name: str,
        *,
        writable: bool,
        grows: bool = False,
    ) -> None:
        self._folder, self._file_name = folder, fmt.cursor_name(prefix, name)
        self.name = name
        self.path: str = folder.full(self._file_name)
        status = folder.status(self._file_name)
        size_bytes = fmt.GROUP_TABLE_AT if status is None else status.st_size
        if size_bytes == fmt.CURSOR_META_BYTES:
            raise errors.UsageError(
                f"{name!r} is a consumer, not a group", path=self.path, remedy="choose another name"
            )
        if not fmt.GROUP_TABLE_AT <= size_bytes <= fmt.PAGE_BYTES_MAX:
            raise self.corrupt(0, f"{size_bytes} bytes, which no group has")
        found, _ = self._mapped(fmt.GROUP_TABLE_AT, writable=False)
        check_shared(found, fmt.GROUP_META, fmt.CURSOR_MAGIC, queue_id, self.path, name)
        if found.load_half(self.KIND) != fmt.CURSOR_OF_GROUP:
            raise self.corrupt(self.KIND, "not the file of a group")
        first, grown = found.load_half(self.CAPACITY), found.load_half(self.GROWN)
        if not 0 < first <= fmt.GROUP_CAPACITY_MAX:
            raise self.corrupt(self.CAPACITY, f"an invalid capacity of {first}")
        most = fmt.group_grown_max(first)
        if grown > most:
            raise self.corrupt(self.GROWN, f"doubled {grown} times, which is too often")
        needed = fmt.group_bytes(first, grown)
        if needed > size_bytes:  # what is appended is ignored
            raise self.corrupt(self.CAPACITY, f"an invalid capacity of {first << grown}")
        self.first: int = first
        self._grown_max = most if grows else grown
        mapped_bytes = fmt.group_bytes(first, self._grown_max)
        try:
            self.region, self.inode = self._mapped(mapped_bytes, needed, writable=writable)
        except errors.SystemLimit:  # of the address space
            if mapped_bytes == needed:
                raise
            self._grown_max = grown
            self.region, self.inode = self._mapped(needed, writable=writable)

    def _mapped(
        self, mapped_bytes: int, needed_bytes: int = 0, *, writable: bool
    ) -> tuple[_core.Region, int]:
        region, (_, inode) = map_shared(
            self._folder,
            self._file_name,
            size_bytes=mapped_bytes,
            needed_bytes=needed_bytes or mapped_bytes,
            writable=writable,
            doing="mapping the group",
        )
        region.on_lost = partial(self.corrupt, reason="truncated while it was open")
        return region, inode

    @property
    def grown(self) -> int:
        """How often the table was doubled; what is not in the map is left out."""
        return min(self.region.load_half(self.GROWN), self._grown_max)

    @property
    def capacity(self) -> int:
        """Records in the table."""
        return self.first << self.grown

    @property
    def size_bytes(self) -> int:
        """Bytes that the file has; more are ignored."""
        return fmt.group_bytes(self.first, self.grown)

    def is_appended(self, size_bytes: int) -> bool:
        """Whether a file of this size has more than its parts, and than a growth has reserved."""
        more = size_bytes - self.size_bytes
        part = fmt.group_bytes(self.first, self.grown + 1) - self.size_bytes
        return more > 0 and (more > part or more % fmt.GROUP_TABLE_AT > 0)

    @property
    def limit(self) -> int:
        """Messages that can be claimed or wait at a time."""
        limit = self.region.load_half(self.LIMIT) or fmt.GROUP_CAPACITY_MAX
        return min(limit, fmt.GROUP_CAPACITY_MAX)

    def grow(self, seen: int) -> bool:
        """Double the table, unless it has more records than were seen; whether it has more then.

        The caller has the lock to flush.

        Raises:
            DiskFull: there is no room for that. AccessDenied: it is not allowed.
            SystemLimit: it is not allowed, or more is not in the map.
        """
        if self.capacity > seen:
            return True  # another process did it
        if self.capacity >= self.limit or self.grown == fmt.group_grown_max(self.first):
            return False
        if self.grown == self._grown_max:
            raise errors.SystemLimit(
                "the group's table cannot grow, because the address space of this process is "
                "limited",
                path=self.path,
                remedy="raise the limit (`ulimit -v`), then open the group again",
            )
        begin, end = self.size_bytes, fmt.group_bytes(self.first, self.grown + 1)
        try:
            with self._folder.opened(self._file_name, writable=True) as fd:
                # G1. Give the file another part, of zeros, on stable storage. Dies or is cut here:
                #     appended bytes, which are ignored.
                os.ftruncate(fd, begin)
                os.posix_fallocate(fd, begin, end - begin)
                os.fdatasync(fd)
        except OSError as error:
            raise_typed(error, self.path, "making the group's table larger")
        # G2. Every process has the part when it takes the group's lock next.
        self.region.store_half(self.GROWN, self.grown + 1)
        return True

    def records(self) -> NDArray[np.void]:
        """Return a copy of all records that were ever used."""
        left = min(self.region.load_half(_word("used")), self.capacity)
        found = []
        for part in range(self.grown + 1):
            count = min(left, self.first << part >> (part > 0))
            at = fmt.group_part_at(self.first, part)
            found.append(np.frombuffer(memoryview(self.region), fmt.GROUP_RECORD, count, at))
            left -= count
        return np.concatenate(found)

    def corrupt(self, position: int, reason: str) -> errors.CorruptMeta:
        """Return the error for an invalid file."""
        return errors.CorruptMeta(
            f"group: {reason}", path=self.path, position=position, reason=reason, remedy=REMEDY
        )

    @property
    def is_trusted(self) -> bool:
        """Whether the table was made in this boot, through this mount, in this very file."""
        key = self.region.read(KEY_AT, KEY_BYTES)
        return key == lock_key_of(self._folder, self.inode)

    @property
    def is_unfinished(self) -> bool:
        """Whether the file's maker died before it could be used."""
        return not any(self.region.read(KEY_AT, KEY_BYTES))

    @property
    def is_this_boot(self) -> bool:
        """Like `is_trusted`, but through any mount, a container's for example."""
        key = self.region.read(KEY_AT, KEY_BYTES)[:24]
        return key == lock_key_of(self._folder, self.inode)[:24]

    def check_usable(self) -> None:
        """Raise if the table is not of this boot, or its lock of another C library."""
        if not self.is_this_boot:
            raise self.corrupt(KEY_AT, "put there while the queue was open: close it first")
        check_lock_abi(self.region.load_half(self.LOCK_ABI), self.path)

    def reset(self) -> None:
        """Recreate the lock and end every lease; only while the group is open nowhere.

        What was claimed waits by the rule of the next handle, which finds that its owner is dead.
        """
        _core.reset_group(self.region, self.first)
        self.region.store_half(self.LOCK_ABI, _core.LOCK_ABI)
        # Dies or is cut before this line: the next opener recreates the file.
        self.region.write(KEY_AT, lock_key_of(self._folder, self.inode))

    def read_state(
        self, monotonic: int, backoff: tuple[float, float] = BACKOFF
    ) -> tuple[int, tuple[int, int, int]]:
        """Return the next new message, and how many are claimed, wait for redelivery, and are due.

        Those that are due are among those that wait. Workers continue meanwhile, so the numbers are
        only nearly consistent.

        Args:
            monotonic: the time of leases, in ns.
            backoff: how long a message waits whose lease ended, until a worker notes that.
        """
        rows = self.records()
        states = rows["word"] & np.uint64(3)
        live = (states == fmt.RECORD_CLAIMED) & (rows["lease_end"] > monotonic)
        outstanding = int(np.count_nonzero(states))
        claimed = int(np.count_nonzero(live))
        due = (states == fmt.RECORD_WAITS) & (rows["due"] <= monotonic)
        first, most = backoff
        waits = np.minimum(first * np.exp2(np.minimum(rows["deliveries"], 64) - 1.0), most)
        ended = monotonic - rows["lease_end"]
        due |= (states == fmt.RECORD_CLAIMED) & (ended >= 0) & (ended >= waits * NS_PER_S)
        waiting = max(0, outstanding - claimed)
        return self.new_sequence, (claimed, waiting, int(np.count_nonzero(due)))

    @property
    def new_sequence(self) -> int:
        """The first message that was never claimed."""
        while True:
            turn = self.region.load(self.TURN)
            sequence = self.region.load(_word("new_odd" if turn & 1 else "new_even"))
            if self.region.load(self.TURN) == turn:
                return sequence

    def last_snapshot(self) -> Snapshot:
        """Return the state that survives a power cut: the newest whole snapshot, and the floor."""
        newest = Snapshot(0)
        for part in range(self.grown + 1):
            size_bytes = fmt.snapshot_bytes(self.first << part)
            for ordinal in (0, 1):
                at = fmt.snapshot_at(self.first, ordinal, part)
                found = decode_snapshot(self.region.read(at, size_bytes))
                # Of the same ordinal can be what a closing wrote before the table grew.
                if found is not None and found.ordinal >= newest.ordinal:
                    newest = found
        return newest.within(self.region.load(self.NEXT), fmt.SEQUENCE_MAX)

    def write_snapshot(self, new_sequence: int, records: bytes) -> int:
        """Write a snapshot over the older one; return its ordinal."""
        ordinal = self.region.load(self.SNAPSHOT) + 1
        at = fmt.snapshot_at(self.first, ordinal, self.grown)
        self.region.write(at, encode_snapshot(ordinal, new_sequence, records))
        return ordinal

    def close(self) -> None:
        """Release the map."""
        del self.region


def make_group_file(
    folder: Directory,
    prefix: str,
    queue_id: bytes,
    name: str,
    snapshot: Snapshot,
    *,
    capacity: int,
    limit: int = 0,
    created: int,
    last_ack: int = 0,
    now: int = 0,
    monotonic: int = 0,
) -> None:
    """Create or replace the file, durable with its name.

    Messages that wait in the snapshot wait in the table; their positions are searched when they are
    claimed. `now` is the wall clock, `monotonic` the leases' clock at the same time, in ns.
    """
    file_name = fmt.cursor_name(prefix, name)
    header = identity_record(fmt.GROUP_META, fmt.CURSOR_MAGIC, queue_id, name)
    header["kind"], header["capacity"] = fmt.CURSOR_OF_GROUP, capacity
    header["limit"] = limit
    header["created"], header["opened"], header["last_ack"] = created, now, last_ack
    header["next_sequence"] = snapshot.floor
    header["new_even"] = snapshot.new_sequence
    header["claim_id"] = header["used"] = len(snapshot.waiting)
    header["changing"] = 1
    ordinal = snapshot.ordinal + 1
    header["snapshot"] = ordinal
    rows = np.zeros(len(snapshot.waiting), fmt.GROUP_RECORD)
    for row, (number, one) in zip(rows, enumerate(snapshot.waiting, 1), strict=True):
        row["word"] = number << 2 | fmt.RECORD_WAITS
        row["sequence"], row["deliveries"] = one.sequence, one.deliveries
        row["cause"] = one.cause
        row["due"] = max(0, monotonic + one.due - now) if one.due > now else 0
    at = fmt.snapshot_at(capacity, ordinal)
    data = header.tobytes().ljust(fmt.GROUP_TABLE_AT, b"\0") + rows.tobytes()
    whole = data.ljust(at, b"\0") + encode_snapshot(
        ordinal, snapshot.new_sequence, encode_waiting(snapshot.waiting)
    )
    folder.make(file_name, whole, size_bytes=fmt.group_bytes(capacity), synced=True)
    # Dies or cut before the table is reset: the table is not trusted, the snapshot is.
    made = GroupTable(folder, prefix, queue_id, name, writable=True)
    made.reset()
    made.close()
    folder.sync_entries()


def recover_groups(
    folder: Directory,
    prefix: str,
    queue_id: bytes,
    head_sequence: int,
    tail_sequence: int,
    did: Callable[[str], None],
    clock: Callable[[], int],
    names: list[str] | None = None,
) -> None:
    """Make every group usable for its next opener; the caller has the queue alone (I11, I14).

    No process that claimed a message is alive. In a trusted table the claims are voided and the
    rest stays; otherwise the file is recreated from the state that survives a power cut, not ahead
    of the tail, before anything new is sent: the old file could come back at the next power cut.
    The head of a ring is given, elsewhere 0: of what is before it a power cut can have taken the
    acknowledgements, but the ring had used its pages again.

    The names of consumers and groups are given; None: those in the directory.
    """
    names = [
        name
        for name, meta in readable_cursors(folder, prefix, queue_id, names)
        if not isinstance(meta, errors.PageQueueError) and meta.is_group
    ]
    for name in names:
        try:
            group = GroupTable(folder, prefix, queue_id, name, writable=True)
        except errors.DamageError as error:
            log.warning("%s", error)
            continue
        if group.is_trusted and group.new_sequence <= tail_sequence:
            group.reset()
            group.close()
        else:
            did(recreate(folder, prefix, queue_id, group, head_sequence, tail_sequence, clock()))


def recreate(
    folder: Directory,
    prefix: str,
    queue_id: bytes,
    group: GroupTable,
    head_sequence: int,
    tail_sequence: int,
    now: int,
) -> str:
    """Recreate a group's file from the state that survives a power cut; return what was done.

    The group is open nowhere; the given map is released. Dies or is cut in here: the old file is
    there, or the new one, from which the same is made again.
    """
    before, name, capacity = group.last_snapshot(), group.name, group.capacity
    created, last_ack = (group.region.load(_word(word)) for word in ("created", "last_ack"))
    limit = group.region.load_half(GroupTable.LIMIT)
    group.close()
    kept = before.within(max(before.floor, head_sequence), tail_sequence)
    make_group_file(
        folder,
        prefix,
        queue_id,
        name,
        kept,
        capacity=capacity,
        limit=limit,
        created=created,
        last_ack=last_ack,
        now=now,
        monotonic=_core.monotonic(),
    )
    return (
        f"recreated group {name!r} as it was last flushed or closed: message {kept.new_sequence} "
        f"is the next new one, and {len(kept.waiting)} before it are redelivered"
    )
