"""Bugs of journals and their snapshots; each function plants one, as in `patches.py`."""

from __future__ import annotations

from pagequeue.journal import compaction, journal, snapshots
from stress.plants.plant import JOURNAL, JOURNAL_CUT, TASK, in_python
from stress.plants.rewrite import rewrite

JOURNALING = (
    in_python(
        "snapshot_before_flush",
        "a snapshot gets its name before the log is flushed",
        "I22, a state of entries that a cut took",
        {JOURNAL: 40.0, JOURNAL_CUT: 90.0},
    ),
    in_python(
        "snapshot_beyond_tail_believed",
        "a snapshot of entries that the log does not have is used",
        "I22, two histories",
        {JOURNAL: 40.0, JOURNAL_CUT: 60.0},
    ),
    in_python(
        "pin_before_rename",
        "the log is let go before the snapshot that replaces it has its name",
        "J4, entries gone without a snapshot",
        {JOURNAL: 40.0, JOURNAL_CUT: 60.0},
    ),
    in_python(
        "snapshot_not_flushed",
        "a snapshot gets its name before its own pages are on disk",
        "I22, no snapshot after a cut",
        {JOURNAL: 60.0, JOURNAL_CUT: 90.0},
    ),
    in_python(
        "log_kept_for_the_newest_only",
        "the log is kept from the newest snapshot on",
        "J4, a damaged snapshot has no one before it",
        {JOURNAL: 20.0},
    ),
    in_python(
        "digest_unchecked",
        "the digest of a snapshot is not compared",
        "I22, a state that no entries lead to",
        {JOURNAL: 80.0},
    ),
    in_python(
        "update_not_conditional",
        "an update is appended whoever came first",
        "I21, decided on another state",
        {JOURNAL: 20.0, TASK: 20.0},
    ),
)


def snapshot_before_flush() -> None:
    """The log is left as it is."""
    rewrite(
        compaction.Compactor,
        "_flush",
        ("if self._queue.durable_sequence < sequence:", "if False:"),
    )


def snapshot_beyond_tail_believed() -> None:
    """Neither the tail nor the entry before it is compared."""
    rewrite(
        snapshots.Snapshots,
        "_check_place",
        ("if sequence > tail:", "if False:"),
        ("found = last_entry(self._store, sequence)", "found = None"),
    )


def pin_before_rename() -> None:
    """The consumer moves first."""
    rewrite(
        compaction.Compactor,
        "run",
        (
            "written = self._commit(sequence, state)",
            "pin.seek(sequence=sequence); written = self._commit(sequence, state)",
        ),
    )


def snapshot_not_flushed() -> None:
    """Its pages may never reach the disk."""
    rewrite(snapshots.Snapshots, "_write", ("producer.flush()", "pass"))


def log_kept_for_the_newest_only() -> None:
    """The older ones have no entries to continue with."""
    rewrite(compaction.Compactor, "_trim", ("kept[-1] if has_all", "kept[0] if has_all"))


def digest_unchecked() -> None:
    """Whatever is there will do."""
    rewrite(snapshots.Snapshots, "_is_digest", ("return stored == computed", "return True"))


def update_not_conditional() -> None:
    """The entry gets whichever sequence is next."""
    rewrite(journal.Journal, "_attempt", ("send(payload, at=at)", "send(payload)"))
