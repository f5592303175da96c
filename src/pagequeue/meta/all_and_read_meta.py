"""allMeta (fixed at creation) and readMeta (the head); `write_meta.py` has the third meta file.

Their identity (magic, version, queue id) is checked once, at opening; a file that fails is never
used. Shared fields are accessed only through the core, whole and aligned.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.schema.schema import Schema
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.system.directory import Directory

HALF: Final = 2**32 - 1
RING: Final = "ring"
"""The option of a ring, in allMeta."""
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
            path=path, position=0, reason="too short", remedy=REPAIR,
        )  # fmt: skip
    record: np.void = np.frombuffer(data, dtype, 1)[0]
    if record["magic"].tobytes() != magic:
        raise errors.CorruptMeta(
            f"begins with {record['magic'].tobytes()!r}, not {magic!r}",
            path=path, position=0, reason="wrong magic", remedy=REPAIR,
        )  # fmt: skip
    version = int(record["version"])
    if version < fmt.FORMAT_VERSION:
        raise errors.CorruptMeta(
            f"written in format {version}, which no release wrote, this is {fmt.FORMAT_VERSION}",
            path=path, position=8, reason="no format",
            remedy=f"read it with the version that wrote it, or {REPAIR}",
        )  # fmt: skip
    if version > fmt.FORMAT_VERSION:
        raise errors.NewerFormat(
            f"written in format {version}, this is {fmt.FORMAT_VERSION}",
            path=path, version=version, remedy="upgrade pagequeue",
        )  # fmt: skip
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
        path=path, position=size, reason=reason, remedy=f"close the queue everywhere, {REPAIR}",
    )  # fmt: skip


def identity_checksum(queue_id: bytes, magic: bytes, name: str = "") -> int:
    """Return the checksum of a shared meta file, over what never changes.

    The name of a consumer or a group is part of it: a file that has another one's name is refused.
    """
    version = fmt.FORMAT_VERSION.to_bytes(4, "little")
    return _core.crc32c(magic + version + queue_id + name.encode())


def _read(folder: Directory, name: str, limit_bytes: int) -> bytes:
    with folder.opened(name, writable=False) as fd:
        try:
            return os.pread(fd, limit_bytes, 0)
        except OSError as error:
            raise_typed(error, folder.full(name), "reading the file")


# --- what was fixed at creation -------------------------------------------------------------------


def check_ring(options: dict[str, Any], page_bytes: int) -> None:
    """Raise ValueError if the options make the queue a ring of an invalid size."""
    ring = options.get(RING, 2 * page_bytes)
    if type(ring) is not int or ring < 2 * page_bytes:
        raise ValueError(f"a ring of {ring!r} bytes with pages of {page_bytes}")


@dataclass(frozen=True)
class AllMeta:
    """The values that are fixed at creation.

    Attributes:
        queue_id: 16 random bytes.
        created: ns since 1970, UTC.
        page_bytes: of each page file.
        options: fixed at creation, plain JSON.
        schema: of the messages, decoded from the options.
    """

    queue_id: bytes
    created: int
    page_bytes: int
    options: dict[str, Any] = field(default_factory=dict)
    schema: Schema = field(default_factory=Schema, compare=False)

    @property
    def ring_bytes(self) -> int | None:
        """Of a ring: the bytes that its page files may take; None: the queue is none."""
        return self.options.get(RING)

    @property
    def is_ring(self) -> bool:
        """Whether the queue is a ring."""
        return self.ring_bytes is not None

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
        """Return the decoded file.

        Raises:
            CorruptMeta: it is damaged. NewerFormat: a newer version wrote it.
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
                f"an invalid page size of {page_bytes} bytes",
                path=path, position=field_of(fmt.ALL_META, "page_bytes"), reason="page size",
                remedy=REPAIR,
            )  # fmt: skip
        try:
            options = json.loads(text) if text else {}
            if not isinstance(options, dict):
                raise ValueError("not a JSON object")  # noqa: TRY301, TRY004 - one place for all
            check_ring(options, page_bytes)
            schema = Schema.from_options(options)
        except (ValueError, RecursionError) as error:
            raise errors.CorruptMeta(
                f"its options are invalid ({error})",
                path=path, position=fmt.ALL_META.itemsize, reason="options", remedy=REPAIR,
            ) from error  # fmt: skip
        return cls(
            queue_id=record["queue_id"].tobytes(),
            created=int(record["created"]),
            page_bytes=page_bytes,
            options=options,
            schema=schema,
        )


def read_all_meta(folder: Directory, prefix: str) -> AllMeta:
    """Return the decoded allMeta of a queue."""
    name = fmt.all_meta_name(prefix)
    return AllMeta.decode(_read(folder, name, fmt.ALL_META_MAX_BYTES), folder.full(name))


def write_all_meta(folder: Directory, prefix: str, meta: AllMeta) -> None:
    """Create the file, whole or not at all."""
    name = fmt.all_meta_name(prefix)
    data = meta.encode()
    folder.make(name, data, size_bytes=len(data), synced=True)


# --- the shared ones ------------------------------------------------------------------------------


