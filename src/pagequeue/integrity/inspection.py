"""What stands in a queue's directory, trusting none of it.

Opening a queue stops at the first thing that is wrong; verify, repair and salvage must go on. So
here every file is looked at by itself, and what is wrong with it is noted. Nothing is written and
no lock is taken.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.format import group_bytes
from pagequeue.integrity.inspection_meta import Written, look_at_words
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.meta.all_and_read_meta import (
    AllMeta,
    ReadMeta,
    field_of,
    queue_ids_said,
    read_all_meta,
)
from pagequeue.meta.cursor import CursorMeta, readable_cursors
from pagequeue.meta.group_table import GroupTable
from pagequeue.meta.last_stored import read_stored, sequences_stored
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, first_bytes, inflated_bytes, parse_header, read_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import PROOF, scan_region
from pagequeue.system.file_lock import wrong_lock

if TYPE_CHECKING:
    from pagequeue.system.directory import Directory


@dataclass
class Inspection:
    """All that can be said of a directory without opening the queue.

    Attributes:
        folder: the directory.
        prefix: of the queue's file names.
        names: of all that stands there.
        numbers: of the page files, sorted.
        meta: what was fixed at creation; from the pages, if its own file is damaged; None if
            nothing says it.
        head_page: the first readable page.
        head_sequence: its first sequence; None if nothing says it.
        is_head_known: whether the read meta says both; else the first page that is there does.
        written: what the write meta says; None if it is missing or damaged.
        problems: what is wrong with all these files, pages apart.
        newer: paths of meta files that a newer version wrote.
        denied: errors of those that may not be read, by path: nobody knows what they say.
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

    def wrong(self, error: errors.PageQueueError) -> None:
        """Note what an error says."""
        self.problems.append(problem_of(error))
        if isinstance(error, errors.NewerFormat) and error.path is not None:
            self.newer.add(error.path)
        if isinstance(error, errors.AccessDenied) and error.path is not None:
            self.denied[error.path] = error

    @property
    def awaits_recovery(self) -> bool:
        """Whether the frames, and not the write meta, say where the end is."""
        return self.written is None or not self.written.is_trusted

    @property
    def durable_sequence(self) -> int:
        """No message below it may be damaged."""
        known = 0 if self.written is None else self.written.durable_sequence
        return max(known, self.head_sequence or 0)

    def path(self, number: int) -> str:
        """Return the path of a page."""
        return self.folder.full(fmt.page_name(self.prefix, number))

    def header(self, number: int) -> PageHeader:
        """Return a page's header.

        Raises:
            PageQueueError: whatever is wrong with it.
        """
        if self.meta is None:
            raise errors.CorruptMeta(
                "nothing says what the queue was like", path=self.folder.path,
                position=0, reason="missing",
            )  # fmt: skip
        return read_header(self.folder, self.prefix, self.meta.queue_id, number)

    def queue_id_of(self, number: int) -> bytes | None:
        """Return the queue id in a page's header, None when it does not say one."""
        name = fmt.page_name(self.prefix, number)
        try:
            return parse_header(first_bytes(self.folder, name), self.folder.full(name)).queue_id
        except errors.SETTLED:
            return None

    def is_unused(self, number: int) -> bool:
        """Whether a page says that it is only made ready."""
        try:
            return self.header(number).first_sequence is None
        except errors.SETTLED:
            return False

    def first_sequence(self, number: int) -> int | None:
        """Return a page's first sequence, None when it does not say, or says what nobody meant."""
        try:
            header = self.header(number)
        except errors.SETTLED:
            return None
        return None if self.is_left(number, header) else header.first_sequence

    def is_left(self, number: int, header: PageHeader) -> bool:
        """Whether a page says a sequence that a message in the page before has.

        A producer died while it rolled, and others went on in the page before, which had room for
        what they sent; or a power cut took what the next roll wrote there.
        """
        first, meta = header.first_sequence, self.meta
        if first is None or meta is None or number <= self.head_page or self._is_begun(number):
            return False
        if header.is_compressed:
            return False  # it was sealed
        try:
            page = map_page(self.folder, fmt.page_name(self.prefix, number), meta)
            if _core.look(page, fmt.PAGE_HEADER_BYTES, first)[0] in PROOF:
                return False
            begun = self.header(number - 1)
            if begun.first_sequence is None:
                return False
            before = map_page(self.folder, fmt.page_name(self.prefix, number - 1), meta)
        except errors.SETTLED:
            return False
        return scan_region(before, None, begun, begun.first_sequence, None).sequence > first

    def _is_begun(self, number: int) -> bool:
        """Whether a page was rolled into for certain, and the header that it got then is there."""
        written = self.written
        if written is None:
            return False
        return number <= (written.tail.page_number if written.is_trusted else written.durable_page)


