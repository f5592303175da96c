"""The diagnosis of a queue: where it ends, and what becomes of each page that was walked.

The core's judge decides (`core/protocol/judge.c`; FORMAT.md, "Opening"); this shows it the pages.
Recovery acts on a diagnosis, readers take the end from it, verify and salvage what is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagequeue import _core
from pagequeue.judge.refusal import Refusal, error_for
from pagequeue.meta.write_meta import Tail
from pagequeue.page.header import PageHeader
from pagequeue.page.page import Scan, missing_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue import errors
    from pagequeue.judge.evidence import Evidence


class PageVerdict(NamedTuple):
    """What the judge found in one page.

    Attributes:
        number: of the page.
        first: sequence of its first message.
        floor: the last timestamp before it.
        kind: one of the core's PAGE_ codes.
        is_header_lost: whether the header must be written again, with these two.
        is_fresh: whether the page must be a new file, because of what the header says otherwise.
        scan: of its frames.
    """

    number: int
    first: int
    floor: int
    kind: int
    is_header_lost: bool
    is_fresh: bool
    scan: Scan


class Diagnosis(NamedTuple):
    """Where a queue ends.

    Attributes:
        evidence: of which it was made.
        pages: those that were walked and are kept, in order; the last one is that of the end.
        end: the tail; None where `refusal` leaves nothing to read.
        refusal: why a writer is refused; None: it is not.
    """

    evidence: Evidence
    pages: list[PageVerdict]
    end: Tail | None
    refusal: Refusal | None

    @property
    def begin(self) -> int:
        """The first page that was walked."""
        return self.pages[0].number

    def error(self) -> errors.PageQueueError | None:
        """Return the error for a writer; None: the queue can be opened."""
        return None if self.refusal is None else error_for(self.evidence, self.refusal)

    def readable(self) -> Tail:
        """Return the end for a reader: in a page that exists.

        Without a durable mark, a reader is shown what comes before damage; a missing page refuses
        it as well.

        Raises:
            DamageError, UpgradeError: it is refused.
        """
        refusal, tail = self.refusal, self.end
        if refusal is not None and (
            tail is None or refusal.kind == _core.MISSING or self.evidence.promise.mark[0] > 0
        ):
            raise error_for(self.evidence, refusal)
        assert tail is not None
        if self.pages[-1].kind != _core.PAGE_TO_MAKE:
            return tail
        if len(self.pages) == 1:
            number = self.pages[0].number
            raise missing_page(self.evidence.path(number), number)
        before = self.pages[-2]
        scan = before.scan
        count = scan.sequence - before.first
        return Tail(before.number, scan.position, count, before.first, scan.timestamp)

    def proved_headers(self) -> dict[int, PageHeader]:
        """Return the headers that are to be written again, by page."""
        queue_id = self.evidence.meta.queue_id
        return {
            page.number: PageHeader(page.number, queue_id, page.first, page.floor, 0)
            for page in self.pages
            if page.is_header_lost
        }


def _walk(judge: _core.Judge, evidence: Evidence) -> Iterator[PageVerdict]:
    while (wanted := judge.wants()) is not None:
        number, frames, following = wanted
        find = evidence.following if following else evidence.page
        file = find(number, frames=frames)
        size = 0 if file.region is None else len(file.region)
        verdict = judge.show(file.number, file.state, size, file.region)
        if verdict is not None:
            yield PageVerdict(*verdict[:-1], Scan(*verdict[-1]))


def _judge(evidence: Evidence, walk: int) -> _core.Judge:
    promise, meta = evidence.promise, evidence.meta
    pending = (0, 0, 0)
    if promise.pending is not None:
        pages = promise.pending.pages
        pending = pages.start, pages.stop - 1, promise.pending.first_sequence
    last = evidence.numbers[-1] if evidence.numbers else 0
    return _core.Judge(
        meta.queue_id, meta.page_bytes, promise.head, promise.mark, last, pending, walk
    )


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return where a queue ends, from the page of its durable mark on.

    Raises:
        PageQueueError: a file cannot be read for another reason than damage.
    """
    judge = _judge(evidence, _core.WALK_TAIL)
    pages: list[PageVerdict] = []
    for page in _walk(judge, evidence):
        if page.kind == _core.PAGE_DROPPED:
            pages = [known for known in pages if known.number < page.number]
        pages.append(page)
    tail, refusal = judge.tail(), judge.refusal()
    return Diagnosis(
        evidence,
        pages,
        None if tail is None else Tail(*tail),
        None if refusal is None else Refusal(*refusal),
    )


class KeptRun(NamedTuple):
    """What is kept of a ring.

    Attributes:
        pages: consecutive, and whole up to the last one; perhaps none.
        end: the sequence after the last message of any of its pages.
        timestamp: of the latest one.
    """

    pages: list[PageVerdict]
    end: int
    timestamp: int


def kept_run(evidence: Evidence) -> KeptRun:
    """Return which pages of a ring to keep after a power cut.

    Raises:
        PageQueueError: a file cannot be read for another reason than damage.
    """
    judge = _judge(evidence, _core.WALK_RUNS)
    found = list(_walk(judge, evidence))
    refusal = judge.refusal()
    if refusal is not None:
        raise error_for(evidence, Refusal(*refusal))
    first, last, end, timestamp = judge.run()
    return KeptRun([page for page in found if first <= page.number <= last], end, timestamp)