def map_shared(
    folder: Directory, name: str, *, size_bytes: int, writable: bool, doing: str
) -> tuple[_core.Region, int]:
    """Map a meta file; return the map and the file's inode number."""
    with folder.opened(name, writable=writable) as fd:
        try:
            found = os.fstat(fd)
            if found.st_size < size_bytes:
                raise errors.CorruptMeta(
                    f"{found.st_size} bytes where {size_bytes} are needed",
                    path=folder.full(name), position=0, reason="too short", remedy=REPAIR,
                )  # fmt: skip
            region = _core.Region(fd, size_bytes, writable)
        except OSError as error:
            raise_typed(error, folder.full(name), doing)
    region.on_lost = partial(lost_meta, folder.full(name))
    return region, found.st_ino


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
            path=path, position=field_of(dtype, "queue_id"), reason="another queue's file",
            remedy=REPAIR,
        )  # fmt: skip


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
                _read(folder, name, dtype.itemsize), dtype, magic, folder.full(name)
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


class ReadMeta(MappedMeta):
    """The first readable page and its first sequence, mapped."""

    HEAD_PAGE: Final = field_of(fmt.READ_META, "head_page")
    HEAD_ODD: Final = field_of(fmt.READ_META, "head_odd")
    HEAD_EVEN: Final = field_of(fmt.READ_META, "head_even")
    CONSUMERS_MADE: Final = field_of(fmt.READ_META, "consumers_made")
    PAGES_COMPRESSED: Final = field_of(fmt.READ_META, "pages_compressed")

    def __init__(self, folder: Directory, prefix: str, queue_id: bytes, *, writable: bool) -> None:
        name = fmt.read_meta_name(prefix)
        self.path: str = folder.full(name)
        region, _ = map_shared(
            folder, name, size_bytes=fmt.READ_META_BYTES, writable=writable,
            doing="mapping the read meta",
        )  # fmt: skip
        self.region: _core.Region = region
        check_shared(self.region, fmt.READ_META, fmt.READ_MAGIC, queue_id, self.path)
        if self.region.load(self.HEAD_PAGE) == 0:
            raise errors.CorruptMeta(
                "its head is page 0, so reading begins nowhere",
                path=self.path, position=self.HEAD_PAGE, reason="head page", remedy=REPAIR,
            )  # fmt: skip

    @staticmethod
    def make(
        folder: Directory, prefix: str, queue_id: bytes, *, head_page: int, head_sequence: int
    ) -> None:
        """Create or replace the file; only with the queue locked exclusively."""
        make_shared(
            folder, fmt.read_meta_name(prefix), fmt.READ_META, fmt.READ_MAGIC, queue_id,
            head_page=head_page, head_odd=head_sequence, head_even=head_sequence,
        )  # fmt: skip

    @property
    def head_page(self) -> int:
        """The first readable page."""
        number = self.region.load(self.HEAD_PAGE)
        if number == 0:
            raise lost_meta(self.path, self.HEAD_PAGE)
        return number

    @classmethod
    def sequence_at(cls, number: int) -> int:
        """Return the offset of the head sequence that a page of this number uses."""
        return cls.HEAD_ODD if number & 1 else cls.HEAD_EVEN

    @property
    def head(self) -> tuple[int, int]:
        """The first readable page and its first sequence, read consistently."""
        while True:
            number = self.head_page
            sequence = self.region.load(self.sequence_at(number))
            if self.head_page == number:  # else retention advanced and reused the word
                return number, sequence

    @property
    def head_sequence(self) -> int:
        """The first readable sequence."""
        return self.head[1]

    def advance(self, first_sequence: int, page_number: int | None = None) -> None:
        """Move the head to a page that begins with this; under the preparation lock.

        Only by an odd number of pages, so that the store never hits the word in use (I12). Dies
        between the stores: the head has not moved.

        Args:
            first_sequence: of the page.
            page_number: of the page; None: the page after the head.
        """
        before = self.head_page
        number = before + 1 if page_number is None else page_number
        assert (number - before) % 2 == 1
        self.region.store(self.sequence_at(number), first_sequence)
        self.region.store(self.HEAD_PAGE, number)

    def made(self, at: int) -> int:
        """Return the word of `CONSUMERS_MADE` or `PAGES_COMPRESSED`.

        While it is unchanged and even, no consumer was made, or no page compressed.
        """
        return self.region.load_half(at)

    @contextlib.contextmanager
    def making(self, at: int) -> Iterator[None]:
        """Wrap the making of a consumer, or compressing a page; under the preparation lock.

        Dies inside: the word stays odd until the next one is made, or `made_none_since` finds it.
        """
        odd = self.made(at) | 1
        self.region.store_half(at, odd)
        try:
            yield
        finally:
            self.region.store_half(at, (odd + 1) & HALF)

    def made_none_since(self, at: int, before: int) -> bool:
        """Whether none was made since the word was loaded; under the preparation lock."""
        now = self.made(at)
        if now & 1:  # its maker died
            self.region.store_half(at, (now + 1) & HALF)
            return False
        return now == before
