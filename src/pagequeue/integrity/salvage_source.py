"""The page files of a damaged queue that salvage reads, in the order of their messages."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.meta.commit_record import read_publishing
from pagequeue.page.compressed_page import derived_index, map_page
from pagequeue.page.fragments import head_in
from pagequeue.page.header import parse_header
from pagequeue.page.page import PROOF, Scan, map_file, private_page, scan_from, scan_region
from pagequeue.system.os_errors import NO_RESOURCE, raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.valid_runs import ValidRun
    from pagequeue.system.directory import Directory

assert fmt.FRAME.fields is not None


@dataclass
class SalvagePage:
    """One page file.

    Attributes:
        path: its path.
        number: of the page, from its header, or from its name if the header is damaged.
        first: sequence of its first frame.
        region: the file as a page, truncated or padded with zeros.
        index: its index, None if it is missing or unreadable.
        reasons: what is wrong with the file as a whole.
        blocks: damaged blocks of a compressed page: position in the file and reason, by the
            sequence of the first message.
        is_continued: whether the next page has messages of the same bulk commit.
    """

    path: str
    number: int
    first: int
    region: _core.Region
    index: _core.Region | None
    reasons: list[str]
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)
    is_continued: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the file has the name of this page."""
        return self.path.endswith(fmt.page_name("", self.number))


def sources(found: Inspection, notes: list[Problem]) -> list[SalvagePage]:
    """Return the readable page files, ordered by first sequence; note the others."""
    meta = found.meta
    assert meta is not None
    result: list[SalvagePage] = []
    pending = _pending(found)
    for number in found.numbers:
        name = fmt.page_name(found.prefix, number)
        path = found.folder.full(name)
        try:
            source = _source(found, meta, number, notes)
        except errors.PageQueueError as error:
            notes.append(problem_of(error))
            continue
        if number in pending:
            reason = "part of a bulk commit that is not published: its publisher died or still runs"
            notes.append(Problem(path, None, None, reason))
        elif source is None:
            if number <= _last_number(found):
                notes.append(Problem(path, 0, None, "no frame or index proves its messages"))
        elif source.number >= found.head_page:
            result.append(source)
    # Of two that begin with the same message, the one under its own name: the other is a copy, and
    # can be of before messages after a power cut were dropped, and others got their sequences.
    result.sort(key=lambda source: (source.first, not source.is_named, source.number))
    return result


def _pending(found: Inspection) -> range:
    """Return the pages of an unfinished bulk commit, which is unpublished without its marker (I19).

    Where the marker's position is damaged, they count as published.
    """
    record = None
    try:
        record = read_publishing(found.folder, found.prefix)
        if record is None:
            return range(0)
    except errors.NOT_RETRYABLE:
        pass  # then the tail decides
    written, last = found.written, found.numbers[-1:]
    if written is not None and written.is_trusted:
        tail = written.tail
        pages, first = range(tail.page_number + 1, max(last, default=0) + 1), tail.sequence
    elif record is not None and found.durable_sequence <= record.first_sequence:
        pages, first = record.pages, record.first_sequence
    else:
        return range(0)
    scan = _scan(found, pages.start - 1)
    unmarked = (
        scan is not None and scan.stopped == _core.READ_NOTHING and scan.whole_sequence == first
    )
    return pages if unmarked else range(0)


def _last_number(found: Inspection) -> int:
    written = found.written
    if written is not None and written.is_trusted:
        return written.tail.page_number
    return found.numbers[-1]


def _source(
    found: Inspection, meta: AllMeta, number: int, notes: list[Problem]
) -> SalvagePage | None:
    """Return a page file, None if it is only prepared, or its first sequence is unknown."""
    name = fmt.page_name(found.prefix, number)
    path = found.folder.full(name)
    region, reasons, blocks = _region(found.folder, name, meta)
    index = derived_index(region, meta)
    if index is None:
        index = _index(found, meta, number, notes)
    try:
        header = parse_header(region.read(0, fmt.PAGE_HEADER_BYTES), path)
    except errors.CorruptPage as error:
        first = _proved_first(found, number, region, index)
        if first is None:
            return None
        return SalvagePage(
            path, number, first, region, index, [*reasons, f"header: {error.reason}"]
        )
    if header.queue_id != meta.queue_id:
        raise errors.CorruptPage(
            "a page of another queue, left out",
            path=path,
            position=0,
            reason="a page of another queue, left out",
        )
    first = None if found.is_left(number, header) else header.first_sequence
    state = None if first is None else _core.peek(region, fmt.PAGE_HEADER_BYTES, first)[0]
    if first is None or state == _core.READ_BAD_CHECKSUM:
        # Only prepared, unless its frames prove otherwise; or its first sequence is wrong.
        proved = _proved_first(found, number, region, index, only_at_start=first is not None)
        if proved is None and first is None:
            return None
        if proved is not None and proved != first:
            reason = f"header: its first message is {first}, its frames prove {proved}"
            first, reasons = proved, [*reasons, reason]
    assert first is not None
    return SalvagePage(
        path, header.page_number, first, region, index, reasons, blocks, header.is_continued
    )


