"""What a writer refuses: the errors for sends that cannot be done."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.meta_file import field_of, lost_meta, truncated_meta
from pagequeue.page.page import lost_page
from pagequeue.system.os_errors import raise_typed
from pagequeue.util.timestamps import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.page.page import WritablePage
    from pagequeue.store.store import Store


@contextlib.contextmanager
def not_durable(path: str, what: str, remedy: str) -> Iterator[None]:
    """Turn the errors that follow a send into NotDurable: its messages are visible.

    Args:
        path: of the queue.
        what: a sentence on what was sent and what it lacks.
        remedy: what the sender does.
    """
    try:
        yield
    except errors.NotDurable:
        raise
    except (
        errors.RetryError,
        errors.AccessError,
        errors.ClosedError,
        errors.ForkedError,
    ) as error:
        raise errors.NotDurable(f"{what}: {error}", path=path, remedy=remedy) from error


def closed(store: Store) -> errors.ClosedError:
    """Return the error for a closed producer.

    Raises:
        QueueReplaced: it was closed because a name leads elsewhere.
    """
    if store.folder.is_replaced:
        store.folder.check()
    return errors.ClosedError(
        "this producer is closed",
        path=store.folder.path,
        remedy="make another one with queue.producer()",
    )


def forked(store: Store) -> errors.ForkedError:
    """Return the error for a producer of the parent process."""
    return errors.ForkedError(
        "this producer belongs to the parent process",
        path=store.folder.path,
        remedy="open the queue in the child",
    )


def exhausted(store: Store) -> errors.SequencesExhausted:
    """Return the error for a queue whose sequences are all used."""
    return errors.SequencesExhausted(
        "no sequence is left", path=store.folder.path, remedy="start a new queue"
    )


def too_large(store: Store) -> errors.MessageTooLarge:
    """Return the error for messages that need more than one page."""
    limit = fmt.payload_bytes_max(store.meta.page_bytes)
    return errors.MessageTooLarge(
        f"the messages do not fit into one page, which holds {limit} bytes",
        path=store.folder.path,
        size_bytes=limit + 1,
        limit_bytes=limit,
        remedy="send less at once, or create the queue with larger page_bytes",
    )


def record_size(store: Store, size_bytes: int) -> errors.RecordSize:
    """Return the error for a payload that is not a record of this size."""
    dtype, record_bytes = store.schema.dtype, store.schema.record_bytes
    return errors.RecordSize(
        f"a payload of {size_bytes} bytes is not a record of {record_bytes} bytes, dtype {dtype}",
        path=store.folder.path,
        size_bytes=size_bytes,
        record_bytes=record_bytes,
        remedy="send records of this dtype, or create a queue without dtype for messages of any "
        "size",
    )


def old_timestamp(store: Store, timestamp: int) -> errors.TimestampOrder:
    """Return the error for a message that is older than the last one."""
    last = store.tail.last_timestamp
    return errors.TimestampOrder(
        f"timestamp {timestamp} is earlier than the last one, {last}",
        path=store.folder.path,
        last_timestamp=last,
        remedy="send history in order of time, or to a queue of its own",
    )


def starved(path: str, seconds: float) -> errors.QueueFull:
    """Return the error for a sender whose timeout is over, and who always lost the next page."""
    return errors.QueueFull(
        f"other senders filled or sealed each page first, for {seconds:.3g} s, so the message was "
        "not sent",
        path=path,
        held_by=(),
        remedy="send again, with a longer timeout or larger pages",
    )


def overtaken(store: Store, tail_sequence: int) -> errors.Overtaken:
    """Return the error for a send whose sequence another one has."""
    return errors.Overtaken(
        f"the next sequence is {tail_sequence}, another than `at` gave, so nothing was sent",
        path=store.folder.path,
        tail_sequence=tail_sequence,
        remedy="receive what others sent, decide again, and send at the next sequence",
    )


def stalled(store: Store, waited_ns: int) -> errors.LockTimeout:
    """Return the error for a writers' lock that was not free for too long."""
    return errors.LockTimeout(
        f"the writers' lock was held for {waited_ns / NS_PER_S:g} s",
        path=store.folder.path,
        remedy="look for a stopped process that has the queue open (continue or kill it), "
        "then call again",
    )


def no_lock(store: Store, number: int) -> errors.CorruptMeta:
    """Return the error for a writers' lock that was overwritten, or truncated away.

    Raises:
        SystemLimit: the system refused a lock for another reason than the file's content.
    """
    path, words = store.write_meta.path, os.strerror(number)
    if _core.LOCK_NEEDS_FD:  # the lock is not in the file
        raise_typed(OSError(number, words), path, "taking the writers' lock")
    return truncated_meta(path, fmt.WRITE_META_FILE_BYTES) or errors.CorruptMeta(
        f"the writers' lock in this file is corrupt ({words}): the file was overwritten while in "
        "use",
        path=path,
        position=field_of(fmt.WRITE_META, "mutex"),
        reason="writers' lock",
        remedy="close the queue in all processes, then repair it, or restore the file from a copy",
    )


def lost(store: Store, page: WritablePage | None) -> errors.DamageError:
    """Return the error for the write meta, or a page, that was truncated while it was open."""
    meta = store.write_meta
    if page is None or meta.region.broken or not page.region.broken:
        return lost_meta(meta.path, meta.region.lost_at)
    path = store.folder.full(fmt.page_name(store.prefix, page.number))
    return lost_page(path, page.region.lost_at)
