"""Where salvage reads: the page files of a damaged queue, in the order of what they hold."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem, problem_of
from pagequeue.page.compressed_page import BlockInflater, map_page
from pagequeue.page.header import parse_header
from pagequeue.page.page import PROOF, Scan, map_file, private_page, private_region, scan_region
from pagequeue.store.pending_commit import read_publishing
from pagequeue.system.os_errors import raise_typed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.meta.all_and_read_meta import AllMeta
    from pagequeue.page.valid_runs import ValidRun
    from pagequeue.system.directory import Directory

assert fmt.FRAME.fields is not None
TIMESTAMP_AT: Final[int] = fmt.FRAME.fields["timestamp"][1]
BEFORE_FRAMES = fmt.PAGE_HEADER_BYTES - fmt.FRAME_ALIGN_BYTES


@dataclass
class SalvagePage:
    """One page file.

    Attributes:
        path: its path.
        number: of the page, as its header says, or its name if that is damaged.
        first: sequence of its first frame.
        region: the file as a page, cut off or filled up with zeros.
        index: its index, if it can be mapped.
        reasons: what is wrong with the file as a whole.
        blocks: of a compressed page those that are damaged: place in the file and reason, by the
            sequence of the first message.
    """

    path: str
    number: int
    first: int
    region: _core.Region
    index: _core.Region | None
    reasons: list[str]
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)


def sources(found: Inspection, notes: list[Problem]) -> list[SalvagePage]:
    """Return the page files that can be read, ordered by first sequence; note the others."""
    meta = found.meta
    assert meta is not None
    result: list[SalvagePage] = []
    waiting = _waiting(found)
    for number in found.numbers:
        name = fmt.page_name(found.prefix, number)
        path = found.folder.full(name)
        try:
            source = _source(found, meta, number)
        except errors.PageQueueError as error:
            notes.append(problem_of(error))
            continue
        if number in waiting:
            reason = "was to be published, and never was: its publisher died, or is at work"
            notes.append(Problem(path, None, None, reason))
        elif source is None:
            if number <= _last_number(found):
                notes.append(Problem(path, 0, None, "nothing in it proves which messages it has"))
        elif source.number >= found.head_page:
            result.append(source)
    result.sort(key=lambda source: (source.first, source.number))
    return result


def _waiting(found: Inspection) -> range:
    """Return the pages that wait to be published: messages of nobody until the mark stands (I19).

    Where that mark cannot be known, because its place is damaged, they count as published.
    """
    record = None
    try:
        record = read_publishing(found.folder, found.prefix)
        if record is None:
            return range(0)
    except errors.SETTLED:
        pass  # then the tail has to tell
    written, behind = found.written, found.numbers[-1:]
    if written is not None and written.is_trusted:
        tail = written.tail
        pages, first = range(tail.page_number + 1, max(behind, default=0) + 1), tail.sequence
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


def _source(found: Inspection, meta: AllMeta, number: int) -> SalvagePage | None:
    """Return a page file, None if it is only made ready, or nothing can be said about it."""
    name = fmt.page_name(found.prefix, number)
    path = found.folder.full(name)
    region, reasons, blocks = _region(found.folder, name, meta)
    index = _with_blocks(region, _index(found, meta, number), meta)
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
            "a page of another queue, left out", path=path, position=0,
            reason="a page of another queue, left out",
        )  # fmt: skip
    first = None if found.is_left(number, header) else header.first_sequence
    stands = None if first is None else _core.look(region, fmt.PAGE_HEADER_BYTES, first)[0]
    if first is None or stands == _core.READ_BAD_CHECKSUM:
        # Made ready only, unless its frames say something else; or it says a wrong sequence.
        proved = _proved_first(found, number, region, index, only_at_start=first is not None)
        if proved is None or proved == first:
            return None if first is None else SalvagePage(
                path, header.page_number, first, region, index, reasons
            )  # fmt: skip
        reason = f"header: says that it begins with message {first}, its frames {proved}"
        first, reasons = proved, [*reasons, reason]
    return SalvagePage(path, header.page_number, first, region, index, reasons, blocks)


def _region(
    folder: Directory, name: str, meta: AllMeta
) -> tuple[_core.Region, list[str], dict[int, tuple[int, str]]]:
    """Map a page; one of the wrong size is copied and cut off or filled up.

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


def _index(found: Inspection, meta: AllMeta, number: int) -> _core.Region | None:
    try:
        name = fmt.index_name(found.prefix, number)
        return map_file(found.folder, name, meta.index_bytes, writable=False)
    except errors.PageQueueError:
        return None


def _end_of(found: Inspection, number: int) -> int | None:
    """Return the sequence behind a page's messages, if its end mark says it."""
    scan = _scan(found, number)
    return scan.sequence if scan is not None and scan.stopped == _core.READ_END else None


def _scan(found: Inspection, number: int) -> Scan | None:
    """Walk the frames of a page; None: it is not there, or its header says no sequence."""
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


