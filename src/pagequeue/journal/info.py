"""What a journal's files tell without its machine."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagequeue import errors
from pagequeue.journal.snapshots import SnapshotGone, SnapshotInfo, Snapshots
from pagequeue.queue.queue import Queue, internals

if TYPE_CHECKING:
    import os

    from pagequeue.util.literals import Trusted


@dataclass(frozen=True)
class JournalInfo:
    """A journal at one time.

    Attributes:
        directory: its path.
        prefix: of its file names.
        codec: of its entries.
        head_sequence: of the first entry that is retained.
        tail_sequence: of the next entry.
        durable_sequence: of the first entry that is not known to be on stable storage.
        log_bytes: allocated on disk for the queue of entries.
        page_count: retained pages of it.
        snapshots: that can be read, newest first.
        problems: of snapshots that cannot, each as a sentence.
        entries_to_apply: entries after the newest snapshot that can be read, which opening applies.

    Example:
        >>> journal_info("accounts").entries_to_apply
        1000
    """

    directory: str
    prefix: str
    codec: str
    head_sequence: int
    tail_sequence: int
    durable_sequence: int
    log_bytes: int
    page_count: int
    snapshots: tuple[SnapshotInfo, ...]
    problems: tuple[str, ...]
    entries_to_apply: int


def journal_info(
    directory: str | os.PathLike[str], *, prefix: str = "queue", trust: Trusted = ()
) -> JournalInfo:
    """Return what a journal's files tell, without its machine, and without writing a byte.

    All snapshots are read and checked.

    Args:
        directory: as for `Journal`.
        prefix: as for `Journal`.
        trust: as for `Journal`.

    Raises:
        NotAJournal: the queue is not a journal's.
        QueueNotFound, DamageError, AccessError: the queue cannot be read.

    Example:
        >>> journal_info("accounts").tail_sequence
        1000
    """
    with Queue(directory, prefix=prefix, create=False, read_only=True, trust=trust) as queue:
        store = internals(queue).readable()
        check_journal_queue(queue)
        found, problems = [], []
        with contextlib.closing(Snapshots(store, trust)) as snapshots:
            for sequence in snapshots.sequences():
                try:
                    snapshots.check(sequence)
                    found.append(snapshots.info(sequence))
                except SnapshotGone:
                    pass
                except (errors.DamageError, errors.NewerFormat) as error:
                    problems.append(str(error))
        info = queue.info()
        usable = [one.sequence for one in found if one.sequence >= info.head_sequence]
        return JournalInfo(
            queue.directory,
            queue.prefix,
            queue.codec,
            info.head_sequence,
            info.tail_sequence,
            info.durable_sequence,
            info.file_bytes,
            info.page_count,
            tuple(found),
            tuple(problems),
            info.tail_sequence - max(usable, default=info.head_sequence),
        )


def check_journal_queue(queue: Queue) -> None:
    """Raise NotAJournal for an ordinary queue."""
    if not internals(queue).readable().schema.is_journal:
        raise errors.NotAJournal(
            "an ordinary queue, not a journal's",
            path=queue.directory,
            remedy="use the commands and classes for queues",
        )
