"""Inspection: read every file of a queue's directory without trusting any of them.

Opening a queue stops at the first error; verify, repair and salvage must continue. So each file is
read on its own and its problems are collected. An inspection writes no file and takes no lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.meta.all_meta import AllMeta, read_all_meta
from pagequeue.meta.cursor import CursorMeta, readable_cursors
from pagequeue.meta.group_table import GroupTable
from pagequeue.meta.last_stored import read_stored, sequences_stored
from pagequeue.meta.meta_file import field_of, stored_queue_ids
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.meta.write_meta import WriteMeta
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, first_bytes, inflated_bytes, parse_header, read_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import PROOF, scan_region
from pagequeue.store.published import published_end
from pagequeue.system.file_lock import wrong_lock

if TYPE_CHECKING:
    from pagequeue.meta.write_meta import Tail
    from pagequeue.system.directory import Directory

BEFORE_FRAMES: Final = fmt.PAGE_HEADER_BYTES - fmt.FRAME_ALIGN_BYTES
TAIL_POSITION: Final = field_of(fmt.WRITE_META, "page_number")


@dataclass
class Written:
    """The contents of a plausible write meta.

    Attributes:
        tail: the end of what was written.
        durable_sequence: the durable mark.
        durable_page: the page that contains the mark; 0 = no mark was ever set.
        failed_errno: the failure latch.
        is_trusted: whether the shared state is valid; otherwise the frames determine the tail.
    """

    tail: Tail
    durable_sequence: int
    durable_page: int
    failed_errno: int
    is_trusted: bool


@dataclass
class Inspection:
    """The state of a queue, as its files describe it, without opening the queue.

    Attributes:
        folder: the directory.
        prefix: of the queue's file names.
        names: of all its entries.
        numbers: of the page files, sorted.
        meta: what was fixed at creation; derived from the pages if its own file is damaged; None
            if they do not determine it either.
        head_page: the first readable page.
        head_sequence: its first sequence; None if unknown.
        is_head_known: whether both come from the read meta; otherwise from the first page file.
        written: contents of the write meta; None if it is missing or damaged.
        problems: of all these files except the pages.
        newer: paths of meta files that a newer version wrote.
        denied: errors of meta files that may not be read, by path; their contents are unknown.
    """

    folder: Directory
    prefix: str
    names: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    meta: AllMeta | None = None
    head_page: int = fmt.FIRST_PAGE
    head_sequence: int | None = None
    is_head_known: bool = False
    written: Written | None = None
    problems: list[Problem] = field(default_factory=list)
    newer: set[str] = field(default_factory=set)
    denied: dict[str, errors.AccessDenied] = field(default_factory=dict)

    def note(self, error: errors.PageQueueError) -> None:
        """Add an error to the problems."""
        self.problems.append(problem_of(error))
        if isinstance(error, errors.NewerFormat) and error.path is not None:
            self.newer.add(error.path)
        if isinstance(error, errors.AccessDenied) and error.path is not None:
            self.denied[error.path] = error

    @property
    def awaits_recovery(self) -> bool:
        """Whether the frames, and not the write meta, determine the tail."""
        return self.written is None or not self.written.is_trusted

    @property
    def durable_sequence(self) -> int:
        """Messages below this sequence are durable: none of them may be damaged."""
        known = 0 if self.written is None else self.written.durable_sequence
        return max(known, self.head_sequence or 0)

    def path(self, number: int) -> str:
        """Return the path of a page."""
        return self.folder.full(fmt.page_name(self.prefix, number))

    def header(self, number: int) -> PageHeader:
        """Return a page's header.

        Raises:
            PageQueueError: it is missing, damaged or unreadable.
        """
        if self.meta is None:
            raise errors.CorruptMeta(
                "neither allMeta nor a page determines the queue's id and page size",
                path=self.folder.path,
                position=0,
                reason="missing",
            )
        return read_header(self.folder, self.prefix, self.meta.queue_id, number)

    def queue_id_of(self, number: int) -> bytes | None:
        """Return the queue id in a page's header, None when the header is invalid."""
        name = fmt.page_name(self.prefix, number)
        try:
            return parse_header(first_bytes(self.folder, name), self.folder.full(name)).queue_id
        except errors.NOT_RETRYABLE:
            return None

    def is_unused(self, number: int) -> bool:
        """Whether a page is only prepared: no producer has rolled into it."""
        try:
            return self.header(number).first_sequence is None
        except errors.NOT_RETRYABLE:
            return False

    def first_sequence(self, number: int) -> int | None:
        """Return a page's first sequence, None without a valid header of a finished roll."""
        try:
            header = self.header(number)
        except errors.NOT_RETRYABLE:
            return None
        return None if self.is_left(number, header) else header.first_sequence

    def first_by_frames(self, number: int, page: _core.Region, lowest: int = 0) -> int | None:
        """Return the sequence of a page's first frame, from its checksum alone.

        It is at least `lowest`: a frame with a lower sequence belongs to another page.
        """
        known = [self.first_sequence(n) for n in self.numbers if n < number]
        low = max([lowest, *(first for first in known if first is not None)])
        following = self.first_sequence(number + 1)
        high = fmt.SEQUENCE_MAX if following is None else max(following, low)
        place = low, BEFORE_FRAMES, low, high
        found = _core.resync(page, None, *place, fmt.TIMESTAMP_MIN, fmt.TIMESTAMP_MAX)
        return None if found is None else found[1]

    def is_left(self, number: int, header: PageHeader) -> bool:
        """Whether a header is left from an unfinished roll: the page before has its first sequence.

        A producer died while it rolled, and others continued in the page before, which had space
        for their messages; or a power cut lost what the next roll wrote to this header.
        """
        first, meta = header.first_sequence, self.meta
        if first is None or meta is None or number <= self.head_page or self._is_begun(number):
            return False
        if header.is_compressed:
            return False  # it was sealed
        try:
            page = map_page(self.folder, fmt.page_name(self.prefix, number), meta)
            if _core.peek(page, fmt.PAGE_HEADER_BYTES, first)[0] in PROOF:
                return False
            begun = self.header(number - 1)
            if begun.first_sequence is None:
                return False
            before = map_page(self.folder, fmt.page_name(self.prefix, number - 1), meta)
        except errors.NOT_RETRYABLE:
            return False
        return scan_region(before, None, begun, begun.first_sequence, None).sequence > first

    def _is_begun(self, number: int) -> bool:
        """Whether a page was certainly rolled into, so that its header is the one of that roll."""
        written = self.written
        if written is None:
            return False
        return number <= (written.tail.page_number if written.is_trusted else written.durable_page)