def _proved_first(
    found: Inspection,
    number: int,
    region: _core.Region,
    index: _core.Region | None,
    *,
    only_at_start: bool = False,
) -> int | None:
    """Return which sequence a page without a header begins with.

    Its first frame proves it; else its index does, together with the page after it; else the end of
    the page before it, or the head, says it.

    Args:
        found: of the queue.
        number: of the page.
        region: its map.
        index: of the page, if it can be mapped.
        only_at_start: only its first frame may prove it: the page can also have a good header, and
            then a frame further in can be another page's.
    """
    known = [found.first_sequence(n) for n in found.numbers if n < number]
    low = max((first for first in known if first is not None), default=found.head_sequence or 0)
    ended = _end_of(found, number - 1)
    if ended is not None and _core.look(region, fmt.PAGE_HEADER_BYTES, ended)[0] in PROOF:
        return ended
    low = max(low, ended or 0)
    following = found.first_sequence(number + 1)
    high = fmt.SEQUENCE_MAX if following is None else max(following, low)
    first = _core.resync(
        region, None, low, BEFORE_FRAMES, low, high, fmt.TIMESTAMP_MIN, fmt.TIMESTAMP_MAX
    )
    if first is not None:
        return first[1]
    if only_at_start:
        return None
    indexed = None if following is None else _indexed_first(region, index, following)
    if indexed is not None:
        return indexed
    return ended if number > found.head_page else found.head_sequence


def _indexed_first(region: _core.Region, index: _core.Region | None, following: int) -> int | None:
    """Return the first sequence of a page that has as many messages as its index, if that fits."""
    if index is None:
        return None
    positions = np.frombuffer(memoryview(index), fmt.INDEX_RECORD)["position"].tolist()
    count = positions.index(0) if 0 in positions else len(positions)
    first = following - count
    for ordinal, position in enumerate(positions[:count] if first >= 0 else []):
        if _core.look(region, position, first + ordinal)[0] == _core.READ_FRAME:
            return first
    return None


def _with_blocks(
    region: _core.Region, index: _core.Region | None, meta: AllMeta
) -> _core.Region | None:
    """Return the index of a page; of a compressed one with the first frames of its blocks in it.

    The head says where they are, under its own checksum: that is as good as records.
    """
    if not isinstance(region.filler, BlockInflater):
        return index
    made = private_region(b"" if index is None else index.read(0, len(index)), meta.index_bytes)
    for block in region.filler.head.blocks:
        at = block.ordinal * fmt.INDEX_RECORD_BYTES
        if at + fmt.INDEX_RECORD_BYTES <= len(made):
            timestamp = region.read(block.position + TIMESTAMP_AT, 8)
            made.write(at, timestamp + block.position.to_bytes(4, "little"))
    return made


def is_claimed(source: SalvagePage, stretch: ValidRun) -> bool:
    """Whether the index says that a message follows a run of frames, where none validates.

    Where nothing is, that can be a batch that a dead producer never sent: it is no message, unless
    whole frames that are not of that batch follow, in their places.
    """
    if source.index is None:
        return False
    records = np.frombuffer(memoryview(source.index), fmt.INDEX_RECORD)
    positions = records["position"][stretch.end - source.first :].tolist()
    if not positions or positions[0] != stretch.end_position:
        return False
    if stretch.stopped != _core.READ_NOTHING:
        return True
    ends = 0
    for sequence, position in enumerate(positions[1:], stretch.end + 1):
        if position == 0 or ends > 1:
            break
        if _core.look(source.region, position, sequence)[0] == _core.READ_FRAME:
            ends += not source.region.load_half(position) & fmt.MORE_OF_BATCH
    return ends > 1


def frames_of(source: SalvagePage, stretch: ValidRun) -> Iterator[tuple[bytes, int, bool]]:
    """Give payload and time of each frame of a stretch, and whether it ends a batch."""
    position = stretch.position
    for sequence in range(stretch.first, stretch.end):
        _, timestamp, size, following = _core.look(source.region, position, sequence)
        payload = source.region.read(position + fmt.FRAME_HEADER_BYTES, size)
        yield payload, timestamp, not source.region.load_half(position) & fmt.MORE_OF_BATCH
        position = following


def fitting_times(times: list[int], before: int, behind: int | None) -> list[int]:
    """Return the times that messages of one batch can have between their neighbours.

    Args:
        times: as they stand there.
        before: of the message before them, 0 if there is none.
        behind: of the message behind them, None if there is none.
    """
    if times[0] == times[-1]:
        return [_fitting(times[0], before, behind)] * len(times)
    placed = []
    for timestamp, following in zip(times, [*times[1:], behind], strict=True):
        before = _fitting(timestamp, before, following)
        placed.append(before)
    return placed


def _fitting(timestamp: int, before: int, behind: int | None) -> int:
    if behind is not None and before <= behind < timestamp:
        return before or behind
    return max(timestamp, before)
