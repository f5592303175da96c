"""The last message of a queue, kept in a file of its own when retention takes its page.

A flow asks its source to continue after the last message of the queue. Retention can empty a queue,
so where a flow has asked, it first keeps that message here (T1 in FORMAT.md, "Retention"). The file
is named after the sequence and never changes; the tail alone decides which of several counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue._core import Message
    from pagequeue.system.directory import Directory

REMEDY: Final = (
    "restore the file from a copy; or remove it and the consumer of the flow, and have the source "
    "continue by what you know of it"
)


def encode(queue_id: bytes, message: Message) -> bytes:
    """Return the bytes of the file that keeps a message."""
    record = np.zeros(1, fmt.STORED)
    record["magic"] = np.void(fmt.STORED_MAGIC)
    record["version"] = fmt.FORMAT_VERSION
    record["queue_id"] = np.void(queue_id)
    record["sequence"] = message.sequence
    record["timestamp"] = message.timestamp
    record["payload_bytes"] = len(message.payload)
    record["checksum"] = _core.crc32c(record.tobytes() + message.payload)
    return record.tobytes() + message.payload


def decode(data: bytes, queue_id: bytes, sequence: int, path: str) -> Message:
    """Return the message that a file keeps.

    Raises:
        CorruptMeta: it is damaged, or keeps another message than the one in its name.
        NewerFormat: written by a newer version.
    """
    if len(data) < fmt.STORED.itemsize:
        raise bad_record(path, "too short")
    record = np.frombuffer(data, fmt.STORED, 1).copy()
    found, payload = record[0], data[fmt.STORED.itemsize :]
    if found["magic"].tobytes() != fmt.STORED_MAGIC:
        raise bad_record(path, "wrong magic")
    version, stated = int(found["version"]), int(found["checksum"])
    if version > fmt.FORMAT_VERSION:
        raise errors.NewerFormat(
            f"written in format {version}, this is {fmt.FORMAT_VERSION}",
            path=path,
            version=version,
            remedy="upgrade pagequeue",
        )
    if int(found["payload_bytes"]) != len(payload):
        raise bad_record(path, "wrong size")
    record["checksum"] = 0
    if _core.crc32c(record.tobytes() + payload) != stated:
        raise bad_record(path, "wrong checksum")
    if found["queue_id"].tobytes() != queue_id:
        raise bad_record(path, "another queue's file")
    if int(found["sequence"]) != sequence:
        raise bad_record(path, f"keeps message {int(found['sequence'])}")
    return _core.Message(payload, int(found["timestamp"]), sequence)


def bad_record(path: str, reason: str) -> errors.CorruptMeta:
    """Return the error for an invalid last message."""
    return errors.CorruptMeta(
        f"last message of the queue: {reason}", path=path, position=0, reason=reason, remedy=REMEDY
    )


def read_stored(folder: Directory, prefix: str, queue_id: bytes, sequence: int) -> Message:
    """Return the message that was kept under this sequence.

    Raises:
        QueueNotFound: no message was kept.
        CorruptMeta, NewerFormat: as for `decode`. UnsafePath, AccessDenied: reading it failed.
    """
    name = fmt.stored_name(prefix, sequence)
    data = folder.read(name, fmt.STORED.itemsize + fmt.PAGE_BYTES_MAX)
    return decode(data, queue_id, sequence, folder.full(name))


def write_stored(folder: Directory, prefix: str, queue_id: bytes, message: Message) -> None:
    """Keep a message, on stable storage; its name is durable after the directory's next sync.

    Raises:
        DiskFull, SystemLimit, AccessDenied: writing it failed; no file is left.
    """
    data = encode(queue_id, message)
    name = fmt.stored_name(prefix, message.sequence)
    folder.make(name, data, size_bytes=len(data), synced=True)


def sequences_stored(prefix: str, names: Iterable[str]) -> list[int]:
    """Return the sequences of all messages that are kept, sorted."""
    begin = f"{prefix}-stored."
    found = (fmt.stored_sequence(prefix, name) for name in names if name.startswith(begin))
    return sorted(sequence for sequence in found if sequence is not None)


def forget_stored(folder: Directory, prefix: str, kept: set[int], head_sequence: int) -> None:
    """Remove the messages that no flow asks for any more, now that the head on the disk is this.

    Args:
        folder: of the queue.
        prefix: of its file names.
        kept: sequences of messages that are kept; what is removed goes from here as well.
        head_sequence: of the head on the disk.
    """
    for sequence in list(kept):
        if sequence + 1 < head_sequence:
            folder.remove(fmt.stored_name(prefix, sequence))
            kept.discard(sequence)