def names_of_queue(folder: Directory, prefix: str) -> list[str]:
    """Return the names of all entries of a directory that has a queue, sorted.

    Raises:
        QueueNotFound: it has no file of such a queue.
    """
    names = sorted(folder.names())
    metas = (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name)
    if not page_numbers(prefix, names) and not any(name(prefix) in names for name in metas):
        raise errors.QueueNotFound(
            f"no queue with prefix {prefix!r} here",
            path=folder.path,
            remedy="check directory and prefix",
        )
    return names


def inspect(folder: Directory, prefix: str) -> Inspection:
    """Inspect a directory.

    Raises:
        QueueNotFound: it has no file of such a queue.
    """
    names = names_of_queue(folder, prefix)
    found = Inspection(folder, prefix, names, page_numbers(prefix, names))
    _check_names(found)
    _check_lock(found)
    _check_meta(found)
    if found.meta is not None:
        _check_head(found, found.meta)
        # Read before the tail, which only grows: so no valid cursor appears to be ahead of it.
        cursors = _cursors(found, found.meta)
        _check_write_meta(found, found.meta)
        _check_cursors(found, cursors)
        _check_stored(found, found.meta)
        _check_sizes(found, found.meta)
    return found


def meta_from_pages(folder: Directory, prefix: str, numbers: list[int]) -> AllMeta | None:
    """Derive what was fixed at creation from the headers and sizes of the pages."""
    votes: Counter[tuple[bytes, int]] = Counter()
    created = []
    stored_ids = stored_queue_ids(folder, prefix)
    for number in numbers:
        name = fmt.page_name(prefix, number)
        try:
            header = parse_header(first_bytes(folder, name), folder.full(name))
            status = folder.status(name)
            size_bytes = 0 if status is None else status.st_size
            if header.is_compressed:
                size_bytes = inflated_bytes(folder, name)
        except errors.NOT_RETRYABLE:
            continue
        if len(stored_ids) > 1 and len(set(stored_ids)) == 1 and header.queue_id != stored_ids[0]:
            continue  # two files agree on another id: this page belongs to another queue
        if fmt.PAGE_BYTES_MIN <= size_bytes <= fmt.PAGE_BYTES_MAX and not (
            size_bytes % fmt.PAGE_BYTES_STEP
        ):
            votes[header.queue_id, size_bytes] += 1
            created.append(header.created)
    if not votes:
        return None
    (queue_id, page_bytes), _ = votes.most_common(1)[0]
    return AllMeta(queue_id, min(created), page_bytes)