def _region(
    folder: Directory, name: str, meta: AllMeta
) -> tuple[_core.Region, list[str], dict[int, tuple[int, str]]]:
    """Map a page; one of the wrong size is copied and truncated or padded.

    Returns:
        Its map, what is wrong with the file, and the damaged blocks of a compressed one.
    """
    reasons: list[str] = []
    blocks: dict[int, tuple[int, str]] = {}

    def note(error: errors.DamageError) -> None:
        if isinstance(error, errors.CorruptFrame):
            blocks[error.sequence] = error.position, error.reason
        else:
            reasons.append(error.reason)

    try:
        region = map_page(folder, name, meta, wrong=note)
    except errors.CorruptPage as error:
        with folder.opened(name, writable=False) as fd:
            try:
                data = os.pread(fd, meta.page_bytes, 0)
            except OSError as failed:
                raise_typed(failed, folder.full(name), "reading the page")
        return private_page(data, meta), [error.reason], {}
    return region, reasons, blocks


def _index(
    found: Inspection, meta: AllMeta, number: int, notes: list[Problem]
) -> _core.Region | None:
    """Map the index of a page; None: it is missing, or cannot be read, which is noted.

    Its page alone gives the messages. What the index would add is where a header is damaged, and
    how many messages were sent after the last one that is readable.
    """
    name = fmt.index_name(found.prefix, number)
    path = found.folder.full(name)
    try:
        index = map_file(found.folder, name, meta.index_bytes, writable=False)
        index.read(0, len(index))  # raises where the disk fails
    except errors.QueueNotFound:
        return None
    except errors.SystemLimit as error:
        if error.errno in NO_RESOURCE:
            raise
        problem = Problem(path, None, None, f"unreadable ({error.strerror})")
    except errors.PageQueueError as error:
        problem = problem_of(error)
    else:
        return index
    reason = f"index, left out: {problem.reason}"
    notes.append(replace(problem, file=path, position=None, reason=reason))
    return None


def _records(index: _core.Region) -> NDArray[np.void]:
    """Return a copy of an index's records, which raises if the disk fails meanwhile."""
    return np.frombuffer(index.read(0, len(index)), fmt.INDEX_RECORD)


def _end_of(found: Inspection, number: int) -> int | None:
    """Return the sequence after a page's messages, None without an end-of-page marker."""
    scan = _scan(found, number)
    return scan.sequence if scan is not None and scan.stopped == _core.READ_END else None


def _scan(found: Inspection, number: int) -> Scan | None:
    """Walk the frames of a page; None: it is missing, or its header has no first sequence."""
    if found.meta is None or number not in found.numbers:
        return None
    try:
        header = found.header(number)
        region, *_ = _region(found.folder, fmt.page_name(found.prefix, number), found.meta)
    except errors.PageQueueError:
        return None
    if header.first_sequence is None:
        return None
    return scan_region(region, None, header, header.first_sequence, None)


def proved_end(source: SalvagePage) -> int | None:
    """Return the sequence after a page's messages, if all of them and the mark there are valid."""
    scan = scan_from(
        source.region, source.first, fmt.PAGE_HEADER_BYTES, source.first, fmt.TIMESTAMP_MIN
    )
    return scan.sequence if scan.stopped == _core.READ_END else None


def _proved_first(
    found: Inspection,
    number: int,
    region: _core.Region,
    index: _core.Region | None,
    *,
    only_at_start: bool = False,
) -> int | None:
    """Return the first sequence of a page without a valid header.

    Its first frame proves it; else its index, together with the page after it; else the end of the
    page before it, or the head, determines it.

    Args:
        found: of the queue.
        number: of the page.
        region: its map.
        index: of the page, None if it is missing or unreadable.
        only_at_start: only its first frame may prove it: the header may be valid, and then a later
            frame can belong to another page.
    """
    ended = _end_of(found, number - 1)
    if ended is not None and _core.peek(region, fmt.PAGE_HEADER_BYTES, ended)[0] in PROOF:
        return ended
    first = found.first_by_frames(number, region, max(found.head_sequence or 0, ended or 0))
    if first is not None or only_at_start:
        return first
    following = found.first_sequence(number + 1)
    indexed = None if following is None else _indexed_first(region, index, following)
    if indexed is not None:
        return indexed
    return ended if number > found.head_page else found.head_sequence


def _indexed_first(region: _core.Region, index: _core.Region | None, following: int) -> int | None:
    """Return the first sequence of a page by the count of its index, if a frame confirms it."""
    if index is None:
        return None
    positions = _records(index)["position"].tolist()
    count = positions.index(0) if 0 in positions else len(positions)
    first = following - count
    for ordinal, position in enumerate(positions[:count] if first >= 0 else []):
        if _core.peek(region, position, first + ordinal)[0] == _core.READ_FRAME:
            return first
    return None


