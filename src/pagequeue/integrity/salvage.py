"""Salvage: copy every frame that still validates into a new queue, and say exactly what is gone.

The damaged queue is only read. Frames are found by walking the pages, and behind damage wherever
one proves itself. Messages keep payload, timestamp, order and batch; they get new sequences where
something is missing before them, because a queue has no gaps, and the report says which is which.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.inspection import Inspection, survey
from pagequeue.integrity.problem import Problem
from pagequeue.integrity.salvage_source import (
    SalvagePage,
    fitting_times,
    frames_of,
    is_claimed,
    sources,
)
from pagequeue.page.page import REASONS
from pagequeue.page.valid_runs import ValidRun, valid_runs
from pagequeue.schema.schema import RequestedSchema
from pagequeue.send.producer import Producer
from pagequeue.store.store import CLOSE_SECONDS_MAX, Store
from pagequeue.system.directory import Directory
from pagequeue.system.trust import trusted
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pagequeue.meta.all_and_read_meta import AllMeta

LOCK_TIMEOUT = 10.0


class Run(NamedTuple):
    """Messages that follow each other in the old queue and in the new one.

    Attributes:
        first: old sequence of the first.
        last: old sequence of the last.
        target_first: new sequence of the first.
    """

    first: int
    last: int
    target_first: int


@dataclass(frozen=True)
class Loss:
    """Messages that are gone.

    Attributes:
        file: where they should stand.
        position: place of the damage in the file in bytes, None when the file is missing.
        first_sequence: of the first one gone.
        last_sequence: of the last one gone, None when that is not known.
        after_ns: time of the last message before them, None when there is none.
        before_ns: time of the first message behind them, None when there is none.
        reason: what is wrong there.
    """

    file: str
    position: int | None
    first_sequence: int
    last_sequence: int | None
    after_ns: int | None
    before_ns: int | None
    reason: str


@dataclass(frozen=True)
class Repeat:
    """Messages that stand there again.

    Attributes:
        file: where they stand.
        first_sequence: of the first one.
        last_sequence: of the last one.
        reason: what is to be said of them.
    """

    file: str
    first_sequence: int
    last_sequence: int
    reason: str


@dataclass
class SalvageReport:
    """What was copied and what is gone.

    Attributes:
        target: directory of the new queue.
        messages_copied: into the new queue.
        runs: which old sequences became which new ones.
        lost: messages that are gone, in their order.
        duplicates: messages that stand there again, the same, and were ignored.
        conflicts: messages that stand there again with other contents; the first was copied.
        notes: files that were left out, and what else is worth knowing.
    """

    target: str
    messages_copied: int = 0
    runs: list[Run] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)
    duplicates: list[Repeat] = field(default_factory=list)
    conflicts: list[Repeat] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is lost and nothing contradicts."""
        return not self.lost and not self.conflicts