def _check_names(found: Inspection) -> None:
    """Note files with malformed page names: no process ever reads them.

    Files of another queue, which has other files than pages too, are not noted.
    """
    nearly = re.compile(rf"{re.escape(found.prefix)}-\d+\.(?:page|idx)", re.IGNORECASE)
    exactly = fmt.page_name_pattern(found.prefix)
    others = {fmt.owner_of(name) for name in found.names if not name.endswith((".page", ".idx"))}
    for name in found.names:
        if not nearly.fullmatch(name):
            continue
        owner, match = fmt.owner_of(name), exactly.fullmatch(name)
        if match is not None and int(match[1]) >= fmt.FIRST_PAGE:
            continue
        if owner is None or owner == found.prefix or owner not in others:
            reason = f"not a page's name, which has {fmt.PAGE_NUMBER_DIGITS} digits: never read"
            found.problems.append(Problem(found.folder.full(name), None, None, reason))


def _check_lock(found: Inspection) -> None:
    reason = wrong_lock(found.folder, fmt.lock_name(found.prefix))
    if reason is not None:
        path = found.folder.full(fmt.lock_name(found.prefix))
        reason = f"{reason}: no process can open the queue for writing"
        found.problems.append(Problem(path, None, None, reason, "access"))


def _check_meta(found: Inspection) -> None:
    """Read what was fixed at creation, or derive it from the pages where that file is damaged."""
    folder, prefix = found.folder, found.prefix
    try:
        found.meta = read_all_meta(folder, prefix)
    except errors.PageQueueError as error:
        found.note(error)
        if not isinstance(error, errors.NewerFormat):
            found.meta = meta_from_pages(folder, prefix, found.numbers)
        return
    path = folder.full(fmt.all_meta_name(prefix))
    status, used = folder.status(fmt.all_meta_name(prefix)), len(found.meta.encode())
    if status is not None and status.st_size != used:
        reason = f"{status.st_size} bytes where {used} are used"
        found.problems.append(Problem(path, used, None, reason))
    if any(found.queue_id_of(number) == found.meta.queue_id for number in found.numbers):
        return
    if found.meta.queue_id in stored_queue_ids(folder, prefix):
        return  # two files agree: the pages belong to another queue and are not counted
    stored_ids = meta_from_pages(folder, prefix, found.numbers)
    if stored_ids is not None:
        position = field_of(fmt.ALL_META, "queue_id")
        reason = "another queue's file: no page here has its queue id"
        found.problems.append(Problem(path, position, None, reason))
        found.meta = stored_ids


def _check_head(found: Inspection, meta: AllMeta) -> None:
    try:
        read = ReadMeta(found.folder, found.prefix, meta.queue_id, writable=False)
    except errors.PageQueueError as error:
        found.note(error)
        if found.numbers:
            found.head_page = found.numbers[0]
            found.head_sequence = found.first_sequence(found.head_page)
        return
    found.head_page, found.head_sequence = read.head
    read.close()
    position, reason = _wrong_head(found, found.head_sequence)
    if reason is None:
        found.is_head_known = True
        return
    path = found.folder.full(fmt.read_meta_name(found.prefix))
    found.problems.append(Problem(path, position, found.head_sequence, reason))
    if found.numbers:
        found.head_page = found.numbers[0]  # so that no existing page is hidden
        found.head_sequence = found.first_sequence(found.head_page)


