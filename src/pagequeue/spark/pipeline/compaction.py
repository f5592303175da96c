"""Compaction: many small files of an hour become few, and no reader that holds a lock misses a row.

    # C1. The hour's directory is copied next to the table: consecutive small files
    #     are one file in it, the others are the same files by another link. All of it is synced.
    #     Dies here: the next one removes it.
    # C2. The two directories exchange their names, which the system does at once.
    #     Dies here: the old one is what the next one removes.
    # C3. A moment later the old one is removed.

A reader that has listed the old directory and opens its files after C3 is told that a file is gone,
and reads again; it never gets wrong rows. One that has opened the directory before C2, and lists it
after C3, would find no file in it, and miss the hour: that is what the moment is for. One that
lists before C2, and then looks for the files by path, as pyarrow and Spark do, leaves out what is
not there and misses the hour as well: `reading` postpones compaction by a lock, which `replay` and
`profile` hold. On a file system that does not exchange directories there is no compaction.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import errors
from pagequeue.spark.pipeline import table_layout
from pagequeue.spark.pipeline.directories import exchange, lock_on, sync_all
from pagequeue.spark.pipeline.publish import copy_rows
from pagequeue.system.directory import sync_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: logging.Logger = logging.getLogger("pagequeue")
FILE_BYTES: Final = 128 << 20
SAVED_OPEN: Final = 8
"""An hour that grows is compacted only when it has so many files less afterwards."""
JOBS_MAX: Final = 64
LISTING_SECONDS: Final = 1.0
"""So long a reader may take to list a directory that it has opened."""


class Job(NamedTuple):
    """What one task does.

    Attributes:
        old: path of the hour's directory.
        new: path of what takes its place.
        groups: files that become one, in order.
        saved: how many files less there are.
    """

    old: str
    new: str
    groups: tuple[tuple[table_layout.Stored, ...], ...]
    saved: int


class Compactor:
    """Compacts a table; only its publisher may have one.

    Args:
        table: its path.
        file_bytes: about so large a file becomes.
    """

    def __init__(self, table: str, file_bytes: int = FILE_BYTES) -> None:
        self._table = table
        self._file_bytes = file_bytes
        self._hours = {hour.directory: hour for hour in table_layout.hours(table)}
        self._cannot = False

    def grown(self, directories: tuple[str, ...]) -> None:
        """Note hours that have more files."""
        self._hours.update(
            {directory: table_layout.hour_of(directory) for directory in directories}
        )

    def compact(self, spark: SparkSession) -> int:
        """Compact the hours that are worth it; return how many files less there are."""
        jobs = self._jobs()
        saved = 0
        for first in range(0, len(jobs), JOBS_MAX):
            some = jobs[first : first + JOBS_MAX]
            spark.sparkContext.parallelize(some, len(some)).foreach(merge)
            path = table_layout.work_path(self._table, table_layout.READERS)
            before = saved
            with contextlib.closing(lock_on(path, writable=True)) as lock:
                try:
                    with lock.exclusive(0, "compacting"):
                        saved += sum(self._exchange(job) for job in some)
                except errors.LockTimeout:
                    log.info("%s: is being read, so compaction waits", self._table)
            if saved > before:
                time.sleep(LISTING_SECONDS)
            for job in some:
                shutil.rmtree(job.new, ignore_errors=True)
        return saved

    def _jobs(self) -> list[Job]:
        """Return the hours worth compacting; others are skipped until they grow."""
        if self._cannot:
            return []
        newest: dict[str, int] = {}
        for hour in self._hours.values():
            newest[hour.queue] = max(newest.get(hour.queue, 0), hour.start)
        jobs = []
        for hour in list(self._hours.values()):
            found = table_layout.files(self._table, hour)
            groups = groups_of(found, self._file_bytes)
            saved = len(found) - len(groups)
            is_open = hour.start == newest[hour.queue]
            if saved >= (SAVED_OPEN if is_open else 1):
                old = os.path.join(self._table, hour.directory)
                name = table_layout.COMPACTING + uuid.uuid4().hex
                jobs.append(Job(old, table_layout.work_path(self._table, name), groups, saved))
            elif not is_open:
                del self._hours[hour.directory]
        return jobs

    def _exchange(self, job: Job) -> int:
        if self._cannot or not exchange(job.new, job.old):
            if not self._cannot:
                log.warning(
                    "%s: this file system does not exchange directories: no compaction",
                    self._table,
                )
            self._cannot = True
            return 0
        sync_path(os.path.dirname(job.old))
        sync_path(os.path.dirname(job.new))
        return job.saved


def groups_of(
    found: list[table_layout.Stored], file_bytes: int
) -> tuple[tuple[table_layout.Stored, ...], ...]:
    """Return files in groups of neighbours that become one file; large ones stay by themselves."""
    groups: list[list[table_layout.Stored]] = []
    room = 0
    for file in found:
        if file.size_bytes <= room and file.size_bytes < file_bytes // 2:
            groups[-1].append(file)
            room -= file.size_bytes
        else:
            groups.append([file])
            room = file_bytes - file.size_bytes if file.size_bytes < file_bytes // 2 else 0
    return tuple(map(tuple, groups))


def merge(job: Job) -> None:
    """Write an hour's new directory (C1), in a task; a repeated task starts over."""
    shutil.rmtree(job.new, ignore_errors=True)
    os.mkdir(job.new)
    made = []
    for group in job.groups:
        names = [os.path.basename(file.path) for file in group]
        sources = [os.path.join(job.old, name) for name in names]
        target = os.path.join(job.new, table_layout.file_name(group[0].first, group[-1].end))
        if len(group) == 1:
            os.link(sources[0], target)
        else:
            copy_rows(sources, target)
            made.append(target)
    sync_all([*made, job.new])
