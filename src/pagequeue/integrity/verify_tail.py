"""Verifying the tail: the words that count messages, compared with what stands there.

Others may send meanwhile. What a killed producer had begun is no problem; what no order of steps
can leave behind is one. Words that only look wrong because they moved on are read again.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem
from pagequeue.meta.all_and_read_meta import field_of
from pagequeue.meta.cursor import cursor_files
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.header import decode_header
from pagequeue.page.page import BAD, REASONS, Scan, map_plain

if TYPE_CHECKING:
    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.meta.write_meta import Tail

LAST_TIMESTAMP = field_of(fmt.WRITE_META, "last_timestamp")


class TailCheck:
    """Compares the tail words of a queue, as they were read, with its active page."""

    def __init__(
        self, found: Inspection, meta: AllMeta, tail: Tail, problems: list[Problem]
    ) -> None:
        self.found = found
        self.meta = meta
        self.tail = tail
        self.problems = problems
        self.path = found.folder.full(fmt.write_meta_name(found.prefix))

    def run(self) -> None:
        """Note what is wrong."""
        self._look_for_names()
        number = self.tail.page_number
        try:
            name = fmt.page_name(self.found.prefix, number)
            page = map_plain(self.found.folder, name, self.meta, writable=False)
            data = page.read(0, fmt.PAGE_HEADER_BYTES)
            header = decode_header(data, self.meta.queue_id, number, self.found.path(number))
            if header.first_sequence is not None:
                self._compare(page, header.first_sequence, header.floor_timestamp)
        except errors.SETTLED:
            return  # it was noted where pages are

    def _compare(self, page: _core.Region, first: int, floor: int) -> None:
        tail = self.tail
        if first != tail.first_sequence:
            self._words("first", f"begins with message {tail.first_sequence}, the page {first}")
            return
        counted = Scan(
            *_core.scan(
                page, None, first, fmt.PAGE_HEADER_BYTES, first, tail.sequence, floor,
                _core.INDEX_NONE,
            )
        )  # fmt: skip
        if counted.sequence != tail.sequence:
            return  # damage of a frame, which was noted
        if counted.position != tail.position:
            self._words("tail", f"stands at {tail.position}, messages end at {counted.position}")
            return
        behind = Scan(
            *_core.scan(
                page, None, first, tail.position, tail.sequence, fmt.SEQUENCE_MAX,
                counted.timestamp, _core.INDEX_NONE,
            )
        )  # fmt: skip
        self._behind(behind)
        if tail.last_timestamp < counted.timestamp or (
            tail.last_timestamp > behind.timestamp and self._is_still()
        ):
            reason = f"the last timestamp is {tail.last_timestamp}, by the frames the time is "
            reason += f"{behind.timestamp}"
            self.problems.append(Problem(self.path, LAST_TIMESTAMP, None, reason))

    def _words(self, which: str, reason: str) -> None:
        parity = "odd" if self.tail.page_number & 1 else "even"
        position = field_of(fmt.WRITE_META, f"{which}_{parity}")
        self.problems.append(Problem(self.path, position, None, f"the tail words: {reason}"))

    def _behind(self, scan: Scan) -> None:
        """Look at what stands behind the last message that is counted."""
        page = self.found.path(self.tail.page_number)
        if scan.stopped in BAD:
            reason = f"behind the tail: {REASONS[scan.stopped]}"
            self.problems.append(Problem(page, scan.position, scan.sequence, reason))
        elif scan.whole_sequence != scan.sequence:
            reason = "behind the tail: half of a batch, which nobody sent"
            problem = Problem(page, scan.whole_position, scan.whole_sequence, reason)
            self.problems.append(problem)
        elif scan.stopped == _core.READ_END:
            self._end_mark(page, scan)

    def _end_mark(self, page: str, scan: Scan) -> None:
        """An end mark leads to a page that is there (I10), and has no messages yet."""
        number = self.tail.page_number + 1
        try:
            name = fmt.page_name(self.found.prefix, number)
            following = map_plain(self.found.folder, name, self.meta, writable=False)
        except errors.QueueNotFound:
            reason = "an end mark, and the page that follows is missing"
            self.problems.append(Problem(page, scan.position, scan.sequence, reason))
            return
        except errors.SETTLED:
            return  # it is noted where pages are
        stands = _core.look(following, fmt.PAGE_HEADER_BYTES, scan.sequence)[0]
        if stands == _core.READ_FRAME and self._is_still():
            self._words("tail", f"page {number} has messages, and they do not know it")

    def _is_still(self) -> bool:
        """Whether the words are still as they were read: nobody sent meanwhile."""
        try:
            write = WriteMeta(
                self.found.folder, self.found.prefix, self.meta.queue_id, writable=False
            )
        except errors.SETTLED:
            return False
        return write.tail == self.tail

    def _look_for_names(self) -> None:
        """A file that is written to must have one name only."""
        number, prefix = self.tail.page_number, self.found.prefix
        names = [
            fmt.write_meta_name(prefix), fmt.read_meta_name(prefix),
            fmt.page_name(prefix, number), fmt.index_name(prefix, number),
            fmt.page_name(prefix, number + 1), fmt.index_name(prefix, number + 1),
            *cursor_files(self.found.folder, prefix),
        ]  # fmt: skip
        for name in names:
            status = self.found.folder.status(name)
            if status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                reason = "has another name as well, so nothing is written to it"
                self.problems.append(Problem(self.found.folder.full(name), None, None, reason))
