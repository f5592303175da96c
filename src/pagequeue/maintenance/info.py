"""Info: the parameters and the extent of a queue at one time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.maintenance.consumers import ConsumerInfo, consumers
from pagequeue.meta.meta_file import field_of
from pagequeue.page.fragments import content_end
from pagequeue.util.timestamps import NS_PER_S, to_datetime

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np

    from pagequeue.store.store import Store


@dataclass(frozen=True)
class Info:
    """A queue at one time.

    Attributes:
        directory: its path.
        prefix: of its file names.
        format_version: of its files.
        created: when the queue was created.
        page_bytes: size of each page file.
        dtype: of its fixed records, None when messages are of any size.
        codec: name of the codec that encodes objects; "bytes": payloads are bytes.
        page_count: retained pages, including the active one.
        compressed_page_count: compressed pages among them.
        head_page: number of the first of them.
        tail_page: number of the active one.
        head_sequence: of the first retained message.
        tail_sequence: of the next message to be sent.
        durable_sequence: of the first message that is not known to be on stable storage.
        message_count: retained messages.
        used_bytes: of frames, fragments of large messages and page headers.
        file_bytes: allocated on disk for all files of the queue, as `du` counts them: indexes,
            spare pages, files of consumers and groups, staged rows and a journal's snapshots too.
            The dead letters of a group are a queue of their own.
        head_time: of the first retained message, None if the queue is empty.
        tail_time: of the last message, None if the queue is empty.
        seconds_ahead: how far the last message's time is ahead of the clock, 0 if it is not; later
            messages get its time until then, and `repair` with `times` sets it to now.
        clock_off_seconds: how far the clock is off what it should show, while it is doubted; else
            0. Below 0: it is behind.
        sync_failed: whether the failure latch is set.
        consumers: named consumers and groups, in order of their names.

    Example:
        >>> queue.info().message_count
        5
    """

    directory: str
    prefix: str
    format_version: int
    created: datetime
    page_bytes: int
    dtype: np.dtype[np.void] | None
    codec: str
    page_count: int
    compressed_page_count: int
    head_page: int
    tail_page: int
    head_sequence: int
    tail_sequence: int
    durable_sequence: int
    message_count: int
    used_bytes: int
    file_bytes: int
    head_time: datetime | None
    tail_time: datetime | None
    seconds_ahead: float
    clock_off_seconds: float
    sync_failed: bool
    consumers: list[ConsumerInfo]


class SealedPage(NamedTuple):
    """What was found in a sealed page: the size of its file, and where its frames end."""

    file_bytes: int
    used_bytes: int
    is_compressed: bool


def info(store: Store, known: dict[int, SealedPage]) -> Info:
    """Return the current parameters and extent of a queue.

    Args:
        store: of the queue.
        known: what earlier calls found in sealed pages, by number; it is updated.

    Raises:
        CorruptMeta: the write meta was overwritten while it was open.
    """
    return store.while_retained(partial(_info, store, known))


def _info(store: Store, known: dict[int, SealedPage]) -> Info:
    head_page, head_sequence = store.head  # before the tail, which only grows
    durable_sequence = store.write_meta.durable_sequence  # the same
    tail = store.tail
    if not tail.can_be((head_page, head_sequence), store.meta.page_bytes):
        raise errors.CorruptMeta(
            f"invalid {tail}",
            remedy="close the queue everywhere, repair it, or restore the file from a copy",
            path=store.write_meta.path,
            position=field_of(fmt.WRITE_META, "page_number"),
            reason="tail",
        )
    count = tail.sequence - head_sequence
    sealed = range(head_page, tail.page_number)
    now = store.clock()
    pages = _sealed_pages(store, sealed, known)
    return Info(
        directory=store.folder.path,
        prefix=store.prefix,
        format_version=fmt.FORMAT_VERSION,
        created=to_datetime(store.meta.created),
        page_bytes=store.meta.page_bytes,
        dtype=store.schema.dtype,
        codec=store.schema.codec,
        page_count=len(sealed) + 1,
        compressed_page_count=sum(page.is_compressed for page in pages),
        head_page=head_page,
        tail_page=tail.page_number,
        head_sequence=head_sequence,
        tail_sequence=tail.sequence,
        durable_sequence=durable_sequence,
        message_count=count,
        used_bytes=tail.position + sum(page.used_bytes for page in pages),
        file_bytes=store.file_bytes(),
        head_time=to_datetime(store.time_at(head_sequence)) if count else None,
        tail_time=to_datetime(store.time_at(tail.sequence - 1)) if count else None,
        seconds_ahead=max(0, tail.last_timestamp - now) / NS_PER_S if count else 0.0,
        clock_off_seconds=store.clock.doubted_ns / NS_PER_S,
        sync_failed=store.write_meta.failed_errno != 0,
        consumers=consumers(store),
    )


def _sealed_pages(store: Store, numbers: range, known: dict[int, SealedPage]) -> list[SealedPage]:
    """Return the used and file bytes of sealed pages.

    Each page is mapped once; later calls only check that its file still has the same size.
    """
    for number in [number for number in list(known) if number < numbers.start]:
        known.pop(number, None)
    found = []
    for number in numbers:
        status = store.folder.status(fmt.page_name(store.prefix, number))
        file_bytes = -1 if status is None else status.st_size
        page = known.get(number)
        if page is None or page.file_bytes != file_bytes:
            if page is not None:
                store.forget(number)  # the map is of the file that this one replaced
            mapped = store.page(number)
            end = store.end_sequence(number)
            # The position of its end-of-page marker.
            count = end - mapped.first_sequence
            used_bytes = mapped.locate(end, count, repair=store.may_repair)
            if count <= 1:  # a page with a fragment has no more messages
                region = mapped.ready(used_bytes)
                used_bytes = content_end(region, used_bytes, end, mapped.path) or used_bytes
            page = known[number] = SealedPage(
                file_bytes, used_bytes, is_compressed=mapped.is_compressed
            )
        found.append(page)
    return found
