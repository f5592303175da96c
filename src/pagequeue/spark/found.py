"""Which queues a path means: a directory, a glob of directories, or several of both.

A queue is a directory and a prefix. Its name, in the column `queue` and in offsets, is its absolute
path; where the prefix is not `queue`, that follows behind a `#`.
"""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pagequeue.spark.options import ReadOptions

USUAL: Final = "queue"
META: Final = fmt.all_meta_name("")


class Found(NamedTuple):
    """A queue, by where it is.

    Attributes:
        directory: its absolute path.
        prefix: of its file names.
        trust: as for `Queue`.
    """

    directory: str
    prefix: str
    trust: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the queue is called in the column `queue`, and in offsets."""
        usual = self.prefix == USUAL
        return self.directory if usual else f"{self.directory}#{self.prefix}"

    def open(self) -> Queue:
        """Open it to read: no byte is written, no producer ever waits for it."""
        return Queue(self.directory, prefix=self.prefix, read_only=True, trust=self.trust)


def find(options: ReadOptions) -> list[Found]:
    """Return the queues that the options mean, sorted by name, each once.

    Raises:
        QueueNotFound: a path that is no glob has no queue. A glob may match none.
    """
    found: set[Found] = set()
    for path in options.paths:
        is_glob = glob.has_magic(path) or glob.has_magic(options.prefix)
        there: set[Found] = set()
        for directory in glob.glob(path) if glob.has_magic(path) else [path]:
            there.update(_queues(os.path.abspath(directory), options))
        if not there and not is_glob:
            raise errors.QueueNotFound(
                f"no queue with prefix {options.prefix!r} here: check path and prefix",
                path=os.path.abspath(path),
            )
        found |= there
    return sorted(found)


def open_each(options: ReadOptions) -> Iterator[tuple[Found, Queue]]:
    """Open the queues that the options mean, one after the other; each is closed behind its turn.

    One that a glob matches while it is being made has no message yet, and is left out.

    Raises:
        QueueNotFound: as `find`.
    """
    for found in find(options):
        try:
            queue = found.open()
        except errors.QueueNotFound:
            if not options.is_glob:
                raise
            continue
        with queue:
            yield found, queue


def _queues(directory: str, options: ReadOptions) -> list[Found]:
    """Return the queues in one directory."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    prefixes = [name.removesuffix(META) for name in names if name.endswith(META)]
    return [
        Found(directory, prefix, options.trust)
        for prefix in prefixes
        if fnmatchcase(prefix, options.prefix) and fmt.PREFIX_PATTERN.fullmatch(prefix)
    ]
