"""What a producer refuses, in words: one error for each event of the core that nothing settles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.meta.all_and_read_meta import field_of
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from pagequeue.send.producer import Producer
    from pagequeue.store.store import Store

SIZES: Final = {_core.EVENT_TOO_LARGE, _core.EVENT_BATCH_TOO_LARGE, _core.EVENT_WRONG_SIZE}


def refusal(producer: Producer, event: int, value: int) -> errors.PageQueueError:
    """Return the error for what cannot be settled.

    Raises:
        SystemLimit: the system refused a lock that does not stand in the file.
    """
    store = producer._store  # noqa: SLF001 - its own package
    path = store.folder.path
    error: errors.PageQueueError
    if event == _core.EVENT_CLOSED:
        error = producer._closed_error()  # noqa: SLF001 - the same
    elif event == _core.EVENT_FORKED:
        error = errors.ForkedError(
            "this producer belongs to the parent process: open the queue in the child", path=path
        )
    elif event in SIZES:
        error = _wrong_size(store, event, value, producer._fitting)  # noqa: SLF001 - the same
    elif event == _core.EVENT_OLD_TIMESTAMP:
        last = store.tail.last_timestamp
        error = errors.TimestampOrder(
            f"timestamp {value} is earlier than the last one, {last}: "
            "send history in order of time, or into a queue of its own",
            path=path, last_timestamp=last,
        )  # fmt: skip
    elif event == _core.EVENT_STALLED:
        error = errors.LockTimeout(
            f"the writers' lock was held for {value / 1e9:g} s: look for a stopped process "
            "that has the queue open (it can be continued or killed), then call again",
            path=path,
        )
    elif event == _core.EVENT_LOST:
        error = producer._lost(producer._page)  # noqa: SLF001 - the same
    elif event == _core.EVENT_NO_LOCK:
        error = _no_lock(store, value)
    elif event == _core.EVENT_EXHAUSTED:
        error = errors.SequencesExhausted("no sequence is left: start a new queue", path=path)
    else:
        error = store.page(producer._page_number).damage(None)  # noqa: SLF001 - the same
    return error


def _no_lock(store: Store, number: int) -> errors.CorruptMeta:
    """Return the error for a writers' lock that was overwritten.

    Raises:
        SystemLimit: the system refused a lock that does not stand in the file.
    """
    path, words = store.write_meta.path, os.strerror(number)
    if _core.LOCK_NEEDS_FD:  # then nothing that stands in the file decides
        raise_typed(OSError(number, words), path, "taking the writers' lock")
    return errors.CorruptMeta(
        f"its writers' lock is none ({words}): it was overwritten while it was open; close the "
        "queue everywhere, repair it, or restore the file from a copy",
        path=path, position=field_of(fmt.WRITE_META, "mutex"), reason="writers' lock",
    )  # fmt: skip


def _too_large(store: Store, size_bytes: int) -> errors.MessageTooLarge:
    limit = fmt.payload_bytes_max(store.meta.page_bytes)
    return errors.MessageTooLarge(
        f"a payload of {size_bytes} bytes does not fit into a page, which holds {limit}",
        path=store.folder.path, size_bytes=size_bytes, limit_bytes=limit,
        remedy="split it, or create the queue with larger page_bytes",
    )  # fmt: skip


def _batch_too_large(store: Store, size_bytes: int, fitting: int) -> errors.MessageTooLarge:
    limit = store.meta.page_bytes - fmt.PAGE_HEADER_BYTES - fmt.FRAME_HEADER_BYTES
    return errors.MessageTooLarge(
        f"a batch of {size_bytes} bytes with its headers does not fit into a page of "
        f"{limit} bytes and {store.meta.index_capacity} messages, its first {fitting} messages do",
        path=store.folder.path, size_bytes=size_bytes, limit_bytes=limit, fitting_count=fitting,
        remedy=f"send it in parts, as rows[:{fitting}] and so on, or create the queue with larger "
        "page_bytes",
    )  # fmt: skip


def _wrong_size(
    store: Store, event: int, size_bytes: int, fitting: int
) -> errors.MessageTooLarge | errors.RecordSize:
    if event == _core.EVENT_TOO_LARGE:
        return _too_large(store, size_bytes)
    if event == _core.EVENT_BATCH_TOO_LARGE:
        return _batch_too_large(store, size_bytes, fitting)
    dtype = store.schema.dtype
    record_bytes = store.schema.record_bytes
    return errors.RecordSize(
        f"a payload of {size_bytes} bytes is no record of {record_bytes} bytes, dtype {dtype}: "
        "send such records, or messages of any size to a queue without dtype",
        path=store.folder.path, size_bytes=size_bytes, record_bytes=record_bytes,
    )  # fmt: skip
