"""The three meta files: what was fixed at creation, where writing stands, what may be read.

Their identity (magic, version, queue id) is checked once, at opening; a file that fails is never
used. The shared words of the write meta are only touched through the core, whole and aligned.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.files import raise_typed

if TYPE_CHECKING:
    from pagequeue.files import Folder

BOOT_BYTES: Final = 16
BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
SHARED: Final = ("magic", "version", "queue_id")
REPAIR: Final = "repair the queue, or restore the file from a copy"


def field_of(dtype: np.dtype[np.void], name: str) -> int:
    """Return the offset of a field in its record."""
    assert dtype.fields is not None
    return int(dtype.fields[name][1])


def check_identity(data: bytes, dtype: np.dtype[np.void], magic: bytes, path: str) -> np.void:
    """Return the record at the beginning of `data`, if it is one of ours that we can read.

    Raises:
        CorruptMeta: too short, or the magic word is another.
        NewerFormat: written by a newer version.
    """
    if len(data) < dtype.itemsize:
        raise errors.CorruptMeta(
            f"{len(data)} bytes where {dtype.itemsize} are needed: {REPAIR}",
            path=path, position=0, reason="too short",
        )  # fmt: skip
    record: np.void = np.frombuffer(data, dtype, 1)[0]
    if record["magic"].tobytes() != magic:
        raise errors.CorruptMeta(
            f"begins with {record['magic'].tobytes()!r}, not {magic!r}: {REPAIR}",
            path=path, position=0, reason="wrong magic",
        )  # fmt: skip
    version = int(record["version"])
    if version < 1:
        raise errors.CorruptMeta(
            f"written in format {version}, which there never was: {REPAIR}",
            path=path, position=8, reason="no format",
        )  # fmt: skip
    if version > fmt.FORMAT_VERSION:
        raise errors.NewerFormat(
            f"written in format {version}, this is {fmt.FORMAT_VERSION}: upgrade pagequeue",
            path=path, version=version,
        )  # fmt: skip
    return record


def bad_checksum(path: str) -> errors.CorruptMeta:
    """Return the error for a meta file whose checksum is wrong."""
    return errors.CorruptMeta(
        f"its checksum is wrong: {REPAIR}", path=path, position=12, reason="wrong checksum"
    )


def size_now(path: str, position: int) -> tuple[int, str]:
    """Return how long a file is that was lost under its map, and in words what became of it.

    Args:
        path: of the file.
        position: where it was found to be lost.
    """
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return position, "truncated while it was open"
    if size <= position or position == 0:
        return size, "truncated while it was open"
    # It was truncated and grew again, or the disk cannot give what is there.
    return position, "truncated or unreadable while it was open"


def lost_meta(path: str, position: int) -> errors.CorruptMeta:
    """Return the error for a meta file that was truncated under its map."""
    size, reason = size_now(path, position)
    return errors.CorruptMeta(
        f"{reason}, at {size} bytes: close the queue everywhere, {REPAIR}",
        path=path, position=size, reason=reason,
    )  # fmt: skip


def _identity_checksum(queue_id: bytes, magic: bytes) -> int:
    version = fmt.FORMAT_VERSION.to_bytes(4, "little")
    return _core.crc32c(magic + version + queue_id)


def _read(folder: Folder, name: str, limit_bytes: int) -> bytes:
    with folder.opened(name, writable=False) as fd:
        try:
            return os.pread(fd, limit_bytes, 0)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")


# --- what was fixed at creation -------------------------------------------------------------------


@dataclass(frozen=True)
class AllMeta:
    """What never changes after creation.

    Attributes:
        queue_id: 16 random bytes.
        created: ns since 1970, UTC.
        page_bytes: of each page file.
        options: fixed at creation, plain JSON.
    """

    queue_id: bytes
    created: int
    page_bytes: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def index_capacity(self) -> int:
        """Records in one index file."""
        return fmt.index_capacity(self.page_bytes)

    @property
    def index_bytes(self) -> int:
        """Size of one index file."""
        return self.index_capacity * fmt.INDEX_RECORD_BYTES

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        options = json.dumps(self.options, sort_keys=True).encode() if self.options else b""
        record = np.zeros(1, fmt.ALL_META)
        record["magic"] = np.void(fmt.ALL_MAGIC)
        record["version"] = fmt.FORMAT_VERSION
        record["queue_id"] = np.void(self.queue_id)
        record["created"] = self.created
        record["page_bytes"] = self.page_bytes
        record["index_capacity"] = self.index_capacity
        record["options_bytes"] = len(options)
        record["checksum"] = _core.crc32c(record.tobytes() + options)
        return record.tobytes() + options

    @classmethod
    def decode(cls, data: bytes, path: str) -> AllMeta:
        """Return what a file says.

        Raises:
            CorruptMeta, NewerFormat: as they say.
        """
        record = check_identity(data, fmt.ALL_META, fmt.ALL_MAGIC, path)
        end = fmt.ALL_META.itemsize + int(record["options_bytes"])
        cleared = np.frombuffer(data, fmt.ALL_META, 1).copy()
        cleared["checksum"] = 0
        text = data[fmt.ALL_META.itemsize : end]
        if end > len(data) or _core.crc32c(cleared.tobytes() + text) != int(record["checksum"]):
            raise bad_checksum(path)
        page_bytes = int(record["page_bytes"])
        if not (
            fmt.PAGE_BYTES_MIN <= page_bytes <= fmt.PAGE_BYTES_MAX
            and page_bytes % fmt.PAGE_BYTES_STEP == 0
            and int(record["index_capacity"]) == fmt.index_capacity(page_bytes)
        ):
            raise errors.CorruptMeta(
                f"a page size of {page_bytes} bytes cannot be: {REPAIR}",
                path=path, position=field_of(fmt.ALL_META, "page_bytes"), reason="page size",
            )  # fmt: skip
        try:
            options = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            options = None
        if not isinstance(options, dict):
            raise errors.CorruptMeta(
                f"its options are not a JSON object: {REPAIR}",
                path=path, position=fmt.ALL_META.itemsize, reason="options",
            )  # fmt: skip
        return cls(
            queue_id=record["queue_id"].tobytes(),
            created=int(record["created"]),
            page_bytes=page_bytes,
            options=options,
        )


def read_all_meta(folder: Folder, prefix: str) -> AllMeta:
    """Return what was fixed at creation."""
    name = fmt.all_meta_name(prefix)
    return AllMeta.decode(_read(folder, name, fmt.ALL_META_MAX_BYTES), folder.full(name))


def write_all_meta(folder: Folder, prefix: str, meta: AllMeta) -> None:
    """Create the file, whole or not at all."""
    name = fmt.all_meta_name(prefix)
    data = meta.encode()
    folder.make(name, data, size_bytes=len(data), synced=True)


# --- the shared ones ------------------------------------------------------------------------------


def map_shared(
    folder: Folder,
    name: str,
    dtype: np.dtype[np.void],
    magic: bytes,
    queue_id: bytes,
    *,
    size_bytes: int,
    writable: bool,
    doing: str,
) -> tuple[_core.Region, int]:
    """Map a meta file of this queue; return the map and the file's inode number."""
    with folder.opened(name, writable=writable) as fd:
        try:
            found = os.fstat(fd)
            if found.st_size < size_bytes:
                raise errors.CorruptMeta(
                    f"{found.st_size} bytes where {size_bytes} are needed: {REPAIR}",
                    path=folder.full(name), position=0, reason="too short",
                )  # fmt: skip
            region = _core.Region(fd, size_bytes, writable)
        except OSError as error:
            raise_typed(error, folder.full(name), doing)
    region.on_lost = partial(lost_meta, folder.full(name))
    _check_shared(region, dtype, magic, queue_id, folder.full(name))
    return region, found.st_ino


