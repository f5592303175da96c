"""writeMeta: the shared state of writers: the tail, the durable mark, the failure latch, the lock.

Every process that writes or waits maps it, and accesses it only through the core, whole and
aligned. The file's identity is checked once, at opening.
"""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import (
    MappedMeta,
    check_shared,
    field_of,
    make_shared,
    map_shared,
    read_meta_file,
)
from pagequeue.system.namespaces import NAMESPACE_BYTES, UNKNOWN_NAMESPACE, pid_namespace
from pagequeue.system.os_errors import refuse_without_resource

if TYPE_CHECKING:
    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced_file import Identity

BOOT_BYTES: Final = 16
COUNT_MASK: Final = (1 << 32) - 1
"""The number of frames in a tail word."""
READS: Final = 3
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


@dataclass(slots=True)
class Tail:
    """The tail: the active page, the next position in it, its frames so far."""

    page_number: int
    position: int
    count: int
    first_sequence: int
    last_timestamp: int

    @property
    def sequence(self) -> int:
        """The sequence that is written next."""
        return self.first_sequence + self.count

    def can_be(self, head: tuple[int, int], page_bytes: int) -> bool:
        """Whether this is a possible tail of a queue with this head (page and sequence)."""
        head_page, head_sequence = head
        return (
            head_page <= self.page_number <= fmt.PAGE_NUMBER_MAX
            and fmt.PAGE_HEADER_BYTES <= self.position < page_bytes
            and head_sequence <= self.sequence <= fmt.SEQUENCE_MAX
        )


def _word(name: str) -> int:
    return field_of(fmt.WRITE_META, name)


RENEWING: Final = 1 << 16
"""In `failed_errno`: what is at risk is written again, and no sync has failed since that began."""


