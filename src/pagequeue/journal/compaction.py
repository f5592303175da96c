"""Compaction: a snapshot replaces the entries before it.

The order of steps (FORMAT.md, "Journals"):

J1. Become the one compactor: open the journal's named consumer, which one handle at a time can.
J2. Flush the log up to the snapshot's sequence (I22).
J3. Write the snapshot under a temporary name and sync it; give it its name, and sync that.
J4. Move the consumer to the oldest snapshot that is kept, which is read and checked before.
J5. Remove older snapshots, then the pages that all named consumers have acknowledged.

Dies anywhere: before the end of J3 there is no change; after it the next compaction completes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pagequeue import errors
from pagequeue.journal.snapshots import SnapshotGone
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from pagequeue.journal.machine import Machine
    from pagequeue.journal.snapshots import Snapshots
    from pagequeue.producer.producer import Producer
    from pagequeue.queue.queue import Queue
    from pagequeue.receive.consumer import Consumer

PIN: Final = "journal"
"""The name of the consumer that keeps the log from the oldest kept snapshot on."""


@dataclass(frozen=True)
class CompactionReport:
    """The result of `Journal.compact`.

    Attributes:
        sequence: of the newest snapshot; None: another process was compacting, or has replaced
            more entries than this one had applied, and this call had no effect.
        snapshot_bytes: of the snapshot that was written; 0: there was one of this sequence.
        pages: removed from the log.
        entries: in them.
        held_by: names of the consumers that kept pages which would have been removed otherwise.

    Example:
        >>> report = journal.compact()
        >>> report.sequence, report.entries, report.held_by
        (1000, 0, ())
    """

    sequence: int | None
    snapshot_bytes: int = 0
    pages: int = 0
    entries: int = 0
    held_by: tuple[str, ...] = ()


class Compactor:
    """Compacts one journal.

    Args:
        queue: of the entries.
        producer: of the journal.
        machine: of the journal.
        snapshots: of the journal.
        keep: how many snapshots to keep.
    """

    def __init__(
        self,
        queue: Queue,
        producer: Producer,
        machine: Machine[Any],
        snapshots: Snapshots,
        keep: int,
    ) -> None:
        self._queue = queue
        self._producer = producer
        self._machine = machine
        self._snapshots = snapshots
        self._keep = keep

    def run(self, sequence: int, state: Any) -> CompactionReport:  # noqa: ANN401 - the machine's state
        """Replace the entries below a sequence by a state, which no thread may change meanwhile.

        Raises:
            DiskFull, SystemLimit, SyncFailed, LockTimeout: no entry is lost; call again.
        """
        try:
            pin = self._queue.consumer(PIN)  # J1
        except errors.ConsumerInUse:
            return CompactionReport(None)
        with pin:
            if sequence < self._queue.head_sequence:  # another one got further meanwhile
                return CompactionReport(None)
            self._snapshots.sweep()
            written = self._commit(sequence, state)
            kept = self._kept()
            if not kept:  # what was just written cannot be read: everything stays
                return CompactionReport(sequence, written)
            return self._trim(pin, kept, written)

    def _commit(self, sequence: int, state: Any) -> int:  # noqa: ANN401 - the machine's state
        """Write the snapshot unless there is one (J2, J3)."""
        if self._is_usable(sequence):
            return 0
        self._flush(sequence)
        return self._snapshots.write(sequence, self._machine, state)

    def _flush(self, sequence: int) -> None:
        """Put the entries below a sequence on stable storage (J2)."""
        if self._queue.durable_sequence < sequence:
            self._producer.flush()

    def _is_usable(self, sequence: int) -> bool:
        if sequence not in self._snapshots.sequences():
            return False
        try:
            self._snapshots.check(sequence)
        except (errors.DamageError, SnapshotGone):
            return False
        return True

    def _kept(self) -> list[int]:
        """Return the snapshots to keep, newest first: those that can be read and continued."""
        head = self._queue.head_sequence
        usable = (one for one in self._snapshots.sequences() if one >= head)
        kept: list[int] = []
        for sequence in usable:
            if len(kept) == self._keep:
                break
            if self._is_usable(sequence):
                kept.append(sequence)
        return kept

    def _trim(self, pin: Consumer, kept: list[int], written: int) -> CompactionReport:
        """Remove what the kept snapshots replace (J4, J5)."""
        # While there are fewer, the initial state is the one before.
        has_all = len(kept) == self._keep or self._queue.head_sequence > 0
        pin.seek(sequence=kept[-1] if has_all else 0)
        for sequence in self._snapshots.sequences():
            if sequence not in kept:
                self._snapshots.remove(sequence)
        opened = internals(self._queue)
        store = opened.writable("compact it")
        assert opened.upkeep is not None
        trimmed = opened.upkeep.trimmer.trim_to(store, 1, protects=True)
        held_by = tuple(name for name in trimmed.held_by if name != PIN)
        return CompactionReport(kept[0], written, trimmed.pages, trimmed.messages, held_by)