def salvage_queue(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> SalvageReport:
    """Copy all messages that still validate into a new queue, which is flushed at the end.

    Args:
        directory: path of the damaged queue; nothing is written there and no lock is taken.
        target: path of a directory where no queue of this prefix is; made if it is not there.
        prefix: of the file names, here and there.
        trust: as for `Queue`, for both directories.
        progress: called with page files done and page files in all.

    Raises:
        QueueNotFound: nothing there looks like a queue.
        CorruptMeta: neither allMeta nor any page says what the queue was like.
        AccessDenied: allMeta may not be read, nor any page.
        InvalidOption: there is a queue in `target` already, or it lies in the damaged queue.
        DiskFull: there is no room for the copy; what was copied so far is removed again.
    """
    path = os.path.abspath(os.fsdecode(directory))
    target_path = os.path.abspath(os.fsdecode(target))
    folder = Directory(path, create=False, read_only=True, trust=trusted(trust, path))
    try:
        found = survey(folder, prefix)
        if found.meta is None:
            denied = found.denied.get(folder.full(fmt.all_meta_name(prefix)))
            if denied is not None:
                raise denied
            why = "; ".join(problem.reason for problem in found.problems) or "missing"
            raise errors.CorruptMeta(
                f"neither this file nor any page says what the queue was like ({why}): restore "
                "one of them from a copy",
                path=folder.full(fmt.all_meta_name(prefix)), position=0, reason="missing",
            )  # fmt: skip
        if Path(os.path.realpath(path)) in Path(os.path.realpath(target_path)).parents:
            raise errors.InvalidOption(
                "it lies in the damaged queue's directory, where nothing is written: choose a "
                "target elsewhere",
                path=target_path,
            )
        with _Target(target_path, prefix, found.meta, trusted(trust, path)) as made:
            try:
                return _Salvage(found, made).run(progress)
            except BaseException:
                made.remove()  # or half of a copy would pass for all of it
                raise
    finally:
        folder.close()


class _Target(Closing):
    """The new queue; it takes messages with the times that they had."""

    def __init__(self, path: str, prefix: str, meta: AllMeta, trust: frozenset[str]) -> None:
        names = os.listdir(path) if os.path.isdir(path) else []
        if any(fmt.owner_of(name) == prefix != name.removesuffix(".lock") for name in names):
            raise errors.InvalidOption(
                "there is a queue already, or a part of one: choose another target", path=path
            )
        self.path = path
        # The clock is no method: the core's producer has it, and the collector does not see that.
        self._now = now = [0]
        clock = partial(now.__getitem__, 0)
        self.store = Store(
            path, prefix, create=True, read_only=False, page_bytes=meta.page_bytes,
            lock_timeout=LOCK_TIMEOUT, clock=clock, trust=trust,
            schema=RequestedSchema(meta.schema.dtype, meta.schema.codec),
        )  # fmt: skip
        self._producer = Producer(self.store, clock)

    def put(self, payloads: list[bytes], times: list[int]) -> int:
        """Send what was one batch, or one message; return the first sequence."""
        self._now[0] = times[0]
        if len(payloads) == 1:
            return self._producer.send(payloads[0])
        one = times[0] == times[-1]
        return self._producer.send_many(payloads, timestamps=None if one else times).start

    def flush(self) -> None:
        """Put all of it on stable storage."""
        self._producer.flush()

    def holds(self, sequence: int, payload: bytes, timestamp: int) -> bool:
        """Whether the message of this new sequence is this one."""
        place = self.store.seek_sequence(sequence)
        region, position = place.page.region, place.position
        _, found, size, _ = _core.look(region, position, sequence)
        start = position + fmt.FRAME_HEADER_BYTES
        return found == timestamp and region.read(start, size) == payload

    def remove(self) -> None:
        """Close the new queue and remove its files."""
        folder, prefix = self.store.folder, self.store.prefix
        pattern = fmt.file_pattern(prefix)
        self._producer.close()
        self.store.background.end()
        self.store.background.await_end(min(self.store.lock_timeout, CLOSE_SECONDS_MAX))
        for name in folder.names():
            if pattern.fullmatch(name) or name == fmt.lock_name(prefix):
                folder.remove(name)

    def close(self) -> None:
        """Close the new queue."""
        self._producer.close()
        self.store.close()


def _note_again(noted: list[Repeat], file: str, sequence: int, reason: str) -> None:
    """Note one more message, together with those directly before it."""
    if noted and noted[-1] == Repeat(file, noted[-1].first_sequence, sequence - 1, reason):
        noted[-1] = replace(noted[-1], last_sequence=sequence)
    else:
        noted.append(Repeat(file, sequence, sequence, reason))


class _Salvage:
    def __init__(self, found: Inspection, target: _Target) -> None:
        self.found = found
        self.target = target
        self.report = SalvageReport(target.path)
        self.next = found.head_sequence or 0
        """The old sequence that comes next."""
        self.last_number = 0
        """The number of the last page that was read."""
        self.last_timestamp: int | None = None
        self.damage: tuple[str, int | None, str] | None = None
        """The last place that was wrong: what is missing behind it, is missing there."""
        self.is_claimed = False
        """Whether the index says that a message is where the last page's good ones end."""

    def run(self, progress: Callable[[int, int], None] | None) -> SalvageReport:
        """Copy page by page."""
        all_sources = sources(self.found, self.report.notes)
        self._miss_head()
        for done, source in enumerate(all_sources):
            if progress is not None:
                progress(done, len(all_sources))
            behind = next((s for s in all_sources[done + 1 :] if s.first > source.first), None)
            self._copy_page(source, behind)
        if progress is not None:
            progress(len(all_sources), len(all_sources))
        self._miss_tail()
        self.target.flush()
        return self.report

    def _copy_page(self, source: SalvagePage, behind: SalvagePage | None) -> None:
        end = behind.first if behind is not None else self._known_tail(source)
        self.last_number = max(self.last_number, source.number)
        for reason in source.reasons:
            self.damage = (source.path, 0, reason)
        walked = valid_runs(
            source.region, source.index, source.first, None,
            end_sequence=None if end is None or end < source.first else end,
            is_sealed=behind is not None, sent_sequence=self._sent(),
        )  # fmt: skip
        for stretch in walked:
            # Behind damage, in a page whose end nobody knows, and where nothing was promised, the
            # rest of a batch can be of one that was never sent (I8).
            is_doubtful = (
                end is None
                and stretch.position > fmt.PAGE_HEADER_BYTES
                and stretch.first >= self.found.durable_sequence
            )
            self._copy(source, stretch, is_doubtful=is_doubtful)
            is_tail = behind is None and (end is None or stretch.end >= end)
            # Behind an end mark, which its checksum proves, what is missing is not missing here.
            is_end = is_tail and stretch.stopped == _core.READ_NOTHING
            if not (is_end or stretch.stopped == _core.READ_END):
                reason = REASONS.get(stretch.stopped, "it cannot be read")
                place = source.blocks.get(stretch.end, (stretch.end_position, reason))
                self.damage = (source.path, *place)
            self.is_claimed = is_claimed(source, stretch)

    def _known_tail(self, source: SalvagePage) -> int | None:
        """Return where the last page ends, if the write meta can be trusted to say it."""
        written = self.found.written
        if written is None or not written.is_trusted:
            return None
        return written.tail.sequence if written.tail.page_number == source.number else None

    def _sent(self) -> int:
        """Return up to where messages were certainly sent."""
        written = self.found.written
        trusted_tail = written is not None and written.is_trusted
        tail = written.tail.sequence if written is not None and trusted_tail else 0
        return max(tail, self.found.durable_sequence)

    # --- frames -----------------------------------------------------------------------------------

    def _copy(self, source: SalvagePage, stretch: ValidRun, *, is_doubtful: bool) -> None:
        """Copy one stretch, batch by batch; a doubtful one from the end of its first batch on."""
        frames = list(frames_of(source, stretch))
        payloads: list[bytes] = []
        times: list[int] = []
        first = stretch.first
        for place, (payload, timestamp, is_last) in enumerate(frames):
            payloads.append(payload)
            times.append(timestamp)
            sequence = stretch.first + place + 1
            if not is_last and sequence < stretch.end:
                continue
            if not is_doubtful or first > stretch.first:
                behind = frames[place + 1][1] if place + 1 < len(frames) else None
                self._put(source, first, payloads, times, behind)
            payloads, times, first = [], [], sequence

    def _times(
        self, source: SalvagePage, first: int, times: list[int], behind: int | None
    ) -> list[int]:
        """Return the times that a batch can have among its neighbours; note one that it cannot."""
        placed = fitting_times(times, self.last_timestamp or 0, behind)
        for i, (told, possible) in enumerate(zip(times, placed, strict=True)):
            if told != possible:
                reason = f"its time, {told}, cannot be beside its neighbours': {possible} instead"
                self.report.notes.append(Problem(source.path, None, first + i, reason))
                break
        return placed

    def _put(
        self,
        source: SalvagePage,
        first: int,
        payloads: list[bytes],
        times: list[int],
        behind: int | None,
    ) -> None:
        """Send what was one batch, or one message; `behind` is the time of what follows."""
        known = min(max(self.next - first, 0), len(payloads))
        for i in range(known):
            self._compare(source, first + i, payloads[i], times[i])
        first, payloads, times = first + known, payloads[known:], times[known:]
        if not payloads:
            return
        times = self._times(source, first, times, behind)
        if first > self.next:
            self._miss(self._missing_before(source), first, times[0])
        target_first = self.target.put(payloads, times)
        last = first + len(payloads) - 1
        runs = self.report.runs
        if runs and runs[-1].last + 1 == first:
            runs[-1] = runs[-1]._replace(last=last)
        else:
            runs.append(Run(first, last, target_first))
        self.report.messages_copied += len(payloads)
        self.next = last + 1
        self.last_timestamp = times[-1]
        self.damage = None

    def _compare(self, source: SalvagePage, sequence: int, payload: bytes, timestamp: int) -> None:
        """Note a message that stands there for the second time, or instead of a lost one."""
        for run in self.report.runs:
            if run.first <= sequence <= run.last:
                copied = run.target_first + sequence - run.first
                same = self.target.holds(copied, payload, timestamp)
                reason = "there again, the same" if same else "there again, with other contents"
                noted = self.report.duplicates if same else self.report.conflicts
                _note_again(noted, source.path, sequence, reason)
                return
        reason = "out of order: what follows it was copied already"
        _note_again(self.report.conflicts, source.path, sequence, reason)

    # --- what is gone -----------------------------------------------------------------------------

    def _miss_page(self, number: int) -> None:
        """Note that the last page is not there."""
        self.report.lost.append(
            Loss(
                self.found.path(number), None, self.next, None, self.last_timestamp, None, "missing"
            )
        )

    def _missing_before(self, source: SalvagePage) -> str:
        """Return the path of the first page that is missing right before one; else its own."""
        before = (number for number in self.found.numbers if number < source.number)
        missing = max(max(before, default=0) + 1, self.found.head_page)
        return self.found.path(missing) if missing < source.number else source.path

    def _miss(self, path: str, first: int, before_ns: int | None) -> None:
        file, position, reason = self.damage or (path, None, "missing")
        self.report.lost.append(
            Loss(file, position, self.next, first - 1, self.last_timestamp, before_ns, reason)
        )

    def _miss_head(self) -> None:
        """Note what is not there before the first page, if no read meta says it was removed."""
        if self.found.is_head_known or not self.next:
            return
        path = self.found.path(self.found.head_page)
        reason = "not there: retention removed them, or their pages are lost"
        self.report.lost.append(Loss(path, None, 0, self.next - 1, None, None, reason))

    def _miss_tail(self) -> None:
        """Note what is missing at the end, as far as anything says that there was something."""
        written = self.found.written
        end = self._sent()
        path = self.found.folder.path
        if end > self.next:
            self._miss(path, end, None)
        elif written is not None and self.last_number < written.durable_page:
            # It was on stable storage under its name; what stood in it is not known.
            self._miss_page(written.durable_page)
        elif (self.is_claimed and (written is None or not written.is_trusted)) or (
            self.damage is not None and (written is None or written.durable_page == 0)
        ):
            file, position, reason = self.damage or (path, None, "missing")
            self.report.lost.append(
                Loss(file, position, self.next, None, self.last_timestamp, None, reason)
            )
