"""Replica: the state of a journal in this process, and how it gets there and stays there.

It begins with a snapshot, or the machine's initial state, and applies all entries after it. What
interrupts an `apply`, an error or Ctrl-C, leaves a state that may be half changed: it is thrown
away and built again before the next use.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pagequeue import errors
from pagequeue.journal.snapshots import SnapshotGone
from pagequeue.queue import reading
from pagequeue.queue.queue import internals

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagequeue.journal.machine import EntryCodec, Machine
    from pagequeue.journal.snapshots import Snapshots
    from pagequeue.queue.queue import Queue

log: logging.Logger = logging.getLogger("pagequeue")
ONE_BY_ONE: Final = 256
"""Entries that are read one by one; if there are more, they are read in batches, which takes as
long as some hundred entries to begin."""
BATCH_COUNT: Final = 65536
BATCH_BYTES: Final = 1 << 20
RESTORES_MAX: Final = 100
"""Times that compaction may overtake a restoration before that is an error."""


class Built(NamedTuple):
    """A state that was built from the files.

    Attributes:
        state: after all entries below `sequence`.
        sequence: of the next entry.
        snapshot: the sequence of the snapshot that it began with; None: the initial state.
        log_bytes: of the entries after that.
    """

    state: Any
    sequence: int
    snapshot: int | None = None
    log_bytes: int = 0


class Stopped(Exception):
    """An entry could not be applied; its cause tells why.

    Attributes:
        sequence: of the entry.
        is_certain: it was tried again, and refused again.
    """

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.is_certain = False


class Builder:
    """Builds states from snapshots and entries.

    Args:
        queue: of the entries.
        machine: of the journal.
        codec: of its entries.
        snapshots: of the journal.
    """

    def __init__(
        self, queue: Queue, machine: Machine[Any], codec: EntryCodec, snapshots: Snapshots
    ) -> None:
        self._queue = queue
        self._opened = internals(queue)
        self._machine = machine
        self._apply = machine.apply
        self._apply_own: Callable[[Any, Any, int], Any] | None = getattr(machine, "apply_own", None)
        self._codec = codec
        self._decode, self._version = codec.decode, codec.version
        self.snapshots = snapshots
        self._refused: set[int] = set()

    def base(self, end: int | None = None) -> Built:
        """Return the newest state that no entry need be applied for.

        Args:
            end: no entry from here on may be in it; None: all may.

        Raises:
            CorruptSnapshot: entries were compacted away, and no snapshot can be read.
            Expired: the entries before the oldest snapshot were compacted away.
            NewerFormat: a later version of the machine wrote the snapshot.
        """
        for _ in range(RESTORES_MAX):
            with contextlib.suppress(SnapshotGone):  # compaction replaced it meanwhile
                return self._base(end)
        raise self._opened.readable().expired("call again: compaction was always faster")

    def _base(self, end: int | None) -> Built:
        refusal: errors.DamageError | None = None
        begun = self._queue.head_sequence  # before the listing
        for sequence in self.snapshots.sequences():
            if end is not None and sequence > end:
                continue
            try:
                loaded = self.snapshots.load(sequence, self._machine)
            except errors.DamageError as error:
                refusal = refusal or error
                if sequence not in self._refused:
                    self._refused.add(sequence)
                    log.warning("%s; the one before it is used, or the entries themselves", error)
                continue
            if sequence >= self._queue.head_sequence:
                return Built(loaded, sequence, sequence)
        head = self._queue.head_sequence
        if head == 0:
            return Built(self._machine.initial(), 0)
        if head != begun:  # compaction removed entries since, and so wrote a snapshot
            raise SnapshotGone
        if refusal is not None:
            raise errors.CorruptSnapshot(
                f"entries below {head} were compacted away; no snapshot can be read ({refusal})",
                path=self.snapshots.path,
                position=0,
                reason="no snapshot",
                sequence=head,
                remedy="restore a snapshot from a copy; the entries after it are intact",
            ) from refusal
        if end is not None:  # later snapshots may exist
            usable = [one for one in self.snapshots.sequences() if one >= head]
            raise self._opened.readable().expired(
                "ask for a later time: the oldest snapshot has all entries below "
                f"{min(usable, default=head)}"
            )
        raise errors.CorruptSnapshot(
            f"entries below {head} were compacted away, and there is no snapshot",
            path=self.snapshots.path,
            position=0,
            reason="no snapshot",
            sequence=head,
            remedy="restore a snapshot from a copy; the entries after it are intact",
        )

    def build(self, end: int | None = None) -> Built:
        """Return the state after all entries below a sequence, or all that are published.

        Raises:
            PoisonEntry: the machine raised.
        """
        for _ in range(RESTORES_MAX):
            base = self.base(end)
            try:
                return self.replay(base, end)
            except errors.Expired:
                continue  # compacted past meanwhile
            except Stopped as stopped:
                raise self.refusal(stopped) from stopped.__cause__
        return self.replay(self.base(end), end)

    def replay(self, base: Built, end: int | None = None) -> Built:
        """Return the state after the entries that follow a state, in batches.

        Raises:
            Stopped: an entry could not be applied; `base.state` may be half changed.
            Expired: the entries were compacted away.
        """
        state, sequence, snapshot, log_bytes = base
        decode, apply, version = self._decode, self._apply, self._version
        with reading.replay(self._opened, None, None, sequence, end, None) as entries:
            while (batch := entries.read_batch(BATCH_COUNT, BATCH_BYTES)) is not None:
                log_bytes += int(batch.lengths.sum())
                times = batch.timestamps.tolist()
                for payload, timestamp in zip(batch.payloads, times, strict=True):
                    try:
                        written, entry = decode(payload)
                        if written != version:
                            entry = self._codec.upcast(written, entry, sequence)
                        after = apply(state, entry, timestamp)
                    except MemoryError:
                        raise
                    except Exception as error:
                        raise Stopped(sequence) from error
                    if after is not None:
                        state = after
                    sequence += 1
        return Built(state, sequence, snapshot, log_bytes)

    def refusal(self, stopped: Stopped) -> errors.PageQueueError:
        """Return the error for an entry that could not be applied."""
        cause = stopped.__cause__
        if isinstance(cause, errors.NewerFormat):
            return cause
        return errors.PoisonEntry(
            f"the machine refuses entry {stopped.sequence} ({type(cause).__name__}: {cause})",
            path=self._queue.directory,
            sequence=stopped.sequence,
            remedy="correct the machine so that it accepts this entry; until then every process "
            "stops before it",
        )


class Replica(Builder):
    """The state in this process; one thread at a time calls its methods.

    Attributes:
        state: after all entries below `sequence`.
        sequence: of the next entry.
        snapshot: the sequence of the snapshot that it was last restored from, or None.
        log_bytes: of the entries that were applied since then.
    """

    state: Any
    sequence: int
    snapshot: int | None
    log_bytes: int

    def __init__(
        self, queue: Queue, machine: Machine[Any], codec: EntryCodec, snapshots: Snapshots
    ) -> None:
        super().__init__(queue, machine, codec, snapshots)
        self._stopped: Stopped | None = None
        self._consumer = queue.consumer(latest=True)
        self._poll = self._consumer.poll
        self._is_ready = False  # what interrupts a change of state or consumer leaves it so
        self._restore()

    def _take(self, built: Built) -> None:
        self.state, self.sequence, self.snapshot, self.log_bytes = built

    def advance(self) -> int:
        """Apply all entries that were published; return how many there were.

        Raises:
            PoisonEntry: the machine raised; the state is that before the entry.
            NewerFormat: a later version of the machine wrote an entry or the snapshot.
            CorruptSnapshot: entries were compacted away, and no snapshot can be read.
            CorruptFrame, CorruptPage, MissingPage: the log is damaged.
        """
        begun = self.sequence
        if not self._is_ready:
            self._recover()
        self._is_ready = False
        poll = self._poll
        try:
            message = poll()
            if message is not None:
                decode, apply, version = self._decode, self._apply, self._version
                count = 0
                while message is not None:
                    payload = message.payload
                    try:
                        written, entry = decode(payload)
                        if written != version:
                            entry = self._codec.upcast(written, entry, self.sequence)
                        after = apply(self.state, entry, message.timestamp)
                    except MemoryError:
                        raise
                    except Exception as error:
                        raise Stopped(self.sequence) from error
                    if after is not None:
                        self.state = after
                    self.sequence += 1
                    self.log_bytes += len(payload)
                    count += 1
                    if count % ONE_BY_ONE == 0 and self._consumer.lag > ONE_BY_ONE:
                        self._advance_far()
                    message = poll()
        except (errors.PageQueueError, Stopped) as error:
            self._resolve(error)
        self._is_ready = True
        return self.sequence - begun

    def advance_own(self, entry: Any, payload_bytes: int) -> None:  # noqa: ANN401 - of the machine
        """Apply the entry that was just appended at the sequence that this state has.

        Args:
            entry: as it was encoded.
            payload_bytes: of the result.

        Raises:
            As for `advance`.
        """
        apply_own = self._apply_own
        if apply_own is None:
            self.advance()
            return
        self._is_ready = False
        try:
            message = self._poll()
            assert message is not None
            try:
                after = apply_own(self.state, entry, message.timestamp)
            except MemoryError:
                raise
            except Exception as error:
                raise Stopped(self.sequence) from error
            if after is not None:
                self.state = after
            self.sequence += 1
            self.log_bytes += payload_bytes
        except (errors.PageQueueError, Stopped) as error:
            self._resolve(error)
        self._is_ready = True

    def doubt(self) -> None:
        """Build the state again before its next use."""
        self._is_ready = False

    def _resolve(self, error: errors.PageQueueError | Stopped) -> None:
        """Continue after what kept entries from being applied, or raise it."""
        if isinstance(error, Stopped):  # at the state before the entry
            # Once, it can have been a signal handler that raised, and not the machine.
            known = self._stopped
            error.is_certain = known is not None and known.sequence == error.sequence
            self._take(self._built_up_to(error.sequence))
            self._stopped = error
            raise self.refusal(error) from error.__cause__
        if not isinstance(error, errors.Expired):  # the consumer's: the state is whole
            self._is_ready = self._consumer.sequence == self.sequence
            raise error
        self._restore()  # compaction removed what was not read yet

    def _advance_far(self) -> None:
        """Apply what was published in batches."""
        self._consumer.seek(latest=True)  # elsewhere: an interrupted replay leaves a changed state
        self._take(self.replay(Built(self.state, self.sequence, self.snapshot, self.log_bytes)))
        self._consumer.seek(sequence=self.sequence)

    def _recover(self) -> None:
        """Continue after an interruption, which may have left a half-changed state.

        Raises:
            PoisonEntry, NewerFormat: the machine refuses the next entry.
        """
        stopped = self._stopped
        if (
            stopped is not None
            and stopped.is_certain
            and stopped.sequence == self.sequence
            and self._queue.head_sequence <= self.sequence
        ):
            raise self.refusal(stopped) from stopped.__cause__
        self._take(self._built_up_to(self.sequence))
        try:
            self._consumer.seek(sequence=self.sequence)
        except errors.Expired:
            self._restore()

    def _restore(self) -> None:
        """Continue at the newest state; the entries after this one were compacted away."""
        for _ in range(RESTORES_MAX):
            self._take(self.build())
            with contextlib.suppress(errors.Expired):
                self._consumer.seek(sequence=self.sequence)
                self._is_ready = True
                return
        raise self._opened.readable().expired("call again: compaction was always faster")

    def _built_up_to(self, end: int) -> Built:
        """Return the state up to a sequence; a later one if compaction passed that."""
        try:
            return self.build(end)
        except errors.Expired:
            return self.build()
