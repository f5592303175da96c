"""What salvage copies beside the messages: the ledger, and the snapshots of a journal.

Both name sequences, so what they say holds in the new queue only as far as messages kept theirs, or
where the report of the copied runs translates them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.integrity.problem import Problem
from pagequeue.meta.ledger import (
    ENTRY,
    published_name,
    read_record,
    sending_name,
    write_record,
)
from pagequeue.system.directory import Directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pagequeue.integrity.inspection import Inspection
    from pagequeue.store.store import Store


class Run(NamedTuple):
    """Consecutive messages of the old queue that are consecutive in the new one.

    Attributes:
        first: old sequence of the first.
        last: old sequence of the last, inclusive.
        target_first: new sequence of the first.

    Example:
        >>> Run(first=100, last=199, target_first=40).target_first  # of message 100
        40
    """

    first: int
    last: int
    target_first: int


def copy_beside(
    found: Inspection, runs: Sequence[Run], target: Store, notes: list[Problem]
) -> None:
    """Copy ledger and snapshots into the new queue; note what is left out."""
    _copy_ledger(found, runs, target, notes)
    if target.schema.is_journal:
        _copy_snapshots(found, runs, target, notes)


# --- the ledger -----------------------------------------------------------------------------------


def _copy_ledger(
    found: Inspection, runs: Sequence[Run], target: Store, notes: list[Problem]
) -> None:
    folder, prefix = found.folder, target.prefix
    head = found.head_sequence or 0
    begin = published_name(prefix, "")
    for name in sorted(folder.names()):
        if name == sending_name(prefix):
            reason = "a writer was publishing: look in the copy for its last piece of work"
            notes.append(Problem(folder.full(name), None, None, reason))
        if not (name.startswith(begin) and ENTRY.fullmatch(name, len(begin))):
            continue
        try:
            entry = read_record(folder, name)
        except errors.PageQueueError as error:
            reason = f"not copied: {error.problem}"
            notes.append(Problem(folder.full(name), None, None, reason))
            continue
        if entry is None:
            continue
        entry["done"], lost = _translated(entry["done"], runs, head)
        if lost:
            pieces = ", ".join(map(str, lost))
            reason = f"its messages are lost, so it counts as not published: piece {pieces}"
            notes.append(Problem(folder.full(name), None, None, reason))
        write_record(target.folder, name, entry)


def _translated(
    done: list[list[int]], runs: Sequence[Run], head: int
) -> tuple[list[list[int]], list[int]]:
    """Return pieces of work with their new sequences, and the numbers of those that are lost.

    What retention removed keeps its sequences, which no message of the new queue has.
    """
    kept, lost = [], []
    for piece, start, stop in done:
        shift = next(
            (run.target_first - run.first for run in runs if run.first <= start < run.last + 1),
            None,
        )
        ends = any(run.first < stop <= run.last + 1 for run in runs)
        whole = any(run.first <= start and stop <= run.last + 1 for run in runs)
        if start == stop or stop <= head:
            kept.append([piece, start, stop])
        elif whole and shift is not None:
            kept.append([piece, start + shift, stop + shift])
        elif start < head and ends:  # retention removed its begin
            kept.append([piece, start, stop])
        else:
            lost.append(piece)
    return kept, lost


# --- the snapshots of a journal -------------------------------------------------------------------


def _copy_snapshots(
    found: Inspection, runs: Sequence[Run], target: Store, notes: list[Problem]
) -> None:
    """Copy the snapshots of entries that kept their sequences; the journal checks each one."""
    head = found.head_sequence or 0
    end = head
    for run in runs:
        if run.first != end or run.target_first != run.first:
            break
        end = run.last + 1
    name = fmt.journal_name(target.prefix)
    source = found.folder.full(name)
    snapshots = _snapshots(found, source)
    if snapshots:
        folder = target.folder
        Directory(
            folder.full(name),
            create=True,
            file_mode=folder.file_mode,
            trust=folder.trust,
            within=folder,
        ).close()
    for snapshot in snapshots:
        sequence = int(snapshot.rpartition("-")[2])
        path = f"{source}/{snapshot}"
        if sequence > end:
            reason = f"not copied: entries from {end} on are lost, which it includes"
            notes.append(Problem(path, None, sequence, reason))
            continue
        try:
            Directory(path, create=False, read_only=True, trust=found.folder.trust).close()
            copy = target.folder.full(f"{name}/{snapshot}")
            shutil.copytree(path, copy, symlinks=True)
            target.folder.ownership.give_tree(copy)
        except (OSError, errors.PageQueueError) as error:
            notes.append(Problem(path, None, sequence, f"not copied: {error}"))


def _snapshots(found: Inspection, path: str) -> list[str]:
    try:
        folder = Directory(path, create=False, read_only=True, trust=found.folder.trust)
    except errors.QueueNotFound:
        return []
    try:
        return sorted(filter(fmt.JOURNAL_SNAPSHOT.fullmatch, folder.names()))
    finally:
        folder.close()
