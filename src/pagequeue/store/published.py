"""What readers see after the tail: messages that a producer published and did not count yet.

A producer publishes first and then advances the tail (P3, P4; M7, M8). If it dies or is stopped in
between, consumers receive and acknowledge those messages all the same, until the next producer
advances the tail (I3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page.page import continues, map_with_header, scan_from

if TYPE_CHECKING:
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.meta.write_meta import Tail
    from pagequeue.system.directory import Directory


def published_end(folder: Directory, prefix: str, meta: AllMeta, tail: Tail) -> int:
    """Return the sequence after the last message that readers find, counted in the tail or not."""
    number, position, sequence = tail.page_number, tail.position, tail.sequence
    first, floor = tail.first_sequence, tail.last_timestamp
    try:
        while True:
            page, header = map_with_header(folder, prefix, meta, number)
            if number > tail.page_number:
                if not continues(page, header, sequence):
                    break
                first, position, floor = sequence, fmt.PAGE_HEADER_BYTES, header.floor_timestamp
            scan = scan_from(page, first, position, sequence, floor)
            sequence = scan.whole_sequence
            if scan.stopped != _core.READ_END or scan.sequence != sequence:
                break
            number += 1
    except errors.NOT_RETRYABLE:
        pass  # the next page is only prepared or damaged, or retention removed this one
    return sequence
