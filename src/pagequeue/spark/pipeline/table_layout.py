"""The table of an archive: the paths of its files, and the meaning of their names.

`queue=NAME/date=2026-01-31/hour=08/FIRST-END.parquet` holds the messages FIRST up to END, less END,
of one queue that were sent in that hour, UTC. No two files of a queue have a message in common, and
times of a queue never decrease, so the names alone show how far each queue is archived, without a
list that could differ. Work in progress is under `_archive`, where neither Spark nor Arrow reads
rows.
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote as percent
from urllib.parse import unquote

from pagequeue import errors
from pagequeue.util.timestamps import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WORK: Final = "_archive"
PUBLISHING: Final = "publishing"
STAGING: Final = "staging-"
COMPACTING: Final = "compacting-"
LOCK: Final = "lock"
READERS: Final = "readers"
CHECKPOINT: Final = "checkpoint"
QUEUE_IDS: Final = "queues.json"
"""The ids of the queues in the table: by its name one that was recreated is the same."""
HOUR_NS: Final = 3_600 * 10**9
HOUR: Final = re.compile(r"queue=([^/]+)/date=([\d-]+)/hour=(\d\d)", re.ASCII)
NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet", re.ASCII)
TRIES: Final = 50


class Hour(NamedTuple):
    """A directory of the table.

    Attributes:
        start: of the hour, ns since 1970, UTC.
        queue: whose messages it has.
        directory: its path below the table.
    """

    start: int
    queue: str
    directory: str


class Stored(NamedTuple):
    """A file of the table.

    Attributes:
        hour: its directory.
        first: the first sequence that it may hold.
        end: the one after the last.
        size_bytes: of the file.
    """

    hour: Hour
    first: int
    end: int
    size_bytes: int

    @property
    def path(self) -> str:
        """Its path below the table."""
        return os.path.join(self.hour.directory, file_name(self.first, self.end))


def file_name(first: int, end: int) -> str:
    """Return the name of the file for these messages."""
    return f"{first:020d}-{end:020d}.parquet"


def quote(queue: str) -> str:
    """Return a queue's name, quoted for the name of a directory."""
    return percent(queue, safe=" ")


def queue_of(queue_directory: str) -> str:
    """Return the name of the queue whose messages a directory `queue=NAME` has."""
    return unquote(queue_directory.partition("=")[2])


def work_path(table: str, *names: str) -> str:
    """Return a path below what is at work."""
    return os.path.join(table, WORK, *names)


def is_table(path: str) -> bool:
    """Whether `archive` made this directory."""
    return os.path.isdir(work_path(path))


def check_table(path: str) -> str:
    """Return the absolute path of a table.

    Raises:
        QueueNotFound: `archive` made none there.
    """
    table = os.path.abspath(path)
    if not is_table(table):
        raise errors.QueueNotFound(
            "no table that `archive` made: give the directory that it wrote to", path=table
        )
    return table


def hour_of(directory: str) -> Hour:
    """Return what a directory of the table is for, by its name.

    Raises:
        InvalidOption: it is not one of an archive.
    """
    match = HOUR.fullmatch(directory)
    try:
        if match is not None:
            start = datetime.fromisoformat(f"{match[2]}T{match[3]}:00Z") - EPOCH
            return Hour(start // timedelta(hours=1) * HOUR_NS, unquote(match[1]), directory)
    except ValueError:
        pass
    raise errors.InvalidOption(
        f"{directory!r} is not a directory of an archive", remedy="take it out of the table"
    )


def _below(table: str, directory: str, start: str) -> list[str]:
    """Return the directories that begin with something, sorted."""
    try:
        names = os.listdir(os.path.join(table, directory))
    except FileNotFoundError:
        return []
    return sorted(os.path.join(directory, name) for name in names if name.startswith(start))


def hours(table: str) -> Iterator[Hour]:
    """Give all directories of a table, of each queue in order of time."""
    for queue in _below(table, "", "queue="):
        for date in _below(table, queue, "date="):
            yield from map(hour_of, _below(table, date, "hour="))


def files(table: str, hour: Hour) -> list[Stored]:
    """Return the files of an hour, in order of sequence.

    Raises:
        InvalidOption: one is not of an archive.
    """
    found = []
    try:
        with os.scandir(os.path.join(table, hour.directory)) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                match = NAME.fullmatch(entry.name)
                if match is None:
                    raise errors.InvalidOption(
                        f"{entry.name!r} is not a file of an archive",
                        path=os.path.join(table, hour.directory),
                        remedy="take it out of the table",
                    )
                size_bytes = entry.stat().st_size
                found.append(Stored(hour, int(match[1]), int(match[2]), size_bytes))
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda stored: stored.first)


def last_end(table: str, queue_directory: str) -> int:
    """Return the end of a queue in the archive, exclusive; 0: it has none of its messages.

    Args:
        table: its path.
        queue_directory: `queue=NAME`, as in the table.
    """
    found = last_file(table, queue_directory)
    return 0 if found is None else found.end


def last_file(table: str, queue_directory: str) -> Stored | None:
    """Return the file with the last messages of a queue; None: the table has none."""
    for date in reversed(_below(table, queue_directory, "date=")):
        for directory in reversed(_below(table, date, "hour=")):
            found = files(table, hour_of(directory))
            if found:
                return found[-1]
    return None


def queue_ids(table: str) -> dict[str, str]:
    """Return the ids of the queues in a table, in hexadecimal, by their names.

    Raises:
        CorruptMeta: their file is damaged.
    """
    path = work_path(table, QUEUE_IDS)
    try:
        with open(path, "rb") as file:
            known = json.load(file)
    except FileNotFoundError:
        return {}  # a new table, or one that was made before tables had them
    except (ValueError, RecursionError):
        known = None
    if isinstance(known, dict) and all(isinstance(one, str) for one in known.values()):
        return known
    raise errors.CorruptMeta(
        "not the ids of queues",
        path=path,
        position=0,
        reason="not the ids of queues",
        remedy="restore it from a copy, or remove it: the queues that are there now count",
    )


def queues(table: str) -> dict[str, str]:
    """Return the directories of queues below a table, by the queues' names."""
    found = _below(table, "", "queue=")
    return {queue_of(directory): directory for directory in found}


def ends(table: str) -> dict[str, int]:
    """Return the end of each queue in the archive, exclusive."""
    return {name: last_end(table, directory) for name, directory in queues(table).items()}


def snapshot(table: str) -> list[Stored]:
    """Return all files of a table, none of a batch that is in part in its place.

    Lists again while files are being published, and until two listings are equal.

    Raises:
        LockTimeout: it changes all the time.
    """
    before: list[Stored] | None = None
    for _ in range(TRIES):
        if os.path.exists(work_path(table, PUBLISHING)):
            before = None
            continue
        found = [stored for hour in hours(table) for stored in files(table, hour)]
        if found == before:
            return found
        before = found
    raise errors.LockTimeout(
        "the table changed during every listing: call again, or run `archive` once, which finishes "
        "what a killed one has begun",
        path=table,
    )


def rows_in(stored: Iterable[Stored]) -> int:
    """Return how many messages files hold, at most."""
    return sum(file.end - file.first for file in stored)
