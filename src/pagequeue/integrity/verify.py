"""Verify: compare every byte that the format defines with its definition.

It changes no file, takes no lock, and can run while other processes write: the active page is
checked up to the tail. It also works on a queue that does not open. After damage the walk
continues, so that one damaged frame does not hide the next.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.inspection import Inspection, head_now, inspect
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.integrity.verify_tail import TailCheck, followed
from pagequeue.judge.diagnosis import diagnose
from pagequeue.judge.evidence import Evidence, Promise
from pagequeue.meta.commit_record import read_publishing
from pagequeue.meta.ledger import damaged
from pagequeue.meta.manifest import read_manifest
from pagequeue.page.compressed_format import BLOCK_REASON, is_compressed
from pagequeue.page.compressed_page import derived_index, map_page
from pagequeue.page.fragments import WRONG_BLOCK, Fragment, Head, bad_block, fragment_in, head_in
from pagequeue.page.header import PageHeader, first_bytes, parse_header
from pagequeue.page.listing import page_numbers
from pagequeue.page.page import PROOF, REASONS, Scan, map_file, scan_region
from pagequeue.page.valid_runs import ValidRun, valid_runs
from pagequeue.store.options import check_prefix
from pagequeue.system.directory import Directory
from pagequeue.system.trust import trusted
from pagequeue.util.arguments import absolute_path
from pagequeue.util.cached import Kept
from pagequeue.util.text import counted
from pagequeue.util.timestamps import NS_PER_S, system_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pagequeue.meta.write_meta import Tail
    from pagequeue.util.literals import Trusted
    from pagequeue.util.timestamps import Clock

WORD_BYTES = 4
NO_FRAGMENTS = "the fragments of this message are missing"
NOT_ALONE = "the head of a large message is not the only frame of its page"


@dataclass
class VerifyReport:
    """The result of a verification.

    Attributes:
        pages_checked: pages walked from end to end.
        messages_checked: frames with a valid checksum.
        problems: those of the meta files, then those of the pages in order.
        awaits_recovery: whether the next process that opens the queue must find the tail, as after
            a power cut; torn frames after the durable mark are then not problems.
        seconds_ahead: how far the last message's time is ahead of the clock, 0 if it is not: the
            clock was wrong when it was sent, or is; `repair_queue` sets such times right.

    Example:
        >>> report = verify_queue("events")
        >>> report.ok, report.messages_checked
        (True, 5)
    """

    pages_checked: int = 0
    messages_checked: int = 0
    problems: list[Problem] = field(default_factory=list)
    awaits_recovery: bool = False
    seconds_ahead: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no problem was found.

        Example:
            >>> verify_queue("events").ok
            True
        """
        return not self.problems


