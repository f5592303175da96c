"""Salvage: copy every valid frame into a new queue, and report exactly which messages are lost.

The damaged queue is only read. Salvage walks the frames of each page; after damage it searches for
the next frame that proves itself. Messages keep payload, timestamp, order and batch. The new queue
begins with the old one's head, so messages keep their sequences too, up to the first loss. A queue
has no gaps, so messages after a loss get lower sequences; the report maps old to new ones.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pagequeue import _core, errors
from pagequeue import format as fmt
from pagequeue.integrity.inspection import Inspection, inspect
from pagequeue.integrity.problem import Problem
from pagequeue.integrity.salvage_beside import Run, copy_beside
from pagequeue.integrity.salvage_source import (
    SalvagePage,
    fitting_times,
    frames_of,
    is_claimed,
    partial_commits,
    proved_end,
    sources,
)
from pagequeue.meta.read_meta import ReadMeta
from pagequeue.page.large_message import LargePayload, PayloadFile
from pagequeue.page.page import REASONS, missing_page
from pagequeue.page.valid_runs import ValidRun, valid_runs
from pagequeue.producer.producer import Producer
from pagequeue.schema.schema import RequestedSchema
from pagequeue.store.creation import Creation
from pagequeue.store.opening import Opening
from pagequeue.store.options import check_prefix
from pagequeue.store.store import CLOSE_SECONDS_MAX, Store
from pagequeue.system.directory import Directory
from pagequeue.system.trust import trusted
from pagequeue.util.arguments import absolute_path
from pagequeue.util.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.meta.all_meta import AllMeta
    from pagequeue.page.large_message import FragmentPage
    from pagequeue.util.literals import Trusted

LOCK_TIMEOUT = 10.0


Payload: TypeAlias = "bytes | LargePayload"
COPY_BYTES: Final = 1 << 20
NOT_WHOLE: Final = "sent at once with messages that are missing: `keep_partial` copies them"


class FragmentSource:
    """A salvaged page, for the fragment in it: what `LargePayload` needs."""

    def __init__(self, source: SalvagePage) -> None:
        self.path: str = source.path
        self.first_sequence: int = source.first
        self._region = source.region

    def ready(self, position: int) -> _core.Region:
        """Return the map of the page."""
        del position
        return self._region


@dataclass(frozen=True)
class Loss:
    """Messages that are lost.

    Attributes:
        file: the file that contained them.
        position: byte position of the damage in the file, None if the file is missing.
        first_sequence: of the first lost message.
        last_sequence: of the last lost message, inclusive; None if unknown.
        after_ns: timestamp of the last message before them, None without such a message.
        before_ns: timestamp of the first message after them, None without such a message.
        reason: what is wrong there.

    Example:
        >>> for loss in salvage_queue("events", "rescued").lost:
        ...     print(loss.first_sequence, loss.last_sequence, loss.reason)
        2 2 its checksum is wrong
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
    """Messages whose sequences were found a second time, or that were left out.

    Attributes:
        file: the file that contains them.
        first_sequence: of the first one.
        last_sequence: of the last one, inclusive.
        reason: how they differ from the first ones, or why they were left out.

    Example:
        >>> Repeat("events/queue-0000000003.page", 100, 127, "a duplicate").reason
        'a duplicate'
    """

    file: str
    first_sequence: int
    last_sequence: int
    reason: str


