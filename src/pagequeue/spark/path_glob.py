"""Which queues a path means: a directory, a glob of directories, or several of both.

A queue is a directory and a prefix. Its name, in the column `queue` and in offsets, is its absolute
path; a prefix other than `queue` follows it after a `#`.
"""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from pagequeue import errors
from pagequeue import format as fmt
from pagequeue.meta.all_meta import another_queue, read_all_meta
from pagequeue.queue.queue import Queue, internals
from pagequeue.system.directory import Directory
from pagequeue.system.trust import trusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from pagequeue.spark.options import ReadOptions
    from pagequeue.util.literals import Trust

USUAL: Final = "queue"


class Found(NamedTuple):
    """A queue, by where it is.

    Attributes:
        directory: its absolute path.
        prefix: of its file names.
        trust: as for `Queue`.
        queue_id: in hexadecimal, if it was open before; another queue in its place is not it.
    """

    directory: str
    prefix: str
    trust: tuple[Trust, ...] = ()
    queue_id: str = ""

    @property
    def name(self) -> str:
        """What the queue is called in the column `queue`, and in offsets."""
        usual = self.prefix == USUAL
        return self.directory if usual else f"{self.directory}#{self.prefix}"

    def open(self) -> Queue:
        """Open it to read: no byte is written, no producer ever waits for it.

        Raises:
            QueueNotFound: it is not there. QueueReplaced: another queue is in its place.
        """
        queue = Queue(self.directory, prefix=self.prefix, read_only=True, trust=self.trust)
        if self.queue_id and (found := id_of(queue)) != self.queue_id:
            queue.close()
            remedy = "read again; a stream needs a new checkpoint"
            raise another_queue(self.directory, "what was planned", self.queue_id, found, remedy)
        return queue

    def known(self, queue: Queue) -> Found:
        """Return the same, with the id of the queue, which is open."""
        return self._replace(queue_id=id_of(queue))

    def dtype(self) -> np.dtype[np.void] | None:
        """Return the dtype of its records, by one small file; None: messages are of any size."""
        folder = Directory(
            self.directory, create=False, read_only=True, trust=trusted(self.trust, self.directory)
        )
        try:
            return read_all_meta(folder, self.prefix).schema.dtype
        finally:
            folder.close()


def find(options: ReadOptions) -> list[Found]:
    """Return the queues that the options mean, sorted by name, each once.

    Raises:
        QueueNotFound: a path that is not a glob has no queue. A glob may match none.
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
    """Open the queues of the options one after the other; each is closed before the next.

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
            yield found.known(queue), queue


def id_of(queue: Queue) -> str:
    """Return the id of a queue, in hexadecimal."""
    return internals(queue).store.meta.queue_id.hex()


def end_of(queue: Queue, options: ReadOptions) -> int:
    """Return the end of a read of a queue that begins now, exclusive."""
    tail = queue.tail_sequence
    return min(tail, queue.durable_sequence) if options.durable_only else tail


def one_dtype(found: list[Found]) -> np.dtype[np.void] | None:
    """Return the dtype of all queues; None: messages have any size, or no queue exists.

    Raises:
        DtypeMismatch: they have different ones.
    """
    if not found:
        return None
    first = found[0].dtype()
    for other in found[1:]:
        dtype = other.dtype()
        if dtype != first:
            raise errors.DtypeMismatch(
                f"{_dtype_text(dtype)}, and {found[0].name} {_dtype_text(first)}: "
                "one table has one of them; read the queues apart, or give a schema of columns "
                "that both have, payload for one",
                path=other.name,
                dtype=first,
            )
    return first


def _dtype_text(dtype: np.dtype[np.void] | None) -> str:
    return "has messages of any size" if dtype is None else f"has records of dtype {dtype}"


def _queues(directory: str, options: ReadOptions) -> list[Found]:
    """Return the queues in one directory."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        Found(directory, prefix, options.trust)
        for prefix in fmt.queues_in(names)
        if fnmatchcase(prefix, options.prefix)
    ]