def _check_shared(
    region: _core.Region, dtype: np.dtype[np.void], magic: bytes, queue_id: bytes, path: str
) -> None:
    record = check_identity(region.read(0, dtype.itemsize), dtype, magic, path)
    found = record["queue_id"].tobytes()
    if int(record["checksum"]) != _identity_checksum(found, magic):
        raise bad_checksum(path)
    if found != queue_id:
        raise errors.CorruptMeta(
            f"belongs to another queue ({found.hex()}): {REPAIR}",
            path=path, position=field_of(dtype, "queue_id"), reason="another queue's file",
        )  # fmt: skip


def make_shared(
    folder: Folder, name: str, dtype: np.dtype[np.void], magic: bytes, queue_id: bytes, **words: int
) -> None:
    """Create a meta file whose words change, whole or not at all; durable but for its name."""
    record = np.zeros(1, dtype)
    record["magic"] = np.void(magic)
    record["version"] = fmt.FORMAT_VERSION
    record["queue_id"] = np.void(queue_id)
    record["checksum"] = _identity_checksum(queue_id, magic)
    for word, value in words.items():
        record[word] = value
    size_bytes = fmt.WRITE_META_FILE_BYTES if dtype is fmt.WRITE_META else dtype.itemsize
    folder.make(name, record.tobytes(), size_bytes=size_bytes, synced=True)


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

    def __init__(self, folder: Folder, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.write_meta_name(prefix)
        self.path = folder.full(name)
        self.region, inode = map_shared(
            folder, name, fmt.WRITE_META, fmt.WRITE_MAGIC, queue_id,
            size_bytes=fmt.WRITE_META_FILE_BYTES, writable=writable, doing="mapping the write meta",
        )  # fmt: skip
        self._key = _lock_key(folder, inode)

    @staticmethod
    def make(
        folder: Folder,
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
        _core.wake_durable(self.region)

    def await_durable(self, sequence: int, seconds: float) -> None:
        """Sleep until this sequence is durable or a sync failed, but no longer than this."""
        _core.await_durable(self.region, sequence, int(seconds * 1e9))

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
        _core.wake_durable(self.region)

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
        self.region.write(self.LOCK_KEY, self._key)

    def check_lock(self) -> None:
        """Raise if the lock is of a kind that this process cannot take."""
        if self.lock_abi != _core.LOCK_ABI:
            raise errors.ForeignLock(
                f"its lock is of kind {self.lock_abi:#x}, this process has {_core.LOCK_ABI:#x}: "
                "use one C library for all processes of a queue, or close it everywhere first",
                path=self.path,
            )

    def close(self) -> None:
        """Let go of the map."""
        del self.region

    def wake(self) -> None:
        """Wake every sleeper, so that it looks again."""
        _core.wake(self.region)

    def sync(self) -> None:
        """Put the words on stable storage; the error is the system's own."""
        self.region.sync(0, fmt.WRITE_META_FILE_BYTES)


def _lock_key(folder: Folder, inode: int) -> bytes:
    """Return what tells this boot, file and mount from all others."""
    try:
        with open(BOOT_ID_PATH, encoding="utf-8") as file:
            boot = bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        boot = b""
    mount = _core.mount_id(folder.fd)
    return boot.ljust(16, b"\0")[:16] + inode.to_bytes(8, "little") + mount.to_bytes(8, "little")


class ReadMeta:
    """The first readable page and its first sequence, mapped."""

    HEAD_PAGE: Final = field_of(fmt.READ_META, "head_page")
    HEAD_ODD: Final = field_of(fmt.READ_META, "head_odd")
    HEAD_EVEN: Final = field_of(fmt.READ_META, "head_even")

    def __init__(self, folder: Folder, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.read_meta_name(prefix)
        self.path = folder.full(name)
        self.region, _ = map_shared(
            folder, name, fmt.READ_META, fmt.READ_MAGIC, queue_id,
            size_bytes=fmt.READ_META_BYTES, writable=writable, doing="mapping the read meta",
        )  # fmt: skip
        if self.region.load(self.HEAD_PAGE) == 0:
            raise errors.CorruptMeta(
                f"says that reading begins in page 0: {REPAIR}",
                path=self.path, position=self.HEAD_PAGE, reason="head page",
            )  # fmt: skip

    @staticmethod
    def make(
        folder: Folder, prefix: str, queue_id: bytes, *, head_page: int, head_sequence: int
    ) -> None:
        """Create the file anew; only when alone."""
        make_shared(
            folder, fmt.read_meta_name(prefix), fmt.READ_META, fmt.READ_MAGIC, queue_id,
            head_page=head_page, head_odd=head_sequence, head_even=head_sequence,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of the map."""
        del self.region

    @property
    def head_page(self) -> int:
        """The first readable page."""
        number = self.region.load(self.HEAD_PAGE)
        if number == 0:
            raise lost_meta(self.path, self.HEAD_PAGE)
        return number

    @classmethod
    def sequence_at(cls, number: int) -> int:
        """Return where the first sequence of a page stands, by its number's parity."""
        return cls.HEAD_ODD if number & 1 else cls.HEAD_EVEN

    @property
    def head(self) -> tuple[int, int]:
        """The first readable page and its first sequence, of one moment."""
        while True:
            number = self.head_page
            sequence = self.region.load(self.sequence_at(number))
            if self.head_page == number:  # else retention went on, and took the word again
                return number, sequence

    @property
    def head_sequence(self) -> int:
        """The first readable sequence."""
        return self.head[1]

    def advance(self, first_sequence: int) -> None:
        """Go on to the page behind the head, which begins with this; under the preparation lock.

        Only one page at a time, so that the word that is written is never the one in use (I12).
        Dies between the stores: the head is where it was.
        """
        number = self.head_page + 1
        self.region.store(self.sequence_at(number), first_sequence)
        self.region.store(self.HEAD_PAGE, number)