def _wrong_head(found: Inspection, sequence: int) -> tuple[int, str | None]:
    """Return the position of an invalid field of the read meta and the reason, None if valid."""
    number = found.head_page
    first = found.first_sequence(number) if number in found.numbers else None
    position, reason = ReadMeta.HEAD_PAGE, None
    if not fmt.FIRST_PAGE <= number <= fmt.PAGE_NUMBER_MAX:
        reason = f"head page {number} is out of range"
    elif found.numbers and number > max(_listed_again(found)):
        reason = f"head page {number} does not exist"
    elif found.numbers and number > found.numbers[0] and found.is_unused(number):
        reason = f"head page {number} is only prepared: no producer has rolled into it"
    elif _is_past_pages(found, sequence, first):
        position = ReadMeta.sequence_at(number)
        reason = f"invalid head sequence {sequence}"
    elif first is not None and first != sequence:
        position = ReadMeta.sequence_at(number)
        reason = f"the head is message {sequence}, but the head page begins with message {first}"
    return position, reason


def _is_past_pages(found: Inspection, sequence: int, first: int | None) -> bool:
    """Whether a head sequence is invalid, also where the head page's own header is."""
    if sequence > fmt.SEQUENCE_MAX:
        return True
    if first is not None:
        return False
    later = (found.first_sequence(number) for number in found.numbers if number > found.head_page)
    return any(other is not None and other < sequence for other in later)


def _listed_again(found: Inspection) -> list[int]:
    """Return the page numbers; listed again if rolls and retention moved past the first list."""
    if found.head_page > found.numbers[-1]:
        found.numbers = page_numbers(found.prefix, found.folder.names()) or found.numbers
    return found.numbers


def head_now(found: Inspection) -> int:
    """Return the current head page: retention can have moved it since the inspection."""
    if found.meta is None:
        return found.head_page
    try:
        read = ReadMeta(found.folder, found.prefix, found.meta.queue_id, writable=False)
    except errors.NOT_RETRYABLE:
        return found.head_page
    number = read.head_page
    read.close()
    return number


def _check_write_meta(found: Inspection, meta: AllMeta) -> None:
    """Read the write meta; note invalid fields and the failure latch."""
    try:
        write = WriteMeta(found.folder, found.prefix, meta.queue_id, writable=False)
    except errors.PageQueueError as error:
        found.note(error)
        return
    # The mark before the tail, which only grows: other processes may send and flush in between.
    durable_sequence, durable_page = write.durable_sequence, write.durable_page
    tail = write.tail
    written = Written(tail, durable_sequence, durable_page, write.failed_errno, write.is_recovered)
    write.close()
    path = found.folder.full(fmt.write_meta_name(found.prefix))
    if not written.is_trusted:
        if not _is_possible_mark(found, meta, written):
            mark = written.durable_sequence
            invalid = f"invalid durable mark: the pages cannot hold all messages below {mark}"
            found.problems.append(Problem(path, WriteMeta.DURABLE_SEQUENCE, None, invalid))
            return
        found.written = written
        _check_latch(found, written)
        return
    reason = None
    if not tail.can_be((found.head_page, found.head_sequence or 0), meta.page_bytes):
        reason = f"invalid {tail}"
    elif written.durable_sequence > tail.sequence:
        reason = (
            f"durable mark {written.durable_sequence} is ahead of the tail, "
            f"which is message {tail.sequence}"
        )
    if reason is not None:
        found.problems.append(Problem(path, TAIL_POSITION, None, reason))
        return
    found.written = written
    _check_latch(found, written)


