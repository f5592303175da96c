"""Verification of the tail: the shared tail fields against the frames of the active page.

Producers may send meanwhile. An append that a killed producer did not finish is not a problem; a
state that no order of its steps can produce is one. Fields that differ only because the tail moved
are read again.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem
from pagequeue.meta.cursor import cursor_files
from pagequeue.meta.meta_file import field_of
from pagequeue.meta.write_meta import Tail, WriteMeta
from pagequeue.page.page import (
    BAD,
    PROOF,
    REASONS,
    Scan,
    continues,
    map_plain,
    map_with_header,
    scan_from,
    scan_region,
)

if TYPE_CHECKING:
    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_meta import AllMeta

LAST_TIMESTAMP = field_of(fmt.WRITE_META, "last_timestamp")


def followed(found: Inspection, meta: AllMeta, tail: Tail) -> Tail:
    """Return where a bulk commit led from the tail, where its last step is not done (M8).

    Its end-of-page marker publishes the pages; readers follow it before the tail does.
    """
    at = tail
    try:
        page, _ = map_with_header(found.folder, found.prefix, meta, at.page_number)
        while (
            _core.peek(page, at.position, at.sequence)[0] == _core.READ_END
            and is_tail(found, meta, tail)  # other processes go on, too
        ):
            number, first = at.page_number + 1, at.sequence
            page, header = map_with_header(found.folder, found.prefix, meta, number)
            if not continues(page, header, first):
                break
            scan = scan_region(page, None, header, first, None)
            count = scan.whole_sequence - first
            at = Tail(number, scan.whole_position, count, first, scan.whole_timestamp)
    except errors.NOT_RETRYABLE:
        pass  # only prepared, or damaged, which is noted with the pages
    return at


def is_tail(found: Inspection, meta: AllMeta, tail: Tail) -> bool:
    """Whether the tail is still as it was read: no message was sent meanwhile."""
    try:
        write = WriteMeta(found.folder, found.prefix, meta.queue_id, writable=False)
    except errors.NOT_RETRYABLE:
        return False
    return write.tail == tail


class TailCheck:
    """Compares the tail fields of a queue, as they were read, with its active page."""

    def __init__(
        self,
        found: Inspection,
        meta: AllMeta,
        tail: Tail,
        pending: range,
        problems: list[Problem],
    ) -> None:
        self.found = found
        self.meta = meta
        self.tail = tail
        self.pending = pending  # pages of a bulk commit, which can be published already
        self.problems = problems
        self.path: str = found.folder.full(fmt.write_meta_name(found.prefix))

    def run(self) -> None:
        """Note the problems."""
        self._check_names()
        number = self.tail.page_number
        try:
            page, header = map_with_header(self.found.folder, self.found.prefix, self.meta, number)
            if header.first_sequence is not None:
                self._compare(page, header.first_sequence, header.floor_timestamp)
        except errors.NOT_RETRYABLE:
            return  # noted with the pages

    def _compare(self, page: _core.Region, first: int, floor: int) -> None:
        tail = self.tail
        if first != tail.first_sequence:
            reason = f"the first message is {tail.first_sequence}, in the page {first}"
            self._note("first", reason)
            return
        counted = scan_from(page, first, fmt.PAGE_HEADER_BYTES, first, floor, end=tail.sequence)
        if counted.sequence != tail.sequence:
            return  # a damaged frame, noted with the pages
        if counted.position != tail.position:
            reason = f"the position is {tail.position}, messages end at {counted.position}"
            self._note("tail", reason)
            return
        after = scan_from(page, first, tail.position, tail.sequence, counted.timestamp)
        self._check_after(after)
        if tail.last_timestamp < counted.timestamp or (
            tail.last_timestamp > after.timestamp and self._is_unchanged()
        ):
            reason = f"the last timestamp is {tail.last_timestamp}, in the frames {after.timestamp}"
            self.problems.append(Problem(self.path, LAST_TIMESTAMP, None, reason))

    def _note(self, which: str, reason: str) -> None:
        parity = "odd" if self.tail.page_number & 1 else "even"
        position = field_of(fmt.WRITE_META, f"{which}_{parity}")
        self.problems.append(Problem(self.path, position, None, f"wrong tail: {reason}"))

    def _check_after(self, scan: Scan) -> None:
        """Check what follows the last message that the tail counts."""
        page = self.found.path(self.tail.page_number)
        if scan.stopped in BAD:
            reason = f"after the tail: {REASONS[scan.stopped]}"
            self.problems.append(Problem(page, scan.position, scan.sequence, reason))
        elif scan.whole_sequence != scan.sequence:
            reason = "after the tail: half of a batch, which was never sent"
            problem = Problem(page, scan.whole_position, scan.whole_sequence, reason)
            self.problems.append(problem)
        elif scan.stopped == _core.READ_END:
            self._end_mark(page, scan)

    def _end_mark(self, page: str, scan: Scan) -> None:
        """Check that the page after an end-of-page marker exists (I10) and has no messages yet."""
        number = self.tail.page_number + 1
        try:
            name = fmt.page_name(self.found.prefix, number)
            following = map_plain(self.found.folder, name, self.meta, writable=False)
        except errors.QueueNotFound:
            reason = "an end-of-page marker, but the next page is missing"
            self.problems.append(Problem(page, scan.position, scan.sequence, reason))
            return
        except errors.NOT_RETRYABLE:
            return  # noted with the pages
        state = _core.peek(following, fmt.PAGE_HEADER_BYTES, scan.sequence)[0]
        if state in PROOF and number not in self.pending and self._is_unchanged():
            self._note("tail", f"it is before page {number}, which has messages")

    def _is_unchanged(self) -> bool:
        return is_tail(self.found, self.meta, self.tail)

    def _check_names(self) -> None:
        """Check that each file that processes write to has a single name."""
        number, prefix = self.tail.page_number, self.found.prefix
        names = [
            fmt.write_meta_name(prefix),
            fmt.read_meta_name(prefix),
            fmt.page_name(prefix, number),
            fmt.index_name(prefix, number),
            fmt.page_name(prefix, number + 1),
            fmt.index_name(prefix, number + 1),
            *cursor_files(self.found.folder, prefix),
        ]
        for name in names:
            status = self.found.folder.status(name)
            if status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                reason = "has another name as well, so no process writes to it"
                self.problems.append(Problem(self.found.folder.full(name), None, None, reason))
