"""Pages: what the retained pages of a queue hold, one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.page.header import PageHeader, decode_header
from pagequeue.page.page import missing_page
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from pagequeue.store.store import Store

ACTIVE, SEALED = "active", "sealed"


@dataclass(frozen=True)
class PageInfo:
    """A page of a queue at one time.

    Attributes:
        number: of the page; 1 is the first one.
        path: of its file, absolute.
        state: `"active"` for the page that messages are written to, `"sealed"` for all others.
        first_sequence: of its first message.
        end_sequence: one past its last message; the same for a page without messages.
        first_timestamp: when its first message was sent, ns since 1970, UTC; None: it has no
            message, or the first one is damaged.
        last_timestamp: the same of its last message; None: it has no message.
        bytes: size of its file; a page that is not compressed always has `page_bytes`.
        compressed: whether it is compressed.

    Example:
        >>> [(page.number, page.state, page.end_sequence) for page in queue.pages()]
        [(1, 'active', 5)]
    """

    number: int
    path: str
    state: str
    first_sequence: int
    end_sequence: int
    first_timestamp: int | None
    last_timestamp: int | None
    bytes: int
    compressed: bool


class _Found(NamedTuple):
    header: PageHeader
    file_bytes: int


def pages(store: Store) -> list[PageInfo]:
    """Return the retained pages, oldest first.

    Raises:
        CorruptPage, MissingPage: a page is damaged or missing.
    """
    return store.while_retained(partial(_pages, store))


def _pages(store: Store) -> list[PageInfo]:
    head_page, _ = store.head  # before the tail, which only grows
    tail = store.tail
    numbers = range(head_page, tail.page_number + 1)
    found = [_header(store, number) for number in numbers]
    result = []
    for number, (header, file_bytes) in zip(numbers, found, strict=True):
        is_active = number == tail.page_number
        if is_active:
            first, end, last = tail.first_sequence, tail.sequence, tail.last_timestamp
        else:
            after = found[number + 1 - head_page].header
            first, end = _first(store, header), _first(store, after)
            last = after.floor_timestamp
        is_empty = first == end
        result.append(
            PageInfo(
                number,
                store.folder.full(fmt.page_name(store.prefix, number)),
                ACTIVE if is_active else SEALED,
                first,
                end,
                None if is_empty else store.own_first_timestamp(number),
                None if is_empty else last,
                file_bytes,
                header.is_compressed,
            )
        )
    return result


def _header(store: Store, number: int) -> _Found:
    """Return a page's header and the size of its file, both of one file.

    Raises:
        Expired: retention removed it meanwhile. MissingPage: it should exist.
    """
    name = fmt.page_name(store.prefix, number)
    path = store.folder.full(name)
    try:
        with store.folder.opened(name, writable=False) as fd:
            try:
                data, status = os.pread(fd, fmt.PAGE_HEADER_BYTES, 0), os.fstat(fd)
            except OSError as error:
                raise_typed(error, path, "reading the page's header")
    except errors.QueueNotFound as error:
        if number < store.read_meta.head_page:
            raise store.expired() from error
        raise missing_page(path, number) from error
    return _Found(decode_header(data, store.meta.queue_id, number, path), status.st_size)


def _first(store: Store, header: PageHeader) -> int:
    """Return the first sequence in the header of a page that was rolled into."""
    if header.first_sequence is None:
        return store.first_sequence(header.page_number)  # the active page before a recovery
    return header.first_sequence
