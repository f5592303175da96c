"""allMeta: what is fixed at a queue's creation, its page size and options."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import REPAIR, bad_checksum, check_identity, field_of, read_meta_file
from pagequeue.schema.schema import Schema
from pagequeue.system.directory import Directory
from pagequeue.system.trust import ALL

RING: Final = "ring"
"""The option of a ring, in allMeta."""
ORIGIN: Final = "origin"
"""In allMeta of a queue that salvage made: the id of the queue that its messages are from."""


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
        """Of a ring: the bytes that its page files may take, without indexes; None: no ring."""
        return self.options.get(RING)

    @property
    def ids(self) -> tuple[str, ...]:
        """The id in hexadecimal digits, then that of the queue it was salvaged from, if any."""
        origin = self.options.get(ORIGIN)
        return (self.queue_id.hex(), *([origin] if isinstance(origin, str) else []))

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
                path=path,
                position=field_of(fmt.ALL_META, "page_bytes"),
                reason="page size",
                remedy=REPAIR,
            )
        try:
            options = json.loads(text) if text else {}
            if not isinstance(options, dict):
                raise ValueError("not a JSON object")  # noqa: TRY301, TRY004 - one place for all
            check_ring(options, page_bytes)
            schema = Schema.from_options(options)
        except (ValueError, RecursionError) as error:
            raise errors.CorruptMeta(
                f"its options are invalid ({error})",
                path=path,
                position=fmt.ALL_META.itemsize,
                reason="options",
                remedy=REPAIR,
            ) from error
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
    return AllMeta.decode(read_meta_file(folder, name, fmt.ALL_META_MAX_BYTES), folder.full(name))


def queue_id_at(path: str, prefix: str) -> str | None:
    """Return the id of the queue that a directory has, in hexadecimal; None: it has none to read.

    Only to name it in an error: nothing else is believed of the directory.
    """
    try:
        folder = Directory(os.path.realpath(path), create=False, read_only=True, trust=ALL)
    except errors.PageQueueError:
        return None
    try:
        return read_all_meta(folder, prefix).queue_id.hex()
    except errors.PageQueueError:
        return None
    finally:
        folder.close()


def another_queue(
    path: str, kept: str, queue_id: str, found_id: str | None, remedy: str
) -> errors.QueueReplaced:
    """Return the error for a path that leads to another queue than the one of a place.

    Args:
        path: that leads there.
        kept: what has the place: the subject of the message.
        queue_id: of the queue that the place is of, in hexadecimal.
        found_id: of the queue that is there; None: there is none.
        remedy: what the caller can do.
    """
    there = "no queue" if found_id is None else f"queue {found_id}"
    return errors.QueueReplaced(
        f"{kept} is of queue {queue_id}, and this path leads to {there} now",
        path=path,
        queue_id=queue_id,
        found_id=found_id,
        remedy=remedy,
    )


def write_all_meta(folder: Directory, prefix: str, meta: AllMeta) -> None:
    """Create the file, whole or not at all."""
    name = fmt.all_meta_name(prefix)
    data = meta.encode()
    folder.make(name, data, size_bytes=len(data), synced=True)