def survey(folder: Directory, prefix: str) -> Inspection:
    """Look at a directory.

    Raises:
        QueueNotFound: there is no file of such a queue at all.
    """
    found = Inspection(folder, prefix, names=sorted(folder.names()))
    found.numbers = page_numbers(prefix, found.names)
    metas = (fmt.all_meta_name, fmt.write_meta_name, fmt.read_meta_name)
    if not found.numbers and not any(name(prefix) in found.names for name in metas):
        raise errors.QueueNotFound(
            f"no queue with prefix {prefix!r} here: check directory and prefix", path=folder.path
        )
    _look_at_names(found)
    _look_at_lock(found)
    _look_at_meta(found)
    if found.meta is not None:
        _look_at_head(found, found.meta)
        # Before the tail, which only grows: then no cursor can seem to be ahead of it.
        cursors = _cursors(found, found.meta)
        look_at_words(found, found.meta)
        _look_at_cursors(found, cursors)
        _look_at_stored(found, found.meta)
        _look_at_sizes(found, found.meta)
    return found


def meta_from_pages(folder: Directory, prefix: str, numbers: list[int]) -> AllMeta | None:
    """Return what was fixed at creation as the pages' headers and sizes say it."""
    votes: Counter[tuple[bytes, int]] = Counter()
    created = []
    said = queue_ids_said(folder, prefix)
    for number in numbers:
        name = fmt.page_name(prefix, number)
        try:
            header = parse_header(first_bytes(folder, name), folder.full(name))
            status = folder.status(name)
            size_bytes = 0 if status is None else status.st_size
            if header.is_compressed:
                size_bytes = inflated_bytes(folder, name)
        except errors.SETTLED:
            continue
        if len(said) > 1 and len(set(said)) == 1 and header.queue_id != said[0]:
            continue  # two files agree on another id: this page is of another queue
        if fmt.PAGE_BYTES_MIN <= size_bytes <= fmt.PAGE_BYTES_MAX and not (
            size_bytes % fmt.PAGE_BYTES_STEP
        ):
            votes[header.queue_id, size_bytes] += 1
            created.append(header.created)
    if not votes:
        return None
    (queue_id, page_bytes), _ = votes.most_common(1)[0]
    return AllMeta(queue_id, min(created), page_bytes)


