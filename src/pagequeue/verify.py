"""Verify: every byte that the format says something about, compared with what it says.

It changes nothing and can run while others write: the active page is checked up to the tail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.page import REASONS, map_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pagequeue.page import Page, Scan
    from pagequeue.store import Store


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: its path.
        position: place in the file in bytes, None when the file as a whole is meant.
        sequence: of the message that should stand there, None when none is meant.
        reason: what is wrong.
    """

    file: str
    position: int | None
    sequence: int | None
    reason: str


@dataclass
class VerifyReport:
    """What was checked and what is wrong.

    Attributes:
        pages_checked: pages walked from end to end.
        messages_checked: frames whose checksums are right.
        problems: in the order of the pages.
    """

    pages_checked: int = 0
    messages_checked: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(store: Store, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check all pages of a queue.

    Args:
        store: the open queue.
        progress: called with pages done and pages in all.
    """
    report = VerifyReport()
    tail = store.tail
    head = store.read_meta.head_page
    numbers = range(head, tail.page_number + 1)
    expected: int | None = store.read_meta.head_sequence
    floor = 0
    last = head - 1
    for number in _present(store, numbers, report):
        if number != last + 1:
            expected = None  # what stood in the missing pages is not known
        last = number
        if progress is not None:
            progress(number - head, len(numbers))
        active = number == tail.page_number
        try:
            page = store.page(number)
            first = page.first_sequence
        except errors.PageQueueError as error:
            report.problems.append(_problem_of(error))
            expected = None  # what should follow is not known
            continue
        if expected is not None and first != expected:
            reason = f"begins with message {first}, must be {expected}"
            report.problems.append(Problem(page.path, 0, first, reason))
        if page.header.floor_timestamp < floor:
            reason = "begins earlier than the page before it ended"
            report.problems.append(Problem(page.path, 0, first, reason))
        scan, whole = _verify_page(store, page, tail.sequence - first if active else None, report)
        expected, floor = scan.sequence if whole else None, scan.timestamp
    if progress is not None:
        progress(len(numbers), len(numbers))
    return report


def _present(store: Store, numbers: range, report: VerifyReport) -> Iterator[int]:
    """Give the pages that are there; a run of missing ones is one problem."""
    pattern = fmt.page_name_pattern(store.prefix)
    found = (pattern.fullmatch(name) for name in store.folder.names())
    there = sorted({int(match[1]) for match in found if match and match[2] == "page"})
    expected = numbers.start
    for number in [*(number for number in there if number in numbers), numbers.stop]:
        if number > expected:
            path = store.folder.full(fmt.page_name(store.prefix, expected))
            reason = f"{number - expected} pages are missing, from this one on"
            report.problems.append(Problem(path, None, None, reason))
        if number < numbers.stop:
            yield number
        expected = number + 1


def _problem_of(error: errors.PageQueueError) -> Problem:
    position = getattr(error, "position", None)
    sequence = getattr(error, "sequence", None)
    reason = getattr(error, "reason", None) or str(error)
    return Problem(error.path or "", position, sequence, reason)


def _verify_page(
    store: Store, page: Page, count: int | None, report: VerifyReport
) -> tuple[Scan, bool]:
    """Walk one page; `count` frames of the active one, all up to the end mark of a sealed one."""
    index_path = store.folder.full(fmt.index_name(store.prefix, page.number))
    try:
        index = map_file(
            store.folder, fmt.index_name(store.prefix, page.number), store.meta.index_bytes,
            writable=False,
        )  # fmt: skip
    except errors.PageQueueError as error:
        reason = getattr(error, "reason", "missing")
        report.problems.append(Problem(index_path, None, None, f"index: {reason}"))
        index = None
    scan = page.check(count, index)
    good = scan.sequence - page.first_sequence
    report.pages_checked += 1
    report.messages_checked += good
    whole = good == count if count is not None else scan.stopped == _core.READ_END
    if not whole:
        reason = REASONS.get(scan.stopped, "unknown")
        report.problems.append(Problem(page.path, scan.position, scan.sequence, reason))
    elif scan.whole_sequence != scan.sequence:
        reason = "an incomplete batch"
        report.problems.append(Problem(page.path, scan.whole_position, scan.whole_sequence, reason))
    if index is not None and scan.index_wrong:
        reason = f"index: {scan.index_wrong} records differ from the frames"
        report.problems.append(Problem(index_path, None, page.first_sequence, reason))
    return scan, whole