def _is_possible_mark(found: Inspection, meta: AllMeta, written: Written) -> bool:
    """Whether the pages can hold all messages below a durable mark without a trusted tail.

    Pages can be missing, so the count of pages comes from the tail fields, which are in the same
    sector as the mark.
    """
    begun = (
        number for number in reversed(found.numbers) if found.first_sequence(number) is not None
    )
    number = next(begun, found.head_page)
    first = found.first_sequence(number) or found.head_sequence or 0
    last = max(number, written.tail.page_number)
    return (
        written.durable_page <= last
        and written.durable_sequence <= first + (last + 1 - number) * meta.index_capacity
    )


def _check_latch(found: Inspection, written: Written) -> None:
    if written.failed_errno:
        path = found.folder.full(fmt.write_meta_name(found.prefix))
        reason = (
            f"a sync failed ({os.strerror(written.failed_errno)}): messages from here on "
            "may not be on stable storage"
        )
        sequence = written.durable_sequence
        found.problems.append(Problem(path, WriteMeta.FAILED_ERRNO, sequence, reason))


def _check_stored(found: Inspection, meta: AllMeta) -> None:
    """Read the last messages, which retention kept for flows."""
    for sequence in sequences_stored(found.prefix, found.names):
        try:
            read_stored(found.folder, found.prefix, meta.queue_id, sequence)
        except errors.QueueNotFound:
            continue  # retention removed it meanwhile
        except errors.PageQueueError as error:
            found.note(error)


def _cursors(found: Inspection, meta: AllMeta) -> dict[str, tuple[int, str]]:
    """Return the named consumers' next sequences by path; note the cursors that are unreadable."""
    result = {}
    for name, cursor in readable_cursors(found.folder, found.prefix, meta.queue_id):
        if isinstance(cursor, errors.PageQueueError):
            found.note(cursor)
        elif cursor.is_group:
            try:
                group = GroupTable(found.folder, found.prefix, meta.queue_id, name, writable=False)
            except errors.PageQueueError as error:
                found.note(error)
            else:
                result[group.path] = (group.new_sequence if group.is_trusted else 0, "claimed")
        else:
            result[cursor.path] = (cursor.next_sequence, "acknowledged")
    return result


def appended(found: Inspection, meta: AllMeta) -> dict[str, int]:
    """Return the meta files that are longer than their contents: name and bytes used of each."""
    used = {
        fmt.read_meta_name(found.prefix): fmt.READ_META_BYTES,
        fmt.write_meta_name(found.prefix): fmt.WRITE_META_FILE_BYTES,
    }
    for name, cursor in readable_cursors(found.folder, found.prefix, meta.queue_id):
        if isinstance(cursor, errors.PageQueueError):
            continue
        file_name = fmt.cursor_name(found.prefix, name)
        used[file_name] = fmt.CURSOR_META_BYTES
        if cursor.is_group:
            del used[file_name]
            with contextlib.suppress(errors.PageQueueError):
                group = GroupTable(found.folder, found.prefix, meta.queue_id, name, writable=False)
                status = found.folder.status(file_name)
                if status is not None and group.is_appended(status.st_size):
                    used[file_name] = group.size_bytes
    sizes = {name: found.folder.status(name) for name in used}
    return {
        name: used[name]
        for name, status in sizes.items()
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_size > used[name]
    }


def _check_sizes(found: Inspection, meta: AllMeta) -> None:
    """Note what was appended to small files: it is never read, and repair cuts it off."""
    for name, used in appended(found, meta).items():
        path, status = found.folder.full(name), found.folder.status(name)
        if status is not None and not any(problem.file == path for problem in found.problems):
            reason = f"{status.st_size} bytes where {used} are used"
            found.problems.append(Problem(path, used, None, reason))


def _check_cursors(found: Inspection, cursors: dict[str, tuple[int, str]]) -> None:
    """Note the cursors that are ahead of the tail; where recovery is due, it lowers them."""
    if found.written is None or not found.written.is_trusted:
        return
    tail = found.written.tail.sequence
    if found.meta is not None and max((s for s, _ in cursors.values()), default=0) > tail:
        tail = published_end(found.folder, found.prefix, found.meta, found.written.tail)
    for path, (sequence, done) in cursors.items():
        if sequence > tail:
            reason = f"messages below {sequence} are {done}, but the tail is {tail}"
            found.problems.append(Problem(path, CursorMeta.NEXT, None, reason))
