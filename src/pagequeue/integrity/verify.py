"""Verify: every byte that the format says something about, compared with what it says.

It changes nothing, takes no lock, and can run while others write: the active page is checked up to
the tail. A queue that cannot be opened can be verified too. Behind damage the walk goes on, so that
one damaged frame does not hide the next.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.inspection import Inspection, head_now, survey
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.integrity.verify_records import wrong_sizes
from pagequeue.integrity.verify_tail import TailCheck
from pagequeue.meta.ledger import damaged
from pagequeue.meta.manifest import read_manifest
from pagequeue.page.compressed_format import BLOCK_REASON
from pagequeue.page.compressed_page import map_page
from pagequeue.page.header import PageHeader, first_bytes, parse_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import PROOF, REASONS, Scan, map_file, scan_region
from pagequeue.page.valid_runs import ValidRun, valid_runs
from pagequeue.store.pending_commit import read_publishing
from pagequeue.store.power_loss_recovery import TORN
from pagequeue.system.directory import Directory
from pagequeue.system.trust import trusted
from pagequeue.util.cached import Kept
from pagequeue.util.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


@dataclass
class VerifyReport:
    """What was checked and what is wrong.

    Attributes:
        pages_checked: pages walked from end to end.
        messages_checked: frames whose checksums are right.
        problems: those of the meta files, then those of the pages in their order.
        awaits_recovery: whether the next opener must look for the tail, as after a power cut; what
            is torn behind the durable mark is no problem then, because nothing promised it.
    """

    pages_checked: int = 0
    messages_checked: int = 0
    problems: list[Problem] = field(default_factory=list)
    awaits_recovery: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_queue(
    directory: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check a queue, also one that is too damaged to be opened; change nothing.

    Args:
        directory: its path.
        prefix: of its file names.
        trust: as for `Queue`.
        progress: called with pages done and pages in all.

    Raises:
        QueueNotFound: nothing there looks like a queue.
        UnsafePath, AccessDenied, NotADirectory: the directory cannot be used.
    """
    path = os.path.abspath(os.fsdecode(directory))
    folder = Directory(path, create=False, read_only=True, trust=trusted(trust, path))
    try:
        return verify(folder, prefix, progress)
    finally:
        folder.close()