def verify_queue(
    directory: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Trusted = (),
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Check all files of a queue, also of one that is too damaged to open; only read them.

    Args:
        directory: its path.
        prefix: of its file names.
        trust: as for `Queue`.
        progress: called with pages done and pages in all.

    Returns:
        What was checked, and all problems.

    Raises:
        QueueNotFound: no queue with this prefix is in the directory.
        UnsafePath, AccessDenied, NotADirectory: the directory is unusable.

    Example:
        >>> verify_queue("events").ok
        True
    """
    path = absolute_path("directory", directory)
    check_prefix(path, prefix)
    folder = Directory(path, create=False, read_only=True, trust=trusted(trust, path))
    try:
        return verify(folder, prefix, progress)
    finally:
        folder.close()


def verify(
    folder: Directory,
    prefix: str,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock = system_clock,
) -> VerifyReport:
    """Check all pages of the queue in an open directory; its times are compared with a clock."""
    found = inspect(folder, prefix)
    report = VerifyReport(problems=found.problems, awaits_recovery=found.awaits_recovery)
    if found.meta is not None:
        last = _Verification(found, report).run(progress)
        report.seconds_ahead = max(0, last - clock()) / NS_PER_S
    return report


@dataclass
class _State:
    """What the page before requires of the next one."""

    expected: int | None  # its first sequence
    floor: int
    last: int  # the number of the page before


class _Verification:
    def __init__(self, found: Inspection, report: VerifyReport) -> None:
        assert found.meta is not None
        self.found = found
        self.meta = found.meta
        self.report = report
        self._noted: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
        for known in found.problems:
            self._noted[known.file, known.position].append(known.reason)
        self._blocks: set[tuple[str, int | None]] = set()
        self._chain: FragmentChain | None = None
        self._is_rest = False  # whether the page before is of a message that began in a retired one
        self._is_after_gap = False  # the page before could not be read
        self._broken = -1  # the large message that was last noted: its other fragments are not
        self._block_memory = bytearray(fmt.FRAGMENT_BLOCK_BYTES)
        self.state = _State(found.head_sequence, 0, found.head_page - 1)
        self.shipped: Tail | None = None  # the end of a replica
        copied = self._end_as_shipped()
        found.numbers = [number for number in found.numbers if number not in copied]
        self.is_trusted = not found.awaits_recovery and found.written is not None
        self.proved: dict[int, PageHeader] = {}  # of pages that have lost theirs
        self.refusal: Problem | None = None  # why no process can open it for writing
        self.tail = tail = self._find_tail()
        self.last = tail.page_number if tail else self._last_begun()
        # Listed after reading the tail: other processes can have added pages meanwhile.
        present = page_numbers(found.prefix, found.folder.names())
        self.present = [number for number in present if number not in copied]

    def _end_as_shipped(self) -> range:
        """Return the pages that a replica's manifest does not name: no reader sees them (I20).

        The write meta is replaced before the manifest, so it can be ahead of what readers see.
        """
        try:
            manifest = read_manifest(self.found.folder, self.found.prefix)
        except errors.PageQueueError as error:
            self.report.problems.append(problem_of(error))
            return range(0)
        if manifest is None or not manifest.pages:
            return range(0)
        self.shipped = manifest.tail
        last, written = manifest.pages[-1], self.found.written
        if written is not None:
            self.found.written = replace(
                written,
                durable_page=min(written.durable_page, last.number),
                durable_sequence=min(written.durable_sequence, last.end_sequence),
            )
        return range(last.number + 1, fmt.PAGE_NUMBER_MAX + 1)

    def _find_tail(self) -> Tail | None:
        """Return the tail that is trusted, or that recovery will find; None: it is refused.

        Then all pages are checked, and what a power cut can have torn is not a problem.
        """
        found, written = self.found, self.found.written
        if self.is_trusted and written is not None:
            return followed(found, self.meta, written.tail)
        if self.shipped is not None or found.head_sequence is None:
            return self.shipped
        mark = (0, 0) if written is None else (written.durable_page, written.durable_sequence)
        pending = None
        with contextlib.suppress(errors.PageQueueError):  # noted with the pages after the tail
            pending = read_publishing(found.folder, found.prefix)
        promise = Promise((found.head_page, found.head_sequence), mark, pending)
        evidence = Evidence(found.folder, found.prefix, self.meta, promise, found.numbers)
        try:
            diagnosis = diagnose(evidence)
            refused = diagnosis.error()
            if refused is None:
                self.proved = diagnosis.proved_headers()
                return diagnosis.readable()
        except errors.PageQueueError as error:
            refused = error
        self.refusal = problem_of(refused)
        return None

    def _last_begun(self) -> int:
        """Return the last page that was rolled into, by the pages and the durable mark."""
        durable_page = 0 if self.found.written is None else self.found.written.durable_page
        for number in reversed(self.found.numbers):
            if self.found.first_sequence(number) is not None:
                return max(number, durable_page)
        return max(self.found.numbers[-1:], default=self.found.head_page)

    def run(self, progress: Callable[[int, int], None] | None) -> int:
        """Check everything; return the time of the last message, in ns."""
        head = self.found.head_page
        total = max(0, self.last + 1 - head)
        for number in [n for n in self.present if head <= n <= self.last]:
            if progress is not None:
                progress(number - head, total)
            self._follow(number)
            self._check(number)
            self.state.last = number
        self._follow(self.last + 1)
        if self._chain is not None:
            self._break(self.last, None, self._chain.sequence, NO_FRAGMENTS)
        found = self.found
        for error in damaged(found.folder, found.prefix, self.meta.queue_id).values():
            self.report.problems.append(problem_of(error))
        self._check_past_tail()
        if self.refusal is not None and all(
            self.refusal.file != problem.file for problem in self.report.problems
        ):
            self.report.problems.append(self.refusal)
        self._forget_retired()
        if progress is not None:
            progress(total, total)
        return self.state.floor

    def _forget_retired(self) -> None:
        """Drop problems of pages that retention removed meanwhile."""
        if not self.report.problems:
            return
        again = inspect(self.found.folder, self.found.prefix)
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
        """Note a problem of a page, except an empty slot in a block already noted as damaged."""
        path = self.found.path(number)
        is_noted = reason == REASONS[_core.READ_NOTHING] and (path, sequence) in self._blocks
        if not is_noted and not self._can_be_torn(number, sequence):
            self.report.problems.append(Problem(path, position, sequence, reason))

    def _can_be_torn(self, number: int, sequence: int | None) -> bool:
        """Whether a power cut can take a message, or a page: it is after the durable mark."""
        written = self.found.written
        if self.tail is not None or written is None or written.durable_page == 0:
            return False
        if sequence is None:
            return number > written.durable_page
        return sequence >= self.found.durable_sequence

    def _is_scanned(self, number: int) -> bool:
        """Whether recovery rewrites the index of a page: of the mark's, and those after it."""
        written = self.found.written
        return not self.is_trusted and written is not None and 0 < written.durable_page <= number

    def _follow(self, number: int) -> None:
        """Note missing pages before a page: a run of them is one problem."""
        first = self.state.last + 1
        if number > first:
            missing = number - first
            reason = "missing" if missing == 1 else f"{missing} pages are missing, from this one on"
            written = self.found.written
            is_durable = written is not None and first <= written.durable_page
            if is_durable or not self._can_be_torn(first, self.state.expected):
                problem = Problem(self.found.path(first), None, self.state.expected, reason)
                self.report.problems.append(problem)
            self.state.expected = None  # their messages are unknown
            self._end_chain()

    def _check_past_tail(self) -> None:
        """Check the files after the last page: at most one prepared page may follow."""
        pending = self._pending()
        written, problems = self.found.written, self.report.problems
        if not self.is_trusted or written is None:
            return  # recovery removes what a power cut left after the tail
        # The fields as they were read.
        TailCheck(self.found, self.meta, written.tail, pending, problems).run()
        spare = self.last + 1
        for number in [n for n in self.found.numbers if n >= spare]:
            name = fmt.page_name(self.found.prefix, number)
            if number in pending:
                continue
            if number > spare:
                if self._later_tail_page >= number:
                    continue  # a bulk commit published it meanwhile
                self.problem(number, None, None, "after the prepared page: never read")
                continue
            try:  # it can have been rolled into, sealed and compressed meanwhile
                page = map_page(self.found.folder, name, self.meta)
            except errors.QueueNotFound:
                continue  # removed meanwhile
            except errors.PageQueueError as error:
                self.report.problems.append(problem_of(error))
            else:
                self._check_spare(number, page)

    def _pending(self) -> range:
        """Return the pages of a bulk commit, running or interrupted: they are after the tail."""
        try:
            record = read_publishing(self.found.folder, self.found.prefix)
        except errors.PageQueueError as error:
            # That of a large message need not be on stable storage: recovery removes a torn one.
            if not (self.found.awaits_recovery and isinstance(error, errors.CorruptMeta)):
                self.report.problems.append(problem_of(error))
            return range(0)
        return range(0) if record is None else record.pages

    @Kept
    def _later_tail_page(self) -> int:
        """The tail page, read after the record: one of the two covers the pages of a commit."""
        written = inspect(self.found.folder, self.found.prefix).written
        return 0 if written is None else written.tail.page_number

    def _check_spare(self, number: int, page: _core.Region) -> None:
        """Check that a prepared page has no messages, unless it was rolled into meanwhile."""
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
            and _core.peek(page, fmt.PAGE_HEADER_BYTES, first)[0] == _core.READ_FRAME
            and inspect(self.found.folder, self.found.prefix).written == self.found.written
        ):
            reason = (
                f"only prepared, but has messages from {first} on, as page {header.page_number}"
            )
            self.problem(number, 0, first, reason)

    # --- one page ---------------------------------------------------------------------------------

    def _note(self, error: errors.PageQueueError) -> None:
        """Note damage of a page whose other parts are still checked; each problem once."""
        problem = problem_of(error)
        known = self._noted[problem.file, problem.position]
        if not any(reason.endswith(problem.reason) for reason in known):
            known.append(problem.reason)
            self.report.problems.append(problem)
        if problem.reason.startswith(BLOCK_REASON):
            self._blocks.add((problem.file, problem.sequence))

    def _check(self, number: int) -> None:
        """Check one page."""
        state, found = self.state, self.found
        try:
            name = fmt.page_name(found.prefix, number)
            page = map_page(found.folder, name, self.meta, wrong=self._note)
        except errors.PageQueueError as error:
            self._end_chain()
            if not self._can_be_torn(number, None):
                self.report.problems.append(problem_of(error))
            state.expected = None
            return
        self._is_after_gap = state.expected is None
        header = self._header(number, page)
        if header is None:
            state.expected = None
            self._end_chain()
            return
        first = header.first_sequence
        assert first is not None
        if state.expected is not None and first != state.expected and number != found.head_page:
            reason = f"begins with message {first}, must be {state.expected}"
            self.problem(number, 0, first, reason)
        if header.floor_timestamp < state.floor:
            self.problem(number, 0, first, "begins earlier than the page before it ended")
        self._check_frames(number, page, header, first)

    def _header(self, number: int, page: _core.Region) -> PageHeader | None:
        """Return a page's header; if it is damaged, the one that the frames prove."""
        if number in self.proved:
            return self.proved[number]
        expected = self.state.expected
        try:
            header = self.found.header(number)
        except errors.PageQueueError as error:
            if not self._can_be_torn(number, expected):
                self._note(error)
            return None if isinstance(error, errors.NewerFormat) else self._proved(number, page)
        is_left = self.found.is_left(number, header)
        if header.first_sequence is not None and not is_left:
            return header
        reason = "its first sequence is in the page before" if is_left else "no first sequence"
        self.problem(number, 0, expected, f"page header: {reason}")
        return self._proved(number, page) if is_left else None

    def _proved(self, number: int, page: _core.Region) -> PageHeader | None:
        """Return the header that a page's first frame proves, if it does."""
        first = self.state.expected
        if first is None or _core.peek(page, fmt.PAGE_HEADER_BYTES, first)[0] not in PROOF:
            return None
        return PageHeader(number, self.meta.queue_id, first, self.state.floor, 0)

    def _check_frames(
        self, number: int, page: _core.Region, header: PageHeader, first: int
    ) -> None:
        at_tail = self.tail is not None and number == self.tail.page_number
        end = self.tail.sequence if self.tail is not None and at_tail else None
        count = None if end is None else max(0, end - first)
        index, use = derived_index(page, self.meta), _core.INDEX_WRITE
        if index is None:
            index = self._index(number, first)
            use = _core.INDEX_NONE if index is None else _core.INDEX_CHECK
        scan = scan_region(page, index, header, first, count, use=use)
        if at_tail and _core.peek(page, scan.position, scan.sequence)[0] == _core.READ_END:
            scan = scan._replace(stopped=_core.READ_END)  # the next producer rolls
        self.report.pages_checked += 1
        ended = scan.stopped == _core.READ_END if count is None else scan.sequence - first == count
        if not ended:
            self._damage(number, page, index, header, first, end)
        else:
            self.report.messages_checked += scan.sequence - first
            complete = scan.whole_sequence == scan.sequence
            if not complete and (at_tail or scan.stopped == _core.READ_END):
                reason = "an incomplete batch"
                self.problem(number, scan.whole_position, scan.whole_sequence, reason)
        if index is not None and scan.index_wrong and not self._is_scanned(number):
            path = self.found.folder.full(fmt.index_name(self.found.prefix, number))
            reason = f"index: differs from the frames in {counted(scan.index_wrong, 'record')}"
            self.report.problems.append(Problem(path, None, first, reason))
        right = index if not scan.index_wrong else None
        self._check_heads(number, page, right, first, scan.sequence - first)
        if self.meta.schema.record_bytes:
            self._check_sizes(number, page, right, first, scan.sequence - first)
        self._check_fragment(number, page, scan, first, ended=ended)
        self.state.expected = scan.sequence if ended else None
        self.state.floor = scan.timestamp

    def _check_fragment(
        self, number: int, page: _core.Region, scan: Scan, first: int, *, ended: bool
    ) -> None:
        """Check the fragment of a page, and whether it continues those before it."""
        chain, self._chain = self._chain, None
        follows_rest, self._is_rest = self._is_rest, False
        if not ended:  # the damage is noted, and its message, which can be the head of a large one
            self._broken = scan.sequence
        head = head_in(page) if ended and scan.sequence == first + 1 else None
        if head is not None:
            chain = FragmentChain(scan.sequence - 1, head)
        if not ended or scan.stopped != _core.READ_END:
            if chain is not None:
                self._break(number, scan.position, chain.sequence, NO_FRAGMENTS)
            return
        found = fragment_in(page, scan.position, scan.sequence, self.found.path(number))
        if isinstance(found, str):
            has_fragment = _core.peek(page, scan.position, scan.sequence)[2] > 0
            if chain is not None or has_fragment:
                sequence = scan.sequence - 1 if chain is None else chain.sequence
                self._break(number, scan.position, sequence, found)
            return
        fragment, ordinal = found
        self._is_rest = chain is None and self._is_of_retired(number - ordinal, follows_rest)
        if not self._is_rest and (
            chain is None or not chain.continues(fragment, ordinal, len(page))
        ):
            reason = "a fragment of another message"
            self._break(number, scan.position, scan.sequence - 1, reason)
            return
        # Nobody reads what is left of a retired message, which a power cut can have torn.
        bad = None if self._is_rest else bad_block(fragment, self._block_memory)
        if bad is not None:
            self.problem(number, bad, scan.sequence - 1, WRONG_BLOCK)
        self._chain = None if chain is None else chain.after()

    def _is_of_retired(self, begin: int, follows_rest: bool) -> bool:
        """Whether the large message of a page began in one that is retired.

        Args:
            begin: the page where its fragment says that it began.
            follows_rest: whether that is so of the page before.
        """
        if self.report.messages_checked == 0:
            return True
        # Retention can have removed the page before it since the head was read.
        return (follows_rest or self._is_after_gap) and begin < head_now(self.found)

    def _end_chain(self) -> None:
        """End a large message at a page that is not there or cannot be read, which is noted.

        Retention can have removed it meanwhile; what follows is no part of the message then.
        """
        chain, self._chain = self._chain, None
        if chain is not None:
            self._broken = chain.sequence

    def _break(self, number: int, position: int | None, sequence: int, reason: str) -> None:
        """Note, once, that a large message cannot be read: its fragments do not fit together."""
        if sequence != self._broken:
            self.problem(number, position, sequence, reason)
        self._broken = sequence

    def _check_heads(
        self, number: int, page: _core.Region, index: _core.Region | None, first: int, count: int
    ) -> None:
        """Note heads of large messages that are not the only frame of their page."""
        if count > 1:
            positions, words = _words(page, index, first, count)
            for i in np.flatnonzero(words & fmt.LARGE_MESSAGE == fmt.LARGE_MESSAGE).tolist():
                self.problem(number, int(positions[i]), first + i, NOT_ALONE)

    def _check_sizes(
        self, number: int, page: _core.Region, index: _core.Region | None, first: int, count: int
    ) -> None:
        """Note messages that do not have the size of a record, once for each page."""
        record_bytes = self.meta.schema.record_bytes
        wrong = _wrong_sizes(page, index, first, count, record_bytes)
        if wrong is not None:
            others = f", and {counted(wrong.count - 1, 'message')} more" if wrong.count > 1 else ""
            reason = f"{wrong.size_bytes} bytes, a record has {record_bytes}{others}"
            self.problem(number, wrong.position, wrong.sequence, reason)

    def _damage(
        self,
        number: int,
        page: _core.Region,
        index: _core.Region | None,
        header: PageHeader,
        first: int,
        end: int | None,
    ) -> None:
        """Note all damage of a page, and count its valid messages."""
        is_last = number == self.last
        if end is None and not is_last:
            end = self.found.first_sequence(number + 1)
            end = None if end is None or end < first else end
        good = 0
        written = self.found.written
        mark_page = 0 if written is None else written.durable_page
        walked = list(
            valid_runs(
                page,
                index,
                first,
                header.floor_timestamp,
                end_sequence=end,
                is_sealed=not is_last,
                sent_sequence=self.found.durable_sequence if self.tail is None else end or 0,
                durable_sequence=self.found.durable_sequence if number == mark_page else 0,
            )
        )
        for run in walked:
            good += run.end - run.first
            reason = REASONS.get(run.stopped, "it is unreadable")
            if run is walked[-1]:
                if self._is_good_end(run, end, is_last=is_last):
                    break
                if run.end == end:
                    reason = f"the end-of-page marker is damaged or missing: {reason}"
            self.problem(number, run.end_position, run.end, reason)
        self.report.messages_checked += good

    def _is_good_end(self, run: ValidRun, end: int | None, *, is_last: bool) -> bool:
        """Whether a page may end as its last run of frames does."""
        if run.stopped == _core.READ_END:
            return end is None or run.end == end
        if not is_last:
            return False
        if end is None:
            return run.stopped == _core.READ_NOTHING and run.end >= self.found.durable_sequence
        return run.end == end

    def _is_compressed(self, number: int) -> bool:
        name = fmt.page_name(self.found.prefix, number)
        try:
            return is_compressed(first_bytes(self.found.folder, name))
        except errors.PageQueueError:
            return False

    def _index(self, number: int, first: int) -> _core.Region | None:
        name = fmt.index_name(self.found.prefix, number)
        try:
            return map_file(self.found.folder, name, self.meta.index_bytes, writable=False)
        except errors.PageQueueError as error:
            if self._is_compressed(number) or self._is_scanned(number):
                return None  # compressed meanwhile, which removes it, or recovery makes it again
            problem = problem_of(error)
            path, reason = self.found.folder.full(name), f"index: {problem.reason}"
            self.report.problems.append(
                replace(problem, file=path, position=None, sequence=first, reason=reason)
            )
            return None