def _look_at_names(found: Inspection) -> None:
    """Note files whose names are nearly those of pages: nobody will ever read them.

    Not those of another queue, which has more files than pages.
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


def _look_at_lock(found: Inspection) -> None:
    reason = wrong_lock(found.folder, fmt.lock_name(found.prefix))
    if reason is not None:
        path = found.folder.full(fmt.lock_name(found.prefix))
        reason = f"{reason}: nobody can open the queue for writing"
        found.problems.append(Problem(path, None, None, reason, "access"))


def _look_at_meta(found: Inspection) -> None:
    """Read what was fixed at creation; the pages say it too, and are asked where that is wrong."""
    folder, prefix = found.folder, found.prefix
    try:
        found.meta = read_all_meta(folder, prefix)
    except errors.PageQueueError as error:
        found.wrong(error)
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
    if found.meta.queue_id in queue_ids_said(folder, prefix):
        return  # two files agree: the pages are another queue's, and none of its messages counts
    said = meta_from_pages(folder, prefix, found.numbers)
    if said is not None:
        position = field_of(fmt.ALL_META, "queue_id")
        reason = "another queue's file: no page here has its queue id"
        found.problems.append(Problem(path, position, None, reason))
        found.meta = said


def _look_at_head(found: Inspection, meta: AllMeta) -> None:
    try:
        read = ReadMeta(found.folder, found.prefix, meta.queue_id, writable=False)
    except errors.PageQueueError as error:
        found.wrong(error)
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
        found.head_page = found.numbers[0]  # nothing that is there is hidden
        found.head_sequence = found.first_sequence(found.head_page)


def _wrong_head(found: Inspection, sequence: int) -> tuple[int, str | None]:
    """Return which word of the read meta cannot be, and why; None for why when both can."""
    number = found.head_page
    first = found.first_sequence(number) if number in found.numbers else None
    position, reason = ReadMeta.HEAD_PAGE, None
    if not fmt.FIRST_PAGE <= number <= fmt.PAGE_NUMBER_MAX:
        reason = f"page {number} cannot be the first"
    elif found.numbers and number > max(_listed_again(found)):
        reason = f"says that reading begins in page {number}, and there is none"
    elif found.numbers and number > found.numbers[0] and found.is_unused(number):
        reason = f"says that reading begins in page {number}, which is only made ready"
    elif _is_past_pages(found, sequence, first):
        position = ReadMeta.sequence_at(number)
        reason = f"says that reading begins with message {sequence}, which cannot be"
    elif first is not None and first != sequence:
        position = ReadMeta.sequence_at(number)
        reason = f"says that reading begins with message {sequence}, the page {first}"
    return position, reason


def _is_past_pages(found: Inspection, sequence: int, first: int | None) -> bool:
    """Whether a head sequence cannot be, although its page does not say where it begins."""
    if sequence > fmt.SEQUENCE_MAX:
        return True
    if first is not None:
        return False
    later = (found.first_sequence(number) for number in found.numbers if number > found.head_page)
    return any(other is not None and other < sequence for other in later)


def _listed_again(found: Inspection) -> list[int]:
    """Return the page numbers; listed anew, if rolls and retention went on past the first list."""
    if found.head_page > found.numbers[-1]:
        found.numbers = page_numbers(found.prefix, found.folder.names()) or found.numbers
    return found.numbers


def head_now(found: Inspection) -> int:
    """Return the head page as of now, when retention can have gone on since the survey."""
    if found.meta is None:
        return found.head_page
    try:
        read = ReadMeta(found.folder, found.prefix, found.meta.queue_id, writable=False)
    except errors.SETTLED:
        return found.head_page
    number = read.head_page
    read.close()
    return number


def _look_at_stored(found: Inspection, meta: AllMeta) -> None:
    """Read the last messages that retention kept for flows."""
    for sequence in sequences_stored(found.prefix, found.names):
        try:
            read_stored(found.folder, found.prefix, meta.queue_id, sequence)
        except errors.QueueNotFound:
            continue  # retention removed it meanwhile
        except errors.PageQueueError as error:
            found.wrong(error)


def _cursors(found: Inspection, meta: AllMeta) -> dict[str, tuple[int, str]]:
    """Return where the named consumers stand, by path; note the cursors that cannot be read."""
    result = {}
    for name, cursor in readable_cursors(found.folder, found.prefix, meta.queue_id):
        if isinstance(cursor, errors.PageQueueError):
            found.wrong(cursor)
        elif cursor.is_group:
            try:
                group = GroupTable(found.folder, found.prefix, meta.queue_id, name, writable=False)
            except errors.PageQueueError as error:
                found.wrong(error)
            else:
                result[group.path] = (group.new_sequence if group.is_trusted else 0, "claimed")
        else:
            result[cursor.path] = (cursor.next_sequence, "acknowledged")
    return result


def appended(found: Inspection, meta: AllMeta) -> dict[str, int]:
    """Return the meta files that have more bytes than are used, by name, with how many are used."""
    used = {
        fmt.read_meta_name(found.prefix): fmt.READ_META_BYTES,
        fmt.write_meta_name(found.prefix): fmt.WRITE_META_FILE_BYTES,
    }
    for name, cursor in readable_cursors(found.folder, found.prefix, meta.queue_id):
        if isinstance(cursor, errors.PageQueueError):
            continue
        used[fmt.cursor_name(found.prefix, name)] = fmt.CURSOR_META_BYTES
        if cursor.is_group:
            try:
                group = GroupTable(found.folder, found.prefix, meta.queue_id, name, writable=False)
            except errors.PageQueueError:
                del used[fmt.cursor_name(found.prefix, name)]
            else:
                used[fmt.cursor_name(found.prefix, name)] = group_bytes(group.capacity)
    sizes = {name: found.folder.status(name) for name in used}
    return {
        name: used[name]
        for name, status in sizes.items()
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_size > used[name]
    }


def _look_at_sizes(found: Inspection, meta: AllMeta) -> None:
    """Note what was appended to small files: nobody reads it, and repair cuts it off."""
    for name, used in appended(found, meta).items():
        path, status = found.folder.full(name), found.folder.status(name)
        if status is not None and not any(problem.file == path for problem in found.problems):
            reason = f"{status.st_size} bytes where {used} are used"
            found.problems.append(Problem(path, used, None, reason))


def _look_at_cursors(found: Inspection, cursors: dict[str, tuple[int, str]]) -> None:
    """Note the cursors that are ahead of the tail; recovery lowers them, where one is due."""
    if found.written is None or not found.written.is_trusted:
        return
    tail = found.written.tail.sequence
    for path, (sequence, done) in cursors.items():
        if sequence > tail:
            reason = f"says that all below message {sequence} is {done}, the tail is {tail}"
            found.problems.append(Problem(path, CursorMeta.NEXT, None, reason))
