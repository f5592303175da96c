"""Finds which pages of a ring to keep after a power cut.

A ring is trimmed without a sync (FORMAT.md, "Rings"). So the head on the disk can be an older one,
pages after it can be gone, and a page that was used again can have its old name, its old header, or
bytes of both. All of that is before the true head, or after the durable mark: every page between
them was synced, with its name, when the mark was raised. What is kept is therefore one run of whole
pages: the one that has the durable mark, or else, where retention passed the mark, the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import decode_header
from pagequeue.page.page import scan_region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.system.directory import Directory


class Found(NamedTuple):
    """A page whose header is right: its frames as far as they are whole."""

    number: int
    first: int
    end: int
    timestamp: int
    is_sealed: bool


def kept_run(
    folder: Directory, prefix: str, meta: AllMeta, numbers: Iterable[int], durable_sequence: int
) -> tuple[list[Found], list[Found]]:
    """Return the pages to keep, consecutive and whole up to the last one, and all that were found.

    None is kept where no page has the durable mark, and none begins after it.

    Args:
        folder: of the queue.
        prefix: of its file names.
        meta: of the queue.
        numbers: of the page files, ascending.
        durable_sequence: the mark on the disk.
    """
    runs: list[list[Found]] = []
    found = [page for number in numbers if (page := _found(folder, prefix, meta, number))]
    for page in found:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and last.is_sealed
            and last.number + 1 == page.number
            and last.end == page.first
        ):
            runs[-1].append(page)
        else:
            runs.append([page])
    for run in reversed(runs):
        if run[0].first <= durable_sequence <= run[-1].end:
            return run, found
    later = [run for run in runs if run[0].first > durable_sequence]
    return (later[-1] if later else []), found


def _found(folder: Directory, prefix: str, meta: AllMeta, number: int) -> Found | None:
    """Return a page and what is whole in it; None: it has another page's header, or a torn one."""
    name = fmt.page_name(prefix, number)
    try:
        region = map_page(folder, name, meta)
        data = region.read(0, fmt.PAGE_HEADER_BYTES)
        header = decode_header(data, meta.queue_id, number, folder.full(name))
    except (errors.DamageError, errors.QueueNotFound):
        return None
    first = header.first_sequence
    if first is None:
        return None
    scan = scan_region(region, None, header, first, None)
    is_sealed = scan.stopped == _core.READ_END and scan.whole_sequence == scan.sequence
    return Found(number, first, scan.whole_sequence, scan.whole_timestamp, is_sealed)
