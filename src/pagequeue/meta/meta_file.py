"""What the meta files have in common: their identity, their maps, and the errors of damaged ones.

The identity (magic, version, queue id) is checked once, at opening; a file that fails is never
used. Shared fields are accessed only through the core, whole and aligned.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.system.os_errors import raise_typed
from pagequeue.system.replaced_file import identity_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pagequeue.system.directory import Directory
    from pagequeue.system.replaced_file import Identity

WRITTEN_AGAIN_BYTES: Final = 8
"""The magic."""
SHARED: Final = ("magic", "version", "queue_id")
REPAIR: Final = "repair the queue, or restore the file from a copy"


def field_of(dtype: np.dtype[np.void], name: str) -> int:
    """Return the offset of a field in its record."""
    assert dtype.fields is not None
    return int(dtype.fields[name][1])


def check_identity(data: bytes, dtype: np.dtype[np.void], magic: bytes, path: str) -> np.void:
    """Return the record at the beginning of `data`, if its magic and version are right.

    Raises:
        CorruptMeta: too short, or another magic word.
        NewerFormat: written by a newer version.
    """
    if len(data) < dtype.itemsize:
        raise errors.CorruptMeta(
            f"{len(data)} bytes where {dtype.itemsize} are needed",
            path=path,
            position=0,
            reason="too short",
            remedy=REPAIR,
        )
    record: np.void = np.frombuffer(data, dtype, 1)[0]
    if record["magic"].tobytes() != magic:
        raise errors.CorruptMeta(
            f"begins with {record['magic'].tobytes()!r}, not {magic!r}",
            path=path,
            position=0,
            reason="wrong magic",
            remedy=REPAIR,
        )
    version = int(record["version"])
    if version < fmt.FORMAT_VERSION:
        raise errors.CorruptMeta(
            f"written in format {version}, which no release wrote, this is {fmt.FORMAT_VERSION}",
            path=path,
            position=8,
            reason="no format",
            remedy=f"read it with the version that wrote it, or {REPAIR}",
        )
    if version > fmt.FORMAT_VERSION:
        raise errors.NewerFormat(
            f"written in format {version}, this is {fmt.FORMAT_VERSION}",
            path=path,
            version=version,
            remedy="upgrade pagequeue",
        )
    return record


def bad_checksum(path: str) -> errors.CorruptMeta:
    """Return the error for a meta file whose checksum is wrong."""
    return errors.CorruptMeta(
        "its checksum is wrong", path=path, position=12, reason="wrong checksum", remedy=REPAIR
    )


def size_now(path: str, position: int) -> tuple[int, str]:
    """Return the size of a file that lost bytes under its map, and the reason as text.

    Args:
        path: of the file.
        position: of a byte that was lost.
    """
    try:
        size = os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return position, "truncated while it was open"
    if size <= position or position == 0:
        return size, "truncated while it was open"
    # It was truncated and grew again, or the disk fails to read it.
    return position, "truncated or unreadable while it was open"


def lost_meta(path: str, position: int) -> errors.CorruptMeta:
    """Return the error for a meta file that was truncated under its map."""
    size, reason = size_now(path, position)
    return errors.CorruptMeta(
        f"{reason}, at {size} bytes",
        path=path,
        position=size,
        reason=reason,
        remedy=f"close the queue everywhere, {REPAIR}",
    )


def truncated_meta(path: str, size_bytes: int) -> errors.CorruptMeta | None:
    """Return the error for a meta file that is shorter than it was; None: it is not.

    Inside of its last OS page that is no fault: what was cut off reads as zeros, the lock too.
    """
    with contextlib.suppress(OSError):
        size = os.stat(path, follow_symlinks=False).st_size
        if size < size_bytes:
            return lost_meta(path, size)
    return None


def identity_checksum(queue_id: bytes, magic: bytes, name: str = "") -> int:
    """Return the checksum of a shared meta file, over what never changes.

    The name of a consumer or a group is part of it: a file that has another one's name is refused.
    """
    version = fmt.FORMAT_VERSION.to_bytes(4, "little")
    return _core.crc32c(magic + version + queue_id + name.encode())


def read_meta_file(folder: Directory, name: str, limit_bytes: int) -> bytes:
    """Return the beginning of a meta file."""
    with folder.opened(name, writable=False) as fd:
        try:
            return os.pread(fd, limit_bytes, 0)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")


def map_shared(
    folder: Directory,
    name: str,
    *,
    size_bytes: int,
    writable: bool,
    doing: str,
    needed_bytes: int | None = None,
) -> tuple[_core.Region, Identity]:
    """Map a meta file; return the map, and which file it is of.

    Args:
        folder: of the queue.
        name: of the file.
        size_bytes: of the map.
        writable: whether it is mapped for writing.
        doing: what is being done, for errors.
        needed_bytes: that the file must have; None: as many as the map.
    """
    needed_bytes = size_bytes if needed_bytes is None else needed_bytes
    with folder.opened(name, writable=writable) as fd:
        try:
            found = os.fstat(fd)
            if found.st_size < needed_bytes:
                raise errors.CorruptMeta(
                    f"{found.st_size} bytes where {needed_bytes} are needed",
                    path=folder.full(name),
                    position=0,
                    reason="too short",
                    remedy=REPAIR,
                )
            region = _core.Region(fd, size_bytes, writable, whole=needed_bytes)
        except OSError as error:
            raise_typed(error, folder.full(name), doing)
    region.on_lost = partial(lost_meta, folder.full(name))
    return region, identity_of(found)


def check_shared(
    region: _core.Region,
    dtype: np.dtype[np.void],
    magic: bytes,
    queue_id: bytes,
    path: str,
    name: str = "",
) -> None:
    """Raise if a mapped meta file has another magic, or belongs to another queue or consumer."""
    record = check_identity(region.read(0, dtype.itemsize), dtype, magic, path)
    found = record["queue_id"].tobytes()
    if int(record["checksum"]) != identity_checksum(found, magic, name):
        raise bad_checksum(path)
    if found != queue_id:
        raise errors.CorruptMeta(
            f"belongs to another queue ({found.hex()})",
            path=path,
            position=field_of(dtype, "queue_id"),
            reason="another queue's file",
            remedy=REPAIR,
        )


def stored_queue_ids(folder: Directory, prefix: str) -> list[bytes]:
    """Return the queue ids in read meta and write meta, of those that are readable."""
    found = []
    files = (
        (fmt.read_meta_name(prefix), fmt.READ_META, fmt.READ_MAGIC),
        (fmt.write_meta_name(prefix), fmt.WRITE_META, fmt.WRITE_MAGIC),
    )
    for name, dtype, magic in files:
        with contextlib.suppress(errors.PageQueueError):
            record = check_identity(
                read_meta_file(folder, name, dtype.itemsize), dtype, magic, folder.full(name)
            )
            queue_id = record["queue_id"].tobytes()
            if int(record["checksum"]) == identity_checksum(queue_id, magic):
                found.append(queue_id)
    return found


def sync_state(folder: Directory, name: str) -> None:
    """Put a small file of shared fields on stable storage; the error is the system's own.

    Its first bytes, which never change, are rewritten before: after a failed sync the kernel counts
    the page as clean, so this sync could succeed without writing it.
    """
    with folder.opened(name, writable=True) as fd:
        os.pwrite(fd, os.pread(fd, WRITTEN_AGAIN_BYTES, 0), 0)
        os.fdatasync(fd)


def identity_record(
    dtype: np.dtype[np.void], magic: bytes, queue_id: bytes, name: str = ""
) -> NDArray[np.void]:
    """Return an array of one record of a shared meta file, with its identity set, the rest zero."""
    record = np.zeros(1, dtype)
    record["magic"] = np.void(magic)
    record["version"] = fmt.FORMAT_VERSION
    record["queue_id"] = np.void(queue_id)
    record["checksum"] = identity_checksum(queue_id, magic, name)
    return record


def make_shared(
    folder: Directory,
    name: str,
    dtype: np.dtype[np.void],
    magic: bytes,
    queue_id: bytes,
    consumer: str = "",
    **words: int,
) -> None:
    """Make a meta file with its identity and these fields, whole or not at all."""
    record = identity_record(dtype, magic, queue_id, consumer)
    for word, value in words.items():
        record[word] = value
    size_bytes = fmt.WRITE_META_FILE_BYTES if dtype is fmt.WRITE_META else dtype.itemsize
    folder.make(name, record.tobytes(), size_bytes=size_bytes, synced=True)


class MappedMeta:
    """A mapped meta file, whose map can be released while other objects refer to this one.

    Attributes:
        path: of the file.
        region: its map.
    """

    path: str
    region: _core.Region

    def close(self) -> None:
        """Release the map; using it raises ClosedError from then on."""
        self.__dict__.pop("region", None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise ClosedError for the map once it is released."""
            if name == "region":
                raise errors.ClosedError(
                    "this queue is closed", path=self.path, remedy="open it again"
                )
            raise AttributeError(name)