@dataclass
class SalvageReport:
    """The result of a salvage.

    Attributes:
        target: directory of the new queue.
        messages_copied: into the new queue.
        runs: which old sequences became which new ones.
        lost: messages that are lost, in order.
        duplicates: messages that were found a second time with the same contents; ignored.
        conflicts: messages that were found a second time with other contents; the first was copied.
        left_out: messages of sends that are not whole; copied with `keep_partial`.
        notes: pages and indexes that were skipped, and other remarks.

    Example:
        >>> report = salvage_queue("events", "rescued")
        >>> report.messages_copied, report.lost, report.ok
        (5, [], True)
    """

    target: str
    messages_copied: int = 0
    runs: list[Run] = field(default_factory=list)
    lost: list[Loss] = field(default_factory=list)
    duplicates: list[Repeat] = field(default_factory=list)
    conflicts: list[Repeat] = field(default_factory=list)
    left_out: list[Repeat] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no message is lost and none conflicts with another.

        Example:
            >>> salvage_queue("events", "rescued").ok
            True
        """
        return not self.lost and not self.conflicts


def salvage_queue(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str = "queue",
    trust: Trusted = (),
    progress: Callable[[int, int], None] | None = None,
    keep_partial: bool = False,
) -> SalvageReport:
    """Copy all valid messages into a new queue, and flush it.

    Messages that were sent at once, in several pages, and not flushed are copied all or not at all.

    Args:
        directory: path of the damaged queue; it is only read, and no lock is taken.
        target: path of a directory without a queue of this prefix; created if missing.
        prefix: of the file names of both queues.
        trust: as for `Queue`, for both directories.
        progress: called with page files done and page files in all.
        keep_partial: also copy what is valid of a send that is not whole.

    Returns:
        What was copied, what is lost, and what was left out.

    Raises:
        QueueNotFound: no queue with this prefix is in the directory.
        CorruptMeta: neither allMeta nor any page determines the queue's id and page size.
        AccessDenied: neither allMeta nor any page may be read.
        InvalidOption: `target` contains a queue already, or is in the damaged queue's directory.
        DiskFull: the copy does not fit; the part copied so far is removed again.

    Example:
        >>> salvage_queue("events", "rescued").messages_copied
        5
    """
    path = absolute_path("directory", directory)
    check_prefix(path, prefix)
    target_path = absolute_path("target", target)
    folder = Directory(path, create=False, read_only=True, trust=trusted(trust, path))
    try:
        found = inspect(folder, prefix)
        if found.meta is None:
            denied = found.denied.get(folder.full(fmt.all_meta_name(prefix)))
            if denied is not None:
                raise denied
            why = "; ".join(problem.reason for problem in found.problems) or "missing"
            raise errors.CorruptMeta(
                f"neither this file nor any page determines the queue's id and page size ({why})",
                remedy="restore one of them from a copy",
                path=folder.full(fmt.all_meta_name(prefix)),
                position=0,
                reason="missing",
            )
        if Path(os.path.realpath(path)) in Path(os.path.realpath(target_path)).parents:
            raise errors.InvalidOption(
                "it is in the damaged queue's directory, which salvage only reads",
                path=target_path,
                remedy="choose a target elsewhere",
            )
        with _Target(target_path, prefix, found, trusted(trust, path)) as made:
            try:
                report = _Salvage(found, made, keep_partial=keep_partial).run(progress)
                copy_beside(found, report.runs, made.store, report.notes)
            except BaseException:
                made.remove()  # or half of a copy could be taken for all of it
                raise
            return report
    finally:
        folder.close()


class _Target(Closing):
    """The new queue; its messages keep their old timestamps."""

    def __init__(self, path: str, prefix: str, found: Inspection, trust: frozenset[str]) -> None:
        names = os.listdir(path) if os.path.isdir(path) else []
        if any(fmt.owner_of(name) == prefix != name.removesuffix(".lock") for name in names):
            raise errors.InvalidOption(
                "it contains a queue already, or a part of one",
                path=path,
                remedy="choose another target",
            )
        self.path = path
        # Not a bound method: without a cycle all of it goes with its last reference.
        self._now = now = [0]
        clock = partial(now.__getitem__, 0)
        meta = found.meta
        assert meta is not None
        self._begin(path, prefix, meta, found.head_sequence or 0, trust)
        self.store = Store(
            Opening(
                path,
                prefix,
                create=False,
                read_only=False,
                page_bytes=meta.page_bytes,
                lock_timeout=LOCK_TIMEOUT,
                clock=clock,
                trust=trust,
                schema=RequestedSchema(
                    meta.schema.dtype, meta.schema.codec, meta.schema.is_journal
                ),
            )
        )
        self._producer = Producer(self.store, clock)

    @staticmethod
    def _begin(path: str, prefix: str, meta: AllMeta, first: int, trust: frozenset[str]) -> None:
        """Make what fixes the queue's options and its first sequence; opening makes the rest."""
        folder = Directory(path, create=True, read_only=False, trust=trust)
        try:
            made = Creation(folder, prefix).begin(
                time.time_ns(), meta.page_bytes, meta.schema, origin=meta.queue_id
            )
            ReadMeta.make(
                folder, prefix, made.queue_id, head_page=fmt.FIRST_PAGE, head_sequence=first
            )
        finally:
            folder.close()

    def put(self, payloads: list[Payload], times: list[int]) -> int:
        """Send one batch, or one message; return the first sequence.

        Raises:
            CorruptFrame: a block of a large payload is damaged; the message was not sent.
        """
        self._now[0] = times[0]
        if len(payloads) == 1:
            payload = payloads[0]
            if isinstance(payload, bytes):
                return self._producer.send(payload)
            with self._producer.open(timestamp=times[0]) as file:
                shutil.copyfileobj(PayloadFile(payload), file, COPY_BYTES)
            assert file.sequence is not None
            return file.sequence
        one = times[0] == times[-1]
        return self._producer.send_many(payloads, timestamps=None if one else times).start

    def flush(self) -> None:
        """Put all messages on stable storage."""
        self._producer.flush()

    def holds(self, sequence: int, payload: Payload, timestamp: int) -> bool:
        """Whether the message with this new sequence has this payload and timestamp."""
        place = self.store.seek_sequence(sequence)
        region, position = place.page.region, place.position
        _, found, size, _ = _core.peek(region, position, sequence)
        if found != timestamp or fmt.is_large(region.load_half(position)) == isinstance(
            payload, bytes
        ):
            return False
        start = position + fmt.FRAME_HEADER_BYTES
        if isinstance(payload, bytes):
            return region.read(start, size) == payload
        copied = LargePayload(self.store.page, place.page.number, position, sequence)
        with PayloadFile(copied) as one, PayloadFile(payload) as other:
            try:
                while (part := one.read(COPY_BYTES)) == other.read(COPY_BYTES):
                    if not part:
                        return True
            except errors.CorruptFrame:  # of the one that was found again
                return False
        return False

    def remove(self) -> None:
        """Close the new queue and remove its files."""
        folder, prefix = self.store.folder, self.store.prefix
        shutil.rmtree(folder.full(fmt.journal_name(prefix)), ignore_errors=True)
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
    def __init__(self, found: Inspection, target: _Target, *, keep_partial: bool) -> None:
        self.found = found
        self.target = target
        self.keep_partial = keep_partial
        self.report = SalvageReport(target.path)
        self.next = found.head_sequence or 0
        """The old sequence to copy next."""
        self.last_number = 0
        """The number of the last page that was read."""
        self.last_timestamp: int | None = None
        self.damage: tuple[str, int | None, str] | None = None
        """The last damage: file, position and reason of the messages missing after it."""
        self._by_number: dict[int, SalvagePage] = {}
        self._partial: dict[int, int] = {}
        self.is_claimed = False
        """Whether the index has a message where the valid ones of the last page end."""

    def run(self, progress: Callable[[int, int], None] | None) -> SalvageReport:
        """Copy page by page."""
        all_sources = sources(self.found, self.report.notes)
        self._by_number = {
            source.number: source
            for source in sorted(all_sources, key=lambda source: source.is_named)
        }
        if not self.keep_partial:
            self._partial = partial_commits(self.found, self._by_number)
        self._miss_head()
        for done, source in enumerate(all_sources):
            if progress is not None:
                progress(done, len(all_sources))
            following = next((s for s in all_sources[done + 1 :] if s.first > source.first), None)
            self._copy_page(source, following)
        if progress is not None:
            progress(len(all_sources), len(all_sources))
        self._miss_tail()
        self.target.flush()
        return self.report

    def _copy_page(self, source: SalvagePage, following: SalvagePage | None) -> None:
        end = following.first if following is not None else self._known_tail(source)
        if following is not None and not following.is_named:  # it can be of before a power cut
            end = max(following.first, proved_end(source) or 0)
        self.last_number = max(self.last_number, source.number)
        written = self.found.written
        mark_page = 0 if written is None else written.durable_page
        for reason in source.reasons:
            self.damage = (source.path, 0, reason)
        walked = valid_runs(
            source.region,
            source.index,
            source.first,
            None,
            end_sequence=None if end is None or end < source.first else end,
            is_sealed=following is not None or source.number < mark_page,
            sent_sequence=self._sent(),
            durable_sequence=self.found.durable_sequence if source.number == mark_page else 0,
        )
        for run in walked:
            # After damage, in a page with an unknown end and above the durable mark, the rest of a
            # batch can belong to one that was never sent (I8).
            is_doubtful = (
                end is None
                and run.position > fmt.PAGE_HEADER_BYTES
                and run.first >= self.found.durable_sequence
            )
            self._copy(source, run, is_doubtful=is_doubtful)
            is_tail = following is None and (end is None or run.end >= end)
            # The checksum of an end-of-page marker proves that this page lost no later message.
            is_end = is_tail and run.stopped == _core.READ_NOTHING
            if not (is_end or run.stopped == _core.READ_END):
                reason = REASONS.get(run.stopped, "it is unreadable")
                place = source.blocks.get(run.end, (run.end_position, reason))
                self.damage = (source.path, *place)
            self.is_claimed = is_claimed(source, run)

    def _known_tail(self, source: SalvagePage) -> int | None:
        """Return the end of the last page from the write meta, None if that is not trusted."""
        written = self.found.written
        if written is None or not written.is_trusted:
            return None
        return written.tail.sequence if written.tail.page_number == source.number else None

    def _sent(self) -> int:
        """Return the sequence below which messages were certainly sent."""
        written = self.found.written
        trusted_tail = written is not None and written.is_trusted
        tail = written.tail.sequence if written is not None and trusted_tail else 0
        return max(tail, self.found.durable_sequence)

    # --- frames -----------------------------------------------------------------------------------

    def _copy(self, source: SalvagePage, run: ValidRun, *, is_doubtful: bool) -> None:
        """Copy a run of frames, batch by batch; a doubtful one without its first batch."""
        frames = list(frames_of(source, run))
        payloads: list[Payload] = []
        times: list[int] = []
        first = run.first
        for place, (payload, timestamp, is_last) in enumerate(frames):
            sequence = run.first + place + 1
            found = self._large(source, payload, first) if isinstance(payload, int) else payload
            if found is None:
                first = sequence
                continue
            payloads.append(found)
            times.append(timestamp)
            if not is_last and sequence < run.end:
                continue
            if not is_doubtful or first > run.first:
                after = frames[place + 1][1] if place + 1 < len(frames) else None
                self._put(source, first, payloads, times, after)
            payloads, times, first = [], [], sequence

    def _large(self, source: SalvagePage, position: int, sequence: int) -> LargePayload | None:
        """Return the payload whose head is at a position; None: a part of it is lost."""
        try:
            return LargePayload(self._page, source.number, position, sequence)
        except errors.DamageError as error:
            self._lose(error)
            return None

    def _page(self, number: int) -> FragmentPage:
        """Return a page by its number, for the fragments in it."""
        source = self._by_number.get(number)
        if source is None:
            raise missing_page(self.found.path(number), number)
        return FragmentSource(source)

    def _lose(self, error: errors.DamageError) -> None:
        """Note the damage because of which the next message is lost."""
        self.damage = (str(error.path), error.position, error.reason)

    def _times(
        self, source: SalvagePage, first: int, times: list[int], after: int | None
    ) -> list[int]:
        """Return timestamps of a batch that fit those around it; note the first one replaced."""
        placed = fitting_times(times, self.last_timestamp or 0, after)
        for i, (found, possible) in enumerate(zip(times, placed, strict=True)):
            if found != possible:
                reason = f"timestamp {found} is out of order: replaced by {possible}"
                self.report.notes.append(Problem(source.path, None, first + i, reason))
                break
        return placed

    def _put(
        self,
        source: SalvagePage,
        first: int,
        payloads: list[Payload],
        times: list[int],
        after: int | None,
    ) -> None:
        """Send one batch, or one message; `after` is the timestamp of the message after it."""
        known = min(max(self.next - first, 0), len(payloads))
        for i in range(known):
            self._compare(source, first + i, payloads[i], times[i])
        first, payloads, times = first + known, payloads[known:], times[known:]
        if not payloads:
            return
        if first < self._partial.get(source.number, 0):
            self._leave_out(source, first, times)
            return
        times = self._times(source, first, times, after)
        damage, known_loss = self.damage, len(self.report.lost)
        if first > self.next:
            self._miss(self._missing_before(source), first, times[0])
        try:
            target_first = self.target.put(payloads, times)
        except errors.DamageError as error:  # of a fragment: the message was not sent
            del self.report.lost[known_loss:]
            if first == self.next or damage is None:
                self._lose(error)
            return
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

    def _compare(
        self, source: SalvagePage, sequence: int, payload: Payload, timestamp: int
    ) -> None:
        """Note a message whose sequence was copied already, or passed."""
        for run in self.report.runs:
            if run.first <= sequence <= run.last:
                copied = run.target_first + sequence - run.first
                same = self.target.holds(copied, payload, timestamp)
                reason = "a duplicate" if same else "the same sequence with other contents"
                noted = self.report.duplicates if same else self.report.conflicts
                _note_again(noted, source.path, sequence, reason)
                return
        reason = "out of order: messages after it were copied already"
        _note_again(self.report.conflicts, source.path, sequence, reason)

    def _leave_out(self, source: SalvagePage, first: int, times: list[int]) -> None:
        """Note messages of a send that is not whole, and those that are missing before them."""
        if first > self.next:
            self._miss(self._missing_before(source), first, times[0])
        self.next = first + len(times)
        for sequence in range(first, self.next):
            _note_again(self.report.left_out, source.path, sequence, NOT_WHOLE)
        self.damage = None

    # --- losses -----------------------------------------------------------------------------------

    def _miss_page(self, number: int) -> None:
        """Note that the last page is missing."""
        self.report.lost.append(
            Loss(
                self.found.path(number), None, self.next, None, self.last_timestamp, None, "missing"
            )
        )

    def _missing_before(self, source: SalvagePage) -> str:
        """Return the path of the first missing page directly before one; else its own."""
        before = (number for number in self.found.numbers if number < source.number)
        missing = max(max(before, default=0) + 1, self.found.head_page)
        return self.found.path(missing) if missing < source.number else source.path

    def _miss(self, path: str, first: int, before_ns: int | None) -> None:
        file, position, reason = self.damage or (path, None, "missing")
        self.report.lost.append(
            Loss(file, position, self.next, first - 1, self.last_timestamp, before_ns, reason)
        )

    def _miss_head(self) -> None:
        """Note the messages before the first page, unless the read meta shows their removal."""
        if self.found.is_head_known or not self.next:
            return
        path = self.found.path(self.found.head_page)
        reason = "missing: retention removed them, or their pages are lost"
        self.report.lost.append(Loss(path, None, 0, self.next - 1, None, None, reason))

    def _miss_tail(self) -> None:
        """Note what is missing at the end, where tail, durable mark, index or damage prove it."""
        written = self.found.written
        end = self._sent()
        path = self.found.folder.path
        if end > self.next:
            self._miss(path, end, None)
        elif written is not None and self.last_number < written.durable_page:
            # It was on stable storage under its name; its messages are unknown.
            self._miss_page(written.durable_page)
        elif (self.is_claimed and (written is None or not written.is_trusted)) or (
            self.damage is not None and (written is None or written.durable_page == 0)
        ):
            file, position, reason = self.damage or (path, None, "missing")
            self.report.lost.append(
                Loss(file, position, self.next, None, self.last_timestamp, None, reason)
            )
