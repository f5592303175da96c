"""Journals: a log of entries as the truth, and the state that they lead to, in every process.

from pagequeue.journal import Journal

with Journal("accounts", Accounts()) as journal:
    journal.update(lambda state: {"account": "ann", "amount": 5})
"""

from pagequeue.journal.compaction import CompactionReport
from pagequeue.journal.info import JournalInfo, journal_info
from pagequeue.journal.journal import Journal
from pagequeue.journal.machine import Machine
from pagequeue.journal.report import JournalReport
from pagequeue.journal.snapshots import SnapshotInfo

__all__ = [
    "CompactionReport",
    "Journal",
    "JournalInfo",
    "JournalReport",
    "Machine",
    "SnapshotInfo",
    "journal_info",
]
