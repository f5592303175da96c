"""Sending what does not fit into one page: large messages, and batches of any size.

All of it is written to staged pages first, while other producers go on, and is then published by
one store.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.bulk.chunk import fits_one_page, fixed_chunk
from pagequeue.bulk.publisher import (
    BulkPublisher,
    check_no_ring,
    refuse_at_once,
    too_many_pages,
)
from pagequeue.bulk.staged_pages import stage
from pagequeue.bulk.staging_directory import StagingDirectory
from pagequeue.columns.inputs import check_count
from pagequeue.page.fragments import fragment_count
from pagequeue.send.refusals import overtaken

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.send.queue_end import QueueEnd
    from pagequeue.store.store import Store


def append_pages(
    end: QueueEnd,
    payloads: Any,  # noqa: ANN401 - or columns
    times: bytes | None,
    *,
    at: int | None = None,
    timeout: float | None = None,
    check: Callable[[], None] | None = None,
    synced: bool = True,
    unless_one: bool = False,
) -> range | None:
    """Send messages of any size, all of them or none.

    Args:
        end: of the queue.
        payloads: a sequence of bytes-like objects, or columns.
        times: int64, one for each; None: now.
        at: the sequence that the first one must get; None: any.
        timeout: seconds to wait for room; None: the queue's `full_timeout`.
        check: called now and then; raises if the messages are not to be sent any more.
        synced: whether they are put on stable storage before they are visible, because the sender
            will flush them, and others should not wait for that.
        unless_one: whether to send nothing if they fit into one page.

    Returns:
        their sequences; None: they fit into one page.

    Raises:
        MessageTooLarge: retention's `max_bytes` cannot hold them, or a payload exceeds 2**40 bytes.
        Overtaken: the next sequence is another than `at`.
        RecordSize: the queue has records of another size.
        TimestampOrder, DiskFull, QueueFull, LockTimeout, SyncFailed: as for `Producer.send`.
    """
    # FORMAT.md, "Publishing pages"; keeps I19 and I23.
    store = end._store  # noqa: SLF001 - no user's
    moments = None if times is None else np.frombuffer(times, np.int64)
    with contextlib.ExitStack() as held:
        chunk = fixed_chunk(store.meta, payloads, moments, held)
        check_count(times, len(chunk.lengths))  # other threads can change a list until here
        if unless_one and fits_one_page(store.meta, chunk.lengths):
            return None
        refuse_at_once(store, check_size(store, chunk.lengths), timeout, check)
        if at is not None and at != store.tail.sequence:
            raise overtaken(store, store.tail.sequence)
        with store.folder.descriptor:
            staging = StagingDirectory(store)
            with staging as folder:
                staged = stage(store, folder, [chunk], check, synced=synced)
                held.close()
                deadline = store.limits.deadline(timeout)
                with BulkPublisher(store, deadline, staging) as publisher:
                    return publisher.append(end, staged, at, deadline - time.monotonic(), check)


def check_size(store: Store, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Return how many pages messages of these sizes take, or some fewer.

    Raises:
        MessageTooLarge: they can never be in the queue together.
    """
    largest = int(lengths.max(initial=0))
    if largest > fmt.LARGE_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"a payload of {largest} bytes; it has at most {fmt.LARGE_BYTES_MAX}",
            path=store.folder.path,
            size_bytes=largest,
            limit_bytes=fmt.LARGE_BYTES_MAX,
            remedy="split it",
        )
    check_no_ring(store, int(lengths.sum()))
    limit = store.limits.pages
    page_bytes = store.meta.page_bytes
    payload_bytes_max = fmt.payload_bytes_max(page_bytes)
    large = lengths[lengths > payload_bytes_max] if largest > payload_bytes_max else lengths[:0]
    small_bytes = int(lengths.sum() - large.sum())
    small_bytes += (len(lengths) - len(large)) * fmt.FRAME_HEADER_BYTES
    pages = 1 + small_bytes // page_bytes
    pages += sum(fragment_count(page_bytes, size) for size in large.tolist())
    pages |= 1  # a commit has an odd number of them
    if pages >= limit:
        raise too_many_pages(store, pages, int(lengths.sum()))
    return pages