def verify(
    folder: Directory, prefix: str, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Check all pages of the queue in an open directory."""
    found = survey(folder, prefix)
    report = VerifyReport(problems=found.problems, awaits_recovery=found.awaits_recovery)
    if found.meta is not None:
        _Verification(found, report).run(progress)
    return report


@dataclass
class _State:
    """What the page before said about the next one."""

    expected: int | None  # its first sequence
    floor: int
    last: int  # the number of the page before


class _Verification:
    ends_in_mark = False  # the page that was checked last

    def __init__(self, found: Inspection, report: VerifyReport) -> None:
        assert found.meta is not None
        self.found = found
        self.meta = found.meta
        self.report = report
        self._noted: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
        for known in found.problems:
            self._noted[known.file, known.position].append(known.reason)
        self._blocks: set[tuple[str, int | None]] = set()
        self.state = _State(found.head_sequence, 0, found.head_page - 1)
        copied = self._end_as_shipped()
        found.numbers = [number for number in found.numbers if number not in copied]
        tail = None if found.awaits_recovery or found.written is None else found.written.tail
        self.tail = tail
        self.last = tail.page_number if tail else self._last_begun()
        # Listed behind the tail: pages can have come meanwhile.
        present = page_numbers(found.prefix, found.folder.names())
        self.present = [number for number in present if number not in copied]

    def _end_as_shipped(self) -> range:
        """Return the pages that a replica's manifest does not name: no reader sees them (I20).

        The write meta is replaced before the manifest, so it can name more than readers see.
        """
        try:
            manifest = read_manifest(self.found.folder, self.found.prefix)
        except errors.PageQueueError as error:
            self.report.problems.append(problem_of(error))
            return range(0)
        if manifest is None or not manifest.pages:
            return range(0)
        last, written = manifest.pages[-1], self.found.written
        if written is not None:
            self.found.written = replace(
                written, durable_page=min(written.durable_page, last.number),
                durable_sequence=min(written.durable_sequence, last.end_sequence),
            )  # fmt: skip
        return range(last.number + 1, fmt.PAGE_NUMBER_MAX + 1)

    def _last_begun(self) -> int:
        """Return the last page that was rolled into, as far as the pages and the mark say."""
        durable_page = 0 if self.found.written is None else self.found.written.durable_page
        for number in reversed(self.found.numbers):
            if self.found.first_sequence(number) is not None:
                return max(number, durable_page)
        return max(self.found.numbers[-1:], default=self.found.head_page)

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        head = self.found.head_page
        total = max(0, self.last + 1 - head)
        for number in [n for n in self.present if head <= n <= self.last]:
            if progress is not None:
                progress(number - head, total)
            if not (self._follows(number) and self._check(number)):
                break  # the tail of a queue that awaits recovery: what follows will be removed
            self.state.last = number
        else:
            self._follows(self.last + 1)
        self._check_marked()
        for error in damaged(self.found.folder, self.found.prefix).values():
            self.report.problems.append(problem_of(error))
        self._look_behind()
        self._forget_retired()
        if progress is not None:
            progress(total, total)

    def _forget_retired(self) -> None:
        """Take back what seemed wrong with pages that retention removed meanwhile."""
        if not self.report.problems:
            return
        again = survey(self.found.folder, self.found.prefix)
        last = self.last if again.written is None else again.written.tail.page_number
        now = min(head_now(self.found), last)
        if now <= self.found.head_page:
            return
        pattern = fmt.page_name_pattern(self.found.prefix)
        retired = range(self.found.head_page, now)
        self.report.problems[:] = [
            problem
            for problem in self.report.problems
            if not (match := pattern.fullmatch(os.path.basename(problem.file)))
            or int(match[1]) not in retired
        ]

    def problem(self, number: int, position: int | None, sequence: int | None, reason: str) -> None:
        """Note what is wrong with a page; not again that a damaged block is not there."""
        path = self.found.path(number)
        if reason != REASONS[_core.READ_NOTHING] or (path, sequence) not in self._blocks:
            self.report.problems.append(Problem(path, position, sequence, reason))

    def _is_promised(self, sequence: int | None) -> bool:
        """Whether a power cut could not have taken what stands there."""
        written = self.found.written
        if self.tail is not None or written is None or written.durable_page == 0:
            return True
        return sequence is None or sequence < self.found.durable_sequence

    def _is_durable_page(self, number: int) -> bool:
        """Whether a page was on stable storage under its name, with messages or without."""
        return self.found.written is not None and number <= self.found.written.durable_page

    def _follows(self, number: int) -> bool:
        """Whether a page belongs to the queue; a run of missing ones before it is one problem."""
        first = self.state.last + 1
        if number > first:
            if not (self._is_promised(self.state.expected) or self._is_durable_page(first)):
                return False
            missing = number - first
            reason = "missing" if missing == 1 else f"{missing} pages are missing, from this one on"
            self.problem(first, None, self.state.expected, reason)
            self.state.expected = None  # what stood in them is not known
        return True

    def _look_behind(self) -> None:
        """Look at the files behind the last page: one may be made ready, no more."""
        if self.tail is not None:
            TailCheck(self.found, self.meta, self.tail, self.report.problems).run()
        spare = self.last + 1
        try:  # while pages are published, or where a publisher died, they wait behind the tail
            record = read_publishing(self.found.folder, self.found.prefix)
        except errors.PageQueueError as error:
            self.report.problems.append(problem_of(error))
            record = None
        waiting = range(0) if record is None else record.pages
        for number in [n for n in self.found.numbers if n >= spare]:
            name = fmt.page_name(self.found.prefix, number)
            if number in waiting:
                continue
            if number > spare and not self.found.awaits_recovery:
                if self._later_tail_page >= number:
                    continue  # it was published meanwhile, with others
                self.problem(number, None, None, "behind the page that comes next: never read")
                continue
            try:  # it can have been rolled into, sealed and compressed by now
                page = map_page(self.found.folder, name, self.meta)
            except errors.QueueNotFound:
                continue  # removed meanwhile
            except errors.PageQueueError as error:
                self.report.problems.append(problem_of(error))
            else:
                self._check_spare(number, page)

    @Kept
    def _later_tail_page(self) -> int:
        """The tail page, asked behind the record: pages that waited are known by one of them."""
        written = survey(self.found.folder, self.found.prefix).written
        return 0 if written is None else written.tail.page_number

    def _check_spare(self, number: int, page: _core.Region) -> None:
        """A page that comes next has no messages, unless it was rolled into meanwhile."""
        path = self.found.path(number)
        try:
            header = parse_header(page.read(0, fmt.PAGE_HEADER_BYTES), path)
        except errors.PageQueueError:
            return  # a producer was killed while it wrote it
        first = header.first_sequence
        if (
            self.tail is not None
            and first is not None
            and first != self.tail.sequence
            and _core.look(page, fmt.PAGE_HEADER_BYTES, first)[0] == _core.READ_FRAME
            and survey(self.found.folder, self.found.prefix).written == self.found.written
        ):
            reason = f"comes next, and has messages from {first} on, as page {header.page_number}"
            self.problem(number, 0, first, reason)

    # --- one page ---------------------------------------------------------------------------------

    def _note(self, error: errors.PageQueueError) -> None:
        """Note what is damaged in a page, of which the rest is checked; each thing once."""
        problem = problem_of(error)
        known = self._noted[problem.file, problem.position]
        if not any(reason.endswith(problem.reason) for reason in known):
            known.append(problem.reason)
            self.report.problems.append(problem)
        if problem.reason.startswith(BLOCK_REASON):
            self._blocks.add((problem.file, problem.sequence))

    def _check(self, number: int) -> bool:
        """Check one page; return whether others follow."""
        state, found = self.state, self.found
        try:
            name = fmt.page_name(found.prefix, number)
            page = map_page(found.folder, name, self.meta, wrong=self._note)
        except errors.PageQueueError as error:
            if number < found.head_page:
                return True
            self.report.problems.append(problem_of(error))
            state.expected = None
            return True
        header = self._header(number, page)
        if header is None:
            torn = not self._is_promised(state.expected)
            state.expected = None
            return not torn
        first = header.first_sequence
        assert first is not None
        if state.expected is not None and first != state.expected and number != found.head_page:
            reason = f"begins with message {first}, must be {state.expected}"
            self.problem(number, 0, first, reason)
        if header.floor_timestamp < state.floor:
            self.problem(number, 0, first, "begins earlier than the page before it ended")
        return self._check_frames(number, page, header, first)

    def _header(self, number: int, page: _core.Region) -> PageHeader | None:
        """Return a page's header; of a damaged one, what the frames prove of it."""
        try:
            header = self.found.header(number)
        except errors.PageQueueError as error:
            if self._is_promised(self.state.expected) or not self._may_be_torn(number, error):
                self._note(error)
            return None if isinstance(error, errors.NewerFormat) else self._proved(number, page)
        is_left = self.found.is_left(number, header)
        if header.first_sequence is not None and not is_left:
            return header
        if self._is_promised(self.state.expected):
            reason = "says a sequence that the page before has" if is_left else "no first sequence"
            self.problem(number, 0, self.state.expected, f"page header: {reason}")
        return self._proved(number, page) if is_left else None

    def _may_be_torn(self, number: int, error: errors.PageQueueError) -> bool:
        """Whether a power cut can leave such a header, so that recovery writes it again."""
        if number == self.found.head_page:
            return False
        if not isinstance(error, errors.CorruptPage) or error.reason in TORN:
            return isinstance(error, errors.CorruptPage)
        try:
            data = first_bytes(self.found.folder, fmt.page_name(self.found.prefix, number))
            return parse_header(data, self.found.path(number)).first_sequence is None
        except errors.PageQueueError:
            return False

    def _check_marked(self) -> None:
        """The page that an end-of-page marker leads to is opened, before anything is recovered."""
        number = self.last + 1
        if not self.found.awaits_recovery or not self.ends_in_mark:
            return
        if number not in self.present:
            # Without a durable mark an end-of-page marker says that there was one (I10).
            if self.found.written is None or self.found.written.durable_page == 0:
                self.problem(number, None, self.state.expected, "missing")
            return
        try:
            self.found.header(number)
        except errors.PageQueueError as error:
            if not self._may_be_torn(number, error):
                self._note(error)

    def _proved(self, number: int, page: _core.Region) -> PageHeader | None:
        """Return the header that a page must have, if its first frame proves it."""
        first = self.state.expected
        if first is None or _core.look(page, fmt.PAGE_HEADER_BYTES, first)[0] not in PROOF:
            return None
        return PageHeader(number, self.meta.queue_id, first, self.state.floor, 0)

    def _check_frames(
        self, number: int, page: _core.Region, header: PageHeader, first: int
    ) -> bool:
        at_tail = self.tail is not None and number == self.tail.page_number
        end = self.tail.sequence if self.tail is not None and at_tail else None
        count = None if end is None else max(0, end - first)
        index = self._index(number, first)
        use = _core.INDEX_NONE if index is None else _core.INDEX_CHECK
        scan = scan_region(page, index, header, first, count, use=use)
        self.report.pages_checked += 1
        ended = self._is_end(number, scan, count, first)
        if not ended:
            self._damage(number, page, index, header, first, end)
        else:
            self.report.messages_checked += scan.sequence - first
            complete = scan.whole_sequence == scan.sequence
            if not complete and (at_tail or scan.stopped == _core.READ_END):
                reason = "an incomplete batch"
                self.problem(number, scan.whole_position, scan.whole_sequence, reason)
        if index is not None and scan.index_wrong:
            path = self.found.folder.full(fmt.index_name(self.found.prefix, number))
            reason = f"index: differs from the frames in {counted(scan.index_wrong, 'record')}"
            self.report.problems.append(Problem(path, None, first, reason))
        if self.meta.schema.record_bytes:
            right = index if not scan.index_wrong else None
            self._check_sizes(number, page, right, first, scan.sequence - first)
        self.state.expected = scan.sequence if ended else None
        self.ends_in_mark = ended and scan.stopped == _core.READ_END
        self.state.floor = scan.timestamp
        return not (ended and scan.stopped != _core.READ_END and not at_tail)

    def _check_sizes(
        self, number: int, page: _core.Region, index: _core.Region | None, first: int, count: int
    ) -> None:
        """Note messages that are no records, once for each page."""
        record_bytes = self.meta.schema.record_bytes
        wrong = wrong_sizes(page, index, first, count, record_bytes)
        if wrong is not None:
            others = f", and {counted(wrong.count - 1, 'message')} more" if wrong.count > 1 else ""
            reason = f"{wrong.size_bytes} bytes, a record has {record_bytes}{others}"
            self.problem(number, wrong.position, wrong.sequence, reason)

    def _is_end(self, number: int, scan: Scan, count: int | None, first: int) -> bool:
        """Whether a page ends where and as it may."""
        if count is not None:
            return scan.sequence - first == count
        if scan.stopped == _core.READ_END:
            return True
        found = self.found
        if self.tail is not None or scan.whole_sequence < found.durable_sequence:
            return False
        if self._is_durable_page(number + 1):
            return False
        # The queue awaits recovery, and what is torn here was promised to nobody. Without a durable
        # mark that holds only where the frames of the last page end.
        known = found.written is not None and found.written.durable_page > 0
        return known or (number == self.last and scan.stopped == _core.READ_NOTHING)

    def _damage(
        self,
        number: int,
        page: _core.Region,
        index: _core.Region | None,
        header: PageHeader,
        first: int,
        end: int | None,
    ) -> None:
        """Note every damaged place of a page, and count what is good around them."""
        is_last = number == self.last
        if end is None and not is_last:
            end = self.found.first_sequence(number + 1)
            end = None if end is None or end < first else end
        good = 0
        walked = list(
            valid_runs(
                page, index, first, header.floor_timestamp, end_sequence=end,
                is_sealed=not is_last,
                sent_sequence=self.found.durable_sequence if self.tail is None else end or 0,
            )
        )  # fmt: skip
        for stretch in walked:
            good += stretch.end - stretch.first
            reason = REASONS.get(stretch.stopped, "it cannot be read")
            if stretch is walked[-1]:
                if self._is_good_end(stretch, end, is_last=is_last):
                    break
                if stretch.end == end:
                    reason = f"the end mark is damaged or missing: {reason}"
            self.problem(number, stretch.end_position, stretch.end, reason)
        self.report.messages_checked += good

    def _is_good_end(self, stretch: ValidRun, end: int | None, *, is_last: bool) -> bool:
        """Whether a page may end as its last stretch does."""
        if stretch.stopped == _core.READ_END:
            return end is None or stretch.end == end
        if not is_last:
            return False
        if end is None:
            return (
                stretch.stopped == _core.READ_NOTHING and stretch.end >= self.found.durable_sequence
            )
        return stretch.end == end

    def _index(self, number: int, first: int) -> _core.Region | None:
        name = fmt.index_name(self.found.prefix, number)
        try:
            return map_file(self.found.folder, name, self.meta.index_bytes, writable=False)
        except errors.PageQueueError as error:
            problem = problem_of(error)
            path, reason = self.found.folder.full(name), f"index: {problem.reason}"
            self.report.problems.append(
                replace(problem, file=path, position=None, sequence=first, reason=reason)
            )
            return None