class FragmentChain(NamedTuple):
    """A large message whose fragments were checked in part.

    Attributes:
        sequence: of the message.
        head: of the message.
        ordinal: of the next fragment.
    """

    sequence: int
    head: Head
    ordinal: int = 0

    def continues(self, fragment: Fragment, ordinal: int, page_bytes: int) -> bool:
        """Whether a fragment is the next one, and the head states how many there are."""
        extent = fragment.offset, fragment.size
        return (
            ordinal == self.ordinal
            and extent == self.head.extent(page_bytes, ordinal)
            and self.head.has_right_count(page_bytes)
        )

    def after(self) -> FragmentChain | None:
        """Return what is left after the next fragment; None: it is the last one."""
        if self.ordinal + 1 == self.head.fragments:
            return None
        return self._replace(ordinal=self.ordinal + 1)


@dataclass(frozen=True)
class _WrongSizes:
    """Messages of one page that do not have the size of a record.

    Attributes:
        sequence: of the first one.
        position: of the first one in the page.
        size_bytes: of the first one.
        count: of all such messages.
    """

    sequence: int
    position: int
    size_bytes: int
    count: int


def _wrong_sizes(
    page: _core.Region,
    index: _core.Region | None,
    first_sequence: int,
    count: int,
    record_bytes: int,
) -> _WrongSizes | None:
    """Return the messages of a page that do not have the size of a record; None: all have it.

    Args:
        page: the page, whose first `count` frames are valid.
        index: of the page, None unless it agrees with the frames.
        first_sequence: of the page.
        count: of frames.
        record_bytes: of a record.
    """
    if count == 0:
        return None
    positions, words = _words(page, index, first_sequence, count)
    sizes = (words & fmt.LENGTH_MASK).astype(np.int64) - fmt.FRAME_HEADER_BYTES
    wrong = np.flatnonzero(sizes != record_bytes)
    if not len(wrong):
        return None
    i = int(wrong[0])
    return _WrongSizes(first_sequence + i, int(positions[i]), int(sizes[i]), len(wrong))


def _words(
    page: _core.Region, index: _core.Region | None, first_sequence: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the positions and commit words of a page's frames, as in `_wrong_sizes`."""
    if index is None:
        positions = _positions_of(page, first_sequence, count)
    else:
        records = np.frombuffer(memoryview(index), fmt.INDEX_RECORD, count)
        positions = records["position"].astype(np.int64)
    return positions, np.frombuffer(memoryview(page), np.uint32)[positions // WORD_BYTES]


def _positions_of(page: _core.Region, first_sequence: int, count: int) -> NDArray[np.int64]:
    positions = np.empty(count, np.int64)
    position = fmt.PAGE_HEADER_BYTES
    for i in range(count):
        positions[i] = position
        position = _core.peek(page, position, first_sequence + i)[3]
    return positions
