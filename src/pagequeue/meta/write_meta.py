"""The shared words of those who write: where writing stands, the durable mark, the failure latch.

They stand in the write meta, mapped by everyone who writes or waits, and are only touched through
the core, whole and aligned. The file's identity is checked once, at opening.
"""

from __future__ import annotations

import errno
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_and_read_meta import check_shared, field_of, make_shared, map_shared
from pagequeue.system.namespaces import NAMESPACE_BYTES, UNKNOWN_NAMESPACE, pid_namespace
from pagequeue.system.os_errors import refuse_without_resource

if TYPE_CHECKING:
    from pagequeue.system.directory import Directory

BOOT_BYTES: Final = 16
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


@dataclass(slots=True)
class Tail:
    """Where writing stands: the active page, the next position in it, its frames so far."""

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
        """Whether writing can stand here, when reading begins at this page and sequence."""
        head_page, head_sequence = head
        return (
            head_page <= self.page_number <= fmt.PAGE_NUMBER_MAX
            and fmt.PAGE_HEADER_BYTES <= self.position < page_bytes
            and head_sequence <= self.sequence <= fmt.SEQUENCE_MAX
        )


def _word(name: str) -> int:
    return field_of(fmt.WRITE_META, name)


class WriteMeta:
    """The shared words of those who write, mapped."""

    DURABLE_SEQUENCE: Final = _word("durable_sequence")
    DURABLE_PAGE: Final = _word("durable_page")
    FAILED_ERRNO: Final = _word("failed_errno")
    FAILED_PAGE: Final = _word("failed_page")
    FAILED_BOOT: Final = _word("failed_boot")
    LOCK_ABI: Final = _word("lock_abi")
    LOCK_KEY: Final = _word("lock_boot")
    LOCK_KEY_BYTES: Final = _word("lock_abi") - _word("lock_boot")
    LOCK_NAMESPACE: Final = _word("lock_namespace")

    def __init__(self, folder: Directory, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.write_meta_name(prefix)
        self.path = folder.full(name)
        self.region, inode = map_shared(
            folder, name, size_bytes=fmt.WRITE_META_FILE_BYTES, writable=writable,
            doing="mapping the write meta",
        )  # fmt: skip
        check_shared(self.region, fmt.WRITE_META, fmt.WRITE_MAGIC, queue_id, self.path)
        self._key = lock_key_of(folder, inode)

    @staticmethod
    def make(
        folder: Directory,
        prefix: str,
        queue_id: bytes,
        *,
        durable_sequence: int,
        durable_page: int = 0,
    ) -> None:
        """Create the file anew; only when alone. Without a durable page the mark is not known."""
        make_shared(
            folder, fmt.write_meta_name(prefix), fmt.WRITE_META, fmt.WRITE_MAGIC, queue_id,
            durable_sequence=durable_sequence, durable_page=durable_page,
        )  # fmt: skip

    @property
    def tail(self) -> Tail:
        """Where writing stands, as of now."""
        return Tail(*_core.tail(self.region))

    @tail.setter
    def tail(self, tail: Tail) -> None:
        _core.set_tail(
            self.region,
            (tail.page_number, tail.position, tail.count, tail.first_sequence, tail.last_timestamp),
        )

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

    def await_turn(self, sequence: int, ns: int) -> bool:
        """Sleep until nobody else flushes, but no longer than this; return whether to flush.

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
        number = self.region.load_half(self.FAILED_ERRNO)
        return number if number in errno.errorcode or number == 0 else errno.EIO

    @property
    def is_failed(self) -> bool:
        """Whether the failure latch is set."""
        return self.region.load_half(self.FAILED_ERRNO) != 0

    def latch(self, number: int, page_number: int) -> None:
        """Set the failure latch: nothing is written any more, by any process."""
        self.region.store(self.FAILED_PAGE, page_number)
        self.region.write(self.FAILED_BOOT, self._key[:BOOT_BYTES])
        self.region.store_half(self.FAILED_ERRNO, number)
        _core.wake_turn(self.region)

    @property
    def failed_page(self) -> int:
        """The page that the failed sync was for, or the last one that recovery had removed."""
        return self.region.load(self.FAILED_PAGE)

    def unlatch(self) -> None:
        """Clear the failure latch; what was at risk must be on stable storage in another way."""
        self.region.store_half(self.FAILED_ERRNO, 0)

    @property
    def is_failed_in_this_boot(self) -> bool:
        """Whether memory can still show what the disk does not have, because a sync failed."""
        failed_boot = self.region.read(self.FAILED_BOOT, BOOT_BYTES)
        return self.failed_errno != 0 and failed_boot == self._key[:BOOT_BYTES]

    @property
    def lock_abi(self) -> int:
        """Which kind of lock stands in the file."""
        return self.region.load_half(self.LOCK_ABI)

    @property
    def lock_key(self) -> bytes:
        """Boot, file and mount in which the words were last settled."""
        return self.region.read(self.LOCK_KEY, self.LOCK_KEY_BYTES)

    @property
    def is_settled(self) -> bool:
        """Whether the words were made in this boot, through this mount, in this very file."""
        return self.lock_key == self._key

    @property
    def is_this_boot(self) -> bool:
        """The same, but a mount of another name (a container's, say) counts as the same."""
        return self.region.read(self.LOCK_KEY, 24) == self._key[:24]

    def settle(self) -> None:
        """Make the lock anew and say so; only when alone, after recovery."""
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
        """Raise if the lock is of a kind that this process cannot take."""
        if self.lock_abi != _core.LOCK_ABI:
            raise errors.ForeignLock(
                f"its lock is of kind {self.lock_abi:#x}, this process has {_core.LOCK_ABI:#x}: "
                "use one C library for all processes of a queue, or close it everywhere first",
                path=self.path,
            )

    def close(self) -> None:
        """Release the map; what still refers to this object raises ClosedError from here on."""
        self.__dict__.pop("region", None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise ClosedError for the map once it is released."""
            if name == "region":
                raise errors.ClosedError("this queue is closed: open it again", path=self.path)
            raise AttributeError(name)

    def wake(self) -> None:
        """Wake every sleeper, so that it looks again."""
        _core.wake(self.region)

    def sync(self) -> None:
        """Put the words on stable storage; the error is the system's own."""
        self.region.sync(0, fmt.WRITE_META_FILE_BYTES)


def _boot_id() -> bytes | None:
    try:
        with open(BOOT_ID_PATH, encoding="utf-8") as file:
            return bytes.fromhex(file.read().strip().replace("-", "")).ljust(BOOT_BYTES, b"\0")
    except ValueError:
        return None
    except OSError as error:
        refuse_without_resource(error, BOOT_ID_PATH, "reading the boot id")
        return None


def check_boot_id() -> None:
    """Raise if this process cannot tell one boot from another: it must not write then.

    What was not synced before a power cut would pass for what memory still has.

    Raises:
        SystemLimit: the boot id cannot be read, or no descriptor is left to read it.
    """
    if sys.platform == "linux" and _boot_id() is None:
        raise errors.SystemLimit(
            "it cannot be read, so a power cut would not be noticed: mount /proc in this "
            "container or chroot, or open the queue with read_only=True",
            path=BOOT_ID_PATH,
        )


def lock_key_of(folder: Directory, inode: int) -> bytes:
    """Return what tells this boot, file and mount from all others."""
    boot = _boot_id() or bytes(BOOT_BYTES)
    with folder.descriptor as fd:
        mount = _core.mount_id(fd)
    return boot[:BOOT_BYTES] + inode.to_bytes(8, "little") + mount.to_bytes(8, "little")