class WriteMeta(MappedMeta):
    """The shared state of writers, mapped.

    Attributes:
        identity: of the file that is mapped.
    """

    DURABLE_SEQUENCE: Final = _word("durable_sequence")
    DURABLE_PAGE: Final = _word("durable_page")
    FAILED_ERRNO: Final = _word("failed_errno")
    FLUSHED_AT: Final = _word("flushed_at")
    FAILED_PAGE: Final = _word("failed_page")
    FAILED_BOOT: Final = _word("failed_boot")
    LOCK_ABI: Final = _word("lock_abi")
    LOCK_KEY: Final = _word("lock_boot")
    LOCK_KEY_BYTES: Final = _word("lock_abi") - _word("lock_boot")
    LOCK_NAMESPACE: Final = _word("lock_namespace")
    CLOCK_AHEAD: Final = _word("clock_ahead")
    CLOCK_DOUBTED: Final = _word("clock_doubted")
    JUMPS: Final = tuple(range(_word("jumps"), fmt.WRITE_META.itemsize, 16))

    identity: Identity

    def __init__(self, folder: Directory, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.write_meta_name(prefix)
        self.path: str = folder.full(name)
        region, self.identity = map_shared(
            folder,
            name,
            size_bytes=fmt.WRITE_META_FILE_BYTES,
            writable=writable,
            doing="mapping the write meta",
        )
        self.region: _core.Region = region
        check_shared(self.region, fmt.WRITE_META, fmt.WRITE_MAGIC, queue_id, self.path)
        self._key = lock_key_of(folder, self.identity[1])

    @staticmethod
    def make(
        folder: Directory,
        prefix: str,
        queue_id: bytes,
        *,
        durable_sequence: int,
        durable_page: int = 0,
    ) -> None:
        """Create or replace the file; only with the queue locked exclusively.

        Without a durable page the durable mark is unknown.
        """
        make_shared(
            folder,
            fmt.write_meta_name(prefix),
            fmt.WRITE_META,
            fmt.WRITE_MAGIC,
            queue_id,
            durable_sequence=durable_sequence,
            durable_page=durable_page,
        )

    @property
    def tail(self) -> Tail:
        """The current tail."""
        return Tail(*_core.tail(self.region))

    @tail.setter
    def tail(self, tail: Tail) -> None:
        _core.set_tail(
            self.region,
            (tail.page_number, tail.position, tail.count, tail.first_sequence, tail.last_timestamp),
        )

    def is_behind(self, folder: Directory, name: str) -> bool:
        """Whether the file of this name has a later tail than the map, and so other bytes.

        A read can come in the middle of two rolls and make a tail of both; hardly several times.
        """
        for _ in range(READS):
            words = np.frombuffer(read_meta_file(folder, name, fmt.WRITE_META.itemsize), np.uint8)
            if len(words) < fmt.WRITE_META.itemsize:
                return False  # truncated: who reads it notices that
            record = words.view(fmt.WRITE_META)[0]
            parity = "odd" if int(record["page_number"]) % 2 else "even"
            count = int(record[f"tail_{parity}"]) & COUNT_MASK
            if int(record[f"first_{parity}"]) + count <= self.tail.sequence:
                return False
        return True

    @property
    def durable_sequence(self) -> int:
        """The first sequence that is not known to be on stable storage."""
        return self.region.load(self.DURABLE_SEQUENCE)

    @property
    def durable_page(self) -> int:
        """Every page below it is on stable storage, with its directory entry."""
        return self.region.load(self.DURABLE_PAGE)

    def set_durable(self, sequence: int, page_number: int) -> None:
        """Raise the durable mark; what lies below it must be on stable storage already."""
        self.region.store(self.DURABLE_SEQUENCE, sequence)
        self.region.store(self.DURABLE_PAGE, page_number)

    def is_durable_inside(self, tail: Tail) -> bool:
        """Whether a flush has raised the durable mark to a place inside the active page."""
        return self.durable_page == tail.page_number and self.durable_sequence > tail.first_sequence

    @property
    def flushed_at(self) -> int | None:
        """When a flush last raised the durable mark, ns since 1970; None: unknown."""
        time = self.region.load(self.FLUSHED_AT)
        return time if 0 < time <= fmt.TIMESTAMP_MAX else None

    @flushed_at.setter
    def flushed_at(self, time: int) -> None:
        self.region.store(self.FLUSHED_AT, min(max(0, time), fmt.TIMESTAMP_MAX))

    def await_turn(self, sequence: int, ns: int) -> bool:
        """Sleep until no other thread flushes, but no longer than this; return whether to flush.

        Then the turn must be ended. False: this sequence is durable, or the failure latch changed.
        """
        return _core.await_turn(self.region, sequence, ns)

    def end_turn(self, count: int = 0, ns: int = 0) -> int:
        """End a turn and wake all who wait; return how many did.

        The next flush may wait so many ns for so many messages more.
        """
        return _core.end_turn(self.region, count, ns)

    @property
    def failed_errno(self) -> int:
        """The failure latch: 0, or the system's error number of the sync that failed."""
        number = self.region.load_half(self.FAILED_ERRNO) & ~RENEWING
        return number if number in errno.errorcode or number == 0 else errno.EIO

    @property
    def is_failed(self) -> bool:
        """Whether the failure latch is set."""
        return self.region.load_half(self.FAILED_ERRNO) != 0

    def latch(self, number: int, page_number: int) -> None:
        """Set the failure latch: every process refuses to write from now on."""
        self.region.store(self.FAILED_PAGE, page_number)
        self.region.write(self.FAILED_BOOT, self._key[:BOOT_BYTES])
        self.region.store_half(self.FAILED_ERRNO, number)
        _core.wake_turn(self.region)

    @property
    def failed_page(self) -> int:
        """The page that the failed sync was for, or the last one that recovery had removed."""
        return self.region.load(self.FAILED_PAGE)

    def begin_renewal(self) -> None:
        """Note that what is at risk is written again; the latch stays set."""
        self.region.store_half(self.FAILED_ERRNO, self.failed_errno | RENEWING)

    @property
    def is_renewing(self) -> bool:
        """Whether no sync has failed since `begin_renewal`."""
        return bool(self.region.load_half(self.FAILED_ERRNO) & RENEWING)

    def end_renewal(self) -> bool:
        """Clear the latch; False: another sync has failed since then, and it stays set."""
        return self.region.swap_half(self.FAILED_ERRNO, self.failed_errno | RENEWING, 0)

    def unlatch(self) -> None:
        """Clear the failure latch; the data at risk must be on stable storage by other means."""
        self.region.store_half(self.FAILED_ERRNO, 0)

    @property
    def is_failed_in_this_boot(self) -> bool:
        """Whether a sync failed in this boot, so that memory can show what the disk lacks."""
        failed_boot = self.region.read(self.FAILED_BOOT, BOOT_BYTES)
        return self.failed_errno != 0 and failed_boot == self._key[:BOOT_BYTES]

    @property
    def lock_abi(self) -> int:
        """The C library's mutex layout that the lock in the file has."""
        return self.region.load_half(self.LOCK_ABI)

    @property
    def lock_key(self) -> bytes:
        """Boot, file and mount in which the state was last recovered."""
        return self.region.read(self.LOCK_KEY, self.LOCK_KEY_BYTES)

    @property
    def boot(self) -> bytes:
        """The id of this boot."""
        return self._key[:BOOT_BYTES]

    @property
    def is_recovered(self) -> bool:
        """Whether the state was made in this boot, through this mount, in this very file."""
        return self.lock_key == self._key

    @property
    def is_this_boot(self) -> bool:
        """Like `is_recovered`, but through any mount, a container's for example."""
        return self.region.read(self.LOCK_KEY, 24) == self._key[:24]

    def mark_recovered(self) -> None:
        """Recreate the lock and mark the state as recovered; only with the queue locked."""
        if not self.is_this_boot:
            self.forget_clock()
        _core.reset_lock(self.region)
        self.region.store_half(self.LOCK_ABI, _core.LOCK_ABI)
        self.region.write(self.LOCK_NAMESPACE, pid_namespace())
        self.region.write(self.LOCK_KEY, self._key)

    @property
    def is_foreign(self) -> bool:
        """Whether the mutexes of this queue belong to the threads of another PID namespace.

        Then, or if that is not known, this process takes the locks by a byte of their file.
        """
        own = pid_namespace()
        return own == UNKNOWN_NAMESPACE or own != self.region.read(
            self.LOCK_NAMESPACE, NAMESPACE_BYTES
        )

    def check_lock(self) -> None:
        """Raise if the lock has the layout of another C library."""
        check_lock_abi(self.lock_abi, self.path)

    @property
    def clock_ahead(self) -> int:
        """How far the clock is ahead of the time since the boot, as last believed; 0: unknown."""
        ahead = self.region.load(self.CLOCK_AHEAD)
        return ahead if 0 < ahead <= fmt.TIMESTAMP_MAX and self.is_this_boot else 0

    @property
    def clock_doubted(self) -> int:
        """When the clock began to be doubted, in ns since the boot; 0: it is not."""
        return self.region.load(self.CLOCK_DOUBTED)

    @clock_doubted.setter
    def clock_doubted(self, ns: int) -> None:
        self.region.store(self.CLOCK_DOUBTED, ns)

    def believe_clock(self, ahead: int) -> None:
        """Note how far the clock is ahead of the time since the boot, and that it is believed."""
        self.region.store(self.CLOCK_AHEAD, max(0, ahead))
        if self.clock_doubted:
            self.clock_doubted = 0

    def forget_clock(self, after: int = fmt.TIMESTAMP_MAX) -> None:
        """Believe the next reading of the clock, whatever it is; forget jumps to a later time."""
        self.clock_doubted = 0
        self.region.store(self.CLOCK_AHEAD, 0)
        for at in self.JUMPS:
            if self.region.load(at) > after:
                self.region.store(at + 8, 0)

    @property
    def jumps(self) -> list[tuple[int, int]]:
        """The last times that the clock jumped ahead to, ascending, each with by how many ns."""
        found = [(self.region.load(at), self.region.load(at + 8)) for at in self.JUMPS]
        return sorted(
            (when, ns) for when, ns in found if 0 < when <= fmt.TIMESTAMP_MAX and 0 < ns <= when
        )

    def note_jump(self, when: int, ns: int) -> None:
        """Note that the clock jumped by ns, to a time; ahead, or back below 0.

        A process that dies in between leaves a jump by 0, which is none.
        """
        known = self.jumps
        if ns > 0:
            known = [*known, (when, ns)][-len(self.JUMPS) :]
        else:  # what it was ahead before, it is not any more
            left = -ns
            for i in reversed(range(len(known))):
                taken = min(left, known[i][1])
                known[i] = min(known[i][0], max(when, 1)), known[i][1] - taken
                left -= taken
        known += [(0, 0)] * (len(self.JUMPS) - len(known))
        for at, (to, by) in zip(self.JUMPS, known, strict=True):
            self.region.store(at + 8, 0)
            self.region.store(at, to)
            self.region.store(at + 8, by)

    def wake(self) -> None:
        """Wake every waiter, so that it polls again."""
        _core.wake(self.region)

    def sync(self) -> None:
        """Put the state on stable storage; the error is the system's own."""
        self.region.sync(0, fmt.WRITE_META_FILE_BYTES)


def check_lock_abi(lock_abi: int, path: str) -> None:
    """Raise ForeignLock if a lock in a file has another layout than this process's C library."""
    if lock_abi != _core.LOCK_ABI:
        raise errors.ForeignLock(
            f"its lock has layout {lock_abi:#x}, this process has {_core.LOCK_ABI:#x}",
            path=path,
            remedy="use one C library for all processes of a queue, or close it everywhere first",
        )


def _boot_id() -> bytes | None:
    try:
        with open(BOOT_ID_PATH, "rb", 0) as file:  # as text it takes three times as long
            digits = file.read().decode("ascii").strip().replace("-", "")
            return bytes.fromhex(digits).ljust(BOOT_BYTES, b"\0")
    except ValueError:
        return None
    except OSError as error:
        refuse_without_resource(error, BOOT_ID_PATH, "reading the boot id")
        return None


def check_boot_id() -> None:
    """Raise if this process cannot tell one boot from another: it must not write then.

    After a power cut, unsynced data would be taken for data that is still in memory.

    Raises:
        SystemLimit: the boot id is unreadable, or no descriptor is left to read it.
    """
    if sys.platform == "linux" and _boot_id() is None:
        raise errors.SystemLimit(
            "unreadable, so a power cut would not be noticed",
            path=BOOT_ID_PATH,
            remedy="mount /proc in this container or chroot, or open the queue with read_only=True",
        )


def lock_key_of(folder: Directory, inode: int) -> bytes:
    """Return the key that identifies this boot, file and mount."""
    boot = _boot_id() or bytes(BOOT_BYTES)
    with folder.descriptor as fd:
        mount = _core.mount_id(fd)
    return boot[:BOOT_BYTES] + inode.to_bytes(8, "little") + mount.to_bytes(8, "little")