def partial_commits(found: Inspection, pages: dict[int, SalvagePage]) -> dict[int, int]:
    """Return up to which message the pages of bulk commits that are not whole belong to them.

    Only commits after the durable mark: what is below it was sent as a whole, and flushed. Where
    the page before the first one is lost, that can have had some of its messages.

    Args:
        found: of the queue.
        pages: those that are read, by number.

    Returns:
        the sequence after the last message of such a commit in each of its pages.
    """
    result: dict[int, int] = {}
    begins = [
        page
        for number, page in sorted(pages.items())
        if page.is_continued
        and page.first >= found.durable_sequence
        and not (number - 1 in pages and pages[number - 1].is_continued)
    ]
    for page in begins:
        number = page.number
        before = pages.get(number - 1)
        is_lost = number > found.head_page and (before is None or bool(before.reasons))
        while number in pages and (pages[number].is_continued or pages[number].reasons):
            number += 1  # a page that has lost its header can have had the flag
        last = pages.get(number)
        if not is_lost and _is_whole(found, pages, page, number):
            continue
        result.update(dict.fromkeys(range(page.number, number), fmt.SEQUENCE_MAX))
        if last is not None:
            result[number] = _first_batch(last)[0]
        if is_lost and before is not None and before.first >= found.durable_sequence:
            end, is_all = _first_batch(before)  # as a page of a commit has one
            if is_all:
                result[before.number] = end
    return result


def _is_whole(
    found: Inspection, pages: dict[int, SalvagePage], first: SalvagePage, last: int
) -> bool:
    """Whether the bulk commit that begins in one page and ends in another is whole."""
    assert found.meta is not None
    begin = first.number, first.first
    head = head_in(pages[last].region) if last in pages else None
    last += 0 if head is None else head.fragments - 1
    judge = _core.Judge(
        found.meta.queue_id, found.meta.page_bytes, begin, begin, last, (0, 0, 0), _core.WALK_TAIL
    )
    while (wanted := judge.wants()) is not None and wanted[0] <= last:
        page = pages.get(wanted[0])
        if page is None:
            return False
        shown = judge.show(page.number, _core.FILE_PLAIN, len(page.region), page.region)
        if shown is not None and shown[3] == _core.PAGE_DROPPED:
            return False
    return judge.refusal() is None


def _first_batch(page: SalvagePage) -> tuple[int, bool]:
    """Return the sequence after the first batch of a page, and whether the page ends there."""
    position, sequence = fmt.PAGE_HEADER_BYTES, page.first
    while (frame := _core.peek(page.region, position, sequence))[0] == _core.READ_FRAME:
        word = page.region.load_half(position)
        position, sequence = frame[3], sequence + 1
        if not fmt.has_more(word):
            break
    return sequence, _core.peek(page.region, position, sequence)[0] == _core.READ_END


def is_claimed(source: SalvagePage, run: ValidRun) -> bool:
    """Whether the index has a message directly after a run of frames, where none is valid.

    Where the slot is empty, the record can belong to a batch that a dead producer never sent: it
    counts as a message only if whole frames of later batches follow at their indexed positions.
    """
    if source.index is None:
        return False
    positions = _records(source.index)["position"][run.end - source.first :].tolist()
    if not positions or positions[0] != run.end_position:
        return False
    if run.stopped != _core.READ_NOTHING:
        return True
    ends = 0
    for sequence, position in enumerate(positions[1:], run.end + 1):
        if position == 0 or ends > 1:
            break
        if _core.peek(source.region, position, sequence)[0] == _core.READ_FRAME:
            ends += not fmt.has_more(source.region.load_half(position))
    return ends > 1


def frames_of(source: SalvagePage, run: ValidRun) -> Iterator[tuple[bytes | int, int, bool]]:
    """Yield payload and timestamp of each frame of a run, and whether it ends a batch.

    In place of a payload in fragments, it yields the position of its head.
    """
    position = run.position
    for sequence in range(run.first, run.end):
        _, timestamp, size, following = _core.peek(source.region, position, sequence)
        word = source.region.load_half(position)
        payload = source.region.read(position + fmt.FRAME_HEADER_BYTES, size)
        yield position if fmt.is_large(word) else payload, timestamp, not fmt.has_more(word)
        position = following


def fitting_times(times: list[int], before: int, after: int | None) -> list[int]:
    """Return timestamps for the messages of one batch that are in order with their neighbours.

    Args:
        times: as found.
        before: of the message before them, 0 for the first message.
        after: of the message after them, None for the last message.
    """
    if times[0] == times[-1]:
        return [_fitting(times[0], before, after)] * len(times)
    placed = []
    for timestamp, following in zip(times, [*times[1:], after], strict=True):
        before = _fitting(timestamp, before, following)
        placed.append(before)
    return placed


def _fitting(timestamp: int, before: int, after: int | None) -> int:
    if after is not None and before <= after < timestamp:
        return before or after
    return max(timestamp, before)
